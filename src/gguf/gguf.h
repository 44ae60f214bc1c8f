/* gguf.h - read and write GGUF, the model file format of llama.cpp: metadata, then tensors.
 *
 * The reader maps the file, or all files of a model that was split, and checks every number before
 * it uses it: counts against the bytes that are left, lengths, types, that no key or name comes
 * twice, dimensions and ranges of tensors, that these do not overlap.  A wrong file is TINKER_EINVAL
 * with file and place named.  Values and data are borrowed from the map.  Versions 2 and 3,
 * little-endian.
 *
 * Thread safety: plain data once open; one thread at a time while writing. */
#ifndef GGUF_H
#define GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/map.h"
#include "base/os.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

enum { GGUF_DIMS = 4 };

/* Types of tensors that we name, by their number in files. */
enum gguf_tensor_type {
    GGUF_TENSOR_F32 = 0,
    GGUF_TENSOR_F16 = 1,
    GGUF_TENSOR_Q4_0 = 2,
    GGUF_TENSOR_Q4_1 = 3,
    GGUF_TENSOR_Q5_0 = 6,
    GGUF_TENSOR_Q5_1 = 7,
    GGUF_TENSOR_Q8_0 = 8,
    GGUF_TENSOR_Q4_K = 12,
    GGUF_TENSOR_Q5_K = 13,
    GGUF_TENSOR_Q6_K = 14,
    GGUF_TENSOR_BF16 = 30,
    GGUF_TENSOR_MXFP4 = 39
};

/* A value; of an array the type is that of its items.  Its bytes are as in the file. */
struct gguf_value {
    enum gguf_type type;
    bool array;
    uint64_t n; /* items; 1 for a single value */
    const unsigned char *data;
    size_t bytes;
};

struct gguf_tensor {
    const char *name;
    uint32_t n_dims;
    uint64_t dim[GGUF_DIMS]; /* the first is the length of a row; missing ones are 1 */
    uint32_t type;
    const void *data;
    size_t bytes;
};

struct gguf {
    const char *path;
    struct os_map *files;
    size_t n_files;
    struct map keys, names; /* to struct gguf_value, struct gguf_tensor */
    struct gguf_tensor **tensors;
    size_t n;
    struct arena arena;
};

/* Open a file; of one named like "x-00001-of-00003.gguf", any of them, all.  On failure nothing
 * has to be closed. */
tinker_status gguf_open(struct gguf *g, const char *path, tinker_error *err);
/* The same on bytes in memory, which must stay; path is for messages. */
tinker_status gguf_parse(struct gguf *g, const char *path, const void *data, size_t n,
                         tinker_error *err);
void gguf_close(struct gguf *g);
/* Does the name end in .gguf? */
bool gguf_is_name(const char *path);

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name);
/* "Q4_K"; NULL: a type that we do not read. */
const char *gguf_tensor_type_name(uint32_t type);
/* Bytes of n elements, whole blocks, of a type that has a name. */
uint64_t gguf_tensor_bytes(uint32_t type, uint64_t n);

/* Values by key, of any type that can hold them; false: absent, or of another kind. */
const struct gguf_value *gguf_get(const struct gguf *g, const char *key);
bool gguf_get_int(const struct gguf *g, const char *key, int64_t *out);
bool gguf_get_double(const struct gguf *g, const char *key, double *out);
bool gguf_get_bool(const struct gguf *g, const char *key, bool *out);
bool gguf_get_string(const struct gguf *g, const char *key, const char **s, size_t *n);
/* Item i of numbers. */
double gguf_number(const struct gguf_value *v, uint64_t i);
/* The next string of an array of them: *at starts at 0. */
void gguf_next_string(const struct gguf_value *v, size_t *at, const char **s, size_t *n);

/* ---- writing -------------------------------------------------------------------------- */

struct gguf_writer {
    struct buf values, tensors;
    uint64_t n_values, n_tensors;
    uint64_t offset;  /* of the next tensor's data */
    struct buf sizes; /* uint64_t of each tensor */
};

void gguf_writer_init(struct gguf_writer *w);
void gguf_writer_clear(struct gguf_writer *w);
void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t value);
void gguf_put_f32(struct gguf_writer *w, const char *key, float value);
void gguf_put_bool(struct gguf_writer *w, const char *key, bool value);
void gguf_put_string(struct gguf_writer *w, const char *key, const char *s, size_t n);
/* An array of n items, which must follow by the functions below. */
void gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t n);
void gguf_add_string(struct gguf_writer *w, const char *s, size_t n);
void gguf_add_i32(struct gguf_writer *w, int32_t value);
void gguf_add_f32(struct gguf_writer *w, float value);
/* A value as another file has it. */
void gguf_put_value(struct gguf_writer *w, const char *key, size_t n,
                    const struct gguf_value *value);
/* A tensor; its bytes are asked for in this order. */
void gguf_put_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                     const uint64_t *dim);
/* Bytes of a tensor, borrowed until the next call; NULL with *err set: failed. */
typedef const void *gguf_fetch(void *state, size_t index, tinker_error *err);
/* Write and sync the file. */
tinker_status gguf_write(struct gguf_writer *w, const char *path, gguf_fetch *fetch, void *state,
                         tinker_error *err);

#endif
