/* sample_types.c - sampling requests in JSON, and their options: see sample_options.h. */
#include "wire/sample_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "wire/json/collection.h"
#include "wire/json/data_types.h"

#define REQ WIRE_REQUIRED
#define NUL WIRE_NULLABLE

static const char *const word_sample[] = { "sample", NULL };

/* A text, an array of texts, an array of tokens, or null. */
static bool read_stop(struct wire_reader *r, void *value)
{
    tinker_sampling_params *p = value;
    /* The key may come twice: the last list counts, and never two at once. */
    p->stop_strings = NULL;
    p->stop_tokens = NULL;
    p->n_stop = 0;
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (json_peek(&r->json) != JSON_STRING) {
        if (!wire_expect(r, JSON_ARRAY))
            return false;
        /* The first item decides the kind of the list; an empty one is a list of no tokens. */
        struct json_reader look = r->json; /* a copy: the original stays before the list */
        json_begin_array(&look);
        /* Only the kind is looked at: faults of the text are found by the real read. */
        if (!json_next_item(&look) || json_peek(&look) != JSON_STRING)
            return wire_read_int32s(r, &p->stop_tokens, &p->n_stop);
        struct wire_strings v = { 0 };
        bool ok = wire_read_strings(r, &v);
        p->stop_strings = v.v;
        p->n_stop = v.n;
        return ok;
    }
    /* One text is a list of one. */
    const char **one = arena_alloc(r->arena, sizeof *one);
    if (!one)
        return wire_read_nomem(r);
    p->stop_strings = one;
    p->n_stop = 1;
    return wire_read_string(r, one);
}

/* A list is written always, also for one text. */
static bool write_stop(struct wire_writer *w, const char *key, const void *value)
{
    const tinker_sampling_params *p = value;
    if (!p->stop_strings && !p->stop_tokens)
        return p->n_stop == 0 || wire_write_fail(w, "%zu stops but no list", p->n_stop);
    if (p->stop_strings && p->stop_tokens)
        return wire_write_fail(w, "either texts or tokens, not both");
    /* An empty list is written as []: it replaces the end tokens of the model by none. */
    json_put_key(&w->json, key);
    if (p->stop_tokens) {
        json_put_array_int32(&w->json, p->stop_tokens, p->n_stop);
        return true;
    }
    json_put_begin_array(&w->json);
    for (size_t i = 0; i < p->n_stop; i++)
        json_put_string(&w->json, p->stop_strings[i]);
    json_put_end_array(&w->json);
    return true;
}

/* Equal settings must hash equal, whichever way the list was written. */
static uint64_t hash_stop(uint64_t h, const void *value)
{
    const tinker_sampling_params *p = value;
    /* One text, and a list of that text, are the same request. */
    for (size_t i = 0; p->stop_strings && i < p->n_stop; i++)
        h = wire_hash_text(h, p->stop_strings[i]);
    return p->stop_tokens ? wire_hash_bytes(h, p->stop_tokens, p->n_stop * sizeof(int32_t)) : h;
}

