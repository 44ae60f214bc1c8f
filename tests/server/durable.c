/* What survives: restarts, retries after restarts, half-written weights, the lock. */
#include <sys/wait.h>

#include "server/store/store_sql.h"
#include "server/store/timers.h"
#include "server/harness.h"

/* Close without a goodbye would need another process; a normal close must not do more
 * for durability than what was already on disk, so it is a fair stand-in here.  The
 * real kill is tests/e2e/crash.sh. */
static void no_autosave(struct server_options *o)
{
    o->autosave = 0;
}

static void rare_autosave(struct server_options *o)
{
    o->autosave = 3;
}

static void test_gradients_come_back(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    /* The pass was acknowledged, its gradient lived in memory only: it runs again. */
    r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", session);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, model, 2), 3, 0);
    server_close(s);
}

static void test_gradients_come_back_when_there_is_memory(void)
{
    char session[64], model[96], id[128];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    for (int i = 1; i <= 2; i++) {
        struct reply r = result_of(s, forward_backward(s, model, i));
        reply_clear(&r);
    }
    server_close(s);
    atomic_store(&fake_no_memory, true);
    s = start_with(NULL);
    REQUIRE(s);
    snprintf(id, sizeof(id), "%s:2", model);
    wait_done(s, id);
    atomic_store(&fake_no_memory, false);
    CHECK_NEAR(gradient_after(s, model, 3), 6, 0);
    server_close(s);
}

/* A model whose first request was acknowledged is not undone by a machine short of memory. */
static void test_a_model_outlives_an_adapter_that_could_not_be_made(void)
{
    char session[64], model[96], id[128];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    server_close(s);
    atomic_store(&fake_no_adapters, true);
    s = start_with(NULL);
    REQUIRE(s);
    snprintf(id, sizeof(id), "%s:1", model);
    wait_done(s, id);
    atomic_store(&fake_no_adapters, false);
    CHECK_NEAR(gradient_after(s, model, 2), 3, 0);
    server_close(s);
}

static void test_a_retry_after_restart_is_not_run_twice(void)
{
    char session[64], model[96], id[128];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, model, 2), 3, 0);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    atomic_store(&fake_passes_run, 0);
    r = forward_backward(s, model, 1);
    CHECK_STATUS(r, 200);
    snprintf(id, sizeof(id), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", id);
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    CHECK_INT(atomic_load(&fake_passes_run), 0);
    r = optim_step(s, model, 2, 1);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = optim_step(s, model, 2, 2);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    /* The step itself is there: the next one is the second. */
    r = result_of(s, optim_step(s, model, 3, 1));
    CHECK(strstr(r.body, "\"step:max\":2.0"));
    reply_clear(&r);
    server_close(s);
}

/* The number names one model: another one is not taken for it once the first request has left
 * the memory. */
static void test_a_create_is_compared_with_the_record(void)
{
    static const char body[] = "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":"
                               "\"test/model\",\"lora_config\":{\"rank\":%d}}";
    char session[64], model[96], id[128];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    pthread_mutex_lock(&s->lock);
    snprintf(id, sizeof(id), "%s:0", model);
    live_remove_future_locked(s, live_find_future_locked(s, id));
    pthread_mutex_unlock(&s->lock);
    struct reply r = post(s, "/api/v1/create_model", body, session, 8);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = post(s, "/api/v1/create_model", body, session, 16);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    server_close(s);
}

static const char *saved_dir_of(struct server *s, const char *model)
{
    static char out[64];
    struct arena arena;
    struct store_model *m = NULL;
    arena_init(&arena, 1 << 20);
    CHECK(store_get_model(s->store, model, &arena, &m, NULL) == TINKER_OK && m);
    snprintf(out, sizeof(out), "%s", m && m->saved_dir ? m->saved_dir : "");
    arena_clear(&arena);
    return out;
}

static void test_steps_between_two_saves_run_again(void)
{
    char session[64], model[96];
    struct server *s = start_model(rare_autosave, session, model);
    REQUIRE(s);
    for (int i = 0; i < 2; i++) {
        struct reply r = result_of(s, forward_backward(s, model, 1 + 2 * i));
        reply_clear(&r);
        CHECK_NEAR(gradient_after(s, model, 2 + 2 * i), 3, 0);
        CHECK_STR(saved_dir_of(s, model), "");
    }
    server_close(s);
    s = start_with(rare_autosave);
    REQUIRE(s);
    struct reply r = result_of(s, optim_step(s, model, 5, 1));
    CHECK(strstr(r.body, "\"step:max\":3.0"));
    reply_clear(&r);
    CHECK(saved_dir_of(s, model)[0] != 0); /* the third one is saved */
    server_close(s);
}

