/* tile_weights.h - panels of weights in the words of simd_*.h: to float32, and quantized ones times
 * few rows.
 *
 * A word of codes becomes 4 (8 bits) or 8 (4 bits) vectors of
 * weights in registers, each the exact float32 number that the plain kernels find, and enters the
 * same chain of multiply-adds.  The format is a constant wherever these functions are inlined.
 * Activations stay float32: rounded to 8 bits they would be another function with another
 * gradient. */
#ifndef ENGINE_KERNELS_TILE_WEIGHTS_H
#define ENGINE_KERNELS_TILE_WEIGHTS_H

#include "engine/kernels/packed.h"
#include "engine/kernels/tile_simd.h"

/* struct weight_ops.expand of plain numbers. */
TILE void tile_expand_f32(float *dst, enum packed_dtype type, const void *panel, size_t K, size_t k,
                          size_t n)
{
    const float *b = (const float *)panel + k * NR;
    (void)type, (void)K;
    for (size_t i = 0; i < n * NR; i += LANES)
        vec_store(dst + i, vec_load(b + i));
}

/* From bfloat16 pairs [ceil(K/2)][16][2]. */
TILE void tile_expand_bf16(float *dst, enum packed_dtype type, const void *panel, size_t K,
                           size_t first, size_t n)
{
    const uint16_t *b = (const uint16_t *)panel + first * NR;
    (void)type, (void)K;
    for (size_t k = 0; k < n; k += 2, b += 2 * NR, dst += 2 * NR)
        for (size_t v = 0; v < PANEL_VECS; v++) {
            ivec words = ivec_load(b + v * LANES * 2);
            vec_store(dst + v * LANES, vec_bf16_even(words));
            if (k + 1 < n)
                vec_store(dst + NR + v * LANES, vec_bf16_odd(words));
        }
}

/* A quantized panel being read. */
struct quant_panel {
    struct quant_format f;
    const uint8_t *scales, *codes;
    size_t subs; /* of a column */
};

TILE_PART struct quant_panel quant_open(struct quant_format f, const void *panel, size_t K)
{
    size_t blocks = (K + QUANT_BLOCK - 1) / QUANT_BLOCK;
    return (struct quant_panel){ f, panel, (const uint8_t *)panel + quant_scales(f, K),
                                 blocks * (QUANT_BLOCK / f.block) };
}

/* Scale and negative minimum of vector v of the columns, at input k. */
TILE_PART void quant_scale(const struct quant_panel *p, size_t k, size_t v, vec *scale, vec *less)
{
    const uint8_t *bytes = p->scales + 4 * NR + v * LANES, *d = p->scales + 2 * v * LANES;
    *less = vec_zero();
    if (!p->f.super) {
        const uint8_t *at = d + k / QUANT_BLOCK * NR * 2;
        *scale = p->f.brain ? vec_load_bf16(at) : vec_load_f16(at);
        return;
    }
    const uint8_t *sub = bytes + k / p->f.block * NR;
    *scale = vec_mul(vec_load_f16(d), p->f.sub_signed ? vec_load_i8(sub) : vec_load_u8(sub));
    if (p->f.min) {
        const uint8_t *mins = bytes + (p->subs + k / QUANT_BLOCK) * NR;
        /* times -1, which turns the sign of a zero too */
        vec minus = vec_mul(vec_load_f16(d + 2 * NR), vec_set1(-1));
        *less = vec_mul(minus, vec_load_u8(mins));
    }
}

/* Inputs of one word. */
TILE_PART size_t quant_group(struct quant_format f)
{
    return 32 / f.bits;
}

/* The words of vector v of the columns that hold input k. */
TILE_PART ivec quant_words(const struct quant_panel *p, size_t k, size_t v)
{
    return ivec_load(p->codes + (k / quant_group(p->f) * NR + v * LANES) * 4);
}

/* Weight number j of a word: scale * value - min.  The product is exact, so that fused or not the
 * result is rounded once. */
TILE_PART vec quant_weight(struct quant_format f, ivec words, int j, const vec_table *values,
                           vec scale, vec less)
{
    vec value = f.bits == 8 ? vec_byte(words, j)
                            : vec_lookup(values, ivec_shift(words, j < 4 ? 8 * j : 8 * j - 28));
    return f.min ? vec_fma(scale, value, less) : vec_mul(scale, value);
}

/* dst [n][16] = inputs [k, k + n), see ops.h; in steps of 16, the smallest block. */
TILE_PART void tile_expand_format(float *dst, struct quant_format f, const void *panel, size_t K,
                                  size_t k, size_t n)
{
    struct quant_panel p = quant_open(f, panel, K);
    vec_table values = vec_table_load(quant_values[f.values]);
    const int group = (int)quant_group(f);
    for (size_t end = k + n; k < end; k += NR, dst += NR * NR)
#pragma GCC unroll 2
        for (size_t v = 0; v < PANEL_VECS; v++) {
            vec scale, less;
            quant_scale(&p, k, v, &scale, &less);
            for (size_t i = 0; i < NR; i += (size_t)group) {
                ivec words = quant_words(&p, k + i, v);
#pragma GCC unroll 8
                for (int j = 0; j < group; j++)
                    vec_store(dst + (i + (size_t)j) * NR + v * LANES,
                              quant_weight(f, words, j, &values, scale, less));
            }
        }
}

