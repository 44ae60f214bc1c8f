/* openai_stream.c - a sample as server-sent events while it is made: see openai.h.
 *
 * Text that may be the beginning of a stop string is held back until it is certain that it is
 * not.  With tools a message is sent at the end only: before that nobody knows whether it calls
 * one.  Thread: the engine thread, which calls the observer. */
#include "server/api/openai.h"
#include "server/api/anthropic.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* One of the n sequences of the request. */
struct sequence {
    tinker_decoder *decoder;
    tinker_text text; /* decoded, not sent yet */
    int32_t *tokens;  /* all so far, with their log probabilities */
    float *logprobs;
    int32_t *top_tokens; /* the most likely ones per position: (n, top_logprobs) */
    float *top_logprobs;
    size_t n, cap;
    size_t told;   /* tokens whose log probabilities were sent */
    size_t offset; /* their characters */
    bool stopped;  /* a stop string was seen: nothing more is sent */
    bool begun;    /* the role was sent */
};

/* One stream with all its sequences; the observer comes first, so that a pointer to it is one to
 * this. */
struct events {
    struct observer observer;
    struct openai *o; /* a copy: model, id, stops */
    struct stream *stream;
    struct sequence *sequences;
    size_t n, longest; /* of the stop strings */
    size_t n_prompt, n_made;
    bool broken; /* the reader left */
    bool whole;  /* all content is sent at the end */
    bool opened; /* the text block of a Messages stream */
};

/* The members that every event has; the object stays open. */
static void put_chunk_head(const struct openai *o, struct json_writer *w)
{
    json_put_begin_object(w);
    json_put_key(w, "id");
    json_put_string(w, o->id);
    json_put_key(w, "object");
    json_put_string(w, o->chat ? "chat.completion.chunk" : "text_completion");
    json_put_key(w, "created");
    json_put_int64(w, o->created_s);
    json_put_key(w, "model");
    json_put_string(w, o->model);
}

/* realloc() that keeps the old array on failure and remembers it in *ok. */
static void *grow_array(void *old, size_t n, bool *ok)
{
    void *more = realloc(old, n);
    *ok = *ok && more;
    return more ? more : old;
}

/* Make space for one more token with k alternatives; false: no memory. */
static bool reserve_token(struct sequence *q, size_t k)
{
    size_t cap = q->cap ? q->cap * 2 : 64;
    bool ok = true;
    if (q->n < q->cap)
        return true;
    /* All arrays grow together; the old ones stay valid if one of them fails. */
    q->tokens = grow_array(q->tokens, cap * sizeof(*q->tokens), &ok);
    q->logprobs = grow_array(q->logprobs, cap * sizeof(*q->logprobs), &ok);
    if (k) {
        q->top_tokens = grow_array(q->top_tokens, cap * k * sizeof(*q->top_tokens), &ok);
        q->top_logprobs = grow_array(q->top_logprobs, cap * k * sizeof(*q->top_logprobs), &ok);
    }
    if (ok)
        q->cap = cap;
    return ok;
}

/* How many alternatives per token the client asked for. */
static size_t count_alternatives(const struct events *e)
{
    return e->o->logprobs ? (size_t)e->o->top_logprobs : 0;
}

/* Whether the reader is still there shows when writing. */
static void write_events(struct events *e, struct buf *b)
{
    if (!buf_ok(b) || !stream_write(e->stream, b->data, b->len))
        /* Goes on until the engine asks: see on_openai_token(). */
        e->broken = true;
    buf_clear(b);
}

/* An empty line ends an event. */
static void send_event(struct events *e, struct buf *b)
{
    buf_puts(b, "\n\n");
    write_events(e, b);
}

