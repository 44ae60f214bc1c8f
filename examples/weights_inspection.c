/* weights_inspection.c - look at saved weights before using them: base model, rank, what was trained.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local weights_inspection [model]
 *
 * Weights say which base model they belong to and which rank they have; a program that expects
 * another one should notice here and not after an hour of training.  Runs and samplers say the
 * same about themselves. */
#include "example.h"
#include <string.h>

/* 0: the weights at `path` are not what the caller wants. */
static int check_weights(tinker_rest *rest, const char *path, const char *model, int64_t rank)
{
    tinker_future *f = await(tinker_rest_get_weights_info(rest, path, &err), "weights info");
    const tinker_weights_info *w = tinker_future_weights_info(f);
    printf("weights  %s, rank %lld, trained: attention %s, mlp %s, unembedding %s\n", w->base_model,
           (long long)w->lora_rank, w->train_attn ? "yes" : "no", w->train_mlp ? "yes" : "no",
           w->train_unembed ? "yes" : "no");
    int fits = w->is_lora && strcmp(w->base_model, model) == 0 && w->lora_rank == rank;
    if (!fits)
        printf("         wanted %s, rank %lld: refused\n", model, (long long)rank);
    tinker_future_free(f);
    return fits;
}

/* The run that a path belongs to. */
static void show_run(tinker_rest *rest, const char *path, int64_t rank)
{
    tinker_checkpoint_path parts;
    if (tinker_checkpoint_path_parse(path, &parts, &err) != TINKER_OK)
        die(path);
    tinker_future *f =
        await(tinker_rest_get_training_run(rest, path, TINKER_SCOPE_OWNED, &err), "training run");
    const tinker_training_run *run = tinker_future_training_run(f);
    printf("run      rank %lld, last sampler checkpoint %s\n", (long long)run->lora_rank,
           run->last_sampler_checkpoint ? run->last_sampler_checkpoint->id : "none");
    expect(strcmp(run->id, parts.training_run) == 0 && run->lora_rank == rank, "the same run");
    expect(run->last_sampler_checkpoint &&
               strcmp(run->last_sampler_checkpoint->id, parts.checkpoint_id) == 0,
           "its last sampler checkpoint is this one");
    tinker_future_free(f);
}

static void show_sampler(tinker_rest *rest, const char *id, const char *path)
{
    tinker_future *f = await(tinker_rest_get_sampler(rest, id, &err), "sampler");
    const tinker_sampler_info *s = tinker_future_sampler_info(f);
    printf("sampler  of %s, from %s\n", s->base_model,
           s->model_path ? "saved weights" : "the base");
    expect(s->model_path && strcmp(s->model_path, path) == 0, "it samples from these weights");
    tinker_future_free(f);
}

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_rest *rest = need(tinker_service_create_rest(service, &err), "REST client");
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 16;
    lora.train_unembed = 0;
    tinker_training *t =
        need(tinker_service_create_lora(service, model, &lora, MINUTE_MS, &err), "training client");
    tinker_future *save =
        await(tinker_training_save_for_sampler(t, "inspect", NULL, &err), "save for sampler");
    const char *path = tinker_future_saved_path(save);
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, NULL, path, MINUTE_MS, &err), "sampler");

    expect(check_weights(rest, path, model, 16), "these are the weights we want");
    expect(!check_weights(rest, path, model, 32), "and these are not");
    show_run(rest, path, 16);
    show_sampler(rest, tinker_sampler_id(s), path);

    tinker_sampler_free(s);
    tinker_future_free(save);
    tinker_training_free(t);
    tinker_rest_free(rest);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
