/* The endpoints, called as the listener calls them. */
#include "server/harness.h"

static void test_health_and_config(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct reply r = send_get(s, "/api/v1/healthz");
    CHECK_STATUS(r, 200);
    CHECK_STR(r.body, "{\"status\":\"ok\"}");
    reply_clear(&r);
    r = post(s, "/api/v1/client/config", "{\"sdk_version\":\"0.25.0\"}");
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"sample_enable_stuck_detection\":false"));
    CHECK(strstr(r.body, "\"pjwt_auth_enabled\":true"));
    reply_clear(&r);
    r = send_get(s, "/api/v1/get_server_capabilities");
    CHECK_STR(r.body, "{\"supported_models\":[{\"model_name\":\"test/model\","
                      "\"max_context_length\":256,\"trainable\":true,\"sampleable\":true}],"
                      "\"stream_sample\":true}");
    reply_clear(&r);
    r = send_get(s, "/api/v1/nothing");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = send_get(s, "/api/v1/asample");
    CHECK_STATUS(r, 405);
    CHECK_STR(r.allow, "POST");
    CHECK(r.n > 0);
    reply_clear(&r);
    r = send_get(s, "/api/v1/training_runs/x/checkpoints/weights/y/publish");
    CHECK_STATUS(r, 405);
    CHECK_STR(r.allow, "POST, DELETE");
    reply_clear(&r);
    server_close(s);
}

static void test_sessions(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    char id[64];
    make_session(s, id);
    CHECK_INT(strlen(id), 36);
    struct reply r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", id);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"nobody\"}");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":7}");
    CHECK_STATUS(r, 422);
    CHECK(strstr(r.body, "\"detail\":[{"));
    reply_clear(&r);
    r = send_get(s, "/api/v1/sessions");
    CHECK(strstr(r.body, id));
    reply_clear(&r);
    server_close(s);
}

static void test_train_and_sample(void)
{
    char session[64], model[96], want[128];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    snprintf(want, sizeof(want), "%s:train:0", session);
    CHECK_STR(model, want);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    CHECK(strstr(r.body, "\"logprobs\":{\"data\":[-0.5]"));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 2, 1));
    CHECK(strstr(r.body, "\"grad_norm:mean\":3.0"));
    CHECK(strstr(r.body, "\"step:max\":1.0"));
    reply_clear(&r);
    r = result_of(s,
                  post(s, "/api/v1/save_weights_for_sampler",
                       "{\"model_id\":\"%s\",\"seq_id\":3,\"sampling_session_seq_id\":0}", model));
    snprintf(want, sizeof(want), "%s:sample:0", session);
    CHECK_STR(find_member(&r, "sampling_session_id"), want);
    CHECK(!strstr(r.body, "\"path\":\""));
    reply_clear(&r);
    r = result_of(s,
                  post(s, "/api/v1/asample",
                       "{\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,10]}]},"
                       "\"sampling_params\":{\"max_tokens\":3},\"sampling_session_id\":\"%s\","
                       "\"seq_id\":0}",
                       want));
    CHECK_STATUS(r, 200);
    /* 10 + i, and 100 times the adapter's value of 3 */
    CHECK(strstr(r.body, "\"tokens\":[311,312,313]"));
    CHECK(strstr(r.body, "\"stop_reason\":\"length\""));
    reply_clear(&r);
    server_close(s);
}

static void test_requests_run_in_order_of_number(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    /* The step arrives first and must wait for both passes. */
    struct reply step = optim_step(s, model, 3, 1);
    struct reply second = forward_backward(s, model, 2);
    struct ask poll = { .method = "POST", .path = "/api/v1/retrieve_future", .no_wait = true };
    char body[256];
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", find_member(&step, "request_id"));
    poll.body = body;
    struct reply r = send_ask(s, &poll);
    CHECK_STATUS(r, 408);
    CHECK_STR(find_member(&r, "type"), "try_again");
    CHECK_STR(find_member(&r, "queue_state"), "active");
    reply_clear(&r);
    reply_clear(&second);
    struct reply first = forward_backward(s, model, 1);
    reply_clear(&first);
    r = result_of(s, step);
    CHECK(strstr(r.body, "\"grad_norm:mean\":6.0"));
    reply_clear(&r);
    server_close(s);
}

static void test_a_retry_is_not_run_twice(void)
{
    char session[64], model[96], id[128];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    atomic_store(&fake_passes_run, 0);
    struct reply a = forward_backward(s, model, 1);
    snprintf(id, sizeof(id), "%s", find_member(&a, "request_id"));
    struct reply b = forward_backward(s, model, 1);
    CHECK_STATUS(b, 200);
    CHECK_STR(find_member(&b, "request_id"), id);
    reply_clear(&b);
    struct reply r = result_of(s, a);
    reply_clear(&r);
    b = forward_backward(s, model, 1);
    CHECK_STR(find_member(&b, "request_id"), id);
    reply_clear(&b);
    CHECK_INT(atomic_load(&fake_passes_run), 1);
    /* The same number for something else is refused, not with 409: clients retry that. */
    b = optim_step(s, model, 1, 1);
    CHECK_STATUS(b, 400);
    CHECK(strstr(b.body, "reused"));
    reply_clear(&b);
    server_close(s);
}

