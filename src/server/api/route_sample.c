/* route_sample.c - sampling sessions and samples: checked and queued here, run on the
 * engine thread (sample.c). */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/rand.h"
#include "grammar/grammar.h"
#include "server/api/routes.h"
#include "server/work/sampler_table.h"
#include "server/sampling/stop_strings.h"
#include "server/work/submit.h"
#include "wire/check.h"
#include "wire/sample_options.h"

enum { SAMPLES_MAX = 4096 }; /* sequences of one request */

/* Find the weights and record the sampling session; the first sample enters it in memory.  Its id is derived from the
 * client's number, so a retry gets the same one. */
void route_create_sampling_session(struct server *s, struct request *req, struct response *res)
{
    struct wire_create_sampling_session_request in;
    tinker_error err = { 0 };
    if (!route_body(req, res, &wire_create_sampling_session_request, &in))
        return;
    struct session *session = route_session(s, req, in.session_id);
    if (!session) {
        response_error(res, 404, "Session not found");
        return;
    }
    struct sampler_source from;
    if (!sampler_table_find_source(s, req, res, in.base_model, in.model_path, &from))
        return;
    struct store_sampler record = { .id = arena_printf(&req->arena, "%s:sample:%lld", session->id,
                                                       (long long)in.sampling_session_seq_id),
                                    .session_id = session->id,
                                    .owner = req->user,
                                    .base_model = from.base->name,
                                    .model_path = in.model_path,
                                    .run = from.checkpoint ? from.checkpoint->run : NULL,
                                    .name = from.checkpoint ? from.checkpoint->name : NULL,
                                    .sampler =
                                        from.checkpoint && from.checkpoint->kind == STORE_SAMPLER,
                                    .created_us = live_wall_us(s),
                                    .dir = from.checkpoint ? from.checkpoint->dir : NULL };
    struct store_sampler *stored = NULL;
    if (!record.id || store_add_sampler(s->store, &record, &err) != TINKER_OK ||
        store_get_sampler(s->store, record.id, &req->arena, &stored, &err) != TINKER_OK ||
        !stored) {
        route_store_error(s, res, &err);
        return;
    }
    /* A retry gets the sampling session as it was made, whatever was saved under the name since. */
    struct wire_create_sampling_session_response r = { record.id };
    if (sampler_table_is_same(stored, &record))
        route_reply(res, &wire_create_sampling_session_response, &r);
    else
        response_error(res, 400,
                       "sampling_session_seq_id %lld was used for other weights; each sampling "
                       "session of a session needs a number of its own",
                       (long long)in.sampling_session_seq_id);
}

/* Several processes may share one sampling session.  Each gets a number of its own, counted in the
 * store, so that their sample numbers never collide, not even across a restart. */
void route_join_sampling_session(struct server *s, struct request *req, struct response *res)
{
    struct wire_join_sampling_session_request in;
    struct wire_join_sampling_session_response r = { 0 };
    struct sampler_view v;
    tinker_error err = { 0 };
    if (!route_body(req, res, &wire_join_sampling_session_request, &in) ||
        !sampler_table_find(s, req, res, in.sampling_session_id, &v))
        return;
    if (store_join_sampler(s->store, in.sampling_session_id, &r.client_counter, &err) != TINKER_OK)
        route_store_error(s, res, &err);
    else
        route_reply(res, &wire_join_sampling_session_response, &r);
}

/* Errors that can be found without the engine; NULL: none. */
static const char *find_problem(const struct wire_sample_request *r)
{
    if (r->num_samples < 1)
        return "num_samples must be a positive number";
    if (r->num_samples > SAMPLES_MAX)
        return "num_samples is too large";
    if (r->sampling_params.max_tokens < 0)
        return "max_tokens must be a positive number";
    /* An option that changes the result must not be ignored. */
    if (r->record_stability_info.has && r->record_stability_info.value)
        return "record_stability_info is not supported here";
    return stop_strings_problem(&r->sampling_params);
}

/* 503 when a copy failed: without its directory a sample would be one of the base model. */
static bool check_memory(struct response *res, bool all)
{
    if (!all)
        response_no_memory(res);
    return all;
}

/* Find the session, weights and future id of a request; false: the response says why not.
 * Requests without a sampling session name a model themselves and run in the direct session. */
