/* gemm_rounded_amx.c - the same with the other factor rounded to bfloat16: a third of the products. */
enum { PARTS = 1 };
#define MATRIX_OPS kernels_amx_rounded
#include "engine/kernels/x86/gemm_amx.h"