/* Every field of a request counts: the same number with another value of any of them is refused,
 * and the very same request is a retry. */
static void test_a_number_is_not_reused_for_other_fields(void)
{
#define IMAGE(more)                                                                      \
    "\"forward_input\":{\"loss_fn\":\"cross_entropy\",\"data\":[{\"loss_fn_inputs\":{}," \
    "\"model_input\":{\"chunks\":[{\"type\":\"image\",\"data\":\"AQID\"," more "}]}}]}"
    static const struct {
        const char *path, *first, *other;
    } cases[] = {
        { "save_weights", "\"path\":\"a\",\"user_metadata\":{\"k\":\"1\"}",
          "\"path\":\"a\",\"user_metadata\":{\"k\":\"2\"}" },
        { "save_weights", "\"path\":\"b\"", "\"path\":\"b\",\"user_metadata\":{\"k\":\"2\"}" },
        { "save_weights_for_sampler", "\"path\":\"c\",\"user_metadata\":{\"k\":\"1\"}",
          "\"path\":\"c\",\"user_metadata\":{\"l\":\"1\"}" },
        { "save_weights_external", "\"path\":\"d\",\"age_encryption_recipients\":[\"age1x\"]",
          "\"path\":\"d\",\"age_encryption_recipients\":[\"age1x\",\"age1y\"]" },
        { "forward", IMAGE("\"format\":\"png\""), IMAGE("\"format\":\"jpeg\"") },
        { "forward", IMAGE("\"format\":\"png\",\"expected_tokens\":1"),
          IMAGE("\"format\":\"png\",\"expected_tokens\":2") },
    };
#undef IMAGE
    char session[64], model[96], path[64];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        static const int status[] = { 200, 200, 400, 200 };
        const char *body[] = { cases[i].first, cases[i].first, cases[i].other, cases[i].first };
        snprintf(path, sizeof(path), "/api/v1/%s", cases[i].path);
        for (int k = 0; k < 4; k++) {
            struct reply r =
                post(s, path, "{\"model_id\":\"%s\",\"seq_id\":%zu,%s}", model, i + 1, body[k]);
            if (r.status != status[k])
                TAP_FAIL("case %zu, request %d: %d %s", i, k, r.status, r.body);
            reply_clear(&r);
        }
    }
    server_close(s);
}

/* One number of a sampling session; more are members of the request. */
static struct reply sample_at(struct server *s, const char *path, const char *session,
                              const char *more)
{
    return post(s, path,
                "{\"sampling_session_id\":\"%s:sample:0\",\"seq_id\":7,\"prompt\":{\"chunks\":[{"
                "\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":3}%s}",
                session, more);
}

static struct reply sample_once(struct server *s, const char *session, const char *more)
{
    return sample_at(s, "/api/v1/asample", session, more);
}

static struct server *start_sampler(char session[64])
{
    struct server *s = start_server();
    if (!s)
        return NULL;
    make_session(s, session);
    struct reply r = post(s, "/api/v1/create_sampling_session",
                          "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                          "\"base_model\":\"test/model\"}",
                          session);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    return s;
}

static void test_a_stream_that_was_left_is_no_result(void)
{
    char session[64];
    struct server *s = start_sampler(session);
    REQUIRE(s);
    atomic_store(&fake_step_us, 1000);
    struct reply r = sample_at(s, "/api/v1/stream_sample", session, "");
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    for (int i = 0; i < 5000 && s->counters.samples == 0; i++)
        nap_ms(1);
    r = result_of(s, sample_once(s, session, ""));
    CHECK(strstr(r.body, "[6,7,8]"));
    atomic_store(&fake_step_us, 0);
    reply_clear(&r);
    server_close(s);
}

/* All that a stream brings until its end, by a reader who stays. */
static void read_all(struct stream *flow, char *out, size_t size)
{
    size_t n = 0;
    for (int i = 0; i < 5000 && n + 1 < size; i++) {
        ssize_t k = stream_read(flow, out + n, size - 1 - n);
        if (k < 0)
            break;
        n += (size_t)k;
        if (!k)
            nap_ms(1);
    }
    out[n] = 0;
}

