/* config.c - from config.json to struct model_config.
 *
 * Reads the fields in any order into a struct raw, then checks them together:
 * defaults depend on other fields.  Sizes are limited so that products of two
 * of them, and the bytes of all weights, cannot overflow; nothing later has to ask
 * again. */
#include "engine/config.h"

#include <math.h>
#include <string.h>
#include "base/arena.h"
#include "base/err.h"
#include "json/json.h"

enum { SIZE_LIMIT = 1 << 24, LAYER_LIMIT = 4096, EXPERT_LIMIT = 4096, EXPERT_LIMIT_ALL = 1 << 18 };
static const double parameter_limit = 0x1p50;

struct raw {
    struct json_str architecture, act, model_type;
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, context;
    int64_t experts, experts_used, expert_size, sparse_step;
    double eps, theta;
    bool tied, attention_bias, mlp_bias, sliding, other_layers, renormalise;
    struct rope_config rope;
    struct json_str rope_name;
    bool has_rope_factor;
    bool rope_seen;
};

/* json null stands for "not given" in files written by transformers. */
static void get_int(struct json_reader *r, int64_t *out)
{
    if (json_peek(r) == JSON_NULL)
        json_null(r);
    else
        json_int64(r, out);
}

static void get_double(struct json_reader *r, double *out)
{
    if (json_peek(r) == JSON_NULL)
        json_null(r);
    else
        json_double(r, out);
}

static void get_bool(struct json_reader *r, bool *out)
{
    if (json_peek(r) == JSON_NULL)
        json_null(r);
    else
        json_bool(r, out);
}

static void get_string(struct json_reader *r, struct json_str *out)
{
    if (json_peek(r) == JSON_NULL)
        json_null(r);
    else
        json_string(r, out);
}

static void read_first_string(struct json_reader *r, struct json_str *out)
{
    bool first = true;
    struct json_str s;
    if (json_peek(r) == JSON_NULL) {
        json_null(r);
        return;
    }
    json_begin_array(r);
    while (json_next_item(r)) {
        json_string(r, first ? out : &s);
        first = false;
    }
}

static void add_eos(struct json_reader *r, struct model_config *c)
{
    int64_t id;
    if (!json_int64(r, &id))
        return;
    if (id < 0 || id > INT32_MAX)
        return;
    if (c->n_eos < MODEL_MAX_EOS)
        c->eos[c->n_eos++] = (int32_t)id;
    else
        json_fail(r, "more than %d end tokens", MODEL_MAX_EOS);
}

static void read_eos(struct json_reader *r, struct model_config *c)
{
    c->n_eos = 0;
    switch (json_peek(r)) {
    case JSON_NULL:
        json_null(r);
        break;
    case JSON_ARRAY:
        json_begin_array(r);
        while (json_next_item(r))
            add_eos(r, c);
        break;
    default:
        add_eos(r, c);
    }
}

/* rope_scaling, or rope_parameters of transformers 5. */
static void read_rope(struct json_reader *r, struct raw *raw)
{
    struct json_str key;
    if (json_peek(r) == JSON_NULL) {
        json_null(r);
        return;
    }
    raw->rope_seen = true;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "rope_type") || json_str_is(key, "type"))
            get_string(r, &raw->rope_name);
        else if (json_str_is(key, "rope_theta"))
            get_double(r, &raw->theta);
        else if (json_str_is(key, "factor"))
            get_double(r, &raw->rope.factor);
        else if (json_str_is(key, "low_freq_factor"))
            get_double(r, &raw->rope.low_freq_factor);
        else if (json_str_is(key, "high_freq_factor"))
            get_double(r, &raw->rope.high_freq_factor);
        else if (json_str_is(key, "original_max_position_embeddings"))
            get_double(r, &raw->rope.original_context);
        else if (json_str_is(key, "beta_fast"))
            get_double(r, &raw->rope.beta_fast);
        else if (json_str_is(key, "beta_slow"))
            get_double(r, &raw->rope.beta_slow);
        else if (json_str_is(key, "attention_factor"))
            get_double(r, &raw->rope.attention_factor);
        else
            json_skip(r);
    }
}

static void read_layer_types(struct json_reader *r, struct raw *raw)
{
    struct json_str type;
    if (json_peek(r) == JSON_NULL) {
        json_null(r);
        return;
    }
    json_begin_array(r);
    while (json_next_item(r))
        if (json_string(r, &type) && !json_str_is(type, "full_attention"))
            raw->other_layers = true;
}

