/* The end of a sampling helper is waited for, but not by the I/O thread, which has a session to keep
 * alive meanwhile. */
#include <stdatomic.h>
#include <sys/wait.h>
#include "client/io/runtime.h"

static atomic_int waited, waited_on_loop;
static const struct loop *loop;

static pid_t watch_waitpid(pid_t pid, int *status, int options)
{
    atomic_fetch_add(&waited, 1);
    if (loop_on_thread(loop))
        atomic_fetch_add(&waited_on_loop, 1);
    return waitpid(pid, status, options);
}

#define waitpid watch_waitpid
#include "client/sampling/helper.c"
#undef waitpid
#include "support/fake_tinker.h"
#include "support/tap.h"

static void sample_with(const char *program, const char *says)
{
    struct world w;
    world_open_real(&w, NULL);
    loop = runtime_current()->loop;
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.base_url = fake_server_url(w.server);
    o.telemetry.enabled = -1;
    o.subprocess_sampling = 1;
    o.sampling_helper = program;
    tinker_service *service = tinker_service_new(&o, &w.err);
    tinker_sampler *s = tinker_service_create_sampler(service, "tiny", NULL, 20000, &w.err);
    REQUIRE(s != NULL);
    tinker_future *f[3];
    for (int i = 0; i < 3; i++) /* the later ones may come while its end is waited for */
        f[i] = tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &w.err);
    for (int i = 0; says && i < 3; i++) {
        CHECK_INT(tinker_future_wait(f[i], 20000, &w.err), TINKER_ESTATE);
        CHECK(strstr(w.err.message, says) != NULL);
    }
    for (int i = 0; i < 3; i++)
        tinker_future_free(f[i]);
    tinker_sampler_free(s);
    tinker_service_free(service);
    world_close(&w);
}

static void test_reaped_by_a_worker(void)
{
    sample_with("/bin/false", "ended at once (exit code 1)");
    CHECK(atomic_load(&waited) > 0);
    CHECK_INT(atomic_load(&waited_on_loop), 0);
}

/* It is killed when its service ends, before or after it has ended by itself. */
static void test_released_early(void)
{
    for (int i = 0; i < 5; i++)
        sample_with("/bin/false", NULL);
    int before = atomic_load(&waited);
    sample_with("yes", NULL); /* which does not end by itself */
    CHECK(atomic_load(&waited) > before);
    CHECK_INT(atomic_load(&waited_on_loop), 0);
    CHECK(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD); /* none is left */
}

int main(void)
{
    RUN(test_reaped_by_a_worker);
    RUN(test_released_early);
    return tap_done();
}
