/* cut.c - a short training run that prints every number it is told, exactly, and downloads its
 * weights.  Run twice with the same arguments the output must be the same, whatever happens to the
 * connections meanwhile.  Usage: cut STEPS FILE */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/rest.h>
#include <tinker/tinker.h>
#include <tinker/extra/stream.h>

enum { N = 12, STEPS_MAX = 64, TIMEOUT_MS = 600000 };

static void require(int ok, const char *what, const tinker_error *err)
{
    if (ok)
        return;
    fprintf(stderr, "cut: %s: %s\n", what, err->message);
    exit(1);
}

static tinker_future *done(tinker_future *f, const char *what, tinker_error *err)
{
    require(f != NULL, what, err);
    require(tinker_future_wait(f, TIMEOUT_MS, err) == TINKER_OK, what, err);
    return f;
}

/* All passes and steps are in flight together. */
static void train(tinker_training *t, int steps)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 3e-3;
    int32_t tokens[N];
    int64_t targets[N];
    tinker_future *passes[STEPS_MAX], *ends[STEPS_MAX];
    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < N; i++) {
            tokens[i] = 20 + (s + i) % 40;
            targets[i] = 21 + (s + i) % 40;
        }
        tinker_chunk text = { .tokens = tokens, .n_tokens = N };
        tinker_named_tensor target = { "target_tokens",
                                       { .dtype = TINKER_INT64, .data = targets, .n = N } };
        tinker_datum datum = { .model_input = { &text, 1 }, .inputs = &target, .n_inputs = 1 };
        passes[s] = tinker_training_forward_backward(t, &datum, 1, &loss, &err);
        ends[s] = tinker_training_optim_step(t, &adam, &err);
    }
    for (int s = 0; s < steps; s++) {
        const tinker_forward_backward *p =
            tinker_future_forward_backward(done(passes[s], "forward_backward", &err));
        size_t n = 0;
        const tinker_named_number *m = tinker_future_metrics(done(ends[s], "optim_step", &err), &n);
        printf("step %d: %a grad %a count %g\n", s,
               tinker_metric(p->metrics, p->n_metrics, "loss:sum"),
               tinker_metric(m, n, "grad_norm:mean"), tinker_metric(m, n, "step:max"));
        tinker_future_free(passes[s]);
        tinker_future_free(ends[s]);
    }
}

/* A sample at once and a stream, of the same seed. */
static void sample(tinker_service *service, const char *path)
{
    tinker_error err = { 0 };
    tinker_stream_event e;
    int32_t prompt[] = { 20, 21, 22 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 3 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 8;
    params.has_seed = 1;
    params.seed = 5;
    tinker_sampler *m = tinker_service_create_sampler(service, NULL, path, TIMEOUT_MS, &err);
    require(m != NULL, "create_sampler", &err);
    tinker_future *f = done(tinker_sampler_sample(m, &input, &params, NULL, &err), "sample", &err);
    const tinker_sample *r = tinker_future_sample(f);
    printf("sample:");
    for (size_t i = 0; i < r->sequences[0].n; i++)
        printf(" %d/%a", (int)r->sequences[0].tokens[i], (double)r->sequences[0].logprobs[i]);
    for (int k = 0; k < 3; k++) {
        tinker_stream *st = tinker_sampler_stream(m, &input, &params, NULL, &err);
        require(st != NULL, "stream", &err);
        printf("\nstream:");
        do {
            require(tinker_stream_next(st, TIMEOUT_MS, &e, &err) == TINKER_OK, "stream", &err);
            if (e.kind == TINKER_STREAM_TOKEN)
                printf(" %d/%a", (int)e.token, (double)e.logprob);
        } while (e.kind != TINKER_STREAM_END);
        tinker_stream_free(st);
    }
    printf("\n");
    tinker_future_free(f);
    tinker_sampler_free(m);
}

int main(int argc, char **argv)
{
    int steps = argc > 2 ? (int)strtol(argv[1], NULL, 10) : 0;
    tinker_error err = { 0 };
    if (steps < 1 || steps > STEPS_MAX)
        return 2;
    tinker_service *service = tinker_service_new(NULL, &err);
    require(service != NULL, "service", &err);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 4;
    lora.has_seed = 1;
    lora.seed = 7;
    tinker_training *t =
        tinker_service_create_lora(service, "tinker/tiny", &lora, TIMEOUT_MS, &err);
    require(t != NULL, "create_lora", &err);
    train(t, steps);
    tinker_future *state = tinker_training_save_state(t, "end", NULL, &err);
    tinker_future *weights =
        done(tinker_training_save_for_sampler(t, "end", NULL, &err), "save_for_sampler", &err);
    done(state, "save_state", &err);
    sample(service, tinker_future_saved_path(weights));
    tinker_rest *rest = tinker_service_create_rest(service, &err);
    require(rest != NULL, "rest", &err);
    tinker_future *saved = done(tinker_rest_download_checkpoint(
                                    rest, tinker_future_saved_path(weights), argv[2], NULL, &err),
                                "download", &err);
    tinker_future_free(saved);
    tinker_future_free(weights);
    tinker_future_free(state);
    tinker_rest_free(rest);
    tinker_training_free(t);
    tinker_service_free(service);
    return 0;
}
