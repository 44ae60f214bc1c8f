/* concurrent_400.c - four hundred samples in flight, collected through one queue.
 *
 * No thread per request: one library thread does the network, and the futures are handed
 * over in the order in which they complete. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/tinker.h>

enum { SAMPLES = 400 };

static int submit_all(tinker_sampler *s, tinker_queue *q, tinker_error *err)
{
    int32_t prompt[] = { 10, 11, 12, 13 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 4 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 4;
    params.has_seed = 1;
    for (int i = 0; i < SAMPLES; i++) {
        params.seed = i;
        prompt[3] = 13 + i % 20;
        tinker_future *f = tinker_sampler_sample(s, &input, &params, NULL, err);
        if (!f || tinker_queue_add(q, f, NULL, err) != TINKER_OK)
            return i;
    }
    return SAMPLES;
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "tinker/tiny";
    tinker_error err;
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_sampler *s =
        service ? tinker_service_create_sampler(service, model, NULL, 60000, &err) : NULL;
    tinker_queue *q = s ? tinker_queue_new(&err) : NULL;
    int pending = q ? submit_all(s, q, &err) : 0, done = 0, failed = 0;
    size_t tokens = 0;
    while (pending > 0) {
        tinker_future *f = tinker_queue_next(q, 120000, NULL);
        if (!f)
            break;
        if (tinker_future_wait(f, 0, &err) == TINKER_OK) {
            tokens += tinker_future_sample(f)->sequences[0].n;
            done++;
        } else
            failed++;
        tinker_future_free(f);
        pending--;
    }
    printf("%d samples, %zu tokens, %d failed, %d missing\n", done, tokens, failed, pending);
    if (done < SAMPLES)
        fprintf(stderr, "concurrent_400: %s\n", err.message);
    tinker_queue_free(q);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return done == SAMPLES ? EXIT_SUCCESS : EXIT_FAILURE;
}
