/* sampling_basic.c - text in, text out: encode a prompt, sample, decode.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
 *         sampling_basic [model [directory of its tokenizer [prompt]]]
 *
 * The service speaks tokens; the tokenizer is this side's business.  hello_sampling.c is the same
 * without text. */
#include "example.h"
#include <string.h>

enum { SAMPLES = 3 };

int main(int argc, char **argv)
{
    const char *dir = argc > 2 ? argv[2] : "models/tiny";
    const char *prompt = argc > 3 ? argv[3] : "Once there was a";
    tinker_tokenizer *tok = need(tinker_tokenizer_load(dir, NULL, &err), dir);
    tinker_tokens ids = TINKER_TOKENS_INIT;
    if (tinker_tokenizer_encode(tok, prompt, strlen(prompt), NULL, &ids, &err) != TINKER_OK)
        die("prompt");
    tinker_chunk chunk = { .tokens = ids.ids, .n_tokens = ids.n };
    tinker_model_input input = { &chunk, 1 };
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");

    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 12;
    params.temperature = 0.7;
    params.has_seed = 1; /* the same text every time */
    params.seed = 7;
    tinker_sample_options opts = TINKER_SAMPLE_OPTIONS_INIT;
    opts.num_samples = SAMPLES;
    tinker_future *f = await(tinker_sampler_sample(s, &input, &params, &opts, &err), "sample");
    const tinker_sample *sample = tinker_future_sample(f);
    for (size_t i = 0; i < sample->n_sequences; i++) {
        const tinker_sequence *q = &sample->sequences[i];
        tinker_text text = TINKER_TEXT_INIT;
        double sum = 0;
        if (tinker_tokenizer_decode(tok, q->tokens, q->n, NULL, &text, &err) != TINKER_OK)
            die("decode");
        for (size_t k = 0; q->logprobs && k < q->n; k++)
            sum += q->logprobs[k];
        printf("%zu tokens, logprob %.2f: %s%s\n", q->n, sum, prompt, text.s);
        tinker_text_clear(&text);
    }
    expect(sample->n_sequences == SAMPLES, "as many samples as asked for");

    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_service_free(service);
    tinker_tokens_clear(&ids);
    tinker_tokenizer_free(tok);
    return EXIT_SUCCESS;
}
