/* Against a real engine: a custom loss that is cross entropy trains exactly as the built-in
 * one, and each regularizer, as the loss itself, makes its own value smaller. */
#include <tinker/tinker.h>
#include <tinker/extra/regularizer.h>
#include "../support/tap.h"

enum { N = 3, TOKENS = 10, STEPS = 3, WAIT_MS = 120000 };

static int32_t tokens[N][TOKENS];
static int64_t targets[N][TOKENS];
static float weights[N][TOKENS];
static tinker_chunk chunks[N];
static tinker_named_tensor inputs[N][2];
static tinker_datum data[N];
static tinker_service *service;
static tinker_error err;

static void make_data(void)
{
    for (int i = 0; i < N; i++) {
        int n = TOKENS - i; /* of different lengths */
        for (int k = 0; k < n; k++) {
            tokens[i][k] = 20 + (7 * i + k) % 40;
            targets[i][k] = 20 + (7 * i + 3 * k + 1) % 40;
            weights[i][k] = k < 3 ? 0.0f : 0.25f * (float)(k + i) - 1;
        }
        chunks[i] = (tinker_chunk){ .tokens = tokens[i], .n_tokens = (size_t)n };
        inputs[i][0] =
            (tinker_named_tensor){ "target_tokens",
                                   { .dtype = TINKER_INT64, .data = targets[i], .n = (size_t)n } };
        inputs[i][1] = (tinker_named_tensor){
            "weights", { .dtype = TINKER_FLOAT32, .data = weights[i], .n = (size_t)n }
        };
        data[i] =
            (tinker_datum){ .model_input = { &chunks[i], 1 }, .inputs = inputs[i], .n_inputs = 2 };
    }
}

static tinker_training *new_training(void)
{
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 4;
    lora.has_seed = 1;
    lora.seed = 5;
    return tinker_service_create_lora(service, "tinker/tiny", &lora, WAIT_MS, &err);
}

static int finish(tinker_future *f)
{
    int ok = f && tinker_future_wait(f, WAIT_MS, &err) == TINKER_OK;
    tinker_future_free(f);
    return ok;
}

static int optim_step(tinker_training *t)
{
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = 1e-3;
    return finish(tinker_training_optim_step(t, &adam, &err));
}

static const tinker_loss cross_entropy = { .name = "cross_entropy" };

static tinker_var *nll(tinker_tape *tape, const tinker_datum *d, tinker_var *const *lp, size_t n,
                       void *state)
{
    (void)state;
    tinker_var *sum = tinker_tape_scalar(tape, 0);
    for (size_t i = 0; i < n; i++)
        sum = tinker_var_add(sum, tinker_var_nll(lp[i], tinker_tape_input(tape, &d[i], "weights")));
    return sum;
}

static tinker_future *logprobs_of(tinker_training *t)
{
    tinker_future *f = tinker_training_forward(t, data, N, &cross_entropy, &err);
    if (f && tinker_future_wait(f, WAIT_MS, &err) == TINKER_OK)
        return f;
    tinker_future_free(f);
    return NULL;
}

static void test_same_as_built_in(void)
{
    tinker_training *a = new_training(), *b = new_training();
    REQUIRE(a && b);
    tinker_future *start = logprobs_of(a);
    for (int i = 0; i < STEPS; i++) {
        CHECK(finish(tinker_training_forward_backward(a, data, N, &cross_entropy, &err)));
        CHECK(finish(tinker_training_forward_backward_custom(b, data, N, nll, NULL, NULL, &err)));
        CHECK(optim_step(a) && optim_step(b));
    }
    tinker_future *fa = logprobs_of(a), *fb = logprobs_of(b);
    REQUIRE(start && fa && fb);
    double moved = 0;
    for (size_t i = 0; i < N; i++) {
        const tinker_tensor *x = &tinker_future_forward_backward(fa)->outputs[i].tensors[0].tensor;
        const tinker_tensor *y = &tinker_future_forward_backward(fb)->outputs[i].tensors[0].tensor;
        const tinker_tensor *z =
            &tinker_future_forward_backward(start)->outputs[i].tensors[0].tensor;
        CHECK_INT(x->n, TOKENS - i);
        for (size_t k = 0; k < x->n && k < y->n; k++) {
            CHECK_NEAR(((const float *)y->data)[k], ((const float *)x->data)[k], 1e-6);
            moved += fabs(((const float *)x->data)[k] - ((const float *)z->data)[k]);
        }
    }
    CHECK(moved > 0.1); /* and there was something to compare */
    tinker_future_free(start);
    tinker_future_free(fa);
    tinker_future_free(fb);
    tinker_training_free(a);
    tinker_training_free(b);
}

static void shrink(const char *name, tinker_loss_fn *fn, void *state)
{
    double first = NAN, last = NAN;
    tinker_training *t = new_training();
    REQUIRE(t);
    for (int i = 0; i <= STEPS; i++) {
        tinker_future *f =
            tinker_training_forward_backward_custom(t, data, N, fn, state, NULL, &err);
        if (!f || tinker_future_wait(f, WAIT_MS, &err) != TINKER_OK || !optim_step(t))
            TAP_FAIL("%s: %s", name, err.message);
        const tinker_loss_report *r = f ? tinker_future_loss_report(f) : NULL;
        last = r ? r->loss_total : NAN;
        first = i == 0 ? last : first;
        tinker_future_free(f);
    }
    if (!(last < first))
        TAP_FAIL("%s: from %g to %g", name, first, last);
    tinker_training_free(t);
}

static void test_regularizers_shrink(void)
{
    static double zeros[N][TOKENS];
    tinker_tensor pairs[N];
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < TOKENS; k++)
            zeros[i][k] = -1;
        pairs[i] =
            (tinker_tensor){ .dtype = TINKER_FLOAT64, .data = zeros[i], .n = (size_t)(TOKENS - i) };
    }
    tinker_reg_reference_options ref = TINKER_REG_REFERENCE_OPTIONS_INIT;
    ref.tensors = pairs;
    ref.n_tensors = N;
    shrink("l1", tinker_reg_l1, NULL);
    shrink("l2", tinker_reg_l2, NULL);
    shrink("consistency", tinker_reg_consistency, &ref);
}

/* The forward pass is refused by the engine, so the backward pass is never sent; what comes after
 * both runs at once. */
static void test_refused_forward(void)
{
    tinker_training *t = new_training();
    REQUIRE(t);
    int32_t bad = 1 << 30;
    tinker_chunk chunk = chunks[0];
    chunk.tokens = &bad;
    chunk.n_tokens = 1;
    tinker_named_tensor in = { "target_tokens",
                               { .dtype = TINKER_INT64, .data = targets[0], .n = 1 } };
    tinker_datum datum = { .model_input = { &chunk, 1 }, .inputs = &in, .n_inputs = 1 };
    tinker_future *f = tinker_training_forward_backward_custom(t, &datum, 1, nll, NULL, NULL, &err);
    REQUIRE(f != NULL);
    CHECK(tinker_future_wait(f, WAIT_MS, &err) != TINKER_OK);
    CHECK(strstr(err.message, "vocabulary") != NULL);
    tinker_future_free(f);
    CHECK(optim_step(t));
    tinker_training_free(t);
}

int main(void)
{
    make_data();
    service = tinker_service_new(NULL, &err);
    RUN(test_same_as_built_in);
    RUN(test_regularizers_shrink);
    RUN(test_refused_forward);
    tinker_service_free(service);
    return tap_done();
}
