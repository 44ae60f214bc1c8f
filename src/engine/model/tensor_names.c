/* tensor_names.c - which tensors a model has: names and shapes, in one fixed order. */
#include "engine/model/model.h"

#include <stdio.h>
#include "base/array.h"

/* Room for names of 4096 layers and experts. */
enum { TENSOR_NAME = 128 };

void model_linear_shape(const struct model_config *c, enum linear_id id, size_t *out, size_t *in)
{
    size_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    size_t values = c->delta_v_heads * c->delta_v_dim;
    /* (out, in), the row-major shape of the stored matrix */
    const size_t shapes[LINEARS][2] = {
        [LINEAR_Q] = { c->gate ? 2 * q : q, c->hidden },
        [LINEAR_K] = { kv, c->hidden },
        [LINEAR_V] = { kv, c->hidden },
        [LINEAR_O] = { c->hidden, q },
        [LINEAR_DELTA_QKV] = { model_delta_channels(c), c->hidden },
        [LINEAR_DELTA_Z] = { values, c->hidden },
        [LINEAR_DELTA_B] = { c->delta_v_heads, c->hidden },
        [LINEAR_DELTA_A] = { c->delta_v_heads, c->hidden },
        [LINEAR_DELTA_OUT] = { c->hidden, values },
        [LINEAR_GATE] = { c->intermediate, c->hidden },
        [LINEAR_UP] = { c->intermediate, c->hidden },
        [LINEAR_DOWN] = { c->hidden, c->intermediate },
        [LINEAR_SHARED_GATE] = { c->shared_size, c->hidden },
        [LINEAR_SHARED_UP] = { c->shared_size, c->hidden },
        [LINEAR_SHARED_DOWN] = { c->hidden, c->shared_size },
        [LINEAR_SHARED_ROUTER] = { 1, c->hidden },
    };
    *out = shapes[id][0];
    *in = shapes[id][1];
}

bool model_has_linear(const struct model_config *c, size_t layer, enum linear_id id)
{
    bool sparse = model_sparse(c, layer);
    if (id <= LINEAR_O)
        return !model_layer_is(c, layer, LAYER_DELTA);
    if (id <= LINEAR_DELTA_OUT)
        return model_layer_is(c, layer, LAYER_DELTA);
    if (id <= LINEAR_DOWN)
        return !sparse;
    return sparse && c->shared && (id != LINEAR_SHARED_ROUTER || c->shared == SHARED_GATED);
}

/* The first and last linear of a module that holds several; first > last: id stands alone. */
static const char *fused_module(const struct arch_names *names, enum linear_id id,
                                enum linear_id *first, enum linear_id *last)
{
    const struct {
        const char *module;
        enum linear_id first, last;
    } fused[] = {
        { names->qkv, LINEAR_Q, LINEAR_V },
        { names->gate_up, LINEAR_GATE, LINEAR_UP },
        { names->shared_gate_up, LINEAR_SHARED_GATE, LINEAR_SHARED_UP },
    };
    for (size_t i = 0; i < ARRAY_LEN(fused); i++) {
        if (fused[i].module && id >= fused[i].first && id <= fused[i].last) {
            *first = fused[i].first;
            *last = fused[i].last;
            return fused[i].module;
        }
    }
    *first = *last = id;
    return names->linear[id];
}

const char *model_module(const struct model_config *c, enum linear_id id, size_t *first,
                         size_t *rows)
{
    enum linear_id begin, last;
    const char *module = fused_module(c->arch->names, id, &begin, &last);
    *first = *rows = 0;
    for (enum linear_id i = begin; i <= last; i++) {
        size_t out, in;
        model_linear_shape(c, i, &out, &in);
        if (i < id)
            *first += out;
        *rows += out;
    }
    return module;
}

/* Delta layers have a state instead of keys and values. */
size_t model_attention_layers(const struct model_config *c, size_t layer)
{
    size_t n = 0;
    for (size_t i = 0; i < layer; i++)
        n += !model_layer_is(c, i, LAYER_DELTA);
    return n;
}

bool model_is_long(const struct model_config *c, size_t tokens)
{
    return c->rope.type == ROPE_LONGROPE && (double)tokens > c->rope.original_context;
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
    case LINEAR_GATE:
    case LINEAR_UP:
    case LINEAR_DOWN:
        return c->mlp_bias;
    default:
        return false;
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
    /* e.g. model.layers.3.self_attn.q_proj.weight; a parameter outside a module has no suffix */
    snprintf(name, sizeof(name), "%s.%zu.%s%s%s", w->config->arch->names->layers, w->layer, module,
             suffix ? "." : "", suffix ? suffix : "");
    at.layer = w->layer;
    at.name = name;
    w->status = w->visit(w->state, &at, w->err);
}

