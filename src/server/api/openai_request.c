/* openai_request.c - the body of a completion request: see openai.h.
 *
 * Written by hand instead of with the wire tables: fields have several types (stop, logprobs) or
 * are kept as raw JSON until the model is known (prompt, messages, tools). */
#include "base/array.h"
#include "server/api/openai.h"
#include "server/api/routes.h"
#include "server/sampling/stop_strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "wire/check.h"
#include "wire/sample_options.h"

/* Also the destructor of a request's context. */
void openai_free(void *context)
{
    struct openai *o = context;
    if (!o)
        return;
    /* A client that goes away: its samples have no reader. */
    for (size_t i = 0; o->server && i < o->n_prompts; i++)
        if (o->prompts[i].future)
            route_cancel_sample(o->server, o->user, o->prompts[i].future);
    arena_clear(&o->arena);
    free(o);
}

/* One stop string. */
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

/* An option that is not implemented must not be ignored silently: true when the field is one of
 * those and its value is not the neutral one.  Neutral values are what SDKs send without being
 * asked. */
static bool is_unsupported(struct json_reader *r, struct json_str key)
{
    static const struct {
        const char *key, *neutral; /* "": there is no such value */
    } others[] = {
        { "suffix", "\"\"" }, { "functions", "[]" }, { "modalities", "[\"text\"]" },
        { "audio", "" },      { "prediction", "" },
    };
    struct json_reader look = *r; /* a copy: the caller still has to skip the value */
    struct json_str raw = { 0 };
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (json_str_is(key, others[i].key))
            return json_raw(&look, &raw) && !json_str_is(raw, others[i].neutral);
    return false;
}

/* {"type": "text"}, "json_object", or "json_schema" with {"schema": ...}. */
static void read_response_format(struct openai *o, struct json_reader *r)
{
    static const char any_object[] = "{\"type\":\"object\"}";
    struct json_str key, type = { 0 };
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "type"))
            json_string(r, &type);
        else if (json_str_is(key, "json_schema")) {
            json_begin_object(r);
            while (json_next_key(r, &key))
                if (json_str_is(key, "schema"))
                    json_raw(r, &o->schema);
                else
                    json_skip(r);
        } else if (json_str_is(key, "schema")) /* the Responses API has it here */
            /* The name and `strict` change nothing: every schema is strict here. */
            json_raw(r, &o->schema);
        else
            json_skip(r);
    }
    if (json_str_is(type, "json_object"))
        o->schema = (struct json_str){ any_object, sizeof(any_object) - 1 };
    else if (json_str_is(type, "json_schema") && !o->schema.s)
        json_fail(r, "response_format: json_schema.schema is missing");
    else if (json_str_is(type, "text"))
        o->schema = (struct json_str){ 0 };
    else if (!json_str_is(type, "json_schema"))
        json_fail(r, "response_format: type must be \"text\", \"json_object\" or \"json_schema\"");
}

/* "auto" is the default, "none" leaves the tools out, "required" forces a call, an object one of a
 * certain tool. */
static void read_tool_choice(struct openai *o, struct json_reader *r)
{
    struct json_str key, word = { 0 };
    if (json_peek(r) == JSON_STRING) {
        json_string(r, &word);
        o->no_tools = json_str_is(word, "none");
        o->must_call = json_str_is(word, "required");
        if (!o->no_tools && !o->must_call && !json_str_is(word, "auto"))
            json_fail(r, "tool_choice: expected \"auto\", \"none\", \"required\" or a function");
        return;
    }
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "function")) {
            json_begin_object(r);
            while (json_next_key(r, &key))
                if (json_str_is(key, "name"))
                    json_cstring(r, (char **)&o->forced_tool);
                else
                    json_skip(r);
        } else if (json_str_is(key, "name"))
            json_cstring(r, (char **)&o->forced_tool);
        else
            json_skip(r);
    }
    /* An object always names a function. */
    o->must_call = true;
    if (!o->forced_tool && !r->failed)
        json_fail(r, "tool_choice: function.name is missing");
}

/* Settings that are one number. */
static bool read_number(struct openai *o, struct json_reader *r, struct json_str key)
{
    const struct {
        const char *key;
        double *out;
    } numbers[] = {
        { "temperature", &o->params.temperature },
        { "top_p", &o->params.top_p },
        { "min_p", &o->params.min_p },
        { "repetition_penalty", &o->params.repetition_penalty },
        { "presence_penalty", &o->params.presence_penalty },
        { "frequency_penalty", &o->params.frequency_penalty },
    };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (json_str_is(key, numbers[i].key)) {
            json_double(r, numbers[i].out);
            return true;
        }
    return false;
}

