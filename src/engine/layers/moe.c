/* moe.c - routing and the experts forward; see moe.h. */
#include "engine/layers/moe.h"

#include <math.h>
#include <string.h>
#include "engine/layers/activation.h"
#include "engine/layers/block.h"
#include "engine/kernels/vec.h"
#include "engine/layers/linear.h"

enum { ROW_GRAIN = 8, ALIGN_FLOATS = 16 };

/* The next n floats of mem, aligned; mem NULL: only counts them in *used. */
static float *take_moe_floats(float **mem, size_t *used, size_t n)
{
    float *p = *mem ? *mem + *used : NULL;
    *used += (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    return p;
}

static uint32_t *take_moe_ints(float **mem, size_t *used, size_t n)
{
    return (uint32_t *)(void *)take_moe_floats(mem, used, n);
}

/* Sizes (mem NULL) and pointers from one description, so that they cannot differ. */
static size_t lay_out_moe_acts(struct moe_acts *m, const struct model_config *c, size_t rows,
                               float *mem)
{
    size_t used = 0, entries = rows * c->experts_used;
    if (!c->experts)
        return 0;
    m->probs = take_moe_floats(&mem, &used, rows * c->experts);
    m->weight = take_moe_floats(&mem, &used, entries);
    m->expert = take_moe_ints(&mem, &used, entries);
    m->entry = take_moe_ints(&mem, &used, entries);
    m->row = take_moe_ints(&mem, &used, entries);
    m->start = take_moe_ints(&mem, &used, c->experts + 1);
    /* The parts are at most one per expert plus those that are full. */
    m->part = take_moe_ints(&mem, &used, c->experts + entries / MOE_PART);
    m->owner = take_moe_ints(&mem, &used, c->experts + entries / MOE_PART);
    m->x = take_moe_floats(&mem, &used, entries * c->hidden);
    m->y = take_moe_floats(&mem, &used, entries * c->hidden);
    return used;
}

size_t moe_acts_floats(const struct model_config *c, size_t rows)
{
    struct moe_acts m;
    return lay_out_moe_acts(&m, c, rows, NULL);
}

void moe_acts_init(struct moe_acts *m, const struct model_config *c, size_t rows, float *mem)
{
    lay_out_moe_acts(m, c, rows, mem);
}

static size_t lay_out_moe_back(struct moe_back *m, const struct model_config *c, size_t rows,
                               size_t rank, float *mem)
{
    size_t used = 0, entries = rows * c->experts_used;
    if (!c->experts)
        return 0;
    m->dx = take_moe_floats(&mem, &used, entries * c->hidden);
    m->dy = take_moe_floats(&mem, &used, entries * c->hidden);
    m->dlogits = take_moe_floats(&mem, &used, rows * c->experts);
    for (int i = 0; i < EXPERT_LINEARS; i++)
        m->dxa[i] = take_moe_floats(&mem, &used, entries * rank);
    return used;
}

size_t moe_back_floats(const struct model_config *c, size_t rows, size_t rank)
{
    struct moe_back m;
    return lay_out_moe_back(&m, c, rows, rank, NULL);
}

void moe_back_init(struct moe_back *m, const struct model_config *c, size_t rows, size_t rank,
                   float *mem)
{
    lay_out_moe_back(m, c, rows, rank, mem);
}

/* One sparse layer forward. */
struct moe_job {
    const struct block *b;
    size_t layer;
    const float *x;
    struct acts *a;
    float *y;
};

/* The softmax of one row in place of its logits, in double: a close decision between two
 * experts should not hang on the order of a sum.  The largest logit is taken out first, as exp() of
 * it could be infinite. */
static void softmax_row(float *p, size_t n)
{
    double max = (double)p[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        max = fmax(max, (double)p[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)p[i] - max);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(exp((double)p[i] - max) / sum);
}

/* The experts_used largest of p (experts), most probable first, ties to the lower index.  k passes
 * over a few dozen experts: no heap is worth it at these sizes. */
static void choose_experts(const struct model_config *c, const float *p, uint32_t *expert,
                           float *weight)
{
    float sum = 0;
    for (size_t k = 0; k < c->experts_used; k++) {
        size_t best = c->experts;
        for (size_t e = 0; e < c->experts; e++) {
            bool chosen = false; /* already, as one of the k before */
            for (size_t i = 0; i < k && !chosen; i++)
                chosen = expert[i] == e;
            if (!chosen && (best == c->experts || p[e] > p[best]))
                best = e;
        }
        expert[k] = (uint32_t)best;
        weight[k] = p[best];
        sum += p[best];
    }
    /* Qwen3 MoE and Mixtral divide by the sum of the chosen, so that their weights add up to 1. */
    for (size_t k = 0; c->renormalize && k < c->experts_used; k++)
        weight[k] /= sum;
}

/* Logits of the router to probabilities, and the experts of each row. */
static void route_slice(void *arg, size_t begin, size_t end)
{
    const struct moe_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct moe_acts *m = &j->a->moe;
    for (size_t row = begin; row < end; row++) {
        softmax_row(m->probs + row * c->experts, c->experts);
        choose_experts(c, m->probs + row * c->experts, m->expert + row * c->experts_used,
                       m->weight + row * c->experts_used);
    }
}

/* Entries by expert, then by row: a counting sort. */
static void group_entries(const struct model_config *c, struct moe_acts *m, size_t rows)
{
    size_t entries = rows * c->experts_used;
    /* counting sort: count, sum up, place */
    memset(m->start, 0, (c->experts + 1) * sizeof(*m->start));
    /* start[e + 1] counts expert e, then start[e] is the sum of all before e */
    for (size_t i = 0; i < entries; i++)
        m->start[m->expert[i] + 1]++;
    for (size_t e = 0; e < c->experts; e++)
        m->start[e + 1] += m->start[e];
    for (size_t i = 0; i < entries; i++) {
        uint32_t at = m->start[m->expert[i]]++;
        m->entry[i] = at;
        m->row[at] = (uint32_t)(i / c->experts_used);
    }
    /* every start has moved to its group's end, which is the next group's start */
    for (size_t e = c->experts; e > 0; e--)
        m->start[e] = m->start[e - 1];
    m->start[0] = 0;
    size_t parts = 0; /* cut groups into parts for the threads */
    for (size_t e = 0; e < c->experts; e++)
        for (uint32_t first = m->start[e]; first < m->start[e + 1]; first += MOE_PART) {
            m->part[parts] = first;
            m->owner[parts++] = (uint32_t)e;
        }
}

/* The same cut as group_entries() made. */
size_t moe_parts(const struct model_config *c, const struct moe_acts *m)
{
    size_t parts = 0;
    for (size_t e = 0; e < c->experts; e++)
        parts += (m->start[e + 1] - m->start[e] + MOE_PART - 1) / MOE_PART;
    return parts;
}

/* Add the LoRA part of one linear of an expert to its entries [first, end), run by run of
 * rows with one adapter. */
static void add_expert_lora(const struct moe_job *j, size_t expert, enum linear_id id, float *y,
                            const float *x, size_t first, size_t end)
{
    const struct block *b = j->b;
    const struct linear *l = moe_linear(&b->model->layers[j->layer], expert, id);
    const uint32_t *row = j->a->moe.row;
    /* entries are sorted by row, and rows by segment: runs are as long as they can be */
    while (first < end) {
        const struct lora *lora = b->batch->segments[b->segment_of[row[first]]].lora;
        size_t n = 1;
        while (first + n < end && b->batch->segments[b->segment_of[row[first + n]]].lora == lora)
            n++;
        if (lora) {
            struct lora_pair p = lora_expert(lora_pair(lora, j->layer, id), expert);
            lora_forward(NULL, lora, &p, y + first * l->out, j->a->xa[id] + first * b->rank,
                         x + first * l->in, n, l->out, l->in);
        }
        first += n;
    }
}

/* One linear of an expert over the entries of a part, with its LoRA part. */
static void part_linear(const struct moe_job *j, const struct moe_part *p, enum linear_id id,
                        float *y, const float *x)
{
    const struct linear *l = moe_linear(&j->b->model->layers[j->layer], p->expert, id);
    gemm_forward(y + p->first * l->out, x + p->first * l->in, l->w, p->n, 0, 0, l->out);
    for (size_t i = p->first; l->bias && i < p->first + p->n; i++)
        vec_ops()->add(y + i * l->out, l->bias, l->out);
    add_expert_lora(j, p->expert, id, y, x, p->first, p->first + p->n);
}

/* Parts: gather their rows, then down(activation(gate x, up x)). */
static void experts_slice(void *arg, size_t begin, size_t end)
{
    const struct moe_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    struct acts *a = j->a;
    struct moe_acts *m = &a->moe;
    for (size_t at = begin; at < end; at++) {
        struct moe_part p = moe_part(m, at);
        size_t first = p.first * c->expert_size;
        /* Gathered, so that an expert's product reads rows that lie together. */
        for (size_t i = p.first; i < p.first + p.n; i++)
            memcpy(m->x + i * c->hidden, j->x + m->row[i] * c->hidden, c->hidden * sizeof(float));
        part_linear(j, &p, LINEAR_GATE, a->gate, m->x);
        part_linear(j, &p, LINEAR_UP, a->up, m->x);
        activation_forward(c, a->act + first, a->gate + first, a->up + first, p.n * c->expert_size);
        part_linear(j, &p, LINEAR_DOWN, m->y, a->act);
    }
}

/* y = sum of w_e f_e in the order of choice, which is fixed by the row alone. */
static void combine_slice(void *arg, size_t begin, size_t end)
{
    const struct moe_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct moe_acts *m = &j->a->moe;
    for (size_t row = begin; row < end; row++) {
        float *y = j->y + row * c->hidden;
        memset(y, 0, c->hidden * sizeof(float));
        /* The order of choice, not of experts: the sum of a row is the same whatever else is in the
         * batch. */
        for (size_t k = row * c->experts_used; k < (row + 1) * c->experts_used; k++) {
            const float *part = m->y + m->entry[k] * c->hidden;
            for (size_t i = 0; i < c->hidden; i++)
                y[i] += m->weight[k] * part[i];
        }
    }
}

/* Rows are grouped by expert in between, so that each weight is read once per batch and not once
 * per row. */
void moe_forward(const struct block *b, size_t layer, const float *x, struct acts *a, float *y)
{
    const struct model_config *c = &b->model->config;
    struct moe_job job = { .b = b, .layer = layer, .x = x, .a = a, .y = y };
    struct linear_set router = {
        1, { &b->model->layers[layer].router }, { a->moe.probs }, { { 0 } }
    };
    size_t rows = b->batch->n;
    /* probs holds the logits until route_slice() turns them into probabilities */
    linear_forward(b->threads, &router, x, rows);
    threads_run(b->threads, rows, ROW_GRAIN, route_slice, &job);
    group_entries(c, &a->moe, rows);
    threads_run(b->threads, moe_parts(c, &a->moe), 1, experts_slice, &job);
    threads_run(b->threads, rows, ROW_GRAIN, combine_slice, &job);
}
