/* rest_listing.c - what the service has: models, training runs, checkpoints.
 * Opens no session. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/rest.h>
#include <tinker/tinker.h>

static tinker_error err;

/* Wait for a future; NULL stays NULL and a failure becomes NULL. */
static tinker_future *await(tinker_future *f)
{
    if (f && tinker_future_wait(f, 60000, &err) == TINKER_OK)
        return f;
    tinker_future_free(f);
    return NULL;
}

static int list_models(tinker_service *s)
{
    tinker_future *f = await(tinker_service_capabilities(s, &err));
    if (!f)
        return 0;
    const tinker_capabilities *c = tinker_future_capabilities(f);
    for (size_t i = 0; i < c->n; i++)
        printf("model %s, context %lld\n", c->models[i].name ? c->models[i].name : "?",
               (long long)c->models[i].max_context_length);
    tinker_future_free(f);
    return 1;
}

static int list_runs(tinker_rest *r)
{
    const tinker_training_run *run;
    tinker_pager *all = tinker_rest_all_training_runs(r, NULL, &err);
    int ok = all != NULL;
    while (ok && (ok = tinker_pager_next(all, 60000, &err) == TINKER_OK) &&
           (run = tinker_pager_training_run(all)) != NULL)
        printf("run %s on %s, rank %lld%s\n", run->id, run->base_model, (long long)run->lora_rank,
               run->corrupted ? ", corrupted" : "");
    tinker_pager_free(all);
    return ok;
}

static int list_checkpoints(tinker_rest *r) /* one page; the first has the newest */
{
    tinker_future *f = await(tinker_rest_list_user_checkpoints(r, NULL, &err));
    if (!f)
        return 0;
    const tinker_checkpoints *c = tinker_future_checkpoints(f);
    for (size_t i = 0; i < c->n; i++)
        printf("checkpoint %s, %lld bytes%s\n", c->checkpoints[i].path,
               (long long)c->checkpoints[i].size_bytes,
               c->checkpoints[i].is_public ? ", public" : "");
    tinker_future_free(f);
    return 1;
}

int main(void)
{
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_rest *r = service ? tinker_service_create_rest(service, &err) : NULL;
    int ok = r && list_models(service) && list_runs(r) && list_checkpoints(r);
    if (!ok)
        fprintf(stderr, "rest_listing: %s\n", err.message);
    tinker_rest_free(r);
    tinker_service_free(service);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
