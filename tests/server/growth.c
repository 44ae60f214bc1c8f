/* Many of everything: work grows with what there is to do, not with what there is.
 *
 * Counted are SQLite's own steps, and the plans of all statements: a table that is walked from end
 * to end is found even where it is small. */
#include <sqlite3.h>

#include "server/store/store_sql.h"
#include "server/store/timers.h"
#include "server/harness.h"

static struct fake_clock fake;

static void fake_time(struct server_options *o)
{
    fake_clock_init(&fake);
    o->clock = &fake.clock;
}

/* Virtual machine steps of all statements so far. */
static int64_t sum_steps(struct server *s)
{
    int64_t n = 0;
    pthread_mutex_lock(&s->store->lock);
    for (size_t i = 0; i < s->store->n_cache; i++)
        n += sqlite3_stmt_status(s->store->cache[i].stmt, SQLITE_STMTSTATUS_VM_STEP, 0);
    pthread_mutex_unlock(&s->store->lock);
    return n;
}

static void call(struct server *s, const char *method, const char *path, const char *body)
{
    struct ask a = { .method = method, .path = path, .body = body };
    struct reply r = send_ask(s, &a);
    if (r.status >= 300 && r.status != 302)
        TAP_FAIL("%s %s: %d %s", method, path, r.status, r.body);
    reply_clear(&r);
}

/* Every kind of request once, so that every statement is in the cache. */
static void use_everything(struct server *s)
{
    char session[64], model[96], path[300], body[600];
    make_session(s, session);
    make_model(s, session, 0, model);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 2, 1));
    reply_clear(&r);
    static const char *const saves[] = { "save_weights", "save_weights_for_sampler" };
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "/api/v1/%s", saves[i]);
        r = result_of(
            s, post(s, path, "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"a\"}", model, 3 + i));
        reply_clear(&r);
    }
    r = result_of(s,
                  post(s, "/api/v1/save_weights_for_sampler",
                       "{\"model_id\":\"%s\",\"seq_id\":5,\"sampling_session_seq_id\":0}", model));
    reply_clear(&r);
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":1,\"model_path\":\"tinker://%s/"
             "weights/a\"}",
             session, model);
    call(s, "POST", "/api/v1/create_sampling_session", body);
    snprintf(body, sizeof(body), "{\"sampling_session_id\":\"%s:sample:1\"}", session);
    call(s, "POST", "/api/v1/join_sampling_session", body);
    static const char *const lists[] = { "sessions", "training_runs", "checkpoints",
                                         "billing/usage/checkpoints/current" };
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "/api/v1/%s", lists[i]);
        call(s, "GET", path, NULL);
    }
    call(s, "POST", "/api/v1/sessions/search", "{\"owner\":{\"type\":\"own\"},\"limit\":10}");
    call(s, "GET", "/v1/models", NULL);
    snprintf(path, sizeof(path), "/api/v1/sessions/%s", session);
    call(s, "GET", path, NULL);
    snprintf(path, sizeof(path), "/api/v1/sessions/%s/project", session);
    call(s, "PUT", path, "{\"project_id\":\"p\"}");
    snprintf(path, sizeof(path), "/api/v1/sessions/%s/trace_export", session);
    call(s, "GET", path, NULL);
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints", model);
    call(s, "GET", path, NULL);
    static const char *const changes[][3] = { { "POST", "/publish", NULL },
                                              { "DELETE", "/publish", NULL },
                                              { "PUT", "/ttl", "{\"ttl_seconds\":100}" },
                                              { "DELETE", "", NULL } };
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints/weights/a%s", model,
                 changes[i][1]);
        call(s, changes[i][0], path, changes[i][2]);
    }
    snprintf(body, sizeof(body),
             "{\"source_path\":\"tinker://%s/sampler_weights/a\",\"destination_project_id\":\"p\","
             "\"ttl_seconds\":5}",
             model);
    call(s, "POST", "/api/v1/copy_weights", body);
    snprintf(body, sizeof(body), "{\"request_id\":\"%s:77\"}", model);
    struct ask a = { .method = "POST", .path = "/api/v1/retrieve_future", .body = body };
    r = send_ask(s, &a);
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model));
    reply_clear(&r);
    snprintf(path, sizeof(path), "/api/v1/sessions/%s/finish", session);
    call(s, "POST", path, "{\"reason\":{\"type\":\"success\"}}");
    fake_clock_advance_ms(&fake, 20 * 1000);
    timers_run_once(s, true);
}

