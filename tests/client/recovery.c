/* Corrupted training runs: the policy, the watching, the recovering, what is told. */
#include "client/training/recovery.h"
#include <tinker/extra/events.h>
#include <tinker/extra/recovery.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

#define RUN_API API "training_runs/run-1"
#define CKPT    "tinker://run-1/weights/step-7"
#define RUN_JSON(corrupted, last)                                                                \
    "{\"training_run_id\":\"run-1\",\"base_model\":\"tiny\",\"model_owner\":\"me\",\"is_lora\":" \
    "true,\"corrupted\":" corrupted ",\"last_request_time\":\"2026-01-01T00:00:00Z\","           \
    "\"last_checkpoint\":" last "}"
#define LAST                                                                                  \
    "{\"checkpoint_id\":\"weights/step-7\",\"checkpoint_type\":\"training\",\"time\":\"2026-" \
    "01-01T00:00:00Z\",\"tinker_path\":\"" CKPT "\"}"
#define HEALTHY   RUN_JSON("false", LAST)
#define CORRUPTED RUN_JSON("true", LAST)
#define WEIGHTS   "{\"base_model\":\"tiny\",\"is_lora\":true,\"lora_rank\":16}"

/* Everything that was told, in order: "started 1", "completed 1", "RECOVERED tinker://…". */
struct story {
    char text[4096];
    int recovered, failed;
    tinker_training *old, *new;
    tinker_error reason;
    int64_t at_ms[32]; /* of "started" */
    int n_started;
    struct world *world;
    tinker_recovery *free_me; /* in on_recovery */
};

static void add(struct story *s, const char *word, const char *more)
{
    size_t n = strlen(s->text);
    snprintf(s->text + n, sizeof(s->text) - n, "%s%s%s\n", word, *more ? " " : "", more);
}

static int on_event(const tinker_event *e, void *state)
{
    struct story *s = state;
    char attempt[16];
    snprintf(attempt, sizeof(attempt), "%g",
             tinker_metric(e->measurements, e->n_measurements, "attempt"));
    add(s, e->name + strlen("recovery."), attempt);
    if (strcmp(e->name, "recovery.started") == 0 && s->n_started < 32)
        s->at_ms[s->n_started++] = world_ms(s->world);
    CHECK_STR(tinker_event_text(e, "run_id"), "run-1");
    return 0;
}

static void on_recovery(const char *run_id, tinker_training *old, tinker_training *new,
                        const char *checkpoint, void *state)
{
    struct story *s = state;
    add(s, "RECOVERED", checkpoint);
    CHECK_STR(run_id, "run-1");
    s->recovered++;
    s->old = old;
    s->new = new;
    if (s->free_me)
        tinker_recovery_free(s->free_me);
}

static void on_failure(const char *run_id, const tinker_error *reason, void *state)
{
    struct story *s = state;
    add(s, "FAILED", "");
    CHECK_STR(run_id, "run-1");
    s->failed++;
    s->reason = *reason;
}

static void open_story(struct world *w, struct story *s, tinker_recovery_options *p)
{
    world_open(w, NULL, NULL);
    memset(s, 0, sizeof(*s));
    s->world = w;
    *p = (tinker_recovery_options)TINKER_RECOVERY_OPTIONS_INIT;
    p->enabled = 1;
    p->on_recovery = on_recovery;
    p->on_failure = on_failure;
    p->state = s;
    CHECK_INT(tinker_service_attach(w->service, "story", "recovery.", on_event, s, NULL),
              TINKER_OK);
}

static void close_story(struct world *w, struct story *s, tinker_recovery *r)
{
    tinker_recovery_free(r);
    tinker_training_free(s->new);
    world_close(w);
}

/* ---- the policy ------------------------------------------------------------------------- */

static void test_policy_defaults(void) /* */
{
    tinker_recovery_options p;
    CHECK_INT(recovery_policy(&p, NULL, NULL), TINKER_OK);
    CHECK_INT(p.enabled, 0);
    CHECK_INT(p.max_attempts, 3);
    CHECK_INT(p.backoff_ms, 5000);
    CHECK_INT(p.max_backoff_ms, 60000);
    CHECK_INT(p.poll_interval_ms, 30000);
    CHECK_INT(p.strategy, TINKER_RECOVERY_LATEST);
    CHECK_INT(p.restore_optimizer, 1);
    CHECK_INT(p.max_concurrent, 1);
}

