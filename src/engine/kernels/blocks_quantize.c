/* blocks_quantize.c - from numbers to the block formats of GGUF.
 *
 * Plain C with one order of sums, so that a model quantized at load has the same weights on every
 * machine.  Q8_0, Q4_0 (without search) and Q5_0 round as the reference does; for the K formats any
 * choice of scales is a correct file, and these minimize a weighted squared error as it does. */
#include "engine/kernels/blocks.h"

#include <math.h>
#include <string.h>

typedef float float8 __attribute__((vector_size(32)));
typedef int32_t int8lanes __attribute__((vector_size(32)));

/* Steps are stored as IEEE half precision, little-endian, wherever the block begins. */
static void put_half(uint8_t *p, float f)
{
    uint16_t h = f16_from_f32(f);
    memcpy(p, &h, sizeof h);
}

/* The element of largest magnitude, with its sign; the first among equals. */
static float find_extreme(const float *x, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];
    return most;
}

/* A block of zeros has step 0; its codes are then 0, too, instead of NaN. */
static float invert_scale(float d)
{
    return d == 0 ? 0 : 1 / d;
}

/* A half-precision step and 32 signed bytes: 34 bytes, 8.5 bits per weight. */
static void quantize_q8_0(uint8_t *out, const float *x)
{
    float d = fabsf(find_extreme(x, 32)) / 127, id = invert_scale(d);
    put_half(out, d);
    for (size_t i = 0; i < 32; i++)
        out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * id);
}

/* Squared error of 32 weights in steps of d, codes -8 to 7: eight sums side by side, then their
 * sum, in one order. */
