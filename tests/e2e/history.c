/* history.c - train, log, and print the loss of every step, as a program would.
 * Usage: history BASE_MODEL STEPS; the server is named by the environment.  Prints the run's id,
 * then "STEP LOSS" lines with the mean loss over weighted tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/tinker.h>

enum { TOKENS = 10, PROMPT = 4, WINDOW = 64 };
static tinker_error err;

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, err.message);
    exit(1);
}

/* The first tokens are a prompt and count nothing. */
static tinker_future *submit_pass(tinker_training *t, int step)
{
    int32_t tokens[TOKENS];
    int64_t targets[TOKENS - 1];
    float weights[TOKENS - 1];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (2 * i + step % 3) % 200 + 3;
    for (int i = 0; i < TOKENS - 1; i++) {
        targets[i] = tokens[i + 1];
        weights[i] = i >= PROMPT;
    }
    const tinker_chunk chunk = { .tokens = tokens, .n_tokens = TOKENS - 1 };
    const tinker_named_tensor inputs[] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = TOKENS - 1 } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = TOKENS - 1 } },
    };
    const tinker_datum datum = { .model_input = { &chunk, 1 }, .inputs = inputs, .n_inputs = 2 };
    const tinker_loss loss = { .name = "cross_entropy" };
    return tinker_training_forward_backward(t, &datum, 1, &loss, &err);
}

/* Wait for a step and print what the program thinks its loss is. */
static void finish_step(int step, tinker_future *pass, tinker_future *update)
{
    if (tinker_future_wait(pass, 60000, &err) || tinker_future_wait(update, 60000, &err))
        die("step");
    const tinker_forward_backward *r = tinker_future_forward_backward(pass);
    double sum = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    printf("%d %.17g\n", step, sum / (TOKENS - 1 - PROMPT));
    tinker_future_free(pass);
    tinker_future_free(update);
}

int main(int argc, char **argv)
{
    int steps = argc > 2 ? atoi(argv[2]) : 10;
    tinker_future *passes[WINDOW], *updates[WINDOW];
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_lora lora = TINKER_LORA_INIT;
    adam.learning_rate = 3e-4;
    lora.rank = 4;
    tinker_service *s = tinker_service_new(NULL, &err);
    tinker_training *t = s ? tinker_service_create_lora(s, argv[1], &lora, 60000, &err) : NULL;
    if (!t)
        die("create");
    printf("%s\n", tinker_training_model_id(t));
    tinker_run_description d = TINKER_RUN_DESCRIPTION_INIT;
    d.name = "a named run";
    d.planned_steps = steps;
    tinker_future *f = tinker_future_await(tinker_training_describe(t, &d, &err), 60000, &err);
    if (!f)
        die("describe");
    tinker_future_free(f);
    for (int i = 0; i < steps; i++) {
        if (i >= WINDOW)
            finish_step(i - WINDOW + 1, passes[i % WINDOW], updates[i % WINDOW]);
        passes[i % WINDOW] = submit_pass(t, i);
        updates[i % WINDOW] = tinker_training_optim_step(t, &adam, &err);
        if (!passes[i % WINDOW] || !updates[i % WINDOW])
            die("submit");
    }
    for (int i = steps > WINDOW ? steps - WINDOW : 0; i < steps; i++)
        finish_step(i + 1, passes[i % WINDOW], updates[i % WINDOW]);
    const tinker_named_number m[] = { { "reward", 0.75 }, { "broken", 0.0 / 0.0 } };
    f = tinker_future_await(tinker_training_log(t, steps, m, 2, &err), 60000, &err);
    if (!f)
        die("log");
    tinker_future_free(f);
    f = tinker_future_await(tinker_training_log_text(t, -1, "greedy", "Once", " upon a time", &err),
                            60000, &err);
    if (!f)
        die("log_text");
    tinker_future_free(f);
    /* What cannot be right is refused at once. */
    if (tinker_training_log(t, 1, m, 0, &err) || tinker_training_log(t, -2, m, 1, &err) ||
        tinker_training_log(t, 1, m + 1, 1, &err) ||
        tinker_training_log_text(t, 1, NULL, NULL, NULL, &err))
        return fprintf(stderr, "nonsense was accepted\n"), 1;
    tinker_training_free(t);
    tinker_service_free(s);
    return 0;
}
