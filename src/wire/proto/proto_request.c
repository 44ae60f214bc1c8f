/* proto_request.c - ForwardBackwardRequest, both directions.
 *
 * Encoding measures every part with functions that cost a few additions per tensor,
 * reserves the whole message once, then copies each payload to its place.  Only
 * elements that change type are touched one by one. */
#include "wire/proto.h"

#include <assert.h>
#include <string.h>
#include "base/err.h"
#include "wire/check.h"
#include "wire/proto/proto_read.h"
#include "wire/proto/proto_tensor.h"
#include "wire/proto/proto_write.h"

/* Field numbers of the schema. */
enum {
    REQUEST_MODEL = 1,
    REQUEST_SEQ,
    REQUEST_DATA,
    REQUEST_LOSS,
    REQUEST_CONFIG,
    REQUEST_FORWARD,
    REQUEST_CONFIG2
};
/* A datum holds its chunks of input in order, and a map of named tensors for the loss. */
enum { DATUM_INPUT = 1, DATUM_TENSORS, DATUM_INPUT_SPANS, DATUM_TARGET_SPANS };
/* A span is a oneof of two messages with the same fields. */
enum { SPAN_PROMPT = 1, SPAN_SAMPLED };
enum { SPAN_ID = 1, SPAN_OFFSET, SPAN_LENGTH };
/* A setting is a oneof of a number and a text. */
enum { SETTING_NUMBER = 1, SETTING_TEXT };
/* A chunk is a oneof of these three; IMAGE_DATA is the number of the bytes in the dmel arm,
 * too. */
enum { CHUNK_TEXT = 1, CHUNK_IMAGE, CHUNK_DMEL };
enum { IMAGE_DATA = 1, IMAGE_FORMAT, IMAGE_EXPECTED };
enum { MAP_KEY = 1, MAP_VALUE };

/* ---- encoding: chunks ------------------------------------------------------------ */

/* Of the message inside the oneof arm. */
static size_t arm_size(const tinker_chunk *c)
{
    /* Empty fields are left out, as proto3 does. The arm around them is not: that it is there says
     * of which kind the chunk is, so an empty text chunk is 0a 00. */
    if (c->kind == TINKER_CHUNK_TEXT)
        return c->n_tokens ? pb_len_size(4 * c->n_tokens) : 0;
    size_t size = c->n_bytes ? pb_len_size(c->n_bytes) : 0;
    if (c->kind == TINKER_CHUNK_IMAGE)
        size += pb_len_size(strlen(c->format));
    if (c->kind == TINKER_CHUNK_IMAGE && c->has_expected_tokens)
        /* The field is `optional`, so 0 is written. A negative int32 is sign-extended to ten
         * bytes. */
        size += 1 + pb_varint_size((uint64_t)c->expected_tokens);
    return size;
}

/* A length stands before what it measures, hence arm_size() before anything is written. */
static uint8_t *put_chunk(uint8_t *p, const tinker_chunk *c)
{
    size_t arm = arm_size(c);
    p = pb_put_head(p, DATUM_INPUT, pb_len_size(arm));
    if (c->kind == TINKER_CHUNK_TEXT) {
        p = pb_put_head(p, CHUNK_TEXT, arm);
        return c->n_tokens ? pb_put_bytes(p, 1, c->tokens, 4 * c->n_tokens) : p;
    }
    p = pb_put_head(p, c->kind == TINKER_CHUNK_IMAGE ? CHUNK_IMAGE : CHUNK_DMEL, arm);
    if (c->n_bytes)
        p = pb_put_bytes(p, IMAGE_DATA, c->bytes, c->n_bytes);
    if (c->kind == TINKER_CHUNK_IMAGE) {
        p = pb_put_bytes(p, IMAGE_FORMAT, c->format, strlen(c->format));
        if (c->has_expected_tokens)
            p = pb_put_int(p, IMAGE_EXPECTED, (uint64_t)c->expected_tokens);
    }
    return p;
}

/* ---- encoding: settings and spans ------------------------------------------------ */

/* One entry: its key, and a LossConfigValue of `value` bytes around one arm of the oneof. */
static size_t setting_size(const char *name, size_t value)
{
    return pb_len_size(strlen(name)) + pb_len_size(value);
}

