/* gguf_config.c - the metadata of a file as the text of a config.json.
 *
 * config.c then checks it as any other: one place knows what the engine computes.  What files leave
 * out is what llama.cpp takes for it, which is not always the default of transformers. */
#include "engine/gguf/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"

/* Keys after "<arch>." and members of config.json. */
static const struct {
    const char *key, *member;
} sizes[] = {
    { "feed_forward_length", "intermediate_size" },
    { "expert_count", "num_experts" },
    /* Present only where the architecture has them; config.c knows which of them it needs. */
    { "expert_used_count", "num_experts_per_tok" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_shared_feed_forward_length", "shared_expert_intermediate_size" },
    { "full_attention_interval", "full_attention_interval" },
    { "ssm.conv_kernel", "linear_conv_kernel_dim" },
    { "ssm.state_size", "linear_key_head_dim" },
    { "ssm.group_count", "linear_num_key_heads" },
    { "ssm.time_step_rank", "linear_num_value_heads" },
}, numbers[] = {
    { "attention.layer_norm_rms_epsilon", "rms_norm_eps" },
    { "attention.scale", "attention_multiplier" },
    { "embedding_scale", "embedding_multiplier" },
    { "residual_scale", "residual_multiplier" },
    { "logit_scale", "logits_scaling" },
    { "attn_logit_softcapping", "attn_logit_softcapping" },
    { "final_logit_softcapping", "final_logit_softcapping" },
};

/* One per file that is opened. */
struct reader {
    const struct gguf *g;
    const struct gguf_family *family;
    struct json_writer *w;
    /* asked for by several */
    int64_t context, hidden, layers, heads, kv_heads, head_dim;
    double theta;
};

/* Every setting is under the name of the architecture ("llama.block_count"). Valid until the
 * next call in this thread. */
static const char *arch_key(const struct reader *r, const char *key)
{
    /* Long enough for every family's name and every key of this folder; arch_key() is given
     * literals only. */
    static _Thread_local char full[128];
    snprintf(full, sizeof(full), "%s.%s", r->family->arch, key);
    return full;
}

static tinker_status refuse_key(const struct reader *r, const char *key, const char *why,
                                tinker_error *err)
{
    return err_set(err, TINKER_EINVAL, "%s: %s.%s %s", r->g->path, r->family->arch, key, why);
}

/* A size that layers may give one by one: all must be equal.  1: found; 0: absent; -1: they
 * differ. Newer files give head counts per layer even where all are equal. */
static int read_size(const struct reader *r, const char *key, int64_t *out)
{
    const struct gguf_value *v = gguf_get(r->g, arch_key(r, key));
    if (!v || !v->array)
        return v && gguf_get_int(r->g, arch_key(r, key), out);
    /* An array of texts or an empty one is no size, whatever the key promises. */
    if (v->type == GGUF_STRING || v->n == 0)
        return -1;
    double first = gguf_number(v, 0);
    for (uint64_t i = 1; i < v->n; i++)
        if (gguf_number(v, i) != first)
            return -1;
    /* Beyond 2^53 a double is not an exact integer any more, and the cast could overflow. */
    if (!(fabs(first) < 0x1p53))
        return -1;
    *out = (int64_t)first;
    return 1;
}

/* Sizes that other settings follow from.  Heads divide the width where the file has no size of
 * them, and all of them have keys of their own where it does not say how many. */
static tinker_status read_shape(struct reader *r, tinker_error *err)
{
    /* Without these four nothing can be computed: no default is better than a refusal. */
    const struct {
        const char *key;
        int64_t *out;
    } needed[] = { { "context_length", &r->context },
                   { "embedding_length", &r->hidden },
                   { "block_count", &r->layers },
                   { "attention.head_count", &r->heads } };
    int64_t next = 0;
    for (size_t i = 0; i < ARRAY_LEN(needed); i++) {
        int found = read_size(r, needed[i].key, needed[i].out);
        if (found == 0)
            return refuse_key(r, needed[i].key, "is missing", err);
        if (found < 0)
            return refuse_key(r, needed[i].key, "differs between layers, which is not supported",
                              err);
        if (*needed[i].out < 1)
            return refuse_key(r, needed[i].key, "must be positive", err);
    }
    /* The defaults that llama.cpp takes, which the keys below replace. */
    r->kv_heads = r->heads;
    r->head_dim = r->hidden / r->heads;
    r->theta = 10000;
    read_size(r, "attention.head_count_kv", &r->kv_heads);
    read_size(r, "attention.key_length", &r->head_dim);
    gguf_get_double(r->g, arch_key(r, "rope.freq_base"), &r->theta);
    /* layers behind the last that predict further tokens.  The engine predicts one token and leaves
     * them out. */
    if (read_size(r, "nextn_predict_layers", &next) == 1 && next > 0 && next < r->layers)
        r->layers -= next;
    return TINKER_OK;
}

static void put_int(struct reader *r, const char *member, int64_t value)
{
    json_put_key(r->w, member);
    json_put_int64(r->w, value);
}

static void put_real(struct reader *r, const char *member, double value)
{
    json_put_key(r->w, member);
    json_put_float(r->w, (float)value); /* the shortest digits of the float32 that files have */
}

/* What is missing and not needed is left to the defaults of config.c, which are those of
 * transformers. */
static tinker_status put_sizes(struct reader *r, tinker_error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        int64_t n;
        int found = read_size(r, sizes[i].key, &n);
        if (found < 0)
            return refuse_key(r, sizes[i].key, "differs between layers, which is not supported",
                              err);
        if (!found)
            continue;
        put_int(r, sizes[i].member, n);
    }
    put_int(r, "max_position_embeddings", r->context);
    put_int(r, "hidden_size", r->hidden);
    put_int(r, "num_hidden_layers", r->layers);
    put_int(r, "num_attention_heads", r->heads);
    put_int(r, "num_key_value_heads", r->kv_heads);
    put_int(r, "head_dim", r->head_dim);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        double d;
        bool found = gguf_get_double(r->g, arch_key(r, numbers[i].key), &d);
        /* A default here differs between families by a factor of ten, and a wrong one is not
         * visible in any message. */
        if (!found && i == 0) /* a model without it would be computed wrongly */
            return refuse_key(r, numbers[i].key, "is missing", err);
        if (!found)
            continue;
        if (!isfinite(d))
            return refuse_key(r, numbers[i].key, "is not finite", err);
        put_real(r, numbers[i].member, d);
    }
    /* Read in read_shape() and checked here, where it can be refused. */
    if (!isfinite(r->theta))
        return refuse_key(r, "rope.freq_base", "is not finite", err);
    put_real(r, "rope_theta", r->theta);
    return TINKER_OK;
}

