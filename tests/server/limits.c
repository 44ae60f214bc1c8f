/* Keys and users, names and paths, queues that are full, time that runs out. */
#include "server/store/timers.h"
#include "server/harness.h"

static struct fake_clock fake;

static struct reply send_as(struct server *s, const char *key, const char *method, const char *path,
                            const char *body)
{
    struct ask a = { .method = method, .path = path, .body = body, .key = key };
    return send_ask(s, &a);
}

static void test_keys(void)
{
    struct server *s = start_fresh(two_keys);
    REQUIRE(s);
    struct reply r = send_as(s, NULL, "GET", "/api/v1/sessions", NULL);
    CHECK_STATUS(r, 401);
    CHECK(strstr(r.body, "Missing API key"));
    reply_clear(&r);
    r = send_as(s, "tml-alice-012345678", "GET", "/api/v1/sessions", NULL);
    CHECK_STATUS(r, 401);
    CHECK(!strstr(r.body, "alice"));
    reply_clear(&r);
    r = send_as(s, NULL, "GET", "/api/v1/healthz", NULL);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = send_as(s, ALICE, "POST", "/api/v1/create_session",
                "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\"}");
    CHECK_STATUS(r, 200);
    char id[64], body[256];
    snprintf(id, sizeof(id), "%s", find_member(&r, "session_id"));
    reply_clear(&r);
    snprintf(body, sizeof(body), "{\"session_id\":\"%s\"}", id);
    r = send_as(s, ALICE, "POST", "/api/v1/session_heartbeat", body);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    /* What belongs to another user does not exist. */
    r = send_as(s, BOB, "POST", "/api/v1/session_heartbeat", body);
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = send_as(s, BOB, "GET", "/api/v1/sessions", NULL);
    CHECK(!strstr(r.body, id));
    reply_clear(&r);
    server_close(s);
}

/* The official program keeps a key only after the server has said whose it is. */
static void test_a_key_can_be_asked_about(void)
{
    static const char path[] = "/api/v1/auth/apikey/me";
    struct server *s = start_fresh(two_keys);
    REQUIRE(s);
    struct reply r = send_as(s, "tml-nobody", "GET", path, NULL);
    CHECK_STATUS(r, 401);
    reply_clear(&r);
    r = send_as(s, ALICE, "GET", path, NULL);
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"key_id\":") && !strstr(r.body, "\"key_id\":0"));
    CHECK(strstr(r.body, "\"name\":\"key-") && strstr(r.body, "\"email\":\"key-"));
    CHECK(!strstr(r.body, ALICE));
    struct reply other = send_as(s, BOB, "GET", path, NULL);
    CHECK_STATUS(other, 200);
    CHECK(strcmp(r.body, other.body) != 0);
    reply_clear(&other);
    reply_clear(&r);
    r = send_as(s, ALICE, "DELETE", path, NULL); /* keys come from the command line */
    CHECK_STATUS(r, 405);
    reply_clear(&r);
    server_close(s);
}

static struct server_options plain_options(void)
{
    struct server_options o;
    server_options_init(&o);
    o.models = test_models;
    o.n_models = 1;
    o.port = 0;
    o.data_dir = test_data;
    return o;
}

static void test_public_address_needs_a_key(void)
{
    struct server_options o = plain_options();
    tinker_error err = { 0 };
    o.host = "0.0.0.0";
    CHECK(server_open(&o, &err) == NULL);
    CHECK(strstr(err.message, "--api-key"));
    CHECK(listener_is_loopback("127.0.0.2") && listener_is_loopback("::1"));
    CHECK(!listener_is_loopback("10.0.0.1") && !listener_is_loopback("127.example.org"));
}

static void test_an_empty_key_is_none(void)
{
    static const char *const wrong[] = { "", " ", "tml-a b", "tml-a\n", "tml-\xc3\xa9" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const char *given[] = { ALICE, wrong[i] };
        struct server_options o = plain_options();
        tinker_error err = { 0 };
        o.api_keys = given;
        o.n_api_keys = 2;
        CHECK(server_open(&o, &err) == NULL);
        CHECK(strstr(err.message, "API key 2"));
    }
}

