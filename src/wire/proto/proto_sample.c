/* proto_sample.c - SampleResponse, both directions.
 *
 * Tokens and log-probabilities travel as bytes fields of int32 and float32, little endian, and are
 * copied as they are; a missing prompt logprob is NaN on the wire, too. */
#include "wire/proto.h"

#include <assert.h>
#include <string.h>
#include "base/err.h"
#include "wire/proto/proto_read.h"
#include "wire/proto/proto_tensor.h"
#include "wire/proto/proto_write.h"

/* Field numbers of SampleResponse and its parts in tinker_public.proto. */
enum {
    SAMPLE_SEQUENCES = 1,
    SAMPLE_PROMPT,
    SAMPLE_TOPK,
    SAMPLE_CACHE_HITS,
    SAMPLE_TARGETS,
    SAMPLE_ALTERNATIVES
};
enum { ALTERNATIVES_TOKENS = 1, ALTERNATIVES_LOGPROBS };
enum { SEQUENCE_REASON = 1, SEQUENCE_TOKENS, SEQUENCE_LOGPROBS, SEQUENCE_TOPK };
enum { TOPK_IDS = 1, TOPK_LOGPROBS, TOPK_K, TOPK_LENGTH };

/* ---- encoding -------------------------------------------------------------------- */

/* TopkLogprobs: of the prompt's positions, or of a sequence's. */
struct topk {
    const int32_t *tokens;
    const float *logprobs;
    size_t rows, k;
};

/* One message serves both: rows are positions of the prompt, or tokens of a sequence. */
static struct topk prompt_topk(const tinker_sample *s)
{
    return (struct topk){
        .tokens = s->topk_tokens, .logprobs = s->topk_logprobs, .rows = s->n_prompt, .k = s->topk
    };
}

static struct topk sequence_topk(const tinker_sequence *s)
{
    return (struct topk){
        .tokens = s->topk_tokens, .logprobs = s->topk_logprobs, .rows = s->n, .k = s->topk
    };
}

/* Counts are uint32 on the wire, and the two matrices of 4 * rows * k bytes must not wrap. */
static bool topk_fits(struct topk t)
{
    return t.rows <= UINT32_MAX && t.k <= UINT32_MAX && (!t.k || t.rows <= SIZE_MAX / 8 / t.k);
}

/* Nothing is written for an empty matrix. */
static bool has_topk(struct topk t)
{
    return t.tokens && t.logprobs && t.k && t.rows;
}

/* Both matrices have the same size; two bytes are the tags of the two counts. Neither count is 0,
 * see has_topk(), so proto3 does not leave them out. */
static size_t topk_size(struct topk t)
{
    return 2 * pb_len_size(4 * t.rows * t.k) + 2 + pb_varint_size(t.k) + pb_varint_size(t.rows);
}

/* Two matrices, row by row, four bytes an element; k and the number of rows are their shape. */
static uint8_t *put_topk(uint8_t *p, unsigned field, struct topk t)
{
    size_t bytes = 4 * t.rows * t.k;
    p = pb_put_head(p, field, topk_size(t));
    p = pb_put_bytes(p, TOPK_IDS, t.tokens, bytes);
    p = pb_put_bytes(p, TOPK_LOGPROBS, t.logprobs, bytes);
    p = pb_put_int(p, TOPK_K, t.k);
    return pb_put_int(p, TOPK_LENGTH, t.rows);
}

/* stop_reason 0 is "stop", which proto3 does not send. */
static size_t sequence_size(const tinker_sequence *s)
{
    struct topk top = sequence_topk(s);
    size_t size = s->stop_reason ? 2 : 0;
    size += s->n ? pb_len_size(4 * s->n) : 0;
    size += s->logprobs ? pb_len_size(4 * s->n) : 0;
    return size + (has_topk(top) ? pb_len_size(topk_size(top)) : 0);
}

/* Logprobs of no tokens are written, too: `optional` keeps presence, and an empty field says that
 * they were asked for. Readers take an empty one as none. */
static uint8_t *put_sequence(uint8_t *p, const tinker_sequence *s)
{
    p = pb_put_head(p, SAMPLE_SEQUENCES, sequence_size(s));
    if (s->stop_reason)
        p = pb_put_int(p, SEQUENCE_REASON, (uint64_t)s->stop_reason);
    if (s->n)
        p = pb_put_bytes(p, SEQUENCE_TOKENS, s->tokens, 4 * s->n);
    if (s->logprobs)
        p = pb_put_bytes(p, SEQUENCE_LOGPROBS, s->logprobs, 4 * s->n);
    struct topk top = sequence_topk(s);
    return has_topk(top) ? put_topk(p, SEQUENCE_TOPK, top) : p;
}

