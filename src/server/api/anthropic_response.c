/* anthropic_response.c - answers, errors and events of the Messages API: see anthropic.h.
 *
 * An answer is a list of blocks: thinking, text, calls of tools.  The model's chat format tells them
 * apart; a text that was cut by a stop sequence of the request is one block. */
#include "server/api/anthropic.h"

#include <stdio.h>
#include <string.h>

void anthropic_error(struct response *res, int status, const char *message)
{
    struct json_writer w;
    /* The names that Anthropic's SDKs map to their exceptions; a status without one counts as the
     * client's fault. */
    const char *type = status == 400   ? "invalid_request_error"
                       : status == 401 ? "authentication_error"
                       : status == 402 ? "billing_error"
                       : status == 403 ? "permission_error"
                       : status == 404 ? "not_found_error"
                       : status == 413 ? "request_too_large"
                       : status == 429 ? "rate_limit_error"
                       : status == 504 ? "timeout_error"
                       : status >= 500 ? "api_error"
                                       : "invalid_request_error";
    buf_reset(&res->body);
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "type");
    json_put_string(&w, "error");
    json_put_key(&w, "error");
    json_put_begin_object(&w);
    json_put_key(&w, "type");
    json_put_string(&w, type);
    json_put_key(&w, "message");
    json_put_string(&w, message);
    json_put_end_object(&w);
    json_put_end_object(&w);
    res->status = status;
    res->content_type = "application/json";
    /* An error ends a hold. */
    res->wait = NULL;
}

/* ---- blocks ----------------------------------------------------------------------------------- */

/* Receives the blocks of an answer in order; the texts are borrowed for the call. */
struct block_sink {
    void (*put)(struct block_sink *sink, const char *type, const char *text, size_t n,
                const tinker_tool_call *call);
    const struct openai *o;
    struct json_writer *w; /* of a whole answer */
    struct buf *out;       /* of a stream */
    size_t n;
};

/* Which stop sequence of the request ended the text; NULL: none. */
static const char *find_own_stop(const struct openai *o, const int32_t *tokens, size_t n)
{
    tinker_text text = TINKER_TEXT_INIT;
    const char *found = NULL;
    /* Decoded again from the tokens, because the parsed text ends before the stop. */
    if (o->n_own_stop && tinker_tokenizer_decode(o->from.base->tokenizer, tokens, n, NULL, &text,
                                                 NULL) == TINKER_OK) {
        size_t at = text.s ? openai_stop_at(o, text.s, text.n) : 0;
        for (size_t i = 0; i < o->n_own_stop && !found && text.s; i++)
            /* The text is cut where any stop begins; which one it was is compared there. */
            if (text.n - at >= strlen(o->stop[i]) &&
                memcmp(text.s + at, o->stop[i], strlen(o->stop[i])) == 0)
                found = o->stop[i];
    }
    tinker_text_clear(&text);
    return found;
}

/* Give the blocks of the tokens to the sink; true when they call tools. */
static bool list_blocks(const struct openai *o, const tinker_sequence *q, const char *own_stop,
                        struct block_sink *sink)
{
    tinker_text text = TINKER_TEXT_INIT;
    bool calls = false;
    /* After a stop of the request the rest of the format is missing, so it is not parsed. */
    tinker_parsed *p = own_stop ? NULL : openai_parse(o, q->tokens, q->n);
    const tinker_message *m = p ? p->message : NULL;
    for (size_t i = 0; m && m->parts && i < m->n_parts; i++) {
        /* Parts in the order in which the model gave them. */
        const tinker_part *part = &m->parts[i];
        size_t n = part->n_text ? part->n_text : part->text ? strlen(part->text) : 0;
        if (n && part->kind == TINKER_PART_THINKING)
            sink->put(sink, "thinking", part->text, n, NULL);
        else if (n && part->kind == TINKER_PART_TEXT)
            sink->put(sink, "text", part->text, n, NULL);
    }
    /* Formats without thinking have a plain content instead of parts. */
    if (m && !m->parts && m->content && tinker_message_text(m, &text, NULL) == TINKER_OK && text.n)
        sink->put(sink, "text", text.s, text.n, NULL);
    /* Without declared tools what looks like a call is text. */
    for (size_t i = 0; m && o->tools.s && i < m->n_tool_calls; i++) {
        sink->put(sink, "tool_use", NULL, 0, &m->tool_calls[i]);
        calls = true;
    }
    if (!m && openai_text(o, q->tokens, q->n, &text, NULL) == TINKER_OK && text.n)
        sink->put(sink, "text", text.s, text.n, NULL);
    tinker_parsed_free(p);
    tinker_text_clear(&text);
    return calls;
}

