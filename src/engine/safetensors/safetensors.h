/* safetensors.h - read and write the tensor file format of Hugging Face.
 *
 * Reading maps the file; a tensor's data is borrowed from the map.  Everything the
 * header says is checked before it is used: its length, each name, dtype, shape and
 * range, that ranges follow each other without gap or overlap, and that they end
 * where the file ends.  A wrong file is TINKER_EINVAL with file and tensor named. */
#ifndef ENGINE_SAFETENSORS_H
#define ENGINE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>
#include "base/arena.h"
#include "base/map.h"
#include "base/os.h"
#include "engine/kernels/kernels.h"

enum { ST_MAX_DIMS = 8 };

struct st_tensor {
    const char *name;
    enum source_dtype dtype;
    bool usable;            /* false: a dtype we do not compute with */
    const char *dtype_name; /* as the file says it */
    size_t shape[ST_MAX_DIMS];
    size_t ndim;
    size_t count; /* elements */
    const void *data;
    size_t bytes;
};

struct safetensors {
    char *path;
    struct os_map file;
    const char *header; /* the JSON text */
    size_t header_len;
    struct st_tensor *tensors; /* in file order */
    size_t n;
    struct map by_name;
    struct arena arena;
};

tinker_status safetensors_open(struct safetensors *s, const char *path, tinker_error *err);
/* The same on bytes in memory, which must stay; path is for messages. */
tinker_status safetensors_parse(struct safetensors *s, const char *path, const void *data,
                                size_t len, tinker_error *err);
void safetensors_close(struct safetensors *s);
const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name);

size_t st_dtype_size(enum source_dtype dtype);
const char *st_dtype_name(enum source_dtype dtype);
/* out[0..n) = elements [first, first + n) of a tensor, as float. */
void st_to_float(const void *data, enum source_dtype dtype, size_t first, size_t n, float *out);
/* The way back, rounded to nearest even; values beyond F16 become infinities. */
void st_from_float(const float *in, enum source_dtype dtype, size_t n, void *out);

/* One tensor to write.  fetch gives the bytes (dtype * product of shape) when its turn
 * comes; they are borrowed until the next fetch. */
struct st_entry {
    const char *name;
    enum source_dtype dtype;
    size_t shape[ST_MAX_DIMS];
    size_t ndim;
};
typedef const void *st_fetch(void *state, size_t entry, tinker_error *err); /* NULL: failed */

/* Write and sync a file at path (not atomically: the caller owns the directory).
 * Entries are written sorted by element size descending, then by name. */
tinker_status safetensors_write(const char *path, const struct st_entry *entries, size_t n,
                                st_fetch *fetch, void *state, tinker_error *err);

#endif
