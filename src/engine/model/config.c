/* config.c - from config.json to struct model_config.
 *
 * config_raw.c reads the members in any order; here they are checked together, because defaults
 * depend on other members and on the architecture.  Sizes are limited so that products of two
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
#include "engine/model/config_raw.h"

/* 2^24 squared is 2^48: products of two sizes, in bytes, fit in 64 bits. */
enum {
    SIZE_LIMIT = 1 << 24,
    CONTEXT_LIMIT = 1 << 24,
    EXPERT_LIMIT = 4096,
    EXPERT_LIMIT_ALL = 1 << 18
};
/* Far above any model, far below what overflows. */
static const double parameter_limit = 0x1p50;

/* What all checks need. */
struct check {
    struct model_config *c;
    struct raw_config *raw;
    const char *path;
    tinker_error *err;
};

/* A piece of the file in a message, cut to something readable.  `%.*s` wants an int. */
static int text_length(struct json_str s)
{
    return s.n > 60 ? 60 : (int)s.n;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* A number of the file that becomes a size. */
struct size_field {
    const char *name;
    size_t *out;
    int64_t value, limit;
};

/* The one place that narrows numbers of the file to sizes. */
static tinker_status take_sizes(const struct check *k, const struct size_field *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].limit)
            return err_set(k->err, TINKER_EINVAL, "%s: %s is %lld, must be 1 to %lld", k->path,
                           sizes[i].name, (long long)sizes[i].value, (long long)sizes[i].limit);
        *sizes[i].out = (size_t)sizes[i].value;
    }
    return TINKER_OK;
}

/* Members that may be left out, by the rules of the architecture. */
static void fill_defaults(struct raw_config *raw, const struct arch *arch)
{
    /* -1 is what config_read_raw() leaves where a member is missing or null. */
    if (raw->kv_heads < 0)
        raw->kv_heads = arch->kv_heads ? arch->kv_heads : raw->heads;
    if (raw->head_dim < 0 && arch->head_dim)
        raw->head_dim = arch->head_dim;
    else if (raw->head_dim < 0 && raw->heads > 0)
        raw->head_dim = raw->hidden / raw->heads;
    /* Mixtral and GPT-OSS call the size of an expert intermediate_size. */
    if (arch->expert_inner)
        raw->expert_size = raw->intermediate;
    if (arch->shared_inner)
        raw->intermediate = raw->shared_inner;
    /* a model of sparse layers alone need not say the size of a dense one */
    if (arch->moe && raw->intermediate < 0)
        raw->intermediate = raw->expert_size;
    /* 1e-6 is the default of most classes, and it must be decided here: 0 is a valid value. */
    if (isnan(raw->eps))
        raw->eps = arch->eps != 0 ? arch->eps : 1e-6;
}

/* Limits keep products of two sizes inside size_t. */
static tinker_status check_sizes(const struct check *k)
{
    struct model_config *c = k->c;
    const struct raw_config *raw = k->raw;
    const struct size_field sizes[] = {
        { "vocab_size", &c->vocab, raw->vocab, SIZE_LIMIT },
        { "hidden_size", &c->hidden, raw->hidden, SIZE_LIMIT },
        { "num_hidden_layers", &c->layers, raw->layers, MODEL_MAX_LAYERS },
        { "num_attention_heads", &c->heads, raw->heads, SIZE_LIMIT },
        { "num_key_value_heads", &c->kv_heads, raw->kv_heads, SIZE_LIMIT },
        { "head_dim", &c->head_dim, raw->head_dim, MODEL_MAX_HEAD_DIM },
        /* The message names the member that the file has. */
        { k->c->arch->shared_inner ? "shared_intermediate_size" : "intermediate_size",
          &c->intermediate, raw->intermediate, SIZE_LIMIT },
    };
    tinker_status status = take_sizes(k, sizes, ARRAY_LEN(sizes));
    if (status != TINKER_OK)
        return status;
    /* rope turns pairs */
    if (c->head_dim % 2)
        return err_set(k->err, TINKER_EINVAL, "%s: head_dim %zu is odd", k->path, c->head_dim);
    /* query heads share key/value heads in groups of equal size */
    if (c->heads % c->kv_heads)
        return err_set(k->err, TINKER_EINVAL,
                       "%s: %zu attention heads cannot share %zu key/value heads", k->path,
                       c->heads, c->kv_heads);
    /* the width of q and of the attention's output */
    if (c->heads * c->head_dim > SIZE_LIMIT)
        return err_set(k->err, TINKER_EINVAL, "%s: %zu heads of %zu are too many", k->path,
                       c->heads, c->head_dim);
    /* up to 2^24 a float holds every position exactly, which rope.c relies on */
    if (raw->context < 1 || raw->context > CONTEXT_LIMIT)
        return err_set(k->err, TINKER_EINVAL, "%s: max_position_embeddings is %lld", k->path,
                       (long long)raw->context);
    c->context = raw->context;
    return TINKER_OK;
}

