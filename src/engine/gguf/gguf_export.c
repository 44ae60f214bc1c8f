/* gguf_export.c - write a model, or an adapter alone, as llama.cpp and ollama take them.
 *
 * Tensors are made one at a time: the base's numbers, plus scale B A where the adapter has a pair,
 * rows in GGUF's order, then the type of the file.  Which type a tensor gets follows llama.cpp's own
 * quantizer: vectors and routers stay F32, the head keeps more bits than the rest. */
#include "engine/gguf/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/err.h"
#include "engine/gguf/gguf_tokenizer.h"
#include "engine/kernels/blocks.h"
#include "engine/layers/linear.h"
#include "engine/model/adapter.h"

/* One tensor of the file. */
struct export_entry {
    struct tensor_place at; /* of the first expert of a stack; its name is a copy */
    size_t stack;           /* matrices one below the other */
    enum source_dtype dtype;
    int param;   /* rank 0: index of the (first) parameter */
    bool untied; /* the head of a tied model, as a matrix of its own */
    bool lora_b; /* an adapter's file: which factor */
};

struct gguf_exporting {
    const tinker_engine *e;
    const tinker_adapter *a; /* NULL: the base model as it is */
    const struct gguf_family *family;
    enum source_dtype dtype; /* what matrices become */
    struct gguf_writer w;
    struct arena arena;
    struct export_entry *entries;
    size_t n, cap;
    int next_param;
    float *values; /* of the tensor being made */
    unsigned char *bytes;
    size_t capacity; /* elements of values and bytes */
};

/* llama.cpp gives more bits to the first and last eighth of the layers and to every third between. */
static bool wants_more_bits(size_t layer, size_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* A format whose blocks do not divide the rows gives way to the nearest one that fits. */
static enum source_dtype fit_rows(enum source_dtype dtype, size_t cols)
{
    if (cols % source_block(dtype) == 0)
        return dtype;
    if (cols % 32 == 0 && dtype == SOURCE_Q4_K)
        return SOURCE_Q5_0;
    if (cols % 32 == 0 && dtype == SOURCE_Q6_K)
        return SOURCE_Q8_0;
    return SOURCE_F16;
}

static enum source_dtype choose_type(const struct gguf_exporting *x, const struct tensor_place *at,
                                     bool head)
{
    const struct model_config *c = &x->e->model->config;
    if (at->rows == 0 || at->kind == TENSOR_ROUTER)
        return SOURCE_F32;
    enum source_dtype dtype = x->dtype;
    if (head && (dtype == SOURCE_Q4_0 || dtype == SOURCE_Q4_K))
        dtype = SOURCE_Q6_K;
    if (dtype == SOURCE_Q4_K && (at->id == LINEAR_V || at->id == LINEAR_DOWN) &&
        wants_more_bits(at->layer, c->layers))
        dtype = SOURCE_Q6_K;
    return fit_rows(dtype, at->cols);
}

static struct export_entry *add_entry(struct gguf_exporting *x, const struct tensor_place *at,
                                      tinker_error *err)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 256;
        struct export_entry *grown = realloc(x->entries, cap * sizeof(*grown));
        if (!grown) {
            err_nomem(err, "export");
            return NULL;
        }
        x->entries = grown;
        x->cap = cap;
    }
    struct export_entry *entry = &x->entries[x->n++];
    *entry = (struct export_entry){ .at = *at, .stack = 1, .dtype = SOURCE_F32 };
    entry->at.name = arena_strdup(&x->arena, at->name);
    if (!entry->at.name) {
        err_nomem(err, "export");
        return NULL;
    }
    return entry;
}

/* Names a tensor in the file; `suffix` is that of a factor, or "". */
static tinker_status put_entry(struct gguf_exporting *x, const struct export_entry *entry,
                               const char *suffix, uint64_t cols, uint64_t rows, tinker_error *err)
{
    char name[128], full[160];
    int64_t expert;
    uint64_t dim[3] = { cols, rows ? rows : 1, entry->stack };
    if (!gguf_tensor_name(entry->untied ? "lm_head.weight" : entry->at.name, name, &expert))
        return err_set(err, TINKER_EINVAL, "GGUF has no name for %s", entry->at.name);
    snprintf(full, sizeof(full), "%s%s", name, suffix);
    gguf_put_tensor(&x->w, full, gguf_type_of(entry->dtype),
                    rows == 0     ? 1
                    : expert >= 0 ? 3
                                  : 2,
                    dim);
    return TINKER_OK;
}

