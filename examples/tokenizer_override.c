/* tokenizer_override.c - which tokenizer a model name means, and how to use another one.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
 *         tokenizer_override [model [directory of its tokenizer]]
 *
 * Some models are known by one name and tokenized with the files of another repository; the rules
 * of the service are built in.  Files come from this machine only.  Three ways to say otherwise:
 * a tokenizer_id in the options, a directory instead of a name, and a loader of one's own. */
#include "example.h"
#include <string.h>

static const char text[] = "The cat sat on the mat.";

static void resolve(const char *model)
{
    tinker_tokenizer_source source;
    if (tinker_tokenizer_resolve(model, NULL, &source, &err) != TINKER_OK)
        die(model);
    printf("%s -> %s%s%.8s\n", model, source.repo, source.revision[0] ? " at " : "",
           source.revision);
}

/* A loader of one's own: every name means the directory in `state`. */
static tinker_tokenizer *load_here(const char *repo, const char *revision, tinker_error *e,
                                   void *state)
{
    (void)revision;
    printf("loader asked for %s\n", repo);
    return tinker_tokenizer_load(state, NULL, e);
}

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv), *dir = argc > 2 ? argv[2] : "models/tiny";
    resolve("meta-llama/Llama-3.1-8B");
    resolve("moonshotai/Kimi-K2-Thinking");
    resolve("Qwen/Qwen3-8B:my-checkpoint");

    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model, NULL, MINUTE_MS, &err), "sampler");
    tinker_tokenizer_options opts = TINKER_TOKENIZER_OPTIONS_INIT;
    opts.loader = load_here;
    opts.loader_state = (void *)dir;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_tokenizer *tok =
        need(tinker_sampler_create_tokenizer(s, &opts, MINUTE_MS, &err), "tokenizer");
    if (tinker_tokenizer_encode(tok, text, strlen(text), NULL, &ids, &err) != TINKER_OK)
        die("encode");
    printf("%zu tokens:", ids.n);
    for (size_t i = 0; i < ids.n; i++)
        printf(" %d", ids.ids[i]);

    tinker_chunk chunk = { .tokens = ids.ids, .n_tokens = ids.n };
    tinker_model_input input = { &chunk, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 16;
    params.temperature = 0;
    tinker_future *f = await(tinker_sampler_sample(s, &input, &params, NULL, &err), "sample");
    const tinker_sequence *q = &tinker_future_sample(f)->sequences[0];
    tinker_text out = TINKER_TEXT_INIT;
    if (tinker_tokenizer_decode(tok, q->tokens, q->n, NULL, &out, &err) != TINKER_OK)
        die("decode");
    printf("\nsampled:%s\n", out.s);

    /* The same tokens as from the directory itself, and back again to the same text. */
    tinker_tokenizer *same = need(tinker_tokenizer_load(dir, NULL, &err), dir);
    tinker_tokens direct = TINKER_TOKENS_INIT;
    tinker_text back = TINKER_TEXT_INIT;
    if (tinker_tokenizer_encode(same, text, strlen(text), NULL, &direct, &err) != TINKER_OK ||
        tinker_tokenizer_decode(same, ids.ids, ids.n, NULL, &back, &err) != TINKER_OK)
        die(dir);
    expect(direct.n == ids.n && memcmp(direct.ids, ids.ids, ids.n * sizeof(*ids.ids)) == 0,
           "loader and directory agree");
    expect(strcmp(back.s, text) == 0, "decoding gives the text back");
    printf("round trip: %s\n", back.s);

    tinker_tokenizer_free(tok);
    tinker_text_clear(&back);
    tinker_tokens_clear(&direct);
    tinker_tokenizer_free(same);
    tinker_text_clear(&out);
    tinker_future_free(f);
    tinker_tokens_clear(&ids);
    tinker_tokenizer_free(tok);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
