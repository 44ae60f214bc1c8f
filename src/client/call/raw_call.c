/* raw_call.c - any request to the service, answered with what came: see tinker_service_call(). */
#include "client/call/raw_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/http.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/call_options.h"
#include "client/rest/rest_op.h"
#include "client/session/service.h"

struct raw_op {
    struct rest_op rest; /* first */
    struct rest_kind kind;
    char *content_type;
};

static void destroy_raw_call(struct operation *op)
{
    struct raw_op *r = (struct raw_op *)op; /* first member of its first */
    free(r->content_type);
    rest_destroy(op);
}

static tinker_status keep_raw_response(struct rest_op *r, const char *body, size_t n,
                                       tinker_error *err)
{
    (void)body, (void)n;
    return response_keep(&r->op, &r->call) ? TINKER_OK : err_nomem(err, "the response");
}

const char *raw_call_check(const char *method, const char *path, const char *content_type,
                           tinker_error *err)
{
    static const char *const methods[] = { "GET", "POST", "PUT", "PATCH", "DELETE" };
    const char *known = NULL;
    for (size_t i = 0; method && i < ARRAY_LEN(methods); i++)
        if (strcmp(methods[i], method) == 0)
            known = methods[i];
    if (!known) {
        err_set(err, TINKER_EINVAL, "\"%s\" is not a method; use GET, POST, PUT, PATCH or DELETE",
                method ? method : "");
        return NULL;
    }
    /* One slash: "//host" would be another server's address. */
    if (!path || path[0] != '/' || path[1] == '/' || path[1] == '\0') {
        err_set(err, TINKER_EINVAL,
                "the path of a call begins with one slash, as in \"/api/v1/healthz\"");
        return NULL;
    }
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 127 || strchr("\\\"<>#", *p)) {
            err_set(err, TINKER_EINVAL,
                    "the path of a call has a character that no URL has, at byte %zu",
                    (size_t)(p - path));
            return NULL;
        }
    const tinker_named_string type = { .name = "content-type", .value = content_type };
    if (content_type && call_options_check_header(&type, err) != TINKER_OK)
        return NULL;
    return known;
}

/* Without the query, which may hold private data. */
void raw_call_label(struct operation *op, const char *method, const char *path)
{
    snprintf(op->label, sizeof(op->label), "%s %.*s", method, (int)strcspn(path, "?"), path);
}

static bool fill_raw_call(struct raw_op *r, const char *method, const char *path, const void *body,
                          size_t n, const char *content_type)
{
    r->kind = (struct rest_kind){
        .class = { .name = "call",
                   .start = rest_start,
                   .abandon = rest_abandon,
                   .destroy = destroy_raw_call },
        .spec = REST_SPEC("call", method),
        .result = RESULT_NONE,
        .read = keep_raw_response,
    };
    struct rest_op *rest = &r->rest;
    rest->kind = &r->kind;
    raw_call_label(&rest->op, method, path);
    /* base_url brings the slash. */
    rest->path = strdup(path + 1);
    buf_init(&rest->body, SIZE_MAX / 4);
    buf_append(&rest->body, body ? body : "", body ? n : 0);
    r->content_type = content_type ? strdup(content_type) : NULL;
    rest->call.content_type = r->content_type;
    rest->call.empty_ok = true;
    rest->call.max_response = CALL_RESPONSE_MOST; /* only the caller knows what was asked for */
    return rest->path && buf_ok(&rest->body) && (r->content_type || !content_type);
}

tinker_future *tinker_service_call(tinker_service *s, const char *method, const char *path,
                                   const void *body, size_t n, const char *content_type,
                                   tinker_error *err)
{
    const char *known = raw_call_check(method, path, content_type, err);
    struct session *h = known ? service_rest(s, err) : NULL;
    struct raw_op *r = h ? calloc(1, sizeof(*r)) : NULL;
    if (!r) {
        if (h)
            err_nomem(err, "call");
        return NULL;
    }
    tinker_future *f = NULL;
    if (fill_raw_call(r, known, path, body, n, content_type))
        f = operation_submit(&r->rest.op, &r->kind.class, h, RESULT_NONE, s->options, err);
    else
        err_nomem(err, "call");
    if (!f)
        destroy_raw_call(&r->rest.op);
    return f;
}
