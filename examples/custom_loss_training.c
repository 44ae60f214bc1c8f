/* custom_loss_training.c - a loss of your own, datum by datum, with its true gradient.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local custom_loss_training [model]
 *
 * Each datum has a loss: the shortfall of its mean log-probability below a goal, squared.  The
 * gradient is checked against differences before it is trusted.  One datum has reached its goal
 * and must not be moved.  custom_loss.c is the variant for preferences (DPO). */
#include "example.h"
#include <math.h>
#include <tinker/custom_loss.h>

enum { N = 3, STEPS = 8 };

static const double goal = -3;

static tinker_var *shortfall(tinker_tape *tape, const tinker_datum *data,
                             tinker_var *const *logprobs, size_t n, void *state)
{
    double *each = state; /* what every datum contributes, for the caller */
    tinker_var *sum = tinker_tape_scalar(tape, 0);
    for (size_t i = 0; i < n; i++) {
        tinker_var *weights = tinker_tape_input(tape, &data[i], "weights");
        tinker_var *mean = tinker_var_masked_mean(logprobs[i], weights);
        tinker_var *loss =
            tinker_var_square(tinker_var_relu(tinker_var_shift(tinker_var_neg(mean), goal)));
        if (each)
            each[i] = tinker_var_item(loss);
        sum = tinker_var_add(sum, loss);
    }
    tinker_tape_metric(tape, "shortfall:sum", tinker_var_item(sum));
    return sum;
}

static void check_gradient(tinker_training *t, const tinker_datum *data)
{
    tinker_loss plain = { .name = "cross_entropy" };
    tinker_future *pass = await(tinker_training_forward(t, data, N, &plain, &err), "forward");
    const tinker_forward_backward *r = tinker_future_forward_backward(pass);
    tinker_tensor logprobs[N];
    tinker_gradcheck worst;
    for (size_t i = 0; i < N; i++)
        logprobs[i] = r->outputs[i].tensors[0].tensor;
    if (tinker_loss_gradcheck(shortfall, NULL, data, logprobs, N, 1e-4, 1e-6, &worst, &err) !=
        TINKER_OK)
        die("gradcheck");
    printf("gradient and differences agree to %.1e\n", worst.worst);
    tinker_future_free(pass);
}

int main(int argc, char **argv)
{
    static struct row rows[N];
    tinker_datum data[N] = { counting(&rows[0], 0, 1), counting(&rows[1], 9, 2),
                             counting(&rows[2], 9, 2) };
    for (int i = 0; i < ROW; i++)
        rows[2].weights[i] = 0; /* nothing of it counts: a mean of 0, above any goal */
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");
    check_gradient(t, data);

    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 1e-3;
    double first = 0, last = 0;
    for (int k = 1; k <= STEPS; k++) {
        double each[N];
        tinker_future *pass =
            need(tinker_training_forward_backward_custom(t, data, N, shortfall, each, NULL, &err),
                 "forward_backward_custom");
        finish(tinker_training_optim_step(t, &adam, &err), "optim_step");
        const tinker_forward_backward *r = tinker_future_forward_backward(await(pass, "backward"));
        const tinker_loss_report *report = tinker_future_loss_report(pass);
        last = tinker_metric(r->metrics, r->n_metrics, "shortfall:sum");
        first = k == 1 ? last : first;
        const double *still = report->gradients[2].data;
        printf("step %d  %.3f + %.3f + %.3f = %.3f\n", k, each[0], each[1], each[2], last);
        expect(fabs(each[0] + each[1] + each[2] - last) < 1e-9, "the sum of the datums' losses");
        expect(each[2] == 0 && still[0] == 0, "what has reached its goal has no gradient");
        tinker_future_free(pass);
    }
    expect(last < first / 2, "the shortfall shrinks");
    printf("shortfall %.3f, then %.3f\n", first, last);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
