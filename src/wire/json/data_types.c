/* data_types.c - model inputs, tensors, datums and sampling settings in JSON.
 *
 * Chunks are a tagged union over tinker_chunk.  A tensor's element type follows its
 * data in the text, so the data is kept raw until the object ends. */
#include "wire/json/data_types.h"

#include <math.h>
#include <string.h>
#include "wire/check.h"

#define REQ WIRE_REQUIRED
#define NUL WIRE_NULLABLE

/* ---- chunks ---------------------------------------------------------------------- */

static const char *const chunk_kinds[] = { "encoded_text", "image", "image_asset_pointer", "dmel",
                                           NULL };
static const char *const image_formats[] = { "png", "jpeg", NULL };
/* Bits of the variants, for .variants of the fields below. */
enum {
    IN_TEXT = 1 << TINKER_CHUNK_TEXT,
    IN_IMAGE = 1 << TINKER_CHUNK_IMAGE,
    IN_POINTER = 1 << TINKER_CHUNK_IMAGE_POINTER,
    IN_DMEL = 1 << TINKER_CHUNK_DMEL
};
_Static_assert(sizeof(tinker_chunk_kind) == sizeof(int), "the tag is read as an int");

/* Image chunks of SDK 0.5 had a number of this name: their token count. */
static bool read_tokens(struct wire_reader *r, void *value)
{
    tinker_chunk *c = value;
    if (r->mode == WIRE_LENIENT && json_peek(&r->json) == JSON_NUMBER) {
        c->has_expected_tokens = 1;
        return wire_read_int(r, &c->expected_tokens);
    }
    return wire_read_int32s(r, &c->tokens, &c->n_tokens);
}

/* read_tokens() accepts a number for an image; a text chunk needs the list. An empty list is not
 * NULL, see wire_read_int32s(). */
static bool check_chunk(struct wire_reader *r, const void *value)
{
    const tinker_chunk *c = value;
    return c->kind != TINKER_CHUNK_TEXT || c->tokens ||
           wire_read_fail(r, "tokens: expected an array, got a number");
}

/* Text chunks only: the number of an old image chunk is never written. */
static bool write_tokens(struct wire_writer *w, const char *key, const void *value)
{
    const tinker_chunk *c = value;
    json_put_key(&w->json, key);
    json_put_array_int32(&w->json, c->tokens, c->n_tokens);
    return true;
}

/* Tokens are hashed as numbers: JSON and protobuf requests with the same ones are equal. */
static uint64_t hash_tokens(uint64_t h, const void *value)
{
    const tinker_chunk *c = value;
    return wire_hash_bytes(h, c->tokens, c->n_tokens * sizeof(*c->tokens));
}

/* One part of a model input; `type` says which fields it has. */
#define T tinker_chunk
static const struct wire_field chunk[] = {
    /* Keys in the order of the reference, with the tag last. Readers take any order: until the tag
     * is known, fields of all variants are filled. */
    { .name = "tokens",
      .kind = WIRE_CUSTOM,
      .flags = REQ,
      .variants = IN_TEXT,
      .read = read_tokens,
      .write = write_tokens,
      .hash = hash_tokens,
      .schema = "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}" },
    /* "data" and "dmel" are one member in C; only one of them belongs to the variant. */
    { .name = "data",
      .kind = WIRE_BYTES,
      .flags = REQ,
      .offset = offsetof(T, bytes),
      .aux = offsetof(T, n_bytes),
      .variants = IN_IMAGE },
    { WIRE_FIELD(T, format, WIRE_WORD, REQ), .variants = IN_IMAGE | IN_POINTER,
      .words = image_formats },
    /* An address that the service fetches the image from. */
    { WIRE_FIELD(T, location, WIRE_STRING, REQ), .variants = IN_POINTER },
    /* Advisory: the service may refuse a request early when the image has another length. */
    { WIRE_FIELD(T, expected_tokens, WIRE_INT_HAS, NUL), .aux = offsetof(T, has_expected_tokens),
      .variants = IN_IMAGE | IN_POINTER },
    { .name = "dmel",
      .kind = WIRE_BYTES,
      .flags = REQ,
      .offset = offsetof(T, bytes),
      .aux = offsetof(T, n_bytes),
      .variants = IN_DMEL },
    { .name = "type",
      .kind = WIRE_ENUM,
      .flags = REQ,
      .offset = offsetof(T, kind),
      .words = chunk_kinds },
};
static const struct wire_type wire_chunk = {
    .name = "ModelInputChunk", WIRE_TABLE(T, chunk), .tag = "type", .check = check_chunk
};
#undef T

