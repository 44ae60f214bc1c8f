/* Circuit breakers: the states, the registry, real threads, and what they leave alone. */
#include "client/call/breaker.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>
#include <tinker/extra/breaker.h>
#include <tinker/extra/metrics.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

static const tinker_breaker_options dflt = TINKER_BREAKER_OPTIONS_INIT;

/* One call at a time: 1 when it was admitted. */
static int call(const char *name, int64_t now_ms, enum breaker_verdict verdict)
{
    struct breaker_ticket t;
    if (breaker_admit(name, &dflt, now_ms, &t, NULL) != TINKER_OK)
        return 0;
    breaker_end(&t, verdict, now_ms);
    return 1;
}

static void open_it(const char *name, int64_t now_ms)
{
    for (int i = 0; i < 5; i++)
        CHECK_INT(call(name, now_ms, BREAKER_FAILURE), 1);
    CHECK_INT(breaker_state(name, now_ms), TINKER_BREAKER_OPEN);
}

/* ---- one breaker ---------------------------------------------------------------------------- */

static void test_five_failures_open_it(void) /* */
{
    for (int i = 0; i < 4; i++)
        CHECK_INT(call("a", 1000, BREAKER_FAILURE), 1);
    CHECK_INT(call("a", 1000, BREAKER_SUCCESS), 1); /* only failures in a row count */
    for (int i = 0; i < 4; i++)
        CHECK_INT(call("a", 1000, BREAKER_FAILURE), 1);
    CHECK_INT(breaker_state("a", 1000), TINKER_BREAKER_CLOSED);
    CHECK_INT(call("a", 1000, BREAKER_FAILURE), 1);
    CHECK_INT(breaker_state("a", 1000), TINKER_BREAKER_OPEN);
    tinker_error err;
    struct breaker_ticket t;
    CHECK_INT(breaker_admit("a", &dflt, 1000, &t, &err), TINKER_ECIRCUIT);
    CHECK_INT(err.status, TINKER_ECIRCUIT);
    CHECK_INT(err.retryable, 1);
    CHECK(strstr(err.message, "\"a\""));
    CHECK(t.breaker == NULL);
    breaker_end(&t, BREAKER_FAILURE, 1000); /* harmless */
    CHECK_STR(tinker_status_name(TINKER_ECIRCUIT), "TINKER_ECIRCUIT");
}

static void test_half_open_after_30_s(void) /* */
{
    open_it("b", 0); /* time 0 is a time like any other */
    CHECK_INT(call("b", 29999, BREAKER_SUCCESS), 0);
    CHECK_INT(breaker_state("b", 29999), TINKER_BREAKER_OPEN);
    CHECK_INT(breaker_state("b", 30000), TINKER_BREAKER_HALF_OPEN);
    CHECK_INT(call("b", 30000, BREAKER_FAILURE), 1); /* open again at once, for 30 s more */
    CHECK_INT(call("b", 59999, BREAKER_SUCCESS), 0);
    CHECK_INT(call("b", 60000, BREAKER_SUCCESS), 1);
    CHECK_INT(breaker_state("b", 60000), TINKER_BREAKER_CLOSED);
    for (int i = 0; i < 4; i++) /* the count begins at 0 */
        CHECK_INT(call("b", 60000, BREAKER_FAILURE), 1);
    CHECK_INT(breaker_state("b", 60000), TINKER_BREAKER_CLOSED);
}

static void test_probes_count_when_admitted(void) /* */
{
    struct breaker_ticket first, second;
    open_it("c", 1000);
    CHECK_INT(breaker_admit("c", &dflt, 31000, &first, NULL), TINKER_OK);
    CHECK_INT(breaker_admit("c", &dflt, 31000, &second, NULL), TINKER_ECIRCUIT);
    CHECK_INT(breaker_admit("c", &dflt, 99000, &second, NULL), TINKER_ECIRCUIT);
    breaker_end(&first, BREAKER_NEITHER, 99000); /* given up: its place is free */
    CHECK_INT(breaker_state("c", 99000), TINKER_BREAKER_HALF_OPEN);
    CHECK_INT(breaker_admit("c", &dflt, 99000, &second, NULL), TINKER_OK);
    breaker_end(&second, BREAKER_SUCCESS, 99000);
    CHECK_INT(breaker_state("c", 99000), TINKER_BREAKER_CLOSED);
}

