/* gguf_metadata.c - see gguf_metadata.h.
 *
 * The mirror of gguf_config.c: what a reader takes from the name of the architecture is not written,
 * and a model whose settings differ from that is refused, because it would be computed wrongly. */
#include "engine/gguf/gguf_metadata.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "engine/gguf/gguf_tokenizer.h"

struct describing {
    struct gguf_writer *w;
    const struct model *m;
    const struct model_config *c;
    const struct gguf_family *family;
    tinker_error *err;
};

static void put_size(const struct describing *d, const char *key, uint64_t value)
{
    char full[96];
    snprintf(full, sizeof(full), "%s.%s", d->family->arch, key);
    gguf_put_u32(d->w, full, (uint32_t)value);
}

static void put_number(const struct describing *d, const char *key, double value)
{
    char full[96];
    snprintf(full, sizeof(full), "%s.%s", d->family->arch, key);
    gguf_put_f32(d->w, full, (float)value);
}

static void put_arch_string(const struct describing *d, const char *key, const char *s)
{
    char full[96];
    snprintf(full, sizeof(full), "%s.%s", d->family->arch, key);
    gguf_put_string(d->w, full, s, strlen(s));
}

static tinker_status refuse_setting(const struct describing *d, const char *what)
{
    return err_set(d->err, TINKER_EINVAL,
                   "GGUF files of %s cannot say %s; export the merged model in Hugging Face format",
                   d->family->arch, what);
}

/* Settings come from float32 in files and from decimal text in config.json. */
static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

/* The p for which layers p - 1, 2p - 1, ... lack the flag and all others have it; one more than the
 * layers: all have it; 0: there is none. */
static size_t find_period(const struct model_config *c, enum layer_flag flag)
{
    for (size_t p = 1; p <= c->layers + 1; p++) {
        size_t i = 0;
        while (i < c->layers && model_layer_is(c, i, flag) == ((i + 1) % p != 0))
            i++;
        if (i == c->layers)
            return p;
    }
    return 0;
}

static tinker_status put_window_keys(const struct describing *d)
{
    const struct model_config *c = d->c;
    /* How llama.cpp writes a window: its size, and a period where the family's own does not fit. */
    size_t period = find_period(c, LAYER_SLIDES);
    if (!c->window) {
        if (strcmp(d->family->arch, "gemma2") == 0) /* without the key it would be 4096 */
            put_size(d, "attention.sliding_window", (uint64_t)c->context);
        return TINKER_OK;
    }
    /* A family without a pattern has one kind of layer; a window as long as the context changes
     * nothing. */
    if (!d->family->period && (c->arch->slide != SLIDE_ALL || period <= c->layers))
        return (int64_t)c->window >= c->context
                   ? TINKER_OK
                   : refuse_setting(d, "which layers see only a window");
    if (!period)
        return refuse_setting(d, "which layers see only a window");
    put_size(d, "attention.sliding_window", c->window);
    /* Not written where it is the family's own: readers of older versions do not know the key. */
    if (d->family->period && period != d->family->period)
        put_size(d, "attention.sliding_window_pattern", period);
    return TINKER_OK;
}

static tinker_status put_yarn(const struct describing *d)
{
    const struct rope_config *r = &d->c->rope;
    /* The factor by which yarn scales the attention, in llama.cpp: always this one, divided by the
     * multiplier's. */
    double scale = 0.1 * log(r->factor) + 1;
    bool both = r->mscale != 0 && r->mscale_all_dim != 0;
    if (r->keep_fraction != d->family->keep_fraction)
        return refuse_setting(d, "yarn's truncate");
    put_arch_string(d, "rope.scaling.type", "yarn");
    put_number(d, "rope.scaling.factor", r->factor);
    put_size(d, "rope.scaling.original_context_length", (uint64_t)r->original_context);
    put_number(d, "rope.scaling.yarn_beta_fast", r->beta_fast);
    put_number(d, "rope.scaling.yarn_beta_slow", r->beta_slow);
    if (d->c->arch->temperature && both && r->mscale == 1) {
        put_number(d, "rope.scaling.yarn_log_multiplier", r->mscale_all_dim);
        scale /= 0.1 * r->mscale_all_dim * log(r->factor) + 1;
    }
    /* A model may state another one (attention_factor), which GGUF has no key for. */
    if (!is_near((double)d->m->ropes[0].scale, scale))
        return refuse_setting(d, "yarn's attention factor");
    return TINKER_OK;
}

