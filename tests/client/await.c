/* Every call waits and does not wait: a future that is waited for later, and one that
 * is awaited at once, ask the same and give the same. */
#include <sched.h>
#include <stdatomic.h>
#include <tinker/custom_loss.h>
#include <tinker/extra/http.h>
#include <tinker/extra/account.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

enum { WAIT_MS = 20000 };

static const char run[] = "r", checkpoint[] = "tinker://r/weights/c";
static struct world w;
static tinker_error err;

/* What the form that does not wait asked, and what came of it. */
static struct {
    tinker_status status;
    int http_status;
    size_t n; /* requests before it */
} first;
static int pairs;

static void begin(void)
{
    first.n = fake_count(w.server, NULL);
}

static void submitted(tinker_future *f, const char *name)
{
    tinker_error e = { 0 };
    if (!f)
        TAP_FAIL("%s is not submitted: %s", name, err.message);
    first.status = f ? tinker_future_wait(f, WAIT_MS, &e) : err.status;
    first.http_status = e.http_status;
    tinker_future_free(f);
}

/* The requests since begin(), without polls, are pairwise the same. */
static void waited(tinker_future *f, const char *name)
{
    const struct fake_request *asked[16];
    size_t n = 0;
    pairs++;
    if (f ? !tinker_future_done(f) || first.status != TINKER_OK
          : err.status != first.status || err.http_status != first.http_status)
        TAP_FAIL("%s: waiting gives %d, the future %d", name, f ? 0 : err.status, first.status);
    tinker_future_free(f);
    for (size_t i = first.n; i < fake_count(w.server, NULL) && n < 16; i++) {
        const struct fake_request *r = fake_get(w.server, NULL, i);
        if (!strstr(r->path, "retrieve_future") && !strstr(r->path, "heartbeat"))
            asked[n++] = r;
    }
    if (n == 0 || n % 2)
        TAP_FAIL("%s: %zu requests", name, n);
    for (size_t i = 0; i < n / 2; i++)
        if (strcmp(asked[i]->path, asked[n / 2 + i]->path) != 0 ||
            strcmp(asked[i]->method, asked[n / 2 + i]->method) != 0)
            TAP_FAIL("%s asks %s, the other %s", name, asked[n / 2 + i]->path, asked[i]->path);
}

/* Both forms of a call, with the same arguments. */
#define AWAIT(call) tinker_future_await(call, WAIT_MS, &err)
#define TWINS(name, ...)                               \
    do {                                               \
        begin();                                       \
        submitted(name(__VA_ARGS__, &err), #name);     \
        waited(AWAIT(name(__VA_ARGS__, &err)), #name); \
    } while (0)

static tinker_var *total(tinker_tape *tape, const tinker_datum *data, tinker_var *const *logprobs,
                         size_t n, void *state)
{
    (void)tape, (void)data, (void)n, (void)state;
    return tinker_var_sum(logprobs[0], TINKER_ALL, 0);
}

static void test_service(void)
{
    begin();
    submitted(tinker_service_check_health(w.service, &err), "warm up");
    TWINS(tinker_service_check_health, w.service);
    TWINS(tinker_service_get_capabilities, w.service);
    TWINS(tinker_service_call, w.service, "GET", API "sessions?limit=1", NULL, 0, NULL);
    TWINS(tinker_service_call, w.service, "PUT", API "nothing", "{}", 2, NULL);
}

static void test_training(void)
{
    tinker_datum *data = fake_data(1, 3);
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, WAIT_MS, &err);
    REQUIRE(t);
    TWINS(tinker_training_forward_backward, t, data, 1, &fake_loss);
    TWINS(tinker_training_forward, t, data, 1, &fake_loss);
    TWINS(tinker_training_optim_step, t, NULL);
    TWINS(tinker_training_save_state, t, "a", NULL);
    TWINS(tinker_training_save_for_sampler, t, "a", NULL);
    TWINS(tinker_training_load_state, t, checkpoint, 1, NULL);
    TWINS(tinker_training_get_info, t);
    begin();
    submitted(tinker_training_forward_backward_custom(t, data, 1, total, NULL, NULL, &err),
              "custom");
    tinker_future *f =
        AWAIT(tinker_training_forward_backward_custom(t, data, 1, total, NULL, NULL, &err));
    REQUIRE(f);
    CHECK_NEAR(tinker_future_loss_report(f)->loss_total, -3, 1e-9);
    waited(f, "custom");
    const struct fake_request *last =
        fake_get(w.server, API "optim_step", fake_count(w.server, API "optim_step") - 1);
    CHECK(strstr(last->body, "\"seq_id\":6") != NULL);
    begin();
    submitted(tinker_service_resume(w.service, "req-1", "ForwardBackward", &err), "resume");
    f = AWAIT(tinker_service_resume(w.service, "req-1", "ForwardBackward", &err));
    CHECK(f && first.status == TINKER_OK && tinker_future_forward_backward(f));
    tinker_future_free(f);
    f = AWAIT(tinker_training_unload(t, &err));
    CHECK(f != NULL);
    tinker_future_free(f);
    CHECK(!AWAIT(tinker_training_optim_step(t, NULL, &err))); /* what the submission says */
    CHECK_INT(err.status, TINKER_ESTATE);
    tinker_training_free(t);
    fake_data_free(data, 1);
}

static void test_sampling(void)
{
    tinker_sampler *s = tinker_service_create_sampler(w.service, "tiny", NULL, WAIT_MS, &err);
    REQUIRE(s);
    TWINS(tinker_sampler_get_base_model, s);
    TWINS(tinker_sampler_sample, s, fake_prompt(3), NULL, NULL);
    TWINS(tinker_sampler_compute_logprobs, s, fake_prompt(3));
    tinker_future *f = AWAIT(tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &err));
    REQUIRE(f);
    CHECK_INT(tinker_future_sample(f)->sequences[0].tokens[1], 12);
    tinker_future_free(f);
    tinker_sampler_free(s);
}

