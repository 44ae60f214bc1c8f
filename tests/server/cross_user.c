/* Every route of the table, asked by another user about what is Alice's: with bodies that work when
 * she sends them, so that a refusal is about whose it is and about nothing else.
 *
 * A route that is added without a row here fails the test. */
#include "server/api/routes.c"
#include "server/harness.h"

#define SAMPLE_BODY(seq)                                                                    \
    "{\"sampling_session_id\":\"$S:sample:0\",\"seq_id\":" seq ",\"prompt\":{\"chunks\":[{" \
    "\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":1}}"
#define PASS_BODY(name, seq)                          \
    "{\"model_id\":\"$M\",\"seq_id\":" seq ",\"" name \
    "\":{\"data\":[" DATUM("5") "],\"loss_fn\":\"cross_entropy\"}}"

/* What Bob must get.  After him Alice asks the same and must get 2xx or 302. */
enum verdict {
    REFUSED, /* 404: as if it did not exist */
    EMPTY,   /* 200 and nothing of hers in it */
    NOBODYS, /* about no object of a user: not tried */
};

/* $S: her session, $M: her model, $R: a run with checkpoints to change, $F: a future. */
static const struct probe {
    const char *method, *path; /* of the table; "{}" is replaced by the words of `params` */
    const char *params[REQUEST_PARAMS];
    const char *body;
    enum verdict verdict;
} probes[] = {
    { "POST", API "retrieve_future", { 0 }, "{\"request_id\":\"$F\"}", REFUSED },
    { "POST", API "session_heartbeat", { 0 }, "{\"session_id\":\"$S\"}", REFUSED },
    { "POST", API "cancel_future", { 0 }, "{\"request_id\":\"$F\"}", REFUSED },
    { "POST", API "asample", { 0 }, SAMPLE_BODY("0"), REFUSED },
    { "POST",
      API "retrieve_futures",
      { 0 },
      "{\"target\":{\"type\":\"sampling_session\",\"sampling_session_id\":\"$S:sample:0\"}}",
      REFUSED },
    { "POST", API "stream_sample", { 0 }, SAMPLE_BODY("1"), REFUSED },
    { "POST", API "forward_backward", { 0 }, PASS_BODY("forward_backward_input", "3"), REFUSED },
    { "POST", API "forward", { 0 }, PASS_BODY("forward_input", "4"), REFUSED },
    { "POST",
      API "optim_step",
      { 0 },
      "{\"model_id\":\"$M\",\"seq_id\":5,\"adam_params\":{}}",
      REFUSED },
    { "POST",
      API "save_weights",
      { 0 },
      "{\"model_id\":\"$M\",\"seq_id\":6,\"path\":\"n\"}",
      REFUSED },
    { "POST",
      API "save_weights_for_sampler",
      { 0 },
      "{\"model_id\":\"$M\",\"seq_id\":7,\"path\":\"n\"}",
      REFUSED },
    { "POST",
      API "save_weights_external",
      { 0 },
      "{\"model_id\":\"$M\",\"seq_id\":8,\"path\":\"n\"}",
      REFUSED },
    { "POST",
      API "copy_weights",
      { 0 },
      "{\"source_path\":\"tinker://$M/weights/a\",\"destination_project_id\":\"p\"}",
      REFUSED },
    { "POST",
      API "load_weights",
      { 0 },
      "{\"session_id\":\"$S\",\"model_seq_id\":9,\"path\":\"tinker://$M/weights/a\","
      "\"optimizer\":false}",
      REFUSED },
    { "POST",
      API "create_model",
      { 0 },
      "{\"session_id\":\"$S\",\"model_seq_id\":10,\"base_model\":\"test/model\",\"lora_config\":{"
      "\"rank\":8}}",
      REFUSED },
    { "POST", API "get_info", { 0 }, "{\"model_id\":\"$M\"}", REFUSED },
    { "POST", API "create_session", { 0 }, NULL, NOBODYS },
    { "POST",
      API "create_sampling_session",
      { 0 },
      "{\"session_id\":\"$S\",\"sampling_session_seq_id\":5,\"base_model\":\"test/model\"}",
      REFUSED },
    { "POST",
      API "join_sampling_session",
      { 0 },
      "{\"sampling_session_id\":\"$S:sample:0\"}",
      REFUSED },
    { "POST",
      API "create_custom_loss",
      { 0 },
      "{\"session_id\":\"$S\",\"custom_loss_seq_id\":0,\"name\":\"f\",\"inputs\":[],"
      "\"graph\":{}}",
      REFUSED },
    { "POST", API "telemetry", { 0 }, NULL, NOBODYS },
    { "POST", API "weights_info", { 0 }, "{\"tinker_path\":\"tinker://$M/weights/a\"}", REFUSED },
    { "POST", API "client/config", { 0 }, NULL, NOBODYS },
    { "POST", API "client/dynamic_config", { 0 }, NULL, NOBODYS },
    { "POST", API "auth/token", { 0 }, NULL, NOBODYS },
    { "GET", API "auth/apikey/me", { 0 }, NULL, EMPTY },
    { "GET", API "healthz", { 0 }, NULL, NOBODYS },
    { "GET", API "get_server_capabilities", { 0 }, NULL, NOBODYS },
    { "GET", API "sessions", { 0 }, NULL, EMPTY },
    { "POST",
      API "sessions/search",
      { 0 },
      "{\"owner\":{\"type\":\"accessible\"},\"limit\":10,\"session_id\":\"$S\"}",
      EMPTY },
    { "POST",
      API "checkpoints/search",
      { 0 },
      "{\"owner\":{\"type\":\"accessible\"},\"limit\":10}",
      EMPTY },
    { "GET", API "sessions/{}", { "$S" }, NULL, REFUSED },
    { "PUT", API "sessions/{}/project", { "$S" }, "{\"project_id\":\"p\"}", REFUSED },
    { "POST", API "sessions/{}/finish", { "$S" }, "{\"reason\":{\"type\":\"success\"}}", REFUSED },
    { "GET", API "sessions/{}/trace_export", { "$S" }, NULL, REFUSED },
    { "GET", API "samplers/{}", { "$S:sample:0" }, NULL, REFUSED },
    { "GET", API "training_runs", { 0 }, NULL, EMPTY },
    { "GET", API "training_runs/{}", { "$M" }, NULL, REFUSED },
    { "GET", API "training_runs/{}/checkpoints", { "$M" }, NULL, REFUSED },
    { "GET", API "training_runs/{}/metrics", { "$M" }, NULL, REFUSED },
    { "POST",
      API "training_runs/{}/metrics",
      { "$M" },
      "{\"step\":1,\"metrics\":{\"x\":1}}",
      REFUSED },
    { "GET", API "training_runs/{}/texts", { "$M" }, NULL, REFUSED },
    { "GET", API "training_runs/{}/note", { "$M" }, NULL, REFUSED },
    { "PUT", API "training_runs/{}/note", { "$M" }, "{\"name\":\"mine\"}", REFUSED },
    { "GET", API "training_run_summaries", { 0 }, NULL, EMPTY },
    { "GET", API "models/{}/checkpoints", { "$M" }, NULL, REFUSED },
    { "GET", API "checkpoints", { 0 }, NULL, EMPTY },
    { "GET", CHECKPOINT "/archive", { "$R", "weights", "a" }, NULL, REFUSED },
    { "GET",
      CHECKPOINT "/external_weights_urls",
      { "$R", "external_weights", "a" },
      NULL,
      REFUSED },
    { "POST", CHECKPOINT "/publish", { "$R", "weights", "a" }, NULL, REFUSED },
    { "DELETE", CHECKPOINT "/publish", { "$R", "weights", "a" }, NULL, REFUSED },
    { "PUT", CHECKPOINT "/ttl", { "$R", "weights", "a" }, "{\"ttl_seconds\":100}", REFUSED },
    { "DELETE", CHECKPOINT, { "$R", "weights", "a" }, NULL, REFUSED },
    { "GET", BARE_CHECKPOINT "/archive", { "$R", "b" }, NULL, REFUSED },
    { "POST", BARE_CHECKPOINT "/publish", { "$R", "b" }, NULL, REFUSED },
    { "PUT", BARE_CHECKPOINT "/ttl", { "$R", "b" }, "{\"ttl_seconds\":100}", REFUSED },
    { "DELETE", BARE_CHECKPOINT, { "$R", "b" }, NULL, REFUSED },
    { "GET", API "billing/usage/events", { 0 }, NULL, EMPTY },
    { "GET", API "billing/usage/checkpoints/current", { 0 }, NULL, EMPTY },
    { "GET", API "audit", { 0 }, NULL, EMPTY },
    { "GET", "/v1/models", { 0 }, NULL, EMPTY },
    { "POST",
      "/v1/completions",
      { 0 },
      "{\"model\":\"tinker://$M/weights/a\",\"prompt\":[5],\"max_tokens\":1}",
      REFUSED },
    { "POST",
      "/v1/completions",
      { 0 },
      "{\"model\":\"$M\",\"prompt\":[5],\"max_tokens\":1}",
      REFUSED },
    { "GET", "/oai/api/v1/models", { 0 }, NULL, EMPTY },
    { "POST",
      "/oai/api/v1/completions",
      { 0 },
      "{\"model\":\"tinker://$M/weights/a\",\"prompt\":[5],\"max_tokens\":1}",
      REFUSED },
    /* These need a tokenizer, which the model of this test has not; the weights are looked up by the
     * same function as above. */
    { "POST", "/v1/chat/completions", { 0 }, NULL, NOBODYS },
    { "POST", "/oai/api/v1/chat/completions", { 0 }, NULL, NOBODYS },
    { "POST", "/v1/messages", { 0 }, NULL, NOBODYS },
    { "POST", "/v1/messages/count_tokens", { 0 }, NULL, NOBODYS },
    { "POST", "/anthropic/api/v1/messages", { 0 }, NULL, NOBODYS },
    { "POST", "/anthropic/api/v1/messages/count_tokens", { 0 }, NULL, NOBODYS },
    /* Tokenizers belong to base models, which all may use. */
    { "GET", "/tokenizer_info", { 0 }, NULL, NOBODYS },
    { "POST", "/tokenize", { 0 }, NULL, NOBODYS },
    { "POST", "/detokenize", { 0 }, NULL, NOBODYS },
    { "GET", "/metrics", { 0 }, NULL, EMPTY },
    { "GET", "/status", { 0 }, NULL, EMPTY },
    { "GET", API "system", { 0 }, NULL, EMPTY },
    /* The last: her model and session are gone after it. */
    { "POST", API "unload_model", { 0 }, "{\"model_id\":\"$M\"}", REFUSED },
};

