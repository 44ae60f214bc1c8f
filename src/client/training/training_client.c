/* training_client.c - creating training clients, and what they hold.  See training_client.h. */
#include "client/training/training_client.h"

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/call.h"
#include "client/call/call_options.h"
#include "client/call/poll.h"
#include "client/session/service.h"
#include "wire/path.h"
#include "wire/wire.h"

/* With one reference, the user's. Operations take their own, so that the client may be freed
 * while they run. */
tinker_training *training_client_new(struct session *h, const char *model_id,
                                     struct call_options *options, tinker_error *err)
{
    tinker_training *t = calloc(1, sizeof(*t));
    char *id = strdup(model_id);
    if (!t || !id) {
        free(t);
        free(id);
        err_nomem(err, "training client");
        return NULL;
    }
    t->base = t;
    t->options = call_options_ref(options);
    t->session = h;
    t->model_id = id;
    atomic_init(&t->refs, 1);
    pthread_mutex_init(&t->base->lock, NULL);
    return t;
}

/* Any thread that has a reference may take another. */
void training_client_ref(tinker_training *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
}

/* A derived handle holds its base, which has the lock and the gaps; the last of them frees it. */
void training_client_unref(tinker_training *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    call_options_unref(t->options);
    if (t->base != t)
        training_client_unref(t->base);
    else {
        seq_gaps_clear(&t->gaps);
        pthread_mutex_destroy(&t->lock);
    }
    free(t->model_id);
    free(t);
}

/* Ids count from 0; the number on the wire is one higher. */
tinker_status training_client_reserve_locked(tinker_training *t, size_t n, int64_t *first,
                                             tinker_error *err)
{
    if (t->base->unloaded)
        return err_set(err, TINKER_ESTATE, "model %s was unloaded", t->model_id);
    *first = t->base->next_id;
    t->base->next_id += (int64_t)n;
    return TINKER_OK;
}

/* Refuse what cannot be loaded anywhere: an invalid path, or one of weights for sampling,
 * which have no optimizer and may be rounded. */
tinker_status training_client_check_path(const char *path, tinker_error *err)
{
    struct wire_path parsed;
    /* A directory of the service's machine: `tinker serve --allow-local-paths` takes it. */
    if (path && strncmp(path, "file:///", 8) == 0)
        return TINKER_OK;
    tinker_status s = path ? wire_path_parse_known(path, &parsed, err)
                           : err_set(err, TINKER_EINVAL, "no path given");
    if (s == TINKER_OK && parsed.sampler)
        return err_set(err, TINKER_EINVAL,
                       "%s is for sampling only; save with tinker_training_save_state() and load "
                       "that path",
                       path);
    return s;
}

/* Requests of both handles share one order: it belongs to the base. */
tinker_training *tinker_training_with(tinker_training *t, const tinker_call_options *opts,
                                      tinker_error *err)
{
    struct call_options *p = call_options_make(opts, err);
    tinker_training *made = p ? calloc(1, sizeof(*made)) : NULL;
    char *id = made ? strdup(t->model_id) : NULL;
    if (!id) {
        if (p)
            err_nomem(err, "training client");
        call_options_unref(p);
        free(made);
        return NULL;
    }
    atomic_init(&made->refs, 1);
    made->base = t->base;
    made->options = p;
    made->session = t->session;
    made->model_id = id;
    training_client_ref(made->base);
    return made;
}

/* Operations under way hold references of their own, so they go on. */
void tinker_training_free(tinker_training *t)
{
    training_client_unref(t);
}

const char *tinker_training_model_id(const tinker_training *t)
{
    return t->model_id;
}

/* ---- create_model ------------------------------------------------------------------- */

/* Creating a model: wait for the session, POST create_model, poll for its id. */
struct create_op {
    struct operation op;
    struct session_wait wait;
    char *base_model, *metadata; /* metadata: JSON, NULL for none */
    tinker_lora lora;
    char *optimizer;
    struct buf body;
    struct call call;
    struct poll poll;
    struct queue_state watch;
    tinker_training *made;
};