/* Layers without experts whatever decoder_sparse_step says. */
static void read_dense_layers(struct json_reader *r, struct model_config *c)
{
    int64_t layer;
    if (json_peek(r) == JSON_NULL) {
        json_null(r);
        return;
    }
    json_begin_array(r);
    while (json_next_item(r)) {
        if (!json_int64(r, &layer) || layer < 0 || layer >= LAYER_LIMIT)
            continue; /* names no layer */
        if (c->n_dense == MODEL_MAX_DENSE)
            json_fail(r, "more than %d mlp_only_layers", MODEL_MAX_DENSE);
        else
            c->dense[c->n_dense++] = (uint16_t)layer;
    }
}

static bool read_size(struct json_reader *r, struct json_str key, struct raw *raw)
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
        { "num_experts", &raw->experts },
        { "num_experts_per_tok", &raw->experts_used },
        { "moe_intermediate_size", &raw->expert_size },
        { "decoder_sparse_step", &raw->sparse_step },
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (json_str_is(key, sizes[i].name)) {
            get_int(r, sizes[i].out);
            return true;
        }
    }
    return false;
}

static void read_field(struct json_reader *r, struct json_str key, struct raw *raw,
                       struct model_config *c)
{
    if (read_size(r, key, raw))
        return;
    if (json_str_is(key, "architectures"))
        read_first_string(r, &raw->architecture);
    else if (json_str_is(key, "model_type"))
        get_string(r, &raw->model_type);
    else if (json_str_is(key, "hidden_act"))
        get_string(r, &raw->act);
    else if (json_str_is(key, "rms_norm_eps"))
        get_double(r, &raw->eps);
    else if (json_str_is(key, "rope_theta"))
        get_double(r, &raw->theta);
    else if (json_str_is(key, "rope_scaling") || json_str_is(key, "rope_parameters"))
        read_rope(r, raw);
    else if (json_str_is(key, "tie_word_embeddings"))
        get_bool(r, &raw->tied);
    else if (json_str_is(key, "attention_bias"))
        get_bool(r, &raw->attention_bias);
    else if (json_str_is(key, "mlp_bias"))
        get_bool(r, &raw->mlp_bias);
    else if (json_str_is(key, "use_sliding_window"))
        get_bool(r, &raw->sliding);
    else if (json_str_is(key, "norm_topk_prob"))
        get_bool(r, &raw->renormalise);
    else if (json_str_is(key, "mlp_only_layers"))
        read_dense_layers(r, c);
    else if (json_str_is(key, "layer_types"))
        read_layer_types(r, raw);
    else if (json_str_is(key, "eos_token_id"))
        read_eos(r, c);
    else
        json_skip(r);
}

static tinker_status check_arch(struct model_config *c, const struct raw *raw, const char *path,
                                tinker_error *err)
{
    static const struct {
        const char *name;
        enum arch arch;
    } known[] = {
        { "LlamaForCausalLM", ARCH_LLAMA },
        { "Qwen2ForCausalLM", ARCH_QWEN2 },
        { "Qwen3ForCausalLM", ARCH_QWEN3 },
        { "Qwen3MoeForCausalLM", ARCH_QWEN3_MOE },
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (json_str_is(raw->architecture, known[i].name)) {
            c->arch = known[i].arch;
            return TINKER_OK;
        }
    }
    struct json_str name = raw->architecture;
    if (!name.s)
        name = (struct json_str){ "(none)", 6 };
    return err_set(err, TINKER_EINVAL,
                   "%s: architecture %.*s is not supported (LlamaForCausalLM, Qwen2ForCausalLM, "
                   "Qwen3ForCausalLM, Qwen3MoeForCausalLM are)",
                   path, name.n > 60 ? 60 : (int)name.n, name.s);
}

static tinker_status take_size(size_t *out, int64_t value, int64_t limit, const char *name,
                               const char *path, tinker_error *err)
{
    if (value < 1 || value > limit)
        return err_set(err, TINKER_EINVAL, "%s: %s is %lld, must be 1 to %lld", path, name,
                       (long long)value, (long long)limit);
    *out = (size_t)value;
    return TINKER_OK;
}

