/* config_raw.c - the members of config.json into struct raw_config; see config_raw.h. */
#include "engine/model/config_raw.h"

#include <math.h>
#include <string.h>
#include "base/array.h"

/* Files written by transformers have null for "not given": consumes it.  False: another value. */
static bool skip_null(struct json_reader *r)
{
    return json_peek(r) == JSON_NULL && json_null(r);
}

/* The value, or *out as it was. */
static void get_double(struct json_reader *r, double *out)
{
    if (!skip_null(r))
        json_double(r, out);
}

/* Whether there was one. */
static bool get_bool(struct json_reader *r, bool *out)
{
    return !skip_null(r) && json_bool(r, out);
}

/* The string, or *out as it was. */
static void get_string(struct json_reader *r, struct json_str *out)
{
    if (!skip_null(r))
        json_string(r, out);
}

/* Negative ids stand for "none" in some files. */
static void add_eos(struct json_reader *r, struct model_config *c)
{
    int64_t id;
    if (!json_int64(r, &id))
        return;
    /* They are counted as none, not as an error. */
    if (id < 0 || id > INT32_MAX)
        return;
    if (c->n_eos < MODEL_MAX_EOS)
        c->eos[c->n_eos++] = (int32_t)id;
    else
        json_fail(r, "more than %d end tokens", MODEL_MAX_EOS);
}

void config_read_eos(struct json_reader *r, struct model_config *c)
{
    /* A later list replaces an earlier one, as generation_config.json does. */
    c->n_eos = 0;
    if (json_peek(r) == JSON_ARRAY) {
        json_begin_array(r);
        while (json_next_item(r))
            add_eos(r, c);
    } else if (!skip_null(r)) {
        add_eos(r, c);
    }
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* False: the key is none of the numbers. */
static bool read_rope_number(struct json_reader *r, struct json_str key, struct raw_rope *rope)
{
    const struct {
        const char *name;
        double *out;
    } numbers[] = {
        { "rope_theta", &rope->c.theta },
        { "factor", &rope->c.factor },
        { "low_freq_factor", &rope->c.low_freq_factor },
        { "high_freq_factor", &rope->c.high_freq_factor },
        { "original_max_position_embeddings", &rope->c.original_context },
        { "beta_fast", &rope->c.beta_fast },
        { "beta_slow", &rope->c.beta_slow },
        { "attention_factor", &rope->c.attention_factor },
        { "mscale", &rope->c.mscale },
        { "mscale_all_dim", &rope->c.mscale_all_dim },
        { "partial_rotary_factor", &rope->rotary },
        /* One table for transformers 4 and 5; which keys a type needs is for config.c to say. */
        { "llama_4_scaling_beta", &rope->beta },
    };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (json_str_is(key, numbers[i].name)) {
            get_double(r, numbers[i].out);
            return true;
        }
    }
    return false;
}

/* A list of divisors of longrope. */
static void read_factors(struct json_reader *r, float *out, size_t *n)
{
    double v;
    *n = 0;
    if (skip_null(r))
        return;
    json_begin_array(r);
    while (json_next_item(r)) {
        if (!json_double(r, &v))
            return;
        if (*n == MODEL_MAX_HEAD_DIM / 2)
            json_fail(r, "a list of more than %d rope factors", MODEL_MAX_HEAD_DIM / 2);
        else
            out[(*n)++] = (float)v;
    }
}

/* One set, or a set for each type of layer below it; see struct raw_ropes. */
static void read_rope_set(struct json_reader *r, struct raw_config *raw, struct raw_ropes *all,
                          struct raw_rope *rope)
{
    struct json_str key;
    bool truncate = true;
    if (skip_null(r))
        return;
    rope->given = true;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "rope_type") || (json_str_is(key, "type") && !rope->name.s))
            get_string(r, &rope->name); /* "type" is the old key; "rope_type" wins */
        else if (json_str_is(key, "short_factor"))
            read_factors(r, raw->short_factor, &raw->n_short);
        else if (json_str_is(key, "long_factor"))
            read_factors(r, raw->long_factor, &raw->n_long);
        else if (json_str_is(key, "truncate"))
            get_bool(r, &truncate);
        else if (rope == &all->all && json_str_is(key, "full_attention"))
            read_rope_set(r, raw, all, &all->full);
        else if (rope == &all->all && json_str_is(key, "sliding_attention"))
            read_rope_set(r, raw, all, &all->sliding);
        else if (json_peek(r) == JSON_OBJECT && json_skip(r))
            all->other = key;
        else if (!read_rope_number(r, key, rope))
            json_skip(r);
    }
    /* transformers looks for truncate beside the sets of types, where it never is */
    rope->c.keep_fraction = !truncate && rope == &all->all;
}

