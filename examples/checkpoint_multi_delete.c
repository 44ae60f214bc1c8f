/* checkpoint_multi_delete.c - delete several checkpoints at once, and say which did not go.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local checkpoint_multi_delete [model]
 *
 * All deletions are on their way before the first is waited for; each has an outcome of its own.
 * The same from a shell: tinker checkpoint delete PATH PATH... */
#include "example.h"

enum { SAVES = 3, PATHS = SAVES + 1 };

static size_t count(tinker_rest *rest, const char *run)
{
    tinker_future *f = await(tinker_rest_list_checkpoints(rest, run, &err), "list");
    size_t n = tinker_future_checkpoints(f)->n;
    tinker_future_free(f);
    return n;
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");
    tinker_rest *rest = need(tinker_service_create_rest(service, &err), "REST client");
    const char *run = tinker_training_model_id(t);

    char paths[PATHS][512];
    for (int i = 0; i < SAVES; i++) {
        char name[32];
        snprintf(name, sizeof(name), "part-%d", i);
        tinker_future *save =
            await(tinker_training_save_for_sampler(t, name, NULL, &err), "save for sampler");
        snprintf(paths[i], sizeof(paths[i]), "%s", tinker_future_saved_path(save));
        tinker_future_free(save);
    }
    snprintf(paths[SAVES], sizeof(paths[SAVES]), "tinker://%s/sampler_weights/never-saved", run);
    printf("%zu checkpoints\n", count(rest, run));

    tinker_future *f[PATHS];
    for (int i = 0; i < PATHS; i++)
        f[i] = need(tinker_rest_delete_checkpoint(rest, paths[i], &err), paths[i]);
    int deleted = 0, failed = 0;
    for (int i = 0; i < PATHS; i++) {
        if (tinker_future_wait(f[i], MINUTE_MS, &err) == TINKER_OK)
            deleted++;
        else {
            failed++;
            printf("%s: status %d, %s\n", paths[i], err.http_status,
                   tinker_error_is_user(&err) ? "no use trying again" : "try again later");
        }
        tinker_future_free(f[i]);
    }
    printf("%d deleted, %d failed, %zu left\n", deleted, failed, count(rest, run));
    expect(deleted == SAVES && failed == 1 && count(rest, run) == 0, "all that were there went");

    tinker_rest_free(rest);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
