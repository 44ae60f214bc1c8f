/* delta.c - the gated delta rule forward; see delta.h. */
#include "engine/layers/delta.h"

#include <math.h>
#include <string.h>
#include "engine/kernels/attn.h"
#include "engine/kernels/vec.h"
#include "engine/layers/block_linear.h"
#include "engine/layers/norm.h"
#include "engine/layers/turn.h"

enum { ROW_GRAIN = 8, TOGETHER = 8, C = DELTA_CHUNK, DIM = MODEL_MAX_DELTA_DIM };
static const float l2_eps = 1e-6f;

void delta_acts_init(struct delta_acts *d, const struct model_config *c, size_t rows, size_t chunks,
                     struct cutter *p)
{
    size_t channels = rows * model_delta_channels(c), heads = rows * c->delta_v_heads;
    size_t keys = rows * c->delta_k_heads * c->delta_k_dim, values = heads * c->delta_v_dim;
    d->taps = cutter_take(p, c->delta_conv * model_delta_channels(c));
    d->m = cutter_take(p, channels);
    d->conv = cutter_take(p, channels);
    d->q = cutter_take(p, keys);
    d->k = cutter_take(p, keys);
    d->q_rstd = cutter_take(p, rows * c->delta_k_heads);
    d->k_rstd = cutter_take(p, rows * c->delta_k_heads);
    d->v = cutter_take(p, values);
    d->z = cutter_take(p, values);
    d->u = cutter_take(p, values);
    d->o = cutter_take(p, values);
    d->y = cutter_take(p, values);
    d->b_raw = cutter_take(p, heads);
    d->a_raw = cutter_take(p, heads);
    d->b = cutter_take(p, heads);
    d->g = cutter_take(p, heads);
    d->o_rstd = cutter_take(p, heads);
    d->states = cutter_take(p, chunks * c->delta_v_heads * c->delta_k_dim * c->delta_v_dim);
}

/* ---- what a sequence keeps ------------------------------------------------------------------- */

/* Pieces of one layer's state. */
struct sequence_state {
    float *tail; /* (K - 1, channels): inputs of the convolution before the next position */
    float *s0;   /* (v_heads, dk, dv): at the start of the open chunk */
    float *k;    /* (C, k_heads * dk): of its rows so far */
    float *u;    /* (C, v_heads * dv) */
    float *G;    /* (C, v_heads) */
};

static size_t lay_out_state(struct sequence_state *s, const struct model_config *c, float *mem)
{
    struct cutter p = { mem, 0 };
    size_t keys = c->delta_k_heads * c->delta_k_dim, values = c->delta_v_heads * c->delta_v_dim;
    s->tail = cutter_take(&p, (c->delta_conv - 1) * model_delta_channels(c));
    s->s0 = cutter_take(&p, values * c->delta_k_dim);
    s->k = cutter_take(&p, C * keys);
    s->u = cutter_take(&p, C * values);
    s->G = cutter_take(&p, C * c->delta_v_heads);
    return p.used;
}

size_t delta_state_floats(const struct model_config *c)
{
    struct sequence_state s;
    size_t layers = c->layers - model_attention_layers(c, c->layers);
    return layers ? layers * lay_out_state(&s, c, NULL) : 0;
}

/* The state of a layer in a segment's memory. */
static struct sequence_state layer_state(const struct model_config *c, const struct segment *seg,
                                         size_t layer)
{
    struct sequence_state s;
    size_t index = layer - model_attention_layers(c, layer), floats = lay_out_state(&s, c, NULL);
    lay_out_state(&s, c, seg->state + index * floats);
    return s;
}

/* ---- the convolution and what surrounds the rule --------------------------------------------- */

struct delta_job {
    const struct block *b;
    const struct layer *l;
    const struct delta_acts *d;
    size_t layer;
};

