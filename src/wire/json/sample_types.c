/* sample_types.c - sampling requests in JSON. */
#include "wire/json/collection.h"
#include "wire/json/data_types.h"

#define REQ WIRE_REQUIRED
#define NUL WIRE_NULLABLE

static const char *const word_sample[] = { "sample", NULL };

/* A text, an array of texts, an array of tokens, or null. */
static bool read_stop(struct wire_reader *r, void *value)
{
    tinker_sampling_params *p = value;
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
        if (!json_next_item(&look) || json_peek(&look) != JSON_STRING)
            return wire_read_int32s(r, &p->stop_tokens, &p->n_stop);
        struct wire_strings v = { 0 };
        bool ok = wire_read_strings(r, &v);
        p->stop_strings = v.v;
        p->n_stop = v.n;
        return ok;
    }
    const char **one = arena_alloc(r->arena, sizeof *one);
    if (!one)
        return wire_read_nomem(r);
    p->stop_strings = one;
    p->n_stop = 1;
    return wire_read_string(r, one);
}

static bool write_stop(struct wire_writer *w, const char *key, const void *value)
{
    const tinker_sampling_params *p = value;
    if (!p->stop_strings && !p->stop_tokens)
        return p->n_stop == 0 || wire_write_fail(w, "%zu stops but no list", p->n_stop);
    if (p->stop_strings && p->stop_tokens)
        return wire_write_fail(w, "either texts or tokens, not both");
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

static uint64_t hash_stop(uint64_t h, const void *value)
{
    const tinker_sampling_params *p = value;
    for (size_t i = 0; p->stop_strings && i < p->n_stop; i++)
        h = wire_hash_text(h, p->stop_strings[i]);
    return p->stop_tokens ? wire_hash_bytes(h, p->stop_tokens, p->n_stop * sizeof(int32_t)) : h;
}

/* Unknown settings are ignored even in strict mode, as the reference does. */
#define T tinker_sampling_params
static const T params_defaults = TINKER_SAMPLING_PARAMS_INIT;
static const struct wire_field sampling_params[] = {
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
    { WIRE_FIELD(T, temperature, WIRE_DOUBLE, 0) },
    { WIRE_FIELD(T, top_k, WIRE_INT, 0) },
    { WIRE_FIELD(T, top_p, WIRE_DOUBLE, 0) },
};
const struct wire_type wire_sampling_params = { .name = "SamplingParams",
                                                WIRE_TABLE(T, sampling_params),
                                                .defaults = &params_defaults,
                                                .ignores_unknown = true };
#undef T

static bool read_targets(struct wire_reader *r, void *value)
{
    struct wire_sample_request *q = value;
    return wire_read_new_tensor(r, &q->target_prompt_logprobs);
}

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

/* POST /api/v1/asample, and POST /api/v1/stream_sample.  Either a sampling session and a number, or a model. */
#define T struct wire_sample_request
static const T request_defaults = { .num_samples = 1,
                                    .sampling_params = TINKER_SAMPLING_PARAMS_INIT };
static const struct wire_field sample_request[] = {
    { WIRE_FIELD(T, num_samples, WIRE_INT, 0) },
    { WIRE_FIELD(T, prompt, WIRE_STRUCT, REQ), .type = &wire_model_input },
    { WIRE_FIELD(T, sampling_params, WIRE_STRUCT, REQ), .type = &wire_sampling_params },
    { WIRE_FIELD(T, base_model, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, model_path, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, sampling_session_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, prompt_logprobs, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, topk_prompt_logprobs, WIRE_INT, 0) },
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
