/* The metrics of runs: recorded, thinned, kept over restarts, and nobody else's business. */
#include <math.h>

#include "base/array.h"

#include "server/store/store_history.h"
#include "server/store/store_sql.h"
#include "server/harness.h"

/* ---- points --------------------------------------------------------------------------------- */

static void test_points_are_read_back_as_they_were(void)
{
    static const struct history_point want[] = {
        { 0, 1, 1.5, 1.5, 1.5 },          { 1, 1, -1e300, -1e300, -1e300 },
        { 1000000, 7, 0.25, -4, 8 },      { 3, 1, 2, 2, 2 }, /* back to an earlier step */
        { INT64_C(1) << 53, 1, 3, 3, 3 },
    };
    struct arena arena;
    struct buf b;
    struct history_point *p = NULL;
    size_t n = 0, cap = 0;
    arena_init(&arena, SIZE_MAX);
    buf_init(&b, SIZE_MAX);
    history_encode(want, ARRAY_LEN(want), &b);
    CHECK(history_decode(b.data, b.len, &arena, &p, &n, &cap));
    CHECK_INT(n, ARRAY_LEN(want));
    for (size_t i = 0; i < n; i++)
        if (p[i].step != want[i].step || p[i].n != want[i].n || p[i].mean != want[i].mean ||
            p[i].min != want[i].min || p[i].max != want[i].max)
            TAP_FAIL("point %zu: step %lld, n %llu, mean %g", i, (long long)p[i].step,
                     (unsigned long long)p[i].n, p[i].mean);
    /* Whatever a broken disk left: no crash, and no endless loop. */
    for (size_t cut = 1; cut < b.len; cut++) {
        n = 0;
        history_decode(b.data, cut, &arena, &p, &n, &cap);
        CHECK(n <= ARRAY_LEN(want));
    }
    buf_clear(&b);
    arena_clear(&arena);
}

static void test_thinning_keeps_minimum_maximum_and_mean(void)
{
    enum { N = 10000, KEEP = 100, TARGET = 500 };
    static struct history_point p[N];
    double sum = 0, seen = 0;
    uint64_t count = 0;
    for (size_t i = 0; i < N; i++) {
        double v = i == 4321 ? 1000 : i == 777 ? -1000 : sin((double)i);
        p[i] = (struct history_point){ (int64_t)i, 1, v, v, v };
        sum += v;
    }
    size_t n = history_thin(p, N, KEEP, TARGET);
    CHECK(n > TARGET / 2 && n <= TARGET + KEEP + 2);
    double low = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        seen += p[i].mean * (double)p[i].n;
        count += p[i].n;
        low = fmin(low, p[i].min);
        top = fmax(top, p[i].max);
        CHECK(i == 0 || p[i].step > p[i - 1].step);
    }
    CHECK_INT(count, N);
    CHECK(fabs(seen - sum) < 1e-6);
    CHECK(low == -1000 && top == 1000);
    for (size_t i = 0; i < KEEP; i++) /* the newest are as they were */
        CHECK(p[n - 1 - i].n == 1 && p[n - 1 - i].step == (int64_t)(N - 1 - i));
    /* A value that is not a number hides no other. */
    struct history_point odd[] = { { 0, 1, NAN, NAN, NAN }, { 1, 1, 2, 2, 2 }, { 2, 1, 4, 4, 4 } };
    CHECK_INT(history_thin(odd, 3, 0, 1), 1 + 1);
    CHECK(odd[0].mean == 2 && odd[0].n == 2 && odd[1].mean == 4);
}

/* ---- the store ------------------------------------------------------------------------------ */

static void add_one(struct history *h, const char *run, int64_t step, const char *name, double v)
{
    history_add(h, run, step, &(struct history_value){ name, v, HISTORY_REPLACE, 0 }, 1);
}

static size_t read_all(struct store *store, const char *run, const char *name, struct arena *arena,
                       struct history_point **p)
{
    int64_t id = 0;
    size_t n = 0;
    *p = NULL;
    if (store_find_series(store, run, name, &id, NULL) == TINKER_OK && id)
        store_read_series(store, id, false, arena, p, &n, NULL);
    return n;
}