static void test_two_models_have_two_names(void)
{
    struct server_model twice[] = { test_models[0], test_models[0] };
    struct server_options o = plain_options();
    tinker_error err = { 0 };
    o.models = twice;
    o.n_models = 2;
    CHECK(server_open(&o, &err) == NULL);
    CHECK(strstr(err.message, test_models[0].name));
}

static void test_other_sites_are_refused(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct ask a = { .method = "POST",
                     .path = "/api/v1/create_session",
                     .body = "{}",
                     .origin = "https://evil.example" };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 403);
    reply_clear(&r);
    server_close(s);
}

/* A name of a site that leads here (DNS rebinding) makes its pages look like ours. */
static void test_names_of_sites_are_refused(void)
{
    static const struct {
        const char *host;
        int status;
    } cases[] = { { "evil.example:8000", 403 },
                  { "127.0.0.1.evil.example", 403 },
                  { "localhost.evil.example", 403 },
                  { "[evil]:8000", 403 },
                  { "[::1].evil.example", 403 },
                  { "[::1]evil:8000", 403 },
                  { "[::1", 403 },
                  { "127.0.0.1:8000.evil.example", 403 },
                  { "localhost:evil", 403 },
                  { "", 403 },
                  { "localhost:8000", 200 },
                  { "LOCALHOST", 200 },
                  { "127.0.0.1:8000", 200 },
                  { "10.1.2.3", 200 },
                  { "[::1]:8000", 200 },
                  { "[::1]", 200 } };
    struct server *s = start_server();
    REQUIRE(s);
    struct ask a = { .method = "GET", .path = "/api/v1/get_server_capabilities" };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        a.host = cases[i].host;
        struct reply r = send_ask(s, &a);
        if (r.status != cases[i].status)
            TAP_FAIL("host \"%s\" is answered with %d", a.host, r.status);
        reply_clear(&r);
    }
    server_close(s);
    s = start_fresh(two_keys); /* who has a key may use any name */
    REQUIRE(s);
    a.host = "tinker.example";
    a.key = ALICE;
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
}

static void test_names_stay_inside(void)
{
    char session[64], model[96], longest[300];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    memset(longest, 'a', 256);
    longest[256] = 0;
    const char *const names[] = { "../evil", "..", ".",           ".hidden", "a/b",
                                  "a b",     "",   "na\\u0000me", longest };
    int seq = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                           "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\"}",
                                           model, ++seq, names[i]));
        if (!strstr(r.body, "\"category\":\"user\""))
            TAP_FAIL("name %zu was accepted: %s", i, r.body);
        reply_clear(&r);
    }
    longest[255] = 0;
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\"}", model,
                                       ++seq, longest));
    CHECK(strstr(r.body, "tinker://"));
    reply_clear(&r);
    r = send_get(s, "/download/../../etc");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = send_get(s, "/download/0123");
    CHECK_STATUS(r, 403);
    reply_clear(&r);
    server_close(s);
}

