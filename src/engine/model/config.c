/* config.c - from config.json to struct model_config.
 *
 * Reads the fields in any order into a struct raw, then checks them together:
 * defaults depend on other fields.  Sizes are limited so that products of two
 * of them, and the bytes of all weights, cannot overflow; nothing later has to ask
 * again. */
#include "engine/model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/arena.h"
#include "base/array.h"
#include "base/err.h"
#include "engine/layers/rope.h"
#include "json/json.h"

/* 2^24 squared is 2^48: products of two sizes, in bytes, fit in 64 bits. */
enum {
    SIZE_LIMIT = 1 << 24,
    CONTEXT_LIMIT = 1 << 24,
    LAYER_LIMIT = 4096,
    EXPERT_LIMIT = 4096,
    EXPERT_LIMIT_ALL = 1 << 18
};
/* Far above any model, far below what overflows. */
static const double parameter_limit = 0x1p50;

/* The fields as the file has them, unchecked. */
struct raw {
    struct json_str architecture, act;
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, context;
    int64_t experts, experts_used, expert_size, sparse_step;
    double eps, theta;
    bool tied, has_tied, attention_bias, mlp_bias, sliding, other_layers, own_layers, renormalize;
    struct rope_config rope; /* theta NAN: not given there */
    struct json_str rope_name;
    struct json_str rope_layers; /* a type of layers with a rope of its own */
    const char *rope_other;      /* a setting of yarn that we do not know */
    double rotary;               /* the part of each head that turns */
};

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
    if (id < 0 || id > INT32_MAX)
        return;
    if (c->n_eos < MODEL_MAX_EOS)
        c->eos[c->n_eos++] = (int32_t)id;
    else
        json_fail(r, "more than %d end tokens", MODEL_MAX_EOS);
}

/* A number, a list of numbers, or null. */
static void read_eos(struct json_reader *r, struct model_config *c)
{
    c->n_eos = 0;
    if (json_peek(r) == JSON_ARRAY) {
        json_begin_array(r);
        while (json_next_item(r))
            add_eos(r, c);
    } else if (!skip_null(r)) {
        add_eos(r, c);
    }
}

/* False: the key is none of the numbers. */
static bool read_rope_number(struct json_reader *r, struct json_str key, struct raw *raw)
{
    const struct {
        const char *name;
        double *out;
    } numbers[] = {
        { "rope_theta", &raw->rope.theta },
        { "factor", &raw->rope.factor },
        { "low_freq_factor", &raw->rope.low_freq_factor },
        { "high_freq_factor", &raw->rope.high_freq_factor },
        { "original_max_position_embeddings", &raw->rope.original_context },
        { "beta_fast", &raw->rope.beta_fast },
        { "beta_slow", &raw->rope.beta_slow },
        { "attention_factor", &raw->rope.attention_factor },
        { "partial_rotary_factor", &raw->rotary },
    };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (json_str_is(key, numbers[i].name)) {
            get_double(r, numbers[i].out);
            return true;
        }
    }
    return false;
}

/* Settings that change yarn where they are given; true is what truncate is by default. */
static bool read_rope_other(struct json_reader *r, struct json_str key, struct raw *raw)
{
    static const char *const names[] = { "truncate", "mscale", "mscale_all_dim" };
    bool is_default = true;
    size_t i = 0;
    while (i < ARRAY_LEN(names) && !json_str_is(key, names[i]))
        i++;
    if (i == ARRAY_LEN(names))
        return false;
    if (json_peek(r) == JSON_BOOL)
        json_bool(r, &is_default);
    else if (!skip_null(r))
        is_default = !json_skip(r);
    if (!is_default)
        raw->rope_other = names[i];
    return true;
}

/* rope_scaling, or rope_parameters of transformers 5, which may be given for each type of layer;
 * full_attention is the only type that we have. */
static void read_rope(struct json_reader *r, struct raw *raw)
{
    struct json_str key;
    if (skip_null(r))
        return;
    /* an object for another type of layer is only noted: check_rope() refuses it */
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "rope_type") || (json_str_is(key, "type") && !raw->rope_name.s))
            get_string(r, &raw->rope_name); /* "type" is the old key; "rope_type" wins */
        else if (json_str_is(key, "full_attention"))
            read_rope(r, raw);
        else if (json_peek(r) == JSON_OBJECT && json_skip(r))
            raw->rope_layers = key;
        else if (!read_rope_number(r, key, raw) && !read_rope_other(r, key, raw))
            json_skip(r);
    }
}

