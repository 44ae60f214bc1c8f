/* Losses that the service computes from a graph: one pass there is what two passes with the same
 * function here are, and what has no graph is refused before anything is sent. */
#include <tinker/tinker.h>
#include "../support/tap.h"

enum { N = 3, TOKENS = 10, STEPS = 2, WAIT_MS = 120000 };

static int32_t tokens[N][TOKENS];
static int64_t targets[N][TOKENS];
static float weights[N][TOKENS], reference[N][TOKENS], scale[N];
static tinker_chunk chunks[N];
static tinker_named_tensor tensors[N][4];
static tinker_datum data[N];
static tinker_service *service;
static tinker_error err;

static void make_data(void)
{
    static const int64_t none[1];
    for (int i = 0; i < N; i++) {
        size_t n = TOKENS - (size_t)i; /* of different lengths */
        for (size_t k = 0; k < n; k++) {
            tokens[i][k] = 20 + (7 * i + (int)k) % 40;
            targets[i][k] = 20 + (7 * i + 3 * (int)k + 1) % 40;
            weights[i][k] = k < 3 ? 0.0f : 0.25f * (float)((int)k + i) - 1;
            reference[i][k] = -4.0f - 0.1f * (float)((int)k * 5 % 7);
        }
        scale[i] = 0.5f + (float)i;
        chunks[i] = (tinker_chunk){ .tokens = tokens[i], .n_tokens = n };
        const tinker_named_tensor all[] = {
            { "target_tokens", { .dtype = TINKER_INT64, .data = targets[i], .n = n } },
            { "weights", { .dtype = TINKER_FLOAT32, .data = weights[i], .n = n } },
            { "ref", { .dtype = TINKER_FLOAT32, .data = reference[i], .n = n } },
            { "scale",
              { .dtype = TINKER_FLOAT32, .data = &scale[i], .n = 1, .shape = none, .ndim = 0 } },
        };
        memcpy(tensors[i], all, sizeof(all));
        data[i] =
            (tinker_datum){ .model_input = { &chunks[i], 1 }, .inputs = tensors[i], .n_inputs = 4 };
    }
}

static const tinker_graph_input inputs[] = { { "weights", 1 }, { "ref", 1 }, { "scale", 0 } };

static tinker_var *dpo(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)state;
    tinker_var *margin = tinker_var_dot(tinker_var_sub(lp, in[1]), in[0]);
    tinker_tape_metric_value(tape, "custom/margin:mean", tinker_var_detach(margin));
    tinker_tape_metric_value(tape, "custom/margin:sum", margin);
    return tinker_var_neg(
        tinker_var_logsigmoid(tinker_var_mul(margin, tinker_var_scale(in[2], 0.1))));
}

static tinker_var *clipped(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)state;
    tinker_var *ratio = tinker_var_ratio(lp, in[1]);
    tinker_var *least = tinker_var_minimum(
        tinker_var_mul(ratio, in[0]), tinker_var_mul(tinker_var_clamp(ratio, 0.8, 1.2), in[0]));
    tinker_tape_metric_value(
        tape, "custom/clip_frac:mean",
        tinker_var_mean(tinker_var_gt(ratio, tinker_tape_scalar(tape, 1.2)), TINKER_ALL, 0));
    return tinker_var_neg(tinker_var_sum(least, TINKER_ALL, 0));
}

