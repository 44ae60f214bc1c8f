/* gemm_rounded_amx.c - the same with the other factor rounded to bfloat16: a third of the products. */
/* One part keeps 8 bits of the left factor, the precision that the other factor has anyway. */
enum { PARTS = 1 };
#define MATRIX_OPS kernels_amx_rounded
#include "engine/kernels/x86/gemm_amx.h"
