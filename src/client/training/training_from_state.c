/* training_from_state.c - a training client that continues from saved weights.
 *
 *   weights_info (what were they?) -> create_model -> poll -> load_weights -> poll
 *   or, when the service can: load_weights that creates the model -> poll
 *
 * Runs on the loop thread, except the submit functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/call.h"
#include "client/call/poll.h"
#include "client/future/result.h"
#include "client/session/service.h"
#include "client/training/training_client.h"
#include "wire/wire.h"

/* One operation through all its steps; there is one call and one poll at a time. */
struct from_state_op {
    struct operation op;
    struct session_wait wait;
    struct session *info;       /* whom to ask about the weights: REST, or another account's */
    struct config *foreign_cfg; /* of that account; shares all strings but the key */
    bool foreign;
    char *path, *base_model, *token, *metadata, *load_token, *optimizer_name;
    bool optimizer;
    struct auth_wait auth;
    struct arena arena;
    struct wire_weights_info_response weights;
    struct buf body;
    struct call call;
    struct poll poll;
    struct queue_state watch;
    int64_t model_seq;
    tinker_training *made;
};

static const struct call_spec info_spec = {
    .name = "weights_info",
    .method = "POST",
    .pool = POOL_TRAIN,
    .max_retries = CALL_DEFAULT,
    .outer = true,
};
static const struct call_spec create_spec = {
    .name = "create_model",
    .method = "POST",
    .pool = POOL_TRAIN,
    .max_retries = CALL_DEFAULT,
};
static const struct call_spec load_spec = {
    .name = "load_weights",
    .method = "POST",
    .pool = POOL_TRAIN,
    .max_retries = CALL_DEFAULT,
    .outer = true,
};
static const struct poll_kind create_kind = { "CreateModel", false };

/* ---- ends ------------------------------------------------------------------------------------- */

static void free_config(void *arg)
{
    free(arg);
}

/* A session object that was opened for a foreign account is closed on the loop, after its last
 * call. */
static void from_state_destroy(struct operation *op)
{
    struct from_state_op *s = (struct from_state_op *)op; /* first member */
    call_clear(&s->call);
    poll_clear(&s->poll);
    buf_clear(&s->body);
    arena_clear(&s->arena);
    training_client_unref(s->made);
    if (s->foreign && s->info)
        session_close(s->info, free_config, s->foreign_cfg);
    free(s->path);
    free(s->base_model);
    free(s->token);
    free(s->load_token);
    free(s->metadata);
    free(s->optimizer_name);
    free(s);
}

static void from_state_abandon(struct operation *op)
{
    struct from_state_op *s = (struct from_state_op *)op;
    session_forget(&s->wait);
    auth_forget(&s->auth);
    call_cancel(&s->call);
    poll_cancel(&s->poll);
    operation_destroy(op);
}

/* ---- requests and promises ---------------------------------------------------------------------- */

/* One step: encode the request and start the call. `part` tells the steps apart in logs and
 * events. */
static void send_request(struct from_state_op *s, struct session *h, const struct call_spec *spec,
                         const struct wire_type *type, const void *value, const char *path,
                         void (*done)(struct call *c))
{
    tinker_error err;
    buf_reset(&s->body);
    if (wire_encode_json(type, value, &s->body, &err) != TINKER_OK) {
        operation_fail(&s->op, &err);
        return;
    }
    struct call *c = &s->call;
    c->session = h;
    c->op = &s->op;
    c->part = spec == &info_spec ? 0 : spec == &create_spec ? 1 : 2;
    c->spec = spec;
    c->path = path;
    c->body = s->body.data;
    c->body_len = s->body.len;
    c->done = done;
    call_start(c);
}

/* Until the model has an id the log names it by its base model, or by the path of the weights. */
static void on_queue_state(struct poll *p, enum wire_queue_state state, const char *reason,
                           bool changed)
{
    struct from_state_op *s = container_of(p, struct from_state_op, poll);
    const char *who = s->made ? s->made->model_id : s->base_model ? s->base_model : s->path;
    queue_state_report(&s->watch, s->op.session, QUEUE_STATE_CREATION, who, state, reason, changed);
}

