/* engine.c - open a model directory or a GGUF file: configuration, files, weights, threads.
 *
 * config.json (of GGUF one made from its metadata) decides which tensors there must be; they are
 * looked up by name in the mapped files and packed for the kernels.  The files stay mapped while the engine lives:
 * the embedding is read from them, and exports and rank-0 adapters start from them. */
#include "engine/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "base/os.h"
#include "base/sha.h"
#include "engine/gguf/gguf_model.h"
#include "engine/kernels/attn.h"
#include "engine/safetensors/weight_files.h"
#include "engine/model/config.h"
#include "engine/model/expert_stack.h"
#include "engine/model/unread.h"
#include "engine/layers/delta.h"
#include "engine/model/params.h"
#include "engine/safetensors/quantized_dir.h"
#include "engine/train/pass.h"

enum { CONFIG_MAX = 4 << 20, PATH_LIMIT = 4096, MAX_THREADS = 1024, SAMPLE = 64 };

/* A path that would be cut is an error, not another file. */
static tinker_status join_path(char out[PATH_LIMIT], const char *dir, const char *name,
                               tinker_error *err)
{
    int n = snprintf(out, PATH_LIMIT, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_LIMIT)
        return err_set(err, TINKER_EINVAL, "path of the model directory is too long");
    return TINKER_OK;
}

/* config.json, which goes into the fingerprint as it stands, and generation_config.json, which
 * may be missing. */
static tinker_status read_configs(struct model_config *c, const char *dir, struct sha256 *hash,
                                  tinker_error *err)
{
    char path[PATH_LIMIT], *text;
    size_t len;
    tinker_status status = join_path(path, dir, "config.json", err);
    if (status == TINKER_OK)
        status = os_read_file(path, CONFIG_MAX, &text, &len, err);
    if (status != TINKER_OK)
        return status;
    sha256_update(hash, text, len);
    status = quantized_check_config(path, text, len, err);
    if (status == TINKER_OK)
        status = config_parse(c, path, text, len, err);
    free(text);
    if (status == TINKER_OK)
        status = join_path(path, dir, "generation_config.json", err);
    if (status != TINKER_OK || access(path, F_OK) != 0)
        return status;
    status = os_read_file(path, CONFIG_MAX, &text, &len, err);
    if (status != TINKER_OK)
        return status;
    status = config_parse_generation(c, path, text, len, err);
    free(text);
    return status;
}

/* Whether we compute with the tensor's type; else an error. */
static bool is_usable(const char *file, const struct st_tensor *t, tinker_error *err)
{
    if (!t->usable)
        err_set(err, TINKER_EINVAL, "%s: tensor %s: dtype %s is not supported (F32, F16, BF16)",
                file, t->name, t->dtype_name);
    return t->usable;
}

/* "model.layers.0..." of a text part may be "language_model.model.layers.0..." in the files, and
 * the router of a mixture may have another name. */
const char *engine_file_name(const tinker_engine *e, const char *name, char out[ENGINE_NAME])
{
    static const char ours[] = "model.", outer[] = "language_model.";
    const struct arch_names *names = e->arch->names;
    size_t n = sizeof(ours) - 1;
    if (!e->files)
        return name; /* GGUF has names of its own */
    const char *router = names->other_router ? strstr(name, names->router) : NULL;
    if (router && !weight_files_find(e->files, name, NULL)) {
        snprintf(out, ENGINE_NAME, "%.*s%s%s", (int)(router - name), name, names->other_router,
                 router + strlen(names->router));
        return out;
    }
    if (!e->prefix[0])
        return name;
    if (strncmp(name, ours, n) == 0)
        snprintf(out, ENGINE_NAME, "%s%s", e->prefix, name + n);
    else
        snprintf(out, ENGINE_NAME, "%s%s", outer, name); /* the head, if it is there */
    if (strncmp(name, ours, n) != 0 && !weight_files_find(e->files, out, NULL))
        return name;
    return out;
}