static void test_checkpoints(void)
{
    char session[64], model[96], path[300];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r =
        result_of(s, post(s, "/api/v1/save_weights",
                          "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"one\"}", model));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/save_weights",
                          "{\"model_id\":\"%s\",\"seq_id\":2,\"path\":\"one\"}", model));
    CHECK(strstr(find_member(&r, "error"), "already exists"));
    reply_clear(&r);
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints/weights/one/archive", model);
    r = send_get(s, path);
    CHECK_STATUS(r, 302);
    REQUIRE(r.location);
    /* The link works without a key and not when it was changed. */
    const char *at = strstr(r.location, "/download/");
    REQUIRE(at);
    char dir[64], exp[32], sig[80];
    CHECK_INT(sscanf(at, "/download/%63[0-9a-f]?exp=%31[0-9]&sig=%79s", dir, exp, sig), 3);
    char place[128];
    snprintf(place, sizeof(place), "/download/%s", dir);
    struct ask a = { .method = "GET", .path = place, .query = { { "exp", exp }, { "sig", sig } } };
    struct reply tar = send_ask(s, &a);
    CHECK_STATUS(tar, 200);
    REQUIRE(tar.source.state);
    CHECK(tar.source.size > 512);
    char head[512] = "";
    CHECK_INT(tar.source.read(tar.source.state, 0, head, sizeof(head)), sizeof(head));
    CHECK(memcmp(head + 257, "ustar", 5) == 0);
    reply_clear(&tar);
    /* One that is being deleted has no marker any more, and may lack other files. */
    char marker[600];
    snprintf(marker, sizeof(marker), "%s/checkpoints/%s/checkpoint_complete", test_data, dir);
    CHECK(unlink(marker) == 0);
    tar = send_ask(s, &a);
    CHECK_STATUS(tar, 500);
    reply_clear(&tar);
    sig[0] = sig[0] == '0' ? '1' : '0';
    tar = send_ask(s, &a);
    CHECK_STATUS(tar, 403);
    reply_clear(&tar);
    reply_clear(&r);
    *strrchr(path, '/') = 0;
    struct ask del = { .method = "DELETE", .path = path };
    r = send_ask(s, &del);
    CHECK_STATUS(r, 204);
    CHECK_INT(r.n, 0);
    reply_clear(&r);
    r = send_ask(s, &del);
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    server_close(s);
}

static void local_paths(struct server_options *o)
{
    o->allow_local_paths = true;
}

static struct reply load_checkpoint(struct server *s, const char *model, const char *path)
{
    return post(s, "/api/v1/load_weights",
                "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"%s\",\"optimizer\":false}", model,
                path);
}

static void test_loading(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    char session[64], a[96], b[96], c[96], file[400];
    make_session(s, session);
    make_model(s, session, 0, a);
    make_model(s, session, 1, b);
    struct reply r = result_of(s, forward_backward(s, a, 1));
    reply_clear(&r);
    r = result_of(s, optim_step(s, a, 2, 1));
    reply_clear(&r);
    r = result_of(
        s, post(s, "/api/v1/save_weights", "{\"model_id\":\"%s\",\"seq_id\":3,\"path\":\"x\"}", a));
    char path[200];
    snprintf(path, sizeof(path), "%s", find_member(&r, "path"));
    reply_clear(&r);
    r = result_of(s, load_checkpoint(s, b, path));
    CHECK_STR(find_member(&r, "path"), path);
    CHECK_STR(find_member(&r, "model_id"), b);
    reply_clear(&r);
    r = post(s, "/api/v1/load_weights",
             "{\"model_id\":\"%s\",\"seq_id\":2,\"path\":\"%s\",\"optimizer\":false}", b, path);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    r = post(s, "/api/v1/load_weights",
             "{\"model_id\":\"%s\",\"seq_id\":3,\"path\":\"nowhere\",\"optimizer\":false}", b);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, b, 4), 0, 0); /* the refused have had their turn */
    /* A new model straight from the checkpoint. */
    r = result_of(s, post(s, "/api/v1/load_weights",
                          "{\"session_id\":\"%s\",\"model_seq_id\":2,\"path\":\"%s\","
                          "\"optimizer\":true}",
                          session, path));
    snprintf(c, sizeof(c), "%s:train:2", session);
    CHECK_STR(find_member(&r, "model_id"), c);
    reply_clear(&r);
    r = result_of(s, optim_step(s, c, 1, 1));
    CHECK(strstr(r.body, "\"step:max\":2.0"));
    reply_clear(&r);
    make_model(s, session, 3, c);
    snprintf(file, sizeof(file), "file://%s", test_model);
    r = load_checkpoint(s, c, file);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    server_close(s);
    s = start_with(local_paths);
    REQUIRE(s);
    make_model(s, session, 4, c);
    r = result_of(s, load_checkpoint(s, c, file));
    CHECK_STR(find_member(&r, "category"), "server"); /* the fake engine finds no file there */
    reply_clear(&r);
    server_close(s);
}

