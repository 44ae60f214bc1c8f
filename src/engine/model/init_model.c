/* init_model.c - random weights, the same for the same seed on every machine.
 *
 * Weights are normal with deviation 1/sqrt(inputs); what adds to the residual stream
 * is smaller by sqrt(2 * layers), so that depth does not change its size. */
#include "engine/model/init_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/map.h"
#include "base/os.h"
#include "base/rand.h"
#include "engine/layers/rope.h"
#include "engine/model/config.h"
#include "engine/safetensors/safetensors.h"
#include "json/json.h"

enum { PATH_LIMIT = 4096 };

void init_model_defaults(struct init_model *o)
{
    /* small enough for tests of every gradient. */
    *o = (struct init_model){ .embed_std = 0.02, .dtype = SOURCE_F32, .shards = 1 };
    o->config = (struct model_config){
        .vocab = 300,
        .hidden = 64,
        .layers = 2,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 16,
        .intermediate = 128,
        .context = 2048,
        .norm_eps = 1e-6f,
        .tied = true,
        .rope = { .type = ROPE_DEFAULT, .theta = 10000 },
    };
    init_model_arch(o, "qwen3");
}

/* Every kind of layer that the architecture has, in turn. */
static void set_layer_flags(struct model_config *c)
{
    const struct arch *arch = c->arch;
    for (size_t i = 0; i < MODEL_MAX_LAYERS; i++) {
        /* Odd and even layers differ, so that a model of two layers has both kinds. */
        bool odd = i % 2, slides = c->window && (arch->slide == SLIDE_ALL || !odd);
        c->flags[i] = (unsigned char)((slides ? LAYER_SLIDES : 0) |
                                      (arch->rope_skips && odd ? LAYER_NO_ROPE : 0) |
                                      (arch->delta && !odd ? LAYER_DELTA : 0));
    }
}

bool init_model_arch(struct init_model *o, const char *name)
{
    const struct arch *arch = arch_by_name(name);
    struct model_config *c = &o->config;
    if (!arch)
        return false;
    c->arch = arch;
    config_apply_arch(c);
    /* Biases that depend on a setting are off here and can be turned on by the caller. */
    c->qkv_bias = arch->qkv_bias == ARCH_BIAS_ALWAYS || arch->qkv_bias == ARCH_BIAS_CONFIG_OR_TRUE;
    c->o_bias = arch->o_bias == ARCH_BIAS_CONFIG_OR_TRUE;
    c->activation = arch->activation;
    c->swiglu_limit = 7;
    c->swiglu_alpha = 1.702f;
    /* numbers that show when one of them is forgotten.  A factor of 1 or a cap that is never
     * reached would let an error pass the tests. */
    c->embed_scale = arch->multipliers ? 1.5f : 1;
    c->residual_scale = arch->multipliers ? 0.75f : 1;
    c->logit_divisor = arch->multipliers ? 1.25f : 1;
    c->attention_scale = arch->multipliers || arch->query_scalar ? 0.2f : 0;
    c->attn_cap = arch->attn_cap ? 2 : 0;
    c->logit_cap = arch->logit_cap ? 3 : 0;
    /* Shorter than the texts of the tests, so that something falls out of the window. */
    c->window = arch->slide != SLIDE_NONE && !arch->slide_option ? 5 : 0;
    c->temperature = arch->temperature ? 0.5 : 0;
    c->rotary = arch->rotary != 0 ? 8 : 0;
    /* A context of 8 and a factor of 4: positions of a test reach the stretched part. */
    if (arch->temperature)
        c->rope = (struct rope_config){
            .type = ROPE_YARN, .theta = 10000, .factor = 4, .original_context = 8
        };
    /* Other sizes for keys and values, so that a mix-up is an error of shape. */
    if (arch->delta) {
        c->delta_k_heads = 2;
        c->delta_v_heads = 4;
        c->delta_k_dim = 8;
        c->delta_v_dim = 12;
        c->delta_conv = 4;
    }
    set_layer_flags(c);
    /* a small mixture; callers change it as they like */
    c->experts = arch->moe ? 8 : 0;
    c->experts_used = 2;
    c->expert_size = 48;
    c->expert_bias = arch->expert_bias;
    c->shared = arch->shared;
    c->shared_size = arch->shared ? 40 : 0;
    c->sparse_step = 1;
    c->renormalize = true;
    return true;
}

