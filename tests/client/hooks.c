/* Events: which there are, in which order, on which thread, and that hooks can do no harm. */
#include <pthread.h>
#include <time.h>
#include <tinker/custom_loss.h>
#include <tinker/extra/events.h>
#include "http/loop.h"
#include "client/io/runtime.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define STEP API "optim_step"
#define POLL API "retrieve_future"

/* What a hook saw: one line per event. */
struct tape {
    char *line[512];
    int n;
    int fail_at; /* fail at this event, from 1; 0: never */
    pthread_t thread;
    bool on_loop;
};

static int keep(const tinker_event *e, void *state)
{
    struct tape *t = state;
    char line[1024];
    struct runtime *rt = runtime_current();
    t->thread = pthread_self();
    t->on_loop = t->on_loop || (rt && loop_on_thread(rt->loop));
    tinker_event_line(e, line, sizeof(line));
    if (t->n < 512)
        t->line[t->n++] = strdup(line);
    return t->fail_at && t->n >= t->fail_at;
}

static void tape_clear(struct tape *t)
{
    for (int i = 0; i < t->n; i++)
        free(t->line[i]);
    t->n = 0;
}

static int count(const struct tape *t, const char *part)
{
    int n = 0;
    for (int i = 0; i < t->n; i++)
        n += strstr(t->line[i], part) != NULL;
    return n;
}

/* The line that holds both texts. */
static const char *find(const struct tape *t, const char *a, const char *b)
{
    for (int i = 0; i < t->n; i++)
        if (strstr(t->line[i], a) && strstr(t->line[i], b))
            return t->line[i];
    return NULL;
}

static void open_tape(struct world *w, struct tape *t, const char *prefix)
{
    memset(t, 0, sizeof(*t));
    world_open(w, NULL, NULL);
    CHECK_INT(tinker_service_attach(w->service, "tape", prefix, keep, t, NULL), TINKER_OK);
}

static tinker_status ask(struct world *w)
{
    tinker_future *f = tinker_service_check_health(w->service, NULL);
    tinker_status s = world_finish(w, f, 1000000);
    tinker_future_free(f);
    world_settle(w);
    return s;
}

static tinker_status step(struct world *w, tinker_training *t)
{
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    tinker_status s = world_finish(w, f, 1000000);
    tinker_future_free(f);
    world_settle(w);
    return s;
}

/* ---- requests ---------------------------------------------------------------------------- */

static void test_one_request(void) /* */
{
    struct world w;
    struct tape t;
    open_tape(&w, &t, "http.");
    CHECK_INT(ask(&w), TINKER_OK);
    tape_clear(&t);
    fake_script(w.server, API "healthz",
                (struct fake_reply){ .status = 503, .headers = "retry-after-ms: 1500\r\n" });
    CHECK_INT(ask(&w), TINKER_OK);
    REQUIRE(t.n == 2);
    CHECK(strstr(t.line[0], "http.request.start system_time_ms=") == t.line[0]);
    CHECK(strstr(t.line[0], " method=GET path=api/v1/healthz pool=training base_url=http://127."));
    CHECK(strstr(t.line[1], "http.request.stop duration_ms=1500 status=200 retry_count=1"));
    CHECK(strstr(t.line[1], " result=ok"));
    tape_clear(&t);
    say(&w, API "healthz", 404, "{\"detail\":\"nobody\"}", 1);
    CHECK_INT(ask(&w), TINKER_EHTTP);
    REQUIRE(t.n == 2);
    CHECK(strstr(t.line[1], "status=404 ") && strstr(t.line[1], " result=error"));
    CHECK(strstr(t.line[1], "nobody"));
    CHECK_INT(tinker_service_detach(w.service, "tape"), 1);
    CHECK_INT(tinker_service_detach(w.service, "tape"), 0);
    CHECK_INT(ask(&w), TINKER_OK);
    CHECK_INT(t.n, 2);
    tape_clear(&t);
    world_close(&w);
}

