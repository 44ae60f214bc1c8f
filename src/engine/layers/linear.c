/* linear.c - spread matrix products over the threads.
 *
 * Every run is cut along its outputs, never along the summed index, so the result
 * does not depend on the cut. */
#include "engine/layers/linear.h"

#include <assert.h>

/* Kernels read the left operand (x, or dy) in a layout of their own.  With few rows every slice
 * lays it out for itself.  With more than SHARED_ROWS one run lays it out for all slices, in
 * parts of the summed index that fit the pool's memory: then a slice costs nothing to begin
 * and can be short, so that the threads finish together.  So it is with at most FINE_ROWS rows,
 * of which there is little to lay out. */
enum { FINE_ROWS = 4, SHARED_ROWS = 16, SHARED_MAX = 512 };

/* Columns whose outputs stay in L2 between a product and that of low rank which is added to it, and
 * the part of the pool's memory that holds the left operands of the latter. */
enum { STRIP = 256, LOW_MEMORY = 1 << 19 };

/* Products of several matrices with the same x (forward), or into the same dx (backward). */
struct product_job {
    const struct linear_set *set;
    const float *x;
    float *dx;
    size_t row, rows;             /* the first, and how many */
    size_t start[LINEAR_SET + 1]; /* forward: first column of each product, whole grains */
    const float *left;            /* NULL: not laid out */
    size_t from, to;              /* of the summed index, when it is */
    size_t i;                     /* backward: the matrix */
    float *low[LINEAR_SET];       /* left operands of products of low rank; NULL: added later */
};

/* The columns of all products lie side by side.  Which columns [*first, *last) of a product, of
 * which `out` begin at `start`, are in [begin, end)?  0: none. */
static int columns_of(size_t start, size_t out, size_t begin, size_t end, size_t *first,
                      size_t *last)
{
    *first = begin > start ? begin - start : 0;
    *last = end > start ? end - start : 0;
    if (*last > out)
        *last = out;
    return *first < *last;
}

static void add_bias(float *y, const struct linear *l, size_t rows, size_t first, size_t last)
{
    for (size_t r = 0; l->bias && r < rows; r++)
        for (size_t o = first; o < last; o++)
            y[r * l->out + o] += l->bias[o];
}

/* Columns [first, last) of product i, whose left operand is laid out.  What is added to a sum follows
 * its last part, strip by strip. */
static void forward_left(const struct product_job *job, size_t i, size_t first, size_t last)
{
    const struct linear *l = job->set->linear[i];
    const struct low_rank *low = &job->set->low[i];
    float *y = job->set->y[i] + job->row * l->out;
    for (size_t at = first; at < last; at += STRIP) {
        size_t stop = last - at < STRIP ? last : at + STRIP;
        gemm_forward_left(y, job->left, l->w, job->rows, job->from > 0, job->from, job->to, at,
                          stop);
        if (job->to < l->in)
            continue;
        add_bias(y, l, job->rows, at, stop);
        if (job->low[i])
            dense_add_left(y, job->low[i], low->w, job->rows, l->out, low->rank, low->alpha, false,
                           false, at, stop);
    }
}

static void product_forward_slice(void *arg, size_t begin, size_t end)
{
    const struct product_job *job = arg;
    size_t first, last;
    for (size_t i = 0; i < job->set->n; i++) {
        const struct linear *l = job->set->linear[i];
        /* Where two products meet inside a slice, each gets its part. */
        if (!columns_of(job->start[i], l->out, begin, end, &first, &last))
            continue;
        if (job->left) {
            forward_left(job, i, first, last);
            continue;
        }
        gemm_forward(job->set->y[i], job->x, l->w, job->rows, 0, first, last);
        add_bias(job->set->y[i], l, job->rows, first, last);
    }
}

/* One layout of a left operand (rows, ld), of which `length` columns are wanted. */
struct left_job {
    float *left;
    const float *x;
    size_t ld, rows, length;
    const struct packed *w;
};

static void left_slice(void *arg, size_t begin, size_t end)
{
    const struct left_job *j = arg;
    gemm_left(j->left, j->x, j->ld, j->w, j->rows, j->length, begin, end);
}

/* Lay out columns [from, to) of the rows of x (., ld) for a product with w. */
static void lay_out(struct threads *t, struct product_job *job, const float *x, size_t ld,
                    const struct packed *w, size_t from, size_t to)
{
    struct left_job left = {
        .left = threads_memory(t),
        .x = x + job->row * ld + from,
        .ld = ld,
        .rows = job->rows,
        .length = to - from,
        .w = w,
    };
    threads_run(t, gemm_left_units(w, job->rows, to - from), 1, left_slice, &left);
    job->left = left.left;
    job->from = from;
    job->to = to;
}

