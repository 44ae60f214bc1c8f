/* sample_stream.c - a sample whose tokens arrive while it is made (server-sent events).
 *
 * The loop thread decodes events and appends them to a bounded list; the user's thread takes
 * them.  One HTTP exchange, no retry: what was read cannot be read again. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "client/call.h"
#include "client/sampler.h"
#include "http/sse.h"
#include "wire/chunk.h"

#define CONTAINER(p, type, member) ((type *)(void *)((char *)(p)-offsetof(type, member)))

enum { EVENT_BYTES_MAX = 1 << 20, UNREAD_MAX = 1 << 20 };

struct tinker_stream {
    atomic_int refs; /* the user's and the operation's */
    tinker_future *future;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* the lock: */
    tinker_stream_event *events; /* from `taken` on they are unread */
    size_t n, taken, cap;
    bool ended;
    tinker_error err; /* why it ended; TINKER_OK: as it should */
};

struct stream_op {
    struct op op;
    tinker_sampler *sampler;   /* a reference */
    struct tinker_stream *out; /* a reference */
    struct buf body;
    struct call call;
    struct sse sse;
    struct arena scratch; /* of one event */
    tinker_error bad;     /* of an event; TINKER_OK: none */
    size_t n_finished, n_sequences;
    bool complete; /* [DONE] was seen */
};

/* Quiet for so long only while a training step runs before the sample. */
static const struct call_spec stream_spec = { "stream_sample", "POST", POOL_SAMPLE, 600000,
                                              "600",           0,      false,       false };

