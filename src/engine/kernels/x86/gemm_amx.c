/* gemm_amx.c - products with bfloat16 weights on the matrix unit, as accurate as float32. */
enum { PARTS = 3 };
#define MATRIX_OPS kernels_amx
#include "engine/kernels/x86/gemm_amx.h"
