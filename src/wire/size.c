/* size.c - byte estimates by which batches are cut and queues are limited.
 *
 * The figures per token are the reference's: cutting where it cuts gives the same requests. */
#include "wire/check.h"

#include <string.h>
#include "base/err.h"

/* Images and audio count as they are; base64 is the codec's business. */
static size_t chunk_bytes(const tinker_chunk *c, size_t per_token)
{
    switch (c->kind) {
    case TINKER_CHUNK_TEXT:
        return per_token * c->n_tokens;
    case TINKER_CHUNK_IMAGE:
    case TINKER_CHUNK_DMEL:
        return c->n_bytes;
    case TINKER_CHUNK_IMAGE_POINTER:
        return c->location ? strlen(c->location) : 0;
    }
    return 0;
}

/* 4 bytes per token: what protobuf sends. */
size_t wire_datum_bytes(const tinker_datum *datum)
{
    size_t bytes = 0;
    for (size_t i = 0; i < datum->model_input.n_chunks; i++)
        bytes += chunk_bytes(&datum->model_input.chunks[i], 4);
    for (size_t i = 0; i < datum->n_inputs; i++) {
        const tinker_tensor *t = &datum->inputs[i].tensor;
        /* The width on the wire, not in memory: a float64 counts 4 and an int32 counts 8. */
        bytes += t->n * (wire_dtype(t->dtype) == TINKER_INT64 ? 8 : 4);
        if (t->crow && t->shape && t->ndim == 2) /* row pointers and column indices */
            bytes += 8 * ((size_t)t->shape[0] + 1) + 8 * t->n;
    }
    return bytes;
}

/* 10 bytes per token: about what a number and a comma take in JSON. */
size_t wire_prompt_bytes(const tinker_model_input *prompt)
{
    size_t bytes = 0;
    for (size_t i = 0; i < prompt->n_chunks; i++)
        bytes += chunk_bytes(&prompt->chunks[i], 10);
    return bytes;
}

/* The end of a chunk that begins at first: at least one datum, then as long as both limits
 * hold. */
size_t wire_chunk_end(const tinker_datum *data, size_t n, size_t first, size_t max_len,
                      size_t max_bytes, size_t *bytes)
{
    /* Greedy, as the reference cuts: a server that counts requests sees the same ones. */
    size_t end = first, total = 0;
    while (end < n && (end == first || end - first < max_len)) {
        size_t more = wire_datum_bytes(&data[end]);
        /* A datum that is too large alone is sent alone: the service decides about it. */
        if (end > first && (total > max_bytes || more > max_bytes - total))
            break;
        /* more is at most what is left, so the sum cannot wrap; the first datum begins at 0. */
        total += more;
        end++;
    }
    if (bytes)
        *bytes = total;
    return end;
}

bool wire_worth_sparse(size_t rows, size_t cols, size_t nnz)
{
    /* Numbers to send: row pointers, and a value and a column for each entry. */
    return rows + 1 + 2 * nnz < rows * cols;
}

/* ---- lengths in tokens ----------------------------------------------------------- */

/* LEB128, at most ten bytes. */
static bool read_varint(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; *p < end && shift <= 63; shift += 7) {
        uint8_t byte = *(*p)++;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* How many tokens a chunk will be for the model; needed to know where a datum ends. */
tinker_status wire_chunk_length(const tinker_chunk *c, int64_t *length, tinker_error *err)
{
    if (c->kind == TINKER_CHUNK_TEXT) {
        *length = (int64_t)c->n_tokens;
        return TINKER_OK;
    }
    if (c->kind == TINKER_CHUNK_DMEL) {
        /* The first dimension in the header of an audio tensor container: an optional 0xFE
         * (constant tensor), the element type 0..7, then the number of dimensions and the
         * dimensions. */
        const uint8_t *p = c->bytes, *end = p ? p + c->n_bytes : p;
        uint64_t ndim = 0, first = 0, skipped;
        if (p < end && *p == 0xfe)
            p++;
        bool ok = p < end && *p++ <= 7 && read_varint(&p, end, &ndim) && ndim > 0 &&
                  read_varint(&p, end, &first) && first <= INT64_MAX;
        /* The other dimensions only have to be there. */
        for (uint64_t i = 1; ok && i < ndim; i++)
            ok = read_varint(&p, end, &skipped);
        if (!ok)
            return err_set(err, TINKER_EINVAL, "dmel: the tensor header is damaged");
        *length = (int64_t)first;
        return TINKER_OK;
    }
    /* Only the service can look into an image. */
    if (!c->has_expected_tokens)
        return err_set(err, TINKER_EINVAL,
                       "expected_tokens: needed to know the length of an image");
    /* The service may refuse a request whose image turns out to have another length. */
    *length = c->expected_tokens;
    return TINKER_OK;
}
