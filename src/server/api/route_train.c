/* route_train.c - models and training requests: checked, numbered and queued here, run on the
 * engine thread (train.c).
 *
 * A request with a number must use it up even if it is refused, because the model waits for every
 * number (queue.c).  So refusals are submitted as jobs that fail in their turn, and a 4xx is sent
 * only where no number is involved, or in addition. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/rand.h"
#include "server/api/routes.h"
#include "server/work/submit.h"
#include "wire/check.h"
#include "wire/path.h"

/* ---- numbered requests ----------------------------------------------------------------- */

/* Decode a training request and submit it. */
static void submit_request(struct server *s, struct request *req, struct response *res,
                           enum job_kind kind)
{
    const char *type = req->content_type;
    /* Types may have parameters after a semicolon, so only their beginnings are compared. */
    bool proto = type && (strncasecmp(type, "application/x-protobuf", 22) == 0 ||
                          strncasecmp(type, "application/protobuf", 20) == 0);
    tinker_error err = { 0 };
    struct job *w = job_new(kind);
    if (!w) {
        response_no_memory(res);
        return;
    }
    const char *model_id, *id = NULL;
    struct wire_opt_int seq;
    /* Protobuf and JSON fill the same struct. */
    if (job_decode(w, proto, req->body, req->n_body, &err) == TINKER_OK) {
        /* Copied: the job and its arena may be gone when the response is written. */
        model_id = arena_strdup(&req->arena, job_model_id(w));
        seq = job_seq(w);
        req->tokens = job_tokens(w);
    } else if (err.status != TINKER_ENOMEM &&
               job_peek(proto, req->body, req->n_body, &req->arena, &model_id, &seq)) {
        /* It does not decode, but its number can be read.  It is submitted to fail when its turn
         * comes; otherwise the numbers after it would wait for it in vain. */
        snprintf(w->refused, sizeof(w->refused), "%s", err.message);
    } else {
        job_free(w);
        route_bad_body(res, &err);
        return;
    }
    if (!model_id) { /* not "no such model", for which clients give up */
        job_free(w);
        response_no_memory(res);
        return;
    }
    /* For the access log. */
    req->model = model_id;
    int status = submit_train(s, req->user, model_id, seq, w, proto, req->body, req->n_body,
                              &req->arena, &id, &err);
    route_submitted(s, res, status, id, model_id, &err);
}

/* All numbered requests but load_weights.  The kind is the last segment of the route's path. */
void route_submit(struct server *s, struct request *req, struct response *res)
{
    static const enum job_kind kinds[] = {
        JOB_FORWARD_BACKWARD, JOB_FORWARD,       JOB_OPTIM_STEP, JOB_SAVE,
        JOB_SAVE_SAMPLER,     JOB_SAVE_EXTERNAL, JOB_UNLOAD
    };
    const char *name = strrchr(req->route->path, '/') + 1;
    size_t i = 0;
    /* Searched by name, so that the table of routes needs no column for the kind. */
    while (strcmp(job_kind_name(kinds[i]), name) != 0)
        i++; /* the table in routes.c has only these names */
    submit_request(s, req, res, kinds[i]);
}

/* ---- new models ----------------------------------------------------------------------------- */

/* Record and queue request 0 of a model.  Takes over the job. */
static void submit_model(struct server *s, struct request *req, struct response *res, struct job *w,
                         struct session *session, int64_t model_seq, struct base *base,
                         const tinker_lora *lora, struct json_str metadata)
{
    tinker_error err = { 0 };
    const char *id = NULL;
    int64_t now = live_wall_us(s);
    struct store_model record = {
        /* The id says where the model comes from: a retry with the same model_seq_id has the same
         * one. */
        .id = arena_printf(&req->arena, "%s:train:%lld", session->id, (long long)model_seq),
        .session_id = session->id,
        .owner = req->user,
        .base_model = base->name,
        .lora = *lora,
        .user_metadata = metadata.s ? arena_strndup(&req->arena, metadata.s, metadata.n) : NULL,
        .created_us = now,
        .last_request_us = now,
        /* -1: nothing was saved yet. */
        .saved_seq = -1
    };
    int status = SUBMIT_FAILED;
    if (record.id) /* takes over the job, whatever happens */
        status = submit_create(s, &record, session, base, w, req->body, req->n_body, &req->arena,
                               &id, &err);
    else
        job_free(w);
    route_submitted(s, res, status, id, record.id, &err);
}

/* Problems of a new model make its creation fail in the future, not here: clients submit further
 * requests before they look at the first result. */
static const char *choose_optimizer(struct job *w, const struct wire_optimizer_config *config)
{
    const char *name = config && strcmp(config->type, "dimuon") == 0 ? "dimuon" : NULL;
    /* Other optimizers may come; a client that asks for one must not train with another
     * silently. */
    if (config && !name && strcmp(config->type, "adamw") != 0)
        snprintf(w->refused, sizeof(w->refused),
                 "optimizer '%.40s' is not supported here (adamw, dimuon)", config->type);
    else if (name && config->version.has && config->version.value != 1)
        snprintf(w->refused, sizeof(w->refused),
                 "optimizer dimuon is version 1 here, version %lld is not supported",
                 (long long)config->version.value);
    return name;
}

