/* A loss with regularizers: composition, order, errors, time limits, masks, events, JSON. */
#include <stdatomic.h>
#include <time.h>
#include <tinker/custom_loss.h>
#include <tinker/extra/regularizer.h>
#include "support/tap.h"

static const double one[3] = { -1, -2, -3 }, two[2] = { -0.5, -4 };
static const tinker_tensor ragged[2] = { { .dtype = TINKER_FLOAT64, .data = one, .n = 3 },
                                         { .dtype = TINKER_FLOAT64, .data = two, .n = 2 } };

static tinker_var *total_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                              size_t n, void *state)
{
    (void)data, (void)state;
    tinker_var *sum = tinker_tape_scalar(t, 0);
    for (size_t i = 0; i < n; i++)
        sum = tinker_var_add(sum, tinker_var_sum(lp[i], TINKER_ALL, 0));
    return sum;
}

/* A value of its own whatever the data; no gradient. */
static tinker_var *constant_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                                 size_t n, void *state)
{
    (void)data, (void)lp, (void)n;
    return tinker_tape_scalar(t, *(const double *)state);
}

static tinker_var *failing_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                                size_t n, void *state)
{
    (void)data, (void)lp, (void)n;
    return tinker_tape_fail(t, state ? state : "no reason");
}

/* Busy with its tape until somebody cancels it. */
static tinker_var *endless_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                                size_t n, void *state)
{
    (void)data, (void)n, (void)state;
    while (!tinker_tape_canceled(t))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    return tinker_var_sum(lp[0], TINKER_ALL, 0);
}

static tinker_custom_options options_with(tinker_regularizer *regs, size_t n)
{
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    o.regularizers = regs;
    o.n_regularizers = n;
    return o;
}

static tinker_loss_report *run_loss(const tinker_custom_options *o, tinker_error *err)
{
    return tinker_loss_evaluate(total_loss, NULL, NULL, ragged, 2, o, err);
}

static void test_composition(void) /* R-199 R-201 */
{
    double three = 3;
    tinker_regularizer regs[3] = {
        { .name = "three", .weight = 0.1, .fn = constant_loss, .state = &three },
        { .name = "watched", .weight = 0, .fn = tinker_reg_l2 },
        { .name = "off", .weight = 5, .fn = failing_loss, .disabled = 1 },
    };
    tinker_custom_options o = options_with(regs, 3);
    o.track_grad_norms = 1;
    tinker_loss_report *r = run_loss(&o, NULL);
    REQUIRE(r);
    CHECK_NEAR(r->base.value, -10.5, 1e-12);
    CHECK_NEAR(r->loss_total, -10.2, 1e-12);
    CHECK_NEAR(r->regularizer_total, 0.3, 1e-15);
    CHECK_INT(r->n_regularizers, 2);
    CHECK_STR(r->regularizers[1].name, "watched");
    CHECK_NEAR(r->regularizers[1].value, 1 + 4 + 9 + 0.25 + 16, 1e-12);
    CHECK_NEAR(r->regularizers[1].contribution, 0, 0);
    CHECK(r->regularizers[1].has_grad_norm); /* asked for, though the weight is 0 */
    CHECK_NEAR(r->base.grad_norm, sqrt(5), 1e-12);
    CHECK_NEAR(r->total_grad_norm, sqrt(5), 1e-12);
    CHECK_INT(r->gradients[1].n, 2);
    CHECK_INT(r->gradients[1].shape[0], 2);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "reg/watched/l2_raw"), 30.25, 1e-12);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "base_loss"), -10.5, 1e-12);
    tinker_loss_report_free(r);
    /* no regularizers, no tracking: nothing but what the loss says */
    r = run_loss(NULL, NULL);
    REQUIRE(r);
    CHECK_INT(r->n_metrics, 0);
    CHECK(!r->has_total_grad_norm && !r->base.has_grad_norm);
    tinker_loss_report_free(r);
}

