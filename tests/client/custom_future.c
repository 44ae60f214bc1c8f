/* Custom losses as futures: the order on the wire, whose thread, failures. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <tinker/custom_loss.h>
#include "base/arena.h"
#include "support/fake_tinker.h"
#include "support/tap.h"
#include "wire/proto.h"

#define PASS API "forward_backward"
#define STEP API "optim_step"

struct calls {
    atomic_int n, may_return;
    pthread_t thread;
    bool fails, slow;
    tinker_status waited; /* what a wait inside says */
    tinker_training *t;
};

static tinker_var *negative_sum(tinker_tape *tape, const tinker_datum *data, tinker_var *const *lp,
                                size_t n, void *state)
{
    struct calls *c = state;
    (void)data;
    atomic_fetch_add(&c->n, 1);
    c->thread = pthread_self();
    while (c->slow && !atomic_load(&c->may_return))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    if (c->t) {
        tinker_future *f = tinker_training_get_info(c->t, NULL);
        c->waited = tinker_future_wait(f, 1000, NULL);
        tinker_future_free(f);
    }
    if (c->fails)
        return tinker_tape_fail(tape, "no such reward");
    tinker_var *sum = tinker_tape_scalar(tape, 0);
    for (size_t i = 0; i < n; i++)
        sum = tinker_var_sub(sum, tinker_var_sum(lp[i], TINKER_ALL, 0));
    tinker_tape_metric(tape, "mine", 3.5);
    return sum;
}

/* seq_id and forward_only of the i-th pass, as seq * 2 + forward_only. */
static int64_t pass_at(struct world *w, size_t i, size_t *n_data)
{
    const struct fake_request *r = fake_get(w->server, PASS, i);
    struct wire_forward_backward_request req;
    struct arena a;
    arena_init(&a, SIZE_MAX);
    int64_t v = -1;
    if (r && wire_decode_forward_backward_request(r->body, r->len, &a, &req, NULL) == TINKER_OK) {
        v = req.seq_id.value * 2 + req.forward_only;
        if (n_data)
            *n_data = req.n_data;
    }
    arena_clear(&a);
    return v;
}

/* Submit the loss and the step at once: the step still comes after the backward pass. */
static void test_pipelined(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(2, 3);
    struct calls c = { .slow = true };
    tinker_future *f =
        tinker_training_forward_backward_custom(t, data, 2, negative_sum, &c, NULL, &w.err);
    tinker_future *step = tinker_training_optim_step(t, NULL, &w.err);
    REQUIRE(f && step);
    fake_data_free(data, 2); /* it was copied */
    CHECK(!tinker_future_done(f));
    while (!atomic_load(&c.n)) /* the loss runs, and the step waits for it */
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    CHECK_INT(fake_count(w.server, STEP), 0);
    CHECK(tinker_future_loss_report(f) == NULL);
    atomic_store(&c.may_return, 1);
    CHECK_INT(tinker_future_wait(step, 20000, &w.err), TINKER_OK);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_OK);
    CHECK_INT(atomic_load(&c.n), 1);
    CHECK(!pthread_equal(c.thread, pthread_self()));
    CHECK_INT(fake_count(w.server, PASS), 2);
    CHECK_INT(pass_at(&w, 0, NULL), 1 * 2 + 1);
    CHECK_INT(pass_at(&w, 1, NULL), 2 * 2 + 0);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 3);
    CHECK(fake_get(w.server, STEP, 0)->index > fake_get(w.server, PASS, 1)->index);
    const tinker_forward_backward *r = tinker_future_forward_backward(f);
    REQUIRE(r != NULL);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "mine"), 3.5, 0);
    const tinker_loss_report *report = tinker_future_loss_report(f);
    REQUIRE(report != NULL);
    CHECK_INT(report->n_gradients, 2);
    CHECK_NEAR(((const double *)report->gradients[1].data)[0], -1, 0);
    CHECK(tinker_future_loss_report(step) == NULL);
    tinker_future_free(step);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