/* Replace $S, $M, $R and $F. */
static void fill_text(char *out, size_t size, const char *text, const char *session)
{
    size_t n = 0;
    for (const char *p = text; *p && n + 100 < size; p++) {
        if (*p != '$') {
            out[n++] = *p;
            continue;
        }
        static const char *const words[] = { "S", "",         "M", ":train:0",
                                             "R", ":train:1", "F", ":train:0:1" };
        p++;
        for (size_t i = 0; i < 8; i += 2)
            if (*p == words[i][0])
                n += (size_t)snprintf(out + n, size - n, "%s%s", session, words[i + 1]);
    }
    out[n] = 0;
}

static struct reply send_probe(struct server *s, const struct probe *p, const char *key,
                               const char *session)
{
    static char path[600], body[2000];
    char pattern[600];
    size_t n = 0, param = 0;
    for (const char *q = p->path; *q; q++) {
        if (*q == '{')
            n += (size_t)snprintf(pattern + n, sizeof(pattern) - n, "%s", p->params[param++]), q++;
        else
            pattern[n++] = *q;
    }
    pattern[n] = 0;
    fill_text(path, sizeof(path), pattern, session);
    fill_text(body, sizeof(body), p->body ? p->body : "", session);
    /* The last two whole hours and the next: usage is asked for by the hour, other routes know no such words. */
    static char from[40], to[40];
    time_t hour = time(NULL) / 3600 * 3600, start = hour - 7200, end = hour + 3600;
    struct tm tm;
    strftime(from, sizeof(from), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&start, &tm));
    strftime(to, sizeof(to), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&end, &tm));
    struct ask a = { .method = p->method,
                     .path = path,
                     .key = key,
                     .body = body,
                     .query = { { "starting_on", from }, { "ending_before", to } } };
    return send_ask(s, &a);
}

