/* kimi_k2_sampling.c - a conversation with Kimi K2: its tiktoken files, its renderer, its stop tokens.
 *
 *     tinker models pull --tokenizer-only moonshotai/Kimi-K2-Thinking
 *     TINKER_API_KEY=tml-... kimi_k2_sampling [model [directory of its tokenizer]]
 *
 * Kimi's vocabulary is a rank file, tiktoken.model, with special tokens in tokenizer_config.json and a
 * split pattern of its own; the library knows the revision to use.  With another model the same
 * program uses that model's renderer, so it runs against a local server. */
#include "example.h"
#include <string.h>
#include <tinker/chat.h>

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv), *dir = argc > 2 ? argv[2] : model;
    tinker_tokenizer_source source;
    if (tinker_tokenizer_resolve("moonshotai/Kimi-K2-Thinking", NULL, &source, &err) != TINKER_OK)
        die("resolve");
    printf("Kimi K2 is tokenized by %s at %.8s\n", source.repo, source.revision);
    if (argc < 3 && strcmp(model, "tinker/tiny") == 0)
        dir = "models/tiny"; /* the bundled model is not in the cache of the Hub */

    tinker_tokenizer *tok = need(tinker_tokenizer_load(dir, NULL, &err), dir);
    const char *name = tinker_renderer_for(model, tok);
    tinker_renderer *renderer = need(tinker_renderer_new(name, tok, NULL, &err), name);
    const tinker_message messages[] = {
        { .role = "user", .content = "Name three rivers, and nothing else." },
    };
    tinker_rendered *prompt =
        need(tinker_renderer_prompt(renderer, messages, 1, NULL, NULL, &err), "prompt");
    const tinker_model_input *input = &prompt->examples[0].input;
    int64_t length;
    if (tinker_model_input_length(input, &length, &err) != TINKER_OK)
        die("length");
    printf("%s renders %lld tokens\n", name, (long long)length);

    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model, NULL, MINUTE_MS, &err), "sampler");
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 64;
    params.temperature = 0.6;
    tinker_renderer_set_stop(renderer, &params);
    tinker_future *f = await(tinker_sampler_sample(s, input, &params, NULL, &err), "sample");
    const tinker_sequence *q = &tinker_future_sample(f)->sequences[0];
    tinker_parsed *reply = need(tinker_renderer_parse(renderer, q->tokens, q->n, &err), "response");
    tinker_text text = TINKER_TEXT_INIT;
    if (tinker_message_text(reply->message, &text, &err) != TINKER_OK)
        die("text");
    printf("%zu tokens: %s\n", q->n, text.s);
    expect(q->n > 0, "a reply");

    tinker_text_clear(&text);
    tinker_parsed_free(reply);
    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_service_free(service);
    tinker_rendered_free(prompt);
    tinker_renderer_free(renderer);
    tinker_tokenizer_free(tok);
    return EXIT_SUCCESS;
}
