/* proto_output.c - ForwardBackwardOutput, both directions.
 *
 * On the wire the tensors of all datums are concatenated per name, in records within
 * which names, element types and trailing shapes agree; in memory every datum has
 * its own tensors, which share one copy of the data. */
#include "wire/proto.h"

#include <assert.h>
#include <string.h>
#include "base/err.h"
#include "wire/check.h"
#include "wire/proto/proto_read.h"
#include "wire/proto/proto_write.h"

/* Field numbers of ForwardBackwardOutput, its records and batches in tinker_public.proto. */
enum { OUTPUT_TYPE = 1, OUTPUT_RECORDS, OUTPUT_METRICS };
/* type_tag is neither written nor read; the reference does not read it either. */
enum { RECORD_TAG = 1, RECORD_FIELDS, RECORD_COUNT };
enum { BATCH_DATA = 1, BATCH_OFFSETS, BATCH_DTYPE, BATCH_TRAILING };
/* A map is sent as a repeated message of these two. */
enum { MAP_KEY = 1, MAP_VALUE };
/* A record without fields states any count in a few bytes, so memory must not follow the count
 * alone: at 16 bytes a datum this is 64 MiB, and more datums than any batch has. */
enum { DATUMS_MAX = 1 << 22 };

/* ---- encoding: one named field of a run of datums -------------------------------- */

/* outputs[first..end) go into one record. */
struct run {
    const tinker_loss_output *outputs;
    size_t first, end;
};

static const tinker_tensor *tensor_of(const struct run *run, size_t datum, size_t field)
{
    return &run->outputs[datum].tensors[field].tensor;
}

/* Dimensions after the first; a tensor without shape or of no dimension has none. So a scalar comes
 * back as a vector of one. */
static size_t trailing_dims(const tinker_tensor *t, const int64_t **shape)
{
    *shape = t->shape && t->ndim > 1 ? t->shape + 1 : NULL;
    return *shape ? t->ndim - 1 : 0;
}

/* The sizes below are computed twice, once to reserve the message and once to write the lengths
 * inside it: a few additions per tensor, where keeping them would need memory. */
static size_t data_size(const struct run *run, size_t field)
{
    size_t size = 0;
    for (size_t i = run->first; i < run->end; i++)
        size += proto_values_size(tensor_of(run, i, field));
    return size;
}

/* Must agree with put_batch() byte by byte; the assertion in the encoder compares the sums. */
static size_t batch_size(const struct run *run, size_t field)
{
    const int64_t *shape;
    size_t n = trailing_dims(tensor_of(run, run->first, field), &shape);
    /* Data and dimensions are left out when they are empty; 2 is tag and value of the type. */
    size_t data = data_size(run, field), dims = proto_shape_size(shape, n);
    return (data ? pb_len_size(data) : 0) + pb_len_size(8 * (run->end - run->first + 1)) + 2 +
           (dims ? pb_len_size(dims) : 0);
}

/* One field of a record: all elements, where each datum ends, the type, the trailing dimensions. */
static uint8_t *put_batch(uint8_t *p, const struct run *run, size_t field)
{
    const tinker_tensor *model = tensor_of(run, run->first, field);
    const int64_t *shape;
    size_t dims = trailing_dims(model, &shape), data = data_size(run, field);
    int64_t offset = 0;
    if (data) {
        p = pb_put_head(p, BATCH_DATA, data);
        for (size_t i = run->first; i < run->end; i++)
            p = proto_put_values(p, tensor_of(run, i, field));
    }
    /* One more offset than datums: the end of each is the beginning of the next. They count bytes
     * on the wire, after conversion, as int64. */
    p = pb_put_head(p, BATCH_OFFSETS, 8 * (run->end - run->first + 1));
    for (size_t i = run->first; i <= run->end; i++) {
        memcpy(p, &offset, sizeof offset);
        p += sizeof offset;
        if (i < run->end)
            offset += (int64_t)proto_values_size(tensor_of(run, i, field));
    }
    p = pb_put_int(p, BATCH_DTYPE, proto_dtype_of(model->dtype));
    return proto_put_shape(p, BATCH_TRAILING, shape, dims);
}

