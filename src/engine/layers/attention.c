/* attention.c - causal attention over pages, on the kernels of attn.h; see attention.h.
 *
 * Forward: a task is a kv head and a few rows of one segment with all their query
 * heads.  Pages that every row sees whole are taken for all queries at once, the
 * last ones row by row, which changes speed but no bit: a query walks its pages in
 * ascending order either way.
 * Backward: a task is a segment and a kv head, because dk and dv are sums over all
 * its rows.  Pages in the outer loop, blocks of rows in the inner, both ascending. */
#include "engine/layers/attention.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "engine/kernels/attn.h"
#include "engine/lanes.h"

_Static_assert((int)KV_BLOCK == (int)ATTN_KEYS, "a page is what the kernels work on");

/* QUERIES: most query vectors that are computed together.  CHUNK: rows of a task. */
enum { QUERIES = 32, CHUNK = 8, CHUNK_OF_MANY = 16, MANY = 64 };

struct attention_job {
    const struct attention *a;
    const struct attn_ops *ops;
    const float *q, *out, *lse, *dout; /* read: by the backward all of them */
    float *y, *y_lse;                  /* written by the forward: out and lse */
    float *dq, *dk, *dv;               /* written by the backward */
    attention_place *place;
    const void *arg; /* of place */
    size_t rows, heads, kv_heads;
    size_t chunk; /* rows of a task: more of them where there are enough tasks for all threads */
    size_t group; /* query heads that share a kv head */
    size_t hd;    /* head_dim */
    float scale;  /* of scores */
    float cap;    /* 0: none */
    size_t window;
    bool rounded; /* pages hold bfloat16 */
};

static struct attention_job make_attention_job(const struct attention *a)
{
    const struct model_config *c = a->config;
    return (struct attention_job){
        .a = a,
        .ops = attn_ops(),
        .rows = a->batch->n,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .chunk = a->batch->n < MANY ? CHUNK : CHUNK_OF_MANY,
        .group = c->heads / c->kv_heads,
        .hd = c->head_dim,
        .scale = c->attention_scale,
        .cap = c->attn_cap,
        .window = a->window,
        .rounded = c->rounded_attention,
    };
}

/* Where kv head `kv` begins among the keys or values of a page, in floats. */
static size_t head_offset(const struct model_config *c, size_t kv)
{
    return kv * (kv_half(c) / c->kv_heads);
}

/* Transposed keys and plain values of one kv head in page b of a segment: floats, or bfloat16. */
static const void *page_keys(const struct attention_job *j, const struct segment *seg, size_t kv,
                             size_t b)
{
    return seg->pages[b] + j->a->k_offset + head_offset(j->a->config, kv);
}

static const void *page_values(const struct attention_job *j, const struct segment *seg, size_t kv,
                               size_t b)
{
    return seg->pages[b] + j->a->v_offset + head_offset(j->a->config, kv);
}

/* Neighbors of the summed index of each product lie side by side, see attn.h: components of a key,
 * and the values of two positions.  Tasks write the halves of a word of values independently. */
static void store_rounded(void *keys, void *values, size_t slot, const float *k, const float *v,
                          size_t hd)
{
    uint16_t rounded[MODEL_MAX_HEAD_DIM], *to = values;
    attn_ops()->round(rounded, v, hd);
    for (size_t d = 0; d < hd; d++)
        to[(slot / 2 * hd + d) * 2 + slot % 2] = rounded[d];
    attn_ops()->round(rounded, k, hd);
    to = keys;
    for (size_t d = 0; d < hd; d += 2)
        memcpy(to + d * KV_BLOCK + slot * 2, rounded + d, 2 * sizeof(*to));
}

void attention_store(const struct attention *a, float *page, size_t kv, size_t slot, const float *k,
                     const float *v)
{
    size_t hd = a->config->head_dim;
    float *keys = page + a->k_offset + head_offset(a->config, kv);
    float *values = page + a->v_offset + head_offset(a->config, kv);
    if (a->config->rounded_attention) {
        store_rounded(keys, values, slot, k, v, hd);
        return;
    }
    for (size_t d = 0; d < hd; d++)
        keys[d * KV_BLOCK + slot] = k[d];
    memcpy(values + slot * hd, v, hd * sizeof(*v));
}

/* Some query vectors that share a kv head, scaled, with their running softmax. */
struct queries {
    size_t n;
    float max[QUERIES], sum[QUERIES];
    float q[QUERIES * MODEL_MAX_HEAD_DIM];
    uint16_t rounded[QUERIES * MODEL_MAX_HEAD_DIM]; /* q */
    float acc[QUERIES * MODEL_MAX_HEAD_DIM];
};

