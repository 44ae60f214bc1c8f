/* adam_and_chunking.c - how a large batch is cut into requests, and what Adam's settings do.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local adam_and_chunking [model]
 *
 * A batch is cut after 1024 datums or 5 000 000 bytes, whichever comes first; its parts are sent
 * in parallel and their outputs joined in order.  One call, one future.  The program first says
 * what it expects and then counts the requests that really went out. */
#include "example.h"
#include <math.h>
#include <tinker/extra/http.h>

enum { DATUMS = 1100, MOST = 1024 };

/* One token each, so that a thousand of them are quickly computed. */
static int32_t tokens[DATUMS];
static int64_t targets[DATUMS];
static tinker_chunk chunks[DATUMS];
static tinker_named_tensor inputs[DATUMS];
static tinker_datum data[DATUMS];

static void make(void)
{
    for (int i = 0; i < DATUMS; i++) {
        tokens[i] = 20 + i % 100;
        targets[i] = 21 + i % 100;
        chunks[i] = (tinker_chunk){ .tokens = &tokens[i], .n_tokens = 1 };
        inputs[i] = (tinker_named_tensor){ "target_tokens",
                                           { .dtype = TINKER_INT64, .data = &targets[i], .n = 1 } };
        data[i] =
            (tinker_datum){ .model_input = { &chunks[i], 1 }, .inputs = &inputs[i], .n_inputs = 1 };
    }
}

static void count(const tinker_response *r, void *state)
{
    int *parts = state;
    *parts += r->operation[0] == 'f'; /* forward_backward; the others are polls */
}

/* Submit the whole batch as one call; returns how many requests it became. */
static int forward_backward(tinker_training *t)
{
    int parts = 0;
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_call_options watch = TINKER_CALL_OPTIONS_INIT;
    watch.on_response = count;
    watch.on_response_state = &parts;
    tinker_training *watched = tinker_training_with(t, &watch, &err);
    if (!watched)
        die("call options");
    tinker_future *pass = tinker_training_forward_backward(watched, data, DATUMS, &loss, &err);
    tinker_training_free(watched); /* the future lives on */
    const tinker_forward_backward *r =
        tinker_future_forward_backward(await(pass, "forward_backward"));
    printf("%zu outputs of %d datums, loss %.4f per token\n", r->n_outputs, DATUMS,
           loss_of(pass) / DATUMS);
    expect(r->n_outputs == DATUMS, "every datum has its output");
    tinker_future_free(pass); /* from here on `count` is not called any more */
    return parts;
}

/* One step with these settings; returns what the gradient was multiplied by. */
static double step(tinker_training *t, double weight_decay, double clip)
{
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 2e-4;
    adam.weight_decay = weight_decay;
    adam.grad_clip_norm = clip;
    tinker_future *f = await(tinker_training_optim_step(t, &adam, &err), "optim_step");
    size_t n;
    const tinker_named_number *metrics = tinker_future_metrics(f, &n);
    printf("weight decay %g, clip %g:", weight_decay, clip);
    for (size_t i = 0; i < n; i++)
        printf("  %s %.4g", metrics[i].name, metrics[i].value);
    putchar('\n');
    double norm = tinker_metric(metrics, n, "grad_norm:mean");
    double factor = tinker_metric(metrics, n, "clip_coef:mean");
    expect(clip == 0 || fabs(factor * norm - clip) < 1e-3 * clip, "the clipped norm is the limit");
    tinker_future_free(f);
    return factor;
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 8;
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), &lora, MINUTE_MS, &err),
             "training client");
    make();
    printf("%d datums: parts of %d and %d\n", DATUMS, MOST, DATUMS - MOST);
    int parts = forward_backward(t);
    printf("sent as %d requests\n", parts);
    expect(parts == (DATUMS + MOST - 1) / MOST, "as many requests as parts");
    expect(step(t, 0.01, 1.0) < 1, "a large gradient is clipped");
    forward_backward(t);
    expect(step(t, 0, 0) == 1, "and left alone without a limit");
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
