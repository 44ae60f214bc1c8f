/* stream_op.c - a sample whose tokens arrive while it is made (server-sent events).
 *
 *   permit (whole stream) -> dispatch permits -> stream_sample
 *     429, 402: the account pauses, then the same request again
 *     the first event: dispatch permits are given back
 *   connection errors, 408, 409, 5xx before the first event: a new attempt, after a delay
 *
 * After the first event only a sample that comes out the same again (a seed, or temperature
 * 0) is tried again: what was told already is compared and left out.  Of any other the
 * program has read tokens, and another attempt would make others.
 *
 * [DONE] is the end, whatever the server does with the connection: the future completes, and
 * the operation lingers only to read the end of the response, so that the connection can be
 * used again.  Runs on the loop thread, except the user's side. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/stream.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/retry_policy.h"
#include "client/call/call.h"
#include "client/sampling/sample_limits.h"
#include "client/sampling/sample_retry.h"
#include "client/observe/instrument.h"
#include "client/sampling/sampling_client.h"
#include "client/sampling/stream.h"
#include "base/map.h"
#include "http/sse.h"
#include "wire/check.h"
#include "wire/chunk.h"

enum { EVENT_BYTES_MAX = 1 << 20, LINGER_MS = 1000, SEQUENCES_TOLD = 1 << 16 };

/* One sequence: what the program was told of it, and what this attempt has brought. Hashes stand
 * for the tokens, so that a long stream costs no memory. */
struct told_sequence {
    size_t n, n_again;
    uint64_t hash, hash_again; /* of the tokens */
    bool finished;
};

struct stream_op {
    struct operation op;
    tinker_sampler *sampler;    /* a reference */
    struct sample_retry *group; /* a reference, once started */
    struct stream_list *list;   /* a reference */
    struct buf body;
    struct call call;
    struct sample_permits permits;
    struct budget_wait permit; /* of the retry group */
    struct timer timer;        /* before another attempt */
    struct timer accepted;     /* the first event is there */
    struct timer over;         /* the last event is there; then: enough of lingering */
    tinker_retry_options retry;
    bool use_retry, entered;
    int failures;
    int64_t started_ns, attempt_ns;
    /* of the attempt: */
    struct sse sse;
    struct arena scratch; /* of one event */
    tinker_error bad;     /* of an event; TINKER_OK: none */
    size_t n_events, n_sequences;
    bool complete; /* [DONE] was seen */
    struct told_sequence
        *told; /* of each sequence; NULL: another attempt would make other tokens */
};

/* Quiet for so long only while a training step runs before the sample. */
static const struct call_spec stream_spec = {
    .name = "stream_sample",
    .method = "POST",
    .pool = POOL_SAMPLE,
    .timeout_ms = 600000,
    .timeout_text = "600",
};

static struct loop *stream_loop(const struct stream_op *o)
{
    return o->op.session->rt->loop;
}

/* ---- ends ------------------------------------------------------------------------------- */

/* Permits go back when the sample is complete, not when the connection closes. */
static void give_permits(struct stream_op *o, bool completed)
{
    sample_permits_give(&o->permits);
    if (o->entered)
        sample_retry_leave(o->group, completed);
    o->entered = false;
    sample_retry_release(o->group, &o->permit);
}

/* Stop everything under way. Harmless when repeated. */
static void stop_stream(struct stream_op *o, bool completed)
{
    call_cancel(&o->call);
    loop_disarm(stream_loop(o), &o->timer);
    loop_disarm(stream_loop(o), &o->accepted);
    loop_disarm(stream_loop(o), &o->over);
    give_permits(o, completed);
}

static void stream_destroy(struct operation *op)
{
    struct stream_op *o = (struct stream_op *)op; /* first member */
    call_clear(&o->call);
    buf_clear(&o->body);
    sse_clear(&o->sse);
    arena_clear(&o->scratch);
    free(o->told);
    sample_retry_unref(o->group);
    sampling_client_unref(o->sampler);
    stream_list_unref(o->list);
    free(o);
}

/* Canceled, or done with lingering. The reader sees what came before; then the future says why it
 * ended, see tinker_stream_next(). */
