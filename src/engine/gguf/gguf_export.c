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
#include "base/array.h"
#include "base/err.h"
#include "engine/gguf/gguf_metadata.h"
#include "engine/kernels/blocks.h"
#include "engine/layers/linear.h"
#include "engine/model/adapter.h"

/* One tensor of the file. */
struct export_entry {
    struct tensor_place at; /* of the first expert of a stack; its name is a copy */
    size_t stack;           /* matrices one below the other */
    size_t rows;            /* of each, of a module that holds several linears all; 0: a vector */
    const char *gguf;       /* its name there */
    enum source_dtype dtype;
    int param;   /* rank 0: index of the (first) parameter */
    bool untied; /* the head of a tied model, as a matrix of its own */
    bool lora_b; /* an adapter's file: which factor */
};

struct gguf_exporting {
    const tinker_engine *e;
    const tinker_adapter *a; /* NULL: the base model as it is */
    const struct gguf_family *family;
    struct gguf_heads heads;
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

/* llama.cpp gives more bits to the first and last eighth of the layers and to every third between.
 * This is use_more_bits() of its quantizer. */
static bool wants_more_bits(size_t layer, size_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* A format whose blocks do not divide the rows gives way to the nearest one that fits.  K-quants
 * need rows of 256; nothing is refused, since the file would else not be written at all. */
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
    /* routers and the gates of the delta rule are few rows that decide much */
    if (at->rows == 0 || at->kind == TENSOR_ROUTER || at->id == LINEAR_DELTA_A ||
        at->id == LINEAR_DELTA_B || at->id == LINEAR_SHARED_ROUTER)
        return SOURCE_F32;
    enum source_dtype dtype = x->dtype;
    /* As llama.cpp: each logit is a sum over the head, which is read for every token. */
    if (head && (dtype == SOURCE_Q4_0 || dtype == SOURCE_Q4_K))
        dtype = SOURCE_Q6_K;
    /* As llama.cpp's Q4_K_M, which gives v and down more bits in some layers. */
    if (dtype == SOURCE_Q4_K && (at->id == LINEAR_V || at->id == LINEAR_DOWN) &&
        wants_more_bits(at->layer, c->layers))
        dtype = SOURCE_Q6_K;
    return fit_rows(dtype, at->cols);
}

/* The name of a tensor in the file.  Gates and ups that the model has in one module, and GGUF has
 * not, are two there.  NULL with *err set: it has none. */
static const char *choose_name(struct gguf_exporting *x, const struct tensor_place *at,
                               tinker_error *err)
{
    const struct arch_names *names = x->e->arch->names;
    char name[128], other[128];
    int64_t expert;
    bool found = gguf_tensor_name(x->family, at->name, name, &expert);
    /* The model's module of several linears has no name there: try the linear's own name, as in
     * most models. */
    if (!found && at->stored) {
        snprintf(other, sizeof(other), "%s.%zu.%s.weight", names->layers, at->layer,
                 names->linear[at->id]);
        found = gguf_tensor_name(x->family, other, name, &expert);
    }
    if (!found) {
        err_set(err, TINKER_EINVAL, "GGUF has no name for %s", at->name);
        return NULL;
    }
    /* The name must live until the file is written. */
    const char *copy = arena_strdup(&x->arena, name);
    if (!copy)
        err_nomem(err, "export");
    return copy;
}

/* Whether a module of several linears is one tensor in the file, too. */
static bool is_whole(const struct gguf_exporting *x, const struct tensor_place *at)
{
    char name[128];
    int64_t expert;
    return at->stored && gguf_tensor_name(x->family, at->name, name, &expert);
}

static struct export_entry *add_entry(struct gguf_exporting *x, const struct tensor_place *at,
                                      const char *gguf, tinker_error *err)
{
    /* Doubling; a model has a few hundred tensors. */
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
    *entry = (struct export_entry){ .at = *at,
                                    .stack = 1,
                                    /* A tensor of the module's whole height, if the file has the
                                     * module. */
                                    .rows = is_whole(x, at) ? at->stored : at->rows,
                                    .gguf = gguf,
                                    .dtype = SOURCE_F32 };
    entry->at.name = arena_strdup(&x->arena, at->name);
    if (!entry->at.name) {
        err_nomem(err, "export");
        return NULL;
    }
    return entry;
}

/* Names a tensor in the file; `suffix` is that of a factor, or "". */
static void put_entry(struct gguf_exporting *x, const struct export_entry *entry,
                      const char *suffix, uint64_t cols, uint64_t rows)
{
    /* dim counts as GGUF does: the fastest dimension first, so columns before rows. */
    char full[160];
    bool stacked = entry->at.kind == TENSOR_EXPERT;
    uint64_t dim[3] = { cols, rows, entry->stack };
    uint32_t n_dims = rows == 0 ? 1 : stacked ? 3 : 2;
    if (entry->at.kind == TENSOR_EXPERT_BIAS) {
        dim[1] = entry->stack;
        n_dims = 2;
    } else if (entry->at.kind == TENSOR_CONV) { /* the last dimension first */
        dim[0] = x->e->model->config.delta_conv;
        dim[1] = cols / dim[0];
        n_dims = 2;
    }
    /* Written now, in the order of the entries: gguf_write() asks for data by index. */
    snprintf(full, sizeof(full), "%s%s", entry->gguf, suffix);
    gguf_put_tensor(&x->w, full, gguf_type_of(entry->dtype), n_dims, dim);
}

static bool has_head_pair(const struct gguf_exporting *x)
{
    return x->a && x->a->desc.rank && lora_head(&x->a->lora, x->e->model->config.layers)->a;
}

static bool is_expert(const struct tensor_place *at)
{
    return at->kind == TENSOR_EXPERT || at->kind == TENSOR_EXPERT_BIAS;
}

/* A visitor of model_tensors(): the tensors of a merged model. */
static tinker_status plan_merged(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct model_config *c = &x->e->model->config;
    /* rows of one module are one parameter.  The index into an adapter's list of parameters, which
     * model_tensors() fills in this same order. */
    int param = at->first ? x->next_param - 1 : x->next_param++;
    /* A trained head cannot be written into a tied embedding: it would change the inputs, too. */
    bool tied = at->kind == TENSOR_EMBED && c->tied, untie = tied && has_head_pair(x);
    /* Experts of a layer are one tensor with a third dimension. */
    if ((is_expert(at) && at->expert > 0) || (at->first && is_whole(x, at)))
        return TINKER_OK; /* a part of the tensor that the first of them began */
    const char *name = choose_name(x, at, err);
    struct export_entry *entry = name ? add_entry(x, at, name, err) : NULL;
    if (!entry)
        return err->status;
    entry->param = param;
    entry->stack = is_expert(at) ? c->experts : 1;
    /* A tied embedding is read as the head, so it gets the head's precision. */
    entry->dtype = choose_type(x, at, at->kind == TENSOR_HEAD || (tied && !untie));
    put_entry(x, entry, "", at->cols, entry->rows);
    if (!untie)
        return TINKER_OK;
    /* The same matrix once more, under the name that unties it: llama.cpp takes output.weight when
     * it is there. */
    entry = add_entry(x, at, "output.weight", err);
    if (!entry)
        return TINKER_ENOMEM;
    entry->untied = true;
    entry->dtype = choose_type(x, at, true);
    put_entry(x, entry, "", at->cols, at->rows);
    return TINKER_OK;
}

/* Room for the largest tensor so far.  It is kept, so that the peak is the largest tensor and not
 * the sum. */
static bool reserve_values(struct gguf_exporting *x, size_t n)
{
    if (n <= x->capacity)
        return true;
    free(x->values);
    free(x->bytes);
    x->values = malloc(n * sizeof(float));
    /* Bytes for the widest type that is written, F32. */
    x->bytes = malloc(n * sizeof(float));
    x->capacity = x->values && x->bytes ? n : 0;
    return x->capacity > 0;
}

/* The adapter's part of linear `id` of an entry's layer, at its rows of the module. */
static void merge_linear(const struct gguf_exporting *x, const struct export_entry *entry,
                         enum linear_id id, size_t first, float *values)
{
    const struct tinker_adapter *a = x->a;
    const struct lora_pair *pair = lora_pair(&a->lora, entry->at.layer, id);
    size_t rows, cols;
    model_linear_shape(&x->e->model->config, id, &rows, &cols);
    if (pair->a)
        /* values += scale * B A, exact: an export should not add rounding of its own. */
        linear_nn(x->e->threads, FACTORS_EXACT, values + first * cols, pair->b, pair->a, rows, cols,
                  a->lora.rank, a->lora.scale, 1);
}

/* values += the adapter's part of a matrix, expert k of a stack. */
static void merge_pair(const struct gguf_exporting *x, const struct export_entry *entry, size_t k,
                       float *values)
{
    const tinker_adapter *a = x->a;
    const struct model_config *c = &x->e->model->config;
    struct lora_pair pair = { 0 };
    /* Nothing to merge: the base as it is, or all weights were trained and read_matrix() has taken
     * them. */
    if (!a || !a->desc.rank)
        return;
    /* The common case: a tensor that is one linear. */
    if (entry->at.kind == TENSOR_WEIGHT && entry->rows == entry->at.rows) {
        merge_linear(x, entry, entry->at.id, 0, values);
        return;
    }
    if (entry->at.kind == TENSOR_WEIGHT) { /* a module: its linears stand behind each other */
        size_t first, rows;
        const char *module = model_module(c, entry->at.id, &first, &rows);
        for (enum linear_id id = entry->at.id; id < LINEARS; id++)
            if (model_module(c, id, &first, &rows) == module)
                merge_linear(x, entry, id, first, values);
        return;
    }
    /* Experts share one factor of the two; lora_expert() picks the other. */
    if (entry->at.kind == TENSOR_EXPERT)
        pair = lora_expert(lora_pair(&a->lora, entry->at.layer, entry->at.id), k);
    else if (entry->at.kind == TENSOR_HEAD || entry->untied)
        pair = *lora_head(&a->lora, c->layers);
    if (pair.a)
        linear_nn(x->e->threads, FACTORS_EXACT, values, pair.b, pair.a, entry->at.rows,
                  entry->at.cols, a->lora.rank, a->lora.scale, 1);
}

/* What the file has in another form than the model: 1 + w of some norms, -exp(A_log). */
static void change_form(const struct gguf_exporting *x, const struct tensor_place *at,
                        float *values)
{
    /* Gemma's norms compute with 1 + w; llama.cpp adds the 1 when it converts, so a file has the
     * sum. */
    if (x->e->model->config.plus_one && model_is_offset_norm(at->kind))
        for (size_t i = 0; i < at->cols; i++)
            values[i] += 1;
    if (at->kind == TENSOR_A_LOG)
        for (size_t i = 0; i < at->cols; i++)
            values[i] = -expf(values[i]);
}

/* The numbers of matrix k of an entry, in the model's order of rows. */
static bool read_matrix(const struct gguf_exporting *x, const struct export_entry *entry, size_t k,
                        float *values, tinker_error *err)
{
    const struct tensor_place *at = &entry->at;
    size_t rows = entry->rows ? entry->rows : 1;
    char name[160];
    struct weight w = { 0 };
    /* Rank 0: every weight of the adapter is its own, the base is not read at all. */
    if (x->a && x->a->desc.rank == 0) {
        const struct param *p = &x->a->params.list[(size_t)entry->param + k * EXPERT_LINEARS];
        size_t skip = rows == at->stored ? 0 : at->first * at->cols;
        memcpy(values, x->a->w + p->offset + skip, rows * at->cols * sizeof(float));
        change_form(x, at, values);
        return true;
    }
    snprintf(name, sizeof(name), "%s", at->name);
    /* The entry carries the name of expert 0; the others differ in the number only. */
    const char *zero = is_expert(at) ? strstr(at->name, ".experts.0.") : NULL;
    if (zero) /* of expert k */
        snprintf(name, sizeof(name), "%.*s.experts.%zu%s", (int)(zero - at->name), at->name, k,
                 zero + strlen(".experts.0"));
    if (!engine_weight(x->e, name, tensor_stored_rows(at), at->cols, &w, err))
        return false;
    /* A linear inside a module: its rows begin further down. */
    if (rows != at->stored && at->first)
        w.data = (const char *)w.data + source_bytes(w.dtype, at->first * at->cols);
    weight_to_float(&w, at->rows ? rows : at->cols, at->rows ? at->cols : 1, values);
    free(w.owned);
    merge_pair(x, entry, k, values);
    change_form(x, at, values);
    return true;
}

/* Rows of q and k of architectures whose files interleave the halves of a head; 0: as they are.
 * The conversion of llama.cpp permutes them, because its rope turns neighbors and not halves. */
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
    struct gguf_order order;
};