static void put_flag(struct reader *r, const char *member, bool on)
{
    json_put_key(r->w, member);
    json_put_bool(r->w, on);
}

/* Llama 3 files have the divisors of the frequencies instead of the settings that make them.
 * All such models have the same settings but for the factor, which is the largest divisor. Each
 * divisor is recomputed from the settings and compared: a file that was made otherwise is
 * refused rather than run with wrong positions. */
static bool put_llama3_rope(struct reader *r, const struct gguf_tensor *t)
{
    /* The settings that Meta released for 3.1 to 3.3, of which only the factor differs (8, and 32
     * for the small models of 3.2). */
    const double low = 1, high = 4, original = 8192;
    double theta = 10000, factor = 1;
    const float *given = t->data;
    if (t->type != GGUF_TENSOR_F32 || t->n_dims != 1)
        return false;
    gguf_get_double(r->g, arch_key(r, "rope.freq_base"), &theta);
    for (size_t i = 0; i < t->dim[0]; i++) {
        float f;
        /* Through memcpy(): tensors of a file begin at any byte that its header allows. */
        memcpy(&f, given + i, sizeof f);
        factor = fmax(factor, (double)f);
    }
    for (size_t i = 0; i < t->dim[0]; i++) {
        float f;
        memcpy(&f, given + i, sizeof f);
        /* The wave length of pair i in tokens; transformers decides by it as follows. */
        double wave = 2 * 3.14159265358979323846 * pow(theta, (double)i / (double)t->dim[0]);
        double smooth = (original / wave - low) / (high - low);
        /* Short waves stay, long ones are divided by the factor, those between are interpolated. */
        double want = wave < original / high  ? 1
                      : wave > original / low ? factor
                                              : 1 / ((1 - smooth) / factor + smooth);
        /* A tolerance of float32 and of the way the writer computed; other settings differ by far
         * more. */
        if (!(fabs(want - (double)f) <= 1e-3 * want))
            return false;
    }
    json_put_key(r->w, "rope_scaling");
    json_put_begin_object(r->w);
    json_put_key(r->w, "rope_type");
    json_put_string(r->w, "llama3");
    const struct {
        const char *name;
        double value;
    } settings[] = { { "factor", factor },
                     { "low_freq_factor", low },
                     { "high_freq_factor", high },
                     { "original_max_position_embeddings", original } };
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        json_put_key(r->w, settings[i].name);
        json_put_double(r->w, settings[i].value);
    }
    json_put_end_object(r->w);
    return true;
}

