/* Waiting, queues, callbacks, threads, and where waiting is refused. */
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "client/future/future.h"
#include "client/io/runtime.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

static tinker_training *open_real(struct world *w)
{
    world_open_real(w, NULL);
    return tinker_service_create_lora(w->service, "tiny", NULL, 60000, &w->err);
}

static void test_wait_any_and_all(void) /* */
{
    struct world w;
    tinker_training *t = open_real(&w);
    REQUIRE(t);
    tinker_training *t2 = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &w.err);
    fake_script(w.server, API "optim_step", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f[2] = { tinker_training_optim_step(t, NULL, NULL), NULL };
    CHECK(fake_await(w.server, API "optim_step", 1));
    f[1] = tinker_training_optim_step(t2, NULL, NULL);
    CHECK_INT(tinker_future_wait_any(f, 2, 60000), 1);
    CHECK_INT(tinker_future_wait_any(f, 1, 20), -1);
    CHECK_INT(tinker_future_wait_all(f, 2, 20, &w.err), TINKER_ETIMEDOUT);
    fake_release(w.server, API "optim_step"); /* an empty answer */
    CHECK_INT(tinker_future_wait_all(f, 2, 60000, &w.err), TINKER_EPROTOCOL);
    tinker_future *turned[2] = { f[1], f[0] }; /* whichever of them it is */
    CHECK_INT(tinker_future_wait_all(turned, 2, 60000, &w.err), TINKER_EPROTOCOL);
    CHECK_INT(tinker_future_wait_any(NULL, 0, 1000), -1);
    tinker_future_free(f[0]);
    tinker_future_free(f[1]);
    tinker_training_free(t);
    tinker_training_free(t2);
    world_close(&w);
}

static void test_queue(void)
{
    struct world w;
    tinker_training *t = open_real(&w);
    tinker_queue *q = tinker_queue_new(NULL);
    struct pollfd p = { .fd = tinker_queue_fd(q), .events = POLLIN };
    CHECK_INT(poll(&p, 1, 0), 0);
    tinker_future *f[3];
    int tags[3];
    for (int i = 0; i < 3; i++) {
        f[i] = tinker_training_optim_step(t, NULL, NULL);
        if (i == 2)
            tinker_future_wait(f[i], 60000, NULL); /* complete before it is added */
        CHECK_INT(tinker_queue_add(q, f[i], &tags[i], &w.err), TINKER_OK);
    }
    CHECK_INT(tinker_queue_add(q, f[0], NULL, &w.err), TINKER_ESTATE);
    CHECK_INT(poll(&p, 1, 5000), 1);
    int sum = 0;
    for (int i = 0; i < 3; i++) {
        void *tag = NULL;
        tinker_future *got = tinker_queue_next(q, 60000, &tag);
        REQUIRE(got);
        CHECK(tinker_future_done(got));
        sum += (int)((int *)tag - tags);
        tinker_future_free(got);
    }
    CHECK_INT(sum, 3);
    CHECK(tinker_queue_next(q, 0, NULL) == NULL);
    CHECK_INT(poll(&p, 1, 0), 0);
    tinker_queue_free(q);
    tinker_training_free(t);
    world_close(&w);
}

static int called;
struct send_turn {
    tinker_queue *queues[2];
    tinker_future *futures[2];
};

/* The owner of the first queue has found its future already, and freed the queue. */
static void complete_both(void *arg)
{
    struct send_turn *t = arg;
    future_complete(t->futures[0], NULL);
    tinker_queue_free(t->queues[0]);
    future_complete(t->futures[1], NULL);
}

/* It went round for ever: the task that wakes owners was added to the turn's end twice. */
static void test_a_queue_freed_within_a_turn(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    struct runtime *rt = runtime_current();
    struct send_turn t;
    for (int i = 0; i < 2; i++) {
        t.queues[i] = tinker_queue_new(NULL);
        t.futures[i] = future_new(rt, RESULT_NONE, NULL);
        REQUIRE(t.queues[i] && t.futures[i]);
        CHECK_INT(tinker_queue_add(t.queues[i], t.futures[i], NULL, NULL), TINKER_OK);
    }
    runtime_sync(rt, complete_both, &t);
    CHECK(tinker_queue_next(t.queues[1], 60000, NULL) == t.futures[1]);
    for (int i = 0; i < 2; i++)
        tinker_future_free(t.futures[i]);
    tinker_queue_free(t.queues[1]);
    world_close(&w);
}