/* What some queries see of a page: keys [from, keys), and each row, which has `heads` of them, one
 * key more than the row before it, up to the whole page. */
struct page_view {
    size_t from, keys, heads;
};

enum { ALL_HEADS = QUERIES }; /* all queries see the same */

static size_t visible_keys(const struct page_view *view, size_t query)
{
    size_t keys = view->keys + query / view->heads;
    return keys < KV_BLOCK ? keys : KV_BLOCK;
}

/* The first position that the row at `pos` sees. */
static size_t first_visible(const struct attention_job *j, size_t pos)
{
    return j->window && pos >= j->window ? pos - j->window + 1 : 0;
}

/* c tanh(s / c) of the scores of one row. */
static void cap_scores(const struct attention_job *j, float *s)
{
    for (size_t i = 0; j->cap > 0 && i < KV_BLOCK; i++)
        s[i] = j->cap * tanhf(s[i] / j->cap);
}

/* Keys before `from` lie outside the window: a weight of e^-infinity. */
static void hide_scores(float *s, size_t from)
{
    for (size_t i = 0; i < from; i++)
        s[i] = -INFINITY;
}

/* Queries [first, first + n) against what they see of a page: the online softmax.
 * With m the running maximum, a page with scores s and new maximum m' updates
 *   sum = sum e^(m - m') + sum_k e^(s_k - m'),  acc = acc e^(m - m') + sum_k e^(s_k - m') v_k
 * so that acc / sum is the softmax-weighted mean of all values seen so far. */
static void fold_page(const struct attention_job *j, struct queries *u, size_t first, size_t n,
                      struct page_view view, const void *kt, const void *v)
{
    float s[QUERIES * KV_BLOCK];
    uint16_t p[QUERIES * KV_BLOCK];
    size_t most = visible_keys(&view, n - 1);
    if (j->rounded)
        j->ops->scores_rounded(s, u->rounded + first * j->hd, kt, n, j->hd);
    else
        j->ops->scores(s, u->q + first * j->hd, j->hd, kt, n, j->hd);
    for (size_t i = 0; i < n; i++) {
        size_t at = first + i;
        cap_scores(j, s + i * KV_BLOCK);
        hide_scores(s + i * KV_BLOCK, view.from);
        /* scores become e^(s - m'), and shrink is e^(m - m') */
        float shrink =
            j->ops->fold(s + i * KV_BLOCK, visible_keys(&view, i), &u->max[at], &u->sum[at]);
        if (shrink != 1.0f)
            lanes_scale(u->acc + at * j->hd, shrink, j->hd);
    }
    if (j->rounded) {
        j->ops->round(p, s, n * KV_BLOCK);
        j->ops->accumulate_rounded(u->acc + first * j->hd, p, v, n, most, j->hd);
    } else {
        j->ops->accumulate(u->acc + first * j->hd, j->hd, s, KV_BLOCK, v, j->hd, n, most, j->hd);
    }
}

/* Pages [b, end) for the queries of one row at `pos`, as far as it sees them. */
static void fold_row(const struct attention_job *j, struct queries *u, const struct segment *seg,
                     size_t kv, size_t first, size_t heads, size_t pos, size_t b, size_t end)
{
    size_t start = first_visible(j, pos);
    b = b > start / KV_BLOCK ? b : start / KV_BLOCK;
    for (; b < end && b * KV_BLOCK <= pos; b++) {
        struct page_view view = { .from = start > b * KV_BLOCK ? start - b * KV_BLOCK : 0,
                                  .keys = pos + 1 - b * KV_BLOCK,
                                  .heads = ALL_HEADS };
        fold_page(j, u, first, heads, view, page_keys(j, seg, kv, b), page_values(j, seg, kv, b));
    }
}

/* Pages from b on, where all rows begin and each sees one key more than the row before it.  Keys
 * that a row does not see weigh 0 in its sums: nothing changes while values are finite. */
static void fold_diagonal(const struct attention_job *j, struct queries *u,
                          const struct segment *seg, size_t kv, size_t heads, size_t pos, size_t b)
{
    size_t rows = u->n / heads;
    for (; b * KV_BLOCK < pos + rows; b++) {
        size_t row = b * KV_BLOCK > pos ? b * KV_BLOCK - pos : 0; /* the first that sees the page */
        struct page_view view = { .keys = pos + row + 1 - b * KV_BLOCK, .heads = heads };
        fold_page(j, u, row * heads, (rows - row) * heads, view, page_keys(j, seg, kv, b),
                  page_values(j, seg, kv, b));
    }
}