static void test_every_route_has_a_probe(void)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        bool found = table[i].open; /* no key, hence nobody's: signed links are tested elsewhere */
        for (size_t k = 0; k < ARRAY_LEN(probes); k++)
            found = found || (strcmp(table[i].method, probes[k].method) == 0 &&
                              strcmp(table[i].path, probes[k].path) == 0);
        if (!found)
            TAP_FAIL("%s %s: what may another user do with it?", table[i].method, table[i].path);
    }
}

static void post_as_alice(struct server *s, const char *path, const char *text, const char *session)
{
    char body[2000];
    fill_text(body, sizeof(body), text, session);
    struct ask a = { .method = "POST", .path = path, .key = ALICE, .body = body };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    const char *id = find_member(&r, "request_id");
    if (*id) {
        snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", id);
        a = (struct ask){
            .method = "POST", .path = "/api/v1/retrieve_future", .key = ALICE, .body = body
        };
        reply_clear(&r);
        r = send_ask(s, &a);
        CHECK_STATUS(r, 200);
        if (strstr(r.body, "\"error\""))
            TAP_FAIL("%s: %s", path, r.body);
    }
    reply_clear(&r);
}

/* Two models of hers, both with checkpoints, and a sampling session. */
static void make_alices_things(struct server *s, char session[64])
{
    struct ask a = { .method = "POST",
                     .path = "/api/v1/create_session",
                     .key = ALICE,
                     .body =
                         "{\"tags\":[],\"sdk_version\":\"0.25.0\",\"display_name\":\"secret\"}" };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    snprintf(session, 64, "%s", find_member(&r, "session_id"));
    reply_clear(&r);
    static const char *const saves[][2] = { { "save_weights", "a" },
                                            { "save_weights_for_sampler", "b" },
                                            { "save_weights_external", "a" } };
    for (int m = 0; m < 2; m++) {
        char text[600], path[100];
        snprintf(text, sizeof(text),
                 "{\"session_id\":\"$S\",\"model_seq_id\":%d,\"base_model\":\"test/model\","
                 "\"lora_config\":{\"rank\":8}}",
                 m);
        post_as_alice(s, "/api/v1/create_model", text, session);
        for (int i = 0; i < (m ? 3 : 2); i++) {
            snprintf(path, sizeof(path), "/api/v1/%s", saves[i][0]);
            snprintf(text, sizeof(text), "{\"model_id\":\"$%c\",\"seq_id\":%d,\"path\":\"%s\"}",
                     m ? 'R' : 'M', i + 1, saves[i][1]);
            post_as_alice(s, path, text, session);
        }
    }
    post_as_alice(s, "/api/v1/create_sampling_session",
                  "{\"session_id\":\"$S\",\"sampling_session_seq_id\":0,\"base_model\":"
                  "\"test/model\"}",
                  session);
}

