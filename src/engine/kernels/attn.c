/* attn.c - the attention kernels in portable C, and the choice among the sets.
 *
 * attn.h says what each function computes; attn_simd.h is the vector form. */
#include "engine/kernels/attn.h"

#include <math.h>
#include <string.h>
#include "engine/kernels/ops.h"

/* s (R, ATTN_KEYS) = q kT. The keys are stored turned, d by d, so that a vector set reads the same
 * d of neighboring keys with one load. */
static void plain_scores(float *s, const float *q, size_t ldq, const float *kt, size_t R, size_t hd)
{
    for (size_t r = 0; r < R; r++) {
        for (size_t i = 0; i < ATTN_KEYS; i++) {
            float sum = 0;
            for (size_t d = 0; d < hd; d++)
                sum += q[r * ldq + d] * kt[d * ATTN_KEYS + i];
            s[r * ATTN_KEYS + i] = sum;
        }
    }
}

/* y (R, hd) += p (R, n) v (n, hd): keys in ascending order, as in every set. */
static void plain_accumulate(float *y, size_t ldy, const float *p, size_t ldp, const float *v,
                             size_t ldv, size_t R, size_t n, size_t hd)
{
    for (size_t r = 0; r < R; r++)
        for (size_t i = 0; i < n; i++)
            for (size_t d = 0; d < hd; d++)
                y[r * ldy + d] += p[r * ldp + i] * v[i * ldv + d];
}

/* y (R, hd) += pT v, for the gradients of keys and values, whose rows are the columns of p. */
static void plain_accumulate_turned(float *y, size_t ldy, const float *p, size_t ldp,
                                    const float *v, size_t ldv, size_t R, size_t n, size_t hd)
{
    for (size_t r = 0; r < R; r++)
        for (size_t i = 0; i < n; i++)
            for (size_t d = 0; d < hd; d++)
                y[r * ldy + d] += p[i * ldp + r] * v[i * ldv + d];
}

/* Online softmax: with m' = max(m, s_i), earlier sums shrink by e^(m - m') and each new weight is
 * e^(s_i - m'), so no exponent is ever above 0 and nothing overflows. */
static float plain_fold(float *s, size_t n, float *max, float *sum)
{
    float top = *max, shrink = 1, total = 0;
    for (size_t i = 0; i < n; i++)
        top = s[i] > top ? s[i] : top;
    if (top > *max)
        shrink = expf(*max - top);
    for (size_t i = 0; i < ATTN_KEYS; i++) {
        s[i] = i < n ? expf(s[i] - top) : 0;
        total += s[i];
    }
    *max = top;
    *sum = *sum * shrink + total;
    return shrink;
}

/* Softmax backward: ds = p * (dp - sum of p * dp) * scale; the caller has the sum as delta. */
static void plain_gradient(float *s, float *dp, size_t n, float lse, float delta, float scale)
{
    for (size_t i = 0; i < ATTN_KEYS; i++) {
        s[i] = i < n ? expf(s[i] - lse) : 0;
        dp[i] = i < n ? s[i] * (dp[i] - delta) * scale : 0;
    }
}

const struct attn_ops attn_plain = {
    .scores = plain_scores,
    .accumulate = plain_accumulate,
    .accumulate_turned = plain_accumulate_turned,
    .fold = plain_fold,
    .gradient = plain_gradient,
};

const struct attn_ops *attn_ops(void)
{
    return kernels_ops()->attn;
}
