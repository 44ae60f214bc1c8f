/* forward_inference.c - a forward pass alone: log-probabilities come back, the rest is arithmetic.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local forward_inference [model]
 *
 * Nothing is learnt and nothing is saved.  The service's own loss is the sum of what the outputs
 * say about each token, so both must agree; here the sum is made locally, and on a tape, which
 * also gives the gradient. */
#include "example.h"
#include <math.h>
#include <tinker/extra/autodiff.h>

/* Sum, mean and perplexity of one row of log-probabilities; returns the sum. */
static double describe(const tinker_tensor *t, size_t which)
{
    const float *logprobs = t->data;
    double sum = 0, worst = 0;
    for (size_t i = 0; i < t->n; i++) {
        sum += logprobs[i];
        worst = fmin(worst, logprobs[i]);
    }
    double mean = sum / (double)t->n;
    printf("row %zu  %zu tokens  mean logprob %.4f  perplexity %.2f  worst %.4f\n", which, t->n,
           mean, exp(-mean), worst);
    return sum;
}

/* The mean square of log-probabilities and its gradient, 2 x / n. */
static void differentiate(const tinker_tensor *t)
{
    tinker_tape *tape = need(tinker_tape_new(&err), "tape");
    double x[ROW];
    for (size_t i = 0; i < t->n; i++)
        x[i] = ((const float *)t->data)[i];
    tinker_var *leaf = tinker_tape_leaf(tape, x, t->n, NULL, 0);
    tinker_var *y = tinker_var_mean(tinker_var_square(leaf), TINKER_ALL, 0);
    if (tinker_tape_backward(tape, y, &err) != TINKER_OK)
        die("backward");
    const double *slope = tinker_var_grad(leaf);
    printf("mean square %.4f, slope at the first token %.4f\n", tinker_var_item(y), slope[0]);
    expect(fabs(slope[0] - 2 * x[0] / (double)t->n) < 1e-9, "the slope is 2 x / n");
    tinker_tape_free(tape);
}

int main(int argc, char **argv)
{
    enum { ROWS = 3 };
    static struct row rows[ROWS];
    tinker_datum data[ROWS];
    for (int i = 0; i < ROWS; i++)
        data[i] = counting(&rows[i], 5 * i, i + 1);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");

    tinker_loss loss = { .name = "cross_entropy" };
    tinker_future *pass = await(tinker_training_forward(t, data, ROWS, &loss, &err), "forward");
    const tinker_forward_backward *r = tinker_future_forward_backward(pass);
    double sum = 0;
    for (size_t i = 0; i < r->n_outputs; i++)
        sum += describe(&r->outputs[i].tensors[0].tensor, i);
    printf("minus the sum %.4f, the service's loss %.4f\n", -sum, loss_of(pass));
    expect(fabs(sum + loss_of(pass)) < 1e-3, "the loss is minus the sum of the logprobs");
    differentiate(&r->outputs[0].tensors[0].tensor);

    tinker_future_free(pass);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
