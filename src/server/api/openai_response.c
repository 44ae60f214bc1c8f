/* openai_response.c - messages, log probabilities and errors in the OpenAI shape: see openai.h.
 *
 * Chat and completions report log probabilities in two different layouts; both come from the
 * same tinker_sequence.  Thread: any; nothing here has state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/openai.h"

void openai_error(struct response *res, int status, const char *message)
{
    struct json_writer w;
    /* The names that the OpenAI SDKs map to their exceptions. */
    const char *type = status >= 500   ? "server_error"
                       : status == 401 ? "authentication_error"
                       : status == 429 ? "rate_limit_error"
                                       : "invalid_request_error";
    buf_reset(&res->body);
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "error");
    json_put_begin_object(&w);
    json_put_key(&w, "message");
    json_put_string(&w, message);
    json_put_key(&w, "type");
    json_put_string(&w, type);
    json_put_key(&w, "param");
    json_put_null(&w);
    json_put_key(&w, "code");
    json_put_int64(&w, status);
    json_put_end_object(&w);
    json_put_end_object(&w);
    res->status = status;
    res->content_type = "application/json";
    res->wait = NULL;
}

/* ---- log probabilities ---------------------------------------------------------------- */

/* The bytes of a token, perhaps only a part of a character; empty without a tokenizer. */
static const char *token_bytes(const struct openai *o, int32_t token, size_t *n)
{
    *n = 0;
    const tinker_tokenizer *t = o->from.base->tokenizer;
    const char *bytes = t ? tinker_tokenizer_bytes(t, token, n) : NULL;
    return bytes ? bytes : "";
}

/* Members of one token in the chat layout.  "bytes" is exact where "token" is not valid UTF-8. */
static void put_chat_token(const struct openai *o, struct json_writer *w, int32_t token,
                           float logprob)
{
    size_t n;
    const char *bytes = token_bytes(o, token, &n);
    json_put_key(w, "token");
    json_put_string_n(w, bytes, n);
    json_put_key(w, "logprob");
    json_put_float(w, logprob);
    json_put_key(w, "bytes");
    json_put_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_put_int64(w, (unsigned char)bytes[i]);
    json_put_end_array(w);
}

/* Is there an a-th alternative at position i?  Unused places hold a very low value. */
static bool has_alternative(const tinker_sequence *q, size_t i, size_t a)
{
    enum { UNUSED = -99999 };
    return q->topk_tokens && a < q->topk && q->topk_logprobs[i * q->topk + a] > (float)UNUSED;
}

/* Chat: a list of tokens, each with its alternatives. */
static void put_chat_logprobs(const struct openai *o, struct json_writer *w,
                              const tinker_sequence *q)
{
    json_put_key(w, "content");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++) {
        json_put_begin_object(w);
        put_chat_token(o, w, q->tokens[i], q->logprobs[i]);
        json_put_key(w, "top_logprobs");
        json_put_begin_array(w);
        for (size_t a = 0; has_alternative(q, i, a); a++) {
            json_put_begin_object(w);
            put_chat_token(o, w, q->topk_tokens[i * q->topk + a],
                           q->topk_logprobs[i * q->topk + a]);
            json_put_end_object(w);
        }
        json_put_end_array(w);
        json_put_end_object(w);
    }
    json_put_end_array(w);
}

/* "token": log probability. */
static void put_token_logprob(const struct openai *o, struct json_writer *w, int32_t token,
                              float logprob)
{
    size_t len;
    const char *bytes = token_bytes(o, token, &len);
    json_put_key_n(w, bytes, len);
    json_put_float(w, logprob);
}

/* Completions: four parallel arrays.  *offset counts characters, not bytes, from the beginning of
 * the text, and goes on from event to event of a stream. */