static const struct call_spec create_spec = {
    .name = "create_model",
    .method = "POST",
    .pool = POOL_TRAIN,
    .max_retries = CALL_DEFAULT,
};
static const struct poll_kind create_kind = { "CreateModel", false };

static void create_destroy(struct operation *op)
{
    struct create_op *c = (struct create_op *)op; /* first member */
    call_clear(&c->call);
    poll_clear(&c->poll);
    buf_clear(&c->body);
    training_client_unref(c->made);
    free(c->base_model);
    free(c->optimizer);
    free(c->metadata);
    free(c);
}

/* Canceled. The service may create the model all the same; the session ends it. */
static void create_abandon(struct operation *op)
{
    struct create_op *c = (struct create_op *)op;
    session_forget(&c->wait);
    call_cancel(&c->call);
    poll_cancel(&c->poll);
    operation_destroy(op);
}

/* The result names the model. The client is made here, while a failure can still fail the future.
 */
static tinker_status create_decode(struct poll *p, const char *body, size_t n, bool proto,
                                   tinker_error *err)
{
    struct create_op *c = container_of(p, struct create_op, poll);
    struct wire_create_model_response res;
    struct arena scratch;
    (void)proto;
    arena_init(&scratch, 1 << 20);
    tinker_status s =
        wire_decode_json(&wire_create_model_response, body, n, WIRE_LENIENT, &scratch, &res, err);
    if (s == TINKER_OK) {
        c->made = training_client_new(c->op.session, res.model_id, c->op.options, err);
        s = c->made ? TINKER_OK : TINKER_ENOMEM;
    }
    arena_clear(&scratch);
    return s;
}

/* While the service has no capacity it says so: the observer is told. */
static void create_state(struct poll *p, enum wire_queue_state state, const char *reason,
                         bool changed)
{
    struct create_op *c = container_of(p, struct create_op, poll);
    queue_state_report(&c->watch, c->op.session, QUEUE_STATE_CREATION, c->base_model, state, reason,
                       changed);
}

static void create_polled(struct poll *p)
{
    struct create_op *c = container_of(p, struct create_op, poll);
    if (!p->ok) {
        operation_note_response(&c->op, &p->call);
        operation_fail(&c->op, &p->call.err);
        return;
    }
    log_line(&c->op.session->log, LOG_INFO, "training client initialized for model %s",
             c->made->model_id);
    c->op.future->value = c->made;
    c->made = NULL;
    operation_succeed(&c->op);
}

/* The service has promised a model, or refused. */
static void create_sent(struct call *call)
{
    struct create_op *c = container_of(call, struct create_op, call);
    char id[112];
    if (call->outcome != CALL_OK || submission_id(call, id, sizeof(id)) != TINKER_OK) {
        operation_note_response(&c->op, call);
        operation_fail(&c->op, &call->err);
        return;
    }
    c->poll.session = c->op.session;
    c->poll.kind = &create_kind;
    c->poll.future = c->op.future;
    c->poll.started_ns = call->start_ns;
    c->poll.decode = create_decode;
    c->poll.queue_state = create_state;
    c->poll.done = create_polled;
    poll_start(&c->poll, id);
}

/* As the SDK sends it: of one optimizer the version is known. */
struct wire_optimizer_config training_client_optimizer(const char *name)
{
    bool dimuon = name && strcmp(name, "dimuon") == 0;
    return (struct wire_optimizer_config){ .type = name, .version = { dimuon, dimuon } };
}

/* There is a session. model_seq numbers the models of a session, so that a retry does not create
 * a second one. */
