/* Token choice against a plain reference that sorts everything, and frequencies. */
#include "engine/generate/sample.h"
#include "base/rand.h"
#include "support/tap.h"

#include <math.h>
#include <stdlib.h>

enum { N = 1000 };

static void fill_logits(float *z, size_t n, uint64_t seed, double spread)
{
    for (size_t i = 0; i < n; i++)
        z[i] = (float)((philox_uniform(seed, i) - 0.5) * spread);
}

/* Which tokens survive, by the book: sort all, cut, cut again. */
struct plain {
    double p[N]; /* 0: cut off */
};

static const float *sort_z;

static int compare_descending(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    if (sort_z[x] != sort_z[y])
        return sort_z[x] < sort_z[y] ? 1 : -1;
    return x < y ? -1 : 1;
}

static void plain_distribution(struct plain *out, const float *z, const struct sample_rule *rule)
{
    size_t order[N], kept = N;
    double total = 0, before = 0, sum = 0;
    for (size_t i = 0; i < N; i++)
        order[i] = i;
    sort_z = z;
    qsort(order, N, sizeof *order, compare_descending);
    if (rule->top_k > 0 && rule->top_k < N)
        kept = rule->top_k;
    for (size_t i = 0; i < N; i++)
        out->p[i] = 0;
    for (size_t i = 0; i < kept; i++) {
        out->p[order[i]] = exp(((double)z[order[i]] - z[order[0]]) * rule->inv_temperature);
        total += out->p[order[i]];
    }
    for (size_t i = 0; i < kept; i++) {
        double p = out->p[order[i]] / total;
        if (i > 0 && before >= rule->top_p)
            out->p[order[i]] = 0;
        before += p;
        if (i > 0 && exp(((double)z[order[i]] - z[order[0]]) * rule->inv_temperature) < rule->min_p)
            out->p[order[i]] = 0;
    }
    for (size_t i = 0; i < N; i++)
        sum += out->p[i];
    for (size_t i = 0; i < N; i++)
        out->p[i] /= sum;
}

static int32_t plain_draw(const struct plain *d, double u)
{
    double sum = 0;
    int32_t last = 0;
    for (size_t i = 0; i < N; i++) {
        if (d->p[i] == 0)
            continue;
        last = (int32_t)i;
        sum += d->p[i];
        if (u < sum)
            return last;
    }
    return last;
}

static const struct sample_rule rules[] = {
    { 1, 0, 1, 0 },
    { 0.5f, 0, 1, 0 },
    { 2, 40, 1, 0 },
    { 1, 1, 1, 0 },
    { 1, 0, 0.9, 0 },
    { 1, 0, 0.001, 0 },
    { 0.3f, 0, 0.5, 0 },
    { 1, 50, 0.8, 0 },
    { 4, 999, 0.99, 0 },
    { 1, 5000, 0.7, 0 },
    { 1, 0, 0x1.fffffffffffffp-1, 0 },
    { 1, 0, 1, 0.05 },
    { 0.5f, 0, 1, 0.3 },
    { 1, 50, 0.9, 0.1 },
    { 1, 0, 0.7, 0.4 },
    { 2, 20, 1, 0.01 },
};

static void equals_the_plain_reference(void)
{
    static struct plain d;
    float z[N];
    struct candidate scratch[N];
    int different = 0;
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            fill_logits(z, N, seed, 12);
            plain_distribution(&d, z, &rules[r]);
            for (uint64_t i = 0; i < 300; i++) {
                double u = philox_uniform(seed + 100, i);
                different += sample_token(z, N, &rules[r], u, scratch) != plain_draw(&d, u);
            }
        }
    CHECK_INT(different, 0);
}

