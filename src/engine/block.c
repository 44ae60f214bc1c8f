/* block.c - one transformer layer forward.
 *
 * Each stage is one parallel run over outputs; LoRA parts are added per run of rows
 * that share an adapter, so neighbours in a batch never meet. */
#include "engine/block.h"

#include <string.h>
#include "engine/kernels/vec.h"
#include "engine/linear.h"
#include "engine/norm.h"
#include "engine/rope.h"

enum { ALIGN_FLOATS = 16 };

/* Hands out aligned pieces of memory; only counts when there is none. */
struct cutter {
    float *memory;
    size_t used;
};

static float *take(struct cutter *c, size_t n)
{
    float *p = c->memory ? c->memory + c->used : NULL;
    c->used += (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    return p;
}

static size_t acts_layout(struct acts *a, const struct model_config *c, size_t rows, size_t rank,
                          float *mem)
{
    struct cutter p = { mem, 0 };
    size_t hidden = rows * c->hidden, q = rows * c->heads * c->head_dim;
    size_t kv = rows * c->kv_heads * c->head_dim, inner = rows * model_mlp_width(c);
    size_t entries = rows * (c->experts ? c->experts_used : 1);
    a->n1 = take(&p, hidden);
    a->n2 = take(&p, hidden);
    a->x_mid = take(&p, hidden);
    a->rstd1 = take(&p, rows);
    a->rstd2 = take(&p, rows);
    a->q_raw = c->qk_norm ? take(&p, q) : NULL;
    a->q = take(&p, q);
    a->att = take(&p, q);
    a->k_raw = take(&p, kv);
    a->v = take(&p, kv);
    a->q_rstd = take(&p, rows * c->heads);
    a->k_rstd = take(&p, rows * c->kv_heads);
    a->lse = take(&p, rows * c->heads);
    a->gate = take(&p, inner);
    a->up = take(&p, inner);
    a->act = take(&p, inner);
    for (int i = 0; i < LINEARS; i++)
        a->xa[i] = take(&p, (i < LINEAR_GATE ? rows : entries) * rank);
    float *moe = take(&p, moe_acts_floats(c, rows));
    if (mem)
        moe_acts_init(&a->moe, c, rows, moe);
    return p.used;
}

size_t acts_floats(const struct model_config *c, size_t rows, size_t rank)
{
    struct acts a;
    return acts_layout(&a, c, rows, rank, NULL);
}

void acts_init(struct acts *a, const struct model_config *c, size_t rows, size_t rank, float *mem)
{
    acts_layout(a, c, rows, rank, mem);
}

/* Add the LoRA part of one linear to y, run by run of rows with one adapter. */
static void add_lora(const struct block *b, size_t layer, enum linear_id id, float *y, float *xa,
                     const float *x)
{
    const struct linear *l = &b->model->layers[layer].linear[id];
    const struct segment *s = b->batch->segments, *end = s + b->batch->n_segments;
    while (s < end) {
        const struct segment *first = s;
        size_t rows = 0;
        for (; s < end && s->lora == first->lora; s++)
            rows += s->n;
        if (first->lora)
            lora_forward(b->threads, first->lora, lora_pair(first->lora, layer, id),
                         y + first->row * l->out, xa + first->row * b->rank, x + first->row * l->in,
                         rows, l->out, l->in);
    }
}

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

static void place_row(const struct heads_job *j, size_t kv, size_t row)
{
    const struct model_config *c = &j->b->model->config;
    const struct segment *seg = &j->b->batch->segments[j->b->segment_of[row]];
    const float *cs = j->b->cs + row * c->head_dim;
    size_t hd = c->head_dim, pos = seg->pos + row - seg->row, group = c->heads / c->kv_heads;
    size_t slot = pos % KV_BLOCK, at = row * c->kv_heads + kv, head = kv * KV_BLOCK * hd;
    float *page = seg->pages[pos / KV_BLOCK], k[MODEL_MAX_HEAD_DIM];
    for (size_t i = at * group; i < (at + 1) * group; i++) {
        float *q = j->a->q + i * hd;
        turn_head(j, q, &j->a->q_rstd[i], c->qk_norm ? j->a->q_raw + i * hd : q, j->layer->q_norm,
                  cs);
    }
    turn_head(j, k, &j->a->k_rstd[at], j->a->k_raw + at * hd, j->layer->k_norm, cs);
    for (size_t d = 0; d < hd; d++) /* keys lie transposed: see attn.h */
        page[j->k_offset + head + d * KV_BLOCK + slot] = k[d];
    memcpy(page + j->v_offset + head + slot * hd, j->a->v + at * hd, hd * sizeof(*k));
}

static void place_rows(const void *arg, size_t kv, size_t row, size_t end)
{
    for (; row < end; row++)
        place_row(arg, kv, row);
}

struct mix_job {
    float *y;
    const float *a, *b;
};

static void add_slice(void *arg, size_t begin, size_t end)
{
    const struct mix_job *j = arg;
    vec_ops()->add(j->y + begin, j->a + begin, end - begin);
}

static void silu_slice(void *arg, size_t begin, size_t end)
{
    const struct mix_job *j = arg;
    vec_ops()->silu(j->y + begin, j->a + begin, j->b + begin, end - begin);
}

static void attention_part(const struct block *b, size_t layer, size_t k_offset, size_t v_offset,
                           const float *x, struct acts *a)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    size_t rows = b->batch->n;
    float *q = c->qk_norm ? a->q_raw : a->q;
    norm_forward(b->threads, a->n1, a->rstd1, x, l->norm1, rows, c->hidden, c->norm_eps);
    struct linear_set qkv = { 3,
                              { &l->linear[LINEAR_Q], &l->linear[LINEAR_K], &l->linear[LINEAR_V] },
                              { q, a->k_raw, a->v } };
    linear_forward(b->threads, &qkv, a->n1, rows);
    add_lora(b, layer, LINEAR_Q, q, a->xa[LINEAR_Q], a->n1);
    add_lora(b, layer, LINEAR_K, a->k_raw, a->xa[LINEAR_K], a->n1);
    add_lora(b, layer, LINEAR_V, a->v, a->xa[LINEAR_V], a->n1);
    struct heads_job heads = { b, l, a, k_offset, v_offset };
    struct attention attention = { c, b->batch, b->segment_of, k_offset, v_offset };
    attention_forward(b->threads, &attention, place_rows, &heads, a->q, a->att, a->lse);
    struct linear_set o = { 1, { &l->linear[LINEAR_O] }, { a->x_mid } };
    linear_forward(b->threads, &o, a->att, rows);
    add_lora(b, layer, LINEAR_O, a->x_mid, a->xa[LINEAR_O], a->att);
    struct mix_job add = { a->x_mid, x, NULL };
    threads_run(b->threads, rows * c->hidden, 4096, add_slice, &add);
}

