/* rest_listing.c - what the service has: models, training runs, checkpoints.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local rest_listing
 *
 * Opens no session. */
#include "example.h"

static void list_models(tinker_service *s)
{
    tinker_future *f = await(tinker_service_get_capabilities(s, &err), "capabilities");
    const tinker_capabilities *c = tinker_future_capabilities(f);
    for (size_t i = 0; i < c->n; i++)
        printf("model %s, context %lld\n",
               tinker_supported_model_at(c, i)->name ? tinker_supported_model_at(c, i)->name : "?",
               (long long)tinker_supported_model_at(c, i)->max_context_length);
    tinker_future_free(f);
}

static void list_runs(tinker_rest *r) /* all of them, page by page */
{
    tinker_pager *all = need(tinker_rest_all_training_runs(r, NULL, &err), "training runs");
    for (;;) {
        if (tinker_pager_next(all, MINUTE_MS, &err) != TINKER_OK)
            die("training runs");
        const tinker_training_run *run = tinker_pager_training_run(all);
        if (!run)
            break;
        printf("run %s on %s, rank %lld%s\n", run->id, run->base_model, (long long)run->lora_rank,
               run->corrupted ? ", corrupted" : "");
    }
    tinker_pager_free(all);
}

static void list_checkpoints(tinker_rest *r) /* one page; the first has the newest */
{
    tinker_future *f = await(tinker_rest_list_user_checkpoints(r, NULL, &err), "checkpoints");
    const tinker_checkpoints *c = tinker_future_checkpoints(f);
    for (size_t i = 0; i < c->n; i++)
        printf("checkpoint %s, %lld bytes%s\n", tinker_checkpoint_at(c, i)->path,
               (long long)tinker_checkpoint_at(c, i)->size_bytes,
               tinker_checkpoint_at(c, i)->is_public ? ", public" : "");
    tinker_future_free(f);
}

int main(void)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_rest *r = need(tinker_service_create_rest(service, &err), "REST client");
    list_models(service);
    list_runs(r);
    list_checkpoints(r);
    tinker_rest_free(r);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
