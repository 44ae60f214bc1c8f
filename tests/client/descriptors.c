/* Few file descriptors: requests wait for each other instead of failing, and it is said once why.
 *
 * The fake server is in this process, too, so a connection takes two of them. */
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

enum { SAMPLES = 2000, HELD = 300 };

static struct rlimit before;

static void limit_files(rlim_t n)
{
    struct rlimit few = before;
    getrlimit(RLIMIT_NOFILE, &before);
    few.rlim_cur = n;
    few.rlim_max = before.rlim_max;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
}

static void restore_files(void)
{
    setrlimit(RLIMIT_NOFILE, &before);
}

static tinker_future *sample(tinker_sampler *s)
{
    return tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, NULL);
}

static void sample_under(rlim_t n)
{
    static tinker_future *f[SAMPLES];
    struct world w;
    char text[64];
    int done = 0;
    limit_files(n);
    world_open_real(&w, NULL);
    tinker_sampler *s = world_sampler(&w);
    for (int i = 0; i < SAMPLES; i++)
        f[i] = sample(s);
    for (int i = 0; i < SAMPLES; i++) {
        done += tinker_future_wait(f[i], 120000, &w.err) == TINKER_OK;
        tinker_future_free(f[i]);
    }
    CHECK_INT(done, SAMPLES);
    CHECK_INT(fake_count(w.server, API "asample"), SAMPLES); /* none was sent twice */
    CHECK(fake_connections(w.server) < (int)n / 2);
    tinker_sampler_free(s);
    snprintf(text, sizeof(text), "limit of open files is %d:", (int)n);
    CHECK_INT(world_log_count(&w, text), 1);
    CHECK_INT(world_log_count(&w, "no file descriptor"), 0);
    world_close(&w);
    restore_files();
}

static void test_many_samples(void)
{
    sample_under(64);
    sample_under(128);
}

/* Polls that are held take every connection of theirs, and those of nobody else. */
static void test_heartbeats_go_on(void)
{
    static tinker_future *f[HELD];
    struct world w;
    limit_files(64);
    world_open(&w, NULL, NULL);
    tinker_sampler *s = world_sampler(&w);
    fake_script(w.server, API "retrieve_future",
                (struct fake_reply){ .delay_ms = 3600000, .by_handler = true, .times = -1 });
    for (int i = 0; i < HELD; i++)
        f[i] = sample(s);
    world_settle(&w);
    size_t beats = fake_count(w.server, API "session_heartbeat");
    CHECK_INT(fake_count(w.server, API "asample"), HELD);
    CHECK(fake_held_on(w.server, API "retrieve_future") < 32);
    world_advance(&w, 40000);
    CHECK(fake_count(w.server, API "session_heartbeat") >= beats + 3);
    tinker_future *health = tinker_service_check_health(w.service, NULL);
    CHECK_INT(world_finish(&w, health, 1000), TINKER_OK);
    tinker_future_free(health);
    fake_unscript(w.server, API "retrieve_future");
    fake_release(w.server, API "retrieve_future");
    for (int i = 0; i < HELD; i++) {
        CHECK_INT(world_finish(&w, f[i], 100000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    tinker_sampler_free(s);
    world_close(&w);
    restore_files();
}

static atomic_int told;

static void count_line(tinker_log_level level, const char *line, void *state)
{
    (void)state, (void)level;
    if (strstr(line, "no file descriptor is free"))
        atomic_fetch_add(&told, 1);
}

/* The program itself took all there are, and gives them back. */
static void test_none_is_left(void)
{
    const struct timespec pause = { 0, 5000000 };
    struct world w;
    int taken[256], n = 0;
    limit_files(128);
    world_open_real(&w, NULL);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.base_url = fake_server_url(w.server);
    o.api_key = "tml-fake-0001";
    o.telemetry.enabled = -1;
    o.observation.log = count_line;
    tinker_service *service = tinker_service_new(&o, &w.err);
    REQUIRE(service);
    tinker_sampler *s = tinker_service_create_sampler(service, "tiny", NULL, 60000, &w.err);
    REQUIRE(s);
    while (n < 256 && (taken[n] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    tinker_future *a = sample(s), *b = sample(s);
    for (int i = 0; i < 4000 && !atomic_load(&told); i++)
        nanosleep(&pause, NULL);
    CHECK(!tinker_future_done(a) && !tinker_future_done(b));
    while (n > 0)
        close(taken[--n]);
    CHECK_INT(tinker_future_wait(a, 60000, &w.err), TINKER_OK);
    CHECK_INT(tinker_future_wait(b, 60000, &w.err), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "asample"), 2);
    tinker_future_free(a);
    tinker_future_free(b);
    tinker_sampler_free(s);
    tinker_service_free(service);
    CHECK_INT(atomic_load(&told), 1);
    world_close(&w);
    restore_files();
}

int main(void)
{
    RUN(test_many_samples);
    RUN(test_heartbeats_go_on);
    RUN(test_none_is_left);
    return tap_done();
}