static void check_never_created(struct server *s, const char *session, int n)
{
    char model[96];
    snprintf(model, sizeof(model), "%s:train:%d", session, n);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    CHECK(strstr(find_member(&r, "error"), "was never created"));
    reply_clear(&r);
}

static void test_a_model_that_could_not_begin_is_none(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    char session[64], model[96], weights[600];
    make_session(s, session);
    make_model(s, session, 0, model);
    struct reply r = result_of(s, post(s, "/api/v1/create_model",
                                       "{\"session_id\":\"%s\",\"model_seq_id\":1,"
                                       "\"base_model\":\"other\",\"lora_config\":{\"rank\":8}}",
                                       session));
    CHECK(strstr(find_member(&r, "error"), "is not served here"));
    reply_clear(&r);
    check_never_created(s, session, 1);
    r = result_of(s, post(s, "/api/v1/save_weights",
                          "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"x\"}", model));
    reply_clear(&r);
    snprintf(weights, sizeof(weights), "%s/checkpoints", test_data);
    os_remove_tree(weights, NULL); /* the record is there, the files are not */
    r = result_of(s, post(s, "/api/v1/load_weights",
                          "{\"session_id\":\"%s\",\"model_seq_id\":2,\"optimizer\":true,"
                          "\"path\":\"tinker://%s/weights/x\"}",
                          session, model));
    CHECK(*find_member(&r, "error"));
    reply_clear(&r);
    check_never_created(s, session, 2);
    server_close(s);
}

static void one_queued(struct server_options *o)
{
    o->max_queued_samples = 1;
    o->max_batch = 1;
}

static struct reply submit_sample_of(struct server *s, int tokens)
{
    return post(
        s, "/api/v1/asample",
        "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{\"max_tokens\":%d},"
        "\"base_model\":\"test/model\"}",
        tokens);
}

static void test_a_full_queue_says_429(void)
{
    struct server *s = start_fresh(one_queued);
    REQUIRE(s);
    atomic_store(&fake_step_us, 20000);
    int full = 0;
    for (int i = 0; i < 4; i++) {
        struct reply r = submit_sample_of(s, 10);
        full += r.status == 429;
        if (r.status != 429)
            CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    atomic_store(&fake_step_us, 0);
    CHECK(full >= 1);
    server_close(s);
}

static void set_strict_context(struct server_options *o)
{
    o->strict_context = true;
}

static void test_strict_context(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct reply r = result_of(s, submit_sample_of(s, FAKE_CONTEXT));
    CHECK(!strstr(r.body, "exceed"));
    reply_clear(&r);
    server_close(s);
    os_remove_tree(test_data, NULL);
    s = start_with(set_strict_context);
    REQUIRE(s);
    r = result_of(s, submit_sample_of(s, FAKE_CONTEXT - 1));
    CHECK(!strstr(r.body, "exceed"));
    reply_clear(&r);
    r = result_of(s, submit_sample_of(s, FAKE_CONTEXT));
    CHECK_STR(find_member(&r, "category"), "user");
    CHECK(strstr(r.body, "prompt of 1 tokens and max_tokens 256 exceed the context of 256"));
    reply_clear(&r);
    server_close(s);
}

static void test_no_tokens_is_not_no_limit(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct reply r = submit_sample_of(s, 0);
    CHECK(r.status == 400 || r.status == 422);
    CHECK(strstr(r.body, "positive"));
    reply_clear(&r);
    r = post(s, "/v1/completions", "{\"model\":\"test/model\",\"prompt\":[1],\"max_tokens\":0}");
    CHECK_STATUS(r, 400);
    CHECK(strstr(r.body, "positive"));
    reply_clear(&r);
    server_close(s);
}

/* A list of millions would keep everybody waiting while it is read into the matcher. */
static void test_stops_have_a_limit(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    static const struct {
        const char *item;
        int n, status;
    } lists[] = { { "7", 1024, 200 },
                  { "7", 1025, 400 },
                  { "\"a\"", 1024, 200 },
                  { "\"a\"", 1025, 400 },
                  { "\"0123456789\"", 1000, 200 } };
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct buf b;
        buf_init(&b, SIZE_MAX);
        buf_puts(&b, "{\"base_model\":\"test/model\",\"prompt\":{\"chunks\":[{\"tokens\":[5]}]},"
                     "\"sampling_params\":{\"max_tokens\":1,\"stop\":[");
        for (int k = 0; k < lists[i].n; k++)
            buf_printf(&b, "%s%s", k ? "," : "", lists[i].item);
        buf_puts(&b, "]}}");
        struct ask a = { .method = "POST", .path = "/api/v1/asample", .body = b.data };
        struct reply r = send_ask(s, &a);
        CHECK_STATUS(r, lists[i].status);
        CHECK(r.status == 200 || strstr(r.body, "more than 1024"));
        reply_clear(&r);
        buf_clear(&b);
    }
    /* One string of a hundred thousand bytes. */
    char *body = calloc(1, 101000);
    int n = snprintf(body, 1000,
                     "{\"base_model\":\"test/model\",\"prompt\":{\"chunks\":[{"
                     "\"tokens\":[5]}]},\"sampling_params\":{\"stop\":\"");
    memset(body + n, 'x', 100000);
    memcpy(body + n + 100000, "\"}}", 3);
    struct ask a = { .method = "POST", .path = "/api/v1/asample", .body = body };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    free(body);
    server_close(s);
}

