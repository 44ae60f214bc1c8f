/* tensor_file.c - see tensor_file.h.
 *
 * Eight bytes of length, little endian, that much JSON, then the data.  Each tensor has
 * {"dtype","shape","data_offsets"}; "__metadata__" holds texts. */
#include "cli/weights/tensor_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/err.h"
#include "base/os.h"
#include "json/json.h"

/* What the format's own library accepts. */
enum { HEADER_MAX = 100 << 20 };

/* Names as in the files, with the bytes of an element; the table also says what is known at all. */
static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = { { "F64", 8 }, { "F32", 4 },  { "F16", 2 },     { "BF16", 2 },
               { "I64", 8 }, { "I32", 4 },  { "I16", 2 },     { "I8", 1 },
               { "U8", 1 },  { "BOOL", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 } };

/* 0: a type that we do not know, which is refused rather than guessed. */
static size_t dtype_bytes(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].bytes;
    return 0;
}

/* A tensor without dimensions is one number.  The shape was checked not to overflow. */
uint64_t tensor_file_count(const struct tensor_entry *t)
{
    uint64_t n = 1;
    for (size_t i = 0; i < t->n_dims; i++)
        n *= (uint64_t)t->shape[i];
    return n;
}

/* Also for a file that tensor_file_open() has refused, which may have been read in part. */
void tensor_file_clear(struct tensor_file *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->v[i].name);
    free(f->v);
    memset(f, 0, sizeof(*f));
}

/* Only whether it can be read; whether it makes sense is check_entry()'s question. */
static bool read_entry(struct json_reader *r, struct tensor_entry *t)
{
    struct json_str key;
    int64_t *values;
    size_t n;
    char *text;
    /* Members may come in any order, and unknown ones are passed over, as the format says. */
    bool ok = json_begin_object(r);
    while (ok && json_next_key(r, &key)) {
        if (json_str_is(key, "dtype")) {
            ok = json_cstring(r, &text);
            if (ok)
                snprintf(t->dtype, sizeof(t->dtype), "%s", text);
        } else if (json_str_is(key, "shape")) {
            ok = json_array_int64(r, &values, &n) && n <= TENSOR_DIMS;
            t->n_dims = ok ? n : 0;
            for (size_t i = 0; i < t->n_dims; i++)
                t->shape[i] = values[i];
        } else if (json_str_is(key, "data_offsets")) {
            ok = json_array_int64(r, &values, &n) && n == 2 && values[0] >= 0 &&
                 values[1] >= values[0];
            t->begin = ok ? (uint64_t)values[0] : 0;
            t->end = ok ? (uint64_t)values[1] : 0;
        } else {
            ok = json_skip(r);
        }
    }
    return ok;
}

/* Does the shape make up the bytes, and are they inside the file? */
static tinker_status check_entry(const struct tensor_file *f, const struct tensor_entry *t,
                                 tinker_error *err)
{
    size_t bytes = dtype_bytes(t->dtype);
    /* Bytes, not elements: multiplied up with a check before each step, since shapes come from a
     * file. */
    uint64_t n = bytes;
    if (!bytes)
        return err_set(err, TINKER_EINVAL, "%s: unknown dtype %s", t->name, t->dtype);
    for (size_t i = 0; i < t->n_dims; i++) {
        if (t->shape[i] < 0 || (t->shape[i] && n > UINT64_MAX / (uint64_t)t->shape[i]))
            return err_set(err, TINKER_EINVAL, "%s: its shape makes no sense", t->name);
        n *= (uint64_t)t->shape[i];
    }
    if (t->end > f->data_size)
        return err_set(err, TINKER_EINVAL, "%s: its data is beyond the end of the file", t->name);
    if (t->end - t->begin != n)
        return err_set(err, TINKER_EINVAL, "%s: %llu bytes, but its shape takes %llu", t->name,
                       (unsigned long long)(t->end - t->begin), (unsigned long long)n);
    return TINKER_OK;
}

/* Empty tensors may share a position; any order of them passes the test for gaps. */
static int compare_begin(const void *a, const void *b)
{
    const struct tensor_entry *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Names are unique in a JSON object, so the order is total. */
static int compare_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor_entry *)a)->name, ((const struct tensor_entry *)b)->name);
}

/* No tensor overlaps another, and nothing is hidden between them.
 * Sorted by position for the test, then by name for whoever lists them.  A file with a gap
 * loads, but the gap may carry anything, so it is refused as the reference library does. */
static tinker_status check_layout(struct tensor_file *f, tinker_error *err)
{
    uint64_t at = 0;
    if (f->n > 1)
        qsort(f->v, f->n, sizeof(*f->v), compare_begin);
    for (size_t i = 0; i < f->n; i++) {
        if (f->v[i].begin != at)
            return err_set(err, TINKER_EINVAL, "%s: it does not begin where the last tensor ends",
                           f->v[i].name);
        at = f->v[i].end;
    }
    if (at != f->data_size)
        return err_set(err, TINKER_EINVAL, "there are %llu bytes behind the last tensor",
                       (unsigned long long)(f->data_size - at));
    if (f->n > 1)
        qsort(f->v, f->n, sizeof(*f->v), compare_name);
    return TINKER_OK;
}

