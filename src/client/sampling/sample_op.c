/* sample_op.c - one logical sample: permits, dispatch, polling, and trying again.
 *
 *   permit (whole sample) -> dispatch permits -> pause of the account -> asample
 *     429, 402: the account pauses, then the same request again
 *     accepted: dispatch permits are given back -> poll -> result
 *   lost promise, connection errors, 5xx: a new attempt with a new seq_id, after a delay
 *
 * Runs on the loop thread, except the submit functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/retry_policy.h"
#include "client/call/call.h"
#include "client/sampling/sample_limits.h"
#include "client/sampling/sample_retry.h"
#include "client/sampling/helper.h"
#include "client/observe/instrument.h"
#include "client/call/poll.h"
#include "client/rest/rest_op.h"
#include "client/future/result.h"
#include "client/sampling/sampling_client.h"
#include "client/session/service.h"
#include "wire/check.h"
#include "wire/wire.h"

/* One logical sample. Its attempts follow each other: there is one call, which first carries the
 * dispatch and then the polling. */
struct sample_op {
    struct operation op;
    tinker_sampler *sampler;    /* a reference */
    struct sample_retry *group; /* a reference, once started */
    struct buf body;            /* before and after the seq_id, see split */
    size_t split;
    struct buf sent; /* the body with its seq_id */
    bool use_retry, entered;
    tinker_retry_options retry;
    int failures;
    int64_t started_ns, attempt_ns;
    struct budget_wait permit; /* for the whole sample */
    struct sample_permits permits;
    struct timer timer;     /* before another attempt */
    struct timer stuck;     /* the progress deadline */
    const char *const *ids; /* of the sequences, in the future's arena; NULL: none were told */
    size_t n_ids;
    struct poll poll; /* its call also carries the dispatch: one at a time, half the memory */
};

static const struct call_spec asample_spec = {
    .name = "asample",
    .method = "POST",
    .pool = POOL_SAMPLE,
    .outer = true,
};

static void start_sample_attempt(struct sample_op *s);

static struct loop *sample_loop(const struct sample_op *s)
{
    return s->op.session->rt->loop;
}

/* ---- ends --------------------------------------------------------------------------- */

/* Stop whatever is under way and give back everything that is held. Harmless when repeated. */
static void stop_sample(struct sample_op *s, bool completed)
{
    call_cancel(&s->poll.call);
    poll_cancel(&s->poll);
    loop_disarm(sample_loop(s), &s->timer);
    loop_disarm(sample_loop(s), &s->stuck);
    sample_permits_give(&s->permits);
    if (s->entered)
        sample_retry_leave(s->group, completed);
    s->entered = false;
    sample_retry_release(s->group, &s->permit);
}

/* Nothing is under way any more. */
static void sample_destroy(struct operation *op)
{
    struct sample_op *s = (struct sample_op *)op; /* first member */
    poll_clear(&s->poll);
    buf_clear(&s->body);
    buf_clear(&s->sent);
    sample_retry_unref(s->group);
    sampling_client_unref(s->sampler);
    free(s);
}

static const struct rest_kind cancel_kind = { REST_CLASS("cancel_future"),
                                              { "cancel_future", "POST", POOL_RETRIEVE, 30000, "30",
                                                0, true, false },
                                              RESULT_NONE,
                                              NULL,
                                              NULL,
                                              false };

/* The sample is no longer wanted: tell the service, so that it stops computing. Fire and
 * forget: should the service not hear of it, it samples in vain and nothing else happens. Only
 * after acceptance, when there is an id to cancel. */
static void cancel_on_service(struct sample_op *s)
{
    struct session *h = s->op.session;
    struct json_writer w;
    struct buf body;
    if (!s->poll.active || !h->cancels || h->closed)
        return;
    buf_init(&body, 1 << 12);
    json_writer_init(&w, &body);
    json_put_begin_object(&w);
    json_put_key(&w, "request_id");
    json_put_string(&w, s->poll.request_id);
    json_put_end_object(&w);
    rest_tell(h, &cancel_kind, strdup("api/v1/cancel_future"), &body);
}

/* Canceled by the user, or its deadline has passed. */
static void sample_abandon(struct operation *op)
{
    struct sample_op *s = (struct sample_op *)op;
    cancel_on_service(s);
    stop_sample(s, false);
    operation_destroy(op);
}

