/* openai_response.c - messages, log probabilities and errors in the OpenAI shape: see openai.h.
 *
 * Chat and completions report log probabilities in two different layouts; both come from the
 * same tinker_sequence.  Thread: any; nothing here has state. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
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
    /* Replacement characters where it is cut inside a character. */
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
        /* Alternatives are sorted, so the first unused place is the end. */
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

/* A token's text in the layout of completions.  What is not UTF-8 on its own is written as
 * "bytes:\\xe2\\x80", as OpenAI does; so is all with `as_bytes`.  text has room for TOKEN_TEXT bytes. */
enum { TOKEN_TEXT = 1024 };

static size_t write_token_text(const struct openai *o, int32_t token, bool as_bytes, char *text)
{
    size_t len, n;
    const char *bytes = token_bytes(o, token, &len);
    if (!as_bytes && len < TOKEN_TEXT && utf8_valid_prefix(bytes, len) == len) {
        memcpy(text, bytes, len);
        return len;
    }
    /* \x and two digits for each byte. */
    n = (size_t)snprintf(text, TOKEN_TEXT, "bytes:");
    for (size_t i = 0; i < len && n + 5 < TOKEN_TEXT; i++)
        n += (size_t)snprintf(text + n, TOKEN_TEXT - n, "\\x%02x", (unsigned char)bytes[i]);
    return n;
}

/* The likeliest tokens at position i of q and, whatever its rank, the token itself.  Keys are texts,
 * which two tokens may share: the likelier has the plain one. */
static void put_top_logprobs(const struct openai *o, struct json_writer *w,
                             const tinker_sequence *q, size_t i)
{
    struct {
        int32_t token;
        float logprob;
        char text[TOKEN_TEXT];
        size_t n;
    } list[OPENAI_TOP_MAX + 1];
    size_t n = 0, own = SIZE_MAX;
    for (size_t a = 0; has_alternative(q, i, a) && n < OPENAI_TOP_MAX; a++) {
        /* own: the place of the sampled token among them. */
        own = q->topk_tokens[i * q->topk + a] == q->tokens[i] ? n : own;
        list[n].token = q->topk_tokens[i * q->topk + a];
        list[n++].logprob = q->topk_logprobs[i * q->topk + a];
    }
    if (own == SIZE_MAX) { /* the least likely, so it comes last */
        list[n].token = q->tokens[i];
        list[n++].logprob = q->logprobs[i];
    }
    json_put_begin_object(w);
    for (size_t a = 0; a < n; a++) {
        bool taken = false;
        list[a].n = write_token_text(o, list[a].token, false, list[a].text);
        for (size_t b = 0; b < a && !taken; b++)
            taken = list[b].n == list[a].n && memcmp(list[b].text, list[a].text, list[a].n) == 0;
        if (taken)
            list[a].n = write_token_text(o, list[a].token, true, list[a].text);
        json_put_key_n(w, list[a].text, list[a].n);
        json_put_float(w, list[a].logprob);
    }
    json_put_end_object(w);
}

size_t openai_count_chars(const struct openai *o, const int32_t *tokens, size_t n)
{
    size_t chars = 0, len;
    for (size_t i = 0; i < n; i++) {
        const char *bytes = token_bytes(o, tokens[i], &len);
        for (size_t k = 0; k < len; k++) /* UTF-8: continuation bytes are 10xxxxxx */
            chars += ((unsigned char)bytes[k] & 0xc0) != 0x80;
    }
    return chars;
}

/* Completions: four parallel arrays.  *offset counts characters, not bytes, from the beginning of
 * the text, and goes on from event to event of a stream.  The first token of a prompt has no
 * probability (NaN): null in both arrays. */
static void put_completion_logprobs(const struct openai *o, struct json_writer *w,
                                    const tinker_sequence *q, size_t *offset)
{
    char text[TOKEN_TEXT];
    json_put_key(w, "tokens");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++)
        json_put_string_n(w, text, write_token_text(o, q->tokens[i], false, text));
    json_put_end_array(w);
    json_put_key(w, "token_logprobs");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++)
        if (isnan(q->logprobs[i]))
            json_put_null(w);
        else
            json_put_float(w, q->logprobs[i]);
    json_put_end_array(w);
    json_put_key(w, "top_logprobs");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++)
        if (isnan(q->logprobs[i]))
            json_put_null(w);
        else
            put_top_logprobs(o, w, q, i);
    json_put_end_array(w);
    /* Where each token begins in the text. */
    json_put_key(w, "text_offset");
    json_put_begin_array(w);
    for (size_t i = 0; i < q->n; i++) {
        json_put_int64(w, (int64_t)*offset);
        *offset += openai_count_chars(o, &q->tokens[i], 1);
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
    /* The id of the response has the form "chatcmpl-UUID". */
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

tinker_parsed *openai_parse(const struct openai *o, const int32_t *tokens, size_t n)
{
    /* Only the chat format knows how a call looks in tokens.  Errors of the template were found
     * when the prompt was rendered. */
    tinker_renderer *r = openai_renderer(o, NULL);
    if (!r)
        return NULL;
    /* A grammar ends a text with its last byte; parsers want the token that ends a message, too. */
    tinker_tokens all = TINKER_TOKENS_INIT;
    tinker_stop_sequences stop = tinker_renderer_stop(r);
    bool ended = false;
    for (size_t i = 0; stop.tokens && n && i < stop.n; i++)
        ended = ended || stop.tokens[i] == tokens[n - 1];
    /* Only for must_call: a text that ended by itself has its end token. */
    if (o->must_call && stop.tokens && stop.n && !ended &&
        tinker_tokens_append(&all, tokens, n, NULL) == TINKER_OK &&
        tinker_tokens_append(&all, stop.tokens, 1, NULL) == TINKER_OK) {
        tokens = all.ids;
        n = all.n;
    }
    tinker_parsed *p = tinker_renderer_parse(r, tokens, n, NULL);
    tinker_renderer_free(r);
    tinker_tokens_clear(&all);
    return p;
}

/* Write the tool calls that the tokens contain; false: no tools were declared, or none is called. */
static bool put_tool_calls(const struct openai *o, struct json_writer *w, const int32_t *tokens,
                           size_t n, bool delta)
{
    if (!o->tools.s)
        return false;
    tinker_parsed *p = openai_parse(o, tokens, n);
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
