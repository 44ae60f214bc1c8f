/* model.c - memory of a model and the packing of its weights.
 *
 * All packed matrices lie in one allocation in the order of model_tensors(), all
 * norms and biases in another.  Packing runs on all threads, matrix by matrix, so that of what a
 * source lays out anew one matrix is in memory at a time. */
#include "engine/model/model.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "engine/kernels/blocks.h"
#include "engine/model/huge_pages.h"
#include "engine/layers/rope.h"
#include "engine/safetensors/safetensors.h"

enum { ALIGN = 64 };

/* Pieces of the two allocations begin at cache lines.  64 bytes, also what AVX-512 loads need. */
static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* What a model's weights need.  An embedding is packed only where it is also the head. */
struct sizes {
    const struct weight_source *source;
    bool tied;
    size_t packed, vectors; /* bytes */
};

static enum packed_dtype choose_format(const struct weight_source *source,
                                       const struct tensor_place *at)
{
    /* Without a format all is float32: an adapter of rank 0, which is packed for one step. */
    return source->format ? source->format(source->state, at) : PACKED_F32;
}

/* A visitor of model_tensors() that counts. */
static tinker_status add_size(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct sizes *s = state;
    (void)err;
    if (at->rows == 0)
        s->vectors += round_up(at->cols * sizeof(float));
    else if (at->kind != TENSOR_EMBED || s->tied)
        s->packed += round_up(packed_bytes(choose_format(s->source, at), at->rows, at->cols));
    return TINKER_OK;
}

/* Walks the names only; cheap enough to repeat. */
static struct sizes model_sizes(const struct model_config *c, const struct weight_source *source)
{
    struct sizes s = { .source = source, .tied = c->tied };
    model_tensors(c, add_size, &s, NULL);
    return s;
}

uint64_t model_bytes(const struct model_config *c, const struct weight_source *source)
{
    struct sizes s = model_sizes(c, source);
    return (uint64_t)s.packed + s.vectors;
}

/* Frequencies of the ropes, which lie in one allocation.  inv_freq of all of them, so that one
 * free() is enough. */
static void init_ropes(struct model *m)
{
    const struct model_config *c = &m->config;
    size_t half = c->rotary / 2;
    struct rope *all = &m->ropes[0], *local = &m->ropes[1];
    all->scale = rope_init(&c->rope, c->rotary, c->short_factor, all->inv_freq);
    if (c->rope.type == ROPE_LONGROPE) {
        /* longrope has two sets; which one counts is decided per text, by its length. */
        all->long_inv_freq = all->inv_freq + half;
        rope_init(&c->rope, c->rotary, c->long_factor, all->long_inv_freq);
    }
    /* Gemma 3 and OLMo 3 have a second rope for their sliding layers. */
    if (rope_count(c) == 1)
        return;
    local->inv_freq = all->inv_freq + 2 * half;
    local->scale = rope_init(&c->local_rope, c->rotary, NULL, local->inv_freq);
}

struct model *model_new(const struct model_config *c, const struct weight_source *source,
                        tinker_error *err)
{
    struct sizes s = model_sizes(c, source);
    /* per_layer: matrices of the experts of one sparse layer. */
    size_t per_layer = c->experts * EXPERT_LINEARS, sparse = model_sparse_layers(c);
    struct model *m = calloc(1, sizeof(*m));
    if (m) {
        m->config = *c;
        m->weight_bytes = (uint64_t)s.packed + s.vectors;
        m->layers = calloc(c->layers, sizeof(*m->layers));
        /* frequencies of both ropes, each for short and long texts */
        m->ropes[0].inv_freq = calloc(2 * MODEL_ROPES * c->rotary, sizeof(float));
        /* one more, because calloc(0) may return NULL */
        m->experts = calloc(sparse * per_layer + 1, sizeof(*m->experts));
        m->packed_memory = aligned_alloc(ALIGN, s.packed);
        m->vector_memory = aligned_alloc(ALIGN, s.vectors);
    }
    if (!m || !m->layers || !m->ropes[0].inv_freq || !m->experts || !m->packed_memory ||
        !m->vector_memory) {
        model_free(m);
        /* The size is what a user can act on: another type, or a smaller model. */
        err_set(err, TINKER_ENOMEM, "no memory for %zu bytes of weights", s.packed + s.vectors);
        return NULL;
    }
    /* the experts of all sparse layers lie one after the other */
    for (size_t i = 0, at = 0; i < c->layers; i++)
        if (model_sparse(c, i))
            m->layers[i].experts = m->experts + per_layer * at++;
    init_ropes(m);
    return m;
}