/* {"token id": bias}, as in the OpenAI API; a token given twice gets both. */
static bool read_bias(struct wire_reader *r, void *value)
{
    tinker_sampling_params *p = value;
    /* null takes back what the same key said before. */
    p->logit_bias = NULL;
    p->n_logit_bias = 0;
    if (json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    if (wire_read_logit_bias(&r->json, r->arena, &p->logit_bias, &p->n_logit_bias))
        return true;
    return wire_read_ok(r) && wire_read_nomem(r); /* JSON without a fault: memory was short */
}

bool wire_read_logit_bias(struct json_reader *r, struct arena *arena, const tinker_logit_bias **out,
                          size_t *n)
{
    struct json_str key;
    tinker_logit_bias *list = NULL;
    size_t count = 0, cap = 0;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        /* A copy, since the key does not end with NUL; longer ones are no int32. */
        char digits[16], *end = digits;
        /* Keys of JSON are texts; nothing but a token id is one here. */
        long token = -1;
        if (key.n > 0 && key.n < sizeof digits) {
            memcpy(digits, key.s, key.n);
            digits[key.n] = 0;
            token = strtol(digits, &end, 10);
        }
        if (token < 0 || token > INT32_MAX || *end)
            /* The reader fails from here on, so that the next read ends the loop. */
            json_fail(r, "logit_bias: \"%.*s\" is not a token id", (int)(key.n < 40 ? key.n : 40),
                      key.s);
        if (count == cap) {
            cap = cap ? cap * 2 : 16;
            tinker_logit_bias *more = arena_array(arena, cap, sizeof *more);
            if (!more)
                return false;
            if (count)
                memcpy(more, list, count * sizeof *more);
            list = more;
        }
        double bias;
        if (!json_double(r, &bias)) /* also after a key that is none */
            return false;
        list[count++] = (tinker_logit_bias){ (int32_t)token, bias };
    }
    *out = list;
    *n = count;
    return !r->failed;
}

/* In the order of the list; a token that is listed twice is written twice, and readers add both
 * up. */
static bool write_bias(struct wire_writer *w, const char *key, const void *value)
{
    const tinker_sampling_params *p = value;
    if (!p->n_logit_bias)
        return true;
    json_put_key(&w->json, key);
    json_put_begin_object(&w->json);
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        char digits[16];
        snprintf(digits, sizeof digits, "%d", (int)p->logit_bias[i].token);
        json_put_key(&w->json, digits);
        if (!wire_write_double(w, p->logit_bias[i].bias))
            return false;
    }
    json_put_end_object(&w->json);
    return true;
}

/* In order, not as a set: two orders of the same biases count as two requests, which costs a retry
 * nothing, for it repeats its bytes. */
static uint64_t hash_bias(uint64_t h, const void *value)
{
    const tinker_sampling_params *p = value;
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        h = wire_hash_bytes(h, &p->logit_bias[i].token, sizeof p->logit_bias[i].token);
        h = wire_hash_bytes(h, &p->logit_bias[i].bias, sizeof p->logit_bias[i].bias);
    }
    return h;
}

/* Unknown settings are ignored even in strict mode, as the reference does. */
#define T tinker_sampling_params
static const T params_defaults = TINKER_SAMPLING_PARAMS_INIT;
static const struct wire_field sampling_params[] = {
    /* The order is that of the reference's JSON; what is missing keeps its default from
     * params_defaults. */
    /* Absent: as many tokens as the context has room for. */
    { WIRE_FIELD(T, max_tokens, WIRE_POSITIVE, NUL) },
    { WIRE_FIELD(T, seed, WIRE_SEED, NUL), .aux = offsetof(T, has_seed) },
    { .name = "stop",
      .kind = WIRE_CUSTOM,
      .read = read_stop,
      .write = write_stop,
      .hash = hash_stop,
      .schema = "{\"anyOf\":[{\"type\":[\"string\",\"null\"]},"
                "{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
                "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}]}" },
    /* 1.0, no limit (-1) and 1.0 unless given, and always written. */
    { WIRE_FIELD(T, temperature, WIRE_DOUBLE, 0) },
    { WIRE_FIELD(T, top_k, WIRE_INT, 0) },
    { WIRE_FIELD(T, top_p, WIRE_DOUBLE, 0) },
    /* From here on settings of `tinker serve`, left out where they say nothing. */
    { WIRE_FIELD(T, min_p, WIRE_DOUBLE_SET, NUL) },
    { WIRE_FIELD(T, repetition_penalty, WIRE_DOUBLE_SET, NUL) },
    { WIRE_FIELD(T, presence_penalty, WIRE_DOUBLE_SET, NUL) },
    { WIRE_FIELD(T, frequency_penalty, WIRE_DOUBLE_SET, NUL) },
    { .name = "logit_bias",
      .kind = WIRE_CUSTOM,
      .aux = offsetof(T, n_logit_bias),
      .read = read_bias,
      .write = write_bias,
      .hash = hash_bias,
      .schema = "{\"type\":[\"object\",\"null\"],"
                "\"additionalProperties\":{\"type\":\"number\"}}" },
    { WIRE_FIELD(T, json_schema, WIRE_OBJECT_CSTR, NUL) },
};
const struct wire_type wire_sampling_params = { .name = "SamplingParams",
                                                WIRE_TABLE(T, sampling_params),
                                                .defaults = &params_defaults,
                                                .ignores_unknown = true };