/* Writes the text and clears the buffer, failed or not. */
static tinker_status write_json_text(const char *dir, const char *name, struct buf *text,
                                     tinker_error *err)
{
    char path[PATH_LIMIT];
    /* a path that is cut would be another file */
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);
    tinker_status status = TINKER_OK;
    if (n < 0 || n >= PATH_LIMIT)
        status = err_set(err, TINKER_EINVAL, "path is too long");
    else if (!buf_ok(text))
        status = err_nomem(err, name);
    else
        status = os_write_file(path, text->data, text->len, err);
    buf_clear(text);
    return status;
}

/* A list of longrope. */
static void put_factors(struct json_writer *w, const char *key, const float *factors, size_t n)
{
    json_put_key(w, key);
    json_put_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_put_float(w, factors[i]);
    json_put_end_array(w);
}

/* null, or the settings that the type reads. */
static void put_rope(struct json_writer *w, const struct model_config *c)
{
    const struct rope_config *r = &c->rope;
    size_t rotary = c->rotary ? c->rotary : c->head_dim;
    json_put_key(w, "rope_scaling");
    if (r->type == ROPE_DEFAULT) {
        json_put_null(w);
        return;
    }
    json_put_begin_object(w);
    json_put_key(w, "rope_type");
    json_put_string(w, rope_type_name(r->type));
    json_put_key(w, "factor");
    json_put_double(w, r->factor);
    if (r->type == ROPE_LLAMA3) {
        json_put_key(w, "low_freq_factor");
        json_put_double(w, r->low_freq_factor);
        json_put_key(w, "high_freq_factor");
        json_put_double(w, r->high_freq_factor);
    }
    if (r->type != ROPE_LINEAR && r->type != ROPE_DYNAMIC) {
        json_put_key(w, "original_max_position_embeddings");
        json_put_int64(w, (int64_t)r->original_context);
    }
    if (r->type == ROPE_LONGROPE) {
        put_factors(w, "short_factor", c->short_factor, rotary / 2);
        put_factors(w, "long_factor", c->long_factor, rotary / 2);
    }
    if (c->temperature != 0) {
        json_put_key(w, "llama_4_scaling_beta");
        json_put_double(w, c->temperature);
    }
    json_put_end_object(w);
}

/* Members of JSON objects. */
static void put_number_member(struct json_writer *w, const char *key, size_t value)
{
    json_put_key(w, key);
    json_put_uint64(w, value);
}

static void put_config_flag(struct json_writer *w, const char *key, bool value)
{
    json_put_key(w, key);
    json_put_bool(w, value);
}

static void put_config_text(struct json_writer *w, const char *key, const char *value)
{
    json_put_key(w, key);
    json_put_string(w, value);
}

/* Whether the vocabulary has room for the byte tokenizer's special tokens. */
static bool has_specials(const struct model_config *c)
{
    return c->vocab >= BYTE_VOCAB;
}

static void put_real_member(struct json_writer *w, const char *key, double value)
{
    json_put_key(w, key);
    json_put_double(w, value);
}

/* What differs between layers. */
static void put_layers(struct json_writer *w, const struct model_config *c)
{
    const struct arch *arch = c->arch;
    /* Granite's name for the same thing. */
    const char *full = arch->shared_inner ? "attention" : "full_attention";
    json_put_key(w, "sliding_window");
    if (c->window)
        json_put_uint64(w, c->window);
    else
        json_put_null(w);
    /* Other classes do not read layer_types. */
    if (arch->slide != SLIDE_NONE || arch->delta || arch->shared_inner) {
        json_put_key(w, "layer_types");
        json_put_begin_array(w);
        for (size_t i = 0; i < c->layers; i++)
            json_put_string(w, model_layer_is(c, i, LAYER_DELTA)    ? "linear_attention"
                               : model_layer_is(c, i, LAYER_SLIDES) ? "sliding_attention"
                                                                    : full);
        json_put_end_array(w);
    }
    if (arch->rope_skips) {
        json_put_key(w, "no_rope_layers");
        json_put_begin_array(w);
        for (size_t i = 0; i < c->layers; i++)
            json_put_uint64(w, !model_layer_is(c, i, LAYER_NO_ROPE));
        json_put_end_array(w);
    }
    if (arch->rope_option)
        put_config_text(w, "position_embedding_type",
                        model_layer_is(c, 0, LAYER_NO_ROPE) ? "nope" : "rope");
    if (!arch->delta)
        return;
    put_number_member(w, "linear_num_key_heads", c->delta_k_heads);
    put_number_member(w, "linear_num_value_heads", c->delta_v_heads);
    put_number_member(w, "linear_key_head_dim", c->delta_k_dim);
    put_number_member(w, "linear_value_head_dim", c->delta_v_dim);
    put_number_member(w, "linear_conv_kernel_dim", c->delta_conv);
}