/* The readers below have one type, so that read_field() can keep them in a table. */
static void read_scaling(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    (void)c;
    read_rope_set(r, raw, &raw->scaling, &raw->scaling.all);
}

static void read_parameters(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    (void)c;
    read_rope_set(r, raw, &raw->parameters, &raw->parameters.all);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* The first architecture of the list; its class wrote the file.  A list of several does not occur;
 * transformers takes the first, too. */
static void read_architectures(struct json_reader *r, struct raw_config *raw,
                               struct model_config *c)
{
    bool first = !raw->in_text; /* that of a text_config does not count */
    struct json_str s;
    (void)c;
    if (skip_null(r))
        return;
    json_begin_array(r);
    while (json_next_item(r)) {
        json_string(r, first ? &raw->architecture : &s);
        first = false;
    }
}

/* Settings of single layers: we have none, so that any is refused. */
static void read_own_layers(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    struct json_str key;
    (void)c;
    if (skip_null(r))
        return;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        raw->own_layers = true;
        json_skip(r);
    }
}

/* A type per layer. */
static void read_layer_types(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    static const struct {
        const char *name;
        enum raw_layer type;
    } names[] = {
        { "full_attention", RAW_FULL },
        { "attention", RAW_FULL },
        { "sliding_attention", RAW_SLIDING },
        { "linear_attention", RAW_LINEAR },
        { "mamba", RAW_MAMBA },
    };
    struct json_str type;
    (void)c;
    raw->n_types = 0;
    if (skip_null(r))
        return;
    json_begin_array(r);
    while (json_next_item(r)) {
        size_t i = 0;
        if (!json_string(r, &type))
            return;
        while (i < ARRAY_LEN(names) && !json_str_is(type, names[i].name))
            i++;
        if (i == ARRAY_LEN(names))
            /* Kept as text, so that the check can name it. */
            raw->unknown_type = type;
        else if (raw->n_types == MODEL_MAX_LAYERS)
            json_fail(r, "more than %d layer_types", MODEL_MAX_LAYERS);
        else
            raw->types[raw->n_types++] = (unsigned char)names[i].type;
    }
}

/* no_rope_layers, which has 1 where a layer has a rope. */
static void read_no_rope(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    int64_t v;
    (void)c;
    raw->n_no_rope = 0;
    if (skip_null(r))
        return;
    json_begin_array(r);
    while (json_next_item(r)) {
        if (!json_int64(r, &v))
            return;
        if (raw->n_no_rope == MODEL_MAX_LAYERS)
            json_fail(r, "more than %d no_rope_layers", MODEL_MAX_LAYERS);
        else
            raw->no_rope[raw->n_no_rope++] = v == 0;
    }
}

/* mlp_only_layers: without experts whatever decoder_sparse_step says. */
static void read_dense_layers(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    int64_t layer;
    (void)raw;
    if (skip_null(r))
        return;
    json_begin_array(r);
    while (json_next_item(r)) {
        if (!json_int64(r, &layer) || layer < 0 || layer >= MODEL_MAX_LAYERS)
            continue; /* names no layer */
        if (c->n_dense == MODEL_MAX_DENSE)
            json_fail(r, "more than %d mlp_only_layers", MODEL_MAX_DENSE);
        else
            c->dense[c->n_dense++] = (uint16_t)layer;
    }
}

/* null is "no window", which is not the same as a member that is missing. */
static void read_window(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    (void)c;
    if (skip_null(r))
        raw->window = 0;
    else if (json_int64(r, &raw->window) && raw->window < 1)
        json_fail(r, "sliding_window is %lld", (long long)raw->window);
}