/* The parts in order, as the model sees them. */
#define T tinker_model_input
static const struct wire_field model_input[] = {
    { WIRE_FIELD(T, chunks, WIRE_LIST, REQ), .aux = offsetof(T, n_chunks), .type = &wire_chunk },
};
const struct wire_type wire_model_input = { .name = "ModelInput", WIRE_TABLE(T, model_input) };
#undef T

/* ---- tensors --------------------------------------------------------------------- */

/* The list is the arena's; a number beyond 32 bits is an error. */
bool wire_read_int32s(struct wire_reader *r, const int32_t **out, size_t *n)
{
    int32_t *v = NULL;
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    if (!json_array_int32(&r->json, &v, n))
        return wire_read_ok(r) && wire_read_nomem(r);
    *out = v ? v : arena_alloc(r->arena, sizeof *v); /* an empty list is there, too */
    return *out != NULL || wire_read_nomem(r);
}

/* null leaves *out NULL: a shape or an index that is not given. */
static bool read_int64s(struct wire_reader *r, const int64_t **out, size_t *n)
{
    int64_t *v = NULL;
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    if (!json_array_int64(&r->json, &v, n))
        return wire_read_ok(r) && wire_read_nomem(r);
    *out = v;
    return true;
}

/* The members of TensorData as they stand in the text.  SDKs before 0.25 send tensors in this
 * form; newer ones use protobuf. */
struct tensor_text {
    struct json_str data;
    const char *dtype;
    const int64_t *shape, *crow, *col;
    size_t n_shape, n_crow, n_col;
};

/* Read the numbers of t->data now that their type is known. */
static bool read_elements(struct wire_reader *r, const struct tensor_text *t, tinker_tensor *out)
{
    struct json_reader in;
    bool ok = false;
    /* Errors still name the line and column in the whole text. */
    json_reader_part(&in, &r->json, t->data);
    if (strcmp(t->dtype, "int64") == 0) {
        /* 3.0 is an integer, 3.5 is not; null is none in either type. */
        int64_t *v = NULL;
        out->dtype = TINKER_INT64;
        ok = json_array_int64(&in, &v, &out->n);
        out->data = v;
    } else if (strcmp(t->dtype, "float32") == 0) {
        float *v = NULL;
        out->dtype = TINKER_FLOAT32;
        ok = json_array_float(&in, &v, &out->n);
        out->data = v;
    } else {
        return wire_read_fail(r, "expected \"int64\" or \"float32\" as dtype, got \"%.40s\"",
                              t->dtype);
    }
    return ok || wire_read_failed(r, "data", &in);
}

/* The counts that tinker_tensor does not carry; the rest is wire_check_tensor's. */
static bool check_counts(struct wire_reader *r, const struct tensor_text *t,
                         const tinker_tensor *out)
{
    /* Compressed sparse rows: crow has rows + 1 entries, col one for each value. */
    if (!t->crow != !t->col)
        return wire_read_fail(r, "sparse_crow_indices and sparse_col_indices go together");
    if (!t->crow)
        return true;
    if (!t->shape || t->n_shape != 2)
        return wire_read_fail(r, "a sparse tensor needs a shape of two dimensions");
    /* The lists are compared with each other here, since a tinker_tensor has one length only. */
    if (t->n_col != out->n)
        return wire_read_fail(r, "expected %zu column indices, got %zu", out->n, t->n_col);
    if (t->shape[0] < 0)
        return wire_read_fail(r, "the shape holds a negative size");
    if (t->n_crow != (uint64_t)t->shape[0] + 1)
        return wire_read_fail(r, "expected %llu row pointers, got %zu",
                              (unsigned long long)t->shape[0] + 1, t->n_crow);
    return true;
}

/* By hand and not by a table, because how `data` is read depends on `dtype`, which may follow
 * it. */
