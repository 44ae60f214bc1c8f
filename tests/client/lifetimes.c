/* What outlives what: messages on their way to a slow callback, permits and wake-ups in a fork, and
 * threads that need each other. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <tinker/extra/recovery.h>
#include <tinker/extra/http.h>
#include <unistd.h>
#include <tinker/extra/stream.h>
#include "client/future/operation.h"
#include "client/io/runtime.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

enum { WAIT_MS = 20000 };

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static tinker_service_options options(struct world *w)
{
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.base_url = fake_server_url(w->server);
    o.telemetry.enabled = -1;
    return o;
}

/* ---- callbacks that are slow ----------------------------------------------------------------- */

struct gate {
    atomic_int open, lines, answers;
};

static void wait_at(struct gate *g)
{
    while (!atomic_load(&g->open))
        nap();
}

static void slow_log(tinker_log_level level, const char *line, void *state)
{
    struct gate *g = state;
    (void)level, (void)line;
    wait_at(g);
    atomic_fetch_add(&g->lines, 1);
}

static void slow_response(const tinker_response *r, void *state)
{
    struct gate *g = state;
    (void)r;
    wait_at(g);
    atomic_fetch_add(&g->answers, 1);
}

static tinker_status finish(tinker_future *f, tinker_error *err)
{
    tinker_status s = f ? tinker_future_wait(f, WAIT_MS, err) : err->status;
    tinker_future_free(f);
    return s;
}

/* The account that lends weights is asked through a session of its own, which is gone when the
 * user hears of it. */
static void test_slow_callbacks_of_a_lender(void)
{
    struct world w;
    struct gate g = { 0 };
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    o.observation.log = slow_log;
    o.observation.log_state = &g;
    o.observation.log_verbose = 2;
    tinker_service *s = tinker_service_new(&o, &w.err);
    REQUIRE(s);
    say(&w, API "weights_info", 200, "{\"base_model\":\"tiny\",\"is_lora\":true,\"lora_rank\":16}",
        -1);
    tinker_from_state_options from = TINKER_FROM_STATE_OPTIONS_INIT;
    from.access_token = "tml-another-account";
    tinker_call_options call = TINKER_CALL_OPTIONS_INIT;
    call.on_response = slow_response;
    call.on_response_state = &g;
    tinker_service *derived = tinker_service_with(s, &call, &w.err);
    REQUIRE(derived);
    tinker_future *f =
        tinker_service_request_from_state(derived, "tinker://r:train:0/weights/a", &from, &w.err);
    tinker_service_free(derived);
    REQUIRE(f);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_INT(finish(tinker_service_check_health(s, &w.err), &w.err),
              TINKER_OK); /* the lender is gone */
    atomic_store(&g.open, 1);
    for (int i = 0; i < WAIT_MS && atomic_load(&g.answers) < 3; i++)
        nap();
    CHECK(atomic_load(&g.answers) >= 3 && atomic_load(&g.lines) > 5);
    tinker_training_free(tinker_future_take_training(f));
    tinker_future_free(f);
    tinker_service_free(s);
    world_close(&w);
}