/* One event with a piece of text, or with the reason for the end. */
static void send_piece(struct events *e, size_t i, const char *text, size_t n, const char *reason)
{
    struct buf b;
    struct json_writer w;
    struct sequence *q = &e->sequences[i];
    buf_init(&b, 1 << 24);
    if (e->o->anthropic) {
        /* The Messages API has events of its own. */
        anthropic_put_text(&b, text, n, &e->opened);
        write_events(e, &b);
        return;
    }
    buf_puts(&b, "data: "); /* one line: JSON has no raw newlines */
    json_writer_init(&w, &b);
    put_chunk_head(e->o, &w);
    json_put_key(&w, "choices");
    json_put_begin_array(&w);
    json_put_begin_object(&w);
    json_put_key(&w, "index");
    json_put_int64(&w, (int64_t)i);
    if (e->o->chat) {
        json_put_key(&w, "delta");
        json_put_begin_object(&w);
        if (e->o->tools.s) {
            /* The only event of the message: see above. */
            if (openai_put_message(e->o, &w, q->tokens, q->n, true))
                reason = "tool_calls";
        } else {
            /* The first delta names the role, all others add text. */
            if (!q->begun) {
                json_put_key(&w, "role");
                json_put_string(&w, "assistant");
            }
            q->begun = true;
            if (n) {
                json_put_key(&w, "content");
                json_put_string_n(&w, text, n);
            }
        }
        json_put_end_object(&w);
    } else {
        json_put_key(&w, "text");
        json_put_string_n(&w, text, n);
    }
    json_put_key(&w, "logprobs");
    /* Of the tokens since the last event; text that is held back is reported with the next. */
    size_t k = q->top_tokens ? count_alternatives(e) : 0;
    const tinker_sequence news = { .tokens = q->tokens + q->told,
                                   .logprobs = q->logprobs ? q->logprobs + q->told : NULL,
                                   .n = q->n - q->told,
                                   .topk_tokens = k ? q->top_tokens + q->told * k : NULL,
                                   .topk_logprobs = k ? q->top_logprobs + q->told * k : NULL,
                                   .topk = k };
    openai_put_logprobs(e->o, &w, &news, &q->offset);
    q->told = q->n;
    json_put_key(&w, "finish_reason");
    if (reason)
        json_put_string(&w, reason);
    else
        json_put_null(&w);
    json_put_end_object(&w);
    json_put_end_array(&w);
    json_put_end_object(&w);
    send_event(e, &b);
}

/* Send what is safe to send; at the end everything that is left. */
static void flush_text(struct events *e, size_t i, bool end)
{
    struct sequence *q = &e->sequences[i];
    /* Where a stop begins, or the length of the text. */
    size_t stop = openai_stop_at(e->o, q->text.s ? q->text.s : "", q->text.n);
    size_t n = stop;
    /* A match: send what is before it, nothing after.  No match: the last longest - 1 bytes may
     * be the beginning of one. */
    if (stop < q->text.n)
        q->stopped = true;
    else if (!end && e->longest)
        n = q->text.n > e->longest - 1 ? q->text.n - (e->longest - 1) : 0;
    /* Never cut inside a character. */
    while (n > 0 && n < q->text.n && ((unsigned char)q->text.s[n] & 0xc0) == 0x80)
        n--;
    if (n)
        send_piece(e, i, q->text.s, n, NULL);
    if (q->text.n)
        memmove(q->text.s, q->text.s + n, q->text.n - n + 1);
    q->text.n -= n;
}

/* The alternatives of the token that comes next.  Without memory they are left out here, and
 * on_openai_token() ends the sequence. */
static void on_openai_alternatives(struct observer *observer, size_t sample, const int32_t *tokens,
                                   const float *logprobs, size_t k)
{
    struct events *e = (struct events *)observer;
    struct sequence *q = &e->sequences[sample];
    /* The engine counts alternatives as the request does; another number would be a mistake of
     * ours. */
    if (k != count_alternatives(e) || !reserve_token(q, k))
        return;
    memcpy(q->top_tokens + q->n * k, tokens, k * sizeof(*tokens));
    memcpy(q->top_logprobs + q->n * k, logprobs, k * sizeof(*logprobs));
}

