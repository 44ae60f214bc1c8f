/* route_copy.c - a checkpoint under another run: copy_weights.
 *
 * The files are shared; the copy is a record of its own, with its own run, which cannot be
 * trained, in a new session or one that the caller names.  A retry with the same
 * X-Idempotency-Key finds the first copy, because the session's id is derived from the key. */
#include <stdio.h>
#include <string.h>

#include "base/rand.h"
#include "base/sha.h"
#include "server/api/routes.h"
#include "server/work/usage.h"

enum { TTL_MAX = 10 * 366 * 86400 }; /* seconds in ten years */

/* 200 with the path of the copy. */
static void reply_copied(struct request *req, struct response *res, const char *run,
                         const struct store_checkpoint *c)
{
    struct wire_copy_weights_response r = { arena_printf(&req->arena, "tinker://%s/%s/%s", run,
                                                         store_kind_name(c->kind), c->name) };
    route_reply(res, &wire_copy_weights_response, &r);
}

/* Does the run of the copy exist?  Then respond: it is a retry, or the number is taken. */
static bool reply_if_copied(struct server *s, struct request *req, struct response *res,
                            const char *run, const struct store_checkpoint *from)
{
    struct store_model *m = NULL;
    struct store_checkpoint *c = NULL;
    tinker_error err = { 0 };
    if (store_get_model(s->store, run, &req->arena, &m, &err) != TINKER_OK ||
        store_get_checkpoint(s->store, run, from->kind, from->name, &req->arena, &c, &err) !=
            TINKER_OK) {
        route_store_error(s, res, &err);
        return true;
    }
    if (!m)
        return false;
    /* The same files under the same name: the first copy. */
    if (c && strcmp(c->owner, req->user) == 0 && strcmp(c->dir, from->dir) == 0)
        reply_copied(req, res, run, c);
    else
        response_error(res, 400, "training run %s exists already", run);
    return true;
}

/* Record the copy under its new run. */
static void copy_checkpoint(struct server *s, struct request *req, struct response *res,
                            const struct wire_copy_weights_request *in,
                            const struct store_checkpoint *from, const char *session_id)
{
    int64_t now = live_wall_us(s);
    bool found;
    tinker_error err = { 0 };
    struct store_session session = { .id = session_id,
                                     .owner = req->user,
                                     .tags = "[\"copy_weights\"]",
                                     .project_id = in->destination_project_id,
                                     .created_us = now,
                                     .seen_us = now,
                                     .expired = true /* it has no client */ };
    struct store_model model = {
        .id = arena_printf(&req->arena, "%s:train:%lld", session_id,
                           (long long)(in->model_seq_id.has ? in->model_seq_id.value : 0)),
        .session_id = session_id,
        .owner = req->user,
        .base_model = from->base_model,
        .lora = from->lora,
        .status = STORE_MODEL_UNLOADED, /* a run that only holds the copy */
        .created_us = now,
        .last_request_us = now,
        .saved_seq = -1
    };
    if (!model.id) {
        response_no_memory(res);
        return;
    }
    if (reply_if_copied(s, req, res, model.id, from))
        return;
    struct store_copy c = { .session = in->session_id ? NULL : &session,
                            .model = &model,
                            .run = from->run,
                            .name = from->name,
                            .kind = from->kind,
                            .created_us = now,
                            .expires_us =
                                in->ttl_seconds.has ? now + in->ttl_seconds.value * 1000000 : 0 };
    if (store_copy_checkpoint(s->store, &c, &found, &err) != TINKER_OK)
        route_store_error(s, res, &err);
    else if (!found) /* deleted between the check and the transaction */
        response_error(res, 404, "Checkpoint not found: %s", in->source_path);
    else {
        usage_note(s, req->user, "checkpoint_copy", model.id,
                   arena_printf(&req->arena, "tinker://%s/%s/%s", model.id,
                                store_kind_name(from->kind), from->name),
                   in->source_path, session_id);
        reply_copied(req, res, model.id, from);
    }
}

void route_copy_weights(struct server *s, struct request *req, struct response *res)
{
    struct wire_copy_weights_request in;
    char id[37];
    if (!route_body(req, res, &wire_copy_weights_request, &in))
        return;
    /* Exactly one of the two ways to say where the copy goes. */
    bool by_session = in.session_id && in.model_seq_id.has;
    if (by_session == (in.destination_project_id != NULL)) {
        response_error(
            res, 400, "either destination_project_id or session_id and model_seq_id must be given");
        return;
    }
    if (in.ttl_seconds.has && (in.ttl_seconds.value <= 0 || in.ttl_seconds.value > TTL_MAX)) {
        response_error(res, 400, "ttl_seconds must be from 1 second to 10 years");
        return;
    }
    if (by_session && (in.model_seq_id.value < 0 || !route_session(s, req, in.session_id))) {
        response_error(res, 404, "Session not found");
        return;
    }
    struct store_checkpoint *from = route_checkpoint_path(s, req, res, in.source_path);
    if (!from)
        return;
    rand_uuid(id);
    if (req->idempotency_key) {
        /* The same id for the same key of the same user: a UUID made from their hash. */
        struct sha256 h;
        uint8_t d[32];
        char hex[65];
        sha256_init(&h);
        sha256_update(&h, "copy_weights", 13);
        sha256_update(&h, req->user, strlen(req->user) + 1);
        sha256_update(&h, req->idempotency_key, strlen(req->idempotency_key));
        sha256_final(&h, d);
        d[6] = (uint8_t)((d[6] & 0x0f) | 0x80); /* version 8, RFC 9562: custom */
        d[8] = (uint8_t)((d[8] & 0x3f) | 0x80); /* variant */
        hex_encode(d, sizeof(d), hex);
        snprintf(id, sizeof(id), "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16,
                 hex + 20);
    }
    copy_checkpoint(s, req, res, &in, from, by_session ? in.session_id : id);
}