static void test_nonsense_becomes_the_default(void) /* */
{
    tinker_recovery_options bad = TINKER_RECOVERY_OPTIONS_INIT, p;
    bad.max_attempts = 0;
    bad.backoff_ms = -1;
    bad.max_backoff_ms = 0;
    bad.poll_interval_ms = -5;
    bad.max_concurrent = 0;
    bad.attempt_timeout_ms = 0;
    bad.strategy = (tinker_recovery_strategy)77;
    CHECK_INT(recovery_policy(&p, &bad, NULL), TINKER_OK);
    CHECK_INT(p.max_attempts, 3);
    CHECK_INT(p.backoff_ms, 5000);
    CHECK_INT(p.max_backoff_ms, 60000);
    CHECK_INT(p.poll_interval_ms, 30000);
    CHECK_INT(p.max_concurrent, 1);
    CHECK_INT(p.attempt_timeout_ms, 600000);
    CHECK_INT(p.strategy, TINKER_RECOVERY_LATEST);
    bad.strategy = TINKER_RECOVERY_SPECIFIC; /* of nothing */
    CHECK_INT(recovery_policy(&p, &bad, NULL), TINKER_OK);
    CHECK_INT(p.strategy, TINKER_RECOVERY_LATEST);
    tinker_error err;
    bad.strategy = TINKER_RECOVERY_BEST;
    CHECK_INT(recovery_policy(&p, &bad, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "not supported"));
}

static void test_delays(void) /* */
{
    tinker_recovery_options p = TINKER_RECOVERY_OPTIONS_INIT;
    static const int64_t want[] = { 5000, 10000, 20000, 40000, 60000, 60000 };
    for (int k = 1; k <= 6; k++)
        CHECK_INT(recovery_delay_ms(&p, k), want[k - 1]);
    CHECK_INT(recovery_delay_ms(&p, 1000000), 60000);
    p.max_backoff_ms = 1000;
    CHECK_INT(recovery_delay_ms(&p, 1), 1000);
    p.backoff_ms = INT64_MAX / 2 + 1;
    p.max_backoff_ms = INT64_MAX;
    CHECK_INT(recovery_delay_ms(&p, 5), INT64_MAX);
}

/* ---- watching --------------------------------------------------------------------------------- */

static void test_disabled_is_refused(void) /* */
{
    struct world w;
    tinker_error err;
    world_open(&w, NULL, NULL);
    tinker_recovery *r = tinker_recovery_new(w.service, NULL, NULL);
    REQUIRE(r);
    CHECK_INT(tinker_recovery_watch(r, "run-1", NULL, &err), TINKER_ESTATE);
    CHECK(strstr(err.message, "disabled"));
    CHECK_INT(tinker_recovery_start(r, "run-1", CKPT, NULL, &err), TINKER_ESTATE);
    CHECK_INT(tinker_recovery_unwatch(r, "run-1"), 0);
    world_advance(&w, 100000);
    CHECK_INT(fake_count(w.server, NULL), 0);
    tinker_recovery_free(r);
    tinker_recovery_free(NULL);
    world_close(&w);
}

static void test_corrupted_at_the_second_look(void) /* R-208 R-209 R-210 */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    say(&w, RUN_API, 200, HEALTHY, 1);
    say(&w, RUN_API, 200, CORRUPTED, -1);
    say(&w, API "weights_info", 200, WEIGHTS, -1);
    tinker_training *old = world_training(&w);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    int64_t from = world_ms(&w);
    CHECK_INT(tinker_recovery_watch(r, "run-1", old, NULL), TINKER_OK);
    CHECK_INT(tinker_recovery_watch(r, "", old, NULL), TINKER_EINVAL);
    world_advance(&w, 29999);
    CHECK_INT(fake_count(w.server, RUN_API), 0);
    world_advance(&w, 30001);
    CHECK_INT(fake_count(w.server, RUN_API), 2);
    CHECK_INT(world_at(&w, RUN_API, 0) - from, 30000);
    CHECK_INT(world_at(&w, RUN_API, 1) - from, 60000);
    CHECK_STR(s.text, "detected 0\nstarted 1\ncheckpoint_selected 1\nclient_created 1\n"
                      "completed 1\nRECOVERED " CKPT "\n");
    CHECK_INT(s.recovered, 1);
    CHECK(s.old == old);
    REQUIRE(s.new);
    CHECK_STR(tinker_training_model_id(s.new), "sess:train:1");
    CHECK(strstr(fake_get(w.server, API "load_weights", 0)->body, "\"optimizer\":true"));
    world_advance(&w, 100000); /* it is not watched any more */
    CHECK_INT(fake_count(w.server, RUN_API), 2);
    CHECK_INT(s.recovered, 1);
    tinker_training_free(old);
    close_story(&w, &s, r);
}

