/* local_engine.c - train, sample and save with the engine alone: no service, no HTTP.
 *
 *     local_engine [directory of a model]
 *
 * <tinker/engine.h> is what `tinker serve` stands on.  A LoRA adapter learns a sentence, which the
 * model says before and after; saved and loaded, it goes on where it was, to the bit.  Passes and
 * generators advance step by step, so a program may run several side by side.
 * Link with libtinker-engine, and with libtinker for the tokenizer. */
#include "example.h"
#include <string.h>
#include <tinker/engine.h>
#include <unistd.h>

enum { STEPS = 20, MAX_TOKENS = 64 };

static const char prompt[] = "Once there was a", lesson[] = " small engine that needed no server.";

/* A sentence of which all after the prompt is to be learned, and the memory it refers to. */
struct text_row {
    int32_t tokens[MAX_TOKENS];
    int64_t targets[MAX_TOKENS];
    float weights[MAX_TOKENS];
    tinker_chunk chunk;
    tinker_named_tensor inputs[2];
    tinker_datum datum;
    size_t n_prompt, n;
};

static size_t encode(const tinker_tokenizer *tok, const char *text, int32_t out[MAX_TOKENS])
{
    tinker_tokens t = TINKER_TOKENS_INIT;
    if (tinker_tokenizer_encode(tok, text, strlen(text), NULL, &t, &err) != TINKER_OK)
        die(text);
    size_t n = t.n;
    expect(n <= MAX_TOKENS, "the text is short");
    memcpy(out, t.ids, n * sizeof(*out));
    tinker_tokens_clear(&t);
    return n;
}

static void make_row(struct text_row *r, const tinker_tokenizer *tok)
{
    int32_t all[MAX_TOKENS + 1];
    r->n_prompt = encode(tok, prompt, all);
    r->n = r->n_prompt + encode(tok, lesson, all + r->n_prompt) - 1; /* the last is only a target */
    for (size_t i = 0; i < r->n; i++) {
        r->tokens[i] = all[i];
        r->targets[i] = all[i + 1];
        r->weights[i] = i + 1 >= r->n_prompt;
    }
    r->chunk = (tinker_chunk){ .tokens = r->tokens, .n_tokens = r->n };
    tinker_tensor targets = { .dtype = TINKER_INT64, .data = r->targets, .n = r->n };
    tinker_tensor weights = { .dtype = TINKER_FLOAT32, .data = r->weights, .n = r->n };
    r->inputs[0] = (tinker_named_tensor){ "target_tokens", targets };
    r->inputs[1] = (tinker_named_tensor){ "weights", weights };
    r->datum =
        (tinker_datum){ .model_input = { &r->chunk, 1 }, .inputs = r->inputs, .n_inputs = 2 };
}

/* One step of training; returns the loss before it. */
static double learn(tinker_engine *e, tinker_adapter *a, const struct text_row *r)
{
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_step_metrics metrics;
    int more = 1;
    adam.learning_rate = 5e-3;
    tinker_pass *p = need(tinker_pass_new(e, a, &r->datum, 1, &loss, 0, &err), "pass");
    while (more > 0)
        more = tinker_pass_step(p, &err);
    if (more < 0)
        die("pass");
    const tinker_forward_backward *result = tinker_pass_result(p);
    double before = tinker_metric(result->metrics, result->n_metrics, "loss:sum");
    tinker_pass_free(p);
    if (tinker_adapter_step(a, &adam, &metrics, &err) != TINKER_OK)
        die("step");
    return before;
}

/* What the model says after the prompt, greedily; a NULL: without an adapter. */
static void say(const char *when, tinker_engine *e, tinker_adapter *a, const tinker_tokenizer *tok,
                const struct text_row *r)
{
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.temperature = 0;
    params.max_tokens = (int64_t)(r->n + 1 - r->n_prompt);
    tinker_generate ask = { .adapter = a,
                            .prompt = r->tokens,
                            .n_prompt = r->n_prompt,
                            .params = &params,
                            .num_samples = 1 };
    tinker_generator *g = need(tinker_generator_new(e, &err), "generator");
    const tinker_sample *sample = NULL;
    int unfinished = 1;
    if (tinker_generator_add(g, &ask, &err) != TINKER_OK)
        die("prompt");
    while (unfinished > 0)
        unfinished = tinker_generator_step(g, &err);
    if (unfinished < 0 || !tinker_generator_next(g, NULL, &sample, &err) || !sample)
        die("sample");
    const tinker_sequence *q = &sample->sequences[0];
    tinker_text text = TINKER_TEXT_INIT;
    if (tinker_tokenizer_decode(tok, q->tokens, q->n, NULL, &text, &err) != TINKER_OK)
        die("decode");
    printf("%s: %s%s\n", when, prompt, text.s);
    tinker_text_clear(&text);
    tinker_generator_free(g);
}

/* The same adapter, by way of the disk. */
static tinker_adapter *saved_and_loaded(tinker_engine *e, const tinker_adapter *a)
{
    static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors",
                                         "optimizer.safetensors", "trainer_state.json" };
    char dir[] = "/tmp/local-engine-XXXXXX", path[128];
    expect(mkdtemp(dir) != NULL, "there is a place to save");
    if (tinker_adapter_save(a, dir, "tinker/tiny", TINKER_ADAPTER_OPTIMIZER, &err) != TINKER_OK)
        die("save");
    tinker_adapter *b = need(tinker_adapter_load(e, dir, TINKER_ADAPTER_OPTIMIZER, &err), "load");
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        expect(unlink(path) == 0, files[i]);
    }
    rmdir(dir);
    return b;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "models/tiny";
    tinker_tokenizer *tok = need(tinker_tokenizer_load(dir, NULL, &err), dir);
    tinker_engine *e = need(tinker_engine_open(dir, NULL, &err), dir);
    const tinker_engine_info *info = tinker_engine_describe(e);
    printf("%s, %llu parameters\n", info->arch, (unsigned long long)info->parameters);

    tinker_lora lora = TINKER_LORA_INIT;
    struct text_row row;
    lora.rank = 8;
    lora.has_seed = 1; /* the same adapter every time */
    tinker_adapter *a = need(tinker_adapter_new(e, &lora, &err), "adapter");
    make_row(&row, tok);
    say("before", e, NULL, tok, &row);
    for (int i = 1; i <= STEPS; i++) {
        double loss = learn(e, a, &row);
        if (i == 1 || i % 5 == 0)
            printf("step %d loss %.4f\n", i, loss);
    }
    say("after", e, a, tok, &row);

    tinker_adapter *b = saved_and_loaded(e, a);
    learn(e, a, &row);
    learn(e, b, &row);
    expect(learn(e, a, &row) == learn(e, b, &row), "a loaded adapter goes on to the bit");
    printf("saved and loaded: the next step is the same\n");

    tinker_adapter_free(b);
    tinker_adapter_free(a);
    tinker_engine_close(e);
    tinker_tokenizer_free(tok);
    return EXIT_SUCCESS;
}