/* ---- encoding: records ----------------------------------------------------------- */

/* As many datums as fit into one record: names, element types and trailing dimensions agree. */
static struct run next_run(const tinker_forward_backward *v, size_t first)
{
    const tinker_loss_output *a = &v->outputs[first];
    struct run run = { v->outputs, first, first + 1 };
    for (; run.end < v->n_outputs; run.end++) {
        /* Only neighbors join: the order of records is that of the datums in the request. */
        const tinker_loss_output *b = &v->outputs[run.end];
        if (a->n_tensors != b->n_tensors)
            return run;
        for (size_t i = 0; i < a->n_tensors; i++) {
            const tinker_tensor *x = &a->tensors[i].tensor, *y = &b->tensors[i].tensor;
            const int64_t *xs, *ys;
            size_t nx = trailing_dims(x, &xs), ny = trailing_dims(y, &ys);
            /* In the same order, too: a batch takes field i of every datum. */
            if (strcmp(a->tensors[i].name, b->tensors[i].name) != 0 ||
                proto_dtype_of(x->dtype) != proto_dtype_of(y->dtype) || nx != ny ||
                (nx && memcmp(xs, ys, nx * sizeof *xs) != 0))
                return run;
        }
    }
    return run;
}

/* One entry of the map from names to batches. */
static size_t field_size(const struct run *run, size_t field)
{
    const char *name = run->outputs[run->first].tensors[field].name;
    return pb_len_size(strlen(name)) + pb_len_size(batch_size(run, field));
}

/* How many datums the run has, then a field per name: all datums of a run have the same names. */
static size_t record_size(const struct run *run)
{
    /* The count is written even where fields would tell: without fields nothing else does. */
    size_t size = 1 + pb_varint_size(run->end - run->first);
    for (size_t i = 0; i < run->outputs[run->first].n_tensors; i++)
        size += pb_len_size(field_size(run, i));
    return size;
}

/* A server checks its own results, too: an error is better than a message that nobody can read
 * back. */
static tinker_status check_outputs(const tinker_forward_backward *v, tinker_error *err)
{
    for (size_t i = 0; i < v->n_outputs; i++) {
        for (size_t j = 0; j < v->outputs[i].n_tensors; j++) {
            const tinker_named_tensor *t = &v->outputs[i].tensors[j];
            tinker_status status = wire_check_result_tensor(&t->tensor, err);
            if (status == TINKER_OK && t->tensor.crow)
                status = err_set(err, TINKER_EINVAL, "a result cannot be sparse");
            if (status) {
                err_prefix(err, "loss_fn_outputs[%zu].%.80s", i, t->name);
                return status;
            }
        }
    }
    return TINKER_OK;
}

tinker_status wire_encode_forward_backward_output(const tinker_forward_backward *v, struct buf *out,
                                                  tinker_error *err)
{
    const char *type = v->output_type ? v->output_type : "";
    tinker_status status = check_outputs(v, err);
    if (status)
        return status;
    size_t size = *type ? pb_len_size(strlen(type)) : 0;
    for (size_t i = 0; i < v->n_outputs;) {
        struct run run = next_run(v, i);
        size += pb_len_size(record_size(&run));
        i = run.end;
    }
    size += proto_numbers_size(v->metrics, v->n_metrics);
    /* One allocation for the whole message; afterwards nothing can fail. */
    if (!buf_reserve(out, size))
        return err_nomem(err, "forward_backward result");
    uint8_t *start = (uint8_t *)out->data + out->len, *p = start;
    if (*type)
        p = pb_put_bytes(p, OUTPUT_TYPE, type, strlen(type));
    for (size_t i = 0; i < v->n_outputs;) {
        struct run run = next_run(v, i);
        const tinker_loss_output *first = &v->outputs[i];
        p = pb_put_head(p, OUTPUT_RECORDS, record_size(&run));
        for (size_t k = 0; k < first->n_tensors; k++) {
            const char *name = first->tensors[k].name;
            p = pb_put_head(p, RECORD_FIELDS, field_size(&run, k));
            p = pb_put_bytes(p, MAP_KEY, name, strlen(name));
            p = put_batch(pb_put_head(p, MAP_VALUE, batch_size(&run, k)), &run, k);
        }
        p = pb_put_int(p, RECORD_COUNT, run.end - run.first);
        i = run.end;
    }
    p = proto_put_numbers(p, OUTPUT_METRICS, v->metrics, v->n_metrics);
    /* Measured and written must agree, or the buffer was overrun. */
    assert((size_t)(p - start) == size);
    out->len += (size_t)(p - start);
    /* buf_reserve() has kept a byte for it. */
    out->data[out->len] = '\0';
    return TINKER_OK;
}