/* Only an architecture with experts reads their settings.  Where there are none, experts stays 0,
 * which is what everything else asks for. */
static tinker_status check_experts(const struct check *k)
{
    struct model_config *c = k->c;
    const struct raw_config *raw = k->raw;
    if (!c->arch->moe) {
        /* mlp_only_layers of a dense model says nothing. */
        c->n_dense = 0;
        if (c->arch->shared_inner && raw->experts > 0)
            return err_set(k->err, TINKER_EINVAL,
                           "%s: num_local_experts is %lld: of this architecture only dense models "
                           "are supported",
                           k->path, (long long)raw->experts);
        return TINKER_OK;
    }
    const struct size_field sizes[] = {
        { "num_experts", &c->experts, raw->experts, EXPERT_LIMIT },
        /* a token cannot choose an expert twice; the backward keeps them in an array of MODEL_MAX_USED */
        { "num_experts_per_tok", &c->experts_used, raw->experts_used,
          raw->experts < MODEL_MAX_USED ? raw->experts : MODEL_MAX_USED },
        { c->arch->expert_inner ? "intermediate_size" : "moe_intermediate_size", &c->expert_size,
          raw->expert_size, SIZE_LIMIT },
        { "decoder_sparse_step", &c->sparse_step, raw->sparse_step, MODEL_MAX_LAYERS },
        { "shared_expert_intermediate_size", &c->shared_size, raw->shared_size, SIZE_LIMIT },
    };
    /* The last row is of the shared expert. */
    tinker_status status = take_sizes(k, sizes, ARRAY_LEN(sizes) - !c->arch->shared);
    if (status != TINKER_OK)
        return status;
    /* each is a struct in memory before any weight is read */
    if (c->experts * c->layers > EXPERT_LIMIT_ALL)
        return err_set(k->err, TINKER_EINVAL, "%s: %zu layers of %zu experts are too many", k->path,
                       c->layers, c->experts);
    /* Some classes always renormalize, whatever the file says. */
    c->renormalize = raw->renormalize || c->arch->renormalize;
    c->expert_bias = c->arch->expert_bias;
    c->shared = c->arch->shared;
    return TINKER_OK;
}

/* Sizes of the gated delta rule, where the architecture has it. */
static tinker_status check_delta(const struct check *k)
{
    struct model_config *c = k->c;
    const struct raw_config *raw = k->raw;
    if (!c->arch->delta)
        return TINKER_OK;
    const struct size_field sizes[] = {
        /* The limits bound the recurrent state: keys times values floats per value head and
         * sequence. */
        { "linear_num_key_heads", &c->delta_k_heads, raw->delta_k_heads, 1 << 12 },
        { "linear_num_value_heads", &c->delta_v_heads, raw->delta_v_heads, 1 << 12 },
        { "linear_key_head_dim", &c->delta_k_dim, raw->delta_k_dim, MODEL_MAX_DELTA_DIM },
        { "linear_value_head_dim", &c->delta_v_dim, raw->delta_v_dim, MODEL_MAX_DELTA_DIM },
        { "linear_conv_kernel_dim", &c->delta_conv, raw->delta_conv, MODEL_MAX_CONV },
    };
    tinker_status status = take_sizes(k, sizes, ARRAY_LEN(sizes));
    if (status == TINKER_OK && c->delta_v_heads % c->delta_k_heads)
        status =
            err_set(k->err, TINKER_EINVAL, "%s: %zu linear value heads cannot share %zu key heads",
                    k->path, c->delta_v_heads, c->delta_k_heads);
    return status;
}