/* Finds out what a multimodal model calls its text part, and says what of it is left out. */
static void find_text_part(tinker_engine *e, struct model_config *c)
{
    static const char embed[] = "embed_tokens.weight";
    char head[ENGINE_NAME], name[ENGINE_NAME];
    size_t others = 0;
    for (size_t f = 0; f < e->files->n; f++) {
        for (size_t i = 0; i < e->files->files[f].n; i++) {
            const char *tensor = e->files->files[f].tensors[i].name;
            size_t n = strlen(tensor), k = sizeof(embed) - 1;
            if (n >= k && n - k < sizeof(e->prefix) && strcmp(tensor + n - k, embed) == 0)
                snprintf(e->prefix, sizeof(e->prefix), "%.*s", (int)(n - k), tensor);
        }
    }
    snprintf(name, sizeof(name), "%s.weight", e->names->head);
    const char *stored = engine_file_name(e, name, head);
    /* a wrapper's setting says nothing when its text part was saved without a head */
    c->tied = c->tied || !weight_files_find(e->files, stored, NULL);
    for (size_t f = 0; f < e->files->n; f++)
        for (size_t i = 0; i < e->files->files[f].n; i++) {
            const char *tensor = e->files->files[f].tensors[i].name;
            others +=
                strncmp(tensor, e->prefix, strlen(e->prefix)) != 0 && strcmp(tensor, stored) != 0;
        }
    if (others)
        snprintf(e->notice, sizeof(e->notice),
                 "the vision part of this checkpoint is left out (%zu tensors)", others);
}

/* A matrix of its own is looked up first, then a stack of all experts. */
bool engine_weight(const tinker_engine *e, const char *name, size_t rows, size_t cols,
                   struct weight *out, tinker_error *err)
{
    if (e->gguf)
        return gguf_model_weight(e->gguf, name, rows, cols, out, err);
    /* for a message when no file has the tensor */
    const char *file = e->dir;
    char stored[ENGINE_NAME];
    name = engine_file_name(e, name, stored);
    const struct st_tensor *t = weight_files_find(e->files, name, &file);
    enum stack_result stack = STACK_NONE;
    if (!t && e->arch->moe)
        stack = expert_stack_weight(e->files, e->arch, name, rows, cols, out, err);
    if (stack != STACK_NONE)
        return stack == STACK_FOUND;
    if (!t) {
        err_set(err, TINKER_EINVAL, "%s: tensor %s is missing", e->dir, name);
        return false;
    }
    if (!is_usable(file, t, err))
        return false;
    /* the shape that config.json implies, not the one that the file has */
    /* a convolution over each channel by itself is (channels, 1, size) */
    bool convolution = t->ndim == 3 && t->shape[1] == 1;
    bool right = rows ? t->ndim == 2 && t->shape[0] == rows && t->shape[1] == cols
                      : t->count == cols && (t->ndim == 1 || convolution);
    if (!right && rows)
        err_set(err, TINKER_EINVAL, "%s: tensor %s is not %zu x %zu as config.json asks", file,
                name, rows, cols);
    else if (!right)
        err_set(err, TINKER_EINVAL, "%s: tensor %s is not a vector of %zu as config.json asks",
                file, name, cols);
    if (!right)
        return false;
    *out = (struct weight){ .data = t->data, .dtype = t->dtype };
    return true;
}

bool engine_is_quantized(const tinker_engine *e)
{
    return e->model->quantized;
}

