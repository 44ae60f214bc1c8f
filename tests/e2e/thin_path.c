/* thin_path.c - one model from creation to a sample through the public API; every joint is real. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/tinker.h>

enum { N = 8, STEPS = 10, TIMEOUT_MS = 120000 };

static void require(int ok, const char *what, const tinker_error *err)
{
    if (ok)
        return;
    fprintf(stderr, "thin_path: %s: %s\n", what, err ? err->message : "");
    exit(1);
}

static double train_once(tinker_training *t, const tinker_datum *datum)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 1e-2;
    tinker_future *fb = tinker_training_forward_backward(t, datum, 1, &loss, &err);
    require(fb != NULL, "forward_backward", &err);
    tinker_future *step = tinker_training_optim_step(t, &adam, &err);
    require(step != NULL, "optim_step", &err);
    require(tinker_future_wait(fb, TIMEOUT_MS, &err) == TINKER_OK, "forward_backward", &err);
    require(tinker_future_wait(step, TIMEOUT_MS, &err) == TINKER_OK, "optim_step", &err);
    const tinker_forward_backward *r = tinker_future_forward_backward(fb);
    require(r && r->n_outputs == 1 && r->outputs[0].n_tensors >= 1, "one output per datum", NULL);
    double value = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    tinker_future_free(step);
    tinker_future_free(fb);
    return value;
}

/* The server runs on this machine and names its own directory: token i of the tiny model is byte i. */
static void check_tokenizers(tinker_training *t, tinker_sampler *s, const char *dir)
{
    tinker_error err = { 0 };
    tinker_tokenizer *tok = tinker_training_create_tokenizer(t, NULL, TIMEOUT_MS, &err);
    require(tok != NULL, "tokenizer of the training client", &err);
    tinker_tokens ids = TINKER_TOKENS_INIT;
    require(tinker_tokenizer_encode(tok, "ab", 2, NULL, &ids, &err) == TINKER_OK, "encode", &err);
    require(ids.n == 2 && ids.ids[0] == 'a' && ids.ids[1] == 'b', "tokens of \"ab\"", NULL);
    tinker_tokens_clear(&ids);
    tinker_tokenizer_free(tok);
    /* a sampler knows the model's name only, which no cache of this machine has */
    tok = tinker_sampler_create_tokenizer(s, NULL, TIMEOUT_MS, &err);
    require(tok == NULL && err.status == TINKER_ESTATE &&
                strstr(err.message, "tinker/tiny") != NULL,
            "a tokenizer that is not here is named", &err);
    tok = tinker_tokenizer_load(dir, NULL, &err);
    require(tok != NULL, "tokenizer of the directory", &err);
    tinker_tokenizer_free(tok);
}

int main(int argc, char **argv)
{
    tinker_error err = { 0 };
    require(argc > 1, "usage: thin_path MODEL_DIR", NULL);
    tinker_service *service = tinker_service_new(NULL, &err);
    require(service != NULL, "service", &err);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 8;
    lora.has_seed = 1;
    lora.seed = 3;
    tinker_training *t =
        tinker_service_create_lora(service, "tinker/tiny", &lora, TIMEOUT_MS, &err);
    require(t != NULL, "create_lora", &err);

    int32_t tokens[N];
    int64_t targets[N];
    for (int i = 0; i < N; i++) {
        tokens[i] = 20 + i;
        targets[i] = 21 + i;
    }
    tinker_chunk text = { .tokens = tokens, .n_tokens = N };
    tinker_named_tensor target = { "target_tokens",
                                   { .dtype = TINKER_INT64, .data = targets, .n = N } };
    tinker_datum datum = { .model_input = { &text, 1 }, .inputs = &target, .n_inputs = 1 };
    double first = train_once(t, &datum), last = first;
    for (int i = 1; i < STEPS; i++)
        last = train_once(t, &datum);
    printf("loss %.4f -> %.4f\n", first, last);
    require(isfinite(first) && last < 0.5 * first, "loss did not fall", NULL);

    tinker_future *save = tinker_training_save_for_sampler(t, "thin", NULL, &err);
    require(save && tinker_future_wait(save, TIMEOUT_MS, &err) == TINKER_OK, "save", &err);
    const char *path = tinker_future_saved_path(save);
    require(path && strncmp(path, "tinker://", 9) == 0, "path of the saved weights", NULL);
    tinker_sampler *sampler = tinker_service_create_sampler(service, NULL, path, TIMEOUT_MS, &err);
    require(sampler != NULL, "create_sampler", &err);
    tinker_future_free(save);

    tinker_chunk start = { .tokens = tokens, .n_tokens = 3 };
    tinker_model_input prompt = { &start, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 4;
    params.temperature = 0;
    tinker_future *f = tinker_sampler_sample(sampler, &prompt, &params, NULL, &err);
    require(f && tinker_future_wait(f, TIMEOUT_MS, &err) == TINKER_OK, "sample", &err);
    const tinker_sample *sample = tinker_future_sample(f);
    require(sample && sample->n_sequences == 1, "one sequence", NULL);
    const tinker_sequence *q = &sample->sequences[0];
    require(q->n >= 1 && q->n <= 4 && q->logprobs, "tokens and logprobs", NULL);
    for (size_t i = 0; i < q->n; i++)
        require(q->tokens[i] == 23 + (int32_t)i && q->logprobs[i] <= 0,
                "what was trained is what is sampled", NULL);
    printf("sampled %zu tokens, first %d with logprob %.4f\n", q->n, q->tokens[0],
           (double)q->logprobs[0]);

    tinker_future_free(f);
    check_tokenizers(t, sampler, argv[1]);
    tinker_sampler_free(sampler);
    tinker_training_free(t);
    tinker_service_free(service);
    return 0;
}