/* Heads [g, g + heads) of the group of `kv`, rows [row, row + rows) of one segment. */
static void forward_queries(const struct attention_job *j, const struct segment *seg, size_t kv,
                            size_t g, size_t heads, size_t row, size_t rows)
{
    struct queries u;
    size_t hd = j->hd, pos = seg->pos + row - seg->row;
    u.n = rows * heads;
    for (size_t i = 0; i < u.n; i++) {
        size_t head = kv * j->group + g + i % heads;
        const float *q = j->q + ((row + i / heads) * j->heads + head) * hd;
        for (size_t d = 0; d < hd; d++)
            u.q[i * hd + d] = q[d] * j->scale;
        /* a sink is a key of score `sink` whose value is 0 */
        u.max[i] = j->a->sinks ? j->a->sinks[head] : -INFINITY;
        u.sum[i] = j->a->sinks ? 1 : 0;
    }
    memset(u.acc, 0, u.n * hd * sizeof(float));
    if (j->rounded)
        j->ops->round(u.rounded, u.q, u.n * hd);
    /* pages [common, whole) are seen from their beginning to their end by every row */
    size_t whole = (pos + 1) / KV_BLOCK;
    size_t common = (first_visible(j, pos + rows - 1) + KV_BLOCK - 1) / KV_BLOCK;
    common = common < whole ? common : whole;
    for (size_t r = 0; j->window && r < rows; r++)
        fold_row(j, &u, seg, kv, r * heads, heads, pos + r, 0, common);
    struct page_view all = { .keys = KV_BLOCK, .heads = ALL_HEADS };
    for (size_t b = common; b < whole; b++)
        fold_page(j, &u, 0, u.n, all, page_keys(j, seg, kv, b), page_values(j, seg, kv, b));
    /* pages end at the diagonal, one key later in each row */
    if (j->rounded && !j->window)
        fold_diagonal(j, &u, seg, kv, heads, pos, whole);
    for (size_t r = 0; (!j->rounded || j->window) && r < rows; r++)
        fold_row(j, &u, seg, kv, r * heads, heads, pos + r, whole, SIZE_MAX);
    for (size_t i = 0; i < u.n; i++) {
        size_t at = (row + i / heads) * j->heads + kv * j->group + g + i % heads;
        lanes_scale(u.acc + i * hd, 1.0f / u.sum[i], hd);
        memcpy(j->y + at * hd, u.acc + i * hd, hd * sizeof(float));
        /* P = e^(s - lse) in the backward, without a second search for the maximum */
        j->y_lse[at] = u.max[i] + logf(u.sum[i]);
    }
}

/* A task: some rows and a kv head. */
struct task {
    size_t kv, row, end;
};

static size_t count_chunks(const struct attention_job *j)
{
    return (j->rows + j->chunk - 1) / j->chunk;
}

static struct task task_at(const struct attention_job *j, size_t i)
{
    size_t row = i % count_chunks(j) * j->chunk, end = row + j->chunk;
    return (struct task){ i / count_chunks(j), row, end < j->rows ? end : j->rows };
}

static void place_keys_slice(void *arg, size_t begin, size_t end)
{
    const struct attention_job *j = arg;
    for (size_t i = begin; i < end; i++) {
        struct task t = task_at(j, i);
        j->place(j->arg, t.kv, t.row, t.end);
    }
}

/* The rows of each task, cut where a segment ends and where struct queries is full. */
static void attend_slice(void *arg, size_t begin, size_t end)
{
    const struct attention_job *j = arg;
    for (size_t i = begin; i < end; i++) {
        struct task t = task_at(j, i);
        while (t.row < t.end) {
            const struct segment *seg = &j->a->batch->segments[j->a->segment_of[t.row]];
            size_t stop = seg->row + seg->n < t.end ? seg->row + seg->n : t.end;
            size_t rows = j->group < QUERIES ? QUERIES / j->group : 1;
            rows = stop - t.row < rows ? stop - t.row : rows;
            for (size_t g = 0; g < j->group; g += QUERIES)
                forward_queries(j, seg, t.kv, g, j->group - g < QUERIES ? j->group - g : QUERIES,
                                t.row, rows);
            t.row += rows;
        }
    }
}

/* For a batch of single tokens (decoding): no row needs a key that another task places, so
 * one run suffices and a core finds in its cache the keys that it has just written. */
static void place_and_attend_slice(void *arg, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        place_keys_slice(arg, i, i + 1);
        attend_slice(arg, i, i + 1);
    }
}

