/* params.c - names, shapes and places of an adapter's parameters; see params.h. */
#include "engine/model/params.h"

#include <stdio.h>
#include <string.h>
#include "base/err.h"

/* In floats: a cache line, so that every parameter begins aligned for AVX-512. */
enum { ALIGN_FLOATS = 16 };

/* Appends a parameter to the list, which has room for it, at the next aligned offset.  Returns
 * its index, or PARAM_NONE: out of memory. */
static int add_param(struct params *p, const char *name, size_t stack, size_t rows, size_t cols)
{
    struct param *q = &p->list[p->n];
    *q = (struct param){
        .name = arena_strdup(&p->arena, name),
        .offset = p->total,
        .rows = rows ? rows : 1,
        .cols = cols,
        .vector = rows == 0,
        .stack = stack,
    };
    /* offsets are multiples of 16 floats; the padding stays zero in every buffer */
    size_t count = param_count(q);
    /* The padding takes part in reductions over the whole buffer, where zeros change nothing. */
    p->total += (count + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    p->count += count;
    return q->name ? (int)p->n++ : PARAM_NONE;
}

/* A pair of factors, or of stacks of them. */
struct pair_shape {
    size_t out, in;
    /* 0: a matrix; 1: a stack that all experts share; else one per expert */
    size_t a_stack, b_stack;
};

/* A, then B.  Returns the index of A.  B directly behind A: everything that has the index of A
 * finds B at the next one. */
static int add_pair(struct params *p, const char *module, size_t rank, const struct pair_shape *s)
{
    char name[PARAM_NAME];
    snprintf(name, sizeof(name), "base_model.model.%s.lora_A.weight", module);
    int a = add_param(p, name, s->a_stack, rank, s->in);
    snprintf(name, sizeof(name), "base_model.model.%s.lora_B.weight", module);
    int b = add_param(p, name, s->b_stack, s->out, rank);
    return a < 0 || b < 0 ? PARAM_NONE : a;
}

/* Pairs that an adapter on everything has, or more: most layers have few of all linears. */
static size_t count_pairs(const struct model_config *c)
{
    /* One for the head, whether it is trained or not. */
    size_t n = 1; /* the head */
    for (size_t layer = 0; layer < c->layers; layer++) {
        n += model_sparse(c, layer) ? EXPERT_LINEARS : 0;
        for (enum linear_id id = 0; id < LINEARS; id++)
            n += model_has_linear(c, layer, id);
    }
    return n;
}

/* Rank > 0: a pair for every trained linear.  False: out of memory. */
static bool list_lora_pairs(struct params *p, const struct model_config *c, const tinker_lora *lora)
{
    const struct arch_names *names = c->arch->names;
    /* An index per linear of every layer, so that finding a pair needs no search. */
    size_t n = c->layers * LINEARS + 1, rank = (size_t)lora->rank;
    p->list = arena_array(&p->arena, 2 * count_pairs(c), sizeof(*p->list));
    p->pairs = arena_array(&p->arena, n, sizeof(*p->pairs));
    if (!p->list || !p->pairs)
        return false;
    /* what is not trained stays without a pair */
    for (size_t i = 0; i < n; i++)
        p->pairs[i] = PARAM_NONE;
    for (size_t layer = 0; layer < c->layers; layer++) {
        for (enum linear_id id = 0; id < LINEARS; id++) {
            int *pair = &p->pairs[layer * LINEARS + id];
            char module[128];
            struct pair_shape s = { 0 };
            size_t first = 0;
            /* What the caller's three switches mean: attention (the delta rule included), the MLP
             * with experts, the head. */
            if (!(linear_is_attention(id) ? lora->train_attn : lora->train_mlp))
                continue;
            if (model_has_linear(c, layer, id)) {
                model_linear_shape(c, id, &s.out, &s.in);
                snprintf(module, sizeof(module), "%s.%zu.%s", names->layers, layer,
                         model_module(c, id, &first, &s.out));
            } else if (id >= LINEAR_GATE && id <= LINEAR_DOWN && model_sparse(c, layer)) {
                /* of all experts: they share A of gate and up, and B of down */
                model_expert_shape(c, id, &s.out, &s.in);
                s.a_stack = id == LINEAR_DOWN ? c->experts : 1;
                s.b_stack = id == LINEAR_DOWN ? 1 : c->experts;
                snprintf(module, sizeof(module), "%s.%zu.%s.%s", names->layers, layer,
                         names->experts, names->adapter_expert[id - LINEAR_GATE]);
            } else {
                continue;
            }
            /* the linears of a module follow each other.  Linears of one module (Phi's q, k and v)
             * share a pair whose B has all of their rows. */
            *pair = first ? pair[-1] : add_pair(p, module, rank, &s);
            if (*pair == PARAM_NONE)
                return false;
        }
    }
    /* the last pair of the list is the head's */
    if (!lora->train_unembed)
        return true;
    struct pair_shape head = { .out = c->vocab, .in = c->hidden };
    p->pairs[n - 1] = add_pair(p, names->adapter_head, rank, &head);
    return p->pairs[n - 1] != PARAM_NONE;
}

/* Where the index of a tensor is kept; NULL for all but the first matrix of a layer's experts,
 * which the others follow in order. */
static int *index_slot(struct params *p, const struct tensor_place *at)
{
    struct layer_params *layer = &p->layers[at->layer];
    /* An expert's others are found by counting from it: gate, up, down of expert 0, then of expert
     * 1. */
    bool leads = at->expert == 0 && at->id == LINEAR_GATE;
    switch (at->kind) {
    case TENSOR_EMBED:
        return &p->embed;
    case TENSOR_NORM1:
        return &layer->norm1;
    case TENSOR_NORM2:
        return &layer->norm2;
    case TENSOR_POST_NORM1:
        return &layer->post_norm1;
    case TENSOR_POST_NORM2:
        return &layer->post_norm2;
    case TENSOR_Q_NORM:
        return &layer->q_norm;
    case TENSOR_K_NORM:
        return &layer->k_norm;
    case TENSOR_SINKS:
        return &layer->sinks;
    case TENSOR_WEIGHT:
        return &layer->weight[at->id];
    case TENSOR_BIAS:
        return &layer->bias[at->id];
    case TENSOR_CONV:
        return &layer->conv;
    case TENSOR_A_LOG:
        return &layer->a_log;
    case TENSOR_DT_BIAS:
        return &layer->dt_bias;
    case TENSOR_DELTA_NORM:
        return &layer->delta_norm;
    case TENSOR_ROUTER:
        return &layer->router;
    case TENSOR_ROUTER_BIAS:
        return &layer->router_bias;
    case TENSOR_EXPERT:
        return leads ? &layer->experts : NULL;
    case TENSOR_EXPERT_BIAS:
        return leads ? &layer->expert_biases : NULL;
    case TENSOR_NORM:
        return &p->norm;
    case TENSOR_HEAD:
        break;
    }
    return &p->head;
}

/* A visitor of model_tensors(). */
static tinker_status add_weight_param(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct params *p = state;
    int *out = index_slot(p, at), index = PARAM_NONE;
    /* A tensor of several linears is one parameter of the whole module's shape. */
    size_t stored = at->stored ? at->stored : at->rows ? at->rows : at->cols;
    if (at->first) /* further rows of a module, which was added with its first linear */
        /* From the end: the first linear of the module came only shortly before. */
        for (size_t i = p->n; i > 0 && index == PARAM_NONE; i--)
            index = strcmp(p->list[i - 1].name, at->name) == 0 ? (int)i - 1 : PARAM_NONE;
    else
        index = add_param(p, at->name, 0, at->rows ? stored : 0, at->rows ? at->cols : stored);
    if (index == PARAM_NONE)
        return err_nomem(err, "parameters");
    if (out)
        *out = index;
    return TINKER_OK;
}

/* A visitor of model_tensors(), so that the list is allocated once.  The walk is cheap, and
 * pointers into the list must not move. */
static tinker_status count_tensors(void *state, const struct tensor_place *at, tinker_error *err)
{
    (void)at;
    (void)err;
    ++*(size_t *)state;
    return TINKER_OK;
}

/* Rank 0: every tensor of the model.  False: out of memory. */
static bool list_all_weights(struct params *p, const struct model_config *c)
{
    size_t n = 0;
    model_tensors(c, count_tensors, &n, NULL);
    p->list = arena_array(&p->arena, n, sizeof(*p->list));
    p->layers = arena_array(&p->arena, c->layers, sizeof(*p->layers));
    if (!p->list || !p->layers)
        return false;
    /* PARAM_NONE is not 0, so the zeros of the arena will not do. */
    p->embed = p->norm = p->head = PARAM_NONE;
    /* not every layer has every tensor */
    for (size_t i = 0; i < c->layers; i++) {
        struct layer_params *l = &p->layers[i];
        l->norm1 = l->norm2 = l->post_norm1 = l->post_norm2 = PARAM_NONE;
        l->q_norm = l->k_norm = l->sinks = PARAM_NONE;
        l->conv = l->a_log = l->dt_bias = l->delta_norm = PARAM_NONE;
        l->router = l->router_bias = l->experts = l->expert_biases = PARAM_NONE;
        for (int id = 0; id < LINEARS; id++)
            l->weight[id] = l->bias[id] = PARAM_NONE;
    }
    return model_tensors(c, add_weight_param, p, NULL) == TINKER_OK;
}

tinker_status params_init(struct params *p, const struct model_config *c, const tinker_lora *lora,
                          tinker_error *err)
{
    *p = (struct params){ 0 };
    arena_init(&p->arena, SIZE_MAX);
    /* both fail only for want of memory */
    bool ok = lora->rank > 0 ? list_lora_pairs(p, c, lora) : list_all_weights(p, c);
    if (ok)
        return TINKER_OK;
    params_clear(p);
    return err_nomem(err, "parameters");
}

/* All names and lists are in the arena. */
void params_clear(struct params *p)
{
    arena_clear(&p->arena);
    *p = (struct params){ 0 };
}

void params_peft_name(const struct model_config *c, const char *name, char out[PARAM_NAME])
{
    static const char prefix[] = "base_model.model.", text[] = "model.";
    const struct arch_names *names = c->arch->names;
    /* Our names are those of Tinker's checkpoints; PEFT wants those of the model in
     * transformers. */
    size_t n = strlen(prefix), k = strlen(names->adapter_head), t = strlen(text);
    bool ours = strncmp(name, prefix, n) == 0;
    if (ours && strncmp(name + n, names->adapter_head, k) == 0 && name[n + k] == '.')
        snprintf(out, PARAM_NAME, "%s%s%s", prefix, names->head, name + n + k);
    else if (ours && c->wrapped && strncmp(name + n, text, t) == 0)
        snprintf(out, PARAM_NAME, "%s%slanguage_model.%s", prefix, text, name + n + t);
    else
        snprintf(out, PARAM_NAME, "%s", name);
}

/* "...experts.w1.lora_A.weight" becomes "...experts.7.gate_proj.lora_A.weight". */
void params_peft_expert_name(const struct arch_names *names, const char *name, size_t expert,
                             char out[PARAM_NAME])
{
    /* Empty when the name is none of a stack. */
    out[0] = '\0';
    for (size_t i = 0; i < EXPERT_LINEARS; i++) {
        char stack[64];
        int n = snprintf(stack, sizeof(stack), ".%s.%s.", names->experts, names->adapter_expert[i]);
        const char *at = strstr(name, stack);
        if (at)
            snprintf(out, PARAM_NAME, "%.*s.%s.%zu.%s.%s", (int)(at - name), name, names->experts,
                     expert, names->expert[i], at + n);
    }
}