/* Row `back` rows before a row of the batch, of the convolution's input; NULL: before the start. */
static const float *input_before(const struct delta_job *j, const struct segment *seg, size_t row,
                                 size_t back)
{
    const struct model_config *c = &j->b->model->config;
    size_t channels = model_delta_channels(c), at = row - seg->row, pos = seg->pos + at;
    if (back > pos)
        return NULL;
    if (back <= at)
        return j->d->m + (row - back) * channels;
    /* row K - 2 of the tail is the position before the segment */
    struct sequence_state s = layer_state(c, seg, j->layer);
    return s.tail + (c->delta_conv - 1 - (back - at)) * channels;
}

/* y = x / sqrt(sum x^2 + eps) * scale; returns that root's inverse. */
static float l2_norm(float *y, const float *x, size_t n, float scale)
{
    float r = 1 / sqrtf(vec_ops()->dot(x, x, n) + l2_eps);
    vec_ops()->scale(y, x, r, n);
    vec_ops()->scale(y, y, scale, n);
    return r;
}

void delta_silu(float *y, const float *x, size_t n)
{
    enum { BLOCK = 128 };
    float ones[BLOCK];
    for (size_t i = 0; i < BLOCK; i++)
        ones[i] = 1;
    for (size_t i = 0; i < n; i += BLOCK)
        vec_ops()->silu(y + i, x + i, ones, n - i < BLOCK ? n - i : BLOCK);
}

/* ln(1 + e^x); for large x the sum is e^x. */
static float compute_softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* q, k, v and the gates of rows. */
static void prepare_slice(void *arg, size_t begin, size_t end)
{
    const struct delta_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct delta_acts *d = j->d;
    size_t channels = model_delta_channels(c), K = c->delta_conv, dk = c->delta_k_dim;
    size_t keys = c->delta_k_heads * dk, values = c->delta_v_heads * c->delta_v_dim;
    for (size_t row = begin; row < end; row++) {
        const struct segment *seg = &j->b->batch->segments[j->b->segment_of[row]];
        float *conv = d->conv + row * channels;
        memset(conv, 0, channels * sizeof(*conv));
        for (size_t s = 0; s < K; s++) {
            const float *m = input_before(j, seg, row, K - 1 - s);
            if (m)
                vec_ops()->add_products(conv, d->taps + s * channels, m, channels);
        }
        float *q = d->q + row * keys, *k = d->k + row * keys, *v = d->v + row * values;
        delta_silu(q, conv, keys);
        delta_silu(k, conv + keys, keys);
        delta_silu(v, conv + 2 * keys, values);
        for (size_t h = 0; h < c->delta_k_heads; h++) {
            size_t at = row * c->delta_k_heads + h;
            d->q_rstd[at] = l2_norm(q + h * dk, q + h * dk, dk, 1 / sqrtf((float)dk));
            d->k_rstd[at] = l2_norm(k + h * dk, k + h * dk, dk, 1);
        }
        for (size_t h = 0; h < c->delta_v_heads; h++) {
            size_t at = row * c->delta_v_heads + h;
            d->b[at] = 1 / (1 + expf(-d->b_raw[at]));
            d->g[at] = -expf(j->l->a_log[h]) * compute_softplus(d->a_raw[at] + j->l->dt_bias[h]);
        }
    }
}

/* y = rms(o) silu(z), per value head. */
static void gated_norm_slice(void *arg, size_t begin, size_t end)
{
    const struct delta_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct delta_acts *d = j->d;
    size_t dv = c->delta_v_dim;
    for (size_t i = begin * c->delta_v_heads; i < end * c->delta_v_heads; i++) {
        float *y = d->y + i * dv;
        d->o_rstd[i] = norm_row(y, d->o + i * dv, j->l->delta_norm, dv, c->norm_eps);
        vec_ops()->silu(y, d->z + i * dv, y, dv);
    }
}

/* ---- the rule -------------------------------------------------------------------------------- */