static void test_a_stream_that_never_began_tells_why(void)
{
    char session[64], path[128], body[300], text[2000];
    struct server *s = start_sampler(session);
    REQUIRE(s);
    atomic_store(&fake_step_us, 100000); /* the first one keeps the engine for a while */
    struct reply r = sample_once(s, session, "");
    reply_clear(&r);
    snprintf(body, sizeof(body),
             "{\"sampling_session_id\":\"%s:sample:0\",\"seq_id\":8,\"prompt\":{\"chunks\":[{"
             "\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":3}}",
             session);
    struct request req = {
        .method = "POST", .path = "/api/v1/stream_sample", .body = body, .n_body = strlen(body)
    };
    struct response res;
    arena_init(&req.arena, 1 << 20);
    response_init(&res);
    routes_handle(s, &req, &res);
    REQUIRE(res.stream);
    snprintf(path, sizeof(path), "/api/v1/sessions/%s/finish", session);
    r = post(s, path, "%s", "");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    atomic_store(&fake_step_us, 0);
    read_all(res.stream, text, sizeof(text));
    CHECK(strstr(text, "the session has expired"));
    static const char last[] = "\n\ndata: [DONE]\n\n";
    REQUIRE(strlen(text) > strlen(last));
    CHECK_STR(text + strlen(text) - strlen(last), last);
    stream_unref(res.stream);
    arena_clear(&req.arena);
    server_close(s);
}

static void test_a_sample_is_what_was_asked_for(void)
{
    char session[64];
    struct server *s = start_sampler(session);
    REQUIRE(s);
    struct reply r = sample_once(s, session, "");
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = sample_once(s, session, "");
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    static const char *const others[] = {
        ",\"prompt_logprobs\":true",
        ",\"topk_prompt_logprobs\":2",
        ",\"topk_sample_logprobs\":2",
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        r = sample_once(s, session, others[i]);
        CHECK_STATUS(r, 400);
        reply_clear(&r);
    }
    server_close(s);
}

static void test_failures_take_their_turn(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(
        s, post(s, "/api/v1/forward_backward",
                "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_backward_input\":{\"data\":[" DATUM(
                    "1") "],\"loss_fn\":\"no_such_loss\"}}",
                model));
    CHECK_STATUS(r, 200);
    CHECK_STR(find_member(&r, "category"), "user");
    CHECK(strstr(find_member(&r, "error"), "no_such_loss"));
    reply_clear(&r);
    /* A body with a wrong field still consumes its number. */
    r = result_of(s, post(s, "/api/v1/optim_step",
                          "{\"model_id\":\"%s\",\"seq_id\":2,\"adam_params\":\"fast\"}", model));
    CHECK_STR(find_member(&r, "category"), "user");
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 3, 1));
    CHECK(strstr(r.body, "\"metrics\""));
    reply_clear(&r);
    r = optim_step(s, "nobody:train:0", 1, 1);
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    server_close(s);
}

static void test_futures_of_nobody(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct reply r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"nobody\"}");
    CHECK_STATUS(r, 404);
    CHECK(r.n > 0);
    reply_clear(&r);
    server_close(s);
}

static void test_who_waits_for_whom(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    static const struct {
        const char *path;
        size_t n_body;
        enum listener_place place;
        const char *encoding;
    } tries[] = { { "/api/v1/forward_backward", 1 << 20, LISTENER_WORKER, NULL },
                  { "/api/v1/forward_backward", 1 << 10, LISTENER_EITHER, NULL },
                  { "/api/v1/asample", 1 << 20, LISTENER_WORKER, NULL },
                  { "/api/v1/retrieve_future", 1 << 20, LISTENER_INLINE, NULL },
                  { "/api/v1/session_heartbeat", 100, LISTENER_INLINE, NULL },
                  { "/api/v1/checkpoints", 0, LISTENER_EITHER, NULL },
                  { "/api/v1/telemetry", 1 << 10, LISTENER_INLINE, NULL },
                  { "/api/v1/telemetry", 1 << 10, LISTENER_WORKER, "zstd" }, /* of any size */
                  { "/api/v1/training_runs/r/metrics", 0, LISTENER_WORKER, NULL },
                  { "/metrics", 0, LISTENER_EITHER, NULL },
                  { "/download/0123", 0, LISTENER_WORKER, NULL } };
    for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
        struct request req = { .path = tries[i].path,
                               .n_body = tries[i].n_body,
                               .content_encoding = tries[i].encoding };
        if (routes_place(s, &req) != tries[i].place)
            TAP_FAIL("%s with %zu bytes", tries[i].path, tries[i].n_body);
    }
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_health_and_config);
    RUN(test_sessions);
    RUN(test_train_and_sample);
    RUN(test_requests_run_in_order_of_number);
    RUN(test_a_retry_is_not_run_twice);
    RUN(test_a_number_is_not_reused_for_other_fields);
    RUN(test_a_sample_is_what_was_asked_for);
    RUN(test_a_stream_that_was_left_is_no_result);
    RUN(test_a_stream_that_never_began_tells_why);
    RUN(test_failures_take_their_turn);
    RUN(test_futures_of_nobody);
    RUN(test_who_waits_for_whom);
    harness_clear();
    return tap_done();
}
