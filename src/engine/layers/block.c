/* block.c - one transformer layer forward.
 *
 * Each stage is one parallel run over outputs; LoRA parts are added per run of rows
 * that share an adapter, so neighbors in a batch never meet. */
#include "engine/layers/block.h"

#include <string.h>
#include "engine/kernels/vec.h"
#include "engine/layers/linear.h"
#include "engine/layers/norm.h"
#include "engine/layers/rope.h"

enum { ALIGN_FLOATS = 16 };

/* Gives out aligned pieces of a block of memory; without memory it only counts. */
struct cutter {
    float *memory;
    size_t used; /* floats */
};

/* Rounded up, so that each piece begins at a cache line. */
static float *take_floats(struct cutter *c, size_t n)
{
    float *p = c->memory ? c->memory + c->used : NULL;
    c->used += (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    return p;
}

/* The one place that knows the layout: sizes (mem NULL) and pointers cannot differ. */
static size_t lay_out_acts(struct acts *a, const struct model_config *c, size_t rows, size_t rank,
                           float *mem)
{
    struct cutter p = { mem, 0 };
    size_t hidden = rows * c->hidden, q = rows * c->heads * c->head_dim;
    size_t kv = rows * c->kv_heads * c->head_dim, inner = rows * model_mlp_width(c);
    /* a sparse layer computes a row once for each of its experts */
    size_t entries = rows * (c->experts ? c->experts_used : 1);
    a->n1 = take_floats(&p, hidden);
    a->n2 = take_floats(&p, hidden);
    a->x_mid = take_floats(&p, hidden);
    a->rstd1 = take_floats(&p, rows);
    a->rstd2 = take_floats(&p, rows);
    a->q_raw = c->qk_norm ? take_floats(&p, q) : NULL;
    a->q = take_floats(&p, q);
    a->att = take_floats(&p, q);
    a->k_raw = take_floats(&p, kv);
    a->v = take_floats(&p, kv);
    a->q_rstd = take_floats(&p, rows * c->heads);
    a->k_rstd = take_floats(&p, rows * c->kv_heads);
    a->lse = take_floats(&p, rows * c->heads);
    a->gate = take_floats(&p, inner);
    a->up = take_floats(&p, inner);
    a->act = take_floats(&p, inner);
    for (int i = 0; i < LINEARS; i++)
        a->xa[i] = take_floats(&p, (i < LINEAR_GATE ? rows : entries) * rank);
    float *moe = take_floats(&p, moe_acts_floats(c, rows));
    if (mem)
        moe_acts_init(&a->moe, c, rows, moe);
    return p.used;
}

size_t acts_floats(const struct model_config *c, size_t rows, size_t rank)
{
    struct acts a;
    return lay_out_acts(&a, c, rows, rank, NULL);
}

void acts_init(struct acts *a, const struct model_config *c, size_t rows, size_t rank, float *mem)
{
    lay_out_acts(a, c, rows, rank, mem);
}

/* Add the LoRA parts of linears that read x to their y, run by run of rows with one adapter. */
static void add_layer_lora(const struct block *b, size_t layer, const struct linear_set *set,
                           const enum linear_id *ids, const struct acts *a, const float *x)
{
    const struct segment *s = b->batch->segments, *end = s + b->batch->n_segments;
    size_t in = set->linear[0]->in;
    /* consecutive segments with one adapter are one product */
    while (s < end) {
        const struct segment *first = s;
        struct lora_part parts[LINEAR_SET];
        size_t rows = 0;
        for (; s < end && s->lora == first->lora; s++)
            rows += s->n;
        if (!first->lora)
            continue;
        for (size_t i = 0; i < set->n; i++)
            parts[i] =
                (struct lora_part){ lora_pair(first->lora, layer, ids[i]),
                                    set->y[i] + first->row * set->linear[i]->out,
                                    a->xa[ids[i]] + first->row * b->rank, set->linear[i]->out };
        lora_forward_set(b->threads, first->lora, parts, set->n, x + first->row * in, rows, in);
    }
}

/* Linears `ids` of a layer, which read x, with their LoRA parts: y_i (rows, out_i). */
static void run_linears(const struct block *b, size_t layer, size_t n, const enum linear_id *ids,
                        float *const *y, const struct acts *a, const float *x)
{
    struct linear_set set = { .n = n };
    for (size_t i = 0; i < n; i++) {
        set.linear[i] = &b->model->layers[layer].linear[ids[i]];
        set.y[i] = y[i];
    }
    linear_forward(b->threads, &set, x, b->batch->n);
    add_layer_lora(b, layer, &set, ids, a, x);
}

/* What place_rows() needs; attention calls it for each task. */
struct heads_job {
    const struct block *b;
    const struct layer *layer;
    struct acts *a;
    size_t k_offset, v_offset;
};

/* The norm, where there is one, and the rotation of one head: y from raw. */
static void turn_head(const struct heads_job *j, float *y, float *rstd, const float *raw,
                      const float *norm, const float *cs)
{
    const struct model_config *c = &j->b->model->config;
    if (c->qk_norm)
        *rstd = norm_row(y, raw, norm, c->head_dim, c->norm_eps);
    else if (y != raw)
        memcpy(y, raw, c->head_dim * sizeof(*y));
    rope_rotate(y, cs, c->head_dim);
}

/* Query heads of kv head `kv` in rows [row, end), normed and rotated in place; its key and value
 * into the page of the row's position. */
static void place_rows(const void *arg, size_t kv, size_t row, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t hd = c->head_dim, group = c->heads / c->kv_heads, head = kv * KV_BLOCK * hd;
    for (; row < end; row++) {
        const struct segment *seg = &j->b->batch->segments[j->b->segment_of[row]];
        const float *cs = j->b->cs + row * hd;
        size_t pos = seg->pos + row - seg->row, slot = pos % KV_BLOCK;
        size_t at = row * c->kv_heads + kv;
        float *page = seg->pages[pos / KV_BLOCK], k[MODEL_MAX_HEAD_DIM];
        for (size_t i = at * group; i < (at + 1) * group; i++) {
            float *q = j->a->q + i * hd;
            turn_head(j, q, &j->a->q_rstd[i], c->qk_norm ? j->a->q_raw + i * hd : q,
                      j->layer->q_norm, cs);
        }
        turn_head(j, k, &j->a->k_rstd[at], j->a->k_raw + at * hd, j->layer->k_norm, cs);
        for (size_t d = 0; d < hd; d++) /* keys are stored transposed: see attn.h */
            page[j->k_offset + head + d * KV_BLOCK + slot] = k[d];
        memcpy(page + j->v_offset + head + slot * hd, j->a->v + at * hd, hd * sizeof(*k));
    }
}

/* Elementwise work on whole activations. */
struct mix_job {
    float *y;
    const float *a, *b;
};

/* y += a */
static void add_slice(void *arg, size_t begin, size_t end)
{
    const struct mix_job *j = arg;
    vec_ops()->add(j->y + begin, j->a + begin, end - begin);
}

/* y = silu(a) * b */
static void silu_forward_slice(void *arg, size_t begin, size_t end)
{
    const struct mix_job *j = arg;
    vec_ops()->silu(j->y + begin, j->a + begin, j->b + begin, end - begin);
}

void block_forward(const struct block *b, size_t layer, size_t k_offset, size_t v_offset,
                   const float *x, struct acts *a, float *y)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    size_t rows = b->batch->n;
    /* x_mid = x + o(attention(...)); without norms q is rotated where it was computed */
    float *q = c->qk_norm ? a->q_raw : a->q;
    norm_forward(b->threads, a->n1, a->rstd1, x, l->norm1, rows, c->hidden, c->norm_eps);
    run_linears(b, layer, 3, (const enum linear_id[]){ LINEAR_Q, LINEAR_K, LINEAR_V },
                (float *[]){ q, a->k_raw, a->v }, a, a->n1);
    struct heads_job heads = {
        .b = b, .layer = l, .a = a, .k_offset = k_offset, .v_offset = v_offset
    };
    struct attention attention = {
        .config = c,
        .batch = b->batch,
        .segment_of = b->segment_of,
        .k_offset = k_offset,
        .v_offset = v_offset,
    };
    attention_forward(b->threads, &attention, place_rows, &heads, a->q, a->att, a->lse);
    run_linears(b, layer, 1, (const enum linear_id[]){ LINEAR_O }, &a->x_mid, a, a->att);
    struct mix_job add = { .y = a->x_mid, .a = x };
    threads_run(b->threads, rows * c->hidden, 4096, add_slice, &add);
    /* y = x_mid + mlp(norm2(x_mid)) */
    norm_forward(b->threads, a->n2, a->rstd2, a->x_mid, l->norm2, rows, c->hidden, c->norm_eps);
    if (l->experts) {
        moe_forward(b, layer, a, y);
    } else {
        run_linears(b, layer, 2, (const enum linear_id[]){ LINEAR_GATE, LINEAR_UP },
                    (float *[]){ a->gate, a->up }, a, a->n2);
        struct mix_job silu = { .y = a->act, .a = a->gate, .b = a->up };
        threads_run(b->threads, rows * c->intermediate, 4096, silu_forward_slice, &silu);
        run_linears(b, layer, 1, (const enum linear_id[]){ LINEAR_DOWN }, &y, a, a->act);
    }
    add = (struct mix_job){ .y = y, .a = a->x_mid };
    threads_run(b->threads, rows * c->hidden, 4096, add_slice, &add);
}
