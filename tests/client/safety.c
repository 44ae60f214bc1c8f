/* What a program may do that it should not: freeing in a callback, using clients in a fork; and
 * errors, limits, dumps and large results that keep their promises. */
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define STEP API "optim_step"

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* ---- freeing the service where one should not -------------------------------------------- */

struct suicide {
    tinker_service *service;
    atomic_int calls, freed;
};

static void free_in_log(tinker_log_level level, const char *line, void *state)
{
    struct suicide *s = state;
    (void)level, (void)line;
    if (atomic_fetch_add(&s->calls, 1) > 0)
        return;
    tinker_service_free(s->service);
    atomic_store(&s->freed, 1);
}

static void free_in_observer(const char *who, tinker_queue_state queue_state, const char *reason,
                             void *state)
{
    (void)who, (void)queue_state;
    free_in_log(TINKER_LOG_INFO, reason, state);
}

/* The futures of the service end, and no callback comes after the one that freed it. */
static void test_free_in_a_callback(void)
{
    for (int observer = 0; observer < 2; observer++) {
        struct world w;
        struct suicide s = { 0 };
        tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
        world_open_real(&w, NULL);
        o.api_key = "tml-0123456789abcdef";
        o.base_url = fake_server_url(w.server);
        o.telemetry.enabled = -1;
        o.observation.log = observer ? NULL : free_in_log;
        o.observation.log_state = &s;
        o.observation.log_verbose = observer ? 0 : 1;
        s.service = tinker_service_new(&o, &w.err);
        REQUIRE(s.service != NULL);
        fake_script(w.server, API "create_model",
                    (struct fake_reply){ .body = "{\"request_id\":\"r\"}" });
        fake_script(w.server, API "retrieve_future",
                    (struct fake_reply){ .body =
                                             "{\"type\":\"try_again\",\"queue_state\":"
                                             "\"paused_capacity\",\"queue_state_reason\":\"x\"}",
                                         .times = -1 });
        if (observer)
            tinker_service_observe(s.service, free_in_observer, 0, &s);
        tinker_future *f = tinker_service_request_lora(s.service, "tiny", NULL, &w.err);
        REQUIRE(f != NULL);
        CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_ECANCELED);
        for (int i = 0; i < 20000 && !atomic_load(&s.freed); i++)
            nap();
        CHECK_INT(atomic_load(&s.freed), 1);
        CHECK_INT(atomic_load(&s.calls), 1);
        tinker_future_free(f);
        world_close(&w); /* the last service: the runtime ends here or behind the callback */
    }
}

/* ---- forks --------------------------------------------------------------------------------- */

static void test_clients_in_a_fork(void) /* */
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_sampler *s = world_sampler(&w);
    REQUIRE(t && s);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.base_url = fake_server_url(w.server);
    o.telemetry.enabled = -1;
    fake_script(w.server, API "healthz", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *pending = tinker_service_check_health(w.service, &w.err);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        tinker_error err = { 0 };
        int bad = tinker_training_optim_step(t, NULL, &err) != NULL;
        bad |= err.status != TINKER_ESTATE || !strstr(err.message, "fork");
        bad |= tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &err) != NULL;
        bad |= err.status != TINKER_ESTATE || !strstr(err.message, "fork");
        bad |= tinker_training_get_info(t, &err) != NULL;
        bad |= tinker_service_observe(w.service, NULL, 0, NULL) != TINKER_ESTATE;
        bad |= export_text(s, &err) != NULL || err.status != TINKER_ESTATE;
#ifndef __SANITIZE_THREAD__                                 /* which allows no threads in a fork */
        tinker_service *own = tinker_service_new(&o, &err); /* now the process has a runtime */
        err = (tinker_error){ 0 };
        bad |= !own || export_text(s, &err) != NULL || err.status != TINKER_ESTATE;
        err = (tinker_error){ 0 };
        bad |= tinker_service_import_sampler(w.service, "{}", &err) != NULL;
        bad |= err.status != TINKER_ESTATE;
        bad |= tinker_service_observe(w.service, NULL, 0, NULL) != TINKER_ESTATE;
        bad |= tinker_future_wait(pending, -1, &err) != TINKER_ESTATE;
        bad |= tinker_future_wait_any(&pending, 1, -1) != -1;
        tinker_service_free(own);
#else
        (void)o, (void)pending;
#endif
        _exit(bad);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tinker_future *f = tinker_training_optim_step(t, NULL, &w.err); /* the parent goes on */
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_OK);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, 0), "seq_id"), 1);
    tinker_future_free(f);
    tinker_future_free(pending);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

/* ---- pointers that are none ---------------------------------------------------------------- */

