/* hello_sampling.c - sample a continuation of a few tokens from a base model.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local hello_sampling [model] */
#include "example.h"

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
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *sampler =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");

    int32_t prompt[] = { 10, 11, 12, 13 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 4 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 16;
    params.temperature = 0.7;
    params.has_seed = 1; /* the same tokens every time */
    params.seed = 2;
    tinker_sample_options opts = TINKER_SAMPLE_OPTIONS_INIT;
    opts.num_samples = 2;
    tinker_future *f =
        await(tinker_sampler_sample(sampler, &input, &params, &opts, &err), "sample");
    show(tinker_future_sample(f));

    tinker_future_free(f);
    tinker_sampler_free(sampler);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