/* Factors and caps. */
static void put_multipliers(struct json_writer *w, const struct model_config *c)
{
    const struct arch *arch = c->arch;
    if (arch->multipliers) {
        put_real_member(w, "embedding_multiplier", (double)c->embed_scale);
        put_real_member(w, "residual_multiplier", (double)c->residual_scale);
        put_real_member(w, "attention_multiplier", (double)c->attention_scale);
        put_real_member(w, "logits_scaling", (double)c->logit_divisor);
    }
    /* The reader computes 1 / sqrt() of it. */
    if (arch->query_scalar)
        put_real_member(w, "query_pre_attn_scalar",
                        1 / ((double)c->attention_scale * (double)c->attention_scale));
    if (arch->attn_cap)
        put_real_member(w, "attn_logit_softcapping", (double)c->attn_cap);
    if (arch->logit_cap)
        put_real_member(w, "final_logit_softcapping", (double)c->logit_cap);
    if (c->activation == ACTIVATION_CLAMPED)
        put_real_member(w, "swiglu_limit", (double)c->swiglu_limit);
}

/* The members that transformers writes and config.c reads. */
static void put_config(struct json_writer *w, const struct init_model *o)
{
    /* in the order of enum source_dtype */
    static const char *const dtype[] = { "float32", "float16", "bfloat16" };
    const struct model_config *c = &o->config;
    json_put_key(w, "architectures");
    json_put_begin_array(w);
    json_put_string(w, c->arch->hf_class);
    json_put_end_array(w);
    put_config_text(w, "model_type", c->arch->name);
    put_number_member(w, "vocab_size", c->vocab);
    put_number_member(w, "hidden_size", c->hidden);
    put_number_member(w, c->arch->shared_inner ? "shared_intermediate_size" : "intermediate_size",
                      c->arch->expert_inner ? c->expert_size : c->intermediate);
    put_number_member(w, "num_hidden_layers", c->layers);
    put_number_member(w, "num_attention_heads", c->heads);
    put_number_member(w, "num_key_value_heads", c->kv_heads);
    put_number_member(w, "head_dim", c->head_dim);
    put_number_member(w, "max_position_embeddings", (size_t)c->context);
    /* the shortest text that reads back as the same float */
    json_put_key(w, "rms_norm_eps");
    json_put_float(w, c->norm_eps);
    json_put_key(w, "rope_theta");
    json_put_double(w, c->rope.theta);
    put_rope(w, c);
    /* Left out where it is 1, as in files of older versions. */
    if (c->rotary && c->rotary != c->head_dim)
        put_real_member(w, "partial_rotary_factor", (double)c->rotary / (double)c->head_dim);
    if (c->activation == ACTIVATION_GELU)
        put_config_text(w, "hidden_activation", "gelu_pytorch_tanh");
    else
        put_config_text(w, "hidden_act", "silu");
    /* Qwen2 has biases whatever this says.  (Its class has no such setting.) */
    put_config_flag(w, "attention_bias", c->o_bias);
    put_layers(w, c);
    put_multipliers(w, c);
    if (c->arch->mlp_bias == ARCH_BIAS_CONFIG)
        put_config_flag(w, "mlp_bias", c->mlp_bias);
    if (c->experts) {
        put_number_member(w, "num_experts", c->experts);
        put_number_member(w, "num_experts_per_tok", c->experts_used);
        put_number_member(w, "moe_intermediate_size", c->expert_size);
        if (c->shared)
            put_number_member(w, "shared_expert_intermediate_size", c->shared_size);
        put_number_member(w, "decoder_sparse_step", c->sparse_step);
        put_config_flag(w, "norm_topk_prob", c->renormalize);
        json_put_key(w, "mlp_only_layers");
        json_put_begin_array(w);
        for (size_t i = 0; i < c->n_dense; i++)
            json_put_uint64(w, c->dense[i]);
        json_put_end_array(w);
    }
    put_config_flag(w, "tie_word_embeddings", c->tied);
    put_config_flag(w, "use_sliding_window", c->arch->slide_option && c->window);
    put_config_flag(w, "use_cache", true);
    /* a hint for other programs; we look at the tensors */
    put_config_text(w, "torch_dtype", dtype[o->dtype]);
    if (has_specials(c))
        put_number_member(w, "eos_token_id", BYTE_IM_END);
}