/* Lists of longrope, as divisors of the frequencies.  llama.cpp chooses the list by the length of
 * the context when a model is loaded, transformers by that of the text; the engine follows
 * transformers. */
static bool put_divisors(struct reader *r, const char *tensor, const char *member)
{
    const struct gguf_tensor *t = gguf_find(r->g, tensor);
    if (!t || t->type != GGUF_TENSOR_F32 || t->n_dims != 1)
        return false;
    json_put_key(r->w, member);
    json_put_begin_array(r->w);
    for (size_t i = 0; i < t->dim[0]; i++) {
        float f;
        memcpy(&f, (const char *)t->data + i * sizeof(f), sizeof(f));
        /* NaN here would make every position wrong, without any error later. */
        if (!isfinite(f))
            return false;
        json_put_float(r->w, f);
    }
    json_put_end_array(r->w);
    return true;
}

/* Phi's lists are tensors; the original context stands beside the rope. */
static tinker_status put_longrope(struct reader *r, tinker_error *err)
{
    double factor;
    int64_t original;
    /* Phi's config.json has it beside rope_scaling, not inside. */
    if (read_size(r, "rope.scaling.original_context_length", &original) == 1)
        put_int(r, "original_max_position_embeddings", original);
    json_put_key(r->w, "rope_scaling");
    json_put_begin_object(r->w);
    json_put_key(r->w, "rope_type");
    json_put_string(r->w, "longrope");
    /* A factor of 0 means that the writer did not know it; config.c then computes it. */
    if (gguf_get_double(r->g, arch_key(r, "rope.scaling.attn_factor"), &factor) && factor > 0 &&
        isfinite(factor))
        put_real(r, "attention_factor", factor);
    if (!put_divisors(r, "rope_factors_short.weight", "short_factor") ||
        !put_divisors(r, "rope_factors_long.weight", "long_factor"))
        return err_set(err, TINKER_EINVAL,
                       "%s: rope_factors_short.weight and rope_factors_long.weight must be "
                       "vectors of finite F32",
                       r->g->path);
    json_put_end_object(r->w);
    return TINKER_OK;
}

/* linear and yarn, by the keys that the file has. */
static void put_scaling(struct reader *r, const char *type, size_t n)
{
    /* GGUF's key, config.json's member. */
    static const char *const keys[][2] = {
        { "rope.scaling.factor", "factor" },
        { "rope.scaling.original_context_length", "original_max_position_embeddings" },
        { "rope.scaling.yarn_beta_fast", "beta_fast" },
        { "rope.scaling.yarn_beta_slow", "beta_slow" },
        /* yarn's temperature: llama.cpp has one logarithmic factor, transformers two whose ratio
         * counts. */
        { "rope.scaling.yarn_log_multiplier", "mscale_all_dim" },
        { "attention.temperature_scale", "llama_4_scaling_beta" },
    };
    json_put_key(r->w, "rope_scaling");
    json_put_begin_object(r->w);
    json_put_key(r->w, "rope_type");
    json_put_string_n(r->w, type, n);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        double d;
        if (!gguf_get_double(r->g, arch_key(r, keys[i][0]), &d) || !isfinite(d))
            continue;
        put_real(r, keys[i][1], d);
        if (strcmp(keys[i][1], "mscale_all_dim") == 0)
            /* With mscale 1 the ratio that transformers computes is that of the one number in the
             * file. */
            put_real(r, "mscale", 1);
    }
    /* GPT-OSS alone: the edges of yarn's ramp are not rounded to whole pairs. */
    if (r->family->keep_fraction)
        put_flag(r, "truncate", false);
    json_put_end_object(r->w);
}