/* One of most operations, so that each is written as what it is. */
static tinker_var *many(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)state;
    tinker_var *zero = tinker_tape_scalar(tape, 0), *w = in[0], *d = tinker_var_sub(lp, in[1]);
    tinker_var *on = tinker_var_and(tinker_var_ne(w, zero), tinker_var_not(tinker_var_le(w, zero)));
    tinker_var *any = tinker_var_or(on, tinker_var_eq(w, zero));
    size_t n = tinker_var_size(lp);
    tinker_var *step =
        tinker_var_sub(tinker_var_slice(lp, 0, 1, n - 1, 1), tinker_var_slice(lp, 0, 0, n - 1, 1));
    tinker_var *terms[] = {
        tinker_var_mean(tinker_var_square(d), TINKER_ALL, 0),
        tinker_var_std(lp, TINKER_ALL, 0, 1),
        tinker_var_variance(d, 0, 0, 0),
        tinker_var_max(lp, 0, 0),
        tinker_var_min(d, TINKER_ALL, 0),
        tinker_var_logsumexp(lp, TINKER_ALL, 0),
        tinker_var_norm(d, TINKER_ALL, 0),
        tinker_var_masked_mean(lp, on),
        tinker_var_masked_sum(tinker_var_exp(lp), any),
        tinker_var_huber(lp, in[1], 0.5),
        tinker_var_mse(tinker_var_softmax(lp, 0), tinker_var_sigmoid(in[1])),
        tinker_var_dot(tinker_var_log_softmax(lp, -1), w),
        tinker_var_sum(tinker_var_cumsum(tinker_var_tanh(d), 0), TINKER_ALL, 0),
        tinker_var_sum(tinker_var_square(step), 0, 0),
        tinker_var_sum(tinker_var_softplus(d), TINKER_ALL, 0),
        tinker_var_sum(tinker_var_where(tinker_var_gt(d, zero), tinker_var_expm1(d),
                                        tinker_var_log1p(tinker_var_abs(d))),
                       TINKER_ALL, 0),
        tinker_var_sum(tinker_var_masked_fill(tinker_var_relu(d), on, 2), TINKER_ALL, 0),
        tinker_var_mean(tinker_var_rsqrt(tinker_var_shift(tinker_var_power(lp, 2), 1)), -1, 0),
        tinker_var_dot(tinker_var_whiten(tinker_var_sqrt(tinker_var_neg(lp))), w),
        tinker_var_cosine(lp, in[1]),
        tinker_var_sum(
            tinker_var_div(lp, tinker_var_maximum(in[1], tinker_tape_scalar(tape, -4.3))),
            TINKER_ALL, 0),
        tinker_var_sum(tinker_var_log(tinker_var_nan_to_num(tinker_var_square(d), 1, 0, 1e30)),
                       TINKER_ALL, 0),
        tinker_var_sum(tinker_var_mul(tinker_var_unsqueeze(lp, 1), tinker_var_unsqueeze(w, 0)),
                       TINKER_ALL, 0),
        tinker_var_sum(tinker_var_mul(tinker_var_mul(tinker_var_floor(d), tinker_var_sign(d)),
                                      tinker_var_mul(lp, tinker_var_isfinite(tinker_var_round(d)))),
                       TINKER_ALL, 0),
    };
    tinker_var *sum = zero;
    for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++)
        sum = tinker_var_add(sum, tinker_var_scale(terms[i], 0.1 + 0.01 * (double)i));
    return tinker_var_mul(sum, in[2]);
}

static tinker_training *new_training(void)
{
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 4;
    lora.has_seed = 1;
    lora.seed = 5;
    return tinker_service_create_lora(service, "tinker/tiny", &lora, WAIT_MS, &err);
}

static double metric_of(const tinker_future *f, const char *name)
{
    const tinker_forward_backward *r = tinker_future_forward_backward(f);
    return tinker_metric(r->metrics, r->n_metrics, name);
}

static void compare(const char *name, tinker_graph_loss_fn *fn, const char *metric)
{
    tinker_graph_loss loss = TINKER_GRAPH_LOSS_INIT;
    loss.name = name;
    loss.fn = fn;
    loss.inputs = inputs;
    loss.n_inputs = 3;
    tinker_future *made = tinker_service_create_custom_loss(service, &loss, &err);
    if (!made || tinker_future_wait(made, WAIT_MS, &err) != TINKER_OK)
        TAP_FAIL("%s: %s", name, err.message);
    REQUIRE(made && tinker_future_loss_id(made));
    tinker_training *t[2] = { new_training(), new_training() };
    for (int step = 0; step < STEPS; step++) {
        double sum[2], value[2] = { 0, 0 }, norm[2];
        for (int i = 0; i < 2; i++) { /* there in one pass, here between two */
            tinker_future *f = tinker_training_forward_backward_graph(
                t[i], data, N, &loss, i ? NULL : tinker_future_loss_id(made), &err);
            tinker_adam adam = TINKER_ADAM_INIT;
            adam.learning_rate = 1e-3;
            tinker_future *g = f ? tinker_training_optim_step(t[i], &adam, &err) : NULL;
            if (!g || tinker_future_wait(f, WAIT_MS, &err) != TINKER_OK ||
                tinker_future_wait(g, WAIT_MS, &err) != TINKER_OK)
                TAP_FAIL("%s: %s", name, err.message);
            REQUIRE(tinker_future_forward_backward(f));
            const tinker_loss_report *r = tinker_future_loss_report(f);
            CHECK((r != NULL) == i); /* which of the two ways it went */
            sum[i] = r ? r->loss_total : metric_of(f, "loss:sum");
            if (metric)
                value[i] = metric_of(f, metric);
            size_t n;
            const tinker_named_number *m = tinker_future_metrics(g, &n);
            norm[i] = NAN;
            for (size_t k = 0; k < n; k++)
                if (strcmp(m[k].name, "grad_norm:mean") == 0)
                    norm[i] = m[k].value;
            tinker_future_free(f);
            tinker_future_free(g);
        }
        CHECK_NEAR(sum[0], sum[1], 1e-5 * fabs(sum[1]));
        CHECK_NEAR(norm[0], norm[1], 1e-4 * norm[1]);
        CHECK_NEAR(value[0], value[1], 1e-5 * (1 + fabs(value[1])));
        CHECK(norm[0] > 0);
    }
    tinker_training_free(t[0]);
    tinker_training_free(t[1]);
    tinker_future_free(made);
}