/* Used for the last part of rows and of the sum. */
static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How much of the summed index of so many rows the pool's memory holds. */
static size_t left_length(const struct packed *w, size_t rows)
{
    size_t step = gemm_left_step();
    return (THREADS_MEMORY - LOW_MEMORY) / gemm_left_floats(w, rows, step) * step;
}

/* One unit is one product of low rank. */
static void low_left_slice(void *arg, size_t begin, size_t end)
{
    const struct product_job *job = arg;
    for (size_t i = begin; i < end; i++) {
        const struct low_rank *low = &job->set->low[i];
        if (job->low[i])
            dense_left(job->low[i], low->x + job->row * low->rank, job->rows, low->rank,
                       low->factors == FACTORS_ROUNDED);
    }
}

static bool has_low_rank(const struct linear_set *set)
{
    bool any = false;
    for (size_t i = 0; i < set->n; i++)
        any |= set->low[i].x != NULL;
    return any;
}

/* Lay out the left operands of the products of low rank, for job->rows rows. */
static void lay_out_low(struct threads *t, struct product_job *job)
{
    float *at = threads_memory(t) + (THREADS_MEMORY - LOW_MEMORY);
    if (!has_low_rank(job->set))
        return;
    for (size_t i = 0; i < job->set->n; i++) {
        const struct low_rank *low = &job->set->low[i];
        job->low[i] = low->x ? at : NULL;
        if (low->x)
            at += dense_left_floats(job->rows, low->rank);
    }
    threads_run(t, job->set->n, 1, low_left_slice, job);
}

/* Whether they all can be added strip by strip: their left operands fit their memory. */
static bool adds_strips(const struct linear_set *set, size_t rows)
{
    size_t floats = 0;
    for (size_t i = 0; i < set->n; i++) {
        const struct low_rank *low = &set->low[i];
        if (low->x && low->factors == FACTORS_ROUNDED && !dense_adds_rounded())
            return false;
        if (low->x)
            floats += dense_left_floats(min_size(rows, SHARED_MAX), low->rank);
    }
    return floats <= LOW_MEMORY;
}

/* The same sums after the products, where strips do not suit. */
static void add_low_forward(struct threads *t, const struct linear_set *set, size_t rows)
{
    for (size_t i = 0; i < set->n; i++) {
        const struct low_rank *low = &set->low[i];
        struct dense_product p = { set->y[i], low->x, low->w, set->linear[i]->out };
        if (low->x)
            linear_nt_set(t, &p, 1, rows, low->rank, low->alpha, 1);
    }
}

static void add_low_backward(struct threads *t, const struct linear_set *set, float *dx,
                             size_t rows)
{
    for (size_t i = 0; i < set->n; i++) {
        const struct low_rank *low = &set->low[i];
        if (low->x)
            linear_nn(t, low->factors, dx, low->x, low->w, rows, set->linear[i]->in, low->rank,
                      low->alpha, 1);
    }
}

/* Kernels of different weight formats may want different layouts of x; then each matrix has a run
 * of its own. */
static bool has_one_layout(const struct linear_set *set)
{
    for (size_t i = 1; i < set->n; i++)
        if (!gemm_same_left(set->linear[0]->w, set->linear[i]->w))
            return false;
    return true;
}

void linear_forward(struct threads *t, const struct linear_set *set, const float *x, size_t rows)
{
    /* Few rows need no layout, so their matrices may have any formats. */
    if (rows > SHARED_ROWS && !has_one_layout(set)) {
        for (size_t i = 0; i < set->n; i++) {
            struct linear_set one = { 1, { set->linear[i] }, { set->y[i] }, { set->low[i] } };
            linear_forward(t, &one, x, rows);
        }
        return;
    }
    struct product_job job = { .set = set, .x = x, .rows = rows };
    size_t grain = gemm_grain(), columns = 0;
    /* A product begins at a whole grain: no kernel ever sees a part of a tile of two products. */
    for (size_t i = 0; i < set->n; i++) {
        columns += (set->linear[i]->out + grain - 1) / grain * grain;
        job.start[i + 1] = columns;
    }
    if (rows <= FINE_ROWS)
        threads_run_fine(t, columns, grain, product_forward_slice, &job);
    else if (rows <= SHARED_ROWS)
        threads_run(t, columns, grain, product_forward_slice, &job);
    bool strips = rows > SHARED_ROWS && adds_strips(set, rows);
    for (; rows > SHARED_ROWS && job.row < rows; job.row += job.rows) {
        const struct linear *l = set->linear[0];
        /* Parts of rows bound the pool's memory; their results do not depend on each other. */
        job.rows = min_size(rows - job.row, SHARED_MAX);
        if (strips)
            lay_out_low(t, &job);
        size_t length = left_length(l->w, job.rows);
        for (size_t from = 0; from < l->in; from += length) {
            lay_out(t, &job, x, l->in, l->w, from, min_size(from + length, l->in));
            threads_run_fine(t, columns, grain, product_forward_slice, &job);
        }
    }
    if (!strips)
        add_low_forward(t, set, rows);
}