void attention_forward(struct threads *t, const struct attention *a, attention_place *place,
                       const void *arg, const float *q, float *out, float *lse)
{
    struct attention_job j = make_attention_job(a);
    size_t tasks = count_chunks(&j) * j.kv_heads;
    j.place = place;
    j.arg = arg;
    j.q = q;
    j.y = out;
    j.y_lse = lse;
    if (a->batch->n_segments == a->batch->n) { /* one row in each */
        threads_run(t, tasks, 1, place_and_attend_slice, &j);
        return;
    }
    /* rows of one segment see each other's keys: all must be in place first */
    threads_run(t, tasks, 1, place_keys_slice, &j);
    threads_run(t, tasks, 1, attend_slice, &j);
}

static void transpose_block(float *dst, size_t ldd, const float *src, size_t lds, size_t rows,
                            size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            dst[c * ldd + r] = src[r * lds + c];
}

/* One page of keys and values in both layouts, and their gradients. */
struct page_gradient {
    const float *kt, *v;
    float wide_kt[KV_BLOCK * MODEL_MAX_HEAD_DIM], wide_v[KV_BLOCK * MODEL_MAX_HEAD_DIM];
    float k[KV_BLOCK * MODEL_MAX_HEAD_DIM], vt[KV_BLOCK * MODEL_MAX_HEAD_DIM];
    float dk[KV_BLOCK * MODEL_MAX_HEAD_DIM], dv[KV_BLOCK * MODEL_MAX_HEAD_DIM];
};