static void test_a_look_that_fails(void) /* R-208 R-210 */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    say(&w, RUN_API, 404, "{\"detail\":\"who?\"}", 1);
    fake_script(w.server, RUN_API, (struct fake_reply){ .fault = FAKE_HANG, .times = 1 });
    say(&w, RUN_API, 200, HEALTHY, -1);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    CHECK_INT(tinker_recovery_watch(r, "run-1", NULL, NULL), TINKER_OK);
    world_advance(&w, 30000);
    CHECK_STR(s.text, "poll_error 0\n");
    world_advance(&w, 60000); /* the second hangs, and is given up after an interval */
    CHECK_STR(s.text, "poll_error 0\npoll_error 0\n");
    world_advance(&w, 60000);
    CHECK_INT(fake_count(w.server, RUN_API), 4);
    CHECK_INT(tinker_recovery_unwatch(r, "run-1"), 1);
    CHECK_INT(tinker_recovery_unwatch(r, "run-1"), 0);
    world_advance(&w, 100000);
    CHECK_INT(fake_count(w.server, RUN_API), 4);
    close_story(&w, &s, r);
}

/* ---- recovering --------------------------------------------------------------------------------- */

static void test_third_attempt_succeeds(void) /* R-207 R-209 R-210 */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    p.restore_optimizer = 0;
    say(&w, API "weights_info", 404, "{}", 2);
    say(&w, API "weights_info", 200, WEIGHTS, 1);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    tinker_error err;
    int64_t from = world_ms(&w);
    CHECK_INT(tinker_recovery_start(r, "run-1", CKPT, NULL, NULL), TINKER_OK);
    CHECK_INT(tinker_recovery_start(r, "run-1", CKPT, NULL, &err), TINKER_ESTATE);
    CHECK(strstr(err.message, "pending"));
    CHECK_INT(tinker_recovery_watch(r, "run-1", NULL, NULL), TINKER_ESTATE);
    world_advance(&w, 4999);
    CHECK_INT(s.n_started, 1);
    CHECK_INT(tinker_recovery_start(r, "run-1", CKPT, NULL, NULL), TINKER_ESTATE); /* resting */
    CHECK_INT(tinker_recovery_unwatch(r, "run-1"), 0);
    world_advance(&w, 20000);
    CHECK_STR(s.text, "started 1\ncheckpoint_selected 1\nfailed 1\n"
                      "started 2\ncheckpoint_selected 2\nfailed 2\n"
                      "started 3\ncheckpoint_selected 3\nclient_created 3\ncompleted 3\n"
                      "RECOVERED " CKPT "\n");
    CHECK_INT(s.recovered, 1);
    CHECK_INT(s.failed, 0);
    CHECK_INT(s.at_ms[0] - from, 0);
    CHECK_INT(s.at_ms[1] - from, 5000);
    CHECK_INT(s.at_ms[2] - from, 15000);
    CHECK(strstr(fake_get(w.server, API "load_weights", 0)->body, "\"optimizer\":false"));
    CHECK_INT(fake_count(w.server, RUN_API), 0); /* the checkpoint was given */
    say(&w, API "weights_info", 200, WEIGHTS, 1);
    tinker_training_free(s.new);
    s.new = NULL;
    CHECK_INT(tinker_recovery_start(r, "run-1", CKPT, NULL, NULL), TINKER_OK); /* free again */
    world_advance(&w, 1);
    CHECK_INT(s.recovered, 2);
    close_story(&w, &s, r);
}

