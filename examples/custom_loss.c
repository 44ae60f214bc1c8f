/* custom_loss.c - a loss of your own: direct preference optimization with a regularizer.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local custom_loss [model]
 *
 * Data come in pairs, the preferred answer first.  The loss compares what training changed
 * about the two since the start; the library differentiates it. */
#include "example.h"
#include <tinker/custom_loss.h>
#include <tinker/extra/regularizer.h>

enum { PAIRS = 2, N = 2 * PAIRS, STEPS = 8 };

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

static void step(tinker_training *t, const tinker_datum *data, const tinker_forward_backward *start,
                 int number)
{
    tinker_reg_norm_options mean = TINKER_REG_NORM_OPTIONS_INIT;
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
    tinker_future *pass =
        need(tinker_training_forward_backward_custom(t, data, N, dpo, (void *)start, &opts, &err),
             "forward_backward_custom");
    finish(tinker_training_optim_step(t, &adam, &err), "optim_step");
    const tinker_forward_backward *r = tinker_future_forward_backward(await(pass, "backward"));
    const tinker_loss_report *report = tinker_future_loss_report(pass);
    printf("step %d  loss %.4f  margin %+.4f  gradient %.4f, of the regularizer %.4f\n", number,
           report->loss_total, tinker_metric(r->metrics, r->n_metrics, "margin"),
           report->total_grad_norm, report->regularizers[0].grad_norm_weighted);
    tinker_future_free(pass);
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");
    static struct row rows[N];
    tinker_datum data[N];
    for (int i = 0; i < N; i++) {
        data[i] = counting(&rows[i], 5 * (i / 2), i % 2 == 0); /* upwards, or standing still */
        for (int k = 0; k < ROW / 2; k++)
            rows[i].weights[k] = 0; /* the first half is the question */
    }
    tinker_loss plain = { .name = "cross_entropy" };
    tinker_future *start = await(tinker_training_forward(t, data, N, &plain, &err), "forward");
    for (int i = 1; i <= STEPS; i++)
        step(t, data, tinker_future_forward_backward(start), i);
    tinker_future_free(start);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
