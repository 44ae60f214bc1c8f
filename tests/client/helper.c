/* Samples in a process of their own.  This program is its own helper. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "client/sampling/helper.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

enum { WAIT_MS = 20000 };

/* A program that notes its process id, one line per start, and then does `what`. */
static struct {
    char dir[64], program[96], pids[96];
} made;

static void make_program(const char *what)
{
    snprintf(made.dir, sizeof(made.dir), "/tmp/tinker-helper-XXXXXX");
    REQUIRE(mkdtemp(made.dir) != NULL);
    snprintf(made.program, sizeof(made.program), "%s/program", made.dir);
    snprintf(made.pids, sizeof(made.pids), "%s/pids", made.dir);
    FILE *f = fopen(made.program, "w");
    REQUIRE(f != NULL);
    fprintf(f, "#!/bin/sh\necho $$ >> %s\n%s\n", made.pids, what);
    fclose(f);
    chmod(made.program, 0700);
}

static void make_helper(void)
{
    char self[512], what[600];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    REQUIRE(n > 0);
    self[n] = '\0';
    snprintf(what, sizeof(what), "exec '%s' \"$@\"", self);
    make_program(what);
}

/* The pid of the i-th start; 0: there was none. */
static pid_t started(int i)
{
    FILE *f = fopen(made.pids, "r");
    int pid = 0;
    for (int k = 0; f && k <= i; k++)
        if (fscanf(f, "%d", &pid) != 1)
            pid = 0;
    if (f)
        fclose(f);
    return pid;
}

static bool is_gone(pid_t pid)
{
    for (int i = 0; pid > 0 && i < WAIT_MS / 10; i++) {
        if (kill(pid, 0) != 0 && errno == ESRCH)
            return true;
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    return false;
}

static void remove_program(void)
{
    unlink(made.program);
    unlink(made.pids);
    rmdir(made.dir);
}

static tinker_service_options options(struct world *w)
{
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.base_url = fake_server_url(w->server);
    o.telemetry.enabled = -1;
    o.subprocess_sampling = 1;
    o.sampling_helper = made.program;
    return o;
}

static tinker_sampler *open_sampler(tinker_service *s)
{
    return tinker_service_create_sampler(s, "base", NULL, WAIT_MS, NULL);
}

static tinker_future *sample(tinker_sampler *s)
{
    return tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, NULL);
}

/* ---- results ------------------------------------------------------------------------------------ */

/* The body without its seq_id, which is drawn. */
static char *unnumbered(const struct fake_request *r)
{
    char *text = strdup(r->body), *at = strstr(text, "\"seq_id\":");
    if (at)
        memmove(at, at + strcspn(at, ",}"), strlen(at + strcspn(at, ",}")) + 1);
    return text;
}