static bool has_head_pair(const struct gguf_exporting *x)
{
    return x->a && x->a->desc.rank && lora_head(&x->a->lora, x->e->model->config.layers)->a;
}

/* A visitor of model_tensors(): the tensors of a merged model. */
static tinker_status plan_merged(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct model_config *c = &x->e->model->config;
    int param = x->next_param++;
    bool tied = at->kind == TENSOR_EMBED && c->tied, untie = tied && has_head_pair(x);
    if (at->kind == TENSOR_EXPERT && at->expert > 0)
        return TINKER_OK; /* a part of the stack that its first expert began */
    struct export_entry *entry = add_entry(x, at, err);
    if (!entry)
        return TINKER_ENOMEM;
    entry->param = param;
    entry->stack = at->kind == TENSOR_EXPERT ? c->experts : 1;
    entry->dtype = choose_type(x, at, at->kind == TENSOR_HEAD || (tied && !untie));
    tinker_status status = put_entry(x, entry, "", at->cols, at->rows, err);
    if (status != TINKER_OK || !untie)
        return status;
    entry = add_entry(x, at, err);
    if (!entry)
        return TINKER_ENOMEM;
    entry->untied = true;
    entry->dtype = choose_type(x, at, true);
    return put_entry(x, entry, "", at->cols, at->rows, err);
}

/* Room for the largest tensor so far. */
static bool reserve_values(struct gguf_exporting *x, size_t n)
{
    if (n <= x->capacity)
        return true;
    free(x->values);
    free(x->bytes);
    x->values = malloc(n * sizeof(float));
    x->bytes = malloc(n * sizeof(float));
    x->capacity = x->values && x->bytes ? n : 0;
    return x->capacity > 0;
}

/* values (rows, cols) += the adapter's part of a matrix, expert k of a stack. */
static void merge_pair(const struct gguf_exporting *x, const struct export_entry *entry, size_t k,
                       float *values)
{
    const tinker_adapter *a = x->a;
    struct lora_pair pair = { 0 };
    if (!a || !a->desc.rank)
        return;
    if (entry->at.kind == TENSOR_WEIGHT)
        pair = *lora_pair(&a->lora, entry->at.layer, entry->at.id);
    else if (entry->at.kind == TENSOR_EXPERT)
        pair = lora_expert(lora_pair(&a->lora, entry->at.layer, entry->at.id), k);
    else if (entry->at.kind == TENSOR_HEAD || entry->untied)
        pair = *lora_head(&a->lora, x->e->model->config.layers);
    if (pair.a)
        linear_nn(x->e->threads, values, pair.b, pair.a, entry->at.rows, entry->at.cols,
                  a->lora.rank, a->lora.scale, 1);
}

/* The numbers of matrix k of an entry, in the model's order of rows. */
static bool read_matrix(const struct gguf_exporting *x, const struct export_entry *entry, size_t k,
                        float *values, tinker_error *err)
{
    const struct tensor_place *at = &entry->at;
    size_t rows = at->rows ? at->rows : 1;
    char name[160];
    struct weight w;
    if (x->a && x->a->desc.rank == 0) {
        const struct param *p = &x->a->params.list[(size_t)entry->param + k * EXPERT_LINEARS];
        memcpy(values, x->a->w + p->offset, rows * at->cols * sizeof(float));
        return true;
    }
    snprintf(name, sizeof(name), "%s", at->name);
    if (at->kind == TENSOR_EXPERT) { /* "...experts.0.up_proj.weight": of expert k */
        const char *zero = strstr(at->name, ".0.up_proj"),
                   *other = strstr(at->name, ".0.gate_proj"),
                   *down = strstr(at->name, ".0.down_proj");
        zero = zero ? zero : other ? other : down;
        snprintf(name, sizeof(name), "%.*s.%zu%s", (int)(zero - at->name), at->name, k, zero + 2);
    }
    if (!engine_weight(x->e, name, at->rows, at->cols, &w, err))
        return false;
    weight_to_float(&w, at->rows ? at->rows : at->cols, at->rows ? at->cols : 1, values);
    merge_pair(x, entry, k, values);
    return true;
}

