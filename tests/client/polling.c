/* Asking for results: the polling table, large results, queue states, ends of futures. */
#include <pthread.h>
#include "client/session/session.h"
#include "client/observe/queue_state.h"
#include "client/io/runtime.h"
#include "client/sampling/sampling_client.h"
#include "client/training/training_client.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define POLL API "retrieve_future"

static tinker_training *open_training(struct world *w, const char *config)
{
    world_open(w, config, NULL);
    return world_training(w);
}

/* Number of polls since `from`, and the time between two of them. */
static int64_t poll_gap(struct world *w, size_t i)
{
    return world_at(w, POLL, i + 1) - world_at(w, POLL, i);
}

static void test_polling_starts_at_once(void) /* R-069 R-071 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    fake_script(w.server, API "optim_step",
                (struct fake_reply){ .body = "{\"request_id\":\"req-0\"}", .delay_ms = 2000 });
    tinker_future *a = tinker_training_optim_step(t, NULL, NULL);
    tinker_future *b = tinker_training_optim_step(t, NULL, NULL);
    world_advance(&w, 3000); /* nobody waits */
    CHECK_INT(fake_count(w.server, POLL), 3);
    char v[512];
    CHECK_STR(fake_header(fake_get(w.server, POLL, 2), "X-Tinker-Create-Promise-Roundtrip-Time", v),
              "2.0"); /* it includes waiting for the turn; the text is Python's */
    tinker_future_free(a);
    tinker_future_free(b);
    tinker_training_free(t);
    world_close(&w);
}

static void test_headers_of_polls(void) /* R-070 R-099 R-131 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    size_t n = fake_count(w.server, POLL);
    fake_script(w.server, POLL,
                (struct fake_reply){ .body = "{\"type\":\"try_again\",\"request_id\":\"x\"}",
                                     .delay_ms = 1000,
                                     .times = 2 });
    tinker_datum *data = fake_data(1, 4);
    tinker_future *f = tinker_training_forward(t, data, 1, &fake_loss, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK_INT(fake_count(w.server, POLL), n + 3);
    static const char *const iteration[] = { "0", "1", "2" };
    char v[512];
    for (size_t i = 0; i < 3; i++) {
        const struct fake_request *r = fake_get(w.server, POLL, n + i);
        CHECK_STR(fake_header(r, "X-Tinker-Request-Iteration", v), iteration[i]);
        CHECK_STR(fake_header(r, "X-Tinker-Request-Type", v), "Forward");
        CHECK_STR(fake_header(r, "X-Stainless-Raw-Response", v), "raw");
        CHECK_STR(fake_header(r, "Accept", v), "application/x-protobuf");
        CHECK_STR(fake_header(r, "x-stainless-read-timeout", v), "45");
        CHECK((fake_header(r, "X-Tinker-Create-Promise-Roundtrip-Time", v) != NULL) == (i == 0));
        CHECK_STR(r->body, "{\"request_id\":\"req-1\",\"allow_metadata_only\":true}");
    }
    CHECK_STR(fake_header(fake_get(w.server, POLL, 0), "Accept", v), "application/json");
    CHECK_STR(fake_header(fake_get(w.server, POLL, 0), "X-Tinker-Request-Type", v), "CreateModel");
    tinker_future_free(f);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_held_polls_follow_without_pause(void) /* R-072 R-073 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    size_t n = fake_count(w.server, POLL);
    fake_script(w.server, POLL,
                (struct fake_reply){ .body = "{\"type\":\"try_again\",\"request_id\":\"x\"}",
                                     .delay_ms = 1000,
                                     .times = 5 });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK_INT(world_ms(&w), 5000);
    for (size_t i = 0; i < 5; i++)
        CHECK_INT(poll_gap(&w, n + i), 1000);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

/* One scripted poll, then the result: what is the gap, what the outcome? */
static void check_row(int status, const char *body, int64_t gap, tinker_status outcome, int polls)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    size_t n = fake_count(w.server, POLL);
    say(&w, POLL, status, body, 1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 60000), outcome);
    CHECK_INT(fake_count(w.server, POLL) - n, polls);
    if (polls > 1)
        CHECK_INT(poll_gap(&w, n), gap);
    if (outcome != TINKER_OK)
        CHECK_STR(w.err.request_id, "req-1");
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_table_of_statuses(void) /* R-072 R-075 R-083 */
{
    check_row(408, "{\"queue_state\":\"active\"}", 0, TINKER_OK, 2);
    check_row(500, "{}", 0, TINKER_OK, 2);
    check_row(429, "{}", 1000, TINKER_OK, 2);
    check_row(400, "{\"detail\":\"x\"}", 0, TINKER_OK, 2);
    check_row(402, "{}", 5000, TINKER_OK, 2);
    check_row(410, "{}", 0, TINKER_EHTTP, 1);
    check_row(401, "{}", 0, TINKER_EHTTP, 1);
    check_row(404, "{}", 0, TINKER_EHTTP, 1);
    check_row(409, "{}", 0, TINKER_EHTTP, 1);
    check_row(422, "{}", 0, TINKER_EHTTP, 1);
    check_row(200, "[]", 0, TINKER_EPROTOCOL, 1);
    check_row(200, "not json", 0, TINKER_EPROTOCOL, 1);
    check_row(200, "{\"metrics\":[]}", 0, TINKER_EPROTOCOL, 1);
    check_row(200, "{\"error\":\"boom\",\"category\":\"user\"}", 0, TINKER_EREQUEST, 1);
}

