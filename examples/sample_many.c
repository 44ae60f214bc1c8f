/* sample_many.c - a hundred prompts, eight at a time, in one minute, with the answers in order.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local sample_many [model]
 *
 * A prompt that cannot be sampled fails alone.  Ctrl-C cancels what is under way and leaves the
 * rest undone; the answers that are there are shown. */
#include "example.h"

#include <signal.h>
#include <tinker/extra/parallel.h>

enum { PROMPTS = 100, AT_A_TIME = 8, BROKEN = 41, ENOUGH = 10 };

static tinker_canceler *canceler;

static void on_interrupt(int signal)
{
    (void)signal;
    tinker_canceler_request(canceler);
}

static tinker_model_input *make_prompts(void)
{
    static int32_t tokens[PROMPTS][3];
    static tinker_chunk texts[PROMPTS];
    static tinker_model_input prompts[PROMPTS];
    for (int i = 0; i < PROMPTS; i++) {
        for (int k = 0; k < 3; k++)
            tokens[i][k] = i == BROKEN ? -1 : 20 + (i + k) % 50;
        texts[i] = (tinker_chunk){ .tokens = tokens[i], .n_tokens = 3 };
        prompts[i] = (tinker_model_input){ &texts[i], 1 };
    }
    return prompts;
}

/* The first ten that come, and no more. */
static int count(size_t i, const tinker_future *f, const tinker_error *why, void *state)
{
    int *n = state;
    (void)i, (void)f, (void)why;
    return ++*n == ENOUGH;
}

int main(int argc, char **argv)
{
    canceler = need(tinker_canceler_new(&err), "canceler");
    signal(SIGINT, on_interrupt);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 4;
    params.temperature = 0;
    tinker_parallel_options how = TINKER_PARALLEL_OPTIONS_INIT;
    how.max_concurrency = AT_A_TIME;
    how.timeout_ms = MINUTE_MS;
    how.canceler = canceler;
    tinker_parallel *m =
        need(tinker_sampler_sample_parallel(s, make_prompts(), PROMPTS, &params, NULL, &how, &err),
             "map");
    size_t tokens = 0;
    for (size_t i = 0; i < PROMPTS; i++)
        if (tinker_parallel_status(m, i, &err) == TINKER_OK)
            tokens += tinker_parallel_sample(m, i)->sequences[0].n;
        else
            printf("prompt %zu: %s\n", i, err.message);
    printf("%zu answers, %zu tokens, %zu failed\n", PROMPTS - tinker_parallel_failed(m), tokens,
           tinker_parallel_failed(m));
    tinker_parallel_free(m);

    int n = 0;
    how.on_item = count;
    how.on_item_state = &n;
    m = need(tinker_sampler_sample_parallel(s, make_prompts(), PROMPTS, &params, NULL, &how, &err),
             "map");
    expect(PROMPTS - tinker_parallel_failed(m) >= ENOUGH, "ten answers come before the rest ends");
    printf("the first %d, and the rest is canceled: %s\n", ENOUGH,
           tinker_parallel_status(m, PROMPTS - 1, &err) == TINKER_ECANCELED ? "yes" : "no");
    tinker_parallel_free(m);
    tinker_sampler_free(s);
    tinker_service_free(service);
    signal(SIGINT, SIG_DFL); /* the handler needs the canceler */
    tinker_canceler_free(canceler);
    return EXIT_SUCCESS;
}