/* ---- decoding: one field --------------------------------------------------------- */

struct batch {
    const char *name;
    tinker_tensor all; /* every element of every datum */
    size_t itemsize;   /* on the wire: what the offsets count in */
    const int64_t *offsets;
    size_t n_datums;
    int64_t trailing[WIRE_DIMENSIONS_MAX];
    size_t n_trailing;
    int64_t row; /* product of trailing */
};

/* All values here come from a peer: each is checked before it is used as an index. */
static bool read_batch(struct wire_reader *r, const struct pb_field *field, struct batch *b)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f, data = { 0 }, offsets = { 0 };
    const void *v = NULL;
    uint64_t dtype = 0;
    size_t n_offsets = 0;
    while (pb_next(&in, &f)) {
        if (pb_is(&f, BATCH_DATA, PB_LEN))
            data = f;
        else if (pb_is(&f, BATCH_OFFSETS, PB_LEN))
            offsets = f;
        else if (pb_is(&f, BATCH_DTYPE, PB_VARINT))
            dtype = f.value;
        else if (f.number == BATCH_TRAILING && (f.type == PB_LEN || f.type == PB_VARINT) &&
                 !proto_shape(r, &f, b->trailing, &b->n_trailing))
            return false;
    }
    /* After the loop, because the type may follow the data. */
    if (!proto_done(r, &in) || !proto_values(r, dtype, data.bytes, data.n, &b->all) ||
        !proto_elements(r, offsets.bytes, offsets.n, 8, &v, &n_offsets))
        return false;
    /* The first dimension is added for each datum. */
    if (b->n_trailing == WIRE_DIMENSIONS_MAX)
        return wire_read_fail(r, "more than %d dimensions", WIRE_DIMENSIONS_MAX);
    b->itemsize = proto_itemsize(dtype);
    b->offsets = v;
    b->n_datums = n_offsets ? n_offsets - 1 : 0;
    /* Offsets in bytes, ascending, whole elements, inside the data. */
    for (size_t i = 0; i < n_offsets; i++) {
        int64_t before = i ? b->offsets[i - 1] : 0, at = b->offsets[i];
        /* Ascending from 0, so no difference is negative; itemsize is not 0, or the type would have
         * been refused. Bytes before the first or after the last offset are in no datum. */
        if (at < before || (uint64_t)at > data.n || at % (int64_t)b->itemsize != 0)
            return wire_read_fail(r, "offset %zu is %lld, after %lld, in %zu bytes", i,
                                  (long long)at, (long long)before, data.n);
    }
    b->row = 1;
    for (size_t i = 0; i < b->n_trailing; i++) {
        int64_t d = b->trailing[i];
        /* A product of 0 stays 0, and then every datum must be empty. */
        if (d < 0 || (d && b->row > INT64_MAX / d))
            return wire_read_fail(r, "trailing dimension %zu is %lld", i, (long long)d);
        b->row *= d;
    }
    return true;
}

