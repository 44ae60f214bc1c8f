/* params.h - which tensors an adapter trains and where they lie in its buffer.
 *
 * The order is fixed: layers ascending, within a layer as enum linear_id, A before
 * B; then the head.  With rank 0: every tensor of the model under its HF name.
 *
 * Linears that the model keeps in one module (qkv_proj) have one pair: all of them read its A, and
 * each its own rows of B.  With rank 0 they are rows of one parameter.
 *
 * The experts of a layer share a pair of stacks named experts.w1 (gate), w3 (up) and w2
 * (down): w1 and w3 have one A for all experts, w2 has one B for all. */
#ifndef ENGINE_PARAMS_H
#define ENGINE_PARAMS_H

#include "base/arena.h"
#include "engine/model/model.h"

struct param {
    const char *name;  /* PEFT name, or the HF name with rank 0 */
    size_t offset;     /* in floats, a multiple of 16 */
    size_t rows, cols; /* a vector has one row and is written as one dimension */
    bool vector;
    size_t stack; /* 0: one matrix; else so many, written as three dimensions */
};

/* Floats of a parameter. */
static inline size_t param_count(const struct param *p)
{
    return (p->stack ? p->stack : 1) * p->rows * p->cols;
}

/* Rank 0: index of each tensor in list, PARAM_NONE where the model has none. */
enum { PARAM_NONE = -1 };
struct layer_params {
    int norm1, norm2, post_norm1, post_norm2, q_norm, k_norm, sinks;
    int weight[LINEARS], bias[LINEARS]; /* linears of one module have the same */
    int conv, a_log, dt_bias, delta_norm;
    int router, router_bias;
    int experts, expert_biases; /* of expert 0's gate; gate, up, down of each in a row */
};

struct params {
    struct param *list;
    size_t n;
    size_t total; /* floats, padding included */
    size_t count; /* floats, padding excluded */
    int *pairs;   /* rank > 0: index of A (B follows), layers * LINEARS, then the head */
    struct layer_params *layers; /* rank 0 */
    int embed, norm, head;       /* rank 0; head PARAM_NONE when tied */
    struct arena arena;
};

tinker_status params_init(struct params *p, const struct model_config *c, const tinker_lora *lora,
                          tinker_error *err);
void params_clear(struct params *p);

/* Parameter names in files of PEFT, which calls the unembedding and the text part of a multimodal
 * model as the model does and has a pair of factors for each expert instead of stacks.  `names`: of
 * the model's architecture. */
enum { PARAM_NAME = 192 };
void params_peft_name(const struct model_config *c, const char *name, char out[PARAM_NAME]);
void params_peft_expert_name(const struct arch_names *names, const char *name, size_t expert,
                             char out[PARAM_NAME]);

#endif
