/* dimuon.c - an optimizer that gives the update of each LoRA matrix equal singular values.
 *
 * What is published of it: momentum with beta1, a preconditioner of rows and columns with a damping,
 * a matrix-sign iteration, a direction of Frobenius norm sqrt(rank), and a correction of the learning
 * rate relative to rank 32.  The rest is our reading, which docs/serve.md writes down:
 *
 *     M <- beta1 M + (1 - beta1) G,   U = M / (1 - beta1^step)
 *     V_ij = U_ij / ((a_i + damping mean a) (c_j + damping mean c))^(1/4)
 *            a_i, c_j: mean squares of row i and column j of U
 *     X = V / (|V| + 1e-7), five times X <- 3.4445 X + (-4.775 X X^T + 2.0315 (X X^T)^2) X
 *     W <- W - learning_rate (32 / rank)^exponent sqrt(rank) X / |X|
 *
 * All directions are computed before the first weight changes, so that a step that fails changes
 * nothing.  One thread computes a matrix, from its own numbers alone: the bits do not depend on the
 * count of threads. */
#include "base/array.h"
#include "engine/kernels/vec.h"
#include "engine/train/step.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"

enum { ITERATIONS = 5 };
static const double reference_rank = 32;

/* Of one step; the defaults are in read_settings(). */
struct settings {
    double learning_rate, beta1, grad_clip_norm, damping, exponent;
};

/* One step.  A matrix is a parameter, or one of its stack. */
struct dimuon_job {
    tinker_adapter *a;
    const struct settings *set;
    const struct matrix {
        size_t offset, rows, cols;
    } * list;
    float clip;
    double correction; /* 1 - beta1^step */
    double rate;       /* of the directions */
    atomic_bool no_memory;
    double *sums; /* per matrix: squares of updates */
};

/* ---- the direction of one matrix ----------------------------------------------------------- */

/* M of the formula above, computed again where it is needed: keeping it would take another array of
 * the adapter's size. */
static float new_moment(const struct dimuon_job *j, size_t i)
{
    float g = j->a->grad ? j->a->grad[i] * j->clip : 0;
    return (float)j->set->beta1 * j->a->m[i] + (float)(1 - j->set->beta1) * g;
}

/* Preconditioned and of norm 1, with the shorter side as rows; false: all of it is 0.  Squares of
 * small floats are none, so all of this is in double. */
static bool precondition_matrix(const struct dimuon_job *j, const struct matrix *m, float *x,
                                double *rows, double *cols)
{
    bool turned = m->rows > m->cols;
    double mean = 0, norm = 0, n = (double)(m->rows * m->cols);
    memset(rows, 0, m->rows * sizeof(*rows));
    memset(cols, 0, m->cols * sizeof(*cols));
    for (size_t r = 0; r < m->rows; r++)
        for (size_t c = 0; c < m->cols; c++) {
            double u = (double)new_moment(j, m->offset + r * m->cols + c) / j->correction;
            rows[r] += u * u / (double)m->cols;
            cols[c] += u * u / (double)m->rows;
            mean += u * u / n; /* of all a_i, and of all c_j */
        }
    /* A matrix without any update, or NaN: it stays as it is. */
    if (!(mean > 0))
        return false;
    for (size_t r = 0; r < m->rows; r++)
        rows[r] = 1 / sqrt(sqrt(rows[r] + j->set->damping * mean));
    for (size_t c = 0; c < m->cols; c++)
        cols[c] = 1 / sqrt(sqrt(cols[c] + j->set->damping * mean));
    for (int pass = 0; pass < 2; pass++) { /* the norm, then the numbers */
        double scale = pass ? 1 / (sqrt(norm) + 1e-7) : 0;
        for (size_t r = 0; r < m->rows; r++)
            for (size_t c = 0; c < m->cols; c++) {
                double u = (double)new_moment(j, m->offset + r * m->cols + c) / j->correction;
                double v = u * rows[r] * cols[c];
                if (pass)
                    x[turned ? c * m->rows + r : r * m->cols + c] = (float)(v * scale);
                else
                    norm += v * v;
            }
    }
    return true;
}