static void check_bob(const struct probe *p, const struct reply *r, const char *session)
{
    /* The message may quote what Bob has sent, which he knows. */
    if (p->verdict == REFUSED && r->status != 404)
        TAP_FAIL("%s %s: another user got %d %s", p->method, p->path, r->status, r->body);
    if (p->verdict == EMPTY &&
        (r->status != 200 || strstr(r->body, session) || strstr(r->body, "secret")))
        TAP_FAIL("%s %s: another user saw %d %s", p->method, p->path, r->status, r->body);
}

static void bare_ids(struct server_options *o)
{
    two_keys(o);
    o->bare_checkpoint_ids = true;
}

static void test_nothing_of_another_user_by_any_route(void)
{
    char session[64];
    struct server *s = start_fresh(bare_ids);
    REQUIRE(s);
    make_alices_things(s, session);
    for (size_t i = 0; i < ARRAY_LEN(probes); i++) {
        const struct probe *p = &probes[i];
        if (p->verdict == NOBODYS)
            continue;
        struct reply r = send_probe(s, p, BOB, session);
        check_bob(p, &r, session);
        reply_clear(&r);
        /* Finishing the session would end everything: it is enough that Bob could not. */
        if (strcmp(p->path, API "sessions/{}/finish") == 0)
            continue;
        r = send_probe(s, p, ALICE, session);
        if (r.status < 200 || r.status > 302)
            TAP_FAIL("%s %s: its owner got %d %s", p->method, p->path, r.status, r.body);
        reply_clear(&r);
    }
    server_close(s);
}

/* ---- numbers of the whole server ---------------------------------------------------------------- */

static const char *const admin[] = { "tml-admin-0123456789" };
static const char *const three_keys[] = { "tml-alice-0123456789", "tml-bob-0123456789",
                                          "tml-admin-0123456789" };

static void with_admin(struct server_options *o)
{
    o->api_keys = three_keys;
    o->n_api_keys = 3;
    o->admin_keys = admin;
    o->n_admin_keys = 1;
}