static void test_no_gradient(void)
{
    tinker_regularizer reg = { .name = "l2", .weight = 2, .fn = tinker_reg_l2, .no_gradient = 1 };
    tinker_custom_options o = options_with(&reg, 1);
    o.track_grad_norms = 1;
    tinker_loss_report *r = run_loss(&o, NULL);
    REQUIRE(r);
    CHECK_NEAR(r->loss_total, -10.5 + 60.5, 1e-12);
    CHECK(!r->regularizers[0].has_grad_norm);
    CHECK_NEAR(((const double *)r->gradients[0].data)[2], 1, 0);
    tinker_loss_report_free(r);
}

static void check_refused(const tinker_custom_options *o, tinker_status status, const char *why)
{
    tinker_error err = { 0 };
    CHECK(run_loss(o, &err) == NULL);
    CHECK_INT(err.status, status);
    if (!strstr(err.message, why))
        TAP_FAIL("\"%s\" does not say \"%s\"", err.message, why);
}

static void test_validation(void) /* */
{
    tinker_regularizer regs[2] = { { .name = "a", .weight = 1, .fn = failing_loss },
                                   { .name = "a", .weight = 1, .fn = failing_loss } };
    tinker_custom_options o = options_with(regs, 2);
    check_refused(&o, TINKER_EINVAL, "two regularizers are called \"a\"");
    regs[1].name = "";
    check_refused(&o, TINKER_EINVAL, "regularizers[1] has no name");
    regs[1].name = "b";
    regs[1].weight = -0.1;
    check_refused(&o, TINKER_EINVAL, "\"b\": weight -0.1");
    regs[1].weight = NAN;
    check_refused(&o, TINKER_EINVAL, "weight");
    regs[1].weight = 1;
    regs[1].fn = NULL;
    check_refused(&o, TINKER_EINVAL, "\"b\" has no function");
    tinker_custom_options zero = { 0 };
    check_refused(&zero, TINKER_EINVAL, "tinker_custom_options");
}

static atomic_int n_ran;

static tinker_var *counted_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                                size_t n, void *state)
{
    atomic_fetch_add(&n_ran, 1);
    return failing_loss(t, data, lp, n, state);
}

static void test_errors(void) /* */
{
    char first[] = "first reason", second[] = "second reason";
    tinker_regularizer regs[3] = {
        { .name = "fine", .weight = 1, .fn = tinker_reg_l1 },
        { .name = "b", .weight = 1, .fn = counted_loss, .state = first },
        { .name = "c", .weight = 1, .fn = counted_loss, .state = second }
    };
    tinker_custom_options o = options_with(regs, 3);
    check_refused(&o, TINKER_EINVAL, "regularizer \"b\": first reason");
    CHECK_INT(atomic_load(&n_ran), 2); /* in parallel all run */
    o.sequential = 1;
    check_refused(&o, TINKER_EINVAL, "regularizer \"b\": first reason");
    CHECK_INT(atomic_load(&n_ran), 3); /* one by one, the first error ends it */
    tinker_error err;
    CHECK(!tinker_loss_evaluate(failing_loss, NULL, NULL, ragged, 2, &o, &err));
    CHECK_STR(err.message, "loss: no reason");
    CHECK_INT(atomic_load(&n_ran), 3); /* not one regularizer ran */
}

static void test_timeout(void) /* */
{
    tinker_regularizer regs[3] = {
        { .name = "quick", .weight = 1, .fn = tinker_reg_l1 },
        { .name = "slow", .weight = 1, .fn = endless_loss },
        { .name = "waits", .weight = 1, .fn = endless_loss, .async = 1 }
    };
    tinker_custom_options o = options_with(regs, 2);
    o.regularizer_timeout_ms = 30;
    check_refused(&o, TINKER_ETIMEDOUT, "regularizer \"slow\" did not finish within 30 ms");
    regs[1].disabled = 1;
    o.n_regularizers = 3;
    check_refused(&o, TINKER_ETIMEDOUT, "\"waits\"");
}

static atomic_int n_inside, n_most;

static tinker_var *crowded_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                                size_t n, void *state)
{
    (void)data, (void)lp, (void)n;
    int now = atomic_fetch_add(&n_inside, 1) + 1, most = atomic_load(&n_most);
    while (now > most && !atomic_compare_exchange_weak(&n_most, &most, now))
        ;
    nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
    atomic_fetch_sub(&n_inside, 1);
    return tinker_tape_scalar(t, *(const double *)state);
}