/* Read one member of the body.  Unknown ones are skipped, as the OpenAI API does. */
static void read_field(struct openai *o, struct json_reader *r, struct json_str key)
{
    if (json_peek(r) == JSON_NULL) { /* as if it were absent */
        json_null(r);
        return;
    }
    if (json_str_is(key, "model"))
        json_cstring(r, (char **)&o->model);
    else if (json_str_is(key, "prompt"))
        json_raw(r, &o->prompt);
    else if (json_str_is(key, "messages"))
        json_raw(r, &o->messages);
    else if (json_str_is(key, "max_tokens") || json_str_is(key, "max_completion_tokens")) {
        /* 0 would mean "no limit" below, which only leaving it out says. */
        if (json_int64(r, &o->params.max_tokens) && o->params.max_tokens < 0)
            json_fail(r, "max_tokens must be a positive number");
        o->no_new = o->params.max_tokens == 0;
    } else if (json_str_is(key, "n"))
        json_int64(r, &o->n);
    else if (json_str_is(key, "best_of"))
        json_int64(r, &o->best_of);
    else if (json_str_is(key, "echo") && !o->chat)
        json_bool(r, &o->echo);
    else if (json_str_is(key, "seed"))
        o->params.has_seed = json_int64(r, &o->params.seed);
    else if (read_number(o, r, key))
        ;
    else if (json_str_is(key, "top_k"))
        json_int64(r, &o->params.top_k);
    else if (json_str_is(key, "logit_bias"))
        wire_read_logit_bias(r, &o->arena, &o->params.logit_bias, &o->params.n_logit_bias);
    else if (json_str_is(key, "stop")) {
        /* A string, or an array of strings. */
        if (json_peek(r) == JSON_STRING) {
            add_stop(o, r);
        } else {
            json_begin_array(r);
            while (json_next_item(r))
                add_stop(o, r);
        }
    } else if (json_str_is(key, "stop_token_ids"))
        json_array_int32(r, &o->stop_tokens, &o->n_stop_tokens);
    else if (json_str_is(key, "stream"))
        json_bool(r, &o->stream);
    else if (json_str_is(key, "stream_options")) {
        struct json_str option;
        json_begin_object(r);
        while (json_next_key(r, &option))
            if (json_str_is(option, "include_usage"))
                json_bool(r, &o->stream_usage);
            else
                json_skip(r);
    } else if (json_str_is(key, "logprobs")) {
        /* A boolean for chat; for completions the number of alternatives. */
        if (json_peek(r) == JSON_BOOL)
            json_bool(r, &o->logprobs);
        else if (json_int64(r, &o->top_logprobs))
            o->logprobs = true;
    } else if (json_str_is(key, "top_logprobs"))
        json_int64(r, &o->top_logprobs);
    else if (json_str_is(key, "tools")) {
        /* An empty list means no tools. */
        struct json_reader look = *r;
        if (json_begin_array(&look) && json_next_item(&look))
            json_raw(r, &o->tools);
        else
            json_skip(r);
    } else if (json_str_is(key, "tool_choice")) {
        read_tool_choice(o, r);
    } else if (json_str_is(key, "response_format")) {
        read_response_format(o, r);
    } else if (is_unsupported(r, key))
        json_fail(r, "%.*s is not supported", (int)key.n, key.s);
    else
        json_skip(r);
}

/* What the fields say together. */
static tinker_status check_request(const struct openai *o, tinker_error *err)
{
    if (!o->model)
        return err_set(err, TINKER_EINVAL, "model is missing");
    if (o->chat ? !o->messages.s : !o->prompt.s)
        return err_set(err, TINKER_EINVAL, o->chat ? "messages is missing" : "prompt is missing");
    /* 128 as in the API; each sample holds memory of its own. */
    if (o->n < 1 || o->n > 128)
        return err_set(err, TINKER_EINVAL, "n must be from 1 to 128");
    if (o->must_call && !o->tools.s)
        return err_set(err, TINKER_EINVAL, "tool_choice asks for a call, but there are no tools");
    /* best_of > n would need all samples and their probabilities first. */
    if (o->best_of && o->best_of != o->n)
        return err_set(err, TINKER_EINVAL, "best_of is not supported; ask for n samples");
    if (o->no_new && !o->echo)
        return err_set(err, TINKER_EINVAL,
                       "max_tokens must be a positive number; 0 needs \"echo\": true");
    /* The probabilities of the prompt are known after the sample has begun. */
    if (o->echo && o->stream && o->logprobs)
        return err_set(err, TINKER_EINVAL,
                       "echo with logprobs cannot be streamed; leave one of the three out");
    if (o->params.max_tokens < 0)
        return err_set(err, TINKER_EINVAL, "max_tokens must be a positive number");
    if (o->top_logprobs < 0 || o->top_logprobs > OPENAI_TOP_MAX)
        return err_set(err, TINKER_EINVAL, "%s must be from 0 to %d",
                       o->chat ? "top_logprobs" : "logprobs", OPENAI_TOP_MAX);
    size_t bytes = 0;
    for (size_t i = 0; i < o->n_stop; i++)
        bytes += strlen(o->stop[i]);
    /* Stop strings are compared at every token, so their total length is bounded. */
    if (bytes > STOP_BYTES_MAX || o->n_stop_tokens > STOPS_MAX)
        return err_set(err, TINKER_EINVAL, "%s is longer than %d %s",
                       bytes > STOP_BYTES_MAX ? "stop" : "stop_token_ids",
                       bytes > STOP_BYTES_MAX ? STOP_BYTES_MAX : STOPS_MAX,
                       bytes > STOP_BYTES_MAX ? "bytes" : "tokens");
    if (wire_check_sampling_params(&o->params, err) != TINKER_OK)
        return err->status;
    /* The engine takes one kind: which of them should be converted is the client's choice. */
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
    o->params.max_tokens = o->chat ? 0 : 16; /* the API's defaults; 0: to the end of the context */
    json_reader_init(&r, body, n, &o->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        read_field(o, &r, key);
    /* The reader remembers its first error, so one check at the end is enough. */
    if (!json_end(&r))
        return err_set(err, TINKER_EINVAL, "%s", json_error(&r));
    /* Also of a completion, which has no conversation to call tools in. */
    if (o->no_tools || !o->chat)
        o->tools = (struct json_str){ 0 };
    o->no_thinking = o->no_thinking || o->must_call || o->schema.s;
    tinker_status status = check_request(o, err);
    /* The engine makes at least one token; join_prompt() leaves it out. */
    if (o->no_new)
        o->params.max_tokens = 1;
    return status;
}
