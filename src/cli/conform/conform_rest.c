/* conform_rest.c - checks of `tinker conform`: lists, checkpoints, and the end of the session.
 *
 * Nothing is published: that would show a checkpoint to others.  The last checks delete what the
 * earlier groups have made. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <tinker/extra/http.h>
#include <tinker/rest.h>
#include "base/array.h"
#include "cli/conform/conform.h"

/* At least the run of the training group is there, so a limit of 1 must give exactly one. */
static bool check_runs(struct conform *c)
{
    double total;
    return conform_get(c, CONFORM_API "training_runs?limit=1&offset=0&access_scope=owned") &&
           (conform_has(c, "training_runs.0.training_run_id") ||
            conform_miss(c, "no training run is listed")) &&
           (!conform_has(c, "training_runs.1") || conform_miss(c, "limit=1 gave more than one")) &&
           conform_number(c, "cursor.total_count", &total) &&
           (total >= 1 || conform_miss(c, "cursor.total_count is %g", total));
}

static bool check_run(struct conform *c)
{
    char path[CONFORM_ID_MAX + 64], base[sizeof(c->model)];
    snprintf(path, sizeof(path), CONFORM_API "training_runs/%s", c->run);
    return conform_get(c, path) && conform_text(c, "base_model", base, sizeof(base)) &&
           (strcmp(base, c->model) == 0 || conform_miss(c, "base_model is %.100s", base)) &&
           (conform_has(c, "last_request_time") || conform_miss(c, "no last_request_time"));
}

/* 404 and nothing else: clients tell "gone" from "broken" by it. */
static bool check_unknown_run(struct conform *c)
{
    return conform_send(c, "GET", CONFORM_API "training_runs/conform-no-such-run", NULL) &&
           (c->status == 404 || conform_miss(c, "HTTP %d, not 404", c->status));
}

/* Is the checkpoint in the list that came?  Then its place is in *index. */
static bool find_checkpoint(struct conform *c, const char *wanted, size_t *index)
{
    char path[64], found[CONFORM_ID_MAX];
    /* Bounded, in case a server answers an endless list. */
    for (*index = 0; *index < 1000; ++*index) {
        snprintf(path, sizeof(path), "checkpoints.%zu.tinker_path", *index);
        if (!conform_has(c, path))
            break;
        if (!conform_text(c, path, found, sizeof(found)))
            return false;
        if (strcmp(found, wanted) == 0)
            return true;
    }
    return conform_miss(c, "%.120s is not listed", wanted);
}

/* *state: where the saved training state stands in the list. */
static bool list_checkpoints(struct conform *c, size_t *state)
{
    char path[CONFORM_ID_MAX + 64];
    snprintf(path, sizeof(path), CONFORM_API "training_runs/%s/checkpoints", c->run);
    return conform_get(c, path) && find_checkpoint(c, c->state, state);
}

/* Both kinds must be told apart by checkpoint_type: only "training" can be loaded with an
 * optimizer.  Weights are looked for only if the sampling group could save any. */
static bool check_checkpoints(struct conform *c)
{
    char path[64], type[16];
    size_t i;
    if (!list_checkpoints(c, &i))
        return false;
    snprintf(path, sizeof(path), "checkpoints.%zu.checkpoint_type", i);
    return conform_text(c, path, type, sizeof(type)) &&
           (strcmp(type, "training") == 0 || conform_miss(c, "checkpoint_type %s", type)) &&
           (!c->weights[0] || find_checkpoint(c, c->weights, &i));
}

/* A fresh checkpoint is on the first page, whatever else the user has: lists are newest first. */
static bool check_user_checkpoints(struct conform *c)
{
    size_t i;
    return conform_get(c, CONFORM_API "checkpoints?limit=100&offset=0") &&
           find_checkpoint(c, c->state, &i);
}

static bool check_listed_sessions(struct conform *c)
{
    return conform_get(c, CONFORM_API "sessions?limit=20&offset=0&access_scope=owned") &&
           (conform_has(c, "sessions.0") || conform_miss(c, "no session is listed"));
}

