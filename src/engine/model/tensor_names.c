/* tensor_names.c - which tensors a model has: names and shapes, in one fixed order. */
#include "engine/model/model.h"

#include <stdio.h>

void model_linear_shape(const struct model_config *c, enum linear_id id, size_t *out, size_t *in)
{
    size_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
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

void model_expert_shape(const struct model_config *c, enum linear_id id, size_t *out, size_t *in)
{
    *out = id == LINEAR_DOWN ? c->hidden : c->expert_size;
    *in = id == LINEAR_DOWN ? c->expert_size : c->hidden;
}

bool model_sparse(const struct model_config *c, size_t layer)
{
    for (size_t i = 0; i < c->n_dense; i++)
        if (c->dense[i] == layer)
            return false;
    return c->experts > 0 && (layer + 1) % c->sparse_step == 0;
}

size_t model_sparse_layers(const struct model_config *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->layers; i++)
        n += model_sparse(c, i);
    return n;
}

size_t model_mlp_width(const struct model_config *c)
{
    size_t sparse = model_sparse_layers(c), experts = c->experts_used * c->expert_size;
    if (sparse == 0 || (sparse < c->layers && c->intermediate > experts))
        return c->intermediate;
    return experts;
}

const char *model_linear_name(enum linear_id id)
{
    static const char *const names[LINEARS] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
    };
    return names[id];
}

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

struct walk {
    const struct model_config *c;
    tensor_visit *visit;
    void *state;
    tinker_error *err;
    tinker_status status;
    size_t layer;
};

static void visit_layer_vector(struct walk *w, enum tensor_kind kind, const char *suffix, size_t n)
{
    char name[96];
    if (w->status != TINKER_OK)
        return;
    snprintf(name, sizeof(name), "model.layers.%zu.%s", w->layer, suffix);
    struct tensor_place at = { kind, w->layer, LINEARS, 0, n, name, 0 };
    w->status = w->visit(w->state, &at, w->err);
}

static void visit_linear(struct walk *w, enum linear_id id)
{
    char name[96];
    size_t out, in;
    if (w->status != TINKER_OK)
        return;
    model_linear_shape(w->c, id, &out, &in);
    snprintf(name, sizeof(name), "model.layers.%zu.%s.weight", w->layer, model_linear_name(id));
    struct tensor_place at = { TENSOR_WEIGHT, w->layer, id, out, in, name, 0 };
    w->status = w->visit(w->state, &at, w->err);
    if (w->status != TINKER_OK || !model_linear_has_bias(w->c, id))
        return;
    snprintf(name, sizeof(name), "model.layers.%zu.%s.bias", w->layer, model_linear_name(id));
    struct tensor_place bias = { TENSOR_BIAS, w->layer, id, 0, out, name, 0 };
    w->status = w->visit(w->state, &bias, w->err);
}

static void visit_expert(struct walk *w, size_t expert, enum linear_id id)
{
    static const char *const suffix[] = { "gate_proj", "up_proj", "down_proj" };
    char name[96];
    size_t out, in;
    if (w->status != TINKER_OK)
        return;
    model_expert_shape(w->c, id, &out, &in);
    snprintf(name, sizeof(name), "model.layers.%zu.mlp.experts.%zu.%s.weight", w->layer, expert,
             suffix[id - LINEAR_GATE]);
    struct tensor_place at = { TENSOR_EXPERT, w->layer, id, out, in, name, expert };
    w->status = w->visit(w->state, &at, w->err);
}

static void visit_experts(struct walk *w)
{
    char name[96];
    if (w->status != TINKER_OK)
        return;
    snprintf(name, sizeof(name), "model.layers.%zu.mlp.gate.weight", w->layer);
    struct tensor_place at = { TENSOR_ROUTER, w->layer, LINEARS, w->c->experts,
                               w->c->hidden,  name,     0 };
    w->status = w->visit(w->state, &at, w->err);
    for (size_t e = 0; e < w->c->experts; e++)
        for (int id = LINEAR_GATE; id <= LINEAR_DOWN; id++)
            visit_expert(w, e, (enum linear_id)id);
}

static void visit_layer(struct walk *w)
{
    visit_layer_vector(w, TENSOR_NORM1, "input_layernorm.weight", w->c->hidden);
    for (int id = LINEAR_Q; id <= LINEAR_O; id++)
        visit_linear(w, (enum linear_id)id);
    if (w->c->qk_norm) {
        visit_layer_vector(w, TENSOR_Q_NORM, "self_attn.q_norm.weight", w->c->head_dim);
        visit_layer_vector(w, TENSOR_K_NORM, "self_attn.k_norm.weight", w->c->head_dim);
    }
    visit_layer_vector(w, TENSOR_NORM2, "post_attention_layernorm.weight", w->c->hidden);
    if (model_sparse(w->c, w->layer)) {
        visit_experts(w);
        return;
    }
    for (int id = LINEAR_GATE; id <= LINEAR_DOWN; id++)
        visit_linear(w, (enum linear_id)id);
}

tinker_status model_tensors(const struct model_config *c, tensor_visit *visit, void *state,
                            tinker_error *err)
{
    struct walk w = { c, visit, state, err, TINKER_OK, 0 };
    struct tensor_place embed = {
        TENSOR_EMBED, 0, LINEARS, c->vocab, c->hidden, "model.embed_tokens.weight", 0
    };
    w.status = visit(state, &embed, err);
    for (w.layer = 0; w.layer < c->layers; w.layer++)
        visit_layer(&w);
    if (w.status != TINKER_OK)
        return w.status;
    struct tensor_place norm = { TENSOR_NORM, 0, LINEARS, 0, c->hidden, "model.norm.weight", 0 };
    w.status = visit(state, &norm, err);
    if (w.status != TINKER_OK || c->tied)
        return w.status;
    struct tensor_place head = {
        TENSOR_HEAD, 0, LINEARS, c->vocab, c->hidden, "lm_head.weight", 0
    };
    return visit(state, &head, err);
}

static tinker_status count(void *state, const struct tensor_place *at, tinker_error *err)
{
    (void)err;
    *(uint64_t *)state += (uint64_t)(at->rows ? at->rows : 1) * at->cols;
    return TINKER_OK;
}

uint64_t model_parameters(const struct model_config *c)
{
    uint64_t n = 0;
    model_tensors(c, count, &n, NULL);
    return n;
}