/* Pearson's statistic over 100000 draws stays near its expectation. */
static void frequencies_follow_the_distribution(void)
{
    enum { M = 20, DRAWS = 100000 };
    float z[M];
    double p[M], total = 0, chi2 = 0;
    int seen[M] = { 0 };
    struct candidate scratch[M];
    struct sample_rule rule = { 0.8f, 0, 1, 0 };
    fill_logits(z, M, 9, 5);
    for (size_t i = 0; i < M; i++)
        total += p[i] = exp((double)z[i] * 0.8f);
    for (uint64_t i = 0; i < DRAWS; i++)
        seen[sample_token(z, M, &rule, philox_uniform(77, i), scratch)]++;
    for (size_t i = 0; i < M; i++) {
        double expected = DRAWS * p[i] / total;
        chi2 += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    CHECK(chi2 < 43.8); /* 19 degrees of freedom: exceeded once in a thousand seeds */
    CHECK(chi2 > 5.4);
}

static void greedy_takes_the_lowest_of_equals(void)
{
    float z[] = { 1, 3, 3, 2, 3 };
    struct sample_rule rule = { 0, 3, 0.5, 0 };
    struct candidate scratch[5];
    CHECK_INT(sample_token(z, 5, &rule, 0.99, scratch), 1);
    CHECK_INT(sample_argmax(z, 5), 1);
}

static void ties_go_to_the_lower_id(void)
{
    float z[] = { 0, 5, 5, 5, 0 };
    struct candidate scratch[5];
    CHECK_INT(sample_top(z, 5, 2, scratch), 2);
    CHECK(scratch[0].id == 1 && scratch[1].id == 2);
    struct sample_rule rule = { 1, 2, 1, 0 };
    CHECK_INT(sample_token(z, 5, &rule, 0.0, scratch), 1);
    CHECK_INT(sample_token(z, 5, &rule, 0.999999, scratch), 2);
}

static void top_is_sorted_and_bounded(void)
{
    float z[N];
    struct candidate scratch[N];
    fill_logits(z, N, 4, 100);
    CHECK_INT(sample_top(z, N, 2000, scratch), N);
    int wrong = 0;
    for (size_t i = 1; i < N; i++)
        wrong += scratch[i - 1].z < scratch[i].z;
    CHECK_INT(wrong, 0);
    CHECK_INT(scratch[0].id, sample_argmax(z, N));
}

static void impossible_tokens_are_never_drawn(void)
{
    float z[] = { -INFINITY, 0, -INFINITY, 0, -INFINITY };
    struct candidate scratch[5];
    struct sample_rule all = { 1, 0, 1, 0 }, cut = { 1, 4, 0.999, 0 };
    for (int i = 0; i <= 100; i++) {
        double u = i == 100 ? 0x1.fffffffffffffp-1 : i / 100.0;
        int32_t a = sample_token(z, 5, &all, u, scratch), b = sample_token(z, 5, &cut, u, scratch);
        CHECK((a == 1 || a == 3) && (b == 1 || b == 3));
    }
    CHECK_INT(sample_top(z, 5, 5, scratch), 5);
}

/* What is left after a cut may lie so far apart that only the first one has a weight. */
static void the_coldest_cut_is_the_largest(void)
{
    float z[] = { 2, 3e30f, 1, -3e30f, 2e30f };
    struct candidate scratch[5];
    const struct sample_rule cold[] = { { 1e6f, 3, 1, 0 }, { 1, 3, 0.9, 0 }, { 1e6f, 0, 0.5, 0 } };
    for (int i = 0; i < 3; i++)
        for (int k = 0; k <= 10; k++)
            CHECK_INT(
                sample_token(z, 5, &cold[i], k < 10 ? k / 10.0 : 0x1.fffffffffffffp-1, scratch), 1);
}

int main(void)
{
    RUN(equals_the_plain_reference);
    RUN(frequencies_follow_the_distribution);
    RUN(greedy_takes_the_lowest_of_equals);
    RUN(ties_go_to_the_lower_id);
    RUN(top_is_sorted_and_bounded);
    RUN(impossible_tokens_are_never_drawn);
    RUN(the_coldest_cut_is_the_largest);
    return tap_done();
}
