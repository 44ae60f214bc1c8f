/* custom_loss.c - a loss of your own: direct preference optimisation with a regularizer.
 *
 * Data come in pairs, the preferred answer first.  The loss compares what training changed
 * about the two since the start; the library differentiates it. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/tinker.h>

enum { PAIRS = 2, N = 2 * PAIRS, TOKENS = 12, STEPS = 8, MINUTE_MS = 60000 };

struct example {
    int32_t tokens[TOKENS];
    int64_t targets[TOKENS];
    float weights[TOKENS];
    tinker_chunk chunk;
    tinker_named_tensor inputs[2];
};

/* Count upwards, or stand still; the first half is the question and has no weight. */
static tinker_datum make(struct example *e, int first, int by)
{
    for (int i = 0; i < TOKENS; i++) {
        e->tokens[i] = 20 + first + by * i;
        e->targets[i] = 20 + first + by * (i + 1);
        e->weights[i] = i >= TOKENS / 2;
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

/* -mean log sigmoid(0.1 * (gain of the chosen answer - gain of the rejected one)) */
static tinker_var *dpo(tinker_tape *tape, const tinker_datum *data, tinker_var *const *logprobs,
                       size_t n, void *state)
{
    const tinker_forward_backward *start = state;
    tinker_var *gain[N], *margin[PAIRS];
    for (size_t i = 0; i < n; i++) {
        tinker_var *reference = tinker_tape_tensor(tape, &start->outputs[i].tensors[0].tensor);
        tinker_var *weights = tinker_tape_input(tape, &data[i], "weights");
        gain[i] = tinker_var_dot(tinker_var_sub(logprobs[i], reference), weights);
    }
    for (size_t p = 0; p < n / 2; p++)
        margin[p] = tinker_var_scale(tinker_var_sub(gain[2 * p], gain[2 * p + 1]), 0.1);
    tinker_var *z = tinker_var_stack(margin, n / 2, 0);
    tinker_tape_metric(tape, "margin", tinker_var_item(tinker_var_mean(z, TINKER_ALL, 0)));
    return tinker_var_neg(tinker_var_mean(tinker_var_logsigmoid(z), TINKER_ALL, 0));
}

static int step(tinker_training *t, const tinker_datum *data, const tinker_forward_backward *start,
                int number, tinker_error *err)
{
    tinker_reg_size mean = TINKER_REG_SIZE_INIT;
    mean.reduction = TINKER_REG_MEAN;
    mean.mask_weights = 1;
    tinker_regularizer likely = {
        .name = "l1", .weight = 0.01, .fn = tinker_reg_l1, .state = &mean
    };
    tinker_custom_options opts = TINKER_CUSTOM_OPTIONS_INIT;
    opts.regularizers = &likely;
    opts.n_regularizers = 1;
    opts.track_grad_norms = 1;
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 1e-3;
    tinker_loss_report *report = NULL;
    tinker_future *both[2];
    both[0] = tinker_training_forward_backward_custom(t, data, N, dpo, (void *)start, &opts,
                                                      MINUTE_MS, &report, err);
    both[1] = both[0] ? tinker_training_optim_step(t, &adam, err) : NULL;
    int ok = both[1] && tinker_future_wait_all(both, 2, MINUTE_MS, err) == TINKER_OK;
    if (ok) {
        const tinker_forward_backward *r = tinker_future_forward_backward(both[0]);
        printf("step %d  loss %.4f  margin %+.4f  gradient %.4f, of the regularizer %.4f\n", number,
               report->loss_total, tinker_metric(r->metrics, r->n_metrics, "margin", 0),
               report->total_grad_norm, report->regularizers[0].grad_norm_weighted);
    }
    tinker_future_free(both[0]);
    tinker_future_free(both[1]);
    tinker_loss_report_free(report);
    return ok;
}

int main(int argc, char **argv)
{
    tinker_error err;
    const char *model = argc > 1 ? argv[1] : "tinker/tiny";
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_training *t =
        service ? tinker_service_create_lora(service, model, NULL, MINUTE_MS, &err) : NULL;
    static struct example examples[N];
    tinker_datum data[N];
    for (int i = 0; i < N; i++)
        data[i] = make(&examples[i], 5 * (i / 2), i % 2 == 0);
    tinker_loss plain = { "cross_entropy", NULL, 0 };
    tinker_future *start = t ? tinker_training_forward(t, data, N, &plain, &err) : NULL;
    int ok = start && tinker_future_wait(start, MINUTE_MS, &err) == TINKER_OK;
    for (int i = 1; ok && i <= STEPS; i++)
        ok = step(t, data, tinker_future_forward_backward(start), i, &err);
    if (!ok)
        fprintf(stderr, "custom_loss: %s\n", err.message);
    tinker_future_free(start);
    tinker_training_free(t);
    tinker_service_free(service);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