/* Of loss_fn_config_v2, which takes numbers and texts. It is written only if there is a text, and
 * then repeats the numbers: a server that knows it ignores loss_fn_config, and one that does not
 * finds the numbers there. */
static size_t settings_size(const tinker_loss *l)
{
    size_t size = 0;
    for (size_t i = 0; l->n_texts && i < l->n_config; i++)
        size += pb_len_size(setting_size(l->config[i].name, 1 + sizeof(double)));
    for (size_t i = 0; i < l->n_texts; i++)
        size += pb_len_size(setting_size(l->texts[i].name, pb_len_size(strlen(l->texts[i].value))));
    return size;
}

/* In the order of the sizes above; a mismatch ends in the assert of the caller. */
static uint8_t *put_settings(uint8_t *p, const tinker_loss *l)
{
    for (size_t i = 0; l->n_texts && i < l->n_config; i++) {
        const tinker_named_number *c = &l->config[i];
        p = pb_put_head(p, REQUEST_CONFIG2, setting_size(c->name, 1 + sizeof(double)));
        p = pb_put_bytes(p, MAP_KEY, c->name, strlen(c->name));
        p = pb_put_head(p, MAP_VALUE, 1 + sizeof(double));
        p = pb_put_double(p, SETTING_NUMBER, c->value);
    }
    for (size_t i = 0; i < l->n_texts; i++) {
        const tinker_named_string *t = &l->texts[i];
        size_t value = pb_len_size(strlen(t->value));
        p = pb_put_head(p, REQUEST_CONFIG2, setting_size(t->name, value));
        p = pb_put_bytes(p, MAP_KEY, t->name, strlen(t->name));
        p = pb_put_head(p, MAP_VALUE, value);
        p = pb_put_bytes(p, SETTING_TEXT, t->value, strlen(t->value));
    }
    return p;
}

/* Zeros are not written, as proto3 does; the id is never empty, see check_spans(). */
static size_t span_size(const tinker_provenance *s)
{
    size_t size = pb_len_size(strlen(s->sequence_id));
    size += s->offset ? 1 + pb_varint_size((uint64_t)s->offset) : 0;
    return size + (s->length ? 1 + pb_varint_size((uint64_t)s->length) : 0);
}

/* Each span is ProvenanceSpan around SequenceSpan around its fields, so two lengths. */
static size_t spans_size(const tinker_provenance *spans, size_t n)
{
    size_t size = 0;
    for (size_t i = 0; i < n; i++)
        size += pb_len_size(pb_len_size(span_size(&spans[i])));
    return size;
}

/* The arm says where the tokens are from; zeros are the default of proto3 and left out. */
static uint8_t *put_spans(uint8_t *p, unsigned field, const tinker_provenance *spans, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const tinker_provenance *s = &spans[i];
        p = pb_put_head(p, field, pb_len_size(span_size(s)));
        p = pb_put_head(p, s->sampled ? SPAN_SAMPLED : SPAN_PROMPT, span_size(s));
        p = pb_put_bytes(p, SPAN_ID, s->sequence_id, strlen(s->sequence_id));
        if (s->offset)
            p = pb_put_int(p, SPAN_OFFSET, (uint64_t)s->offset);
        if (s->length)
            p = pb_put_int(p, SPAN_LENGTH, (uint64_t)s->length);
    }
    return p;
}

/* ---- encoding: datums and the request -------------------------------------------- */

/* One entry of the map: key and value. */
static size_t input_size(const tinker_named_tensor *t, bool shaped)
{
    return pb_len_size(strlen(t->name)) + pb_len_size(proto_tensor_size(&t->tensor, shaped));
}

/* Chunk, oneof arm and content are three messages inside each other: hence the nested lengths.
 * Sizes are computed anew at each level: a few additions, where keeping them would need memory. */
static size_t datum_size(const tinker_datum *d, bool shaped)
{
    size_t size = 0;
    for (size_t i = 0; i < d->model_input.n_chunks; i++)
        size += pb_len_size(pb_len_size(arm_size(&d->model_input.chunks[i])));
    for (size_t i = 0; i < d->n_inputs; i++)
        size += pb_len_size(input_size(&d->inputs[i], shaped));
    size += spans_size(d->input_spans, d->n_input_spans);
    size += spans_size(d->target_spans, d->n_target_spans);
    return size;
}

