/* account.c - the REST calls about the account: usage, storage, audit log, identity. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/account.h>
#include "base/array.h"
#include "base/err.h"
#include "client/session/jwt.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "client/session/service.h"
#include "wire/timestamp.h"
#include "wire/wire.h"

static const struct rest_kind billing_kind = { REST_KIND("get_billing_usage", "GET"),
                                               .result = RESULT_VALUE,
                                               .type = &wire_billing_usage_response };
/* REST_KIND() but for the pool: the service redirects this request to a file store. */
static const struct rest_kind audit_kind = { .class = REST_CLASS("get_audit_log"),
                                             .spec = { .name = "get_audit_log",
                                                       .method = "GET",
                                                       .pool = POOL_REDIRECT,
                                                       .max_retries = CALL_DEFAULT,
                                                       .outer = true },
                                             .result = RESULT_VALUE,
                                             .type = &wire_audit_log_response };

/* Read a time that the caller gave and write it as the service wants it: RFC 3339 in UTC.  A time
 * without an offset is taken as UTC, not as local time: programs run in many zones. */
static tinker_status check_time(const char *what, const char *text, struct wire_time *out,
                                char normal[WIRE_TIME_TEXT], tinker_error *err)
{
    if (!text || !wire_time_parse(text, strlen(text), out))
        return err_set(err, TINKER_EINVAL, "%s \"%s\" is not an RFC 3339 time", what,
                       text ? text : "");
    out->naive = false; /* read as UTC */
    wire_time_format(*out, normal);
    return TINKER_OK;
}

tinker_future *tinker_rest_get_billing_usage(tinker_rest *r, const char *start, const char *end,
                                             tinker_error *err)
{
    struct wire_time from, to;
    /* Normalized to UTC before they are compared: the offsets of the two may differ. */
    char a[WIRE_TIME_TEXT], b[WIRE_TIME_TEXT];
    if (check_time("start", start, &from, a, err) != TINKER_OK ||
        check_time("end", end, &to, b, err) != TINKER_OK)
        return NULL;
    if (to.us <= from.us) {
        err_set(err, TINKER_EINVAL, "the end %s is not after the start %s", b, a);
        return NULL;
    }
    /* GET billing/usage/events?starting_on&ending_before. Times hold colons and a plus, so they are
     * escaped. */
    struct buf path;
    buf_init(&path, 1 << 10);
    buf_puts(&path, "api/v1/billing/usage/events?starting_on=");
    http_query_escape(&path, a);
    buf_puts(&path, "&ending_before=");
    http_query_escape(&path, b);
    return rest_send(r, &billing_kind, buf_detach(&path, NULL), NULL, err);
}

const tinker_billing *tinker_future_billing(const tinker_future *f)
{
    return future_value(f, &wire_billing_usage_response);
}

/* Elements are reached through functions only, so that a newer library can have larger ones. */
const tinker_billing_event *tinker_billing_event_at(const tinker_billing *list, size_t i)
{
    return i < list->n_events ? (const tinker_billing_event *)list->events + i : NULL;
}

const tinker_billing_session *tinker_billing_session_at(const tinker_billing *list, size_t i)
{
    return i < list->n_sessions ? (const tinker_billing_session *)list->sessions + i : NULL;
}