static tinker_status put_rope_keys(const struct describing *d)
{
    const struct model_config *c = d->c;
    put_size(d, "rope.dimension_count", c->rotary);
    put_number(d, "rope.freq_base", c->rope.theta);
    /* A second rope, of the layers with a window. */
    if (c->local_rope.theta != 0) {
        if (c->local_rope.type != ROPE_DEFAULT)
            return refuse_setting(d, "a scaled rope of layers with a window");
        if (d->family->local_theta != 0)
            put_number(d, "rope.freq_base_swa", c->local_rope.theta);
        else if (c->local_rope.theta != c->rope.theta)
            return refuse_setting(d, "a rope_theta of layers with a window");
    }
    if (c->temperature != 0)
        put_number(d, "attention.temperature_scale", c->temperature);
    /* every fourth layer of SmolLM3 has none */
    for (size_t i = 0; i < c->layers; i++)
        /* Readers of this family have the rule built in, so any other choice of layers cannot be
         * said. */
        if (!model_layer_is(c, i, LAYER_NO_ROPE) == (c->arch->rope_skips && (i + 1) % 4 == 0))
            return refuse_setting(d, "which layers have no positions");
    switch (c->rope.type) {
    case ROPE_LINEAR:
        put_arch_string(d, "rope.scaling.type", "linear");
        put_number(d, "rope.scaling.factor", c->rope.factor);
        return TINKER_OK;
    case ROPE_YARN:
        return put_yarn(d);
    case ROPE_LONGROPE:
        put_size(d, "rope.scaling.original_context_length", (uint64_t)c->rope.original_context);
        put_number(d, "rope.scaling.attn_factor", (double)d->m->ropes[0].scale);
        return TINKER_OK;
    default: /* the divisors of Llama 3's frequencies are a tensor */
        return TINKER_OK;
    }
}

/* Factors and caps. */
static tinker_status put_multipliers(const struct describing *d)
{
    const struct model_config *c = d->c;
    const struct arch *arch = c->arch;
    bool large = d->family->large && c->layers == d->family->large;
    /* See put_implied() in gguf_config.c: the scale of scores is implied, not written. */
    double scalar = large ? (double)(c->hidden / c->heads) : (double)c->head_dim;
    if (arch->multipliers) {
        put_number(d, "embedding_scale", (double)c->embed_scale);
        put_number(d, "residual_scale", (double)c->residual_scale);
        put_number(d, "attention.scale", (double)c->attention_scale);
        put_number(d, "logit_scale", (double)c->logit_divisor);
    } else if (!is_near((double)c->attention_scale, 1 / sqrt(scalar))) {
        return refuse_setting(d, "query_pre_attn_scalar");
    }
    /* A reader applies its default of 50 and 30 where the keys are missing. */
    if (arch->attn_cap && c->attn_cap == 0)
        return refuse_setting(d, "that attention has no cap");
    if (c->attn_cap > 0)
        put_number(d, "attn_logit_softcapping", (double)c->attn_cap);
    if (c->logit_cap > 0)
        put_number(d, "final_logit_softcapping", (double)c->logit_cap);
    else if (arch->attn_cap)
        return refuse_setting(d, "that logits have no cap");
    /* Readers have these two numbers of GPT-OSS built in. */
    if (c->activation == ACTIVATION_CLAMPED &&
        (c->swiglu_limit != 7 || !is_near((double)c->swiglu_alpha, 1.702)))
        return refuse_setting(d, "swiglu_limit and swiglu_alpha");
    return TINKER_OK;
}

/* The gated delta rule.  The sections of the rope are those of pictures: a text has one position in
 * all of them. */
