/* async_client_creation.c - many clients at once: submit all, then take each as it is ready.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local async_client_creation [model]
 *
 * Functions called create_… wait; their twins called request_… return a future whose result is the
 * client.  Here nine are requested before anything is waited for, one of them in vain, and a
 * queue hands them over in the order in which they are ready. */
#include "example.h"

enum { TRAININGS = 4, SAMPLERS = 4, ALL = TRAININGS + SAMPLERS + 1 };

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_queue *q = need(tinker_queue_new(&err), "queue");
    tinker_future *f[ALL];
    for (int i = 0; i < ALL; i++) {
        tinker_lora lora = TINKER_LORA_INIT;
        lora.rank = 4 << i % TRAININGS; /* 4, 8, 16, 32 */
        if (i < TRAININGS)
            f[i] = tinker_service_request_lora(service, model, &lora, &err);
        else if (i < TRAININGS + SAMPLERS)
            f[i] = tinker_service_request_sampler(service, model, NULL, &err);
        else
            f[i] = tinker_service_request_sampler(service, "nobody/no-such-model", NULL, &err);
        if (!f[i] || tinker_queue_add(q, f[i], NULL, &err) != TINKER_OK)
            die("request");
    }
    printf("%d requested\n", ALL);

    tinker_training *trainings[TRAININGS];
    tinker_sampler *samplers[SAMPLERS];
    int n_trainings = 0, n_samplers = 0, failed = 0;
    for (int i = 0; i < ALL; i++) {
        tinker_future *ready = tinker_queue_next(q, MINUTE_MS, NULL);
        expect(ready != NULL, "every request ends");
        if (tinker_future_wait(ready, 0, &err) != TINKER_OK) {
            printf("failed: status %d\n", err.http_status);
            failed++;
            continue; /* the others are not concerned */
        }
        tinker_training *t = tinker_future_take_training(ready); /* NULL: it is a sampler */
        if (t)
            trainings[n_trainings++] = t;
        else
            samplers[n_samplers++] = tinker_future_take_sampler(ready);
    }
    printf("%d training clients, %d samplers, %d failed\n", n_trainings, n_samplers, failed);
    expect(n_trainings == TRAININGS && n_samplers == SAMPLERS && failed == 1, "as requested");

    tinker_future *info[TRAININGS];
    long long ranks = 0;
    for (int i = 0; i < TRAININGS; i++)
        info[i] = need(tinker_training_get_info(trainings[i], &err), "info");
    if (tinker_future_wait_all(info, TRAININGS, MINUTE_MS, &err) != TINKER_OK)
        die("info");
    for (int i = 0; i < TRAININGS; i++)
        ranks += tinker_future_model_info(info[i])->lora_rank;
    printf("ranks add up to %lld\n", ranks);
    expect(ranks == 4 + 8 + 16 + 32, "each client has the rank that was asked for");

    for (int i = 0; i < TRAININGS; i++) {
        tinker_future_free(info[i]);
        tinker_training_free(trainings[i]);
    }
    for (int i = 0; i < SAMPLERS; i++)
        tinker_sampler_free(samplers[i]);
    for (int i = 0; i < ALL; i++)
        tinker_future_free(f[i]);
    tinker_queue_free(q);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