static void stream_unref(struct tinker_stream *st)
{
    if (!st || atomic_fetch_sub_explicit(&st->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_cond_destroy(&st->cond);
    pthread_mutex_destroy(&st->lock);
    free(st->events);
    free(st);
}

/* ---- the loop's side ------------------------------------------------------------------- */

static bool grow_locked(struct tinker_stream *st)
{
    if (st->taken > 0 && st->taken == st->n)
        st->n = st->taken = 0;
    if (st->n < st->cap)
        return true;
    if (st->n - st->taken >= UNREAD_MAX)
        return false;
    size_t cap = st->cap ? 2 * st->cap : 64;
    tinker_stream_event *v = realloc(st->events, cap * sizeof(*v));
    if (!v)
        return false;
    st->events = v;
    st->cap = cap;
    return true;
}

static bool push(struct tinker_stream *st, const tinker_stream_event *e)
{
    pthread_mutex_lock(&st->lock);
    bool ok = grow_locked(st);
    if (ok)
        st->events[st->n++] = *e;
    pthread_cond_signal(&st->cond);
    pthread_mutex_unlock(&st->lock);
    return ok;
}

static void end(struct tinker_stream *st, const tinker_error *err)
{
    pthread_mutex_lock(&st->lock);
    if (!st->ended && err)
        st->err = *err;
    st->ended = true;
    pthread_cond_signal(&st->cond);
    pthread_mutex_unlock(&st->lock);
}

static bool take_chunk(struct stream_op *o, const struct wire_sample_chunk *c)
{
    if (c->kind == WIRE_CHUNK_FAILED) {
        err_set(&o->bad, TINKER_EREQUEST, "%.*s", (int)(c->n_text < 300 ? c->n_text : 300),
                c->text ? c->text : "");
        return false;
    }
    const tinker_stream_event e = { .kind = c->kind == WIRE_CHUNK_TOKEN ? TINKER_STREAM_TOKEN
                                                                        : TINKER_STREAM_FINISHED,
                                    .sequence = (size_t)c->sequence,
                                    .token = c->token,
                                    .logprob = c->logprob,
                                    .stop_reason = c->stop_reason };
    if ((size_t)c->sequence >= o->n_sequences) {
        err_set(&o->bad, TINKER_EPROTOCOL, "the stream has a sequence %lld of %zu",
                (long long)c->sequence, o->n_sequences);
        return false;
    }
    if (!push(o->out, &e)) {
        err_set(&o->bad, TINKER_ENOMEM, "the stream has more unread tokens than there is room for");
        return false;
    }
    return true;
}

static bool on_event(void *state, const struct sse_event *e)
{
    struct stream_op *o = state;
    struct wire_sample_chunk c;
    if (strcmp(e->data, WIRE_STREAM_DONE) == 0) {
        o->complete = true;
        return true;
    }
    tinker_status s = wire_read_chunk(e->data, e->n, &o->scratch, &c, &o->bad);
    bool ok = s == TINKER_OK && take_chunk(o, &c);
    arena_clear(&o->scratch);
    return ok;
}

static bool on_data(struct http_request *r, const void *p, size_t n)
{
    struct stream_op *o = CONTAINER(CONTAINER(r, struct call, http), struct stream_op, call);
    tinker_error err;
    if (sse_feed(&o->sse, p, n, &err) == TINKER_OK)
        return true;
    if (o->bad.status == TINKER_OK)
        o->bad = err;
    return false;
}

static void on_done(struct call *c)
{
    struct stream_op *o = CONTAINER(c, struct stream_op, call);
    tinker_error err = c->err;
    if (o->bad.status != TINKER_OK)
        err = o->bad;
    else if (c->outcome == CALL_OK && !o->complete)
        err_set(&err, TINKER_EPROTOCOL, "the stream ended in the middle");
    else if (c->outcome == CALL_OK) {
        end(o->out, NULL);
        op_succeed(&o->op);
        return;
    }
    op_note_response(&o->op, c);
    end(o->out, &err);
    op_fail(&o->op, &err);
}

static void stream_start(struct op *op)
{
    struct stream_op *o = (struct stream_op *)op; /* first member */
    struct call *c = &o->call;
    c->holder = op->holder;
    c->op = op;
    c->spec = &stream_spec;
    c->path = "api/v1/stream_sample";
    c->body = o->body.data;
    c->body_len = o->body.len;
    c->accept = "text/event-stream";
    c->http.on_data = on_data;
    c->done = on_done;
    call_start(c);
}

static void stream_destroy(struct op *op)
{
    struct stream_op *o = (struct stream_op *)op;
    call_clear(&o->call);
    buf_clear(&o->body);
    sse_clear(&o->sse);
    arena_clear(&o->scratch);
    sampler_unref(o->sampler);
    stream_unref(o->out);
    free(o);
}

static void stream_abandon(struct op *op)
{
    struct stream_op *o = (struct stream_op *)op;
    tinker_error err;
    err_set(&err, TINKER_ECANCELED, "the stream was cancelled");
    call_cancel(&o->call);
    end(o->out, &err);
    op_destroy(op);
}

static const struct op_class stream_class = { "stream_sample", stream_start, stream_abandon,
                                              stream_destroy };

/* ---- the user's side ------------------------------------------------------------------- */

static struct stream_op *make(tinker_sampler *s, size_t n_sequences, tinker_error *err)
{
    struct stream_op *o = calloc(1, sizeof(*o));
    struct tinker_stream *st = o ? calloc(1, sizeof(*st)) : NULL;
    if (!st || future_cond_init(&st->cond) != 0) {
        free(st);
        free(o);
        err_nomem(err, "stream");
        return NULL;
    }
    pthread_mutex_init(&st->lock, NULL);
    atomic_init(&st->refs, 2);
    o->out = st;
    o->sampler = s;
    o->n_sequences = n_sequences;
    sampler_ref(s);
    sse_init(&o->sse, EVENT_BYTES_MAX, on_event, o);
    arena_init(&o->scratch, 4 * EVENT_BYTES_MAX);
    buf_init(&o->body, SIZE_MAX / 4);
    return o;
}

tinker_stream *tinker_sampler_stream(tinker_sampler *s, const tinker_model_input *prompt,
                                     const tinker_sampling_params *params,
                                     const tinker_sample_options *opts, tinker_error *err)
{
    struct sample_request r;
    const struct wire_opt_bool *offered = &s->holder->server.stream_sample;
    if (sample_check(&r, prompt, params, opts, err) != TINKER_OK)
        return NULL;
    if (!offered->has || !offered->value) {
        err_set(err, TINKER_ESTATE, "this service does not offer streams of samples");
        return NULL;
    }
    struct stream_op *o = make(s, r.opts.num_samples, err);
    if (!o)
        return NULL;
    struct tinker_stream *st = o->out;
    if (sample_encode(s, &r, false, &o->body, err) == TINKER_OK)
        st->future = op_submit(&o->op, &stream_class, s->holder, RESULT_NONE, err);
    if (st->future)
        return st;
    stream_destroy(&o->op);
    stream_unref(st);
    return NULL;
}

/* The next unread event, or the end; false: nothing yet. */
static bool take_locked(struct tinker_stream *st, tinker_stream_event *out, tinker_status *status)
{
    if (st->taken < st->n) {
        *out = st->events[st->taken++];
        *status = TINKER_OK;
        return true;
    }
    *out = (tinker_stream_event){ .kind = TINKER_STREAM_END };
    *status = st->err.status;
    return st->ended;
}

tinker_status tinker_stream_next(tinker_stream *st, int64_t timeout_ms, tinker_stream_event *out,
                                 tinker_error *err)
{
    int64_t deadline = future_deadline_ms(timeout_ms);
    tinker_status s = TINKER_OK;
    pthread_mutex_lock(&st->lock);
    bool found = take_locked(st, out, &s), may = timeout_ms != 0;
    if (!found && may) {
        tinker_status blocked = runtime_may_block("waiting for a stream", err);
        if (blocked != TINKER_OK) {
            pthread_mutex_unlock(&st->lock);
            return blocked;
        }
    }
    while (!found && may) {
        may = future_cond_wait_on(&st->cond, &st->lock, deadline);
        found = take_locked(st, out, &s);
    }
    pthread_mutex_unlock(&st->lock);
    if (!found)
        return err_set(err, TINKER_ETIMEDOUT, "no token within %lld ms; the stream goes on",
                       (long long)timeout_ms);
    if (s != TINKER_OK && err)
        *err = st->err;
    return s;
}

void tinker_stream_free(tinker_stream *st)
{
    if (!st)
        return;
    tinker_future_cancel(st->future);
    tinker_future_free(st->future);
    stream_unref(st);
}
