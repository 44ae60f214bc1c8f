/* merge.c - metric names say how they combine: "loss:sum", "entropy:mean", …
 *
 * Everything is computed in double.  Weights are the numbers of outputs; when they are
 * all zero the plain mean is taken. */
#include "client/training/merge.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"

struct column { /* one metric over all parts */
    double *v;
    const double *weights;
    size_t n;
};

/* sum(w v) / sum(w), with the number of outputs as weight: a chunk with more data counts for
 * more. */
static double column_mean(const struct column *c)
{
    double sum = 0, weight = 0, plain = 0;
    for (size_t i = 0; i < c->n; i++) {
        sum += c->v[i] * c->weights[i];
        weight += c->weights[i];
        plain += c->v[i];
    }
    return weight > 0 ? sum / weight : plain / (double)c->n;
}

static double column_max(const struct column *c)
{
    double m = c->v[0];
    for (size_t i = 1; i < c->n; i++)
        m = c->v[i] > m ? c->v[i] : m;
    return m;
}

static double column_min(const struct column *c)
{
    double m = c->v[0];
    for (size_t i = 1; i < c->n; i++)
        m = c->v[i] < m ? c->v[i] : m;
    return m;
}

static double column_sum(const struct column *c)
{
    double sum = 0;
    for (size_t i = 0; i < c->n; i++)
        sum += c->v[i];
    return sum;
}

/* How far the worst chunk is from the mean. */
static double column_slack(const struct column *c)
{
    return column_max(c) - column_mean(c);
}

/* "unique": the first value under its own name; add_unique_entries() gives the others names of
 * their own. */
static double column_first(const struct column *c)
{
    return c->v[0];
}

/* Equal data gives an equal hash, however it was cut and in whatever order the chunks came. */
static double column_hash(const struct column *c)
{
    return (double)merge_hash_unordered(c->v, c->n);
}

/* The sum of the values as integers modulo 2^64, which has no order either.  fmod() is exact, so
 * values beyond 64 bits wrap as Python's integers do; as a double the result is exact below 2^53. */
static double column_hash2(const struct column *c)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < c->n; i++) {
        double x = fmod(trunc(c->v[i]), 0x1p64);
        sum += x < 0 ? (uint64_t)0 - (uint64_t)-x : (uint64_t)x;
    }
    return (double)sum;
}

static const struct {
    const char *name;
    double (*merge)(const struct column *c);
} merge_rules[] = {
    { "mean", column_mean },   { "sum", column_sum },
    { "min", column_min },     { "max", column_max },
    { "slack", column_slack }, { "unique", column_first },
    { "hash2", column_hash2 }, { "hash_unordered", column_hash }, /* services up to SDK 0.25 */
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* CPython hashes an integer to itself modulo 2^61 - 1, keeping the sign, and never to -1. */
static uint64_t hash_lane(double v)
{
    double x = trunc(v);
    int negative = x < 0;
    if (negative)
        x = -x;
    int exponent;
    double fraction = frexp(x, &exponent); /* x = fraction * 2^exponent */
    uint64_t mantissa = (uint64_t)ldexp(fraction, 53);
    int shift = exponent - 53;
    uint64_t r;
    if (shift <= 0)
        r = shift > -64 ? mantissa >> -shift : 0;
    else { /* times 2^shift modulo 2^61 - 1 is a rotation of 61 bits */
        const uint64_t m = (UINT64_C(1) << 61) - 1;
        int k = shift % 61;
        r = mantissa % m;
        r = ((r << k) & m) | (r >> (61 - k));
    }
    r %= (UINT64_C(1) << 61) - 1;
    uint64_t lane = negative ? (uint64_t)0 - r : r;
    return lane == UINT64_MAX ? UINT64_MAX - 1 : lane;
}

/* Python's hash of a tuple: xxHash rounds over the hashes of its elements, as in tuplehash() of
 * CPython 3.8 and later. Sorting first makes it independent of the order. The constants are those
 * of xxHash64. */
int64_t merge_hash_unordered(double *v, size_t n)
{
    const uint64_t p1 = UINT64_C(11400714785074694791), p2 = UINT64_C(14029467366897019727),
                   p5 = UINT64_C(2870177450012600261);
    qsort(v, n, sizeof(*v), compare_doubles);
    uint64_t acc = p5;
    for (size_t i = 0; i < n; i++) {
        acc += hash_lane(v[i]) * p2;
        acc = acc << 31 | acc >> 33;
        acc *= p1;
    }
    acc += n ^ (p5 ^ UINT64_C(3527539));
    if (acc == UINT64_MAX)
        acc = 1546275796;
    int64_t out;
    memcpy(&out, &acc, sizeof(out));
    return out;
}

/* One metric of all parts. false: some part does not have it, so there is nothing to merge. */
static bool gather_column(const tinker_forward_backward *const *parts, size_t n, const char *name,
                          double *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < parts[i]->n_metrics && strcmp(parts[i]->metrics[k].name, name) != 0)
            k++;
        if (k == parts[i]->n_metrics)
            return false;
        out[i] = parts[i]->metrics[k].value;
    }
    return true;
}

