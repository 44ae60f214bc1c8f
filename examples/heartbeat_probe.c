/* heartbeat_probe.c - is the heartbeat where it should be?  A request of one's own.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local heartbeat_probe [model]
 *
 * The library sends heartbeats by itself, every ten seconds, for as long as a service is open.
 * tinker_service_call() sends anything it has no function for: here a heartbeat by hand to the
 * path of today, and to the one of the first releases, which must be gone. */
#include "example.h"
#include <string.h>
#include <tinker/extra/http.h>

/* The status that a POST of the session's id gets. */
static int probe(tinker_service *service, const char *path)
{
    char body[256];
    snprintf(body, sizeof(body), "{\"session_id\":\"%s\",\"type\":\"session_heartbeat\"}",
             tinker_service_session_id(service));
    tinker_future *f =
        need(tinker_service_call(service, "POST", path, body, strlen(body), NULL, &err), "call");
    tinker_future_wait(f, MINUTE_MS, &err); /* a status that says no is an answer, too */
    const tinker_response *r = tinker_future_response(f);
    int status = r ? r->status : 0;
    printf("%-28s %d %s\n", path, status, r && r->body ? (const char *)r->body : "");
    tinker_future_free(f);
    return status;
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *s = /* opens the session */
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");
    expect(probe(service, "/api/v1/session_heartbeat") == 200, "the heartbeat is heard");
    expect(probe(service, "/api/v1/heartbeat") == 404, "the old path is gone");
    tinker_sampler_free(s);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
