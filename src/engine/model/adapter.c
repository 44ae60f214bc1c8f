/* adapter.c - make, copy and free adapters; which weights to compute with.
 *
 * A starts uniform in +-1/sqrt(in), B at zero.  Every element of A depends only on
 * (seed, the tensor's PEFT name, its index), so neither rank order, threads nor the
 * other trained modules change it. */
#include "engine/model/adapter.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/map.h"
#include "base/rand.h"
#include "engine/safetensors/safetensors.h"

/* Far above any use; keeps products of rank and a size inside size_t. */
enum { RANK_MAX = 4096 };

/* Aligned for the kernels; zero. */
static float *alloc_floats(size_t n)
{
    /* 64 bytes: the size of a cache line and of a vector register of AVX-512; aligned_alloc() of 0
     * bytes may give NULL. */
    float *p = aligned_alloc(64, n ? n * sizeof(float) : 64);
    if (p)
        memset(p, 0, n * sizeof(float));
    return p;
}

void adapter_draw(tinker_adapter *a)
{
    if (!a->desc.rank)
        return;
    /* LINEARS per layer and the head: the same count as in params.c. */
    size_t n = a->engine->model->config.layers * LINEARS + 1;
    for (size_t i = 0; i < n; i++) {
        int index = a->params.pairs[i];
        if (index == PARAM_NONE)
            continue;
        /* A; its B follows in the list and stays zero */
        const struct param *p = &a->params.list[index];
        float *w = a->w + p->offset;
        uint64_t name = hash_fnv1a(p->name, strlen(p->name));
        double bound = 1.0 / sqrt((double)p->cols);
        uint32_t r[4] = { 0 };
        for (size_t k = 0; k < param_count(p); k++) {
            if (k % 4 == 0)
                philox4x32((uint64_t)a->desc.seed, k / 4, name, r);
            /* The half keeps 0 and 1 out, and 32 bits are more than a float's 24. */
            double u = ((double)r[k % 4] + 0.5) * 0x1p-32; /* uniform in (0, 1) */
            w[k] = (float)((2 * u - 1) * bound);
        }
    }
}

/* Points the pairs of a->lora into the parameter buffer, which never moves. */
static tinker_status view_lora(tinker_adapter *a, tinker_error *err)
{
    size_t n = a->engine->model->config.layers * LINEARS + 1;
    a->lora.rank = (size_t)a->desc.rank;
    /* alpha / rank: the size of the update does not grow with the rank */
    a->lora.scale = (float)(a->alpha / (double)a->desc.rank);
    /* The number format in which gradients of factors are computed, which is that of the head's
     * weights. */
    a->lora.gradients = linear_factors(&a->engine->model->head);
    a->lora.pairs = calloc(n, sizeof(*a->lora.pairs));
    if (!a->lora.pairs)
        return err_nomem(err, "adapter");
    for (size_t i = 0; i < n; i++) {
        int index = a->params.pairs[i];
        if (index == PARAM_NONE)
            continue;
        const struct param *p = &a->params.list[index], *q = p + 1;
        size_t first = 0, rows; /* of the module, whose rows of B the linear has */
        if (i + 1 < n && !q->stack)
            /* The last pair is the head's, which is no linear of a layer. */
            model_module(&a->engine->model->config, (enum linear_id)(i % LINEARS), &first, &rows);
        a->lora.pairs[i] = (struct lora_pair){
            .a = a->w + p->offset,
            .b = a->w + q->offset + first * q->cols,
            .a_step = p->stack > 1 ? p->rows * p->cols : 0, /* a stack of 1 is shared */
            .b_step = q->stack > 1 ? q->rows * q->cols : 0,
        };
    }
    return TINKER_OK;
}

/* Says how large the adapter would be: the user can ask for a smaller rank. */
static tinker_status refuse_adapter_size(const tinker_adapter *a, tinker_error *err)
{
    return err_set(err, TINKER_ENOMEM, "no memory for an adapter of %zu parameters",
                   a->params.count);
}

/* Adapters may be made by several engines, each with a thread of its own. */
static _Atomic uint64_t next_id = 1;

/* Its name as a literal, which outlives the caller's; NULL for the default. */
static tinker_status find_optimizer(const char *name, int64_t rank, const char **out,
                                    tinker_error *err)
{
    *out = NULL;
    if (!name || strcmp(name, "adamw") == 0)
        return TINKER_OK;
    if (strcmp(name, "dimuon") != 0)
        return err_set(err, TINKER_EINVAL, "optimizer %.60s is not supported here (adamw, dimuon)",
                       name);
    if (!rank)
        return err_set(err, TINKER_EINVAL,
                       "dimuon trains LoRA matrices: give a rank of 1 or more, or use adamw");
    *out = "dimuon";
    return TINKER_OK;
}