/* The first architecture of the list; its class wrote the file. */
static void read_architectures(struct json_reader *r, struct raw *raw, struct model_config *c)
{
    bool first = true;
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
static void read_own_layers(struct json_reader *r, struct raw *raw, struct model_config *c)
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

/* A type per layer; sliding windows are refused later. */
static void read_layer_types(struct json_reader *r, struct raw *raw, struct model_config *c)
{
    struct json_str type;
    (void)c;
    if (skip_null(r))
        return;
    json_begin_array(r);
    while (json_next_item(r))
        if (json_string(r, &type) && !json_str_is(type, "full_attention"))
            raw->other_layers = true;
}

/* mlp_only_layers: without experts whatever decoder_sparse_step says. */
static void read_dense_layers(struct json_reader *r, struct raw *raw, struct model_config *c)
{
    int64_t layer;
    (void)raw;
    if (skip_null(r))
        return;
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

/* One member of config.json.  Simple values go where their table says, lists and objects to a
 * reader; everything else (how the model was trained, which version wrote it) is skipped. */
static void read_field(struct json_reader *r, struct json_str key, struct raw *raw,
                       struct model_config *c)
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
        { "num_local_experts", &raw->experts }, /* its name in transformers 5 */
        { "num_experts_per_tok", &raw->experts_used },
        { "moe_intermediate_size", &raw->expert_size },
        { "decoder_sparse_step", &raw->sparse_step },
    };
    const struct {
        const char *name;
        double *out;
    } numbers[] = {
        { "rms_norm_eps", &raw->eps },
        { "rope_theta", &raw->theta },
        { "partial_rotary_factor", &raw->rotary },
    };
    const struct {
        const char *name;
        bool *out;
    } flags[] = {
        { "attention_bias", &raw->attention_bias },
        { "mlp_bias", &raw->mlp_bias },
        { "use_sliding_window", &raw->sliding },
        { "norm_topk_prob", &raw->renormalize },
    };
    static const struct {
        const char *name;
        void (*read)(struct json_reader *r, struct raw *raw, struct model_config *c);
    } readers[] = {
        { "architectures", read_architectures },
        { "mlp_only_layers", read_dense_layers },
        { "layer_types", read_layer_types },
        { "per_layer_config", read_own_layers },
    };
    /* a linear search: some forty members, once per model */
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        if (json_str_is(key, sizes[i].name)) {
            if (!skip_null(r))
                json_int64(r, sizes[i].out);
            return;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (json_str_is(key, numbers[i].name)) {
            get_double(r, numbers[i].out);
            return;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        if (json_str_is(key, flags[i].name)) {
            get_bool(r, flags[i].out);
            return;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        if (json_str_is(key, readers[i].name)) {
            readers[i].read(r, raw, c);
            return;
        }
    }
    if (json_str_is(key, "tie_word_embeddings"))
        raw->has_tied = get_bool(r, &raw->tied);
    else if (json_str_is(key, "hidden_act"))
        get_string(r, &raw->act);
    else if (json_str_is(key, "rope_scaling") || json_str_is(key, "rope_parameters"))
        read_rope(r, raw);
    else if (json_str_is(key, "eos_token_id"))
        read_eos(r, c);
    else
        json_skip(r);
}

/* The one place that narrows a number of the file to a size. */
static tinker_status take_size(size_t *out, int64_t value, int64_t limit, const char *name,
                               const char *path, tinker_error *err)
{
    if (value < 1 || value > limit)
        return err_set(err, TINKER_EINVAL, "%s: %s is %lld, must be 1 to %lld", path, name,
                       (long long)value, (long long)limit);
    *out = (size_t)value;
    return TINKER_OK;
}

/* Limits keep products of two sizes inside size_t. */
static tinker_status check_sizes(struct model_config *c, struct raw *raw, const char *path,
                                 tinker_error *err)
{
    /* defaults that depend on other fields */
    if (raw->kv_heads < 0)
        raw->kv_heads = raw->heads;
    if (raw->head_dim < 0 && raw->heads > 0)
        raw->head_dim = raw->hidden / raw->heads;
    const struct {
        const char *name;
        size_t *out;
        int64_t value, limit;
    } sizes[] = {
        { .name = "vocab_size", .out = &c->vocab, .value = raw->vocab, .limit = SIZE_LIMIT },
        { .name = "hidden_size", .out = &c->hidden, .value = raw->hidden, .limit = SIZE_LIMIT },
        { .name = "num_hidden_layers",
          .out = &c->layers,
          .value = raw->layers,
          .limit = LAYER_LIMIT },
        { .name = "num_attention_heads",
          .out = &c->heads,
          .value = raw->heads,
          .limit = SIZE_LIMIT },
        { .name = "num_key_value_heads",
          .out = &c->kv_heads,
          .value = raw->kv_heads,
          .limit = SIZE_LIMIT },
        { .name = "head_dim",
          .out = &c->head_dim,
          .value = raw->head_dim,
          .limit = MODEL_MAX_HEAD_DIM },
        { .name = "intermediate_size",
          .out = &c->intermediate,
          .value = raw->intermediate,
          .limit = SIZE_LIMIT },
    };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        tinker_status status =
            take_size(sizes[i].out, sizes[i].value, sizes[i].limit, sizes[i].name, path, err);
        if (status != TINKER_OK)
            return status;
    }
    /* rope turns pairs */
    if (c->head_dim % 2)
        return err_set(err, TINKER_EINVAL, "%s: head_dim %zu is odd", path, c->head_dim);
    /* query heads share key/value heads in groups of equal size */
    if (c->heads % c->kv_heads)
        return err_set(err, TINKER_EINVAL,
                       "%s: %zu attention heads cannot share %zu key/value heads", path, c->heads,
                       c->kv_heads);
    /* the width of q and of the attention's output */
    if (c->heads * c->head_dim > SIZE_LIMIT)
        return err_set(err, TINKER_EINVAL, "%s: %zu heads of %zu are too many", path, c->heads,
                       c->head_dim);
    /* up to 2^24 a float holds every position exactly, which rope.c relies on */
    if (raw->context < 1 || raw->context > CONTEXT_LIMIT)
        return err_set(err, TINKER_EINVAL, "%s: max_position_embeddings is %lld", path,
                       (long long)raw->context);
    c->context = raw->context;
    return TINKER_OK;
}

/* Only an architecture with experts reads their settings. */
static tinker_status check_experts(struct model_config *c, const struct raw *raw, const char *path,
                                   tinker_error *err)
{
    if (!c->arch->moe) {
        c->n_dense = 0;
        return TINKER_OK;
    }
    const struct {
        const char *name;
        size_t *out;
        int64_t value, limit;
    } sizes[] = {
        { .name = "num_experts", .out = &c->experts, .value = raw->experts, .limit = EXPERT_LIMIT },
        /* a token cannot choose an expert twice; the backward keeps them in an array of MODEL_MAX_USED */
        { .name = "num_experts_per_tok",
          .out = &c->experts_used,
          .value = raw->experts_used,
          .limit = raw->experts < MODEL_MAX_USED ? raw->experts : MODEL_MAX_USED },
        { .name = "moe_intermediate_size",
          .out = &c->expert_size,
          .value = raw->expert_size,
          .limit = SIZE_LIMIT },
        { .name = "decoder_sparse_step",
          .out = &c->sparse_step,
          .value = raw->sparse_step,
          .limit = LAYER_LIMIT },
    };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        tinker_status status =
            take_size(sizes[i].out, sizes[i].value, sizes[i].limit, sizes[i].name, path, err);
        if (status != TINKER_OK)
            return status;
    }
    /* each is a struct in memory before any weight is read */
    if (c->experts * c->layers > EXPERT_LIMIT_ALL)
        return err_set(err, TINKER_EINVAL, "%s: %zu layers of %zu experts are too many", path,
                       c->layers, c->experts);
    c->renormalize = raw->renormalize;
    return TINKER_OK;
}