static void stream_abandon(struct operation *op)
{
    struct stream_op *o = (struct stream_op *)op;
    tinker_error err;
    err_set(&err, TINKER_ECANCELED, "the stream was canceled");
    stop_stream(o, false);
    stream_list_end(o->list, &err);
    operation_destroy(op);
}

/* The end without another attempt: told to the reader, behind the events that he has not read,
 * and to the future. */
static void fail_stream(struct stream_op *o, const tinker_error *err)
{
    tinker_error copy = *err; /* it may live in the call */
    stop_stream(o, false);
    stream_list_end(o->list, &copy);
    operation_fail(&o->op, &copy);
}

/* ---- events ----------------------------------------------------------------------------- */

/* Was this event told by an attempt before? Then it is compared and left out. *other: it was
 * something else, so the sample did not come out the same. Tokens are compared where the earlier
 * attempt broke off: until then the running hashes need not agree, at that point they must.
 *
 *   token   k <= n:  told; at k = n both hashes must be equal
 *   token   k > n:   new, unless the sequence had finished
 *   finish:          told if it had finished; wrong if fewer tokens came than before */
static bool was_told_before(struct stream_op *o, const struct wire_sample_chunk *c, bool *other)
{
    *other = false;
    if (!o->told)
        return false;
    struct told_sequence *t = &o->told[c->sequence];
    if (c->kind != WIRE_CHUNK_TOKEN) {
        bool known = t->finished;
        *other = t->n_again < t->n;
        t->finished = true;
        return known;
    }
    t->n_again++;
    t->hash_again = hash_bytes(&c->token, sizeof(c->token), t->hash_again);
    bool again = t->n_again <= t->n;
    *other = again ? t->n_again == t->n && t->hash_again != t->hash : t->finished;
    if (!again) {
        t->n = t->n_again;
        t->hash = t->hash_again;
    }
    return again;
}

/* One event of the service to the reader. false: the stream is broken for good, and o->bad says
 * why. */
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
                                    .stop_reason = c->stop_reason,
                                    .topk_tokens = c->topk_tokens,
                                    .topk_logprobs = c->topk_logprobs,
                                    .topk = c->topk };
    if ((size_t)c->sequence >= o->n_sequences) {
        err_set(&o->bad, TINKER_EPROTOCOL, "the stream has a sequence %lld of %zu",
                (long long)c->sequence, o->n_sequences);
        return false;
    }
    bool other, told = was_told_before(o, c, &other);
    if (other) {
        err_set(&o->bad, TINKER_EPROTOCOL,
                "the stream was cut, and came again with other tokens in sequence %lld",
                (long long)c->sequence);
        return false;
    }
    if (!told && !stream_list_push(o->list, &e)) {
        err_set(&o->bad, TINKER_ENOMEM, "the stream has more unread tokens than there is room for");
        return false;
    }
    return true;
}

/* The first event shows that the service has taken the request: permits of the account are for
 * requests being submitted. */
static void on_accepted(struct timer *t)
{
    sample_permits_give(&container_of(t, struct stream_op, accepted)->permits);
}

static void on_stream_over(struct timer *t);

/* One server-sent event, from inside libcurl: nothing may be sent from here, so what would lead
 * to a new request is put off with a timer of 0 ms. */
static bool on_sse_event(void *state, const struct sse_event *e)
{
    struct stream_op *o = state;
    struct wire_sample_chunk c;
    if (o->complete) /* nothing can follow */
        return true;
    if (o->n_events++ == 0) { /* not now: whoever gets the permits sends, and curl is busy */
        o->accepted.fire = on_accepted;
        loop_arm(stream_loop(o), &o->accepted, 0);
    }
    if (strcmp(e->data, WIRE_STREAM_DONE) == 0) {
        o->complete = true;
        o->over.fire = on_stream_over; /* not now, as above */
        loop_arm(stream_loop(o), &o->over, 0);
        return true;
    }
    tinker_status s = wire_read_chunk(e->data, e->n, &o->scratch, &c, &o->bad);
    bool ok = s == TINKER_OK && take_chunk(o, &c);
    arena_clear(&o->scratch);
    return ok;
}

/* Bytes of the response body; false ends the transfer. Behind [DONE] they are ignored. */
static bool on_stream_data(struct http_request *r, const void *p, size_t n)
{
    struct stream_op *o = container_of(container_of(r, struct call, http), struct stream_op, call);
    tinker_error err;
    if (o->complete || sse_feed(&o->sse, p, n, &err) == TINKER_OK)
        return true;
    if (o->bad.status == TINKER_OK)
        o->bad = err;
    return false;
}

