/* supervised_loop.c - ten steps of supervised fine-tuning, pipelined.
 *
 * forward_backward and optim_step are submitted together and awaited together: the second
 * is on its way while the first is still being computed. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/tinker.h>

enum { BATCH = 4, TOKENS = 16, STEPS = 10 };

struct example {
    int32_t tokens[TOKENS];
    int64_t targets[TOKENS];
    float weights[TOKENS];
    tinker_chunk chunk;
    tinker_named_tensor inputs[2];
};

/* Count upwards: token t is followed by t + 1. */
static tinker_datum make(struct example *e, int first)
{
    for (int i = 0; i < TOKENS; i++) {
        e->tokens[i] = 20 + (first + i) % 50;
        e->targets[i] = 20 + (first + i + 1) % 50;
        e->weights[i] = 1;
    }
    e->chunk = (tinker_chunk){ .tokens = e->tokens, .n_tokens = TOKENS };
    e->inputs[0] =
        (tinker_named_tensor){ "target_tokens",
                               { .dtype = TINKER_INT64, .data = e->targets, .n = TOKENS } };
    e->inputs[1] =
        (tinker_named_tensor){ "weights",
                               { .dtype = TINKER_FLOAT32, .data = e->weights, .n = TOKENS } };
    return (tinker_datum){ { &e->chunk, 1 }, e->inputs, 2 };
}

static int step(tinker_training *t, const tinker_datum *data, int number, tinker_error *err)
{
    tinker_loss loss = { "cross_entropy", NULL, 0 };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 1e-3;
    tinker_future *both[2];
    both[0] = tinker_training_forward_backward(t, data, BATCH, &loss, err);
    both[1] = both[0] ? tinker_training_optim_step(t, &adam, err) : NULL;
    int ok = both[1] && tinker_future_wait_all(both, 2, 120000, err) == TINKER_OK;
    if (ok) {
        const tinker_forward_backward *r = tinker_future_forward_backward(both[0]);
        double sum = tinker_metric(r->metrics, r->n_metrics, "loss:sum", 0);
        printf("step %2d  loss per token %.4f\n", number, sum / (BATCH * TOKENS));
    }
    tinker_future_free(both[0]);
    if (both[0])
        tinker_future_free(both[1]);
    return ok;
}

int main(int argc, char **argv)
{
    tinker_error err;
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 8;
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_training *t = service
                             ? tinker_service_create_lora(
                                   service, argc > 1 ? argv[1] : "tinker/tiny", &lora, 60000, &err)
                             : NULL;
    static struct example examples[BATCH];
    tinker_datum data[BATCH];
    for (int i = 0; i < BATCH; i++)
        data[i] = make(&examples[i], 7 * i);
    int ok = t != NULL;
    for (int i = 1; ok && i <= STEPS; i++)
        ok = step(t, data, i, &err);
    if (!ok)
        fprintf(stderr, "supervised_loop: %s\n", err.message);
    tinker_training_free(t);
    tinker_service_free(service);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