/* Rows of q and k of architectures whose files interleave the halves of a head; 0: as they are. */
static size_t interleaved_rows(const struct gguf_exporting *x, const struct tensor_place *at)
{
    bool rotated = (at->kind == TENSOR_WEIGHT || at->kind == TENSOR_BIAS) &&
                   (at->id == LINEAR_Q || at->id == LINEAR_K);
    return x->family->pairs && rotated ? x->e->model->config.head_dim : 0;
}

/* Encoding runs on all threads, by rows. */
struct encode_job {
    const struct gguf_exporting *x;
    enum source_dtype dtype;
    size_t cols, pairs;
};

static void encode_rows(void *arg, size_t begin, size_t end)
{
    const struct encode_job *j = arg;
    for (size_t o = begin; o < end; o++) {
        const float *from = j->x->values + o * j->cols;
        unsigned char *to =
            j->x->bytes + packed_source_row(j->pairs, o) * source_bytes(j->dtype, j->cols);
        if (source_block(j->dtype) > 1)
            blocks_quantize(to, j->dtype, from, j->cols, false);
        else if (j->dtype == SOURCE_F32)
            memcpy(to, from, j->cols * sizeof(float));
        else
            for (size_t i = 0; i < j->cols; i++) {
                uint16_t h =
                    j->dtype == SOURCE_F16 ? f16_from_f32(from[i]) : bf16_from_f32(from[i]);
                memcpy(to + 2 * i, &h, 2);
            }
    }
}

/* Of a tensor of rows x cols in values, the bytes of the file. */
static const void *encode_values(struct gguf_exporting *x, enum source_dtype dtype, size_t rows,
                                 size_t cols, size_t pairs)
{
    struct encode_job job = { x, dtype, cols, pairs };
    threads_run(x->e->threads, rows, 1, encode_rows, &job);
    return x->bytes;
}

/* See gguf_fetch. */
static const void *fetch_merged(void *state, size_t index, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct export_entry *entry = &x->entries[index];
    size_t rows = entry->at.rows, cols = entry->at.cols, one = (rows ? rows : 1) * cols;
    size_t pairs = interleaved_rows(x, &entry->at);
    if (!reserve_values(x, one * entry->stack)) {
        err_nomem(err, entry->at.name);
        return NULL;
    }
    for (size_t k = 0; k < entry->stack; k++)
        if (!read_matrix(x, entry, k, x->values + k * one, err))
            return NULL;
    /* a bias is a column of single numbers */
    if (rows == 0)
        return encode_values(x, entry->dtype, cols, 1, pairs);
    return encode_values(x, entry->dtype, rows * entry->stack, cols, pairs);
}

/* ---- metadata ----------------------------------------------------------------------------- */

static void put_size(struct gguf_exporting *x, const char *key, uint64_t value)
{
    char full[96];
    snprintf(full, sizeof(full), "%s.%s", x->family->arch, key);
    gguf_put_u32(&x->w, full, (uint32_t)value);
}

static void put_number(struct gguf_exporting *x, const char *key, double value)
{
    char full[96];
    snprintf(full, sizeof(full), "%s.%s", x->family->arch, key);
    gguf_put_f32(&x->w, full, (float)value);
}

static void put_arch_string(struct gguf_exporting *x, const char *key, const char *s)
{
    char full[96];
    snprintf(full, sizeof(full), "%s.%s", x->family->arch, key);
    gguf_put_string(&x->w, full, s, strlen(s));
}

/* What llama.cpp needs to build the network.  The divisors of Llama 3's frequencies are a tensor. */
static void put_network(struct gguf_exporting *x)
{
    const struct model_config *c = &x->e->model->config;
    put_size(x, "vocab_size", c->vocab);
    put_size(x, "context_length", (uint64_t)c->context);
    put_size(x, "embedding_length", c->hidden);
    put_size(x, "block_count", c->layers);
    put_size(x, "feed_forward_length", c->intermediate);
    put_size(x, "attention.head_count", c->heads);
    put_size(x, "attention.head_count_kv", c->kv_heads);
    put_size(x, "attention.key_length", c->head_dim);
    put_size(x, "attention.value_length", c->head_dim);
    put_size(x, "rope.dimension_count", c->head_dim);
    put_number(x, "attention.layer_norm_rms_epsilon", (double)c->norm_eps);
    put_number(x, "rope.freq_base", c->rope.theta);
    if (c->rope.type == ROPE_LINEAR || c->rope.type == ROPE_YARN) {
        put_arch_string(x, "rope.scaling.type", c->rope.type == ROPE_YARN ? "yarn" : "linear");
        put_number(x, "rope.scaling.factor", c->rope.factor);
        if (c->rope.type == ROPE_YARN)
            put_size(x, "rope.scaling.original_context_length", (uint64_t)c->rope.original_context);
    }
    if (c->experts) {
        put_size(x, "expert_count", c->experts);
        put_size(x, "expert_used_count", c->experts_used);
        put_size(x, "expert_feed_forward_length", c->expert_size);
    }
}