/* The end of the sample, without another attempt. */
static void fail_sample(struct sample_op *s, const tinker_error *err)
{
    tinker_error copy = *err; /* it may live in the call */
    stop_sample(s, false);
    operation_fail(&s->op, &copy);
}

/* ---- layer 3 -------------------------------------------------------------------------- */

/* One step of an attempt to hooks and metrics. failures: before this attempt. Without the retry
 * layer there are no attempts to speak of. */
static void report_sample_attempt(const struct sample_op *s, enum attempt_event step, int failures,
                                  int64_t delay_ms, const tinker_error *err)
{
    struct attempt a = { .layer = "sample",
                         .operation = "sample",
                         .number = failures + 1,
                         .started_ns = s->attempt_ns,
                         .first_ns = s->started_ns,
                         .delay_ms = delay_ms,
                         .err = err,
                         .op = &s->op };
    if (s->use_retry)
        attempt_event(s->op.session, step, &a);
}

static void on_sample_retry(struct timer *t)
{
    start_sample_attempt(container_of(t, struct sample_op, timer));
}

/* An attempt failed. Layer 1 (the call) and layer 2 (polling) have done their retries; this is
 * layer 3, which starts all over with a new seq_id, after an exponential delay with jitter
 * (retry_sample_delay_ms()). */
static void handle_sample_failure(struct sample_op *s, const tinker_error *err, bool retryable)
{
    sample_permits_give(&s->permits);
    s->failures++;
    /* failures counts this attempt, so max_retries 0 allows no other.  A spent deadline ends it. */
    const tinker_retry_options *o = s->group ? &s->group->opts : NULL;
    bool again = retryable && s->use_retry && !o->no_retries &&
                 (o->max_retries < 0 || s->failures <= o->max_retries) &&
                 !operation_is_spent(&s->op);
    if (s->use_retry)
        sample_retry_failed(s->group, err);
    if (!again) {
        if (s->use_retry)
            log_line(&s->op.session->log, LOG_ERROR, "sample failed: %s", err->message);
        report_sample_attempt(s, ATTEMPT_FAILED, s->failures - 1, 0, err);
        fail_sample(s, err);
        return;
    }
    struct runtime *rt = s->op.session->rt;
    int64_t delay_ms = retry_sample_delay_ms(&s->group->opts, s->failures, rt->uniform(rt));
    report_sample_attempt(s, ATTEMPT_RETRY, s->failures - 1, delay_ms, err);
    s->timer.fire = on_sample_retry;
    loop_arm(rt->loop, &s->timer, delay_ms);
}

/* The progress deadline. It is not about this sample but about all of its group: as long as any
 * of them completes, those that wait are not stuck, and the timer is armed again for the rest of
 * the time. */
static void on_stuck(struct timer *t)
{
    struct sample_op *s = container_of(t, struct sample_op, stuck);
    int64_t progress_ms = s->group->opts.progress_ms;
    int64_t idle_ms = (loop_now_ns(sample_loop(s)) - s->group->progress_ns) / 1000000;
    if (idle_ms < progress_ms) {
        loop_arm(sample_loop(s), &s->stuck, progress_ms - idle_ms);
        return;
    }
    tinker_error err;
    err_set(&err, TINKER_ECONNECT, "No progress made in %gs. Requests appear to be stuck.",
            (double)progress_ms / 1000);
    fail_sample(s, &err);
}

/* ---- results -------------------------------------------------------------------------- */

static tinker_status on_decode(struct poll *p, const char *body, size_t n, bool proto,
                               tinker_error *err)
{
    struct sample_op *s = container_of(p, struct sample_op, poll);
    return result_sample.read(s->op.future, body, n, proto, err);
}

/* A large result was read by a worker into an arena of its own: the future takes that over. */
static tinker_status adopt_sample(struct poll *p, void *out, struct arena *a, tinker_error *err)
{
    struct sample_op *s = container_of(p, struct sample_op, poll);
    (void)err;
    s->op.future->value = out;
    arena_adopt(&s->op.future->arena, a);
    return TINKER_OK;
}