/* Poll for the promise in the answer of s->call. */
static void poll_promise(struct from_state_op *s, const struct poll_kind *kind,
                         tinker_status (*decode)(struct poll *, const char *, size_t, bool,
                                                 tinker_error *),
                         void (*done)(struct poll *p))
{
    struct call *c = &s->call;
    char id[112];
    if (c->outcome != CALL_OK || submission_id(c, id, sizeof(id)) != TINKER_OK) {
        operation_note_response(&s->op, c);
        operation_fail(&s->op, &c->err);
        return;
    }
    s->poll.session = s->op.session;
    s->poll.kind = kind;
    s->poll.future = s->op.future;
    s->poll.started_ns = c->start_ns;
    s->poll.decode = decode;
    s->poll.queue_state = on_queue_state;
    s->poll.done = done;
    poll_start(&s->poll, id);
}

/* true: it failed, and so has the operation. */
static bool poll_failed(struct from_state_op *s, struct poll *p)
{
    if (p->ok)
        return false;
    operation_note_response(&s->op, &p->call);
    operation_fail(&s->op, &p->call.err);
    return true;
}

/* ---- load_weights -------------------------------------------------------------------------------- */

static tinker_status load_decode(struct poll *p, const char *body, size_t n, bool proto,
                                 tinker_error *err)
{
    struct from_state_op *s = container_of(p, struct from_state_op, poll);
    struct wire_load_weights_response res;
    (void)proto;
    return wire_decode_json(&wire_load_weights_response, body, n, WIRE_LENIENT, &s->arena, &res,
                            err);
}

static void load_polled(struct poll *p)
{
    struct from_state_op *s = container_of(p, struct from_state_op, poll);
    if (poll_failed(s, p))
        return;
    log_line(&s->op.session->log, LOG_INFO, "training client initialized for model %s",
             s->made->model_id);
    s->op.future->value = s->made;
    s->made = NULL;
    operation_succeed(&s->op);
}

/* load_weights was accepted: poll for the end of loading. */
static void load_sent(struct call *c)
{
    poll_promise(container_of(c, struct from_state_op, call), &result_load.poll, load_decode,
                 load_polled);
}

/* Load into the model that was just created. The request takes number 1, so the client that the
 * user gets starts behind it. */
static void load_weights(struct from_state_op *s)
{
    struct wire_load_weights_request req = {
        .model_id = s->made->model_id,
        .seq_id = { 1, 1 },
        .path = s->path,
        .optimizer = s->optimizer,
        .weights_access_token = s->load_token ? s->load_token : s->token,
    };
    s->made->next_id = 1; /* this request takes the first number and turn */
    s->made->send_order.counter = 1;
    send_request(s, s->op.session, &load_spec, &wire_load_weights_request, &req,
                 "api/v1/load_weights", load_sent);
}

/* One request that creates the model and loads it; its id follows from ours. */
static void load_as_new(struct from_state_op *s)
{
    struct session *h = s->op.session;
    char id[160];
    tinker_error err;
    s->model_seq = h->model_seq++;
    snprintf(id, sizeof(id), "%s:train:%lld", h->session_id, (long long)s->model_seq);
    s->made = training_client_new(h, id, s->op.options, &err);
    if (!s->made) {
        operation_fail(&s->op, &err);
        return;
    }
    struct wire_load_weights_request req = {
        .session_id = h->session_id,
        .model_seq_id = { 1, s->model_seq },
        .base_model = s->base_model,
        .path = s->path,
        .optimizer = s->optimizer,
        .weights_access_token = s->token,
    };
    const struct wire_optimizer_config optimizer = training_client_optimizer(s->optimizer_name);
    if (s->optimizer_name)
        req.optimizer_config = &optimizer;
    if (s->metadata)
        req.user_metadata = (struct json_str){ s->metadata, strlen(s->metadata) };
    send_request(s, h, &load_spec, &wire_load_weights_request, &req, "api/v1/load_weights",
                 load_sent);
}

/* ---- create_model -------------------------------------------------------------------------------- */

