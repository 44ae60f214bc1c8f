/* graph_loss.c - losses that the service computes: giving it one, using it, and doing without. */
#include <stdlib.h>
#include <string.h>

#include "autodiff/tape.h"
#include "base/array.h"
#include "base/err.h"
#include "base/text.h"
#include "client/call/call.h"
#include "client/call/poll.h"
#include "client/session/service.h"
#include "client/training/graph_write.h"
#include "client/training/training_op.h"
#include "wire/wire.h"

/* Older callers have a shorter struct; the rest are defaults. */
static tinker_status copy_loss(const tinker_graph_loss *loss, tinker_graph_loss *out,
                               tinker_error *err)
{
    *out = (tinker_graph_loss)TINKER_GRAPH_LOSS_INIT;
    tinker_status s = opts_copy(out, sizeof(*out), loss, "tinker_graph_loss", err);
    return s == TINKER_OK ? graph_loss_check(out, err) : s;
}

/* For tests and tools: what would be sent, without sending it. */
tinker_status tinker_graph_loss_json(const tinker_graph_loss *loss, tinker_text *out,
                                     tinker_error *err)
{
    tinker_graph_loss ours;
    struct buf b;
    tinker_status s = copy_loss(loss, &ours, err);
    buf_init(&b, 1 << 24);
    if (s == TINKER_OK)
        s = graph_write(&ours, &b, err);
    if (s == TINKER_OK)
        s = tinker_text_append(out, b.data, b.len, err);
    buf_clear(&b);
    return s;
}

/* ---- create_custom_loss ------------------------------------------------------------------ */

/* Wait for the session, POST create_custom_loss, poll for the id. */
struct loss_op {
    struct operation op;
    struct session_wait wait;
    char *name;
    struct wire_loss_input inputs[GRAPH_LOSS_INPUTS_MAX + 1];
    size_t n_inputs;
    struct arena arena; /* of their names */
    struct buf graph, body;
    struct call call;
    struct poll poll;
};

static const struct call_spec loss_spec = {
    .name = "create_custom_loss",
    .method = "POST",
    .pool = POOL_TRAIN,
    .max_retries = CALL_DEFAULT,
};
static const struct poll_kind loss_kind = { "CreateCustomLoss", false };

/* Also of an operation that was never submitted. */
static void loss_free(struct loss_op *c)
{
    buf_clear(&c->graph);
    buf_clear(&c->body);
    arena_clear(&c->arena);
    free(c->name);
    free(c);
}

static void loss_destroy(struct operation *op)
{
    struct loss_op *c = (struct loss_op *)op; /* first member */
    call_clear(&c->call);
    poll_clear(&c->poll);
    loss_free(c);
}

/* Leave whichever of the three it waits for. */
static void loss_abandon(struct operation *op)
{
    struct loss_op *c = (struct loss_op *)op;
    session_forget(&c->wait);
    call_cancel(&c->call);
    poll_cancel(&c->poll);
    operation_destroy(op);
}

/* Into the future's arena: the id is the result. */
static tinker_status loss_decode(struct poll *p, const char *body, size_t n, bool proto,
                                 tinker_error *err)
{
    struct loss_op *c = container_of(p, struct loss_op, poll);
    struct wire_create_custom_loss_response res;
    (void)proto;
    tinker_status s = wire_decode_json(&wire_create_custom_loss_response, body, n, WIRE_LENIENT,
                                       &c->op.future->arena, &res, err);
    if (s == TINKER_OK)
        c->op.future->value = res.loss_id;
    return s;
}

static void loss_polled(struct poll *p)
{
    struct loss_op *c = container_of(p, struct loss_op, poll);
    if (p->ok) {
        operation_succeed(&c->op);
        return;
    }
    operation_note_response(&c->op, &p->call);
    operation_fail(&c->op, &p->call.err);
}

/* The response is a promise; its id is polled as any other. */
static void loss_sent(struct call *call)
{
    struct loss_op *c = container_of(call, struct loss_op, call);
    char id[112];
    if (call->outcome != CALL_OK || submission_id(call, id, sizeof(id)) != TINKER_OK) {
        operation_note_response(&c->op, call);
        operation_fail(&c->op, &call->err);
        return;
    }
    c->poll.session = c->op.session;
    c->poll.kind = &loss_kind;
    c->poll.future = c->op.future;
    c->poll.started_ns = call->start_ns;
    c->poll.decode = loss_decode;
    c->poll.done = loss_polled;
    poll_start(&c->poll, id);
}