static bool resolve_sampler(struct server *s, struct request *req, struct response *res,
                            struct job *w, struct session **session, struct base **base,
                            const char **id)
{
    const struct wire_sample_request *r = &w->sample;
    char uuid[37];
    rand_uuid(uuid);
    /* A sample without a session: nobody else can know its id. */
    if (!r->sampling_session_id) {
        struct sampler_source from;
        if (!sampler_table_find_source(s, req, res, r->base_model, r->model_path, &from))
            return false;
        *session = sampler_table_direct_session(s, req->user);
        *base = from.base;
        w->dir = from.checkpoint ? arena_strdup(&w->arena, from.checkpoint->dir) : NULL;
        *id = arena_strdup(&req->arena, uuid);
        return check_memory(res, *session && *id && (w->dir || !from.checkpoint));
    }
    struct sampler_view v;
    if (!sampler_table_find(s, req, res, r->sampling_session_id, &v))
        return false;
    *session = route_session(s, req, v.session_id);
    if (!*session) {
        response_error(res, 404, "Session not found or expired");
        return false;
    }
    *base = v.base;
    w->dir = v.dir ? arena_strdup(&w->arena, v.dir) : NULL;
    /* With a number a retry finds the first sample; without one each request is new. */
    *id = r->seq_id.has ? arena_printf(&req->arena, "%s:%lld", r->sampling_session_id,
                                       (long long)r->seq_id.value)
                        : arena_printf(&req->arena, "%s:%s", r->sampling_session_id, uuid);
    return check_memory(res, *id && (w->dir || !v.dir));
}

/* Decode and check a sample request for asample and stream_sample. */
bool route_read_sample(struct server *s, struct request *req, struct response *res,
                       struct sample_submission *out)
{
    tinker_error err = { 0 };
    struct job *w = job_new(JOB_SAMPLE);
    if (!w)
        err_nomem(&err, "sample");
    if (!w || job_decode(w, false, req->body, req->n_body, &err) != TINKER_OK) {
        job_free(w);
        route_bad_body(res, &err);
        return false;
    }
    const char *problem = find_problem(&w->sample);
    const char *schema = w->sample.sampling_params.json_schema;
    if (!problem && schema && !(w->grammar = grammar_from_schema(schema, strlen(schema), &err)))
        problem = err.message;
    if (!problem && wire_sample_check_options(&w->sample, &err) != TINKER_OK)
        problem = err.message;
    *out = (struct sample_submission){ .job = w };
    if (problem)
        response_error(res, 400, "%s", problem);
    if (!problem && resolve_sampler(s, req, res, w, &out->session, &out->base, &out->id)) {
        /* For the access log. */
        req->model = arena_strdup(&req->arena, out->base->name);
        req->tokens = job_tokens(w);
        return true;
    }
    job_free(w);
    return false;
}

/* Queue a sample; the result is fetched with retrieve_future. */
void route_asample(struct server *s, struct request *req, struct response *res)
{
    struct sample_submission ask;
    if (!route_read_sample(s, req, res, &ask))
        return;
    int64_t num_samples = ask.job->sample.num_samples; /* the job is gone after the submission */
    int status = submit_sample(s, req->user, ask.session, ask.base, ask.job, ask.id);
    if (status == SUBMIT_OK) {
        /* The future's id; newer clients want an id for each sequence with it. */
        struct json_writer w;
        char sequence[512];
        json_writer_init(&w, &res->body);
        json_put_begin_object(&w);
        json_put_key(&w, "request_id");
        json_put_string(&w, ask.id);
        json_put_key(&w, "sample_sequence_ids");
        json_put_begin_array(&w);
        for (int64_t i = 0; i < num_samples; i++) {
            snprintf(sequence, sizeof(sequence), "%s:%lld", ask.id, (long long)i);
            json_put_string(&w, sequence);
        }
        json_put_end_array(&w);
        json_put_end_object(&w);
        res->content_type = "application/json";
    } else
        route_submitted(s, res, status, ask.id, NULL, NULL);
}

/* GET samplers/{}: which weights a sampling session uses. */
void route_get_sampler(struct server *s, struct request *req, struct response *res)
{
    struct store_sampler *v = NULL;
    tinker_error err = { 0 };
    if (store_get_sampler(s->store, req->param[0], &req->arena, &v, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    if (!v || strcmp(v->owner, req->user) != 0) {
        response_error(res, 404, "Sampler not found");
        return;
    }
    tinker_sampler_info r = { v->id, route_sdk_base_model(s, req, v->base_model), v->model_path };
    route_reply(res, &wire_get_sampler_response, &r);
}