/* Byte for byte what datum_size() has counted; there is no check of space any more. */
static uint8_t *put_datum(uint8_t *p, const tinker_datum *d, bool shaped)
{
    p = pb_put_head(p, REQUEST_DATA, datum_size(d, shaped));
    for (size_t i = 0; i < d->model_input.n_chunks; i++)
        p = put_chunk(p, &d->model_input.chunks[i]);
    for (size_t i = 0; i < d->n_inputs; i++) {
        const tinker_named_tensor *t = &d->inputs[i];
        /* An entry of the map: name and tensor. */
        p = pb_put_head(p, DATUM_TENSORS, input_size(t, shaped));
        p = pb_put_bytes(p, MAP_KEY, t->name, strlen(t->name));
        p = pb_put_head(p, MAP_VALUE, proto_tensor_size(&t->tensor, shaped));
        p = proto_put_tensor(p, &t->tensor, shaped);
    }
    p = put_spans(p, DATUM_INPUT_SPANS, d->input_spans, d->n_input_spans);
    p = put_spans(p, DATUM_TARGET_SPANS, d->target_spans, d->n_target_spans);
    return p;
}

tinker_status wire_encode_forward_backward_request(const struct wire_forward_backward_request *req,
                                                   struct buf *out, tinker_error *err)
{
    /* Names and numbers of the loss are checked by wire_check_loss(), before a call is cut into
     * requests. */
    if (!req->model_id || !req->loss.name)
        return err_set(err, TINKER_EINVAL, "%s: is required",
                       req->model_id ? "loss_fn" : "model_id");
    /* The field is an int32. */
    if (req->seq_id.has && (req->seq_id.value < 0 || req->seq_id.value > INT32_MAX))
        return err_set(err, TINKER_EINVAL, "seq_id: %lld does not fit 31 bits",
                       (long long)req->seq_id.value);
    /* Measuring trusts what this has checked: no NULL names, formats or ids, no negative sizes. */
    tinker_status status = wire_check_data(req->data, req->n_data, err);
    if (status)
        return status;
    /* Measure, in the order of writing below. */
    size_t size = pb_len_size(strlen(req->model_id)) + pb_len_size(strlen(req->loss.name));
    /* 0 is the default of proto3, so it is not written. */
    if (req->seq_id.has && req->seq_id.value)
        size += 1 + pb_varint_size((uint64_t)req->seq_id.value);
    for (size_t i = 0; i < req->n_data; i++)
        size += pb_len_size(datum_size(&req->data[i], req->shaped));
    size += proto_numbers_size(req->loss.config, req->loss.n_config);
    size += req->forward_only ? 2 : 0;
    size += settings_size(&req->loss);
    if (!buf_reserve(out, size))
        return err_nomem(err, "forward_backward body");
    /* Write in ascending order of the fields, so model and number come first: a server finds them
     * there even if it refuses the rest, and knows whose turn the request takes. */
    uint8_t *start = (uint8_t *)out->data + out->len, *p = start;
    p = pb_put_bytes(p, REQUEST_MODEL, req->model_id, strlen(req->model_id));
    if (req->seq_id.has && req->seq_id.value)
        p = pb_put_int(p, REQUEST_SEQ, (uint64_t)req->seq_id.value);
    for (size_t i = 0; i < req->n_data; i++)
        p = put_datum(p, &req->data[i], req->shaped);
    p = pb_put_bytes(p, REQUEST_LOSS, req->loss.name, strlen(req->loss.name));
    p = proto_put_numbers(p, REQUEST_CONFIG, req->loss.config, req->loss.n_config);
    if (req->forward_only)
        p = pb_put_int(p, REQUEST_FORWARD, 1);
    p = put_settings(p, &req->loss);
    /* Measured and written must agree, or the buffer was overrun. */
    assert((size_t)(p - start) == size);
    out->len += (size_t)(p - start);
    /* buf_reserve() has kept a byte for it. */
    out->data[out->len] = '\0';
    return TINKER_OK;
}