static void encode_rows(void *arg, size_t begin, size_t end)
{
    const struct encode_job *j = arg;
    for (size_t o = begin; o < end; o++) {
        const float *from = j->x->values + o * j->cols;
        /* Row o of the model is written at its place in the file, so that values stays in the
         * model's order. */
        size_t place = j->order.size && !j->order.columns ? gguf_order_place(&j->order, o)
                                                          : packed_source_row(j->pairs, o);
        unsigned char *to = j->x->bytes + place * source_bytes(j->dtype, j->cols);
        /* false: as llama.cpp quantizes, without an importance matrix. */
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

/* values (rows, cols), with columns in the order of the model, in that of the file. */
static bool move_columns(float *values, size_t rows, size_t cols, const struct gguf_order *order)
{
    /* In place, one row aside: a second copy of a large tensor would double the peak. */
    float *row = malloc(cols * sizeof(*row));
    for (size_t i = 0; row && i < rows; i++) {
        memcpy(row, values + i * cols, cols * sizeof(*row));
        for (size_t k = 0; k < cols; k++)
            values[i * cols + gguf_order_place(order, k)] = row[k];
    }
    free(row);
    return row != NULL;
}

/* Of an entry's tensor of rows x cols in values, the bytes of the file.  by_rows, by_columns: its
 * rows, or columns, are those of the weight, which files may have in another order. */
static const void *encode_values(struct gguf_exporting *x, const struct export_entry *entry,
                                 bool by_rows, bool by_columns, size_t rows, size_t cols,
                                 tinker_error *err)
{
    struct encode_job job = { .x = x, .dtype = entry->dtype, .cols = cols };
    struct gguf_order order = gguf_order_of(&x->heads, entry->gguf);
    /* Of a pair of LoRA factors, only B has the weight's rows and only A its columns. */
    if (by_rows) {
        job.pairs = interleaved_rows(x, &entry->at);
        job.order = order;
    }
    /* Before encoding, while single columns can still be moved; blocks cannot be cut. */
    if (by_columns && order.size && order.columns && !move_columns(x->values, rows, cols, &order)) {
        err_nomem(err, entry->gguf);
        return NULL;
    }
    threads_run(x->e->threads, rows, 1, encode_rows, &job);
    return x->bytes;
}

/* See gguf_fetch. */
static const void *fetch_merged(void *state, size_t index, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct export_entry *entry = &x->entries[index];
    /* A vector is one row. */
    size_t rows = entry->rows, cols = entry->at.cols, one = (rows ? rows : 1) * cols;
    if (!reserve_values(x, one * entry->stack)) {
        err_nomem(err, entry->at.name);
        return NULL;
    }
    /* All experts of a stack are in memory at once, as they are one tensor of the file. */
    for (size_t k = 0; k < entry->stack; k++)
        if (!read_matrix(x, entry, k, x->values + k * one, err))
            return NULL;
    if (rows == 0) { /* a bias is a column of single numbers, a convolution has rows of channels */
        cols = entry->at.kind == TENSOR_CONV ? x->e->model->config.delta_conv : 1;
        rows = one / cols;
    }
    return encode_values(x, entry, true, true, rows * entry->stack, cols, err);
}

/* What both kinds of files need: names for the architecture, and settings that GGUF can say. */
static tinker_status begin_export(struct gguf_exporting *x, tinker_error *err)
{
    const struct model_config *c = &x->e->model->config;
    arena_init(&x->arena, SIZE_MAX);
    gguf_writer_init(&x->w);
    /* The families that gguf_config.c reads are those that are written. */
    x->family = gguf_family_by_type(c->arch->name);
    if (!x->family)
        return err_set(
            err, TINKER_EINVAL,
            "models of type %s are not written as GGUF; export the merged model in Hugging "
            "Face format and convert that",
            c->arch->name);
    if (c->arch->delta)
        x->heads = (struct gguf_heads){ c->delta_k_heads, c->delta_v_heads, c->delta_k_dim,
                                        c->delta_v_dim };
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

/* Tensors that the rope has in files: the divisors of Llama 3's frequencies, which
 * put_llama3_rope() reads back, and longrope's two lists.  They are vectors of their own in GGUF,
 * because llama.cpp keeps config.json's lists nowhere else. */
static tinker_status plan_rope(struct gguf_exporting *x, tinker_error *err)
{
    static const char *const names[] = { "rope_freqs.weight", "rope_factors_long.weight",
                                         "rope_factors_short.weight" };
    const struct model_config *c = &x->e->model->config;
    uint64_t n = c->rotary / 2;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct tensor_place at = { .kind = TENSOR_NORM, .cols = n, .name = "rope" };
        if (c->rope.type != (i == 0 ? ROPE_LLAMA3 : ROPE_LONGROPE))
            continue;
        if (!add_entry(x, &at, names[i], err))
            return TINKER_ENOMEM;
        gguf_put_tensor(&x->w, names[i], GGUF_TENSOR_F32, 1, &n);
    }
    return TINKER_OK;
}

static const void *fetch_tensor(void *state, size_t index, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct model *m = x->e->model;
    const struct export_entry *entry = &x->entries[index];
    size_t d = m->config.rotary;
    /* "rope" is the name that plan_rope() gave them; no tensor of a model is called so. */
    if (strcmp(entry->at.name, "rope") != 0)
        return fetch_merged(state, index, err);
    if (strcmp(entry->gguf, "rope_factors_long.weight") == 0)
        return m->config.long_factor;
    if (strcmp(entry->gguf, "rope_factors_short.weight") == 0)
        return m->config.short_factor;
    if (!reserve_values(x, d / 2)) {
        err_nomem(err, entry->gguf);
        return NULL;
    }
    /* The divisor is the ratio of the plain frequency to the scaled one, which reads back as it
     * was. */
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
    /* Callers may pass NULL; everything below reads err->status. */
    tinker_error local;
    if (!err)
        err = &local;
    /* From a caller's int: the table must not be read beyond its end. */
    if ((int)type < 0 || (size_t)type >= sizeof(dtypes) / sizeof(*dtypes))
        return err_set(err, TINKER_EINVAL, "type %d of a GGUF file is unknown", (int)type);
    struct gguf_exporting x = { .e = e, .a = a, .dtype = dtypes[type] };
    tinker_status status = begin_export(&x, err);
    if (status == TINKER_OK)
        /* Metadata first: what GGUF cannot say is refused before any tensor is converted. */
        status = gguf_put_metadata(&x.w, e, x.family, x.dtype, err);
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
    /* As in plan_merged(). */
    if (at->first && is_whole(x, at))
        return TINKER_OK; /* its rows of B came with those of the module */
    if (at->kind == TENSOR_WEIGHT || (at->kind == TENSOR_EXPERT && at->expert == 0))
        pair = lora_pair(lora, at->layer, at->id);
    else if (at->kind == TENSOR_HEAD)
        pair = lora_head(lora, c->layers);
    if (!pair || !pair->a)
        return TINKER_OK;
    const char *name = choose_name(x, at, err);
    /* A and B are two tensors with the suffixes that llama.cpp's adapters have. */
    for (int b = 0; b < 2; b++) {
        struct export_entry *entry = name ? add_entry(x, at, name, err) : NULL;
        if (!entry)
            return err->status;
        entry->stack = at->kind == TENSOR_EXPERT ? c->experts : 1;
        entry->lora_b = b;
        if (b)
            put_entry(x, entry, ".lora_b", lora->rank, entry->rows);
        else
            put_entry(x, entry, ".lora_a", at->cols, lora->rank);
    }
    return TINKER_OK;
}

/* Factors are written as they are, a copy for each expert of those that experts share; rows of B
 * are rows of the weight, columns of A its columns, and move with them. */
static const void *fetch_factor(void *state, size_t index, tinker_error *err)
{
    struct gguf_exporting *x = state;
    const struct export_entry *entry = &x->entries[index];
    const struct lora *lora = &x->a->lora;
    size_t rows = entry->lora_b ? entry->rows : lora->rank;
    size_t cols = entry->lora_b ? lora->rank : entry->at.cols;
    const struct lora_pair *pair = entry->at.kind == TENSOR_HEAD
                                       ? lora_head(lora, x->e->model->config.layers)
                                       /* Head, or a linear of a layer. */
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
    return encode_values(x, entry, entry->lora_b, !entry->lora_b, rows * entry->stack, cols, err);
}

tinker_status tinker_adapter_export_gguf(const tinker_adapter *a, const char *path,
                                         tinker_error *err)
{
    struct gguf_exporting x = { .e = a->engine, .a = a, .dtype = SOURCE_F32 };
    tinker_error local;
    if (!err)
        err = &local;
    /* An adapter of full weights would be as large as the model, and llama.cpp knows no such
     * file. */
    if (!a->desc.rank)
        return err_set(err, TINKER_EINVAL,
                       "all weights were trained (rank 0): write the merged model instead");
    if (has_head_pair(&x) && a->engine->model->config.tied)
        return err_set(
            err, TINKER_EINVAL,
            "the head is the embedding of this model, which a GGUF adapter cannot change "
            "on one side: train with train_unembed false, or write the merged model");
    tinker_status status = begin_export(&x, err);
    if (status == TINKER_OK) {
        /* A factor is small: F32, whatever the base has. */
        gguf_put_kind(&x.w, x.family, "adapter", x.dtype);
        gguf_put_string(&x.w, "adapter.type", "lora", 4);
        gguf_put_f32(&x.w, "adapter.lora.alpha", (float)a->alpha);
        status = model_tensors(&a->engine->model->config, plan_factors, &x, err);
    }
    if (status == TINKER_OK)
        status = gguf_write(&x.w, path, fetch_factor, &x, err);
    return end_export(&x, status);
}
