/* concurrent_400.c - four hundred samples in flight, collected through one queue.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local concurrent_400 [model]
 *
 * No thread per request: one library thread does the network, and the futures are handed
 * over in the order in which they complete. */
#include "example.h"

enum { SAMPLES = 400 };

static void submit_all(tinker_sampler *s, tinker_queue *q)
{
    int32_t prompt[] = { 10, 11, 12, 13 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 4 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 4;
    params.has_seed = 1;
    for (int i = 0; i < SAMPLES; i++) {
        params.seed = i;
        prompt[3] = 13 + i % 20; /* the last prompt was encoded before its call returned */
        tinker_future *f = need(tinker_sampler_sample(s, &input, &params, NULL, &err), "sample");
        if (tinker_queue_add(q, f, NULL, &err) != TINKER_OK)
            die("queue");
    }
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");
    tinker_queue *q = need(tinker_queue_new(&err), "queue");
    submit_all(s, q);
    int done = 0, failed = 0;
    size_t tokens = 0;
    tinker_future *f;
    while (done + failed < SAMPLES && (f = tinker_queue_next(q, MINUTE_MS, NULL)) != NULL) {
        if (tinker_future_wait(f, 0, &err) == TINKER_OK) {
            tokens += tinker_future_sample(f)->sequences[0].n;
            done++;
        } else if (failed++ == 0)
            fprintf(stderr, "the first that failed: %s\n", err.message);
        tinker_future_free(f);
    }
    printf("%d samples, %zu tokens, %d failed, %d missing\n", done, tokens, failed,
           SAMPLES - done - failed);
    tinker_queue_free(q);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return done == SAMPLES ? EXIT_SUCCESS : EXIT_FAILURE;
}