/* ---- decoding: chunks ------------------------------------------------------------ */

/* An image or an audio tensor: bytes, and what an image says about itself. */
static bool read_bytes_chunk(struct wire_reader *r, const struct pb_field *arm, tinker_chunk *c)
{
    struct pb_in in = pb_open(arm->bytes, arm->n);
    struct pb_field f, data = { 0 };
    bool image = arm->number == CHUNK_IMAGE;
    c->kind = image ? TINKER_CHUNK_IMAGE : TINKER_CHUNK_DMEL;
    while (pb_next(&in, &f)) {
        /* A field of another wire type is unknown; of a repeated one the last counts. */
        if (pb_is(&f, IMAGE_DATA, PB_LEN))
            data = f;
        else if (image && pb_is(&f, IMAGE_FORMAT, PB_LEN) && !proto_text(r, &f, &c->format))
            return false;
        else if (image && pb_is(&f, IMAGE_EXPECTED, PB_VARINT)) {
            c->has_expected_tokens = 1;
            /* An int32 comes as a varint of up to ten bytes; the low 32 bits are the number. */
            c->expected_tokens = (int32_t)f.value;
        }
    }
    return proto_done(r, &in) && proto_elements(r, data.bytes, data.n, 1, &c->bytes, &c->n_bytes);
}

/* A oneof: of several arms the last one counts.  Tokens are a bytes field of int32, not varints. */
static bool read_chunk(struct wire_reader *r, const struct pb_field *field, tinker_chunk *c)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f, arm = { 0 };
    while (pb_next(&in, &f))
        if (f.type == PB_LEN && f.number >= CHUNK_TEXT && f.number <= CHUNK_DMEL)
            arm = f;
    if (!proto_done(r, &in))
        return false;
    if (!arm.number)
        /* Skipping it as unknown would shift every position behind it. */
        return wire_read_fail(r, "a chunk of an unknown kind");
    if (arm.number != CHUNK_TEXT)
        return read_bytes_chunk(r, &arm, c);
    struct pb_field tokens = { 0 };
    const void *v = NULL;
    in = pb_open(arm.bytes, arm.n);
    c->kind = TINKER_CHUNK_TEXT;
    while (pb_next(&in, &f))
        if (pb_is(&f, 1, PB_LEN))
            tokens = f;
    if (!proto_done(r, &in) || !proto_elements(r, tokens.bytes, tokens.n, 4, &v, &c->n_tokens))
        return false;
    c->tokens = v;
    return true;
}

/* ---- decoding: settings and spans ------------------------------------------------ */

/* One entry of the second map of settings, into the list of numbers or of texts. Without an arm it
 * is the number 0, whose bits value has. */
static bool read_setting(struct wire_reader *r, const struct pb_field *field,
                         struct wire_named *numbers, struct wire_named *texts)
{
    struct proto_entry e;
    struct pb_field f, value = { 0 };
    if (!proto_entry(r, field, PB_LEN, &e))
        return false;
    struct pb_in in = pb_open(e.value.bytes, e.value.n);
    while (pb_next(&in, &f))
        if (pb_is(&f, SETTING_NUMBER, PB_FIXED64) || pb_is(&f, SETTING_TEXT, PB_LEN))
            value = f;
    if (!proto_done(r, &in))
        return false;
    /* A key that is missing is the empty text; proto_entry() has checked its UTF-8. */
    const char *key = e.key.bytes ? (const char *)e.key.bytes : "";
    if (value.number == SETTING_TEXT) {
        tinker_named_string *text = wire_named_slot(r, texts, key, e.key.n);
        return text && proto_text(r, &value, &text->value);
    }
    tinker_named_number *number = wire_named_slot(r, numbers, key, e.key.n);
    if (!number)
        return false;
    memcpy(&number->value, &value.value, sizeof number->value);
    return true;
}