static bool is_positive(double v)
{
    return isfinite(v) && v > 0;
}

/* Files without scaling have no type; a factor without a type is ambiguous. */
static tinker_status check_rope_type(struct model_config *c, const struct raw *raw,
                                     const char *path, tinker_error *err)
{
    char known[64] = "";
    /* the types of this architecture, which a refusal lists */
    for (int i = 0; i < ROPE_TYPES; i++) {
        if (!(c->arch->ropes & 1u << i))
            continue;
        const char *name = rope_type_name((enum rope_type)i);
        if (json_str_is(raw->rope_name, name)) {
            c->rope.type = (enum rope_type)i;
            return TINKER_OK;
        }
        size_t at = strlen(known);
        snprintf(known + at, sizeof(known) - at, "%s%s", at ? ", " : "", name);
    }
    if (raw->rope_name.s)
        return err_set(err, TINKER_EINVAL, "%s: rope type \"%.*s\" is not supported (%s are)", path,
                       raw->rope_name.n > 40 ? 40 : (int)raw->rope_name.n, raw->rope_name.s, known);
    if (raw->rope.factor != 0)
        return err_set(err, TINKER_EINVAL, "%s: a rope factor, but no rope_type", path);
    c->rope.type = ROPE_DEFAULT;
    return TINKER_OK;
}

