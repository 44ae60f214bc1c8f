/* training_op.c - the state machine of a training request.  Runs on the loop thread.
 *
 * Invariants: a part leaves its turn exactly once, whatever happens (`left`), so later
 * requests are never stuck; an op whose future is complete (op.future NULL) sends
 * nothing more and is destroyed when its last part has left. */
#include "client/training/training_op.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/training/merge.h"
#include "client/sampling/sampling_client.h"
#include "client/session/service.h"
#include "wire/wire.h"
#include "wire/zstd.h"

/* A body on its way through a worker. The job owns both buffers while the worker has them; the
 * part may end meanwhile, which it says by clearing `part`, and the job then frees itself. */
struct compress_job {
    struct runtime_job job;
    struct training_part *part; /* NULL: nobody waits any more */
    struct buf in, out;
    tinker_status status;
    tinker_error err;
};

/* The future is detached from the operation when its outcome is known: from then on nothing is
 * sent and nobody is told anything. The operation itself may live longer, because parts that wait
 * for their turn must still take and leave it. */
static bool is_complete(const struct training_op *op)
{
    return op->op.future == NULL;
}

/* ---- ends --------------------------------------------------------------------------- */

/* Between hold and release an op is not destroyed under its caller. It counts as one more part
 * that has not left its turn: many of the calls below may end the op, directly or through a
 * callback of the user. */
static void hold_op(struct training_op *op)
{
    op->n_open++;
}

static void release_op(struct training_op *op)
{
    if (--op->n_open == 0 && is_complete(op))
        operation_destroy(&op->op);
}

/* Leave the turn. Every part does so exactly once, whatever came of it, or all later requests of
 * the client would wait for ever. A part that was never accepted leaves a hole in the numbers
 * that the service counts, which the next request fills (seq_gap.h). The op may be gone
 * afterwards, unless it is held. */
static void leave_turn(struct training_part *p)
{
    struct training_op *op = p->op;
    tinker_training *t = op->training;
    int64_t seq = op->first_id + (int64_t)p->index + 1;
    if (p->turn_state == PART_LEFT)
        return;
    p->turn_state = PART_LEFT;
    budget_give(&p->bytes);
    /* The service would wait for a number that was not accepted.  Unloading has none. */
    if (!p->accepted && op->kind->result != TRAINING_UNLOAD && !seq_gaps_add(&t->base->gaps, seq))
        log_line(&t->session->log, LOG_WARNING, "model %s: number %lld stays unused, no memory",
                 t->model_id, (long long)seq);
    send_order_leave(&op->training->base->send_order);
    release_op(op);
}

/* Stop everything under way. Parts that are inside their turn leave now; those that still wait
 * for it leave when it comes (see admit_part()): the order of turns has no way to take somebody
 * out of the middle. The op may be gone afterwards. */
static void stop_parts(struct training_op *op)
{
    assert(is_complete(op));
    hold_op(op);
    seq_gap_fill_free(op->fill);
    op->fill = NULL;
    for (size_t i = 0; i < op->n_parts; i++) {
        struct training_part *p = &op->parts[i];
        call_cancel(&p->call);
        poll_cancel(&p->poll);
        if (p->compressing)
            p->compressing->part = NULL;
        p->compressing = NULL;
        if (p->turn_state == PART_INSIDE)
            leave_turn(p);
    }
    release_op(op);
}

/* The bytes of this part no longer wait to be accepted: see max_queued_bytes of the service.
 * Harmless when done before. */
static void uncount_queued(struct training_part *p)
{
    atomic_fetch_sub_explicit(&p->op->training->session->queued_bytes, p->queued,
                              memory_order_relaxed);
    p->queued = 0;
}

/* The first failure of any part decides the outcome of the whole request; later ones find the
 * future gone. call (may be NULL) is where the error came from, for tinker_future_response(). */
static void fail_op(struct training_op *op, const struct call *call, const tinker_error *err)
{
    tinker_error copy = *err; /* it may live in a part */
    if (is_complete(op))
        return;
    if (call)
        operation_note_response(&op->op, call);
    operation_complete(&op->op, &copy);
    stop_parts(op);
}

void training_op_abandon(struct operation *base)
{
    stop_parts((struct training_op *)base);
}