struct result_metrics {
    tinker_named_number *v;
    size_t n;
};

/* The extra entries of a unique metric: name_1, name_2, … */
static bool add_unique_entries(struct result_metrics *m, struct arena *a, const char *name,
                               const struct column *c)
{
    for (size_t i = 1; i < c->n; i++) {
        m->v[m->n].name = arena_printf(a, "%s_%zu", name, i);
        m->v[m->n].value = c->v[i];
        if (!m->v[m->n++].name)
            return false;
    }
    return true;
}

/* Apply the rule that the name of the metric states. What cannot be merged is dropped, with a
 * line in the log: a made-up number would be worse than none. false: no memory. */
static bool merge_metric(struct result_metrics *m, struct arena *a, const char *name,
                         const struct column *c, const struct log *log)
{
    const char *colon = strchr(name, ':');
    const char *suffix = colon ? colon + 1 : NULL;
    bool finite = true;
    for (size_t i = 0; i < c->n; i++)
        finite = finite && isfinite(c->v[i]);
    if (!suffix || strchr(suffix, ':')) { /* "name:rule" has exactly one colon */
        log_line(log, LOG_WARNING, "metric \"%s\" dropped: its name is not name:reduction", name);
        return true;
    }
    if (strncmp(suffix, "hash", 4) == 0 && !finite) { /* no integer is any of these */
        log_line(log, LOG_WARNING, "metric \"%s\" dropped: it is not finite", name);
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(merge_rules); i++) {
        if (strcmp(suffix, merge_rules[i].name) != 0)
            continue;
        m->v[m->n].name = name;
        m->v[m->n++].value = merge_rules[i].merge(c);
        return strcmp(suffix, "unique") != 0 || add_unique_entries(m, a, name, c);
    }
    log_line(log, LOG_DEBUG, "metric \"%s\" dropped: unknown reduction", name);
    return true;
}

/* Over the names of the first part, in its order. A unique metric becomes n entries, hence the
 * room. */
static bool merge_metrics(const tinker_forward_backward *const *parts, size_t n, struct arena *a,
                          tinker_forward_backward *out, const struct log *log)
{
    double *weights = arena_array(a, n, sizeof(double)), *v = arena_array(a, n, sizeof(double));
    struct result_metrics m = {
        arena_array(a, parts[0]->n_metrics * n + 1, sizeof(tinker_named_number)), 0
    };
    bool ok = weights && v && m.v;
    for (size_t i = 0; ok && i < n; i++)
        weights[i] = (double)parts[i]->n_outputs;
    for (size_t k = 0; ok && k < parts[0]->n_metrics; k++) {
        struct column c = { v, weights, n };
        const char *name = parts[0]->metrics[k].name;
        if (gather_column(parts, n, name, v))
            ok = merge_metric(&m, a, name, &c, log);
    }
    out->metrics = m.v;
    out->n_metrics = m.n;
    return ok;
}

/* Outputs are concatenated by reference: the tensors stay where the parts have them. */
tinker_status merge_results(const tinker_forward_backward *const *parts, size_t n,
                            struct arena *arena, tinker_forward_backward *out,
                            const struct log *log, tinker_error *err)
{
    size_t total_outputs = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        total_outputs += parts[i]->n_outputs;
    tinker_loss_output *outputs = arena_array(arena, total_outputs + 1, sizeof(*outputs));
    if (!outputs || !merge_metrics(parts, n, arena, out, log))
        return err_nomem(err, "result");
    for (size_t i = 0; i < n; i++) {
        if (parts[i]->n_outputs)
            memcpy(outputs + at, parts[i]->outputs, parts[i]->n_outputs * sizeof(*outputs));
        at += parts[i]->n_outputs;
    }
    out->output_type = parts[0]->output_type;
    out->outputs = outputs;
    out->n_outputs = total_outputs;
    return TINKER_OK;
}