/* A probe of the parent never ends in its child: that may try by itself, once. */
static void test_probes_in_a_fork(void) /* */
{
    struct breaker_ticket first, second;
    open_it("forked", 1000);
    CHECK_INT(breaker_admit("forked", &dflt, 31000, &first, NULL), TINKER_OK);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        bool ok = breaker_admit("forked", &dflt, 31000, &second, NULL) == TINKER_OK &&
                  breaker_admit("forked", &dflt, 31000, &first, NULL) == TINKER_ECIRCUIT;
        breaker_end(&second, BREAKER_SUCCESS, 31000);
        _exit(ok && breaker_state("forked", 31000) == TINKER_BREAKER_CLOSED ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_INT(breaker_admit("forked", &dflt, 31000, &second, NULL), TINKER_ECIRCUIT);
    breaker_end(&first, BREAKER_SUCCESS, 31000);
    CHECK_INT(breaker_state("forked", 31000), TINKER_BREAKER_CLOSED);
}

static void test_latecomers_have_no_say(void) /* */
{
    struct breaker_ticket late, later;
    CHECK_INT(breaker_admit("d", &dflt, 0, &late, NULL), TINKER_OK);
    CHECK_INT(breaker_admit("d", &dflt, 0, &later, NULL), TINKER_OK);
    open_it("d", 1000);
    breaker_end(&late, BREAKER_SUCCESS, 2000);
    CHECK_INT(breaker_state("d", 2000), TINKER_BREAKER_OPEN);
    struct breaker_ticket probe;
    CHECK_INT(breaker_admit("d", &dflt, 31000, &probe, NULL), TINKER_OK);
    breaker_end(&later, BREAKER_FAILURE, 31000); /* not the probe */
    CHECK_INT(breaker_state("d", 31000), TINKER_BREAKER_HALF_OPEN);
    breaker_end(&probe, BREAKER_SUCCESS, 31000);
    CHECK_INT(breaker_state("d", 31000), TINKER_BREAKER_CLOSED);
}

static void test_several_probes(void) /* */
{
    tinker_breaker_options o = dflt;
    o.failure_threshold = 1;
    o.half_open_calls = 2;
    struct breaker_ticket t[4];
    CHECK_INT(breaker_admit("e", &o, 0, &t[0], NULL), TINKER_OK);
    breaker_end(&t[0], BREAKER_FAILURE, 0);
    CHECK_INT(breaker_admit("e", &o, 30000, &t[1], NULL), TINKER_OK);
    CHECK_INT(breaker_admit("e", &o, 30000, &t[2], NULL), TINKER_OK);
    CHECK_INT(breaker_admit("e", &o, 30000, &t[3], NULL), TINKER_ECIRCUIT);
    breaker_end(&t[1], BREAKER_SUCCESS, 30000);
    breaker_end(&t[2], BREAKER_FAILURE, 30000); /* closed meanwhile */
    CHECK_INT(breaker_state("e", 30000), TINKER_BREAKER_CLOSED);
}

/* ---- the public functions ---------------------------------------------------------------------- */

static int n_run;

static tinker_status not_found(tinker_error *err, void *state)
{
    (void)state;
    n_run++;
    *err = (tinker_error){ .http_status = 404, .message = "no" };
    return TINKER_EHTTP;
}

static tinker_status fine(tinker_error *err, void *state)
{
    (void)err;
    ++*(int *)state;
    return TINKER_OK;
}

static void test_calls(void) /* */
{
    tinker_error err;
    for (int i = 0; i < 5; i++) {
        CHECK_INT(tinker_breaker_call("f", NULL, not_found, NULL, &err), TINKER_EHTTP);
        CHECK_INT(err.http_status, 404);
        CHECK_INT(err.status, TINKER_EHTTP);
    }
    CHECK_INT(tinker_breaker_call("f", NULL, not_found, NULL, &err), TINKER_ECIRCUIT);
    CHECK_INT(n_run, 5);
    CHECK_INT(tinker_breaker_state_of("f"), TINKER_BREAKER_OPEN);
    tinker_breaker_options o = TINKER_BREAKER_OPTIONS_INIT;
    o.judge = tinker_breaker_spare_users; /* 4xx does not trip */
    for (int i = 0; i < 20; i++)
        CHECK_INT(tinker_breaker_call("g", &o, not_found, NULL, NULL), TINKER_EHTTP);
    CHECK_INT(tinker_breaker_state_of("g"), TINKER_BREAKER_CLOSED);
    int n = 0;
    CHECK_INT(tinker_breaker_call("g", &o, fine, &n, NULL), TINKER_OK);
    CHECK_INT(n, 1);
    tinker_error busy = { .status = TINKER_EHTTP, .http_status = 503 };
    CHECK_INT(tinker_breaker_spare_users(&busy, NULL), 0);
}

static void test_bad_options(void) /* */
{
    tinker_breaker_options o = TINKER_BREAKER_OPTIONS_INIT;
    int n = 0;
    CHECK_INT(tinker_breaker_call("", NULL, fine, &n, NULL), TINKER_EINVAL);
    CHECK_INT(tinker_breaker_call("h", NULL, NULL, &n, NULL), TINKER_EINVAL);
    o.failure_threshold = 0;
    CHECK_INT(tinker_breaker_call("h", &o, fine, &n, NULL), TINKER_EINVAL);
    o.failure_threshold = 5000;
    CHECK_INT(tinker_breaker_call("h", &o, fine, &n, NULL), TINKER_EINVAL);
    o = dflt;
    o.half_open_calls = 0;
    CHECK_INT(tinker_breaker_call("h", &o, fine, &n, NULL), TINKER_EINVAL);
    o = dflt;
    o.open_ms = -1;
    CHECK_INT(tinker_breaker_call("h", &o, fine, &n, NULL), TINKER_EINVAL);
    o = dflt;
    o.size = 0;
    CHECK_INT(tinker_breaker_call("h", &o, fine, &n, NULL), TINKER_EINVAL);
    CHECK_INT(n, 0);
}

static const tinker_breaker_info *info(const tinker_breakers *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->breakers[i].name, name) == 0)
            return &l->breakers[i];
    return NULL;
}