/* The value of a metric, or -1. */
static double metric_of(struct server *s, const char *key, const char *name)
{
    char line[100];
    struct ask a = { .method = "GET", .path = "/metrics", .key = key };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    snprintf(line, sizeof(line), "\ntinker_%s ", name);
    const char *at = strstr(r.body, line);
    double v = at ? strtod(at + strlen(line), NULL) : -1;
    reply_clear(&r);
    return v;
}

static void test_load_is_shown_to_those_who_make_it(void)
{
    char session[64];
    struct server *s = start_fresh(with_admin);
    REQUIRE(s);
    make_alices_things(s, session);
    post_as_alice(s, "/api/v1/asample", SAMPLE_BODY("0"), session);
    post_as_alice(s, "/api/v1/forward_backward", PASS_BODY("forward_backward_input", "3"), session);
    static const char *const names[] = { "samples_total", "prompt_tokens_total",
                                         "passes_total",  "train_tokens_total",
                                         "models",        "sessions" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        CHECK(metric_of(s, ALICE, names[i]) > 0);
        CHECK_NEAR(metric_of(s, BOB, names[i]), 0, 0);
        CHECK(metric_of(s, admin[0], names[i]) >= metric_of(s, ALICE, names[i]));
    }
    CHECK_NEAR(metric_of(s, BOB, "http_requests_total"), -1, 0);
    CHECK(metric_of(s, admin[0], "http_requests_total") >= 0);
    static const char *const zero[] = { "\"sessions\":0", "\"sample_tokens\":0",
                                        "\"memory_bytes\":0", "\"runs\":[]" };
    struct ask a = { .method = "GET", .path = "/api/v1/system", .key = BOB };
    struct reply r = send_ask(s, &a);
    CHECK(strstr(r.body, "\"sample_tokens\":0") && strstr(r.body, "\"sessions\":0") &&
          strstr(r.body, "\"runs_in_memory\":0") && strstr(r.body, "\"resident_bytes\":0"));
    CHECK_STR(find_member(&r, "version"), TINKER_VERSION);
    reply_clear(&r);
    a.path = "/status";
    r = send_ask(s, &a);
    for (size_t i = 0; i < ARRAY_LEN(zero); i++)
        CHECK(strstr(r.body, zero[i]));
    reply_clear(&r);
    server_close(s);
    /* Alone everything is one's own. */
    s = start_server();
    REQUIRE(s);
    CHECK(metric_of(s, NULL, "http_requests_total") >= 0);
    server_close(s);
}

/* The same prompt under two keys: neither finds what the other has left in the cache. */
static void test_prompts_are_cached_per_user(void)
{
    char session[64];
    uint64_t scopes[2];
    struct server *s = start_fresh(two_keys);
    REQUIRE(s);
    for (int i = 0; i < 2; i++) {
        struct ask a = { .method = "POST",
                         .path = "/api/v1/asample",
                         .key = i ? BOB : ALICE,
                         .body =
                             "{\"base_model\":\"test/model\",\"prompt\":{\"chunks\":[{\"tokens\":"
                             "[5]}]},\"sampling_params\":{\"max_tokens\":1}}" };
        struct reply r = send_ask(s, &a);
        CHECK_STATUS(r, 200);
        snprintf(session, sizeof(session), "%s", find_member(&r, "request_id"));
        reply_clear(&r);
        wait_done(s, session);
        scopes[i] = atomic_load(&fake_scope);
    }
    CHECK(scopes[0] && scopes[1] && scopes[0] != scopes[1]);
    server_close(s);
}

static void quick_to_forget(struct server_options *o)
{
    o->idle_memory_s = 0;
}

static void test_idle_memory_goes_back(void)
{
    struct server *s = start_fresh(quick_to_forget);
    REQUIRE(s);
    for (int i = 0; i < 4000 && !atomic_load(&fake_trims); i++)
        nap_ms(1);
    CHECK_INT(atomic_load(&fake_trims), 1); /* once, not again and again */
    nap_ms(20);
    CHECK_INT(atomic_load(&fake_trims), 1);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_every_route_has_a_probe);
    RUN(test_nothing_of_another_user_by_any_route);
    RUN(test_load_is_shown_to_those_who_make_it);
    RUN(test_prompts_are_cached_per_user);
    RUN(test_idle_memory_goes_back);
    harness_clear();
    return tap_done();
}