static void test_backoff_of_polls(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    size_t n = fake_count(w.server, POLL);
    say(&w, POLL, 429, "{}", 2);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_TRUNCATE, .body = "{" });
    fake_script(w.server, POLL, (struct fake_reply){ .status = 400 }); /* empty: R-045 */
    say(&w, POLL, 500, "{}", 1);
    say(&w, POLL, 429, "{}", 1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 60000), TINKER_OK);
    static const int64_t want[] = { 1000, 2000, 4000, 8000, 0, 1000 }; /* 500 forgets the count */
    for (size_t i = 0; i < 6; i++) {
        int64_t gap = poll_gap(&w, n + i);
        CHECK(gap >= want[i] && gap <= want[i] + 50);
    }
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_backoff_of_polls_has_an_end(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    size_t n = fake_count(w.server, POLL);
    say(&w, POLL, 429, "{}", 7);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 200000), TINKER_OK);
    static const int64_t want[] = { 1000, 2000, 4000, 8000, 16000, 30000, 30000 };
    for (size_t i = 0; i < 7; i++)
        CHECK_INT(poll_gap(&w, n + i), want[i]);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_budget_of_bad_requests(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    size_t n = fake_count(w.server, POLL);
    say(&w, POLL, 400, "{\"detail\":\"x\"}", -1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 60000), TINKER_EHTTP);
    CHECK_INT(fake_count(w.server, POLL) - n, 4);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_optional_backoff(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.network.poll_backoff_initial_ms = 1000;
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    size_t n = fake_count(w.server, POLL);
    say(&w, POLL, 408, "{}", 3);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 60000), TINKER_OK);
    CHECK_INT(poll_gap(&w, n), 1000);
    CHECK_INT(poll_gap(&w, n + 1), 2000);
    CHECK_INT(poll_gap(&w, n + 2), 4000);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_categories(void) /* */
{
    static const struct {
        const char *body;
        int category;
    } cases[] = { { "{\"error\":\"e\",\"category\":\"user\"}", TINKER_CATEGORY_USER },
                  { "{\"error\":\"e\",\"category\":\"User\"}", TINKER_CATEGORY_UNKNOWN },
                  { "{\"error\":\"e\",\"category\":\"server\"}", TINKER_CATEGORY_SERVER },
                  { "{\"error\":\"e\"}", TINKER_CATEGORY_UNKNOWN } };
    for (size_t i = 0; i < 4; i++) {
        struct world w;
        tinker_training *t = open_training(&w, NULL);
        say(&w, POLL, 200, cases[i].body, 1);
        tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_EREQUEST);
        CHECK_INT(w.err.category, cases[i].category);
        CHECK_STR(w.err.request_id, "req-1"); /* */
        tinker_future_free(f);
        tinker_training_free(t);
        world_close(&w);
    }
}