/* ---- attempts ---------------------------------------------------------------------------- */

/* One step of an attempt to hooks and metrics; failures counts this attempt once it has failed. */
static void report_stream_attempt(const struct stream_op *o, enum attempt_event step,
                                  int64_t delay_ms, const tinker_error *err)
{
    struct attempt a = { .layer = "sample",
                         .operation = "stream_sample",
                         .number = o->failures + (step == ATTEMPT_START || !err),
                         .started_ns = o->attempt_ns,
                         .first_ns = o->started_ns,
                         .delay_ms = delay_ms,
                         .err = err,
                         .op = &o->op };
    if (o->use_retry)
        attempt_event(o->op.session, step, &a);
}

/* A new request from the beginning. What was told stays known; what this attempt brings is
 * counted anew. */
static void start_stream_attempt(struct stream_op *o)
{
    o->attempt_ns = loop_now_ns(stream_loop(o));
    o->n_events = 0;
    for (size_t i = 0; o->told && i < o->n_sequences; i++)
        o->told[i].n_again = o->told[i].hash_again = 0;
    sse_clear(&o->sse);
    sse_init(&o->sse, EVENT_BYTES_MAX, on_sse_event, o);
    report_stream_attempt(o, ATTEMPT_START, 0, NULL);
    sample_permits_take(&o->permits);
}

static void on_stream_retry(struct timer *t)
{
    start_stream_attempt(container_of(t, struct stream_op, timer));
}

/* Could another attempt do better, and may it? Not when the program has read tokens that would
 * not come again (told is NULL), and not when an event made no sense: it would make none the next
 * time either. */
static bool may_retry_stream(const struct stream_op *o, bool broken)
{
    const struct call *c = &o->call;
    if (!o->use_retry || (o->n_events > 0 && !o->told) || o->bad.status != TINKER_OK ||
        operation_is_spent(&o->op))
        return false;
    const tinker_retry_options *opts = &o->group->opts;
    int64_t elapsed_ms = (loop_now_ns(stream_loop(o)) - o->started_ns) / 1000000;
    if (opts->no_retries || (opts->max_retries >= 0 && o->failures > opts->max_retries) ||
        elapsed_ms >= opts->progress_ms)
        return false;
    return broken || c->outcome == CALL_CONNECT || c->outcome == CALL_TIMEOUT ||
           (c->outcome == CALL_STATUS && retry_status_is(c->err.http_status, RETRY_ON_TRY));
}

/* 429 and 402 pause the account: as in sample_op.c. */
static bool on_stream_status(struct call *c, int status)
{
    struct stream_op *o = container_of(c, struct stream_op, call);
    if (operation_is_spent(&o->op))
        return false;
    if (!retry_status_is(status, RETRY_RATE_LIMIT) &&
        !(retry_status_is(status, RETRY_BILLING) &&
          session_billing_pause(o->op.session, c->err.message)))
        return false;
    sample_permits_pause(&o->permits);
    return true;
}

/* All events are there. The future completes now; the reader still has what he has not read. */
static void complete_stream(struct stream_op *o)
{
    report_stream_attempt(o, ATTEMPT_STOP, 0, NULL);
    give_permits(o, true);
    stream_list_end(o->list, NULL);
    operation_complete(&o->op, NULL);
}

/* The server keeps the response open: the connection is given up. */
static void on_linger_end(struct timer *t)
{
    stream_abandon(&container_of(t, struct stream_op, over)->op);
}

/* The last event is there and the response has not ended with it. The operation lingers for its
 * end, detached from the future, so that the connection can be used again. */
static void on_stream_over(struct timer *t)
{
    struct stream_op *o = container_of(t, struct stream_op, over);
    call_settle(&o->call);
    o->op.lingers = true;
    complete_stream(o);
    o->over.fire = on_linger_end;
    loop_arm(stream_loop(o), &o->over, LINGER_MS);
}

/* The response has ended, well or not. The order of the questions matters: a linger, a pause, a
 * bad event, a missing end, completion, an error of the call. */