static void test_registry(void) /* */
{
    CHECK_INT(tinker_breaker_state_of("never heard of"), TINKER_BREAKER_CLOSED);
    tinker_breaker_reset("never heard of");
    tinker_breaker_delete("never heard of");
    for (int i = 0; i < 5; i++)
        tinker_breaker_call("r1", NULL, not_found, NULL, NULL);
    tinker_breaker_call("r2", NULL, not_found, NULL, NULL);
    tinker_breakers *l = tinker_breaker_list(NULL);
    REQUIRE(l && info(l, "r1") && info(l, "r2"));
    CHECK(info(l, "never heard of") == NULL);
    CHECK_INT(info(l, "r1")->state, TINKER_BREAKER_OPEN);
    CHECK_INT(info(l, "r2")->state, TINKER_BREAKER_CLOSED);
    CHECK_INT(info(l, "r2")->failures, 1);
    for (size_t i = 1; i < l->n; i++)
        CHECK(strcmp(l->breakers[i - 1].name, l->breakers[i].name) < 0);
    tinker_breakers_free(l);
    tinker_breakers_free(NULL);
    tinker_breaker_reset("r1");
    CHECK_INT(tinker_breaker_state_of("r1"), TINKER_BREAKER_CLOSED);
    tinker_breaker_options once = TINKER_BREAKER_OPTIONS_INIT;
    once.failure_threshold = 1;
    tinker_breaker_call("r1", &once, not_found, NULL, NULL); /* the first options stand */
    CHECK_INT(tinker_breaker_state_of("r1"), TINKER_BREAKER_CLOSED);
    tinker_breaker_delete("r1");
    tinker_breaker_call("r1", &once, not_found, NULL, NULL);
    CHECK_INT(tinker_breaker_state_of("r1"), TINKER_BREAKER_OPEN);
    struct breaker_ticket t;
    CHECK_INT(breaker_admit("r2", &dflt, 0, &t, NULL), TINKER_OK);
    tinker_breaker_delete("r2"); /* under a call that is on its way */
    breaker_end(&t, BREAKER_FAILURE, 0);
    l = tinker_breaker_list(NULL);
    CHECK(info(l, "r2") == NULL);
    tinker_breakers_free(l);
}

