/* make-tiny-model.c - write a Hugging Face model directory with random weights.
 *
 *   make-tiny-model [--arch MODEL_TYPE] [--seed N] [--vocab V] [--hidden H]
 *       [--layers L] [--heads N] [--kv-heads N] [--head-dim N] [--intermediate N]
 *       [--context N] [--dtype f32|bf16|f16] [--shards N] [--tie 0|1] [--rope TYPE]
 *       [--rope-theta X] [--embed-std X] [--noise X] [--bias 0|1] [--experts N]
 *       [--experts-used N] [--expert-size N] [--renormalize 0|1] [--dense-layer N]
 *       [--shared-size N] [--window N] [--rotary N] [--attention-scale X] [--layer-step N]
 *       [--delta-key-heads N] [--delta-value-heads N] [--delta-key-dim N] [--delta-value-dim N] DIR
 *
 * With --layer-step N every N-th layer is the other kind: with attention, without window, without rope.
 *
 * MODEL_TYPE is any of src/engine/model/arch.c, e.g. qwen3, qwen3_moe, gemma3_text, qwen3_5_text.
 *
 * The tokenizer is byte-level without merges, so everything works offline. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/layers/rope.h"
#include "engine/model/init_model.h"

static int usage(const char *why, const char *what)
{
    fprintf(stderr, "make-tiny-model: %s%s\n", why, what);
    fprintf(stderr,
            "usage: make-tiny-model [--arch qwen3|gemma3_text|...] [--OPTION VALUE ...] DIR\n");
    return 2;
}

static bool number(const char *s, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(s, &end);
    return *s && !*end && !errno;
}

static bool set_rope(struct rope_config *r, const char *name)
{
    for (int i = 0; i < ROPE_TYPES; i++) {
        if (strcmp(name, rope_type_name((enum rope_type)i)) == 0) {
            r->type = (enum rope_type)i;
            r->factor = 4;
            r->low_freq_factor = 1;
            r->high_freq_factor = 4;
            r->original_context = 64;
            return true;
        }
    }
    return false;
}

static bool set_dtype(struct init_model *o, const char *name)
{
    static const char *const names[] = { "f32", "f16", "bf16" };
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) == 0) {
            o->dtype = (enum source_dtype)i;
            return true;
        }
    }
    return false;
}

static void set_layer_step(struct model_config *c, size_t step)
{
    int most = c->arch->delta ? LAYER_DELTA : c->window ? LAYER_SLIDES : 0;
    int last = c->arch->rope_skips ? LAYER_NO_ROPE : 0;
    for (size_t i = 0; i < MODEL_MAX_LAYERS; i++)
        c->flags[i] = (unsigned char)((i + 1) % step ? most : last);
}

static bool set_number(struct init_model *o, const char *name, double v)
{
    struct model_config *c = &o->config;
    const struct {
        const char *name;
        size_t *out;
    } sizes[] = {
        { "vocab", &c->vocab },
        { "hidden", &c->hidden },
        { "layers", &c->layers },
        { "heads", &c->heads },
        { "kv-heads", &c->kv_heads },
        { "head-dim", &c->head_dim },
        { "intermediate", &c->intermediate },
        { "shards", &o->shards },
        { "experts", &c->experts },
        { "experts-used", &c->experts_used },
        { "expert-size", &c->expert_size },
        { "sparse-step", &c->sparse_step },
        { "shared-size", &c->shared_size },
        { "window", &c->window },
        { "rotary", &c->rotary },
        { "delta-key-heads", &c->delta_k_heads },
        { "delta-value-heads", &c->delta_v_heads },
        { "delta-key-dim", &c->delta_k_dim },
        { "delta-value-dim", &c->delta_v_dim },
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (strcmp(name, sizes[i].name) == 0) {
            *sizes[i].out = v >= 1 && v < 1e9 ? (size_t)v : 0;
            return *sizes[i].out > 0;
        }
    }
    if (strcmp(name, "seed") == 0)
        o->seed = (uint64_t)v;
    else if (strcmp(name, "context") == 0)
        c->context = (int64_t)v;
    else if (strcmp(name, "tie") == 0)
        c->tied = v != 0;
    else if (strcmp(name, "bias") == 0)
        c->qkv_bias = c->o_bias = c->mlp_bias = v != 0;
    else if (strcmp(name, "renormalize") == 0)
        c->renormalize = v != 0;
    else if (strcmp(name, "dense-layer") == 0 && v >= 0 && v < 4096)
        c->dense[c->n_dense++ % MODEL_MAX_DENSE] = (uint16_t)v;
    else if (strcmp(name, "attention-scale") == 0)
        c->attention_scale = (float)v;
    else if (strcmp(name, "layer-step") == 0 && v >= 1)
        set_layer_step(c, (size_t)v);
    else if (strcmp(name, "rope-theta") == 0)
        c->rope.theta = v;
    else if (strcmp(name, "embed-std") == 0)
        o->embed_std = v;
    else if (strcmp(name, "noise") == 0)
        o->noise = v;
    else
        return false;
    return true;
}

static bool set_option(struct init_model *o, const char *name, const char *value)
{
    double v;
    if (strcmp(name, "arch") == 0)
        return init_model_arch(o, value);
    if (strcmp(name, "rope") == 0)
        return set_rope(&o->config.rope, value);
    if (strcmp(name, "dtype") == 0)
        return set_dtype(o, value);
    return number(value, &v) && set_number(o, name, v);
}

int main(int argc, char **argv)
{
    struct init_model o;
    tinker_error err = { 0 };
    init_model_defaults(&o);
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2)
        if (!set_option(&o, argv[i] + 2, argv[i + 1]))
            return usage("unknown option or bad value: ", argv[i]);
    if (i + 1 != argc || argv[i][0] == '-')
        return usage("one directory is needed", "");
    if (o.config.heads % o.config.kv_heads || o.config.head_dim % 2)
        return usage("heads must be a multiple of kv-heads, head-dim even", "");
    if (init_model_write(&o, argv[i], &err) != TINKER_OK) {
        fprintf(stderr, "make-tiny-model: %s\n", err.message);
        return 1;
    }
    return 0;
}
