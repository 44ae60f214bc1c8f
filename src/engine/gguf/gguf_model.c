/* gguf_model.c - open a GGUF model; see gguf_model.h.
 *
 * The metadata becomes the text of a config.json, which config.c then checks as any other: one place
 * knows what the engine computes. */
#include "engine/gguf/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "engine/kernels/blocks.h"
#include "json/json.h"

/* Keys after "<arch>." and members of config.json. */
static const struct {
    const char *key, *member;
    bool needed;
} sizes[] = {
    { "context_length", "max_position_embeddings", true },
    { "embedding_length", "hidden_size", true },
    { "block_count", "num_hidden_layers", true },
    { "feed_forward_length", "intermediate_size", false },
    { "attention.head_count", "num_attention_heads", true },
    { "attention.head_count_kv", "num_key_value_heads", false },
    { "attention.key_length", "head_dim", false },
    { "expert_count", "num_experts", false },
    { "expert_used_count", "num_experts_per_tok", false },
    { "expert_feed_forward_length", "moe_intermediate_size", false },
}, numbers[] = {
    { "attention.layer_norm_rms_epsilon", "rms_norm_eps", true },
    { "rope.freq_base", "rope_theta", false },
};

struct reader {
    const struct gguf *g;
    const struct gguf_family *family;
    struct json_writer w;
};

static const char *arch_key(const struct reader *r, const char *key)
{
    static _Thread_local char full[128];
    snprintf(full, sizeof(full), "%s.%s", r->family->arch, key);
    return full;
}

static tinker_status refuse_key(const struct reader *r, const char *key, const char *why,
                                tinker_error *err)
{
    return err_set(err, TINKER_EINVAL, "%s: %s.%s %s", r->g->path, r->family->arch, key, why);
}

/* A size that layers may give one by one: all must be equal.  1: found; 0: absent; -1: they differ. */
static int read_size(const struct reader *r, const char *key, int64_t *out)
{
    const struct gguf_value *v = gguf_get(r->g, arch_key(r, key));
    if (!v || !v->array)
        return v && gguf_get_int(r->g, arch_key(r, key), out);
    if (v->type == GGUF_STRING || v->n == 0)
        return -1;
    double first = gguf_number(v, 0);
    for (uint64_t i = 1; i < v->n; i++)
        if (gguf_number(v, i) != first)
            return -1;
    if (!(fabs(first) < 0x1p53))
        return -1;
    *out = (int64_t)first;
    return 1;
}

static tinker_status put_sizes(struct reader *r, tinker_error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        int64_t n;
        int found = read_size(r, sizes[i].key, &n);
        if (found < 0)
            return refuse_key(r, sizes[i].key, "differs between layers, which is not supported",
                              err);
        if (!found && sizes[i].needed)
            return refuse_key(r, sizes[i].key, "is missing", err);
        if (!found)
            continue;
        json_put_key(&r->w, sizes[i].member);
        json_put_int64(&r->w, n);
    }
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        double d;
        if (!gguf_get_double(r->g, arch_key(r, numbers[i].key), &d)) {
            if (numbers[i].needed)
                return refuse_key(r, numbers[i].key, "is missing", err);
            continue;
        }
        if (!isfinite(d))
            return refuse_key(r, numbers[i].key, "is not finite", err);
        json_put_key(&r->w, numbers[i].member);
        json_put_float(&r->w, (float)d); /* the shortest digits of the float32 that files have */
    }
    return TINKER_OK;
}

/* Llama 3 files have the divisors of the frequencies instead of the settings that make them.  All
 * such models have the same settings but for the factor, which is the largest divisor. */
static bool put_llama3_rope(struct reader *r, const struct gguf_tensor *t)
{
    const double low = 1, high = 4, original = 8192;
    double theta = 10000, factor = 1;
    const float *given = t->data;
    if (t->type != GGUF_TENSOR_F32 || t->n_dims != 1)
        return false;
    gguf_get_double(r->g, arch_key(r, "rope.freq_base"), &theta);
    for (size_t i = 0; i < t->dim[0]; i++) {
        float f;
        memcpy(&f, given + i, sizeof f);
        factor = fmax(factor, (double)f);
    }
    for (size_t i = 0; i < t->dim[0]; i++) {
        float f;
        memcpy(&f, given + i, sizeof f);
        double wave = 2 * 3.14159265358979323846 * pow(theta, (double)i / (double)t->dim[0]);
        double smooth = (original / wave - low) / (high - low);
        double want = wave < original / high  ? 1
                      : wave > original / low ? factor
                                              : 1 / ((1 - smooth) / factor + smooth);
        if (!(fabs(want - (double)f) <= 1e-3 * want))
            return false;
    }
    json_put_key(&r->w, "rope_scaling");
    json_put_begin_object(&r->w);
    json_put_key(&r->w, "rope_type");
    json_put_string(&r->w, "llama3");
    const struct {
        const char *name;
        double value;
    } settings[] = { { "factor", factor },
                     { "low_freq_factor", low },
                     { "high_freq_factor", high },
                     { "original_max_position_embeddings", original } };
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        json_put_key(&r->w, settings[i].name);
        json_put_double(&r->w, settings[i].value);
    }
    json_put_end_object(&r->w);
    return true;
}

