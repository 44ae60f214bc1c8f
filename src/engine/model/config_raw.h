/* config_raw.h - the members of config.json as they stand, unchecked.
 *
 * Numbers that were not given are -1 or NAN, so that config.c can put the default of the
 * architecture in their place. */
#ifndef ENGINE_CONFIG_RAW_H
#define ENGINE_CONFIG_RAW_H

#include "engine/model/model.h"
#include "json/json.h"

/* A type of layer as layer_types names it. */
enum raw_layer { RAW_FULL, RAW_SLIDING, RAW_LINEAR, RAW_MAMBA };

/* One description of a rope. */
struct raw_rope {
    struct rope_config c; /* theta NAN, numbers 0: not given */
    struct json_str name; /* s NULL: not given */
    double rotary, beta;  /* NAN: not given; beta of queries beyond the original context */
    bool given;
};

/* rope_scaling, or rope_parameters: one for all layers, or one for each type. */
struct raw_ropes {
    struct raw_rope all, full, sliding;
    struct json_str other; /* a type of layer that we do not know; s NULL: none */
};

struct raw_config {
    struct json_str architecture, text_type, act, hidden_activation, position;
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, context;
    int64_t original_context, max_window_layers, pattern, full_interval, rope_interval;
    int64_t experts, experts_used, expert_size, sparse_step, shared_size, shared_inner;
    int64_t delta_k_heads, delta_v_heads, delta_k_dim, delta_v_dim, delta_conv;
    int64_t window; /* -1: not given, 0: null */
    double eps, theta, local_theta, rotary;
    double embed_scale, residual_scale, attention_scale, logit_divisor, query_scalar;
    double attn_cap, logit_cap; /* NAN: not given, 0: null */
    double swiglu_limit, swiglu_alpha;
    bool tied, has_tied, text_tied, has_text_tied;
    bool attention_bias, has_attention_bias, mlp_bias, sliding, own_layers;
    bool renormalize, bidirectional, has_text, in_text;
    struct raw_ropes scaling, parameters;
    float short_factor[MODEL_MAX_HEAD_DIM / 2], long_factor[MODEL_MAX_HEAD_DIM / 2];
    size_t n_short, n_long;
    unsigned char types[MODEL_MAX_LAYERS]; /* enum raw_layer */
    size_t n_types;
    struct json_str unknown_type; /* s NULL: none */
    unsigned char no_rope[MODEL_MAX_LAYERS];
    size_t n_no_rope;
};

/* Read the text; *c receives end tokens and dense layers.  The strings of raw lie in the
 * reader's text and arena.  False: see json_error(). */
bool config_read_raw(struct json_reader *r, struct raw_config *raw, struct model_config *c);
/* eos_token_id: a number, a list or null. */
void config_read_eos(struct json_reader *r, struct model_config *c);

#endif
