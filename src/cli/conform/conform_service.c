/* conform_service.c - checks of `tinker conform`: configuration, session, and how errors are told. */
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "cli/conform/conform.h"

/* The first thing that clients and load balancers ask. */
static bool check_health(struct conform *c)
{
    char status[16];
    return conform_get(c, CONFORM_API "healthz") &&
           conform_text(c, "status", status, sizeof(status)) &&
           (strcmp(status, "ok") == 0 || conform_miss(c, "status is %s, not ok", status));
}

/* An empty object is fine: flags have defaults in the client. */
static bool check_config(struct conform *c)
{
    struct json_str config;
    return conform_post(c, CONFORM_API "client/config", "{\"sdk_version\":\"0.36.0\"}") &&
           conform_object(c, "", &config);
}

/* 0 would make clients ask without a pause. */
static bool check_dynamic_config(struct conform *c)
{
    double seconds;
    return conform_post(c, CONFORM_API "client/dynamic_config", "{\"sdk_version\":\"0.36.0\"}") &&
           conform_number(c, "refresh_interval_sec", &seconds) &&
           (seconds > 0 || conform_miss(c, "refresh_interval_sec is %g", seconds));
}

/* Also chooses the model of all other checks: that of -m, or the first. */
static bool check_capabilities(struct conform *c)
{
    char path[64], name[sizeof(c->model)] = "";
    if (!conform_get(c, CONFORM_API "get_server_capabilities"))
        return false;
    for (size_t i = 0; !c->model[0]; i++) {
        snprintf(path, sizeof(path), "supported_models.%zu.model_name", i);
        if (i && !conform_has(c, path))
            return conform_miss(c, "the server does not offer %s", c->wanted);
        if (!conform_text(c, path, name, sizeof(name)))
            return false;
        if (!c->wanted || strcmp(name, c->wanted) == 0)
            snprintf(c->model, sizeof(c->model), "%s", name);
    }
    return true;
}

/* The mark is among the tags, so that a person can find what a check has left behind. */
static bool check_session(struct conform *c)
{
    return conform_post(c, CONFORM_API "create_session",
                        "{\"tags\":[\"tinker-conform\",\"%s\"],\"user_metadata\":{},"
                        "\"sdk_version\":\"0.36.0\",\"type\":\"create_session\"}",
                        c->mark) &&
           conform_text(c, "session_id", c->session, sizeof(c->session));
}

/* Missing heartbeats end a session; clients send one every ten seconds. */
static bool check_heartbeat(struct conform *c)
{
    return conform_post(c, CONFORM_API "session_heartbeat",
                        "{\"session_id\":\"%s\",\"type\":\"session_heartbeat\"}", c->session);
}

/* Newer clients send members that older servers do not know. */
static bool check_unknown_member(struct conform *c)
{
    return conform_post(c, CONFORM_API "session_heartbeat",
                        "{\"session_id\":\"%s\",\"of_a_newer_client\":1}", c->session);
}

static bool check_unknown_session(struct conform *c)
{
    return conform_send(c, "POST", CONFORM_API "session_heartbeat",
                        "{\"session_id\":\"conform-no-such-session\"}") &&
           conform_refused(c, "heartbeat of an unknown session");
}

/* Without events: nothing of this machine is sent. */
static bool check_telemetry(struct conform *c)
{
    return conform_post(c, CONFORM_API "telemetry",
                        "{\"events\":[],\"platform\":\"Linux\",\"sdk_version\":\"0.36.0\","
                        "\"session_id\":\"%s\"}",
                        c->session);
}

static const struct conform_check service_checks[] = {
    { "service.health", "GET healthz answers {\"status\":\"ok\"}", check_health },
    { "service.config", "client/config answers an object of flags", check_config },
    { "service.dynamic_config", "client/dynamic_config says how often to ask again",
      check_dynamic_config },
    { "service.capabilities", "get_server_capabilities names the models", check_capabilities },
    { "service.session", "create_session answers a session_id", check_session },
    { "service.heartbeat", "a heartbeat of that session is accepted", check_heartbeat },
    { "service.unknown_member", "unknown members of a request are ignored", check_unknown_member },
    { "service.unknown_session", "a heartbeat of an unknown session is refused",
      check_unknown_session },
    { "service.telemetry", "telemetry is accepted", check_telemetry },
};
const struct conform_group conform_service = { "service", service_checks,
                                               ARRAY_LEN(service_checks) };

/* ---- errors ---------------------------------------------------------------------------------------- */

static bool check_unknown_route(struct conform *c)
{
    return conform_send(c, "GET", CONFORM_API "conform_no_such_route", NULL) &&
           (c->status == 404 || conform_miss(c, "HTTP %d, not 404", c->status));
}

/* 404 passes as well: some frameworks route by method first. */
static bool check_wrong_method(struct conform *c)
{
    return conform_send(c, "DELETE", CONFORM_API "create_session", NULL) &&
           (c->status == 405 || c->status == 404 || conform_miss(c, "HTTP %d, not 405", c->status));
}

/* A proxy may cut a body; what is left must be refused, not read as far as it goes. */
static bool check_broken_json(struct conform *c)
{
    return conform_send(c, "POST", CONFORM_API "create_session", "{\"tags\":[") &&
           conform_refused(c, "a body that is no JSON");
}

/* It must not become a server error: clients retry those. */
static bool check_missing_member(struct conform *c)
{
    return conform_send(c, "POST", CONFORM_API "create_sampling_session", "{}") &&
           conform_refused(c, "a request without its required members");
}

/* The SDK never sends this; a fuzzer does within a second. */
static bool check_wrong_type(struct conform *c)
{
    return conform_send(c, "POST", CONFORM_API "retrieve_future", "{\"request_id\":{\"a\":1}}") &&
           conform_refused(c, "an object where a text belongs");
}

/* "detail" is what the SDK puts into its exception. */
static bool check_detail(struct conform *c)
{
    return conform_send(c, "POST", CONFORM_API "create_sampling_session", "{}") &&
           (conform_has(c, "detail") ||
            conform_miss(c, "no member detail: %.*s", (int)(c->body.n < 120 ? c->body.n : 120),
                         c->body.s));
}

/* Clients take an error without a length for one of a proxy, and try again. */
static bool check_length(struct conform *c)
{
    return conform_send(c, "POST", CONFORM_API "create_sampling_session", "{}") &&
           (c->sized || conform_miss(c, "HTTP %d without Content-Length", c->status));
}

/* 408 would mean that the result is still to come. */
static bool check_unknown_future(struct conform *c)
{
    return conform_send(c, "POST", CONFORM_API "retrieve_future",
                        "{\"request_id\":\"conform:train:0:999999\"}") &&
           conform_refused(c, "a poll for an unknown request") &&
           (c->status != 408 || conform_miss(c, "HTTP 408: clients poll forever"));
}

static const struct conform_check error_checks[] = {
    { "errors.unknown_route", "an unknown path is 404", check_unknown_route },
    { "errors.wrong_method", "a wrong method is 405", check_wrong_method },
    { "errors.broken_json", "a body that is no JSON is 4xx", check_broken_json },
    { "errors.missing_member", "a missing member is 4xx", check_missing_member },
    { "errors.wrong_type", "a member of the wrong type is 4xx", check_wrong_type },
    { "errors.detail", "an error says why in detail", check_detail },
    { "errors.length", "an error has a Content-Length", check_length },
    { "errors.unknown_future", "a poll for an unknown request is 4xx, not 408",
      check_unknown_future },
};
const struct conform_group conform_errors = { "errors", error_checks, ARRAY_LEN(error_checks) };