/* Entries are checked as they are read: a header that lies ends early, whatever its length. */
static tinker_status read_header(struct tensor_file *f, const char *json, size_t n,
                                 tinker_error *err)
{
    struct arena arena;
    struct json_reader r;
    struct json_str key;
    tinker_status status = TINKER_OK;
    arena_init(&arena, (size_t)HEADER_MAX * 4);
    json_reader_init(&r, json, n, &arena);
    bool ok = json_begin_object(&r);
    while (ok && status == TINKER_OK && json_next_key(&r, &key)) {
        if (json_str_is(key, "__metadata__")) {
            ok = json_skip(&r);
            continue;
        }
        /* Grown by doubling: the header does not say how many tensors there are. */
        if (f->n == f->cap) {
            size_t cap = f->cap ? f->cap * 2 : 256;
            struct tensor_entry *v = realloc(f->v, cap * sizeof(*v));
            if (!v) {
                status = err_nomem(err, "tensors");
                break;
            }
            f->v = v;
            f->cap = cap;
        }
        struct tensor_entry *t = &f->v[f->n];
        memset(t, 0, sizeof(*t));
        t->name = malloc(key.n + 1);
        if (!t->name) {
            status = err_nomem(err, "tensors");
            break;
        }
        memcpy(t->name, key.s, key.n);
        t->name[key.n] = 0;
        f->n++;
        ok = read_entry(&r, t);
        if (ok)
            status = check_entry(f, t, err);
    }
    if (status == TINKER_OK && (!ok || !json_end(&r)))
        status = err_set(err, TINKER_EINVAL, "the header is not understood: %s", json_error(&r));
    arena_clear(&arena);
    return status == TINKER_OK ? check_layout(f, err) : status;
}

/* The file is mapped, not read: only the pages of the header are touched. */
tinker_status tensor_file_open(struct tensor_file *f, const char *path, tinker_error *err)
{
    struct os_map m;
    memset(f, 0, sizeof(*f));
    tinker_status status = os_map_open(&m, path, err);
    if (status != TINKER_OK)
        return status;
    const unsigned char *p = m.data;
    uint64_t n = 0;
    for (size_t i = 0; i < 8 && m.len >= 8; i++)
        n |= (uint64_t)p[i] << (8 * i);
    /* The length is compared with what is left of the file, not added to anything, so it cannot
     * overflow. */
    if (m.len < 8 || n > HEADER_MAX || n > m.len - 8) {
        status = err_set(err, TINKER_EINVAL, "%s is no safetensors file, or was cut off", path);
    } else {
        f->data_at = 8 + n;
        f->data_size = m.len - f->data_at;
        status = read_header(f, (const char *)p + 8, (size_t)n, err);
    }
    os_map_close(&m);
    return status;
}

/* Exponent bits all set: infinity or NaN.
 * memcpy(): tensors need not be aligned in the file. */
static bool is_finite_at(const unsigned char *p, const char *dtype)
{
    uint16_t h;
    uint32_t w;
    double d;
    if (strcmp(dtype, "F32") == 0) {
        memcpy(&w, p, 4);
        return (w & 0x7f800000u) != 0x7f800000u;
    }
    if (strcmp(dtype, "F64") == 0) {
        memcpy(&d, p, 8);
        return isfinite(d);
    }
    memcpy(&h, p, 2);
    return strcmp(dtype, "BF16") == 0 ? (h & 0x7f80u) != 0x7f80u : (h & 0x7c00u) != 0x7c00u;
}

/* Integers and 8-bit floats are not looked at: no adapter has them. */
tinker_status tensor_file_check_data(const struct tensor_file *f, const char *path,
                                     tinker_error *err)
{
    struct os_map m;
    tinker_status status = os_map_open(&m, path, err);
    for (size_t i = 0; status == TINKER_OK && i < f->n; i++) {
        const struct tensor_entry *t = &f->v[i];
        size_t bytes = dtype_bytes(t->dtype);
        bool real = strcmp(t->dtype, "F32") == 0 || strcmp(t->dtype, "F64") == 0 ||
                    strcmp(t->dtype, "F16") == 0 || strcmp(t->dtype, "BF16") == 0;
        const unsigned char *p = (const unsigned char *)m.data + f->data_at;
        for (uint64_t at = t->begin; real && at < t->end; at += bytes)
            if (!is_finite_at(p + at, t->dtype)) {
                status = err_set(err, TINKER_EINVAL, "%s: element %llu is not finite", t->name,
                                 (unsigned long long)((at - t->begin) / bytes));
                break;
            }
    }
    if (m.data)
        os_map_close(&m);
    return status;
}