/* One that was never submitted, or whose last part has left. Nothing is under way any more. */
void training_op_free(struct training_op *op)
{
    for (size_t i = 0; i < op->n_parts; i++) {
        struct training_part *p = &op->parts[i];
        uncount_queued(p);
        call_clear(&p->call);
        poll_clear(&p->poll);
        buf_clear(&p->body);
    }
    custom_job_leave(op->job);
    training_client_unref(op->training);
    custom_metrics_free(op->overlay);
    free(op->parts);
    free(op);
}

void training_op_destroy(struct operation *base)
{
    training_op_free((struct training_op *)base);
}

/* ---- results ------------------------------------------------------------------------ */

/* The same for a large result, which a worker has read into an arena of its own: the future takes
 * that over. */
static tinker_status adopt_part(struct poll *poll, void *out, struct arena *a, tinker_error *err)
{
    struct training_part *p = container_of(poll, struct training_part, poll);
    (void)err;
    p->pass = out;
    arena_adopt(&p->op->op.future->arena, a);
    return TINKER_OK;
}

/* An unnamed save answers with the sampling session it opened: the result is a sampler, not a
 * path. */
static tinker_status read_sampler(struct training_op *op, const char *body, size_t n,
                                  tinker_error *err)
{
    struct tinker_future *f = op->op.future;
    struct wire_save_weights_for_sampler_response res;
    tinker_status s = wire_decode_json(&wire_save_weights_for_sampler_response, body, n,
                                       WIRE_LENIENT, &f->arena, &res, err);
    if (s != TINKER_OK)
        return s;
    if (!res.sampling_session_id)
        return err_set(err, TINKER_EPROTOCOL, "the response has no sampling_session_id");
    f->value = sampling_client_new(op->op.session, res.sampling_session_id, op->op.options, err);
    return f->value ? TINKER_OK : TINKER_ENOMEM;
}

/* What a body means depends on the kind of request; called by the poll, on the loop thread. */
static tinker_status on_decode(struct poll *poll, const char *body, size_t n, bool proto,
                               tinker_error *err)
{
    struct training_part *p = container_of(poll, struct training_part, poll);
    struct training_op *op = p->op;
    if (op->kind->result == TRAINING_PASS) {
        /* One chunk.  It goes into the arena of the future, so that merging copies no tensors. */
        struct arena *a = &op->op.future->arena;
        p->pass = arena_alloc(a, sizeof(*p->pass));
        return p->pass ? result_read_pass(a, body, n, proto, p->pass, err)
                       : err_nomem(err, "result");
    }
    if (op->kind->result == TRAINING_SAMPLER)
        return read_sampler(op, body, n, err);
    return op->kind->reader->read(op->op.future, body, n, proto, err);
}

/* All chunks are there: one result out of their results, in the order of the data. A custom loss
 * lays its own metrics over those of the service, after merging, so that they are not reduced. */
static tinker_status merge_parts(struct training_op *op, tinker_error *err)
{
    struct arena *a = &op->op.future->arena;
    tinker_forward_backward *out = arena_alloc(a, sizeof(*out));
    const tinker_forward_backward **parts = arena_array(a, op->n_parts, sizeof(*parts));
    if (!out || !parts)
        return err_nomem(err, "result");
    for (size_t i = 0; i < op->n_parts; i++)
        parts[i] = op->parts[i].pass;
    op->op.future->value = out;
    tinker_status s = merge_results(parts, op->n_parts, a, out, &op->op.session->log, err);
    return s == TINKER_OK && op->overlay ? custom_metrics_lay(op->overlay, a, out, err) : s;
}

static void on_part_queue_state(struct poll *poll, enum wire_queue_state state, const char *reason,
                                bool changed)
{
    struct training_part *p = container_of(poll, struct training_part, poll);
    tinker_training *t = p->op->training;
    queue_state_report(&t->base->watch, t->session, QUEUE_STATE_TRAINING, t->model_id, state,
                       reason, changed);
}

/* One part has its result, or has failed for good. Results come in any order; the last one
 * completes the future. */
