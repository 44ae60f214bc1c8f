/* hello_sampling.c - sample a continuation of a few tokens from a base model.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local hello_sampling [model] */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/tinker.h>

static void show(const tinker_sample *sample)
{
    for (size_t i = 0; i < sample->n_sequences; i++) {
        const tinker_sequence *seq = &sample->sequences[i];
        printf("sample %zu (%s):", i, seq->stop_reason == TINKER_STOP_STOP ? "stop" : "length");
        for (size_t k = 0; k < seq->n; k++)
            printf(" %d", seq->tokens[k]);
        putchar('\n');
    }
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "tinker/tiny";
    tinker_error err;
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_sampler *sampler =
        service ? tinker_service_create_sampler(service, model, NULL, 60000, &err) : NULL;

    int32_t prompt[] = { 10, 11, 12, 13 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 4 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 16;
    params.temperature = 0.7;
    tinker_sample_options opts = TINKER_SAMPLE_OPTIONS_INIT;
    opts.num_samples = 2;

    tinker_future *f =
        sampler ? tinker_sampler_sample(sampler, &input, &params, &opts, &err) : NULL;
    int ok = f && tinker_future_wait(f, 60000, &err) == TINKER_OK;
    if (ok)
        show(tinker_future_sample(f));
    else
        fprintf(stderr, "hello_sampling: %s\n", err.message);
    tinker_future_free(f);
    tinker_sampler_free(sampler);
    tinker_service_free(service);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