struct delta_head delta_head(const struct model_config *c, size_t key)
{
    size_t group = c->delta_v_heads / c->delta_k_heads;
    return (struct delta_head){
        .c = c,
        .key = key,
        .group = group,
        .dk = c->delta_k_dim,
        .dv = c->delta_v_dim,
        .k_stride = c->delta_k_heads * c->delta_k_dim,
        .v_stride = c->delta_v_heads * c->delta_v_dim,
    };
}

/* Rows of one chunk that are computed now: [have, have + n), of which the first is row `row`. */
struct chunk {
    size_t have, n, row;
    bool last;         /* nothing reads the state after it: the end of a sequence in training */
    float kt[DIM * C]; /* (dk, C): keys of the whole chunk, transposed */
    float kk[C * C];   /* (n, C): k_i . k_j */
    float qk[C * C];   /* (n, C): q_i . k_j */
    float u[C * DIM];  /* (C, dv), of one value head */
    float G[C];
    float D[C * C];                 /* (n, C): e^(G_i - G_j) */
    float A[C * C], P[C * C];       /* (n, C): -kk and qk times D */
    float ks[C * DIM], qs[C * DIM]; /* (n, dv): S0^T k and S0^T q */
    float w[DIM * C]; /* (dk, C): keys times what is left of them at the chunk's end */
};

/* Keys of the chunk and their products, which all value heads share. */
static void load_keys(const struct delta_job *j, const struct delta_head *h,
                      const struct sequence_state *state, struct chunk *t)
{
    const struct attn_ops *ops = attn_ops();
    size_t stride = h->k_stride, first = h->key * h->dk, total = t->have + t->n;
    if (t->have)
        turn_matrix(t->kt, C, state->k + first, stride, t->have, h->dk);
    turn_matrix(t->kt + t->have, C, j->d->k + t->row * stride + first, stride, t->n, h->dk);
    memset(t->kk, 0, t->n * C * sizeof(float));
    memset(t->qk, 0, t->n * C * sizeof(float));
    const float *k = j->d->k + t->row * stride + first, *q = j->d->q + t->row * stride + first;
    ops->accumulate(t->kk, C, k, stride, t->kt, C, t->n, h->dk, total);
    ops->accumulate(t->qk, C, q, stride, t->kt, C, t->n, h->dk, total);
}

void delta_decays(float *D, const float *G, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++, D += C) {
        memcpy(D, G, (i + 1) * sizeof(*D));
        memset(D + i + 1, 0, (C - i - 1) * sizeof(*D));
        vec_ops()->softmax(D, i + 1, G[i], -1, 0, 1);
    }
}

/* S1 of a full chunk into `to`, which may be S0; S0 NULL: zero. */
static void advance_state(const struct delta_head *h, struct chunk *t, const float *s0, float *to)
{
    const float *left = t->D + (t->n - 1) * C; /* of the last row */
    if (s0)
        vec_ops()->scale(to, s0, expf(t->G[C - 1]), h->dk * h->dv);
    else
        memset(to, 0, h->dk * h->dv * sizeof(*to));
    for (size_t d = 0; d < h->dk; d++)
        for (size_t i = 0; i < C; i++)
            t->w[d * C + i] = t->kt[d * C + i] * left[i];
    attn_ops()->accumulate(to, h->dv, t->w, C, t->u, h->dv, h->dk, C, h->dv);
}

/* u and o of new rows [r, r + TOGETHER) of the chunk.  What earlier rows add to them is computed
 * for all together, then what they add to each other: every sum runs over ascending rows, wherever
 * a sequence was cut. */
