/* params.c - names, shapes and places of an adapter's parameters; see params.h. */
#include "engine/params.h"

#include <stdio.h>
#include <string.h>
#include "base/err.h"

enum { ALIGN_FLOATS = 16 };

/* Adds one parameter; the list has room. */
static int add(struct params *p, const char *name, size_t rows, size_t cols)
{
    struct param *q = &p->list[p->n];
    size_t count = (rows ? rows : 1) * cols;
    *q =
        (struct param){ arena_strdup(&p->arena, name), p->total, rows ? rows : 1, cols, rows == 0 };
    p->total += (count + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    p->count += count;
    return q->name ? (int)p->n++ : PARAM_NONE;
}

static int add_pair(struct params *p, const char *module, size_t rank, size_t out, size_t in)
{
    char name[160];
    snprintf(name, sizeof(name), "base_model.model.model.%s.lora_A.weight", module);
    int a = add(p, name, rank, in);
    snprintf(name, sizeof(name), "base_model.model.model.%s.lora_B.weight", module);
    int b = add(p, name, out, rank);
    return a < 0 || b < 0 ? PARAM_NONE : a;
}

static bool trained(const tinker_lora *lora, enum linear_id id)
{
    return id <= LINEAR_O ? lora->train_attn : lora->train_mlp;
}

static bool init_lora(struct params *p, const struct model_config *c, const tinker_lora *lora)
{
    size_t n = c->layers * LINEARS + 1, rank = (size_t)lora->rank;
    p->list = arena_array(&p->arena, 2 * n, sizeof(*p->list));
    p->pairs = arena_array(&p->arena, n, sizeof(*p->pairs));
    if (!p->list || !p->pairs)
        return false;
    for (size_t i = 0; i < n; i++)
        p->pairs[i] = PARAM_NONE;
    for (size_t layer = 0; layer < c->layers; layer++) {
        for (int id = 0; id < LINEARS; id++) {
            char module[96];
            size_t out, in;
            if (!trained(lora, (enum linear_id)id))
                continue;
            model_linear_shape(c, (enum linear_id)id, &out, &in);
            snprintf(module, sizeof(module), "layers.%zu.%s", layer,
                     model_linear_name((enum linear_id)id));
            int *pair = &p->pairs[layer * LINEARS + (size_t)id];
            *pair = add_pair(p, module, rank, out, in);
            if (*pair == PARAM_NONE)
                return false;
        }
    }
    if (!lora->train_unembed)
        return true;
    p->pairs[n - 1] = add_pair(p, "unembed_tokens", rank, c->vocab, c->hidden);
    return p->pairs[n - 1] != PARAM_NONE;
}

static int *place(struct params *p, const struct tensor_place *at)
{
    struct layer_params *layer = &p->layers[at->layer];
    switch (at->kind) {
    case TENSOR_EMBED:
        return &p->embed;
    case TENSOR_NORM1:
        return &layer->norm1;
    case TENSOR_NORM2:
        return &layer->norm2;
    case TENSOR_Q_NORM:
        return &layer->q_norm;
    case TENSOR_K_NORM:
        return &layer->k_norm;
    case TENSOR_WEIGHT:
        return &layer->weight[at->id];
    case TENSOR_BIAS:
        return &layer->bias[at->id];
    case TENSOR_NORM:
        return &p->norm;
    case TENSOR_HEAD:
        break;
    }
    return &p->head;
}

static tinker_status add_tensor(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct params *p = state;
    int index = add(p, at->name, at->rows, at->cols);
    if (index == PARAM_NONE)
        return err_nomem(err, "parameters");
    *place(p, at) = index;
    return TINKER_OK;
}

static bool init_full(struct params *p, const struct model_config *c)
{
    p->list = arena_array(&p->arena, c->layers * (2 * LINEARS + 4) + 3, sizeof(*p->list));
    p->layers = arena_array(&p->arena, c->layers, sizeof(*p->layers));
    if (!p->list || !p->layers)
        return false;
    p->embed = p->norm = p->head = PARAM_NONE;
    for (size_t i = 0; i < c->layers; i++) {
        struct layer_params *l = &p->layers[i];
        l->norm1 = l->norm2 = l->q_norm = l->k_norm = PARAM_NONE;
        for (int id = 0; id < LINEARS; id++)
            l->weight[id] = l->bias[id] = PARAM_NONE;
    }
    return model_tensors(c, add_tensor, p, NULL) == TINKER_OK;
}

tinker_status params_init(struct params *p, const struct model_config *c, const tinker_lora *lora,
                          tinker_error *err)
{
    *p = (struct params){ 0 };
    arena_init(&p->arena, SIZE_MAX);
    bool ok = lora->rank > 0 ? init_lora(p, c, lora) : init_full(p, c);
    if (ok)
        return TINKER_OK;
    params_clear(p);
    return err_nomem(err, "parameters");
}

void params_clear(struct params *p)
{
    arena_clear(&p->arena);
    *p = (struct params){ 0 };
}

const char *params_peft_name(const char *name)
{
    if (strcmp(name, "base_model.model.model.unembed_tokens.lora_A.weight") == 0)
        return "base_model.model.lm_head.lora_A.weight";
    if (strcmp(name, "base_model.model.model.unembed_tokens.lora_B.weight") == 0)
        return "base_model.model.lm_head.lora_B.weight";
    return name;
}