/* The tensor of datum i; its shape goes to shape[1 + n_trailing]. */
static bool slice_datum(struct wire_reader *r, const struct batch *b, size_t i, int64_t *shape,
                        tinker_tensor *out)
{
    /* No copy: every datum points into the one array of its field, which lives in the arena. */
    size_t from = (size_t)b->offsets[i] / b->itemsize, to = (size_t)b->offsets[i + 1] / b->itemsize;
    int64_t n = (int64_t)(to - from);
    /* The first dimension is what is left after the trailing ones. */
    if (b->row ? n % b->row != 0 : n != 0)
        return wire_read_fail(r, "datum %zu: %lld values are no whole rows of %lld", i,
                              (long long)n, (long long)b->row);
    shape[0] = b->row ? n / b->row : 0;
    if (b->n_trailing)
        memcpy(shape + 1, b->trailing, b->n_trailing * sizeof *shape);
    *out = b->all;
    /* from counts elements: in memory they may be wider than on the wire. */
    out->data = (const char *)b->all.data + from * wire_dtype_size(b->all.dtype);
    out->n = (size_t)n;
    out->shape = shape;
    out->ndim = 1 + b->n_trailing;
    return true;
}

/* ---- decoding: records ----------------------------------------------------------- */

/* One record: its fields, and how many datums each of them must have. */
struct record {
    const struct batch *fields;
    size_t n_fields, n_datums;
};

/* Names within a record are unique: the map's rule is that the last one counts. */
static bool read_record(struct wire_reader *r, const struct pb_field *field, struct record *out)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f;
    struct wire_named named;
    uint64_t stated = 0;
    bool ok = true;
    wire_named_init(&named, sizeof(struct batch));
    while (ok && pb_next(&in, &f)) {
        if (pb_is(&f, RECORD_COUNT, PB_VARINT))
            stated = f.value;
        if (!pb_is(&f, RECORD_FIELDS, PB_LEN))
            continue;
        struct proto_entry e;
        if (!proto_entry(r, &f, PB_LEN, &e)) {
            ok = false;
            break;
        }
        struct batch *b =
            wire_named_slot(r, &named, e.key.bytes ? (const char *)e.key.bytes : "", e.key.n);
        struct wire_place place = { .up = r->place, .name = b ? b->name : NULL };
        r->place = &place;
        ok = b && read_batch(r, &e.value, b);
        r->place = place.up;
    }
    wire_named_clear(&named);
    out->fields = (const void *)named.v;
    out->n_fields = named.n;
    if (!ok || !proto_done(r, &in))
        return false;
    /* The count is the record's own. 0 is what proto3 does not write, and what old servers sent:
     * then the first field says how many there are. */
    if ((int64_t)stated < 0 || stated > DATUMS_MAX)
        return wire_read_fail(r, "%lld datums", (long long)stated);
    out->n_datums = stated ? (size_t)stated : out->n_fields ? out->fields[0].n_datums : 0;
    for (size_t i = 0; i < out->n_fields; i++)
        if (out->fields[i].n_datums != out->n_datums)
            return wire_read_fail(r, "%.80s: expected %zu datums, got %zu", out->fields[i].name,
                                  out->n_datums, out->fields[i].n_datums);
    return true;
}

/* Spread the fields of a record over its datums. */
static bool spread_record(struct wire_reader *r, const struct record *rec, tinker_loss_output *out)
{
    size_t per_datum = 0;
    for (size_t j = 0; j < rec->n_fields; j++)
        per_datum += 1 + rec->fields[j].n_trailing;
    if (!rec->n_fields || !rec->n_datums)
        return true;
    /* The counts are a peer's: the products below must not wrap. The larger structs stand for both
     * arrays, for per_datum is at least n_fields. How much it is follows the message: every field
     * brought an offset per datum. */
    if (rec->n_datums > SIZE_MAX / sizeof(tinker_named_tensor) / per_datum)
        return wire_read_nomem(r);
    tinker_named_tensor *t = arena_array(r->arena, rec->n_datums * rec->n_fields, sizeof *t);
    int64_t *shape = arena_array(r->arena, rec->n_datums * per_datum, sizeof *shape);
    if (!t || !shape)
        return wire_read_nomem(r);
    for (size_t i = 0; i < rec->n_datums; i++) {
        out[i].tensors = t;
        out[i].n_tensors = rec->n_fields;
        for (size_t j = 0; j < rec->n_fields; j++, t++) {
            t->name = rec->fields[j].name;
            if (!slice_datum(r, &rec->fields[j], i, shape, &t->tensor))
                return false;
            /* 1 + n_trailing, as counted in per_datum. */
            shape += t->tensor.ndim;
        }
    }
    return true;
}