static void test_large_results_share_a_budget(void) /* R-077 R-078 */
{
    struct world w;
    tinker_training *t = open_training(&w, "{\"inflight_response_bytes_semaphore_size\":10}");
    tinker_training *t2 = world_training(&w);
    size_t n = fake_count(w.server, POLL);
    const char *big = "{\"status\":\"complete_metadata\",\"response_payload_size\":100}";
    say(&w, POLL, 200, big, 1);
    fake_script(w.server, POLL, (struct fake_reply){ .body = "{}", .delay_ms = 3000 });
    tinker_future *a = tinker_training_optim_step(t, NULL, NULL);
    world_settle(&w);
    say(&w, POLL, 200, big, 1);
    tinker_future *b = tinker_training_optim_step(t2, NULL, NULL);
    world_advance(&w, 1000);
    CHECK_INT(fake_count(w.server, POLL) - n, 3); /* the second fetch waits */
    CHECK(strstr(fake_get(w.server, POLL, n + 1)->body, "\"allow_metadata_only\":false") != NULL);
    CHECK_INT(world_finish(&w, b, 10000), TINKER_OK);
    CHECK_INT(world_at(&w, POLL, n + 3), 3000);
    CHECK_INT(world_finish(&w, a, 0), TINKER_OK);
    tinker_future_free(a);
    tinker_future_free(b);
    say(&w, POLL, 200, big, 2); /* announced twice: nonsense */
    a = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, a, 1000), TINKER_EPROTOCOL);
    tinker_future_free(a);
    CHECK_INT(t->session->response_bytes.free, 10); /* nothing leaked */
    tinker_training_free(t);
    tinker_training_free(t2);
    world_close(&w);
}

static void test_results_stay(void) /* R-079 R-080 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    fake_script(w.server, POLL,
                (struct fake_reply){ .body = "{\"metrics\":{\"a:sum\":1.5}}", .delay_ms = 1000 });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(tinker_future_wait(f, 10, &w.err), TINKER_ETIMEDOUT);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK); /* a wait that timed out canceled nothing */
    size_t n = fake_count(w.server, POLL), k;
    const tinker_named_number *m = tinker_future_metrics(f, &k);
    CHECK_INT(tinker_future_wait(f, -1, &w.err), TINKER_OK);
    CHECK(tinker_future_metrics(f, &k) == m && k == 1);
    CHECK_INT(fake_count(w.server, POLL), n);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_deadline_ends_the_polling(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    tinker_future_set_deadline(f, 7000);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_ETIMEDOUT);
    CHECK_INT(world_ms(&w), 7000);
    size_t n = fake_count(w.server, POLL);
    world_advance(&w, 100000);
    CHECK_INT(fake_count(w.server, POLL), n);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_cancel(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    say(&w, POLL, 200, "{\"status\":\"complete_metadata\",\"response_payload_size\":77}", 1);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, POLL), 1);
    int64_t size = t->session->server.inflight_response_bytes_semaphore_size;
    CHECK_INT(t->session->response_bytes.free, size - 77);
    tinker_future_cancel(f);
    tinker_future_cancel(f);
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, POLL), 0); /* the connection was closed */
    CHECK_INT(tinker_future_wait(f, 0, &w.err), TINKER_ECANCELED);
    CHECK_INT(t->session->response_bytes.free, size);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_parts_may_finish_in_any_order(void) /* R-082 R-100 */
{
    struct world w;
    tinker_training *t = open_training(&w, "{\"fwdbwd_max_chunk_len\":2}");
    size_t len1, len2;
    tinker_named_number m1 = { "loss:sum", 1 }, m2 = { "loss:sum", 10 };
    char *late = fake_pass_result(2, &m1, 1, &len1), *early = fake_pass_result(1, &m2, 1, &len2);
    /* chunk 2 is accepted and polled first, and answered first */
    fake_script(w.server, POLL,
                (struct fake_reply){
                    .body = early, .len = len2, .content_type = "application/x-protobuf" });
    fake_script(w.server, POLL,
                (struct fake_reply){ .body = late,
                                     .len = len1,
                                     .content_type = "application/x-protobuf",
                                     .delay_ms = 2000 });
    tinker_datum *data = fake_data(3, 4);
    tinker_future *f = tinker_training_forward_backward(t, data, 3, &fake_loss, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    const tinker_forward_backward *r = tinker_future_forward_backward(f);
    REQUIRE(r);
    CHECK_INT(r->n_outputs, 3);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "loss:sum"), 11, 0);
    tinker_future_free(f);
    free(late);
    free(early);
    fake_data_free(data, 3);
    tinker_training_free(t);
    world_close(&w);
}

