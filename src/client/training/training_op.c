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

struct zip_job {
    struct runtime_job job;
    struct train_part *part; /* NULL: nobody waits any more */
    struct buf in, out;
    tinker_status status;
    tinker_error err;
};

static bool is_over(const struct train_op *op)
{
    return op->op.future == NULL;
}

/* ---- ends --------------------------------------------------------------------------- */

/* Between hold and release an op is not destroyed under its caller. */
static void hold(struct train_op *op)
{
    op->n_open++;
}

static void release(struct train_op *op)
{
    if (--op->n_open == 0 && is_over(op))
        operation_destroy(&op->op);
}

/* Leave the turn.  The op may be gone afterwards, unless it is held. */
static void leave(struct train_part *p)
{
    struct train_op *op = p->op;
    tinker_training *t = op->training;
    int64_t seq = op->first_id + (int64_t)p->index + 1;
    if (p->turn_state == PART_LEFT)
        return;
    p->turn_state = PART_LEFT;
    budget_give(&p->bytes);
    /* The service would wait for a number that was not accepted.  Unloading has none. */
    if (!p->accepted && op->kind->result != TRAIN_UNLOAD && !gaps_add(&t->base->gaps, seq))
        log_line(&t->session->log, LOG_WARNING, "model %s: number %lld stays unused, no memory",
                 t->model_id, (long long)seq);
    send_order_leave(&op->training->base->send_order);
    release(op);
}

/* Stop everything under way.  Parts that are inside leave now; the others when their
 * turn comes.  The op may be gone afterwards. */
static void wind_up(struct train_op *op)
{
    assert(is_over(op));
    hold(op);
    gap_fill_free(op->fill);
    op->fill = NULL;
    for (size_t i = 0; i < op->n_parts; i++) {
        struct train_part *p = &op->parts[i];
        call_cancel(&p->call);
        poll_cancel(&p->poll);
        if (p->zip)
            p->zip->part = NULL;
        p->zip = NULL;
        if (p->turn_state == PART_INSIDE)
            leave(p);
    }
    release(op);
}

static void unqueue(struct train_part *p)
{
    atomic_fetch_sub_explicit(&p->op->training->session->queued_bytes, p->queued,
                              memory_order_relaxed);
    p->queued = 0;
}

static void fail(struct train_op *op, const struct call *call, const tinker_error *err)
{
    tinker_error copy = *err; /* it may live in a part */
    if (is_over(op))
        return;
    if (call)
        operation_note_response(&op->op, call);
    operation_complete(&op->op, &copy);
    wind_up(op);
}

void train_op_abandon(struct operation *base)
{
    wind_up((struct train_op *)base);
}

void train_op_free(struct train_op *op)
{
    for (size_t i = 0; i < op->n_parts; i++) {
        struct train_part *p = &op->parts[i];
        unqueue(p);
        call_clear(&p->call);
        poll_clear(&p->poll);
        buf_clear(&p->body);
    }
    custom_job_leave(op->job);
    trainer_unref(op->training);
    custom_metrics_free(op->overlay);
    free(op->parts);
    free(op);
}

void train_op_destroy(struct operation *base)
{
    train_op_free((struct train_op *)base);
}

/* ---- results ------------------------------------------------------------------------ */

static tinker_status read_part(struct train_part *p, const char *body, size_t n, bool proto,
                               tinker_error *err)
{
    struct arena *a = &p->op->op.future->arena;
    p->pass = arena_alloc(a, sizeof(*p->pass));
    if (!p->pass)
        return err_nomem(err, "result");
    return result_read_pass(a, body, n, proto, p->pass, err);
}

static tinker_status take_part(struct poll *poll, void *out, struct arena *a, tinker_error *err)
{
    struct train_part *p = container_of(poll, struct train_part, poll);
    (void)err;
    p->pass = out;
    arena_adopt(&p->op->op.future->arena, a);
    return TINKER_OK;
}