/* Both or neither: one without the other cannot be understood. */
static bool has_alternatives(const tinker_sample *s)
{
    return s->prompt_alt_tokens && s->prompt_alt_logprobs;
}

/* Content of PromptAltTokens. Tensors of results are written without a shape where they have
 * none. */
static size_t alternatives_size(const tinker_sample *s)
{
    return pb_len_size(proto_tensor_size(s->prompt_alt_tokens, false)) +
           pb_len_size(proto_tensor_size(s->prompt_alt_logprobs, false));
}

static uint8_t *put_tensor(uint8_t *p, unsigned field, const tinker_tensor *t)
{
    return proto_put_tensor(pb_put_head(p, field, proto_tensor_size(t, false)), t, false);
}

/* Everything that a length could break is checked before the first byte is written. The tensors are
 * not: they were made by the server, or decoded and checked by a helper process. The ids of the
 * sequences are not part of the message; they come with the answer to asample. */
tinker_status wire_encode_sample_response(const tinker_sample *s, struct buf *out,
                                          tinker_error *err)
{
    struct topk top = prompt_topk(s);
    for (size_t i = 0; i < s->n_sequences; i++)
        if (!topk_fits(sequence_topk(&s->sequences[i])))
            return err_set(err, TINKER_EINVAL, "topk_sampled_logprobs: is too large");
    if (!topk_fits(top))
        return err_set(err, TINKER_EINVAL, "topk_prompt_logprobs: is too large");
    if (s->prompt_cache_hit_tokens < 0 || s->prompt_cache_hit_tokens > INT32_MAX)
        return err_set(err, TINKER_EINVAL, "prompt_cache_hit_tokens: does not fit 31 bits");
    /* Measure, in the order of writing below. */
    size_t size = 0;
    for (size_t i = 0; i < s->n_sequences; i++)
        size += pb_len_size(sequence_size(&s->sequences[i]));
    size += s->prompt_logprobs ? pb_len_size(4 * s->n_prompt) : 0;
    size += has_topk(top) ? pb_len_size(topk_size(top)) : 0;
    if (s->prompt_cache_hit_tokens)
        size += 1 + pb_varint_size((uint64_t)s->prompt_cache_hit_tokens);
    if (s->target_prompt_logprobs)
        size += pb_len_size(proto_tensor_size(s->target_prompt_logprobs, false));
    if (has_alternatives(s))
        size += pb_len_size(alternatives_size(s));
    if (!buf_reserve(out, size))
        return err_nomem(err, "sample result");
    uint8_t *start = (uint8_t *)out->data + out->len, *p = start;
    for (size_t i = 0; i < s->n_sequences; i++)
        p = put_sequence(p, &s->sequences[i]);
    if (s->prompt_logprobs)
        p = pb_put_bytes(p, SAMPLE_PROMPT, s->prompt_logprobs, 4 * s->n_prompt);
    if (has_topk(top))
        p = put_topk(p, SAMPLE_TOPK, top);
    if (s->prompt_cache_hit_tokens)
        p = pb_put_int(p, SAMPLE_CACHE_HITS, (uint64_t)s->prompt_cache_hit_tokens);
    if (s->target_prompt_logprobs)
        p = put_tensor(p, SAMPLE_TARGETS, s->target_prompt_logprobs);
    if (has_alternatives(s)) {
        p = pb_put_head(p, SAMPLE_ALTERNATIVES, alternatives_size(s));
        p = put_tensor(p, ALTERNATIVES_TOKENS, s->prompt_alt_tokens);
        p = put_tensor(p, ALTERNATIVES_LOGPROBS, s->prompt_alt_logprobs);
    }
    /* Measured and written must agree, or the buffer was overrun. */
    assert((size_t)(p - start) == size);
    out->len += (size_t)(p - start);
    out->data[out->len] = '\0';
    return TINKER_OK;
}

/* ---- decoding -------------------------------------------------------------------- */