/* Converted, because the wire has a size in gigabytes as well. */
static tinker_status read_storage(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_checkpoint_usage_response w;
    tinker_storage *out;
    tinker_status s = rest_decode(r, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    tinker_storage_share *v = arena_array(&r->op.future->arena, w.n_data + 1, sizeof(*v));
    if (!v)
        return err_nomem(err, "result");
    for (size_t i = 0; i < w.n_data; i++) {
        const struct wire_checkpoint_usage *u = &w.data[i];
        v[i] = (tinker_storage_share){
            .project_id = u->project_id,
            .user_urn = u->org_user_urn,
            .user_email = u->user_email,
            .user_name = u->user_name,
            .n_checkpoints = u->checkpoint_count,
            .bytes = u->size_bytes,
            .monthly_cost_usd =
                u->estimated_monthly_cost_usd.has ? u->estimated_monthly_cost_usd.value : NAN,
        };
    }
    *out = (tinker_storage){
        .n = w.n_data,
        .items = v,
        .gigabyte_month_usd = w.effective_rate_usd_per_gigabyte_month.has
                                  ? w.effective_rate_usd_per_gigabyte_month.value
                                  : NAN,
    };
    return TINKER_OK;
}

static const struct rest_kind storage_kind = { REST_KIND("get_checkpoint_storage_usage", "GET"),
                                               .result = RESULT_VALUE,
                                               .type = &wire_checkpoint_usage_response,
                                               .read = read_storage };

tinker_future *tinker_rest_get_storage_usage(tinker_rest *r, const char *project_id,
                                             tinker_error *err)
{
    /* GET billing/usage/checkpoints/current?project_id */
    struct buf path;
    buf_init(&path, 1 << 10);
    buf_puts(&path, "api/v1/billing/usage/checkpoints/current");
    if (project_id && *project_id) {
        buf_puts(&path, "?project_id=");
        http_query_escape(&path, project_id);
    }
    return rest_send(r, &storage_kind, buf_detach(&path, NULL), NULL, err);
}

const tinker_storage *tinker_future_storage(const tinker_future *f)
{
    return future_value(f, &wire_checkpoint_usage_response);
}

const tinker_storage_share *tinker_storage_share_at(const tinker_storage *list, size_t i)
{
    return i < list->n ? (const tinker_storage_share *)list->items + i : NULL;
}

tinker_future *tinker_rest_get_audit_log(tinker_rest *r, const char *day, tinker_audit_type type,
                                         tinker_error *err)
{
    static const char *const types[] = { "all", "checkpoints", "projects", "teams",
                                         "organizations" };
    /* The enum comes from the caller and indexes the table. */
    if ((size_t)type >= ARRAY_LEN(types)) {
        err_set(err, TINKER_EINVAL, "type: %d is no type of audit events", (int)type);
        return NULL;
    }
    /* Digits where the shape has 0; whether there is such a day is for the service to say. */
    static const char shape[] = "0000-00-00";
    bool ok = !day || strlen(day) == sizeof(shape) - 1;
    for (size_t i = 0; ok && day && day[i]; i++)
        ok = shape[i] == '0' ? day[i] >= '0' && day[i] <= '9' : day[i] == '-';
    if (!ok) {
        err_set(err, TINKER_EINVAL, "day \"%s\" is not YYYY-MM-DD", day);
        return NULL;
    }
    /* GET audit?event_type&day. The day has been checked: nothing in it needs to be escaped. */
    struct buf path;
    buf_init(&path, 1 << 10);
    buf_printf(&path, "api/v1/audit?event_type=%s%s%s", types[type], day ? "&day=" : "",
               day ? day : "");
    return rest_send(r, &audit_kind, buf_detach(&path, NULL), NULL, err);
}

const tinker_audit *tinker_future_audit(const tinker_future *f)
{
    return future_value(f, &wire_audit_log_response);
}

const tinker_audit_entry *tinker_audit_entry_at(const tinker_audit *list, size_t i)
{
    return i < list->n ? (const tinker_audit_entry *)list->items + i : NULL;
}

/* ---- whoami: an operation without a request ------------------------------------------------------- */

static const char identity_tag[] = "identity"; /* its address tells the result apart */

/* It waits for the start of the session, which gets the JWT, and then reads it. */
struct whoami_op {
    struct operation op;
    struct session_wait wait;
};

/* Nothing but itself to free: the identity lives in the arena of the future. */
static void whoami_destroy(struct operation *op)
{
    free(op);
}

static void whoami_abandon(struct operation *op)
{
    session_forget(&((struct whoami_op *)op)->wait);
    operation_destroy(op);
}

/* Read the identity from the JWT in use, or from a key that is itself one of the service's JWTs ("iss"
 * begins with passport-).  Its signature is not checked: the service does that with every request,
 * and nothing is decided here. */
static tinker_status read_identity(struct operation *op, tinker_error *err)
{
    struct session *h = op->session;
    struct tinker_future *f = op->future;
    struct jwt_claims claims;
    const char *jwt = auth_jwt(h->auth), *key = h->cfg->api_key;
    /* A key of the other form (tml-...) is no JWT; jwt_read() fails on it. */
    bool own = !jwt && key && jwt_read(key, &f->arena, &claims) && claims.iss &&
               strncmp(claims.iss, "passport-", 9) == 0;
    if (!own && !(jwt && jwt_read(jwt, &f->arena, &claims)))
        return err_set(err, TINKER_ESTATE, "whoami requires JWT auth; this is a plain API key");
    if (!claims.sub)
        return err_set(err, TINKER_EPROTOCOL, "the token names no user");
    tinker_identity *id = arena_alloc(&f->arena, sizeof(*id));
    if (!id)
        return err_nomem(err, "result");
    id->user_urn = claims.sub;
    id->email = claims.email && *claims.email ? claims.email : NULL;
    id->org_urn = NULL;
    if (claims.org_id && *claims.org_id) {
        id->org_urn = arena_printf(&f->arena, "tml:organization:%s", claims.org_id);
        if (!id->org_urn)
            return err_nomem(err, "result");
    }
    f->value = id;
    f->type = identity_tag;
    return TINKER_OK;
}

static void whoami_ready(struct session_wait *w, const tinker_error *failed)
{
    struct operation *op =
        (struct operation *)(void *)((char *)w - offsetof(struct whoami_op, wait));
    tinker_error err;
    if (failed)
        operation_fail(op, failed);
    else if (read_identity(op, &err) == TINKER_OK)
        operation_succeed(op);
    else
        operation_fail(op, &err);
}

/* On the loop thread, like all starts: nothing has been sent yet. */
static void whoami_start(struct operation *op)
{
    struct whoami_op *w = (struct whoami_op *)op; /* first member */
    w->wait.ready = whoami_ready;
    session_when_ready(op->session, &w->wait);
}

static const struct operation_class whoami_class = {
    .name = "whoami",
    .start = whoami_start,
    .abandon = whoami_abandon,
    .destroy = whoami_destroy,
};

tinker_future *tinker_rest_whoami(tinker_rest *r, tinker_error *err)
{
    struct session *h = rest_session(r, err);
    struct whoami_op *w = h ? calloc(1, sizeof(*w)) : NULL;
    if (!w) {
        if (h)
            err_nomem(err, "whoami");
        return NULL;
    }
    tinker_future *f =
        operation_submit(&w->op, &whoami_class, h, RESULT_VALUE, rest_options(r), err);
    if (!f)
        free(w);
    return f;
}

const tinker_identity *tinker_future_identity(const tinker_future *f)
{
    return future_value(f, identity_tag);
}