static void test_results_and_requests_are_those_of_the_program_itself(void) /* */
{
    struct world w;
    make_helper();
    world_open_real(&w, NULL);
    const tinker_named_string headers[] = { { "X-Team", "green \"one\"" } };
    tinker_service_options o = options(&w);
    o.network.headers = headers;
    o.network.n_headers = 1;
    for (int far = 0; far < 2; far++) {
        o.subprocess_sampling = far ? 1 : -1;
        tinker_service *service = tinker_service_new(&o, NULL);
        tinker_sampler *s = open_sampler(service);
        tinker_future *f = sample(s), *g = tinker_sampler_compute_logprobs(s, fake_prompt(3), NULL);
        CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
        CHECK_INT(tinker_future_wait(g, WAIT_MS, &w.err), TINKER_OK);
        CHECK(tinker_future_sample(f) && tinker_future_sample(f)->n_sequences == 1);
        CHECK(tinker_future_request_id(f)[0] != '\0');
        CHECK_STR(tinker_future_request_type(f), "Sample");
        CHECK_INT(started(0) != 0, far);
        tinker_future_free(f);
        tinker_future_free(g);
        tinker_sampler_free(s);
        tinker_service_free(service);
    }
    REQUIRE(fake_count(w.server, API "asample") == 4);
    for (size_t i = 0; i < 2; i++) {
        const struct fake_request *near = NULL, *far = NULL;
        char value[512];
        for (size_t k = 0; k < 2; k++) { /* the two of a process come in any order */
            const struct fake_request *r = fake_get(w.server, API "asample", k);
            const struct fake_request *q = fake_get(w.server, API "asample", 2 + k);
            near = (fake_json_int(r, "max_tokens") == 1) == (i == 1) ? r : near;
            far = (fake_json_int(q, "max_tokens") == 1) == (i == 1) ? q : far;
        }
        REQUIRE(near && far);
        char *a = unnumbered(near), *b = unnumbered(far);
        /* the sampling session is another one */
        char *of_a = strstr(a, "\"sampling_session_id\""),
             *of_b = strstr(b, "\"sampling_session_id\"");
        REQUIRE(of_a && of_b);
        CHECK_INT(of_a - a, of_b - b);
        CHECK_INT(memcmp(a, b, (size_t)(of_a - a)), 0);
        CHECK(fake_json_int(far, "seq_id") >= 1000000000);
        CHECK_STR(fake_header(far, "X-Team", value), "green \"one\"");
        CHECK_STR(fake_header(far, "X-API-Key", value), "tml-0123456789abcdef");
        CHECK_STR(fake_header(far, "X-Tinker-Sampling-Backpressure", value), "1");
        free(a);
        free(b);
    }
    CHECK(is_gone(started(0)));
    CHECK_INT(started(1), 0);
    world_close(&w);
    remove_program();
}

static void test_errors_are_those_of_the_program_itself(void) /* */
{
    struct world w;
    tinker_error errors[2];
    make_helper();
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    for (int far = 0; far < 2; far++) {
        o.subprocess_sampling = far ? 1 : -1;
        tinker_service *service = tinker_service_new(&o, NULL);
        tinker_sampler *s = open_sampler(service);
        say(&w, API "asample", 422, "{\"detail\":\"no such thing\"}", 1);
        tinker_future *f = sample(s);
        memset(&errors[far], 0, sizeof(errors[far]));
        CHECK_INT(tinker_future_wait(f, WAIT_MS, &errors[far]), TINKER_EHTTP);
        CHECK_STR(tinker_future_error_body(f), "{\"detail\":\"no such thing\"}");
        tinker_future_free(f);
        tinker_sampler_free(s);
        tinker_service_free(service);
    }
    CHECK_INT(errors[1].http_status, 422);
    CHECK_INT(errors[1].category, errors[0].category);
    CHECK_STR(errors[1].message, errors[0].message);
    world_close(&w);
    remove_program();
}

static void count_state(const char *who, tinker_queue_state queue_state, const char *reason,
                        void *state)
{
    (void)who;
    if (queue_state == TINKER_QUEUE_PAUSED_CAPACITY && strcmp(reason, "busy") == 0)
        atomic_fetch_add((atomic_int *)state, 1);
}

