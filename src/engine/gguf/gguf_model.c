/* gguf_model.c - open a GGUF model and find its weights; see gguf_model.h. */
#include "engine/gguf/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "engine/kernels/blocks.h"
#include "json/json.h"

static bool has_key(const struct gguf *g, const char *arch, size_t n, const char *key)
{
    char full[128];
    int64_t value;
    snprintf(full, sizeof(full), "%.*s.%s", (int)n, arch, key);
    return gguf_get_int(g, full, &value) && value > 0;
}

static tinker_status choose_family(struct gguf_model *m, tinker_error *err)
{
    const struct gguf *g = &m->file;
    const char *s;
    size_t n;
    /* A file of factors has no network of its own. */
    if (gguf_get_string(g, "general.type", &s, &n) && n == 7 && memcmp(s, "adapter", 7) == 0)
        return err_set(err, TINKER_EINVAL, "%s: an adapter, not a model", g->path);
    if (!gguf_get_string(g, "general.architecture", &s, &n))
        return err_set(err, TINKER_EINVAL, "%s: no general.architecture in it", g->path);
    if (n < 32)
        /* Names are compared with a bound, as the text is the file's. */
        m->family = gguf_family_by_arch(s, n, has_key(g, s, n, "expert_count"),
                                        has_key(g, s, n, "attention.sliding_window"));
    if (m->family)
        return TINKER_OK;
    char known[256];
    gguf_list_families(known, sizeof(known));
    return err_set(err, TINKER_EINVAL, "%s: architecture %.*s is not supported (%s are)", g->path,
                   n > 60 ? 60 : (int)n, s, known);
}

