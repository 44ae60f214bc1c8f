/* Usage by the hour and the audit log: true figures, kept over restarts, and nobody else's. */
#include <math.h>

#include "server/store/store_account.h"
#include "server/work/usage.h"
#include "server/harness.h"

static struct server *s;
static char session[64], model[96];

/* Whole hours around now, as the query wants them. */
static struct reply ask_usage(const char *key, int64_t from_s, int64_t to_s)
{
    char from[40], to[40];
    time_t t = (time_t)from_s;
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(from, sizeof(from), "%Y-%m-%dT%H:%M:%SZ", &tm);
    t = (time_t)to_s;
    gmtime_r(&t, &tm);
    strftime(to, sizeof(to), "%Y-%m-%dT%H:%M:%SZ", &tm);
    struct ask a = { .method = "GET",
                     .path = "/api/v1/billing/usage/events",
                     .key = key,
                     .query = { { "starting_on", from }, { "ending_before", to } } };
    return send_ask(s, &a);
}

static struct reply ask_now(const char *key)
{
    int64_t hour = (int64_t)time(NULL) / 3600 * 3600;
    return ask_usage(key, hour - 3600, hour + 3600);
}

/* The sum of a member in the rows of a kind. */
static double sum_of(const struct reply *r, const char *kind, const char *member)
{
    char type[64], key[64];
    double sum = 0;
    snprintf(type, sizeof(type), "\"type\":\"%s\"", kind);
    snprintf(key, sizeof(key), "\"%s\":", member);
    for (const char *p = r->body; (p = strstr(p, type)) != NULL; p++) {
        const char *end = strchr(p, '}'), *at = strstr(p, key);
        if (at && at < end)
            sum += strtod(at + strlen(key), NULL);
    }
    return sum;
}

static void sample(int seq, int n)
{
    struct reply r =
        result_of(s, post(s, "/api/v1/asample",
                          "{\"num_samples\":%d,\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\","
                          "\"tokens\":[1,2,3]}]},\"sampling_params\":{\"max_tokens\":4},"
                          "\"base_model\":\"test/model\",\"seq_id\":%d}",
                          n, seq));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
}

static void test_tokens_are_counted_by_session(void)
{
    s = start_model(NULL, session, model);
    for (int i = 1; i <= 3; i++) {
        struct reply r = result_of(s, forward_backward(s, model, i));
        CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    sample(1, 2);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"path\":\"a\",\"seq_id\":4}", model));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = ask_now(NULL);
    CHECK_STATUS(r, 200);
    CHECK_INT((int)sum_of(&r, "training", "token_count"), 9);
    CHECK_INT((int)sum_of(&r, "sampling_prefill", "token_count"), 3);
    CHECK_INT((int)sum_of(&r, "sampling_sample", "token_count"), 8);
    CHECK_INT((int)sum_of(&r, "checkpoint", "count"), 1);
    CHECK(strstr(r.body, "\"base_model\":\"test/model\"") && strstr(r.body, session));
    CHECK(!strstr(r.body, "cost_usd")); /* unknown, not zero */
    reply_clear(&r);
    /* Kept when the server ends as it should; passes that run again are not counted again. */
    server_close(s);
    s = start_with(NULL);
    r = ask_now(NULL);
    CHECK_INT((int)sum_of(&r, "training", "token_count"), 9);
    CHECK_INT((int)sum_of(&r, "sampling_sample", "token_count"), 8);
    reply_clear(&r);
    server_close(s);
}

static void test_storage_is_counted_while_time_passes(void)
{
    s = start_model(NULL, session, model);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"path\":\"a\",\"seq_id\":1}", model));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    usage_add_storage(s);
    nap_ms(1100);
    usage_add_storage(s);
    r = ask_now(NULL);
    double got = sum_of(&r, "storage", "gigabyte_hours");
    CHECK(got > 0 && got < 1e-3);
    reply_clear(&r);
    server_close(s);
}

static void test_windows_that_make_no_sense(void)
{
    int64_t hour = (int64_t)time(NULL) / 3600 * 3600;
    s = start_server();
    static const struct {
        int64_t from, to;
    } bad[] = { { 0, 0 }, { 60, 3600 }, { -15 * 86400, 0 }, { 7200, 10800 } };
    for (size_t i = 0; i < 4; i++) {
        struct reply r = ask_usage(NULL, hour + bad[i].from, hour + bad[i].to);
        CHECK_STATUS(r, 400);
        reply_clear(&r);
    }
    struct reply r = send_get(s, "/api/v1/billing/usage/events");
    CHECK_STATUS(r, 422);
    reply_clear(&r);
    server_close(s);
}

static struct reply ask_audit(const char *key, const char *type, const char *day)
{
    struct ask a = { .method = "GET", .path = "/api/v1/audit", .key = key };
    size_t n = 0;
    if (type) {
        a.query[n][0] = "event_type";
        a.query[n++][1] = type;
    }
    if (day) {
        a.query[n][0] = "day";
        a.query[n][1] = day;
    }
    return send_ask(s, &a);
}

/* The events in order, with spaces between. */
static void check_events(const char *key, const char *type, const char *day, const char *want)
{
    char found[400] = "";
    struct reply r = ask_audit(key, type, day);
    CHECK_STATUS(r, 200);
    for (const char *p = r.body; (p = strstr(p, "\"event\":\"")) != NULL; p++)
        snprintf(found + strlen(found), sizeof(found) - strlen(found), "%.*s ",
                 (int)strcspn(p + 9, "\""), p + 9);
    CHECK_STR(found, want);
    reply_clear(&r);
}