static tinker_status check_sizes(struct model_config *c, struct raw *raw, const char *path,
                                 tinker_error *err)
{
    if (raw->kv_heads < 0)
        raw->kv_heads = raw->heads;
    if (raw->head_dim < 0 && raw->heads > 0)
        raw->head_dim = raw->hidden / raw->heads;
    const struct {
        size_t *out;
        int64_t value, limit;
        const char *name;
    } sizes[] = {
        { &c->vocab, raw->vocab, SIZE_LIMIT, "vocab_size" },
        { &c->hidden, raw->hidden, SIZE_LIMIT, "hidden_size" },
        { &c->layers, raw->layers, LAYER_LIMIT, "num_hidden_layers" },
        { &c->heads, raw->heads, SIZE_LIMIT, "num_attention_heads" },
        { &c->kv_heads, raw->kv_heads, SIZE_LIMIT, "num_key_value_heads" },
        { &c->head_dim, raw->head_dim, MODEL_MAX_HEAD_DIM, "head_dim" },
        { &c->intermediate, raw->intermediate, SIZE_LIMIT, "intermediate_size" },
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tinker_status status =
            take_size(sizes[i].out, sizes[i].value, sizes[i].limit, sizes[i].name, path, err);
        if (status != TINKER_OK)
            return status;
    }
    if (c->head_dim % 2)
        return err_set(err, TINKER_EINVAL, "%s: head_dim %zu is odd", path, c->head_dim);
    if (c->heads % c->kv_heads)
        return err_set(err, TINKER_EINVAL,
                       "%s: %zu attention heads cannot share %zu key/value heads", path, c->heads,
                       c->kv_heads);
    if (c->heads * c->head_dim > SIZE_LIMIT)
        return err_set(err, TINKER_EINVAL, "%s: %zu heads of %zu are too many", path, c->heads,
                       c->head_dim);
    if (raw->context < 1 || raw->context > 1 << 24)
        return err_set(err, TINKER_EINVAL, "%s: max_position_embeddings is %lld", path,
                       (long long)raw->context);
    c->context = raw->context;
    return TINKER_OK;
}

static tinker_status check_experts(struct model_config *c, const struct raw *raw, const char *path,
                                   tinker_error *err)
{
    if (c->arch != ARCH_QWEN3_MOE) {
        c->n_dense = 0;
        return TINKER_OK;
    }
    const struct {
        size_t *out;
        int64_t value, limit;
        const char *name;
    } sizes[] = {
        { &c->experts, raw->experts, EXPERT_LIMIT, "num_experts" },
        { &c->experts_used, raw->experts_used,
          raw->experts < MODEL_MAX_USED ? raw->experts : MODEL_MAX_USED, "num_experts_per_tok" },
        { &c->expert_size, raw->expert_size, SIZE_LIMIT, "moe_intermediate_size" },
        { &c->sparse_step, raw->sparse_step, LAYER_LIMIT, "decoder_sparse_step" },
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tinker_status status =
            take_size(sizes[i].out, sizes[i].value, sizes[i].limit, sizes[i].name, path, err);
        if (status != TINKER_OK)
            return status;
    }
    if (c->experts * c->layers > EXPERT_LIMIT_ALL)
        return err_set(err, TINKER_EINVAL, "%s: %zu layers of %zu experts are too many", path,
                       c->layers, c->experts);
    c->renormalise = raw->renormalise;
    return TINKER_OK;
}

static bool positive(double v)
{
    return isfinite(v) && v > 0;
}

static tinker_status check_rope(struct model_config *c, const struct raw *raw, const char *path,
                                tinker_error *err)
{
    c->rope = raw->rope;
    c->rope.theta = raw->theta;
    c->rope.type = ROPE_DEFAULT;
    if (!positive(raw->theta))
        return err_set(err, TINKER_EINVAL, "%s: rope_theta must be positive", path);
    if (!raw->rope_name.s || json_str_is(raw->rope_name, "default"))
        return TINKER_OK;
    if (json_str_is(raw->rope_name, "linear"))
        c->rope.type = ROPE_LINEAR;
    else if (json_str_is(raw->rope_name, "llama3"))
        c->rope.type = ROPE_LLAMA3;
    else if (json_str_is(raw->rope_name, "yarn"))
        c->rope.type = ROPE_YARN;
    else
        return err_set(err, TINKER_EINVAL,
                       "%s: rope type \"%.*s\" is not supported (default, linear, llama3, yarn "
                       "are)",
                       path, raw->rope_name.n > 40 ? 40 : (int)raw->rope_name.n, raw->rope_name.s);
    if (!positive(c->rope.factor))
        return err_set(err, TINKER_EINVAL, "%s: rope factor must be positive", path);
    if (c->rope.type == ROPE_YARN && c->rope.original_context == 0)
        c->rope.original_context = (double)c->context;
    if (c->rope.type != ROPE_LINEAR && !positive(c->rope.original_context))
        return err_set(err, TINKER_EINVAL, "%s: original_max_position_embeddings must be positive",
                       path);
    if (c->rope.type == ROPE_LLAMA3 && (!positive(c->rope.low_freq_factor) ||
                                        !(c->rope.high_freq_factor > c->rope.low_freq_factor)))
        return err_set(err, TINKER_EINVAL, "%s: low_freq_factor and high_freq_factor are wrong",
                       path);
    return TINKER_OK;
}