/* float32 values, or NULL when the field is absent or empty. */
static bool read_floats(struct wire_reader *r, const struct pb_field *f, const float **out,
                        size_t *n)
{
    const void *v = NULL;
    /* Absent or empty is "not available" in the schema: *out stays NULL. */
    if (f->n == 0)
        return true;
    bool ok = proto_elements(r, f->bytes, f->n, 4, &v, n);
    *out = v;
    return ok;
}

/* Two matrices of rows x k; k and rows say how to read the bytes, so they are checked against them
 * before anything is copied. */
static bool read_topk(struct wire_reader *r, const struct pb_field *field, struct topk *out)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f, ids = { 0 }, logprobs = { 0 };
    const void *a = NULL, *b = NULL;
    uint32_t k = 0, length = 0;
    size_t n;
    while (pb_next(&in, &f)) {
        if (pb_is(&f, TOPK_IDS, PB_LEN))
            ids = f;
        else if (pb_is(&f, TOPK_LOGPROBS, PB_LEN))
            logprobs = f;
        else if (pb_is(&f, TOPK_K, PB_VARINT))
            /* A varint that is too long for its field keeps its low bits, as parsers do. */
            k = (uint32_t)f.value;
        else if (pb_is(&f, TOPK_LENGTH, PB_VARINT))
            length = (uint32_t)f.value;
    }
    if (!proto_done(r, &in))
        return false;
    if (k == 0 || length == 0)
        return true;
    /* Divided instead of multiplied: 4 * length * k may wrap. */
    if (length > ids.n / 4 / k || length > logprobs.n / 4 / k)
        return wire_read_fail(r, "expected %u rows of %u values", length, k);
    /* Bytes beyond the matrix are ignored, as the reference does. */
    size_t bytes = (size_t)length * k * 4;
    if (!proto_elements(r, ids.bytes, bytes, 4, &a, &n) ||
        !proto_elements(r, logprobs.bytes, bytes, 4, &b, &n))
        return false;
    *out = (struct topk){ .tokens = a, .logprobs = b, .rows = length, .k = k };
    return true;
}

/* Lists of one sequence must be equally long, or indexing them together reads beyond the end. */
static bool read_sequence(struct wire_reader *r, const struct pb_field *field, tinker_sequence *s)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f, tokens = { 0 }, logprobs = { 0 };
    struct topk top = { 0 };
    const void *v = NULL;
    uint64_t reason = 0;
    size_t n = 0;
    while (pb_next(&in, &f)) {
        if (pb_is(&f, SEQUENCE_REASON, PB_VARINT))
            reason = f.value;
        else if (pb_is(&f, SEQUENCE_TOKENS, PB_LEN))
            tokens = f;
        else if (pb_is(&f, SEQUENCE_LOGPROBS, PB_LEN))
            logprobs = f;
        else if (pb_is(&f, SEQUENCE_TOPK, PB_LEN) && !read_topk(r, &f, &top))
            return false;
    }
    if (!proto_done(r, &in) || !proto_elements(r, tokens.bytes, tokens.n, 4, &v, &s->n) ||
        !read_floats(r, &logprobs, &s->logprobs, &n))
        return false;
    s->tokens = v;
    /* The enum of the schema has the values of tinker_stop_reason. */
    /* Enums of proto3 are open, but a third reason has no value in the public type. */
    if (reason > TINKER_STOP_LENGTH)
        return wire_read_fail(r, "unknown stop_reason %llu", (unsigned long long)reason);
    s->stop_reason = (tinker_stop_reason)reason;
    if (s->logprobs && n != s->n)
        return wire_read_fail(r, "logprobs: expected %zu values, got %zu", s->n, n);
    if (top.rows && top.rows != s->n)
        return wire_read_fail(r, "topk_sampled_logprobs: expected %zu rows, got %zu", s->n,
                              top.rows);
    s->topk_tokens = top.tokens;
    s->topk_logprobs = top.logprobs;
    s->topk = top.k;
    return true;
}

/* What is collected until the message ends; the sum is checked then. */
struct sample_in {
    tinker_sample *out;
    tinker_sequence *sequences;
    size_t n_max;
    struct topk top;
};

/* Behind a pointer, since few results have one. A field given twice leaves the first tensor unused
 * in the arena; the last one counts. */
static bool read_new_tensor(struct wire_reader *r, const struct pb_field *f,
                            const tinker_tensor **out)
{
    tinker_tensor *t = arena_array(r->arena, 1, sizeof *t);
    *out = t;
    return t ? proto_read_tensor(r, f, t) : wire_read_nomem(r);
}

