/* A sampling session keeps the weights that it was made with: whatever is saved under the name
 * later, across a restart, and until the checkpoint is deleted or no longer public. */
#include "server/store/timers.h"
#include "server/harness.h"

static struct reply post_as(struct server *s, const char *key, const char *path, const char *body)
{
    struct ask a = { .method = "POST", .path = path, .key = key, .body = body };
    return send_ask(s, &a);
}

static void make_session_as(struct server *s, const char *key, char out[64])
{
    struct reply r = post_as(s, key, "/api/v1/create_session",
                             "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\"}");
    CHECK_STATUS(r, 200);
    snprintf(out, 64, "%s", find_member(&r, "session_id"));
    reply_clear(&r);
}

static struct reply open_sampler(struct server *s, const char *key, const char *session, int n,
                                 const char *path)
{
    char body[600];
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":%d,\"%s\":\"%s\"}", session, n,
             path ? "model_path" : "base_model", path ? path : "test/model");
    return post_as(s, key, "/api/v1/create_sampling_session", body);
}

/* The first token that a sampling session makes after token 5; -1: it failed, as `why` says. */
static int first_token(struct server *s, const char *key, const char *session, int n, int seq,
                       char why[200])
{
    char body[600];
    snprintf(body, sizeof(body),
             "{\"sampling_session_id\":\"%s:sample:%d\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{"
             "\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":1}}",
             session, n, seq);
    struct reply r = post_as(s, key, "/api/v1/asample", body);
    if (r.status == 200) {
        snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", find_member(&r, "request_id"));
        reply_clear(&r);
        r = post_as(s, key, "/api/v1/retrieve_future", body);
    }
    const char *tokens = r.body ? strstr(r.body, "\"tokens\":[") : NULL;
    int token = tokens ? atoi(tokens + 10) : -1;
    if (why)
        snprintf(why, 200, "%d %s", r.status, r.body ? r.body : "");
    reply_clear(&r);
    return token;
}

/* Send a training request, `rest` after its model and number, and wait for the result. */
static struct reply request_as(struct server *s, const char *key, const char *name,
                               const char *model, int seq, const char *rest)
{
    char path[100], body[600];
    snprintf(path, sizeof(path), "/api/v1/%s", name);
    snprintf(body, sizeof(body), "{\"model_id\":\"%s\",\"seq_id\":%d,%s}", model, seq, rest);
    struct reply r = post_as(s, key, path, body);
    CHECK_STATUS(r, 200);
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", find_member(&r, "request_id"));
    reply_clear(&r);
    return post_as(s, key, "/api/v1/retrieve_future", body);
}

/* A pass over one token and a step: the weights grow by 1, so that tokens grow by 100. */
static void grow_weights(struct server *s, const char *key, const char *model, int seq)
{
    struct reply r = request_as(
        s, key, "forward_backward", model, seq,
        "\"forward_backward_input\":{\"data\":[" DATUM("5") "],\"loss_fn\":\"cross_entropy\"}");
    CHECK(strstr(r.body, "loss:sum"));
    reply_clear(&r);
    r = request_as(s, key, "optim_step", model, seq + 1, "\"adam_params\":{\"learning_rate\":1}");
    CHECK(strstr(r.body, "step:max"));
    reply_clear(&r);
}

static void save_weights(struct server *s, const char *key, const char *model, int seq)
{
    struct reply r =
        request_as(s, key, "save_weights", model, seq, "\"path\":\"a\",\"overwrite\":true");
    CHECK(strstr(r.body, "weights/a"));
    reply_clear(&r);
}

/* A model of the user with weights 1 saved as "a"; path is that checkpoint's. */
static void train_and_save(struct server *s, const char *key, char session[64], char model[96],
                           char path[200])
{
    char body[300];
    make_session_as(s, key, session);
    snprintf(body, sizeof(body),
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"test/model\","
             "\"lora_config\":{\"rank\":8}}",
             session);
    struct reply r = post_as(s, key, "/api/v1/create_model", body);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    snprintf(model, 96, "%s:train:0", session);
    snprintf(path, 200, "tinker://%s/weights/a", model);
    grow_weights(s, key, model, 1);
    save_weights(s, key, model, 3);
}

static void test_a_number_is_one_sampling_session(void)
{
    char session[64], model[96], path[200];
    struct server *s = start_server();
    REQUIRE(s);
    train_and_save(s, NULL, session, model, path);
    struct reply r = open_sampler(s, NULL, session, 0, path);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    /* The same again is a retry. */
    r = open_sampler(s, NULL, session, 0, path);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    /* Other weights are not: the client would sample from what it did not ask for. */
    r = open_sampler(s, NULL, session, 0, NULL);
    CHECK_STATUS(r, 400);
    CHECK(strstr(r.body, "sampling_session_seq_id 0 was used"));
    reply_clear(&r);
    CHECK_INT(first_token(s, NULL, session, 0, 0, NULL), 106);
    r = request_as(s, NULL, "save_weights_for_sampler", model, 4, "\"sampling_session_seq_id\":0");
    CHECK(strstr(find_member(&r, "error"), "sampling_session_seq_id 0 was used"));
    reply_clear(&r);
    CHECK_INT(first_token(s, NULL, session, 0, 1, NULL), 106);
    r = request_as(s, NULL, "save_weights_for_sampler", model, 5, "\"sampling_session_seq_id\":1");
    CHECK(strstr(find_member(&r, "sampling_session_id"), ":sample:1"));
    reply_clear(&r);
    r = open_sampler(s, NULL, session, 1, NULL);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    server_close(s);
}