/* An unnamed save answers with the sampling session it opened. */
static tinker_status read_sampler(struct train_op *op, const char *body, size_t n,
                                  tinker_error *err)
{
    struct tinker_future *f = op->op.future;
    struct wire_save_weights_for_sampler_response res;
    tinker_status s = wire_decode_json(&wire_save_weights_for_sampler_response, body, n,
                                       WIRE_LENIENT, &f->arena, &res, err);
    if (s != TINKER_OK)
        return s;
    if (!res.sampling_session_id)
        return err_set(err, TINKER_EPROTOCOL, "the answer has no sampling_session_id");
    f->value = sampler_new(op->op.session, res.sampling_session_id, op->op.options, err);
    return f->value ? TINKER_OK : TINKER_ENOMEM;
}

static tinker_status on_decode(struct poll *poll, const char *body, size_t n, bool proto,
                               tinker_error *err)
{
    struct train_part *p = container_of(poll, struct train_part, poll);
    struct train_op *op = p->op;
    if (op->kind->result == TRAIN_PASS)
        return read_part(p, body, n, proto, err);
    if (op->kind->result == TRAIN_SAMPLER)
        return read_sampler(op, body, n, err);
    return op->kind->reader->read(op->op.future, body, n, proto, err);
}

static tinker_status combine(struct train_op *op, tinker_error *err)
{
    struct arena *a = &op->op.future->arena;
    tinker_forward_backward *out = arena_alloc(a, sizeof(*out));
    const tinker_forward_backward **parts = arena_array(a, op->n_parts, sizeof(*parts));
    if (!out || !parts)
        return err_nomem(err, "result");
    for (size_t i = 0; i < op->n_parts; i++)
        parts[i] = op->parts[i].pass;
    op->op.future->value = out;
    tinker_status s = reduce_results(parts, op->n_parts, a, out, &op->op.session->log, err);
    return s == TINKER_OK && op->overlay ? custom_metrics_lay(op->overlay, a, out, err) : s;
}

static void on_state(struct poll *poll, enum wire_queue_state state, const char *reason,
                     bool changed)
{
    struct train_part *p = container_of(poll, struct train_part, poll);
    tinker_training *t = p->op->training;
    queue_state_report(&t->base->watch, t->session, QUEUE_STATE_TRAINING, t->model_id, state,
                       reason, changed);
}

static void on_polled(struct poll *poll)
{
    struct train_part *p = container_of(poll, struct train_part, poll);
    struct train_op *op = p->op;
    tinker_error err;
    if (!poll->ok) {
        fail(op, &poll->call, &poll->call.err);
        return;
    }
    if (++op->n_done < op->n_parts)
        return;
    if (op->kind->result == TRAIN_PASS && combine(op, &err) != TINKER_OK) {
        fail(op, NULL, &err);
        return;
    }
    operation_succeed(&op->op);
}

/* ---- sending ------------------------------------------------------------------------ */

static void on_sent(struct call *call);

static void on_renew(struct call *call)
{
    struct train_part *p = container_of(call, struct train_part, call);
    p->op->renew(p->op, &p->body);
    call->body = p->body.data;
    call->body_len = p->body.len;
}

static void send(struct train_part *p)
{
    struct train_op *op = p->op;
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
    c->encoding = p->zipped ? "zstd" : NULL;
    c->conflict_final = op->conflict_final;
    c->renew = op->renew ? on_renew : NULL;
    c->done = on_sent;
    call_start(c);
}

/* ---- compression, on a worker ----------------------------------------------------------- */

static void zip_work(struct runtime_job *j)
{
    struct zip_job *z = (struct zip_job *)j; /* first member */
    z->status = wire_zstd_compress(z->in.data, z->in.len, &z->out, &z->err);
}

static void zip_done(struct runtime_job *j)
{
    struct zip_job *z = (struct zip_job *)j;
    struct train_part *p = z->part;
    buf_clear(&z->in);
    if (p) {
        p->zip = NULL;
        p->zipped = true;
        p->body = z->out;
        if (z->status == TINKER_OK)
            send(p);
        else
            fail(p->op, NULL, &z->err);
    } else
        buf_clear(&z->out);
    free(z);
}