/* One block of `count` inputs from k on of a tile of mr rows. */
TILE_PART void tile_block_quant(const struct quant_panel *p, size_t mr, size_t np, vec *acc,
                                const float *a, size_t k, size_t count, const vec_table *values)
{
    const size_t nv = np * PANEL_VECS, group = quant_group(p->f);
    vec scale[4], less[4], row[4];
#pragma GCC unroll 4
    for (size_t v = 0; v < nv; v++)
        quant_scale(&p[v / PANEL_VECS], k, v % PANEL_VECS, &scale[v], &less[v]);
    for (size_t i = 0; i < count; i += group) {
        ivec words[4];
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            words[v] = quant_words(&p[v / PANEL_VECS], k + i, v % PANEL_VECS);
#pragma GCC unroll 8
        for (int j = 0; j < (int)group; j++) {
            if (i + (size_t)j >= count)
                break;
#pragma GCC unroll 4
            for (size_t v = 0; v < nv; v++)
                row[v] = quant_weight(p->f, words[v], j, values, scale[v], less[v]);
            tile_step(mr, nv, acc, a + (i + (size_t)j) * mr, row);
        }
    }
}

/* The tile of ops.h for a constant format, number of rows and number of panels. */
TILE_PART void tile_run_quant(struct quant_format f, size_t mr, size_t np, size_t K, const float *a,
                              const void *b, const struct tile_out *out)
{
    vec acc[16 * 4];
    struct quant_panel p[2];
    vec_table values = vec_table_load(quant_values[f.values]);
    const char *fetch = out->fetch;
    size_t bytes =
        quant_scales(f, K) + (K + QUANT_BLOCK - 1) / QUANT_BLOCK * QUANT_BLOCK * NR * f.bits / 8;
    for (size_t i = 0; i < np; i++)
        p[i] = quant_open(f, (const char *)b + i * bytes, K);
    tile_begin(mr, np * PANEL_VECS, acc, out);
    for (size_t k = 0; k < K; k += f.block) {
        size_t count = K - k < f.block ? K - k : f.block;
        for (size_t i = 0; i + STEPS <= count; i += STEPS)
            fetch = tile_fetch(fetch, out->lines);
        /* whole blocks, which are all but an odd end, have no test in their loop */
        if (count == f.block)
            tile_block_quant(p, mr, np, acc, a + k * mr, k, f.block, &values);
        else
            tile_block_quant(p, mr, np, acc, a + k * mr, k, count, &values);
    }
    tile_store(mr, np * PANEL_VECS, acc, out);
}

/* Each number of rows and panels that QUANT_ROWS allows has code of its own. */
TILE_PART void tile_format_quant(struct quant_format f, size_t mr, size_t np, size_t K,
                                 const float *a, const void *b, const struct tile_out *out)
{
    if (mr == 1 && np == 2)
        tile_run_quant(f, 1, 2, K, a, b, out);
    else if (mr == 1)
        tile_run_quant(f, 1, 1, K, a, b, out);
    else if (np == 2)
        tile_run_quant(f, 2, 2, K, a, b, out);
    else
        tile_run_quant(f, 2, 1, K, a, b, out);
}
enum { QUANT_ROWS = 2 }; /* tallest tile that expands in registers */

/* The entries of struct weight_ops: one case per format, so that each is compiled for itself. */
TILE void tile_quant(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *a,
                     const void *b, const struct tile_out *out)
{
    switch (type) {
    case PACKED_Q8_0:
    case PACKED_Q8_0_INT8:
        tile_format_quant(quant_format(PACKED_Q8_0), mr, np, K, a, b, out);
        break;
    case PACKED_Q4_0:
    case PACKED_Q4_0_INT8:
        tile_format_quant(quant_format(PACKED_Q4_0), mr, np, K, a, b, out);
        break;
    case PACKED_Q4_K:
        tile_format_quant(quant_format(PACKED_Q4_K), mr, np, K, a, b, out);
        break;
    case PACKED_Q5_K:
        tile_format_quant(quant_format(PACKED_Q5_K), mr, np, K, a, b, out);
        break;
    case PACKED_Q6_K:
        tile_format_quant(quant_format(PACKED_Q6_K), mr, np, K, a, b, out);
        break;
    default:
        tile_format_quant(quant_format(PACKED_MXFP4), mr, np, K, a, b, out);
        break;
    }
}

TILE void tile_expand_quant(float *dst, enum packed_dtype type, const void *panel, size_t K,
                            size_t k, size_t n)
{
    switch (type) {
    case PACKED_Q8_0:
    case PACKED_Q8_0_INT8:
        tile_expand_format(dst, quant_format(PACKED_Q8_0), panel, K, k, n);
        break;
    case PACKED_Q4_0:
    case PACKED_Q4_0_INT8:
        tile_expand_format(dst, quant_format(PACKED_Q4_0), panel, K, k, n);
        break;
    case PACKED_Q4_K:
        tile_expand_format(dst, quant_format(PACKED_Q4_K), panel, K, k, n);
        break;
    case PACKED_Q5_K:
        tile_expand_format(dst, quant_format(PACKED_Q5_K), panel, K, k, n);
        break;
    case PACKED_Q6_K:
        tile_expand_format(dst, quant_format(PACKED_Q6_K), panel, K, k, n);
        break;
    default:
        tile_expand_format(dst, quant_format(PACKED_MXFP4), panel, K, k, n);
        break;
    }
}

#endif