/* Lines that nobody takes do not fill the memory. */
static void test_lines_are_bounded(void) /* */
{
    enum { EVENTS = 35000, QUEUE = 10000 };
    struct world w;
    struct gate g = { 0 };
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    o.telemetry.enabled = 1;
    o.limits.close_ms = 1;
    o.observation.log = slow_log;
    o.observation.log_state = &g;
    fake_script(w.server, API "telemetry", (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_service *s = tinker_service_new(&o, &w.err);
    REQUIRE(s);
    CHECK_INT(finish(tinker_service_check_health(s, &w.err), &w.err), TINKER_OK);
    int queued = 0; /* each that is not makes a line */
    for (int i = 0; i < EVENTS; i++)
        queued += tinker_service_log_event(s, "test", NULL, TINKER_SEVERITY_INFO);
    CHECK(queued <= QUEUE);
    atomic_store(&g.open, 1);
    runtime_drain_callbacks(runtime_current());
    int lines = atomic_load(&g.lines);
    CHECK(lines >= QUEUE && lines <= QUEUE + 1); /* one may have been under way */
    CHECK(!tinker_service_log_event(s, "test", NULL, TINKER_SEVERITY_INFO));
    runtime_drain_callbacks(runtime_current());
    CHECK_INT(atomic_load(&g.lines), lines + 1); /* there is room again */
    tinker_service_free(s);
    world_close(&w);
}

struct slow_line {
    atomic_int begun, ended;
};

static void end_a_line_late(tinker_log_level level, const char *line, void *state)
{
    struct slow_line *x = state;
    (void)level, (void)line;
    if (atomic_fetch_add(&x->begun, 1) == 0)
        nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
    atomic_fetch_add(&x->ended, 1);
}

/* After tinker_service_free() nothing of the service runs, not even a callback that had begun. */
static void test_free_waits_for_callbacks(void)
{
    struct world w;
    struct slow_line x = { 0 };
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    o.observation.log = end_a_line_late;
    o.observation.log_state = &x;
    o.observation.log_verbose = 1;
    say(&w, API "create_session", 200, "{\"session_id\":\"sess\",\"info_message\":\"hello\"}", 1);
    tinker_service *s = tinker_service_new(&o, &w.err);
    REQUIRE(s);
    tinker_sampler_free(tinker_service_create_sampler(s, "tiny", NULL, WAIT_MS, &w.err));
    for (int i = 0; i < WAIT_MS && !atomic_load(&x.begun); i++)
        nap();
    CHECK(atomic_load(&x.begun) > 0);
    tinker_service_free(s);
    CHECK_INT(atomic_load(&x.ended), atomic_load(&x.begun));
    world_close(&w);
}

/* ---- waiting where one may not ----------------------------------------------------------------- */

struct waiter {
    tinker_queue *queue;
    atomic_int done;
    int64_t took_ms;
};

static void wait_in_callback(tinker_log_level level, const char *line, void *state)
{
    struct waiter *x = state;
    (void)level, (void)line;
    int64_t begun = clock_now_ms(clock_real());
    if (tinker_queue_next(x->queue, 60000, NULL) || tinker_queue_dispatch(x->queue, 60000))
        TAP_FAIL("an empty queue gave something");
    x->took_ms = clock_now_ms(clock_real()) - begun;
    atomic_store(&x->done, 1);
}

static void test_queues_do_not_wait_in_callbacks(void) /* */
{
    struct world w;
    struct waiter x = { .queue = tinker_queue_new(NULL) };
    REQUIRE(x.queue);
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    o.observation.log = wait_in_callback;
    o.observation.log_state = &x;
    o.observation.log_verbose = 1;
    say(&w, API "create_session", 200, "{\"session_id\":\"sess\",\"info_message\":\"hello\"}", 1);
    tinker_service *s = tinker_service_new(&o, &w.err);
    REQUIRE(s);
    tinker_sampler_free(tinker_service_create_sampler(s, "tiny", NULL, WAIT_MS, &w.err));
    for (int i = 0; i < WAIT_MS && !atomic_load(&x.done); i++)
        nap();
    tinker_service_free(s);
    CHECK(x.took_ms < 60000);
    tinker_queue_free(x.queue);
    world_close(&w);
}

/* ---- the I/O thread and others ------------------------------------------------------------------ */

/* Watching runs takes the lock of the service on the I/O thread; importing waits for that thread. */
static void test_imports_while_runs_are_watched(void)
{
    enum { RUNS = 16, IMPORTS = 200 };
    struct world w;
    world_open_real(&w, NULL);
    tinker_recovery_options p = TINKER_RECOVERY_OPTIONS_INIT;
    p.enabled = 1;
    p.poll_interval_ms = 1;
    tinker_sampler *s = world_sampler(&w);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, &w.err);
    char *text = s ? export_text(s, &w.err) : NULL;
    REQUIRE(text && r);
    for (int i = 0; i < RUNS; i++) {
        char run[32], path[64];
        snprintf(run, sizeof(run), "run-%d", i);
        snprintf(path, sizeof(path), API "training_runs/%s", run);
        say(&w, path, 404, "{}", -1);
        CHECK_INT(tinker_recovery_watch(r, run, NULL, &w.err), TINKER_OK);
    }
    alarm(100); /* it stood still */
    char *at = strstr(text, "\"session_id\":\"sess\"");
    REQUIRE(at);
    for (int i = 0; i < IMPORTS; i++) {
        char other[4096];
        snprintf(other, sizeof(other), "%.*s\"session_id\":\"s-%d\"%s", (int)(at - text), text, i,
                 at + strlen("\"session_id\":\"sess\""));
        tinker_sampler *copy = tinker_service_import_sampler(w.service, other, &w.err);
        CHECK(copy != NULL);
        tinker_sampler_free(copy);
    }
    alarm(0);
    tinker_recovery_free(r);
    tinker_sampler_free(s);
    free(text);
    world_close(&w);
}

/* ---- forks, where the thread sanitizer allows no threads ------------------------------------------ */

#ifndef __SANITIZE_THREAD__
static int exit_of(pid_t pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A request of the parent holds all bytes that may be submitted. */
static void test_limits_in_a_fork(void) /* */
{
    struct world w;
    world_open_real(&w, "{\"sample_dispatch_bytes_semaphore_size\":100}");
    tinker_sampler *s = world_sampler(&w);
    REQUIRE(s);
    fake_script(w.server, API "asample", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *held = tinker_sampler_sample(s, fake_prompt(20), NULL, NULL, &w.err);
    tinker_future *behind = tinker_sampler_sample(s, fake_prompt(20), NULL, NULL, &w.err);
    CHECK(fake_await(w.server, API "asample", 1));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        tinker_error err;
        tinker_service_options o = options(&w);
        tinker_service *own = tinker_service_new(&o, &err);
        tinker_sampler *mine =
            own ? tinker_service_create_sampler(own, "tiny", NULL, WAIT_MS, &err) : NULL;
        tinker_future *f =
            mine ? tinker_sampler_sample(mine, fake_prompt(20), NULL, NULL, &err) : NULL;
        _exit(tinker_future_await(f, 60000, &err) ? 0 : 1);
    }
    CHECK_INT(exit_of(pid), 0);
    tinker_future_cancel(held);
    CHECK_INT(finish(behind, &w.err), TINKER_OK); /* the parent goes on */
    tinker_future_free(held);
    tinker_sampler_free(s);
    world_close(&w);
}

static void hold_the_lock(void *arg)
{
    atomic_store(&((struct gate *)arg)->lines, 1);
    wait_at(arg);
}

static void *end_service(void *arg)
{
    tinker_service_free(arg);
    return NULL;
}

/* Ending the last service joins the library's threads, one of which does not end yet. */
static void test_fork_while_a_service_ends(void) /* */
{
    struct world w;
    struct gate g = { 0 };
    pthread_t thread;
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    tinker_service_free(w.service);
    tinker_service *s = tinker_service_new(&o, &w.err);
    w.service = NULL;
    REQUIRE(s);
    struct pool *workers = runtime_current()->workers;
    REQUIRE(pool_submit(workers, hold_the_lock, &g));
    REQUIRE(pthread_create(&thread, NULL, end_service, s) == 0);
    while (!atomic_load(&g.lines))
        nap();
    for (int i = 0; i < 50; i++)
        nap(); /* the other thread waits for the worker now */
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(5);
        tinker_error err;
        tinker_service *own = tinker_service_new(&o, &err);
        _exit(own ? 0 : 1);
    }
    CHECK_INT(exit_of(pid), 0);
    atomic_store(&g.open, 1);
    pthread_join(thread, NULL);
    world_close(&w);
}

struct split {
    struct world *world;
    tinker_future *future;
    pid_t pid;
};

/* A future of the child's own is told by its queue. */
static int in_child(struct world *w)
{
    tinker_error err;
    tinker_service_options o = options(w);
    tinker_queue *q = tinker_queue_new(&err);
    tinker_service *own = tinker_service_new(&o, &err);
    tinker_future *f = own ? tinker_service_check_health(own, &err) : NULL;
    if (!q || !f || tinker_queue_add(q, f, NULL, &err) != TINKER_OK)
        return 2;
    struct pollfd p = { .fd = tinker_queue_fd(q), .events = POLLIN };
    tinker_future_cancel(f);
    return poll(&p, 1, 5000) == 1 ? 0 : 1;
}

/* On the I/O thread, in the middle of its turn: the owner of the queue is still to be woken. */
static void split(void *arg)
{
    struct split *x = arg;
    operation_cancel(x->future->op);
    x->pid = fork();
    if (x->pid == 0)
        _exit(in_child(x->world));
}

static void test_wake_ups_in_a_fork(void) /* */
{
    struct world w;
    world_open_real(&w, NULL);
    fake_script(w.server, API "healthz", (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_queue *q = tinker_queue_new(&w.err);
    struct split x = { .world = &w, .future = tinker_service_check_health(w.service, &w.err) };
    REQUIRE(q && x.future);
    CHECK_INT(tinker_queue_add(q, x.future, NULL, &w.err), TINKER_OK);
    CHECK(fake_await(w.server, API "healthz", 1));
    fflush(stdout);
    runtime_sync(runtime_current(), split, &x);
    CHECK_INT(exit_of(x.pid), 0);
    CHECK(tinker_queue_next(q, WAIT_MS, NULL) == x.future); /* the parent's is told, too */
    tinker_future_free(x.future);
    tinker_queue_free(q);
    world_close(&w);
}
static bool is_readable(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, 0) == 1;
}

/* What the child does with what it inherited, up to freeing all of it, is nothing to the parent:
 * neither its descriptors, nor its requests, nor its session notice. */
static void test_child_frees_all(void) /* */
{
    struct world w;
    world_open_real(&w, "{\"stream_sample\":true}");
    tinker_service_options o = options(&w);
    o.telemetry.enabled = 1;
    tinker_service_free(w.service);
    w.service = tinker_service_new(&o, &w.err);
    tinker_sampler *s = world_sampler(&w);
    fake_script(w.server, API "stream_sample",
                (struct fake_reply){ .body = "data: {\"token_id\":7}\n\ndata: [DONE]\n\n",
                                     .content_type = "text/event-stream" });
    tinker_stream *st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
    tinker_queue *q = tinker_queue_new(&w.err);
    tinker_future *done = tinker_service_check_health(w.service, &w.err);
    REQUIRE(s && st && q && done);
    CHECK_INT(tinker_queue_add(q, done, NULL, &w.err), TINKER_OK);
    CHECK_INT(tinker_future_wait(done, WAIT_MS, &w.err), TINKER_OK);
    CHECK_INT(tinker_future_wait(stream_future(st), WAIT_MS, &w.err), TINKER_OK);
    fake_script(w.server, API "healthz",
                (struct fake_reply){ .fault = FAKE_HANG, .body = "{\"status\":\"ok\"}" });
    tinker_future *pending = tinker_service_check_health(w.service, &w.err);
    CHECK(fake_await(w.server, API "healthz", 2));
    int fd = tinker_queue_fd(q), stream_fd = tinker_stream_fd(st, &w.err);
    CHECK(is_readable(fd) && is_readable(stream_fd));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        tinker_stream_event e;
        alarm(20);
        tinker_stream_next(st, 0, &e, NULL);
        tinker_future_cancel(pending);
        tinker_future_set_deadline(pending, 1);
        tinker_service_log_event(w.service, "child", NULL, TINKER_SEVERITY_INFO);
        tinker_future_free(done);
        tinker_future_free(pending);
        tinker_queue_free(q);
        tinker_stream_free(st);
        tinker_sampler_free(s);
        tinker_service_free(w.service);
        _exit(0);
    }
    CHECK_INT(exit_of(pid), 0);
    CHECK(is_readable(fd) && is_readable(stream_fd));
    tinker_stream_event e = { 0 };
    CHECK_INT(tinker_stream_next(st, 0, &e, &w.err), TINKER_OK);
    CHECK_INT(e.token, 7);
    CHECK(tinker_queue_next(q, 0, NULL) == done);
    CHECK(!is_readable(fd));
    CHECK(!tinker_future_done(pending));
    fake_release(w.server, API "healthz");
    CHECK_INT(tinker_future_wait(pending, WAIT_MS, &w.err), TINKER_OK);
    CHECK_INT(tinker_service_flush_telemetry(w.service, WAIT_MS), 1);
    for (size_t i = 0; i < fake_count(w.server, API "telemetry"); i++) {
        const char *body = fake_get(w.server, API "telemetry", i)->body;
        CHECK(!strstr(body, "SESSION_END") && !strstr(body, "child"));
    }
    tinker_future_free(done);
    tinker_future_free(pending);
    tinker_queue_free(q);
    tinker_stream_free(st);
    tinker_sampler_free(s);
    world_close(&w);
}
#endif

int main(void)
{
    RUN(test_slow_callbacks_of_a_lender);
    RUN(test_lines_are_bounded);
    RUN(test_free_waits_for_callbacks);
    RUN(test_queues_do_not_wait_in_callbacks);
    RUN(test_imports_while_runs_are_watched);
#ifndef __SANITIZE_THREAD__
    RUN(test_limits_in_a_fork);
    RUN(test_wake_ups_in_a_fork);
    RUN(test_fork_while_a_service_ends);
    RUN(test_child_frees_all);
#endif
    return tap_done();
}
