/* proto_tensor.c - Tensor, both directions: see proto_tensor.h. */
#include "wire/proto/proto_tensor.h"

#include "wire/check.h"
#include "wire/proto/proto_write.h"

/* Field numbers of Tensor and of its sparse arm in tinker_public.proto. */
enum { TENSOR_DENSE = 1, TENSOR_SPARSE, TENSOR_DTYPE, TENSOR_SHAPE };
enum { CSR_VALUES = 1, CSR_CROW, CSR_COL };

/* Compressed sparse rows: values, row pointers, column indices. Empty fields are left out, as
 * proto3 does; the row pointers, of which there is at least one, never are. */
static size_t csr_size(const tinker_tensor *t)
{
    size_t values = proto_values_size(t), rows = (size_t)t->shape[0] + 1;
    return (values ? pb_len_size(values) : 0) + pb_len_size(8 * rows) +
           (t->n ? pb_len_size(8 * t->n) : 0);
}

/* The shape that is written: with `shaped`, a tensor that has none is a vector. */
static const int64_t *written_shape(const tinker_tensor *t, bool shaped, int64_t vector[1],
                                    size_t *ndim)
{
    *ndim = t->ndim;
    if (t->shape || !shaped)
        return t->shape;
    vector[0] = (int64_t)t->n;
    *ndim = 1;
    return vector;
}

/* Two bytes are the element type: a tag and an enum below 128. */
size_t proto_tensor_size(const tinker_tensor *t, bool shaped)
{
    int64_t vector[1];
    size_t ndim;
    const int64_t *dims = written_shape(t, shaped, vector, &ndim);
    size_t shape = proto_shape_size(dims, ndim);
    /* A dense tensor of no elements is still written: the field says that it is dense. */
    return pb_len_size(t->crow ? csr_size(t) : proto_values_size(t)) + 2 +
           (shape ? pb_len_size(shape) : 0);
}

/* As measured above, field by field; the caller has written the tag and the length. */
uint8_t *proto_put_tensor(uint8_t *p, const tinker_tensor *t, bool shaped)
{
    int64_t vector[1];
    size_t ndim;
    const int64_t *dims = written_shape(t, shaped, vector, &ndim);
    /* Fields in ascending order, as the reference writes them: equal tensors give equal bytes. */
    if (t->crow) {
        p = pb_put_head(p, TENSOR_SPARSE, csr_size(t));
        if (t->n)
            p = proto_put_values(pb_put_head(p, CSR_VALUES, proto_values_size(t)), t);
        p = pb_put_bytes(p, CSR_CROW, t->crow, 8 * ((size_t)t->shape[0] + 1));
        if (t->n)
            p = pb_put_bytes(p, CSR_COL, t->col, 8 * t->n);
    } else {
        p = proto_put_values(pb_put_head(p, TENSOR_DENSE, proto_values_size(t)), t);
    }
    p = pb_put_int(p, TENSOR_DTYPE, proto_dtype_of(t->dtype));
    return proto_put_shape(p, TENSOR_SHAPE, dims, ndim);
}

/* The counts of the three lists must fit the shape before anybody walks them. */
static bool read_csr(struct wire_reader *r, const struct pb_field *field, uint64_t dtype,
                     tinker_tensor *t)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    /* By field number; 0 is never one. */
    struct pb_field f, part[4] = { { 0 } };
    const void *crow = NULL, *col = NULL;
    size_t n_crow = 0, n_col = 0;
    /* The last of each counts, as protobuf has it for repeated singular fields. */
    while (pb_next(&in, &f))
        /* Numbers above CSR_COL are of a newer schema and skipped. */
        if (f.type == PB_LEN && f.number <= CSR_COL)
            part[f.number] = f;
    if (!proto_done(r, &in) ||
        !proto_values(r, dtype, part[CSR_VALUES].bytes, part[CSR_VALUES].n, t) ||
        !proto_elements(r, part[CSR_CROW].bytes, part[CSR_CROW].n, 8, &crow, &n_crow) ||
        !proto_elements(r, part[CSR_COL].bytes, part[CSR_COL].n, 8, &col, &n_col))
        return false;
    /* First, because the number of rows says how many pointers there must be. */
    if (t->ndim != 2 || t->shape[0] < 0)
        return wire_read_fail(r, "a sparse tensor needs a shape of two dimensions");
    if (n_crow != (uint64_t)t->shape[0] + 1)
        return wire_read_fail(r, "expected %lld row pointers, got %zu", (long long)t->shape[0] + 1,
                              n_crow);
    if (n_col != t->n)
        return wire_read_fail(r, "expected %zu column indices, got %zu", t->n, n_col);
    t->crow = crow;
    t->col = col;
    return true;
}

/* dense and sparse are arms of a oneof: the last one counts.  Data are read after the loop,
 * because dtype and shape may follow them. */
bool proto_read_tensor(struct wire_reader *r, const struct pb_field *field, tinker_tensor *t)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f, data = { 0 };
    int64_t shape[WIRE_DIMENSIONS_MAX];
    uint64_t dtype = 0;
    while (pb_next(&in, &f)) {
        if (pb_is(&f, TENSOR_DENSE, PB_LEN) || pb_is(&f, TENSOR_SPARSE, PB_LEN))
            data = f;
        else if (pb_is(&f, TENSOR_DTYPE, PB_VARINT))
            dtype = f.value;
        else if (f.number == TENSOR_SHAPE && (f.type == PB_LEN || f.type == PB_VARINT) &&
                 !proto_shape(r, &f, shape, &t->ndim))
            return false;
    }
    if (!proto_done(r, &in))
        return false;
    /* proto3 cannot tell "no shape" from a scalar: no dimensions are no shape. */
    if (t->ndim) {
        t->shape = arena_memdup(r->arena, shape, t->ndim * sizeof shape[0]);
        if (!t->shape)
            return wire_read_nomem(r);
    }
    /* Without either arm it is dense and has no elements. */
    bool ok = data.number == TENSOR_SPARSE ? read_csr(r, &data, dtype, t)
                                           : proto_values(r, dtype, data.bytes, data.n, t);
    /* Its message goes to r instead of err, so that the place is put in front. */
    tinker_error why;
    if (!ok)
        return false;
    /* The same check that a sender does: indices in range, counts that fit. */
    return wire_check_tensor(t, &why) == TINKER_OK || wire_read_fail(r, "%s", why.message);
}