/* What tinker_engine_describe() shows, all of it fixed from now on. */
static void describe_engine(tinker_engine *e)
{
    const struct model_config *c = &e->model->config;
    int64_t context = c->context;
    /* an option may shorten the context, never stretch it */
    if (e->opts.max_context > 0 && e->opts.max_context < context)
        context = e->opts.max_context;
    e->info = (tinker_engine_info){
        .arch = c->arch->name,
        .fingerprint = e->fingerprint,
        .vocab_size = (int64_t)c->vocab,
        .context = context,
        .layers = (int64_t)c->layers,
        .hidden = (int64_t)c->hidden,
        .heads = (int64_t)c->heads,
        .kv_heads = (int64_t)c->kv_heads,
        .head_dim = (int64_t)c->head_dim,
        .intermediate = (int64_t)c->intermediate,
        .parameters = model_parameters(c),
        .eos = c->eos,
        .n_eos = c->n_eos,
        .notice = e->notice[0] ? e->notice : NULL,
        .weight_bytes = e->model->weight_bytes,
    };
}

/* The walk of is_stored_bf16(). */
struct stored {
    const tinker_engine *engine;
    bool tied, bf16; /* so far */
};

/* A visitor of model_tensors(); an embedding counts only as a tied head. */
static tinker_status note_stored(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct stored *s = state;
    (void)err;
    if (at->kind == TENSOR_EXPERT && s->engine->mxfp4)
        return TINKER_OK; /* these keep their own format */
    struct weight w = { 0 };
    if (s->engine->gguf)
        return TINKER_OK; /* each matrix has a format of its own */
    if (at->rows && (at->kind != TENSOR_EMBED || s->tied))
        s->bf16 &= engine_weight(s->engine, at->name, tensor_stored_rows(at), at->cols, &w, NULL) &&
                   w.dtype == SOURCE_BF16;
    free(w.owned);
    return TINKER_OK;
}

/* Whether every matrix is: one layout of activations then serves all products of a layer. */
static bool is_stored_bf16(const tinker_engine *e, const struct model_config *c)
{
    struct stored s = { .engine = e, .tied = c->tied, .bf16 = true };
    model_tensors(c, note_stored, &s, NULL);
    return s.bf16;
}

/* The source of the base model's weights. */
struct base_source {
    const tinker_engine *engine;
    bool stored_bf16;
};

/* See struct weight_source. */
static bool get_file_weight(void *state, const char *name, size_t rows, size_t cols,
                            struct weight *out, tinker_error *err)
{
    return engine_weight(((struct base_source *)state)->engine, name, rows, cols, out, err);
}

/* The modes that round activations for speed, those of attention, too, where the CPU has products of
 * bfloat16. */
static bool rounds_activations(tinker_weights_dtype dtype)
{
    return dtype == TINKER_WEIGHTS_BF16 || dtype == TINKER_WEIGHTS_Q8_INT8 ||
           dtype == TINKER_WEIGHTS_Q4_INT8;
}

/* What q8 and q4 mean for one matrix.  The head decides every token: it keeps 8 bits.  A router's
 * small differences decide which experts run: it is not quantized. */
static enum packed_dtype quantized_format(tinker_weights_dtype dtype, enum tensor_kind kind)
{
    bool rounds = dtype == TINKER_WEIGHTS_Q8_INT8 || dtype == TINKER_WEIGHTS_Q4_INT8;
    enum packed_dtype q8 = rounds ? PACKED_Q8_0_INT8 : PACKED_Q8_0;
    switch (kind) {
    case TENSOR_WEIGHT:
    case TENSOR_EXPERT:
        if (dtype == TINKER_WEIGHTS_Q4_INT8)
            return PACKED_Q4_0_INT8;
        return dtype == TINKER_WEIGHTS_Q4 ? PACKED_Q4_0 : q8;
    case TENSOR_EMBED: /* only where it is the head */
    case TENSOR_HEAD:
        return q8;
    default:
        return PACKED_F32;
    }
}