/* The settings that scaling frequencies needs, by type. */
static tinker_status check_scaling(struct model_config *c, const struct raw *raw, const char *path,
                                   tinker_error *err)
{
    struct rope_config *r = &c->rope;
    if (!is_positive(r->factor))
        return err_set(err, TINKER_EINVAL, "%s: rope factor must be positive", path);
    if (r->type == ROPE_LINEAR)
        return TINKER_OK;
    /* Qwen's files state the context that yarn starts from and the factor by which it grows, and
     * leave max_position_embeddings as it was; others leave out the former. */
    double stretched = r->original_context * r->factor;
    if (r->type == ROPE_YARN && r->original_context == 0)
        r->original_context = (double)c->context;
    else if (r->type == ROPE_YARN && stretched > (double)c->context && stretched <= CONTEXT_LIMIT)
        c->context = (int64_t)stretched;
    if (!is_positive(r->original_context))
        return err_set(err, TINKER_EINVAL, "%s: original_max_position_embeddings must be positive",
                       path);
    /* the interpolation divides by their difference */
    if (r->type == ROPE_LLAMA3 &&
        (!is_positive(r->low_freq_factor) || !(r->high_freq_factor > r->low_freq_factor)))
        return err_set(err, TINKER_EINVAL, "%s: low_freq_factor and high_freq_factor are wrong",
                       path);
    if (r->type == ROPE_YARN && raw->rope_other)
        return err_set(err, TINKER_EINVAL, "%s: %s of yarn is not supported", path,
                       raw->rope_other);
    return TINKER_OK;
}

/* theta of rope_parameters wins over the rope_theta beside it. */
static tinker_status check_rope(struct model_config *c, const struct raw *raw, const char *path,
                                tinker_error *err)
{
    c->rope = raw->rope;
    /* not given inside the rope's own object */
    if (isnan(c->rope.theta))
        c->rope.theta = raw->theta;
    /* one rope for all layers, over the whole head */
    if (raw->rope_layers.s)
        return err_set(err, TINKER_EINVAL, "%s: a rope of %.*s layers is not supported", path,
                       raw->rope_layers.n > 60 ? 60 : (int)raw->rope_layers.n, raw->rope_layers.s);
    if (!is_positive(c->rope.theta))
        return err_set(err, TINKER_EINVAL, "%s: rope_theta must be positive", path);
    if (raw->rotary != 1)
        return err_set(err, TINKER_EINVAL, "%s: partial_rotary_factor is %g, must be 1", path,
                       raw->rotary);
    tinker_status status = check_rope_type(c, raw, path, err);
    if (status == TINKER_OK && c->rope.type != ROPE_DEFAULT)
        status = check_scaling(c, raw, path, err);
    return status;
}

/* Whether a model has this bias, by the rule of its architecture. */
static bool decide_bias(enum arch_bias rule, bool configured)
{
    return rule == ARCH_BIAS_ALWAYS || (rule == ARCH_BIAS_CONFIG && configured);
}

