/* structured_regularizers_live.c - train with penalties beside the loss.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
 *         structured_regularizers_live [model]
 *
 * Cross entropy, written by hand, with all the penalties that make sense on a sequence of
 * log-probabilities, each with its share of the gradient.  The reference that some of them need is
 * the model as it was before the first step.  structured_regularizers.c has the rest, offline. */
#include "example.h"
#include <tinker/custom_loss.h>
#include <tinker/extra/regularizer.h>

enum { N = 2, STEPS = 6 };

static tinker_var *cross_entropy(tinker_tape *tape, const tinker_datum *data,
                                 tinker_var *const *logprobs, size_t n, void *state)
{
    tinker_var *sum = tinker_tape_scalar(tape, 0);
    (void)state;
    for (size_t i = 0; i < n; i++)
        sum = tinker_var_add(
            sum, tinker_var_nll(logprobs[i], tinker_tape_input(tape, &data[i], "weights")));
    return tinker_var_scale(sum, 1.0 / (N * ROW));
}

/* The gradient penalty's function: the log of the summed probability. */
static tinker_var *mass(tinker_tape *tape, tinker_var *x, void *state)
{
    (void)tape, (void)state;
    return tinker_var_logsumexp(x, TINKER_ALL, 0);
}

/* One step; returns the loss without penalties. */
static double step(tinker_training *t, const tinker_datum *data, const tinker_custom_options *opts,
                   int number)
{
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 1e-3;
    tinker_future *pass =
        need(tinker_training_forward_backward_custom(t, data, N, cross_entropy, NULL, opts, &err),
             "forward_backward_custom");
    finish(tinker_training_optim_step(t, &adam, &err), "optim_step");
    const tinker_loss_report *report = tinker_future_loss_report(await(pass, "backward"));
    printf("step %d  loss %.4f + penalties %.4f\n", number, report->base.value,
           report->regularizer_total);
    for (size_t i = 0; number == STEPS && i < report->n_regularizers; i++)
        printf("  %-12s %8.4f, gradient %.5f\n", report->regularizers[i].name,
               report->regularizers[i].value, report->regularizers[i].grad_norm_weighted);
    double value = report->base.value;
    tinker_future_free(pass);
    return value;
}

int main(int argc, char **argv)
{
    static struct row rows[N];
    tinker_datum data[N] = { counting(&rows[0], 0, 1), counting(&rows[1], 9, 2) };
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");

    tinker_loss plain = { .name = "cross_entropy" };
    tinker_future *start = await(tinker_training_forward(t, data, N, &plain, &err), "forward");
    const tinker_forward_backward *r = tinker_future_forward_backward(start);
    tinker_tensor before[N] = { r->outputs[0].tensors[0].tensor, r->outputs[1].tensors[0].tensor };
    tinker_reg_reference_options ref = TINKER_REG_REFERENCE_OPTIONS_INIT;
    ref.tensors = before;
    ref.n_tensors = N;
    tinker_reg_norm_options mean = TINKER_REG_NORM_OPTIONS_INIT;
    mean.reduction = TINKER_REG_MEAN;
    mean.mask_weights = 1;
    tinker_reg_gradient_options penalty = TINKER_REG_GRADIENT_OPTIONS_INIT;
    penalty.f = mass;
    const tinker_regularizer terms[] = {
        { .name = "l1", .weight = 0.01, .fn = tinker_reg_l1, .state = &mean },
        { .name = "l2", .weight = 0.01, .fn = tinker_reg_l2, .state = &mean },
        { .name = "elastic_net", .weight = 0.01, .fn = tinker_reg_elastic_net, .state = &mean },
        { .name = "consistency", .weight = 0.001, .fn = tinker_reg_consistency, .state = &ref },
        { .name = "gradient",
          .weight = 0.01,
          .fn = tinker_reg_gradient_penalty,
          .state = &penalty },
        { .name = "magnitude", .weight = 0.001, .fn = tinker_reg_magnitude },
        { .name = "kl", .weight = 0.001, .fn = tinker_reg_kl, .state = &ref },
        { .name = "js", .weight = 0, .fn = tinker_reg_jensen_shannon, .state = &ref }, /* watched */
    };
    tinker_custom_options opts = TINKER_CUSTOM_OPTIONS_INIT;
    opts.regularizers = terms;
    opts.n_regularizers = sizeof(terms) / sizeof(*terms);
    opts.track_grad_norms = 1;
    double first = step(t, data, &opts, 1), last = first;
    for (int i = 2; i <= STEPS; i++)
        last = step(t, data, &opts, i);
    expect(last < first, "the loss falls");
    printf("loss fell by %.4f\n", first - last);

    tinker_future_free(start);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