/* The members of a block; `empty`: as it is when it begins in a stream. */
static void put_block_members(const struct block_sink *sink, struct json_writer *w,
                              const char *type, const char *text, size_t n,
                              const tinker_tool_call *call, bool empty)
{
    char id[96];
    json_put_begin_object(w);
    json_put_key(w, "type");
    json_put_string(w, type);
    if (call) {
        /* Unique in the conversation: the message's id and the number of the block. */
        snprintf(id, sizeof(id), "toolu_%.36s_%zu", strchr(sink->o->id, '_') + 1, sink->n);
        json_put_key(w, "id");
        json_put_string(w, call->id ? call->id : id);
        json_put_key(w, "name");
        json_put_string(w, call->name);
        json_put_key(w, "input");
        const char *input = empty || !call->arguments ? "{}" : call->arguments;
        json_put_raw(w, input, strlen(input));
    } else {
        json_put_key(w, type);
        json_put_string_n(w, empty ? "" : text, empty ? 0 : n);
        /* A signature proves to Anthropic's servers that thinking is theirs; here there is none. */
        if (strcmp(type, "thinking") == 0) {
            json_put_key(w, "signature");
            json_put_string(w, "");
        }
    }
    json_put_end_object(w);
}

static void put_whole_block(struct block_sink *sink, const char *type, const char *text, size_t n,
                            const tinker_tool_call *call)
{
    put_block_members(sink, sink->w, type, text, n, call, false);
    sink->n++;
}

static const char *stop_reason(const tinker_sequence *q, const char *own_stop, bool calls)
{
    /* The order matters: a call ends a message even if a stop sequence follows it. */
    return calls                                ? "tool_use"
           : own_stop                           ? "stop_sequence"
           : q->stop_reason == TINKER_STOP_STOP ? "end_turn"
                                                : "max_tokens";
}

static void put_stop_sequence(struct json_writer *w, const char *own_stop)
{
    json_put_key(w, "stop_sequence");
    if (own_stop)
        json_put_string(w, own_stop);
    else
        json_put_null(w);
}

/* What a message begins with, up to its content. */
static void put_message_head(const struct openai *o, struct json_writer *w)
{
    json_put_key(w, "id");
    json_put_string(w, o->id);
    json_put_key(w, "type");
    json_put_string(w, "message");
    json_put_key(w, "role");
    json_put_string(w, "assistant");
    json_put_key(w, "model");
    json_put_string(w, o->model);
    json_put_key(w, "content");
}

static void put_usage(struct json_writer *w, size_t input, int64_t cached, size_t output)
{
    json_put_key(w, "usage");
    json_put_begin_object(w);
    json_put_key(w, "input_tokens"); /* without the cached ones */
    /* Anthropic counts cached tokens apart, OpenAI within. */
    json_put_int64(w, (int64_t)input - cached);
    json_put_key(w, "cache_read_input_tokens");
    json_put_int64(w, cached);
    json_put_key(w, "cache_creation_input_tokens");
    json_put_int64(w, 0);
    json_put_key(w, "output_tokens");
    json_put_int64(w, (int64_t)output);
    json_put_end_object(w);
}

void anthropic_put_message(const struct openai *o, struct json_writer *w, const tinker_sample *s)
{
    /* One prompt and one sequence: see anthropic_read(). */
    const tinker_sequence *q = &s->sequences[0];
    const char *own_stop = find_own_stop(o, q->tokens, q->n);
    struct block_sink sink = { .put = put_whole_block, .o = o, .w = w };
    json_put_begin_object(w);
    put_message_head(o, w);
    json_put_begin_array(w);
    bool calls = list_blocks(o, q, own_stop, &sink);
    json_put_end_array(w);
    json_put_key(w, "stop_reason");
    json_put_string(w, stop_reason(q, own_stop, calls));
    put_stop_sequence(w, own_stop);
    put_usage(w, o->prompts[0].n, s->prompt_cache_hit_tokens, q->n);
    json_put_end_object(w);
}

/* ---- events ----------------------------------------------------------------------------------- */

/* "event: TYPE", then the object with its type; it stays open. */
static void begin_event(struct buf *out, struct json_writer *w, const char *type)
{
    buf_puts(out, "event: ");
    buf_puts(out, type);
    /* One line: JSON has no raw newlines. */
    buf_puts(out, "\ndata: ");
    json_writer_init(w, out);
    json_put_begin_object(w);
    json_put_key(w, "type");
    json_put_string(w, type);
}

static void end_event(struct buf *out, struct json_writer *w)
{
    json_put_end_object(w);
    buf_puts(out, "\n\n");
}