static struct store *open_store(void)
{
    char path[400];
    tinker_error err = { 0 };
    os_make_dirs(test_data, NULL);
    snprintf(path, sizeof(path), "%s/tinker.db", test_data);
    struct store *store = store_open(path, &err);
    if (!store)
        TAP_FAIL("%s", err.message);
    return store;
}

static void test_every_step_of_5000_is_there_after_a_restart(void)
{
    struct arena arena;
    struct history_point *p;
    os_remove_tree(test_data, NULL);
    arena_init(&arena, SIZE_MAX);
    for (int life = 0; life < 2; life++) { /* the second one goes on in the middle of a chunk */
        struct store *store = open_store();
        REQUIRE(store);
        struct history *h = history_new(store, &quiet);
        for (int64_t step = life * 2500; step < (life + 1) * 2500; step++) {
            add_one(h, "r", step, "loss", 1.0 / (double)(step + 3));
            if (step % 97 == 0)
                CHECK_INT(history_flush(h, NULL), TINKER_OK);
        }
        CHECK_INT(history_flush(h, NULL), TINKER_OK);
        history_free(h);
        store_close(store);
    }
    struct store *store = open_store();
    REQUIRE(store);
    size_t n = read_all(store, "r", "loss", &arena, &p);
    CHECK_INT(n, 5000);
    for (size_t i = 0; i < n; i++)
        if (p[i].step != (int64_t)i || p[i].n != 1 || p[i].mean != 1.0 / (double)(i + 3))
            TAP_FAIL("step %zu: %lld %.17g", i, (long long)p[i].step, p[i].mean);
    store_close(store);
    arena_clear(&arena);
}

static int64_t stored_bytes(struct store *store)
{
    int64_t pages = 0, size = 0;
    pthread_mutex_lock(&store->lock);
    sql_int(store, "PRAGMA page_count", NULL, 0, 0, &pages, NULL);
    sql_int(store, "PRAGMA page_size", NULL, 0, 0, &size, NULL);
    pthread_mutex_unlock(&store->lock);
    return pages * size;
}

/* All that a step records, 100,000 times: at most 5 MB, and the newest steps are exact. */
static void test_100000_steps_take_at_most_5_megabytes(void)
{
    static const char *const names[] = { "loss",           "loss:sum",
                                         "weight:sum",     "num_tokens:sum",
                                         "num_datums:sum", "pass_seconds:sum",
                                         "time",           "learning_rate:mean",
                                         "grad_norm:mean", "update_norm:mean",
                                         "clip_coef:mean", "optim_seconds",
                                         "reward",         "kl",
                                         "entropy" };
    enum { STEPS = 100000 };
    struct arena arena;
    struct history_point *p;
    os_remove_tree(test_data, NULL);
    arena_init(&arena, SIZE_MAX);
    struct store *store = open_store();
    REQUIRE(store);
    struct history *h = history_new(store, &quiet);
    for (int64_t step = 1; step <= STEPS; step++) {
        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            add_one(h, "5f0c2a4e-0000-4000-8000-0123456789ab:train:0", step, names[i],
                    sin((double)step * (double)(i + 1)));
        if (step % 1000 == 0)
            CHECK_INT(history_flush(h, NULL), TINKER_OK);
    }
    int64_t bytes = stored_bytes(store);
    printf("# figure: %d steps of %zu metrics take %.2f MB\n", STEPS, ARRAY_LEN(names),
           (double)bytes / 1e6);
    CHECK(bytes < 5000000);
    size_t n = read_all(store, "5f0c2a4e-0000-4000-8000-0123456789ab:train:0", "loss", &arena, &p);
    uint64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += p[i].n;
    CHECK_INT(count, STEPS);
    CHECK(n <= HISTORY_MAX_POINTS + 2000);
    for (size_t i = 0; i < HISTORY_KEEP_POINTS; i++)
        CHECK(p[n - 1 - i].n == 1 && p[n - 1 - i].step == (int64_t)(STEPS - i));
    /* No part of the run is much coarser than the others. */
    for (size_t i = 0; i < n; i++)
        CHECK(p[i].n <= 64);
    history_free(h);
    store_close(store);
    arena_clear(&arena);
}