/* ---- threads --------------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 400 };
static atomic_int admitted, inside, most_inside;
static pthread_barrier_t barrier;

static void *probe(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t now = 31000 + 30000 * (int64_t)i; /* each round finds it half open again */
        struct breaker_ticket t;
        pthread_barrier_wait(&barrier);
        bool in = breaker_admit("race", &dflt, now, &t, NULL) == TINKER_OK;
        if (in) {
            atomic_fetch_add(&admitted, 1);
            int n = atomic_fetch_add(&inside, 1) + 1;
            if (n > atomic_load(&most_inside))
                atomic_store(&most_inside, n);
        }
        pthread_barrier_wait(&barrier);
        if (in) {
            atomic_fetch_sub(&inside, 1);
            breaker_end(&t, BREAKER_FAILURE, now);
        }
    }
    return NULL;
}

static void test_concurrent_probes(void) /* */
{
    pthread_t t[THREADS];
    open_it("race", 1000);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, probe, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    pthread_barrier_destroy(&barrier);
    CHECK_INT(atomic_load(&admitted), ROUNDS); /* one per round, whoever it was */
    CHECK_INT(atomic_load(&most_inside), 1);
}

static atomic_int n_open;

static tinker_status fail_or_not(tinker_error *err, void *state)
{
    (void)err;
    return *(unsigned *)state % 3 ? TINKER_ECONNECT : TINKER_OK;
}

static void *hammer(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    tinker_breaker_options o = TINKER_BREAKER_OPTIONS_INIT;
    o.open_ms = 0;
    o.failure_threshold = 2;
    for (int i = 0; i < 3000; i++) {
        seed = seed * 1103515245 + 12345;
        unsigned pick = seed >> 16;
        if (tinker_breaker_call("hammer", &o, fail_or_not, &pick, NULL) == TINKER_ECIRCUIT)
            atomic_fetch_add(&n_open, 1);
        if (i % 97 == 0)
            tinker_breaker_delete("hammer");
        if (i % 31 == 0)
            tinker_breaker_reset("hammer");
        if (i % 500 == 0)
            tinker_breakers_free(tinker_breaker_list(NULL));
    }
    return NULL;
}

static void test_everything_at_once(void) /* */
{
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, hammer, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    tinker_breaker_delete("hammer"); /* nothing to assert: the sanitizers do */
    CHECK_INT(tinker_breaker_state_of("hammer"), TINKER_BREAKER_CLOSED);
}

/* ---- around the requests of a service -------------------------------------------------------------- */

#define STEP API "optim_step"

static void open_guarded(struct world *w, tinker_breaker_options *b, int telemetry)
{
    tinker_service_options o;
    world_options(w, &o);
    *b = dflt;
    o.limits.breaker = b;
    o.network.max_retries = -1;
    o.telemetry.enabled = telemetry;
    world_open(w, NULL, &o);
}