static void check_lost(struct server *s, const char *model, int seq)
{
    char path[160];
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s", model);
    struct reply r = send_get(s, path);
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"corrupted\":true"));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, seq, 1));
    CHECK(strstr(find_member(&r, "error"), "was lost in a restart; load a checkpoint"));
    CHECK_STR(find_member(&r, "category"), "user");
    reply_clear(&r);
}

/* Without autosave the state dies with the process, and says so; results stay, and what had
 * no result is gone. */
static void test_without_autosave_models_are_lost(void)
{
    char session[64], model[96], fresh[96];
    struct server *s = start_model(no_autosave, session, model);
    REQUIRE(s);
    make_model(s, session, 1, fresh);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, model, 2), 3, 0);
    r = optim_step(s, model, 4, 1); /* waits for number 3 */
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
    s = start_with(no_autosave);
    REQUIRE(s);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s:2\"}", model);
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"step:max\":1.0"));
    reply_clear(&r);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s:4\"}", model);
    CHECK_STATUS(r, 410);
    reply_clear(&r);
    check_lost(s, model, 5);
    r = result_of(s, optim_step(s, fresh, 1, 1)); /* nothing had happened to this one */
    CHECK(strstr(r.body, "\"step:max\":1.0"));
    reply_clear(&r);
    server_close(s);
    s = start_with(no_autosave);
    REQUIRE(s);
    check_lost(s, model, 6);
    server_close(s);
}

static struct reply submit_forward(struct server *s, const char *model, int seq)
{
    return post(s, "/api/v1/forward",
                "{\"model_id\":\"%s\",\"seq_id\":%d,\"forward_input\":{\"data\":[" DATUM(
                    "5,6,7") "],\"loss_fn\":\"cross_entropy\"}}",
                model, seq);
}

static struct reply submit_failing(struct server *s, const char *model, int seq)
{
    return result_of(s, post(s, "/api/v1/optim_step",
                             "{\"model_id\":\"%s\",\"seq_id\":%d,\"adam_params\":\"fast\"}", model,
                             seq));
}

static void test_without_autosave_results_survive(void)
{
    char session[64], model[96];
    struct server *s = start_model(no_autosave, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, submit_forward(s, model, 1));
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    server_close(s);
    s = start_with(no_autosave);
    REQUIRE(s);
    r = result_of(s, submit_forward(s, model, 1));
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, model, 2), 0, 0);
    server_close(s);
}

static void test_old_requests_do_not_hide_that_a_model_is_lost(void)
{
    char session[64], model[96];
    struct server *s = start_model(no_autosave, session, model);
    REQUIRE(s);
    CHECK_NEAR(gradient_after(s, model, 1), 0, 0);
    CHECK(store_prune_requests(s->store, INT64_MAX, NULL) == TINKER_OK);
    server_close(s);
    s = start_with(no_autosave);
    REQUIRE(s);
    struct reply r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s:1\"}", model);
    CHECK_STATUS(r, 410);
    reply_clear(&r);
    check_lost(s, model, 2);
    server_close(s);
}

static void test_an_old_failure_leaves_no_gap(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    CHECK_NEAR(gradient_after(s, model, 1), 0, 0);
    struct reply r = submit_failing(s, model, 2);
    CHECK(*find_member(&r, "error"));
    reply_clear(&r);
    CHECK(store_prune_requests(s->store, INT64_MAX, NULL) == TINKER_OK);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    r = result_of(s, optim_step(s, model, 3, 1));
    CHECK(strstr(r.body, "\"step:max\":2.0"));
    reply_clear(&r);
    server_close(s);
}

static int64_t kept_bodies(struct server *s)
{
    int64_t n = -1;
    pthread_mutex_lock(&s->store->lock);
    sql_int(s->store, "SELECT count(*) FROM requests WHERE body IS NOT NULL", NULL, 0, 0, &n, NULL);
    pthread_mutex_unlock(&s->store->lock);
    return n;
}

static void test_bodies_that_will_not_run_again_go(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, submit_forward(s, model, 1));
    reply_clear(&r);
    r = submit_failing(s, model, 2);
    reply_clear(&r);
    CHECK_INT(kept_bodies(s), 1); /* that of create_model */
    r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model));
    reply_clear(&r);
    r = result_of(s, forward_backward(s, model, 9));
    CHECK(strstr(find_member(&r, "error"), "has been unloaded"));
    reply_clear(&r);
    CHECK_INT(kept_bodies(s), 0);
    server_close(s);
}