static void zip(struct train_part *p)
{
    struct zip_job *z = calloc(1, sizeof(*z));
    if (z) {
        z->job.work = zip_work;
        z->job.done = zip_done;
        z->part = p;
        z->in = p->body;
        buf_init(&p->body, SIZE_MAX / 4);
        buf_init(&z->out, SIZE_MAX / 4);
        p->zip = z;
        if (runtime_work(p->op->op.session->rt, &z->job))
            return;
        p->zip = NULL;
        p->body = z->in;
        free(z);
    }
    send(p); /* no memory for a luxury: the plain body will do */
}

static void send_or_zip(struct train_part *p)
{
    const struct train_op *op = p->op;
    if (op->proto_body && op->op.session->server.proto_compress_fwdbwd)
        zip(p);
    else
        send(p);
}

static void on_bytes(struct budget_wait *w)
{
    send_or_zip(container_of(w, struct train_part, bytes));
}

static void take_bytes(struct train_part *p)
{
    struct session *h = p->op->op.session;
    p->bytes.granted = on_bytes;
    if (budget_take(&h->train_bytes, &p->bytes, p->bytes_estimate))
        send_or_zip(p);
}

static void ask_result(struct train_part *p, const char *id)
{
    struct train_op *op = p->op;
    p->poll.session = op->op.session;
    p->poll.kind = &op->kind->reader->poll;
    p->poll.future = op->op.future;
    p->poll.started_ns = op->started_ns;
    p->poll.decode = on_decode;
    if (op->kind->result == TRAIN_PASS) {
        p->poll.read_aside = result_pass_aside;
        p->poll.take_aside = take_part;
    }
    p->poll.queue_state = on_state;
    p->poll.done = on_polled;
    poll_start(&p->poll, id);
}

static void on_accepted(struct train_part *p, const char *id)
{
    struct train_op *op = p->op;
    hold(op);
    buf_clear(&p->body);
    unqueue(p);
    op->n_accepted++;
    p->accepted = true;
    leave(p);
    ask_result(p, id);
    /* the first of parallel parts was waiting for the others */
    if (op->parallel && p->index > 0 && op->n_accepted == op->n_parts - 1 && !is_over(op))
        take_bytes(&op->parts[0]);
    release(op);
}

/* Unloading may be answered with its result at once. */
static bool answered_at_once(struct train_part *p, struct call *call)
{
    struct train_op *op = p->op;
    const struct buf *body = &call->http.resp.body;
    if (op->kind->result != TRAIN_UNLOAD || is_over(op) || !body->data ||
        op->kind->reader->read(op->op.future, body->data, body->len, false, &call->err) !=
            TINKER_OK)
        return false;
    hold(op);
    leave(p);
    operation_complete(&op->op, NULL);
    release(op);
    return true;
}

static void on_sent(struct call *call)
{
    struct train_part *p = container_of(call, struct train_part, call);
    char id[112];
    if (call->outcome == CALL_OK && submission_id(call, id, sizeof(id)) == TINKER_OK)
        on_accepted(p, id);
    else if (call->outcome != CALL_OK || !answered_at_once(p, call))
        fail(p->op, call, &call->err);
}

/* ---- turns -------------------------------------------------------------------------- */

static void on_gaps_filled(struct gap_fill *fill, void *owner, const struct call *failed)
{
    struct train_op *op = owner;
    if (failed) {
        tinker_error err = failed->err;
        err_prefix(&err, "%s", "filling the number of an earlier request that was not sent");
        fail(op, failed, &err);
        return;
    }
    gap_fill_free(fill);
    op->fill = NULL;
    op->filled = true;
    train_op_go(op);
}

/* Must this op wait until the numbers before its own are filled? */
static bool waits_for_gaps(struct train_op *op)
{
    tinker_training *t = op->training;
    if (!op->fill && !op->filled && t->base->gaps.n && op->kind->result != TRAIN_UNLOAD)
        op->fill = gap_fill_start(t, on_gaps_filled, op);
    return op->fill != NULL;
}