static bool read_tensor(struct wire_reader *r, void *value)
{
    tinker_tensor *out = value;
    struct tensor_text t = { 0 };
    struct json_str key;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    json_begin_object(&r->json);
    bool ok = true;
    while (ok && json_next_key(&r->json, &key)) {
        if (json_str_is(key, "data"))
            /* The text of the list is borrowed and read a second time, after the loop. */
            ok = wire_expect(r, JSON_ARRAY) && (json_raw(&r->json, &t.data) || wire_read_ok(r));
        else if (json_str_is(key, "dtype"))
            ok = wire_read_string(r, &t.dtype);
        else if (json_str_is(key, "shape"))
            ok = read_int64s(r, &t.shape, &t.n_shape);
        else if (json_str_is(key, "sparse_crow_indices"))
            ok = read_int64s(r, &t.crow, &t.n_crow);
        else if (json_str_is(key, "sparse_col_indices"))
            ok = read_int64s(r, &t.col, &t.n_col);
        /* The server is strict with what it would ignore; the client is not, since a service may be
         * newer. */
        else if (r->mode == WIRE_STRICT)
            ok = wire_read_fail(r, "unknown field \"%.*s\"", (int)(key.n < 80 ? key.n : 80), key.s);
        else
            ok = json_skip(&r->json) || wire_read_ok(r);
    }
    if (!ok || !wire_read_ok(r))
        return false;
    /* The two without which there is no tensor. {"data":[],"dtype":"float32"} is one: a vector of
     * no elements. */
    if (!t.data.s || !t.dtype)
        return wire_read_fail(r, "%s is required", t.data.s ? "dtype" : "data");
    if (!read_elements(r, &t, out))
        return false;
    out->shape = t.shape;
    /* shape [] is a scalar, no shape a vector: only the pointer tells them apart. */
    out->ndim = t.shape ? t.n_shape : 0;
    out->crow = t.crow;
    out->col = t.col;
    /* Its message goes to r instead of r->err, so that the place is put in front. */
    tinker_error why;
    if (!check_counts(r, &t, out))
        return false;
    return wire_check_tensor(out, &why) == TINKER_OK || wire_read_fail(r, "%s", why.message);
}

/* An empty list is written as such: a scalar has the shape []. */
static void write_int64s(struct wire_writer *w, const char *key, const int64_t *v, size_t n)
{
    json_put_key(&w->json, key);
    json_put_array_int64(&w->json, v, n);
}

/* The upper half of a float32. */
static float widen_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return f;
}

/* Elements of the types that only memory knows, as they go on the wire. */
static void write_converted(struct wire_writer *w, const tinker_tensor *t)
{
    json_put_begin_array(&w->json);
    for (size_t i = 0; i < t->n; i++) {
        if (t->dtype == TINKER_FLOAT64)
            json_put_float(&w->json, (float)((const double *)t->data)[i]);
        /* Results only, see write_result_tensor(). */
        else if (t->dtype == TINKER_BFLOAT16)
            json_put_float(&w->json, widen_bf16(((const uint16_t *)t->data)[i]));
        else if (t->dtype == TINKER_INT32)
            json_put_int64(&w->json, ((const int32_t *)t->data)[i]);
        else if (t->dtype == TINKER_UINT32)
            json_put_int64(&w->json, ((const uint32_t *)t->data)[i]);
        else
            json_put_uint64(&w->json, ((const uint64_t *)t->data)[i]);
    }
    json_put_end_array(&w->json);
}

/* Why did the writer give up?  It takes neither NaN nor infinities. */
static bool elements_failed(struct wire_writer *w, const tinker_tensor *t)
{
    for (size_t i = 0; i < t->n; i++) {
        float f = t->dtype == TINKER_FLOAT32    ? ((const float *)t->data)[i]
                  : t->dtype == TINKER_FLOAT64  ? (float)((const double *)t->data)[i]
                  : t->dtype == TINKER_BFLOAT16 ? widen_bf16(((const uint16_t *)t->data)[i])
                                                : 0;
        if (!isfinite(f))
            return wire_write_fail(w, "value %zu is not finite, which JSON cannot carry", i);
    }
    /* All of them are finite, so there was no memory. */
    return wire_write_nomem(w);
}

