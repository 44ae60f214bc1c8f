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

static size_t collect(const float *z, size_t n, float least, struct candidate *out)
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
    float max = vec_ops()->largest(z, n);
    size_t count = 0;
    for (float distance = 2; count < k; distance *= 2)
        count = collect(z, n, distance > 1e30f ? -INFINITY : max - distance, scratch);
    qsort(scratch, count, sizeof *scratch, by_value);
    return k;
}

static double weight(float z, float max, float inv_temperature)
{
    return (double)expf((z - max) * inv_temperature);
}

/* How many of the descending candidates [0, count) top_p keeps, out of `total`. */
static size_t nucleus(const struct candidate *c, size_t count, float inv_temperature, double total,
                      double top_p)
{
    double before = 0;
    size_t kept = 0;
    while (kept < count && (kept == 0 || before < top_p * total))
        before += weight(c[kept++].z, c[0].z, inv_temperature);
    return kept;
}

/* top_p alone: enough of the largest, in descending order, and how many of them stay. */
static size_t nucleus_of_all(const float *z, size_t n, const struct sample_rule *rule,
                             struct candidate *scratch)
{
    float max = vec_ops()->largest(z, n);
    double total = vec_ops()->sum_exp(z, n, max, rule->inv_temperature);
    float distance = 4 / rule->inv_temperature;
    for (;;) {
        size_t count = collect(z, n, distance > 1e30f ? -INFINITY : max - distance, scratch);
        double mass = 0;
        for (size_t i = 0; i < count; i++)
            mass += weight(scratch[i].z, max, rule->inv_temperature);
        if (mass >= rule->top_p * total || count == n) {
            qsort(scratch, count, sizeof *scratch, by_value);
            return nucleus(scratch, count, rule->inv_temperature, total, rule->top_p);
        }
        distance *= 2;
    }
}

/* The kept candidates in ascending id order; returns their number. */
static size_t keep(const float *z, size_t n, const struct sample_rule *rule,
                   struct candidate *scratch)
{
    size_t kept;
    if (rule->top_k > 0 && rule->top_k < n) {
        kept = sample_top(z, n, rule->top_k, scratch);
        if (rule->top_p < 1) {
            double total = 0;
            for (size_t i = 0; i < kept; i++)
                total += weight(scratch[i].z, scratch[0].z, rule->inv_temperature);
            kept = nucleus(scratch, kept, rule->inv_temperature, total, rule->top_p);
        }
    } else {
        kept = nucleus_of_all(z, n, rule, scratch);
    }
    qsort(scratch, kept, sizeof *scratch, by_id);
    return kept;
}

static int32_t draw_kept(const struct candidate *c, size_t kept, float inv_temperature, double u)
{
    float max = c[0].z;
    double total = 0, sum = 0;
    for (size_t i = 1; i < kept; i++)
        max = c[i].z > max ? c[i].z : max;
    for (size_t i = 0; i < kept; i++)
        total += weight(c[i].z, max, inv_temperature);
    for (size_t i = 0; i + 1 < kept; i++) {
        sum += weight(c[i].z, max, inv_temperature);
        if (u * total < sum)
            return c[i].id;
    }
    return c[kept - 1].id;
}

/* The whole distribution: sums of blocks first, then a walk inside one block. */
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
            double w = weight(z[i], max, inv_temperature);
            if (w > 0)
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
    if ((rule->top_k == 0 || rule->top_k >= n) && rule->top_p >= 1)
        return draw_all(z, n, rule->inv_temperature, u);
    size_t kept = keep(z, n, rule, scratch);
    return draw_kept(scratch, kept, rule->inv_temperature, u);
}
