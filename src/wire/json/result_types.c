/* result_types.c - the results of sampling and training in JSON.
 *
 * The form that SDKs before 0.25 read: lists with null where a log-probability does
 * not exist, and top-k rows of [token, logprob] pairs (topk.h).  In memory a missing
 * prompt logprob is NaN. */
#include "wire/json/data_types.h"

#include <math.h>
#include <string.h>
#include "wire/topk.h"

/* ---- one sequence ---------------------------------------------------------------- */

/* Log-probabilities, NaN for null; *out stays NULL for null instead of a list. */
static bool read_floats(struct wire_reader *r, const float **out, size_t *n)
{
    float *v = NULL;
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    if (!json_array_float_null(&r->json, &v, n))
        return wire_read_ok(r) && wire_read_nomem(r);
    *out = v;
    return true;
}

/* Written by hand, since the lengths of the lists depend on each other. */
static bool read_sequence(struct wire_reader *r, void *value)
{
    tinker_sequence *seq = value;
    struct json_str key;
    struct topk_matrix top = { 0 };
    /* Members may come in any order, so lengths are compared at the end.  NULL lists have no length
     * to compare. */
    size_t n_logprobs = 0;
    bool reason = false, tokens = false, ok = true;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    json_begin_object(&r->json);
    while (ok && json_next_key(&r->json, &key)) {
        if (json_str_is(key, "stop_reason")) {
            const char *s = NULL;
            reason = ok = wire_read_string(r, &s);
            bool stop = ok && strcmp(s, "stop") == 0;
            if (ok && !stop && strcmp(s, "length") != 0)
                /* An enum of the reference: a third reason is an error there, too. */
                return wire_read_fail(
                    r, "stop_reason: expected \"stop\" or \"length\", got \"%.40s\"", s);
            seq->stop_reason = stop ? TINKER_STOP_STOP : TINKER_STOP_LENGTH;
        } else if (json_str_is(key, "tokens"))
            tokens = ok = wire_read_int32s(r, &seq->tokens, &seq->n);
        else if (json_str_is(key, "logprobs"))
            ok = read_floats(r, &seq->logprobs, &n_logprobs);
        else if (json_str_is(key, "topk_logprobs"))
            ok = topk_read(r, "topk_logprobs", &top);
        else
            ok = json_skip(&r->json);
    }
    /* Covers ok as well: whatever failed has set the status. */
    if (!wire_read_ok(r))
        return false;
    if (!reason || !tokens)
        return wire_read_fail(r, "%s is required", reason ? "tokens" : "stop_reason");
    /* Programs index these lists together. */
    if (seq->logprobs && n_logprobs != seq->n)
        return wire_read_fail(r, "logprobs: expected %zu values, got %zu", seq->n, n_logprobs);
    /* A matrix of null rows only has no tokens, and counts as none. */
    if (top.tokens && top.rows != seq->n)
        return wire_read_fail(r, "topk_logprobs: expected %zu rows, got %zu", seq->n, top.rows);
    seq->topk_tokens = top.tokens;
    seq->topk_logprobs = top.logprobs;
    seq->topk = top.k;
    return true;
}

/* JSON has no text for the others, and null means something else here. */
static bool put_float(struct wire_writer *w, float v)
{
    if (!isfinite(v))
        return wire_write_fail(w, "must be finite");
    json_put_float(&w->json, v);
    return true;
}