static void on_polled(struct poll *poll)
{
    struct training_part *p = container_of(poll, struct training_part, poll);
    struct training_op *op = p->op;
    tinker_error err;
    if (!poll->ok) {
        fail_op(op, &poll->call, &poll->call.err);
        return;
    }
    if (++op->n_done < op->n_parts)
        return;
    if (op->kind->result == TRAINING_PASS && merge_parts(op, &err) != TINKER_OK) {
        fail_op(op, NULL, &err);
        return;
    }
    operation_succeed(&op->op);
}

/* ---- sending ------------------------------------------------------------------------ */

static void on_sent(struct call *call);

/* Before every further try: the body is written anew where it holds what changes with each. */
static void on_renew(struct call *call)
{
    struct training_part *p = container_of(call, struct training_part, call);
    p->op->renew(p->op, &p->body);
    call->body = p->body.data;
    call->body_len = p->body.len;
}

/* Bytes that the result of a part can take.  Of a pass these are a few numbers for each token, which
 * took at least two bytes; of everything else a name or a path. */
static size_t max_result_of(const struct training_part *p)
{
    enum { FIXED = 1 << 20, FIXED_PASS = 16 << 20, PER_BYTE = 64 };
    if (p->op->kind->result != TRAINING_PASS)
        return FIXED;
    uint64_t all = FIXED_PASS + (uint64_t)p->bytes_estimate * PER_BYTE;
    return all > CALL_RESPONSE_MOST ? CALL_RESPONSE_MOST : (size_t)all;
}

/* Send the body of a part. Retries of the connection, pauses and redirects are the business of
 * the call; what comes back to on_sent() is final. */
static void send_part(struct training_part *p)
{
    struct training_op *op = p->op;
    struct call *c = &p->call;
    if (op->renew)
        op->renew(op, &p->body);
    c->session = op->op.session;
    c->op = &op->op;
    c->part = (int)p->index;
    c->spec = &op->kind->spec;
    c->path = op->kind->path;
    c->body = p->body.data;
    c->body_len = p->body.len;
    c->content_type = op->proto_body ? "application/x-protobuf" : NULL;
    c->encoding = p->compressed ? "zstd" : NULL;
    c->conflict_final = op->conflict_final;
    c->max_response = max_result_of(p); /* the response may be the result */
    c->renew = op->renew ? on_renew : NULL;
    c->done = on_sent;
    call_start(c);
}

/* ---- compression, on a worker ----------------------------------------------------------- */

/* On a worker: a body may have hundreds of megabytes, too much for the loop thread. */
static void compress_work(struct runtime_job *j)
{
    struct compress_job *z = (struct compress_job *)j; /* first member */
    z->status = wire_zstd_compress(z->in.data, z->in.len, &z->out, &z->err);
}

/* Back on the loop thread. p is NULL when the part was stopped meanwhile. */
static void compress_done(struct runtime_job *j)
{
    struct compress_job *z = (struct compress_job *)j;
    struct training_part *p = z->part;
    buf_clear(&z->in);
    if (p) {
        p->compressing = NULL;
        p->compressed = true;
        p->body = z->out;
        if (z->status == TINKER_OK)
            send_part(p);
        else
            fail_op(p->op, NULL, &z->err);
    } else
        buf_clear(&z->out);
    free(z);
}

/* Hand the body to a worker. Should there be no memory, the plain body will do: the service takes
 * both. */
static void compress_part(struct training_part *p)
{
    struct compress_job *z = calloc(1, sizeof(*z));
    if (z) {
        z->job.work = compress_work;
        z->job.done = compress_done;
        z->part = p;
        z->in = p->body;
        buf_init(&p->body, SIZE_MAX / 4);
        buf_init(&z->out, SIZE_MAX / 4);
        p->compressing = z;
        if (runtime_work(p->op->op.session->rt, &z->job))
            return;
        p->compressing = NULL;
        p->body = z->in;
        free(z);
    }
    send_part(p); /* no memory for a luxury: the plain body will do */
}

/* The service says in its configuration whether it reads compressed passes; a build without zstd
 * sends all of them plain. */
static void send_or_compress(struct training_part *p)
{
    const struct training_op *op = p->op;
    if (op->proto_body && op->op.session->server.proto_compress_fwdbwd && wire_zstd_available())
        compress_part(p);
    else
        send_part(p);
}

static void on_bytes(struct budget_wait *w)
{
    send_or_compress(container_of(w, struct training_part, bytes));
}