static void test_concurrency(void)
{
    static const char *const names[6] = { "a", "b", "c", "d", "e", "f" };
    double values[6] = { 1, 2, 3, 4, 5, 6 };
    tinker_regularizer regs[6];
    for (int i = 0; i < 6; i++)
        regs[i] = (tinker_regularizer){
            .name = names[i], .weight = 1, .fn = crowded_loss, .state = &values[i]
        };
    tinker_custom_options o = options_with(regs, 6);
    o.max_concurrency = 2;
    tinker_loss_report *r = run_loss(&o, NULL);
    REQUIRE(r);
    CHECK(atomic_load(&n_most) <= 2);
    for (int i = 0; i < 6; i++) {
        CHECK_STR(r->regularizers[i].name, names[i]);
        CHECK_NEAR(r->regularizers[i].value, values[i], 0);
    }
    tinker_loss_report_free(r);
}

/* ---- what a loss may and may not do ------------------------------------------------------ */

static tinker_var *first_only(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                              size_t n, void *state)
{
    (void)t, (void)data, (void)n, (void)state;
    return tinker_var_sum(tinker_var_square(lp[0]), TINKER_ALL, 0);
}

static tinker_var *vector_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                               size_t n, void *state)
{
    (void)t, (void)data, (void)state;
    return tinker_var_concat(lp, n, 0);
}

static tinker_var *steep_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                              size_t n, void *state)
{
    (void)t, (void)data, (void)n, (void)state; /* finite at 0, its slope is not */
    tinker_var *zero = tinker_var_shift(lp[0], 3);
    return tinker_var_sum(tinker_var_power(zero, 0.5), TINKER_ALL, 0);
}

static void test_contract(void)
{
    tinker_error err;
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    CHECK(!tinker_loss_evaluate(first_only, NULL, NULL, ragged, 2, &o, &err));
    CHECK_STR(err.message, "no gradient computed for datum 1: the loss does not depend on it");
    o.allow_unused = 1;
    tinker_loss_report *r = tinker_loss_evaluate(first_only, NULL, NULL, ragged, 2, &o, &err);
    REQUIRE(r);
    CHECK_NEAR(((const double *)r->gradients[1].data)[0], 0, 0);
    tinker_loss_report_free(r);
    CHECK(!tinker_loss_evaluate(vector_loss, NULL, NULL, ragged, 2, &o, &err));
    CHECK_STR(err.message, "loss: the value has shape [5]: not a scalar");
    o.sum_nonscalar = 1;
    r = tinker_loss_evaluate(vector_loss, NULL, NULL, ragged, 2, &o, &err);
    REQUIRE(r);
    CHECK_NEAR(r->loss_total, -10.5, 1e-12);
    tinker_loss_report_free(r);
    const double edge[3] = { -1, -2, -3 };
    tinker_tensor x = { .dtype = TINKER_FLOAT64, .data = edge, .n = 3 };
    CHECK(!tinker_loss_evaluate(steep_loss, NULL, NULL, &x, 1, &o, &err));
    CHECK_STR(err.message, "loss: the gradient of datum 0 at element 2 is inf");
    o.allow_nonfinite = 1;
    r = tinker_loss_evaluate(steep_loss, NULL, NULL, &x, 1, &o, &err);
    CHECK(r && isinf(((const double *)r->gradients[0].data)[2]));
    tinker_loss_report_free(r);
    CHECK(!tinker_loss_evaluate(NULL, NULL, NULL, &x, 1, &o, &err));
}

/* ---- masks and references from the data -------------------------------------------------- */