/* The number is taken here, once for all attempts, so a retry makes no second loss. */
static void loss_ready(struct session_wait *w, const tinker_error *err)
{
    struct loss_op *c = container_of(w, struct loss_op, wait);
    struct session *h = c->op.session;
    tinker_error failed;
    if (err) {
        operation_fail(&c->op, err);
        return;
    }
    struct wire_create_custom_loss_request req = { .session_id = h->session_id,
                                                   .custom_loss_seq_id = h->loss_seq++,
                                                   .name = c->name,
                                                   .inputs = c->inputs,
                                                   .n_inputs = c->n_inputs,
                                                   .graph = { c->graph.data, c->graph.len } };
    buf_init(&c->body, 1 << 25);
    if (wire_encode_json(&wire_create_custom_loss_request, &req, &c->body, &failed) != TINKER_OK) {
        operation_fail(&c->op, &failed);
        return;
    }
    c->call.session = h;
    c->call.op = &c->op;
    c->call.spec = &loss_spec;
    c->call.path = "api/v1/create_custom_loss";
    c->call.body = c->body.data;
    c->call.body_len = c->body.len;
    c->call.done = loss_sent;
    call_start(&c->call);
}

static void loss_start(struct operation *op)
{
    struct loss_op *c = (struct loss_op *)op;
    c->wait.ready = loss_ready;
    session_when_ready(op->session, &c->wait);
}

static const struct operation_class loss_class = {
    .name = "create_custom_loss",
    .start = loss_start,
    .abandon = loss_abandon,
    .destroy = loss_destroy,
};

tinker_future *tinker_service_create_custom_loss(tinker_service *s, const tinker_graph_loss *loss,
                                                 tinker_error *err)
{
    tinker_graph_loss ours;
    if (copy_loss(loss, &ours, err) != TINKER_OK)
        return NULL;
    struct session *h = service_session(s, err);
    struct loss_op *c = h ? calloc(1, sizeof(*c)) : NULL;
    if (!c) {
        if (h)
            err_nomem(err, "custom loss");
        return NULL;
    }
    arena_init(&c->arena, 1 << 16);
    buf_init(&c->graph, 1 << 24);
    c->name = strdup(ours.name);
    bool ok = c->name != NULL;
    c->inputs[c->n_inputs++] = (struct wire_loss_input){ "logprobs", ours.logprobs_rank };
    for (size_t i = 0; i < ours.n_inputs; i++) {
        const char *name = arena_strdup(&c->arena, ours.inputs[i].name);
        ok = ok && name;
        c->inputs[c->n_inputs++] = (struct wire_loss_input){ name, ours.inputs[i].rank };
    }
    tinker_future *f = NULL;
    if (!ok)
        err_nomem(err, "custom loss");
    else if (graph_write(&ours, &c->graph, err) == TINKER_OK)
        f = operation_submit(&c->op, &loss_class, h, RESULT_LOSS_ID, s->options, err);
    if (!f)
        loss_free(c);
    return f;
}

/* ---- using it ------------------------------------------------------------------------------ */

/* The loss of a batch from that of a datum, on a tape of ours. */
static tinker_var *sum_of_datums(tinker_tape *tape, const tinker_datum *data,
                                 tinker_var *const *logprobs, size_t n, void *state)
{
    const tinker_graph_loss *loss = state;
    tinker_var *inputs[GRAPH_LOSS_INPUTS_MAX + 1], *sum = NULL;
    tape->sums_metrics = true;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < loss->n_inputs; k++) {
            inputs[k] = tinker_tape_input(tape, &data[i], loss->inputs[k].name);
            if (loss->inputs[k].rank == 0 && tinker_var_size(inputs[k]) == 1)
                inputs[k] = tinker_var_reshape(inputs[k], NULL, 0);
        }
        tinker_var *y = loss->fn(tape, logprobs[i], inputs, loss->state);
        if (!y)
            return NULL;
        sum = sum ? tinker_var_add(sum, tinker_var_reshape(y, NULL, 0))
                  : tinker_var_reshape(y, NULL, 0);
    }
    /* Those of a mean: over the datums of the request, as the service reports them. */
    for (struct tape_metric *m = tape->metrics; m; m = m->next) {
        const char *kind = strrchr(m->name, ':');
        if (!m->text && kind && strcmp(kind, ":mean") == 0)
            m->value /= (double)n;
    }
    return sum;
}

tinker_future *tinker_training_forward_backward_graph(tinker_training *t, const tinker_datum *data,
                                                      size_t n, const tinker_graph_loss *loss,
                                                      const char *loss_id, tinker_error *err)
{
    tinker_graph_loss ours;
    tinker_custom_options opts = TINKER_CUSTOM_OPTIONS_INIT;
    const tinker_named_string id = { "loss_id", loss_id };
    const tinker_loss custom = { .name = "custom", .texts = &id, .n_texts = 1 };
    if (copy_loss(loss, &ours, err) != TINKER_OK)
        return NULL;
    if (loss_id)
        return tinker_training_forward_backward(t, data, n, &custom, err);
    opts.strip_local_inputs = 1;
    opts.allow_unused = 1; /* a mask may leave a datum out */
    return tinker_training_forward_backward_custom(t, data, n, sum_of_datums,
                                                   (void *)(uintptr_t)loss, &opts, err);
}
