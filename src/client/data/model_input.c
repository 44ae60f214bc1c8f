/* model_input.c - see <tinker/input.h>. */
#include <tinker/data.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/tensor.h>
#include "base/arena.h"
#include "base/err.h"
#include "wire/check.h"

struct tinker_input {
    tinker_model_input view; /* its chunks are ours */
    size_t cap;
    size_t room;        /* of the last chunk, if it is text that we allocated: tokens */
    int32_t *tokens;    /* of that chunk */
    struct arena arena; /* what other chunks hold, and texts that are complete */
};

tinker_input *tinker_input_new(tinker_error *err)
{
    tinker_input *in = calloc(1, sizeof(*in));
    if (!in)
        err_nomem(err, "model input");
    else
        arena_init(&in->arena, SIZE_MAX);
    return in;
}

void tinker_input_free(tinker_input *in)
{
    if (!in)
        return;
    arena_clear(&in->arena);
    free((void *)in->view.chunks);
    free(in);
}

/* Chunks may move when one is appended, hence "borrowed until the next append". */
const tinker_model_input *tinker_input_view(const tinker_input *in)
{
    return &in->view;
}

/* The view is const for its users; the chunks are ours. */
static tinker_chunk *last_chunk(tinker_input *in)
{
    return (tinker_chunk *)&in->view.chunks[in->view.n_chunks - 1];
}

/* Room for one more chunk; NULL: no memory. */
static tinker_chunk *grow_chunks(tinker_input *in)
{
    if (in->view.n_chunks == in->cap) {
        size_t cap = in->cap ? 2 * in->cap : 4;
        tinker_chunk *v = realloc((void *)in->view.chunks, cap * sizeof(*v));
        if (!v)
            return NULL;
        in->view.chunks = v;
        in->cap = cap;
    }
    return (tinker_chunk *)&in->view.chunks[in->view.n_chunks];
}

/* Room for n more tokens in the last chunk. Room doubles, and the arena keeps the arrays that
 * were too small until the input is freed: together they are no larger than the last. */
static bool grow_tokens(tinker_input *in, size_t n)
{
    tinker_chunk *c = last_chunk(in);
    if (in->tokens && n <= in->room - c->n_tokens)
        return true;
    if (n > SIZE_MAX / 8 - c->n_tokens)
        return false;
    size_t room = c->n_tokens + n < 32 ? 64 : 2 * (c->n_tokens + n);
    int32_t *tokens = arena_array(&in->arena, room, sizeof(*tokens));
    if (!tokens)
        return false;
    if (c->n_tokens)
        memcpy(tokens, c->tokens, c->n_tokens * sizeof(*tokens));
    c->tokens = in->tokens = tokens;
    in->room = room;
    return true;
}

/* Text behind text is one chunk, so that cutting a prompt at other places gives the same input. A
 * chunk that was begun for tokens that do not fit is taken back: nothing changes on failure. */
tinker_status tinker_input_append_tokens(tinker_input *in, const int32_t *tokens, size_t n,
                                         tinker_error *err)
{
    if (n == 0)
        return TINKER_OK;
    if (!tokens)
        return err_set(err, TINKER_EINVAL, "no tokens to append");
    bool fresh = in->view.n_chunks == 0 || last_chunk(in)->kind != TINKER_CHUNK_TEXT;
    if (fresh) {
        tinker_chunk *c = grow_chunks(in);
        if (!c)
            return err_nomem(err, "model input");
        *c = (tinker_chunk){ .kind = TINKER_CHUNK_TEXT };
        in->tokens = NULL;
        in->view.n_chunks++;
    }
    if (!grow_tokens(in, n)) {
        in->view.n_chunks -= fresh;
        return err_nomem(err, "model input");
    }
    tinker_chunk *c = last_chunk(in);
    memcpy(in->tokens + c->n_tokens, tokens, n * sizeof(*tokens));
    c->n_tokens += n;
    return TINKER_OK;
}

/* A copy of everything, so that the caller may free the original. The number of chunks grows last: on
 * failure the input is as it was. */