/* Members in the order of the reference; logprobs that were not computed are left out. */
static bool write_sequence(struct wire_writer *w, const void *value)
{
    const tinker_sequence *seq = value;
    json_put_begin_object(&w->json);
    json_put_key(&w->json, "stop_reason");
    json_put_string(&w->json, seq->stop_reason == TINKER_STOP_LENGTH ? "length" : "stop");
    json_put_key(&w->json, "tokens");
    json_put_array_int32(&w->json, seq->tokens, seq->n);
    if (seq->logprobs) {
        json_put_key(&w->json, "logprobs");
        json_put_begin_array(&w->json);
        for (size_t i = 0; i < seq->n; i++)
            /* A sampled token always has a logprob, unlike the first one of a prompt. */
            if (!put_float(w, seq->logprobs[i]))
                return false;
        json_put_end_array(&w->json);
    }
    struct topk_matrix top = {
        .tokens = seq->topk_tokens, .logprobs = seq->topk_logprobs, .rows = seq->n, .k = seq->topk
    };
    if (!topk_write(w, "topk_logprobs", &top))
        return false;
    json_put_end_object(&w->json);
    return true;
}

/* Pieces of the JSON schema that are used more than once. */
#define INTEGERS "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"
#define LOGPROBS "{\"type\":[\"array\",\"null\"],\"items\":{\"type\":[\"number\",\"null\"]}}"
#define TOPK                                                                                       \
    "{\"type\":[\"array\",\"null\"],\"items\":{\"type\":[\"array\",\"null\"],\"items\":{\"type\":" \
    "\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"number\"}],\"minItems\":2,"     \
    "\"maxItems\":2}}}"
#define MAYBE_TENSOR "{\"anyOf\":[" WIRE_TENSOR_SCHEMA ",{\"type\":\"null\"}]}"
#define SEQUENCE                                                                             \
    "{\"type\":\"object\",\"properties\":{\"stop_reason\":{\"enum\":[\"length\",\"stop\"]}," \
    "\"tokens\":" INTEGERS ",\"logprobs\":" LOGPROBS ",\"topk_logprobs\":" TOPK              \
    "},\"required\":[\"stop_reason\",\"tokens\"]}"

static const struct wire_type wire_sequence = { .name = "SampledSequence",
                                                .size = sizeof(tinker_sequence),
                                                .read = read_sequence,
                                                .write = write_sequence,
                                                .schema = SEQUENCE };

/* ---- SampleResponse -------------------------------------------------------------- */

/* {"tokens": tensor, "logprobs": tensor}, or null. */
static bool read_alternatives(struct wire_reader *r, tinker_sample *out)
{
    struct json_str key;
    bool ok = true;
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    json_begin_object(&r->json);
    while (ok && json_next_key(&r->json, &key)) {
        /* int64 (rows, k); logprobs are float32 of the same shape. */
        if (json_str_is(key, "tokens"))
            ok = wire_read_new_tensor(r, &out->prompt_alt_tokens);
        else if (json_str_is(key, "logprobs"))
            ok = wire_read_new_tensor(r, &out->prompt_alt_logprobs);
        else
            ok = json_skip(&r->json);
    }
    return ok && wire_read_ok(r);
}

/* One member of SampleResponse; unknown ones are skipped in either mode, as servers are newer. */
static bool read_sample_key(struct wire_reader *r, struct json_str key, tinker_sample *out,
                            struct topk_matrix *top)
{
    const void *list = NULL;
    if (json_str_is(key, "sequences")) {
        bool ok = wire_read_list(r, &wire_sequence, &list, &out->n_sequences);
        out->sequences = list;
        return ok;
    }
    if (json_str_is(key, "prompt_logprobs"))
        return read_floats(r, &out->prompt_logprobs, &out->n_prompt);
    if (json_str_is(key, "topk_prompt_logprobs"))
        return topk_read(r, "topk_prompt_logprobs", top);
    if (json_str_is(key, "prompt_cache_hit_tokens"))
        return wire_read_int(r, &out->prompt_cache_hit_tokens);
    if (json_str_is(key, "target_prompt_logprobs"))
        return wire_read_new_tensor(r, &out->target_prompt_logprobs);
    if (json_str_is(key, "prompt_alt_tokens"))
        return read_alternatives(r, out);
    return json_skip(&r->json) || wire_read_ok(r);
}

/* By hand, because the top-k matrix becomes three members, and the length of the prompt follows
 * from whichever list is there. */