tinker_adapter *adapter_make(tinker_engine *e, const tinker_lora *lora, double alpha,
                             tinker_error *err)
{
    if (lora->rank < 0 || lora->rank > RANK_MAX) {
        err_set(err, TINKER_EINVAL, "rank is %lld, must be 1 to %d, or 0 for all weights",
                (long long)lora->rank, RANK_MAX);
        return NULL;
    }
    /* There would be no place to write the new weights to: packed blocks cannot be updated. */
    if (!lora->rank && engine_is_quantized(e)) {
        err_set(err, TINKER_EINVAL,
                "all weights (rank 0) cannot be trained on a quantized base: give a rank of 1 or "
                "more, or load the model with dtype f32 or bf16");
        return NULL;
    }
    if (lora->rank && !lora->train_attn && !lora->train_mlp && !lora->train_unembed) {
        err_set(err, TINKER_EINVAL,
                "nothing to train: train_attn, train_mlp and train_unembed are all false");
        return NULL;
    }
    const char *optimizer = NULL;
    if (find_optimizer(lora->optimizer, lora->rank, &optimizer, err) != TINKER_OK)
        return NULL;
    tinker_adapter *a = calloc(1, sizeof(*a));
    if (!a) {
        err_nomem(err, "adapter");
        return NULL;
    }
    a->engine = e;
    /* An id distinguishes an adapter from a later one at the same address. */
    a->id = atomic_fetch_add(&next_id, 1);
    a->desc = *lora;
    a->desc.optimizer = optimizer;
    a->alpha = alpha;
    tinker_status status = params_init(&a->params, &e->model->config, &a->desc, err);
    if (status == TINKER_OK) {
        a->w = alloc_floats(a->params.total);
        if (!a->w)
            status = refuse_adapter_size(a, err);
    }
    if (status == TINKER_OK && lora->rank) {
        status = view_lora(a, err);
    } else if (status == TINKER_OK) {
        /* Rank 0 has a second packed model, made from its own weights. */
        a->model = model_new(&e->model->config, &(struct weight_source){ 0 }, err);
        a->stale = true; /* packed when first used */
        status = a->model ? TINKER_OK : TINKER_ENOMEM;
    }
    if (status != TINKER_OK) {
        tinker_adapter_free(a);
        return NULL;
    }
    return a;
}

tinker_adapter *tinker_adapter_new(tinker_engine *e, const tinker_lora *lora, tinker_error *err)
{
    /* Defaults for a caller who passes NULL. */
    tinker_lora desc = TINKER_LORA_INIT;
    /* an older caller may know fewer members: opts_copy() keeps their defaults */
    if (lora && opts_copy(&desc, sizeof(desc), lora, "tinker_lora", err) != TINKER_OK)
        return NULL;
    desc.user_metadata = NULL; /* belongs to the caller, and the engine has no use for it */
    desc.n_user_metadata = 0;
    if (!desc.has_seed) {
        uint32_t random = 0;
        if (rand_os(&random, sizeof(random)) != 0) {
            /* Not a weaker source: two adapters with the same seed would start equal, and nobody
             * would notice. */
            err_set(err, TINKER_ESTATE, "the system gives no random numbers for a seed");
            return NULL;
        }
        desc.seed = random >> 1; /* not negative in any client's integers */
        desc.has_seed = 1;
    }
    /* moments at once: a first step must not fail for want of memory after its pass ran */
    tinker_adapter *a = adapter_make(e, &desc, LORA_ALPHA, err);
    if (!a)
        return NULL;
    tinker_status status = adapter_moments(a) ? TINKER_OK : refuse_adapter_size(a, err);
    /* rank 0 starts from the base model's weights */
    for (size_t i = 0; status == TINKER_OK && !desc.rank && i < a->params.n; i++) {
        const struct param *p = &a->params.list[i];
        struct weight source = { 0 };
        if (engine_weight(e, p->name, p->vector ? 0 : p->rows, p->cols, &source, err))
            weight_to_float(&source, p->vector ? p->cols : p->rows, p->vector ? 1 : p->cols,
                            a->w + p->offset);
        else
            status = err ? err->status : TINKER_EINVAL;
        free(source.owned);
    }
    if (status != TINKER_OK) {
        tinker_adapter_free(a);
        return NULL;
    }
    adapter_draw(a);
    return a;
}

