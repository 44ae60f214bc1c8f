/* example.h - what the examples share: one way to give up, and rows to train on.
 *
 * An example ends at the first thing that fails, with a message and status 1; the system takes
 * back what it held.  A program that has to go on handles the error where die() stands. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* nanosleep() under -std=c11; so this header comes first */
#endif

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tinker/tinker.h>

enum { MINUTE_MS = 60000, ROW = 16 };

static tinker_error err;

/* Say what failed and why. */
static inline _Noreturn void die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", what, tinker_status_name(err.status), err.message);
    exit(EXIT_FAILURE);
}

/* The object that a call made; NULL ends the program. */
static inline void *need(void *object, const char *what)
{
    if (!object)
        die(what);
    return object;
}

/* The future that a call returned, once it has its result. */
static inline tinker_future *await(tinker_future *f, const char *what)
{
    return need(tinker_future_await(f, MINUTE_MS, &err), what);
}

/* For futures whose success is all there is to know. */
static inline void finish(tinker_future *f, const char *what)
{
    tinker_future_free(await(f, what));
}

/* What the example claims must be so. */
static inline void expect(int so, const char *claim)
{
    if (!so) {
        fprintf(stderr, "this should be so, and is not: %s\n", claim);
        exit(EXIT_FAILURE);
    }
}

static inline void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

/* The model to work with: the first argument, or the bundled one. */
static inline const char *model_name(int argc, char **argv)
{
    return argc > 1 ? argv[1] : "tinker/tiny";
}

/* One training example and the memory it refers to. */
struct row {
    int32_t tokens[ROW];
    int64_t targets[ROW];
    float weights[ROW];
    tinker_chunk chunk;
    tinker_named_tensor inputs[2];
};

/* Count upwards by `by`, or stand still with 0: token t is followed by t + by. */
static inline tinker_datum counting(struct row *r, int first, int by)
{
    for (int i = 0; i < ROW; i++) {
        r->tokens[i] = 20 + (first + by * i) % 50;
        r->targets[i] = 20 + (first + by * (i + 1)) % 50;
        r->weights[i] = 1;
    }
    r->chunk = (tinker_chunk){ .tokens = r->tokens, .n_tokens = ROW };
    r->inputs[0] = (tinker_named_tensor){ "target_tokens",
                                          { .dtype = TINKER_INT64, .data = r->targets, .n = ROW } };
    r->inputs[1] =
        (tinker_named_tensor){ "weights",
                               { .dtype = TINKER_FLOAT32, .data = r->weights, .n = ROW } };
    return (tinker_datum){ .model_input = { &r->chunk, 1 }, .inputs = r->inputs, .n_inputs = 2 };
}

/* The sum of the losses of a pass. */
static inline double loss_of(const tinker_future *pass)
{
    const tinker_forward_backward *r = tinker_future_forward_backward(pass);
    return tinker_metric(r->metrics, r->n_metrics, "loss:sum");
}

/* One step of fine-tuning on data[0..n): both requests are sent before either is waited for.
 * Returns the loss per token before the step. */
static inline double train_step(tinker_training *t, const tinker_datum *data, size_t n)
{
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 1e-3;
    tinker_future *pass = tinker_training_forward_backward(t, data, n, &loss, &err);
    tinker_future *step = pass ? tinker_training_optim_step(t, &adam, &err) : NULL;
    double before = loss_of(await(pass, "forward_backward"));
    finish(step, "optim_step");
    tinker_future_free(pass);
    return before / (double)(n * ROW);
}

#endif
