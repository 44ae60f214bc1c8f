/* attn.h - the arithmetic of attention on one page of keys: small products and a softmax.
 *
 * A page holds ATTN_KEYS keys of one kv head, transposed (hd, ATTN_KEYS), and as many
 * values (ATTN_KEYS, hd).  Every output element is one chain in ascending order of
 * the summed index, so a row's bits do not depend on the rows computed beside it. */
#ifndef ENGINE_KERNELS_ATTN_H
#define ENGINE_KERNELS_ATTN_H

#include <stddef.h>
#include <stdint.h>

enum { ATTN_KEYS = 32, ATTN_ROUNDED_DIM = 16 };

struct attn_ops {
    /* s (R, ATTN_KEYS) = q (R, hd; row stride ldq) kt (hd, ATTN_KEYS) */
    void (*scores)(float *s, const float *q, size_t ldq, const float *kt, size_t R, size_t hd);
    /* y (R, hd; stride ldy) += p (R, n; stride ldp) v (n, hd; stride ldv) */
    void (*accumulate)(float *y, size_t ldy, const float *p, size_t ldp, const float *v, size_t ldv,
                       size_t R, size_t n, size_t hd);
    /* The same with p (n, R; stride ldp) transposed. */
    void (*accumulate_turned)(float *y, size_t ldy, const float *p, size_t ldp, const float *v,
                              size_t ldv, size_t R, size_t n, size_t hd);
    /* Fold the n valid scores of one row into its running softmax: s (ATTN_KEYS) becomes
     * the weights under the new maximum, 0 beyond n; returns what earlier sums shrink by. */
    float (*fold)(float *s, size_t n, float *max, float *sum);
    /* Backward of one row: s becomes p = exp(s - lse), dp becomes p * (dp - delta) * scale;
     * both 0 beyond n. */
    void (*gradient)(float *s, float *dp, size_t n, float lse, float delta, float scale);

    /* NULL all three, or products of bfloat16, two neighbors of the summed index at a time: a page
     * holds keys (hd / 2, ATTN_KEYS, 2) and values (ATTN_KEYS / 2, hd, 2), hd a multiple of
     * ATTN_ROUNDED_DIM.  dst = src rounded, n a multiple of that, too. */
    void (*round)(uint16_t *dst, const float *src, size_t n);
    /* s (R, ATTN_KEYS) = q (R, hd) kt */
    void (*scores_rounded)(float *s, const uint16_t *q, const uint16_t *kt, size_t R, size_t hd);
    /* y (R, hd) += p (R, ATTN_KEYS) v, of which n keys count: what follows them is not read, and
     * p is 0 there. */
    void (*accumulate_rounded)(float *y, const uint16_t *p, const uint16_t *v, size_t R, size_t n,
                               size_t hd);
};

extern const struct attn_ops attn_plain;

const struct attn_ops *attn_ops(void); /* of the kernels that dispatch.c chose */

#endif
