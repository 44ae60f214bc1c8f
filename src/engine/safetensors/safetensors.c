/* safetensors.c - reader of the tensor file format, hostile files included.
 *
 * A file is: u64 little-endian header length, that many bytes of JSON, the data.
 * Nothing is trusted: every offset is compared with the file before a pointer is
 * made from it.  Not thread-safe while opening; read-only afterwards. */
#include "engine/safetensors/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "json/json.h"

enum { HEADER_MAX = 100 * 1000 * 1000, NAME_MAX_LEN = 1024, MESSAGE_NAME = 120 };

/* All types of the format; the engine computes with those that are usable. */
static const struct {
    const char *name;
    size_t size; /* bytes of an element */
    bool usable;
    enum source_dtype dtype; /* only where usable */
} dtypes[] = {
    { .name = "F32", .size = 4, .usable = true, .dtype = SOURCE_F32 },
    { .name = "F16", .size = 2, .usable = true, .dtype = SOURCE_F16 },
    { .name = "BF16", .size = 2, .usable = true, .dtype = SOURCE_BF16 },
    { .name = "F64", .size = 8 },
    { .name = "I64", .size = 8 },
    { .name = "I32", .size = 4 },
    { .name = "I16", .size = 2 },
    { .name = "I8", .size = 1 },
    { .name = "U64", .size = 8 },
    { .name = "U32", .size = 4 },
    { .name = "U16", .size = 2 },
    { .name = "U8", .size = 1 },
    { .name = "BOOL", .size = 1 },
    { .name = "F8_E4M3", .size = 1 },
    { .name = "F8_E5M2", .size = 1 },
};

/* tensor NULL: the file as a whole is wrong. */
static tinker_status refuse_file(const struct safetensors *s, tinker_error *err, const char *tensor,
                                 const char *why)
{
    if (tensor)
        return err_set(err, TINKER_EINVAL, "%s: tensor %.*s: %s", s->path, MESSAGE_NAME, tensor,
                       why);
    return err_set(err, TINKER_EINVAL, "%s: %s", s->path, why);
}

/* One tensor's description as the header gives it, before any check. */
struct described {
    struct json_str dtype;
    int64_t *shape;
    size_t ndim;
    int64_t *range;
    size_t n_range;
};

/* Fills t from d.  Every number is checked before it is used; NULL or what is wrong. */
static const char *check_description(const struct described *d, const unsigned char *data,
                                     size_t data_len, struct st_tensor *t)
{
    size_t dtype = 0;
    if (!d->dtype.s)
        return "no dtype";
    while (dtype < ARRAY_LEN(dtypes) && !json_str_is(d->dtype, dtypes[dtype].name))
        dtype++;
    if (dtype == ARRAY_LEN(dtypes))
        return "unknown dtype";
    if (d->ndim > ST_MAX_DIMS)
        return "more than 8 dimensions";
    if (d->n_range != 2)
        return "data_offsets must have two numbers";
    /* a shape may claim any product: overflow is refused before it can look small */
    size_t count = 1;
    for (size_t i = 0; i < d->ndim; i++) {
        if (d->shape[i] < 0)
            return "negative dimension";
        t->shape[i] = (size_t)d->shape[i];
        if (__builtin_mul_overflow(count, t->shape[i], &count))
            return "shape overflows";
    }
    size_t bytes;
    if (__builtin_mul_overflow(count, dtypes[dtype].size, &bytes))
        return "shape overflows";
    if (d->range[0] < 0 || d->range[1] < d->range[0])
        return "data_offsets out of order";
    if ((uint64_t)d->range[1] > data_len)
        return "data_offsets beyond the end of the file";
    if ((uint64_t)(d->range[1] - d->range[0]) != bytes)
        return "data_offsets do not match dtype and shape";
    t->dtype = dtypes[dtype].dtype;
    t->dtype_name = dtypes[dtype].name;
    t->usable = dtypes[dtype].usable;
    t->ndim = d->ndim;
    t->count = count;
    t->bytes = bytes;
    t->data = data + d->range[0];
    return NULL;
}

/* One member of the header.  s->tensors grows by doubling; *cap is how many fit. */
static tinker_status read_tensor(struct safetensors *s, struct json_reader *r, struct json_str key,
                                 const unsigned char *data, size_t data_len, size_t *cap,
                                 tinker_error *err)
{
    struct described d = { 0 };
    struct json_str member;
    if (key.n == 0 || key.n > NAME_MAX_LEN)
        return refuse_file(s, err, NULL, "tensor name is empty or longer than 1024 bytes");
    /* how many there are is known only at the end of the header */
    if (s->n == *cap) {
        size_t more = *cap ? *cap * 2 : 64;
        struct st_tensor *grown = realloc(s->tensors, more * sizeof(*grown));
        if (!grown)
            return err_nomem(err, s->path);
        s->tensors = grown;
        *cap = more;
    }
    char *name = arena_strndup(&s->arena, key.s, key.n);
    if (!name)
        return err_nomem(err, s->path);
    /* names are C strings from here on */
    if (strlen(name) != key.n)
        return refuse_file(s, err, NULL, "tensor name contains NUL");
    json_begin_object(r);
    while (json_next_key(r, &member)) {
        if (json_str_is(member, "dtype"))
            json_string(r, &d.dtype);
        else if (json_str_is(member, "shape"))
            json_array_int64(r, &d.shape, &d.ndim);
        else if (json_str_is(member, "data_offsets"))
            json_array_int64(r, &d.range, &d.n_range);
        else
            json_skip(r);
    }
    if (r->failed)
        return refuse_file(s, err, name, json_error(r));
    struct st_tensor *t = &s->tensors[s->n];
    /* counted only when it is complete */
    *t = (struct st_tensor){ .name = name };
    const char *why = check_description(&d, data, data_len, t);
    if (why)
        return refuse_file(s, err, name, why);
    s->n++;
    return TINKER_OK;
}

