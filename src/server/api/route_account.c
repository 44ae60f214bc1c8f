/* route_account.c - what the user used, and what happened to the user's things.
 *
 * Usage is counted by the hour and costs nothing here, so costs are absent, not zero.  The audit
 * log has changes and reads of checkpoints, and the beginning and end of sessions; both are kept
 * for STORE_ACCOUNT_DAYS. */
#include <math.h>
#include <string.h>

#include "base/map.h"
#include "server/api/routes.h"
#include "server/work/usage.h"
#include "wire/timestamp.h"

#define HOUR_US (INT64_C(3600) * 1000000)
enum { DAYS_MAX = 14, DAY_S = 86400 };

/* A time of the query; false: it was answered. */
static bool read_hour(struct request *req, struct response *res, const char *name, int64_t *us)
{
    const char *text = req->query(req, name);
    struct wire_time t;
    if (!text || !wire_time_parse(text, strlen(text), &t))
        response_error(res, 422, "query parameter %s must be an RFC 3339 time", name);
    else if (t.us < 0 || t.us % HOUR_US != 0)
        response_error(res, 400, "%s must be a whole UTC hour", name);
    else {
        *us = t.us;
        return true;
    }
    return false;
}

/* The kinds in which the API says what was used; both kinds of prefill are one there. */
static tinker_billing_kind kind_of(int kind)
{
    static const tinker_billing_kind kinds[USAGE_KINDS] = {
        [USAGE_TRAINING] = TINKER_BILLING_TRAINING,      [USAGE_PREFILL] = TINKER_BILLING_PREFILL,
        [USAGE_PREFILL_CACHED] = TINKER_BILLING_PREFILL, [USAGE_SAMPLING] = TINKER_BILLING_SAMPLING,
        [USAGE_CHECKPOINT] = TINKER_BILLING_CHECKPOINT,  [USAGE_STORAGE] = TINKER_BILLING_STORAGE,
    };
    return kinds[kind];
}

/* The sessions of a response, each once, in the order of their first rows. */
struct session_table {
    struct map indices; /* id to index + 1: values of a map are never NULL */
    tinker_billing_session *list;
    const char **project_ids; /* NULL: none, or the session was pruned */
    size_t n;
};

/* The id of the row's project, after its session has its entry; *ok false: out of memory. */
static const char *add_session(struct server *s, struct request *req, struct session_table *t,
                               const char *id, bool *ok)
{
    struct store_session *v = NULL;
    if (!*id)
        return NULL;
    size_t index = (size_t)(uintptr_t)map_get(&t->indices, id, strlen(id));
    if (index)
        return t->project_ids[index - 1];
    /* It may have been pruned: then only its id is known. */
    store_get_session(s->store, id, &req->arena, &v, NULL);
    t->list[t->n] = (tinker_billing_session){ .id = id };
    route_metadata(v ? v->user_metadata : NULL, &req->arena, &t->list[t->n].user_metadata,
                   &t->list[t->n].n_user_metadata);
    t->project_ids[t->n++] = v ? v->project_id : NULL;
    *ok = map_put(&t->indices, id, strlen(id), (void *)(uintptr_t)t->n, NULL) && *ok;
    return t->project_ids[t->n - 1];
}

