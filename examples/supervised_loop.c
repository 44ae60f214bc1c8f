/* supervised_loop.c - ten steps of supervised fine-tuning, pipelined.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local supervised_loop [model]
 *
 * forward_backward and optim_step are submitted together and awaited together: the second
 * is on its way while the first is still being computed. */
#include "example.h"

enum { BATCH = 4, STEPS = 10 };

/* Returns the loss per token before the step. */
static double step(tinker_training *t, const tinker_datum *data)
{
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 3e-3; /* the bundled model is tiny */
    tinker_future *both[2];
    both[0] = need(tinker_training_forward_backward(t, data, BATCH, &loss, &err), "pass");
    both[1] = need(tinker_training_optim_step(t, &adam, &err), "step");
    if (tinker_future_wait_all(both, 2, MINUTE_MS, &err) != TINKER_OK)
        die("training step");
    double sum = loss_of(both[0]);
    tinker_future_free(both[0]);
    tinker_future_free(both[1]);
    return sum / (BATCH * ROW);
}

int main(int argc, char **argv)
{
    static struct row rows[BATCH];
    tinker_datum data[BATCH];
    for (int i = 0; i < BATCH; i++)
        data[i] = counting(&rows[i], 7 * i, 1);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 8;
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), &lora, MINUTE_MS, &err),
             "training client");
    for (int i = 1; i <= STEPS; i++)
        printf("step %2d  loss per token %.4f\n", i, step(t, data));
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