static void on_done(tinker_future *f, void *state)
{
    struct world *w = state;
    called++;
    CHECK_INT(tinker_future_wait(f, 0, NULL), TINKER_OK);
    tinker_future_free(f);
    CHECK(tinker_service_session_id(w->service)[0] == 's'); /* anything may be called */
}

static void test_callbacks_run_in_dispatch_only(void)
{
    struct world w;
    tinker_training *t = open_real(&w);
    tinker_queue *q = tinker_queue_new(NULL);
    called = 0;
    for (int i = 0; i < 5; i++)
        CHECK_INT(tinker_queue_add_callback(q, tinker_training_optim_step(t, NULL, NULL), on_done,
                                            &w, NULL),
                  TINKER_OK);
    CHECK(fake_await(w.server, API "retrieve_future", 6));
    nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    CHECK_INT(called, 0);
    while (called < 5)
        REQUIRE(tinker_queue_dispatch(q, 60000) > 0);
    CHECK_INT(tinker_queue_dispatch(q, 0), 0);
    /* a queue that is freed forgets its futures */
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    tinker_queue_add(q, f, NULL, NULL);
    tinker_queue_free(q);
    CHECK_INT(tinker_future_wait(f, 60000, NULL), TINKER_OK);
    tinker_future_free(f);
    /* a future that is freed leaves its queue */
    q = tinker_queue_new(NULL);
    fake_script(w.server, API "optim_step",
                (struct fake_reply){ .by_handler = true, .delay_ms = 30 });
    f = tinker_training_optim_step(t, NULL, NULL);
    tinker_queue_add(q, f, NULL, NULL);
    tinker_future_free(f);
    CHECK(tinker_queue_next(q, 100, NULL) == NULL);
    tinker_queue_free(q);
    tinker_training_free(t);
    world_close(&w);
}

static tinker_status seen_wait, seen_create, seen_sampler, seen_state;
static tinker_service *the_service;
static tinker_future *the_future;

static void try_blocking(void *arg)
{
    tinker_error err = { 0 };
    (void)arg;
    seen_wait = tinker_future_wait(the_future, 1000, &err);
    tinker_service_create_lora(the_service, "tiny", NULL, 1000, &err);
    seen_create = err.status;
    tinker_service_create_sampler(the_service, "tiny", NULL, 1000, &err);
    seen_sampler = err.status;
    tinker_service_create_from_state(the_service, "tinker://a/weights/b", NULL, 1000, &err);
    seen_state = err.status;
    CHECK(strstr(err.message, "future") != NULL);
    CHECK_INT(tinker_future_wait(the_future, 0, &err), TINKER_ETIMEDOUT); /* looking is fine */
}

static void check_refusals(void)
{
    CHECK_INT(seen_wait, TINKER_ESTATE);
    CHECK_INT(seen_create, TINKER_ESTATE);
    CHECK_INT(seen_sampler, TINKER_ESTATE);
    CHECK_INT(seen_state, TINKER_ESTATE);
    seen_wait = seen_create = seen_sampler = seen_state = TINKER_OK;
}

static void test_library_threads_never_wait(void) /* R-007 R-176 R-179 */
{
    struct world w;
    tinker_training *t = open_real(&w);
    fake_script(w.server, API "optim_step", (struct fake_reply){ .fault = FAKE_HANG });
    the_service = w.service;
    the_future = tinker_training_optim_step(t, NULL, NULL);
    runtime_sync(runtime_current(), try_blocking, NULL); /* on the I/O thread */
    check_refusals();
    runtime_post_callback(runtime_current(), try_blocking, NULL); /* where callbacks run */
    runtime_drain_callbacks(runtime_current());
    check_refusals();
    tinker_future_free(the_future);
    tinker_training_free(t);
    world_close(&w);
}

struct slow_observer {
    atomic_int calls, let_go;
};