static int64_t kept_requests(struct server *s)
{
    int64_t n = -1;
    pthread_mutex_lock(&s->store->lock);
    sql_int(s->store, "SELECT count(*) FROM requests", NULL, 0, 0, &n, NULL);
    pthread_mutex_unlock(&s->store->lock);
    return n;
}

/* A model that is only asked and never trained, or never saved, fills no disk. */
static void test_old_requests_of_unsaved_models_go(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    for (int i = 1; i <= 20; i++) {
        struct reply r =
            i % 5 ? result_of(s, submit_forward(s, model, i)) : submit_failing(s, model, i);
        reply_clear(&r);
    }
    CHECK(store_prune_requests(s->store, INT64_MAX, NULL) == TINKER_OK);
    CHECK_INT(kept_requests(s), 2); /* the first, which runs again, and the last */
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_NEAR(gradient_after(s, model, 21), 0, 0);
    server_close(s);
    s = start_model(no_autosave, session, model);
    REQUIRE(s);
    for (int i = 1; i <= 20; i++)
        gradient_after(s, model, i);
    struct reply r = result_of(s, submit_forward(s, model, 21));
    reply_clear(&r);
    CHECK(store_prune_requests(s->store, INT64_MAX, NULL) == TINKER_OK);
    CHECK_INT(kept_requests(s), 3); /* and one to tell that the model is lost */
    server_close(s);
    s = start_with(no_autosave);
    REQUIRE(s);
    check_lost(s, model, 22);
    server_close(s);
}

static void test_samplers_survive(void)
{
    char session[64], model[96], path[160];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    gradient_after(s, model, 2);
    r = result_of(s, post(s, "/api/v1/save_weights_for_sampler",
                          "{\"model_id\":\"%s\",\"seq_id\":3,\"path\":\"named\"}", model));
    snprintf(path, sizeof(path), "%s", find_member(&r, "path"));
    reply_clear(&r);
    r = result_of(s,
                  post(s, "/api/v1/save_weights_for_sampler",
                       "{\"model_id\":\"%s\",\"seq_id\":4,\"sampling_session_seq_id\":5}", model));
    reply_clear(&r);
    r = post(s, "/api/v1/create_sampling_session",
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":6,\"model_path\":\"%s\"}", session,
             path);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    for (int n = 5; n <= 6; n++) {
        r = result_of(s, post(s, "/api/v1/asample",
                              "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{"
                              "\"max_tokens\":1},\"sampling_session_id\":\"%s:sample:%d\","
                              "\"seq_id\":0}",
                              session, n));
        CHECK(strstr(r.body, "\"tokens\":[302]"));
        reply_clear(&r);
    }
    /* A sample of the process before is gone, and the client is told so. */
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s:sample:6:77\"}", session);
    CHECK_STATUS(r, 410);
    reply_clear(&r);
    server_close(s);
}

static void test_half_written_weights_are_removed(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    server_close(s);
    char path[600];
    snprintf(path, sizeof(path), "%s/checkpoints/0123456789abcdef0123456789abcdef", test_data);
    mkdir(path, 0700);
    char other[600]; /* somebody's own folder of that name */
    snprintf(other, sizeof(other), "%s/checkpoints/my-thesis", test_data);
    mkdir(other, 0700);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK(!os_is_dir(path));
    CHECK(os_is_dir(other));
    server_close(s);
}

/* A model with a saved state and unnamed weights, both on disk. */
static struct server *start_with_weights(char session[64], char model[96])
{
    struct server *s = start_model(NULL, session, model);
    if (!s)
        return NULL;
    CHECK_NEAR(gradient_after(s, model, 1), 0, 0);
    struct reply r = result_of(
        s, post(s, "/api/v1/save_weights_for_sampler",
                "{\"model_id\":\"%s\",\"seq_id\":2,\"sampling_session_seq_id\":0}", model));
    reply_clear(&r);
    CHECK_INT(weights_on_disk(), 2);
    return s;
}

/* Directories beside the one of the weights, into which they were moved. */
static size_t set_aside(void)
{
    size_t n = 0;
    DIR *d = opendir(test_data);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += strncmp(e->d_name, "checkpoints.", 12) == 0;
    if (d)
        closedir(d);
    return n;
}

static void test_weights_outlive_their_database(void)
{
    char session[64], model[96], path[400];
    struct server *s = start_with_weights(session, model);
    REQUIRE(s);
    server_close(s);
    snprintf(path, sizeof(path), "%s/tinker.db", test_data);
    CHECK(unlink(path) == 0);
    for (int i = 0; i < 2; i++) { /* nor does the start after that take them for unfinished */
        s = start_with(NULL);
        REQUIRE(s);
        CHECK_INT(weights_on_disk(), 0);
        CHECK_INT(set_aside(), 1);
        server_close(s);
    }
}