static void on_stream_response(struct call *c)
{
    struct stream_op *o = container_of(c, struct stream_op, call);
    if (o->op.lingers) {
        stream_abandon(&o->op);
        return;
    }
    tinker_error err = c->err;
    bool broken = c->outcome == CALL_OK && !o->complete;
    if (c->outcome == CALL_CAUGHT) {
        sample_permits_wait_pause(&o->permits);
        return;
    }
    if (o->bad.status != TINKER_OK)
        err = o->bad;
    else if (broken)
        err_set(&err, TINKER_EPROTOCOL, "the stream ended in the middle");
    else if (o->complete) { /* how the connection ends does not matter any more */
        complete_stream(o);
        stop_stream(o, true);
        operation_destroy(&o->op);
        return;
    }
    operation_note_response(&o->op, c);
    /* An attempt failed. broken: a response without an end, which is worth another attempt like a
     * lost connection. */
    struct runtime *rt = o->op.session->rt;
    sample_permits_give(&o->permits);
    o->failures++;
    bool again = may_retry_stream(o, broken);
    if (o->use_retry)
        sample_retry_failed(o->group, &err);
    if (!again) {
        report_stream_attempt(o, ATTEMPT_FAILED, 0, &err);
        fail_stream(o, &err);
        return;
    }
    int64_t delay_ms = retry_sample_delay_ms(&o->group->opts, o->failures, rt->uniform(rt));
    report_stream_attempt(o, ATTEMPT_RETRY, delay_ms, &err);
    o->timer.fire = on_stream_retry;
    loop_arm(rt->loop, &o->timer, delay_ms);
}

/* All permits are held: send. Events arrive through on_stream_data() while the call runs. */
static void send_stream(struct sample_permits *d)
{
    struct stream_op *o = container_of(d, struct stream_op, permits);
    struct call *c = &o->call;
    c->session = o->op.session;
    c->op = &o->op;
    c->part = o->failures;
    c->spec = &stream_spec;
    c->path = "api/v1/stream_sample";
    c->body = o->body.data;
    c->body_len = o->body.len;
    c->accept = "text/event-stream";
    c->extra[0] = (struct http_header){ "X-Tinker-Sampling-Backpressure", "1", false };
    c->n_extra = 1;
    c->http.on_data = on_stream_data;
    c->catch = on_stream_status;
    c->done = on_stream_response;
    call_start(c);
}

/* The stream has its place in the retry group until it ends. */
static void begin_stream(struct stream_op *o)
{
    o->started_ns = loop_now_ns(stream_loop(o));
    if (o->group)
        sample_retry_enter(o->group);
    o->entered = o->group != NULL;
    start_stream_attempt(o);
}

static void on_stream_permit(struct budget_wait *w)
{
    struct stream_op *o = container_of(w, struct stream_op, permit);
    o->group->waiting--;
    begin_stream(o);
}

/* As sample_start(). */
static void stream_start(struct operation *op)
{
    struct stream_op *o = (struct stream_op *)op;
    tinker_error err;
    o->permits.session = op->session;
    o->permits.go = send_stream;
    if (!o->use_retry) {
        begin_stream(o);
        return;
    }
    o->group = sample_retry_ref(op->session, o->sampler->id, &o->retry, &err);
    if (!o->group) {
        fail_stream(o, &err);
        return;
    }
    o->permit.granted = on_stream_permit;
    if (budget_take(&o->group->permits, &o->permit, 1))
        begin_stream(o);
    else
        o->group->waiting++;
}

static const struct operation_class stream_class = {
    .name = "stream_sample",
    .start = stream_start,
    .abandon = stream_abandon,
    .destroy = stream_destroy,
};

/* ---- the user's side --------------------------------------------------------------------- */

/* Only a sample that comes out the same again, with a seed or at temperature 0, remembers what
 * was told; `told` is NULL for others, and for more sequences than anybody asks for. */
