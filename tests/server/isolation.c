/* Users do not see each other; names and links lead nowhere they should not. */
#include <dirent.h>

#include "server/store/timers.h"
#include "server/harness.h"

static struct fake_clock fake;

static void two_users(struct server_options *o)
{
    fake_clock_init(&fake);
    o->clock = &fake.clock;
    two_keys(o);
}

__attribute__((format(printf, 5, 6))) static struct reply
as(struct server *s, const char *key, const char *method, const char *path, const char *fmt, ...)
{
    char body[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(body, sizeof(body), fmt, ap);
    va_end(ap);
    struct ask a = { .method = method, .path = path, .body = body, .key = key, .no_wait = true };
    return send_ask(s, &a);
}

/* Submit as `key` and wait for the outcome. */
static struct reply fetch_outcome(struct server *s, const char *key, struct reply submitted)
{
    CHECK_STATUS(submitted, 200);
    char body[300];
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", find_member(&submitted, "request_id"));
    reply_clear(&submitted);
    struct ask a = {
        .method = "POST", .path = "/api/v1/retrieve_future", .body = body, .key = key
    };
    return send_ask(s, &a);
}

/* What Alice has. */
struct things {
    char session[64], model[96], sampler[96], path[200], sample[128];
};

static void make_things(struct server *s, struct things *t)
{
    struct reply r = as(s, ALICE, "POST", "/api/v1/create_session",
                        "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\"}");
    snprintf(t->session, sizeof(t->session), "%s", find_member(&r, "session_id"));
    reply_clear(&r);
    r = fetch_outcome(s, ALICE,
                      as(s, ALICE, "POST", "/api/v1/create_model",
                         "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"test/model\","
                         "\"lora_config\":{\"rank\":8}}",
                         t->session));
    snprintf(t->model, sizeof(t->model), "%s", find_member(&r, "model_id"));
    reply_clear(&r);
    r = fetch_outcome(s, ALICE,
                      as(s, ALICE, "POST", "/api/v1/save_weights",
                         "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"one\"}", t->model));
    snprintf(t->path, sizeof(t->path), "%s", find_member(&r, "path"));
    reply_clear(&r);
    r = as(s, ALICE, "POST", "/api/v1/create_sampling_session",
           "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"model_path\":\"%s\"}",
           t->session, t->path);
    snprintf(t->sampler, sizeof(t->sampler), "%s", find_member(&r, "sampling_session_id"));
    reply_clear(&r);
    r = as(
        s, ALICE, "POST", "/api/v1/asample",
        "{\"sampling_session_id\":\"%s\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},"
        "\"sampling_params\":{\"max_tokens\":2}}",
        t->sampler);
    snprintf(t->sample, sizeof(t->sample), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    CHECK(t->session[0] && t->model[0] && t->path[0] && t->sampler[0] && t->sample[0]);
}

/* Everything that names a thing: Bob gets 404 where Alice gets something else. */
static void test_nothing_of_another_user(void)
{
    struct server *s = start_fresh(two_users);
    REQUIRE(s);
    struct things t;
    make_things(s, &t);
    struct {
        const char *method;
        char path[300], body[600];
    } asks[32];
    int n = 0;
#define ASK(how, place, ...)                                       \
    do {                                                           \
        asks[n].method = (how);                                    \
        snprintf(asks[n].path, sizeof(asks[n].path), "%s", place); \
        snprintf(asks[n].body, sizeof(asks[n].body), __VA_ARGS__); \
        n++;                                                       \
    } while (0)
    char place[300];
    ASK("POST", "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", t.session);
    ASK("POST", "/api/v1/create_model",
        "{\"session_id\":\"%s\",\"model_seq_id\":9,\"base_model\":\"test/model\","
        "\"lora_config\":{\"rank\":8}}",
        t.session);
    ASK("POST", "/api/v1/get_info", "{\"model_id\":\"%s\"}", t.model);
    ASK("POST", "/api/v1/forward_backward",
        "{\"model_id\":\"%s\",\"seq_id\":2,\"forward_backward_input\":{\"data\":[" DATUM(
            "5") "],\"loss_fn\":\"cross_entropy\"}}",
        t.model);
    ASK("POST", "/api/v1/optim_step", "{\"model_id\":\"%s\",\"seq_id\":3,\"adam_params\":{}}",
        t.model);
    ASK("POST", "/api/v1/save_weights", "{\"model_id\":\"%s\",\"seq_id\":4,\"path\":\"x\"}",
        t.model);
    ASK("POST", "/api/v1/save_weights_for_sampler",
        "{\"model_id\":\"%s\",\"seq_id\":5,\"path\":\"x\"}", t.model);
    ASK("POST", "/api/v1/create_sampling_session",
        "{\"session_id\":\"%s\",\"sampling_session_seq_id\":5,\"base_model\":\"test/model\"}",
        t.session);
    ASK("POST", "/api/v1/asample",
        "{\"sampling_session_id\":\"%s\",\"seq_id\":9,\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},"
        "\"sampling_params\":{\"max_tokens\":2}}",
        t.sampler);
    ASK("POST", "/api/v1/asample",
        "{\"model_path\":\"%s\",\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},"
        "\"sampling_params\":{\"max_tokens\":2}}",
        t.path);
    ASK("POST", "/api/v1/stream_sample",
        "{\"sampling_session_id\":\"%s\",\"seq_id\":11,\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},"
        "\"sampling_params\":{\"max_tokens\":2}}",
        t.sampler);
    ASK("POST", "/v1/completions", "{\"model\":\"%s\",\"prompt\":[1],\"max_tokens\":1}", t.path);
    ASK("POST", "/api/v1/retrieve_future", "{\"request_id\":\"%s:1\"}", t.model);
    ASK("POST", "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", t.sample);
    ASK("POST", "/api/v1/cancel_future", "{\"request_id\":\"%s\"}", t.sample);
    ASK("POST", "/api/v1/weights_info", "{\"tinker_path\":\"%s\"}", t.path);
    snprintf(place, sizeof(place), "/api/v1/sessions/%s", t.session);
    ASK("GET", place, "%s", "");
    snprintf(place, sizeof(place), "/api/v1/sessions/%s/project", t.session);
    ASK("PUT", place, "%s", "{\"project_id\":\"p\"}");
    snprintf(place, sizeof(place), "/api/v1/sessions/%s/trace_export", t.session);
    ASK("GET", place, "%s", "");
    snprintf(place, sizeof(place), "/api/v1/samplers/%s", t.sampler);
    ASK("GET", place, "%s", "");
    snprintf(place, sizeof(place), "/api/v1/training_runs/%s", t.model);
    ASK("GET", place, "%s", "");
    snprintf(place, sizeof(place), "/api/v1/training_runs/%s/checkpoints", t.model);
    ASK("GET", place, "%s", "");
    snprintf(place, sizeof(place), "/api/v1/training_runs/%s/checkpoints/weights/one/ttl", t.model);
    ASK("PUT", place, "%s", "{\"ttl_seconds\":60}");
    const char *const verbs[][2] = {
        { "GET", "/archive" }, { "POST", "/publish" }, { "DELETE", "/publish" }, { "DELETE", "" }
    };
    for (int i = 0; i < 4; i++) {
        snprintf(place, sizeof(place), "/api/v1/training_runs/%s/checkpoints/weights/one%s",
                 t.model, verbs[i][1]);
        ASK(verbs[i][0], place, "%s", "");
    }
    ASK("POST", "/api/v1/unload_model", "{\"model_id\":\"%s\"}", t.model);
    snprintf(place, sizeof(place), "/api/v1/sessions/%s/finish", t.session);
    ASK("POST", place, "%s", "{\"reason\":{\"type\":\"success\"}}");
#undef ASK
    for (int i = 0; i < n; i++) {
        struct reply r = as(s, BOB, asks[i].method, asks[i].path, "%s", asks[i].body);
        if (r.status != 404)
            TAP_FAIL("%s %s as Bob: %d %s", asks[i].method, asks[i].path, r.status, r.body);
        reply_clear(&r);
    }
    struct reply r = as(s, BOB, "GET", "/status", "%s", "");
    CHECK(strstr(r.body, "\"runs\":[]"));
    reply_clear(&r);
    const char *const lists[] = { "/api/v1/sessions", "/api/v1/training_runs",
                                  "/api/v1/checkpoints", "/v1/models" };
    for (int i = 0; i < 4; i++) {
        r = as(s, BOB, "GET", lists[i], "%s", "");
        CHECK_STATUS(r, 200);
        CHECK(!strstr(r.body, t.session));
        reply_clear(&r);
    }
    /* And Alice is as she was. */
    for (int i = 0; i < n; i++) {
        r = as(s, ALICE, asks[i].method, asks[i].path, "%s", asks[i].body);
        if (r.status == 404 && !strstr(asks[i].path, "/v1/completions"))
            TAP_FAIL("%s %s as Alice: %d %s", asks[i].method, asks[i].path, r.status, r.body);
        reply_clear(&r);
    }
    server_close(s);
}

/* To completions the id of a run is its newest checkpoint, for its owner. */
static void test_a_run_is_a_model(void)
{
    struct server *s = start_fresh(two_users);
    REQUIRE(s);
    struct things t;
    make_things(s, &t);
    char body[300];
    snprintf(body, sizeof(body), "{\"model\":\"%s\",\"prompt\":[1],\"max_tokens\":1}", t.model);
    struct ask a = { .method = "POST", .path = "/v1/completions", .body = body, .key = ALICE };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    CHECK_STR(find_member(&r, "model"), t.model);
    reply_clear(&r);
    a.key = BOB;
    r = send_ask(s, &a);
    CHECK_STATUS(r, 404);
    CHECK(!strstr(r.body, "one"));
    reply_clear(&r);
    server_close(s);
}

static void test_public_checkpoints(void)
{
    struct server *s = start_fresh(two_users);
    REQUIRE(s);
    struct things t;
    char place[300], bob[64];
    make_things(s, &t);
    struct reply r = as(s, BOB, "POST", "/api/v1/create_session",
                        "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\"}");
    snprintf(bob, sizeof(bob), "%s", find_member(&r, "session_id"));
    reply_clear(&r);
    snprintf(place, sizeof(place), "/api/v1/training_runs/%s/checkpoints/weights/one/publish",
             t.model);
    r = as(s, ALICE, "POST", place, "%s", "");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    r = as(s, BOB, "POST", "/api/v1/weights_info", "{\"tinker_path\":\"%s\"}", t.path);
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"lora_rank\":8"));
    reply_clear(&r);
    r = fetch_outcome(
        s, BOB,
        as(s, BOB, "POST", "/api/v1/load_weights",
           "{\"session_id\":\"%s\",\"model_seq_id\":0,\"path\":\"%s\",\"optimizer\":false}", bob,
           t.path));
    CHECK_STR(find_member(&r, "path"), t.path);
    reply_clear(&r);
    r = as(s, BOB, "POST", "/api/v1/create_sampling_session",
           "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"model_path\":\"%s\"}", bob,
           t.path);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    /* Reading is all: it is neither his to change nor in his list. */
    r = as(s, BOB, "DELETE", place, "%s", "");
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = as(s, BOB, "GET", "/api/v1/checkpoints", "%s", "");
    CHECK(!strstr(r.body, "weights/one"));
    reply_clear(&r);
    r = as(s, ALICE, "DELETE", place, "%s", "");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    r = as(s, BOB, "POST", "/api/v1/weights_info", "{\"tinker_path\":\"%s\"}", t.path);
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    server_close(s);
}

