/* save_weights_and_sample.c - teach a sentence, and hear it back.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local save_weights_and_sample [model]
 *
 * The tokenizer is looked up through the training client: the service names it, the files are
 * this machine's.  tinker_training_create_sampler() saves the current weights without a name and
 * opens a sampler on them, in one call. */
#include "example.h"
#include <string.h>

static const char prompt[] = "The password is", answer[] = " tangerine seventeen.";
enum { STEPS = 12 };

/* Train on prompt + answer; only the answer has weight. */
static double learn(tinker_training *t, const tinker_tokens *ids, size_t n_prompt)
{
    size_t n = ids->n - 1;
    int64_t targets[256];
    float weights[256];
    expect(n <= 256, "the sentence is short");
    for (size_t i = 0; i < n; i++) {
        targets[i] = ids->ids[i + 1];
        weights[i] = i + 1 >= n_prompt;
    }
    tinker_chunk text = { .tokens = ids->ids, .n_tokens = n };
    tinker_named_tensor inputs[] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = n } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = n } },
    };
    tinker_datum datum = { .model_input = { &text, 1 }, .inputs = inputs, .n_inputs = 2 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 5e-3;
    tinker_future *pass = tinker_training_forward_backward(t, &datum, 1, &loss, &err);
    tinker_future *step = pass ? tinker_training_optim_step(t, &adam, &err) : NULL;
    double sum = loss_of(await(pass, "forward_backward"));
    finish(step, "optim_step");
    tinker_future_free(pass);
    return sum;
}

/* The likeliest continuation of the prompt; free() it. */
static char *ask(tinker_sampler *s, const tinker_tokenizer *tok, size_t max_tokens)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    if (tinker_tokenizer_encode(tok, prompt, strlen(prompt), NULL, &ids, &err) != TINKER_OK)
        die("prompt");
    tinker_chunk chunk = { .tokens = ids.ids, .n_tokens = ids.n };
    tinker_model_input input = { &chunk, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = (int64_t)max_tokens;
    params.temperature = 0;
    tinker_future *f = await(tinker_sampler_sample(s, &input, &params, NULL, &err), "sample");
    const tinker_sequence *q = &tinker_future_sample(f)->sequences[0];
    tinker_text text = TINKER_TEXT_INIT;
    if (tinker_tokenizer_decode(tok, q->tokens, q->n, NULL, &text, &err) != TINKER_OK)
        die("decode");
    tinker_future_free(f);
    tinker_tokens_clear(&ids);
    return text.s;
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");
    tinker_tokenizer *tok =
        need(tinker_training_create_tokenizer(t, NULL, MINUTE_MS, &err), "tokenizer");
    tinker_tokens ids = TINKER_TOKENS_INIT;
    if (tinker_tokenizer_encode(tok, prompt, strlen(prompt), NULL, &ids, &err) != TINKER_OK)
        die("encode");
    size_t n_prompt = ids.n;
    if (tinker_tokenizer_encode(tok, answer, strlen(answer), NULL, &ids, &err) != TINKER_OK)
        die("encode");

    tinker_sampler *before = need(tinker_training_create_sampler(t, MINUTE_MS, &err), "sampler");
    double first = learn(t, &ids, n_prompt), last = first;
    for (int i = 1; i < STEPS; i++)
        last = learn(t, &ids, n_prompt);
    printf("loss %.3f, after %d steps %.3f\n", first, STEPS - 1, last);
    tinker_sampler *after = need(tinker_training_create_sampler(t, MINUTE_MS, &err), "sampler");

    char *old = ask(before, tok, ids.n - n_prompt), *new = ask(after, tok, ids.n - n_prompt);
    printf("before: %s%s\nafter: %s%s\n", prompt, old, prompt, new);
    expect(last < first / 10 && strcmp(new, answer) == 0, "the sentence was learnt");
    expect(strcmp(old, answer) != 0, "and was not known: a sampler keeps the weights it has");

    free(old);
    free(new);
    tinker_sampler_free(after);
    tinker_sampler_free(before);
    tinker_tokens_clear(&ids);
    tinker_tokenizer_free(tok);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
