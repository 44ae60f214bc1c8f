/* crash.c - a training run that prints every number it is told, exactly.
 *
 * Run twice with the same arguments the output must be the same, also when the server
 * was killed and restarted meanwhile: nothing is lost, nothing runs twice.
 * Usage: crash STEPS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/tinker.h>

enum { N = 12, TIMEOUT_MS = 240000 };

static void require(int ok, const char *what, const tinker_error *err)
{
    if (ok)
        return;
    fprintf(stderr, "crash: %s: %s\n", what, err ? err->message : "");
    exit(1);
}

static tinker_future *done(tinker_future *f, const char *what, tinker_error *err)
{
    require(f != NULL, what, err);
    require(tinker_future_wait(f, TIMEOUT_MS, err) == TINKER_OK, what, err);
    return f;
}

/* Two passes and a step, all three in flight together. */
static void train(tinker_training *t, const tinker_datum *data, int step)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 3e-3;
    tinker_future *a = tinker_training_forward_backward(t, data, 2, &loss, &err);
    tinker_future *b = tinker_training_forward_backward(t, data + 1, 2, &loss, &err);
    tinker_future *c = tinker_training_optim_step(t, &adam, &err);
    done(a, "forward_backward", &err);
    done(b, "forward_backward", &err);
    done(c, "optim_step", &err);
    const tinker_forward_backward *ra = tinker_future_forward_backward(a);
    const tinker_forward_backward *rb = tinker_future_forward_backward(b);
    size_t n = 0;
    const tinker_named_number *m = tinker_future_metrics(c, &n);
    printf("step %d: %a %a grad %a count %g\n", step,
           tinker_metric(ra->metrics, ra->n_metrics, "loss:sum"),
           tinker_metric(rb->metrics, rb->n_metrics, "loss:sum"),
           tinker_metric(m, n, "grad_norm:mean"), tinker_metric(m, n, "step:max"));
    fflush(stdout);
    tinker_future_free(a);
    tinker_future_free(b);
    tinker_future_free(c);
}

/* Save both kinds, then sample from the saved weights. */
static void save_and_sample(tinker_service *s, tinker_training *t, int step)
{
    tinker_error err = { 0 };
    char name[32];
    snprintf(name, sizeof(name), "at-%d", step);
    tinker_future *state =
        done(tinker_training_save_state(t, name, NULL, &err), "save_state", &err);
    tinker_future *weights =
        done(tinker_training_save_for_sampler(t, name, NULL, &err), "save_for_sampler", &err);
    tinker_sampler *m =
        tinker_service_create_sampler(s, NULL, tinker_future_saved_path(weights), TIMEOUT_MS, &err);
    require(m != NULL, "create_sampler", &err);
    int32_t prompt[] = { 20, 21, 22 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 3 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 8;
    params.has_seed = 1;
    params.seed = step;
    tinker_future *f = done(tinker_sampler_sample(m, &input, &params, NULL, &err), "sample", &err);
    const tinker_sample *r = tinker_future_sample(f);
    printf("saved %s:", name);
    for (size_t i = 0; i < r->sequences[0].n; i++)
        printf(" %d/%a", (int)r->sequences[0].tokens[i], (double)r->sequences[0].logprobs[i]);
    printf("\n");
    fflush(stdout);
    tinker_future_free(f);
    tinker_sampler_free(m);
    tinker_future_free(weights);
    tinker_future_free(state);
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 10;
    tinker_error err = { 0 };
    tinker_service *service = tinker_service_new(NULL, &err);
    require(service != NULL, "service", &err);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 4;
    lora.has_seed = 1;
    lora.seed = 7;
    tinker_training *t =
        tinker_service_create_lora(service, "tinker/tiny", &lora, TIMEOUT_MS, &err);
    require(t != NULL, "create_lora", &err);
    int32_t tokens[3][N];
    int64_t targets[3][N];
    tinker_chunk text[3];
    tinker_named_tensor target[3];
    tinker_datum data[3];
    memset(text, 0, sizeof(text));
    memset(target, 0, sizeof(target));
    for (int d = 0; d < 3; d++) {
        for (int i = 0; i < N; i++) {
            tokens[d][i] = 20 + d + i;
            targets[d][i] = 21 + d + i;
        }
        text[d].tokens = tokens[d];
        text[d].n_tokens = N;
        target[d].name = "target_tokens";
        target[d].tensor.dtype = TINKER_INT64;
        target[d].tensor.data = targets[d];
        target[d].tensor.n = N;
        data[d] =
            (tinker_datum){ .model_input = { &text[d], 1 }, .inputs = &target[d], .n_inputs = 1 };
    }
    for (int step = 1; step <= steps; step++) {
        train(t, data, step);
        if (step % 5 == 0)
            save_and_sample(service, t, step);
    }
    tinker_training_free(t);
    tinker_service_free(service);
    return 0;
}