/* Every link of a kind: as it is, too late, changed, for something else. */
static void check_link(struct server *s, const char *location, const char *kind)
{
    char what[80], exp[32], sig[80], place[128], other[128];
    snprintf(place, sizeof(place), "/%s/", kind);
    const char *at = strstr(location, place);
    CHECK(at && sscanf(at + strlen(place), "%79[0-9a-f-]?exp=%31[0-9]&sig=%64[0-9a-f]", what, exp,
                       sig) == 3);
    snprintf(place, sizeof(place), "/%s/%s", kind, what);
    snprintf(other, sizeof(other), "/%s/%s", strcmp(kind, "trace") ? "trace" : "download", what);
    const struct {
        const char *path, *exp, *sig;
        int status;
    } tries[] = {
        { place, exp, sig, 200 },  { place, exp, "", 403 },           { place, exp, NULL, 403 },
        { place, NULL, sig, 403 }, { place, "9999999999", sig, 403 }, { place, exp, exp, 403 },
        { other, exp, sig, 403 },  { place, "1x", sig, 403 },
    };
    for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
        struct ask a = { .method = "GET", .path = tries[i].path };
        int n = 0;
        if (tries[i].exp)
            a.query[n][0] = "exp", a.query[n++][1] = tries[i].exp;
        if (tries[i].sig)
            a.query[n][0] = "sig", a.query[n++][1] = tries[i].sig;
        struct reply r = send_ask(s, &a);
        if (r.status != tries[i].status)
            TAP_FAIL("%s link %zu: %d %s", kind, i, r.status, r.body);
        reply_clear(&r);
    }
    fake_clock_advance_ms(&fake, 24 * 3600 * 1000);
    struct ask a = { .method = "GET", .path = place, .query = { { "exp", exp }, { "sig", sig } } };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 403);
    CHECK(!strstr(r.body, sig));
    reply_clear(&r);
}

