/* route_future.c - retrieve_future: the long poll.
 *
 * The handler is called when the poll arrives, and again when the future is done or the
 * hold has ended; each time it looks the future up again, because it may have been freed.
 * Responses: 200 with the outcome (a failed request is one, too), 408 "try again" when the
 * hold ran out, 404 unknown, 410 known but no longer kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/api/routes.h"
#include "wire/future.h"
#include "wire/proto.h"

enum { LARGE = 1 << 20 }; /* larger results may be announced instead of sent */

/* The outcome of a finished request, from memory or from the store. */
struct outcome {
    bool failed, proto; /* proto: data is protobuf */
    enum job_kind kind;
    const char *data;
    size_t n;
    int category;
};

/* 200 with the reason and the category, which says whether a retry makes sense. */
static void reply_failed(struct request *req, struct response *res, const char *why, size_t n,
                         int category)
{
    struct wire_request_failed_response r = { arena_strndup(&req->arena, why, n),
                                              wire_category_name(category) };
    route_reply(res, &wire_request_failed_response, &r);
}

/* Send only the size now?  The client fetches the result when it has the memory. */
static bool is_announced(const struct outcome *o, bool metadata_only)
{
    return metadata_only && !o->failed && o->n > LARGE;
}

/* A finished request: failure, size only, JSON or protobuf. */
static void reply_outcome(struct request *req, struct response *res, const struct outcome *o,
                          bool metadata_only)
{
    if (o->failed) {
        reply_failed(req, res, o->data ? o->data : "failed", o->data ? o->n : 6, o->category);
    } else if (is_announced(o, metadata_only)) {
        struct wire_complete_metadata_response r = { { 1, (int64_t)o->n } };
        route_reply(res, &wire_complete_metadata_response, &r);
    } else if (o->proto && !(req->accept && strstr(req->accept, "application/x-protobuf"))) {
        /* The two binary results for clients that want JSON, which has no infinity.  A result
         * that cannot be written is reported as failed: any other status would make the client
         * ask forever. */
        tinker_error err = { 0 };
        tinker_sample sample;
        tinker_forward_backward pass;
        bool is_sample = o->kind == JOB_SAMPLE;
        tinker_status status =
            is_sample
                ? wire_decode_sample_response(o->data, o->n, &req->arena, &sample, &err)
                : wire_decode_forward_backward_output(o->data, o->n, &req->arena, &pass, &err);
        if (status == TINKER_OK)
            status = is_sample
                         ? wire_encode_json(&wire_sample_response, &sample, &res->body, &err)
                         : wire_encode_json(&wire_forward_backward_output, &pass, &res->body, &err);
        res->status = 200;
        res->content_type = "application/json";
        if (status != TINKER_OK)
            reply_failed(req, res, err.message, strlen(err.message), future_category(&err));
    } else {
        buf_append(&res->body, o->data ? o->data : "", o->n);
        res->status = 200;
        res->content_type = o->proto ? "application/x-protobuf" : "application/json";
    }
}

/* "<session>:loss", seq: a custom loss.  It is kept as long as its session, once it was accepted;
 * one that was refused has no outcome after a restart. */
static void reply_stored_loss(struct server *s, struct request *req, struct response *res,
                              const char *session_id, int64_t seq, const char *request_id)
{
    struct store_session *session = NULL;
    struct store_loss *loss = NULL;
    tinker_error err = { 0 };
    if (store_get_session(s->store, session_id, &req->arena, &session, &err) != TINKER_OK ||
        (session &&
         store_get_loss(s->store, session_id, seq, &req->arena, &loss, &err) != TINKER_OK)) {
        route_store_error(s, res, &err);
        return;
    }
    struct wire_create_custom_loss_response r = { .loss_id = request_id };
    if (!session || strcmp(session->owner, req->user) != 0)
        response_error(res, 404, "Future not found");
    else if (loss)
        route_reply(res, &wire_create_custom_loss_response, &r);
    else
        response_error(res, 410, "The result of this request is no longer available");
}

/* Not in memory: the outcome is in the store, or was deleted (410), or is unknown (404). */
static void reply_stored(struct server *s, struct request *req, struct response *res,
                         const struct wire_future_retrieve_request *in)
{
    const char *owner_id;
    int64_t seq;
    struct store_model *m = NULL;
    struct store_sampler *sampler = NULL;
    struct store_request *r = NULL;
    tinker_error err = { 0 };
    /* "<model>:<number>" for training, "<sampling session>:<number>" for samples. */
    const char *colon = strrchr(in->request_id, ':');
    char *end = NULL;
    if (!colon || !colon[1]) {
        response_error(res, 404, "Future not found");
        return;
    }
    owner_id = arena_strndup(&req->arena, in->request_id, (size_t)(colon - in->request_id));
    seq = strtoll(colon + 1, &end, 10);
    if (!owner_id || *end) {
        response_error(res, 404, "Future not found");
        return;
    }
    size_t n_owner = strlen(owner_id);
    if (n_owner > 5 && strcmp(owner_id + n_owner - 5, ":loss") == 0) {
        const char *session_id = arena_strndup(&req->arena, owner_id, n_owner - 5);
        if (session_id)
            reply_stored_loss(s, req, res, session_id, seq, in->request_id);
        else
            response_no_memory(res);
        return;
    }
    if (store_get_model(s->store, owner_id, &req->arena, &m, &err) != TINKER_OK ||
        store_get_sampler(s->store, owner_id, &req->arena, &sampler, &err) != TINKER_OK ||
        (m &&
         store_get_request(s->store, owner_id, seq, false, &req->arena, &r, &err) != TINKER_OK)) {
        route_store_error(s, res, &err);
        return;
    }
    /* Another user's future is not found. */
    const char *owner = m ? m->owner : sampler ? sampler->owner : NULL;
    if (!owner || strcmp(owner, req->user) != 0) {
        response_error(res, 404, "Future not found");
    } else if (r && (r->status == STORE_FAILED || r->n_result)) {
        /* Results of passes are stored as protobuf, all others as JSON. */
        bool pass = r->kind == JOB_FORWARD || r->kind == JOB_FORWARD_BACKWARD;
        struct outcome o = { .failed = r->status == STORE_FAILED,
                             .proto = pass,
                             .kind = (enum job_kind)r->kind,
                             .data = r->result,
                             .n = r->n_result,
                             .category = r->category };
        reply_outcome(req, res, &o, in->allow_metadata_only);
    } else {
        response_error(res, 410, "The result of this request is no longer available");
    }
}