/* general.file_type: what most tensors are, for people. */
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

static tinker_status put_metadata(struct gguf_exporting *x, const char *type, tinker_error *err)
{
    gguf_put_string(&x->w, "general.architecture", x->family->arch, strlen(x->family->arch));
    gguf_put_string(&x->w, "general.type", type, strlen(type));
    gguf_put_u32(&x->w, "general.file_type", file_type(x->dtype));
    gguf_put_u32(&x->w, "general.quantization_version", 2);
    if (strcmp(type, "model") != 0)
        return TINKER_OK;
    put_network(x);
    return gguf_put_tokenizer(&x->w, x->e, err);
}

/* What both kinds of files need: names for the architecture, and settings that GGUF can say. */
static tinker_status begin_export(struct gguf_exporting *x, tinker_error *err)
{
    const struct model_config *c = &x->e->model->config;
    arena_init(&x->arena, SIZE_MAX);
    gguf_writer_init(&x->w);
    x->family = gguf_family_by_type(c->arch->name);
    if (!x->family)
        return err_set(
            err, TINKER_EINVAL,
            "models of type %s are not written as GGUF; export the merged model in Hugging "
            "Face format and convert that",
            c->arch->name);
    return TINKER_OK;
}

static tinker_status end_export(struct gguf_exporting *x, tinker_status status)
{
    gguf_writer_clear(&x->w);
    arena_clear(&x->arena);
    free(x->entries);
    free(x->values);
    free(x->bytes);
    return status;
}

/* ---- a merged model ----------------------------------------------------------------------- */

/* The divisors that put_llama3_rope() reads back. */
static tinker_status plan_rope(struct gguf_exporting *x, tinker_error *err)
{
    const struct model_config *c = &x->e->model->config;
    uint64_t n = c->head_dim / 2;
    if (c->rope.type != ROPE_LLAMA3)
        return TINKER_OK;
    struct tensor_place at = { .kind = TENSOR_NORM, .cols = n, .name = "rope_freqs" };
    if (!add_entry(x, &at, err))
        return TINKER_ENOMEM;
    gguf_put_tensor(&x->w, "rope_freqs.weight", GGUF_TENSOR_F32, 1, &n);
    return TINKER_OK;
}

static const void *fetch_tensor(void *state, size_t index, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct model *m = x->e->model;
    size_t d = m->config.head_dim;
    if (strcmp(x->entries[index].at.name, "rope_freqs") != 0)
        return fetch_merged(state, index, err);
    if (!reserve_values(x, d / 2)) {
        err_nomem(err, "rope_freqs");
        return NULL;
    }
    for (size_t j = 0; j < d / 2; j++)
        x->values[j] = (float)(pow(m->config.rope.theta, -2.0 * (double)j / (double)d) /
                               (double)m->ropes[0].inv_freq[j]);
    return x->values;
}

tinker_status tinker_engine_export_gguf(tinker_engine *e, const tinker_adapter *a, const char *path,
                                        tinker_gguf_type type, tinker_error *err)
{
    static const enum source_dtype dtypes[] = {
        [TINKER_GGUF_F16] = SOURCE_F16,   [TINKER_GGUF_Q8_0] = SOURCE_Q8_0,
        [TINKER_GGUF_Q4_0] = SOURCE_Q4_0, [TINKER_GGUF_Q4_K] = SOURCE_Q4_K,
        [TINKER_GGUF_F32] = SOURCE_F32,   [TINKER_GGUF_BF16] = SOURCE_BF16,
    };
    tinker_error local;
    if (!err)
        err = &local;
    if ((int)type < 0 || (size_t)type >= sizeof(dtypes) / sizeof(*dtypes))
        return err_set(err, TINKER_EINVAL, "type %d of a GGUF file is unknown", (int)type);
    struct gguf_exporting x = { .e = e, .a = a, .dtype = dtypes[type] };
    tinker_status status = begin_export(&x, err);
    if (status == TINKER_OK)
        status = put_metadata(&x, "model", err);
    if (status == TINKER_OK)
        status = model_tensors(&e->model->config, plan_merged, &x, err);
    if (status == TINKER_OK)
        status = plan_rope(&x, err);
    if (status == TINKER_OK)
        status = gguf_write(&x.w, path, fetch_tensor, &x, err);
    return end_export(&x, status);
}

