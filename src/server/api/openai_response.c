/* openai_response.c - messages, log probabilities and errors in the OpenAI shape: see openai.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/openai.h"

void openai_error(struct response *res, int status, const char *message)
{
    struct json_writer w;
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

static const char *token_bytes(const struct openai *o, int32_t token, size_t *n)
{
    *n = 0;
    const tinker_tokenizer *t = o->from.base->tokenizer;
    const char *bytes = t ? tinker_tokenizer_bytes(t, token, n) : NULL;
    return bytes ? bytes : "";
}

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

/* Is there an a-th rival at position i? */
static bool has_rival(const tinker_sequence *q, size_t i, size_t a)
{
    enum { UNUSED = -99999 };
    return q->topk_tokens && a < q->topk && q->topk_logprobs[i * q->topk + a] > (float)UNUSED;
}

static void put_chat_rival(const struct openai *o, struct json_writer *w, int32_t token,
                           float logprob)
{
    json_put_begin_object(w);
    put_chat_token(o, w, token, logprob);
    json_put_end_object(w);
}

static void put_chat(const struct openai *o, struct json_writer *w, const tinker_sequence *q)
{
    json_put_key(w, "content");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++) {
        json_put_begin_object(w);
        put_chat_token(o, w, q->tokens[i], q->logprobs[i]);
        json_put_key(w, "top_logprobs");
        json_put_begin_array(w);
        for (size_t a = 0; has_rival(q, i, a); a++)
            put_chat_rival(o, w, q->topk_tokens[i * q->topk + a],
                           q->topk_logprobs[i * q->topk + a]);
        json_put_end_array(w);
        json_put_end_object(w);
    }
    json_put_end_array(w);
}

static void put_named(const struct openai *o, struct json_writer *w, int32_t token, float logprob)
{
    size_t len;
    const char *bytes = token_bytes(o, token, &len);
    json_put_key_n(w, bytes, len);
    json_put_float(w, logprob);
}

/* The chosen token is always among them, also when it is not one of the likeliest. */
static void put_rivals(const struct openai *o, struct json_writer *w, const tinker_sequence *q,
                       size_t i)
{
    bool found = false;
    json_put_begin_object(w);
    for (size_t a = 0; has_rival(q, i, a); a++) {
        int32_t token = q->topk_tokens[i * q->topk + a];
        put_named(o, w, token, q->topk_logprobs[i * q->topk + a]);
        found = found || token == q->tokens[i];
    }
    if (!found)
        put_named(o, w, q->tokens[i], q->logprobs[i]);
    json_put_end_object(w);
}

static size_t characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

static void put_completion(const struct openai *o, struct json_writer *w, const tinker_sequence *q,
                           size_t *offset)
{
    size_t len;
    json_put_key(w, "tokens");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++) {
        const char *bytes = token_bytes(o, q->tokens[i], &len);
        json_put_string_n(w, bytes, len);
    }
    json_put_end_array(w);
    json_put_key(w, "token_logprobs");
    json_put_array_float(w, q->logprobs, q->n);
    json_put_key(w, "top_logprobs");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n && o->top_logprobs > 0; i++)
        put_rivals(o, w, q, i);
    json_put_end_array(w);
    json_put_key(w, "text_offset");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++) {
        const char *bytes = token_bytes(o, q->tokens[i], &len);
        json_put_int64(w, (int64_t)*offset);
        *offset += characters(bytes, len);
    }
    json_put_end_array(w);
}

void openai_put_logprobs(const struct openai *o, struct json_writer *w, const tinker_sequence *q,
                         size_t *offset)
{
    if (!o->logprobs || !q->logprobs) {
        json_put_null(w);
        return;
    }
    json_put_begin_object(w);
    if (o->chat)
        put_chat(o, w, q);
    else
        put_completion(o, w, q, offset);
    json_put_end_object(w);
}

/* ---- messages --------------------------------------------------------------------------- */

static void put_call(const struct openai *o, struct json_writer *w, size_t i,
                     const tinker_tool_call *call, bool delta)
{
    char id[96];
    snprintf(id, sizeof(id), "call-%.36s-%zu", strchr(o->id, '-') + 1, i);
    json_put_begin_object(w);
    if (delta) {
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

/* What is said beside the calls: the text, without thinking. */
static void put_said(struct json_writer *w, const tinker_message *m)
{
    tinker_text text = TINKER_TEXT_INIT;
    tinker_status status = tinker_message_text(m, &text, NULL);
    json_put_key(w, "content");
    if (status == TINKER_OK && text.n > 0)
        json_put_string_n(w, text.s, text.n);
    else
        json_put_null(w);
    tinker_text_clear(&text);
}

/* The calls in the tokens, if tools were declared and there are any. */
static bool put_calls(const struct openai *o, struct json_writer *w, const int32_t *tokens,
                      size_t n, bool delta)
{
    if (!o->tools.s)
        return false;
    tinker_renderer *r = openai_renderer(o, NULL);
    tinker_parsed *p = r ? tinker_renderer_parse(r, tokens, n, NULL) : NULL;
    bool calls = p && p->message->n_tool_calls > 0;
    if (calls) {
        put_said(w, p->message);
        json_put_key(w, "tool_calls");
        json_put_begin_array(w);
        for (size_t i = 0; i < p->message->n_tool_calls; i++)
            put_call(o, w, i, &p->message->tool_calls[i], delta);
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
    if (put_calls(o, w, tokens, n, delta))
        return true;
    tinker_text text = TINKER_TEXT_INIT;
    openai_text(o, tokens, n, &text, NULL);
    json_put_key(w, "content");
    json_put_string_n(w, text.s ? text.s : "", text.n);
    tinker_text_clear(&text);
    return false;
}