/* How positions turn queries and keys. */
static tinker_status put_rope_config(struct reader *r, tinker_error *err)
{
    const struct gguf_tensor *factors = gguf_find(r->g, "rope_freqs.weight");
    const char *type;
    size_t n;
    int64_t rotary;
    double local;
    bool used;
    /* Granite 4 uses this key to say that there is no rope at all. */
    if (gguf_get_bool(r->g, arch_key(r, "rope.scaling.finetuned"), &used) && !used &&
        strcmp(r->family->arch, "granite") == 0)
        return refuse_key(r, "rope.scaling.finetuned",
                          "is false: layers without positions are not supported", err);
    /* Some models turn only the first part of each head (Qwen3.5: a quarter). */
    if (read_size(r, "rope.dimension_count", &rotary) == 1 && rotary != r->head_dim &&
        r->head_dim > 0) {
        json_put_key(r->w, "partial_rotary_factor");
        json_put_double(r->w, (double)rotary / (double)r->head_dim);
    }
    /* Layers with a window may have a rope of another base (Gemma 3). */
    if (!gguf_get_double(r->g, arch_key(r, "rope.freq_base_swa"), &local))
        local = r->family->local_theta != 0 ? r->family->local_theta : r->theta; /* one for all */
    if (!isfinite(local))
        return refuse_key(r, "rope.freq_base_swa", "is not finite", err);
    put_real(r, "rope_local_base_freq", local);
    if (factors)
        return put_llama3_rope(r, factors)
                   ? TINKER_OK
                   : err_set(err, TINKER_EINVAL,
                             "%s: rope_freqs.weight are not the frequencies of Llama 3",
                             r->g->path);
    /* The lists decide: rope.scaling.type may be missing beside them. */
    if (gguf_find(r->g, "rope_factors_long.weight"))
        return put_longrope(r, err);
    if (gguf_get_string(r->g, arch_key(r, "rope.scaling.type"), &type, &n) &&
        !(n == 4 && memcmp(type, "none", 4) == 0))
        put_scaling(r, type, n);
    return TINKER_OK;
}

/* Which layers slide: by a period, by a list, or as the family has it. */
static tinker_status put_window_config(struct reader *r, tinker_error *err)
{
    static const char key[] = "attention.sliding_window_pattern";
    const struct gguf_value *v = gguf_get(r->g, arch_key(r, key));
    /* period: of llama.cpp's families in which some layers slide and some do not. */
    int64_t window = 0, period = (int64_t)r->family->period;
    bool given = read_size(r, "attention.sliding_window", &window) == 1;
    json_put_key(r->w, "sliding_window");
    if (window > 0)
        json_put_int64(r->w, window);
    else if (!given && strcmp(r->family->arch, "gemma2") == 0)
        json_put_int64(r->w, 4096);
    else
        json_put_null(r->w);
    /* All layers alike: sliding_window says everything. */
    if (!period)
        return TINKER_OK;
    bool list = v && v->array;
    if (v && !v->array && (!gguf_get_int(r->g, arch_key(r, key), &period) || period < 1))
        return refuse_key(r, key, "must be positive", err);
    /* A number per layer, not a flag: other writers use any type. */
    if (list && (v->type == GGUF_STRING || v->n < (uint64_t)r->layers))
        return refuse_key(r, key, "is not a number for each layer", err);
    json_put_key(r->w, "layer_types");
    json_put_begin_array(r->w);
    for (int64_t i = 0; i < r->layers && i < MODEL_MAX_LAYERS; i++) {
        /* Both forms count from layer 0; with a period, its last layer sees everything. */
        bool slides = list ? gguf_number(v, (uint64_t)i) != 0 : (i + 1) % period != 0;
        json_put_string(r->w, slides ? "sliding_attention" : "full_attention");
    }
    json_put_end_array(r->w);
    return TINKER_OK;
}