static tinker_status write_configs(const struct init_model *o, const char *dir, tinker_error *err)
{
    struct buf text;
    struct json_writer w;
    buf_init(&text, 1 << 20);
    json_writer_init(&w, &text);
    json_put_begin_object(&w);
    put_config(&w, o);
    json_put_end_object(&w);
    tinker_status status = write_json_text(dir, "config.json", &text, err);
    /* generation_config.json has nothing to say without end tokens */
    if (status != TINKER_OK || !has_specials(&o->config))
        return status;
    buf_init(&text, 1 << 20);
    json_writer_init(&w, &text);
    json_put_begin_object(&w);
    json_put_key(&w, "eos_token_id");
    /* a turn's end and the text's end both stop generation */
    json_put_begin_array(&w);
    json_put_int64(&w, BYTE_IM_END);
    json_put_int64(&w, BYTE_END_OF_TEXT);
    json_put_end_array(&w);
    put_number_member(&w, "pad_token_id", BYTE_END_OF_TEXT);
    json_put_end_object(&w);
    return write_json_text(dir, "generation_config.json", &text, err);
}

/* A tensor to write; the walk's own name lives only as long as the visit. */
struct random_tensor {
    char name[96];
    struct tensor_place at;
};

struct writing {
    const struct init_model *o;
    struct random_tensor *tensors;
    /* tensors, how many fit, and which one the shard begins with */
    size_t n, cap, first; /* first: of the shard being written */
    float *values;
    void *bytes;
};

/* A visitor of model_tensors(): the shards need all names before the first is written. */
static tinker_status collect_tensor(void *state, const struct tensor_place *at, tinker_error *err)
{
    /* Names are collected first because the index says which shard has which tensor. */
    struct writing *w = state;
    if (at->first)
        return TINKER_OK; /* further rows of a module that is written as one */
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        struct random_tensor *grown = realloc(w->tensors, cap * sizeof(*grown));
        if (!grown)
            return err_nomem(err, "tensors");
        w->tensors = grown;
        w->cap = cap;
    }
    struct random_tensor *t = &w->tensors[w->n++];
    snprintf(t->name, sizeof(t->name), "%s", at->name);
    /* the place without its name, which goes away with the visit */
    t->at = *at;
    t->at.name = NULL;
    /* The whole module, of which this is the first linear. */
    if (at->stored && at->rows)
        t->at.rows = at->stored;
    else if (at->stored)
        t->at.cols = at->stored;
    return TINKER_OK;
}

/* Bytes of tensor w->first + entry, made when they are written; see st_fetch.  st_fetch asks for
 * one tensor after the other, so one at a time is in memory. */
static const void *random_values(void *state, size_t entry, tinker_error *err)
{
    struct writing *w = state;
    const struct init_model *o = w->o;
    const struct random_tensor *t = &w->tensors[w->first + entry];
    /* a vector has no rows */
    size_t count = (t->at.rows ? t->at.rows : 1) * t->at.cols;
    /* a tensor keeps its values when others are added before it */
    uint64_t name = hash_fnv1a(t->name, strlen(t->name));
    /* outputs that add to the residual stream */
    bool residual = t->at.id == LINEAR_O || t->at.id == LINEAR_DOWN || t->at.id == LINEAR_DELTA_OUT;
    /* norms scatter around 1, or around 0 where 1 is added to them, other vectors around 0 */
    bool norm = !t->at.rows && strstr(t->name, "norm") != NULL;
    bool offset = o->config.plus_one && t->at.kind != TENSOR_DELTA_NORM;
    double mean = norm && !offset ? 1 : 0;
    double std = t->at.kind == TENSOR_CONV ? 0.5 : o->noise;
    /* the deviation of matrices keeps the size of activations from layer to layer */
    if (t->at.kind == TENSOR_EMBED || t->at.kind == TENSOR_HEAD)
        std = o->embed_std;
    else if (t->at.rows)
        std = 1 / sqrt((double)t->at.cols * (residual ? 2.0 * (double)o->config.layers : 1));
    /* Freed here and not after writing: the caller uses them until the next call. */
    free(w->values);
    free(w->bytes);
    w->values = malloc(count * sizeof(float));
    w->bytes = malloc(count * sizeof(float));
    /* bytes has room for the widest type, float32. */
    if (!w->values || !w->bytes) {
        err_nomem(err, t->name);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        /* Box-Muller on one Philox block: element i depends on (seed, name, i) only */
        uint32_t r[4];
        philox4x32(o->seed, i, name, r);
        /* Both in (0, 1): the logarithm of 0 would be infinite. */
        double u = ((double)r[0] + 0.5) * 0x1p-32, v = ((double)r[1] + 0.5) * 0x1p-32;
        double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
        w->values[i] = (float)(mean + (std != 0 ? std * normal : 0));
    }
    /* rounded as a checkpoint of that type would be */
    st_from_float(w->values, o->dtype, count, w->bytes);
    return w->bytes;
}