/* create_model: the model's id is derived from session and model_seq_id, so a retry finds it. */
void route_create_model(struct server *s, struct request *req, struct response *res)
{
    tinker_error err = { 0 };
    struct job *w = job_new(JOB_CREATE);
    if (!w)
        err_nomem(&err, "request");
    if (!w || job_decode(w, false, req->body, req->n_body, &err) != TINKER_OK) {
        job_free(w);
        route_bad_body(res, &err);
        return;
    }
    const struct wire_create_model_request *in = &w->create;
    /* Without a session or a number there is no model whose creation could fail: refuse at once. */
    struct session *session = route_session(s, req, in->session_id);
    struct base *base = live_find_base(s, in->base_model);
    /* A model without LoRA would need the memory of a whole base model per run. */
    if (!session || !in->lora_config || in->model_seq_id < 0) {
        if (!session)
            response_error(res, 404, "Session not found");
        else
            response_error(res, 400,
                           in->lora_config ? "model_seq_id must not be negative"
                                           : "Missing LoRA config");
        job_free(w);
        return;
    }
    tinker_lora lora = *in->lora_config;
    if (!lora.has_seed) {
        /* Chosen once and recorded: a replay must start from the same weights. */
        uint64_t seed = 0;
        rand_os(&seed, sizeof(seed));
        lora.has_seed = 1;
        /* Shifted: positive in every client's integers. */
        lora.seed =
            s->opts.has_default_lora_seed ? s->opts.default_lora_seed : (int64_t)(seed >> 33);
    }
    if (lora.rank < 1 || lora.rank > s->opts.max_rank)
        snprintf(w->refused, sizeof(w->refused),
                 "lora_config.rank must be from 1 to %lld, not %lld", (long long)s->opts.max_rank,
                 (long long)lora.rank);
    else if (wire_check_lora(&lora, &err) != TINKER_OK)
        snprintf(w->refused, sizeof(w->refused), "%s", err.message);
    lora.optimizer = choose_optimizer(w, in->optimizer_config);
    if (!base) {
        snprintf(w->refused, sizeof(w->refused), "base model '%.100s' is not served here",
                 in->base_model);
        base = &s->bases[0]; /* any will do: the job only fails */
    }
    submit_model(s, req, res, w, session, in->model_seq_id, base, &lora, in->user_metadata);
}

/* load_weights that also creates the model it loads into. */
static void submit_model_by_load(struct server *s, struct request *req, struct response *res,
                                 struct job *w)
{
    const struct wire_load_weights_request *in = &w->load;
    struct session *session = route_session(s, req, in->session_id);
    if (!session) {
        response_error(res, 404, "Session not found");
        job_free(w);
        return;
    }
    struct store_checkpoint *c = route_checkpoint_path(s, req, res, in->path);
    if (!c) {
        job_free(w);
        return;
    }
    struct base *base = live_find_base(s, in->base_model ? in->base_model : c->base_model);
    if (!base) {
        snprintf(w->refused, sizeof(w->refused), "base model '%.100s' is not served here",
                 in->base_model ? in->base_model : c->base_model);
        base = &s->bases[0];
    }
    tinker_lora lora = c->lora;
    if (!in->optimizer)
        lora.optimizer = choose_optimizer(w, in->optimizer_config);
    else if (in->optimizer_config)
        snprintf(w->refused, sizeof(w->refused),
                 "optimizer_config cannot override the optimizer whose state is loaded");
    /* The kind tells the engine thread to make the model before it loads. */
    w->kind = JOB_CREATE_BY_LOAD; /* the same body, decoded in the same way */
    submit_model(s, req, res, w, session, in->model_seq_id.value, base, &lora, in->user_metadata);
}

/* load_weights: into an existing model (model_id), or creating one (session_id, model_seq_id).  Two
 * uses of one endpoint, told apart by which members are given. */
