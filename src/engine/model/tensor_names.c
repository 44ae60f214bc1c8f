/* tensor_names.c - which tensors a model has: names and shapes, in one fixed order. */
#include "engine/model/model.h"

#include <stdio.h>

/* Room for names of 4096 layers and experts. */
enum { TENSOR_NAME = 128 };

void model_linear_shape(const struct model_config *c, enum linear_id id, size_t *out, size_t *in)
{
    size_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    /* (out, in), the row-major shape of the stored matrix */
    const size_t shapes[LINEARS][2] = {
        [LINEAR_Q] = { q, c->hidden },
        [LINEAR_K] = { kv, c->hidden },
        [LINEAR_V] = { kv, c->hidden },
        [LINEAR_O] = { c->hidden, q },
        [LINEAR_GATE] = { c->intermediate, c->hidden },
        [LINEAR_UP] = { c->intermediate, c->hidden },
        [LINEAR_DOWN] = { c->hidden, c->intermediate },
    };
    *out = shapes[id][0];
    *in = shapes[id][1];
}

/* gate and up (expert_size, hidden), down (hidden, expert_size) */
void model_expert_shape(const struct model_config *c, enum linear_id id, size_t *out, size_t *in)
{
    *out = id == LINEAR_DOWN ? c->hidden : c->expert_size;
    *in = id == LINEAR_DOWN ? c->expert_size : c->hidden;
}

/* As transformers counts: with step n layers n - 1, 2n - 1, ... are sparse. */
bool model_sparse(const struct model_config *c, size_t layer)
{
    for (size_t i = 0; i < c->n_dense; i++)
        if (c->dense[i] == layer)
            return false;
    return c->experts > 0 && (layer + 1) % c->sparse_step == 0;
}

/* Layers are few: counted when asked. */
size_t model_sparse_layers(const struct model_config *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->layers; i++)
        n += model_sparse(c, i);
    return n;
}

/* Scratch memory is shared by all layers, dense and sparse ones. */
size_t model_mlp_width(const struct model_config *c)
{
    size_t sparse = model_sparse_layers(c), experts = c->experts_used * c->expert_size;
    if (sparse == 0 || (sparse < c->layers && c->intermediate > experts))
        return c->intermediate;
    return experts;
}

/* Biases are decided by group: q, k and v together, o, the three of the MLP. */
bool model_linear_has_bias(const struct model_config *c, enum linear_id id)
{
    switch (id) {
    case LINEAR_Q:
    case LINEAR_K:
    case LINEAR_V:
        return c->qkv_bias;
    case LINEAR_O:
        return c->o_bias;
    default:
        return c->mlp_bias;
    }
}

/* A walk over all tensors.  The first failure of a visit ends it: later calls do nothing. */
struct tensor_walk {
    const struct model_config *config;
    tensor_visit *visit;
    void *state;
    tinker_error *err;
    tinker_status status;
    size_t layer; /* the one being visited */
};

/* Visits a tensor of the whole model. */
static void visit_global(struct tensor_walk *w, enum tensor_kind kind, const char *module,
                         size_t rows, size_t cols)
{
    char name[TENSOR_NAME];
    if (w->status != TINKER_OK)
        return;
    snprintf(name, sizeof(name), "%s.weight", module);
    struct tensor_place at = {
        .kind = kind, .id = LINEARS, .rows = rows, .cols = cols, .name = name
    };
    w->status = w->visit(w->state, &at, w->err);
}

/* Visits a tensor of the current layer.  `at` lacks layer and name. */
static void visit_in_layer(struct tensor_walk *w, struct tensor_place at, const char *module,
                           const char *suffix)
{
    char name[TENSOR_NAME];
    if (w->status != TINKER_OK)
        return;
    /* e.g. model.layers.3.self_attn.q_proj.weight */
    snprintf(name, sizeof(name), "%s.%zu.%s.%s", w->config->arch->names->layers, w->layer, module,
             suffix);
    at.layer = w->layer;
    at.name = name;
    w->status = w->visit(w->state, &at, w->err);
}