/* The two tensors of alternatives; of each the last one counts. */
static bool read_alternatives(struct wire_reader *r, const struct pb_field *field,
                              tinker_sample *out)
{
    struct pb_in in = pb_open(field->bytes, field->n);
    struct pb_field f;
    bool ok = true;
    while (ok && pb_next(&in, &f)) {
        if (pb_is(&f, ALTERNATIVES_TOKENS, PB_LEN))
            ok = read_new_tensor(r, &f, &out->prompt_alt_tokens);
        else if (pb_is(&f, ALTERNATIVES_LOGPROBS, PB_LEN))
            ok = read_new_tensor(r, &f, &out->prompt_alt_logprobs);
    }
    return ok && proto_done(r, &in);
}

/* One field of the message; unknown ones are skipped. */
static bool read_sample_field(struct wire_reader *r, const struct pb_field *f, struct sample_in *in)
{
    /* For messages. A place without a name prints as an index, so every field that can fail has
     * one; sequences have a place of their own. */
    static const char *const names[] = {
        [SAMPLE_PROMPT] = "prompt_logprobs",
        [SAMPLE_TOPK] = "topk_prompt_logprobs",
        [SAMPLE_TARGETS] = "target_prompt_logprobs",
        [SAMPLE_ALTERNATIVES] = "prompt_alt_tokens",
    };
    tinker_sample *out = in->out;
    /* n_max is 0 for a damaged message, whose first fields may still be readable. */
    if (pb_is(f, SAMPLE_SEQUENCES, PB_LEN) && out->n_sequences < in->n_max) {
        struct wire_place list = { .name = "sequences" };
        struct wire_place place = { .up = &list, .index = out->n_sequences };
        r->place = &place;
        bool ok = read_sequence(r, f, &in->sequences[out->n_sequences++]);
        r->place = NULL;
        return ok;
    }
    struct wire_place place = { .name =
                                    f->number <= SAMPLE_ALTERNATIVES ? names[f->number] : NULL };
    bool ok = true;
    r->place = &place;
    if (pb_is(f, SAMPLE_PROMPT, PB_LEN))
        ok = read_floats(r, f, &out->prompt_logprobs, &out->n_prompt);
    else if (pb_is(f, SAMPLE_TOPK, PB_LEN))
        ok = read_topk(r, f, &in->top);
    else if (pb_is(f, SAMPLE_CACHE_HITS, PB_VARINT))
        out->prompt_cache_hit_tokens = (int32_t)f->value;
    else if (pb_is(f, SAMPLE_TARGETS, PB_LEN))
        ok = read_new_tensor(r, f, &out->target_prompt_logprobs);
    else if (pb_is(f, SAMPLE_ALTERNATIVES, PB_LEN))
        ok = read_alternatives(r, f, out);
    r->place = NULL;
    return ok;
}

tinker_status wire_decode_sample_response(const void *p, size_t n, struct arena *arena,
                                          tinker_sample *out, tinker_error *err)
{
    struct wire_reader r = proto_reader(arena, err);
    struct pb_in in = pb_open(p, n);
    struct pb_field f;
    /* Absent lists stay NULL, which says that they were not asked for. */
    memset(out, 0, sizeof *out);
    /* Counted first: one array, which does not move while its places are in use. */
    struct sample_in s = { .out = out, .n_max = pb_count(p, n, SAMPLE_SEQUENCES, PB_LEN) };
    s.sequences = arena_array(arena, s.n_max, sizeof *s.sequences);
    bool ok = true;
    if (!s.sequences)
        return err_nomem(err, "sample result");
    while (ok && pb_next(&in, &f))
        ok = read_sample_field(&r, &f, &s);
    /* Also after a failure: the first one is kept. */
    proto_done(&r, &in);
    out->sequences = s.sequences;
    size_t rows = s.top.rows;
    /* Compared only here, because the fields may come in any order. */
    if (r.status == TINKER_OK && rows && out->prompt_logprobs && rows != out->n_prompt)
        wire_read_fail(&r, "topk_prompt_logprobs: expected %zu rows, got %zu", out->n_prompt, rows);
    /* Without prompt_logprobs the matrix says how long the prompt was. */
    if (rows)
        out->n_prompt = rows;
    out->topk_tokens = s.top.tokens;
    out->topk_logprobs = s.top.logprobs;
    out->topk = s.top.k;
    return r.status;
}