/* TensorData as the reference writes it: data, dtype, and what there is of shape and indices. */
static bool write_checked_tensor(struct wire_writer *w, const tinker_tensor *t)
{
    json_put_begin_object(&w->json);
    json_put_key(&w->json, "data");
    if (t->dtype == TINKER_FLOAT32)
        json_put_array_float(&w->json, t->data, t->n);
    else if (t->dtype == TINKER_INT64)
        json_put_array_int64(&w->json, t->data, t->n);
    else
        write_converted(w, t);
    /* The array writer stops at the first number that JSON has no text for. */
    if (!buf_ok(w->json.out))
        return elements_failed(w, t);
    json_put_key(&w->json, "dtype");
    json_put_string(&w->json, wire_dtype(t->dtype) == TINKER_INT64 ? "int64" : "float32");
    /* A tensor without shape is one dimension, and says so by leaving it out. */
    if (t->shape)
        write_int64s(w, "shape", t->shape, t->ndim);
    /* For sparse data, shape is that of the dense matrix. */
    if (t->crow && t->shape) {
        write_int64s(w, "sparse_crow_indices", t->crow, (size_t)t->shape[0] + 1);
        write_int64s(w, "sparse_col_indices", t->col, t->n);
    }
    json_put_end_object(&w->json);
    return true;
}

/* Checked first: the writer below trusts lengths and indices. */
static bool write_tensor(struct wire_writer *w, const void *value)
{
    tinker_error why;
    if (wire_check_tensor(value, &why) != TINKER_OK)
        return wire_write_fail(w, "%s", why.message);
    return write_checked_tensor(w, value);
}

/* No shape means one dimension, which protobuf always says. */
static uint64_t hash_tensor(uint64_t h, const void *value)
{
    const tinker_tensor *t = value;
    /* Decoders give float32 or int64, so the same values hash alike from JSON and protobuf. */
    int64_t n = (int64_t)t->n, dtype = t->dtype;
    h = wire_hash_bytes(h, &dtype, sizeof(dtype));
    h = wire_hash_bytes(h, t->data, t->n * wire_dtype_size(t->dtype));
    h = wire_hash_bytes(h, t->shape ? t->shape : &n, (t->shape ? t->ndim : 1) * sizeof(int64_t));
    if (t->crow && t->shape && t->ndim) {
        h = wire_hash_bytes(h, t->crow, ((size_t)t->shape[0] + 1) * sizeof(int64_t));
        h = wire_hash_bytes(h, t->col, t->n * sizeof(int64_t));
    }
    return h;
}

#define INTEGERS "{\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"integer\"}}"
const struct wire_type wire_tensor_data = {
    .name = "TensorData",
    .size = sizeof(tinker_tensor),
    .read = read_tensor,
    .write = write_tensor,
    .hash = hash_tensor,
    .schema = "{\"type\":\"object\",\"properties\":{"
              "\"data\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}},"
              "\"dtype\":{\"enum\":[\"int64\",\"float32\"]},"
              "\"shape\":" INTEGERS ",\"sparse_crow_indices\":" INTEGERS
              ",\"sparse_col_indices\":" INTEGERS "},\"required\":[\"data\",\"dtype\"]}"
};

/* A tensor in the arena; null leaves *out as it is. */
bool wire_read_new_tensor(struct wire_reader *r, const tinker_tensor **out)
{
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    tinker_tensor *t = arena_array(r->arena, 1, sizeof *t);
    *out = t;
    return t ? wire_read_value(r, &wire_tensor_data, t) : wire_read_nomem(r);
}

/* The name is the key of the map and set by whoever reads that; these are the value alone. */
static bool read_named_tensor(struct wire_reader *r, void *value)
{
    return read_tensor(r, &((tinker_named_tensor *)value)->tensor);
}

static bool write_named_tensor(struct wire_writer *w, const void *value)
{
    return write_tensor(w, &((const tinker_named_tensor *)value)->tensor);
}

static uint64_t hash_named_tensor(uint64_t h, const void *value)
{
    return hash_tensor(h, &((const tinker_named_tensor *)value)->tensor);
}

/* No defaults, as for all values of maps: they would be copied over the name. */
const struct wire_type wire_named_tensor = { .name = "NamedTensor",
                                             .size = sizeof(tinker_named_tensor),
                                             .read = read_named_tensor,
                                             .write = write_named_tensor,
                                             .hash = hash_named_tensor,
                                             .schema = WIRE_TENSOR_SCHEMA };

/* Results may have an element type that requests may not: bfloat16. */
static bool write_result_tensor(struct wire_writer *w, const void *value)
{
    const tinker_tensor *t = &((const tinker_named_tensor *)value)->tensor;
    tinker_error why;
    if (wire_check_result_tensor(t, &why) != TINKER_OK)
        return wire_write_fail(w, "%s", why.message);
    return write_checked_tensor(w, t);
}

