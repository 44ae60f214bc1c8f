/* tensor_sparse.c - matrices from dense to sparse and back, see <tinker/extra/tensor.h>.
 *
 * A tensor that is returned is one block of memory: the struct, its shape, the index arrays, and
 * the elements, which are copied as they are, whatever their type. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/data.h>
#include <tinker/extra/tensor.h>
#include "base/err.h"
#include "wire/check.h"

/* The first member is the public struct, so that tinker_tensor_free() frees the whole. */
struct block {
    tinker_tensor tensor;
    int64_t numbers[]; /* shape, then crow and col, then the elements */
};

/* The bits of an element of this type that is `pad`, to be compared and copied without knowing
 * the type. bfloat16 is the upper half of float32; small integers lose nothing there. */
static void pad_bits(tinker_dtype dtype, int64_t pad, unsigned char out[8])
{
    float f = (float)pad;
    double d = (double)pad;
    uint32_t bits;
    int32_t i32 = (int32_t)pad;
    memset(out, 0, 8);
    switch (dtype) {
    case TINKER_FLOAT32:
        memcpy(out, &f, sizeof(f));
        break;
    case TINKER_FLOAT64:
        memcpy(out, &d, sizeof(d));
        break;
    case TINKER_BFLOAT16:
        memcpy(&bits, &f, sizeof(bits));
        out[0] = (unsigned char)(bits >> 16);
        out[1] = (unsigned char)(bits >> 24);
        break;
    case TINKER_INT32:
    case TINKER_UINT32:
        memcpy(out, &i32, sizeof(i32));
        break;
    case TINKER_INT64:
    case TINKER_UINT64:
        memcpy(out, &pad, sizeof(pad));
        break;
    }
}

/* Is the element the pad? Floats are compared as numbers, because minus zero is zero; NaN is
 * never the pad. */
static bool is_pad(tinker_dtype dtype, const void *element, const unsigned char *bits, size_t size)
{
    float f, f_pad;
    double d, d_pad;
    if (dtype == TINKER_FLOAT32) {
        memcpy(&f, element, sizeof(f));
        memcpy(&f_pad, bits, sizeof(f_pad));
        return f == f_pad;
    }
    if (dtype == TINKER_FLOAT64) {
        memcpy(&d, element, sizeof(d));
        memcpy(&d_pad, bits, sizeof(d_pad));
        return d == d_pad;
    }
    return memcmp(element, bits, size) == 0;
}

/* Room for a tensor of n elements like `like`, and for so many indices; shape and type are set. */
static struct block *block_new(const tinker_tensor *like, size_t n, size_t indices,
                               tinker_error *err)
{
    size_t size = wire_dtype_size(like->dtype), ndim = like->shape ? like->ndim : 1, all;
    struct block *b = NULL;
    if (!__builtin_mul_overflow(n, size, &all) &&
        !__builtin_add_overflow(all, (ndim + indices) * sizeof(int64_t) + sizeof(*b), &all))
        b = malloc(all);
    if (!b) {
        err_nomem(err, "tensor");
        return NULL;
    }
    b->numbers[0] = (int64_t)like->n;
    if (like->shape)
        memcpy(b->numbers, like->shape, ndim * sizeof(int64_t));
    b->tensor = (tinker_tensor){ .dtype = like->dtype,
                                 .data = b->numbers + ndim + indices,
                                 .n = n,
                                 .shape = b->numbers,
                                 .ndim = ndim };
    return b;
}

static tinker_tensor *copy_of(const tinker_tensor *t, tinker_error *err)
{
    struct block *b = block_new(t, t->n, 0, err);
    if (b && t->n)
        memcpy((void *)b->tensor.data, t->data, t->n * wire_dtype_size(t->dtype));
    return b ? &b->tensor : NULL;
}

/* Two passes: count what stays, then copy it. crow[i] is where row i begins, crow[rows] how many
 * there are. */
tinker_tensor *tinker_tensor_to_sparse(const tinker_tensor *t, int64_t pad, tinker_error *err)
{
    unsigned char bits[8];
    if (wire_check_result_tensor(t, err) != TINKER_OK)
        return NULL;
    if (t->crow) {
        err_set(err, TINKER_EINVAL, "the tensor is sparse already");
        return NULL;
    }
    size_t size = wire_dtype_size(t->dtype), listed = 0;
    const char *from = t->data;
    pad_bits(t->dtype, pad, bits);
    for (size_t i = 0; i < t->n; i++)
        listed += !is_pad(t->dtype, from + i * size, bits, size);
    size_t rows = t->shape && t->ndim == 2 ? (size_t)t->shape[0] : 0;
    /* A sparse matrix takes rows + 1 row pointers, and a column index beside each listed element:
     * not worth it when that is as much as the dense form. */
    if (!t->shape || t->ndim != 2 || rows + 1 + 2 * listed >= t->n)
        return copy_of(t, err);
    struct block *b = block_new(t, listed, rows + 1 + listed, err);
    if (!b)
        return NULL;
    /* numbers: shape[2], crow[rows + 1], col[listed], then the elements. */
    int64_t *crow = b->numbers + 2, *col = crow + rows + 1;
    size_t cols = (size_t)t->shape[1], n = 0;
    char *to = (char *)(col + listed);
    for (size_t i = 0; i < rows; i++) {
        crow[i] = (int64_t)n;
        for (size_t j = 0; j < cols; j++, from += size)
            if (!is_pad(t->dtype, from, bits, size)) {
                memcpy(to + n * size, from, size);
                col[n++] = (int64_t)j;
            }
    }
    crow[rows] = (int64_t)n;
    b->tensor.crow = crow;
    b->tensor.col = col;
    return &b->tensor;
}

/* Fill with the pad, then put each listed element in its place. Rows times columns may overflow:
 * a sparse tensor of a few elements can have any shape. */
tinker_tensor *tinker_tensor_to_dense(const tinker_tensor *t, int64_t pad, tinker_error *err)
{
    unsigned char bits[8];
    if (wire_check_result_tensor(t, err) != TINKER_OK)
        return NULL;
    if (!t->crow)
        return copy_of(t, err);
    size_t n, rows = (size_t)t->shape[0], cols = (size_t)t->shape[1];
    if (__builtin_mul_overflow(rows, cols, &n)) {
        err_nomem(err, "tensor");
        return NULL;
    }
    struct block *b = block_new(t, n, 0, err);
    if (!b)
        return NULL;
    size_t size = wire_dtype_size(t->dtype);
    const char *from = t->data;
    char *to = (char *)(b->numbers + 2);
    pad_bits(t->dtype, pad, bits);
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * size, bits, size);
    for (size_t i = 0; i < rows; i++)
        for (int64_t k = t->crow[i]; k < t->crow[i + 1]; k++)
            memcpy(to + (i * cols + (size_t)t->col[k]) * size, from + (size_t)k * size, size);
    return &b->tensor;
}

void tinker_tensor_free(tinker_tensor *t)
{
    free(t); /* the first member of its block */
}