/* Also of one that was only partly made: what is missing is NULL. */
void tinker_adapter_free(tinker_adapter *a)
{
    if (!a)
        return;
    params_clear(&a->params);
    free(a->w);
    free(a->grad);
    free(a->m);
    free(a->v);
    free(a->lora.pairs);
    model_free(a->model);
    free(a);
}

const tinker_lora *tinker_adapter_describe(const tinker_adapter *a)
{
    return &a->desc;
}

tinker_status tinker_adapter_set_optimizer(tinker_adapter *a, const char *name, tinker_error *err)
{
    const char *optimizer;
    tinker_status status = find_optimizer(name, a->desc.rank, &optimizer, err);
    if (status == TINKER_OK && a->steps)
        status =
            err_set(err, TINKER_EINVAL, "an adapter that has taken steps keeps its optimizer, %s",
                    a->desc.optimizer ? a->desc.optimizer : "adamw");
    if (status == TINKER_OK)
        a->desc.optimizer = optimizer;
    return status;
}

int64_t tinker_adapter_steps(const tinker_adapter *a)
{
    return a->steps;
}

/* What malloc gave for it; the packed model of rank 0 is counted without its struct. */
uint64_t tinker_adapter_bytes(const tinker_adapter *a)
{
    /* weights, and those that exist of gradient and moments */
    uint64_t buffers = 1 + (a->grad != NULL) + (a->m != NULL) + (a->v != NULL);
    uint64_t bytes = sizeof(*a) + a->params.arena.used + buffers * a->params.total * sizeof(float);
    if (a->lora.pairs)
        bytes += (a->engine->model->config.layers * LINEARS + 1) * sizeof(*a->lora.pairs);
    if (a->model)
        bytes += a->model->weight_bytes;
    return bytes;
}

/* A sampler goes on reading the copy while the original is trained. */
tinker_adapter *tinker_adapter_snapshot(const tinker_adapter *a, tinker_error *err)
{
    tinker_adapter *copy = adapter_make(a->engine, &a->desc, a->alpha, err);
    if (!copy)
        return NULL;
    memcpy(copy->w, a->w, a->params.total * sizeof(float));
    copy->steps = a->steps;
    /* has no moments, and refuses passes and steps */
    copy->snapshot = true;
    return copy;
}

/* Weights of a rank-0 adapter for model_fill(), which asks for them in the order in which they
 * lie. */
struct own_weights {
    const tinker_adapter *a;
    size_t next;
};

/* See struct weight_source.  A module of several linears is asked for once for each. */
static bool get_own_weight(void *state, const char *name, size_t rows, size_t cols,
                           struct weight *out, tinker_error *err)
{
    struct own_weights *own = state;
    const struct params *all = &own->a->params;
    /* The model asks in the order of the list, so the next one is nearly always the right one. */
    size_t at = own->next;
    (void)rows;
    (void)cols;
    (void)err;
    if (at < all->n && strcmp(all->list[at].name, name) == 0)
        own->next++;
    else
        while (at > 0 && strcmp(all->list[--at].name, name) != 0)
            ;
    const struct param *p = &all->list[at];
    assert(strcmp(p->name, name) == 0);
    *out = (struct weight){ own->a->w + p->offset, SOURCE_F32, 0, NULL };
    return true;
}

const struct model *adapter_model(tinker_engine *e, tinker_adapter *a)
{
    if (!a || !a->model)
        return e->model;
    /* the weights changed since they were packed: an optimizer step, or nothing was packed yet.
     * Not after each step: several steps may follow each other without a pass between them. */
    if (a->stale) {
        struct own_weights own = { a, 0 };
        struct weight_source source = { .get = get_own_weight, .state = &own };
        if (model_fill(a->model, e->threads, &source, NULL) != TINKER_OK)
            return NULL;
        a->stale = false;
    }
    return a->model;
}

/* Rank 0 has its weights in the model itself. */
const struct lora *adapter_lora(const tinker_adapter *a)
{
    return a && a->desc.rank ? &a->lora : NULL;
}

/* Gradient and moments have the layout of the weights, padding included. */
float *adapter_buffer(const tinker_adapter *a)
{
    return alloc_floats(a->params.total);
}

/* Loaded weights get their moments here, with their first step. */
bool adapter_moments(tinker_adapter *a)
{
    if (!a->m)
        a->m = adapter_buffer(a);
    if (!a->v)
        a->v = adapter_buffer(a);
    return a->m && a->v;
}