static float step_error(const float *x, float d)
{
    float id = invert_scale(d);
    float8 sum = { 0 };
    for (size_t i = 0; i < 32; i += 8) {
        float8 v;
        memcpy(&v, x + i, sizeof v);
        int8lanes q = __builtin_convertvector(v * id + 8.5f, int8lanes);
        q &= ~(q >> 31); /* not below 0, nor above 15 */
        int8lanes over = q > 15;
        q = (q & ~over) | (15 & over);
        float8 e = v - d * (__builtin_convertvector(q, float8) - 8);
        sum += e * e;
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* The largest weight need not be met exactly: among steps from 0.80 to 1.10 of what it asks for,
 * the one with the least error.  Candidates are float16 as they will be stored. */
static float search_step(const float *x, float widest)
{
    float best = f32_from_f16(f16_from_f32(widest)), least = step_error(x, best);
    for (int f = 80; f <= 110; f += 2) {
        float d = f32_from_f16(f16_from_f32(widest * ((float)f / 100)));
        float e = step_error(x, d);
        if (e < least) {
            least = e;
            best = d;
        }
    }
    return best;
}

/* Codes 0 to top of 32 weights, centered on (top + 1) / 2.  The reference multiplies in double. */
static void quantize_centered(uint8_t code[32], const float *x, float d, int top)
{
    double id = invert_scale(d), half = (top + 1) / 2 + 0.5;
    for (size_t i = 0; i < 32; i++) {
        int q = (int)trunc((double)x[i] * id + half);
        code[i] = (uint8_t)(q < 0 ? 0 : q > top ? top : q);
    }
}

/* A half-precision step and 16 bytes: 4.5 bits per weight. Byte i has weight i in its low half
 * and weight i + 16 in its high half, as ggml lays them out for SIMD. */
static void quantize_q4_0(uint8_t *out, const float *x, bool search)
{
    uint8_t code[32];
    float d = find_extreme(x, 32) / -8;
    if (search && isfinite(d))
        d = search_step(x, d);
    quantize_centered(code, x, d, 15);
    put_half(out, d);
    for (size_t i = 0; i < 16; i++)
        out[2 + i] = (uint8_t)(code[i] | code[i + 16] << 4);
}

/* As Q4_0, with the fifth bits of all 32 weights in one 32-bit word between step and halves. */
static void quantize_q5_0(uint8_t *out, const float *x)
{
    uint8_t code[32];
    uint32_t high = 0;
    float d = find_extreme(x, 32) / -16;
    quantize_centered(code, x, d, 31);
    put_half(out, d);
    for (size_t i = 0; i < 32; i++)
        high |= (uint32_t)(code[i] >> 4) << i;
    memcpy(out + 2, &high, sizeof high);
    for (size_t i = 0; i < 16; i++)
        out[6 + i] = (uint8_t)((code[i] & 15) | (code[i + 16] & 15) << 4);
}

/* Halves go to the even neighbor, as in ggml's nearest_int(). */
static int round_to(float x, int low, int high)
{
    int q = (int)lrintf(x);
    return q < low ? low : q > high ? high : q;
}

/* x ~ scale * q - min with q 0 to 15 and min >= 0.  Large weights count more.  For each of 21 first
 * guesses the codes are rounded, then scale and min are those of weighted least squares for them. */
struct affine {
    float scale, min;
};

static struct affine fit_codes(const float *x, const float *weight, const uint8_t *q, double *error)
{
    double sw = 0, sx = 0, sl = 0, sl2 = 0, sxl = 0;
    for (size_t i = 0; i < 32; i++) {
        double w = weight[i];
        sw += w;
        sx += w * x[i];
        sl += w * q[i];
        sl2 += w * q[i] * q[i];
        sxl += w * x[i] * q[i];
    }
    double det = sw * sl2 - sl * sl;
    double scale = det > 0 ? (sw * sxl - sx * sl) / det : 0;
    double min = det > 0 ? (sl2 * sx - sl * sxl) / det : sw > 0 ? sx / sw : 0;
    if (min > 0) {
        min = 0;
        scale = sl2 > 0 ? sxl / sl2 : 0;
    }
    *error = 0;
    for (size_t i = 0; i < 32; i++) {
        double e = scale * q[i] + min - x[i];
        *error += weight[i] * e * e;
    }
    return (struct affine){ (float)scale, (float)-min };
}

/* The range of the values alone is a poor fit: one outlier would cost all others a bit. */
static struct affine search_affine(const float *x)
{
    float low = 0, high = x[0], square = 0, weight[32];
    for (size_t i = 0; i < 32; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
        square += x[i] * x[i];
    }
    for (size_t i = 0; i < 32; i++)
        weight[i] = sqrtf(square / 32) + fabsf(x[i]);
    if (high <= low)
        return (struct affine){ 0, -low };
    struct affine best = { (high - low) / 15, -low };
    double least = INFINITY;
    for (int t = 0; t <= 20; t++) {
        uint8_t q[32];
        double error;
        float inverse = (14 + 0.1f * (float)t) / (high - low);
        for (size_t i = 0; i < 32; i++)
            q[i] = (uint8_t)round_to((x[i] - low) * inverse, 0, 15);
        struct affine a = fit_codes(x, weight, q, &error);
        if (error < least && a.scale > 0) {
            least = error;
            best = a;
        }
    }
    return best;
}

/* The inverse of split_scales() in blocks.c. */
static void join_scales(uint8_t *s, const uint8_t *sub, const uint8_t *mins)
{
    for (size_t j = 0; j < 4; j++) {
        s[j] = (uint8_t)(sub[j] | sub[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(mins[j] | mins[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((sub[j + 4] & 15) | (mins[j + 4] & 15) << 4);
    }
}

/* 256 weights in 8 groups of 32. Each group has a scale and a minimum of 6 bits, which are
 * relative to two half-precision numbers of the whole block: 144 bytes, 4.5 bits per weight. */
static void quantize_q4_k(uint8_t *out, const float *x)
{
    struct affine part[8];
    uint8_t sub[8], mins[8];
    float scale = 0, min = 0;
    for (size_t j = 0; j < 8; j++) {
        part[j] = search_affine(x + 32 * j);
        scale = fmaxf(scale, part[j].scale);
        min = fmaxf(min, part[j].min);
    }
    put_half(out, scale / 63);
    put_half(out + 2, min / 63);
    /* scales of the parts, and then codes, for the float16 that will be read */
    uint16_t halves[2];
    memcpy(halves, out, sizeof halves);
    float d = f32_from_f16(halves[0]), dmin = f32_from_f16(halves[1]);
    memset(out + 16, 0, 128);
    for (size_t j = 0; j < 8; j++) {
        sub[j] = (uint8_t)round_to(part[j].scale * invert_scale(scale) * 63, 0, 63);
        mins[j] = (uint8_t)round_to(part[j].min * invert_scale(min) * 63, 0, 63);
        float step = invert_scale(d * sub[j]), least = dmin * mins[j];
        for (size_t i = 0; i < 32; i++) {
            int q = round_to((x[32 * j + i] + least) * step, 0, 15);
            out[16 + j / 2 * 32 + i] |= (uint8_t)(q << j % 2 * 4);
        }
    }
    join_scales(out + 4, sub, mins);
}

/* The step of 16 weights with codes -32 to 31: of 19 guesses the one whose least-squares step
 * explains most of the weights' squares. */
static float search_q6_step(const float *x)
{
    float most = find_extreme(x, 16), best = most / -32;
    double explained = 0;
    for (int t = -9; t <= 9 && most != 0; t++) {
        float inverse = -(32 + 0.1f * (float)t) / most;
        double xl = 0, l2 = 0;
        for (size_t i = 0; i < 16; i++) {
            int q = round_to(x[i] * inverse, -32, 31);
            double w = (double)x[i] * x[i];
            xl += w * x[i] * q;
            l2 += w * q * q;
        }
        if (l2 > 0 && xl * xl > explained * l2) {
            explained = xl * xl / l2;
            best = (float)(xl / l2);
        }
    }
    return best;
}

/* 256 weights in 16 groups of 16 with scales of 8 bits; low four and high two bits of the codes
 * lie apart: 210 bytes, 6.56 bits per weight. */
static void quantize_q6_k(uint8_t *out, const float *x)
{
    float step[16];
    for (size_t j = 0; j < 16; j++)
        step[j] = search_q6_step(x + 16 * j);
    float most = find_extreme(step, 16) / -128;
    put_half(out + 208, most);
    uint16_t half;
    memcpy(&half, out + 208, sizeof half);
    float d = f32_from_f16(half), id = invert_scale(d);
    memset(out, 0, 192);
    for (size_t i = 0; i < 256; i++) {
        int sub = round_to(step[i / 16] * id, -128, 127);
        out[192 + i / 16] = (uint8_t)(int8_t)sub;
        unsigned q = (unsigned)(round_to(x[i] * invert_scale(d * (float)sub), -32, 31) + 32);
        size_t at = i / 128, k = i % 128 / 32, l = i % 32;
        out[64 * at + 32 * (k & 1) + l] |= (uint8_t)((q & 15) << (k < 2 ? 0 : 4));
        out[128 + 32 * at + l] |= (uint8_t)(q >> 4 << 2 * k);
    }
}

void blocks_quantize(void *out, enum source_dtype dtype, const float *w, size_t n, bool search)
{
    uint8_t *p = out;
    for (size_t i = 0; i < n;
         i += source_block(dtype), p += source_bytes(dtype, source_block(dtype)))
        switch (dtype) {
        case SOURCE_Q8_0:
            quantize_q8_0(p, w + i);
            break;
        case SOURCE_Q4_0:
            quantize_q4_0(p, w + i, search);
            break;
        case SOURCE_Q5_0:
            quantize_q5_0(p, w + i);
            break;
        case SOURCE_Q4_K:
            quantize_q4_k(p, w + i);
            break;
        default:
            quantize_q6_k(p, w + i);
            break;
        }
}