static void test_queue_states_are_told(void)
{
    struct world w;
    atomic_int told = 0;
    make_helper();
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    tinker_service *service = tinker_service_new(&o, NULL);
    tinker_service_observe(service, count_state, 0, &told);
    tinker_sampler *s = open_sampler(service);
    say(&w, API "retrieve_future", 200,
        "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"paused_capacity\","
        "\"queue_state_reason\":\"busy\"}",
        2);
    tinker_future *f = sample(s);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    for (int i = 0; i < 1000 && atomic_load(&told) < 2; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    CHECK_INT(atomic_load(&told), 2);
    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_service_free(service);
    world_close(&w);
    remove_program();
}

static void test_a_thousand_orders_are_answered_by_one_helper(void) /* R-138 R-139 */
{
    enum { MANY = 1000, SAMPLERS = 3 };
    struct world w;
    static tinker_future *f[MANY];
    tinker_sampler *s[SAMPLERS];
    make_helper();
    world_open_real(&w, NULL);
    setenv("TINKER_SUBPROCESS_SAMPLING", "1", 1); /* which the helper inherits, and ignores */
    setenv("TINKER_SAMPLING_HELPER", made.program, 1);
    tinker_service_options o = options(&w);
    o.subprocess_sampling = 0;
    o.sampling_helper = NULL;
    tinker_service *service = tinker_service_new(&o, NULL);
    for (int i = 0; i < SAMPLERS; i++)
        s[i] = open_sampler(service);
    for (int i = 0; i < MANY; i++)
        f[i] = sample(s[i % SAMPLERS]);
    int ok = 0;
    for (int i = 0; i < MANY; i++) {
        if (i % 10 == 9) /* some are canceled, early or late */
            tinker_future_cancel(f[i]);
        else
            ok += tinker_future_wait(f[i], WAIT_MS, &w.err) == TINKER_OK;
        tinker_future_free(f[i]);
    }
    CHECK_INT(ok, MANY - MANY / 10);
    CHECK(started(0) != 0);
    CHECK_INT(started(1), 0);
    for (int i = 0; i < SAMPLERS; i++)
        tinker_sampler_free(s[i]);
    tinker_service_free(service);
    CHECK(is_gone(started(0)));
    unsetenv("TINKER_SUBPROCESS_SAMPLING");
    unsetenv("TINKER_SAMPLING_HELPER");
    world_close(&w);
    remove_program();
}

/* ---- ends ------------------------------------------------------------------------------------------ */

static void test_a_dead_helper_fails_what_it_had(void) /* R-138 R-140 */
{
    struct world w;
    tinker_future *f[3];
    make_helper();
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    tinker_service *service = tinker_service_new(&o, NULL);
    tinker_sampler *s = open_sampler(service);
    tinker_future *before = sample(s);
    CHECK_INT(tinker_future_wait(before, WAIT_MS, NULL), TINKER_OK);
    fake_script(w.server, API "retrieve_future",
                (struct fake_reply){ .fault = FAKE_HANG, .times = 3 });
    for (int i = 0; i < 3; i++)
        f[i] = sample(s);
    REQUIRE(fake_await(w.server, API "retrieve_future", 4));
    REQUIRE(started(0) > 0 && kill(started(0), SIGKILL) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(tinker_future_wait(f[i], WAIT_MS, &w.err), TINKER_ESTATE);
        CHECK(strstr(w.err.message, "died (signal 9)") != NULL);
        tinker_future_free(f[i]);
    }
    tinker_future *late = sample(s);
    CHECK_INT(tinker_future_wait(late, WAIT_MS, &w.err), TINKER_ESTATE);
    tinker_future_free(late);
    tinker_sampler *another = open_sampler(service);
    tinker_future *after = sample(another);
    CHECK_INT(tinker_future_wait(after, WAIT_MS, &w.err), TINKER_OK);
    CHECK(started(1) != 0 && started(1) != started(0));
    CHECK(tinker_future_sample(before) != NULL);
    tinker_future_free(before);
    tinker_future_free(after);
    tinker_sampler_free(s);
    tinker_sampler_free(another);
    tinker_service_free(service);
    CHECK(is_gone(started(0)) && is_gone(started(1)));
    world_close(&w);
    remove_program();
}

/* The error of a sample made with this program as helper. */
static void fails_as(const char *program, tinker_status status, const char *part)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_service_options o = options(&w);
    o.sampling_helper = program;
    tinker_service *service = tinker_service_new(&o, NULL);
    tinker_sampler *s = open_sampler(service);
    tinker_future *f = sample(s);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), status);
    if (!strstr(w.err.message, part))
        printf("# %s\n", w.err.message);
    CHECK(strstr(w.err.message, part) != NULL);
    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_service_free(service);
    world_close(&w);
}

static void fails_with(const char *program, const char *part)
{
    fails_as(program, TINKER_ESTATE, part);
}

