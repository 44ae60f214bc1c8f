/* sample_stream_op.c - tinker_sampler_sample_stream(): a stream or a sample, delivered by callback.
 *
 * The operation waits for another, its source, and for the callback; it is complete when both are.
 * Runs on the loop thread, except submitting. */
#include <stdlib.h>
#include <tinker/extra/stream.h>
#include "base/array.h"
#include "base/err.h"
#include "client/future/operation.h"
#include "client/sampling/sampling_client.h"
#include "client/sampling/stream.h"
#include "client/sampling/stream_callback.h"

enum { STREAM_SEQUENCES_MAX = 65536 };

/* Waits for the source and for the callback; owns a reference of each. */
struct sample_stream_op {
    struct operation op;      /* first */
    tinker_future *source;    /* a reference */
    struct stream_list *list; /* of a stream, a reference; NULL: the source is a sample */
    struct stream_callback *callback;
    struct stream_callback_owner owner;
    bool started, over; /* the operation; the source */
};

/* The source may complete later: it must not find us. */
static void sample_stream_destroy(struct operation *op)
{
    struct sample_stream_op *o = (struct sample_stream_op *)op;
    if (o->started && o->list)
        stream_list_listen(o->list, NULL, NULL);
    if (o->started)
        o->source->notify = NULL;
    stream_callback_free(o->callback);
    stream_list_unref(o->list);
    future_unref(o->source);
    free(o);
}

static void sample_stream_abandon(struct operation *op)
{
    tinker_future_cancel(((struct sample_stream_op *)op)->source);
    operation_destroy(op);
}

/* Source complete, everything told. The result of a stream was collected on the way; that of a
 * sample moves over. */
static void finish_sample_stream(struct sample_stream_op *o)
{
    struct tinker_future *f = o->op.future;
    tinker_error err;
    operation_inherit(&o->op, o->source);
    if (o->source->err) {
        operation_fail(&o->op, o->source->err);
        return;
    }
    if (o->list) {
        f->value = stream_callback_result(o->callback, &f->arena);
    } else { /* nobody else has the source: its result moves */
        f->value = o->source->value;
        o->source->value = NULL;
        arena_adopt(&f->arena, &o->source->arena);
    }
    if (f->value) {
        operation_succeed(&o->op);
        return;
    }
    err_nomem(&err, "tokens");
    operation_fail(&o->op, &err);
}

/* Is it over? May end the operation. */
static void check_progress(struct sample_stream_op *o)
{
    tinker_error err;
    if (!stream_callback_is_idle(o->callback))
        return;
    if (stream_callback_gave_up(o->callback, &err)) {
        tinker_future_cancel(o->source);
        operation_fail(&o->op, &err);
    } else if (o->over)
        finish_sample_stream(o);
}

static void on_delivered(struct stream_callback_owner *owner)
{
    check_progress(container_of(owner, struct sample_stream_op, owner));
}

static void on_events(void *arg)
{
    stream_callback_kick(((struct sample_stream_op *)arg)->callback);
}

/* The source is complete. A sample is told now, all at once; of a stream the last events may be
 * under way. */
static void on_source(tinker_future *f, void *state)
{
    struct sample_stream_op *o = state;
    o->over = true;
    if (!o->list && !f->err)
        stream_callback_read_sample(o->callback, f);
    stream_callback_kick(o->callback);
    check_progress(o); /* without memory for a round nobody else will */
}

/* On the loop thread: listen to the source, which may be complete already. */
static void sample_stream_start(struct operation *op)
{
    struct sample_stream_op *o = (struct sample_stream_op *)op;
    o->started = true;
    o->owner.told = on_delivered;
    stream_callback_bind(o->callback, &o->owner, op->future->guard);
    if (o->list) {
        stream_callback_read_list(o->callback, o->list);
        stream_list_listen(o->list, on_events, o);
        stream_callback_kick(o->callback);
    }
    if (tinker_future_done(o->source)) { /* futures complete on this thread */
        on_source(o->source, o);
        return;
    }
    o->source->notify = on_source;
    o->source->notify_state = o;
}

static const struct operation_class sample_stream_class = {
    .name = "sample_stream",
    .start = sample_stream_start,
    .abandon = sample_stream_abandon,
    .destroy = sample_stream_destroy,
};

/* ---- submitting, in the caller's thread ----------------------------------------------------- */

/* Does the service offer streams, and does one carry what is asked for? */
static bool can_stream(const tinker_sampler *s, const struct sample_request *r)
{
    const struct wire_opt_bool *offered = &s->session->server.stream_sample;
    return offered->has && offered->value && !sample_prompt_option(r) &&
           r->opts.num_samples <= STREAM_SEQUENCES_MAX;
}

/* The source, with the options of the call; false: *err says why. */
static bool open_event_source(struct sample_stream_op *o, tinker_sampler *s,
                              const struct sample_request *r, tinker_error *err)
{
    if (!can_stream(s, r)) {
        o->source = tinker_sampler_sample(s, r->prompt, &r->params, &r->opts, err);
        return o->source != NULL;
    }
    tinker_stream *st = tinker_sampler_stream(s, r->prompt, &r->params, &r->opts, err);
    if (!st)
        return false;
    o->source = st->future;
    o->list = st->list;
    free(st); /* its references are ours now */
    return true;
}

tinker_future *tinker_sampler_sample_stream(tinker_sampler *s, const tinker_model_input *prompt,
                                            const tinker_sampling_params *params,
                                            const tinker_sample_options *opts,
                                            tinker_stream_event_fn *on_event, void *state,
                                            tinker_error *err)
{
    struct sample_request r;
    if (sample_check(&r, prompt, params, opts, err) != TINKER_OK)
        return NULL;
    if (!on_event) {
        err_set(err, TINKER_EINVAL, "on_event must not be NULL");
        return NULL;
    }
    struct sample_stream_op *o = calloc(1, sizeof(*o));
    tinker_future *f = NULL;
    if (o)
        o->callback = stream_callback_new(s->session, can_stream(s, &r) ? r.opts.num_samples : 0,
                                          r.opts.topk_sample_logprobs, on_event, state);
    if (!o || !o->callback)
        err_nomem(err, "sample");
    else if (open_event_source(o, s, &r, err))
        f = operation_submit_over(&o->op, &sample_stream_class, s->session, RESULT_SAMPLE,
                                  o->source, err);
    if (!f && o)
        sample_stream_destroy(&o->op);
    return f;
}