/* Several chunks: the backward pass is cut as the forward pass was, one block of ids each. */
static void test_chunks(void)
{
    struct world w;
    world_open_real(&w, "{\"fwdbwd_max_chunk_len\":2}");
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(5, 3);
    struct calls c = { 0 };
    tinker_future *f =
        tinker_training_forward_backward_custom(t, data, 5, negative_sum, &c, NULL, &w.err);
    REQUIRE(f != NULL);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_OK);
    CHECK_INT(tinker_future_forward_backward(f)->n_outputs, 5);
    CHECK_INT(fake_count(w.server, PASS), 6);
    size_t total[2] = { 0, 0 };
    for (size_t i = 0; i < 6; i++) {
        size_t n = 0;
        int64_t v = pass_at(&w, i, &n);
        CHECK(i < 3 ? v % 2 == 1 && v / 2 <= 3 : v % 2 == 0 && v / 2 >= 4);
        total[i / 3] += n;
    }
    CHECK_INT(total[0], 5);
    CHECK_INT(total[1], 5);
    CHECK_INT(pass_at(&w, 5, NULL), 4 * 2); /* the first of parallel chunks last, as always */
    tinker_future_free(f);
    fake_data_free(data, 5);
    tinker_training_free(t);
    world_close(&w);
}

/* A loss that fails: its error, its number filled by a forward pass, the next request unharmed. */
static void test_failing_loss(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(3, 3);
    struct calls c = { .fails = true };
    tinker_future *f =
        tinker_training_forward_backward_custom(t, data, 3, negative_sum, &c, NULL, &w.err);
    tinker_future *step = tinker_training_optim_step(t, NULL, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_EINVAL);
    CHECK(strstr(w.err.message, "no such reward") != NULL);
    CHECK(tinker_future_loss_report(f) == NULL);
    CHECK_INT(tinker_future_wait(step, 20000, &w.err), TINKER_OK);
    size_t n = 0;
    CHECK_INT(fake_count(w.server, PASS), 2);
    CHECK_INT(pass_at(&w, 1, &n), 2 * 2 + 1); /* forward only: nothing accumulates */
    CHECK_INT(n, 1);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 3);
    tinker_future_free(step);
    tinker_future_free(f);
    fake_data_free(data, 3);
    tinker_training_free(t);
    world_close(&w);
}

/* What fills the number of the backward pass is nobody's business, even when it is refused. */
static void test_failing_loss_and_its_filler(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(1, 3);
    struct calls c = { .fails = true };
    fake_script(w.server, PASS, (struct fake_reply){ .by_handler = true });
    say(&w, PASS, 422, "{\"detail\":\"too long\"}", 1);
    tinker_future *f =
        tinker_training_forward_backward_custom(t, data, 1, negative_sum, &c, NULL, &w.err);
    tinker_future *step = tinker_training_optim_step(t, NULL, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_EINVAL);
    CHECK(strstr(w.err.message, "no such reward") != NULL);
    CHECK_INT(w.err.http_status, 0);
    CHECK_INT(tinker_future_wait(step, 20000, &w.err), TINKER_OK);
    CHECK_INT(fake_count(w.server, PASS), 2);
    tinker_future_free(step);
    tinker_future_free(f);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_failing_forward(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(1, 3);
    struct calls c = { 0 };
    say(&w, PASS, 422, "{\"detail\":\"too long\"}", 1);
    tinker_future *f =
        tinker_training_forward_backward_custom(t, data, 1, negative_sum, &c, NULL, &w.err);
    tinker_future *step = tinker_training_optim_step(t, NULL, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 422);
    CHECK_INT(atomic_load(&c.n), 0);
    CHECK_INT(tinker_future_wait(step, 20000, &w.err), TINKER_OK);
    /* The numbers of both passes were filled before the step was sent. */
    CHECK_INT(fake_count(w.server, PASS), 3);
    CHECK_INT(pass_at(&w, 1, NULL), 1 * 2 + 1);
    CHECK_INT(pass_at(&w, 2, NULL), 2 * 2 + 1);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 3);
    CHECK(fake_get(w.server, STEP, 0)->index > fake_get(w.server, PASS, 2)->index);
    tinker_future_free(step);
    tinker_future_free(f);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

/* Canceled while the loss runs: complete at once, only its number filled, and free waits for the
 * loss. */
static void test_canceled(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(1, 3);
    struct calls c = { .slow = true };
    tinker_future *f =
        tinker_training_forward_backward_custom(t, data, 1, negative_sum, &c, NULL, &w.err);
    while (!atomic_load(&c.n))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    tinker_future_cancel(f);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_ECANCELED);
    tinker_future *step = tinker_training_optim_step(t, NULL, &w.err);
    CHECK_INT(tinker_future_wait(step, 20000, &w.err), TINKER_OK);
    atomic_store(&c.may_return, 1);
    CHECK_INT(fake_count(w.server, PASS), 2);
    CHECK_INT(pass_at(&w, 1, NULL), 2 * 2 + 1);
    tinker_future_free(step);
    tinker_future_free(f);
    /* and one that the service's end finds before or in its loss */
    struct calls late = { 0 };
    f = tinker_training_forward_backward_custom(t, data, 1, negative_sum, &late, NULL, &w.err);
    tinker_training_free(t);
    world_close(&w);
    tinker_status s = tinker_future_wait(f, 20000, &w.err);
    CHECK(s == TINKER_ECANCELED || s == TINKER_OK);
    tinker_future_free(f);
    fake_data_free(data, 1);
}