/* The last gate before sending: the service limits how many bytes of training data may be in
 * flight. They are given back when the part leaves its turn. */
static void reserve_bytes(struct training_part *p)
{
    struct session *h = p->op->op.session;
    p->bytes.granted = on_bytes;
    if (budget_take(&h->train_bytes, &p->bytes, p->bytes_estimate))
        send_or_compress(p);
}

/* Accepted: the number is used up, the body is no longer needed, and the next request may go.
 * Only then is the result polled for. */
static void on_accepted(struct training_part *p, const char *id)
{
    struct training_op *op = p->op;
    hold_op(op);
    buf_clear(&p->body);
    uncount_queued(p);
    op->n_accepted++;
    p->accepted = true;
    leave_turn(p);
    p->poll.session = op->op.session;
    p->poll.kind = &op->kind->reader->poll;
    p->poll.future = op->op.future;
    p->poll.started_ns = op->started_ns;
    p->poll.decode = on_decode;
    p->poll.max_result = max_result_of(p);
    if (op->kind->result == TRAINING_PASS) { /* large ones are read by a worker */
        p->poll.read_aside = result_pass_aside;
        p->poll.take_aside = adopt_part;
    }
    p->poll.queue_state = on_part_queue_state;
    p->poll.done = on_polled;
    poll_start(&p->poll, id);
    /* the first of parallel parts was waiting for the others */
    if (op->parallel && p->index > 0 && op->n_accepted == op->n_parts - 1 && !is_complete(op))
        reserve_bytes(&op->parts[0]);
    release_op(op);
}

/* Unloading may be answered with its result at once instead of a promise. true: it was, and the
 * op may be gone. */
static bool take_immediate_result(struct training_part *p, struct call *call)
{
    struct training_op *op = p->op;
    const struct buf *body = &call->http.resp.body;
    if (op->kind->result != TRAINING_UNLOAD || is_complete(op) || !body->data ||
        op->kind->reader->read(op->op.future, body->data, body->len, false, &call->err) !=
            TINKER_OK)
        return false;
    hold_op(op);
    leave_turn(p);
    operation_complete(&op->op, NULL);
    release_op(op);
    return true;
}

/* The call is over: a promise, an immediate result, or a failure that no retry could help. */
static void on_sent(struct call *call)
{
    struct training_part *p = container_of(call, struct training_part, call);
    char id[112];
    if (call->outcome == CALL_OK && submission_id(call, id, sizeof(id)) == TINKER_OK)
        on_accepted(p, id);
    else if (call->outcome != CALL_OK || !take_immediate_result(p, call))
        fail_op(p->op, call, &call->err);
}

/* ---- turns -------------------------------------------------------------------------- */

/* The numbers before ours are used. A failure means that the service cannot be reached: our own
 * request would meet the same, so it fails now, with a message that says what was being tried. */
static void on_gaps_filled(struct seq_gap_fill *fill, void *owner, const struct call *failed)
{
    struct training_op *op = owner;
    if (failed) {
        tinker_error err = failed->err;
        err_prefix(&err, "%s", "filling the number of an earlier request that was not sent");
        fail_op(op, failed, &err);
        return;
    }
    seq_gap_fill_free(fill);
    op->fill = NULL;
    op->filled = true;
    training_op_resume(op);
}

/* It is this part's turn. What it may still have to wait for, in this order: the body, which a
 * custom loss is yet to compute; numbers that earlier requests left unused; the other chunks of a
 * parallel batch. Whoever ends the wait comes back here through training_op_resume(), so each
 * reason is looked at again. */
static void admit_part(struct training_part *p)
{
    struct training_op *op = p->op;
    p->turn_state = PART_INSIDE;
    if (is_complete(op)) {
        leave_turn(p);
        return;
    }
    if (op->job)
        return; /* training_op_resume() goes on */
    /* The service runs numbers without gaps, so sending ours before those that earlier requests left
     * would only park it there.  Unloading has no number and waits for none. */
    if (!op->fill && !op->filled && op->training->base->gaps.n &&
        op->kind->result != TRAINING_UNLOAD)
        op->fill = seq_gap_fill_start(op->training, on_gaps_filled, op);
    if (op->fill)
        return; /* on_gaps_filled() goes on */
    if (op->parallel && p->index == 0 && op->n_accepted < op->n_parts - 1)
        return; /* on_accepted() of the last of the others goes on */
    reserve_bytes(p);
}