/* A vector of n in the current layer; module NULL: it has none. */
static void visit_vector(struct tensor_walk *w, enum tensor_kind kind, const char *module,
                         const char *suffix, size_t n)
{
    if (module)
        visit_in_layer(w, (struct tensor_place){ .kind = kind, .id = LINEARS, .cols = n }, module,
                       suffix);
}

/* Weight, then bias, of those linears first to last that the current layer has.  A linear may be
 * some rows of a module. */
static void visit_linears(struct tensor_walk *w, enum linear_id first, enum linear_id last)
{
    for (enum linear_id id = first; id <= last; id++) {
        struct tensor_place weight = { .kind = TENSOR_WEIGHT, .id = id };
        if (!model_has_linear(w->config, w->layer, id))
            continue;
        const char *module = model_module(w->config, id, &weight.first, &weight.stored);
        model_linear_shape(w->config, id, &weight.rows, &weight.cols);
        if (weight.stored == weight.rows)
            weight.stored = 0;
        visit_in_layer(w, weight, module, "weight");
        struct tensor_place bias = { .kind = TENSOR_BIAS,
                                     .id = id,
                                     .cols = weight.rows,
                                     .first = weight.first,
                                     .stored = weight.stored };
        if (model_linear_has_bias(w->config, id))
            visit_in_layer(w, bias, module, "bias");
    }
}

/* What the delta rule has beside its linears. */
static void visit_delta(struct tensor_walk *w)
{
    const struct model_config *c = w->config;
    const struct arch_names *names = c->arch->names;
    visit_vector(w, TENSOR_CONV, names->conv, "weight", model_delta_channels(c) * c->delta_conv);
    visit_vector(w, TENSOR_A_LOG, names->a_log, NULL, c->delta_v_heads);
    visit_vector(w, TENSOR_DT_BIAS, names->dt_bias, NULL, c->delta_v_heads);
    visit_vector(w, TENSOR_DELTA_NORM, names->delta_norm, "weight", c->delta_v_dim);
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
    if (c->expert_bias)
        visit_vector(w, TENSOR_ROUTER_BIAS, names->router, "bias", c->experts);
    /* all matrices first: parameters of an expert are counted from those of the first */
    for (int bias = 0; bias <= c->expert_bias; bias++) {
        for (size_t e = 0; e < c->experts; e++) {
            for (enum linear_id id = LINEAR_GATE; id <= LINEAR_DOWN; id++) {
                char module[TENSOR_NAME];
                struct tensor_place at = { .kind = bias ? TENSOR_EXPERT_BIAS : TENSOR_EXPERT,
                                           .id = id,
                                           .expert = e };
                size_t out, in;
                model_expert_shape(c, id, &out, &in);
                at.rows = bias ? 0 : out;
                at.cols = bias ? out : in;
                snprintf(module, sizeof(module), "%s.%zu.%s", names->experts, e,
                         names->expert[id - LINEAR_GATE]);
                visit_in_layer(w, at, module, bias ? "bias" : "weight");
            }
        }
    }
}

/* This order decides the layout of packed weights and of a rank-0 adapter's parameters. */
tinker_status model_tensors(const struct model_config *c, tensor_visit *visit, void *state,
                            tinker_error *err)
{
    const struct arch_names *names = c->arch->names;
    struct tensor_walk w = { .config = c, .visit = visit, .state = state, .err = err };
    bool whole = c->qk_norm == QK_NORM_WHOLE;
    visit_global(&w, TENSOR_EMBED, names->embed, c->vocab, c->hidden);
    for (w.layer = 0; w.layer < c->layers; w.layer++) {
        visit_vector(&w, TENSOR_NORM1, names->norm1, "weight", c->hidden);
        visit_linears(&w, LINEAR_Q, LINEAR_DELTA_OUT);
        if (model_layer_is(c, w.layer, LAYER_DELTA)) {
            visit_delta(&w);
        } else if (c->qk_norm) {
            size_t q = whole ? c->heads : 1, k = whole ? c->kv_heads : 1;
            visit_vector(&w, TENSOR_Q_NORM, names->q_norm, "weight", q * c->head_dim);
            visit_vector(&w, TENSOR_K_NORM, names->k_norm, "weight", k * c->head_dim);
        }
        if (c->sinks)
            visit_vector(&w, TENSOR_SINKS, names->sinks, NULL, c->heads);
        visit_vector(&w, TENSOR_POST_NORM1, names->post_norm1, "weight", c->hidden);
        visit_vector(&w, TENSOR_NORM2, names->norm2, "weight", c->hidden);
        visit_linears(&w, LINEAR_GATE, LINEAR_SHARED_ROUTER);
        if (model_sparse(c, w.layer))
            visit_experts(&w);
        visit_vector(&w, TENSOR_POST_NORM2, names->post_norm2, "weight", c->hidden);
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
