/* sampling_client.c - creating sampling clients.  See sampling_client.h. */
#include "client/sampling/sampling_client.h"

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/call.h"
#include "client/call/call_options.h"
#include "client/sampling/sample_retry.h"
#include "client/sampling/helper.h"
#include "client/session/service.h"
#include "wire/path.h"
#include "wire/wire.h"

/* With one reference, the user's. Operations take their own. */
tinker_sampler *sampling_client_new(struct session *h, const char *id, struct call_options *options,
                                    tinker_error *err)
{
    tinker_sampler *s = calloc(1, sizeof(*s));
    char *copy = strdup(id);
    if (!s || !copy) {
        free(s);
        free(copy);
        err_nomem(err, "sampling client");
        return NULL;
    }
    s->base = s;
    s->options = call_options_ref(options);
    s->session = h;
    s->id = copy;
    s->retry = (tinker_retry_options)TINKER_RETRY_OPTIONS_INIT;
    pthread_mutex_init(&s->lock, NULL);
    atomic_init(&s->refs, 1);
    return s;
}

/* Relaxed is enough to count up: the caller holds a reference already. */
void sampling_client_ref(tinker_sampler *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void sampling_client_unref(tinker_sampler *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    /* A handle from tinker_sampler_with() holds a reference to its base, which has everything
     * else. */
    call_options_unref(s->options);
    if (s->base != s)
        sampling_client_unref(s->base);
    else {
        helper_release(s->far);
        pthread_mutex_destroy(&s->lock);
    }
    free(s->id);
    free(s);
}

tinker_status tinker_sampler_set_retry(tinker_sampler *s, const tinker_retry_options *opts,
                                       tinker_error *err)
{
    tinker_retry_options ours = TINKER_RETRY_OPTIONS_INIT;
    if (opts_copy(&ours, sizeof(ours), opts, "tinker_retry_options", err) != TINKER_OK ||
        sample_retry_check(&ours, err) != TINKER_OK)
        return TINKER_EINVAL;
    pthread_mutex_lock(&s->base->lock);
    s->base->retry = ours;
    pthread_mutex_unlock(&s->base->lock);
    return TINKER_OK;
}

tinker_sampler *tinker_sampler_with(tinker_sampler *s, const tinker_call_options *opts,
                                    tinker_error *err)
{
    struct call_options *p = call_options_make(opts, err);
    tinker_sampler *made = p ? calloc(1, sizeof(*made)) : NULL;
    char *id = made ? strdup(s->id) : NULL;
    if (!id) {
        if (p)
            err_nomem(err, "sampling client");
        call_options_unref(p);
        free(made);
        return NULL;
    }
    atomic_init(&made->refs, 1);
    made->base = s->base;
    made->options = p;
    made->session = s->session;
    made->id = id;
    sampling_client_ref(made->base);
    return made;
}

void tinker_sampler_free(tinker_sampler *s)
{
    sampling_client_unref(s);
}

void tinker_sampler_record_stability_info(tinker_sampler *s, int on)
{
    atomic_store(&s->base->records_stability, on != 0);
}

const char *tinker_sampler_id(const tinker_sampler *s)
{
    return s->id;
}

/* ---- create_sampling_session ---------------------------------------------------------- */

/* Opening a sampling session: wait for the session, one POST; the answer is there at once,
 * nothing is polled. */
struct open_op {
    struct operation op;
    struct session_wait wait;
    char *base_model, *model_path;
    struct buf body;
    struct call call;
};

static const struct call_spec open_spec = {
    .name = "create_sampling_session",
    .method = "POST",
    .pool = POOL_SESSION,
    .max_retries = CALL_DEFAULT,
};

static void open_destroy(struct operation *op)
{
    struct open_op *o = (struct open_op *)op; /* first member */
    call_clear(&o->call);
    buf_clear(&o->body);
    free(o->base_model);
    free(o->model_path);
    free(o);
}

static void open_abandon(struct operation *op)
{
    struct open_op *o = (struct open_op *)op;
    session_forget(&o->wait);
    call_cancel(&o->call);
    operation_destroy(op);
}

/* The answer names the sampling session. */
static void open_done(struct call *c)
{
    struct open_op *o = container_of(c, struct open_op, call);
    struct wire_create_sampling_session_response res;
    const struct buf *body = &c->http.resp.body;
    if (c->outcome != CALL_OK) {
        operation_note_response(&o->op, c);
        operation_fail(&o->op, &c->err);
        return;
    }
    struct tinker_future *f = o->op.future;
    tinker_status s =
        wire_decode_json(&wire_create_sampling_session_response, body->data ? body->data : "",
                         body->len, WIRE_LENIENT, &f->arena, &res, &c->err);
    if (wire_as_answer(s, &c->err) == TINKER_OK)
        f->value =
            sampling_client_new(o->op.session, res.sampling_session_id, o->op.options, &c->err);
    if (f->value)
        operation_succeed(&o->op);
    else
        operation_fail(&o->op, &c->err);
}

/* There is a session. sampling_seq numbers its samplers, so that a retry does not open a second
 * one. */
static void open_ready(struct session_wait *w, const tinker_error *err)
{
    struct open_op *o = container_of(w, struct open_op, wait);
    struct session *h = o->op.session;
    tinker_error failed;
    if (err) {
        operation_fail(&o->op, err);
        return;
    }
    struct wire_create_sampling_session_request req = { .session_id = h->session_id,
                                                        .sampling_session_seq_id =
                                                            h->sampling_seq++,
                                                        .base_model = o->base_model,
                                                        .model_path = o->model_path };
    buf_init(&o->body, 1 << 20);
    if (wire_encode_json(&wire_create_sampling_session_request, &req, &o->body, &failed) !=
        TINKER_OK) {
        operation_fail(&o->op, &failed);
        return;
    }
    o->call.session = h;
    o->call.op = &o->op;
    o->call.spec = &open_spec;
    o->call.path = "api/v1/create_sampling_session";
    o->call.body = o->body.data;
    o->call.body_len = o->body.len;
    o->call.done = open_done;
    call_start(&o->call);
}

static void open_start(struct operation *op)
{
    struct open_op *o = (struct open_op *)op;
    o->wait.ready = open_ready;
    session_when_ready(op->session, &o->wait);
}

static const struct operation_class open_class = {
    .name = "create_sampling_session",
    .start = open_start,
    .abandon = open_abandon,
    .destroy = open_destroy,
};

/* Refuse what cannot be right anywhere: neither model nor path, or a path of training state. */
static tinker_status check_source(const char *base_model, const char *model_path, tinker_error *err)
{
    struct wire_path path;
    if (!base_model && !model_path)
        return err_set(err, TINKER_EINVAL, "a sampler needs a base model or a model path");
    if (!model_path)
        return TINKER_OK;
    tinker_status s = wire_path_parse_known(model_path, &path, err);
    if (s == TINKER_OK && !path.sampler && !path.bare)
        return err_set(err, TINKER_EINVAL,
                       "%s is training state; save with tinker_training_save_for_sampler() and "
                       "sample from that path",
                       model_path);
    return s;
}

tinker_future *tinker_service_request_sampler(tinker_service *s, const char *base_model,
                                              const char *model_path, tinker_error *err)
{
    if (check_source(base_model, model_path, err) != TINKER_OK)
        return NULL;
    struct session *h = service_session(s, err);
    struct open_op *o = h ? calloc(1, sizeof(*o)) : NULL;
    if (!o) {
        if (h)
            err_nomem(err, "create_sampling_session");
        return NULL;
    }
    o->base_model = base_model ? strdup(base_model) : NULL;
    o->model_path = model_path ? strdup(model_path) : NULL;
    tinker_future *f = NULL;
    if ((base_model && !o->base_model) || (model_path && !o->model_path))
        err_nomem(err, "create_sampling_session");
    else
        f = operation_submit(&o->op, &open_class, h, RESULT_SAMPLER, s->options, err);
    if (!f)
        open_destroy(&o->op);
    return f;
}

tinker_sampler *tinker_service_create_sampler(tinker_service *s, const char *base_model,
                                              const char *model_path, int64_t timeout_ms,
                                              tinker_error *err)
{
    if (runtime_may_block("tinker_service_create_sampler", err) != TINKER_OK)
        return NULL;
    return service_await_sampler(tinker_service_request_sampler(s, base_model, model_path, err),
                                 timeout_ms, err);
}