static bool spread_records(struct wire_reader *r, const struct record *records, size_t n,
                           tinker_forward_backward *out)
{
    /* All datums lie in one array, record after record, in the order of the request. */
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += records[i].n_datums;
    if (total > DATUMS_MAX)
        return wire_read_fail(r, "%zu datums", total);
    tinker_loss_output *outputs = arena_array(r->arena, total, sizeof *outputs), *at = outputs;
    if (!outputs)
        return wire_read_nomem(r);
    struct wire_place list = { .name = "loss_fn_outputs" };
    struct wire_place place = { .up = &list };
    for (size_t i = 0; i < n; i++) {
        place.index = i;
        r->place = &place;
        bool ok = spread_record(r, &records[i], at);
        r->place = NULL;
        if (!ok)
            return false;
        /* A record without fields leaves datums without tensors: zeroed by the arena. */
        at += records[i].n_datums;
    }
    out->outputs = outputs;
    out->n_outputs = total;
    return true;
}

/* ---- decoding: the message ------------------------------------------------------- */

/* Fields may come in any order, so records are collected first and spread when the message
 * is through. */
static bool read_output(struct wire_reader *r, struct pb_in *in, struct record *records,
                        size_t room, tinker_forward_backward *out, struct wire_named *metrics)
{
    struct wire_place list = { .name = "loss_fn_outputs" };
    struct wire_place place = { .up = &list };
    struct pb_field f;
    size_t n = 0;
    bool ok = true;
    while (ok && pb_next(in, &f)) {
        if (pb_is(&f, OUTPUT_TYPE, PB_LEN)) {
            ok = proto_text(r, &f, &out->output_type);
        } else if (pb_is(&f, OUTPUT_METRICS, PB_LEN)) {
            ok = proto_number_entry(r, &f, metrics);
        } else if (pb_is(&f, OUTPUT_RECORDS, PB_LEN) && n < room) {
            place.index = n;
            r->place = &place;
            ok = read_record(r, &f, &records[n++]);
            r->place = NULL;
        }
    }
    return ok && proto_done(r, in) && spread_records(r, records, n, out);
}

tinker_status wire_decode_forward_backward_output(const void *p, size_t n, struct arena *arena,
                                                  tinker_forward_backward *out, tinker_error *err)
{
    struct wire_reader r = proto_reader(arena, err);
    struct pb_in in = pb_open(p, n);
    /* A count of what is really there, so a short message cannot ask for much memory. */
    size_t room = pb_count(p, n, OUTPUT_RECORDS, PB_LEN);
    struct wire_named metrics;
    memset(out, 0, sizeof *out);
    struct record *records = arena_array(arena, room, sizeof *records);
    if (!records)
        return err_nomem(err, "forward_backward result");
    wire_named_init(&metrics, sizeof(tinker_named_number));
    out->output_type = "";
    /* A failure is in r; callers do not use *out then. */
    read_output(&r, &in, records, room, out, &metrics);
    wire_named_clear(&metrics);
    out->metrics = (const void *)metrics.v;
    out->n_metrics = metrics.n;
    /* Servers send "module:Class", or nothing at all for what has no outputs. */
    const char *colon = strrchr(out->output_type, ':');
    if (room && colon)
        out->output_type = colon + 1;
    else if (!room && !*out->output_type)
        out->output_type = "ArrayRecord";
    return r.status;
}