/* null means no cap here, while a missing member means the default: hence 0 and NAN. */
static void read_attn_cap(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    (void)c;
    raw->attn_cap = 0;
    get_double(r, &raw->attn_cap);
}

static void read_logit_cap(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    (void)c;
    raw->logit_cap = 0;
    get_double(r, &raw->logit_cap);
}

/* Both are kept: which one wins depends on the other being there. */
static void read_tied(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    (void)c;
    if (raw->in_text)
        raw->has_text_tied = get_bool(r, &raw->text_tied);
    else
        raw->has_tied = get_bool(r, &raw->tied);
}

static void read_attention_bias(struct json_reader *r, struct raw_config *raw,
                                struct model_config *c)
{
    (void)c;
    raw->has_attention_bias = get_bool(r, &raw->attention_bias);
}

/* Only the type of the text part is used; the class says the rest. */
static void read_model_type(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    struct json_str s;
    (void)c;
    get_string(r, raw->in_text ? &raw->text_type : &s);
}

static void read_text_config(struct json_reader *r, struct raw_config *raw, struct model_config *c);

/* ---- members --------------------------------------------------------------------------------- */

static bool read_size(struct json_reader *r, struct json_str key, struct raw_config *raw)
{
    const struct {
        const char *name;
        int64_t *out;
    } sizes[] = {
        { "vocab_size", &raw->vocab },
        { "hidden_size", &raw->hidden },
        { "num_hidden_layers", &raw->layers },
        { "num_attention_heads", &raw->heads },
        { "num_key_value_heads", &raw->kv_heads },
        { "head_dim", &raw->head_dim },
        { "intermediate_size", &raw->intermediate },
        { "max_position_embeddings", &raw->context },
        { "original_max_position_embeddings", &raw->original_context },
        { "max_window_layers", &raw->max_window_layers },
        { "sliding_window_pattern", &raw->pattern },
        { "full_attention_interval", &raw->full_interval },
        { "no_rope_layer_interval", &raw->rope_interval },
        { "num_experts", &raw->experts },
        /* Both spellings write to the same place; the last one in the file wins. */
        { "num_local_experts", &raw->experts }, /* its name in transformers 5 */
        { "num_experts_per_tok", &raw->experts_used },
        { "moe_intermediate_size", &raw->expert_size },
        { "decoder_sparse_step", &raw->sparse_step },
        { "shared_expert_intermediate_size", &raw->shared_size },
        { "shared_intermediate_size", &raw->shared_inner },
        { "linear_num_key_heads", &raw->delta_k_heads },
        { "linear_num_value_heads", &raw->delta_v_heads },
        { "linear_key_head_dim", &raw->delta_k_dim },
        { "linear_value_head_dim", &raw->delta_v_dim },
        { "linear_conv_kernel_dim", &raw->delta_conv },
    };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        if (json_str_is(key, sizes[i].name)) {
            if (!skip_null(r))
                json_int64(r, sizes[i].out);
            return true;
        }
    }
    return false;
}

static bool read_number(struct json_reader *r, struct json_str key, struct raw_config *raw)
{
    const struct {
        const char *name;
        double *out;
    } numbers[] = {
        { "rms_norm_eps", &raw->eps },
        { "rope_theta", &raw->theta },
        { "rope_local_base_freq", &raw->local_theta },
        { "partial_rotary_factor", &raw->rotary },
        { "embedding_multiplier", &raw->embed_scale },
        { "residual_multiplier", &raw->residual_scale },
        { "attention_multiplier", &raw->attention_scale },
        { "logits_scaling", &raw->logit_divisor },
        { "query_pre_attn_scalar", &raw->query_scalar },
        { "swiglu_limit", &raw->swiglu_limit },
        { "swiglu_alpha", &raw->swiglu_alpha },
    };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (json_str_is(key, numbers[i].name)) {
            get_double(r, numbers[i].out);
            return true;
        }
    }
    return false;
}

/* One member of config.json.  Simple values go where their table says, lists and objects to a
 * reader; everything else (how the model was trained, which version wrote it) is skipped. */
