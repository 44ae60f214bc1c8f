/* pass_memory.c - the work memory of a pass: counted first, refused with numbers, then
 * cut from one allocation.
 *
 * The fast plan keeps every layer's activations.  When that is over the engine's
 * limit, only layer inputs are kept and each layer is computed again before its
 * backward; the arithmetic, and so the bits, are the same.
 *
 * All live passes of an engine share its limit. */
#include "engine/train/pass.h"

#include <stdlib.h>
#include "base/err.h"

enum { ALIGN_FLOATS = 16 };

static size_t padded(size_t n)
{
    return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

static size_t rank_of(const tinker_pass *p)
{
    return p->adapter ? (size_t)p->adapter->desc.rank : 0;
}

struct plan {
    size_t acts, layers_kept, inputs; /* floats, layers whose acts are kept, x buffers */
    size_t x, kv, cs, head, back;     /* floats */
};

static struct plan make_plan(const tinker_pass *p, bool recompute)
{
    const struct model_config *c = &p->engine->model->config;
    size_t rows = p->rows_max, rank = rank_of(p);
    struct plan plan = { .acts = padded(acts_floats(c, rows, rank)) };
    plan.layers_kept = p->backward && !recompute ? c->layers : 1;
    plan.inputs = p->backward ? c->layers + 1 : 2;
    plan.x = padded(rows * c->hidden);
    plan.kv = plan.layers_kept * p->pages_max * 2 * kv_half(c);
    plan.cs = padded(rows * c->head_dim);
    plan.head = head_floats(c, rank);
    plan.back = p->backward ? padded(back_floats(c, rows, rank)) : 0;
    return plan;
}

static uint64_t plan_floats(const struct plan *l, const tinker_pass *p)
{
    /* h, dx and dh beside the layer inputs */
    return (uint64_t)l->acts * l->layers_kept + (uint64_t)l->x * (l->inputs + 3) + l->kv + l->cs +
           padded(p->rows_max) + l->head + l->back;
}

/* Lists beside the floats; they go into the arena. */
static uint64_t list_bytes(const struct plan *l, const tinker_pass *p)
{
    size_t per_row = sizeof(*p->segment_of) + sizeof(*p->row_tokens) + sizeof(*p->rows);
    return (uint64_t)p->rows_max * per_row + p->pages_max * sizeof(*p->pages) +
           p->n * sizeof(*p->segments) + l->layers_kept * sizeof(*p->acts);
}

static uint64_t plan_bytes(const struct plan *l, const tinker_pass *p)
{
    uint64_t bytes = plan_floats(l, p) * sizeof(float) + p->arena.used + list_bytes(l, p);
    if (p->backward)
        bytes += (uint64_t)p->adapter->params.total * sizeof(float);
    return bytes;
}

static float *take(float **mem, size_t n)
{
    float *p = *mem;
    *mem += n;
    return p;
}

static void lay_out(tinker_pass *p, const struct plan *l)
{
    const struct model_config *c = &p->engine->model->config;
    size_t rank = rank_of(p);
    float *mem = p->memory;
    for (size_t i = 0; i < l->layers_kept; i++)
        acts_init(&p->acts[i], c, p->rows_max, rank, take(&mem, l->acts));
    p->x = take(&mem, l->x * l->inputs);
    p->h = take(&mem, l->x);
    p->dx = take(&mem, l->x);
    p->dh = take(&mem, l->x);
    p->kv = take(&mem, l->kv);
    p->cs = take(&mem, l->cs);
    p->rstd = take(&mem, padded(p->rows_max));
    head_init(&p->head, c, rank, take(&mem, l->head));
    if (p->backward)
        back_init(&p->back, c, p->rows_max, rank, take(&mem, l->back));
}

static tinker_status refuse(const tinker_pass *p, uint64_t need, tinker_error *err)
{
    unsigned long long limit = p->engine->memory_limit, others = p->engine->pass_bytes;
    if (!others)
        return err_set(err, TINKER_ENOMEM,
                       "this batch needs %llu bytes of memory, the limit is %llu (longest part: "
                       "%zu tokens)",
                       (unsigned long long)need, limit, p->rows_max);
    err_set(err, TINKER_ENOMEM,
            "this batch needs %llu bytes of memory, of the limit of %llu other passes hold %llu "
            "(longest part: %zu tokens)",
            (unsigned long long)need, limit, others, p->rows_max);
    if (err)
        err->retryable = need <= limit;
    return TINKER_ENOMEM;
}

/* Fresh memory costs a page fault per page, every step anew, while the products that
 * write it wait.  So a pass leaves its own to the next.  What does not suit is given
 * back first: live passes and the spare memory stay within the limit together. */
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

static void leave_memory(tinker_engine *e, float *memory, size_t bytes)
{
    free(e->spare);
    e->spare = memory;
    e->spare_bytes = bytes;
}

tinker_status pass_allocate(tinker_pass *p, tinker_error *err)
{
    tinker_engine *e = p->engine;
    uint64_t room = e->memory_limit > e->pass_bytes ? e->memory_limit - e->pass_bytes : 0;
    struct plan plan = make_plan(p, false);
    if (p->backward && plan_bytes(&plan, p) > room) {
        p->recompute = true;
        plan = make_plan(p, true);
    }
    uint64_t need = plan_bytes(&plan, p);
    if (need > room)
        return refuse(p, need, err);
    size_t work = plan_floats(&plan, p) * sizeof(float);
    take_memory(p, work, room - need);
    p->bytes = need + (p->memory_bytes - work);
    e->pass_bytes += p->bytes;
    size_t longest = 0;
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
    lay_out(p, &plan);
    return TINKER_OK;
}

void pass_release(tinker_pass *p)
{
    if (p->memory)
        leave_memory(p->engine, p->memory, p->memory_bytes);
    free(p->grad);
    p->memory = p->grad = NULL;
    if (p->bytes <= p->arena.used)
        return;
    p->engine->pass_bytes -= p->bytes - p->arena.used;
    p->bytes = p->arena.used;
}