static void test_a_disk_that_cannot_be_written_loses_no_point(void)
{
    struct arena arena;
    struct history_point *p;
    os_remove_tree(test_data, NULL);
    arena_init(&arena, SIZE_MAX);
    struct store *store = open_store();
    REQUIRE(store);
    struct history *h = history_new(store, &quiet);
    pthread_mutex_lock(&store->lock);
    sqlite3_exec(store->db, "PRAGMA query_only=1", NULL, NULL, NULL);
    pthread_mutex_unlock(&store->lock);
    for (int64_t step = 1; step <= 1000; step++)
        add_one(h, "r", step, "loss", (double)step);
    CHECK(history_flush(h, NULL) != TINKER_OK);
    pthread_mutex_lock(&store->lock);
    sqlite3_exec(store->db, "PRAGMA query_only=0", NULL, NULL, NULL);
    pthread_mutex_unlock(&store->lock);
    add_one(h, "r", 1001, "loss", 1001);
    CHECK_INT(history_flush(h, NULL), TINKER_OK);
    CHECK_INT(read_all(store, "r", "loss", &arena, &p), 1001);
    history_free(h);
    store_close(store);
    arena_clear(&arena);
}

/* ---- the server ----------------------------------------------------------------------------- */

static char metrics_path[200];

static struct reply get_metrics(struct server *s, const char *key, const char *format,
                                const char *names)
{
    struct ask a = { .method = "GET",
                     .path = metrics_path,
                     .key = key,
                     .query = { { "format", format }, { "names", names } } };
    return send_ask(s, &a);
}

/* Two passes and a step are one step; its loss is the mean over weighted tokens of both. */
static void test_a_batch_in_two_requests_is_one_step(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    snprintf(metrics_path, sizeof(metrics_path), "/api/v1/training_runs/%s/metrics", model);
    /* The fake loss is the number of tokens: 2 with weight 1, then 3 with weight 3. */
    struct reply r = result_of(
        s, post(s, "/api/v1/forward_backward",
                "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_backward_input\":{\"data\":[{"
                "\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[5,6]}]},"
                "\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[6,7],\"dtype\":\"int64\"},"
                "\"weights\":{\"data\":[0,1],\"dtype\":\"float32\"}}}],"
                "\"loss_fn\":\"cross_entropy\"}}",
                model));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = result_of(s, forward_backward(s, model, 2));
    reply_clear(&r);
    r = get_metrics(s, NULL, NULL, "loss,loss:sum,weight:sum");
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"loss\":{\"steps\":[1],\"values\":[1.25]}"));
    CHECK(strstr(r.body, "\"loss:sum\":{\"steps\":[1],\"values\":[5.0]}"));
    CHECK(strstr(r.body, "\"weight:sum\":{\"steps\":[1],\"values\":[4.0]}"));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 3, 0.5));
    reply_clear(&r);
    r = result_of(s, forward_backward(s, model, 4));
    reply_clear(&r);
    r = get_metrics(s, NULL, "csv", "loss,learning_rate:mean");
    CHECK_STATUS(r, 200);
    CHECK_STR(r.body, "step,\"learning_rate:mean\",\"loss\"\r\n1,0.5,1.25\r\n2,,1\r\n");
    reply_clear(&r);
    server_close(s);
    /* The same after a restart, and the run goes on at its step. */
    s = start_with(NULL);
    REQUIRE(s);
    r = result_of(s, optim_step(s, model, 5, 0.25));
    reply_clear(&r);
    r = get_metrics(s, NULL, "csv", "loss,learning_rate:mean");
    CHECK_STR(r.body, "step,\"learning_rate:mean\",\"loss\"\r\n1,0.5,1.25\r\n2,0.25,1\r\n");
    reply_clear(&r);
    r = send_get(s, "/api/v1/training_run_summaries");
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"step\":2,") && strstr(r.body, "\"loss\":1.0,"));
    reply_clear(&r);
    server_close(s);
}