static void put_completion_logprobs(const struct openai *o, struct json_writer *w,
                                    const tinker_sequence *q, size_t *offset)
{
    size_t len;
    json_put_key(w, "tokens");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++) {
        const char *bytes = token_bytes(o, q->tokens[i], &len);
        json_put_string_n(w, bytes, len);
    }
    json_put_end_array(w);
    json_put_key(w, "token_logprobs"); /* of the sampled tokens */
    json_put_array_float(w, q->logprobs, q->n);
    json_put_key(w, "top_logprobs");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n && o->top_logprobs > 0; i++) {
        /* The sampled token is always among them, even if it is not one of the most likely. */
        bool found = false;
        json_put_begin_object(w);
        for (size_t a = 0; has_alternative(q, i, a); a++) {
            int32_t token = q->topk_tokens[i * q->topk + a];
            put_token_logprob(o, w, token, q->topk_logprobs[i * q->topk + a]);
            found = found || token == q->tokens[i];
        }
        if (!found)
            put_token_logprob(o, w, q->tokens[i], q->logprobs[i]);
        json_put_end_object(w);
    }
    json_put_end_array(w);
    /* Where each token begins in the text. */
    json_put_key(w, "text_offset");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++) {
        const char *bytes = token_bytes(o, q->tokens[i], &len);
        json_put_int64(w, (int64_t)*offset);
        for (size_t k = 0; k < len; k++) /* UTF-8: continuation bytes are 10xxxxxx */
            *offset += ((unsigned char)bytes[k] & 0xc0) != 0x80;
    }
    json_put_end_array(w);
}

void openai_put_logprobs(const struct openai *o, struct json_writer *w, const tinker_sequence *q,
                         size_t *offset)
{
    /* null, not absent: the OpenAI SDKs expect the member. */
    if (!o->logprobs || !q->logprobs) {
        json_put_null(w);
        return;
    }
    json_put_begin_object(w);
    if (o->chat)
        put_chat_logprobs(o, w, q);
    else
        put_completion_logprobs(o, w, q, offset);
    json_put_end_object(w);
}

/* ---- messages --------------------------------------------------------------------------- */

/* One call.  Models that give it no id get one that is unique in the conversation. */
static void put_tool_call(const struct openai *o, struct json_writer *w, size_t i,
                          const tinker_tool_call *call, bool delta)
{
    char id[96];
    snprintf(id, sizeof(id), "call-%.36s-%zu", strchr(o->id, '-') + 1, i);
    json_put_begin_object(w);
    if (delta) { /* in a stream, calls are told apart by their index */
        json_put_key(w, "index");
        json_put_int64(w, (int64_t)i);
    }
    json_put_key(w, "id");
    json_put_string(w, call->id ? call->id : id);
    json_put_key(w, "type");
    json_put_string(w, "function");
    json_put_key(w, "function");
    json_put_begin_object(w);
    json_put_key(w, "name");
    json_put_string(w, call->name);
    json_put_key(w, "arguments");
    json_put_string(w, call->arguments ? call->arguments : "{}");
    json_put_end_object(w);
    json_put_end_object(w);
}

/* Write the tool calls that the tokens contain; false: no tools were declared, or none is called. */
static bool put_tool_calls(const struct openai *o, struct json_writer *w, const int32_t *tokens,
                           size_t n, bool delta)
{
    if (!o->tools.s)
        return false;
    /* Only the chat format knows how a call looks in tokens. */
    tinker_renderer *r = openai_renderer(o, NULL);
    tinker_parsed *p = r ? tinker_renderer_parse(r, tokens, n, NULL) : NULL;
    bool calls = p && p->message->n_tool_calls > 0;
    if (calls) {
        /* What the model says beside the calls, without its thinking; null when nothing. */
        tinker_text text = TINKER_TEXT_INIT;
        tinker_status status = tinker_message_text(p->message, &text, NULL);
        json_put_key(w, "content");
        if (status == TINKER_OK && text.n > 0)
            json_put_string_n(w, text.s, text.n);
        else
            json_put_null(w);
        tinker_text_clear(&text);
        json_put_key(w, "tool_calls");
        json_put_begin_array(w);
        for (size_t i = 0; i < p->message->n_tool_calls; i++)
            put_tool_call(o, w, i, &p->message->tool_calls[i], delta);
        json_put_end_array(w);
    }
    tinker_parsed_free(p);
    tinker_renderer_free(r);
    return calls;
}

bool openai_put_message(const struct openai *o, struct json_writer *w, const int32_t *tokens,
                        size_t n, bool delta)
{
    json_put_key(w, "role");
    json_put_string(w, "assistant");
    /* Calls have their own text; otherwise it is the plain one, cut at the stop. */
    if (put_tool_calls(o, w, tokens, n, delta))
        return true;
    tinker_text text = TINKER_TEXT_INIT;
    openai_text(o, tokens, n, &text, NULL);
    json_put_key(w, "content");
    json_put_string_n(w, text.s ? text.s : "", text.n);
    tinker_text_clear(&text);
    return false;
}
