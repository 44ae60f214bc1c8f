/* ops_avx512vnni.c - forward products of 8-bit and 4-bit codes with VPDPBUSD.
 *
 * The left operand is rounded to 8 bits, 32 neighbors of a row with one scale.  A block of 32
 * products is then a sum of integers, which is exact in any order; it is converted to float32 once,
 * times both scales, and joins the chain of blocks in ascending order.  So the bits of an output
 * follow from its row and its column alone, as they do everywhere else.  Everything but these
 * formats is that of AVX-512. */
#include "engine/kernels/x86/simd_avx512.h"
#include "engine/kernels/tile_simd.h"
#include "engine/kernels/packed.h"
#include "engine/kernels/x86/sets.h"

#include <float.h>

/* Rows whose sums fit the registers beside two panels: one of integers and one of floats for each. */
enum { INT8_ROWS = 6 };

/* What makes codes of weights unsigned. */
TILE_PART int int8_offset(enum packed_dtype type)
{
    return type == PACKED_Q8_0_INT8 ? 128 : 8;
}

/* Integers, not floats, find the largest magnitude, so that a NaN is the largest and makes the
 * scale NaN; and a block of numbers too small for 127 / largest is zero. */
static void avx512_quantize(struct int8_row *dst, enum packed_dtype type, const float *src,
                            size_t K)
{
    const int offset = int8_offset(type);
    const ivec magnitude = _mm512_set1_epi32(0x7fffffff);
    for (size_t b = 0; b * INT8_BLOCK < K; b++) {
        size_t left = K - b * INT8_BLOCK, n = left < INT8_BLOCK ? left : INT8_BLOCK;
        const float *at = src + b * INT8_BLOCK;
        vec low = n < LANES ? vec_load_part(at, n) : vec_load(at), high = vec_zero();
        if (n > LANES)
            high = n < INT8_BLOCK ? vec_load_part(at + LANES, n - LANES) : vec_load(at + LANES);
        ivec bits = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                     _mm512_and_si512(_mm512_castps_si512(high), magnitude));
        int32_t largest_bits = _mm512_reduce_max_epi32(bits);
        float largest;
        memcpy(&largest, &largest_bits, sizeof largest);
        int zero = largest < 127 * FLT_MIN;
        vec inverse = vec_set1(zero ? 0 : 127 / largest);
        ivec a = _mm512_cvtps_epi32(vec_mul(low, inverse));
        ivec c = _mm512_cvtps_epi32(vec_mul(high, inverse));
        _mm_storeu_si128((__m128i *)(dst->code + b * INT8_BLOCK), _mm512_cvtsepi32_epi8(a));
        _mm_storeu_si128((__m128i *)(dst->code + b * INT8_BLOCK + LANES), _mm512_cvtsepi32_epi8(c));
        dst->scale[b] = zero ? 0 : largest / 127;
        /* unsigned, because a NaN becomes the smallest integer; its scale says that it was one */
        uint32_t sum = (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(a, c));
        dst->start[b] = (int32_t)(0u - (uint32_t)offset * sum);
    }
}

/* Four codes of a row in every lane. */
TILE_PART ivec int8_codes(const struct int8_row *row, size_t k)
{
    int32_t word;
    memcpy(&word, row->code + k, sizeof word);
    return _mm512_set1_epi32(word);
}

/* sum (mr,np) += the products of a word of np columns with inputs [k, k + 4) of the rows. */
TILE_PART void int8_step(size_t mr, size_t np, ivec *sum, const struct int8_row *a, size_t k,
                         const ivec *words)
{
#pragma GCC unroll 8
    for (size_t m = 0; m < mr; m++) {
        ivec x = int8_codes(&a[m], k);
#pragma GCC unroll 2
        for (size_t p = 0; p < np; p++)
            sum[m * np + p] = _mm512_dpbusd_epi32(sum[m * np + p], words[p], x);
    }
}

/* The sums of block b: 32 inputs. */
TILE_PART void int8_block(int bits, size_t mr, size_t np, ivec *sum, const struct int8_row *a,
                          const uint8_t *const *codes, size_t b)
{
    const size_t group = 32 / (size_t)bits;
    const ivec sign = _mm512_set1_epi8(-128), half = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (size_t k = 0; k < INT8_BLOCK; k += group) {
        size_t at = (b * INT8_BLOCK + k) / group * NR * 4;
        ivec words[2], upper[2];
#pragma GCC unroll 2
        for (size_t p = 0; p < np; p++) {
            ivec w = ivec_load(codes[p] + at);
            words[p] = bits == 8 ? _mm512_xor_si512(w, sign) : _mm512_and_si512(w, half);
            if (bits == 4)
                upper[p] = _mm512_and_si512(_mm512_srli_epi32(w, 4), half);
        }
        int8_step(mr, np, sum, a, b * INT8_BLOCK + k, words);
        if (bits == 4)
            int8_step(mr, np, sum, a, b * INT8_BLOCK + k + 4, upper);
    }
}