tinker_status tinker_input_append(tinker_input *in, const tinker_chunk *chunk, tinker_error *err)
{
    const tinker_model_input one = { chunk, 1 };
    tinker_status s = chunk ? wire_check_model_input(&one, true, err)
                            : err_set(err, TINKER_EINVAL, "no chunk to append");
    if (s != TINKER_OK)
        return s;
    if (chunk->kind == TINKER_CHUNK_TEXT)
        return tinker_input_append_tokens(in, chunk->tokens, chunk->n_tokens, err);
    tinker_chunk *c = grow_chunks(in), copy = *chunk;
    copy.tokens = NULL;
    copy.bytes = chunk->n_bytes ? arena_memdup(&in->arena, chunk->bytes, chunk->n_bytes) : NULL;
    copy.format = chunk->format ? arena_strdup(&in->arena, chunk->format) : NULL;
    copy.location = chunk->location ? arena_strdup(&in->arena, chunk->location) : NULL;
    if (!c || (chunk->n_bytes && !copy.bytes) || (chunk->format && !copy.format) ||
        (chunk->location && !copy.location))
        return err_nomem(err, "model input");
    *c = copy;
    in->view.n_chunks++;
    return TINKER_OK;
}

/* ---- asking --------------------------------------------------------------------------------- */

/* Images and audio say how many tokens they stand for; the error names the chunk that does not. */
tinker_status tinker_model_input_length(const tinker_model_input *input, int64_t *out,
                                        tinker_error *err)
{
    int64_t sum = 0;
    for (size_t i = 0; i < input->n_chunks; i++) {
        int64_t n = 0;
        tinker_status s = wire_chunk_length(&input->chunks[i], &n, err);
        if (s == TINKER_OK && n > INT64_MAX - sum)
            s = err_set(err, TINKER_EINVAL, "the input is longer than any model reads");
        if (s != TINKER_OK) {
            if (err)
                err_prefix(err, "chunks[%zu]", i);
            return s;
        }
        sum += n;
    }
    *out = sum;
    return TINKER_OK;
}

/* *n is the number of all tokens, so a caller with too little room knows how much to get. */
tinker_status tinker_model_input_tokens(const tinker_model_input *input, int32_t *out, size_t cap,
                                        size_t *n, tinker_error *err)
{
    size_t sum = 0;
    for (size_t i = 0; i < input->n_chunks; i++) {
        const tinker_chunk *c = &input->chunks[i];
        if (c->kind != TINKER_CHUNK_TEXT)
            return err_set(err, TINKER_EINVAL, "chunks[%zu] is not text, so it has no tokens", i);
        size_t room = sum < cap ? cap - sum : 0, k = c->n_tokens < room ? c->n_tokens : room;
        if (k)
            memcpy(out + sum, c->tokens, k * sizeof(*out));
        sum += c->n_tokens;
    }
    *n = sum;
    return TINKER_OK;
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* IEEE 754 binary16: 1 sign bit, 5 of exponent (bias 15), 10 of fraction. float32 has 8 (bias 127)
 * and 23, so every value has its exact counterpart. */
static float widen_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, bits;
    uint32_t fraction = h & 0x3ff;
    if (exponent == 0x1f) /* infinity, NaN */
        bits = 0x7f800000U | fraction << 13;
    else if (exponent)
        bits = (exponent + 127 - 15) << 23 | fraction << 13;
    else { /* zero and subnormal: fraction * 2^-24 */
        float f = (float)fraction / 16777216.0F;
        memcpy(&bits, &f, sizeof(bits));
    }
    bits |= sign;
    float out;
    memcpy(&out, &bits, sizeof(out));
    return out;
}

void tinker_widen_float16(const uint16_t *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = widen_half(in[i]);
}

void tinker_widen_bfloat16(const uint16_t *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)in[i] << 16;
        memcpy(&out[i], &bits, sizeof(bits));
    }
}

/* Only float64 can lose anything on its way to float32. NaN has no other value to become (v !=
 * v). */
int tinker_tensor_is_exact(const tinker_tensor *t)
{
    if (wire_check_tensor(t, NULL) != TINKER_OK)
        return 0;
    const double *v = t->data;
    for (size_t i = 0; t->dtype == TINKER_FLOAT64 && i < t->n; i++)
        if (v[i] == v[i] && (double)(float)v[i] != v[i])
            return 0;
    return 1;
}