static int on_openai_token(struct observer *observer, size_t sample, int32_t token, float logprob)
{
    struct events *e = (struct events *)observer;
    struct sequence *q = &e->sequences[sample];
    e->n_made++;
    if (!reserve_token(q, count_alternatives(e)))
        return 1; /* without memory the sequence ends here */
    q->tokens[q->n] = token;
    q->logprobs[q->n++] = logprob;
    if (!e->whole && !q->stopped && !e->o->no_new &&
        tinker_decoder_put(q->decoder, &token, 1, &q->text, NULL) == TINKER_OK)
        flush_text(e, sample, false);
    /* Not 0 ends the sequence: nobody reads it any more. */
    return e->broken;
}

/* The extra event that stream_options.include_usage asks for: no choices, only the counts. */
static void send_usage(struct events *e)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b, 1 << 16);
    buf_puts(&b, "data: ");
    json_writer_init(&w, &b);
    put_chunk_head(e->o, &w);
    json_put_key(&w, "choices");
    json_put_begin_array(&w);
    json_put_end_array(&w);
    json_put_key(&w, "usage");
    json_put_begin_object(&w);
    json_put_key(&w, "prompt_tokens");
    json_put_int64(&w, (int64_t)e->n_prompt);
    json_put_key(&w, "completion_tokens");
    json_put_int64(&w, (int64_t)e->n_made);
    json_put_key(&w, "total_tokens");
    json_put_int64(&w, (int64_t)(e->n_prompt + e->n_made));
    json_put_end_object(&w);
    json_put_end_object(&w);
    send_event(e, &b);
}

/* The end of every sequence, then the end of the stream.  r NULL: the sample failed. */
static void on_openai_finished(struct observer *observer, const tinker_sample *r, const char *error)
{
    struct events *e = (struct events *)observer;
    struct buf last;
    buf_init(&last, 1 << 26);
    for (size_t i = 0; r && i < r->n_sequences && i < e->n; i++) {
        struct sequence *q = &e->sequences[i];
        if (!e->whole && !q->stopped && tinker_decoder_end(q->decoder, &q->text, NULL) == TINKER_OK)
            /* What was held back for a stop that did not come. */
            flush_text(e, i, true);
        if (e->o->anthropic)
            anthropic_put_end(e->o, &last, &r->sequences[i], e->opened);
        else
            send_piece(e, i, "", 0,
                       r->sequences[i].stop_reason == TINKER_STOP_STOP ? "stop" : "length");
    }
    if (e->o->anthropic) {
        if (error)
            anthropic_put_failure(&last, error);
        write_events(e, &last);
        /* Anthropic has no [DONE]; message_stop was the last event. */
        stream_end(e->stream);
        return;
    }
    buf_clear(&last);
    if (error) {
        struct buf b;
        struct json_writer w;
        buf_init(&b, 1 << 16);
        buf_puts(&b, "data: ");
        json_writer_init(&w, &b);
        json_put_begin_object(&w);
        json_put_key(&w, "error");
        json_put_begin_object(&w);
        json_put_key(&w, "message");
        json_put_string(&w, error);
        json_put_end_object(&w);
        json_put_end_object(&w);
        send_event(e, &b);
    } else if (e->o->stream_usage)
        send_usage(e);
    /* The line that OpenAI's clients wait for, after an error as well. */
    stream_write(e->stream, "data: [DONE]\n\n", 14);
    stream_end(e->stream);
}

static void openai_events_free(struct observer *observer)
{
    struct events *e = (struct events *)observer;
    /* A second end has no effect; without it the listener would wait for a writer that is gone. */
    stream_end(e->stream);
    stream_unref(e->stream);
    for (size_t i = 0; e->sequences && i < e->n; i++) {
        tinker_decoder_free(e->sequences[i].decoder);
        tinker_text_clear(&e->sequences[i].text);
        free(e->sequences[i].tokens);
        free(e->sequences[i].logprobs);
        free(e->sequences[i].top_tokens);
        free(e->sequences[i].top_logprobs);
    }
    free(e->sequences);
    openai_free(e->o);
    free(e);
}