/* Empty tensors share an offset with their neighbor and come first. */
static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Ranges must tile the data: no gap, no overlap, nothing left over. */
static tinker_status check_tiling(struct safetensors *s, const char *data, size_t data_len,
                                  tinker_error *err)
{
    /* where the next tensor must begin */
    const char *at = data;
    /* qsort() may not be given NULL */
    if (s->n)
        qsort(s->tensors, s->n, sizeof(*s->tensors), by_offset);
    for (size_t i = 0; i < s->n; i++) {
        if ((const char *)s->tensors[i].data != at)
            return refuse_file(s, err, s->tensors[i].name, "data overlaps or leaves a gap");
        at += s->tensors[i].bytes;
    }
    if ((size_t)(at - data) != data_len)
        return refuse_file(s, err, NULL, "file is longer than its tensors");
    return TINKER_OK;
}

/* Reads the header and checks that its tensors tile data[0..data_len). */
static tinker_status parse_header(struct safetensors *s, const unsigned char *data, size_t data_len,
                                  tinker_error *err)
{
    struct json_reader r;
    struct json_str key;
    size_t cap = 0;
    json_reader_init(&r, s->header, s->header_len, &s->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        /* free text of the writer */
        if (json_str_is(key, "__metadata__")) {
            json_skip(&r);
            continue;
        }
        tinker_status status = read_tensor(s, &r, key, data, data_len, &cap, err);
        if (status != TINKER_OK)
            return status;
    }
    if (!json_end(&r))
        return refuse_file(s, err, NULL, json_error(&r));
    tinker_status status = check_tiling(s, (const char *)data, data_len, err);
    /* tensors do not move any more: the map may point to them */
    for (size_t i = 0; status == TINKER_OK && i < s->n; i++) {
        struct st_tensor *t = &s->tensors[i];
        void *old = NULL;
        if (!map_put(&s->by_name, t->name, strlen(t->name), t, &old))
            status = err_nomem(err, s->path);
        else if (old)
            status = refuse_file(s, err, t->name, "listed twice");
    }
    return status;
}

/* The fixed part of the format: length, header, data. */
static tinker_status parse_file(struct safetensors *s, const unsigned char *p, size_t len,
                                tinker_error *err)
{
    if (len < 8)
        return refuse_file(s, err, NULL, "too short for a safetensors file");
    uint64_t header = 0; /* length, little-endian */
    for (int i = 7; i >= 0; i--)
        header = header << 8 | p[i];
    /* the limit of the reference reader */
    if (header > HEADER_MAX)
        return refuse_file(s, err, NULL, "header length is over 100 MB: not a safetensors file");
    /* compared without a sum that could overflow */
    if (header > len - 8)
        return refuse_file(s, err, NULL, "truncated: the header is longer than the file");
    if (header < 2 || p[8] != '{')
        return refuse_file(s, err, NULL, "header does not begin with '{'");
    /* borrowed from the map; the fingerprint reads it, too */
    s->header = (const char *)p + 8;
    s->header_len = (size_t)header;
    return parse_header(s, p + 8 + header, len - 8 - (size_t)header, err);
}

/* Sets up s so that safetensors_close() can always clean up. */
static tinker_status init_reader(struct safetensors *s, const char *path, tinker_error *err)
{
    *s = (struct safetensors){ 0 };
    arena_init(&s->arena, SIZE_MAX);
    map_init(&s->by_name);
    s->path = strdup(path);
    return s->path ? TINKER_OK : err_nomem(err, path);
}

/* The data stays the caller's and must outlive *s. */
tinker_status safetensors_parse(struct safetensors *s, const char *path, const void *data,
                                size_t len, tinker_error *err)
{
    tinker_status status = init_reader(s, path, err);
    if (status == TINKER_OK)
        status = parse_file(s, data, len, err);
    if (status != TINKER_OK)
        safetensors_close(s);
    return status;
}

/* A map: tensors are read once, in any order, and nothing is held twice. */
tinker_status safetensors_open(struct safetensors *s, const char *path, tinker_error *err)
{
    tinker_status status = init_reader(s, path, err);
    if (status == TINKER_OK)
        status = os_map_open(&s->file, path, err);
    if (status == TINKER_OK)
        status = parse_file(s, s->file.data, s->file.len, err);
    if (status != TINKER_OK)
        safetensors_close(s);
    return status;
}

/* Also after a failed open. */
void safetensors_close(struct safetensors *s)
{
    os_map_close(&s->file);
    map_clear(&s->by_name);
    arena_clear(&s->arena);
    free(s->tensors);
    free(s->path);
    *s = (struct safetensors){ 0 };
}

const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    return map_get(&s->by_name, name, strlen(name));
}