const struct wire_type wire_result_tensor = { .name = "ResultTensor",
                                              .size = sizeof(tinker_named_tensor),
                                              .read = read_named_tensor,
                                              .write = write_result_tensor,
                                              .schema = WIRE_TENSOR_SCHEMA };

/* ---- datums and training requests ------------------------------------------------ */

/* Where tokens come from: which sample, and whether its prompt or what was sampled. */
static const char *const provenance_kinds[] = { "prompt", "sampled", NULL };
#define T tinker_provenance
static const struct wire_field provenance[] = {
    { .name = "type",
      .kind = WIRE_ENUM,
      .flags = REQ,
      .offset = offsetof(T, sampled),
      .words = provenance_kinds },
    { WIRE_FIELD(T, sequence_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, offset, WIRE_INT, REQ) },
    { WIRE_FIELD(T, length, WIRE_INT, REQ) },
};
static const struct wire_type wire_provenance = { .name = "ProvenanceSpan",
                                                  WIRE_TABLE(T, provenance) };
#undef T

/* A training example: the input, and per name a tensor that the loss reads. Spans are newer than
 * the rest and left out when there are none. */
#define T tinker_datum
static const struct wire_field datum[] = {
    { .name = "loss_fn_inputs",
      .kind = WIRE_MAP,
      .flags = REQ,
      .offset = offsetof(T, inputs),
      .aux = offsetof(T, n_inputs),
      .type = &wire_named_tensor },
    { WIRE_FIELD(T, model_input, WIRE_STRUCT, REQ), .type = &wire_model_input },
    { .name = "model_input_spans",
      .kind = WIRE_LIST,
      .flags = NUL,
      .offset = offsetof(T, input_spans),
      .aux = offsetof(T, n_input_spans),
      .type = &wire_provenance },
    { .name = "loss_fn_input_spans",
      .kind = WIRE_LIST,
      .flags = NUL,
      .offset = offsetof(T, target_spans),
      .aux = offsetof(T, n_target_spans),
      .type = &wire_provenance },
};
const struct wire_type wire_datum = { .name = "Datum", WIRE_TABLE(T, datum) };
#undef T

#define T struct wire_forward_backward_request
static const struct wire_field forward_backward_input[] = {
    { WIRE_FIELD(T, data, WIRE_LIST, REQ), .aux = offsetof(T, n_data), .type = &wire_datum },
    { .name = "loss_fn", .kind = WIRE_STRING, .flags = REQ, .offset = offsetof(T, loss.name) },
    { .name = "loss_fn_config",
      .kind = WIRE_NUMBER_PAIRS,
      .flags = NUL,
      .offset = offsetof(T, loss.config),
      .aux = offsetof(T, loss.n_config) },
    /* Settings that are texts; in JSON an object of their own. */
    { .name = "loss_fn_config_texts",
      .kind = WIRE_STRING_PAIRS,
      .flags = NUL,
      .offset = offsetof(T, loss.texts),
      .aux = offsetof(T, loss.n_texts) },
};
static const struct wire_type wire_forward_backward_input = {
    .name = "ForwardBackwardInput", WIRE_TABLE(T, forward_backward_input)
};

/* The input is an object of its own in JSON but part of the same struct in C. */
static const struct wire_field forward_backward_request[] = {
    /* No offset: the table of the input fills members of the same struct. So it has no defaults,
     * which would be copied over the others. */
    { .name = "forward_backward_input",
      .kind = WIRE_STRUCT,
      .flags = REQ,
      .type = &wire_forward_backward_input },
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    /* One counter per model from 1, shared with optim_step, save and load. It orders the requests,
     * and one that is repeated is the same request again. */
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
};
const struct wire_type wire_forward_backward_request = { .name = "ForwardBackwardRequest",
                                                         WIRE_TABLE(T, forward_backward_request) };

/* The same struct as for forward_backward; the type of the request sets the flag. */
static const T forward_defaults = { .forward_only = true };
static const struct wire_field forward_request[] = {
    { .name = "forward_input",
      .kind = WIRE_STRUCT,
      .flags = REQ,
      .type = &wire_forward_backward_input },
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
};
const struct wire_type wire_forward_request = { .name = "ForwardRequest",
                                                WIRE_TABLE(T, forward_request),
                                                .defaults = &forward_defaults };
#undef T