/* A vector of n in the current layer. */
static void visit_norm(struct tensor_walk *w, enum tensor_kind kind, const char *module, size_t n)
{
    visit_in_layer(w, (struct tensor_place){ .kind = kind, .id = LINEARS, .cols = n }, module,
                   "weight");
}

/* Weight, then bias, of linears first to last of the current layer. */
static void visit_linears(struct tensor_walk *w, enum linear_id first, enum linear_id last)
{
    for (enum linear_id id = first; id <= last; id++) {
        const char *module = w->config->arch->names->linear[id];
        struct tensor_place weight = { .kind = TENSOR_WEIGHT, .id = id };
        model_linear_shape(w->config, id, &weight.rows, &weight.cols);
        visit_in_layer(w, weight, module, "weight");
        struct tensor_place bias = { .kind = TENSOR_BIAS, .id = id, .cols = weight.rows };
        if (model_linear_has_bias(w->config, id))
            visit_in_layer(w, bias, module, "bias");
    }
}

/* The router of the current layer, then gate, up and down of each expert. */
static void visit_experts(struct tensor_walk *w)
{
    const struct model_config *c = w->config;
    const struct arch_names *names = c->arch->names;
    struct tensor_place router = {
        .kind = TENSOR_ROUTER, .id = LINEARS, .rows = c->experts, .cols = c->hidden
    };
    visit_in_layer(w, router, names->router, "weight");
    for (size_t e = 0; e < c->experts; e++) {
        for (enum linear_id id = LINEAR_GATE; id <= LINEAR_DOWN; id++) {
            char module[TENSOR_NAME];
            struct tensor_place at = { .kind = TENSOR_EXPERT, .id = id, .expert = e };
            model_expert_shape(c, id, &at.rows, &at.cols);
            snprintf(module, sizeof(module), "%s.%zu.%s", names->experts, e,
                     names->expert[id - LINEAR_GATE]);
            visit_in_layer(w, at, module, "weight");
        }
    }
}

/* This order decides the layout of packed weights and of a rank-0 adapter's parameters. */
tinker_status model_tensors(const struct model_config *c, tensor_visit *visit, void *state,
                            tinker_error *err)
{
    const struct arch_names *names = c->arch->names;
    struct tensor_walk w = { .config = c, .visit = visit, .state = state, .err = err };
    visit_global(&w, TENSOR_EMBED, names->embed, c->vocab, c->hidden);
    for (w.layer = 0; w.layer < c->layers; w.layer++) {
        visit_norm(&w, TENSOR_NORM1, names->norm1, c->hidden);
        visit_linears(&w, LINEAR_Q, LINEAR_O);
        if (c->qk_norm) {
            visit_norm(&w, TENSOR_Q_NORM, names->q_norm, c->head_dim);
            visit_norm(&w, TENSOR_K_NORM, names->k_norm, c->head_dim);
        }
        visit_norm(&w, TENSOR_NORM2, names->norm2, c->hidden);
        if (model_sparse(c, w.layer))
            visit_experts(&w);
        else
            visit_linears(&w, LINEAR_GATE, LINEAR_DOWN);
    }
    visit_global(&w, TENSOR_NORM, names->norm, 0, c->hidden);
    if (!c->tied)
        visit_global(&w, TENSOR_HEAD, names->head, c->vocab, c->hidden);
    return w.status;
}

/* A visitor of model_tensors(). */
static tinker_status count_elements(void *state, const struct tensor_place *at, tinker_error *err)
{
    (void)err;
    *(uint64_t *)state += (uint64_t)(at->rows ? at->rows : 1) * at->cols;
    return TINKER_OK;
}

uint64_t model_parameters(const struct model_config *c)
{
    uint64_t n = 0;
    model_tensors(c, count_elements, &n, NULL);
    return n;
}