/* In double, so that no sum over all weights can overflow later. */
static tinker_status check_parameters(const struct check *k)
{
    const struct model_config *c = k->c;
    double hidden = (double)c->hidden, inner = (double)c->intermediate;
    /* q, k, v and o: q and o of all heads, k and v of the shared ones, so this is an upper
     * bound. */
    double heads = 3 * (double)((c->heads + c->kv_heads) * c->head_dim);
    double delta = 2 * (double)(model_delta_channels(c) + c->delta_v_heads * c->delta_v_dim);
    double experts = (double)c->experts * (double)c->expert_size + (double)c->shared_size;
    /* Three matrices (gate, up, down) per layer, of the dense or of the sparse form. */
    double all = (double)c->layers * hidden * (heads + delta + 3 * fmax(inner, experts)) +
                 /* Embedding and head. */
                 2 * (double)c->vocab * hidden;
    if (all > parameter_limit)
        return err_set(k->err, TINKER_EINVAL, "%s: %.2g parameters are too many", k->path, all);
    return TINKER_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* The type of a layer when the file has no list of them.  Each rule is the one of the configuration
 * class in transformers. */
static enum raw_layer default_type(const struct check *k, size_t layer)
{
    const struct arch *arch = k->c->arch;
    /* A period of the file replaces that of the architecture. */
    size_t period = arch->slide_period;
    if (arch->delta && k->raw->full_interval > 0)
        period = (size_t)k->raw->full_interval;
    if (arch->slide == SLIDE_PATTERN && k->raw->pattern > 0)
        period = (size_t)k->raw->pattern;
    if (arch->delta)
        /* The last layer of each period has full attention. */
        return (layer + 1) % period ? RAW_LINEAR : RAW_FULL;
    switch (arch->slide) {
    case SLIDE_NONE:
        return RAW_FULL;
    case SLIDE_ALL:
        return RAW_SLIDING;
    case SLIDE_EVEN:
        return layer % 2 ? RAW_FULL : RAW_SLIDING;
    case SLIDE_PATTERN:
        return (layer + 1) % period ? RAW_SLIDING : RAW_FULL;
    /* Qwen2's max_window_layers: the layers from there on have the window. */
    case SLIDE_UPPER:
        return (int64_t)layer < k->raw->max_window_layers ? RAW_FULL : RAW_SLIDING;
    }
    return RAW_FULL;
}

/* Which layers slide, have no rope, or are delta layers. */
static tinker_status check_layers(const struct check *k)
{
    struct model_config *c = k->c;
    const struct arch *arch = c->arch;
    const struct raw_config *raw = k->raw;
    /* Whether a list of types may name sliding layers at all. */
    bool can_slide = arch->slide != SLIDE_NONE || arch->slide_option;
    if (raw->unknown_type.s)
        return err_set(k->err, TINKER_EINVAL, "%s: layers of type \"%.*s\" are not supported",
                       k->path, text_length(raw->unknown_type), raw->unknown_type.s);
    if (raw->n_types && raw->n_types != c->layers)
        return err_set(k->err, TINKER_EINVAL, "%s: %zu layer_types for %zu layers", k->path,
                       raw->n_types, c->layers);
    /* A list that is too short would leave the last layers with a default that nobody chose. */
    if (raw->n_no_rope && raw->n_no_rope != c->layers)
        return err_set(k->err, TINKER_EINVAL, "%s: %zu no_rope_layers for %zu layers", k->path,
                       raw->n_no_rope, c->layers);
    /* It is a divisor below. */
    if (raw->rope_interval < 1)
        return err_set(k->err, TINKER_EINVAL, "%s: no_rope_layer_interval is %lld", k->path,
                       (long long)raw->rope_interval);
    /* Granite's class makes layers without a type Mamba layers */
    if (arch->shared_inner && !raw->n_types)
        return err_set(k->err, TINKER_EINVAL, "%s: Mamba2 layers are not supported", k->path);
    /* A negative number means that the member is missing; 0 is null, no window. */
    int64_t window = raw->window < 0 ? arch->window : raw->window;
    /* These classes ignore sliding_window unless use_sliding_window is true. */
    if (arch->slide_option && !raw->sliding)
        window = 0;
    /* Granite 4: "nope" takes the rope from all layers. */
    bool no_rope = arch->rope_option && !json_str_is(raw->position, "rope");
    for (size_t i = 0; i < c->layers; i++) {
        enum raw_layer type = raw->n_types ? (enum raw_layer)raw->types[i] : default_type(k, i);
        if (type == RAW_MAMBA)
            return err_set(k->err, TINKER_EINVAL, "%s: Mamba2 layers are not supported", k->path);
        if ((type == RAW_LINEAR && !arch->delta) || (type == RAW_SLIDING && !can_slide))
            return err_set(k->err, TINKER_EINVAL,
                           "%s: layer %zu is of a type that %s does not have", k->path, i,
                           arch->hf_class);
        bool skips = arch->rope_skips &&
                     (raw->n_no_rope ? raw->no_rope[i] : (i + 1) % (size_t)raw->rope_interval == 0);
        /* Without a window a sliding layer sees everything, so it is none. */
        c->flags[i] = (unsigned char)((type == RAW_SLIDING && window ? LAYER_SLIDES : 0) |
                                      (skips || no_rope ? LAYER_NO_ROPE : 0) |
                                      (type == RAW_LINEAR ? LAYER_DELTA : 0));
        if (c->flags[i] & LAYER_SLIDES)
            c->window = (size_t)window;
    }
    /* A model of delta layers alone has no positions and no KV cache, which the generator relies
     * on. */
    if (model_attention_layers(c, c->layers) == 0)
        return err_set(k->err, TINKER_EINVAL, "%s: no layer has attention", k->path);
    return TINKER_OK;
}

/* ---- rope ------------------------------------------------------------------------------------ */

static bool is_positive(double v)
{
    return isfinite(v) && v > 0;
}

/* Files without scaling have no type; a factor without a type is ambiguous. */
static tinker_status check_rope_type(const struct check *k, const struct raw_rope *raw,
                                     struct rope_config *out)
{
    const struct arch *arch = k->c->arch;
    char known[96] = "";
    /* Phi-3's older files write "su", and some "yarn", for what became longrope. */
    bool old = arch->old_yarn && (json_str_is(raw->name, "su") || json_str_is(raw->name, "yarn"));
    if (old) {
        out->type = ROPE_LONGROPE;
        return TINKER_OK;
    }
    /* the types of this architecture, which a refusal lists */
    for (int i = 0; i < ROPE_TYPES; i++) {
        if (!(arch->ropes & 1u << i))
            continue;
        const char *name = rope_type_name((enum rope_type)i);
        if (json_str_is(raw->name, name)) {
            out->type = (enum rope_type)i;
            return TINKER_OK;
        }
        size_t at = strlen(known);
        snprintf(known + at, sizeof(known) - at, "%s%s", at ? ", " : "", name);
    }
    if (raw->name.s)
        return err_set(k->err, TINKER_EINVAL, "%s: rope type \"%.*s\" is not supported (%s are)",
                       k->path, text_length(raw->name), raw->name.s, known);
    /* Old files with only a factor were read as linear by some versions and ignored by others. */
    if (raw->c.factor != 0)
        return err_set(k->err, TINKER_EINVAL, "%s: a rope factor, but no rope_type", k->path);
    out->type = ROPE_DEFAULT;
    return TINKER_OK;
}

/* longrope's lists: a divisor for every pair that turns. */
static tinker_status check_factors(const struct check *k)
{
    /* The half of a head that turns, not of the whole head (Phi-4-mini turns three quarters). */
    struct model_config *c = k->c;
    const struct raw_config *raw = k->raw;
    size_t half = c->rotary / 2;
    if (raw->n_short != half || raw->n_long != half)
        return err_set(k->err, TINKER_EINVAL,
                       "%s: short_factor and long_factor have %zu and %zu numbers, must have %zu",
                       k->path, raw->n_short, raw->n_long, half);
    /* A divisor of 0 would make a frequency infinite. */
    for (size_t i = 0; i < half; i++) {
        if (!is_positive((double)raw->short_factor[i]) || !is_positive((double)raw->long_factor[i]))
            return err_set(k->err, TINKER_EINVAL, "%s: rope factors must be positive", k->path);
        c->short_factor[i] = raw->short_factor[i];
        c->long_factor[i] = raw->long_factor[i];
    }
    return TINKER_OK;
}

/* The settings that scaling frequencies needs, by type. */
static tinker_status check_scaling(const struct check *k, struct rope_config *r)
{
    struct model_config *c = k->c;
    bool stretched = r->type == ROPE_YARN || r->type == ROPE_LONGROPE;
    /* Phi's original context stands beside the rope, and is 4096 by default */
    if (c->arch->old_yarn && stretched && k->raw->original_context >= 0)
        r->original_context = (double)k->raw->original_context;
    else if (c->arch->old_yarn && stretched && r->original_context == 0)
        r->original_context = 4096;
    /* original_max_position_embeddings: the context of pre-training, before it was stretched. */
    bool given = r->original_context != 0;
    if (stretched && !given)
        r->original_context = (double)c->context;
    /* transformers takes the ratio of the two contexts when no factor is given. */
    if (stretched && r->factor == 0 && r->original_context > 0)
        r->factor = (double)c->context / r->original_context;
    if (!is_positive(r->factor))
        return err_set(k->err, TINKER_EINVAL, "%s: rope factor must be positive", k->path);
    if (r->type == ROPE_LINEAR || r->type == ROPE_DYNAMIC)
        return TINKER_OK;
    /* Qwen's files state the context that yarn starts from and the factor by which it grows, and
     * leave max_position_embeddings as it was; others leave out the former. */
    double longer = r->original_context * r->factor;
    if (r->type == ROPE_YARN && given && longer > (double)c->context && longer <= CONTEXT_LIMIT)
        c->context = (int64_t)longer;
    /* yarn computes the logarithm of it, longrope compares positions with it. */
    if (!is_positive(r->original_context))
        return err_set(k->err, TINKER_EINVAL,
                       "%s: original_max_position_embeddings must be positive", k->path);
    /* the interpolation divides by their difference */
    if (r->type == ROPE_LLAMA3 &&
        (!is_positive(r->low_freq_factor) || !(r->high_freq_factor > r->low_freq_factor)))
        return err_set(k->err, TINKER_EINVAL, "%s: low_freq_factor and high_freq_factor are wrong",
                       k->path);
    return r->type == ROPE_LONGROPE ? check_factors(k) : TINKER_OK;
}

/* One rope: from the file's description, with this theta where that has none. */
static tinker_status check_one_rope(const struct check *k, const struct raw_rope *raw, double theta,
                                    struct rope_config *out)
{
    *out = raw->c;
    if (isnan(out->theta))
        out->theta = theta;
    if (!is_positive(out->theta))
        return err_set(k->err, TINKER_EINVAL, "%s: rope_theta must be positive", k->path);
    /* The defaults of the yarn paper, which all files that leave them out mean. */
    out->beta_fast = out->beta_fast != 0 ? out->beta_fast : 32;
    out->beta_slow = out->beta_slow != 0 ? out->beta_slow : 1;
    /* The type first: which settings are needed depends on it. */
    tinker_status status = check_rope_type(k, raw, out);
    if (status == TINKER_OK && out->type != ROPE_DEFAULT)
        status = check_scaling(k, out);
    return status;
}

/* How much of a head turns. */
static tinker_status check_rotary(const struct check *k, const struct raw_rope *rope)
{
    struct model_config *c = k->c;
    /* Beside the rope, inside it (transformers 5), or by the architecture. */
    double part = !isnan(rope->rotary)     ? rope->rotary
                  : !isnan(k->raw->rotary) ? k->raw->rotary
                  : c->arch->rotary != 0   ? c->arch->rotary
                                           : 1;
    if (!(part > 0 && part <= 1))
        return err_set(k->err, TINKER_EINVAL, "%s: partial_rotary_factor is %g, must be up to 1",
                       k->path, part);
    /* Rounded down as in Python's int(). */
    c->rotary = (size_t)((double)c->head_dim * part);
    if (c->rotary < 2 || c->rotary % 2)
        return err_set(k->err, TINKER_EINVAL,
                       "%s: partial_rotary_factor %g turns %zu of %zu components, which are not "
                       "pairs",
                       k->path, part, c->rotary, c->head_dim);
    return TINKER_OK;
}

/* rope_scaling wins over rope_parameters; theta inside them over the rope_theta beside them. */
static tinker_status check_rope(const struct check *k)
{
    struct model_config *c = k->c;
    const struct arch *arch = c->arch;
    /* transformers 4 writes rope_scaling, version 5 rope_parameters; a file may have both. */
    const struct raw_ropes *from =
        k->raw->scaling.all.given ? &k->raw->scaling : &k->raw->parameters;
    /* A rope for a type of layer that we do not know must not be dropped silently. */
    if (from->other.s)
        return err_set(k->err, TINKER_EINVAL, "%s: a rope of %.*s layers is not supported", k->path,
                       text_length(from->other), from->other.s);
    if (from->sliding.given && !arch->rope_local)
        return err_set(k->err, TINKER_EINVAL,
                       "%s: a rope of sliding_attention layers is not supported", k->path);
    /* Version 5 may give each type of layer its own settings. */
    const struct raw_rope *all = from->full.given ? &from->full : &from->all;
    double theta = !isnan(k->raw->theta) ? k->raw->theta : arch->theta != 0 ? arch->theta : 10000;
    tinker_status status = check_rotary(k, all);
    if (status == TINKER_OK)
        status = check_one_rope(k, all, theta, &c->rope);
    if (status != TINKER_OK)
        return status;
    /* Ministral 3: queries grow with the logarithm of the position beyond the original context. */
    c->temperature = arch->temperature && !isnan(all->beta) ? all->beta : 0;
    if (!isfinite(c->temperature) ||
        (c->temperature != 0 && !is_positive(c->rope.original_context)))
        return err_set(k->err, TINKER_EINVAL, "%s: llama_4_scaling_beta is wrong", k->path);
    if (!arch->rope_local)
        return TINKER_OK;
    /* never scaled, unless the file describes it by itself.  Gemma 3's sliding layers keep the base
     * of pre-training. */
    double local = !isnan(k->raw->local_theta) ? k->raw->local_theta : arch->local_theta;
    return check_one_rope(k, &from->sliding, local, &c->local_rope);
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Whether a model has this bias, by the rule of its architecture.  CONFIG_OR_TRUE is GPT-OSS, whose
 * default is true. */
static bool decide_bias(enum arch_bias rule, bool configured, bool given)
{
    return rule == ARCH_BIAS_ALWAYS || (rule == ARCH_BIAS_CONFIG && configured) ||
           (rule == ARCH_BIAS_CONFIG_OR_TRUE && (configured || !given));
}

/* The activation that the file names must be the one of the architecture. */
static tinker_status check_activation(const struct check *k)
{
    static const char *const names[ACTIVATIONS] = {
        [ACTIVATION_SILU] = "silu",
        [ACTIVATION_GELU] = "gelu_pytorch_tanh",
        /* GPT-OSS names silu, and computes its own clamped form of it. */
        [ACTIVATION_CLAMPED] = "silu",
    };
    struct model_config *c = k->c;
    c->activation = c->arch->activation;
    /* Gemma's hidden_act is an old key that its class ignores */
    bool gelu = c->activation == ACTIVATION_GELU;
    struct json_str act = gelu ? k->raw->hidden_activation : k->raw->act;
    if (act.s && !json_str_is(act, names[c->activation]))
        return err_set(k->err, TINKER_EINVAL, "%s: %s is not %s", k->path,
                       gelu ? "hidden_activation" : "hidden_act", names[c->activation]);
    c->swiglu_limit = (float)k->raw->swiglu_limit;
    c->swiglu_alpha = (float)k->raw->swiglu_alpha;
    if (c->activation == ACTIVATION_CLAMPED &&
        (!is_positive(k->raw->swiglu_limit) || !is_positive(k->raw->swiglu_alpha)))
        return err_set(k->err, TINKER_EINVAL, "%s: swiglu_limit and swiglu_alpha must be positive",
                       k->path);
    return TINKER_OK;
}

/* A cap of the file, or its default; null: none.  A default that is 0 has no cap either: the
 * kernels test for 0. */
static float decide_cap(bool has, double given, double otherwise)
{
    return has ? (float)(isnan(given) ? otherwise : given) : 0;
}

/* Factors of embedding, branches, scores and logits. */
static tinker_status check_factors_of_network(const struct check *k)
{
    struct model_config *c = k->c;
    const struct arch *arch = c->arch;
    const struct raw_config *raw = k->raw;
    /* 1 / sqrt(d), as in the paper, unless the model says otherwise. */
    double scale = 1 / sqrt((double)c->head_dim);
    if (arch->query_scalar)
        /* Gemma: the scale is not that of the head's size. */
        scale = 1 / sqrt(raw->query_scalar);
    else if (arch->multipliers)
        scale = raw->attention_scale;
    c->attention_scale = (float)scale;
    c->embed_scale = arch->embed_root    ? (float)sqrt((double)c->hidden)
                     : arch->multipliers ? (float)raw->embed_scale
                                         : 1;
    c->residual_scale = arch->multipliers ? (float)raw->residual_scale : 1;
    c->logit_divisor = arch->multipliers ? (float)raw->logit_divisor : 1;
    /* Gemma 3 has the setting but does not look at it: a value would be misread */
    if (!arch->attn_cap && raw->attn_cap > 0)
        return err_set(k->err, TINKER_EINVAL, "%s: attn_logit_softcapping is not supported",
                       k->path);
    /* 50 and 30 are the defaults of Gemma 2's class. */
    c->attn_cap = decide_cap(arch->attn_cap, raw->attn_cap, 50);
    c->logit_cap = decide_cap(arch->logit_cap, raw->logit_cap, arch->attn_cap ? 30 : 0);
    const float factors[] = { c->attention_scale, c->embed_scale, c->residual_scale,
                              c->logit_divisor };
    /* A factor of 0 would make a model silent, infinity makes it NaN: both are damaged files. */
    bool right =
        isfinite(c->attn_cap) && isfinite(c->logit_cap) && c->attn_cap >= 0 && c->logit_cap >= 0;
    for (size_t i = 0; i < ARRAY_LEN(factors); i++)
        right = right && isfinite(factors[i]) && factors[i] != 0;
    return right ? TINKER_OK
                 : err_set(k->err, TINKER_EINVAL, "%s: a multiplier or cap is wrong", k->path);
}

/* What we would compute wrongly is refused; then what follows from the architecture. */
static tinker_status check_rest(const struct check *k)
{
    struct model_config *c = k->c;
    const struct raw_config *raw = k->raw;
    const struct arch *arch = c->arch;
    /* one description for all layers */
    if (raw->own_layers)
        return err_set(k->err, TINKER_EINVAL, "%s: per_layer_config is not supported", k->path);
    if (raw->bidirectional)
        return err_set(k->err, TINKER_EINVAL, "%s: use_bidirectional_attention is not supported",
                       k->path);
    /* eps 0 is allowed: a row of zeros then gives NaN, as it does in transformers. */
    if (!isfinite(raw->eps) || raw->eps < 0)
        return err_set(k->err, TINKER_EINVAL, "%s: rms_norm_eps is wrong", k->path);
    tinker_status status = check_activation(k);
    if (status == TINKER_OK)
        status = check_factors_of_network(k);
    if (status != TINKER_OK)
        return status;
    /* Computed as float by every kernel. */
    c->norm_eps = (float)raw->eps;
    /* the setting of a whole multimodal model wins over that of its text part.  Untied where nobody
     * says: a head that is not in the file is then reported as missing. */
    c->tied = raw->has_tied ? raw->tied : raw->has_text_tied ? raw->text_tied : arch->tied;
    config_apply_arch(c);
    c->qkv_bias = decide_bias(arch->qkv_bias, raw->attention_bias, raw->has_attention_bias);
    c->o_bias = decide_bias(arch->o_bias, raw->attention_bias, raw->has_attention_bias);
    c->mlp_bias = decide_bias(arch->mlp_bias, raw->mlp_bias, true);
    /* a generator compares sampled tokens with them: one that cannot occur is a wrong file */
    for (size_t i = 0; i < c->n_eos; i++)
        if ((size_t)c->eos[i] >= c->vocab)
            return err_set(k->err, TINKER_EINVAL, "%s: eos_token_id %d is beyond the vocabulary",
                           k->path, (int)c->eos[i]);
    return TINKER_OK;
}

/* Also for init_model.c, which makes models without a file. */
void config_apply_arch(struct model_config *c)
{
    const struct arch *arch = c->arch;
    c->qk_norm = arch->qk_norm;
    c->plus_one = arch->plus_one;
    c->pre_norm = arch->names->norm1 != NULL;
    c->post_norm = arch->names->post_norm1 != NULL;
    c->sinks = arch->sinks;
    c->gate = arch->gate;
}

/* The row of the table, also for the text part of a multimodal model. */
static tinker_status find_arch(const struct check *k)
{
    struct json_str name = k->raw->architecture, type = k->raw->text_type;
    char known[288];
    if (!name.s)
        name = (struct json_str){ "(none)", 6 };
    /* The class of the text model; else the multimodal class around it, whose text part we
     * compute. */
    k->c->arch = arch_by_class(name.s, name.n);
    if (!k->c->arch && k->raw->has_text) {
        k->c->arch = arch_by_wrapper(name.s, name.n, type.s, type.n);
        /* Names of such a file have "language_model" in them, which PEFT repeats. */
        k->c->wrapped = k->c->arch != NULL;
    }
    if (k->c->arch)
        return TINKER_OK;
    arch_list_classes(known, sizeof(known));
    return err_set(k->err, TINKER_EINVAL, "%s: architecture %.*s is not supported (%s are)",
                   k->path, text_length(name), name.s, known);
}

/* All fields are read: checks them in an order in which each may rely on those before. */
static tinker_status check_config(const struct check *k)
{
    tinker_status (*const checks[])(const struct check *k) = {
        check_sizes,  check_experts, check_delta, check_parameters,
        check_layers, check_rope, /* after the sizes: yarn may stretch the context */
        check_rest,
    };
    tinker_status status = find_arch(k);
    if (status == TINKER_OK)
        /* Before the checks, which no longer know what was missing. */
        fill_defaults(k->raw, k->c->arch);
    for (size_t i = 0; status == TINKER_OK && i < ARRAY_LEN(checks); i++)
        status = checks[i](k);
    return status;
}

tinker_status config_parse(struct model_config *c, const char *path, const char *text, size_t n,
                           tinker_error *err)
{
    struct arena arena;
    /* SIZE_MAX: only the reader's texts, which the length of the file bounds. */
    struct json_reader r;
    struct raw_config raw;
    arena_init(&arena, SIZE_MAX);
    json_reader_init(&r, text, n, &arena);
    tinker_status status;
    /* raw points into the text; it is used no longer than the text lives. */
    if (config_read_raw(&r, &raw, c)) {
        struct check check = { .c = c, .raw = &raw, .path = path, .err = err };
        status = check_config(&check);
    } else {
        status = err_set(err, TINKER_EINVAL, "%s: %s", path, json_error(&r));
    }
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
            config_read_eos(&r, c);
        else
            json_skip(&r);
    }
    if (!json_end(&r))
        status = err_set(err, TINKER_EINVAL, "%s: %s", path, json_error(&r));
    /* As in check_rest(): a file of another model. */
    for (size_t i = 0; status == TINKER_OK && i < c->n_eos; i++)
        if ((size_t)c->eos[i] >= c->vocab)
            status = err_set(err, TINKER_EINVAL, "%s: eos_token_id %d is beyond the vocabulary",
                             path, (int)c->eos[i]);
    arena_clear(&arena);
    return status;
}