/* GET billing/usage/events */
void route_billing(struct server *s, struct request *req, struct response *res)
{
    int64_t from, to;
    struct store_usage_row *rows;
    size_t n;
    tinker_error err = { 0 };
    if (!read_hour(req, res, "starting_on", &from) || !read_hour(req, res, "ending_before", &to))
        return;
    if (to <= from || to - from > DAYS_MAX * 24 * HOUR_US || from > live_wall_us(s)) {
        response_error(res, 400,
                       "starting_on must be before ending_before, not in the future, and at most "
                       "%d days before it",
                       (int)DAYS_MAX);
        return;
    }
    usage_flush(s); /* what was used a moment ago counts, too */
    if (store_list_hours(s->store, req->user, from / HOUR_US, to / HOUR_US, &req->arena, &rows, &n,
                         &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    tinker_billing_event *events = arena_array(&req->arena, n + 1, sizeof(*events));
    struct session_table t = { .list = arena_array(&req->arena, n + 1, sizeof(*t.list)),
                               .project_ids = arena_array(&req->arena, n + 1, sizeof(char *)) };
    bool ok = events && t.list && t.project_ids;
    map_init(&t.indices);
    for (size_t i = 0; i < n && ok; i++) {
        const struct store_usage_row *u = &rows[i];
        const char *project_id = add_session(s, req, &t, u->session_id, &ok);
        events[i] = (tinker_billing_event){
            .start_us = u->hour * HOUR_US,
            .end_us = (u->hour + 1) * HOUR_US,
            .base_model = *u->base_model ? u->base_model : NULL,
            .user_id = route_user_urn(req),
            .user_name = req->user,
            .session_id = *u->session_id ? u->session_id : NULL,
            .project_id = project_id,
            .kind = kind_of(u->kind),
            .count = u->amount,
            .cached = u->kind == USAGE_PREFILL_CACHED,
            .gigabyte_hours = u->kind == USAGE_STORAGE ? (double)u->amount / 3600 / 1e9 : 0,
            .cost_usd = NAN,
            .million_tokens_usd = NAN,
            .gigabyte_month_usd = NAN,
        };
    }
    map_clear(&t.indices);
    if (!ok) {
        response_no_memory(res);
        return;
    }
    tinker_billing r = { n, events, t.n, t.list, TINKER_NO_TIME };
    route_reply(res, &wire_billing_usage_response, &r);
}

/* The day of the query as microseconds of its beginning; today without one. */
static bool read_day(struct server *s, struct request *req, struct response *res, int64_t *us)
{
    const int64_t day_us = (int64_t)DAY_S * 1000000;
    const char *text = req->query(req, "day");
    struct wire_time t;
    *us = live_wall_us(s) / day_us * day_us;
    if (!text)
        return true;
    if (strlen(text) != 10 || !wire_time_parse(text, 10, &t)) {
        response_error(res, 422, "query parameter day must be a date, YYYY-MM-DD");
        return false;
    }
    *us = t.us;
    return true;
}

/* What an event was about, as an object. */
static const char *write_details(struct request *req, const struct store_event *v)
{
    struct buf b;
    struct json_writer w;
    const char *const members[][2] = { { "actor", route_user_urn(req) },
                                       { "tinker_path", v->path },
                                       { "model_id", v->model_id },
                                       { "purpose", v->purpose },
                                       { "session_id", v->session_id } };
    buf_init(&b, 1 << 16);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
        if (members[i][1]) {
            json_put_key(&w, members[i][0]);
            json_put_string(&w, members[i][1]);
        }
    json_put_end_object(&w);
    const char *out = buf_ok(&b) ? arena_strdup(&req->arena, b.data) : NULL;
    buf_clear(&b);
    return out;
}

/* GET audit */
void route_audit(struct server *s, struct request *req, struct response *res)
{
    /* With the beginning of the events that each shows; teams and organizations are never changed
     * here. */
    static const char *const types[][2] = { { "all", "" },
                                            { "checkpoints", "checkpoint_" },
                                            { "projects", "project_" },
                                            { "teams", "team_" },
                                            { "organizations", "organization_" } };
    const char *type = req->query(req, "event_type"), *prefix = NULL;
    int64_t from;
    struct store_event *list;
    size_t n, m = 0;
    tinker_error err = { 0 };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (!type || strcmp(type, types[i][0]) == 0) {
            prefix = types[i][1];
            break;
        }
    if (!prefix) {
        response_error(res, 422,
                       "query parameter event_type must be all, checkpoints, projects, teams or "
                       "organizations");
        return;
    }
    if (!read_day(s, req, res, &from))
        return;
    if (store_list_events(s->store, req->user, from, from + (int64_t)DAY_S * 1000000, &req->arena,
                          &list, &n, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    tinker_audit_entry *out = arena_array(&req->arena, n + 1, sizeof(*out));
    if (!out) {
        response_no_memory(res);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (strncmp(list[i].event, prefix, strlen(prefix)) == 0)
            out[m++] = (tinker_audit_entry){ .time_us = list[i].time_us,
                                             .event = list[i].event,
                                             .model_id = list[i].model_id,
                                             .path = list[i].path,
                                             .purpose = list[i].purpose,
                                             .details = write_details(req, &list[i]) };
    tinker_audit r = { m, out };
    route_reply(res, &wire_audit_log_response, &r);
}