static void admitted(struct train_part *p)
{
    struct train_op *op = p->op;
    p->turn_state = PART_INSIDE;
    if (is_over(op)) {
        leave(p);
        return;
    }
    if (op->job)
        return; /* train_op_go() goes on */
    if (waits_for_gaps(op))
        return; /* on_gaps_filled() goes on */
    if (op->parallel && p->index == 0 && op->n_accepted < op->n_parts - 1)
        return; /* on_accepted() of the last of the others goes on */
    take_bytes(p);
}

void train_op_refuse(struct train_op *op, const tinker_error *err)
{
    fail(op, NULL, err);
}

void train_op_go(struct train_op *op)
{
    hold(op);
    for (size_t i = 0; i < op->n_parts; i++)
        if (op->parts[i].turn_state == PART_INSIDE)
            admitted(&op->parts[i]);
    release(op);
}

static void on_turn(struct send_turn *t)
{
    admitted(container_of(t, struct train_part, turn));
}

void train_op_start(struct operation *base)
{
    struct train_op *op = (struct train_op *)base; /* first member */
    struct send_order *order = &op->training->base->send_order;
    int64_t last = op->first_id + (int64_t)op->n_parts - 1;
    op->started_ns = loop_now_ns(base->session->rt->loop);
    hold(op);
    for (size_t i = 0; i < op->n_parts; i++) {
        struct train_part *p = &op->parts[i];
        int64_t id = op->first_id + (int64_t)i;
        p->turn.granted = on_turn;
        if (send_order_enter(order, &p->turn, op->parallel ? op->first_id : id,
                             op->parallel ? last : id))
            admitted(p);
    }
    release(op);
}

/* ---- submitting, in the caller's thread ----------------------------------------------- */

struct train_op *train_op_new(tinker_training *t, size_t n_parts, const struct train_kind *kind,
                              tinker_error *err)
{
    struct train_op *op = calloc(1, sizeof(*op));
    struct train_part *parts = calloc(n_parts, sizeof(*parts));
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
    trainer_ref(t);
    for (size_t i = 0; i < n_parts; i++) {
        parts[i].op = op;
        parts[i].index = i;
        buf_init(&parts[i].body, SIZE_MAX / 4);
    }
    return op;
}

int64_t train_op_count(struct train_op *op)
{
    int64_t sum = 0;
    for (size_t i = 0; i < op->n_parts; i++) {
        op->parts[i].queued = (int64_t)op->parts[i].body.len;
        sum += op->parts[i].queued;
    }
    return sum + atomic_fetch_add_explicit(&op->training->session->queued_bytes, sum,
                                           memory_order_relaxed);
}

tinker_status train_op_queue(struct train_op *op, tinker_error *err)
{
    int64_t max = op->training->session->cfg->max_queued_bytes, all = train_op_count(op), own = 0;
    for (size_t i = 0; i < op->n_parts; i++)
        own += op->parts[i].queued;
    if (!max || all == own || all <= max)
        return TINKER_OK;
    for (size_t i = 0; i < op->n_parts; i++)
        unqueue(&op->parts[i]);
    return err_set(err, TINKER_ENOMEM,
                   "%s: %lld bytes wait to be accepted, and max_queued_bytes is %lld; wait for "
                   "an earlier future",
                   op->kind->class.name, (long long)(all - own), (long long)max);
}

tinker_future *train_op_submit(struct train_op *op, tinker_error *err)
{
    snprintf(op->op.label, sizeof(op->op.label), "%s on model %s", op->kind->class.name,
             op->training->model_id);
    enum result_kind kind =
        op->kind->result == TRAIN_SAMPLER ? RESULT_SAMPLER : op->kind->reader->kind;
    return operation_submit(&op->op, &op->kind->class, op->training->session, kind,
                            op->training->options, err);
}