/* linear and yarn, by the keys that the file has. */
static tinker_status put_rope(struct reader *r, tinker_error *err)
{
    static const char *const keys[][2] = {
        { "rope.scaling.factor", "factor" },
        { "rope.scaling.original_context_length", "original_max_position_embeddings" },
        { "rope.scaling.yarn_beta_fast", "beta_fast" },
        { "rope.scaling.yarn_beta_slow", "beta_slow" },
    };
    const struct gguf_tensor *factors = gguf_find(r->g, "rope_freqs.weight");
    const char *type;
    size_t n;
    int64_t rotary, head;
    if (read_size(r, "rope.dimension_count", &rotary) == 1 &&
        read_size(r, "attention.key_length", &head) == 1 && rotary != head && head > 0) {
        json_put_key(&r->w, "partial_rotary_factor");
        json_put_double(&r->w, (double)rotary / (double)head);
    }
    if (factors)
        return put_llama3_rope(r, factors)
                   ? TINKER_OK
                   : err_set(err, TINKER_EINVAL,
                             "%s: rope_freqs.weight are not the frequencies of Llama 3",
                             r->g->path);
    if (!gguf_get_string(r->g, arch_key(r, "rope.scaling.type"), &type, &n) ||
        (n == 4 && memcmp(type, "none", 4) == 0))
        return TINKER_OK;
    json_put_key(&r->w, "rope_scaling");
    json_put_begin_object(&r->w);
    json_put_key(&r->w, "rope_type");
    json_put_string_n(&r->w, type, n);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        double d;
        if (!gguf_get_double(r->g, arch_key(r, keys[i][0]), &d) || !isfinite(d))
            continue;
        json_put_key(&r->w, keys[i][1]);
        json_put_double(&r->w, d);
    }
    json_put_end_object(&r->w);
    return TINKER_OK;
}

/* End tokens: of a text, of a turn, of a message. */
static void put_ends(struct reader *r)
{
    static const char *const keys[] = { "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    int64_t id, seen[ARRAY_LEN(keys)];
    size_t n = 0;
    json_put_key(&r->w, "eos_token_id");
    json_put_begin_array(&r->w);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (!gguf_get_int(r->g, keys[i], &id))
            continue;
        bool known = false;
        for (size_t k = 0; k < n; k++)
            known |= seen[k] == id;
        if (!known) {
            seen[n++] = id;
            json_put_int64(&r->w, id);
        }
    }
    json_put_end_array(&r->w);
}

static void put_flag(struct reader *r, const char *member, bool on)
{
    json_put_key(&r->w, member);
    json_put_bool(&r->w, on);
}

static tinker_status put_config_text(struct reader *r, tinker_error *err)
{
    const struct gguf_tensor *embed = gguf_find(r->g, "token_embd.weight");
    if (!embed || embed->n_dims != 2)
        return err_set(err, TINKER_EINVAL, "%s: no matrix token_embd.weight in it", r->g->path);
    json_put_begin_object(&r->w);
    json_put_key(&r->w, "architectures");
    json_put_begin_array(&r->w);
    json_put_string(&r->w, r->family->hf_class);
    json_put_end_array(&r->w);
    json_put_key(&r->w, "model_type");
    json_put_string(&r->w, r->family->model_type);
    json_put_key(&r->w, "vocab_size");
    json_put_uint64(&r->w, embed->dim[1]);
    tinker_status status = put_sizes(r, err);
    if (status == TINKER_OK)
        status = put_rope(r, err);
    if (status != TINKER_OK)
        return status;
    bool normalize = true;
    gguf_get_bool(r->g, arch_key(r, "expert_weights_norm"), &normalize);
    json_put_key(&r->w, "hidden_act");
    json_put_string(&r->w, "silu");
    put_flag(r, "tie_word_embeddings", !gguf_find(r->g, "output.weight"));
    put_flag(r, "attention_bias", gguf_find(r->g, "blk.0.attn_q.bias") != NULL);
    put_flag(r, "mlp_bias", gguf_find(r->g, "blk.0.ffn_up.bias") != NULL);
    put_flag(r, "norm_topk_prob", normalize);
    put_ends(r);
    json_put_end_object(&r->w);
    return TINKER_OK;
}