static void put_index(struct json_writer *w, size_t index)
{
    json_put_key(w, "index");
    json_put_int64(w, (int64_t)index);
}

void anthropic_put_start(const struct openai *o, struct buf *out, size_t n_prompt)
{
    struct json_writer w;
    begin_event(out, &w, "message_start");
    json_put_key(&w, "message");
    json_put_begin_object(&w);
    put_message_head(o, &w);
    json_put_begin_array(&w);
    json_put_end_array(&w);
    json_put_key(&w, "stop_reason");
    json_put_null(&w);
    put_stop_sequence(&w, NULL);
    put_usage(&w, n_prompt, 0, 0);
    json_put_end_object(&w);
    end_event(out, &w);
}

/* A piece of block `index`: {"type": "text_delta", "text": ...} and its kin. */
static void put_delta(struct buf *out, size_t index, const char *type, const char *key,
                      const char *text, size_t n)
{
    struct json_writer w;
    begin_event(out, &w, "content_block_delta");
    put_index(&w, index);
    json_put_key(&w, "delta");
    json_put_begin_object(&w);
    json_put_key(&w, "type");
    json_put_string(&w, type);
    json_put_key(&w, key);
    json_put_string_n(&w, text, n);
    json_put_end_object(&w);
    end_event(out, &w);
}

static void put_block_stop(struct buf *out, size_t index)
{
    struct json_writer w;
    begin_event(out, &w, "content_block_stop");
    put_index(&w, index);
    end_event(out, &w);
}

/* A block that is complete, as a stream has it: begin, one piece, end. */
static void put_streamed_block(struct block_sink *sink, const char *type, const char *text,
                               size_t n, const tinker_tool_call *call)
{
    struct json_writer w;
    begin_event(sink->out, &w, "content_block_start");
    put_index(&w, sink->n);
    json_put_key(&w, "content_block");
    put_block_members(sink, &w, type, text, n, call, true);
    end_event(sink->out, &w);
    /* SDKs put the pieces of `input` together and parse the result, so one piece is enough. */
    if (call) {
        const char *input = call->arguments ? call->arguments : "{}";
        put_delta(sink->out, sink->n, "input_json_delta", "partial_json", input, strlen(input));
    } else if (strcmp(type, "thinking") == 0) {
        put_delta(sink->out, sink->n, "thinking_delta", "thinking", text, n);
        put_delta(sink->out, sink->n, "signature_delta", "signature", "", 0);
    } else {
        put_delta(sink->out, sink->n, "text_delta", "text", text, n);
    }
    put_block_stop(sink->out, sink->n++);
}

void anthropic_put_text(struct buf *out, const char *text, size_t n, bool *opened)
{
    struct json_writer w;
    /* The block is opened by its first text, so an answer without text has none. */
    if (!*opened) {
        begin_event(out, &w, "content_block_start");
        put_index(&w, 0);
        json_put_key(&w, "content_block");
        json_put_raw(&w, "{\"type\":\"text\",\"text\":\"\"}", 25);
        end_event(out, &w);
    }
    *opened = true;
    if (n)
        put_delta(out, 0, "text_delta", "text", text, n);
}

void anthropic_put_end(const struct openai *o, struct buf *out, const tinker_sequence *q,
                       bool opened)
{
    struct json_writer w;
    const char *own_stop = find_own_stop(o, q->tokens, q->n);
    struct block_sink sink = { .put = put_streamed_block, .o = o, .out = out };
    bool calls = false;
    /* Either a text was streamed as block 0, or everything is sent now. */
    if (opened)
        put_block_stop(out, 0);
    else
        calls = list_blocks(o, q, own_stop, &sink);
    begin_event(out, &w, "message_delta");
    json_put_key(&w, "delta");
    json_put_begin_object(&w);
    json_put_key(&w, "stop_reason");
    json_put_string(&w, stop_reason(q, own_stop, calls));
    put_stop_sequence(&w, own_stop);
    json_put_end_object(&w);
    /* input_tokens were in message_start. */
    json_put_key(&w, "usage");
    json_put_begin_object(&w);
    json_put_key(&w, "output_tokens");
    json_put_int64(&w, (int64_t)q->n);
    json_put_end_object(&w);
    end_event(out, &w);
    begin_event(out, &w, "message_stop");
    end_event(out, &w);
}

void anthropic_put_failure(struct buf *out, const char *message)
{
    struct json_writer w;
    begin_event(out, &w, "error");
    json_put_key(&w, "error");
    json_put_begin_object(&w);
    json_put_key(&w, "type");
    json_put_string(&w, "api_error");
    json_put_key(&w, "message");
    json_put_string(&w, message);
    json_put_end_object(&w);
    end_event(out, &w);
}