static void test_numbers_beyond_counting(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = post(s, "/api/v1/optim_step",
                          "{\"model_id\":\"%s\",\"seq_id\":9223372036854775807,"
                          "\"adam_params\":{}}",
                          model);
    CHECK_STATUS(r, 400);
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 1, 1));
    CHECK(strstr(r.body, "metrics"));
    reply_clear(&r);
    server_close(s);
}

static void set_path_prefix(struct server_options *o)
{
    o->path_prefix = "/base";
}

static void test_path_prefix(void)
{
    struct server *s = start_fresh(set_path_prefix);
    REQUIRE(s);
    static const struct {
        const char *path;
        int status;
    } tries[] = { { "/base/api/v1/healthz", 200 },
                  { "/base", 200 },
                  { "/base/", 200 },
                  { "/api/v1/healthz", 404 },
                  { "/baseapi/v1/healthz", 404 },
                  { "/bas", 404 } };
    for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
        struct reply r = send_get(s, tries[i].path);
        if (r.status != tries[i].status)
            TAP_FAIL("%s: %d", tries[i].path, r.status);
        reply_clear(&r);
    }
    server_close(s);
}

static void test_no_tokenizer_no_text(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct reply r =
        post(s, "/v1/completions", "{\"model\":\"test/model\",\"prompt\":[1,2],\"stream\":true}");
    CHECK_STATUS(r, 400);
    CHECK(strstr(r.body, "no tokenizer"));
    reply_clear(&r);
    server_close(s);
}

static void one_at_a_time(struct server_options *o)
{
    o->max_batch = 1;
}

static void test_streams_end_with_the_server(void)
{
    struct server *s = start_fresh(one_at_a_time);
    REQUIRE(s);
    atomic_store(&fake_step_us, 20000);
    for (int i = 0; i < 4; i++) {
        struct reply r = post(s, "/api/v1/stream_sample",
                              "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"base_model\":"
                              "\"test/model\",\"sampling_params\":{\"max_tokens\":200}}");
        CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    /* Some run, some wait: neither may touch what is gone. */
    server_close(s);
    atomic_store(&fake_step_us, 0);
}

static void fake_time(struct server_options *o)
{
    fake_clock_init(&fake);
    o->clock = &fake.clock;
    o->session_timeout_s = 60;
    o->seq_gap_ms = 20000;
}

static void test_sessions_end(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    fake_clock_advance_ms(&fake, 59000);
    timers_run_once(s, true);
    struct reply r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", session);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    fake_clock_advance_ms(&fake, 61000);
    timers_run_once(s, true);
    r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", session);
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = result_of(s, forward_backward(s, model, 2));
    CHECK(strstr(find_member(&r, "error"), "session expired"));
    reply_clear(&r);
    CHECK_INT(atomic_load(&fake_adapters), 0);
    server_close(s);
}

/* What belongs to requests without a session would end without further heartbeats. */
static void test_the_session_of_nobody_cannot_be_named(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct reply r = result_of(s, submit_sample_of(s, 1));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"direct:local\"}");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = post(s, "/api/v1/create_model",
             "{\"session_id\":\"direct:local\",\"model_seq_id\":0,\"base_model\":\"test/model\","
             "\"lora_config\":{\"rank\":8}}");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    server_close(s);
}