static void test_a_sampling_session_keeps_its_weights(void)
{
    char session[64], model[96], path[200];
    struct server *s = start_server();
    REQUIRE(s);
    train_and_save(s, NULL, session, model, path);
    struct reply r = open_sampler(s, NULL, session, 0, path);
    reply_clear(&r);
    grow_weights(s, NULL, model, 4);
    save_weights(s, NULL, model, 6); /* over the same name */
    r = open_sampler(s, NULL, session, 1, path);
    reply_clear(&r);
    CHECK_INT(first_token(s, NULL, session, 0, 0, NULL), 106);
    CHECK_INT(first_token(s, NULL, session, 1, 0, NULL), 206);
    r = open_sampler(s, NULL, session, 0, path); /* a late retry changes nothing either */
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    CHECK_INT(first_token(s, NULL, session, 0, 1, NULL), 106);
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_INT(first_token(s, NULL, session, 0, 2, NULL), 106);
    CHECK_INT(first_token(s, NULL, session, 1, 2, NULL), 206);
    CHECK_INT(weights_on_disk(), 3); /* both, and the training state */
    /* The old files go with the session that used them. */
    char finish[200];
    snprintf(finish, sizeof(finish), "/api/v1/sessions/%s/finish", session);
    r = post_as(s, NULL, finish, "");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    for (int i = 0; i < 4000 && weights_on_disk() > 1; i++)
        nap_ms(1);
    CHECK_INT(weights_on_disk(), 1); /* the checkpoint */
    server_close(s);
}

static void change_checkpoint(struct server *s, const char *method, const char *model,
                              const char *what)
{
    char path[300];
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints/weights/a%s", model, what);
    struct ask a = { .method = method, .path = path, .key = ALICE };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 204);
    reply_clear(&r);
}

static void test_sampling_sessions_end_with_their_checkpoint(void)
{
    char session[64], model[96], path[200], other[64], why[200];
    struct server *s = start_fresh(two_keys);
    REQUIRE(s);
    train_and_save(s, ALICE, session, model, path);
    make_session_as(s, BOB, other);
    change_checkpoint(s, "POST", model, "/publish");
    struct reply r = open_sampler(s, BOB, other, 0, path);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = open_sampler(s, ALICE, session, 0, path);
    reply_clear(&r);
    CHECK_INT(first_token(s, BOB, other, 0, 0, NULL), 106);
    change_checkpoint(s, "DELETE", model, "/publish");
    CHECK_INT(first_token(s, BOB, other, 0, 1, why), -1);
    CHECK(strstr(why, "no longer exist"));
    CHECK_INT(first_token(s, ALICE, session, 0, 0, NULL), 106); /* its owner's goes on */
    server_close(s);
    s = start_with(two_keys);
    REQUIRE(s);
    CHECK_INT(first_token(s, BOB, other, 0, 2, NULL), -1);
    CHECK_INT(first_token(s, ALICE, session, 0, 1, NULL), 106);
    change_checkpoint(s, "DELETE", model, "");
    CHECK_INT(first_token(s, ALICE, session, 0, 2, why), -1);
    CHECK(strstr(why, "no longer exist"));
    CHECK_INT(weights_on_disk(), 1); /* the training state */
    server_close(s);
}

/* The checkpoint stops being public after a request has read the record of its sampling session,
 * and before the session is in memory. */
static struct {
    struct server *server;
    const char *model;
} revoke;
tinker_status __real_store_get_sampler(struct store *s, const char *id, struct arena *arena,
                                       struct store_sampler **out, tinker_error *err);
tinker_status __wrap_store_get_sampler(struct store *s, const char *id, struct arena *arena,
                                       struct store_sampler **out, tinker_error *err)
{
    tinker_status status = __real_store_get_sampler(s, id, arena, out, err);
    struct server *server = revoke.server;
    revoke.server = NULL;
    if (server)
        change_checkpoint(server, "DELETE", revoke.model, "/publish");
    return status;
}

static void test_a_record_that_was_read_before_it_ended(void)
{
    char session[64], model[96], path[200], other[64], why[200];
    struct server *s = start_fresh(two_keys);
    REQUIRE(s);
    train_and_save(s, ALICE, session, model, path);
    make_session_as(s, BOB, other);
    change_checkpoint(s, "POST", model, "/publish");
    struct reply r = open_sampler(s, BOB, other, 0, path);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
    s = start_with(two_keys); /* it has to be read again */
    REQUIRE(s);
    revoke.model = model;
    revoke.server = s;
    CHECK_INT(first_token(s, BOB, other, 0, 1, why), -1);
    CHECK(strstr(why, "no longer exist"));
    CHECK(!revoke.server);
    CHECK_INT(first_token(s, BOB, other, 0, 2, NULL), -1);
    server_close(s);
}