static tinker_status put_delta(const struct describing *d)
{
    const struct model_config *c = d->c;
    char key[96];
    size_t period = find_period(c, LAYER_DELTA), half = c->rotary / 2, third = half / 3;
    size_t first = (half - third + 1) / 2;
    if (!period || period > c->layers)
        return refuse_setting(d, "which layers have attention");
    put_size(d, "full_attention_interval", period);
    put_size(d, "ssm.conv_kernel", c->delta_conv);
    put_size(d, "ssm.state_size", c->delta_k_dim);
    put_size(d, "ssm.group_count", c->delta_k_heads);
    put_size(d, "ssm.time_step_rank", c->delta_v_heads);
    put_size(d, "ssm.inner_size", c->delta_v_heads * c->delta_v_dim);
    snprintf(key, sizeof(key), "%s.rope.dimension_sections", d->family->arch);
    gguf_put_array(d->w, key, GGUF_I32, 4);
    gguf_add_i32(d->w, (int32_t)first);
    gguf_add_i32(d->w, (int32_t)(half - third - first));
    gguf_add_i32(d->w, (int32_t)third);
    gguf_add_i32(d->w, 0);
    return TINKER_OK;
}

static tinker_status put_experts(const struct describing *d)
{
    const struct model_config *c = d->c;
    /* A reader takes every layer of such a family for a sparse one. */
    if (model_sparse_layers(c) != c->layers)
        return refuse_setting(d, "which layers are dense");
    put_size(d, "expert_count", c->experts);
    put_size(d, "expert_used_count", c->experts_used);
    put_size(d, "expert_feed_forward_length", c->expert_size);
    if (c->shared)
        put_size(d, "expert_shared_feed_forward_length", c->shared_size);
    return TINKER_OK;
}

/* What llama.cpp needs to build the network. */
static tinker_status put_network(const struct describing *d)
{
    const struct model_config *c = d->c;
    put_size(d, "vocab_size", c->vocab);
    put_size(d, "context_length", (uint64_t)c->context);
    put_size(d, "embedding_length", c->hidden);
    put_size(d, "block_count", c->layers);
    /* Of Mixtral and GPT-OSS the key means the size of an expert. */
    put_size(d, "feed_forward_length", c->arch->expert_inner ? c->expert_size : c->intermediate);
    put_size(d, "attention.head_count", c->heads);
    put_size(d, "attention.head_count_kv", c->kv_heads);
    put_size(d, "attention.key_length", c->head_dim);
    /* llama.cpp has two keys for heads of keys and values; ours are always equal. */
    put_size(d, "attention.value_length", c->head_dim);
    put_number(d, "attention.layer_norm_rms_epsilon", (double)c->norm_eps);
    tinker_status status = put_rope_keys(d);
    if (status == TINKER_OK)
        status = put_window_keys(d);
    if (status == TINKER_OK)
        status = put_multipliers(d);
    if (status == TINKER_OK && c->arch->delta)
        status = put_delta(d);
    if (status == TINKER_OK && c->experts)
        status = put_experts(d);
    return status;
}

/* general.file_type: what most tensors are, for people.  The numbers are those of enum llama_ftype;
 * readers show them and decide nothing by them. */
static uint32_t file_type(enum source_dtype dtype)
{
    switch (dtype) {
    case SOURCE_F32:
        return 0;
    case SOURCE_BF16:
        return 32;
    case SOURCE_Q4_0:
        return 2;
    case SOURCE_Q8_0:
        return 7;
    case SOURCE_Q4_K:
        return 15;
    default:
        return 1;
    }
}

void gguf_put_kind(struct gguf_writer *w, const struct gguf_family *f, const char *type,
                   enum source_dtype dtype)
{
    gguf_put_string(w, "general.architecture", f->arch, strlen(f->arch));
    gguf_put_string(w, "general.type", type, strlen(type));
    gguf_put_u32(w, "general.file_type", file_type(dtype));
    /* The current layout of quantized blocks. */
    gguf_put_u32(w, "general.quantization_version", 2);
}

tinker_status gguf_put_metadata(struct gguf_writer *w, const tinker_engine *e,
                                const struct gguf_family *f, enum source_dtype dtype,
                                tinker_error *err)
{
    struct describing d = {
        .w = w, .m = e->model, .c = &e->model->config, .family = f, .err = err
    };
    gguf_put_kind(w, f, "model", dtype);
    tinker_status status = put_network(&d);
    return status == TINKER_OK ? gguf_put_tokenizer(w, e, err) : status;
}