static struct stream_op *stream_op_new(tinker_sampler *s, const struct sample_request *r,
                                       tinker_error *err)
{
    struct stream_op *o = calloc(1, sizeof(*o));
    struct stream_list *list = o ? stream_list_new() : NULL;
    bool repeatable =
        (r->params.has_seed || r->params.temperature == 0) && r->opts.num_samples <= SEQUENCES_TOLD;
    if (list && repeatable)
        o->told = calloc(r->opts.num_samples, sizeof(*o->told));
    if (!list || (repeatable && !o->told)) {
        stream_list_unref(list);
        free(o);
        err_nomem(err, "stream");
        return NULL;
    }
    o->list = list;
    o->sampler = s;
    o->n_sequences = r->opts.num_samples;
    o->permits.bytes = (int64_t)wire_prompt_bytes(r->prompt);
    o->use_retry = !s->session->server.sample_no_retries;
    sampling_client_ref(s);
    pthread_mutex_lock(&s->base->lock);
    o->retry = s->base->retry;
    pthread_mutex_unlock(&s->base->lock);
    sse_init(&o->sse, EVENT_BYTES_MAX, on_sse_event, o);
    arena_init(&o->scratch, 4 * EVENT_BYTES_MAX);
    buf_init(&o->body, SIZE_MAX / 4);
    return o;
}

tinker_stream *tinker_sampler_stream(tinker_sampler *s, const tinker_model_input *prompt,
                                     const tinker_sampling_params *params,
                                     const tinker_sample_options *opts, tinker_error *err)
{
    struct sample_request r;
    const struct wire_opt_bool *offered = &s->session->server.stream_sample;
    if (sample_check(&r, prompt, params, opts, err) != TINKER_OK)
        return NULL;
    const char *missing = sample_prompt_option(&r);
    if (missing) {
        err_set(err, TINKER_EINVAL, "%s: no stream carries it; tinker_sampler_sample() does",
                missing);
        return NULL;
    }
    if (!offered->has || !offered->value) {
        err_set(err, TINKER_ESTATE, "this service does not offer streams of samples");
        return NULL;
    }
    struct tinker_stream *st = calloc(1, sizeof(*st));
    if (!st) {
        err_nomem(err, "stream");
        return NULL;
    }
    struct stream_op *o = stream_op_new(s, &r, err);
    if (o) {
        st->list = o->list;
        stream_list_ref(st->list);
        if (sample_encode(s, &r, false, &o->body, err) == TINKER_OK)
            st->future =
                operation_submit(&o->op, &stream_class, s->session, RESULT_NONE, s->options, err);
        if (st->future)
            return st;
        stream_destroy(&o->op);
        stream_list_unref(st->list);
    }
    free(st);
    return NULL;
}

/* First what is there, without asking whether waiting is allowed: a callback may read what has
 * come. The list knows how the stream ended, the future why it was canceled; when both happen at
 * once, the future is right. */
tinker_status tinker_stream_next(tinker_stream *st, int64_t timeout_ms, tinker_stream_event *out,
                                 tinker_error *err)
{
    tinker_error mine;
    tinker_status s = stream_list_next(st->list, 0, out, &mine);
    if (s == TINKER_ETIMEDOUT && timeout_ms != 0 && !tinker_future_done(st->future)) {
        s = runtime_may_block("waiting for a stream", &mine);
        if (s == TINKER_OK)
            s = stream_list_next(st->list, future_deadline_ms(timeout_ms), out, &mine);
    }
    bool over = tinker_future_done(st->future);
    if (s == TINKER_ETIMEDOUT && over) /* just now: what came before is read before */
        s = stream_list_next(st->list, 0, out, &mine);
    /* Canceled, or its deadline passed: the future says which, and before the list ends. */
    if ((s == TINKER_ECANCELED || s == TINKER_ETIMEDOUT) && over)
        s = tinker_future_wait(st->future, 0, &mine);
    if (s != TINKER_OK && err)
        *err = mine;
    return s;
}

int tinker_stream_fd(tinker_stream *st, tinker_error *err)
{
    int fd = stream_list_fd(st->list);
    if (fd < 0)
        err_errno(err, "open", "an event descriptor");
    return fd;
}

const tinker_future *tinker_stream_future(const tinker_stream *st)
{
    return st->future;
}

void tinker_stream_cancel(tinker_stream *st)
{
    tinker_future_cancel(st->future);
}

void tinker_stream_set_deadline(tinker_stream *st, int64_t timeout_ms)
{
    tinker_future_set_deadline(st->future, timeout_ms);
}

void tinker_stream_free(tinker_stream *st)
{
    if (!st)
        return;
    tinker_future_cancel(st->future);
    tinker_future_free(st->future);
    stream_list_unref(st->list);
    free(st);
}