static void test_one_pass_is_two(void)
{
    compare("dpo", dpo, "custom/margin:mean");
    compare("clipped", clipped, "custom/clip_frac:mean");
    compare("many", many, NULL);
}

/* ---- what has no graph ------------------------------------------------------------------- */

static tinker_var *by_number(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)tape, (void)in, (void)state;
    return tinker_var_scale(tinker_var_sum(lp, TINKER_ALL, 0), tinker_var_data(lp)[1]);
}

static tinker_var *by_length(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)tape, (void)in, (void)state;
    return tinker_var_scale(tinker_var_sum(lp, TINKER_ALL, 0), 1.0 / (double)tinker_var_size(lp));
}

static tinker_var *picks(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    static const int64_t index[] = { 0, 3, 1 };
    (void)tape, (void)in, (void)state;
    return tinker_var_sum(tinker_var_index_select(lp, 0, index, 3), TINKER_ALL, 0);
}

static tinker_var *numbers(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)in, (void)state;
    double v[8] = { 1, 2, 3, 4, 5, 6, 7 };
    return tinker_var_dot(lp, tinker_tape_const(tape, v, tinker_var_size(lp), NULL, 0));
}

static tinker_var *constant(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)lp, (void)in, (void)state;
    return tinker_tape_scalar(tape, 3);
}

static tinker_var *tensor(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)tape, (void)in, (void)state;
    return tinker_var_exp(lp);
}

static tinker_var *fails(tinker_tape *tape, tinker_var *lp, tinker_var *const *in, void *state)
{
    (void)lp, (void)in, (void)state;
    return tinker_tape_fail(tape, "no such loss");
}

static void test_what_has_no_graph(void)
{
    static const struct {
        tinker_graph_loss_fn *fn;
        const char *why;
    } cases[] = {
        { by_number, "it looks at lengths or numbers" },
        { by_length, "it looks at lengths or numbers" },
        { picks, "only slices can be part of it" },
        { numbers, "a constant of several numbers" },
        { constant, "the loss is a constant" },
        { tensor, "the loss is not one number" },
        { fails, "no such loss" },
    };
    tinker_text text = TINKER_TEXT_INIT;
    tinker_graph_loss loss = TINKER_GRAPH_LOSS_INIT;
    loss.name = "f";
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        loss.fn = cases[i].fn;
        CHECK(!tinker_service_create_custom_loss(service, &loss, &err));
        if (!strstr(err.message, cases[i].why))
            TAP_FAIL("case %zu: %s", i, err.message);
        CHECK_INT(tinker_graph_loss_json(&loss, &text, &err), err.status);
    }
    CHECK_INT(text.n, 0);
    static const tinker_graph_input bad[] = { { "Weights", 1 }, { "logprobs", 1 }, { "w", 3 } };
    loss.fn = dpo;
    loss.n_inputs = 1;
    for (size_t i = 0; i < 3; i++) {
        loss.inputs = &bad[i];
        CHECK_INT(tinker_graph_loss_json(&loss, &text, &err), TINKER_EINVAL);
    }
    loss.inputs = inputs;
    loss.n_inputs = 3;
    CHECK_INT(tinker_graph_loss_json(&loss, &text, &err), TINKER_OK);
    CHECK(strstr(text.s, "\"torch._C._nn.log_sigmoid\"") != NULL);
    tinker_text_clear(&text);
}

int main(int argc, char **argv)
{
    if (argc > 1) { /* one graph per line, for other readers */
        static const struct {
            const char *name;
            tinker_graph_loss_fn *fn;
        } all[] = { { "dpo", dpo }, { "clipped", clipped }, { "many", many } };
        (void)argv;
        for (size_t i = 0; i < 3; i++) {
            tinker_text text = TINKER_TEXT_INIT;
            tinker_graph_loss loss = TINKER_GRAPH_LOSS_INIT;
            loss.name = all[i].name;
            loss.fn = all[i].fn;
            loss.inputs = inputs;
            loss.n_inputs = 3;
            if (tinker_graph_loss_json(&loss, &text, &err) != TINKER_OK)
                return 1;
            printf("%s\n", text.s);
            tinker_text_clear(&text);
        }
        return 0;
    }
    make_data();
    service = tinker_service_new(NULL, &err);
    RUN(test_what_has_no_graph);
    RUN(test_one_pass_is_two);
    tinker_service_free(service);
    return tap_done();
}
