/* model_info_and_unload.c - what is being trained, and the end of it.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local model_info_and_unload [model]
 *
 * Unloading gives the memory back to the service at once, instead of when the session ends.  The
 * client is then of no use: the library itself refuses what is submitted to it. */
#include "example.h"
#include <string.h>

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 4;
    tinker_training *t =
        need(tinker_service_create_lora(service, model, &lora, MINUTE_MS, &err), "training client");

    tinker_future *f = await(tinker_training_get_info(t, &err), "info");
    const tinker_model_info *info = tinker_future_model_info(f);
    printf("model id   %s\n", info->model_id);
    printf("model      %s\n", info->base_model ? info->base_model : info->model_name);
    printf("arch       %s\n", info->arch ? info->arch : "(not told)");
    printf("tokenizer  %s\n", info->tokenizer_id ? info->tokenizer_id : "(not told)");
    printf("lora       %s, rank %lld\n", info->is_lora ? "yes" : "no", (long long)info->lora_rank);
    expect(strcmp(info->model_id, tinker_training_model_id(t)) == 0, "it is this client's model");
    expect(info->is_lora == 1 && info->lora_rank == 4, "an adapter of rank 4");
    tinker_future_free(f);

    tinker_tokenizer *tok = need(tinker_training_create_tokenizer(t, NULL, MINUTE_MS, &err),
                                 "tokenizer"); /* local files */
    printf("vocabulary %zu tokens\n", tinker_tokenizer_vocab_size(tok, 1));
    tinker_tokenizer_free(tok);

    finish(tinker_training_unload(t, &err), "unload");
    f = tinker_future_await(tinker_training_optim_step(t, NULL, &err), MINUTE_MS, &err);
    expect(!f && err.status == TINKER_ESTATE, "an unloaded model takes no more steps");
    printf("unloaded; a step now: %s, %s\n", tinker_status_name(err.status), err.message);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