/* Poll for what finished after `cursor` of clone `clone`; gives the new cursor. */
static struct reply poll_finished(struct server *s, const char *session, int64_t clone,
                                  int64_t *cursor)
{
    char body[300];
    snprintf(body, sizeof(body),
             "{\"target\":{\"type\":\"sampling_session\",\"sampling_session_id\":\"%s:sample:0\","
             "\"cloned_sampler_id\":%lld},\"prev_cursor\":%lld,\"retrieved_request_ids\":[]}",
             session, (long long)clone, (long long)*cursor);
    struct reply r = post_as(s, NULL, "/api/v1/retrieve_futures", body);
    const char *at = r.body ? strstr(r.body, "\"cursor\":") : NULL;
    *cursor = at ? strtoll(at + 9, NULL, 10) : -1;
    return r;
}

/* One poll tells of all samples of a sampler, in the order of their ends, once per cursor and
 * again for an older one; copies of the sampler do not see each other's. */
static void test_one_poll_for_many_samples(void)
{
    struct server *s = start_server();
    char session[64], id[160];
    int64_t cursor = 0, none = 0;
    REQUIRE(s != NULL);
    make_session_as(s, NULL, session);
    struct reply r = open_sampler(s, NULL, session, 0, NULL);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    for (int i = 1; i <= 3; i++)
        CHECK(first_token(s, NULL, session, 0, i, NULL) >= 0);
    CHECK(first_token(s, NULL, session, 0, 2000000007, NULL) >= 0);
    r = poll_finished(s, session, 0, &cursor);
    CHECK_STATUS(r, 200);
    const char *last = r.body;
    for (int i = 1; i <= 3 && last; i++) {
        snprintf(id, sizeof(id), "{\"state\":\"finished\",\"request_id\":\"%s:sample:0:%d\"",
                 session, i);
        last = strstr(last, id);
        CHECK(last != NULL);
    }
    CHECK(!strstr(r.body, "2000000007"));
    CHECK(strstr(r.body, "\"response_payload_uncompressed_size\":") != NULL);
    CHECK(cursor > 0);
    reply_clear(&r);
    /* a repeated poll is told the same; a lost response loses nothing */
    int64_t again = 0;
    r = poll_finished(s, session, 0, &again);
    CHECK_INT(again, cursor);
    reply_clear(&r);
    r = poll_finished(s, session, 2, &none);
    CHECK(strstr(r.body, ":sample:0:2000000007\"") != NULL);
    CHECK(!strstr(r.body, ":sample:0:3\""));
    reply_clear(&r);
    /* the next sample alone is new */
    int64_t next = cursor;
    CHECK(first_token(s, NULL, session, 0, 4, NULL) >= 0);
    r = poll_finished(s, session, 0, &next);
    CHECK(next > cursor);
    CHECK(!strstr(r.body, ":sample:0:3\"") && strstr(r.body, ":sample:0:4\""));
    reply_clear(&r);
    r = post_as(s, NULL, "/api/v1/retrieve_futures",
                "{\"target\":{\"type\":\"sampling_session\",\"sampling_session_id\":\"nobody\"}}");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    server_close(s);
}

/* A poll is held as long as it asks for, and ends with a sample of its own, not with those of
 * another sampler. */
static void test_a_poll_is_held_as_long_as_it_wants(void)
{
    struct server *s = start_server();
    char session[64], body[300];
    REQUIRE(s != NULL);
    make_session_as(s, NULL, session);
    for (int n = 0; n < 2; n++) {
        struct reply r = open_sampler(s, NULL, session, n, NULL);
        CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    CHECK(first_token(s, NULL, session, 1, 1, NULL) >= 0);
    static const struct {
        const char *timeout;
        int64_t least_ms, most_ms;
    } cases[] = { { "0", 0, 5000 }, { "-1", 0, 5000 }, { "0.3", 250, 8000 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(body, sizeof(body),
                 "{\"target\":{\"type\":\"sampling_session\",\"sampling_session_id\":"
                 "\"%s:sample:0\"},\"prev_cursor\":7,\"timeout\":%s}",
                 session, cases[i].timeout);
        int64_t before = clock_now_ns(clock_real());
        struct reply r = post_as(s, NULL, "/api/v1/retrieve_futures", body);
        int64_t took_ms = (clock_now_ns(clock_real()) - before) / 1000000;
        CHECK_STATUS(r, 200);
        CHECK_STR(r.body, "{\"completions\":[],\"cursor\":7}");
        CHECK(took_ms >= cases[i].least_ms && took_ms < cases[i].most_ms);
        reply_clear(&r);
    }
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_a_poll_is_held_as_long_as_it_wants);
    RUN(test_a_number_is_one_sampling_session);
    RUN(test_a_sampling_session_keeps_its_weights);
    RUN(test_sampling_sessions_end_with_their_checkpoint);
    RUN(test_a_record_that_was_read_before_it_ended);
    RUN(test_one_poll_for_many_samples);
    harness_clear();
    return tap_done();
}