void training_op_refuse(struct training_op *op, const tinker_error *err)
{
    fail_op(op, NULL, err);
}

/* Something that parts were waiting for inside their turn is there: look at each again. */
void training_op_resume(struct training_op *op)
{
    hold_op(op);
    for (size_t i = 0; i < op->n_parts; i++)
        if (op->parts[i].turn_state == PART_INSIDE)
            admit_part(&op->parts[i]);
    release_op(op);
}

static void on_turn(struct send_turn *t)
{
    admit_part(container_of(t, struct training_part, turn));
}

/* Queue up for a turn. Chunks of a parallel batch share one turn, from the first id to the last;
 * others take one after another. Those admitted at once may end the op, hence the hold. */
void training_op_start(struct operation *base)
{
    struct training_op *op = (struct training_op *)base; /* first member */
    struct send_order *order = &op->training->base->send_order;
    int64_t last = op->first_id + (int64_t)op->n_parts - 1;
    op->started_ns = loop_now_ns(base->session->rt->loop);
    hold_op(op);
    for (size_t i = 0; i < op->n_parts; i++) {
        struct training_part *p = &op->parts[i];
        int64_t id = op->first_id + (int64_t)i;
        p->turn.granted = on_turn;
        if (send_order_enter(order, &p->turn, op->parallel ? op->first_id : id,
                             op->parallel ? last : id))
            admit_part(p);
    }
    release_op(op);
}

/* ---- submitting, in the caller's thread ----------------------------------------------- */

struct training_op *training_op_new(tinker_training *t, size_t n_parts,
                                    const struct training_kind *kind, tinker_error *err)
{
    struct training_op *op = calloc(1, sizeof(*op));
    struct training_part *parts = calloc(n_parts, sizeof(*parts));
    if (!op || !parts) {
        free(op);
        free(parts);
        err_nomem(err, kind->class.name);
        return NULL;
    }
    op->kind = kind;
    op->parts = parts;
    op->n_parts = op->n_open = n_parts;
    op->training = t;
    training_client_ref(t);
    for (size_t i = 0; i < n_parts; i++) {
        parts[i].op = op;
        parts[i].index = i;
        buf_init(&parts[i].body, SIZE_MAX / 4);
    }
    return op;
}

/* Count before sending, under the same lock as the ids: what is counted is what was encoded, and
 * a body that is accepted is taken off by uncount_queued(). */
int64_t training_op_count(struct training_op *op)
{
    int64_t sum = 0;
    for (size_t i = 0; i < op->n_parts; i++) {
        op->parts[i].queued = (int64_t)op->parts[i].body.len;
        sum += op->parts[i].queued;
    }
    return sum + atomic_fetch_add_explicit(&op->training->session->queued_bytes, sum,
                                           memory_order_relaxed);
}

/* A request that is alone in the queue always goes, however large: waiting for earlier ones could
 * not help it. */
tinker_status training_op_queue(struct training_op *op, tinker_error *err)
{
    int64_t max = op->training->session->cfg->max_queued_bytes, all = training_op_count(op),
            own = 0;
    for (size_t i = 0; i < op->n_parts; i++)
        own += op->parts[i].queued;
    if (!max || all == own || all <= max)
        return TINKER_OK;
    for (size_t i = 0; i < op->n_parts; i++)
        uncount_queued(&op->parts[i]);
    return err_set(err, TINKER_ENOMEM,
                   "%s: %lld bytes wait to be accepted, and max_queued_bytes is %lld; wait for "
                   "an earlier future",
                   op->kind->class.name, (long long)(all - own), (long long)max);
}

tinker_future *training_op_submit(struct training_op *op, tinker_error *err)
{
    snprintf(op->op.label, sizeof(op->op.label), "%s on model %s", op->kind->class.name,
             op->training->model_id);
    enum result_kind kind =
        op->kind->result == TRAINING_SAMPLER ? RESULT_SAMPLER : op->kind->reader->kind;
    return operation_submit(&op->op, &op->kind->class, op->training->session, kind,
                            op->training->options, err);
}