static void test_programs_that_do_not_help(void) /* */
{
    fails_with("/nowhere/at-all", "/nowhere/at-all: No such file");
    make_program("exit 3");
    fails_with(made.program, "is no sampling helper, it ended at once (exit code 3)");
    remove_program();
    /* It greets, then says of the first sample that it failed, and not why: frames of 24 bytes. */
    char what[600];
    snprintf(what, sizeof(what),
             "zeros() { head -c $1 /dev/zero; }\n"
             "exec 3>&0\n"
             "{ printf '\\%03o'; zeros 23; printf %%s '%s'; } >&3\n"
             "while { printf '\\003'; zeros 7; zeros 8; zeros 4; printf '\\%03o'; zeros 3; "
             "printf abc; } | head -c 27 >&3; do sleep 0.05; done",
             (unsigned)strlen(tinker_version()), tinker_version(), (unsigned)HELPER_FAILURE);
    make_program(what);
    fails_as(made.program, TINKER_EPROTOCOL, "the sampling helper told no reason");
    remove_program();
    make_program("echo 'this is a long text, and it is no frame at all' >&0; sleep 60");
    fails_with(made.program, "sampling helper sent");
    CHECK(is_gone(started(0)));
    remove_program();
}

static void test_a_helper_that_does_not_answer(void) /* */
{
    struct world w;
    tinker_service_options o;
    make_program("exec sleep 600");
    world_options(&w, &o);
    o.subprocess_sampling = 1;
    o.sampling_helper = made.program;
    world_open(&w, NULL, &o);
    tinker_sampler *s = world_sampler(&w);
    tinker_future *f = sample(s), *g = sample(s);
    world_settle(&w);
    for (int i = 0; i < WAIT_MS && started(0) == 0; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    int64_t start = world_ms(&w);
    world_advance(&w, 29999);
    CHECK(!tinker_future_done(f));
    CHECK_INT(world_finish(&w, f, 60000), TINKER_ESTATE);
    CHECK_INT(world_ms(&w) - start, 30000);
    CHECK(strstr(w.err.message, "did not answer within 30 s") != NULL);
    CHECK_INT(world_finish(&w, g, 1000), TINKER_ESTATE);
    tinker_future_free(f);
    tinker_future_free(g);
    tinker_sampler_free(s);
    world_close(&w);
    CHECK(is_gone(started(0)));
    remove_program();
}

/* A program with a sample under way. */
static void mother(const char *url, const char *program)
{
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.base_url = url;
    o.telemetry.enabled = -1;
    o.subprocess_sampling = 1;
    o.sampling_helper = program;
    tinker_service *service = tinker_service_new(&o, NULL);
    tinker_sampler *s = open_sampler(service);
    tinker_future *f = sample(s);
    tinker_future_wait(f, -1, NULL);
    for (;;)
        pause();
}

static void test_the_helper_ends_with_its_program(void) /* */
{
    struct world w;
    make_helper();
    world_open_real(&w, NULL);
    say(&w, API "retrieve_future", 200,
        "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"active\"}", -1);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "helper", "mother", fake_server_url(w.server), made.program,
              (char *)NULL);
        _exit(127);
    }
    REQUIRE(fake_await(w.server, API "retrieve_future", 1));
    pid_t helper = started(0);
    kill(pid, SIGSTOP); /* which does not stop its samples */
    CHECK(fake_await(w.server, API "retrieve_future",
                     fake_count(w.server, API "retrieve_future") + 20));
    CHECK_INT(kill(helper, 0), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK(is_gone(helper));
    world_close(&w);
    remove_program();
}

/* ---- the other side, by hand ----------------------------------------------------------------------- */

