/* pass_memory.c - the work memory of a pass: counted first, refused with numbers, then
 * cut from one allocation.
 *
 * The fast plan keeps every layer's activations.  When that is over the engine's
 * limit, only layer inputs are kept and each layer is computed again before its
 * backward; the arithmetic, and so the bits, are the same.
 *
 * All live passes of an engine share its limit, with its generators: budget.h. */
#include "engine/train/pass.h"

#include <stdlib.h>
#include "base/err.h"
#include "engine/train/budget.h"
#include "engine/layers/rope.h"

enum { ALIGN_FLOATS = 16 };

static size_t pad_plan_floats(size_t n)
{
    return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

static size_t get_rank(const tinker_pass *p)
{
    return p->adapter ? (size_t)p->adapter->desc.rank : 0;
}

struct plan {
    size_t acts, layers_kept, inputs;   /* floats of all that are kept, how many, x buffers */
    size_t x, kv, cs, rstd, head, back; /* floats */
};

/* What a plan depends on beside the model: the largest micro-batch. */
struct batch_size {
    size_t rows, pages, chunks, rank;
    bool backward;
};

static struct batch_size largest_batch(const tinker_pass *p)
{
    return (struct batch_size){ p->rows_max, p->pages_max, p->chunks_max, get_rank(p),
                                p->backward };
}

/* Floats that a micro-batch needs, with or without all activations kept. */
static struct plan make_plan(const struct model_config *c, const struct batch_size *b,
                             bool recompute)
{
    struct acts_size size = { .rows = b->rows, .rank = b->rank, .chunks = b->chunks };
    struct plan plan = { .layers_kept = b->backward && !recompute ? c->layers : 1 };
    if (plan.layers_kept == 1)
        plan.acts = pad_plan_floats(acts_floats_most(c, &size));
    for (size_t i = 0; plan.layers_kept > 1 && i < c->layers; i++)
        plan.acts += pad_plan_floats(acts_floats(c, i, &size));
    plan.inputs = b->backward ? c->layers + 1 : 2;
    plan.x = pad_plan_floats(b->rows * c->hidden);
    plan.kv = b->pages * (plan.layers_kept > 1 ? kv_page_floats(c) : 2 * kv_half(c));
    plan.cs = pad_plan_floats(rope_count(c) * b->rows * c->rotary);
    plan.rstd = pad_plan_floats(b->rows);
    plan.head = lm_head_floats(c, b->rank);
    plan.back = b->backward ? pad_plan_floats(back_floats(c, b->rows, b->rank)) : 0;
    return plan;
}

static uint64_t plan_floats(const struct plan *l)
{
    /* h, dx and dh beside the layer inputs */
    return (uint64_t)l->acts + (uint64_t)l->x * (l->inputs + 3) + l->kv + l->cs + l->rstd +
           l->head + l->back;
}

uint64_t pass_text_bytes(const struct model_config *c, size_t tokens, size_t rank, bool recompute)
{
    struct batch_size b = { .rows = tokens,
                            .pages = (tokens + KV_BLOCK - 1) / KV_BLOCK,
                            .chunks = delta_chunks(tokens),
                            .rank = rank,
                            .backward = true };
    struct plan plan = make_plan(c, &b, recompute);
    return plan_floats(&plan) * sizeof(float);
}

/* All that the pass holds: work memory, arena with the lists still to come, gradient. */
static uint64_t plan_bytes(const struct plan *l, const tinker_pass *p)
{
    size_t per_row = sizeof(*p->segment_of) + sizeof(*p->row_tokens) + sizeof(*p->rows);
    uint64_t lists = (uint64_t)p->rows_max * per_row + p->pages_max * sizeof(*p->pages) +
                     p->n * sizeof(*p->segments) + l->layers_kept * sizeof(*p->acts);
    uint64_t bytes = plan_floats(l) * sizeof(float) + p->arena.used + lists;
    if (p->backward)
        bytes += (uint64_t)p->adapter->params.total * sizeof(float);
    return bytes;
}

/* The next n floats of the work memory. */
static float *take_work(float **mem, size_t n)
{
    float *p = *mem;
    *mem += n;
    return p;
}

/* Fresh memory costs a page fault per page in every pass, while the products that write it
 * wait, so a finished pass leaves its memory to the next one.  Spare memory that is too small,
 * or so large that it would break the limit, is freed first: live passes and spare memory
 * stay within the limit together. */
static void take_memory(tinker_pass *p, size_t bytes, uint64_t room)
{
    tinker_engine *e = p->engine;
    p->memory = e->spare;
    p->memory_bytes = e->spare_bytes;
    e->spare = NULL;
    if (p->memory && p->memory_bytes >= bytes && p->memory_bytes / 2 <= bytes &&
        p->memory_bytes - bytes <= room)
        return;
    free(p->memory);
    p->memory = aligned_alloc(64, bytes);
    p->memory_bytes = bytes;
}

tinker_status pass_allocate(tinker_pass *p, tinker_error *err)
{
    tinker_engine *e = p->engine;
    /* keep all activations where the limit allows it, else compute layers twice */
    uint64_t room = budget_room(e);
    struct batch_size largest = largest_batch(p);
    struct plan plan = make_plan(&e->model->config, &largest, false);
    if (p->backward && plan_bytes(&plan, p) > room) {
        p->recompute = true;
        plan = make_plan(&e->model->config, &largest, true);
    }
    uint64_t need = plan_bytes(&plan, p);
    if (need > room) {
        unsigned long long bytes = need, limit = e->memory_limit, others = budget_promised(e);
        if (!others)
            return err_set(err, TINKER_ENOMEM,
                           "this batch needs %llu bytes of memory, the limit is %llu (longest "
                           "part: %zu tokens)",
                           bytes, limit, p->rows_max);
        err_set(err, TINKER_ENOMEM,
                "this batch needs %llu bytes of memory, of the limit of %llu other passes and "
                "samples hold %llu (longest part: %zu tokens)",
                bytes, limit, others, p->rows_max);
        if (err)
            err->retryable = need <= limit; /* once the others are done */
        return TINKER_ENOMEM;
    }
    /* count it before allocating, spare memory that is larger than needed included */
    budget_make_room(e, need);
    size_t work = plan_floats(&plan) * sizeof(float);
    take_memory(p, work, room - need);
    p->bytes = need + (p->memory_bytes - work);
    e->pass_bytes += p->bytes;
    size_t longest = 0; /* datums of the micro-batch that has the most */
    for (size_t i = 0; i < p->n_batches; i++)
        longest = p->batches[i].n > longest ? p->batches[i].n : longest;
    p->acts = arena_array(&p->arena, plan.layers_kept, sizeof(*p->acts));
    p->segments = arena_array(&p->arena, longest, sizeof(*p->segments));
    p->pages = arena_array(&p->arena, p->pages_max, sizeof(*p->pages));
    p->segment_of = arena_array(&p->arena, p->rows_max, sizeof(*p->segment_of));
    p->row_tokens = arena_array(&p->arena, p->rows_max, sizeof(*p->row_tokens));
    p->rows = arena_array(&p->arena, p->rows_max, sizeof(*p->rows));
    if (p->backward)
        p->grad = adapter_buffer(p->adapter);
    if (!p->memory || !p->acts || !p->segments || !p->pages || !p->segment_of || !p->row_tokens ||
        !p->rows || (p->backward && !p->grad))
        return err_set(err, TINKER_ENOMEM, "no memory for the %llu bytes this batch needs",
                       (unsigned long long)need);
    /* cut the work memory in the order that plan_floats() counts it */
    const struct model_config *c = &e->model->config;
    size_t rank = get_rank(p);
    float *mem = p->memory;
    p->acts_size = (struct acts_size){ p->rows_max, rank, p->chunks_max };
    p->acts_memory = take_work(&mem, plan.acts);
    float *acts = p->acts_memory;
    for (size_t i = 0; i < plan.layers_kept; i++) {
        acts_init(&p->acts[i], c, i, &p->acts_size, acts);
        acts += pad_plan_floats(acts_floats(c, i, &p->acts_size));
    }
    p->x = take_work(&mem, plan.x * plan.inputs);
    p->h = take_work(&mem, plan.x);
    p->dx = take_work(&mem, plan.x);
    p->dh = take_work(&mem, plan.x);
    p->kv = take_work(&mem, plan.kv);
    p->cs = take_work(&mem, plan.cs);
    p->rstd = take_work(&mem, plan.rstd);
    lm_head_init(&p->head, c, rank, take_work(&mem, plan.head));
    if (p->backward)
        back_init(&p->back, c, p->rows_max, rank, take_work(&mem, plan.back));
    return TINKER_OK;
}

/* Results are in the arena, which lives until the pass is freed and counts until then. */
void pass_release(tinker_pass *p)
{
    tinker_engine *e = p->engine;
    if (p->memory) { /* the newest spare memory suits the next pass best */
        free(e->spare);
        e->spare = p->memory;
        e->spare_bytes = p->memory_bytes;
    }
    free(p->grad);
    p->memory = p->grad = NULL;
    if (p->bytes <= p->arena.used)
        return;
    e->pass_bytes -= p->bytes - p->arena.used;
    p->bytes = p->arena.used;
}