static struct reply change(const char *method, const char *rest, const char *key, const char *body)
{
    char path[300];
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints/%s", model, rest);
    struct ask a = { .method = method, .path = path, .key = key, .body = body };
    return send_ask(s, &a);
}

static void test_events_are_told(void)
{
    static const struct {
        const char *method, *rest, *body;
    } changes[] = { { "POST", "weights/a/publish", "" },
                    { "DELETE", "weights/a/publish", "" },
                    { "PUT", "weights/a/ttl", "{\"ttl_seconds\":3600}" },
                    { "GET", "weights/a/archive", "" },
                    { "DELETE", "weights/a", "" } };
    s = start_model(NULL, session, model);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"path\":\"a\",\"seq_id\":1}", model));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    for (size_t i = 0; i < 5; i++) {
        r = change(changes[i].method, changes[i].rest, NULL, changes[i].body);
        CHECK(r.status < 400);
        reply_clear(&r);
    }
    char path[200];
    snprintf(path, sizeof(path), "/api/v1/sessions/%s/project", session);
    struct ask a = { .method = "PUT", .path = path, .body = "{\"project_id\":\"p\"}" };
    r = send_ask(s, &a);
    CHECK(r.status < 400);
    reply_clear(&r);
    snprintf(path, sizeof(path), "/api/v1/sessions/%s/finish", session);
    r = post(s, path, "{\"reason\":{\"type\":\"success\"},\"detail\":null}");
    CHECK(r.status < 400);
    reply_clear(&r);
    server_close(s);
    s = start_with(NULL); /* after a restart, too */
    check_events(NULL, NULL, NULL,
                 "session_create checkpoint_create checkpoint_publish checkpoint_unpublish "
                 "checkpoint_set_ttl checkpoint_read checkpoint_delete project_assign "
                 "session_finish ");
    check_events(NULL, "projects", NULL, "project_assign ");
    check_events(NULL, "teams", NULL, "");
    check_events(NULL, "all", "2001-02-03", "");
    r = ask_audit(NULL, "checkpoints", NULL);
    CHECK(strstr(r.body, "\"tinker_path\":\"tinker://") && strstr(r.body, "/weights/a\""));
    CHECK(strstr(r.body, "\"actor\":\"urn:tinker:user:") &&
          strstr(r.body, "\"purpose\":\"download\""));
    reply_clear(&r);
    r = ask_audit(NULL, "everything", NULL);
    CHECK_STATUS(r, 422);
    reply_clear(&r);
    r = ask_audit(NULL, NULL, "01.02.2026");
    CHECK_STATUS(r, 422);
    reply_clear(&r);
    server_close(s);
}

static void test_users_see_only_their_own(void)
{
    s = start_fresh(two_keys);
    struct ask a = { .method = "POST",
                     .path = "/api/v1/create_session",
                     .key = ALICE,
                     .body = "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.36.0\"}" };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    check_events(ALICE, NULL, NULL, "session_create ");
    check_events(BOB, NULL, NULL, "");
    pthread_mutex_lock(&s->lock);
    struct session *v = NULL;
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(&s->sessions, &it, &key, &n, &value))
        v = value;
    pthread_mutex_unlock(&s->lock);
    usage_add(s, USAGE_TRAINING, v->owner, v->id, "test/model", 5);
    r = ask_now(ALICE);
    CHECK_INT((int)sum_of(&r, "training", "token_count"), 5);
    reply_clear(&r);
    r = ask_now(BOB);
    CHECK_INT((int)sum_of(&r, "training", "token_count"), 0);
    CHECK(!strstr(r.body, v->id));
    reply_clear(&r);
    server_close(s);
}

static void test_a_full_table_is_written(void)
{
    s = start_server();
    for (int i = 0; i < 1000; i++) {
        char id[16];
        snprintf(id, sizeof(id), "s%d", i);
        usage_add(s, USAGE_TRAINING, "u", id, "test/model", 1);
        usage_add(s, USAGE_TRAINING, "u", id, "test/model", 1);
    }
    usage_flush(s);
    struct arena arena;
    struct store_usage_row *rows;
    size_t n = 0;
    arena_init(&arena, SIZE_MAX);
    int64_t hour = (int64_t)time(NULL) / 3600;
    CHECK(store_list_hours(s->store, "u", hour - 1, hour + 2, &arena, &rows, &n, NULL) ==
          TINKER_OK);
    CHECK_INT(n, 1000);
    CHECK(n && rows[0].amount == 2);
    /* What is too old is forgotten. */
    store_prune_account(s->store, (hour + 24 * (STORE_ACCOUNT_DAYS + 2)) * INT64_C(3600000000));
    CHECK(store_list_hours(s->store, "u", hour - 1, hour + 2, &arena, &rows, &n, NULL) ==
          TINKER_OK);
    CHECK_INT(n, 0);
    arena_clear(&arena);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_tokens_are_counted_by_session);
    RUN(test_storage_is_counted_while_time_passes);
    RUN(test_windows_that_make_no_sense);
    RUN(test_events_are_told);
    RUN(test_users_see_only_their_own);
    RUN(test_a_full_table_is_written);
    harness_clear();
    return tap_done();
}
