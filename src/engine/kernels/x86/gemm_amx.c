/* gemm_amx.c - products with bfloat16 weights on the matrix unit, as accurate as float32. */
/* float32 = sum of three bfloat16 (8 + 8 + 8 bits of the 24), so three products recover what
 * float32 would have computed. */
enum { PARTS = 3 };
#define MATRIX_OPS kernels_amx
#include "engine/kernels/x86/gemm_amx.h"