/* See struct weight_source. */
static enum packed_dtype choose_format(void *state, const struct tensor_place *at)
{
    const struct base_source *s = state;
    enum source_dtype dtype;
    switch (s->engine->opts.dtype) {
    case TINKER_WEIGHTS_F32:
        return PACKED_F32;
    case TINKER_WEIGHTS_BF16:
        /* faster where the CPU multiplies pairs of bf16, at the price of rounded activations */
        return PACKED_BF16_PAIRS;
    case TINKER_WEIGHTS_STORED:
        /* a GGUF file has chosen a format for each matrix */
        if (s->engine->gguf && gguf_model_dtype(s->engine->gguf, at->name, &dtype))
            return packed_native(dtype);
        if (at->kind == TENSOR_EXPERT && s->engine->mxfp4)
            return PACKED_MXFP4;
        return s->stored_bf16 ? PACKED_BF16 : PACKED_F32;
    default:
        /* the gates of the delta rule and of a shared expert are few rows that decide much */
        if (at->id == LINEAR_DELTA_A || at->id == LINEAR_DELTA_B || at->id == LINEAR_SHARED_ROUTER)
            return PACKED_F32;
        return quantized_format(s->engine->opts.dtype, at->kind);
    }
}

/* A directory: config.json and safetensors.  The fingerprint takes headers and the first bytes of
 * each tensor: cheap, and different for different weights of one shape. */
static tinker_status open_directory(tinker_engine *e, struct model_config *config,
                                    struct sha256 *hash, tinker_error *err)
{
    char path[PATH_LIMIT];
    tinker_status status = join_path(path, e->dir, "config.json", err);
    if (status == TINKER_OK && access(path, F_OK) != 0) {
        /* what is there instead says more than that this is not: GGUF files, for example */
        e->files = weight_files_open(e->dir, err);
        return e->files ? err_set(err, TINKER_EINVAL, "%s: no config.json", e->dir) : err->status;
    }
    if (status == TINKER_OK)
        status = read_configs(config, e->dir, hash, err);
    if (status != TINKER_OK)
        return status;
    e->arch = config->arch;
    e->names = config->arch->names;
    e->files = weight_files_open(e->dir, err);
    if (!e->files)
        return err->status;
    if (config->wrapped)
        find_text_part(e, config);
    e->mxfp4 = config->arch->stack == STACK_COLUMNS && expert_stack_is_mxfp4(e->files);
    for (size_t i = 0; i < e->files->n; i++) {
        const struct safetensors *f = &e->files->files[i];
        sha256_update(hash, f->header, f->header_len);
        for (size_t k = 0; k < f->n; k++) {
            size_t bytes = f->tensors[k].bytes;
            sha256_update(hash, f->tensors[k].data, bytes < SAMPLE ? bytes : SAMPLE);
        }
    }
    return quantized_check_files(e->files, err);
}

/* A GGUF file, or several that are one model. */
static tinker_status open_gguf(tinker_engine *e, struct model_config *config, struct sha256 *hash,
                               tinker_error *err)
{
    struct gguf_model *m = calloc(1, sizeof(*m));
    if (!m)
        return err_nomem(err, e->dir);
    tinker_status status = gguf_model_open(m, e->dir, err);
    if (status != TINKER_OK) {
        free(m);
        return status;
    }
    e->gguf = m; /* closed with the engine */
    status = config_parse(config, e->dir, m->config.data, m->config.len, err);
    if (status != TINKER_OK)
        return status;
    gguf_model_configure(m, config);
    config->plus_one = false; /* the files have 1 + w already */
    e->arch = config->arch;
    e->names = config->arch->names;
    sha256_update(hash, m->config.data, m->config.len);
    for (size_t i = 0; i < m->file.n; i++) {
        const struct gguf_tensor *t = m->file.tensors[i];
        sha256_update(hash, t->name, strlen(t->name));
        sha256_update(hash, &t->type, sizeof(t->type));
        sha256_update(hash, t->data, t->bytes < SAMPLE ? t->bytes : SAMPLE);
    }
    return TINKER_OK;
}