static tinker_status check_rest(struct model_config *c, const struct raw *raw, const char *path,
                                tinker_error *err)
{
    if (raw->act.s && !json_str_is(raw->act, "silu"))
        return err_set(err, TINKER_EINVAL, "%s: hidden_act is not silu", path);
    if (raw->sliding || raw->other_layers)
        return err_set(err, TINKER_EINVAL, "%s: sliding window attention is not supported", path);
    if (!isfinite(raw->eps) || raw->eps < 0)
        return err_set(err, TINKER_EINVAL, "%s: rms_norm_eps is wrong", path);
    c->norm_eps = (float)raw->eps;
    c->tied = raw->tied;
    c->qk_norm = c->arch == ARCH_QWEN3 || c->arch == ARCH_QWEN3_MOE;
    c->qkv_bias = c->arch == ARCH_QWEN2 || raw->attention_bias;
    c->o_bias = c->arch != ARCH_QWEN2 && raw->attention_bias;
    c->mlp_bias = c->arch == ARCH_LLAMA && raw->mlp_bias;
    for (size_t i = 0; i < c->n_eos; i++)
        if ((size_t)c->eos[i] >= c->vocab)
            return err_set(err, TINKER_EINVAL, "%s: eos_token_id %d is beyond the vocabulary", path,
                           (int)c->eos[i]);
    return TINKER_OK;
}

/* So that no sum over all weights can overflow either. */
static tinker_status check_total(const struct model_config *c, const char *path, tinker_error *err)
{
    double hidden = (double)c->hidden, inner = (double)c->intermediate;
    double heads = 2 * (double)((c->heads + c->kv_heads) * c->head_dim);
    double experts = (double)c->experts * (double)c->expert_size;
    double all = (double)c->layers * hidden * (heads + 3 * fmax(inner, experts)) +
                 2 * (double)c->vocab * hidden;
    if (all > parameter_limit)
        return err_set(err, TINKER_EINVAL, "%s: %.2g parameters are too many", path, all);
    return TINKER_OK;
}

static tinker_status check(struct model_config *c, struct raw *raw, const char *path,
                           tinker_error *err)
{
    tinker_status status = check_arch(c, raw, path, err);
    if (status == TINKER_OK)
        status = check_sizes(c, raw, path, err);
    if (status == TINKER_OK)
        status = check_experts(c, raw, path, err);
    if (status == TINKER_OK)
        status = check_total(c, path, err);
    if (status == TINKER_OK)
        status = check_rope(c, raw, path, err);
    if (status == TINKER_OK)
        status = check_rest(c, raw, path, err);
    return status;
}

tinker_status config_parse(struct model_config *c, const char *path, const char *text, size_t n,
                           tinker_error *err)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    struct raw raw = { .kv_heads = -1, .head_dim = -1, .eps = 1e-6, .theta = 10000.0 };
    raw.rope.beta_fast = 32;
    raw.rope.beta_slow = 1;
    raw.context = 2048;
    raw.sparse_step = 1;
    *c = (struct model_config){ 0 };
    arena_init(&arena, SIZE_MAX);
    json_reader_init(&r, text, n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        read_field(&r, key, &raw, c);
    tinker_status status;
    if (json_end(&r))
        status = check(c, &raw, path, err);
    else
        status = err_set(err, TINKER_EINVAL, "%s: %s", path, json_error(&r));
    arena_clear(&arena);
    return status;
}

tinker_status config_parse_generation(struct model_config *c, const char *path, const char *text,
                                      size_t n, tinker_error *err)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    tinker_status status = TINKER_OK;
    arena_init(&arena, SIZE_MAX);
    json_reader_init(&r, text, n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "eos_token_id") && json_peek(&r) != JSON_NULL)
            read_eos(&r, c);
        else
            json_skip(&r);
    }
    if (!json_end(&r))
        status = err_set(err, TINKER_EINVAL, "%s: %s", path, json_error(&r));
    for (size_t i = 0; status == TINKER_OK && i < c->n_eos; i++)
        if ((size_t)c->eos[i] >= c->vocab)
            status = err_set(err, TINKER_EINVAL, "%s: eos_token_id %d is beyond the vocabulary",
                             path, (int)c->eos[i]);
    arena_clear(&arena);
    return status;
}

const char *config_arch_name(enum arch arch)
{
    static const char *const names[] = { "llama", "qwen2", "qwen3", "qwen3_moe" };
    return names[arch];
}