/* What we would compute wrongly is refused; then what follows from the architecture. */
static tinker_status check_rest(struct model_config *c, const struct raw *raw, const char *path,
                                tinker_error *err)
{
    /* the kernels know no other */
    if (raw->act.s && !json_str_is(raw->act, "silu"))
        return err_set(err, TINKER_EINVAL, "%s: hidden_act is not silu", path);
    /* one description for all layers */
    if (raw->own_layers)
        return err_set(err, TINKER_EINVAL, "%s: per_layer_config is not supported", path);
    /* computed as full attention they would be wrong beyond the window */
    if (raw->sliding || raw->other_layers)
        return err_set(err, TINKER_EINVAL, "%s: sliding window attention is not supported", path);
    if (!isfinite(raw->eps) || raw->eps < 0)
        return err_set(err, TINKER_EINVAL, "%s: rms_norm_eps is wrong", path);
    /* from here on nothing can fail but the end tokens */
    c->norm_eps = (float)raw->eps;
    c->tied = raw->has_tied ? raw->tied : c->arch->tied;
    c->qk_norm = c->arch->qk_norm;
    c->qkv_bias = decide_bias(c->arch->qkv_bias, raw->attention_bias);
    c->o_bias = decide_bias(c->arch->o_bias, raw->attention_bias);
    c->mlp_bias = decide_bias(c->arch->mlp_bias, raw->mlp_bias);
    /* a generator compares sampled tokens with them: one that cannot occur is a wrong file */
    for (size_t i = 0; i < c->n_eos; i++)
        if ((size_t)c->eos[i] >= c->vocab)
            return err_set(err, TINKER_EINVAL, "%s: eos_token_id %d is beyond the vocabulary", path,
                           (int)c->eos[i]);
    return TINKER_OK;
}

/* All fields are read: checks them in an order in which each may rely on those before. */
static tinker_status check_config(struct model_config *c, struct raw *raw, const char *path,
                                  tinker_error *err)
{
    struct json_str name = raw->architecture;
    if (!name.s)
        name = (struct json_str){ "(none)", 6 };
    c->arch = arch_by_class(name.s, name.n);
    if (!c->arch) {
        char known[256];
        arch_list_classes(known, sizeof(known));
        return err_set(err, TINKER_EINVAL, "%s: architecture %.*s is not supported (%s are)", path,
                       name.n > 60 ? 60 : (int)name.n, name.s, known);
    }
    tinker_status status = check_sizes(c, raw, path, err);
    if (status == TINKER_OK)
        status = check_experts(c, raw, path, err);
    if (status != TINKER_OK)
        return status;
    /* in double, so that no sum over all weights can overflow later */
    double hidden = (double)c->hidden, inner = (double)c->intermediate;
    double heads = 2 * (double)((c->heads + c->kv_heads) * c->head_dim);
    double experts = (double)c->experts * (double)c->expert_size;
    double all = (double)c->layers * hidden * (heads + 3 * fmax(inner, experts)) +
                 2 * (double)c->vocab * hidden;
    if (all > parameter_limit)
        return err_set(err, TINKER_EINVAL, "%s: %.2g parameters are too many", path, all);
    /* after the sizes: yarn may stretch the context */
    status = check_rope(c, raw, path, err);
    return status == TINKER_OK ? check_rest(c, raw, path, err) : status;
}

tinker_status config_parse(struct model_config *c, const char *path, const char *text, size_t n,
                           tinker_error *err)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    struct raw raw = {
        .kv_heads = -1, /* as many as heads */
        .head_dim = -1, /* hidden / heads */
        .context = 2048,
        .sparse_step = 1,
        .eps = 1e-6,
        .theta = 10000,
        .rope = { .theta = NAN, .beta_fast = 32, .beta_slow = 1 },
        .rotary = 1,
    };
    *c = (struct model_config){ 0 };
    arena_init(&arena, SIZE_MAX);
    json_reader_init(&r, text, n, &arena);
    json_begin_object(&r);
    /* members in any order; what a check compares is complete only after the last one */
    while (json_next_key(&r, &key))
        read_field(&r, key, &raw, c);
    tinker_status status;
    if (json_end(&r))
        status = check_config(c, &raw, path, err);
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
        /* its list is often longer than that of config.json, and the one that generation uses */
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