static float widen_bf16(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Keys and values of a page as they are multiplied, in the layout of floats. */
static void open_page(const struct attention_job *j, struct page_gradient *p,
                      const struct segment *seg, size_t kv, size_t b, size_t keys)
{
    p->kt = page_keys(j, seg, kv, b);
    p->v = page_values(j, seg, kv, b);
    if (!j->rounded)
        return;
    const uint16_t *kt = page_keys(j, seg, kv, b), *v = page_values(j, seg, kv, b);
    memset(p->wide_kt, 0, KV_BLOCK * j->hd * sizeof(float));
    for (size_t d = 0; d < j->hd; d++)
        for (size_t i = 0; i < keys; i++) {
            p->wide_kt[d * KV_BLOCK + i] = widen_bf16(kt[(d / 2 * KV_BLOCK + i) * 2 + d % 2]);
            p->wide_v[i * j->hd + d] = widen_bf16(v[(i / 2 * j->hd + d) * 2 + i % 2]);
        }
    p->kt = p->wide_kt;
    p->v = p->wide_v;
}

/* Queries as they were multiplied. */
static void round_queries(const struct attention_job *j, float *q, size_t n)
{
    uint16_t rounded[MODEL_MAX_HEAD_DIM];
    for (size_t i = 0; j->rounded && i < n; i++) {
        j->ops->round(rounded, q + i * j->hd, j->hd);
        for (size_t d = 0; d < j->hd; d++)
            q[i * j->hd + d] = widen_bf16(rounded[d]);
    }
}

/* dS through the cap: times 1 - (S / c)^2, S the capped scores. */
static void uncap_gradient(const struct attention_job *j, float *ds, const float *capped,
                           size_t keys)
{
    for (size_t i = 0; j->cap > 0 && i < keys; i++)
        ds[i] *= 1 - capped[i] / j->cap * (capped[i] / j->cap);
}

/* Rows of one head at positions [pos, pos + rows), the first of them row `row`, against page b. */
static void backward_rows(const struct attention_job *j, struct page_gradient *p, size_t head,
                          size_t row, size_t rows, size_t pos, size_t b)
{
    float s[KV_BLOCK * KV_BLOCK], ds[KV_BLOCK * KV_BLOCK];
    float capped[KV_BLOCK];
    float scaled[KV_BLOCK * MODEL_MAX_HEAD_DIM];
    size_t hd = j->hd, stride = j->heads * hd, at = row * stride + head * hd;
    for (size_t r = 0; r < rows; r++)
        for (size_t d = 0; d < hd; d++)
            scaled[r * hd + d] = j->q[at + r * stride + d] * j->scale;
    round_queries(j, scaled, rows);
    /* s = scale q K^T again, and dP = dO V^T in ds */
    j->ops->scores(s, scaled, hd, p->kt, rows, hd);
    j->ops->scores(ds, j->dout + at, stride, p->vt, rows, hd);
    for (size_t r = 0; r < rows; r++) {
        /* D = rowsum(dO * O); then s becomes P and ds P (dP - D) scale, 0 for keys that
         * the row does not see */
        float delta = lanes_dot(j->dout + at + r * stride, j->out + at + r * stride, hd);
        size_t left = pos + r + 1 - b * KV_BLOCK, start = first_visible(j, pos + r);
        size_t hidden = start > b * KV_BLOCK ? start - b * KV_BLOCK : 0;
        size_t keys = left < KV_BLOCK ? left : KV_BLOCK;
        cap_scores(j, s + r * KV_BLOCK);
        memcpy(capped, s + r * KV_BLOCK, sizeof(capped));
        hide_scores(s + r * KV_BLOCK, hidden < KV_BLOCK ? hidden : KV_BLOCK);
        j->ops->gradient(s + r * KV_BLOCK, ds + r * KV_BLOCK, keys,
                         j->lse[(row + r) * j->heads + head], delta, j->scale);
        uncap_gradient(j, ds + r * KV_BLOCK, capped, keys);
    }
    /* dQ += dS K, dK += dS^T Q, dV += P^T dO */
    j->ops->accumulate(j->dq + at, stride, ds, KV_BLOCK, p->k, hd, rows, KV_BLOCK, hd);
    j->ops->accumulate_turned(p->dk, hd, ds, KV_BLOCK, j->q + at, stride, KV_BLOCK, rows, hd);
    j->ops->accumulate_turned(p->dv, hd, s, KV_BLOCK, j->dout + at, stride, KV_BLOCK, rows, hd);
}

/* dk and dv of one page, and its part of dq: all query heads of the group and all rows that
 * see the page, which are those at its positions and after. */
static void backward_page(const struct attention_job *j, const struct segment *seg, size_t kv,
                          size_t b)
{
    struct page_gradient p;
    size_t hd = j->hd, keys = seg->n - b * KV_BLOCK < KV_BLOCK ? seg->n - b * KV_BLOCK : KV_BLOCK;
    open_page(j, &p, seg, kv, b, keys);
    memset(p.k, 0, KV_BLOCK * hd * sizeof(float)); /* keys that do not exist weigh 0 times 0 */
    memset(p.vt, 0, KV_BLOCK * hd * sizeof(float));
    memset(p.dk, 0, KV_BLOCK * hd * sizeof(float));
    memset(p.dv, 0, KV_BLOCK * hd * sizeof(float));
    transpose_block(p.k, hd, p.kt, KV_BLOCK, hd, keys);
    transpose_block(p.vt, KV_BLOCK, p.v, hd, keys, hd);
    /* no row from `end` on sees the last key of the page */
    size_t end = j->window ? (b + 1) * KV_BLOCK - 1 + j->window : seg->n;
    for (size_t first = b * KV_BLOCK; first < seg->n && first < end; first += KV_BLOCK) {
        size_t rows = seg->n - first < KV_BLOCK ? seg->n - first : KV_BLOCK;
        for (size_t g = 0; g < j->group; g++)
            backward_rows(j, &p, kv * j->group + g, seg->row + first, rows, first, b);
    }
    for (size_t i = 0; i < keys; i++) {
        size_t at = ((seg->row + b * KV_BLOCK + i) * j->kv_heads + kv) * hd;
        memcpy(j->dk + at, p.dk + i * hd, hd * sizeof(float));
        memcpy(j->dv + at, p.dv + i * hd, hd * sizeof(float));
    }
}

/* A unit: a segment and a kv head.  dq of its query heads grows from page to page. */
static void attention_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct attention_job *j = arg;
    for (size_t i = begin; i < end; i++) {
        const struct segment *seg = &j->a->batch->segments[i / j->kv_heads];
        size_t kv = i % j->kv_heads, width = j->group * j->hd;
        for (size_t row = seg->row; row < seg->row + seg->n; row++)
            memset(j->dq + row * j->heads * j->hd + kv * width, 0, width * sizeof(float));
        for (size_t b = 0; b * KV_BLOCK < seg->n; b++)
            backward_page(j, seg, kv, b);
    }
}

void attention_backward(struct threads *t, const struct attention *a, const float *q,
                        const float *out, const float *lse, const float *dout, float *dq, float *dk,
                        float *dv)
{
    struct attention_job j = make_attention_job(a);
    j.q = q;
    j.out = out;
    j.lse = lse;
    j.dout = dout;
    j.dq = dq;
    j.dk = dk;
    j.dv = dv;
    threads_run(t, a->batch->n_segments * a->config->kv_heads, 1, attention_backward_slice, &j);
}