static void create_ready(struct session_wait *w, const tinker_error *err)
{
    struct create_op *c = container_of(w, struct create_op, wait);
    struct session *h = c->op.session;
    tinker_error failed;
    if (err) {
        operation_fail(&c->op, err);
        return;
    }
    struct wire_create_model_request req = { .session_id = h->session_id,
                                             .model_seq_id = h->model_seq++,
                                             .base_model = c->base_model,
                                             .lora_config = &c->lora };
    const struct wire_optimizer_config optimizer = training_client_optimizer(c->optimizer);
    if (c->optimizer)
        req.optimizer_config = &optimizer;
    if (c->metadata)
        req.user_metadata = (struct json_str){ c->metadata, strlen(c->metadata) };
    buf_init(&c->body, 1 << 20);
    if (wire_encode_json(&wire_create_model_request, &req, &c->body, &failed) != TINKER_OK) {
        operation_fail(&c->op, &failed);
        return;
    }
    c->call.session = h;
    c->call.op = &c->op;
    c->call.spec = &create_spec;
    c->call.path = "api/v1/create_model";
    c->call.body = c->body.data;
    c->call.body_len = c->body.len;
    c->call.done = create_sent;
    call_start(&c->call);
}

/* The session is opened first, if this is the first request of the service. */
static void create_start(struct operation *op)
{
    struct create_op *c = (struct create_op *)op;
    c->wait.ready = create_ready;
    session_when_ready(op->session, &c->wait);
}

static const struct operation_class create_class = {
    .name = "create_model",
    .start = create_start,
    .abandon = create_abandon,
    .destroy = create_destroy,
};

/* Copy what the caller gave; on failure the caller of this frees c. */
static bool create_copy(struct create_op *c, const char *base_model, const tinker_lora *lora,
                        tinker_error *err)
{
    c->lora = *lora;
    c->lora.user_metadata = NULL;
    c->lora.optimizer = NULL;
    c->base_model = strdup(base_model);
    c->optimizer = lora->optimizer ? strdup(lora->optimizer) : NULL;
    if (!c->base_model || (lora->optimizer && !c->optimizer)) {
        err_nomem(err, "create_model");
        return false;
    }
    if (!lora->n_user_metadata)
        return true;
    struct buf b;
    buf_init(&b, 16 << 20);
    if (wire_metadata_encode(lora->user_metadata, lora->n_user_metadata, &b, err) == TINKER_OK)
        c->metadata = buf_detach(&b, NULL);
    buf_clear(&b);
    return c->metadata != NULL;
}

tinker_future *tinker_service_request_lora(tinker_service *s, const char *base_model,
                                           const tinker_lora *lora, tinker_error *err)
{
    tinker_lora ours = TINKER_LORA_INIT;
    if (!base_model || !*base_model) {
        err_set(err, TINKER_EINVAL, "create_model needs the name of a base model");
        return NULL;
    }
    if (opts_copy(&ours, sizeof(ours), lora, "tinker_lora", err) != TINKER_OK)
        return NULL;
    /* Which ranks there are, 0 included, is for the service to say; none has negative ones, and
     * an adapter of nothing trains nothing anywhere. */
    if (ours.rank < 0) {
        err_set(err, TINKER_EINVAL, "lora_config.rank: must not be negative, is %lld",
                (long long)ours.rank);
        return NULL;
    }
    if (!ours.train_attn && !ours.train_mlp && !ours.train_unembed) {
        err_set(err, TINKER_EINVAL,
                "lora_config: one of train_attn, train_mlp and train_unembed must be set");
        return NULL;
    }
    struct session *h = service_session(s, err);
    struct create_op *c = h ? calloc(1, sizeof(*c)) : NULL;
    if (!c) {
        if (h)
            err_nomem(err, "create_model");
        return NULL;
    }
    tinker_future *f =
        create_copy(c, base_model, &ours, err)
            ? operation_submit(&c->op, &create_class, h, RESULT_TRAINING, s->options, err)
            : NULL;
    if (!f) {
        free(c->metadata);
        free(c->base_model);
        free(c->optimizer);
        free(c);
    }
    return f;
}

tinker_training *tinker_service_create_lora(tinker_service *s, const char *base_model,
                                            const tinker_lora *lora, int64_t timeout_ms,
                                            tinker_error *err)
{
    if (runtime_may_block("tinker_service_create_lora", err) != TINKER_OK)
        return NULL;
    tinker_future *f = tinker_service_request_lora(s, base_model, lora, err);
    return service_await_training(f, timeout_ms, err);
}