/* The thread that enlarges pages must end before their memory is freed. */
void model_free(struct model *m)
{
    if (!m)
        return;
    free(m->layers);
    free(m->experts);
    free(m->ropes[0].inv_freq);
    huge_pages_free(m->pages);
    free(m->packed_memory);
    free(m->vector_memory);
    free(m);
}

void weight_to_float(const struct weight *w, size_t rows, size_t cols, float *out)
{
    if (!w->pairs) {
        st_to_float(w->data, w->dtype, 0, rows * cols, out);
        return;
    }
    for (size_t i = 0; i < rows; i++)
        st_to_float(w->data, w->dtype, packed_source_row(w->pairs, i) * cols, cols, out + i * cols);
}

/* The walk of model_fill(), which packs what it visits.  packed and vectors advance in the same
 * order in which model_sizes() has counted them. */
struct filling {
    struct model *m;
    struct threads *threads;
    const struct weight_source *source;
    char *packed, *vectors; /* next free byte */
};

/* One matrix being packed; slices are rows. */
struct pack_job {
    struct packed *packed;
    struct packed_source source;
};

static void pack_slice(void *arg, size_t begin, size_t end)
{
    const struct pack_job *j = arg;
    packed_fill(j->packed, &j->source, begin, end);
}

/* Where the model keeps a matrix; the embedding comes here only as a tied head. */
static struct linear *place_linear(struct model *m, const struct tensor_place *at)
{
    /* Not dereferenced for tensors outside of layers, whose at->layer is 0. */
    struct layer *layer = &m->layers[at->layer];
    switch (at->kind) {
    case TENSOR_WEIGHT:
        return &layer->linear[at->id];
    case TENSOR_ROUTER:
        return &layer->router;
    case TENSOR_EXPERT:
        return &layer->experts[at->expert * EXPERT_LINEARS + (size_t)(at->id - LINEAR_GATE)];
    default:
        return &m->head;
    }
}

/* Where the model keeps a norm, a bias or another vector. */
static const float **place_vector(struct model *m, const struct tensor_place *at)
{
    struct layer *layer = &m->layers[at->layer];
    switch (at->kind) {
    case TENSOR_NORM1:
        return &layer->norm1;
    case TENSOR_NORM2:
        return &layer->norm2;
    case TENSOR_POST_NORM1:
        return &layer->post_norm1;
    case TENSOR_POST_NORM2:
        return &layer->post_norm2;
    case TENSOR_Q_NORM:
        return &layer->q_norm;
    case TENSOR_K_NORM:
        return &layer->k_norm;
    case TENSOR_SINKS:
        return &layer->sinks;
    case TENSOR_BIAS:
        return &layer->linear[at->id].bias;
    case TENSOR_CONV:
        return &layer->conv;
    case TENSOR_A_LOG:
        return &layer->a_log;
    case TENSOR_DT_BIAS:
        return &layer->dt_bias;
    case TENSOR_DELTA_NORM:
        return &layer->delta_norm;
    case TENSOR_ROUTER_BIAS:
        return &layer->router.bias;
    case TENSOR_EXPERT_BIAS:
        return &layer->experts[at->expert * EXPERT_LINEARS + (size_t)(at->id - LINEAR_GATE)].bias;
    default:
        return &m->norm;
    }
}

/* (Gemma computes x * (1 + w); the delta rule's norm does not.) */
bool model_is_offset_norm(enum tensor_kind kind)
{
    switch (kind) {
    case TENSOR_NORM1:
    case TENSOR_NORM2:
    case TENSOR_POST_NORM1:
    case TENSOR_POST_NORM2:
    case TENSOR_Q_NORM:
    case TENSOR_K_NORM:
    case TENSOR_NORM:
        return true;
    default:
        return false;
    }
}

/* The weight of a tensor's place; where that is some rows of a stored matrix, those rows. */
static bool get_weight(const struct weight_source *source, const struct tensor_place *at,
                       struct weight *out, tinker_error *err)
{
    size_t rows = tensor_stored_rows(at);
    size_t cols = !at->rows && at->stored ? at->stored : at->cols;
    if (!source->get(source->state, at->name, rows, cols, out, err))
        return false;
    /* Rows of a matrix, elements of a vector. */
    size_t skip = at->first * (at->rows ? at->cols : 1);
    out->data = (const char *)out->data + source_bytes(out->dtype, skip);
    return true;
}

