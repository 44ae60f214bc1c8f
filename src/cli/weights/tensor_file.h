/* tensor_file.h - the header of a safetensors file and whether its bytes are what it says.
 *
 * Thread safety: one thread at a time. */
#ifndef CLI_TENSOR_FILE_H
#define CLI_TENSOR_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

enum { TENSOR_DIMS = 8 };

struct tensor_entry {
    char *name;
    char dtype[16]; /* "F32", "BF16" */
    int64_t shape[TENSOR_DIMS];
    size_t n_dims;
    uint64_t begin, end; /* in the data behind the header */
};

struct tensor_file {
    struct tensor_entry *v;
    size_t n, cap;
    uint64_t data_at, data_size; /* where the data is, and how much */
};

/* Read and check the header: sizes, offsets without holes, shapes that fit.  TINKER_EINVAL names
 * the tensor.  Clear it with tensor_file_clear() in any case. */
tinker_status tensor_file_open(struct tensor_file *f, const char *path, tinker_error *err);
void tensor_file_clear(struct tensor_file *f);
/* Elements of a tensor. */
uint64_t tensor_file_count(const struct tensor_entry *t);
/* Read all data: is every number finite?  TINKER_EINVAL names the tensor. */
tinker_status tensor_file_check_data(const struct tensor_file *f, const char *path,
                                     tinker_error *err);

#endif