static bool read_sample(struct wire_reader *r, void *value)
{
    tinker_sample *out = value;
    struct topk_matrix top = { 0 };
    struct json_str key;
    bool sequences = false;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    json_begin_object(&r->json);
    while (json_next_key(&r->json, &key)) {
        /* A copy, because the key is not NUL-terminated and the place outlives it.  Cut at 31
         * bytes: it is only shown in messages. */
        char name[32] = "";
        memcpy(name, key.s, key.n < sizeof name ? key.n : sizeof name - 1);
        struct wire_place place = { .up = r->place, .name = name };
        r->place = &place;
        sequences = sequences || json_str_is(key, "sequences");
        bool ok = read_sample_key(r, key, out, &top);
        r->place = place.up;
        if (!ok)
            return false;
    }
    if (!wire_read_ok(r))
        return false;
    if (!sequences)
        return wire_read_fail(r, "sequences is required");
    /* Both lists are about the same positions, and callers have one length for both. */
    if (out->prompt_logprobs && top.rows && top.rows != out->n_prompt)
        return wire_read_fail(r, "topk_prompt_logprobs: expected %zu rows, got %zu", out->n_prompt,
                              top.rows);
    /* Without prompt_logprobs the matrix says how long the prompt was. */
    if (top.k)
        out->n_prompt = top.rows;
    out->topk_tokens = top.tokens;
    out->topk_logprobs = top.logprobs;
    out->topk = top.k;
    return true;
}

/* Members in the order of the reference; what was not asked for is left out. */
static bool write_sample(struct wire_writer *w, const void *value)
{
    const tinker_sample *s = value;
    json_put_begin_object(&w->json);
    json_put_key(&w->json, "sequences");
    json_put_begin_array(&w->json);
    for (size_t i = 0; i < s->n_sequences; i++) {
        /* Places are built on the stack for each item; they are printed after a failure only. */
        struct wire_place list = { .up = w->place, .name = "sequences" };
        struct wire_place place = { .up = &list, .index = i };
        w->place = &place;
        /* A failure is kept in w and found at the end. */
        write_sequence(w, &s->sequences[i]);
        w->place = list.up;
    }
    json_put_end_array(&w->json);
    if (s->prompt_logprobs) {
        /* One per position; null where protobuf has NaN. */
        json_put_key(&w->json, "prompt_logprobs");
        json_put_begin_array(&w->json);
        for (size_t i = 0; i < s->n_prompt; i++) {
            if (isnan(s->prompt_logprobs[i])) /* the first token has none */
                json_put_null(&w->json);
            else if (!put_float(w, s->prompt_logprobs[i]))
                return false;
        }
        json_put_end_array(&w->json);
    }
    struct topk_matrix top = {
        .tokens = s->topk_tokens, .logprobs = s->topk_logprobs, .rows = s->n_prompt, .k = s->topk
    };
    if (!topk_write(w, "topk_prompt_logprobs", &top))
        return false;
    /* What was asked of the prompt beside its own tokens. */
    if (s->target_prompt_logprobs) {
        json_put_key(&w->json, "target_prompt_logprobs");
        if (!wire_write_value(w, &wire_tensor_data, s->target_prompt_logprobs))
            return false;
    }
    /* Both or neither, as in protobuf. */
    if (s->prompt_alt_tokens && s->prompt_alt_logprobs) {
        json_put_key(&w->json, "prompt_alt_tokens");
        json_put_begin_object(&w->json);
        json_put_key(&w->json, "tokens");
        if (!wire_write_value(w, &wire_tensor_data, s->prompt_alt_tokens))
            return false;
        json_put_key(&w->json, "logprobs");
        if (!wire_write_value(w, &wire_tensor_data, s->prompt_alt_logprobs))
            return false;
        json_put_end_object(&w->json);
    }
    /* 0 is the default of the reference. */
    if (s->prompt_cache_hit_tokens) {
        json_put_key(&w->json, "prompt_cache_hit_tokens");
        json_put_int64(&w->json, s->prompt_cache_hit_tokens);
    }
    /* The reference writes it; read_sample() skips it. */
    json_put_key(&w->json, "type");
    json_put_string(&w->json, "sample");
    json_put_end_object(&w->json);
    return w->status == TINKER_OK;
}