static void test_exhaustion(void) /* R-207 R-209 R-210 */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    p.max_attempts = 4;
    say(&w, API "weights_info", 404, "{\"detail\":\"gone\"}", -1);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    int64_t from = world_ms(&w);
    CHECK_INT(tinker_recovery_start(r, "run-1", CKPT, NULL, NULL), TINKER_OK);
    world_advance(&w, 100000);
    CHECK_INT(s.n_started, 4);
    static const int64_t want[] = { 0, 5000, 15000, 35000 }; /* 5, 10 and 20 s apart */
    for (int i = 0; i < 4; i++)
        CHECK_INT(s.at_ms[i] - from, want[i]);
    const char *end = "failed 4\nexhausted 4\nFAILED\n";
    REQUIRE(strlen(s.text) > strlen(end));
    CHECK_STR(s.text + strlen(s.text) - strlen(end), end);
    CHECK_INT(s.failed, 1);
    CHECK_INT(s.recovered, 0);
    CHECK_INT(s.reason.http_status, 404);
    close_story(&w, &s, r);
}

static void test_checkpoint_is_found_out(void) /* */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    p.max_attempts = 2;
    say(&w, RUN_API, 200, RUN_JSON("true", "null"), 1);
    say(&w, RUN_API, 200, CORRUPTED, 1);
    say(&w, API "weights_info", 200, WEIGHTS, -1);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    CHECK_INT(tinker_recovery_start(r, "run-1", NULL, NULL, NULL), TINKER_OK);
    world_advance(&w, 10000);
    CHECK_STR(s.text, "started 1\nfailed 1\nstarted 2\ncheckpoint_selected 2\n"
                      "client_created 2\ncompleted 2\nRECOVERED " CKPT "\n");
    say(&w, RUN_API, 200, RUN_JSON("true", "null"), -1);
    CHECK_INT(tinker_recovery_start(r, "run-1", NULL, NULL, NULL), TINKER_OK);
    world_advance(&w, 10000);
    CHECK_INT(s.failed, 1);
    CHECK(strstr(s.reason.message, "missing checkpoint"));
    close_story(&w, &s, r);
}

static void test_specific_checkpoint(void) /* R-207 R-209 */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    char path[] = "tinker://other/weights/a";
    p.strategy = TINKER_RECOVERY_SPECIFIC;
    p.checkpoint = path;
    say(&w, RUN_API, 200, CORRUPTED, -1);
    say(&w, API "weights_info", 200, WEIGHTS, -1);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    memset(path, 'x', sizeof(path) - 1); /* the policy was copied */
    CHECK_INT(tinker_recovery_watch(r, "run-1", NULL, NULL), TINKER_OK);
    world_advance(&w, 30000);
    CHECK(strstr(s.text, "RECOVERED tinker://other/weights/a\n"));
    close_story(&w, &s, r);
}

static int count_started(const tinker_event *e, void *state)
{
    (void)e;
    ++*(int *)state;
    return 0;
}

static void test_one_at_a_time(void) /* */
{
    for (int places = 1; places <= 2; places++) {
        struct world w;
        int started = 0;
        world_open(&w, NULL, NULL);
        tinker_recovery_options p = TINKER_RECOVERY_OPTIONS_INIT;
        p.enabled = 1;
        p.max_concurrent = places;
        p.max_attempts = 1;
        tinker_service_attach(w.service, "n", "recovery.started", count_started, &started, NULL);
        fake_script(w.server, API "weights_info",
                    (struct fake_reply){ .status = 404, .delay_ms = 1000, .times = -1 });
        tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
        char id[16];
        for (int i = 0; i < 5; i++) {
            snprintf(id, sizeof(id), "run-%d", i);
            CHECK_INT(tinker_recovery_start(r, id, CKPT, NULL, NULL), TINKER_OK);
        }
        world_advance(&w, 500);
        CHECK_INT(started, places);
        world_advance(&w, 1000);
        CHECK_INT(started, 2 * places);
        world_advance(&w, 5000);
        CHECK_INT(started, 5);
        tinker_recovery_free(r);
        world_close(&w);
    }
}

