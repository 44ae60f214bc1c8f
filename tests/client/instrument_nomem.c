/* Metrics, breakers, hooks and recoveries when memory runs out: an error or nothing, never
 * a crash, and everything works afterwards. */
#include "client/training/recovery.h"
#include <tinker/extra/breaker.h>
#include <tinker/extra/events.h>
#include <tinker/extra/metrics.h>
#include <tinker/extra/recovery.h>
#include "support/failmalloc.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

static tinker_status fine(tinker_error *err, void *state)
{
    (void)state;
    (void)err;
    return TINKER_OK;
}

static int see(const tinker_event *e, void *state)
{
    (void)e;
    ++*(int *)state;
    return 0;
}

static void test_metrics(void) /* */
{
    char name[32];
    for (long n = 1; n <= 4; n++) { /* a counter is one allocation, a histogram two */
        snprintf(name, sizeof(name), "new-%ld", n);
        failmalloc_at(n);
        tinker_counter_add(name, 1); /* what cannot be kept is not kept */
        tinker_histogram_record(name, 1);
        CHECK_INT(failmalloc_stop(), n < 4);
        tinker_counter_add(name, 1);
    }
    for (long n = 1;; n++) {
        tinker_error err = { 0 };
        failmalloc_at(n);
        tinker_metrics *m = tinker_metrics_snapshot(&err);
        tinker_text text = TINKER_TEXT_INIT;
        bool ok = m && tinker_metrics_text(m, &text, &err) == TINKER_OK;
        bool failed = failmalloc_stop();
        CHECK(ok || err.status == TINKER_ENOMEM);
        CHECK_INT(!ok, failed);
        tinker_text_clear(&text);
        if (!failed) {
            CHECK_INT(tinker_metrics_counter(m, "new-1"), 1); /* the first add had no memory */
            CHECK_INT(tinker_metrics_counter(m, "new-2"), 2);
            CHECK(!tinker_metrics_histogram(m, "new-2") && !tinker_metrics_histogram(m, "new-3"));
            CHECK(tinker_metrics_histogram(m, "new-4"));
        }
        tinker_metrics_free(m);
        if (!failed)
            break;
    }
}

static void test_breakers(void) /* */
{
    char name[32];
    for (long n = 1;; n++) {
        tinker_error err = { 0 };
        snprintf(name, sizeof(name), "new-%ld", n);
        failmalloc_at(n);
        tinker_status s = tinker_breaker_call(name, NULL, fine, NULL, &err);
        tinker_breakers *l = s == TINKER_OK ? tinker_breaker_list(&err) : NULL;
        bool failed = failmalloc_stop();
        CHECK(l || err.status == TINKER_ENOMEM);
        tinker_breakers_free(l);
        CHECK_INT(tinker_breaker_call(name, NULL, fine, NULL, NULL), TINKER_OK);
        tinker_breaker_delete(name);
        if (!failed)
            break;
    }
}

static void test_hooks(void) /* */
{
    struct world w;
    int calls = 0;
    world_open(&w, NULL, NULL);
    for (long n = 1;; n++) {
        tinker_error err = { 0 };
        failmalloc_at(n);
        tinker_status s = tinker_service_attach(w.service, "h", "", see, &calls, &err);
        bool failed = failmalloc_stop();
        CHECK_INT(s, failed ? TINKER_ENOMEM : TINKER_OK);
        CHECK_INT(err.status, s);
        CHECK_INT(tinker_service_detach(w.service, "h"), !failed);
        if (!failed)
            break;
    }
    world_close(&w);
}

static void test_recoveries(void) /* */
{
    struct world w;
    int calls = 0;
    world_open(&w, NULL, NULL);
    tinker_service_attach(w.service, "h", "recovery.", see, &calls, NULL);
    tinker_recovery_options p = TINKER_RECOVERY_OPTIONS_INIT;
    p.enabled = 1;
    p.strategy = TINKER_RECOVERY_SPECIFIC;
    p.checkpoint = "tinker://a/sampler_weights/b"; /* refused: nothing is sent */
    for (long n = 1;; n++) {
        tinker_error err = { 0 };
        failmalloc_at(n);
        tinker_recovery *r = tinker_recovery_new(w.service, &p, &err);
        tinker_status s = r ? tinker_recovery_watch(r, "run-0", NULL, &err) : TINKER_ENOMEM;
        if (s == TINKER_OK)
            s = tinker_recovery_start(r, "run-1", NULL, NULL, &err);
        bool failed = failmalloc_stop();
        CHECK(s == TINKER_OK || (failed && s == TINKER_ENOMEM && err.status == TINKER_ENOMEM));
        tinker_recovery_free(r);
        if (!failed)
            break;
    }
    world_settle(&w);
    CHECK(calls > 0);
    CHECK_INT(fake_count(w.server, NULL), 0);
    world_close(&w);
}

int main(void)
{
    RUN(test_metrics);
    RUN(test_breakers);
    RUN(test_hooks);
    RUN(test_recoveries);
    return tap_done();
}