/* Of the arms of a oneof the last one on the wire counts. */
static bool read_span(struct wire_reader *r, const struct pb_field *field, tinker_provenance *s)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f, arm = { 0 };
    while (pb_next(&in, &f))
        if (pb_is(&f, SPAN_PROMPT, PB_LEN) || pb_is(&f, SPAN_SAMPLED, PB_LEN))
            arm = f;
    if (!proto_done(r, &in))
        return false;
    if (!arm.number)
        /* A span that is not understood would leave a gap in what the spans cover. */
        return wire_read_fail(r, "a span of an unknown kind");
    *s = (tinker_provenance){ .sampled = arm.number == SPAN_SAMPLED, .sequence_id = "" };
    in = pb_open(arm.bytes, arm.n);
    while (pb_next(&in, &f)) {
        if (pb_is(&f, SPAN_ID, PB_LEN) && !proto_text(r, &f, &s->sequence_id))
            return false;
        if (pb_is(&f, SPAN_OFFSET, PB_VARINT))
            s->offset = (int64_t)f.value;
        if (pb_is(&f, SPAN_LENGTH, PB_VARINT))
            s->length = (int64_t)f.value;
    }
    return proto_done(r, &in);
}

/* All spans of one of the two lists of a datum, in a pass of their own: few datums have any, and
 * those that have none stay without an allocation. */
static bool read_spans(struct wire_reader *r, const struct pb_field *datum, unsigned number,
                       const char *name, const tinker_provenance **out, size_t *n)
{
    struct pb_in in = pb_open(datum->bytes, datum->n);
    struct pb_field f;
    size_t max = pb_count(datum->bytes, datum->n, number, PB_LEN);
    struct wire_place list = { .up = r->place, .name = name };
    struct wire_place place = { .up = &list };
    if (!max)
        return true;
    tinker_provenance *spans = arena_array(r->arena, max, sizeof *spans);
    if (!spans)
        return wire_read_nomem(r);
    bool ok = true;
    r->place = &place;
    while (ok && pb_next(&in, &f) && place.index < max)
        if (pb_is(&f, number, PB_LEN)) {
            ok = read_span(r, &f, &spans[place.index]);
            place.index++;
        }
    r->place = list.up;
    *out = spans;
    *n = place.index;
    return ok;
}

/* ---- decoding: datums and the request -------------------------------------------- */

/* Fields may come in any order and chunks between tensors; the order of the chunks alone counts. */
static bool read_datum(struct wire_reader *r, const struct pb_field *field, tinker_datum *d)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f;
    struct wire_named named;
    /* Counted first, so that the chunks lie in one array. */
    size_t n_max = pb_count(field->bytes, field->n, DATUM_INPUT, PB_LEN), n = 0;
    tinker_chunk *chunks = arena_array(r->arena, n_max, sizeof *chunks);
    bool ok = true;
    if (!chunks)
        return wire_read_nomem(r);
    wire_named_init(&named, sizeof(tinker_named_tensor));
    while (ok && pb_next(&in, &f)) {
        /* n_max is 0 for a damaged message, whose first fields may still be readable. */
        if (pb_is(&f, DATUM_INPUT, PB_LEN) && n < n_max) {
            struct wire_place list = { .up = r->place, .name = "model_input" };
            struct wire_place place = { .up = &list, .index = n };
            r->place = &place;
            ok = read_chunk(r, &f, &chunks[n++]);
            r->place = list.up;
        } else if (pb_is(&f, DATUM_TENSORS, PB_LEN)) {
            struct proto_entry e;
            tinker_named_tensor *slot = NULL;
            if (proto_entry(r, &f, PB_LEN, &e))
                slot = wire_named_slot(r, &named, e.key.bytes ? (const char *)e.key.bytes : "",
                                       e.key.n);
            struct wire_place map = { .up = r->place, .name = "loss_fn_inputs" };
            struct wire_place place = { .up = &map, .name = slot ? slot->name : NULL };
            r->place = &place;
            /* The slot is valid up to the next wire_named_slot(), which may move all of them. */
            ok = slot && proto_read_tensor(r, &e.value, &slot->tensor);
            r->place = map.up;
        }
    }
    /* Frees the index alone; entries and names are the arena's. */
    wire_named_clear(&named);
    d->model_input.chunks = chunks;
    d->model_input.n_chunks = n;
    d->inputs = (const void *)named.v;
    d->n_inputs = named.n;
    return ok && proto_done(r, &in) &&
           read_spans(r, field, DATUM_INPUT_SPANS, "model_input_spans", &d->input_spans,
                      &d->n_input_spans) &&
           read_spans(r, field, DATUM_TARGET_SPANS, "loss_fn_input_spans", &d->target_spans,
                      &d->n_target_spans);
}