/* mr rows by np panels, both constants. */
TILE_PART void int8_run(int bits, size_t mr, size_t np, size_t K, const struct int8_row *a,
                        const uint8_t *panels, const struct tile_out *out)
{
    const struct quant_format f = { .bits = (uint8_t)bits, .block = QUANT_BLOCK };
    const size_t blocks = (K + INT8_BLOCK - 1) / INT8_BLOCK, scales = quant_scales(f, K);
    /* A panel is its scales, a row of 16 half-precision numbers for each block, then its codes. */
    const size_t next = scales + blocks * INT8_BLOCK * NR * (size_t)bits / 8;
    const uint8_t *codes[2] = { panels + scales, panels + next + scales };
    const char *fetch = out->fetch;
    vec acc[2 * INT8_ROWS];
    tile_begin(mr, np, acc, out);
    for (size_t b = 0; b < blocks; b++) {
        ivec sum[2 * INT8_ROWS];
        for (size_t i = 0; i < INT8_BLOCK && b * INT8_BLOCK + i + STEPS <= K; i += STEPS)
            fetch = tile_fetch(fetch, out->lines);
#pragma GCC unroll 12
        for (size_t i = 0; i < mr * np; i++)
            /* VPDPBUSD takes one factor without a sign, so the weights' codes are shifted by the
             * offset; start is minus what the shift adds to the sum. */
            sum[i] = _mm512_set1_epi32(a[i / np].start[b]);
        int8_block(bits, mr, np, sum, a, codes, b);
        vec scale[2];
#pragma GCC unroll 2
        for (size_t p = 0; p < np; p++)
            scale[p] = vec_load_f16(panels + p * next + b * NR * 2);
#pragma GCC unroll 12
        for (size_t i = 0; i < mr * np; i++)
            acc[i] = vec_fma(_mm512_cvtepi32_ps(sum[i]),
                             vec_mul(scale[i % np], vec_set1(a[i / np].scale[b])), acc[i]);
    }
    tile_store(mr, np, acc, out);
}

/* One case per number of rows and panels, each with code of its own. */
TILE_PART void int8_rows(int bits, size_t mr, size_t np, size_t K, const struct int8_row *a,
                         const uint8_t *b, const struct tile_out *out)
{
    /* The compiler keeps sums in registers only when both numbers are constants: mr * 2 + np names
     * the pair, for np is 1 or 2. */
    switch (mr * 2 + np) {
    case 3:
        int8_run(bits, 1, 1, K, a, b, out);
        break;
    case 4:
        int8_run(bits, 1, 2, K, a, b, out);
        break;
    case 5:
        int8_run(bits, 2, 1, K, a, b, out);
        break;
    case 6:
        int8_run(bits, 2, 2, K, a, b, out);
        break;
    case 7:
        int8_run(bits, 3, 1, K, a, b, out);
        break;
    case 8:
        int8_run(bits, 3, 2, K, a, b, out);
        break;
    case 9:
        int8_run(bits, 4, 1, K, a, b, out);
        break;
    case 10:
        int8_run(bits, 4, 2, K, a, b, out);
        break;
    case 11:
        int8_run(bits, 5, 1, K, a, b, out);
        break;
    case 12:
        int8_run(bits, 5, 2, K, a, b, out);
        break;
    case 13:
        int8_run(bits, 6, 1, K, a, b, out);
        break;
    default:
        int8_run(bits, 6, 2, K, a, b, out);
        break;
    }
}

/* The entry of struct weight_ops. */
TILE void avx512_tile_int8(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *a,
                           const void *b, const struct tile_out *out)
{
    if (type == PACKED_Q8_0_INT8)
        int8_rows(8, mr, np, K, a, b, out);
    else
        int8_rows(4, mr, np, K, a, b, out);
}

/* ops is a copy of kernels_avx512. */
void kernels_avx512vnni_fill(struct kernel_ops *ops)
{
    static const enum packed_dtype formats[] = { PACKED_Q8_0_INT8, PACKED_Q4_0_INT8 };
    ops->name = "avx512vnni";
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        ops->weights[formats[i]].rows = INT8_ROWS;
        ops->weights[formats[i]].tile = avx512_tile_int8;
        ops->weights[formats[i]].quantize = avx512_quantize;
    }
}