/* Statements of the start, which look at everything once. */
static bool is_for_start(const char *sql)
{
    return strstr(sql, "?1 IS NULL AND (?2=0 OR expired=0)") ||
           strstr(sql, "?1 IS NULL AND ?2 IS NULL") ||
           strstr(sql, "DELETE FROM checkpoints WHERE hidden=1 AND EXISTS");
}

static void test_every_statement_has_an_index(void)
{
    struct server *s = start_fresh(fake_time);
    REQUIRE(s);
    use_everything(s);
    size_t explained = 0;
    pthread_mutex_lock(&s->store->lock);
    for (size_t i = 0; i < s->store->n_cache; i++) {
        const char *sql = s->store->cache[i].sql;
        if (is_for_start(sql))
            continue;
        char *explain = sqlite3_mprintf("EXPLAIN QUERY PLAN %s", sql);
        sqlite3_stmt *stmt = NULL;
        CHECK(sqlite3_prepare_v2(s->store->db, explain, -1, &stmt, NULL) == SQLITE_OK);
        while (sqlite3_step(stmt) == SQLITE_ROW) {
            const char *plan = (const char *)sqlite3_column_text(stmt, 3);
            if (strncmp(plan, "SCAN ", 5) == 0 && strcmp(plan, "SCAN CONSTANT ROW") != 0)
                TAP_FAIL("%s: %s", sql, plan);
            explained++;
        }
        sqlite3_finalize(stmt);
        sqlite3_free(explain);
    }
    CHECK(explained > 40);
    CHECK(s->store->n_cache > 45);
    pthread_mutex_unlock(&s->store->lock);
    server_close(s);
}

/* Have all models ended, and is nothing left to do for the engine thread? */
static bool is_quiet(struct server *s)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    bool over = true;
    pthread_mutex_lock(&s->lock);
    while (over && map_next(&s->models, &it, &key, &n, &value)) {
        const struct model *m = value;
        over = m->state == MODEL_UNLOADED && !m->busy && !m->pending && !m->pins;
    }
    pthread_mutex_unlock(&s->lock);
    return over;
}

/* Steps of making n sessions with a model each, and of ending them all. */
static void count_session_steps(int n, int64_t *made, int64_t *ended)
{
    char session[64], id[128];
    struct server *s = start_fresh(fake_time);
    REQUIRE(s);
    int64_t start = sum_steps(s);
    for (int i = 0; i < n; i++) {
        make_session(s, session);
        struct reply r = post(s, "/api/v1/create_model",
                              "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":"
                              "\"test/model\",\"lora_config\":{\"rank\":8}}",
                              session);
        CHECK_STATUS(r, 200);
        reply_clear(&r);
        snprintf(id, sizeof(id), "%s:train:0:0", session);
        wait_done(s, id);
    }
    *made = sum_steps(s) - start;
    start = sum_steps(s);
    fake_clock_advance_ms(&fake, 301 * 1000);
    timers_run_once(s, true);
    for (int i = 0; i < 10000 && !is_quiet(s); i++)
        nap_ms(1);
    *ended = sum_steps(s) - start;
    server_close(s);
}

static void test_sessions_end_in_linear_time(void)
{
    int64_t made[2], ended[2];
    count_session_steps(300, &made[0], &ended[0]);
    count_session_steps(1200, &made[1], &ended[1]);
    printf("# steps for 300 and 1200 sessions: made %lld %lld, ended %lld %lld\n",
           (long long)made[0], (long long)made[1], (long long)ended[0], (long long)ended[1]);
    CHECK(made[1] < 5 * made[0]);
    CHECK(ended[1] < 5 * ended[0]);
}

