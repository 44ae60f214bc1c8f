/* openai_request.c - the body of a completion request: see openai.h. */
#include "base/array.h"
#include "server/api/openai.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void openai_free(void *context)
{
    struct openai *o = context;
    if (!o)
        return;
    arena_clear(&o->arena);
    free(o);
}

/* A value that may be null: true when there is one to read. */
static bool present(struct json_reader *r)
{
    if (json_peek(r) != JSON_NULL)
        return true;
    json_null(r);
    return false;
}

static void add_stop(struct openai *o, struct json_reader *r)
{
    char *text = NULL;
    if (!json_cstring(r, &text))
        return;
    if (!*text)
        json_fail(r, "stop: an empty string");
    else if (o->n_stop == OPENAI_STOPS)
        json_fail(r, "stop: more than %d strings", OPENAI_STOPS);
    else
        o->stop[o->n_stop++] = text;
}

static void read_stop(struct openai *o, struct json_reader *r)
{
    if (json_peek(r) == JSON_STRING) {
        add_stop(o, r);
        return;
    }
    json_begin_array(r);
    while (json_next_item(r))
        add_stop(o, r);
}

/* Completions: how many alternatives; chat: whether, and the number stands elsewhere. */
static void read_logprobs(struct openai *o, struct json_reader *r)
{
    if (json_peek(r) == JSON_BOOL)
        json_bool(r, &o->logprobs);
    else if (json_int64(r, &o->top_logprobs))
        o->logprobs = true;
}

static void read_stream_options(struct openai *o, struct json_reader *r)
{
    struct json_str key;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "include_usage"))
            json_bool(r, &o->stream_usage);
        else
            json_skip(r);
    }
}

/* An empty list is none. */
static void read_tools(struct openai *o, struct json_reader *r)
{
    struct json_reader look = *r;
    bool some = json_begin_array(&look) && json_next_item(&look);
    if (some)
        json_raw(r, &o->tools);
    else
        json_skip(r);
}

/* "auto" is what happens anyway, "none" leaves the tools out. */
static void read_tool_choice(struct openai *o, struct json_reader *r)
{
    struct json_str word;
    if (json_peek(r) != JSON_STRING) {
        json_fail(r, "tool_choice: only \"auto\" and \"none\" are supported");
        return;
    }
    if (!json_string(r, &word))
        return;
    o->no_tools = json_str_is(word, "none");
    if (!o->no_tools && !json_str_is(word, "auto"))
        json_fail(r, "tool_choice: only \"auto\" and \"none\" are supported");
}

/* What is not done here must not be asked for: true when the field is one of those and its
 * value is not the one that changes nothing. */
static bool unsupported(struct json_reader *r, struct json_str key)
{
    static const char *const numbers[] = { "presence_penalty", "frequency_penalty" };
    static const struct {
        const char *key, *neutral, *spaced; /* "": there is no such value */
    } others[] = {
        { "echo", "false", "" },
        { "suffix", "\"\"", "" },
        { "logit_bias", "{}", "" },
        { "response_format", "{\"type\":\"text\"}", "{\"type\": \"text\"}" },
        { "functions", "[]", "" },
        { "best_of", "1", "" },
        { "modalities", "[\"text\"]", "" },
        { "audio", "", "" },
        { "prediction", "", "" },
    };
    struct json_reader look = *r;
    struct json_str raw = { 0 };
    double v = 0;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (json_str_is(key, numbers[i]))
            return !json_double(&look, &v) || v != 0;
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (json_str_is(key, others[i].key))
            return json_raw(&look, &raw) && !json_str_is(raw, others[i].neutral) &&
                   !json_str_is(raw, others[i].spaced);
    return false;
}

/* None at all is what leaving it out says. */
static void read_max_tokens(struct openai *o, struct json_reader *r)
{
    if (json_int64(r, &o->params.max_tokens) && o->params.max_tokens <= 0)
        json_fail(r, "max_tokens must be a positive number");
}

static void read_field(struct openai *o, struct json_reader *r, struct json_str key)
{
    if (!present(r))
        return;
    if (json_str_is(key, "model"))
        json_cstring(r, (char **)&o->model);
    else if (json_str_is(key, "prompt"))
        json_raw(r, &o->prompt);
    else if (json_str_is(key, "messages"))
        json_raw(r, &o->messages);
    else if (json_str_is(key, "max_tokens") || json_str_is(key, "max_completion_tokens"))
        read_max_tokens(o, r);
    else if (json_str_is(key, "n"))
        json_int64(r, &o->n);
    else if (json_str_is(key, "seed"))
        o->params.has_seed = json_int64(r, &o->params.seed);
    else if (json_str_is(key, "temperature"))
        json_double(r, &o->params.temperature);
    else if (json_str_is(key, "top_p"))
        json_double(r, &o->params.top_p);
    else if (json_str_is(key, "top_k"))
        json_int64(r, &o->params.top_k);
    else if (json_str_is(key, "stop"))
        read_stop(o, r);
    else if (json_str_is(key, "stop_token_ids"))
        json_array_int32(r, &o->stop_tokens, &o->n_stop_tokens);
    else if (json_str_is(key, "stream"))
        json_bool(r, &o->stream);
    else if (json_str_is(key, "stream_options"))
        read_stream_options(o, r);
    else if (json_str_is(key, "logprobs"))
        read_logprobs(o, r);
    else if (json_str_is(key, "top_logprobs"))
        json_int64(r, &o->top_logprobs);
    else if (json_str_is(key, "tools"))
        read_tools(o, r);
    else if (json_str_is(key, "tool_choice"))
        read_tool_choice(o, r);
    else if (unsupported(r, key))
        json_fail(r, "%.*s is not supported", (int)key.n, key.s);
    else
        json_skip(r);
}

static tinker_status check(const struct openai *o, tinker_error *err)
{
    if (!o->model)
        return err_set(err, TINKER_EINVAL, "model is missing");
    if (o->chat ? !o->messages.s : !o->prompt.s)
        return err_set(err, TINKER_EINVAL, o->chat ? "messages is missing" : "prompt is missing");
    if (o->n < 1 || o->n > 128)
        return err_set(err, TINKER_EINVAL, "n must be from 1 to 128");
    if (o->params.max_tokens < 0)
        return err_set(err, TINKER_EINVAL, "max_tokens must be a positive number");
    if (o->top_logprobs < 0 || o->top_logprobs > OPENAI_TOP_MAX)
        return err_set(err, TINKER_EINVAL, "%s must be from 0 to %d",
                       o->chat ? "top_logprobs" : "logprobs", OPENAI_TOP_MAX);
    if (o->n_stop && o->n_stop_tokens)
        return err_set(err, TINKER_EINVAL, "give stop or stop_token_ids, not both");
    return TINKER_OK;
}

tinker_status openai_read(struct openai *o, const char *body, size_t n, tinker_error *err)
{
    struct json_reader r;
    struct json_str key;
    o->n = 1;
    o->params = (tinker_sampling_params)TINKER_SAMPLING_PARAMS_INIT;
    o->options = (tinker_sample_options)TINKER_SAMPLE_OPTIONS_INIT;
    o->params.max_tokens = o->chat ? 0 : 16;
    json_reader_init(&r, body, n, &o->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        read_field(o, &r, key);
    if (!json_end(&r))
        return err_set(err, TINKER_EINVAL, "%s", json_error(&r));
    if (o->no_tools || !o->chat)
        o->tools = (struct json_str){ 0 };
    return check(o, err);
}