static void slow_observer(const char *who, tinker_queue_state qs, const char *reason, void *state)
{
    struct slow_observer *x = state;
    (void)who, (void)qs, (void)reason;
    atomic_fetch_add(&x->calls, 1);
    while (!atomic_load(&x->let_go))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* The result arrives while a callback has not returned yet. */
static void test_slow_callbacks_delay_nothing(void) /* R-036 R-179 R-218 */
{
    struct world w;
    tinker_training *t = open_real(&w);
    struct slow_observer x = { 0 };
    tinker_service_observe(w.service, slow_observer, 0, &x);
    say(&w, API "retrieve_future", 200,
        "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"active\"}", 1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(tinker_future_wait(f, 60000, NULL), TINKER_OK);
    atomic_store(&x.let_go, 1);
    tinker_future_free(f);
    runtime_drain_callbacks(runtime_current());
    tinker_service_observe(w.service, NULL, 0, NULL);
    CHECK_INT(atomic_load(&x.calls), 1);
    tinker_training_free(t);
    world_close(&w);
}

struct mixed {
    tinker_training *t;
    tinker_sampler *s;
    int ok;
};

static void *mixed_work(void *arg)
{
    struct mixed *m = arg;
    for (int i = 0; i < 20; i++) {
        tinker_future *f[2] = { tinker_training_optim_step(m->t, NULL, NULL),
                                tinker_sampler_sample(m->s, fake_prompt(3), NULL, NULL, NULL) };
        if (i % 5 == 0)
            tinker_future_cancel(f[1]);
        m->ok += tinker_future_wait(f[0], 20000, NULL) == TINKER_OK;
        tinker_status s = tinker_future_wait(f[1], 20000, NULL);
        m->ok += s == TINKER_OK || s == TINKER_ECANCELED;
        tinker_future_free(f[0]);
        tinker_future_free(f[1]);
    }
    return NULL;
}

static void test_mixed_threads(void) /* R-090 R-174 */
{
    struct world w;
    tinker_training *t = open_real(&w);
    tinker_sampler *s = tinker_service_create_sampler(w.service, "tiny", NULL, 5000, &w.err);
    REQUIRE(t && s);
    struct mixed m[6];
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) {
        m[i] = (struct mixed){ t, s, 0 };
        pthread_create(&threads[i], NULL, mixed_work, &m[i]);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(m[i].ok, 40);
    }
    for (size_t i = 0; i < 120; i++) /* the numbers arrive in order whoever calls */
        CHECK_INT(fake_json_int(fake_get(w.server, API "optim_step", i), "seq_id"), (int64_t)i + 1);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

static int threads_of_the_library(void)
{
    int n = 0;
    FILE *f = popen("ps -o comm= -L -p $PPID 2>/dev/null || cat /proc/$PPID/task/*/comm", "r");
    char line[128];
    while (f && fgets(line, sizeof(line), f))
        n += strncmp(line, "tinker-io", 9) == 0;
    if (f)
        pclose(f);
    return n;
}

static void test_one_thread_for_all_services(void) /* R-175 R-123 */
{
    struct world a, b;
    world_open_real(&a, NULL);
    world_open_real(&b, NULL);
    CHECK_INT(threads_of_the_library(), 1);
    world_close(&a);
    CHECK_INT(threads_of_the_library(), 1);
    world_close(&b);
    CHECK_INT(threads_of_the_library(), 0);
}

static void test_fork(void) /* */
{
    struct world w;
    tinker_training *t = open_real(&w);
    REQUIRE(t);
    pid_t pid = fork();
    if (pid == 0) {
        tinker_error err = { 0 };
        int bad = tinker_service_request_lora(w.service, "tiny", NULL, &err) != NULL;
        bad |= err.status != TINKER_ESTATE || !strstr(err.message, "fork");
        bad |= tinker_service_create_lora(w.service, "tiny", NULL, 1000, &err) != NULL;
        _exit(bad);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    CHECK_INT(status, 0);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL); /* the parent goes on */
    CHECK_INT(tinker_future_wait(f, 60000, NULL), TINKER_OK);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_every_operation_has_a_future_form(void) /* R-142 R-171 R-176 R-177 */
{
    const void *symbols[] = {
        (const void *)(uintptr_t)tinker_service_request_lora,
        (const void *)(uintptr_t)tinker_service_request_from_state,
        (const void *)(uintptr_t)tinker_service_request_sampler,
        (const void *)(uintptr_t)tinker_training_request_sampler,
        (const void *)(uintptr_t)tinker_training_get_info,
        (const void *)(uintptr_t)tinker_rest_get_training_run,
        (const void *)(uintptr_t)tinker_sampler_compute_logprobs,
        (const void *)(uintptr_t)tinker_service_get_capabilities,
    };
    for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++)
        CHECK(symbols[i] != NULL);
}

int main(void)
{
    RUN(test_wait_any_and_all);
    RUN(test_queue);
    RUN(test_a_queue_freed_within_a_turn);
    RUN(test_callbacks_run_in_dispatch_only);
    RUN(test_library_threads_never_wait);
    RUN(test_slow_callbacks_delay_nothing);
    RUN(test_mixed_threads);
    RUN(test_one_thread_for_all_services);
    RUN(test_fork);
    RUN(test_every_operation_has_a_future_form);
    return tap_done();
}
