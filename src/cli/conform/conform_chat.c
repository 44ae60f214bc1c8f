/* conform_chat.c - checks of `tinker conform`: the endpoints for clients of other APIs. */
#include <stdio.h>
#include <string.h>
#include <tinker/extra/http.h>
#include "base/array.h"
#include "cli/conform/conform.h"

/* Programs choose a model from this list; an endpoint without it works with curl alone. */
static bool check_models(struct conform *c)
{
    return conform_get(c, "/oai/api/v1/models") &&
           (conform_has(c, "data.0.id") || conform_miss(c, "no data.0.id"));
}

/* A prompt of ids, so that the check needs no tokenizer and its usage is known exactly: three
 * tokens. */
static bool check_completion(struct conform *c)
{
    double used;
    return conform_post(c, "/oai/api/v1/completions",
                        "{\"model\":\"%s\",\"prompt\":[20,21,22],\"max_tokens\":4}", c->model) &&
           (conform_has(c, "choices.0.text") || conform_miss(c, "no choices.0.text")) &&
           conform_number(c, "usage.prompt_tokens", &used) &&
           (used == 3 || conform_miss(c, "usage.prompt_tokens is %g, not 3", used));
}

struct stream {
    size_t pieces;
    bool done;
};

/* Whatever is not the end counts as an event; that each is JSON was checked for the plain form
 * already. */
static tinker_receive_next take_piece(const tinker_piece *piece, void *state)
{
    struct stream *s = state;
    if (piece->n == 6 && memcmp(piece->data, "[DONE]", 6) == 0)
        s->done = true;
    else
        s->pieces++;
    return TINKER_RECEIVE_MORE;
}

/* Server-sent events, one JSON object each, "[DONE]" at the end. */
static bool check_stream(struct conform *c)
{
    tinker_receive_options o = TINKER_RECEIVE_OPTIONS_INIT;
    struct stream s = { 0 };
    char body[512];
    tinker_error err;
    o.events = 1;
    snprintf(body, sizeof(body),
             "{\"model\":\"%s\",\"prompt\":[20,21,22],\"max_tokens\":4,\"stream\":true}", c->model);
    tinker_future *f = tinker_service_receive(c->raw, "POST", "/oai/api/v1/completions", body,
                                              strlen(body), &o, take_piece, &s, &err);
    bool ok = f && api_await(f, &err) == TINKER_OK;
    tinker_future_free(f);
    if (!ok)
        return conform_miss(c, "%s", err.message);
    return (s.pieces > 0 && s.done) ||
           conform_miss(c, "%zu events, %s at the end", s.pieces, s.done ? "[DONE]" : "no [DONE]");
}

/* The content is not judged: any model may be served, a bad answer is no fault of the server. */
static bool check_chat(struct conform *c)
{
    char role[16];
    return conform_post(c, "/oai/api/v1/chat/completions",
                        "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"1+1?\"}],"
                        "\"max_tokens\":4}",
                        c->model) &&
           conform_text(c, "choices.0.message.role", role, sizeof(role)) &&
           (strcmp(role, "assistant") == 0 || conform_miss(c, "role %s", role));
}

/* OpenAI clients show error.message and fail on any other form, mostly with a message about
 * themselves. */
static bool check_chat_error(struct conform *c)
{
    return conform_send(c, "POST", "/oai/api/v1/chat/completions",
                        "{\"model\":\"conform-no-such-model\",\"messages\":[{\"role\":\"user\","
                        "\"content\":\"1\"}]}") &&
           conform_refused(c, "an unknown model") &&
           (conform_has(c, "error.message") || conform_miss(c, "no error.message"));
}

/* The smallest message of Anthropic's API; its "type" tells a message from an error. */
static bool check_messages(struct conform *c)
{
    char type[16];
    return conform_post(c, "/anthropic/api/v1/messages",
                        "{\"model\":\"%s\",\"max_tokens\":4,\"messages\":[{\"role\":\"user\","
                        "\"content\":\"1+1?\"}]}",
                        c->model) &&
           conform_text(c, "type", type, sizeof(type)) &&
           (strcmp(type, "message") == 0 || conform_miss(c, "type %s", type));
}

static const struct conform_check checks[] = {
    { "chat.models", "the OpenAI endpoint lists models", check_models },
    { "chat.completion", "it continues a prompt of tokens", check_completion },
    { "chat.stream", "it streams server-sent events up to [DONE]", check_stream },
    { "chat.chat", "it answers a conversation", check_chat },
    { "chat.error", "its errors have the form {\"error\": {\"message\"}}", check_chat_error },
    { "chat.messages", "the Anthropic endpoint answers a conversation", check_messages },
};
const struct conform_group conform_chat = { "chat", checks, ARRAY_LEN(checks) };