/* Among the first ten: the session has at most three runs. */
static bool check_listed_session(struct conform *c)
{
    char path[CONFORM_ID_MAX + 64], found[CONFORM_ID_MAX];
    snprintf(path, sizeof(path), CONFORM_API "sessions/%s?access_scope=owned", c->session);
    if (!conform_get(c, path))
        return false;
    for (size_t i = 0; i < 10; i++) {
        snprintf(path, sizeof(path), "training_run_ids.%zu", i);
        if (conform_has(c, path) && conform_text(c, path, found, sizeof(found)) &&
            strcmp(found, c->run) == 0)
            return true;
    }
    return conform_miss(c, "training_run_ids does not name %.120s", c->run);
}

/* A sampler is found by its id alone, as another process would ask for it. */
static bool check_listed_sampler(struct conform *c)
{
    char path[CONFORM_ID_MAX + 64], base[sizeof(c->model)];
    snprintf(path, sizeof(path), CONFORM_API "samplers/%s", c->sampling);
    return conform_get(c, path) && conform_text(c, "base_model", base, sizeof(base)) &&
           (strcmp(base, c->model) == 0 || conform_miss(c, "base_model is %.100s", base));
}

/* "…/training_runs/<run>/checkpoints/weights/<name>" and what follows, of a tinker:// path. */
static bool checkpoint_route(struct conform *c, const char *tinker_path, const char *tail,
                             char *out, size_t size)
{
    const char *run = tinker_path + 9, *slash = strchr(run, '/');
    if (strncmp(tinker_path, "tinker://", 9) != 0 || !slash)
        return conform_miss(c, "nothing was saved");
    /* The path's second part, "weights/<name>" or "sampler_weights/<name>", goes into the URL as
     * it is. */
    int n = snprintf(out, size, CONFORM_API "training_runs/%.*s/checkpoints%s%s",
                     (int)(slash - run), run, slash, tail);
    return (n > 0 && (size_t)n < size) || conform_miss(c, "the path is too long");
}

/* When the saved state expires; "" for never. */
static bool read_expiration(struct conform *c, char out[64])
{
    char path[64];
    size_t i;
    if (!list_checkpoints(c, &i))
        return false;
    snprintf(path, sizeof(path), "checkpoints.%zu.expires_at", i);
    out[0] = 0;
    return !conform_has(c, path) || conform_text(c, path, out, 64);
}

/* The list is read before and after: a server that accepts the request and does nothing is
 * found. */
static bool check_ttl(struct conform *c)
{
    char route[CONFORM_ID_MAX + 64], before[64], after[64];
    if (!checkpoint_route(c, c->state, "/ttl", route, sizeof(route)) ||
        !read_expiration(c, before) || !conform_send(c, "PUT", route, "{\"ttl_seconds\":600}"))
        return false;
    if (c->status < 200 || c->status > 299)
        return conform_miss(c, "PUT ttl: HTTP %d", c->status);
    return read_expiration(c, after) &&
           ((after[0] && strcmp(before, after) != 0) ||
            conform_miss(c, "expires_at is %s after a ttl was set", after[0] ? after : "missing"));
}

/* 0 would mean "expired already": a client that computed it wrongly must be told. */
static bool check_bad_ttl(struct conform *c)
{
    char route[CONFORM_ID_MAX + 64];
    return checkpoint_route(c, c->state, "/ttl", route, sizeof(route)) &&
           conform_send(c, "PUT", route, "{\"ttl_seconds\":0}") &&
           conform_refused(c, "ttl_seconds 0");
}

/* Only the address: nothing is downloaded. */
static bool check_archive(struct conform *c)
{
    tinker_error err;
    if (!c->weights[0])
        return conform_miss(c, "nothing was saved");
    tinker_future *f = tinker_rest_get_checkpoint_archive(c->api->rest, c->weights, &err);
    bool ok = f && api_await(f, &err) == TINKER_OK;
    if (!ok)
        conform_miss(c, "%s", err.message);
    tinker_future_free(f);
    return ok;
}

static bool delete_checkpoint(struct conform *c, const char *tinker_path)
{
    char route[CONFORM_ID_MAX + 64];
    return checkpoint_route(c, tinker_path, "", route, sizeof(route)) &&
           conform_send(c, "DELETE", route, NULL) &&
           ((c->status >= 200 && c->status < 300) ||
            conform_miss(c, "DELETE %.100s: HTTP %d", route, c->status));
}

/* Both are tried even if the first fails, so that as little as possible stays behind. */
static bool check_delete(struct conform *c)
{
    bool state = delete_checkpoint(c, c->state);
    return delete_checkpoint(c, c->weights) && state;
}

