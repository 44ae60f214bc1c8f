/* sets.h - the kernels of the x86 instruction sets, each compiled for its own (see FLAGS_FILE in
 * the Makefile).  Only code that has asked the CPU may call them. */
#ifndef ENGINE_KERNELS_X86_SETS_H
#define ENGINE_KERNELS_X86_SETS_H

#include "engine/kernels/attn.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/vec.h"

extern const struct kernel_ops kernels_avx2, kernels_avx512;
extern const struct attn_ops attn_avx2, attn_avx512, attn_avx512bf16;
extern const struct vec_ops vec_avx2, vec_avx512;

/* Parts of a set: what VPDPBUSD and VDPBF16PS replace in the AVX-512 kernels, and the matrix unit. */
void kernels_avx512vnni_fill(struct kernel_ops *ops);
void kernels_avx512bf16_fill(struct kernel_ops *ops);
extern const struct matrix_ops kernels_amx, kernels_amx_rounded;
void amx_dense(const struct dense *d, struct part part);

#endif