/* The names that transformers gives its files. */
static void shard_name(const struct init_model *o, size_t shard, char out[64])
{
    if (o->shards == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", shard + 1, o->shards);
}

/* Tensors [w->first, w->first + n) as one file. */
static tinker_status write_shard(struct writing *w, const char *dir, size_t shard, size_t n,
                                 tinker_error *err)
{
    char name[64], path[PATH_LIMIT];
    shard_name(w->o, shard, name);
    /* what the header lists; the values come later */
    struct st_entry *entries = calloc(n ? n : 1, sizeof(*entries));
    if (!entries)
        return err_nomem(err, name);
    for (size_t i = 0; i < n; i++) {
        const struct random_tensor *t = &w->tensors[w->first + i];
        entries[i] = (struct st_entry){ .name = t->name, .dtype = w->o->dtype };
        size_t channels = model_delta_channels(&w->o->config);
        if (t->at.rows)
            entries[i].shape[entries[i].ndim++] = t->at.rows;
        /* A convolution is (channels, 1, kernel) in files of transformers. */
        if (t->at.kind == TENSOR_CONV) {
            entries[i].shape[entries[i].ndim++] = channels;
            entries[i].shape[entries[i].ndim++] = 1;
        }
        entries[i].shape[entries[i].ndim++] =
            t->at.kind == TENSOR_CONV ? t->at.cols / channels : t->at.cols;
    }
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    tinker_status status = safetensors_write(path, entries, n, random_values, w, err);
    free(entries);
    return status;
}

/* model.safetensors.index.json. */
static tinker_status write_shard_index(const struct writing *w, const char *dir, size_t per_shard,
                                       tinker_error *err)
{
    struct buf text;
    struct json_writer j;
    char file[64];
    buf_init(&text, 64 << 20);
    json_writer_init(&j, &text);
    json_put_begin_object(&j);
    /* total_size is in bytes of all files. */
    json_put_key(&j, "metadata");
    json_put_begin_object(&j);
    put_number_member(&j, "total_size",
                      (size_t)model_parameters(&w->o->config) * st_dtype_size(w->o->dtype));
    json_put_end_object(&j);
    json_put_key(&j, "weight_map");
    json_put_begin_object(&j);
    for (size_t i = 0; i < w->n; i++) {
        /* The same division as in init_model_write(). */
        shard_name(w->o, i / per_shard, file);
        put_config_text(&j, w->tensors[i].name, file);
    }
    json_put_end_object(&j);
    json_put_end_object(&j);
    return write_json_text(dir, "model.safetensors.index.json", &text, err);
}

tinker_status init_model_write(const struct init_model *o, const char *dir, tinker_error *err)
{
    struct writing w = { .o = o };
    /* so that no file name below is cut */
    if (strlen(dir) > PATH_LIMIT - 128)
        return err_set(err, TINKER_EINVAL, "path of the directory is too long");
    tinker_status status = os_make_dirs(dir, err);
    if (status == TINKER_OK)
        status = write_configs(o, dir, err);
    if (status == TINKER_OK)
        status = model_tensors(&o->config, collect_tensor, &w, err);
    /* cut by count, not by size: these models are small */
    size_t shards = o->shards ? o->shards : 1;
    size_t per_shard = (w.n + shards - 1) / shards;
    /* A shard may stay empty when there are more shards than tensors. */
    for (size_t s = 0; status == TINKER_OK && s < shards && per_shard; s++) {
        w.first = s * per_shard;
        size_t left = w.n > w.first ? w.n - w.first : 0;
        status = write_shard(&w, dir, s, left < per_shard ? left : per_shard, err);
    }
    if (status == TINKER_OK && shards > 1)
        status = write_shard_index(&w, dir, per_shard, err);
    if (status == TINKER_OK)
        status = init_tokenizer_write(dir, o->config.vocab, err);
    free(w.tensors);
    free(w.values);
    free(w.bytes);
    return status;
}