static struct reply log_body(struct server *s, const char *key, const char *body)
{
    struct ask a = { .method = "POST", .path = metrics_path, .key = key, .body = body };
    return send_ask(s, &a);
}

static void test_programs_log_metrics_and_texts(void)
{
    char session[64], model[96], path[200];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    snprintf(metrics_path, sizeof(metrics_path), "/api/v1/training_runs/%s/metrics", model);
    struct reply r = log_body(s, NULL,
                              "[{\"step\":3,\"metrics\":{\"reward\":0.5,\"none\":null,\"loss\":9},"
                              "\"texts\":[{\"prompt\":\"p\",\"text\":\"<b>t\",\"label\":\"l\"}]},"
                              "{\"metrics\":{\"=cmd()\":1}}]");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    r = get_metrics(s, NULL, "csv", NULL);
    /* A second loss stays beside the server's own; a name is never a formula. */
    CHECK_STR(r.body, "step,\"'=cmd()\",\"client/loss\",\"reward\"\r\n0,1,,\r\n3,,9,0.5\r\n");
    reply_clear(&r);
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/texts", model);
    r = send_get(s, path);
    CHECK(strstr(r.body, "\"step\":3,") && strstr(r.body, "\"text\":\"<b>t\""));
    reply_clear(&r);
    static const struct {
        const char *body, *says;
    } bad[] = {
        { "{\"step\":1}", "neither metrics nor texts" },
        { "{\"step\":-1,\"metrics\":{\"a\":1}}", "step must be" },
        { "{\"metrics\":{\"\":1}}", "a name must have" },
        { "{\"metrics\":{\"a\\nb\":1}}", "control character" },
        { "{\"metrics\":{\"a\":\"x\"}}", "number" },
        { "{\"metrics\":{\"a\":NaN}}", "" },
        { "{\"texts\":[{\"prompt\":\"x\"}]}", "text is missing" },
        { "[]x", "" },
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        r = log_body(s, NULL, bad[i].body);
        if (r.status != 422 || !strstr(r.body, bad[i].says))
            TAP_FAIL("%s: %d %s", bad[i].body, r.status, r.body);
        reply_clear(&r);
    }
    /* The number of metrics is bounded, and the message says by what. */
    struct buf b;
    buf_init(&b, SIZE_MAX);
    buf_puts(&b, "{\"step\":4,\"metrics\":{");
    for (int i = 0; i < HISTORY_MAX_SERIES + 1; i++)
        buf_printf(&b, "%s\"m%d\":1", i ? "," : "", i);
    buf_puts(&b, "}}");
    r = log_body(s, NULL, b.data);
    CHECK_STATUS(r, 422);
    CHECK(strstr(r.body, "256 metrics"));
    reply_clear(&r);
    buf_clear(&b);
    server_close(s);
}

static void test_names_and_notes_stay(void)
{
    char session[64], model[96], path[200];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/note", model);
    struct ask put = { .method = "PUT",
                       .path = path,
                       .body = "{\"name\":\"first try\",\"notes\":\"lr too high\","
                               "\"planned_steps\":200}" };
    struct reply r = send_ask(s, &put);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    put.body = "{\"notes\":\"lr fine\"}"; /* the rest stays */
    r = send_ask(s, &put);
    reply_clear(&r);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    r = send_get(s, path);
    CHECK_STR(r.body, "{\"name\":\"first try\",\"notes\":\"lr fine\",\"planned_steps\":200}");
    reply_clear(&r);
    put.body = "{\"planned_steps\":-1}";
    r = send_ask(s, &put);
    CHECK_STATUS(r, 422);
    reply_clear(&r);
    server_close(s);
}

/* The state of the only run, and whether it can still be saved. */
static bool is_state(struct server *s, const char *want)
{
    struct reply r = send_get(s, "/api/v1/training_run_summaries");
    bool same = strstr(r.body, want) != NULL;
    if (!same)
        printf("# want %s in %s\n", want, r.body);
    reply_clear(&r);
    return same;
}

