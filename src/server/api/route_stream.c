/* route_stream.c - POST /api/v1/stream_sample: a sample as server-sent events while it runs.
 *
 * The request is that of asample; the response is one event for each token and each end of a
 * sequence (wire/chunk.h), then "[DONE]".  Not part of the reference protocol: client/config
 * and get_server_capabilities say that it is here.  Threads: the route on the listener's, the
 * observer on the engine's. */
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "server/api/routes.h"
#include "server/work/stream.h"
#include "server/work/submit.h"
#include "server/work/job.h"
#include "wire/chunk.h"

enum { EVENT_MAX = 1 << 20 }; /* bytes of one event */

/* One sequence. */
struct part {
    tinker_decoder *decoder; /* NULL: the model has no tokenizer */
    tinker_text text;        /* of the current token */
    int64_t n;
};

struct events {
    struct observer observer;
    struct stream *stream;
    struct part *parts;
    size_t n;
    size_t topk; /* alternatives sent with each token */
    const int32_t *top_tokens;
    const float *top_logprobs; /* of the token that comes next; top_tokens NULL: none */
    bool broken;               /* the reader left */
};

/* Write one event; a reader that left is noticed here. */
static void send_chunk(struct events *e, const struct wire_sample_chunk *c)
{
    struct buf b;
    buf_init(&b, EVENT_MAX);
    buf_puts(&b, "data: ");
    wire_put_chunk(&b, c);
    buf_puts(&b, "\n\n");
    if (!buf_ok(&b) || !stream_write(e->stream, b.data, b.len))
        e->broken = true;
    buf_clear(&b);
}

/* The alternatives of the token that comes next; borrowed until on_stream_token(). */
static void on_stream_alternatives(struct observer *observer, size_t sample, const int32_t *tokens,
                                   const float *logprobs, size_t k)
{
    struct events *e = (struct events *)observer;
    (void)sample;
    e->topk = k;
    e->top_tokens = tokens;
    e->top_logprobs = logprobs;
}

/* One event per token; non-zero stops the sequence because nobody reads it. */
static int on_stream_token(struct observer *observer, size_t sample, int32_t token, float logprob)
{
    struct events *e = (struct events *)observer;
    struct part *p = &e->parts[sample];
    p->text.n = 0;
    /* The text may be empty: the decoder holds back incomplete characters. */
    if (p->decoder)
        tinker_decoder_put(p->decoder, &token, 1, &p->text, NULL);
    const struct wire_sample_chunk c = { .kind = WIRE_CHUNK_TOKEN,
                                         .sequence = (int64_t)sample,
                                         .index = p->n++,
                                         .token = token,
                                         .logprob = logprob,
                                         .topk_tokens = e->top_tokens,
                                         .topk_logprobs = e->top_logprobs,
                                         .topk = e->top_tokens ? e->topk : 0,
                                         .text = p->text.s,
                                         .n_text = p->text.n };
    send_chunk(e, &c);
    e->top_tokens = NULL;
    return e->broken;
}

/* The end of every sequence or the failure, then [DONE].  r NULL: the sample failed. */
static void on_stream_finished(struct observer *observer, const tinker_sample *r, const char *error)
{
    struct events *e = (struct events *)observer;
    for (size_t i = 0; r && i < r->n_sequences && i < e->n; i++) {
        const tinker_sequence *q = &r->sequences[i];
        /* Tokens that the generator added without calling the observer. */
        for (size_t k = (size_t)e->parts[i].n; k < q->n; k++) {
            if (q->topk)
                on_stream_alternatives(observer, i, q->topk_tokens + k * q->topk,
                                       q->topk_logprobs + k * q->topk, q->topk);
            on_stream_token(observer, i, q->tokens[k], q->logprobs ? q->logprobs[k] : 0);
        }
        const struct wire_sample_chunk c = { .kind = WIRE_CHUNK_FINISHED,
                                             .sequence = (int64_t)i,
                                             .stop_reason = q->stop_reason,
                                             .total = (int64_t)q->n };
        send_chunk(e, &c);
    }
    if (error) {
        const struct wire_sample_chunk c = { .kind = WIRE_CHUNK_FAILED,
                                             .text = error,
                                             .n_text = strlen(error) };
        send_chunk(e, &c);
    }
    static const char done[] = "data: " WIRE_STREAM_DONE "\n\n";
    stream_write(e->stream, done, sizeof(done) - 1);
    stream_end(e->stream);
}

/* Also ends a stream whose sample never ran. */
static void stream_events_free(struct observer *observer)
{
    struct events *e = (struct events *)observer;
    stream_end(e->stream);
    stream_unref(e->stream);
    for (size_t i = 0; i < e->n; i++) {
        tinker_decoder_free(e->parts[i].decoder);
        tinker_text_clear(&e->parts[i].text);
    }
    free(e->parts);
    free(e);
}

static bool is_stream_reader_gone(const struct observer *observer)
{
    return stream_is_abandoned(((const struct events *)observer)->stream);
}

/* *stream gets the reader's reference. */
static struct observer *stream_events_new(struct server *s, tinker_tokenizer *tokenizer, size_t n,
                                          struct stream **stream)
{
    struct events *e = calloc(1, sizeof(*e));
    struct part *parts = calloc(n, sizeof(*parts));
    /* Two references: the producer's here, the reader's in *stream. */
    struct stream *made = e && parts ? stream_new(s->listener) : NULL;
    if (!made) {
        free(e);
        free(parts);
        return NULL;
    }
    *e = (struct events){ .observer = { .token = on_stream_token,
                                        .alternatives = on_stream_alternatives,
                                        .finished = on_stream_finished,
                                        .left = is_stream_reader_gone,
                                        .free = stream_events_free },
                          .stream = made,
                          .parts = parts,
                          .n = n };
    for (size_t i = 0; tokenizer && i < n; i++)
        parts[i].decoder = tinker_decoder_new(tokenizer, NULL, NULL);
    *stream = made;
    return &e->observer;
}

void route_stream_sample(struct server *s, struct request *req, struct response *res)
{
    struct sample_submission ask;
    char uuid[37];
    if (!route_read_sample(s, req, res, &ask))
        return;
    /* A stream belongs to its connection: a retry with the same number samples again, and one that
     * was cut short because its reader left is no result for anybody.  So it gets a new id. */
    rand_uuid(uuid);
    ask.id = uuid;
    /* Options whose results a stream has no event for. */
    const struct wire_sample_request *r = &ask.job->sample;
    const char *untold = r->prompt_alt_tokens_k.has && r->prompt_alt_tokens_k.value
                             ? "prompt_alt_tokens_k"
                         : r->target_prompt_logprobs ? "target_prompt_logprobs"
                                                     : NULL;
    if (untold) {
        job_free(ask.job);
        response_error(res, 400, "%s is not supported in streams; use asample", untold);
        return;
    }
    ask.job->observer = stream_events_new(s, ask.base->tokenizer,
                                          (size_t)ask.job->sample.num_samples, &res->stream);
    if (!ask.job->observer) {
        job_free(ask.job);
        response_no_memory(res);
        return;
    }
    int status = submit_sample(s, req->user, ask.session, ask.base, ask.job, ask.id);
    if (status != SUBMIT_OK) { /* the job and the producer's side of the stream are gone */
        stream_unref(res->stream);
        res->stream = NULL;
        route_submitted(s, res, status, ask.id, NULL, NULL);
        return;
    }
    res->content_type = "text/event-stream";
    response_header(res, "Cache-Control", "no-cache");
}