/* Configuration, files, fingerprint. */
static tinker_status open_files(tinker_engine *e, struct model_config *config, tinker_error *err)
{
    struct sha256 hash;
    uint8_t digest[32];
    sha256_init(&hash);
    tinker_status status = gguf_is_name(e->dir) && !os_is_dir(e->dir)
                               ? open_gguf(e, config, &hash, err)
                               : open_directory(e, config, &hash, err);
    if (status != TINKER_OK)
        return status;
    sha256_final(&hash, digest);
    hex_encode(digest, sizeof(digest), e->fingerprint);
    config->rounded_attention = rounds_activations(e->opts.dtype) &&
                                config->head_dim % ATTN_ROUNDED_DIM == 0 &&
                                attn_ops()->scores_rounded != NULL;
    return TINKER_OK;
}

static tinker_status load_model(tinker_engine *e, tinker_error *err)
{
    struct model_config config;
    tinker_status status = open_files(e, &config, err);
    if (status != TINKER_OK)
        return status;
    struct base_source base = { e, is_stored_bf16(e, &config) };
    /* what is packed need not be there twice */
    struct weight_source source = {
        .get = get_file_weight, .format = choose_format, .done = os_map_evict, .state = &base
    };
    e->model = model_new(&config, &source, err);
    if (!e->model)
        return TINKER_ENOMEM;
    status = model_fill(e->model, e->threads, &source, err);
    /* Last, because of a name that is spelled wrong it is more to say that a weight is missing. */
    return status == TINKER_OK && e->files ? unread_check(e, &config, err) : status;
}

static tinker_status take_options(tinker_engine *e, const tinker_engine_options *opts,
                                  tinker_error *err)
{
    e->opts = (tinker_engine_options)TINKER_ENGINE_OPTIONS_INIT;
    tinker_status status = TINKER_OK;
    if (opts)
        status = opts_copy(&e->opts, sizeof(e->opts), opts, "tinker_engine_options", err);
    if (status != TINKER_OK)
        return status;
    if (e->opts.threads < 0 || e->opts.threads > MAX_THREADS)
        return err_set(err, TINKER_EINVAL, "threads is %d, must be 0 to %d", e->opts.threads,
                       MAX_THREADS);
    if (e->opts.max_context < 0)
        return err_set(err, TINKER_EINVAL, "max_context is negative");
    if (e->opts.dtype < TINKER_WEIGHTS_F32 || e->opts.dtype > TINKER_WEIGHTS_Q4_INT8)
        return err_set(err, TINKER_EINVAL, "dtype %d is unknown", (int)e->opts.dtype);
    return TINKER_OK;
}

/* Fills e, which tinker_engine_close() cleans up after a failure. */
static tinker_status start_engine(tinker_engine *e, const char *dir,
                                  const tinker_engine_options *opts, tinker_error *err)
{
    tinker_status status = take_options(e, opts, err);
    if (status != TINKER_OK)
        return status;
    /* exports copy the other files of the directory later */
    e->dir = strdup(dir);
    e->threads = threads_new(e->opts.threads ? e->opts.threads : os_cpu_count());
    if (!e->dir || !e->threads)
        return err_nomem(err, "engine");
    status = load_model(e, err);
    if (status != TINKER_OK)
        return status;
    describe_engine(e);
    tinker_engine_limit_memory(e, e->opts.memory_limit);
    return TINKER_OK;
}

void tinker_engine_limit_memory(tinker_engine *e, uint64_t bytes)
{
    /* the other half is for adapters and for everything else that runs here */
    e->memory_limit = bytes ? bytes : os_memory_free() / 2;
}

tinker_engine *tinker_engine_open(const char *dir, const tinker_engine_options *opts,
                                  tinker_error *err)
{
    tinker_error local; /* failures below travel as err->status */
    if (!err)
        err = &local;
    tinker_engine *e = calloc(1, sizeof(*e));
    if (!e) {
        err_nomem(err, "engine");
        return NULL;
    }
    if (start_engine(e, dir, opts, err) != TINKER_OK) {
        tinker_engine_close(e);
        return NULL;
    }
    return e;
}