static void on_sample_queue_state(struct poll *p, enum wire_queue_state state, const char *reason,
                                  bool changed)
{
    struct sample_op *s = container_of(p, struct sample_op, poll);
    queue_state_report(&s->sampler->base->watch, s->op.session, QUEUE_STATE_SAMPLING,
                       s->sampler->id, state, reason, changed);
}

/* Read the names of the sequences, which come with the acceptance and not with the result.  A
 * service that gives none, or something else there, samples all the same. */
static void read_sequence_ids(struct sample_op *s, const struct buf *body)
{
    struct wire_strings list = { 0 };
    s->ids = NULL;
    s->n_ids = 0;
    if (wire_decode_json(&wire_sample_submission, body->data ? body->data : "", body->len,
                         WIRE_LENIENT, &s->op.future->arena, &list, NULL) == TINKER_OK) {
        s->ids = list.v;
        s->n_ids = list.n;
    }
}

/* The result, or why there is none. Only a promise that the service has lost is worth another
 * attempt: other failures of polling have been retried there. */
static void on_polled(struct poll *p)
{
    struct sample_op *s = container_of(p, struct sample_op, poll);
    if (!p->ok) {
        operation_note_response(&s->op, &p->call);
        handle_sample_failure(s, &p->call.err, p->gone);
        return;
    }
    /* Nobody has the result yet: the future completes below. */
    tinker_sample *result = (tinker_sample *)s->op.future->value;
    if (result && s->n_ids && s->n_ids == result->n_sequences)
        result->sequence_ids = s->ids;
    report_sample_attempt(s, ATTEMPT_STOP, s->failures, 0, NULL);
    stop_sample(s, true);
    operation_succeed(&s->op);
}

/* ---- dispatch ------------------------------------------------------------------------- */

/* Called for an error status before the call decides about retries; true: caught, on_sent() gets
 * CALL_CAUGHT. 429 is back-pressure and 402 may be billing that catches up: the whole account
 * pauses, and the same request, with the same seq_id, goes again. That counts as no failure. */
static bool on_sample_status(struct call *c, int status)
{
    struct sample_op *s = container_of(c, struct sample_op, poll.call);
    struct session *h = s->op.session;
    if (operation_is_spent(&s->op))
        return false;
    if (!retry_status_is(status, RETRY_RATE_LIMIT) &&
        !(retry_status_is(status, RETRY_BILLING) && session_billing_pause(h, c->err.message)))
        return false;
    sample_permits_pause(&s->permits);
    return true;
}

/* The dispatch is over: paused, refused, or accepted with a promise to poll for. */
static void on_sent(struct call *c)
{
    struct sample_op *s = container_of(c, struct sample_op, poll.call);
    char id[112];
    if (c->outcome == CALL_CAUGHT) {
        sample_permits_wait_pause(&s->permits);
        return;
    }
    if (c->outcome != CALL_OK || submission_id(c, id, sizeof(id)) != TINKER_OK) {
        bool retryable =
            c->outcome == CALL_CONNECT || c->outcome == CALL_TIMEOUT ||
            (c->outcome == CALL_STATUS && retry_status_is(c->err.http_status, RETRY_ON_TRY));
        operation_note_response(&s->op, c);
        handle_sample_failure(s, &c->err, retryable);
        return;
    }
    read_sequence_ids(s, &c->http.resp.body);
    sample_permits_give(&s->permits);
    buf_clear(&s->sent); /* thousands of these may wait for their result */
    call_clear(c);
    s->poll.session = s->op.session;
    s->poll.kind = &result_sample.poll;
    s->poll.future = s->op.future;
    s->poll.started_ns = loop_now_ns(sample_loop(s)); /* as the reference: after dispatch */
    s->poll.decode = on_decode;
    s->poll.read_aside = result_sample_aside;
    s->poll.take_aside = adopt_sample;
    s->poll.queue_state = on_sample_queue_state;
    s->poll.done = on_polled;
    poll_start(&s->poll, id);
}

/* All permits are held: send. The header tells the service that this client understands back-
 * pressure. */
