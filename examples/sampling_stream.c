/* sampling_stream.c - text that appears while it is made, token by token.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
 *         sampling_stream [model [directory of its tokenizer [prompt]]]
 *
 * A service without streams gives the same text at once, when it is complete: the program does
 * not have to know. */
#include "example.h"
#include <string.h>

struct screen {
    tinker_decoder *decoder;
    tinker_text text;
    int tokens;
    int enough; /* of them; 0: no limit */
};

/* Characters may have their bytes in several tokens: the decoder gives them when they are whole. */
static int show(const tinker_stream_event *e, void *state)
{
    struct screen *s = state;
    tinker_error why;
    size_t before = s->text.n;
    tinker_status status = e->kind == TINKER_STREAM_TOKEN
                               ? tinker_decoder_put(s->decoder, &e->token, 1, &s->text, &why)
                               : tinker_decoder_end(s->decoder, &s->text, &why);
    s->tokens += e->kind == TINKER_STREAM_TOKEN;
    if (status == TINKER_OK && s->text.n > before)
        printf("%s", s->text.s + before);
    fflush(stdout);
    return status != TINKER_OK || s->tokens == s->enough;
}

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
    struct screen screen = { .text = TINKER_TEXT_INIT };
    screen.decoder = need(tinker_decoder_new(tok, NULL, &err), "decoder");
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 24;
    params.temperature = 0;

    printf("%s", prompt);
    tinker_future *f = await(
        tinker_sampler_sample_stream(s, &input, &params, NULL, show, &screen, &err), "sample");
    const tinker_sequence *all = &tinker_future_sample(f)->sequences[0];
    printf("\n%d tokens were told, %zu are in the result\n", screen.tokens, all->n);
    tinker_future_free(f);

    screen.tokens = 0; /* enough: the service stops sampling */
    screen.enough = 3;
    printf("%s", prompt);
    f = tinker_future_await(
        tinker_sampler_sample_stream(s, &input, &params, NULL, show, &screen, &err), MINUTE_MS,
        &err);
    expect(!f && err.status == TINKER_ECANCELED, "the callback ends it");
    printf("\nended after %d tokens\n", screen.tokens);

    tinker_text_clear(&screen.text);
    tinker_decoder_free(screen.decoder);
    tinker_sampler_free(s);
    tinker_service_free(service);
    tinker_tokens_clear(&ids);
    tinker_tokenizer_free(tok);
    return EXIT_SUCCESS;
}