static void test_masks(void)
{
    const float weights[3] = { 0, 1, 2 }, none[2] = { 0, 0 };
    tinker_named_tensor in[2] = {
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = 3 } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = none, .n = 2 } }
    };
    tinker_datum data[2] = { { .inputs = &in[0], .n_inputs = 1 },
                             { .inputs = &in[1], .n_inputs = 1 } };
    tinker_reg_norm_options size = TINKER_REG_NORM_OPTIONS_INIT;
    size.mask_weights = 1;
    size.reduction = TINKER_REG_MEAN;
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    tinker_error err = { 0 };
    tinker_loss_report *r = tinker_loss_evaluate(tinker_reg_l1, &size, data, ragged, 2, &o, &err);
    REQUIRE(r);
    CHECK_NEAR(r->loss_total, 2.5, 1e-12); /* of -2 and -3 */
    CHECK_NEAR(((const double *)r->gradients[0].data)[0], 0, 0);
    CHECK_NEAR(((const double *)r->gradients[0].data)[1], -0.5, 1e-12);
    CHECK_NEAR(((const double *)r->gradients[1].data)[0], 0, 0);
    tinker_loss_report_free(r);
    /* a slot of -inf that is masked, and a row without weight, leave no trace */
    const double rows[6] = { -1, -INFINITY, -2, -0.7, -0.3, -9 };
    const float keep[6] = { 1, 0, 1, 0, 0, 0 };
    const int64_t shape[2] = { 2, 3 };
    tinker_tensor x = { TINKER_FLOAT64, rows, 6, shape, 2, NULL, NULL };
    in[0].tensor = (tinker_tensor){ TINKER_FLOAT32, keep, 6, shape, 2, NULL, NULL };
    tinker_reg_entropy_options e = TINKER_REG_ENTROPY_OPTIONS_INIT;
    e.mask_weights = 1;
    r = tinker_loss_evaluate(tinker_reg_entropy, &e, data, &x, 1, &o, &err);
    REQUIRE(r);
    CHECK_NEAR(r->loss_total, exp(-1) + 2 * exp(-2), 1e-12);
    CHECK_NEAR(((const double *)r->gradients[0].data)[1], 0, 0);
    CHECK_NEAR(((const double *)r->gradients[0].data)[4], 0, 0);
    CHECK_NEAR(((const double *)r->gradients[0].data)[2], -exp(-2) * (1 - 2), 1e-12);
    tinker_loss_report_free(r);
    e.temperature = 2; /* renormalized over what is kept */
    r = tinker_loss_evaluate(tinker_reg_entropy, &e, data, &x, 1, &o, &err);
    REQUIRE(r);
    double p = 1 / (1 + exp(-0.5)), q = 1 - p;
    CHECK_NEAR(r->loss_total, -p * log(p) - q * log(q), 1e-12);
    tinker_loss_report_free(r);
}

static void test_references_of_the_data(void)
{
    const double ref[3] = { -1, -1, -1 }, other[2] = { -1, -1 };
    tinker_named_tensor in[2] = {
        { "reference_logprobs", { .dtype = TINKER_FLOAT64, .data = ref, .n = 3 } },
        { "reference_logprobs", { .dtype = TINKER_FLOAT64, .data = other, .n = 2 } }
    };
    tinker_datum data[2] = { { .inputs = &in[0], .n_inputs = 1 },
                             { .inputs = &in[1], .n_inputs = 1 } };
    tinker_error err = { 0 };
    tinker_loss_report *r = tinker_loss_evaluate(tinker_reg_kl, NULL, data, ragged, 2, NULL, &err);
    REQUIRE(r);
    /* each datum against its own reference, not the first one's */
    double want = -exp(-2) - 2 * exp(-3) + 0.5 * exp(-0.5) - 3 * exp(-4);
    CHECK_NEAR(r->loss_total, want / 2, 1e-12);
    CHECK_STR(r->base.custom[1].text, "forward");
    tinker_loss_report_free(r);
    in[1].tensor.n = 1;
    CHECK(!tinker_loss_evaluate(tinker_reg_kl, NULL, data, ragged, 2, NULL, &err));
    CHECK_STR(err.message, "loss: datum 1: reference of shape [1] for logprobs of shape [2]");
    in[0].name = "something";
    CHECK(!tinker_loss_evaluate(tinker_reg_kl, NULL, data, ragged, 2, NULL, &err));
    CHECK(strstr(err.message, "reference_logprobs") != NULL);
    CHECK(!tinker_loss_evaluate(tinker_reg_kl, NULL, NULL, ragged, 2, NULL, &err));
    CHECK(strstr(err.message, "no reference") != NULL);
}

