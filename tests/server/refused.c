/* A request that is refused, or that could not be recorded, leaves its model as it was, also where
 * nothing but memory has it: --autosave off. */
#include <signal.h>
#include <sys/resource.h>

#include "server/store/store_sql.h"
#include "server/store/timers.h"
#include "server/harness.h"

static void unsaved(struct server_options *o)
{
    o->autosave = 0;
}

static void unsaved_and_few(struct server_options *o)
{
    o->autosave = 0;
    o->max_adapters = 2;
}

/* One pass and one step, so that neither seed nor disk can make the weights again. */
static void train_once(struct server *s, const char *model)
{
    struct reply r = result_of(s, forward_backward(s, model, 1));
    CHECK(strstr(r.body, "loss:sum"));
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, model, 2), 3, 0);
}

/* The weights are those after train_once(), and another step is the second. */
static void check_trained(struct server *s, const char *model, int seq)
{
    struct reply r = result_of(s, forward_backward(s, model, seq));
    CHECK(strstr(r.body, "loss:sum"));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, seq + 1, 1));
    CHECK(strstr(r.body, "\"step:max\":2.0"));
    reply_clear(&r);
    pthread_mutex_lock(&s->lock);
    struct model *m = live_find_model_locked(s, model);
    pthread_mutex_unlock(&s->lock);
    REQUIRE(m && m->adapter);
    CHECK_NEAR(m->adapter->value, 6, 0); /* nothing runs: the engine thread does not touch it */
}

static void test_a_step_to_infinity(void)
{
    char session[64], model[96];
    struct server *s = start_model(unsaved, session, model);
    REQUIRE(s);
    train_once(s, model);
    struct reply r = result_of(s, forward_backward(s, model, 3));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 4, 2e38)); /* times a gradient of 3 */
    CHECK(strstr(find_member(&r, "error"), "not finite"));
    CHECK_STR(find_member(&r, "category"), "user");
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, model, 5), 3, 0); /* it is still there */
    r = result_of(s, forward_backward(s, model, 6));
    CHECK(strstr(r.body, "loss:sum"));
    reply_clear(&r);
    server_close(s);
}

/* Without a number a load may come at any time. */
static void test_a_load_from_nowhere(void)
{
    char session[64], model[96];
    void (*const options[])(struct server_options *) = { unsaved, unsaved_and_few };
    for (size_t i = 0; i < 2; i++) {
        struct server *s = start_model(options[i], session, model);
        REQUIRE(s);
        train_once(s, model);
        struct reply r = result_of(s, post(s, "/api/v1/load_weights",
                                           "{\"model_id\":\"%s\",\"path\":\"tinker://%s/weights/"
                                           "typo\",\"optimizer\":false}",
                                           model, model));
        CHECK(strstr(find_member(&r, "error"), "no checkpoint"));
        reply_clear(&r);
        check_trained(s, model, 4);
        server_close(s);
    }
}

/* The checkpoint is there, but its files are not what the record says. */
static void test_a_load_that_cannot_be_read(void)
{
    char session[64], model[96], path[400];
    struct server *s = start_model(unsaved_and_few, session, model);
    REQUIRE(s);
    train_once(s, model);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":3,\"path\":\"a\"}", model));
    CHECK(strstr(find_member(&r, "path"), "weights/a"));
    reply_clear(&r);
    snprintf(path, sizeof(path), "%s/checkpoints", test_data);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char file[800];
        snprintf(file, sizeof(file), "%s/%s/adapter_model.safetensors", path, e->d_name);
        unlink(file);
    }
    closedir(d);
    r = result_of(s, post(s, "/api/v1/load_weights",
                          "{\"model_id\":\"%s\",\"path\":\"tinker://%s/weights/a\","
                          "\"optimizer\":false}",
                          model, model));
    CHECK(find_member(&r, "error")[0]);
    reply_clear(&r);
    check_trained(s, model, 5);
    server_close(s);
}

/* No file may grow. */
static void set_full(bool full)
{
    struct rlimit r;
    fflush(stdout);
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = full ? 0 : r.rlim_max;
    setrlimit(RLIMIT_FSIZE, &r);
}

/* The disk fills up between the journal and the outcome: the step was taken, and without autosave
 * memory is all there is, so it counts. */
static void test_an_outcome_that_cannot_be_recorded(void)
{
    char session[64], model[96], id[128];
    struct server *s = start_model(unsaved, session, model);
    REQUIRE(s);
    train_once(s, model);
    atomic_store(&fake_step_us, 200000);
    struct reply r = forward_backward(s, model, 3);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    set_full(true);
    snprintf(id, sizeof(id), "%s:3", model);
    wait_done(s, id);
    set_full(false);
    atomic_store(&fake_step_us, 0);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", id);
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 4, 1));
    CHECK(strstr(r.body, "\"step:max\":2.0"));
    CHECK(strstr(r.body, "\"grad_norm:mean\":3.0"));
    reply_clear(&r);
    /* Recorded later: the result outlives the memory. */
    timers_run_once(s, true);
    struct arena arena;
    struct store_request *stored = NULL;
    arena_init(&arena, SIZE_MAX);
    CHECK_INT(store_get_request(s->store, model, 3, true, &arena, &stored, NULL), TINKER_OK);
    CHECK(stored && stored->status == STORE_DONE && stored->n_result && !stored->body);
    arena_clear(&arena);
    server_close(s);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN);
    harness_init();
    RUN(test_a_step_to_infinity);
    RUN(test_a_load_from_nowhere);
    RUN(test_a_load_that_cannot_be_read);
    RUN(test_an_outcome_that_cannot_be_recorded);
    harness_clear();
    return tap_done();
}