static void send_sample(struct sample_permits *d)
{
    struct sample_op *s = container_of(d, struct sample_op, permits);
    struct call *c = &s->poll.call;
    c->session = s->op.session;
    c->op = &s->op;
    c->part = s->failures;
    c->accept = NULL;
    c->http.small_response = true;
    c->max_response = s->poll.max_result; /* the response may be the result */
    c->spec = &asample_spec;
    c->path = "api/v1/asample";
    c->body = s->sent.data;
    c->body_len = s->sent.len;
    c->extra[0] = (struct http_header){ "X-Tinker-Sampling-Backpressure", "1", false };
    c->n_extra = 1;
    c->catch = on_sample_status;
    c->done = on_sent;
    call_start(c);
}

/* Permits of the account come after the number: requests of one sampler get permits in the order
 * of their numbers. */
static void start_sample_attempt(struct sample_op *s)
{
    s->attempt_ns = loop_now_ns(sample_loop(s));
    report_sample_attempt(s, ATTEMPT_START, s->failures, 0, NULL);
    /* The next seq_id of the client goes into the body.  A new attempt gets a new number, or the
     * service would take it for a repetition and answer with the promise that was lost. */
    char number[SHORTEST_MAX];
    buf_reset(&s->sent);
    buf_append(&s->sent, s->body.data, s->split);
    buf_append(&s->sent, number, shortest_int64(s->sampler->base->next_seq++, number));
    buf_append(&s->sent, s->body.data + s->split, s->body.len - s->split);
    if (!buf_ok(&s->sent)) {
        tinker_error err;
        err_nomem(&err, "sample");
        fail_sample(s, &err);
        return;
    }
    sample_permits_take(&s->permits);
}

/* The sample has its place in the group for as long as it takes, retries included. */
static void begin_sample(struct sample_op *s)
{
    struct session *h = s->op.session;
    s->started_ns = loop_now_ns(h->rt->loop);
    sample_retry_enter(s->group);
    s->entered = true;
    if (!s->group->opts.no_stuck_detection && h->server.sample_enable_stuck_detection) {
        s->stuck.fire = on_stuck;
        loop_arm(h->rt->loop, &s->stuck, s->group->opts.progress_ms);
    }
    start_sample_attempt(s);
}

static void on_sample_permit(struct budget_wait *w)
{
    struct sample_op *s = container_of(w, struct sample_op, permit);
    s->group->waiting--;
    begin_sample(s);
}

/* On the loop thread. Without the retry layer (sample_no_retries of the service) there is no
 * group and no permit to wait for. */
static void sample_start(struct operation *op)
{
    struct sample_op *s = (struct sample_op *)op;
    tinker_error err;
    if (!s->use_retry) {
        start_sample_attempt(s);
        return;
    }
    s->group = sample_retry_ref(op->session, s->sampler->id, &s->retry, &err);
    if (!s->group) {
        operation_fail(op, &err);
        return;
    }
    s->permit.granted = on_sample_permit;
    if (budget_take(&s->group->permits, &s->permit, 1))
        begin_sample(s);
    else
        s->group->waiting++;
}

static const struct operation_class sample_class = {
    .name = "sample",
    .start = sample_start,
    .abandon = sample_abandon,
    .destroy = sample_destroy,
};

/* ---- submitting, in the caller's thread -------------------------------------------------- */

/* Cut the body where the seq_id goes: it is known only when an attempt starts, and encoding a
 * large prompt for every attempt would be waste. The last match counts, and it cannot be inside a
 * JSON text: there the quote before the colon would be escaped. */
static tinker_status split_body(struct sample_op *s, tinker_error *err)
{
    static const char mark[] = "\"seq_id\":0";
    const char *at = NULL, *from = s->body.data;
    for (const char *p; (p = strstr(from, mark)) != NULL; from = p + 1)
        at = p;
    if (!at)
        return err_set(err, TINKER_ESTATE, "no seq_id in the encoded request");
    size_t end = (size_t)(at - s->body.data) + sizeof(mark) - 1;
    s->split = end - 1;
    memmove(s->body.data + s->split, s->body.data + end, s->body.len - end + 1);
    s->body.len--;
    return TINKER_OK;
}

