/* sessions_management.c - list sessions, and see what each has made.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local sessions_management [model]
 *
 * A session is opened by the first client of a service.  Listing needs none.  The program makes
 * two clients and finds them again among the newest sessions. */
#include "example.h"
#include <string.h>

static int has(const tinker_strings *list, const char *what)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->v[i], what) == 0)
            return 1;
    return 0;
}

static void describe(tinker_rest *rest, const char *id, const char *mine)
{
    tinker_future *f =
        await(tinker_rest_get_session(rest, id, TINKER_SCOPE_OWNED, &err), "session");
    const tinker_session *s = tinker_future_session(f);
    printf("%s  %zu training runs, %zu samplers%s\n", id, s->training_run_ids.n, s->sampler_ids.n,
           strcmp(id, mine) == 0 ? "  (this program)" : "");
    tinker_future_free(f);
}

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_rest *rest = need(tinker_service_create_rest(service, &err), "REST client");
    tinker_training *t =
        need(tinker_service_create_lora(service, model, NULL, MINUTE_MS, &err), "training client");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model, NULL, MINUTE_MS, &err), "sampler");
    const char *mine = tinker_service_session_id(service);

    tinker_page page = TINKER_PAGE_INIT;
    page.limit = 5;
    tinker_future *list = await(tinker_rest_list_sessions(rest, &page, &err), "sessions");
    const tinker_strings *ids = tinker_future_strings(list);
    expect(ids->n <= 5 && has(ids, mine), "the newest sessions, this one among them");
    for (size_t i = 0; i < ids->n; i++)
        describe(rest, ids->v[i], mine);
    tinker_future_free(list);

    tinker_future *f =
        await(tinker_rest_get_session(rest, mine, TINKER_SCOPE_OWNED, &err), "session");
    const tinker_session *own = tinker_future_session(f);
    expect(own->training_run_ids.n == 1 && has(&own->training_run_ids, tinker_training_model_id(t)),
           "its only training run is ours");
    expect(own->sampler_ids.n == 1 && has(&own->sampler_ids, tinker_sampler_id(s)),
           "and so is its sampler");
    tinker_future_free(f);

    f = tinker_future_await(
        tinker_rest_get_session(rest, "no-such-session", TINKER_SCOPE_OWNED, &err), MINUTE_MS,
        &err);
    expect(!f && err.status == TINKER_EHTTP && err.http_status == 404, "another one is not found");
    printf("no-such-session  status %d\n", err.http_status);

    tinker_sampler_free(s);
    tinker_training_free(t);
    tinker_rest_free(rest);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