static void test_a_gap_is_not_waited_for_ever(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    struct reply late = optim_step(s, model, 3, 1);
    fake_clock_advance_ms(&fake, 21000);
    timers_run_once(s, false);
    struct reply r = result_of(s, late);
    CHECK(strstr(r.body, "metrics"));
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 4, 1));
    CHECK(strstr(r.body, "metrics"));
    reply_clear(&r);
    server_close(s);
}

static void test_checkpoints_expire(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"brief\","
                                       "\"ttl_seconds\":30}",
                                       model));
    reply_clear(&r);
    r = send_get(s, "/api/v1/checkpoints");
    CHECK(strstr(r.body, "weights/brief"));
    reply_clear(&r);
    fake_clock_advance_ms(&fake, 31000);
    timers_run_once(s, true);
    r = send_get(s, "/api/v1/checkpoints");
    CHECK(!strstr(r.body, "weights/brief"));
    reply_clear(&r);
    server_close(s);
}

/* The timer thread has found it expired when its owner extends it. */
/* What no client can read would hide all checkpoints from it. */
static void test_a_checkpoint_that_never_expires_can_be_listed(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"long\","
                                       "\"ttl_seconds\":1000000000000}",
                                       model));
    CHECK(*find_member(&r, "path"));
    reply_clear(&r);
    r = send_get(s, "/api/v1/checkpoints");
    CHECK_STR(find_member(&r, "expires_at"), "9999-12-31T23:59:59Z");
    reply_clear(&r);
    server_close(s);
}

static void test_a_checkpoint_that_gets_more_time_stays(void)
{
    char session[64], model[96], path[200];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"brief\","
                                       "\"ttl_seconds\":30}",
                                       model));
    reply_clear(&r);
    struct arena arena;
    struct store_checkpoint *list = NULL;
    size_t n = 0;
    bool deleted = true;
    int64_t later = live_wall_us(s) + 31000000;
    arena_init(&arena, 1 << 20);
    CHECK(store_expired_checkpoints(s->store, later, 9, &arena, &list, &n, NULL) == TINKER_OK);
    REQUIRE(n == 1);
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints/weights/brief/ttl", model);
    struct ask more = { .method = "PUT", .path = path, .body = "{\"ttl_seconds\":null}" };
    r = send_ask(s, &more);
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    CHECK(store_delete_expired(s->store, &list[0], later, &deleted, NULL) == TINKER_OK);
    CHECK(!deleted);
    arena_clear(&arena);
    r = send_get(s, "/api/v1/checkpoints");
    CHECK(strstr(r.body, "weights/brief"));
    reply_clear(&r);
    server_close(s);
}

static size_t n_futures(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->futures.len;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void test_fetched_outcomes_leave_memory(void)
{
    char session[64], model[96];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    CHECK_INT(n_futures(s), 2);
    fake_clock_advance_ms(&fake, 30000);
    r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", session);
    reply_clear(&r);
    timers_run_once(s, true);
    CHECK_INT(n_futures(s), 2);
    fake_clock_advance_ms(&fake, 31000);
    timers_run_once(s, true);
    CHECK_INT(n_futures(s), 0);
    CHECK_INT(s->result_bytes, 0);
    /* The store still has them. */
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s:1\"}", model);
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    r = forward_backward(s, model, 1);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
}