/* Packs a matrix into the next free bytes, on all threads. */
static tinker_status pack_matrix(struct filling *f, const struct tensor_place *at,
                                 const struct weight *source, tinker_error *err)
{
    struct linear *linear = place_linear(f->m, at);
    enum packed_dtype format = choose_format(f->source, at);
    struct pack_job job = { .packed = packed_begin(f->packed, format, at->rows, at->cols),
                            .source = { source->data, source->dtype, source->pairs } };
    /* The type of the first q stands for the whole model in descriptions. */
    if (at->kind == TENSOR_WEIGHT && at->layer == 0 && at->id == LINEAR_Q)
        f->m->dtype = format;
    /* PACKED_Q8_0 and above are blocks, from which no weight can be trained. */
    f->m->quantized |= format >= PACKED_Q8_0;
    linear->w = job.packed;
    linear->out = at->rows;
    linear->in = at->cols;
    f->packed += round_up(packed_bytes(format, at->rows, at->cols));
    /* A safetensors header of odd length leaves its data unaligned, which the fast way from
     * bfloat16 cannot read; all others copy bytes. */
    void *aligned = NULL;
    if (source->dtype == SOURCE_BF16 && (uintptr_t)source->data % sizeof(uint16_t) != 0) {
        size_t bytes = source_bytes(source->dtype, at->rows * at->cols);
        aligned = malloc(bytes);
        if (!aligned)
            return err_nomem(err, at->name);
        memcpy(aligned, source->data, bytes);
        job.source.data = aligned;
    }
    /* A grain of whole tiles: two threads never write one. */
    threads_run(f->threads, at->rows, gemm_grain(), pack_slice, &job);
    free(aligned);
    return TINKER_OK;
}

/* Converts a vector. */
static void fill_vector(struct filling *f, const struct tensor_place *at,
                        const struct weight *source)
{
    float *values = (float *)(void *)f->vectors;
    weight_to_float(source, at->cols, 1, values);
    /* 1 is added once here and not in every kernel. */
    for (size_t i = 0; f->m->config.plus_one && model_is_offset_norm(at->kind) && i < at->cols; i++)
        values[i] += 1;
    *place_vector(f->m, at) = values;
    f->vectors += round_up(at->cols * sizeof(float));
}

/* A visitor of model_tensors(). */
static tinker_status fill_tensor(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct filling *f = state;
    struct weight source = { 0 };
    tinker_status status = TINKER_OK;
    if (!get_weight(f->source, at, &source, err))
        return err ? err->status : TINKER_EINVAL;
    if (at->kind == TENSOR_EMBED) {
        /* read row by row from the source; also packed where it is the head */
        f->m->embed = source.data;
        f->m->embed_dtype = source.dtype;
    }
    if (at->rows == 0)
        fill_vector(f, at, &source);
    else if (at->kind != TENSOR_EMBED || f->m->config.tied)
        status = pack_matrix(f, at, &source, err);
    /* Tells the source that its pages are not needed any more, unless it gave a copy. */
    if (f->source->done && !source.owned)
        f->source->done(source.data,
                        source_bytes(source.dtype, (at->rows ? at->rows : 1) * at->cols));
    free(source.owned);
    return status;
}

tinker_status model_fill(struct model *m, struct threads *t, const struct weight_source *source,
                         tinker_error *err)
{
    struct filling f = { .m = m,
                         .threads = t,
                         .source = source,
                         .packed = m->packed_memory,
                         .vectors = m->vector_memory };
    tinker_status status = model_tensors(&m->config, fill_tensor, &f, err);
    /* a rank-0 adapter fills its model again after each step, in the same memory.
     * huge_pages_start() works in the background; see there. */
    if (status == TINKER_OK && !m->pages)
        m->pages = huge_pages_start(m->packed_memory, model_sizes(&m->config, source).packed);
    return status;
}

/* One row of the table per token, converted from the type of the file. */
void model_embed(const struct model *m, const int32_t *tokens, size_t n, float *x)
{
    size_t hidden = m->config.hidden;
    for (size_t i = 0; i < n; i++)
        st_to_float(m->embed, m->embed_dtype, (size_t)tokens[i] * hidden, hidden, x + i * hidden);
}