/* In the reverse order of what borrows from what: the model reads the mapped files. */
void tinker_engine_close(tinker_engine *e)
{
    if (!e)
        return;
    model_free(e->model);
    weight_files_close(e->files);
    if (e->gguf)
        gguf_model_close(e->gguf);
    free(e->gguf);
    threads_free(e->threads);
    free(e->spare);
    free(e->dir);
    free(e);
}

const tinker_engine_info *tinker_engine_describe(const tinker_engine *e)
{
    return &e->info;
}

/* ---- before a model is loaded --------------------------------------------------------------- */

/* What training an adapter of this rank takes beside the weights, and what its pass on a text. */
static tinker_status measure_adapter(const struct model_config *c, int64_t rank,
                                     tinker_model_needs *out, tinker_error *err)
{
    struct params params;
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = rank;
    tinker_status status = params_init(&params, c, &lora, err);
    if (status != TINKER_OK)
        return status;
    /* weights and two moments; the gradient of a pass and what earlier passes have summed up */
    out->adapter = 5 * sizeof(float) * (uint64_t)params.total;
    params_clear(&params);
    return TINKER_OK;
}

/* The longest text, up to the context, whose training stays below a limit; 0: none. */
static int64_t longest_text(const struct model_config *c, int64_t rank, int64_t context,
                            uint64_t limit)
{
    int64_t fits = 0, fails = context + 1;
    while (fails - fits > 1) {
        int64_t n = fits + (fails - fits) / 2;
        if (pass_text_bytes(c, (size_t)n, (size_t)rank, true) <= limit)
            fits = n;
        else
            fails = n;
    }
    return fits;
}

tinker_status tinker_model_measure(const char *dir, const tinker_engine_options *opts,
                                   tinker_model_needs *out, tinker_error *err)
{
    const size_t size = out->size < sizeof(*out) ? out->size : sizeof(*out);
    tinker_model_needs needs = TINKER_MODEL_NEEDS_INIT;
    struct model_config c;
    tinker_error local;
    if (!err)
        err = &local;
    memcpy(&needs, out, size); /* what the caller asks about */
    tinker_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return err_nomem(err, dir);
    tinker_status status = take_options(e, opts, err);
    if (status == TINKER_OK && (needs.rank < 1 || needs.tokens < 1))
        status = err_set(err, TINKER_EINVAL, "rank and tokens must be positive");
    e->dir = strdup(dir);
    if (status == TINKER_OK && !e->dir)
        status = err_nomem(err, dir);
    if (status == TINKER_OK)
        status = open_files(e, &c, err);
    if (status == TINKER_OK)
        status = measure_adapter(&c, needs.rank, &needs, err);
    if (status == TINKER_OK) {
        struct base_source base = { e, is_stored_bf16(e, &c) };
        struct weight_source source = { .format = choose_format, .state = &base };
        needs.context = (int64_t)c.context;
        if (e->opts.max_context > 0 && e->opts.max_context < needs.context)
            needs.context = e->opts.max_context;
        size_t tokens = (size_t)(needs.tokens < needs.context ? needs.tokens : needs.context);
        needs.weights = model_bytes(&c, &source);
        needs.pass = pass_text_bytes(&c, tokens, (size_t)needs.rank, true);
        needs.cache =
            (uint64_t)(tokens + KV_BLOCK - 1) / KV_BLOCK * kv_page_floats(&c) * sizeof(float) +
            delta_state_floats(&c) * sizeof(float);
        uint64_t limit = opts && e->opts.memory_limit ? e->opts.memory_limit : os_memory_free();
        uint64_t kept = needs.weights + needs.adapter;
        needs.trains = limit > kept ? longest_text(&c, needs.rank, needs.context, limit - kept) : 0;
        snprintf(needs.arch, sizeof(needs.arch), "%s", c.arch->name);
        memcpy(out, &needs, size);
    }
    tinker_engine_close(e);
    return status;
}