static void test_rest(void)
{
    static const char file[] = "/nonexistent/archive.tar";
    tinker_rest *r = tinker_service_create_rest(w.service, &err);
    say(&w, API "training_runs/r/checkpoints/weights/c/archive", 404, "{}", -1);
    TWINS(tinker_rest_list_checkpoints, r, run);
    TWINS(tinker_rest_list_user_checkpoints, r, NULL);
    TWINS(tinker_rest_delete_checkpoint, r, checkpoint);
    TWINS(tinker_rest_publish_checkpoint, r, checkpoint);
    TWINS(tinker_rest_unpublish_checkpoint, r, checkpoint);
    TWINS(tinker_rest_set_checkpoint_ttl, r, checkpoint, 60);
    TWINS(tinker_rest_get_checkpoint_archive, r, checkpoint);
    TWINS(tinker_rest_list_training_runs, r, NULL);
    TWINS(tinker_rest_get_training_run, r, run, TINKER_SCOPE_OWNED);
    TWINS(tinker_rest_get_weights_info, r, checkpoint);
    TWINS(tinker_rest_list_sessions, r, NULL);
    TWINS(tinker_rest_get_session, r, "sess", TINKER_SCOPE_OWNED);
    TWINS(tinker_rest_assign_project, r, "sess", "project");
    TWINS(tinker_rest_export_trace, r, "sess");
    TWINS(tinker_rest_get_sampler, r, "sess:sample:0");
    TWINS(tinker_rest_get_billing_usage, r, "2026-01-01", "2026-02-01");
    TWINS(tinker_rest_get_audit_log, r, "2026-01-01", 0);
    CHECK(!AWAIT(tinker_rest_download_checkpoint(r, checkpoint, file, NULL, &err)));
    tinker_status refused = err.status;
    tinker_future *f = tinker_rest_download_checkpoint(r, checkpoint, file, NULL, &err);
    CHECK_INT(f ? tinker_future_wait(f, WAIT_MS, &err) : err.status, refused);
    tinker_future_free(f);
    CHECK(!AWAIT(tinker_rest_whoami(r, &err))); /* no JWT, and no request */
    CHECK(strstr(err.message, "JWT") != NULL);
    tinker_rest_free(r);
}

/* Who does not wait long enough has canceled. */
static void test_time_is_up(void)
{
    fake_script(w.server, API "healthz", (struct fake_reply){ .fault = FAKE_HANG });
    CHECK(!tinker_future_await(tinker_service_check_health(w.service, &err), 30, &err));
    CHECK_INT(err.status, TINKER_ETIMEDOUT);
    CHECK(strstr(err.message, "canceled") != NULL);
    for (int i = 0; i < 2000 && fake_held_on(w.server, API "healthz"); i++)
        tinker_future_free(
            AWAIT(tinker_service_call(w.service, "GET", API "sessions", NULL, 0, NULL, &err)));
    CHECK_INT(fake_held_on(w.server, API "healthz"), 0);
}

struct seen {
    atomic_int done;
    tinker_status status;
};

static void wait_inside(const tinker_response *response, void *state)
{
    struct seen *s = state;
    tinker_error e = { 0 };
    (void)response;
    tinker_future_free(
        tinker_future_await(tinker_service_get_capabilities(w.service, &e), WAIT_MS, &e));
    s->status = e.status;
    atomic_store(&s->done, 1);
}

/* A callback must not wait: it is told so, and its request is canceled. */
static void test_not_in_callbacks(void)
{
    struct seen s = { 0 };
    fake_script(w.server, API "get_server_capabilities", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.on_response = wait_inside;
    o.on_response_state = &s;
    tinker_service *derived = tinker_service_with(w.service, &o, &err);
    REQUIRE(derived);
    tinker_future *f = tinker_service_check_health(derived, &err);
    tinker_service_free(derived);
    while (!atomic_load(&s.done))
        sched_yield();
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &err), TINKER_OK);
    tinker_future_free(f);
    CHECK_INT(s.status, TINKER_ESTATE);
    for (int i = 0; i < 2000 && fake_held_on(w.server, API "get_server_capabilities"); i++)
        tinker_future_free(AWAIT(tinker_service_check_health(w.service, &err)));
    CHECK_INT(fake_held_on(w.server, API "get_server_capabilities"), 0);
}

int main(void)
{
    world_open_real(&w, NULL);
    RUN(test_service);
    RUN(test_training);
    RUN(test_sampling);
    RUN(test_rest);
    RUN(test_time_is_up);
    RUN(test_not_in_callbacks);
    world_close(&w);
    return tap_done();
}