static void test_an_end_that_was_cut_short_leaves_no_weights(void)
{
    char session[64], model[96];
    /* Killed after the end of the session was recorded. */
    struct server *s = start_with_weights(session, model);
    REQUIRE(s);
    CHECK(store_set_session_expired(s->store, session, NULL) == TINKER_OK);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_INT(weights_on_disk(), 0);
    server_close(s);
    /* Killed after it was recorded that the model is unloaded: the session lives on. */
    s = start_with_weights(session, model);
    REQUIRE(s);
    CHECK(store_set_model_status(s->store, model, STORE_MODEL_UNLOADED, NULL) == TINKER_OK);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_INT(weights_on_disk(), 1);
    server_close(s);
}

/* Unnamed weights end with their session, whatever became of the model that made them. */
static void test_unnamed_weights_of_ended_models_go(void)
{
    char session[64], model[96];
    /* The model was unloaded, then the process killed at the end of the session. */
    struct server *s = start_with_weights(session, model);
    REQUIRE(s);
    struct reply r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model));
    reply_clear(&r);
    CHECK_INT(weights_on_disk(), 1);
    CHECK(store_set_session_expired(s->store, session, NULL) == TINKER_OK);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_INT(weights_on_disk(), 0);
    server_close(s);
    /* The model was lost in a restart, then the session ends. */
    s = start_model(no_autosave, session, model);
    REQUIRE(s);
    gradient_after(s, model, 1);
    r = result_of(s,
                  post(s, "/api/v1/save_weights_for_sampler",
                       "{\"model_id\":\"%s\",\"seq_id\":2,\"sampling_session_seq_id\":0}", model));
    reply_clear(&r);
    server_close(s);
    s = start_with(no_autosave);
    REQUIRE(s);
    check_lost(s, model, 3);
    CHECK_INT(weights_on_disk(), 1);
    pthread_mutex_lock(&s->lock);
    struct session *v = live_find_session_locked(s, session);
    pthread_mutex_unlock(&s->lock);
    timers_expire_session(s, v, "was unloaded because its session expired");
    CHECK_INT(weights_on_disk(), 0);
    server_close(s);
}

static void test_one_server_per_directory(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct server_options o;
    tinker_error err = { 0 };
    server_options_init(&o);
    o.models = test_models;
    o.n_models = 1;
    o.port = 0;
    o.data_dir = test_data;
    CHECK(server_open(&o, &err) == NULL);
    CHECK(strstr(err.message, "another server"));
    server_close(s);
}

static void short_gap(struct server_options *o)
{
    o->seq_gap_ms = 1;
}

static void test_a_number_passed_over_stays_so(void)
{
    char session[64], model[96], id[128];
    struct server *s = start_model(short_gap, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 3));
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    /* Request 3 was acknowledged: it does not wait for request 1 again. */
    snprintf(id, sizeof(id), "%s:3", model);
    wait_done(s, id);
    CHECK(is_done(s, id));
    CHECK_NEAR(gradient_after(s, model, 4), 3, 0);
    server_close(s);
}

static void test_unload_survives(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model));
    CHECK_STR(find_member(&r, "type"), "unload_model");
    reply_clear(&r);
    CHECK_INT(atomic_load(&fake_adapters), 0);
    r = result_of(s, forward_backward(s, model, 3));
    CHECK(strstr(find_member(&r, "error"), "has been unloaded"));
    reply_clear(&r);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    char path[300];
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s", model);
    r = send_get(s, path);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_gradients_come_back);
    RUN(test_gradients_come_back_when_there_is_memory);
    RUN(test_a_model_outlives_an_adapter_that_could_not_be_made);
    RUN(test_a_retry_after_restart_is_not_run_twice);
    RUN(test_a_create_is_compared_with_the_record);
    RUN(test_steps_between_two_saves_run_again);
    RUN(test_without_autosave_models_are_lost);
    RUN(test_without_autosave_results_survive);
    RUN(test_old_requests_do_not_hide_that_a_model_is_lost);
    RUN(test_an_old_failure_leaves_no_gap);
    RUN(test_bodies_that_will_not_run_again_go);
    RUN(test_old_requests_of_unsaved_models_go);
    RUN(test_samplers_survive);
    RUN(test_half_written_weights_are_removed);
    RUN(test_weights_outlive_their_database);
    RUN(test_an_end_that_was_cut_short_leaves_no_weights);
    RUN(test_unnamed_weights_of_ended_models_go);
    RUN(test_one_server_per_directory);
    RUN(test_a_number_passed_over_stays_so);
    RUN(test_unload_survives);
    harness_clear();
    return tap_done();
}
