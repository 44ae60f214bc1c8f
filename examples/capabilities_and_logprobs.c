/* capabilities_and_logprobs.c - is it there, what does it offer, how likely is a text?
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local capabilities_and_logprobs [model]
 *
 * Asks for health and capabilities, which opens no session, then for the log-probabilities of a
 * prompt's own tokens in two ways: alone, and beside a sample with the likeliest alternatives. */
#include "example.h"
#include <math.h>
#include <string.h>

/* The models, and whether ours is one of them. */
static int offered(tinker_service *service, const char *model)
{
    tinker_future *f = await(tinker_service_get_capabilities(service, &err), "capabilities");
    const tinker_capabilities *c = tinker_future_capabilities(f);
    int found = 0;
    for (size_t i = 0; i < c->n; i++) {
        const char *name =
            tinker_supported_model_at(c, i)->name ? tinker_supported_model_at(c, i)->name : "?";
        printf("model %s, context %lld%s\n", name,
               (long long)tinker_supported_model_at(c, i)->max_context_length,
               c->stream_sample ? ", streams" : "");
        found = found || strcmp(name, model) == 0;
    }
    tinker_future_free(f);
    return found;
}

static double sum_of(const tinker_sample *s)
{
    double sum = 0;
    for (size_t i = 1; i < s->n_prompt; i++) /* nothing predicts the first token: NaN */
        sum += s->prompt_logprobs[i];
    return sum;
}

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    finish(tinker_service_check_health(service, &err), "health");
    printf("healthy\n");
    expect(offered(service, model), "the model is offered");
    expect(!*tinker_service_session_id(service), "no session is open yet");

    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model, NULL, MINUTE_MS, &err), "sampler");
    int32_t prompt[] = { 40, 41, 42, 43, 44, 45, 46, 47 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 8 };
    tinker_model_input input = { &text, 1 };
    tinker_future *alone = await(tinker_sampler_compute_logprobs(s, &input, &err), "logprobs");
    const tinker_sample *a = tinker_future_sample(alone);
    printf("prompt logprobs:");
    for (size_t i = 0; i < a->n_prompt; i++)
        printf(" %.3f", (double)a->prompt_logprobs[i]);
    printf("\nsum %.4f\n", sum_of(a));
    expect(a->n_prompt == 8 && isnan(a->prompt_logprobs[0]), "eight, the first unknown");

    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 1;
    tinker_sample_options opts = TINKER_SAMPLE_OPTIONS_INIT;
    opts.prompt_logprobs = 1;
    opts.topk_prompt_logprobs = 3;
    tinker_future *beside = await(tinker_sampler_sample(s, &input, &params, &opts, &err), "sample");
    const tinker_sample *b = tinker_future_sample(beside);
    expect(fabs(sum_of(a) - sum_of(b)) < 1e-4, "both ways give the same");
    for (size_t i = 1; i < b->n_prompt; i++) {
        const float *best = b->topk_logprobs + i * b->topk;
        printf("token %2d at %.3f; likeliest %4d at %.3f\n", prompt[i],
               (double)b->prompt_logprobs[i], b->topk_tokens[i * b->topk], (double)best[0]);
        expect(best[0] >= b->prompt_logprobs[i] - 1e-5f && best[0] >= best[1], "best first");
    }
    tinker_future_free(beside);
    tinker_future_free(alone);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