static void read_field(struct json_reader *r, struct json_str key, struct raw_config *raw,
                       struct model_config *c)
{
    const struct {
        const char *name;
        bool *out;
    } flags[] = {
        { "mlp_bias", &raw->mlp_bias },
        { "use_sliding_window", &raw->sliding },
        { "norm_topk_prob", &raw->renormalize },
        { "use_bidirectional_attention", &raw->bidirectional },
    };
    const struct {
        const char *name;
        struct json_str *out;
    } strings[] = {
        { "hidden_act", &raw->act },
        { "hidden_activation", &raw->hidden_activation },
        { "position_embedding_type", &raw->position },
    };
    static const struct {
        const char *name;
        void (*read)(struct json_reader *r, struct raw_config *raw, struct model_config *c);
    } readers[] = {
        { "architectures", read_architectures },
        { "model_type", read_model_type },
        { "text_config", read_text_config },
        { "mlp_only_layers", read_dense_layers },
        { "layer_types", read_layer_types },
        { "no_rope_layers", read_no_rope },
        { "per_layer_config", read_own_layers },
        { "sliding_window", read_window },
        { "attn_logit_softcapping", read_attn_cap },
        { "final_logit_softcapping", read_logit_cap },
        { "tie_word_embeddings", read_tied },
        { "attention_bias", read_attention_bias },
        { "rope_scaling", read_scaling },
        { "rope_parameters", read_parameters },
    };
    /* linear searches: some forty members, once per model */
    if (read_size(r, key, raw) || read_number(r, key, raw))
        return;
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        if (json_str_is(key, flags[i].name)) {
            get_bool(r, flags[i].out);
            return;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(strings); i++) {
        if (json_str_is(key, strings[i].name)) {
            get_string(r, strings[i].out);
            return;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        if (json_str_is(key, readers[i].name)) {
            readers[i].read(r, raw, c);
            return;
        }
    }
    if (json_str_is(key, "eos_token_id"))
        config_read_eos(r, c);
    else
        json_skip(r);
}

/* The text part of a multimodal model has all settings of the network. */
static void read_text_config(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    struct json_str key;
    if (skip_null(r))
        return;
    if (raw->in_text) {
        json_fail(r, "a text_config inside a text_config");
        return;
    }
    raw->has_text = raw->in_text = true;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "eos_token_id") && (json_peek(r) == JSON_NULL || c->n_eos))
            /* If text_config comes first, the list of the wrapper replaces this one. */
            json_skip(r); /* those of the whole model win */
        else
            read_field(r, key, raw, c);
    }
    raw->in_text = false;
}

bool config_read_raw(struct json_reader *r, struct raw_config *raw, struct model_config *c)
{
    static const struct raw_rope none = { .c = { .theta = NAN }, .rotary = NAN, .beta = NAN };
    struct json_str key;
    /* Defaults of the configuration classes that all share; -1 and NAN stand for "not given", which
     * only fill_defaults() can resolve. */
    *raw = (struct raw_config){
        .kv_heads = -1,
        .head_dim = -1,
        .intermediate = -1,
        .context = 2048,
        .original_context = -1,
        .max_window_layers = 28,
        .pattern = -1,
        .full_interval = -1,
        .rope_interval = 4,
        .sparse_step = 1,
        .window = -1,
        .delta_conv = 4,
        .eps = NAN,
        .theta = NAN,
        .local_theta = NAN,
        .rotary = NAN,
        .embed_scale = 1,
        .residual_scale = 1,
        .attention_scale = 1,
        .logit_divisor = 1,
        .query_scalar = 256,
        .attn_cap = NAN,
        .logit_cap = NAN,
        .swiglu_limit = 7,
        .swiglu_alpha = 1.702,
        .scaling = { .all = none, .full = none, .sliding = none },
        .parameters = { .all = none, .full = none, .sliding = none },
    };
    /* Cleared here, because some readers write to it directly. */
    *c = (struct model_config){ 0 };
    json_begin_object(r);
    /* members in any order; what a check compares is complete only after the last one */
    while (json_next_key(r, &key))
        read_field(r, key, raw, c);
    return json_end(r);
}