static void mlp_part(const struct block *b, size_t layer, struct acts *a, float *y)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    size_t rows = b->batch->n;
    struct linear_set gate_up = { 2,
                                  { &l->linear[LINEAR_GATE], &l->linear[LINEAR_UP] },
                                  { a->gate, a->up } };
    linear_forward(b->threads, &gate_up, a->n2, rows);
    add_lora(b, layer, LINEAR_GATE, a->gate, a->xa[LINEAR_GATE], a->n2);
    add_lora(b, layer, LINEAR_UP, a->up, a->xa[LINEAR_UP], a->n2);
    struct mix_job silu = { a->act, a->gate, a->up };
    threads_run(b->threads, rows * c->intermediate, 4096, silu_slice, &silu);
    struct linear_set down = { 1, { &l->linear[LINEAR_DOWN] }, { y } };
    linear_forward(b->threads, &down, a->act, rows);
    add_lora(b, layer, LINEAR_DOWN, y, a->xa[LINEAR_DOWN], a->act);
}

void block_forward(const struct block *b, size_t layer, size_t k_offset, size_t v_offset,
                   const float *x, struct acts *a, float *y)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    size_t rows = b->batch->n;
    attention_part(b, layer, k_offset, v_offset, x, a);
    norm_forward(b->threads, a->n2, a->rstd2, a->x_mid, l->norm2, rows, c->hidden, c->norm_eps);
    if (l->experts)
        moe_forward(b, layer, a, y);
    else
        mlp_part(b, layer, a, y);
    struct mix_job add = { y, a->x_mid, NULL };
    threads_run(b->threads, rows * c->hidden, 4096, add_slice, &add);
}