/* On the library's thread a loss may submit, not wait. */
static void test_no_waiting_inside(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_datum *data = fake_data(1, 3);
    struct calls c = { .t = t };
    fake_script(w.server, API "get_info", (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f =
        tinker_training_forward_backward_custom(t, data, 1, negative_sum, &c, NULL, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_OK);
    CHECK_INT(c.waited, TINKER_ESTATE);
    tinker_future_free(f);
    CHECK(!tinker_training_forward_backward_custom(t, data, 0, negative_sum, &c, NULL, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

/* Batches that wait for the network count, with the weights that follow them. */
static void test_queued_bytes(void) /* */
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.base_url = fake_server_url(w.server);
    o.telemetry.enabled = -1;
    o.limits.max_queued_bytes = 3000;
    tinker_service *s = tinker_service_new(&o, &w.err);
    tinker_training *t = s ? tinker_service_create_lora(s, "tiny", NULL, 20000, &w.err) : NULL;
    REQUIRE(t);
    tinker_datum *data = fake_data(1, 100); /* 1 to 2 KB */
    struct calls c = { 0 };
    fake_script(w.server, PASS, (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f[3];
    int n = 0;
    for (int i = 0; i < 3; i++) {
        f[n] = tinker_training_forward_backward_custom(t, data, 1, negative_sum, &c, NULL, &w.err);
        n += f[n] != NULL;
    }
    CHECK(n >= 1 && n < 3);
    CHECK_INT(w.err.status, TINKER_ENOMEM);
    CHECK(strstr(w.err.message, "max_queued_bytes") != NULL);
    CHECK(fake_await(w.server, PASS, 1)); /* or there is nothing to release yet */
    for (int i = 0; i < n; i++) {
        tinker_future_cancel(f[i]);
        tinker_future_free(f[i]);
    }
    CHECK(fake_await(w.server, PASS, 1));
    fake_release(w.server, PASS);
    for (int i = 0; i < 5; i++) { /* what was accepted, or given up, counts no more */
        tinker_future *g =
            tinker_training_forward_backward_custom(t, data, 1, negative_sum, &c, NULL, &w.err);
        for (int k = 0; !g && k < 2000; k++) {
            nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
            g = tinker_training_forward_backward_custom(t, data, 1, negative_sum, &c, NULL, &w.err);
        }
        REQUIRE(g);
        CHECK_INT(tinker_future_wait(g, 20000, &w.err), TINKER_OK);
        tinker_future_free(g);
    }
    fake_data_free(data, 1);
    tinker_training_free(t);
    tinker_service_free(s);
    world_close(&w);
}

int main(void)
{
    RUN(test_pipelined);
    RUN(test_chunks);
    RUN(test_failing_loss);
    RUN(test_failing_loss_and_its_filler);
    RUN(test_failing_forward);
    RUN(test_canceled);
    RUN(test_no_waiting_inside);
    RUN(test_queued_bytes);
    return tap_done();
}
