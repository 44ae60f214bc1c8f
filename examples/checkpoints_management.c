/* checkpoints_management.c - list checkpoints, let them expire, publish them, delete them.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local checkpoints_management [model]
 *
 * Saves a training state and weights to sample from, then manages both by their paths.  None of
 * the management calls needs a session. */
#include "example.h"
#include <math.h>
#include <string.h>

enum { HOUR = 3600 };

/* Print the run's checkpoints; *state and *weights receive those of the two kinds. */
static tinker_future *list(tinker_rest *rest, const char *run, const tinker_checkpoint **state,
                           const tinker_checkpoint **weights)
{
    tinker_future *f = await(tinker_rest_list_checkpoints(rest, run, &err), "list");
    const tinker_checkpoints *c = tinker_future_checkpoints(f);
    *state = *weights = NULL;
    for (size_t i = 0; i < c->n; i++) {
        const tinker_checkpoint *k = tinker_checkpoint_at(c, i);
        char expires[32] = "never";
        if (k->expires_us != TINKER_NO_TIME)
            snprintf(expires, sizeof(expires), "in %.0f minutes",
                     round(((double)k->expires_us / 1e6 - (double)time(NULL)) / 60));
        printf("%-22s %7lld bytes, %s, expires %s\n", k->id, (long long)k->size_bytes,
               k->is_public ? "public" : "private", expires);
        *(k->kind == TINKER_CHECKPOINT_SAMPLER ? weights : state) = k;
    }
    return f;
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");
    tinker_rest *rest = need(tinker_service_create_rest(service, &err), "REST client");
    const char *run = tinker_training_model_id(t);
    tinker_save_options day = TINKER_SAVE_OPTIONS_INIT;
    day.ttl_seconds = 24 * HOUR;
    tinker_future *state = await(tinker_training_save_state(t, "demo", NULL, &err), "save state");
    tinker_future *weights =
        await(tinker_training_save_for_sampler(t, "demo", &day, &err), "save weights");
    const char *state_path = tinker_future_saved_path(state),
               *weights_path = tinker_future_saved_path(weights);

    const tinker_checkpoint *s, *w;
    tinker_future *f = list(rest, run, &s, &w);
    expect(s && s->expires_us == TINKER_NO_TIME, "the state is kept for ever");
    expect(w && w->expires_us != TINKER_NO_TIME, "the weights are not");
    tinker_future_free(f);

    puts("-- the state for an hour, the weights for ever and for everybody");
    finish(tinker_rest_set_checkpoint_ttl(rest, state_path, HOUR, &err), "set ttl");
    finish(tinker_rest_set_checkpoint_ttl(rest, weights_path, 0, &err), "remove ttl");
    finish(tinker_rest_publish_checkpoint(rest, weights_path, &err), "publish");
    f = list(rest, run, &s, &w);
    expect(s && llabs(s->expires_us / 1000000 - (int64_t)time(NULL) - HOUR) < 60, "one hour");
    expect(w && w->expires_us == TINKER_NO_TIME && w->is_public, "no end, and public");
    tinker_future_free(f);

    f = tinker_future_await(tinker_rest_publish_checkpoint(rest, weights_path, &err), MINUTE_MS,
                            &err);
    if (!f && err.http_status != 409)
        die("publish again"); /* 409 says that it is public already, which is what we want */
    tinker_future_free(f);
    finish(tinker_rest_unpublish_checkpoint(rest, weights_path, &err), "unpublish");
    finish(tinker_rest_delete_checkpoint(rest, weights_path, &err), "delete");
    finish(tinker_rest_delete_checkpoint(rest, state_path, &err), "delete");
    f = list(rest, run, &s, &w);
    expect(!s && !w, "both are gone");
    puts("both deleted");

    tinker_future_free(f);
    tinker_future_free(weights);
    tinker_future_free(state);
    tinker_rest_free(rest);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