/* What llama.cpp knows by the name of the architecture. */
static void put_implied(struct reader *r)
{
    int64_t inner, values;
    /* The largest model of a family divides the scores otherwise (Gemma 2 27B, Gemma 3 27B). */
    bool large = r->family->large && r->layers == (int64_t)r->family->large;
    json_put_key(r->w, "query_pre_attn_scalar");
    json_put_double(r->w, (double)(large ? r->hidden / r->heads : r->head_dim));
    /* The width of a value head is not a key of its own, only that of all of them. */
    if (read_size(r, "ssm.inner_size", &inner) == 1 &&
        read_size(r, "ssm.time_step_rank", &values) == 1 && values > 0)
        put_int(r, "linear_value_head_dim", inner / values);
}

/* End tokens: of a text, of a turn, of a message.  Without eot or eom a chat model would talk on
 * after its turn, so all three stop generation. */
static void put_ends(struct reader *r)
{
    static const char *const keys[] = { "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    int64_t id, seen[ARRAY_LEN(keys)];
    size_t n = 0;
    json_put_key(r->w, "eos_token_id");
    json_put_begin_array(r->w);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (!gguf_get_int(r->g, keys[i], &id))
            continue;
        bool known = false;
        /* Writers often repeat one id under several names. */
        for (size_t k = 0; k < n; k++)
            known |= seen[k] == id;
        if (!known) {
            seen[n++] = id;
            json_put_int64(r->w, id);
        }
    }
    json_put_end_array(r->w);
}

tinker_status gguf_put_config(struct json_writer *w, const struct gguf *g,
                              const struct gguf_family *f, tinker_error *err)
{
    struct reader r = { .g = g, .family = f, .w = w };
    /* The vocabulary's size is that of the embedding: the key of it is optional. */
    const struct gguf_tensor *embed = gguf_find(g, "token_embd.weight");
    if (!embed || embed->n_dims != 2)
        return err_set(err, TINKER_EINVAL, "%s: no matrix token_embd.weight in it", g->path);
    json_put_begin_object(w);
    json_put_key(w, "architectures");
    json_put_begin_array(w);
    json_put_string(w, f->hf_class);
    json_put_end_array(w);
    json_put_key(w, "model_type");
    json_put_string(w, f->model_type);
    json_put_key(w, "vocab_size");
    json_put_uint64(w, embed->dim[1]);
    /* In this order: later parts use what read_shape() has found. */
    tinker_status (*const parts[])(struct reader * r, tinker_error * err) = { read_shape, put_sizes,
                                                                              put_rope_config,
                                                                              put_window_config };
    tinker_status status = TINKER_OK;
    for (size_t i = 0; status == TINKER_OK && i < ARRAY_LEN(parts); i++)
        status = parts[i](&r, err);
    if (status != TINKER_OK)
        return status;
    put_implied(&r);
    /* Mixture models that do not say so divide the chosen weights by their sum. */
    bool normalize = true;
    gguf_get_bool(g, arch_key(&r, "expert_weights_norm"), &normalize);
    /* No matrix of its own: the head is the embedding.  Biases, too, are known by their tensors
     * alone. */
    put_flag(&r, "tie_word_embeddings", !gguf_find(g, "output.weight"));
    put_flag(&r, "attention_bias", gguf_find(g, "blk.0.attn_q.bias") != NULL);
    put_flag(&r, "mlp_bias", gguf_find(g, "blk.0.ffn_up.bias") != NULL);
    put_flag(&r, "norm_topk_prob", normalize);
    put_ends(&r);
    json_put_end_object(w);
    return TINKER_OK;
}