/* One step of the iteration on x (k, n), k <= n; gram and poly have k * k floats, y as many as x. */
static void iterate_sign(float *x, float *y, float *gram, float *poly, size_t k, size_t n)
{
    const struct vec_ops *ops = vec_ops();
    for (size_t r = 0; r < k; r++)
        for (size_t c = 0; c <= r; c++)
            gram[r * k + c] = gram[c * k + r] = ops->dot(&x[r * n], &x[c * n], n);
    for (size_t r = 0; r < k; r++) /* the square of a symmetric matrix: products of its rows */
        for (size_t c = 0; c < k; c++)
            poly[r * k + c] =
                -4.7750f * gram[r * k + c] + 2.0315f * ops->dot(&gram[r * k], &gram[c * k], k);
    for (size_t r = 0; r < k; r++) {
        float *row = &y[r * n];
        for (size_t i = 0; i < n; i++)
            row[i] = 3.4445f * x[r * n + i];
        for (size_t c = 0; c < k; c++)
            for (size_t i = 0; i < n; i++)
                row[i] += poly[r * k + c] * x[c * n + i];
    }
    memcpy(x, y, k * n * sizeof(*x));
}

/* The direction goes to v, which this optimizer does not use otherwise. */
static void find_direction(struct dimuon_job *j, const struct matrix *m, float *scratch)
{
    bool turned = m->rows > m->cols;
    size_t k = turned ? m->cols : m->rows, n = turned ? m->rows : m->cols;
    float *x = scratch, *y = x + k * n, *gram = y + k * n, *poly = gram + k * k;
    double *rows = (double *)(void *)y, norm = 0; /* before y is used, which has the space */
    float *out = &j->a->v[m->offset];
    double *own = NULL;
    if (k * n * sizeof(float) < (k + n) * sizeof(double)) /* but for the narrowest */
        rows = own = malloc((k + n) * sizeof(*own));
    if (!rows) {
        j->no_memory = true;
        return;
    }
    bool moves = precondition_matrix(j, m, x, rows, rows + m->rows);
    free(own);
    for (int i = 0; moves && i < ITERATIONS; i++)
        iterate_sign(x, y, gram, poly, k, n);
    for (size_t i = 0; moves && i < k * n; i++)
        norm += (double)x[i] * (double)x[i];
    double scale = norm > 0 ? sqrt((double)j->a->desc.rank / norm) : 0;
    for (size_t r = 0; r < m->rows; r++)
        for (size_t c = 0; c < m->cols; c++) {
            size_t at = turned ? c * m->rows + r : r * m->cols + c;
            out[r * m->cols + c] = moves ? (float)(scale * (double)x[at]) : 0;
        }
}

/* Slices of one matrix each.  Scratch per matrix: they differ in size, and few are large. */
static void direction_slice(void *arg, size_t first, size_t last)
{
    struct dimuon_job *j = arg;
    for (size_t i = first; i < last; i++) {
        const struct matrix *m = &j->list[i];
        size_t k = m->rows < m->cols ? m->rows : m->cols;
        size_t n = 2 * m->rows * m->cols + 2 * k * k;
        float *scratch = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
        if (scratch)
            find_direction(j, m, scratch);
        else
            j->no_memory = true;
        free(scratch);
    }
}

/* Only after all directions are there, so that nothing here can fail. */
static void update_slice(void *arg, size_t first, size_t last)
{
    const struct dimuon_job *j = arg;
    float rate = (float)j->rate;
    for (size_t i = first; i < last; i++) {
        const struct matrix *m = &j->list[i];
        double sum = 0;
        for (size_t at = m->offset; at < m->offset + m->rows * m->cols; at++) {
            float w1 = j->a->w[at] - rate * j->a->v[at];
            /* what float arithmetic really changes, not what was asked for */
            double change = (double)w1 - (double)j->a->w[at];
            sum += change * change;
            j->a->m[at] = new_moment(j, at);
            j->a->w[at] = w1;
        }
        j->sums[i] = sum;
    }
}

/* ---- a step ------------------------------------------------------------------------------------ */