static tinker_status step(struct world *w, tinker_training *t)
{
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    tinker_status s = world_finish(w, f, 1000000);
    tinker_future_free(f);
    return s;
}

static void breaker_name(struct world *w, const char *what, char out[128])
{
    snprintf(out, 128, "%s %s", fake_server_url(w->server), what);
}

static void test_sixth_is_not_sent(void) /* */
{
    struct world w;
    tinker_breaker_options b;
    char name[128];
    open_guarded(&w, &b, -1);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    breaker_name(&w, "optim_step", name);
    say(&w, STEP, 500, "{}", -1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000000), TINKER_ECIRCUIT); /* tries at 0, 1, 3, 7, 15 s */
    CHECK(strstr(w.err.message, name));
    CHECK_INT(w.err.http_status, 500); /* what the last try met */
    tinker_future_free(f);
    CHECK_INT(fake_count(w.server, STEP), 5);
    CHECK_INT(step(&w, t), TINKER_ECIRCUIT);
    CHECK_INT(fake_count(w.server, STEP), 5);
    tinker_datum *data = fake_data(1, 4); /* other endpoints are not concerned */
    f = tinker_training_forward(t, data, 1, &fake_loss, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    tinker_future_free(f);
    fake_data_free(data, 1);
    fake_unscript(w.server, STEP);
    world_advance(&w, world_at(&w, STEP, 4) + 29999 - world_ms(&w));
    CHECK_INT(step(&w, t), TINKER_ECIRCUIT);
    CHECK_INT(fake_count(w.server, STEP), 5);
    world_advance(&w, 1);
    CHECK_INT(step(&w, t), TINKER_OK); /* the probe */
    CHECK_INT(fake_count(w.server, STEP), 6);
    CHECK_INT(step(&w, t), TINKER_OK);
    tinker_metrics *m = tinker_metrics_snapshot(NULL);
    CHECK_INT(tinker_metrics_counter(m, "tinker_circuit_refused_total"), 3);
    tinker_metrics_free(m);
    tinker_training_free(t);
    world_close(&w);
    tinker_breaker_delete(name);
}

static void test_one_probe_of_two_requests(void) /* */
{
    struct world w;
    tinker_breaker_options b;
    char name[128];
    open_guarded(&w, &b, -1);
    tinker_sampler *s = world_sampler(&w);
    breaker_name(&w, "asample", name);
    say(&w, API "asample", 500, "{}", 5);
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(4), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000000), TINKER_ECIRCUIT);
    tinker_future_free(f);
    world_advance(&w, 30000);
    fake_script(w.server, API "asample",
                (struct fake_reply){ .by_handler = true, .delay_ms = 500 });
    tinker_future *a = tinker_sampler_sample(s, fake_prompt(4), NULL, NULL, NULL);
    tinker_future *c = tinker_sampler_sample(s, fake_prompt(4), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, c, 1000), TINKER_ECIRCUIT);
    CHECK_INT(world_finish(&w, a, 10000), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "asample"), 6);
    tinker_future_free(a);
    tinker_future_free(c);
    tinker_sampler_free(s);
    world_close(&w);
    tinker_breaker_delete(name);
}