static void test_numbers_without_entries(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    tinker_datum *data = fake_data(1, 4);
    tinker_loss loss = { .name = "ppo", .n_config = 1 };
    CHECK(!tinker_training_forward_backward(t, data, 1, &loss, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    CHECK(strstr(w.err.message, "loss_fn_config") != NULL);
    w.err = (tinker_error){ 0 };
    CHECK(!tinker_training_forward(t, data, 1, &loss, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.n_user_metadata = 1;
    w.err = (tinker_error){ 0 };
    CHECK(!tinker_service_request_lora(w.service, "tiny", &lora, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

/* ---- answers ----------------------------------------------------------------------------------- */

static void test_final_conflict_is_not_retryable(void) /* */
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    say(&w, API "save_weights", 409, "{\"detail\":\"exists\"}", -1);
    tinker_future *f = tinker_training_save_state(t, "name", NULL, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 409);
    CHECK_INT(w.err.retryable, 0);
    CHECK_INT(fake_count(w.server, API "save_weights"), 1);
    CHECK(strstr(w.err.message, "was lost") == NULL);
    tinker_future_free(f);
    fake_unscript(w.server, API "save_weights"); /* a repeat of ours may meet its own success */
    fake_script(w.server, API "save_weights", (struct fake_reply){ .fault = FAKE_DROP });
    say(&w, API "save_weights", 409, "{\"detail\":\"exists\"}", -1);
    f = tinker_training_save_state(t, "name", NULL, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 409);
    CHECK(strstr(w.err.message, "was lost") != NULL);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

/* The caller's number counts when it is less than the service's. */
static void test_fewer_connections(void) /* */
{
    struct world w;
    enum { SAMPLES = 8, LIMIT = 3 };
    world_open_real(&w, "{\"sample_max_concurrent_requests\":50}");
    tinker_sampler *s = world_sampler(&w);
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    o.max_connections = LIMIT;
    CHECK_INT(tinker_sampler_set_retry(s, &o, &w.err), TINKER_OK);
    fake_script(w.server, API "asample", (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        f[i] = tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &w.err);
    CHECK(fake_await(w.server, API "asample", LIMIT));
    for (int i = 0; i < 50; i++)
        nap();
    CHECK_INT(fake_count(w.server, API "asample"), LIMIT);
    tinker_sampler_free(s);
    world_close(&w);
    for (int i = 0; i < SAMPLES; i++)
        tinker_future_free(f[i]);
}

static void test_lines(void) /* R-167 R-169 */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.observation.dump_headers = 1;
    o.observation.log_verbose = 1;
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    REQUIRE(t != NULL);
    world_settle(&w);
    CHECK(world_log_count(&w, "User-Agent: ") > 0);
    CHECK(world_log_count(&w, "X-Stainless-Package-Version: 0.25.0") > 0);
    CHECK_INT(world_log_count(&w, "tml-0123456789abcdef"), 0);
    tinker_training_free(t);
    world_close(&w);
    for (int verbose = 0; verbose < 3; verbose++) { /* unasked: short, and only for debugging */
        world_options(&w, &o);
        o.observation.log_verbose = verbose;
        world_open(&w, NULL, &o);
        t = world_training(&w);
        REQUIRE(t != NULL);
        CHECK_INT(world_log_count(&w, "POST api/v1/create_model"), verbose == 2);
        CHECK_INT(world_log_count(&w, "User-Agent: "), 0);
        tinker_training_free(t);
        world_close(&w);
    }
}

/* Results of more than 256 KB are read by a worker; they are the same, and may be canceled. */
static void test_large_results(void)
{
    struct world w;
    enum { TOKENS = 200000, OUTPUTS = 40000 };
    world_open_real(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_sampler *s = world_sampler(&w);
    static int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i * 7;
    size_t len;
    char *body = fake_sample_result(tokens, TOKENS, &len);
    CHECK(len > 256 << 10);
    fake_script(
        w.server, API "retrieve_future",
        (struct fake_reply){ .body = body, .len = len, .content_type = "application/x-protobuf" });
    free(body);
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_OK);
    const tinker_sample *sample = tinker_future_sample(f);
    REQUIRE(sample && sample->n_sequences == 1);
    CHECK_MEM(sample->sequences[0].tokens, sample->sequences[0].n * 4, tokens, sizeof(tokens));
    tinker_future_free(f);

    const tinker_named_number metric = { "loss:sum", 2 };
    body = fake_pass_result(OUTPUTS, &metric, 1, &len);
    CHECK(len > 256 << 10);
    struct fake_reply large = {
        .body = body, .len = len, .content_type = "application/x-protobuf", .times = 3
    };
    fake_script(w.server, API "retrieve_future", large);
    tinker_datum *data = fake_data(1, 2);
    f = tinker_training_forward_backward(t, data, 1, &fake_loss, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_OK);
    const tinker_forward_backward *r = tinker_future_forward_backward(f);
    REQUIRE(r != NULL);
    CHECK_INT(r->n_outputs, OUTPUTS);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "loss:sum"), 2, 0);
    tinker_future_free(f);
    f = tinker_training_forward_backward(t, data, 1, &fake_loss, &w.err);
    CHECK(fake_await(w.server, API "retrieve_future", 4));
    tinker_future_cancel(f); /* while it is on its way, or being read */
    tinker_status status = tinker_future_wait(f, 20000, &w.err);
    CHECK(status == TINKER_ECANCELED || status == TINKER_OK);
    tinker_future_free(f);
    /* a large one that makes no sense fails its future */
    memset(body, 0xff, len);
    fake_unscript(w.server, API "retrieve_future");
    large.body = body;
    fake_script(w.server, API "retrieve_future", large);
    f = tinker_training_forward_backward(t, data, 1, &fake_loss, &w.err);
    CHECK_INT(tinker_future_wait(f, 20000, &w.err), TINKER_EPROTOCOL);
    tinker_future_free(f);
    free(body);
    fake_data_free(data, 1);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

static void test_creation_out_of_time(void)
{
    struct world w;
    world_open_real(&w, NULL);
    fake_script(w.server, API "create_model",
                (struct fake_reply){ .body = "{\"request_id\":\"r\"}", .delay_ms = 20000 });
    CHECK(!tinker_service_create_lora(w.service, "tiny", NULL, 50, &w.err));
    CHECK_INT(w.err.status, TINKER_ETIMEDOUT);
    CHECK(strstr(w.err.message, "within 50 ms") && strstr(w.err.message, "was canceled"));
    world_close(&w);
}

int main(void)
{
    RUN(test_free_in_a_callback);
    RUN(test_clients_in_a_fork);
    RUN(test_numbers_without_entries);
    RUN(test_creation_out_of_time);
    RUN(test_final_conflict_is_not_retryable);
    RUN(test_fewer_connections);
    RUN(test_lines);
    RUN(test_large_results);
    return tap_done();
}