/* ---- telling ----------------------------------------------------------------------------- */

struct diary {
    char names[16][40];
    int n;
    double value, total;
    char last[200];
};

static void note_event(const tinker_loss_event *e, void *state)
{
    struct diary *d = state;
    if (d->n < 16)
        snprintf(d->names[d->n++], sizeof(d->names[0]), "%s", e->name);
    if (strcmp(e->name, "regularizer.compute.stop") == 0)
        d->value = e->value;
    if (strcmp(e->name, "custom_loss.stop") == 0)
        d->total = e->loss_total;
    tinker_loss_event_text(e, d->last, sizeof(d->last));
}

static void test_events(void)
{
    tinker_regularizer regs[2] = { { .name = "l1", .weight = 1, .fn = tinker_reg_l1 },
                                   { .name = "l2", .weight = 1, .fn = tinker_reg_l2 } };
    struct diary d = { 0 };
    tinker_custom_options o = options_with(regs, 2);
    o.observer = note_event;
    o.observer_state = &d;
    tinker_loss_report_free(run_loss(&o, NULL));
    const char *const want[] = { "custom_loss.start",         "regularizer.compute.start",
                                 "regularizer.compute.start", "regularizer.compute.stop",
                                 "regularizer.compute.stop",  "custom_loss.stop" };
    CHECK_INT(d.n, 6);
    for (int i = 0; i < 6 && d.n == 6; i++)
        CHECK_STR(d.names[i], want[i]);
    CHECK_NEAR(d.value, 30.25, 1e-12);
    CHECK_NEAR(d.total, 30.25, 1e-12);
    CHECK(strstr(d.last, "total 30.2500, regularizers 40.7500") != NULL);
    d.n = 0;
    regs[0].fn = failing_loss;
    run_loss(&o, NULL);
    CHECK_STR(d.names[d.n - 1], "custom_loss.exception");
    CHECK_STR(d.names[d.n - 3], "regularizer.compute.exception");
    CHECK(strstr(d.last, "no reason") != NULL);
}

static void test_json(void)
{
    double value = 3;
    tinker_regularizer reg = {
        .name = "say \"x\"", .weight = 0.5, .fn = constant_loss, .state = &value
    };
    tinker_custom_options o = options_with(&reg, 1);
    tinker_loss_report *r = run_loss(&o, NULL);
    REQUIRE(r);
    tinker_text json = TINKER_TEXT_INIT;
    CHECK_INT(tinker_loss_report_json(r, &json, NULL), TINKER_OK);
    CHECK_STR(json.s, "{\"loss_total\":-9,\"regularizer_total\":1.5,\"base_loss\":{\"value\":-10.5,"
                      "\"grad_norm\":null,\"custom\":{}},\"regularizers\":{\"say \\\"x\\\"\":{"
                      "\"value\":3,\"weight\":0.5,\"contribution\":1.5,\"grad_norm\":null,"
                      "\"grad_norm_weighted\":null,\"custom\":{}}}}");
    tinker_loss_report_free(r);
    reg = (tinker_regularizer){ .name = "l2", .weight = 1, .fn = tinker_reg_l2 };
    o.track_grad_norms = 1;
    r = run_loss(&o, NULL);
    json.n = 0; /* the memory is used again */
    CHECK_INT(tinker_loss_report_json(r, &json, NULL), TINKER_OK);
    CHECK(strstr(json.s, "\"center\":\"none\"") != NULL);
    CHECK(strstr(json.s, "\"total_grad_norm\":") != NULL);
    free(json.s);
    tinker_loss_report_free(r);
}

int main(void)
{
    RUN(test_composition);
    RUN(test_no_gradient);
    RUN(test_validation);
    RUN(test_errors);
    RUN(test_timeout);
    RUN(test_concurrency);
    RUN(test_contract);
    RUN(test_masks);
    RUN(test_references_of_the_data);
    RUN(test_events);
    RUN(test_json);
    return tap_done();
}