/* ---- queue states ---- */

struct seen {
    int all, transitions;
    tinker_queue_state last;
    char reason[64], who[64];
};

static void observe(const char *who, tinker_queue_state qs, const char *reason, void *state)
{
    struct seen *s = state;
    s->all++;
    s->last = qs;
    snprintf(s->reason, sizeof(s->reason), "%s", reason);
    snprintf(s->who, sizeof(s->who), "%s", who);
}

static void run_states(int transitions_only, struct seen *seen)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    tinker_service_observe(w.service, observe, transitions_only, seen);
    static const char *const states[] = { "active", "paused_capacity", "paused_capacity",
                                          "active" };
    for (int i = 0; i < 4; i++) {
        char body[128];
        snprintf(body, sizeof(body),
                 "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"%s\"}", states[i]);
        say(&w, POLL, 200, body, 1);
    }
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    world_settle(&w);
    tinker_future_free(f);
    tinker_service_observe(w.service, NULL, 0, NULL);
    tinker_training_free(t);
    world_close(&w);
}

static void test_observers(void) /* R-085 R-179 */
{
    struct seen every = { 0 }, changes = { 0 };
    run_states(0, &every);
    run_states(1, &changes);
    CHECK_INT(every.all, 4);
    CHECK_INT(changes.all, 3);
    CHECK_STR(every.who, "sess:train:0");
    CHECK_INT(every.last, TINKER_QUEUE_ACTIVE);
}

struct slow {
    pthread_mutex_t busy; /* held by the test while the observer is to be slow */
    int calls;
};

static void observe_slowly(const char *who, tinker_queue_state qs, const char *reason, void *state)
{
    struct slow *s = state;
    (void)who, (void)qs, (void)reason;
    pthread_mutex_lock(&s->busy);
    s->calls++;
    pthread_mutex_unlock(&s->busy);
}

struct many_states {
    struct session *session;
    int n;
};

static void tell_many_states(void *arg)
{
    struct many_states *m = arg;
    struct queue_state watch = { 0 };
    for (int i = 0; i < m->n; i++)
        queue_state_report(&watch, m->session, QUEUE_STATE_TRAINING, "m", WIRE_QUEUE_ACTIVE, "r",
                           false);
}

static void test_slow_observers_do_not_fill_the_memory(void) /* R-179 R-180 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    struct slow slow = { PTHREAD_MUTEX_INITIALIZER, 0 };
    struct many_states many = { t->session, 25000 };
    tinker_service_observe(w.service, observe_slowly, 0, &slow);
    pthread_mutex_lock(&slow.busy);
    runtime_sync(runtime_current(), tell_many_states, &many);
    pthread_mutex_unlock(&slow.busy);
    runtime_drain_callbacks(runtime_current());
    CHECK(slow.calls == 10000 || slow.calls == 10001); /* one of them was under way already */
    many.n = 5;                                        /* and there is room again */
    int before = slow.calls;
    runtime_sync(runtime_current(), tell_many_states, &many);
    runtime_drain_callbacks(runtime_current());
    CHECK_INT(slow.calls, before + 5);
    tinker_service_observe(w.service, NULL, 0, NULL);
    tinker_training_free(t);
    world_close(&w);
}