static void test_signed_links(void)
{
    struct server *s = start_fresh(two_users);
    REQUIRE(s);
    struct things t;
    char place[300];
    make_things(s, &t);
    snprintf(place, sizeof(place), "/api/v1/training_runs/%s/checkpoints/weights/one/archive",
             t.model);
    struct reply r = as(s, ALICE, "GET", place, "%s", "");
    CHECK_STATUS(r, 302);
    REQUIRE(r.location);
    check_link(s, r.location, "download");
    reply_clear(&r);
    snprintf(place, sizeof(place), "/api/v1/sessions/%s/trace_export", t.session);
    r = as(s, ALICE, "GET", place, "%s", "");
    check_link(s, r.body, "trace");
    reply_clear(&r);
    server_close(s);
}

/* Names that try to be paths, at every endpoint that takes one. */
static const char *const evil[] = {
    "../../evil",   "..",          "/etc/passwd",       "%2e%2e%2fevil",
    "a/../../evil", "evil\\u0000", "\\u202eevil",       "e\\u0301vil",
    "evil\\nx",     "C:\\\\evil",  "file:///etc/passwd"
};

static size_t files_below(const char *dir, int depth)
{
    size_t n = 0;
    DIR *d = depth ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char path[1024];
        if (e->d_name[0] == '.' && (!e->d_name[1] || e->d_name[1] == '.'))
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        n += 1 + files_below(path, depth - 1);
        if (strstr(e->d_name, "evil"))
            TAP_FAIL("%s was made", path);
    }
    if (d)
        closedir(d);
    return n;
}

