/* account.c - the REST calls about the account: usage, storage, audit, and whose key it is. */
#include <stdlib.h>
#include <string.h>
#include <tinker/account.h>
#include "base/err.h"
#include "client/session/jwt.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "client/rest/rest_types.h"
#include "client/session/service.h"
#include "wire/timestamp.h"

static const struct rest_kind billing_kind = { REST_CLASS("get_billing_usage"),
                                               REST_SPEC("get_billing_usage", "GET"),
                                               RESULT_VALUE,
                                               type_billing,
                                               read_billing,
                                               false };
static const struct rest_kind audit_kind = { REST_CLASS("get_audit_log"),
                                             { "get_audit_log", "GET", POOL_REDIRECT, 0, NULL,
                                               CALL_DEFAULT, true, false },
                                             RESULT_VALUE,
                                             type_audit,
                                             read_audit,
                                             false };

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

tinker_future *tinker_rest_billing_usage(tinker_rest *r, const char *start, const char *end,
                                         tinker_error *err)
{
    struct wire_time from, to;
    char a[WIRE_TIME_TEXT], b[WIRE_TIME_TEXT];
    if (check_time("start", start, &from, a, err) != TINKER_OK ||
        check_time("end", end, &to, b, err) != TINKER_OK)
        return NULL;
    if (to.us <= from.us) {
        err_set(err, TINKER_EINVAL, "the end %s is not after the start %s", b, a);
        return NULL;
    }
    struct buf path;
    buf_init(&path, 1 << 10);
    buf_puts(&path, "api/v1/billing/usage/events?starting_on=");
    http_query_escape(&path, a);
    buf_puts(&path, "&ending_before=");
    http_query_escape(&path, b);
    return rest_submit(rest_session(r, err), &billing_kind, buf_detach(&path, NULL), NULL, err);
}

static const struct rest_kind storage_kind = { REST_CLASS("get_checkpoint_storage_usage"),
                                               REST_SPEC("get_checkpoint_storage_usage", "GET"),
                                               RESULT_VALUE,
                                               type_storage,
                                               read_storage,
                                               false };

tinker_future *tinker_rest_storage_usage(tinker_rest *r, const char *project_id, tinker_error *err)
{
    struct buf path;
    buf_init(&path, 1 << 10);
    buf_puts(&path, "api/v1/billing/usage/checkpoints/current");
    if (project_id && *project_id) {
        buf_puts(&path, "?project_id=");
        http_query_escape(&path, project_id);
    }
    return rest_submit(rest_session(r, err), &storage_kind, buf_detach(&path, NULL), NULL, err);
}

static bool is_day(const char *s)
{
    static const char shape[] = "0000-00-00";
    if (strlen(s) != sizeof(shape) - 1)
        return false;
    for (size_t i = 0; s[i]; i++)
        if (shape[i] == '0' ? s[i] < '0' || s[i] > '9' : s[i] != '-')
            return false;
    return true;
}

tinker_future *tinker_rest_audit_log(tinker_rest *r, const char *day, int checkpoints_only,
                                     tinker_error *err)
{
    if (day && !is_day(day)) {
        err_set(err, TINKER_EINVAL, "day \"%s\" is not YYYY-MM-DD", day);
        return NULL;
    }
    struct buf path;
    buf_init(&path, 1 << 10);
    buf_printf(&path, "api/v1/audit?event_type=%s%s%s", checkpoints_only ? "checkpoints" : "all",
               day ? "&day=" : "", day ? day : "");
    return rest_submit(rest_session(r, err), &audit_kind, buf_detach(&path, NULL), NULL, err);
}

/* ---- whoami: an operation without a request ------------------------------------------------------- */

struct whoami_op {
    struct op op;
    struct session_wait wait;
};

static void whoami_destroy(struct op *op)
{
    free(op);
}

static void whoami_abandon(struct op *op)
{
    session_forget(&((struct whoami_op *)op)->wait);
    op_destroy(op);
}

/* The JWT in use, or a key that is itself one of the service's. */
static tinker_status read_identity(struct op *op, tinker_error *err)
{
    struct session *h = op->session;
    struct tinker_future *f = op->future;
    struct jwt_claims claims;
    const char *jwt = auth_jwt(h->auth), *key = h->cfg->api_key;
    bool own = !jwt && key && jwt_read(key, &f->arena, &claims) && claims.iss &&
               strncmp(claims.iss, "passport-", 9) == 0;
    if (!own && !(jwt && jwt_read(jwt, &f->arena, &claims)))
        return err_set(err, TINKER_ESTATE, "whoami requires JWT auth; this is a plain API key");
    if (!claims.sub)
        return err_set(err, TINKER_EPROTOCOL, "the token does not say who it is for");
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
    f->type = type_identity;
    return TINKER_OK;
}

static void whoami_ready(struct session_wait *w, const tinker_error *failed)
{
    struct op *op = (struct op *)(void *)((char *)w - offsetof(struct whoami_op, wait));
    tinker_error err;
    if (failed)
        op_fail(op, failed);
    else if (read_identity(op, &err) == TINKER_OK)
        op_succeed(op);
    else
        op_fail(op, &err);
}

static void whoami_start(struct op *op)
{
    struct whoami_op *w = (struct whoami_op *)op; /* first member */
    w->wait.ready = whoami_ready;
    session_when_ready(op->session, &w->wait);
}

static const struct op_class whoami_class = { "whoami", whoami_start, whoami_abandon,
                                              whoami_destroy };

tinker_future *tinker_rest_whoami(tinker_rest *r, tinker_error *err)
{
    struct session *h = rest_session(r, err);
    struct whoami_op *w = h ? calloc(1, sizeof(*w)) : NULL;
    if (!w) {
        if (h)
            err_nomem(err, "whoami");
        return NULL;
    }
    tinker_future *f = op_submit(&w->op, &whoami_class, h, RESULT_VALUE, err);
    if (!f)
        free(w);
    return f;
}