static void test_unknown_states(void) /* */
{
    struct world w;
    struct seen seen = { 0 };
    tinker_training *t = open_training(&w, NULL);
    tinker_service_observe(w.service, observe, 0, &seen);
    say(&w, POLL, 200, "{\"type\":\"try_again\",\"queue_state\":\"weird\",\"request_id\":\"x\"}",
        1);
    say(&w, POLL, 200,
        "{\"type\":\"try_again\",\"queue_state\":\"weird\",\"queue_state_reason\":\"why\","
        "\"request_id\":\"x\"}",
        1);
    say(&w, POLL, 408, "{\"queue_state\":\"paused_rate_limit\",\"queue_state_reason\":\"slow\"}",
        1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    world_settle(&w);
    CHECK_INT(seen.all, 2);
    CHECK_INT(seen.last, TINKER_QUEUE_PAUSED_RATE_LIMIT);
    CHECK_STR(seen.reason, "slow");
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_pauses_are_logged_once_a_minute(void) /* R-086 R-087 */
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    fake_script(
        w.server, POLL,
        (struct fake_reply){
            .body =
                "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"paused_capacity\"}",
            .delay_ms = 100,
            .times = 100 });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(world_log_count(&w, "is paused"), 1);
    CHECK_INT(world_log_count(&w, "Training for sess:train:0 is paused. Reason: Tinker backend is "
                                  "running short on capacity, please wait."),
              1);
    tinker_future_free(f);
    CHECK_STR(queue_state_reason(QUEUE_STATE_TRAINING, WIRE_QUEUE_PAUSED_RATE_LIMIT, ""),
              "concurrent training clients rate limit hit");
    CHECK_STR(queue_state_reason(QUEUE_STATE_SAMPLING, WIRE_QUEUE_PAUSED_RATE_LIMIT, NULL),
              "concurrent sampler weights limit hit");
    CHECK_STR(queue_state_reason(QUEUE_STATE_SAMPLING, WIRE_QUEUE_UNKNOWN, NULL), "unknown");
    CHECK_STR(queue_state_reason(QUEUE_STATE_SAMPLING, WIRE_QUEUE_PAUSED_CAPACITY, "mine"), "mine");
    tinker_training_free(t);
    world_close(&w);
}

static void test_creation_is_logged_with_the_base_model(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    say(&w, POLL, 200,
        "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"paused_rate_limit\"}", 1);
    tinker_training *t = world_training(&w);
    CHECK(t != NULL);
    CHECK_INT(world_log_count(&w, "Model creation for tiny is paused. Reason: concurrent training "
                                  "clients rate limit hit."),
              1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_resume(void)
{
    struct world w;
    tinker_training *t = open_training(&w, NULL);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    CHECK_STR(tinker_future_request_type(f), "OptimStep");
    tinker_future *g = tinker_service_resume(w.service, tinker_future_request_id(f),
                                             tinker_future_request_type(f), NULL);
    CHECK_INT(world_finish(&w, g, 5000), TINKER_OK);
    size_t n;
    CHECK_NEAR(tinker_metric(tinker_future_metrics(g, &n), 1, "grad_norm:mean"), 0.5, 0);
    CHECK(tinker_service_resume(w.service, "x", "CreateModel", &w.err) == NULL);
    CHECK_INT(w.err.status, TINKER_EINVAL);
    tinker_future_free(f);
    tinker_future_free(g);
    tinker_training_free(t);
    world_close(&w);
}

static void test_many_polls_use_groups_of_fifty(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_sampler *s = world_sampler(&w);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f[120];
    for (int i = 0; i < 120; i++)
        f[i] = tinker_sampler_sample(s, fake_prompt(2), NULL, NULL, NULL);
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, POLL), 120);
    struct session *h = s->session;
    struct http_pool_stats st = http_pool_stats(h->pools[POOL_RETRIEVE]);
    CHECK_INT(st.clients, 3);
    CHECK_INT(st.active, 120);
    for (int i = 0; i < 120; i++) {
        tinker_future_cancel(f[i]);
        tinker_future_free(f[i]);
    }
    world_settle(&w);
    tinker_sampler_free(s);
    world_close(&w);
}

int main(void)
{
    RUN(test_polling_starts_at_once);
    RUN(test_headers_of_polls);
    RUN(test_held_polls_follow_without_pause);
    RUN(test_table_of_statuses);
    RUN(test_backoff_of_polls);
    RUN(test_backoff_of_polls_has_an_end);
    RUN(test_budget_of_bad_requests);
    RUN(test_optional_backoff);
    RUN(test_categories);
    RUN(test_large_results_share_a_budget);
    RUN(test_results_stay);
    RUN(test_deadline_ends_the_polling);
    RUN(test_cancel);
    RUN(test_parts_may_finish_in_any_order);
    RUN(test_observers);
    RUN(test_slow_observers_do_not_fill_the_memory);
    RUN(test_unknown_states);
    RUN(test_pauses_are_logged_once_a_minute);
    RUN(test_creation_is_logged_with_the_base_model);
    RUN(test_resume);
    RUN(test_many_polls_use_groups_of_fifty);
    return tap_done();
}
