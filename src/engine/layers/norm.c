/* norm.c - RMSNorm forward and backward, row by row. */
#include "engine/layers/norm.h"

#include <math.h>
#include "engine/kernels/vec.h"

/* Least rows, and columns, of a slice. */
enum { ROW_GRAIN = 8, COLUMN_GRAIN = 64 };

float norm_row(float *y, const float *x, const float *w, size_t n, float eps)
{
    const struct vec_ops *ops = vec_ops();
    /* the sum in the lanes' order, see docs/internals/engine.md */
    float rstd = 1.0f / sqrtf(ops->dot(x, x, n) / (float)n + eps);
    ops->scale_by(y, x, w, rstd, n);
    return rstd;
}

void norm_row_backward(float *dx, const float *dy, const float *x, const float *w, float rstd,
                       size_t n, int add)
{
    /* dx = rstd (dy w - x rstd^2 mean(dy w x)) */
    float shared = vec_ops()->dot3(dy, w, x, n) * rstd * rstd / (float)n;
    for (size_t i = 0; i < n; i++) {
        float g = rstd * (dy[i] * w[i] - x[i] * shared);
        dx[i] = add ? dx[i] + g : g;
    }
}

/* Each of the three runs uses some of these. */
struct norm_job {
    float *y, *rstd, *dx, *dw;       /* written */
    const float *x, *w, *dy, *saved; /* read; saved: rstd of the forward */
    size_t rows, n, ldx;
    float eps;
};

static void norm_forward_slice(void *arg, size_t begin, size_t end)
{
    const struct norm_job *j = arg;
    for (size_t i = begin; i < end; i++)
        j->rstd[i] = norm_row(j->y + i * j->n, j->x + i * j->n, j->w, j->n, j->eps);
}

void norm_forward(struct threads *t, float *y, float *rstd, const float *x, const float *w,
                  size_t rows, size_t n, float eps)
{
    struct norm_job job = { .y = y, .rstd = rstd, .x = x, .w = w, .n = n, .eps = eps };
    threads_run(t, rows, ROW_GRAIN, norm_forward_slice, &job);
}

static void norm_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct norm_job *j = arg;
    for (size_t i = begin; i < end; i++)
        norm_row_backward(j->dx + i * j->n, j->dy + i * j->n, j->x + i * j->n, j->w, j->saved[i],
                          j->n, 1);
}

void norm_backward(struct threads *t, float *dx, const float *dy, const float *x, const float *w,
                   const float *rstd, size_t rows, size_t n)
{
    struct norm_job job = { .dx = dx, .dy = dy, .x = x, .w = w, .saved = rstd, .n = n };
    threads_run(t, rows, ROW_GRAIN, norm_backward_slice, &job);
}

static void norm_in_place_slice(void *arg, size_t begin, size_t end)
{
    const struct norm_job *j = arg;
    for (size_t i = begin; i < end; i++)
        norm_row_backward(j->dx + i * j->n, j->dx + i * j->n, j->x + i * j->n, j->w, j->saved[i],
                          j->n, 0);
}

void norm_backward_in_place(struct threads *t, float *d, const float *x, const float *w,
                            const float *rstd, size_t rows, size_t n)
{
    struct norm_job job = { .dx = d, .x = x, .w = w, .saved = rstd, .n = n };
    threads_run(t, rows, ROW_GRAIN, norm_in_place_slice, &job);
}

/* Cut along columns: each adds its rows in ascending order. */
static void norm_gradient_slice(void *arg, size_t begin, size_t end)
{
    const struct norm_job *j = arg;
    for (size_t i = 0; i < j->rows; i++)
        for (size_t k = begin; k < end; k++)
            j->dw[k] += j->dy[i * j->n + k] * j->x[i * j->ldx + k] * j->saved[i];
}

void norm_gradient(struct threads *t, float *dw, const float *dy, const float *x, size_t ldx,
                   const float *rstd, size_t rows, size_t n)
{
    struct norm_job job = {
        .dw = dw, .dy = dy, .x = x, .saved = rstd, .rows = rows, .n = n, .ldx = ldx
    };
    threads_run(t, n, COLUMN_GRAIN, norm_gradient_slice, &job);
}