static void test_exceptions(void) /* */
{
    struct world w;
    struct tape t;
    open_tape(&w, &t, "http.request");
    CHECK_INT(ask(&w), TINKER_OK);
    fake_script(w.server, API "healthz", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = tinker_service_check_health(w.service, NULL);
    world_advance(&w, 2000);
    tape_clear(&t);
    tinker_future_cancel(f);
    world_settle(&w);
    tinker_future_free(f);
    REQUIRE(t.n == 1); /* every start has an end */
    CHECK(strstr(t.line[0], "http.request.exception duration_ms=2000 "));
    CHECK(strstr(t.line[0], " reason=canceled"));
    tape_clear(&t);
    world_close(&w);
}

static void test_secrets_and_user_metadata(void) /* */
{
    struct world w;
    struct tape t = { 0 };
    tinker_service_options o;
    world_options(&w, &o);
    const tinker_named_string user[] = { { "team", "red" },
                                         { "method", "mine" },
                                         { "oops", "key tml-0123456789abcdef!" } };
    o.user_metadata = user;
    o.n_user_metadata = 3;
    world_open(&w, NULL, &o);
    CHECK_INT(tinker_service_attach(w.service, "tape", NULL, keep, &t, NULL), TINKER_OK);
    say(&w, API "healthz", 404, "{\"detail\":\"bad key tml-0123456789abcdef\"}", 1);
    CHECK_INT(ask(&w), TINKER_EHTTP);
    tinker_training *tr = world_training(&w);
    say(&w, POLL, 408,
        "{\"queue_state\":\"paused_capacity\",\"queue_state_reason\":\"tml-0123456789abcdef\"}", 1);
    CHECK_INT(step(&w, tr), TINKER_OK);
    tinker_training_free(tr);
    CHECK(find(&t, "queue.state_change", "reason=[REDACTED]"));
    CHECK(count(&t, "team=red") == t.n && t.n > 4);
    CHECK(find(&t, "http.request.stop", "[REDACTED]"));
    CHECK_INT(count(&t, "tml-0123456789abcdef"), 0);
    CHECK(find(&t, "http.request.start", "method=GET")); /* the event's own name stands */
    CHECK_INT(count(&t, "method=mine"), t.n - count(&t, "http.request"));
    tape_clear(&t);
    world_close(&w);
}

static void test_hooks_without_telemetry(void) /* R-166 R-196 */
{
    struct world w;
    struct tape t;
    open_tape(&w, &t, ""); /* telemetry is off in this world */
    tinker_training *tr = world_training(&w);
    world_settle(&w);
    CHECK(count(&t, "http.request.stop") >= 4);
    world_advance(&w, 20000);
    CHECK_INT(fake_count(w.server, API "telemetry"), 0);
    tinker_training_free(tr);
    world_close(&w);
    tape_clear(&t);
}

/* ---- retries, queue states, futures ---------------------------------------------------------- */

static void test_retries_of_a_call(void) /* */
{
    struct world w;
    struct tape t = { 0 };
    tinker_service_options o;
    world_options(&w, &o);
    o.network.max_retries = -1;
    world_open(&w, NULL, &o);
    tinker_training *tr = world_training(&w);
    tinker_service_attach(w.service, "tape", "retry.", keep, &t, NULL);
    say(&w, STEP, 500, "{}", 1);
    CHECK_INT(step(&w, tr), TINKER_OK);
    REQUIRE(t.n == 4);
    CHECK(strstr(t.line[0], "retry.attempt.start attempt=1 "));
    CHECK(strstr(t.line[1], "retry.attempt.retry attempt=1 "));
    CHECK(strstr(t.line[1], " delay_ms=1000 layer=call operation=optim_step error="));
    CHECK(strstr(t.line[2], "retry.attempt.start attempt=2 "));
    CHECK(strstr(t.line[3], "retry.attempt.stop attempt=2 "));
    tape_clear(&t);
    say(&w, STEP, 422, "{}", 1);
    CHECK_INT(step(&w, tr), TINKER_EHTTP);
    REQUIRE(t.n == 2);
    CHECK(strstr(t.line[1], "retry.attempt.failed attempt=1 "));
    tape_clear(&t);
    tinker_training_free(tr);
    world_close(&w);
}

static void test_retries_of_a_sample(void) /* */
{
    struct world w;
    struct tape t;
    open_tape(&w, &t, "retry.");
    tinker_sampler *s = world_sampler(&w);
    world_settle(&w);
    tape_clear(&t);
    say(&w, POLL, 410, "{}", 1);
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(4), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    world_settle(&w);
    tinker_future_free(f);
    CHECK_INT(count(&t, "layer=sample"), 4);
    CHECK(find(&t, "retry.attempt.start attempt=1 ", "layer=sample"));
    CHECK(find(&t, "retry.attempt.retry attempt=1 ", "layer=sample"));
    CHECK(find(&t, "retry.attempt.start attempt=2 ", "layer=sample"));
    CHECK(find(&t, "retry.attempt.stop attempt=2 ", "layer=sample"));
    tape_clear(&t);
    say(&w, API "asample", 422, "{}", 1);
    f = tinker_sampler_sample(s, fake_prompt(4), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_EHTTP);
    world_settle(&w);
    tinker_future_free(f);
    CHECK(find(&t, "retry.attempt.failed attempt=1 ", "layer=sample"));
    tape_clear(&t);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_queue_states(void) /* */
{
    struct world w;
    struct tape t;
    open_tape(&w, &t, "queue.");
    tinker_training *tr = world_training(&w);
    say(&w, POLL, 408, "{\"queue_state\":\"paused_capacity\",\"queue_state_reason\":\"full\"}", 2);
    say(&w, POLL, 408, "{\"queue_state\":\"active\"}", 1);
    CHECK_INT(step(&w, tr), TINKER_OK);
    REQUIRE(t.n == 2); /* changes only */
    CHECK_STR(t.line[0], "queue.state_change who=sess:train:0 queue_state=paused_capacity "
                         "reason=full");
    CHECK(strstr(t.line[1], "queue_state=active"));
    tape_clear(&t);
    tinker_training_free(tr);
    world_close(&w);
}

static void check_future(const char *event, int status, const char *body, int fault,
                         tinker_status want)
{
    struct world w;
    struct tape t;
    open_tape(&w, &t, "future.");
    tinker_training *tr = world_training(&w);
    if (fault)
        fake_script(w.server, POLL,
                    (struct fake_reply){ .fault = (enum fake_fault)fault, .body = body });
    else
        say(&w, POLL, status, body, 1);
    CHECK_INT(step(&w, tr), want);
    CHECK_INT(t.n, 1);
    const char *line = find(&t, event, "request_id=req-1");
    CHECK(line && strstr(line, "request_type=OptimStep") && strstr(line, "iteration=0"));
    tape_clear(&t);
    tinker_training_free(tr);
    world_close(&w);
}

static void test_futures(void) /* */
{
    check_future("future.api_error", 404, "{}", 0, TINKER_EHTTP);
    check_future("future.api_error", 500, "{}", 0, TINKER_OK);
    check_future("future.connection_error", 0, "{", FAKE_TRUNCATE, TINKER_OK);
    check_future("future.request_failed", 200, "{\"error\":\"boom\",\"category\":\"user\"}", 0,
                 TINKER_EREQUEST);
    check_future("future.validation_error", 200, "{\"metrics\":[]}", 0, TINKER_EPROTOCOL);
    struct world w;
    struct tape t;
    open_tape(&w, &t, "future.");
    tinker_training *tr = world_training(&w);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = tinker_training_optim_step(tr, NULL, NULL);
    tinker_future_set_deadline(f, 5000);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_ETIMEDOUT);
    world_settle(&w);
    REQUIRE(t.n == 1);
    CHECK(strstr(t.line[0], "future.timeout elapsed_ms=5000 "));
    tinker_future_free(f);
    tape_clear(&t);
    tinker_training_free(tr);
    world_close(&w);
}

/* ---- custom losses ------------------------------------------------------------------------------ */

static tinker_var *sum_of(tinker_tape *tape, const tinker_datum *data, tinker_var *const *logprobs,
                          size_t n, void *state)
{
    (void)data;
    (void)n;
    if (state)
        return tinker_tape_fail(tape, "no loss today");
    return tinker_var_sum(logprobs[0], TINKER_ALL, 0);
}

static void train_custom(tinker_training *tr, void *state, tinker_status want)
{
    tinker_error err = { 0 };
    tinker_regularizer reg = { .name = "small", .weight = 0.5, .fn = sum_of };
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    o.regularizers = &reg;
    o.n_regularizers = 1;
    tinker_datum *data = fake_data(1, 2);
    tinker_future *f =
        tinker_training_forward_backward_custom(tr, data, 1, sum_of, state, &o, &err);
    CHECK_INT(f ? tinker_future_wait(f, 20000, &err) : err.status, want);
    tinker_future_free(f);
    fake_data_free(data, 1);
}

static void test_custom_losses(void) /* */
{
    struct world w;
    struct tape t = { 0 };
    world_open_real(&w, NULL);
    tinker_training *tr = world_training(&w);
    REQUIRE(tr);
    tinker_service_attach(w.service, "losses", "custom_loss", keep, &t, NULL);
    tinker_service_attach(w.service, "terms", "regularizer.", keep, &t, NULL);
    train_custom(tr, NULL, TINKER_OK);
    runtime_drain_callbacks(runtime_current());
    REQUIRE(t.n == 4);
    CHECK(strstr(t.line[0], "custom_loss.start system_time_ms="));
    CHECK(strstr(t.line[1], "regularizer.compute.start ") && !strstr(t.line[1], "value="));
    CHECK(strstr(t.line[2], "regularizer.compute.stop "));
    CHECK(strstr(t.line[2], " value=-3 contribution=-1.5 weight=0.5 regularizer=small"));
    CHECK(strstr(t.line[3], "custom_loss.stop "));
    CHECK(strstr(t.line[3], " loss_total=-4.5 regularizer_total=-1.5"));
    tape_clear(&t);
    train_custom(tr, tr, TINKER_EINVAL);
    runtime_drain_callbacks(runtime_current());
    REQUIRE(t.n == 2);
    CHECK(strstr(t.line[1], "custom_loss.exception ") && strstr(t.line[1], "no loss today"));
    tape_clear(&t);
    tinker_training_free(tr);
    world_close(&w);
}

/* ---- hooks themselves ----------------------------------------------------------------------------- */

static void test_a_hook_that_fails(void) /* */
{
    struct world w;
    struct tape bad, good = { 0 };
    open_tape(&w, &bad, "http.");
    bad.fail_at = 2;
    CHECK_INT(tinker_service_attach(w.service, "good", "http.", keep, &good, NULL), TINKER_OK);
    CHECK_INT(ask(&w), TINKER_OK);
    CHECK_INT(bad.n, 2); /* and no more */
    CHECK(good.n > 3);
    CHECK_INT(world_log_count(&w, "hook tape failed at http.request.stop and is detached"), 1);
    CHECK_INT(tinker_service_detach(w.service, "tape"), 0);
    CHECK(!bad.on_loop && !good.on_loop);
    CHECK(!pthread_equal(good.thread, pthread_self()));
    tape_clear(&bad);
    tape_clear(&good);
    world_close(&w);
}

static void test_ids(void) /* */
{
    struct world w;
    struct tape t;
    tinker_error err;
    open_tape(&w, &t, "nothing.");
    CHECK_INT(tinker_service_attach(w.service, "tape", "", keep, &t, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "\"tape\""));
    CHECK_INT(tinker_service_attach(w.service, "", "", keep, &t, &err), TINKER_EINVAL);
    CHECK_INT(tinker_service_attach(w.service, NULL, "", keep, &t, &err), TINKER_EINVAL);
    CHECK_INT(tinker_service_attach(w.service, "none", "", NULL, &t, &err), TINKER_EINVAL);
    CHECK_INT(ask(&w), TINKER_OK);
    CHECK_INT(t.n, 0);
    world_close(&w);
}

struct changing {
    tinker_service *service;
    int calls;
    struct tape *other;
    tinker_future *made;
};

/* Detaches the other and itself, and submits: all of it is allowed. */
static int change(const tinker_event *e, void *state)
{
    struct changing *c = state;
    tinker_error err;
    (void)e;
    c->calls++;
    CHECK_INT(tinker_service_detach(c->service, "other"), 1);
    CHECK_INT(tinker_service_detach(c->service, "changing"), 1);
    c->made = tinker_service_check_health(c->service, &err);
    CHECK_INT(tinker_future_wait(c->made, 1000, &err), TINKER_ESTATE); /* waiting is not */
    return 0;
}

static void test_hooks_change_in_a_hook(void) /* */
{
    struct world w;
    struct tape other = { 0 };
    world_open(&w, NULL, NULL);
    struct changing c = { w.service, 0, &other, NULL };
    tinker_service_attach(w.service, "changing", "http.", change, &c, NULL);
    tinker_service_attach(w.service, "other", "http.", keep, &other, NULL);
    CHECK_INT(ask(&w), TINKER_OK);
    CHECK_INT(c.calls, 1);
    CHECK_INT(other.n, 0);
    REQUIRE(c.made);
    CHECK_INT(world_finish(&w, c.made, 10000), TINKER_OK);
    tinker_future_free(c.made);
    world_close(&w);
}

static int crawl(const tinker_event *e, void *state)
{
    (void)e;
    ++*(int *)state;
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    return 0;
}

static void test_a_slow_hook_delays_nothing(void) /* */
{
    struct world w;
    int calls = 0;
    world_open_real(&w, NULL);
    tinker_service_attach(w.service, "slow", "http.", crawl, &calls, NULL);
    tinker_future *f[100];
    for (int i = 0; i < 100; i++)
        f[i] = tinker_service_check_health(w.service, NULL);
    for (int i = 0; i < 100; i++) {
        CHECK_INT(tinker_future_wait(f[i], 20000, NULL), TINKER_OK);
        tinker_future_free(f[i]);
    }
    CHECK_INT(tinker_service_detach(w.service, "slow"), 1);
    int at = calls;
    CHECK_INT(tinker_future_wait(f[0] = tinker_service_check_health(w.service, NULL), 20000, NULL),
              TINKER_OK);
    tinker_future_free(f[0]);
    world_close(&w);
    CHECK_INT(calls, at); /* not called after detach returned, though events were waiting */
}

static void *attach_and_detach(void *arg)
{
    struct world *w = arg;
    int calls = 0;
    char id[32];
    snprintf(id, sizeof(id), "%p", (void *)&calls);
    for (int i = 0; i < 200; i++) {
        CHECK_INT(tinker_service_attach(w->service, id, "http.", crawl, &calls, NULL), TINKER_OK);
        CHECK_INT(tinker_service_detach(w->service, id), 1);
    }
    return NULL;
}

static void test_threads(void) /* */
{
    struct world w;
    pthread_t t[4];
    world_open_real(&w, NULL);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, attach_and_detach, &w);
    for (int i = 0; i < 20; i++) {
        tinker_future *f = tinker_service_check_health(w.service, NULL);
        CHECK_INT(tinker_future_wait(f, 20000, NULL), TINKER_OK);
        tinker_future_free(f);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    world_close(&w);
}

static void test_event_lines(void) /* */
{
    const tinker_named_number n[] = { { "a", 1.5 } };
    const tinker_named_string s[] = { { "b", "x\ny" } };
    const tinker_event e = { "some.event", n, 1, s, 1 };
    char line[64];
    tinker_event_line(&e, line, sizeof(line));
    CHECK_STR(line, "some.event a=1.5 b=x y");
    tinker_event_line(&e, line, 8);
    CHECK_STR(line, "some.ev");
    CHECK_STR(tinker_event_text(&e, "b"), "x\ny");
    CHECK(tinker_event_text(&e, "a") == NULL);
}

int main(void)
{
    RUN(test_one_request);
    RUN(test_exceptions);
    RUN(test_secrets_and_user_metadata);
    RUN(test_hooks_without_telemetry);
    RUN(test_retries_of_a_call);
    RUN(test_retries_of_a_sample);
    RUN(test_queue_states);
    RUN(test_futures);
    RUN(test_custom_losses);
    RUN(test_a_hook_that_fails);
    RUN(test_ids);
    RUN(test_hooks_change_in_a_hook);
    RUN(test_a_slow_hook_delays_nothing);
    RUN(test_threads);
    RUN(test_event_lines);
    return tap_done();
}
