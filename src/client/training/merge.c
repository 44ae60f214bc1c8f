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

static double weighted_mean(const struct column *c)
{
    double sum = 0, weight = 0, plain = 0;
    for (size_t i = 0; i < c->n; i++) {
        sum += c->v[i] * c->weights[i];
        weight += c->weights[i];
        plain += c->v[i];
    }
    return weight > 0 ? sum / weight : plain / (double)c->n;
}

static double largest(const struct column *c)
{
    double m = c->v[0];
    for (size_t i = 1; i < c->n; i++)
        m = c->v[i] > m ? c->v[i] : m;
    return m;
}

static double smallest(const struct column *c)
{
    double m = c->v[0];
    for (size_t i = 1; i < c->n; i++)
        m = c->v[i] < m ? c->v[i] : m;
    return m;
}

static double total(const struct column *c)
{
    double sum = 0;
    for (size_t i = 0; i < c->n; i++)
        sum += c->v[i];
    return sum;
}

static double slack(const struct column *c)
{
    return largest(c) - weighted_mean(c);
}

static double first(const struct column *c)
{
    return c->v[0];
}

static double hash(const struct column *c)
{
    return (double)reduce_hash_unordered(c->v, c->n);
}

static const struct {
    const char *name;
    double (*reduce)(const struct column *c);
} reductions[] = {
    { "mean", weighted_mean }, { "sum", total },    { "min", smallest },        { "max", largest },
    { "slack", slack },        { "unique", first }, { "hash_unordered", hash },
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* CPython hashes an integer to itself modulo 2^61 - 1, keeping the sign, and never to -1. */
static uint64_t lane_of(double v)
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

int64_t reduce_hash_unordered(double *v, size_t n)
{
    const uint64_t p1 = UINT64_C(11400714785074694791), p2 = UINT64_C(14029467366897019727),
                   p5 = UINT64_C(2870177450012600261);
    qsort(v, n, sizeof(*v), compare);
    uint64_t acc = p5;
    for (size_t i = 0; i < n; i++) {
        acc += lane_of(v[i]) * p2;
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

static const char *suffix_of(const char *name)
{
    const char *colon = strchr(name, ':');
    return colon && !strchr(colon + 1, ':') ? colon + 1 : NULL;
}

static bool gather(const tinker_forward_backward *const *parts, size_t n, const char *name,
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
static bool add_unique(struct result_metrics *m, struct arena *a, const char *name,
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

static bool all_finite(const struct column *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (!isfinite(c->v[i]))
            return false;
    return true;
}

static bool reduce_one(struct result_metrics *m, struct arena *a, const char *name,
                       const struct column *c, const struct log *log)
{
    const char *suffix = suffix_of(name);
    if (!suffix) {
        log_line(log, LOG_WARNING, "metric \"%s\" dropped: its name is not name:reduction", name);
        return true;
    }
    if (strcmp(suffix, "hash_unordered") == 0 && !all_finite(c)) { /* no integer is any of these */
        log_line(log, LOG_WARNING, "metric \"%s\" dropped: it is not finite", name);
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(reductions); i++) {
        if (strcmp(suffix, reductions[i].name) != 0)
            continue;
        m->v[m->n].name = name;
        m->v[m->n++].value = reductions[i].reduce(c);
        return strcmp(suffix, "unique") != 0 || add_unique(m, a, name, c);
    }
    log_line(log, LOG_DEBUG, "metric \"%s\" dropped: unknown reduction", name);
    return true;
}

static bool reduce_metrics(const tinker_forward_backward *const *parts, size_t n, struct arena *a,
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
        if (gather(parts, n, name, v))
            ok = reduce_one(&m, a, name, &c, log);
    }
    out->metrics = m.v;
    out->n_metrics = m.n;
    return ok;
}

tinker_status reduce_results(const tinker_forward_backward *const *parts, size_t n,
                             struct arena *arena, tinker_forward_backward *out,
                             const struct log *log, tinker_error *err)
{
    size_t total_outputs = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        total_outputs += parts[i]->n_outputs;
    tinker_loss_output *outputs = arena_array(arena, total_outputs + 1, sizeof(*outputs));
    if (!outputs || !reduce_metrics(parts, n, arena, out, log))
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