/* The last page of a search costs as much as the first. */
static void test_a_search_goes_through_its_sessions_once(void)
{
    char session[64], body[300];
    struct server *s = start_fresh(fake_time);
    REQUIRE(s);
    for (int i = 0; i < 1000; i++) {
        fake_clock_advance_ms(&fake, 1);
        make_session(s, session);
    }
    int64_t first = 0, page = 0, most = 0;
    snprintf(body, sizeof(body), "{\"owner\":{\"type\":\"own\"},\"limit\":100}");
    size_t pages = 0, found = 0;
    while (body[0]) {
        int64_t start = sum_steps(s);
        struct reply r = post(s, "/api/v1/sessions/search", "%s", body);
        CHECK_STATUS(r, 200);
        page = sum_steps(s) - start;
        first = pages++ ? first : page;
        most = page > most ? page : most;
        for (const char *p = r.body; (p = strstr(p, "\"created_at\"")) != NULL; p++)
            found++;
        const char *next = strstr(r.body, "\"next_cursor\":{");
        body[0] = 0;
        if (next)
            snprintf(body, sizeof(body),
                     "{\"owner\":{\"type\":\"own\"},\"limit\":100,\"cursor\":{%.*s}}",
                     (int)strcspn(next + 15, "}"), next + 15);
        reply_clear(&r);
    }
    CHECK_INT(pages, 10);
    CHECK_INT(found, 1000);
    printf("# steps of the first page %lld, of the dearest %lld\n", (long long)first,
           (long long)most);
    CHECK(most < first + first / 10);
    server_close(s);
}

/* The numbers of one model in no order at all, behind a number that is missing. */
static void test_requests_in_no_order(void)
{
    enum { N = 100000 };
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    pthread_mutex_lock(&s->lock);
    struct model *m = live_find_model_locked(s, model);
    for (int64_t i = 0; i < N; i++) {
        int64_t seq = 2 + i * 48271 % N; /* each once: N and the factor have no common divisor */
        char id[128];
        snprintf(id, sizeof(id), "%s:%lld", model, (long long)seq);
        struct job *job = job_new(JOB_FORWARD);
        struct future *f = live_add_future_locked(s, id, m->owner, JOB_FORWARD, job);
        f->model = m;
        f->session = m->session;
        f->seq = seq;
        m->n_futures++;
        queue_train_locked(s, f);
    }
    int64_t n = 0, last = 1;
    bool ordered = true;
    for (struct future *f = m->pending; f; f = f->next, n++) {
        ordered = ordered && f->seq == last + 1;
        last = f->seq;
    }
    CHECK(ordered);
    CHECK_INT(n, N);
    CHECK(m->last->seq == N + 1 && !m->last->next);
    struct future *dropped = queue_drop_model_locked(s, m);
    CHECK_INT(s->queued_bytes, 0);
    for (size_t i = 0; i < QUEUE_LANES; i++)
        CHECK(!m->lanes[i]);
    for (struct future *f = dropped; f; f = f->next)
        f->state = FUTURE_FAILED;
    pthread_mutex_unlock(&s->lock);
    server_close(s);
}

enum { MANY_SESSIONS = 10000, MANY_REQUESTS = 100000, PER_CHECKPOINT = 10, TENTHS = 10 };

static void add_sessions(struct server *s, int from, int to)
{
    for (int i = from; i < to; i++) {
        char id[64];
        snprintf(id, sizeof(id), "many-%d", i);
        struct store_session v = {
            .id = id, .owner = "local", .created_us = i + 1, .seen_us = i + 1
        };
        CHECK_INT(store_add_session(s->store, &v, NULL), TINKER_OK);
    }
}

