/* kernels.h - the arithmetic of the engine: pure functions over pointers and sizes.
 *
 * No allocation, no globals but the chosen set, no threads of their own: a
 * kernel works on the slice [begin, end) that a thread was given.  The result of
 * an output element never depends on the slicing, so any thread count gives the
 * same bits.  Every fast kernel has a plain twin (ref_*) that stays as its oracle.
 * Matrices are row-major; N rows = tokens, C = inputs, O = outputs. */
#ifndef ENGINE_KERNELS_KERNELS_H
#define ENGINE_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A weight operand: a matrix (O, C) laid out once for fast multiplication in both directions.  Its
 * format is a tag; what a format needs is in one row of packed.h (layout) and of ops.h (kernels),
 * and nothing outside kernels/ asks for it. */
struct packed;
/* PACKED_BF16 multiplies as accurately as the same numbers would as PACKED_F32; with
 * PACKED_BF16_PAIRS the other factor may be rounded to bfloat16 too, where that is faster.  The
 * quantized formats mean the float32 numbers that source_to_float() gives for a block of theirs:
 * every product has the bits that PACKED_F32 would give with these numbers.  With the INT8 formats,
 * the same numbers, forward products may round the other factor to 8 bits, where that is faster:
 * 32 neighbors with one scale, so that a row's result depends on that row alone. */
enum packed_dtype {
    PACKED_F32,
    PACKED_BF16,
    PACKED_BF16_PAIRS,
    PACKED_Q8_0,
    PACKED_Q4_0,
    PACKED_Q4_K,
    PACKED_Q5_K,
    PACKED_Q6_K,
    PACKED_MXFP4,
    PACKED_Q8_0_INT8,
    PACKED_Q4_0_INT8,
    PACKED_TYPES
};
/* How weights lie in files: numbers, or blocks of GGUF (blocks.h). */
enum source_dtype {
    SOURCE_F32,
    SOURCE_F16,
    SOURCE_BF16,
    SOURCE_Q8_0,
    SOURCE_Q4_0,
    SOURCE_Q4_1,
    SOURCE_Q5_0,
    SOURCE_Q5_1,
    SOURCE_Q4_K,
    SOURCE_Q5_K,
    SOURCE_Q6_K,
    SOURCE_MXFP4,
    SOURCE_TYPES
};

/* The format that keeps weights of this source exactly in the least memory that we have for it. */
enum packed_dtype packed_native(enum source_dtype source);
const char *packed_name(enum packed_dtype type);

/* Bytes that packed_init() needs, and the packing itself into caller's memory
 * (64-byte aligned); w is (O, C) of the source type.  Numbers are rounded to the format, or
 * quantized (PACKED_Q8_0 and PACKED_Q4_0 only); blocks of the very format are kept as they are. */
size_t packed_bytes(enum packed_dtype type, size_t O, size_t C);
struct packed *packed_init(void *mem, enum packed_dtype type, const void *w,
                           enum source_dtype source, size_t O, size_t C);

/* The same in parts: first the header, then rows [begin, end) of w, by any threads;
 * begin and end are multiples of gemm_grain() or the edge of the matrix. */
struct packed *packed_begin(void *mem, enum packed_dtype type, size_t O, size_t C);
/* Where rows come from.  pairs is not 0 where a head of so many rows holds the two halves that
 * rope turns interleaved, as GGUF has them for some architectures: row h pairs + s pairs/2 + j of
 * the matrix is row h pairs + 2 j + s of the data. */
struct packed_source {
    const void *data;
    enum source_dtype dtype;
    size_t pairs;
};
void packed_fill(struct packed *p, const struct packed_source *from, size_t begin, size_t end);
/* Row o of a matrix is this row of the data. */
size_t packed_source_row(size_t pairs, size_t o);

/* Row o of the matrix as float32, C values: what an embedding lookup needs. */
void packed_row(float *out, const struct packed *w, size_t o);

float f32_from_f16(uint16_t h);
uint16_t f16_from_f32(float f); /* to nearest, ties to even; too large is infinite */
float f32_from_bf16(uint16_t b);
uint16_t bf16_from_f32(float f); /* to nearest, ties to even */

/* y (N,O) = x (N,C) W^T, or += with accumulate; columns [begin, end) of O only.
 * begin and end are multiples of gemm_grain() or the edge of the matrix. */
void gemm_forward(float *y, const float *x, const struct packed *w, size_t N, int accumulate,
                  size_t begin, size_t end);
/* dx (N,C) = dy (N,O) W, or +=; columns [begin, end) of C only. */
void gemm_backward(float *dx, const float *dy, const struct packed *w, size_t N, int accumulate,
                   size_t begin, size_t end);