/* Scales of blocks; plain numbers are the file's own affair, as in safetensors. */
static tinker_status check_scales(const struct gguf *g, tinker_error *err)
{
    /* A scale of infinity makes a row NaN, which would show only in the middle of a sample. */
    for (size_t i = 0; i < g->n; i++) {
        const struct gguf_tensor *t = g->tensors[i];
        enum source_dtype dtype;
        size_t n = (size_t)(t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]);
        if (gguf_source_dtype(t->type, &dtype) && source_block(dtype) > 1 &&
            !source_is_finite(t->data, dtype, n))
            return err_set(err, TINKER_EINVAL, "%s: tensor %s has a scale that is not finite",
                           g->path, t->name);
        os_map_evict(t->data, t->bytes); /* not all of the file at a time */
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
    struct json_writer w;
    /* The text that config.c parses next; it lives as long as the file. */
    json_writer_init(&w, &m->config);
    status = choose_family(m, err);
    if (status == TINKER_OK)
        status = gguf_put_config(&w, &m->file, m->family, err);
    if (status == TINKER_OK && !buf_ok(&m->config))
        status = err_nomem(err, path);
    if (status == TINKER_OK)
        status = check_scales(&m->file, err);
    if (status != TINKER_OK) {
        gguf_model_close(m);
        return status;
    }
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

void gguf_model_configure(struct gguf_model *m, const struct model_config *c)
{
    m->head_dim = c->head_dim;
    /* Without delta layers heads stays 0: nothing is in another order. */
    if (c->arch->delta)
        m->heads = (struct gguf_heads){ c->delta_k_heads, c->delta_v_heads, c->delta_k_dim,
                                        c->delta_v_dim };
}

/* One tensor of the model: where the file has it. */
struct gguf_place {
    const struct gguf_tensor *tensor; /* NULL: it does not */
    char name[128];                   /* there; "": it has no name */
    int64_t expert;                   /* -1: not one of a stack */
    size_t first, stored;             /* rows from which on, of so many; stored 0: all */
    enum source_dtype dtype;
    bool known; /* dtype */
};

/* Gates and ups of experts may be one stack, gates first. */
static void find_fused_experts(const struct gguf_model *m, struct gguf_place *p, size_t rows)
{
    char name[128];
    bool gate = strstr(p->name, ".ffn_gate_exps.") != NULL;
    const char *at = strstr(p->name, gate ? ".ffn_gate_exps." : ".ffn_up_exps.");
    if (!at)
        return;
    /* The suffix, .weight or .bias, is that of the stack as well. */
    snprintf(name, sizeof(name), "%.*s.ffn_gate_up_exps%s", (int)(at - p->name), p->name,
             strrchr(p->name, '.'));
    p->tensor = gguf_find(&m->file, name);
    p->first = gate ? 0 : rows;
    p->stored = 2 * rows;
}

static struct gguf_place find_place(const struct gguf_model *m, const char *name, size_t rows)
{
    struct gguf_place p = { .expert = -1 };
    if (gguf_tensor_name(m->family, name, p.name, &p.expert))
        p.tensor = gguf_find(&m->file, p.name);
    else
        p.name[0] = '\0';
    /* A stack of its own is missing: perhaps gate and up are one. */
    if (!p.tensor && p.expert >= 0)
        find_fused_experts(m, &p, rows);
    p.known = p.tensor && gguf_source_dtype(p.tensor->type, &p.dtype);
    return p;
}

/* Whether columns in the order of the file cannot be moved as they are.  Moving a piece of a block
 * would need its scale to be another one. */
static bool splits_blocks(const struct gguf_order *o, enum source_dtype dtype)
{
    return o->size && o->columns && o->size % source_block(dtype) != 0;
}

bool gguf_model_dtype(const struct gguf_model *m, const char *name, enum source_dtype *out)
{
    struct gguf_place p = find_place(m, name, 0);
    struct gguf_order order = gguf_order_of(&m->heads, p.name);
    /* Such a matrix is unpacked when it is read, so it counts as float. */
    *out = splits_blocks(&order, p.dtype) ? SOURCE_F32 : p.dtype;
    return p.known;
}

/* The shape of a tensor, against the one that the metadata asks for.  A vector may have further
 * dimensions (a convolution), or be one of those of all experts. */
static bool has_shape(const struct gguf_place *p, size_t rows, size_t cols)
{
    const uint64_t *dim = p->tensor->dim;
    uint64_t experts = dim[rows ? 2 : 1];
    if (dim[3] != 1 || (p->expert >= 0 && (uint64_t)p->expert >= experts))
        /* dim[3]: four dimensions occur only in models of pictures. */
        return false;
    if (p->expert >= 0)
        return dim[0] == cols && (rows ? dim[1] == (p->stored ? p->stored : rows) : dim[2] == 1);
    if (rows == 0)
        /* (dim[0] * dim[1] cannot overflow: both are at most cols.) */
        return dim[2] == 1 && dim[0] <= cols && dim[1] <= cols && dim[0] * dim[1] == cols;
    return dim[0] == cols && dim[1] == rows && dim[2] == 1;
}

/* w (rows, cols), whose rows or columns are in the order of the file, in that of the model. */
static bool restore_order(struct weight *w, const struct gguf_order *o, size_t rows, size_t cols)
{
    bool wide = splits_blocks(o, w->dtype);
    enum source_dtype dtype = wide ? SOURCE_F32 : w->dtype;
    size_t row = source_bytes(dtype, cols), from_row = source_bytes(w->dtype, cols);
    /* Columns move in pieces of one head, rows as a whole. */
    size_t piece = o->columns ? source_bytes(dtype, o->size) : row;
    size_t pieces = o->columns ? cols / o->size : 1;
    char *owned = malloc(rows * row);
    float *values = wide ? malloc(row) : NULL;
    if (!owned || (wide && !values)) {
        free(owned);
        free(values);
        return false;
    }
    for (size_t i = 0; i < rows; i++) {
        const char *from =
            (const char *)w->data + (o->columns ? i : gguf_order_place(o, i)) * from_row;
        /* Into a row of floats, because a head is not a whole number of blocks. */
        if (wide) {
            source_to_float(values, from, w->dtype, 0, cols);
            from = (const char *)values;
        }
        for (size_t k = 0; k < pieces; k++) {
            size_t at = o->columns ? gguf_order_place(o, k * o->size) / o->size : 0;
            memcpy(owned + i * row + k * piece, from + at * piece, piece);
        }
    }
    free(values);
    *w = (struct weight){ .data = owned, .dtype = dtype, .owned = owned };
    return true;
}

/* Files have -exp(A_log).  False: no memory, or not a negative number. */
static bool restore_a_log(struct weight *w, size_t n, const struct gguf_order *o, bool *negative)
{
    float *owned = malloc(n * sizeof(*owned));
    *negative = true;
    for (size_t i = 0; owned && i < n; i++) {
        float a;
        source_to_float(&a, w->data, w->dtype, gguf_order_place(o, i), 1);
        *negative = *negative && a < 0;
        /* NaN of a positive number is never used: the caller refuses the file. */
        owned[i] = logf(-a);
    }
    *w = (struct weight){ .data = owned, .dtype = SOURCE_F32, .owned = owned };
    return owned && *negative;
}

/* What is in another order, or another form, than in a model.  False with *err set: it cannot be. */
static bool restore_weight(const struct gguf_model *m, const struct gguf_place *p,
                           struct weight *out, size_t rows, size_t cols, tinker_error *err)
{
    struct gguf_order order = gguf_order_of(&m->heads, p->name);
    size_t n = strlen(p->name);
    bool negative = true;
    /* ssm_a is the only tensor in another form; norms get their 1 by plus_one as in the model's own
     * files. */
    if (n > 6 && strcmp(p->name + n - 6, ".ssm_a") == 0) {
        if (restore_a_log(out, cols, &order, &negative))
            return true;
        free(out->owned);
    } else if (!order.size) {
        return true;
    } else if (rows) {
        if (restore_order(out, &order, rows, cols))
            return true;
    } else { /* of a convolution the rows are its channels */
        size_t channels = order.skip + m->heads.values * order.size;
        if (cols % channels == 0 && restore_order(out, &order, channels, cols / channels))
            return true;
    }
    if (negative)
        err_nomem(err, p->name);
    else
        err_set(err, TINKER_EINVAL, "%s: tensor %s has a number that is not negative", m->file.path,
                p->name);
    return false;
}

bool gguf_model_weight(const struct gguf_model *m, const char *name, size_t rows, size_t cols,
                       struct weight *out, tinker_error *err)
{
    struct gguf_place p = find_place(m, name, rows);
    if (!p.tensor) {
        err_set(err, TINKER_EINVAL, "%s: tensor %s (%s) is missing", m->file.path,
                p.name[0] ? p.name : "?", name);
        return false;
    }
    if (!p.known || !has_shape(&p, rows, cols)) {
        err_set(err, TINKER_EINVAL, "%s: tensor %s is not %zu x %zu as the metadata asks",
                m->file.path, p.name, rows ? rows : 1, cols);
        return false;
    }
    size_t stored = p.stored ? p.stored : rows ? rows : 1;
    /* An expert's matrix begins after those before it, each of `stored` rows. */
    size_t skip = p.expert < 0 ? 0 : ((size_t)p.expert * stored + p.first) * cols;
    *out = (struct weight){ .data = (const char *)p.tensor->data + source_bytes(p.dtype, skip),
                            .dtype = p.dtype,
                            .pairs = m->family->pairs && is_rotated(p.name) ? m->head_dim : 0 };
    return restore_weight(m, &p, out, rows, cols, err);
}