static void run_rows(const struct delta_head *h, const struct delta_acts *d, struct chunk *t,
                     size_t head, bool started, size_t r)
{
    const struct attn_ops *ops = attn_ops();
    size_t rows = t->n - r < TOGETHER ? t->n - r : TOGETHER, first = t->have + r, dv = h->dv;
    size_t at = (t->row + r) * h->v_stride + head * dv;
    float *u = t->u + first * dv, *o = d->o + at;
    for (size_t i = 0; i < rows; i++) {
        float decay = expf(t->G[first + i]);
        memcpy(u + i * dv, d->v + at + i * h->v_stride, dv * sizeof(*u));
        memset(o + i * h->v_stride, 0, dv * sizeof(*o));
        if (started) {
            vec_ops()->add_scaled(u + i * dv, t->ks + (r + i) * dv, -decay, dv);
            vec_ops()->scale(o + i * h->v_stride, t->qs + (r + i) * dv, decay, dv);
        }
    }
    ops->accumulate(u, dv, t->A + r * C, C, t->u, dv, rows, first, dv);
    ops->accumulate(o, h->v_stride, t->P + r * C, C, t->u, dv, rows, first, dv);
    for (size_t i = 0; i < rows; i++) {
        const float *a = t->A + (r + i) * C + first, *p = t->P + (r + i) * C + first;
        ops->accumulate(u + i * dv, dv, a, C, u, dv, 1, i, dv);
        vec_ops()->scale(u + i * dv, u + i * dv,
                         d->b[(t->row + r + i) * h->c->delta_v_heads + head], dv);
        ops->accumulate(o + i * h->v_stride, dv, p, C, u, dv, 1, i + 1, dv);
        memcpy(d->u + at + i * h->v_stride, u + i * dv, dv * sizeof(*u));
    }
}

/* u and o of the chunk's new rows of value head `head`. */
static void run_chunk(const struct delta_job *j, const struct delta_head *h, struct chunk *t,
                      size_t head, const float *s0)
{
    const struct attn_ops *ops = attn_ops();
    const struct delta_acts *d = j->d;
    size_t dv = h->dv, heads = h->c->delta_v_heads, first = h->key * h->dk;
    if (s0) {
        memset(t->ks, 0, t->n * dv * sizeof(float));
        memset(t->qs, 0, t->n * dv * sizeof(float));
        ops->accumulate(t->ks, dv, d->k + t->row * h->k_stride + first, h->k_stride, s0, dv, t->n,
                        h->dk, dv);
        ops->accumulate(t->qs, dv, d->q + t->row * h->k_stride + first, h->k_stride, s0, dv, t->n,
                        h->dk, dv);
    }
    for (size_t r = 0, i = t->have; r < t->n; r++, i++)
        t->G[i] = (i ? t->G[i - 1] : 0) + d->g[(t->row + r) * heads + head];
    delta_decays(t->D, t->G, t->have, t->n);
    for (size_t i = 0; i < t->n * C; i++) {
        t->A[i] = -t->kk[i] * t->D[i];
        t->P[i] = t->qk[i] * t->D[i];
    }
    for (size_t r = 0; r < t->n; r += TOGETHER)
        run_rows(h, d, t, head, s0 != NULL, r);
}

/* One value head over one chunk, with what the sequence keeps; in training S0 lies in states and
 * S1 goes there. */
static void run_value_head(const struct delta_job *j, const struct delta_head *h, struct chunk *t,
                           size_t head, size_t pos, const struct sequence_state *state,
                           float *states)
{
    const struct model_config *c = h->c;
    size_t dv = h->dv, heads = c->delta_v_heads, chunk = pos / C;
    float *kept = state->s0 ? delta_state(c, state->s0, 0, head) : NULL;
    float *s0 = chunk == 0 ? NULL : kept ? kept : delta_state(c, states, chunk - 1, head);
    for (size_t i = 0; i < t->have; i++) {
        memcpy(t->u + i * dv, state->u + i * h->v_stride + head * dv, dv * sizeof(float));
        t->G[i] = state->G[i * heads + head];
    }
    run_chunk(j, h, t, head, s0);
    bool full = t->have + t->n == C;
    if (full && kept)
        advance_state(h, t, s0, kept);
    else if (full && !t->last)
        advance_state(h, t, s0, delta_state(c, states, chunk, head));
    for (size_t i = t->have; kept && i < t->have + t->n; i++) {
        memcpy(state->u + i * h->v_stride + head * dv, t->u + i * dv, dv * sizeof(float));
        state->G[i * heads + head] = t->G[i];
    }
}