/* What is collected until the message ends; which of the two maps of settings counts is known only
 * then. The three lists own an index, so they are cleared even after a failure. */
struct request_in {
    struct wire_forward_backward_request *out;
    tinker_datum *data;
    size_t n_max;
    struct wire_named config, config2, texts; /* numbers; numbers and texts of the second map */
};

/* Unknown fields are skipped: a newer client may send what this server does not know. */
static bool read_request_field(struct wire_reader *r, const struct pb_field *f,
                               struct request_in *in)
{
    if (pb_is(f, REQUEST_MODEL, PB_LEN))
        return proto_text(r, f, &in->out->model_id);
    if (pb_is(f, REQUEST_LOSS, PB_LEN))
        return proto_text(r, f, &in->out->loss.name);
    if (pb_is(f, REQUEST_CONFIG, PB_LEN))
        return proto_number_entry(r, f, &in->config);
    if (pb_is(f, REQUEST_CONFIG2, PB_LEN))
        return read_setting(r, f, &in->config2, &in->texts);
    if (pb_is(f, REQUEST_SEQ, PB_VARINT)) {
        /* An int32 field: a parser takes the low 32 bits of its varint. */
        in->out->seq_id.value = (int32_t)f->value;
        /* proto3 does not send 0, which stands for "not given". */
        in->out->seq_id.has = in->out->seq_id.value != 0;
    } else if (pb_is(f, REQUEST_FORWARD, PB_VARINT)) {
        in->out->forward_only = f->value != 0;
    } else if (pb_is(f, REQUEST_DATA, PB_LEN) && in->out->n_data < in->n_max) {
        struct wire_place list = { .name = "data" };
        struct wire_place place = { .up = &list, .index = in->out->n_data };
        r->place = &place;
        bool ok = read_datum(r, f, &in->data[in->out->n_data++]);
        r->place = NULL;
        return ok;
    }
    return true;
}

tinker_status wire_decode_forward_backward_request(const void *p, size_t n, struct arena *arena,
                                                   struct wire_forward_backward_request *out,
                                                   tinker_error *err)
{
    struct wire_reader r = proto_reader(arena, err);
    struct pb_in in = pb_open(p, n);
    struct pb_field f;
    /* seq_id 0 and forward_only false are the defaults that proto3 does not send. */
    memset(out, 0, sizeof *out);
    /* The reader of a field needs more than the result: an array that is filled, a map. */
    struct request_in req = { .out = out, .n_max = pb_count(p, n, REQUEST_DATA, PB_LEN) };
    req.data = arena_array(arena, req.n_max, sizeof *req.data);
    bool ok = true;
    if (!req.data)
        return err_nomem(err, "forward_backward request");
    wire_named_init(&req.config, sizeof(tinker_named_number));
    wire_named_init(&req.config2, sizeof(tinker_named_number));
    wire_named_init(&req.texts, sizeof(tinker_named_string));
    /* Absent texts are empty in proto3, never NULL. */
    out->model_id = out->loss.name = "";
    while (ok && pb_next(&in, &f))
        ok = read_request_field(&r, &f, &req);
    wire_named_clear(&req.config);
    wire_named_clear(&req.config2);
    wire_named_clear(&req.texts);
    /* Also after a failure: the first one is kept. */
    proto_done(&r, &in);
    out->data = req.data;
    /* The second map repeats the first when it is sent at all, so one of the two is complete. */
    const struct wire_named *numbers = req.config2.n || req.texts.n ? &req.config2 : &req.config;
    out->loss.config = (const void *)numbers->v;
    out->loss.n_config = numbers->n;
    out->loss.texts = (const void *)req.texts.v;
    out->loss.n_texts = req.texts.n;
    /* proto3 cannot tell an empty text from none. */
    if (r.status == TINKER_OK && !*out->model_id)
        wire_read_fail(&r, "model_id: is required");
    return r.status;
}
