/* route_copy.c - a checkpoint under another run: copy_weights.
 *
 * The files are shared; the copy is a record of its own, with its own run, which cannot be
 * trained, in a session of its own or one that the caller names.  A repeated request with the
 * same X-Idempotency-Key finds the first copy, because the key makes the session's id. */
#include <stdio.h>
#include <string.h>

#include "base/rand.h"
#include "base/sha256.h"
#include "server/api/routes.h"

enum { TTL_MAX = 10 * 366 * 86400 }; /* ten years */

/* The id of the session for a copy: the same for the same key of the same user. */
static void make_session_id(const struct request *req, char id[37])
{
    struct sha256 h;
    uint8_t d[32];
    char hex[65];
    if (!req->idempotency_key) {
        rand_uuid(id);
        return;
    }
    sha256_init(&h);
    sha256_update(&h, "copy_weights", 13);
    sha256_update(&h, req->user, strlen(req->user) + 1);
    sha256_update(&h, req->idempotency_key, strlen(req->idempotency_key));
    sha256_final(&h, d);
    d[6] = (uint8_t)((d[6] & 0x0f) | 0x80); /* version 8: made from something */
    d[8] = (uint8_t)((d[8] & 0x3f) | 0x80);
    hex_encode(d, sizeof(d), hex);
    snprintf(id, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

static void reply_copied(struct request *req, struct response *res, const char *run,
                         const struct store_checkpoint *c)
{
    struct wire_copy_weights_response r = { arena_printf(&req->arena, "tinker://%s/%s/%s", run,
                                                         store_kind_name(c->kind), c->name) };
    route_reply(res, &wire_copy_weights_response, &r);
}

/* Has the run of the copy been made before?  Then it is answered here. */
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
    if (c && strcmp(c->owner, req->user) == 0 && strcmp(c->dir, from->dir) == 0)
        reply_copied(req, res, run, c);
    else
        response_error(res, 400, "training run %s exists already", run);
    return true;
}

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
                                     .expired = true };
    struct store_model model = {
        .id = arena_printf(&req->arena, "%s:train:%lld", session_id,
                           (long long)(in->model_seq_id.has ? in->model_seq_id.value : 0)),
        .session_id = session_id,
        .owner = req->user,
        .base_model = from->base_model,
        .lora = from->lora,
        .status = STORE_MODEL_UNLOADED,
        .created_us = now,
        .last_request_us = now,
        .saved_seq = -1
    };
    if (!model.id) {
        response_error(res, 500, "out of memory");
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
    else if (!found)
        response_error(res, 404, "Checkpoint not found: %s", in->source_path);
    else
        reply_copied(req, res, model.id, from);
}

void route_copy_weights(struct server *s, struct request *req, struct response *res)
{
    struct wire_copy_weights_request in;
    char id[37];
    if (!route_body(req, res, &wire_copy_weights_request, &in))
        return;
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
    make_session_id(req, id);
    copy_checkpoint(s, req, res, &in, from, by_session ? in.session_id : id);
}