#undef T

/* A tensor behind a pointer, since most requests have none. */
static bool read_targets(struct wire_reader *r, void *value)
{
    struct wire_sample_request *q = value;
    return wire_read_new_tensor(r, &q->target_prompt_logprobs);
}

/* Left out, not null, when there are none: older services refuse a field that they do not know. */
static bool write_targets(struct wire_writer *w, const char *key, const void *value)
{
    const struct wire_sample_request *q = value;
    if (!q->target_prompt_logprobs)
        return true;
    json_put_key(&w->json, key);
    return wire_write_value(w, &wire_tensor_data, q->target_prompt_logprobs);
}

static uint64_t hash_targets(uint64_t h, const void *value)
{
    const struct wire_sample_request *q = value;
    return q->target_prompt_logprobs
               ? wire_hash_value(h, &wire_tensor_data, q->target_prompt_logprobs)
               : h;
}

/* POST /api/v1/asample, and POST /api/v1/stream_sample. Either a sampling session and a number, or
 * a model. */
#define T struct wire_sample_request
/* Those of the parameters are repeated, for a request that is built from wire_init(). */
static const T request_defaults = { .num_samples = 1,
                                    .sampling_params = TINKER_SAMPLING_PARAMS_INIT };
static const struct wire_field sample_request[] = {
    { WIRE_FIELD(T, num_samples, WIRE_INT, 0) },
    { WIRE_FIELD(T, prompt, WIRE_STRUCT, REQ), .type = &wire_model_input },
    { WIRE_FIELD(T, sampling_params, WIRE_STRUCT, REQ), .type = &wire_sampling_params },
    /* Which weights: a base model or a checkpoint, or, as clients do, a sampling session. */
    { WIRE_FIELD(T, base_model, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, model_path, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, sampling_session_id, WIRE_STRING, NUL) },
    /* Counts from 0 within a sampling session. Copies of a client begin at a multiple of 10^9, so
     * 32 bits are too few. */
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, prompt_logprobs, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, topk_prompt_logprobs, WIRE_INT, 0) },
    /* Newer than the rest: left out unless asked for, as older services refuse unknown keys. */
    { WIRE_FIELD(T, topk_sample_logprobs, WIRE_OPT_INT, NUL) },
    { .name = "target_prompt_logprobs",
      .kind = WIRE_CUSTOM,
      .read = read_targets,
      .write = write_targets,
      .hash = hash_targets,
      .schema = "{\"anyOf\":[" WIRE_TENSOR_SCHEMA ",{\"type\":\"null\"}]}" },
    { WIRE_FIELD(T, prompt_alt_tokens_k, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, prompt_logprobs_last_n, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, record_stability_info, WIRE_OPT_BOOL, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_sample },
};
const struct wire_type wire_sample_request = { .name = "SampleRequest",
                                               WIRE_TABLE(T, sample_request),
                                               .defaults = &request_defaults };
#undef T

/* ---- options ------------------------------------------------------------------------------- */

/* Options that are numbers.  The two sides keep them apart: the API as a size_t where 0 says
 * nothing, the request as a number that may be absent.  topk_prompt_logprobs is older than
 * absence and always there. */