/* Requests of one model, recorded and finished; every tenth leaves a checkpoint. */
static void add_requests(struct server *s, const char *model, int from, int to)
{
    for (int i = from; i < to; i++) {
        char name[32];
        snprintf(name, sizeof(name), "c%d", i);
        struct store_request r = {
            .model_id = model, .seq = 10 + i, .kind = JOB_SAVE, .body = "{}", .n_body = 2
        };
        CHECK_INT(store_add_request(s->store, &r, NULL), TINKER_OK);
        struct store_checkpoint c = { .run = model,
                                      .name = name,
                                      .owner = "local",
                                      .base_model = "test/model",
                                      .kind = STORE_TRAINING,
                                      .dir = name,
                                      .created_us = i + 1 };
        struct store_outcome o = { .model_id = model,
                                   .seq = 10 + i,
                                   .status = STORE_DONE,
                                   .result = "{}",
                                   .n_result = 2,
                                   .drop_body = true,
                                   .checkpoint = i % PER_CHECKPOINT ? NULL : &c,
                                   .now_us = live_wall_us(s) };
        CHECK_INT(store_finish_request(s->store, &o, NULL), TINKER_OK);
    }
}

/* Does the last tenth take as many steps as the first?  The trees of the indexes become a level
 * higher, no more. */
static void check_tenths(const char *what, const int64_t steps[TENTHS])
{
    int64_t all = 0;
    for (int i = 0; i < TENTHS; i++)
        all += steps[i];
    printf("# %s: %lld steps of the first tenth, %lld of the last, %lld of all\n", what,
           (long long)steps[0], (long long)steps[TENTHS - 1], (long long)all);
    CHECK(steps[TENTHS - 1] < steps[0] + steps[0] / 5);
}

static void test_a_large_store(void)
{
    char session[64], model[96];
    int64_t sessions[TENTHS], requests[TENTHS];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    for (int i = 0; i < TENTHS; i++) {
        int64_t start = sum_steps(s);
        add_sessions(s, MANY_SESSIONS / TENTHS * i, MANY_SESSIONS / TENTHS * (i + 1));
        sessions[i] = sum_steps(s) - start;
        start = sum_steps(s);
        add_requests(s, model, MANY_REQUESTS / TENTHS * i, MANY_REQUESTS / TENTHS * (i + 1));
        requests[i] = sum_steps(s) - start;
    }
    check_tenths("10,000 sessions", sessions);
    check_tenths("100,000 requests with 10,000 checkpoints", requests);
    /* Pages of listings, the last one included. */
    for (int offset = 0; offset < 10000; offset += 9900) {
        char text[16];
        int64_t start = sum_steps(s);
        snprintf(text, sizeof(text), "%d", offset);
        struct ask a = { .method = "GET",
                         .path = "/api/v1/checkpoints",
                         .query = { { "limit", "100" }, { "offset", text } } };
        struct reply r = send_ask(s, &a);
        CHECK_STATUS(r, 200);
        CHECK(strstr(r.body, offset ? "weights/c100\"" : "weights/c99990\"") != NULL);
        reply_clear(&r);
        int64_t steps = sum_steps(s) - start;
        printf("# 100 checkpoints from %d: %lld steps\n", offset, (long long)steps);
        CHECK(steps <
              60 * 10000); /* for each that is counted or skipped: by offset, as the API has it */
    }
    /* Old results go in one walk. */
    int64_t start = sum_steps(s);
    CHECK_INT(store_prune_requests(s->store, INT64_MAX, NULL), TINKER_OK);
    int64_t pruned = sum_steps(s) - start;
    printf("# results of 100,000 requests deleted: %lld steps\n", (long long)pruned);
    CHECK(pruned > 0 && pruned < 100 * (int64_t)MANY_REQUESTS);
    server_close(s);
}

int main(void)
{
    harness_init_in_memory();
    RUN(test_every_statement_has_an_index);
    RUN(test_sessions_end_in_linear_time);
    RUN(test_a_search_goes_through_its_sessions_once);
    RUN(test_requests_in_no_order);
    RUN(test_a_large_store);
    harness_clear();
    return tap_done();
}
