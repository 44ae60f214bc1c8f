/* sample_options.c - see tinker_sampler_sample_stream(): a stream or a sample, told by callback.
 *
 * The operation waits for another, its source, and for the teller; it is over when both are.
 * Runs on the loop thread, except submitting. */
#include <stdlib.h>
#include "base/array.h"
#include "base/err.h"
#include "client/future/operation.h"
#include "client/sampling/sampling_client.h"
#include "client/sampling/stream.h"
#include "client/sampling/stream_callback.h"

enum { STREAM_SEQUENCES_MAX = 65536 };

struct tokens_op {
    struct operation op;      /* first */
    tinker_future *source;    /* a reference */
    struct stream_list *list; /* of a stream, a reference; NULL: the source is a sample */
    struct teller *teller;
    struct teller_owner owner;
    bool started, over; /* the operation; the source */
};

static void tokens_destroy(struct operation *op)
{
    struct tokens_op *o = (struct tokens_op *)op;
    if (o->started && o->list)
        stream_list_listen(o->list, NULL, NULL);
    if (o->started)
        o->source->notify = NULL;
    teller_free(o->teller);
    stream_list_unref(o->list);
    future_unref(o->source);
    free(o);
}

static void tokens_abandon(struct operation *op)
{
    tinker_future_cancel(((struct tokens_op *)op)->source);
    operation_destroy(op);
}

static void finish(struct tokens_op *o)
{
    struct tinker_future *f = o->op.future;
    tinker_error err;
    operation_inherit(&o->op, o->source);
    if (o->source->err) {
        operation_fail(&o->op, o->source->err);
        return;
    }
    if (o->list) {
        f->value = teller_result(o->teller, &f->arena);
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

/* May end the operation. */
static void look(struct tokens_op *o)
{
    tinker_error err;
    if (!teller_is_idle(o->teller))
        return;
    if (teller_gave_up(o->teller, &err)) {
        tinker_future_cancel(o->source);
        operation_fail(&o->op, &err);
    } else if (o->over)
        finish(o);
}

static void on_told(struct teller_owner *owner)
{
    look(container_of(owner, struct tokens_op, owner));
}

static void on_events(void *arg)
{
    teller_kick(((struct tokens_op *)arg)->teller);
}

static void on_source(tinker_future *f, void *state)
{
    struct tokens_op *o = state;
    o->over = true;
    if (!o->list && !f->err)
        teller_read_sample(o->teller, f);
    teller_kick(o->teller);
    look(o); /* without memory for a round nobody else will */
}

static void tokens_start(struct operation *op)
{
    struct tokens_op *o = (struct tokens_op *)op;
    o->started = true;
    o->owner.told = on_told;
    teller_bind(o->teller, &o->owner, op->future->guard);
    if (o->list) {
        teller_read_list(o->teller, o->list);
        stream_list_listen(o->list, on_events, o);
        teller_kick(o->teller);
    }
    if (tinker_future_done(o->source)) { /* futures complete on this thread */
        on_source(o->source, o);
        return;
    }
    o->source->notify = on_source;
    o->source->notify_state = o;
}

static const struct operation_class tokens_class = { "sample_stream", tokens_start, tokens_abandon,
                                                     tokens_destroy };

/* ---- submitting, in the caller's thread ----------------------------------------------------- */

/* Does the service offer streams, and does one carry what is asked for? */
static bool can_stream(const tinker_sampler *s, const tinker_sample_options *opts)
{
    const struct wire_opt_bool *offered = &s->session->server.stream_sample;
    return offered->has && offered->value && !opts->prompt_logprobs &&
           !opts->topk_prompt_logprobs && !opts->target_prompt_logprobs &&
           !opts->prompt_alt_tokens_k && opts->num_samples <= STREAM_SEQUENCES_MAX;
}

/* The source, with the options of the call; false: *err says why. */
static bool open_source(struct tokens_op *o, tinker_sampler *s, const struct sample_request *r,
                        tinker_error *err)
{
    if (!can_stream(s, &r->opts)) {
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
                                            tinker_stream_callback *on_event, void *state,
                                            tinker_error *err)
{
    struct sample_request r;
    if (sample_check(&r, prompt, params, opts, err) != TINKER_OK)
        return NULL;
    if (!on_event) {
        err_set(err, TINKER_EINVAL, "nobody would hear of the tokens: on_event is NULL");
        return NULL;
    }
    struct tokens_op *o = calloc(1, sizeof(*o));
    tinker_future *f = NULL;
    if (o)
        o->teller = teller_new(s->session, can_stream(s, &r.opts) ? r.opts.num_samples : 0,
                               r.opts.topk_sample_logprobs, on_event, state);
    if (!o || !o->teller)
        err_nomem(err, "sample");
    else if (open_source(o, s, &r, err))
        f = operation_submit_over(&o->op, &tokens_class, s->session, RESULT_SAMPLE, o->source, err);
    if (!f && o)
        tokens_destroy(&o->op);
    return f;
}