static tinker_status choose_family(struct reader *r, tinker_error *err)
{
    const char *s;
    size_t n;
    if (gguf_get_string(r->g, "general.type", &s, &n) && n == 7 && memcmp(s, "adapter", 7) == 0)
        return err_set(err, TINKER_EINVAL, "%s: an adapter, not a model", r->g->path);
    if (!gguf_get_string(r->g, "general.architecture", &s, &n))
        return err_set(err, TINKER_EINVAL, "%s: no general.architecture in it", r->g->path);
    r->family = gguf_family_by_arch(s, n);
    if (r->family)
        return TINKER_OK;
    char known[256];
    gguf_list_families(known, sizeof(known));
    return err_set(err, TINKER_EINVAL, "%s: architecture %.*s is not supported (%s are)",
                   r->g->path, n > 60 ? 60 : (int)n, s, known);
}

/* Scales of blocks; plain numbers are the file's own affair, as in safetensors. */
static tinker_status check_scales(const struct gguf *g, tinker_error *err)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct gguf_tensor *t = g->tensors[i];
        enum source_dtype dtype;
        size_t n = (size_t)(t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]);
        if (gguf_source_dtype(t->type, &dtype) && source_block(dtype) > 1 &&
            !source_is_finite(t->data, dtype, n))
            return err_set(err, TINKER_EINVAL, "%s: tensor %s has a scale that is not finite",
                           g->path, t->name);
    }
    return TINKER_OK;
}

tinker_status gguf_model_open(struct gguf_model *m, const char *path, tinker_error *err)
{
    *m = (struct gguf_model){ 0 };
    buf_init(&m->config, 1 << 20);
    tinker_status status = gguf_open(&m->file, path, err);
    if (status != TINKER_OK)
        return status;
    struct reader r = { .g = &m->file };
    json_writer_init(&r.w, &m->config);
    status = choose_family(&r, err);
    if (status == TINKER_OK)
        status = put_config_text(&r, err);
    if (status == TINKER_OK && !buf_ok(&m->config))
        status = err_nomem(err, path);
    if (status == TINKER_OK)
        status = check_scales(&m->file, err);
    if (status != TINKER_OK) {
        gguf_model_close(m);
        return status;
    }
    m->family = r.family;
    return TINKER_OK;
}

void gguf_model_close(struct gguf_model *m)
{
    gguf_close(&m->file);
    buf_clear(&m->config);
}

/* Is it the projection of q or k, or its bias? */
static bool is_rotated(const char *name)
{
    const char *dot = strrchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : 0;
    return n > 7 &&
           (memcmp(name + n - 7, ".attn_q", 7) == 0 || memcmp(name + n - 7, ".attn_k", 7) == 0);
}

bool gguf_model_weight(const struct gguf_model *m, const char *name, size_t rows, size_t cols,
                       struct weight *out, tinker_error *err)
{
    char own[128] = "";
    int64_t expert;
    const struct gguf_tensor *t = NULL;
    enum source_dtype dtype;
    if (gguf_tensor_name(name, own, &expert))
        t = gguf_find(&m->file, own);
    if (!t) {
        err_set(err, TINKER_EINVAL, "%s: tensor %s (%s) is missing", m->file.path,
                own[0] ? own : "?", name);
        return false;
    }
    /* a vector may have a second dimension of 1; a stack of experts has the third */
    bool right = t->dim[0] == cols && t->dim[1] == (rows ? rows : 1) && t->dim[3] == 1 &&
                 (expert < 0 ? t->dim[2] == 1 : (uint64_t)expert < t->dim[2]);
    if (!right || !gguf_source_dtype(t->type, &dtype)) {
        err_set(err, TINKER_EINVAL, "%s: tensor %s is not %zu x %zu as the metadata asks",
                m->file.path, own, rows ? rows : 1, cols);
        return false;
    }
    size_t skip = expert < 0 ? 0 : source_bytes(dtype, (size_t)expert * rows * cols);
    *out = (struct weight){ .data = (const char *)t->data + skip,
                            .dtype = dtype,
                            .pairs = m->family->pairs && is_rotated(own) ? m->head_dim : 0 };
    return true;
}