size_t gemm_grain(void);

/* The same bits for many rows on many threads: the left operand of products with weights of w's
 * type is packed once, by all threads, and then read by every slice of columns.  For N rows of K
 * values of the summed index: the floats that the packed form takes (aligned to 64 bytes), and
 * the number of units in which it is packed. */
size_t gemm_left_floats(const struct packed *w, size_t N, size_t K);
size_t gemm_left_units(const struct packed *w, size_t N, size_t K);
/* Units [begin, end) of x (N,K), rows ld apart, for gemm_forward_left() or gemm_backward_left(). */
void gemm_left(float *left, const float *x, size_t ld, const struct packed *w, size_t N, size_t K,
               size_t begin, size_t end);
/* As above over [from, to) of the summed index, which is what left holds; from is a multiple
 * of gemm_left_step(), and so is `to` but at the edge. */
void gemm_forward_left(float *y, const float *left, const struct packed *w, size_t N,
                       int accumulate, size_t from, size_t to, size_t begin, size_t end);
void gemm_backward_left(float *dx, const float *left, const struct packed *w, size_t N,
                        int accumulate, size_t from, size_t to, size_t begin, size_t end);
size_t gemm_left_step(void);
/* Do products with a and b read the same packed form of a left operand? */
int gemm_same_left(const struct packed *a, const struct packed *b);
/* May gemm_backward_left() read it, too?  Not where forward products round and backward ones do
 * not. */
int gemm_left_turns(const struct packed *w);

/* Small dense products on unpacked matrices, for LoRA and weight gradients.
 * Rows [begin, end) of the output only. */
/* y (N,O) (+)= alpha * x (N,C) w (O,C)^T */
void dense_nt(float *y, const float *x, const float *w, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end);
/* y (N,O) (+)= alpha * x (N,C) w (C,O) */
void dense_nn(float *y, const float *x, const float *w, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end);
/* y (O,C) (+)= alpha * a (N,O)^T x (N,C); each element sums over N in ascending order */
void dense_tn(float *y, const float *a, const float *x, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end);

/* The same bits cut the other way, for outputs of few rows: columns [begin, end) only,
 * multiples of dense_panel() or the edge. */
size_t dense_panel(void);
void dense_nt_columns(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end);
void dense_tn_columns(float *y, const float *a, const float *x, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end);

/* The same bits in a few columns at a time, while they are in a cache because another product has
 * just left them there: x (N,C) is laid out first, in dense_left_floats() floats (aligned to 64
 * bytes), for all of them.  y += alpha * x w^T, and with `turned` w is (C,O); columns [begin, end),
 * which begin at a multiple of gemm_grain().  rounded: as below, with `turned` only, and only where
 * dense_adds_rounded(). */
size_t dense_left_floats(size_t N, size_t C);
void dense_left(float *left, const float *x, size_t N, size_t C, bool rounded);
void dense_add_left(float *y, const float *left, const float *w, size_t N, size_t O, size_t C,
                    float alpha, bool turned, bool rounded, size_t begin, size_t end);
bool dense_adds_rounded(void);

/* For gradients where speed was asked for (PACKED_BF16_PAIRS): both factors are rounded to bfloat16
 * where kernels_bf16_rounds(), else as above. */
void dense_nn_rounded(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end);
void dense_tn_rounded(float *y, const float *a, const float *x, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end);
void dense_tn_columns_rounded(float *y, const float *a, const float *x, size_t N, size_t O,
                              size_t C, float alpha, int accumulate, size_t begin, size_t end);
/* Do products with w round their other factor? */
bool gemm_rounds(const struct packed *w);

/* The plain twins of the above, double accumulation; w is (O, C) float32. */
void ref_gemm_nt(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                 float alpha, int accumulate);
void ref_gemm_nn(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                 float alpha, int accumulate);
void ref_gemm_tn(float *y, const float *a, const float *x, size_t N, size_t O, size_t C,
                 float alpha, int accumulate);

/* Which implementation was chosen: "amx", "avx512bf16", "avx512vnni", "avx512", "avx2",
 * "plain".
 * TINKER_KERNELS=name in the environment forces one (it must be supported by this CPU). */
const char *kernels_name(void);
/* Are products with PACKED_BF16 weights those with the same numbers as PACKED_F32 to the bit?  A
 * matrix unit sums in another order. */
int kernels_bf16_exact(void);
/* Do products with PACKED_BF16_PAIRS weights round their other factor?  And forward products with
 * the INT8 formats? */
int kernels_bf16_rounds(void);
int kernels_int8_rounds(void);

#endif