/* The id of the new model; its client is finished only when the weights are in. */
static tinker_status state_create_decode(struct poll *p, const char *body, size_t n, bool proto,
                                         tinker_error *err)
{
    struct from_state_op *s = container_of(p, struct from_state_op, poll);
    struct wire_create_model_response res;
    (void)proto;
    tinker_status status =
        wire_decode_json(&wire_create_model_response, body, n, WIRE_LENIENT, &s->arena, &res, err);
    if (status != TINKER_OK)
        return status;
    s->made = training_client_new(s->op.session, res.model_id, s->op.options, err);
    return s->made ? TINKER_OK : TINKER_ENOMEM;
}

static void state_create_polled(struct poll *p)
{
    struct from_state_op *s = container_of(p, struct from_state_op, poll);
    if (!poll_failed(s, p))
        load_weights(s);
}

static void state_create_sent(struct call *c)
{
    poll_promise(container_of(c, struct from_state_op, call), &create_kind, state_create_decode,
                 state_create_polled);
}

/* A model of the shape that the weights have: rank and modules are those of weights_info. Modules
 * it does not mention were trained: older services did not say. */
static void create_model(struct from_state_op *s)
{
    struct session *h = s->op.session;
    const struct wire_weights_info_response *w = &s->weights;
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = w->lora_rank.value;
    lora.train_attn = !w->train_attn.has || w->train_attn.value;
    lora.train_mlp = !w->train_mlp.has || w->train_mlp.value;
    lora.train_unembed = !w->train_unembed.has || w->train_unembed.value;
    struct wire_create_model_request req = {
        .session_id = h->session_id,
        .model_seq_id = h->model_seq++,
        .base_model = s->base_model ? s->base_model : w->base_model,
        .lora_config = &lora,
    };
    /* Whose state is loaded next; or as asked for. */
    const struct wire_optimizer_config asked = training_client_optimizer(s->optimizer_name);
    req.optimizer_config = s->optimizer ? w->optimizer_config : s->optimizer_name ? &asked : NULL;
    if (s->metadata)
        req.user_metadata = (struct json_str){ s->metadata, strlen(s->metadata) };
    send_request(s, h, &create_spec, &wire_create_model_request, &req, "api/v1/create_model",
                 state_create_sent);
}

/* ---- weights_info --------------------------------------------------------------------------------- */

/* The credential under which the weights were looked up goes along with the load. */
static void on_token(struct auth_wait *w, const char *token, const tinker_error *err)
{
    struct from_state_op *s = container_of(w, struct from_state_op, auth);
    if (!err && token)
        s->load_token = strdup(token);
    create_model(s);
}

/* The answer says what the weights are; only LoRA weights of a known rank can be continued from. */
static void info_done(struct call *c)
{
    struct from_state_op *s = container_of(c, struct from_state_op, call);
    const struct buf *body = &c->http.resp.body;
    tinker_status status = TINKER_OK;
    if (c->outcome == CALL_OK)
        status = wire_decode_json(&wire_weights_info_response, body->data ? body->data : "",
                                  body->len, WIRE_LENIENT, &s->arena, &s->weights, &c->err);
    if (c->outcome == CALL_OK && status == TINKER_OK &&
        (!s->weights.is_lora || !s->weights.lora_rank.has))
        status = err_set(&c->err, TINKER_EINVAL, "%s does not hold LoRA weights of a known rank",
                         s->path);
    if (c->outcome != CALL_OK || status != TINKER_OK) {
        operation_note_response(&s->op, c);
        operation_fail(&s->op, &c->err);
    } else if (s->foreign && !s->optimizer) {
        s->auth.ready = on_token;
        auth_token(s->info->auth, &s->auth, AUTH_NORMAL);
    } else
        create_model(s);
}

static void info_ready(struct session_wait *w, const tinker_error *err)
{
    struct from_state_op *s = container_of(w, struct from_state_op, wait);
    struct wire_weights_info_request req = { s->path };
    if (err) {
        operation_fail(&s->op, err);
        return;
    }
    send_request(s, s->info, &info_spec, &wire_weights_info_request, &req, "api/v1/weights_info",
                 info_done);
}

/* Weights of another account: ask about them with its credential, through a session object
 * without a session. It shares the configuration but for the key. */
