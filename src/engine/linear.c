/* linear.c - spread matrix products over the threads.
 *
 * Every run is cut along its outputs, never along the summed index, so the result
 * does not depend on the cut. */
#include "engine/linear.h"

struct forward_job {
    const struct linear_set *set;
    const float *x;
    size_t rows;
    size_t start[LINEAR_SET + 1]; /* first column of each product, multiples of the grain */
};

static void add_bias(float *y, const float *bias, size_t rows, size_t out, size_t begin, size_t end)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t o = begin; o < end; o++)
            y[i * out + o] += bias[o];
}

static void forward_slice(void *arg, size_t begin, size_t end)
{
    const struct forward_job *job = arg;
    for (size_t i = 0; i < job->set->n; i++) {
        const struct linear *l = job->set->linear[i];
        size_t first = begin > job->start[i] ? begin - job->start[i] : 0;
        size_t last = end > job->start[i] ? end - job->start[i] : 0;
        if (last > l->out)
            last = l->out;
        if (first >= last)
            continue;
        gemm_forward(job->set->y[i], job->x, l->w, job->rows, 0, first, last);
        if (l->bias)
            add_bias(job->set->y[i], l->bias, job->rows, l->out, first, last);
    }
}

/* Every slice lays out its rows again, which few rows do not notice. */
enum { FINE_ROWS = 4 };

void linear_forward(struct threads *t, const struct linear_set *set, const float *x, size_t rows)
{
    struct forward_job job = { .set = set, .x = x, .rows = rows };
    size_t grain = gemm_grain();
    for (size_t i = 0; i < set->n; i++)
        job.start[i + 1] = job.start[i] + (set->linear[i]->out + grain - 1) / grain * grain;
    if (rows <= FINE_ROWS)
        threads_run_fine(t, job.start[set->n], grain, forward_slice, &job);
    else
        threads_run(t, job.start[set->n], grain, forward_slice, &job);
}

struct backward_job {
    const struct linear_set *set;
    float *dx;
    size_t rows;
};

static void backward_slice(void *arg, size_t begin, size_t end)
{
    const struct backward_job *job = arg;
    for (size_t i = 0; i < job->set->n; i++)
        gemm_backward(job->dx, job->set->y[i], job->set->linear[i]->w, job->rows, i > 0, begin,
                      end);
}

void linear_backward(struct threads *t, const struct linear_set *set, float *dx, size_t rows)
{
    struct backward_job job = { set, dx, rows };
    threads_run(t, set->linear[0]->in, gemm_grain(), backward_slice, &job);
}

struct dense_job {
    void (*kernel)(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                   float alpha, int accumulate, size_t begin, size_t end);
    float *y;
    const float *x, *w;
    size_t N, O, C;
    float alpha;
    int accumulate;
};

static void dense_slice(void *arg, size_t begin, size_t end)
{
    const struct dense_job *j = arg;
    j->kernel(j->y, j->x, j->w, j->N, j->O, j->C, j->alpha, j->accumulate, begin, end);
}

static void run(struct threads *t, size_t n, size_t grain,
                void (*slice)(void *arg, size_t begin, size_t end), void *arg)
{
    if (t)
        threads_run(t, n, grain, slice, arg);
    else
        slice(arg, 0, n);
}

/* Slices of at least WORTH multiply-adds: less is not worth waking a thread.  Every
 * slice of rows lays out the right operand for itself, so a slice has at least ROWS and
 * outputs of few rows (a token's LoRA part, the gradient of A) are cut along columns. */
enum { WORTH = 1 << 15, ROWS = 48, FEW_ROWS = 64 };

static size_t dense_grain(size_t per_row)
{
    size_t rows = WORTH / (per_row ? per_row : 1);
    return rows < ROWS ? ROWS : rows;
}

static size_t column_grain(size_t per_column)
{
    size_t grain = gemm_grain(), columns = WORTH / (per_column ? per_column : 1);
    return (columns / grain + 1) * grain;
}

void linear_nt(struct threads *t, float *y, const float *x, const float *w, size_t N, size_t O,
               size_t C, float alpha, int accumulate)
{
    struct dense_job job = { dense_nt, y, x, w, N, O, C, alpha, accumulate };
    if (N > FEW_ROWS) {
        run(t, N, dense_grain(O * C), dense_slice, &job);
        return;
    }
    job.kernel = dense_nt_columns;
    run(t, O, column_grain(N * C), dense_slice, &job);
}

void linear_nn(struct threads *t, float *y, const float *x, const float *w, size_t N, size_t O,
               size_t C, float alpha, int accumulate)
{
    struct dense_job job = { dense_nn, y, x, w, N, O, C, alpha, accumulate };
    run(t, N, dense_grain(O * C), dense_slice, &job);
}

void linear_tn(struct threads *t, float *y, const float *a, const float *x, size_t N, size_t O,
               size_t C, float alpha, int accumulate)
{
    struct dense_job job = { dense_tn, y, a, x, N, O, C, alpha, accumulate };
    if (O > FEW_ROWS) {
        run(t, O, dense_grain(N * C), dense_slice, &job);
        return;
    }
    job.kernel = dense_tn_columns;
    run(t, C, column_grain(N * O), dense_slice, &job);
}

struct bias_job {
    float *db;
    const float *dy;
    size_t rows, out;
};

static void bias_slice(void *arg, size_t begin, size_t end)
{
    const struct bias_job *job = arg;
    for (size_t i = 0; i < job->rows; i++)
        for (size_t o = begin; o < end; o++)
            job->db[o] += job->dy[i * job->out + o];
}

void linear_gradient(struct threads *t, float *dw, float *db, const float *dy, const float *x,
                     size_t rows, size_t out, size_t in)
{
    if (dw)
        linear_tn(t, dw, dy, x, rows, out, in, 1, 1);
    if (db) {
        struct bias_job job = { db, dy, rows, out };
        run(t, out, 64, bias_slice, &job);
    }
}
