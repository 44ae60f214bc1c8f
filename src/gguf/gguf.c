/* gguf.c - the reader of gguf.h.
 *
 *     u32 "GGUF", u32 version, u64 tensors, u64 values
 *     values   { string key; u32 type; value }             string: u64 length, bytes
 *     tensors  { string name; u32 dims; u64 dim[dims]; u32 type; u64 offset }
 *     padding to a multiple of the alignment; data, to which the offsets refer
 *
 * Of a split model the first file has the metadata, and each file tensors of its own. */
#include "gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"

enum {
    DEFAULT_ALIGNMENT = 32,
    ALIGNMENT_MAX = 65536,
    NAME_MAX_BYTES = 255,
    SHARDS_MAX = 1000,
    MIN_VALUE = 13, /* bytes of the shortest value with its key, and of a tensor's description */
    MIN_TENSOR = 32
};

/* Bytes of a single value; 0: of its own length. */
static const uint8_t value_bytes[GGUF_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

/* The sizes are those of ggml's block_ structs; a block is the unit in which rows are stored, so
 * a row must be a whole number of them. */
static const struct tensor_type {
    uint32_t type;
    const char *name;
    uint16_t block, bytes; /* weights and bytes of a block */
} tensor_types[] = {
    { GGUF_TENSOR_F32, "F32", 1, 4 },       { GGUF_TENSOR_F16, "F16", 1, 2 },
    { GGUF_TENSOR_BF16, "BF16", 1, 2 },     { GGUF_TENSOR_Q8_0, "Q8_0", 32, 34 },
    { GGUF_TENSOR_Q4_0, "Q4_0", 32, 18 },   { GGUF_TENSOR_Q4_1, "Q4_1", 32, 20 },
    { GGUF_TENSOR_Q5_0, "Q5_0", 32, 22 },   { GGUF_TENSOR_Q5_1, "Q5_1", 32, 24 },
    { GGUF_TENSOR_Q4_K, "Q4_K", 256, 144 }, { GGUF_TENSOR_Q5_K, "Q5_K", 256, 176 },
    { GGUF_TENSOR_Q6_K, "Q6_K", 256, 210 }, { GGUF_TENSOR_MXFP4, "MXFP4", 32, 17 },
};

static const struct tensor_type *find_tensor_type(uint32_t type)
{
    for (size_t i = 0; i < ARRAY_LEN(tensor_types); i++)
        if (tensor_types[i].type == type)
            return &tensor_types[i];
    return NULL;
}

const char *gguf_tensor_type_name(uint32_t type)
{
    const struct tensor_type *t = find_tensor_type(type);
    return t ? t->name : NULL;
}

/* Only for types that the table has and n of whole blocks: the reader has checked both. */
uint64_t gguf_tensor_bytes(uint32_t type, uint64_t n)
{
    const struct tensor_type *t = find_tensor_type(type);
    return n / t->block * t->bytes;
}

/* One file being read.  A read beyond its end fails it, and so does every later one. */
struct cursor {
    const char *path;
    const unsigned char *data;
    size_t at, n;
    bool failed;
};

/* The comparison cannot overflow: at never exceeds n. A failed cursor stays failed, so a caller
 * may take several fields and look once. */
static const unsigned char *take_bytes(struct cursor *c, uint64_t n)
{
    if (c->failed || n > c->n - c->at) {
        c->failed = true;
        return NULL;
    }
    const unsigned char *p = c->data + c->at;
    c->at += (size_t)n;
    return p;
}

/* Byte by byte: fields stand wherever strings of any length left them. */
static uint64_t take_uint(struct cursor *c, size_t bytes)
{
    const unsigned char *p = take_bytes(c, bytes);
    uint64_t v = 0;
    for (size_t i = 0; p && i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static const char *take_string(struct cursor *c, uint64_t *n)
{
    *n = take_uint(c, 8);
    return (const char *)take_bytes(c, *n);
}

/* Without a name the place is told by its byte. */
static tinker_status refuse_gguf(const struct cursor *c, const char *name, const char *why,
                                 tinker_error *err)
{
    if (name)
        return err_set(err, TINKER_EINVAL, "%s: %s: %s", c->path, name, why);
    return err_set(err, TINKER_EINVAL, "%s: %s (at byte %zu of %zu)", c->path, why, c->at, c->n);
}

/* A key or name as a C string in the arena; NULL with *err set. A NUL inside would let two
 * different names compare as equal C strings. */
static const char *take_name(struct cursor *c, struct gguf *g, const char *what, tinker_error *err)
{
    uint64_t n;
    const char *s = take_string(c, &n);
    if (!s || n == 0 || n > NAME_MAX_BYTES || memchr(s, '\0', n)) {
        char why[64];
        snprintf(why, sizeof(why), "%s is cut off, empty or longer than 255 bytes", what);
        refuse_gguf(c, NULL, why, err);
        return NULL;
    }
    char *copy = arena_strndup(&g->arena, s, n);
    if (!copy)
        err_nomem(err, c->path);
    return copy;
}

/* v->type and v->n are known: finds the bytes of its items.  Strings are walked once here, so
 * that gguf_next_string() need not check. The number of items is compared with the bytes that
 * are left before anything is reserved or walked: a file of 100 bytes may claim 2^60 strings.
 * Returns why not, or NULL. */
static const char *take_items(struct cursor *c, struct gguf_value *v)
{
    size_t start = c->at;
    if (v->type != GGUF_STRING) {
        uint64_t bytes;
        if (__builtin_mul_overflow(v->n, (uint64_t)value_bytes[v->type], &bytes))
            return "more items than bytes";
        v->data = take_bytes(c, bytes);
        v->bytes = (size_t)bytes;
        return v->data ? NULL : "more items than bytes";
    }
    if (v->n > (c->n - c->at) / 8)
        return "more strings than bytes";
    for (uint64_t i = 0; i < v->n; i++) {
        uint64_t n;
        if (!take_string(c, &n))
            return "a string is cut off";
    }
    v->data = c->data + start;
    v->bytes = c->at - start;
    return NULL;
}

/* keep: the metadata of this file counts.  *alignment follows general.alignment in any case.
 * Arrays of arrays are refused: the specification allows them, no writer makes them, and they
 * would need a depth limit. */
static tinker_status read_value(struct cursor *c, struct gguf *g, bool keep, uint64_t *alignment,
                                tinker_error *err)
{
    const char *key = take_name(c, g, "a key", err);
    struct gguf_value *v = arena_alloc(&g->arena, sizeof(*v));
    if (!key)
        return TINKER_EINVAL;
    if (!v)
        return err_nomem(err, c->path);
    uint64_t type = take_uint(c, 4);
    v->n = 1;
    if (type == GGUF_ARRAY) {
        v->array = true;
        type = take_uint(c, 4);
        v->n = take_uint(c, 8);
    }
    if (c->failed || type >= GGUF_TYPES || type == GGUF_ARRAY)
        return refuse_gguf(c, key, "its type is unknown", err);
    v->type = (enum gguf_type)type;
    const char *why = take_items(c, v);
    if (why)
        return refuse_gguf(c, key, why, err);
    if (strcmp(key, "general.alignment") == 0) {
        *alignment = v->type == GGUF_STRING || v->array ? 0 : (uint64_t)gguf_number(v, 0);
        if (*alignment < 8 || *alignment > ALIGNMENT_MAX || (*alignment & (*alignment - 1)))
            return refuse_gguf(c, key, "must be a power of two from 8 to 65536", err);
    }
    if (!keep)
        return TINKER_OK;
    void *old = NULL;
    if (!map_put(&g->keys, key, strlen(key), v, &old))
        return err_nomem(err, c->path);
    return old ? refuse_gguf(c, key, "comes twice", err) : TINKER_OK;
}

/* Shape and type; the range is checked when the data's place is known.  data holds the offset
 * until then. dim[0] is the fastest dimension, the columns of a matrix: the reverse of
 * safetensors. Products are checked before they are used, so `bytes` is exact or the file is
 * refused. */
static tinker_status read_tensor_info(struct cursor *c, struct gguf *g, uint64_t *offset,
                                      tinker_error *err)
{
    const char *name = take_name(c, g, "a tensor's name", err);
    struct gguf_tensor *t = arena_alloc(&g->arena, sizeof(*t));
    if (!name)
        return TINKER_EINVAL;
    if (!t)
        return err_nomem(err, c->path);
    t->name = name;
    t->n_dims = (uint32_t)take_uint(c, 4);
    if (c->failed || t->n_dims < 1 || t->n_dims > GGUF_DIMS)
        return refuse_gguf(c, name, "must have 1 to 4 dimensions", err);
    uint64_t count = 1;
    for (size_t i = 0; i < GGUF_DIMS; i++) {
        t->dim[i] = i < t->n_dims ? take_uint(c, 8) : 1;
        if (__builtin_mul_overflow(count, t->dim[i], &count) || count > INT64_MAX)
            return refuse_gguf(c, name, "its shape overflows", err);
    }
    t->type = (uint32_t)take_uint(c, 4);
    *offset = take_uint(c, 8);
    const struct tensor_type *type = find_tensor_type(t->type);
    if (c->failed)
        return refuse_gguf(c, name, "its description is cut off", err);
    if (!type)
        return err_set(err, TINKER_EINVAL,
                       "%s: tensor %s has type %u, which is not read (F32, F16, BF16, Q8_0, Q4_0, "
                       "Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K and MXFP4 are)",
                       c->path, name, (unsigned)t->type);
    if (t->dim[0] % type->block)
        return refuse_gguf(c, name, "its rows are no whole blocks", err);
    uint64_t bytes;
    if (__builtin_mul_overflow(count / type->block, (uint64_t)type->bytes, &bytes))
        return refuse_gguf(c, name, "its shape overflows", err);
    t->bytes = (size_t)bytes;
    void *old = NULL;
    if (!map_put(&g->names, name, strlen(name), t, &old))
        return err_nomem(err, c->path);
    if (old)
        return refuse_gguf(c, name, "this tensor comes twice", err);
    g->tensors[g->n++] = t;
    return TINKER_OK;
}

/* By place in the file. */
static int compare_data(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a,
                             *y = *(struct gguf_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

/* Turns offsets into data: inside the file, aligned, without overlap. Sorted by place, an
 * overlap is one of neighbors. Shared data would be legal to map, but no writer does it, and a
 * file that has it was tampered with. */
static tinker_status place_tensors(struct cursor *c, struct gguf_tensor **tensors,
                                   const uint64_t *offsets, size_t n, uint64_t alignment,
                                   tinker_error *err)
{
    size_t pad = (size_t)((alignment - c->at % alignment) % alignment);
    size_t begin = pad > c->n - c->at ? c->n : c->at + pad;
    for (size_t i = 0; i < n; i++) {
        struct gguf_tensor *t = tensors[i];
        if (offsets[i] % alignment)
            return refuse_gguf(c, t->name, "its offset is not aligned", err);
        if (offsets[i] > c->n - begin || t->bytes > c->n - begin - offsets[i])
            return refuse_gguf(c, t->name, "its data lies beyond the end of the file", err);
        t->data = c->data + begin + offsets[i];
    }
    qsort(tensors, n, sizeof(*tensors), compare_data);
    for (size_t i = 1; i < n; i++)
        if ((const char *)tensors[i]->data <
            (const char *)tensors[i - 1]->data + tensors[i - 1]->bytes)
            return refuse_gguf(c, tensors[i]->name, "its data overlaps that of another tensor",
                               err);
    return TINKER_OK;
}

/* Room for n more tensors and their offsets. n has been compared with the size of the file, so
 * it cannot ask for absurd memory. */
static bool grow_tensors(struct gguf *g, size_t n, uint64_t **offsets)
{
    struct gguf_tensor **grown = realloc(g->tensors, (g->n + n + 1) * sizeof(*grown));
    if (grown)
        g->tensors = grown;
    *offsets = grown ? calloc(n + 1, sizeof(**offsets)) : NULL;
    return *offsets != NULL;
}

/* Values come before tensors in the file, so the alignment is known when places are computed. A
 * big-endian file has its version in the upper bytes. */
static tinker_status parse_file(struct gguf *g, struct cursor *c, bool keep, tinker_error *err)
{
    const unsigned char *magic = take_bytes(c, 4);
    uint64_t version = take_uint(c, 4), alignment = DEFAULT_ALIGNMENT, *offsets;
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return err_set(err, TINKER_EINVAL, "%s: not a GGUF file", c->path);
    if (c->failed)
        return refuse_gguf(c, NULL, "it ends behind its first four bytes", err);
    if (version != 2 && version != 3)
        return err_set(err, TINKER_EINVAL, "%s: GGUF version %u%s is not read (2 and 3 are)",
                       c->path, (unsigned)version, version > 0xffff ? ", a big-endian file," : "");
    uint64_t n_tensors = take_uint(c, 8), n_values = take_uint(c, 8);
    if (c->failed || n_values > (c->n - c->at) / MIN_VALUE ||
        n_tensors > (c->n - c->at) / MIN_TENSOR)
        return refuse_gguf(c, NULL, "more values or tensors than bytes", err);
    if (!grow_tensors(g, (size_t)n_tensors, &offsets))
        return err_nomem(err, c->path);
    tinker_status status = TINKER_OK;
    size_t first = g->n;
    for (uint64_t i = 0; status == TINKER_OK && i < n_values; i++)
        status = read_value(c, g, keep, &alignment, err);
    for (uint64_t i = 0; status == TINKER_OK && i < n_tensors; i++)
        status = read_tensor_info(c, g, &offsets[i], err);
    if (status == TINKER_OK)
        status = place_tensors(c, g->tensors + first, offsets, (size_t)n_tensors, alignment, err);
    free(offsets);
    return status;
}

static void init_gguf(struct gguf *g)
{
    *g = (struct gguf){ 0 };
    arena_init(&g->arena, SIZE_MAX);
    map_init(&g->keys);
    map_init(&g->names);
}

/* For tests and fuzzing; gguf_open() maps files. */
tinker_status gguf_parse(struct gguf *g, const char *path, const void *data, size_t n,
                         tinker_error *err)
{
    struct cursor c = { .path = path, .data = data, .n = n };
    init_gguf(g);
    g->path = arena_strdup(&g->arena, path);
    tinker_status status = g->path ? parse_file(g, &c, true, err) : err_nomem(err, path);
    if (status != TINKER_OK)
        gguf_close(g);
    return status;
}

/* "x-00002-of-00003.gguf": how many files there are, and how long "x" is; 1: it is no such name.
 * The pattern is gguf-split's. 0 (…-of-00000) is refused by the caller. */
static size_t count_shards(const char *path, size_t *stem)
{
    static const char shape[] = "-00000-of-00000.gguf";
    size_t n = strlen(path), k = sizeof(shape) - 1;
    if (n <= k)
        return 1;
    const char *tail = path + n - k;
    for (size_t i = 0; i < k; i++)
        if (shape[i] == '0' ? tail[i] < '0' || tail[i] > '9' : tail[i] != shape[i])
            return 1;
    *stem = n - k;
    return (size_t)strtoul(tail + strlen("-00000-of-"), NULL, 10);
}

/* File i of n, mapped and read. Counted before it is parsed, so that gguf_close() unmaps it also
 * when parsing fails. Only the first file's metadata counts: the others repeat parts of it. */
static tinker_status open_shard(struct gguf *g, const char *path, size_t i, tinker_error *err)
{
    tinker_status status = os_map_open(&g->files[i], path, err);
    if (status != TINKER_OK)
        return status;
    g->n_files++;
    struct cursor c = { .path = path, .data = g->files[i].data, .n = g->files[i].len };
    return parse_file(g, &c, i == 0, err);
}

/* What the first file says about the split must be what was found. A renamed part would
 * otherwise load as a model with layers missing. */
static tinker_status check_split(const struct gguf *g, size_t shards, tinker_error *err)
{
    int64_t count = 1, tensors;
    gguf_get_int(g, "split.count", &count);
    if (count > 1 && (uint64_t)count != shards)
        return err_set(err, TINKER_EINVAL,
                       "%s: one of %lld files of a model, but its name is not like "
                       "model-00001-of-%05lld.gguf",
                       g->path, (long long)count, (long long)count);
    if (shards > 1 && gguf_get_int(g, "split.tensors.count", &tensors) &&
        (tensors < 0 || (uint64_t)tensors != g->n))
        return err_set(err, TINKER_EINVAL, "%s: its files have %zu tensors together, not %lld",
                       g->path, g->n, (long long)tensors);
    return TINKER_OK;
}

/* Any part may be named: all are opened, from 1 on. */
tinker_status gguf_open(struct gguf *g, const char *path, tinker_error *err)
{
    size_t stem = 0, shards = count_shards(path, &stem);
    init_gguf(g);
    g->path = arena_strdup(&g->arena, path);
    g->files = arena_array(&g->arena, shards ? shards : 1, sizeof(*g->files));
    tinker_status status = TINKER_OK;
    if (!g->path || !g->files)
        status = err_nomem(err, path);
    else if (shards < 1 || shards > SHARDS_MAX)
        status =
            err_set(err, TINKER_EINVAL, "%s: the name says it is one of %zu files", path, shards);
    for (size_t i = 0; status == TINKER_OK && i < shards; i++) {
        const char *name = g->path;
        if (shards > 1)
            name =
                arena_printf(&g->arena, "%.*s-%05zu-of-%05zu.gguf", (int)stem, path, i + 1, shards);
        status = name ? open_shard(g, name, i, err) : err_nomem(err, path);
    }
    if (status == TINKER_OK)
        status = check_split(g, shards, err);
    if (status != TINKER_OK)
        gguf_close(g);
    return status;
}

/* Everything that was handed out is borrowed from the maps and the arena and ends here. */
void gguf_close(struct gguf *g)
{
    for (size_t i = 0; i < g->n_files; i++)
        os_map_close(&g->files[i]);
    free(g->tensors);
    map_clear(&g->keys);
    map_clear(&g->names);
    arena_clear(&g->arena);
    *g = (struct gguf){ 0 };
}

/* By name only: a path that does not exist yet is asked about, too. */
bool gguf_is_name(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    return map_get(&g->names, name, strlen(name));
}

const struct gguf_value *gguf_get(const struct gguf *g, const char *key)
{
    return map_get(&g->keys, key, strlen(key));
}

/* Items need not be aligned in the file. Little-endian hosts only: the low bytes of `bits` are
 * the item. */
double gguf_number(const struct gguf_value *v, uint64_t i)
{
    const unsigned char *p = v->data + i * value_bytes[v->type];
    uint64_t bits = 0;
    float f;
    double d;
    memcpy(&bits, p, value_bytes[v->type]);
    switch (v->type) {
    case GGUF_I8:
        return (int8_t)bits;
    case GGUF_I16:
        return (int16_t)bits;
    case GGUF_I32:
        return (int32_t)bits;
    case GGUF_I64:
        return (double)(int64_t)bits;
    case GGUF_F32:
        memcpy(&f, p, sizeof f);
        return (double)f;
    case GGUF_F64:
        memcpy(&d, p, sizeof d);
        return d;
    default:
        return (double)bits;
    }
}

/* A number that is not in a list; NULL also for a text, so that a wrong type reads as absent. */
static const struct gguf_value *get_single(const struct gguf *g, const char *key)
{
    const struct gguf_value *v = gguf_get(g, key);
    return v && !v->array && v->type != GGUF_STRING ? v : NULL;
}

/* Beyond 2^53 a double is no integer of ours; such sizes are refused by whoever asked anyway. */
bool gguf_get_int(const struct gguf *g, const char *key, int64_t *out)
{
    const struct gguf_value *v = get_single(g, key);
    if (!v || v->type == GGUF_F32 || v->type == GGUF_F64)
        return false;
    double d = gguf_number(v, 0);
    *out = d > 0x1p53 ? INT64_MAX : d < -0x1p53 ? INT64_MIN : (int64_t)d;
    return true;
}

/* Also for integers: converters write some settings as either. */
bool gguf_get_double(const struct gguf *g, const char *key, double *out)
{
    const struct gguf_value *v = get_single(g, key);
    if (v)
        *out = gguf_number(v, 0);
    return v != NULL;
}

bool gguf_get_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct gguf_value *v = get_single(g, key);
    if (v)
        *out = gguf_number(v, 0) != 0;
    return v != NULL;
}

/* Unchecked: take_items() has walked the array once. */
void gguf_next_string(const struct gguf_value *v, size_t *at, const char **s, size_t *n)
{
    uint64_t length;
    memcpy(&length, v->data + *at, sizeof length);
    *s = (const char *)v->data + *at + sizeof length;
    *n = (size_t)length;
    *at += sizeof length + (size_t)length;
}

bool gguf_get_string(const struct gguf *g, const char *key, const char **s, size_t *n)
{
    const struct gguf_value *v = gguf_get(g, key);
    size_t at = 0;
    if (!v || v->array || v->type != GGUF_STRING)
        return false;
    gguf_next_string(v, &at, s, n);
    return true;
}
