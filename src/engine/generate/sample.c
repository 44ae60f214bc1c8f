/* sample.c - see sample.h.
 *
 * A vocabulary has 10^5 entries and few of them matter, so nothing here sorts all of
 * it: candidates are those within a distance below the maximum, and the distance
 * grows until the ones that are needed are certainly among them. */
#include "engine/generate/sample.h"

#include <math.h>
#include <stdlib.h>
#include "engine/kernels/vec.h"

int32_t sample_argmax(const float *z, size_t n)
{
    return (int32_t)vec_argmax(z, n);
}

/* Descending logits; equal ones by ascending id, so that the order is total and never depends on
 * qsort(). */
static int by_value(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->z != y->z)
        return x->z < y->z ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* All tokens with a logit of at least `least`, by ascending id; returns their number. */
static size_t collect_candidates(const float *z, size_t n, float least, struct candidate *out)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (z[i] >= least)
            out[count++] = (struct candidate){ z[i], (int32_t)i };
    return count;
}

size_t sample_top(const float *z, size_t n, size_t k, struct candidate *scratch)
{
    if (k > n)
        k = n;
    /* Collect all logits within `distance` below the maximum, doubled until there are k.  The k
     * largest are then certainly among them, and usually few are left to sort.  In the end the
     * bound is -infinity, which takes all n >= k. */
    float max = vec_ops()->largest(z, n);
    size_t count = 0;
    for (float distance = 2; count < k; distance *= 2)
        count = collect_candidates(z, n, distance > 1e30f ? -INFINITY : max - distance, scratch);
    qsort(scratch, count, sizeof *scratch, by_value);
    return k;
}

/* exp((z - max) / T): the probability without its normalization. */
static double token_weight(float z, float max, float inv_temperature)
{
    return (double)expf((z - max) * inv_temperature);
}

/* How many of the descending candidates [0, count) top_p keeps, out of `total` weight: the
 * smallest number whose weights reach top_p * total, and at least one. */
static size_t count_nucleus(const struct candidate *c, size_t count, float inv_temperature,
                            double total, double top_p)
{
    double before = 0;
    size_t kept = 0;
    while (kept < count && (kept == 0 || before < top_p * total))
        before += token_weight(c[kept++].z, c[0].z, inv_temperature);
    return kept;
}

/* The candidates that top_k, top_p and min_p leave, in ascending id order; returns their number. */
static size_t keep_candidates(const float *z, size_t n, const struct sample_rule *rule,
                              struct candidate *scratch)
{
    const float inv_temperature = rule->inv_temperature;
    /* p >= min_p * p_max, in logits; the likeliest token always passes.  Without min_p it is
     * -infinity, which no token is below. */
    float least = rule->min_p > 0
                      ? vec_ops()->largest(z, n) + logf((float)rule->min_p) / inv_temperature
                      : -INFINITY;
    size_t kept;
    if (rule->top_k > 0 && rule->top_k < n) {
        kept = sample_top(z, n, rule->top_k, scratch);
        if (rule->top_p < 1) { /* a share of what top_k left */
            double total = 0;
            for (size_t i = 0; i < kept; i++)
                total += token_weight(scratch[i].z, scratch[0].z, inv_temperature);
            kept = count_nucleus(scratch, kept, inv_temperature, total, rule->top_p);
        }
    } else if (rule->top_p >= 1) {
        kept = collect_candidates(z, n, least, scratch); /* by id already */
    } else {
        /* top_p alone.  As in sample_top(), the distance below the maximum doubles, here until the
         * candidates carry enough of the total weight.  A distance of d logits is a factor of
         * e^(-d/T): the first one, 4 T, takes all above 2 % of the likeliest. */
        float max = vec_ops()->largest(z, n), distance = 4 / inv_temperature;
        double total = vec_ops()->sum_exp(z, n, max, inv_temperature), mass;
        size_t count;
        for (;; distance *= 2) {
            count =
                collect_candidates(z, n, distance > 1e30f ? -INFINITY : max - distance, scratch);
            mass = 0;
            for (size_t i = 0; i < count; i++)
                mass += token_weight(scratch[i].z, max, inv_temperature);
            if (mass >= rule->top_p * total || count == n)
                break;
        }
        qsort(scratch, count, sizeof *scratch, by_value);
        kept = count_nucleus(scratch, count, inv_temperature, total, rule->top_p);
    }
    /* min_p of what is left, and no tokens of probability 0: the draw may return any candidate. */
    size_t count = kept;
    kept = 0;
    for (size_t i = 0; i < count; i++)
        if (scratch[i].z >= least && scratch[i].z > -INFINITY)
            scratch[kept++] = scratch[i];
    qsort(scratch, kept, sizeof *scratch, by_id);
    return kept;
}

/* Invert the cumulative distribution of all n tokens at u: vector sums of up to 256 blocks find
 * the block, a scalar walk the token inside it. */
static int32_t draw_all(const float *z, size_t n, float inv_temperature, double u)
{
    enum { BLOCKS = 256 };
    double sums[BLOCKS], total = 0, sum = 0;
    size_t length = (n + BLOCKS - 1) / BLOCKS, last = 0;
    float max = vec_ops()->largest(z, n);
    for (size_t b = 0; b * length < n; b++) {
        size_t left = n - b * length;
        sums[b] =
            vec_ops()->sum_exp(z + b * length, left < length ? left : length, max, inv_temperature);
        total += sums[b];
    }
    for (size_t b = 0; b * length < n; b++) {
        if (u * total >= sum + sums[b]) {
            sum += sums[b];
            continue;
        }
        double inside = 0;
        for (size_t i = b * length; i < n && i < (b + 1) * length; i++) {
            double w = token_weight(z[i], max, inv_temperature);
            if (w > 0) /* never return a token of probability 0 */
                last = i;
            inside += w;
            if (u * total < sum + inside)
                return (int32_t)i;
        }
        return (int32_t)last; /* rounding left the block's end just short */
    }
    return sample_argmax(z, n); /* u * total rounded up to the very end */
}

int32_t sample_token(const float *z, size_t n, const struct sample_rule *rule, double u,
                     struct candidate *scratch)
{
    if (rule->inv_temperature == 0)
        return sample_argmax(z, n);
    if ((rule->top_k == 0 || rule->top_k >= n) && rule->top_p >= 1 && rule->min_p <= 0)
        return draw_all(z, n, rule->inv_temperature, u);
    size_t kept = keep_candidates(z, n, rule, scratch);
    float max = scratch[0].z;
    double total = 0, sum = 0;
    for (size_t i = 1; i < kept; i++)
        max = scratch[i].z > max ? scratch[i].z : max;
    for (size_t i = 0; i < kept; i++)
        total += token_weight(scratch[i].z, max, rule->inv_temperature);
    /* The first token whose cumulative weight exceeds u * total; the last one takes whatever
     * rounding leaves over. */
    for (size_t i = 0; i + 1 < kept; i++) {
        sum += token_weight(scratch[i].z, max, rule->inv_temperature);
        if (u * total < sum)
            return scratch[i].id;
    }
    return scratch[kept - 1].id;
}