static void product_backward_slice(void *arg, size_t begin, size_t end)
{
    /* The first matrix sets dx, all others add to it: i > 0. */
    const struct product_job *job = arg;
    for (size_t i = 0; i < job->set->n; i++)
        gemm_backward(job->dx, job->set->y[i], job->set->linear[i]->w, job->rows, i > 0, begin,
                      end);
}

static void backward_left_slice(void *arg, size_t begin, size_t end)
{
    const struct product_job *j = arg;
    const struct linear *l = j->set->linear[j->i];
    float *dx = j->dx + j->row * l->in;
    /* The same, and later parts of a summed index also add. */
    gemm_backward_left(dx, j->left, l->w, j->rows, j->i > 0 || j->from > 0, j->from, j->to, begin,
                       end);
    if (j->i + 1 < j->set->n || j->to < l->out)
        return;
    for (size_t i = 0; i < j->set->n; i++) {
        const struct low_rank *low = &j->set->low[i];
        if (j->low[i])
            dense_add_left(dx, j->low[i], low->w, j->rows, l->in, low->rank, low->alpha, true,
                           low->factors == FACTORS_ROUNDED, begin, end);
    }
}

void linear_backward(struct threads *t, const struct linear_set *set, float *dx, size_t rows)
{
    struct product_job job = { .set = set, .dx = dx, .rows = rows };
    bool shared = rows > SHARED_ROWS;
    /* A format may have no such layout, for which all matrices go the plain way. */
    for (size_t i = 0; i < set->n; i++)
        shared &= gemm_left_turns(set->linear[i]->w);
    if (!shared)
        threads_run(t, set->linear[0]->in, gemm_grain(), product_backward_slice, &job);
    bool strips = shared && adds_strips(set, rows);
    for (; shared && job.row < rows; job.row += job.rows) {
        job.rows = min_size(rows - job.row, SHARED_MAX);
        if (strips)
            lay_out_low(t, &job);
        for (job.i = 0; job.i < set->n; job.i++) {
            const struct linear *l = set->linear[job.i];
            size_t length = left_length(l->w, job.rows);
            for (size_t from = 0; from < l->out; from += length) {
                lay_out(t, &job, set->y[job.i], l->out, l->w, from,
                        min_size(from + length, l->out));
                threads_run_fine(t, l->in, gemm_grain(), backward_left_slice, &job);
            }
        }
    }
    if (!strips)
        add_low_backward(t, set, dx, rows);
}

/* A model in bfloat16 is trained with factors rounded likewise: gradients then match what the
 * forward computed. */
enum factors linear_factors(const struct linear *l)
{
    return gemm_rounds(l->w) ? FACTORS_ROUNDED : FACTORS_EXACT;
}

typedef void dense_kernel(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                          float alpha, int accumulate, size_t begin, size_t end);

struct dense_job {
    dense_kernel *kernel;
    float *y;
    const float *x, *w;
    size_t N, O, C;
    float alpha;
    int accumulate;
};

static struct dense_job make_dense_job(dense_kernel *kernel, float *y, const float *x,
                                       const float *w, size_t N, size_t O, size_t C)
{
    return (struct dense_job){ .kernel = kernel, .y = y, .x = x, .w = w, .N = N, .O = O, .C = C };
}

static void dense_slice(void *arg, size_t begin, size_t end)
{
    const struct dense_job *j = arg;
    j->kernel(j->y, j->x, j->w, j->N, j->O, j->C, j->alpha, j->accumulate, begin, end);
}