/* The engine asks before each step, so an abandoned sample ends within one token. */
static bool is_openai_reader_gone(const struct observer *observer)
{
    return stream_is_abandoned(((const struct events *)observer)->stream);
}

struct observer *openai_observer(struct server *s, const struct openai *o, struct stream **stream)
{
    struct events *e = calloc(1, sizeof(*e));
    if (!e)
        return NULL;
    e->observer = (struct observer){ .token = on_openai_token,
                                     .alternatives = on_openai_alternatives,
                                     .finished = on_openai_finished,
                                     .left = is_openai_reader_gone,
                                     .free = openai_events_free };
    e->n = (size_t)o->n;
    /* With tools nobody knows before the end whether there is a call, with thinking not what is
     * thinking. */
    e->whole = o->tools.s || (o->anthropic && !o->no_thinking);
    e->n_prompt = o->prompts[0].n; /* a stream has one prompt */
    size_t offset =
        o->chat || o->echo ? 0 : openai_count_chars(o, o->prompts[0].tokens, e->n_prompt);
    /* A copy of what the events need: the request may be gone before the sample is done. */
    struct openai *c = e->o = calloc(1, sizeof(*c));
    bool ok = c != NULL;
    if (c) {
        *c = *o;
        c->server = NULL; /* the sample ends with its stream */
        arena_init(&c->arena, 1 << 24);
        c->model = arena_strdup(&c->arena, o->model);
        c->tools.s = o->tools.s ? "[]" : NULL; /* only whether there are any */
        ok = c->model != NULL;
        for (size_t i = 0; i < o->n_stop; i++) {
            c->stop[i] = arena_strdup(&c->arena, o->stop[i]);
            ok = ok && c->stop[i];
        }
    }
    e->stream = stream_new(s->listener);
    e->sequences = calloc(e->n, sizeof(*e->sequences));
    /* A stop can be held back up to one byte less than its length. */
    for (size_t i = 0; i < o->n_stop; i++)
        e->longest = strlen(o->stop[i]) > e->longest ? strlen(o->stop[i]) : e->longest;
    /* Special tokens are decoded only where a stop string may contain them. */
    tinker_decode_options opts = TINKER_DECODE_OPTIONS_INIT;
    opts.skip_special = !o->n_stop;
    ok = ok && e->stream && e->sequences;
    for (size_t i = 0; ok && i < e->n; i++) {
        e->sequences[i].offset = offset;
        e->sequences[i].decoder = tinker_decoder_new(o->from.base->tokenizer, &opts, NULL);
        ok = e->sequences[i].decoder != NULL;
    }
    if (ok && o->anthropic) {
        struct buf b;
        buf_init(&b, 1 << 16);
        anthropic_put_start(o, &b, e->n_prompt);
        write_events(e, &b);
    }
    /* The prompt is the first event of every sequence; nobody else writes yet. */
    tinker_text prompt = TINKER_TEXT_INIT;
    if (ok && o->echo)
        ok = tinker_tokenizer_decode(o->from.base->tokenizer, o->prompts[0].tokens, e->n_prompt,
                                     NULL, &prompt, NULL) == TINKER_OK;
    for (size_t i = 0; ok && o->echo && i < e->n; i++)
        send_piece(e, i, prompt.s ? prompt.s : "", prompt.n, NULL);
    tinker_text_clear(&prompt);
    if (ok) {
        *stream = e->stream;
        return &e->observer;
    }
    /* Not complete: drop the reader's reference, then free what there is.  The stream has two
     * references: that of the listener, which never got it, and ours. */
    stream_unref(e->stream);
    if (e->stream && e->o) {
        openai_events_free(&e->observer);
    } else {
        stream_unref(e->stream);
        openai_free(e->o);
        free(e->sequences);
        free(e);
    }
    return NULL;
}