tinker_future *sample_submit(tinker_sampler *sampler, const struct sample_order *order,
                             struct buf *body, tinker_error *err)
{
    struct sample_op *s = calloc(1, sizeof(*s));
    if (!s) {
        buf_clear(body);
        err_nomem(err, "sample");
        return NULL;
    }
    s->sampler = sampler;
    s->body = *body;
    s->permits = (struct sample_permits){ .session = sampler->session,
                                          .bytes = order->bytes,
                                          .go = send_sample };
    s->retry = order->retry;
    s->poll.max_result = order->max_result;
    s->use_retry = order->use_retry;
    buf_init(&s->sent, SIZE_MAX / 4);
    sampling_client_ref(sampler);
    tinker_future *f = NULL;
    if (split_body(s, err) == TINKER_OK)
        f = operation_submit(&s->op, &sample_class, sampler->session, RESULT_SAMPLE,
                             sampler->options, err);
    if (!f)
        sample_destroy(&s->op);
    return f;
}

/* Bytes that the result can take as JSON: a number of 24 characters at most for each token and each
 * log-probability that is asked for, with brackets and commas. */
static size_t max_result_of(const struct sample_request *r)
{
    enum { FIXED = 4 << 20, NUMBER = 32, TOKENS_UNKNOWN = 1 << 20 };
    size_t n_prompt = 0;
    for (size_t i = 0; i < r->prompt->n_chunks; i++)
        n_prompt += r->prompt->chunks[i].n_tokens;
    /* without a limit of the caller's the model's context is one, and no context is known that is
     * longer */
    uint64_t most = r->params.max_tokens > 0 ? (uint64_t)r->params.max_tokens : TOKENS_UNKNOWN;
    uint64_t samples = r->opts.num_samples > 0 ? (uint64_t)r->opts.num_samples : 1;
    uint64_t per_sampled = 2 + 2 * (uint64_t)r->opts.topk_sample_logprobs;
    uint64_t per_prompt =
        2 + 2 * (uint64_t)r->opts.topk_prompt_logprobs + 2 * (uint64_t)r->opts.prompt_alt_tokens_k;
    uint64_t sampled, all;
    if (__builtin_mul_overflow(most, samples, &sampled) ||
        __builtin_mul_overflow(sampled, per_sampled * NUMBER, &all) || all > CALL_RESPONSE_MOST)
        return CALL_RESPONSE_MOST;
    all += FIXED + (uint64_t)n_prompt * per_prompt * NUMBER;
    return all > CALL_RESPONSE_MOST ? CALL_RESPONSE_MOST : (size_t)all;
}

/* Encode in the caller's thread, then hand over to the loop, or to the helper process. Logprobs
 * are always retried, as the reference does. */
static tinker_future *submit_request(tinker_sampler *sampler, const struct sample_request *r,
                                     bool logprobs_only, tinker_error *err)
{
    struct sample_order order = { .bytes = (int64_t)wire_prompt_bytes(r->prompt),
                                  .max_result = max_result_of(r),
                                  .use_retry = logprobs_only ||
                                               !sampler->session->server.sample_no_retries };
    struct buf body;
    pthread_mutex_lock(&sampler->base->lock);
    order.retry = sampler->base->retry;
    pthread_mutex_unlock(&sampler->base->lock);
    buf_init(&body, SIZE_MAX / 4);
    if (sample_encode(sampler, r, true, &body, err) != TINKER_OK) {
        buf_clear(&body);
        return NULL;
    }
    return helper_wanted(sampler) ? helper_submit(sampler, &order, &body, err)
                                  : sample_submit(sampler, &order, &body, err);
}

tinker_future *tinker_sampler_sample(tinker_sampler *s, const tinker_model_input *prompt,
                                     const tinker_sampling_params *params,
                                     const tinker_sample_options *opts, tinker_error *err)
{
    struct sample_request r;
    if (sample_check(&r, prompt, params, opts, err) != TINKER_OK)
        return NULL;
    return submit_request(s, &r, false, err);
}

tinker_future *tinker_sampler_compute_logprobs(tinker_sampler *s, const tinker_model_input *prompt,
                                               tinker_error *err)
{
    struct sample_request r;
    if (sample_check(&r, prompt, NULL, NULL, err) != TINKER_OK)
        return NULL;
    r.params.max_tokens = 1;
    r.opts.prompt_logprobs = 1;
    return submit_request(s, &r, true, err);
}