static bool read_all(int fd, void *p, size_t n)
{
    char *at = p;
    while (n > 0) {
        ssize_t k = read(fd, at, n);
        if (k <= 0)
            return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

/* A helper at the other end of the socket that is returned. */
static int by_hand(pid_t *pid)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    *pid = fork();
    if (*pid == 0) {
        dup2(pair[1], 0);
        execl("/proc/self/exe", "helper", "sampling-helper", (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    return pair[0];
}

static void order(int fd, struct helper_frame f, const char *content, size_t n)
{
    f.len = n;
    CHECK_INT(write(fd, &f, sizeof(f)), (int)sizeof(f));
    CHECK_INT(write(fd, content, n), (int)n);
}

/* The next thing that it says is that this order failed, and why. */
static void check_failure(int fd, uint64_t id, const char *part)
{
    struct helper_frame f;
    struct helper_failure failure;
    char end;
    REQUIRE(read_all(fd, &f, sizeof(f)) && f.kind == HELPER_FAILURE && f.id == id);
    REQUIRE(read_all(fd, &failure, sizeof(failure)) && read_all(fd, &end, 1));
    CHECK(strstr(failure.err.message, part) != NULL);
}

static void test_orders_that_make_no_sense(void) /* */
{
    struct world w;
    pid_t pid;
    world_open_real(&w, NULL);
    tinker_sampler *s = tinker_service_create_sampler(w.service, "base", NULL, WAIT_MS, NULL);
    char *text = s ? export_text(s, NULL) : NULL, version[64] = "";
    int fd = by_hand(&pid);
    struct helper_frame f;
    REQUIRE(text && fd >= 0);
    REQUIRE(read_all(fd, &f, sizeof(f)) && f.kind == HELPER_HELLO && f.len < sizeof(version));
    CHECK(read_all(fd, version, (size_t)f.len));
    CHECK_STR(version, tinker_version());
    order(fd, (struct helper_frame){ .id = 5, .target = 77, .kind = HELPER_SAMPLE }, "", 0);
    check_failure(fd, 5, "no target 77");
    order(fd, (struct helper_frame){ .id = 9, .kind = HELPER_CANCEL }, "", 0);
    order(fd, (struct helper_frame){ .target = 78, .kind = HELPER_UNREGISTER }, "", 0);
    order(fd, (struct helper_frame){ .target = 79, .kind = HELPER_REGISTER }, "{}", 2);
    order(fd, (struct helper_frame){ .id = 6, .target = 79, .kind = HELPER_SAMPLE }, "", 0);
    check_failure(fd, 6, "no sampler was told");
    order(fd, (struct helper_frame){ .target = 80, .kind = HELPER_REGISTER }, "{\0{}", 5);
    order(fd, (struct helper_frame){ .id = 7, .target = 80, .kind = HELPER_SAMPLE }, "", 0);
    check_failure(fd, 7, "settings for the sampling helper");
    char *content = malloc(strlen(text) + 3);
    memcpy(content, "{}", 3);
    memcpy(content + 3, text, strlen(text));
    order(fd, (struct helper_frame){ .target = 81, .kind = HELPER_REGISTER }, content,
          strlen(text) + 3);
    order(fd, (struct helper_frame){ .id = 8, .target = 81, .kind = HELPER_SAMPLE }, "{}", 2);
    check_failure(fd, 8, "an order without an end");
    char nothing[sizeof(struct sample_order)] = "";
    order(fd, (struct helper_frame){ .id = 9, .target = 81, .kind = HELPER_SAMPLE }, nothing,
          sizeof(nothing));
    check_failure(fd, 9, "no seq_id");
    close(fd);
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    free(content);
    free(text);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_a_helper_that_nobody_started(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "r", stdin))
            _exit(127);
        execl("/proc/self/exe", "helper", "sampling-helper", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "sampling-helper") == 0)
        return tinker_sampling_helper();
    if (argc > 3 && strcmp(argv[1], "mother") == 0)
        mother(argv[2], argv[3]);
    RUN(test_results_and_requests_are_those_of_the_program_itself);
    RUN(test_errors_are_those_of_the_program_itself);
    RUN(test_queue_states_are_told);
    RUN(test_a_thousand_orders_are_answered_by_one_helper);
    RUN(test_a_dead_helper_fails_what_it_had);
    RUN(test_programs_that_do_not_help);
    RUN(test_a_helper_that_does_not_answer);
    RUN(test_the_helper_ends_with_its_program);
    RUN(test_orders_that_make_no_sense);
    RUN(test_a_helper_that_nobody_started);
    return tap_done();
}