static bool use_foreign(struct from_state_op *s, tinker_error *err)
{
    struct session *h = s->op.session;
    struct config *cfg = malloc(sizeof(*cfg));
    if (!cfg) {
        err_nomem(err, "credentials");
        return false;
    }
    *cfg = *h->cfg;
    cfg->api_key = arena_strdup(&h->arena, s->token); /* outlives the session that uses it */
    cfg->credential_cmd = NULL;
    cfg->telemetry = false;
    s->info = cfg->api_key ? session_new(h->rt, cfg, false, err) : NULL;
    s->foreign_cfg = cfg;
    s->foreign = s->info != NULL;
    if (s->foreign)
        s->info->hooks = h->hooks;
    else
        free(cfg);
    return s->foreign;
}

/* Our session is open. A service that can create the model while loading needs one request
 * instead of three. */
static void session_ready(struct session_wait *w, const tinker_error *err)
{
    struct from_state_op *s = container_of(w, struct from_state_op, wait);
    tinker_error failed;
    if (err) {
        operation_fail(&s->op, err);
        return;
    }
    if (s->op.session->server.create_model_via_load_weights) {
        load_as_new(s);
        return;
    }
    if (s->token && !use_foreign(s, &failed)) {
        operation_fail(&s->op, &failed);
        return;
    }
    s->wait.ready = info_ready;
    session_when_ready(s->info, &s->wait);
}

static void from_state_start(struct operation *op)
{
    struct from_state_op *s = (struct from_state_op *)op;
    s->wait.ready = session_ready;
    session_when_ready(op->session, &s->wait);
}

static const struct operation_class from_state_class = {
    .name = "create_from_state",
    .start = from_state_start,
    .abandon = from_state_abandon,
    .destroy = from_state_destroy,
};

/* ---- submitting, in the caller's thread -------------------------------------------------------------- */

static bool copy_string(char **out, const char *text)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out;
}

/* Keep what the caller gave. The token is a secret from now on: the log never shows it. */
static bool copy_options(struct from_state_op *s, const char *path,
                         const tinker_from_state_options *o, tinker_error *err)
{
    arena_init(&s->arena, 16 << 20);
    buf_init(&s->body, 16 << 20);
    s->optimizer = o->optimizer != 0;
    if (!copy_string(&s->path, path) || !copy_string(&s->base_model, o->base_model) ||
        !copy_string(&s->token, o->access_token) ||
        !copy_string(&s->optimizer_name, o->optimizer_name)) {
        err_nomem(err, "create_from_state");
        return false;
    }
    log_secret(s->token);
    if (!o->n_user_metadata)
        return true;
    struct buf b;
    buf_init(&b, 16 << 20);
    if (wire_metadata_encode(o->user_metadata, o->n_user_metadata, &b, err) == TINKER_OK)
        s->metadata = buf_detach(&b, NULL);
    buf_clear(&b);
    return s->metadata != NULL;
}

tinker_future *tinker_service_request_from_state(tinker_service *service, const char *path,
                                                 const tinker_from_state_options *opts,
                                                 tinker_error *err)
{
    tinker_from_state_options o = TINKER_FROM_STATE_OPTIONS_INIT;
    if (opts_copy(&o, sizeof(o), opts, "tinker_from_state_options", err) != TINKER_OK ||
        training_client_check_path(path, err) != TINKER_OK)
        return NULL;
    if (o.optimizer && o.optimizer_name) {
        err_set(err, TINKER_EINVAL,
                "optimizer_name cannot override the optimizer whose state is loaded");
        return NULL;
    }
    struct session *h = service_session(service, err),
                   *rest = h ? service_rest(service, err) : NULL;
    struct from_state_op *s = rest ? calloc(1, sizeof(*s)) : NULL;
    if (!s) {
        if (rest)
            err_nomem(err, "create_from_state");
        return NULL;
    }
    s->info = rest;
    tinker_future *f = NULL;
    if (copy_options(s, path, &o, err))
        f = operation_submit(&s->op, &from_state_class, h, RESULT_TRAINING, service->options, err);
    if (!f)
        from_state_destroy(&s->op);
    return f;
}

tinker_training *tinker_service_create_from_state(tinker_service *s, const char *path,
                                                  const tinker_from_state_options *opts,
                                                  int64_t timeout_ms, tinker_error *err)
{
    if (runtime_may_block("tinker_service_create_from_state", err) != TINKER_OK)
        return NULL;
    return service_await_training(tinker_service_request_from_state(s, path, opts, err), timeout_ms,
                                  err);
}