/* Unknown names are refused: a typing error would train with a default instead. */
static tinker_status read_settings(const tinker_optimizer *o, struct settings *set,
                                   tinker_error *err)
{
    bool given = false;
    *set = (struct settings){ .beta1 = 0.9, .damping = 1e-4, .exponent = 0.175 };
    const struct {
        const char *name;
        double *value;
    } known[] = { { "learning_rate", &set->learning_rate },
                  { "beta1", &set->beta1 },
                  { "grad_clip_norm", &set->grad_clip_norm },
                  { "damping", &set->damping },
                  { "rank_lr_correction_exponent", &set->exponent } };
    if (o->n_texts)
        return err_set(err, TINKER_EINVAL, "dimuon has no setting %.60s that is a text",
                       o->texts[0].name);
    for (size_t i = 0; i < o->n_config; i++) {
        size_t k = 0;
        while (k < ARRAY_LEN(known) && strcmp(known[k].name, o->config[i].name) != 0)
            k++;
        if (k == ARRAY_LEN(known))
            return err_set(err, TINKER_EINVAL,
                           "dimuon has no setting %.60s (learning_rate, beta1, grad_clip_norm, "
                           "damping, rank_lr_correction_exponent)",
                           o->config[i].name);
        *known[k].value = o->config[i].value;
        given = given || k == 0;
    }
    if (!given)
        return err_set(err, TINKER_EINVAL, "dimuon needs a learning_rate");
    const struct step_setting rules[] = {
        { "learning_rate", set->learning_rate, step_is_rate(set->learning_rate) },
        { "beta1", set->beta1, set->beta1 >= 0 && set->beta1 < 1 },
        { "grad_clip_norm", set->grad_clip_norm, true }, /* 0 and less: off */
        { "damping", set->damping, set->damping > 0 },
        { "rank_lr_correction_exponent", set->exponent, fabs(set->exponent) <= 10 },
    };
    return step_check_settings(rules, ARRAY_LEN(rules), err);
}

/* Measure, directions, update: up to the update nothing of the adapter has changed but its
 * gradient, which may be dropped. */
static tinker_status run_step(struct dimuon_job *j, size_t n, tinker_step_metrics *metrics,
                              tinker_error *err)
{
    tinker_adapter *a = j->a;
    const struct settings *set = j->set;
    double norm;
    tinker_status status = step_measure(a, set->grad_clip_norm, &norm, &j->clip, err);
    if (status != TINKER_OK)
        return status;
    j->correction = 1 - pow(set->beta1, (double)a->steps + 1);
    j->rate = set->learning_rate * pow(reference_rank / (double)a->desc.rank, set->exponent);
    /* No element of a direction is larger than the root of the rank. */
    if (!(j->rate * sqrt((double)a->desc.rank) < 1e30))
        return err_set(err, TINKER_EINVAL,
                       "the optimizer step was not taken: it would make weights that are not "
                       "finite; reduce learning_rate");
    threads_run(a->engine->threads, n, 1, direction_slice, j);
    if (!j->no_memory) {
        threads_run(a->engine->threads, n, 1, update_slice, j);
        a->steps++;
        a->stale = true;
        step_drop_gradient(a);
    }
    memset(a->v, 0, a->params.total * sizeof(*a->v)); /* as its files have it */
    if (j->no_memory)
        return err_nomem(err, "optimizer step");
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += j->sums[i];
    if (metrics)
        *metrics = (tinker_step_metrics){ .grad_norm = norm,
                                          .learning_rate = set->learning_rate,
                                          .clip_coef = (double)j->clip,
                                          .update_norm = sqrt(sum),
                                          .step = a->steps };
    return TINKER_OK;
}

/* All matrices of the adapter, one after the other; free() it. */
static struct matrix *list_matrices(const tinker_adapter *a, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < a->params.n; i++)
        *n += a->params.list[i].stack ? a->params.list[i].stack : 1;
    struct matrix *list = calloc(*n ? *n : 1, sizeof(*list)), *m = list;
    for (size_t i = 0; list && i < a->params.n; i++) {
        const struct param *p = &a->params.list[i];
        for (size_t k = 0; k < (p->stack ? p->stack : 1); k++)
            *m++ = (struct matrix){ p->offset + k * p->rows * p->cols, p->rows, p->cols };
    }
    return list;
}

tinker_status tinker_adapter_optimize(tinker_adapter *a, const tinker_optimizer *o,
                                      tinker_step_metrics *metrics, tinker_error *err)
{
    struct settings set;
    size_t n;
    if (!o || !o->name || strcmp(o->name, "dimuon") != 0)
        return err_set(err, TINKER_EINVAL, "optimizer %.60s is not supported here (adamw, dimuon)",
                       o && o->name ? o->name : "(none)");
    tinker_status status = read_settings(o, &set, err);
    if (status == TINKER_OK)
        status = step_check(a, "dimuon", err);
    if (status != TINKER_OK)
        return status;
    struct matrix *list = list_matrices(a, &n);
    double *sums = calloc(n ? n : 1, sizeof(*sums));
    struct dimuon_job job = { .a = a, .set = &set, .list = list, .sums = sums };
    if (list && sums && adapter_moments(a))
        status = run_step(&job, n, metrics, err);
    else
        status = err_nomem(err, "optimizer step");
    free(list);
    free(sums);
    return status;
}