void route_load_weights(struct server *s, struct request *req, struct response *res)
{
    tinker_error err = { 0 };
    struct wire_path path;
    struct job *w = job_new(JOB_LOAD);
    if (!w)
        err_nomem(&err, "request");
    if (!w || job_decode(w, false, req->body, req->n_body, &err) != TINKER_OK) {
        job_free(w);
        route_bad_body(res, &err);
        return;
    }
    const struct wire_load_weights_request *in = &w->load;
    bool by_model = in->model_id != NULL, by_session = in->session_id && in->model_seq_id.has;
    /* --allow-local-paths: a directory of this machine instead of a checkpoint. */
    bool local = s->opts.allow_local_paths && strncmp(in->path, "file:///", 8) == 0;
    const char *problem = NULL;
    char late[80]; /* must outlive `problem` */
    snprintf(late, sizeof(late), "LoadWeights is not permitted with seq_id %lld",
             (long long)in->seq_id.value);
    if (by_model == by_session)
        problem = "either model_id or session_id and model_seq_id must be given";
    else if (wire_path_parse(in->path, &path, NULL) != TINKER_OK && !(by_model && local))
        problem = "request.path must be in format tinker://source_model_id/weights/checkpoint_id";
    else if (by_session && in->model_seq_id.value < 0)
        problem = "model_seq_id must not be negative";
    else if (by_model && in->seq_id.has && in->seq_id.value != 1)
        problem = late;
    else if (by_model && in->optimizer_config)
        problem =
            "optimizer_config is set when a model is created, not when weights are loaded into it";
    if (!problem && by_session) {
        submit_model_by_load(s, req, res, w);
    } else if (!problem) {
        job_free(w); /* decoded only to check it; the common way decodes again */
        submit_request(s, req, res, JOB_LOAD);
    } else {
        /* Respond 400.  Its number is used up all the same, or those after it would wait for it.
         * The journal gets no body, because it must not run after a restart either. */
        const char *model_id = in->model_id ? arena_strdup(&req->arena, in->model_id) : NULL;
        const char *id = NULL;
        int status = SUBMIT_OK;
        if (model_id && in->seq_id.has) {
            snprintf(w->refused, sizeof(w->refused), "%s", problem);
            status = submit_train(s, req->user, model_id, in->seq_id, w, false, "", 0, &req->arena,
                                  &id, &err);
        } else {
            job_free(w);
        }
        if (status == SUBMIT_BUSY || status == SUBMIT_FAILED)
            route_submitted(s, res, status, id, model_id, &err);
        else
            response_error(res, 400, "%s", problem);
    }
}

/* ---- information ------------------------------------------------------------------------------ */

/* The Python SDK cuts a tokenizer id at a colon, so a path with one cannot be announced. */
static const char *tokenizer_id(const struct server *s, const struct base *base)
{
    /* Only a directory of this machine can be announced, and only if the user allowed it. */
    bool usable =
        s->opts.advertise_tokenizer && base && base->has_tokenizer && !strchr(base->dir, ':');
    return usable ? base->dir : NULL;
}

/* The Python SDK's get_tokenizer() of a sampling client knows the base model's name only, and loads
 * that from the Hub, where a directory of this machine is not.  It takes a path as well. */
const char *route_sdk_base_model(const struct server *s, const struct request *req,
                                 const char *base_model)
{
    const struct base *base = live_find_base((struct server *)(uintptr_t)s, base_model);
    const char *dir = tokenizer_id(s, base);
    /* Directories of the Hub's cache are found by name.  A cached model has the Hub's name, which
     * the SDK resolves by itself. */
    bool local = dir && !strstr(dir, "/snapshots/");
    return local && req->sdk_version ? dir : base_model;
}

/* get_info: what the SDK needs to know of a model, the tokenizer above all. */
void route_get_info(struct server *s, struct request *req, struct response *res)
{
    struct wire_get_info_request in;
    struct store_model *m = NULL;
    tinker_error err = { 0 };
    if (!route_body(req, res, &wire_get_info_request, &in))
        return;
    if (store_get_model(s->store, in.model_id, &req->arena, &m, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    if (!m || strcmp(m->owner, req->user) != 0) {
        response_error(res, 404, "Model not found");
        return;
    }
    struct base *base = live_find_base(s, m->base_model);
    const struct wire_optimizer_config optimizer = { .type = m->lora.optimizer };
    struct wire_get_info_response r = {
        .model_data = { .arch = base ? tinker_engine_describe(base->engine)->arch : NULL,
                        .model_name = m->base_model,
                        .tokenizer_id = tokenizer_id(s, base) },
        .model_id = m->id,
        .is_lora = { 1, m->lora.rank > 0 },
        .lora_rank = { 1, m->lora.rank },
        .model_name = m->base_model,
        .optimizer_config = optimizer.type ? &optimizer : NULL
    };
    route_reply(res, &wire_get_info_response, &r);
}

/* weights_info: what a model must look like to load a checkpoint. */
void route_weights_info(struct server *s, struct request *req, struct response *res)
{
    struct wire_weights_info_request in;
    if (!route_body(req, res, &wire_weights_info_request, &in))
        return;
    struct store_checkpoint *c = route_checkpoint_path(s, req, res, in.tinker_path);
    if (!c)
        return;
    const struct wire_optimizer_config optimizer = { .type = c->lora.optimizer };
    struct wire_weights_info_response r = { .base_model = c->base_model,
                                            .is_lora = c->lora.rank > 0,
                                            .lora_rank = { 1, c->lora.rank },
                                            .train_unembed = { 1, c->lora.train_unembed },
                                            .train_mlp = { 1, c->lora.train_mlp },
                                            .train_attn = { 1, c->lora.train_attn },
                                            .optimizer_config =
                                                optimizer.type ? &optimizer : NULL };
    route_reply(res, &wire_weights_info_response, &r);
}