/* What the poll asks for, read from its body once and kept in the arena while it is held. */
static const struct wire_future_retrieve_request *read_poll(struct request *req,
                                                            struct response *res)
{
    struct wire_future_retrieve_request *in = req->context;
    if (in)
        return in;
    in = arena_alloc(&req->arena, sizeof(*in));
    if (!in)
        response_no_memory(res);
    if (!in || !route_body(req, res, &wire_future_retrieve_request, in))
        return NULL;
    return req->context = in;
}

void route_retrieve_future(struct server *s, struct request *req, struct response *res)
{
    const struct wire_future_retrieve_request *in = read_poll(req, res);
    if (!in)
        return;
    struct outcome o = { 0 };
    pthread_mutex_lock(&s->lock);
    struct future *f = live_find_future_locked(s, in->request_id);
    bool found = f && strcmp(f->owner, req->user) == 0;
    bool done = found && (f->state == FUTURE_DONE || f->state == FUTURE_FAILED);
    if (done) {
        /* Copied under the lock: afterwards the timer thread may free it. */
        o = (struct outcome){ .failed = f->state == FUTURE_FAILED,
                              .proto = f->proto,
                              .kind = f->kind,
                              .n = f->n_result,
                              .category = f->category };
        if (f->result)
            o.data = arena_memdup(&req->arena, f->result, f->n_result);
        /* Announcing the size does not count as delivery. */
        f->delivered = f->delivered || !is_announced(&o, in->allow_metadata_only);
        if (f->delivered && !f->fetched_ns)
            f->fetched_ns = clock_now_ns(s->clock);
        /* For the access log. */
        req->model = f->model ? arena_strdup(&req->arena, f->model->id) : NULL;
        if (f->started_ns) {
            req->queue_ns = f->started_ns - f->created_ns;
            req->compute_ns = f->done_ns - f->started_ns;
        }
    }
    bool starved = found && f->starved; /* it waits for memory, not for its turn */
    bool lost = done && o.n && !o.data; /* no memory for the copy */
    pthread_mutex_unlock(&s->lock);
    if (lost)
        response_no_memory(res);
    else if (done)
        reply_outcome(req, res, &o, in->allow_metadata_only);
    if (done)
        return;
    if (!found) {
        reply_stored(s, req, res, in);
    } else if (req->timed_out) {
        /* The hold ran out: the client polls again at once. */
        struct wire_try_again_response r = { .request_id = in->request_id,
                                             .queue_state = "active" };
        if (starved) {
            r.queue_state = "paused_capacity";
            r.queue_state_reason = "waiting until other requests free memory";
        }
        route_reply(res, &wire_try_again_response, &r);
        res->status = 408;
    } else {
        res->wait = &f->wait; /* valid: a future that is not finished is not freed */
    }
}

/* Only samples can be canceled: training requests of a model depend on each other. */
bool route_cancel_sample(struct server *s, const char *user, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = live_find_future_locked(s, id);
    bool found = f && strcmp(f->owner, user) == 0;
    /* Waiting: fail it here.  Running: the engine thread drops it at the next token. */
    bool waited = found && f->kind == JOB_SAMPLE && f->state == FUTURE_WAITING &&
                  queue_remove_sample_locked(s, f);
    if (found && f->kind == JOB_SAMPLE && f->state == FUTURE_RUNNING) {
        f->canceled = true;
        s->drops++;
        pthread_cond_signal(&s->work_ready);
    }
    pthread_mutex_unlock(&s->lock);
    if (waited)
        future_fail(s, f, TINKER_CATEGORY_USER, "the sample was canceled");
    return found;
}

/* 204 also when it is too late: the client does not want the result either way. */
void route_cancel_future(struct server *s, struct request *req, struct response *res)
{
    struct wire_future_retrieve_request in;
    if (!route_body(req, res, &wire_future_retrieve_request, &in))
        return;
    if (route_cancel_sample(s, req->user, in.request_id))
        response_no_content(res);
    else
        response_error(res, 404, "Future not found");
}