/* t NULL: this already runs inside a slice of another run, where runs may not nest. */
static void run_slices(struct threads *t, size_t n, size_t grain,
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
enum { WORTH = 1 << 15, ROWS = 48, FEW_ROWS = 64, COLUMNS_WORTH = 1 << 14 };

/* Rows of a slice, by the multiply-adds of one. */
static size_t dense_grain(size_t per_row)
{
    size_t rows = WORTH / (per_row ? per_row : 1);
    return rows < ROWS ? ROWS : rows;
}

/* Columns of a slice: whole panels of the kernel. */
static size_t column_grain(size_t per_column)
{
    size_t grain = dense_panel(), columns = COLUMNS_WORTH / (per_column ? per_column : 1);
    return columns < grain ? grain : columns / grain * grain;
}

struct set_job {
    const struct dense_product *products;
    size_t n, N, C;
    float alpha;
    int accumulate;
    size_t start[LINEAR_SET + 1]; /* first column of each product, whole grains */
};

static void dense_set_slice(void *arg, size_t begin, size_t end)
{
    const struct set_job *j = arg;
    size_t first, last;
    for (size_t i = 0; i < j->n; i++) {
        const struct dense_product *p = &j->products[i];
        if (columns_of(j->start[i], p->O, begin, end, &first, &last))
            dense_nt_columns(p->y, p->x, p->w, j->N, p->O, j->C, j->alpha, j->accumulate, first,
                             last);
    }
}

void linear_nt_set(struct threads *t, const struct dense_product *products, size_t n, size_t N,
                   size_t C, float alpha, int accumulate)
{
    struct set_job set = {
        .products = products, .n = n, .N = N, .C = C, .alpha = alpha, .accumulate = accumulate
    };
    size_t grain = column_grain(N * C);
    assert(n <= LINEAR_SET);
    /* Many rows: one run per product.  Few rows: all products in one run, which costs one wake-up
     * instead of n. */
    for (size_t i = 0; i < n; i++) {
        const struct dense_product *p = &products[i];
        struct dense_job job = make_dense_job(dense_nt, p->y, p->x, p->w, N, p->O, C);
        job.alpha = alpha;
        job.accumulate = accumulate;
        if (N > FEW_ROWS)
            run_slices(t, N, dense_grain(p->O * C), dense_slice, &job);
        set.start[i + 1] = set.start[i] + (p->O + grain - 1) / grain * grain;
    }
    if (N <= FEW_ROWS)
        run_slices(t, set.start[n], grain, dense_set_slice, &set);
}

struct group_job {
    const struct dense_group *groups;
    size_t n;
    int accumulate;
    size_t start[LINEAR_GROUPS + 1]; /* first column of each product, whole grains */
};

static void dense_group_slice(void *arg, size_t begin, size_t end)
{
    const struct group_job *j = arg;
    size_t first, last;
    for (size_t i = 0; i < j->n; i++) {
        const struct dense_group *g = &j->groups[i];
        const struct dense_product *p = &g->product;
        if (columns_of(j->start[i], p->O, begin, end, &first, &last))
            dense_nt_columns(p->y, p->x, p->w, g->N, p->O, g->C, g->alpha, j->accumulate, first,
                             last);
    }
}

/* Whole panels as grains, the fewest columns that a slice may begin at: products differ in what a
 * column costs, and the pool cuts parts of grains as finely as it must. */
void linear_nt_groups(struct threads *t, const struct dense_group *groups, size_t n, int accumulate)
{
    struct group_job job = { .groups = groups, .n = n, .accumulate = accumulate };
    size_t grain = dense_panel();
    assert(n <= LINEAR_GROUPS);
    for (size_t i = 0; i < n; i++)
        job.start[i + 1] = job.start[i] + (groups[i].product.O + grain - 1) / grain * grain;
    run_slices(t, job.start[n], grain, dense_group_slice, &job);
}

void linear_nn(struct threads *t, enum factors factors, float *y, const float *x, const float *w,
               size_t N, size_t O, size_t C, float alpha, int accumulate)
{
    struct dense_job job =
        make_dense_job(factors == FACTORS_ROUNDED ? dense_nn_rounded : dense_nn, y, x, w, N, O, C);
    job.alpha = alpha;
    job.accumulate = accumulate;
    run_slices(t, N, dense_grain(O * C), dense_slice, &job);
}

void linear_tn(struct threads *t, enum factors factors, float *y, const float *a, const float *x,
               size_t N, size_t O, size_t C, float alpha, int accumulate)
{
    bool rounded = factors == FACTORS_ROUNDED;
    struct dense_job job = make_dense_job(rounded ? dense_tn_rounded : dense_tn, y, a, x, N, O, C);
    job.alpha = alpha;
    job.accumulate = accumulate;
    /* cut along rows of y, or where these are few along its columns */
    if (O > FEW_ROWS) {
        run_slices(t, O, dense_grain(N * C), dense_slice, &job);
        return;
    }
    job.kernel = rounded ? dense_tn_columns_rounded : dense_tn_columns;
    run_slices(t, C, column_grain(N * O), dense_slice, &job);
}

/* Gradient of a bias. */
struct bias_job {
    float *db;
    const float *dy;
    size_t rows, out;
};

/* db (out) += column sums of dy, rows ascending. */
static void bias_slice(void *arg, size_t begin, size_t end)
{
    const struct bias_job *job = arg;
    for (size_t i = 0; i < job->rows; i++)
        for (size_t o = begin; o < end; o++)
            job->db[o] += job->dy[i * job->out + o];
}

void linear_gradient(struct threads *t, enum factors factors, float *dw, float *db, const float *dy,
                     const float *x, size_t rows, size_t out, size_t in)
{
    if (dw)
        linear_tn(t, factors, dw, dy, x, rows, out, in, 1, 1);
    if (db) {
        struct bias_job job = { .db = db, .dy = dy, .rows = rows, .out = out };
        run_slices(t, out, 64, bias_slice, &job);
    }
}