static void test_names_are_not_paths(void)
{
    struct server *s = start_fresh(two_users);
    REQUIRE(s);
    struct things t;
    make_things(s, &t);
    size_t before = files_below(test_dir, 9);
    int seq = 1;
    for (size_t i = 0; i < sizeof(evil) / sizeof(evil[0]); i++) {
        struct reply r = fetch_outcome(s, ALICE,
                                       as(s, ALICE, "POST", "/api/v1/save_weights",
                                          "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\"}",
                                          t.model, ++seq, evil[i]));
        CHECK_STR(find_member(&r, "category"), "user");
        reply_clear(&r);
        r = fetch_outcome(s, ALICE,
                          as(s, ALICE, "POST", "/api/v1/save_weights_for_sampler",
                             "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\"}", t.model, ++seq,
                             evil[i]));
        CHECK_STR(find_member(&r, "category"), "user");
        reply_clear(&r);
        char forms[4][300];
        snprintf(forms[0], 300, "tinker://%s/weights/%s", t.model, evil[i]);
        snprintf(forms[1], 300, "tinker://%s/sampler_weights/%s", t.model, evil[i]);
        snprintf(forms[2], 300, "%s", evil[i]);
        snprintf(forms[3], 300, "tinker://%s/weights/one", evil[i]);
        for (size_t k = 0; k < 4; k++) {
            const char *path = forms[k];
            r = as(s, ALICE, "POST", "/api/v1/weights_info", "{\"tinker_path\":\"%s\"}", path);
            CHECK(r.status == 400 || r.status == 404 || r.status == 422);
            reply_clear(&r);
            r = as(s, ALICE, "POST", "/api/v1/create_sampling_session",
                   "{\"session_id\":\"%s\",\"sampling_session_seq_id\":77,\"model_path\":\"%s\"}",
                   t.session, path);
            CHECK(r.status == 400 || r.status == 404 || r.status == 422);
            reply_clear(&r);
            r = as(s, ALICE, "POST", "/api/v1/load_weights",
                   "{\"session_id\":\"%s\",\"model_seq_id\":77,\"path\":\"%s\",\"optimizer\":"
                   "false}",
                   t.session, path);
            CHECK(r.status == 400 || r.status == 404 || r.status == 422);
            reply_clear(&r);
            r = as(s, ALICE, "POST", "/v1/completions",
                   "{\"model\":\"%s\",\"prompt\":[1],\"max_tokens\":1}", path);
            CHECK(r.status == 400 || r.status == 404);
            reply_clear(&r);
        }
    }
    CHECK_INT(files_below(test_dir, 9), before);
    server_close(s);
}