/* A second DELETE that succeeds would hide from a script that it deletes the wrong thing. */
static bool check_deleted(struct conform *c)
{
    char route[CONFORM_ID_MAX + 64];
    return checkpoint_route(c, c->state, "", route, sizeof(route)) &&
           conform_send(c, "DELETE", route, NULL) &&
           conform_refused(c, "deleting what was deleted");
}

/* Frees the server's memory for the run; its checkpoints stay. */
static bool unload_run(struct conform *c, const char *run)
{
    return conform_submit(c, CONFORM_API "unload_model",
                          "{\"model_id\":\"%s\",\"type\":\"unload_model\"}", run) &&
           conform_result(c, c->accepted);
}

static bool check_unload(struct conform *c)
{
    bool second = !c->second_run[0] || unload_run(c, c->second_run);
    return unload_run(c, c->run) && second;
}

/* The session ends with a reason, as the SDK ends it; without this it would time out. */
static bool check_finish(struct conform *c)
{
    char path[CONFORM_ID_MAX + 64];
    snprintf(path, sizeof(path), CONFORM_API "sessions/%s/finish", c->session);
    return conform_post(c, path, "{\"reason\":{\"type\":\"success\"},\"detail\":null}");
}

/* Since SDK 0.36. */
static bool check_search(struct conform *c)
{
    char found[CONFORM_ID_MAX];
    return conform_post(c, CONFORM_API "sessions/search",
                        "{\"session_id\":\"%s\",\"owner\":{\"type\":\"own\"}}", c->session) &&
           conform_text(c, "sessions.0.session_id", found, sizeof(found)) &&
           (strcmp(found, c->session) == 0 || conform_miss(c, "found %.100s instead", found)) &&
           (!conform_has(c, "sessions.1") || conform_miss(c, "found more than the session"));
}

/* Usage of the hours around now, and today's events.  Only the shape: what was used may be counted
 * later, and nobody else's must be read. */
static bool check_usage(struct conform *c)
{
    char path[160], from[32], to[32];
    time_t now = time(NULL), start = now - now % 3600, end = start + 3600;
    struct tm tm;
    gmtime_r(&start, &tm);
    strftime(from, sizeof(from), "%Y-%m-%dT%H:00:00Z", &tm);
    gmtime_r(&end, &tm);
    strftime(to, sizeof(to), "%Y-%m-%dT%H:00:00Z", &tm);
    snprintf(path, sizeof(path), CONFORM_API "billing/usage/events?starting_on=%s&ending_before=%s",
             from, to);
    struct json_str unused;
    return conform_get(c, path) && conform_object(c, "sessions", &unused);
}

static bool check_audit(struct conform *c)
{
    return conform_send(c, "GET", CONFORM_API "audit?event_type=all", NULL) &&
           /* 403: the list is for administrators */
           (c->status == 200 || c->status == 403 || conform_miss(c, "HTTP %d", c->status)) &&
           conform_send(c, "GET", CONFORM_API "audit?event_type=conform-no-such-type", NULL) &&
           conform_refused(c, "an unknown event_type");
}

static const struct conform_check checks[] = {
    { "rest.runs", "training_runs obeys limit and counts", check_runs },
    { "rest.run", "a training run names its base model", check_run },
    { "rest.unknown_run", "an unknown training run is 404", check_unknown_run },
    { "rest.checkpoints", "a run lists its checkpoints with their types", check_checkpoints },
    { "rest.user_checkpoints", "the list of all checkpoints has them", check_user_checkpoints },
    { "rest.sessions", "sessions are listed", check_listed_sessions },
    { "rest.session", "a session names its training runs", check_listed_session },
    { "rest.sampler", "a sampler names its base model", check_listed_sampler },
    { "rest.search", "a session is found by its id", check_search },
    { "rest.usage", "usage of an hour has its sessions", check_usage },
    { "rest.audit", "the audit log knows its types", check_audit },
    { "rest.ttl", "a time to live is set and shown", check_ttl },
    { "rest.bad_ttl", "a time to live of 0 is refused", check_bad_ttl },
    { "rest.archive", "a checkpoint has an address to download it from", check_archive },
    { "rest.delete", "checkpoints are deleted", check_delete },
    { "rest.deleted", "deleting them again is refused", check_deleted },
    { "rest.unload", "unload_model ends a run", check_unload },
    { "rest.finish", "a session is finished", check_finish },
};
const struct conform_group conform_rest = { "rest", checks, ARRAY_LEN(checks) };