/* ---- an adapter alone ----------------------------------------------------------------------- */

/* A visitor of model_tensors(): two tensors for each matrix that has a pair. */
static tinker_status plan_factors(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct lora *lora = &x->a->lora;
    const struct model_config *c = &x->e->model->config;
    const struct lora_pair *pair = NULL;
    if (at->kind == TENSOR_WEIGHT || (at->kind == TENSOR_EXPERT && at->expert == 0))
        pair = lora_pair(lora, at->layer, at->id);
    else if (at->kind == TENSOR_HEAD)
        pair = lora_head(lora, c->layers);
    if (!pair || !pair->a)
        return TINKER_OK;
    for (int b = 0; b < 2; b++) {
        struct export_entry *entry = add_entry(x, at, err);
        if (!entry)
            return TINKER_ENOMEM;
        entry->stack = at->kind == TENSOR_EXPERT ? c->experts : 1;
        entry->lora_b = b;
        tinker_status status = b ? put_entry(x, entry, ".lora_b", lora->rank, at->rows, err)
                                 : put_entry(x, entry, ".lora_a", at->cols, lora->rank, err);
        if (status != TINKER_OK)
            return status;
    }
    return TINKER_OK;
}

/* Factors are written as they are, a copy for each expert of those that experts share; rows of B
 * are rows of the weight, and move with it. */
static const void *fetch_factor(void *state, size_t index, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct export_entry *entry = &x->entries[index];
    const struct lora *lora = &x->a->lora;
    size_t rows = entry->lora_b ? entry->at.rows : lora->rank;
    size_t cols = entry->lora_b ? lora->rank : entry->at.cols;
    const struct lora_pair *pair = entry->at.kind == TENSOR_HEAD
                                       ? lora_head(lora, x->e->model->config.layers)
                                       : lora_pair(lora, entry->at.layer, entry->at.id);
    if (!reserve_values(x, rows * cols * entry->stack)) {
        err_nomem(err, entry->at.name);
        return NULL;
    }
    for (size_t k = 0; k < entry->stack; k++) {
        struct lora_pair one = entry->stack > 1 ? lora_expert(pair, k) : *pair;
        memcpy(x->values + k * rows * cols, entry->lora_b ? one.b : one.a,
               rows * cols * sizeof(float));
    }
    size_t pairs = entry->lora_b ? interleaved_rows(x, &entry->at) : 0;
    return encode_values(x, SOURCE_F32, rows * entry->stack, cols, pairs);
}

tinker_status tinker_adapter_export_gguf(const tinker_adapter *a, const char *path,
                                         tinker_error *err)
{
    struct gguf_exporting x = { .e = a->engine, .a = a, .dtype = SOURCE_F32 };
    tinker_error local;
    if (!err)
        err = &local;
    if (!a->desc.rank)
        return err_set(err, TINKER_EINVAL,
                       "all weights were trained (rank 0): write the merged model instead");
    if (has_head_pair(&x) && a->engine->model->config.tied)
        return err_set(
            err, TINKER_EINVAL,
            "the head is the embedding of this model, which a GGUF adapter cannot change "
            "on one side: train with train_unembed false, or write the merged model");
    tinker_status status = begin_export(&x, err);
    if (status == TINKER_OK)
        status = put_metadata(&x, "adapter", err);
    if (status == TINKER_OK) {
        gguf_put_string(&x.w, "adapter.type", "lora", 4);
        gguf_put_f32(&x.w, "adapter.lora.alpha", (float)a->alpha);
        status = model_tensors(&a->engine->model->config, plan_factors, &x, err);
    }
    if (status == TINKER_OK)
        status = gguf_write(&x.w, path, fetch_factor, &x, err);
    return end_export(&x, status);
}