static const struct option {
    const char *name;
    size_t in_options; /* offset of the size_t in tinker_sample_options */
    size_t in_request; /* offset of the struct wire_opt_int, or of an int64_t when `plain` */
    int64_t min;
    bool plain;
    bool of_prompt; /* its answer is about the prompt */
} options[] = {
#define OPTION(field)                                                     \
    .name = #field, .in_options = offsetof(tinker_sample_options, field), \
    .in_request = offsetof(struct wire_sample_request, field)
    { OPTION(topk_prompt_logprobs), .plain = true, .of_prompt = true },
    { OPTION(topk_sample_logprobs) },
    /* narrows down prompt_logprobs, which says itself that it is about the prompt */
    { OPTION(prompt_logprobs_last_n), .min = 1 },
    { OPTION(prompt_alt_tokens_k), .of_prompt = true },
#undef OPTION
};

/* Plain numbers count as given. */
static struct wire_opt_int option_value(const struct wire_sample_request *req,
                                        const struct option *o)
{
    const char *at = (const char *)req + o->in_request;
    return o->plain ? (struct wire_opt_int){ true, *(const int64_t *)(const void *)at }
                    : *(const struct wire_opt_int *)(const void *)at;
}

/* Client side: from the options of the API into the request. */
tinker_status wire_sample_set_options(struct wire_sample_request *req,
                                      const tinker_sample_options *opts, tinker_error *err)
{
    if (opts->num_samples == 0 || opts->num_samples > INT32_MAX)
        return err_set(err, TINKER_EINVAL, "num_samples is %zu, expected at least 1",
                       opts->num_samples);
    req->num_samples = (int64_t)opts->num_samples;
    req->prompt_logprobs = (struct wire_opt_bool){ 1, opts->prompt_logprobs != 0 };
    req->target_prompt_logprobs = opts->target_prompt_logprobs;
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        const struct option *o = &options[i];
        size_t n = *(const size_t *)(const void *)((const char *)opts + o->in_options);
        char *to = (char *)req + o->in_request;
        /* A bound that every peer can read; a size_t that wrapped around ends here, too. */
        if (n > INT32_MAX)
            return err_set(err, TINKER_EINVAL, "%s is %zu, expected at most %d", o->name, n,
                           INT32_MAX);
        if (o->plain)
            *(int64_t *)(void *)to = (int64_t)n;
        else
            *(struct wire_opt_int *)(void *)to = (struct wire_opt_int){ n > 0, (int64_t)n };
    }
    return TINKER_OK;
}

/* Server side: what a peer may have sent; the first mistake is named. */
tinker_status wire_sample_check_options(const struct wire_sample_request *req, tinker_error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        /* A plain number is checked even when it was absent: 0 passes. */
        struct wire_opt_int v = option_value(req, &options[i]);
        if (v.has && v.value < options[i].min)
            return err_set(err, TINKER_EINVAL,
                           options[i].min ? "%s must be a positive number"
                                          : "%s must not be negative",
                           options[i].name);
    }
    if (req->prompt_logprobs_last_n.has &&
        !(req->prompt_logprobs.has && req->prompt_logprobs.value))
        return err_set(err, TINKER_EINVAL, "prompt_logprobs_last_n needs prompt_logprobs");
    return TINKER_OK;
}

/* The name of an option that asks about the prompt, for messages; NULL: none. */
const char *wire_sample_prompt_option(const struct wire_sample_request *req)
{
    if (req->prompt_logprobs.has && req->prompt_logprobs.value)
        return "prompt_logprobs";
    if (req->target_prompt_logprobs)
        return "target_prompt_logprobs";
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        struct wire_opt_int v = option_value(req, &options[i]);
        /* 0 asks for nothing, although it is given. */
        if (options[i].of_prompt && v.has && v.value > 0)
            return options[i].name;
    }
    return NULL;
}

/* The answer to asample has more members: those of UntypedAPIFuture. */
static const struct wire_field sample_submission[] = {
    { .name = "sample_sequence_ids", .kind = WIRE_STRINGS, .flags = NUL },
};
const struct wire_type wire_sample_submission = {
    .name = "SampleSubmission", WIRE_TABLE(struct wire_strings, sample_submission)
};