/* As the HTTP library would hand them over, after %XX was taken out. */
static void test_paths_of_requests(void)
{
    struct server *s = start_fresh(two_users);
    REQUIRE(s);
    char longest[5000];
    memset(longest, 'a', sizeof(longest));
    memcpy(longest, "/download/", 10);
    longest[sizeof(longest) - 1] = 0;
    const char *const paths[] = { "/download/../../../etc/passwd",
                                  "/download/..",
                                  "/download//etc/passwd",
                                  "/download/\xe2\x80\xae",
                                  "/trace/..",
                                  "/api/v1/training_runs/../checkpoints/weights/../archive",
                                  "/api/v1/training_runs/x/checkpoints/weights/..",
                                  "/api/v1/samplers/../../x",
                                  "/api/v1/../../etc/passwd",
                                  "//etc/passwd",
                                  "/../etc/passwd",
                                  "",
                                  "*",
                                  longest };
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct ask a = { .method = "GET",
                         .path = paths[i],
                         .key = ALICE,
                         .query = { { "exp", "99999999999" }, { "sig", "00" } } };
        struct reply r = send_ask(s, &a);
        if (r.status != 404 && r.status != 403 && r.status != 405)
            TAP_FAIL("%.60s: %d %s", paths[i], r.status, r.body);
        CHECK(r.fd < 0);
        reply_clear(&r);
    }
    server_close(s);
}

/* ---- the log ------------------------------------------------------------------------------ */

static char logged[1 << 20];
static pthread_mutex_t logged_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_line(void *state, enum log_level level, const char *line)
{
    (void)state, (void)level;
    pthread_mutex_lock(&logged_lock);
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof(logged) - n, "%s\n", line);
    pthread_mutex_unlock(&logged_lock);
}

static void log_all(struct server_options *o)
{
    static const struct log log = { keep_line, NULL, LOG_DEBUG };
    two_users(o);
    o->log = &log;
}

static void test_keys_are_never_logged(void)
{
    struct server *s = start_fresh(log_all);
    REQUIRE(s);
    struct things t;
    make_things(s, &t);
    const char *const wrong = "tml-mallory-0123456789";
    struct reply r = as(s, wrong, "GET", "/api/v1/sessions", "%s", "");
    CHECK_STATUS(r, 401);
    CHECK(!strstr(r.body, "mallory"));
    reply_clear(&r);
    /* In a path, in a body, in a name that is complained about. */
    char path[128];
    snprintf(path, sizeof(path), "/api/v1/sessions/%s", ALICE);
    r = as(s, ALICE, "GET", path, "%s", "");
    CHECK(!strstr(r.body, ALICE));
    reply_clear(&r);
    r = fetch_outcome(s, ALICE,
                      as(s, ALICE, "POST", "/api/v1/save_weights",
                         "{\"model_id\":\"%s\",\"seq_id\":2,\"path\":\"../%s\"}", t.model, ALICE));
    CHECK(!strstr(r.body, ALICE));
    reply_clear(&r);
    server_close(s);
    CHECK(strstr(logged, "save_weights"));
    CHECK(!strstr(logged, ALICE) && !strstr(logged, BOB) && !strstr(logged, wrong));
}

int main(void)
{
    harness_init();
    RUN(test_nothing_of_another_user);
    RUN(test_a_run_is_a_model);
    RUN(test_public_checkpoints);
    RUN(test_signed_links);
    RUN(test_names_are_not_paths);
    RUN(test_paths_of_requests);
    RUN(test_keys_are_never_logged);
    harness_clear();
    return tap_done();
}