const struct wire_type wire_sample_response = {
    .name = "SampleResponse",
    .size = sizeof(tinker_sample),
    .read = read_sample,
    .write = write_sample,
    .schema =
        "{\"type\":\"object\",\"properties\":{\"sequences\":{\"type\":\"array\",\"items\":" SEQUENCE
        "},\"prompt_logprobs\":" LOGPROBS ",\"topk_prompt_logprobs\":" TOPK
        ",\"target_prompt_logprobs\":" MAYBE_TENSOR
        ",\"prompt_alt_tokens\":{\"type\":[\"object\",\"null\"],\"properties\":{"
        "\"tokens\":" MAYBE_TENSOR ",\"logprobs\":" MAYBE_TENSOR
        "}},\"prompt_cache_hit_tokens\":{\"type\":\"integer\"},\"type\":{\"const\":\"sample\"}},"
        "\"required\":[\"sequences\"]}"
};

/* ---- ForwardBackwardOutput ------------------------------------------------------- */

/* A map from names to tensors, the whole of which is one datum's output. */
static bool read_loss_output(struct wire_reader *r, void *value)
{
    tinker_loss_output *out = value;
    const void *v = NULL;
    /* Names in the order of the text; one that is given twice counts with its last value. */
    bool ok = wire_read_map(r, &wire_result_tensor, &v, &out->n_tensors);
    out->tensors = v;
    return ok;
}

/* As an object in the order of the tensors; readers do not depend on the order. */
static bool write_loss_output(struct wire_writer *w, const void *value)
{
    const tinker_loss_output *out = value;
    struct wire_place place = { .up = w->place };
    bool ok = true;
    json_put_begin_object(&w->json);
    w->place = &place;
    for (size_t i = 0; ok && i < out->n_tensors; i++) {
        place.name = out->tensors[i].name;
        json_put_key(&w->json, place.name);
        /* NaN or infinity fails here: a diverged run has to be fetched as protobuf. */
        ok = wire_write_value(w, &wire_result_tensor, &out->tensors[i]);
    }
    w->place = place.up;
    json_put_end_object(&w->json);
    return ok;
}

/* One datum's output: an object whose keys are not fixed, which a table cannot say. */
static const struct wire_type wire_loss_fn_output = {
    .name = "LossFnOutput",
    .size = sizeof(tinker_loss_output),
    .read = read_loss_output,
    .write = write_loss_output,
    .schema = "{\"type\":\"object\","
              "\"additionalProperties\":" WIRE_TENSOR_SCHEMA "}"
};

/* The result of forward and forward_backward: one output per datum, in the order of the
 * request. */
#define T tinker_forward_backward
static const struct wire_field forward_backward_output[] = {
    /* The name of a class of the reference, such as "TorchLossReturn"; for information. */
    { .name = "loss_fn_output_type",
      .kind = WIRE_STRING,
      .flags = WIRE_REQUIRED,
      .offset = offsetof(T, output_type) },
    { .name = "loss_fn_outputs",
      .kind = WIRE_LIST,
      .flags = WIRE_REQUIRED,
      .offset = offsetof(T, outputs),
      .aux = offsetof(T, n_outputs),
      .type = &wire_loss_fn_output },
    /* Keys are "name:reduction"; how the parts of a batch are merged depends on the second half. */
    { WIRE_FIELD(T, metrics, WIRE_NUMBER_PAIRS, WIRE_REQUIRED), .aux = offsetof(T, n_metrics) },
};
const struct wire_type wire_forward_backward_output = { .name = "ForwardBackwardOutput",
                                                        WIRE_TABLE(T, forward_backward_output) };
#undef T