static void no_results(struct server_options *o)
{
    fake_time(o);
    o->result_ttl_s = 0;
}

/* Whoever polls has a moment to come for it, and a poll that is being held knows where it is. */
static void test_no_result_is_forgotten_at_once(void)
{
    char id[64];
    struct server *s = start_fresh(no_results);
    REQUIRE(s);
    struct reply r = submit_sample_of(s, 1);
    snprintf(id, sizeof(id), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    wait_done(s, id);
    fake_clock_advance_ms(&fake, 1);
    timers_run_once(s, true);
    CHECK_INT(n_futures(s), 1);
    fake_clock_advance_ms(&fake, 6000);
    timers_run_once(s, true);
    CHECK_INT(n_futures(s), 0);
    server_close(s);
}

/* A sample that its client has is kept for a lost response only; one that it has not, for an hour. */
static void test_fetched_samples_go_early(void)
{
    char id[64];
    struct server *s = start_fresh(fake_time);
    REQUIRE(s);
    struct reply r = result_of(s, submit_sample_of(s, 1));
    reply_clear(&r);
    r = submit_sample_of(s, 1);
    snprintf(id, sizeof(id), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    wait_done(s, id);
    fake_clock_advance_ms(&fake, 299000);
    timers_run_once(s, true);
    CHECK_INT(n_futures(s), 2);
    fake_clock_advance_ms(&fake, 2000);
    timers_run_once(s, true);
    CHECK_INT(n_futures(s), 1);
    fake_clock_advance_ms(&fake, 3600000);
    timers_run_once(s, true);
    CHECK_INT(n_futures(s), 0);
    server_close(s);
}

static void few_tokens(struct server_options *o)
{
    o->max_batch_tokens = 60;
}

static void test_cancel(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    atomic_store(&fake_step_us, 5000);
    struct reply a = submit_sample_of(s, 200);
    char id[64];
    snprintf(id, sizeof(id), "%s", find_member(&a, "request_id"));
    struct reply r = post(s, "/api/v1/cancel_future", "{\"request_id\":\"%s\"}", id);
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    r = result_of(s, a);
    CHECK(strstr(find_member(&r, "error"), "canceled"));
    reply_clear(&r);
    atomic_store(&fake_step_us, 0);
    server_close(s);
}

static size_t n_queued(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->queued_samples;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void test_prompts_are_queued_all_or_none(void)
{
    struct server *s = start_fresh(one_queued);
    REQUIRE(s);
    atomic_store(&fake_step_us, 20000);
    struct reply r = submit_sample_of(s, 200);
    reply_clear(&r);
    for (int i = 0; i < 1000 && n_queued(s); i++)
        nap_ms(5);
    CHECK_INT(n_queued(s), 0);
    r = post(s, "/v1/completions",
             "{\"model\":\"test/model\",\"prompt\":[[1],[2],[3]],\"max_tokens\":1}");
    CHECK_STATUS(r, 429);
    CHECK(strstr(r.body, "{\"error\":{\"message\":\"too many requests are waiting\""));
    reply_clear(&r);
    CHECK_INT(n_queued(s), 0);
    atomic_store(&fake_step_us, 0);
    server_close(s);
}

static void short_of_memory(struct server_options *o)
{
    fake_time(o);
    o->max_result_bytes = 0;
}

/* Nobody can ask for them again, so they must not keep others from being made. */
static void test_answered_completions_leave_memory(void)
{
    struct server *s = start_fresh(short_of_memory);
    REQUIRE(s);
    struct reply r =
        post(s, "/v1/completions", "{\"model\":\"test/model\",\"prompt\":[1],\"max_tokens\":1}");
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    CHECK_INT(n_futures(s), 1);
    fake_clock_advance_ms(&fake, 6000);
    timers_run_once(s, true);
    CHECK_INT(n_futures(s), 0);
    server_close(s);
}

static void test_what_is_wrong_with_a_model_is_told(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    struct reply r = post(s, "/v1/completions", "{\"model\":\"tinker://a/b\",\"prompt\":[1]}");
    CHECK_STATUS(r, 400);
    CHECK(strstr(r.body, "{\"error\":{\"message\":") && !strstr(r.body, "no model"));
    reply_clear(&r);
    r = post(s, "/v1/completions", "{\"model\":\"tinker://a/weights/b\",\"prompt\":[1]}");
    CHECK_STATUS(r, 404);
    CHECK(strstr(r.body, "Checkpoint not found"));
    reply_clear(&r);
    server_close(s);
}

/* What a cancel leaves that comes while a sample is tried and put back. */
static void test_a_sample_canceled_while_it_waits_is_not_made(void)
{
    struct server *s = start_fresh(few_tokens);
    char id[64];
    REQUIRE(s);
    atomic_store(&fake_step_us, 5000);
    struct reply first = submit_sample_of(s, 50), second = submit_sample_of(s, 50);
    snprintf(id, sizeof(id), "%s", find_member(&second, "request_id"));
    pthread_mutex_lock(&s->lock);
    struct future *f = live_find_future_locked(s, id);
    if (f)
        f->canceled = true;
    pthread_mutex_unlock(&s->lock);
    struct reply r = result_of(s, second);
    CHECK(strstr(find_member(&r, "error"), "canceled"));
    reply_clear(&r);
    atomic_store(&fake_step_us, 0);
    r = result_of(s, first);
    CHECK(strstr(r.body, "\"tokens\""));
    reply_clear(&r);
    server_close(s);
}

static void test_requests_in_any_order(void)
{
    enum { N = 37 };
    char session[64], model[96], id[128], want[32];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    atomic_store(&fake_step_us, 20000); /* the first one holds the others up */
    struct reply r = long_pass(s, model, 1, 1);
    reply_clear(&r);
    for (int i = 1; i <= N; i++) { /* 5 has no divisor with the number of them */
        r = optim_step(s, model, 2 + 5 * i % N, 1);
        CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    atomic_store(&fake_step_us, 0);
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "%s:%d", model, 2 + i);
        snprintf(want, sizeof(want), "\"step:max\":%d.0", i + 1);
        r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", id);
        CHECK(strstr(r.body, want));
        reply_clear(&r);
    }
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_keys);
    RUN(test_a_key_can_be_asked_about);
    RUN(test_public_address_needs_a_key);
    RUN(test_an_empty_key_is_none);
    RUN(test_two_models_have_two_names);
    RUN(test_other_sites_are_refused);
    RUN(test_names_of_sites_are_refused);
    RUN(test_names_stay_inside);
    RUN(test_checkpoints);
    RUN(test_loading);
    RUN(test_a_model_that_could_not_begin_is_none);
    RUN(test_a_full_queue_says_429);
    RUN(test_strict_context);
    RUN(test_no_tokens_is_not_no_limit);
    RUN(test_stops_have_a_limit);
    RUN(test_numbers_beyond_counting);
    RUN(test_path_prefix);
    RUN(test_no_tokenizer_no_text);
    RUN(test_streams_end_with_the_server);
    RUN(test_sessions_end);
    RUN(test_the_session_of_nobody_cannot_be_named);
    RUN(test_a_gap_is_not_waited_for_ever);
    RUN(test_checkpoints_expire);
    RUN(test_a_checkpoint_that_never_expires_can_be_listed);
    RUN(test_a_checkpoint_that_gets_more_time_stays);
    RUN(test_fetched_outcomes_leave_memory);
    RUN(test_no_result_is_forgotten_at_once);
    RUN(test_fetched_samples_go_early);
    RUN(test_cancel);
    RUN(test_prompts_are_queued_all_or_none);
    RUN(test_answered_completions_leave_memory);
    RUN(test_what_is_wrong_with_a_model_is_told);
    RUN(test_a_sample_canceled_while_it_waits_is_not_made);
    RUN(test_requests_in_any_order);
    harness_clear();
    return tap_done();
}