static void test_many_that_fail_at_once(void) /* */
{
    struct world w;
    int started = 0;
    world_open(&w, NULL, NULL);
    tinker_recovery_options p = TINKER_RECOVERY_OPTIONS_INIT;
    p.enabled = 1;
    p.max_attempts = 2;
    tinker_service_attach(w.service, "n", "recovery.started", count_started, &started, NULL);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    char id[16];
    for (int i = 0; i < 500; i++) {
        snprintf(id, sizeof(id), "run-%d", i);
        /* for sampling: refused before anything is sent */
        CHECK_INT(tinker_recovery_start(r, id, "tinker://a/sampler_weights/b", NULL, NULL),
                  TINKER_OK);
    }
    world_advance(&w, 10000);
    CHECK_INT(started, 1000);
    CHECK_INT(fake_count(w.server, NULL), 0);
    tinker_recovery_free(r);
    world_close(&w);
}

static void test_attempts_have_a_deadline(void) /* */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    p.max_attempts = 1;
    p.attempt_timeout_ms = 7000;
    fake_script(w.server, API "weights_info",
                (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    CHECK_INT(tinker_recovery_start(r, "run-1", CKPT, NULL, NULL), TINKER_OK);
    world_advance(&w, 6999);
    CHECK_INT(s.failed, 0);
    world_advance(&w, 2);
    CHECK_INT(s.failed, 1);
    CHECK_INT(s.reason.status, TINKER_ETIMEDOUT);
    close_story(&w, &s, r);
}

/* ---- ending ------------------------------------------------------------------------------------- */

static void test_free_in_every_state(void) /* R-208 R-209 */
{
    for (int state = 0; state < 5; state++) {
        struct world w;
        struct story s;
        tinker_recovery_options p;
        open_story(&w, &s, &p);
        tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
        if (state == 1)
            fake_script(w.server, RUN_API, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
        if (state == 2)
            fake_script(w.server, API "weights_info",
                        (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
        if (state == 3)
            say(&w, API "weights_info", 404, "{}", -1);
        if (state < 2)
            tinker_recovery_watch(r, "run-1", NULL, NULL);
        else
            tinker_recovery_start(r, "run-1", CKPT, NULL, NULL);
        if (state == 1)
            world_advance(&w, 31000); /* a look is under way */
        if (state == 2 || state == 3)
            world_advance(&w, 1000); /* an attempt is under way, or resting */
        tinker_recovery_free(r);     /* 0: watched; 4: the attempt has just begun */
        int told = s.recovered + s.failed;
        world_advance(&w, 100000);
        CHECK_INT(s.recovered + s.failed, told);
        CHECK_INT(told, 0);
        world_close(&w);
    }
}

static void test_free_in_the_callback(void) /* */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    say(&w, API "weights_info", 200, WEIGHTS, -1);
    s.free_me = tinker_recovery_new(w.service, &p, NULL);
    CHECK_INT(tinker_recovery_start(s.free_me, "run-1", CKPT, NULL, NULL), TINKER_OK);
    world_advance(&w, 1000);
    CHECK_INT(s.recovered, 1);
    close_story(&w, &s, NULL);
}

static void test_nobody_to_tell(void) /* */
{
    struct world w;
    struct story s;
    tinker_recovery_options p;
    open_story(&w, &s, &p);
    p.on_recovery = NULL;
    p.on_failure = NULL;
    p.max_attempts = 1;
    say(&w, API "weights_info", 200, WEIGHTS, 1);
    say(&w, API "weights_info", 404, "{}", 1);
    tinker_recovery *r = tinker_recovery_new(w.service, &p, NULL);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(tinker_recovery_start(r, "run-1", CKPT, NULL, NULL), TINKER_OK);
        world_advance(&w, 1000);
    }
    CHECK_STR(s.text, "started 1\ncheckpoint_selected 1\nclient_created 1\ncompleted 1\n"
                      "started 1\ncheckpoint_selected 1\nfailed 1\nexhausted 1\n");
    close_story(&w, &s, r);
}

int main(void)
{
    RUN(test_policy_defaults);
    RUN(test_nonsense_becomes_the_default);
    RUN(test_delays);
    RUN(test_disabled_is_refused);
    RUN(test_corrupted_at_the_second_look);
    RUN(test_a_look_that_fails);
    RUN(test_third_attempt_succeeds);
    RUN(test_exhaustion);
    RUN(test_checkpoint_is_found_out);
    RUN(test_specific_checkpoint);
    RUN(test_one_at_a_time);
    RUN(test_many_that_fail_at_once);
    RUN(test_attempts_have_a_deadline);
    RUN(test_free_in_every_state);
    RUN(test_free_in_the_callback);
    RUN(test_nobody_to_tell);
    return tap_done();
}