static void plan(struct server *s, const char *model, const char *body)
{
    char path[200];
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/note", model);
    struct ask put = { .method = "PUT", .path = path, .body = body };
    struct reply r = send_ask(s, &put);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
}

/* A program that is done says nothing: the steps that it announced tell.  One that ended before
 * them was stopped. */
static void test_a_run_is_finished_with_its_last_step(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 2, 0.5));
    reply_clear(&r);
    CHECK(is_state(s, "\"state\":\"training\",\"in_memory\":true"));
    CHECK(is_state(s, "\"tokens\":3,")); /* what was trained on */
    plan(s, model, "{\"planned_steps\":1}");
    CHECK(is_state(s, "\"state\":\"finished\",\"in_memory\":true"));
    plan(s, model, "{\"planned_steps\":2}");
    CHECK(is_state(s, "\"state\":\"training\",\"in_memory\":true"));
    r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model));
    reply_clear(&r);
    CHECK(is_state(s, "\"state\":\"stopped\",\"in_memory\":false"));
    plan(s, model, "{\"planned_steps\":0}"); /* nobody knows better */
    CHECK(is_state(s, "\"state\":\"finished\",\"in_memory\":false"));
    server_close(s);
}

static void test_the_history_of_others_is_not_found(void)
{
    static const struct {
        const char *method, *tail, *body;
    } asks[] = { { "GET", "metrics", NULL },
                 { "POST", "metrics", "{\"step\":1,\"metrics\":{\"a\":1}}" },
                 { "GET", "texts", NULL },
                 { "GET", "note", NULL },
                 { "PUT", "note", "{\"name\":\"mine\"}" } };
    struct server *s = start_fresh(two_keys);
    REQUIRE(s);
    struct ask a = { .method = "POST",
                     .path = "/api/v1/create_session",
                     .key = ALICE,
                     .body = "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\"}" };
    struct reply r = send_ask(s, &a);
    char body[300], model[96], path[200];
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"test/"
             "model\",\"lora_config\":{\"rank\":8}}",
             find_member(&r, "session_id"));
    snprintf(model, sizeof(model), "%s:train:0", find_member(&r, "session_id"));
    reply_clear(&r);
    a.path = "/api/v1/create_model";
    a.body = body;
    r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
        snprintf(path, sizeof(path), "/api/v1/training_runs/%s/%s", model, asks[i].tail);
        struct ask one = {
            .method = asks[i].method, .path = path, .key = BOB, .body = asks[i].body
        };
        r = send_ask(s, &one);
        CHECK_STATUS(r, 404);
        reply_clear(&r);
        one.key = NULL;
        r = send_ask(s, &one);
        CHECK_STATUS(r, 401);
        reply_clear(&r);
        one.key = ALICE;
        r = send_ask(s, &one);
        CHECK(r.status == 200 || r.status == 204);
        reply_clear(&r);
    }
    a = (struct ask){ .method = "GET", .path = "/api/v1/training_run_summaries", .key = BOB };
    r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    CHECK(!strstr(r.body, model) && strstr(r.body, "\"runs\":[]"));
    reply_clear(&r);
    /* One run by its id: its owner's, and nobody else's. */
    a = (struct ask){ .method = "GET",
                      .path = "/api/v1/training_run_summaries",
                      .key = BOB,
                      .query = { { "id", model } } };
    r = send_ask(s, &a);
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    a.key = ALICE;
    r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, model) && strstr(r.body, "\"total\":1,"));
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init_in_memory();
    RUN(test_points_are_read_back_as_they_were);
    RUN(test_thinning_keeps_minimum_maximum_and_mean);
    RUN(test_every_step_of_5000_is_there_after_a_restart);
    RUN(test_100000_steps_take_at_most_5_megabytes);
    RUN(test_a_disk_that_cannot_be_written_loses_no_point);
    RUN(test_a_batch_in_two_requests_is_one_step);
    RUN(test_programs_log_metrics_and_texts);
    RUN(test_names_and_notes_stay);
    RUN(test_a_run_is_finished_with_its_last_step);
    RUN(test_the_history_of_others_is_not_found);
    harness_clear();
    return tap_done();
}