size_t delta_states_before(const struct batch *b, const struct segment *seg)
{
    size_t n = 0;
    for (const struct segment *s = b->segments; s < seg; s++)
        n += delta_chunks(s->n);
    return n;
}

/* A unit is a segment and a key head with its value heads: they share the keys. */
static void rule_slice(void *arg, size_t begin, size_t end)
{
    const struct delta_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    struct chunk t;
    for (size_t unit = begin; unit < end; unit++) {
        const struct segment *seg = &j->b->batch->segments[unit / c->delta_k_heads];
        struct delta_head h = delta_head(c, unit % c->delta_k_heads);
        struct sequence_state state = { 0 };
        float *states = NULL;
        if (seg->state)
            state = layer_state(c, seg, j->layer);
        else
            states = delta_state(c, j->d->states, delta_states_before(j->b->batch, seg), 0);
        for (size_t done = 0; done < seg->n; done += t.n) {
            size_t pos = seg->pos + done, left = seg->n - done;
            t.have = pos % C;
            t.n = left < C - t.have ? left : C - t.have;
            t.row = seg->row + done;
            load_keys(j, &h, &state, &t);
            t.last = !seg->state && done + t.n == seg->n;
            for (size_t v = h.key * h.group; v < (h.key + 1) * h.group; v++)
                run_value_head(j, &h, &t, v, pos, &state, states);
            for (size_t r = 0; seg->state && r < t.n; r++)
                memcpy(state.k + (t.have + r) * h.k_stride + h.key * h.dk,
                       j->d->k + (t.row + r) * h.k_stride + h.key * h.dk, h.dk * sizeof(float));
        }
    }
}

/* The last inputs of the convolution, once all rows have read the old ones. */
static void keep_tails(const struct delta_job *j)
{
    const struct model_config *c = &j->b->model->config;
    size_t channels = model_delta_channels(c), tail = c->delta_conv - 1;
    for (size_t i = 0; i < j->b->batch->n_segments; i++) {
        const struct segment *seg = &j->b->batch->segments[i];
        if (!seg->state)
            continue;
        struct sequence_state s = layer_state(c, seg, j->layer);
        size_t rows = seg->n < tail ? seg->n : tail;
        memmove(s.tail, s.tail + rows * channels, (tail - rows) * channels * sizeof(float));
        memcpy(s.tail + (tail - rows) * channels, j->d->m + (seg->row + seg->n - rows) * channels,
               rows * channels * sizeof(float));
    }
}

void delta_forward(const struct block *b, size_t layer, const float *x, struct acts *a, float *y)
{
    static const enum linear_id in[] = { LINEAR_DELTA_QKV, LINEAR_DELTA_Z };
    static const enum linear_id gates[] = { LINEAR_DELTA_B, LINEAR_DELTA_A };
    static const enum linear_id out[] = { LINEAR_DELTA_OUT };
    const struct delta_acts *d = &a->delta;
    const struct layer *l = &b->model->layers[layer];
    size_t rows = b->batch->n;
    struct delta_job job = { .b = b, .l = l, .d = d, .layer = layer };
    turn_matrix(d->taps, model_delta_channels(&b->model->config), l->conv,
                b->model->config.delta_conv, model_delta_channels(&b->model->config),
                b->model->config.delta_conv);
    block_linears(b, layer, 2, in, (float *[]){ d->m, d->z }, a, x);
    block_linears(b, layer, 2, gates, (float *[]){ d->b_raw, d->a_raw }, a, x);
    threads_run(b->threads, rows, ROW_GRAIN, prepare_slice, &job);
    threads_run(b->threads, b->batch->n_segments * b->model->config.delta_k_heads, 1, rule_slice,
                &job);
    keep_tails(&job);
    threads_run(b->threads, rows, ROW_GRAIN, gated_norm_slice, &job);
    block_linears(b, layer, 1, out, &y, a, d->y);
}
