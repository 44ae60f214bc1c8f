/* tokenizer_op.c - the tokenizer of a model as a future: ask for the name, then read the files.
 *
 * The operation waits for another, which asks; a worker loads.  The worker's job outlives an
 * operation that was canceled.  Runs on the loop thread, except submitting and loading. */
#include <stdlib.h>
#include <tinker/training.h>
#include "base/err.h"
#include "client/data/model_tokenizer.h"
#include "client/future/operation.h"
#include "client/io/runtime.h"
#include "client/sampling/sampling_client.h"
#include "client/training/training_client.h"

struct tokenizer_op;

/* The job of the worker. It outlives an operation that was canceled while it loads. */
struct load {
    struct runtime_job job;  /* first */
    struct tokenizer_op *op; /* NULL: canceled */
    tinker_future *source;   /* a reference: what the model is called */
    tinker_tokenizer_options opts;
    struct arena arena; /* of the texts in opts */
    tinker_tokenizer *made;
    tinker_error err;
};

/* started: source->notify is ours. loading: the worker has the job. */
struct tokenizer_op {
    struct operation op; /* first */
    struct load *load;
    bool loading, started;
};

static void load_free(struct load *l)
{
    tinker_tokenizer_free(l->made);
    future_unref(l->source);
    arena_clear(&l->arena);
    free(l);
}

/* While the worker loads, the job is its own; otherwise it goes with the operation. */
static void tokenizer_destroy(struct operation *op)
{
    struct tokenizer_op *o = (struct tokenizer_op *)op;
    if (o->started)
        o->load->source->notify = NULL;
    if (o->loading)
        o->load->op = NULL; /* the job frees itself */
    else
        load_free(o->load);
    free(o);
}

/* Canceled: the question goes, loading runs to its end and is thrown away. */
static void tokenizer_abandon(struct operation *op)
{
    tinker_future_cancel(((struct tokenizer_op *)op)->load->source);
    operation_destroy(op);
}

/* On a worker. */
static void load_work(struct runtime_job *j)
{
    struct load *l = (struct load *)j;
    runtime_mark_thread(); /* a loader of the user's may not wait here */
    l->made = model_tokenizer_load(l->source, &l->opts, &l->err);
}

/* Back on the loop thread. */
static void load_done(struct runtime_job *j)
{
    struct load *l = (struct load *)j;
    struct tokenizer_op *o = l->op;
    if (!o) {
        load_free(l);
        return;
    }
    o->loading = false;
    if (!l->made) {
        operation_fail(&o->op, &l->err);
        return;
    }
    o->op.future->value = l->made;
    l->made = NULL;
    operation_succeed(&o->op);
}

/* The service has said which model it is, or not. Files are read by a worker: a tokenizer may
 * have ten megabytes. */
static void on_named(tinker_future *source, void *state)
{
    struct tokenizer_op *o = state;
    operation_inherit(&o->op, source);
    if (source->err) {
        operation_fail(&o->op, source->err);
        return;
    }
    o->load->job.work = load_work;
    o->load->job.done = load_done;
    o->loading = runtime_work(o->op.session->rt, &o->load->job);
    if (!o->loading) {
        tinker_error err;
        err_nomem(&err, "tokenizer");
        operation_fail(&o->op, &err);
    }
}

/* Futures complete on this thread, so it is either complete or will call us. */
static void tokenizer_start(struct operation *op)
{
    struct tokenizer_op *o = (struct tokenizer_op *)op;
    tinker_future *source = o->load->source;
    o->started = true;
    if (tinker_future_done(source)) { /* futures complete on this thread */
        on_named(source, o);
        return;
    }
    source->notify = on_named;
    source->notify_state = o;
}

static const struct operation_class tokenizer_class = {
    .name = "tokenizer",
    .start = tokenizer_start,
    .abandon = tokenizer_abandon,
    .destroy = tokenizer_destroy,
};

/* ---- submitting, in the caller's thread -------------------------------------------------------- */

/* Options are copied, since loading happens after the submit has returned. */
static const char *copy_text(struct load *l, const char *s)
{
    return s ? arena_strdup(&l->arena, s) : NULL;
}

/* opts_copy() refuses what a newer program set and this library does not know; then the texts are
 * copied. A loader and its state stay the caller's, who keeps them alive until the future is
 * complete. */
static tinker_status copy_options(struct load *l, const tinker_tokenizer_options *opts,
                                  tinker_error *err)
{
    tinker_tokenizer_options *o = &l->opts;
    *o = (tinker_tokenizer_options)TINKER_TOKENIZER_OPTIONS_INIT;
    tinker_status s = opts_copy(o, sizeof(*o), opts, "tinker_tokenizer_options", err);
    if (s != TINKER_OK)
        return s;
    o->tokenizer_id = copy_text(l, o->tokenizer_id);
    o->revision = copy_text(l, o->revision);
    o->hf_home = copy_text(l, o->hf_home);
    o->cache_dir = copy_text(l, o->cache_dir);
    return l->arena.failed ? err_nomem(err, "tokenizer") : TINKER_OK;
}

/* An operation with its options, and without a source. */
static struct tokenizer_op *tokenizer_op_new(const tinker_tokenizer_options *opts,
                                             tinker_error *err)
{
    struct tokenizer_op *o = calloc(1, sizeof(*o));
    struct load *l = o ? calloc(1, sizeof(*l)) : NULL;
    if (!l) {
        free(o);
        err_nomem(err, "tokenizer");
        return NULL;
    }
    arena_init(&l->arena, 1 << 20);
    l->op = o;
    o->load = l;
    if (copy_options(l, opts, err) == TINKER_OK)
        return o;
    tokenizer_destroy(&o->op);
    return NULL;
}

/* source: taken over; NULL: err says why there is none. The operation inherits deadline and
 * cancellation of its source. */
static tinker_future *submit_tokenizer(struct tokenizer_op *o, struct session *h,
                                       tinker_future *source, tinker_error *err)
{
    o->load->source = source;
    tinker_future *f =
        source ? operation_submit_over(&o->op, &tokenizer_class, h, RESULT_TOKENIZER, source, err)
               : NULL;
    if (!f)
        tokenizer_destroy(&o->op);
    return f;
}

tinker_future *tinker_training_request_tokenizer(tinker_training *t,
                                                 const tinker_tokenizer_options *opts,
                                                 tinker_error *err)
{
    struct tokenizer_op *o = tokenizer_op_new(opts, err);
    return o ? submit_tokenizer(o, t->session, training_client_ask_name(t, err), err) : NULL;
}

tinker_future *tinker_sampler_request_tokenizer(tinker_sampler *s,
                                                const tinker_tokenizer_options *opts,
                                                tinker_error *err)
{
    struct tokenizer_op *o = tokenizer_op_new(opts, err);
    return o ? submit_tokenizer(o, s->session, tinker_sampler_get_base_model(s, err), err) : NULL;
}