static void test_a_cancelled_probe_gives_its_place_back(void) /* */
{
    struct world w;
    tinker_breaker_options b;
    char name[128];
    open_guarded(&w, &b, -1);
    tinker_training *t = world_training(&w);
    breaker_name(&w, "optim_step", name);
    say(&w, STEP, 500, "{}", 5);
    CHECK_INT(step(&w, t), TINKER_ECIRCUIT);
    world_advance(&w, 30000);
    fake_script(w.server, STEP, (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    world_advance(&w, 10);
    tinker_future_cancel(f);
    world_settle(&w);
    tinker_future_free(f);
    CHECK_INT(step(&w, t), TINKER_OK);
    tinker_training_free(t);
    world_close(&w);
    tinker_breaker_delete(name);
}

static void test_user_errors_and_pauses_do_not_trip(void) /* */
{
    struct world w;
    tinker_breaker_options b;
    open_guarded(&w, &b, -1);
    tinker_training *t = world_training(&w);
    tinker_sampler *s = world_sampler(&w);
    say(&w, STEP, 422, "{}", 10);
    for (int i = 0; i < 10; i++)
        CHECK_INT(step(&w, t), TINKER_EHTTP);
    CHECK_INT(step(&w, t), TINKER_OK);
    say(&w, API "asample", 429, "{}", 10); /* pauses, not failures */
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(4), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000000), TINKER_OK);
    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

static void test_heartbeats_polls_and_telemetry_go_on(void) /* */
{
    struct world w;
    tinker_breaker_options b;
    char name[128];
    open_guarded(&w, &b, 1);
    tinker_training *t = world_training(&w);
    breaker_name(&w, "optim_step", name);
    say(&w, STEP, 500, "{}", 5);
    CHECK_INT(step(&w, t), TINKER_ECIRCUIT);
    size_t beats = fake_count(w.server, API "session_heartbeat");
    size_t told = fake_count(w.server, API "telemetry");
    say(&w, API "session_heartbeat", 500, "{}", 7); /* failures of its own do not stop it */
    say(&w, API "telemetry", 500, "{}", 7);
    tinker_service_log_event(w.service, "mine", NULL, TINKER_SEVERITY_INFO);
    world_advance(&w, 100000);
    CHECK(fake_count(w.server, API "session_heartbeat") >= beats + 9);
    CHECK(fake_count(w.server, API "telemetry") > told + 7);
    CHECK_INT(step(&w, t), TINKER_OK); /* half open by now */
    say(&w, API "retrieve_future", 500, "{}", 20);
    CHECK_INT(step(&w, t), TINKER_OK);
    tinker_training_free(t);
    fake_unscript(w.server, API "telemetry"); /* closing waits for it, and time stands still */
    world_close(&w);
    tinker_breakers *l = tinker_breaker_list(NULL);
    for (size_t i = 0; l && i < l->n; i++) {
        CHECK(!strstr(l->breakers[i].name, "heartbeat"));
        CHECK(!strstr(l->breakers[i].name, "retrieve_future"));
        CHECK(!strstr(l->breakers[i].name, "telemetry"));
        CHECK(!strstr(l->breakers[i].name, "config"));
    }
    tinker_breakers_free(l);
    tinker_breaker_delete(name);
}

static void test_off_by_default(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.network.max_retries = -1;
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    say(&w, STEP, 500, "{}", 8);
    CHECK_INT(step(&w, t), TINKER_OK);
    CHECK_INT(fake_count(w.server, STEP), 9);
    tinker_training_free(t);
    world_close(&w);
    tinker_breaker_options b = TINKER_BREAKER_OPTIONS_INIT;
    tinker_error err;
    b.judge = tinker_breaker_spare_users; /* would run on the I/O thread */
    o.limits.breaker = &b;
    o.base_url = "http://127.0.0.1:1";
    CHECK(tinker_service_new(&o, &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
    b.judge = NULL;
    b.failure_threshold = -1;
    CHECK(tinker_service_new(&o, &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
}

int main(void)
{
    RUN(test_five_failures_open_it);
    RUN(test_half_open_after_30_s);
    RUN(test_probes_count_when_admitted);
    RUN(test_probes_in_a_fork);
    RUN(test_latecomers_have_no_say);
    RUN(test_several_probes);
    RUN(test_calls);
    RUN(test_bad_options);
    RUN(test_registry);
    RUN(test_concurrent_probes);
    RUN(test_everything_at_once);
    RUN(test_sixth_is_not_sent);
    RUN(test_one_probe_of_two_requests);
    RUN(test_a_cancelled_probe_gives_its_place_back);
    RUN(test_user_errors_and_pauses_do_not_trip);
    RUN(test_heartbeats_polls_and_telemetry_go_on);
    RUN(test_off_by_default);
    return tap_done();
}
