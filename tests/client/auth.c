/* Credentials: keys, commands, tokens that are exchanged and renewed. */
#include <netinet/in.h>
#include <stdatomic.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <tinker/extra/account.h>
#include <tinker/sampling.h>
#include "base/base64.h"
#include "client/session/credential_cmd.h"
#include "client/session/jwt.h"
#include "client/io/runtime.h"
#include "client/session/service.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define TOKEN      API "auth/token"
#define WALL_START INT64_C(1767225600) /* the fake clock's wall: 2026-01-01 */

/* A token that expires `seconds` after the world began. */
static const char *jwt_of(int64_t seconds, const char *more, char out[512])
{
    char json[256];
    struct buf b;
    snprintf(json, sizeof(json), "{\"exp\":%lld%s}", (long long)(WALL_START + seconds), more);
    buf_init(&b, 512);
    buf_puts(&b, "eyJh.");
    base64url_encode(&b, json, strlen(json));
    buf_puts(&b, ".sig");
    snprintf(out, 512, "%s", b.data);
    buf_clear(&b);
    return out;
}

static void answer_token(struct world *w, int64_t seconds, int times)
{
    char jwt[512], body[600];
    snprintf(body, sizeof(body), "{\"jwt\":\"%s\"}", jwt_of(seconds, "", jwt));
    say(w, TOKEN, 200, body, times);
}

static const char *key_of(struct world *w, const char *path, size_t i)
{
    static char v[4][512];
    static int slot;
    slot = (slot + 1) % 4;
    return fake_header(fake_get(w->server, path, i), "X-API-Key", v[slot]);
}

static void test_keys_are_checked(void) /* */
{
    struct world w;
    tinker_service_options o;
    tinker_error err;
    world_options(&w, &o);
    unsetenv("TINKER_API_KEY");
    o.base_url = "http://192.0.2.1"; /* nothing is sent; on loopback any key would do */
    o.api_key = NULL;
    CHECK(tinker_service_new(&o, &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK(strstr(err.message, "TINKER_API_KEY") && strstr(err.message, "api_key"));
    o.api_key = "sk-whatever";
    CHECK(tinker_service_new(&o, &err) == NULL);
    CHECK(strstr(err.message, "tml-") != NULL);
    CHECK(strstr(err.message, "sk-whatever") == NULL);
    o.api_key = "tml-good-enough";
    tinker_service *s = tinker_service_new(&o, &err);
    CHECK(s != NULL);
    tinker_service_free(s);
    setenv("TINKER_API_KEY", "  eyJabc.def.ghi  ", 1);
    o.api_key = NULL;
    s = tinker_service_new(&o, &err);
    CHECK(s != NULL);
    tinker_service_free(s);
    unsetenv("TINKER_API_KEY");
}

static void test_loopback_takes_any_key(void)
{
    static const char *const urls[] = { "http://127.0.0.1:1", "http://localhost",
                                        "http://[::1]:8000/tinker" };
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    tinker_error err;
    unsetenv("TINKER_API_KEY");
    for (size_t i = 0; i < 3; i++) {
        o.base_url = urls[i];
        o.api_key = i ? "sk-of-another-server" : NULL;
        tinker_service *s = tinker_service_new(&o, &err);
        CHECK(s != NULL);
        tinker_service_free(s);
    }
    o.base_url = "http://127.0.0.1.example.com"; /* not this machine, whatever it begins with */
    CHECK(tinker_service_new(&o, &err) == NULL);
    o.base_url = "http://localhost.example.com";
    CHECK(tinker_service_new(&o, &err) == NULL);
}

/* A closed port of this machine: no retries, and the message says what to do. */
static void test_nobody_on_loopback_is_final(void)
{
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    tinker_error err;
    char url[64];
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound but not listening: refuses */
    CHECK(bind(fd, (struct sockaddr *)&a, n) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d", (int)ntohs(a.sin_port));
    o.base_url = url;
    tinker_service *s = tinker_service_new(&o, &err);
    tinker_rest *r = tinker_service_create_rest(s, &err);
    tinker_future *f = tinker_rest_list_sessions(r, NULL, &err);
    CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_ECONNECT);
    CHECK_INT(err.retryable, 0);
    CHECK(strstr(err.message, "is the server running? tinker serve") != NULL);
    tinker_future_free(f);
    f = tinker_service_request_sampler(s, "tiny", NULL, &err);
    CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_ECONNECT);
    tinker_future_free(f);
    tinker_rest_free(r);
    tinker_service_free(s);
    close(fd);
}

/* A world that authenticates with a command which counts its runs in a file. */
static void open_with_command(struct world *w, const char *config, const char *key, char file[64])
{
    tinker_service_options o;
    static char command[256];
    world_options(w, &o);
    snprintf(file, 64, "/tmp/tinker-auth-%d", (int)getpid());
    unlink(file);
    snprintf(command, sizeof(command),
             "echo x >> %s; echo noise >&2; echo \" tml-run-$(wc -l < %s) \"; exit 3", file, file);
    o.credentials.command = command;
    o.api_key = key;
    world_open(w, config, &o);
}

static void test_commands(void) /* R-019 R-021 R-022 R-023 R-025 */
{
    struct world w;
    char file[64];
    open_with_command(&w, "{\"pjwt_auth_enabled\":true}", NULL, file);
    say(&w, API "client/config", 503, "{}", 2);
    answer_token(&w, 100000, 1);
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_STR(key_of(&w, API "client/config", 0), "tml-run-1"); /* fresh for every attempt */
    CHECK_STR(key_of(&w, API "client/config", 1), "tml-run-2");
    CHECK_STR(key_of(&w, API "client/config", 2), "tml-run-3");
    CHECK_STR(key_of(&w, TOKEN, 0), "tml-run-4");
    char jwt[512];
    CHECK_STR(key_of(&w, API "create_session", 0), jwt_of(100000, "", jwt));
    tinker_training_free(tinker_future_take_training(f));
    tinker_future_free(f);
    world_close(&w);
    unlink(file);
}

/* What a command prints is a header's value, and never a second header. */
static void test_line_break_in_a_credential(void)
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.credentials.command = "printf 'tml-one\\nX-Evil: two'";
    o.api_key = NULL;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", &o);
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_EINVAL);
    CHECK(strstr(w.err.message, "X-API-Key") != NULL);
    CHECK(strstr(w.err.message, "tml-one") == NULL);
    CHECK_INT(fake_count(w.server, NULL), 0);
    tinker_future_free(f);
    world_close(&w);
}

static void test_choice_of_credentials(void) /* R-022 R-024 */
{
    struct world w;
    char file[64];
    /* a command alone is not enough without JWT */
    open_with_command(&w, "{}", NULL, file);
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_EINVAL);
    CHECK_INT(fake_count(w.server, NULL), 1);
    tinker_future_free(f);
    world_close(&w);
    /* the key is preferred, unless the service insists */
    open_with_command(&w, "{\"pjwt_auth_enabled\":true}", "tml-mykey-0001", file);
    answer_token(&w, 100000, 1);
    tinker_training *t = world_training(&w);
    CHECK_STR(key_of(&w, API "client/config", 0), "tml-mykey-0001");
    CHECK_STR(key_of(&w, TOKEN, 0), "tml-mykey-0001");
    tinker_training_free(t);
    world_close(&w);
    open_with_command(
        &w, "{\"pjwt_auth_enabled\":true,\"credential_default_source\":\"credential_cmd\"}",
        "tml-mykey-0001", file);
    answer_token(&w, 100000, 1);
    t = world_training(&w);
    CHECK_STR(key_of(&w, TOKEN, 0), "tml-run-1");
    tinker_training_free(t);
    world_close(&w);
    /* a JWT given as key is used directly, always */
    open_with_command(
        &w, "{\"pjwt_auth_enabled\":true,\"credential_default_source\":\"credential_cmd\"}",
        "eyJmine.e30.x", file);
    answer_token(&w, 100000, 1);
    t = world_training(&w);
    CHECK_STR(key_of(&w, TOKEN, 0), "eyJmine.e30.x");
    tinker_training_free(t);
    world_close(&w);
    unlink(file);
    /* insisting without a command */
    world_open(&w, "{\"pjwt_auth_enabled\":true,\"credential_default_source\":\"credential_cmd\"}",
               NULL);
    f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_EINVAL);
    CHECK(strstr(w.err.message, "requires dynamic credentials") != NULL);
    tinker_future_free(f);
    world_close(&w);
}

static void test_empty_commands(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.api_key = NULL;
    o.credentials.command = "true";
    world_open(&w, NULL, &o);
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_EINVAL);
    CHECK(strstr(w.err.message, "empty credential") != NULL);
    CHECK_INT(fake_count(w.server, NULL), 0);
    tinker_future_free(f);
    world_close(&w);
}

/* Is it gone, or nothing but a line in a table? */
static bool has_ended(int pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d %*s %c", &state) != 1)
        state = 'Z';
    if (f)
        fclose(f);
    return state == 'Z' || state == 'X';
}

/* What the command started ends with it. */
static void test_commands_leave_nothing(void)
{
    atomic_bool unwanted = false;
    tinker_error err;
    char file[64], command[256];
    int pid = 0;
    REQUIRE(freopen("/dev/null", "r", stdin)); /* no terminal */
    snprintf(file, sizeof(file), "/tmp/tinker-command-%d", (int)getpid());
    snprintf(command, sizeof(command), "sleep 100 & echo $! > %s; wait", file);
    CHECK(credential_cmd_output(command, 500, &unwanted, &err) == NULL);
    FILE *f = fopen(file, "r");
    REQUIRE(f && fscanf(f, "%d", &pid) == 1);
    fclose(f);
    for (int i = 0; i < 2000 && !has_ended(pid); i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    CHECK(has_ended(pid));
    unlink(file);
}

/* Its worker is free when nobody waits any more, and after its time. */
static void test_commands_that_do_not_end(void)
{
    static const char *const commands[] = { "sleep 1000", "exec >&-; sleep 1000; true" };
    atomic_bool unwanted = false;
    tinker_error err;
    for (int i = 0; i < 2; i++) {
        int64_t begun = clock_now_ms(clock_real());
        CHECK(credential_cmd_output(commands[i], 100, &unwanted, &err) == NULL);
        CHECK_INT(err.status, TINKER_ETIMEDOUT);
        CHECK(strstr(err.message, "0.1 s") != NULL);
        CHECK(clock_now_ms(clock_real()) - begun < 5000);
    }
    struct world w;
    world_open_real(&w, NULL);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.base_url = fake_server_url(w.server);
    o.credentials.command = commands[0];
    o.telemetry.enabled = -1;
    tinker_service *s = tinker_service_new(&o, &err);
    REQUIRE(s);
    int64_t begun = clock_now_ms(clock_real());
    CHECK(tinker_future_await(tinker_service_check_health(s, &err), 50, &err) == NULL);
    CHECK_INT(err.status, TINKER_ETIMEDOUT);
    tinker_service_free(s);
    CHECK(clock_now_ms(clock_real()) - begun < 5000);
    CHECK_INT(fake_count(w.server, NULL), 0);
    world_close(&w);
}

static void test_first_exchange_is_retried(void) /* R-004 R-026 */
{
    struct world w;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    say(&w, TOKEN, 503, "{}", 13); /* more than one try of layer 2 */
    answer_token(&w, 100000, 1);
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 200000), TINKER_OK);
    CHECK_INT(fake_count(w.server, TOKEN), 14);
    CHECK(fake_get(w.server, TOKEN, 13)->index <
          fake_get(w.server, API "client/dynamic_config", 0)->index);
    CHECK_STR(fake_get(w.server, TOKEN, 0)->body, "{}");
    const struct fake_request *r = fake_get(w.server, TOKEN, 0);
    CHECK_MEM(r->body, r->len, "{}", 2);
    tinker_training_free(tinker_future_take_training(f));
    tinker_future_free(f);
    world_close(&w);
}

static void test_claims(void) /* */
{
    struct arena a;
    struct jwt_claims c;
    arena_init(&a, 1 << 20);
    /* payloads whose base64 lacks no, one and two padding characters */
    CHECK(jwt_read("h.eyJleHAiOjEyM30.s", &a, &c) && c.has_exp && c.exp == 123);
    CHECK(jwt_read("h.eyJleHAiOjEyMzR9.s", &a, &c) && c.exp == 1234);
    CHECK(jwt_read("h.eyJleHAiOjEyfQ.s", &a, &c) && c.exp == 12);
    CHECK(jwt_read("h.eyJleHAiOjEyMy41fQ", &a, &c) && c.exp == 123.5);
    CHECK(!jwt_read("garbage", &a, &c));
    CHECK(!jwt_read("a.!!!.c", &a, &c));
    CHECK(jwt_read("h.eyJleHAiOiJzb29uIn0.s", &a, &c) && !c.has_exp);
    CHECK_NEAR(jwt_remaining("garbage", 0), 0, 0);
    CHECK_NEAR(jwt_remaining("h.eyJleHAiOjEyM30.s", INT64_C(100000000000)), 23, 1e-6);
    arena_clear(&a);
}

static void test_background_refresh(void) /* */
{
    struct world w;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    answer_token(&w, 310, 1);
    say(&w, TOKEN, 403, "{}", 2);
    answer_token(&w, 100000, 1);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    world_advance(&w, 200000);
    int64_t first = world_at(&w, TOKEN, 1);
    CHECK(first >= 9000 && first <= 11000);           /* 300 s before it expires */
    CHECK_INT(world_at(&w, TOKEN, 2) - first, 60000); /* a minute after a failure */
    CHECK_INT(world_at(&w, TOKEN, 3) - world_at(&w, TOKEN, 2), 60000);
    CHECK_INT(fake_count(w.server, TOKEN), 4);
    CHECK_STR(key_of(&w, TOKEN, 1), "tml-0123456789abcdef"); /* */
    tinker_training_free(t);
    world_close(&w);
}

/* Whoever needs the new token waits for the exchange, which a byte each second does not hold. */
static void test_renewal_that_trickles(void)
{
    struct world w;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    answer_token(&w, 310, 1);
    fake_script(w.server, TOKEN, (struct fake_reply){ .fault = FAKE_DRIP });
    answer_token(&w, 100000, 1);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    world_advance(&w, 80000);
    int64_t took = world_at(&w, TOKEN, 2) - world_at(&w, TOKEN, 1);
    CHECK(took > 65000 && took < 66000); /* 5 s to connect, 60 s to read, and a delay */
    CHECK_INT(fake_count(w.server, TOKEN), 3);
    tinker_training_free(t);
    world_close(&w);
}

static void test_unreadable_expiry_is_asked_every_minute(void) /* */
{
    static const char *const tokens[] = { "eyJx.e30.s", "eyJx.eyJleHAiOiJzb29uIn0.s", "eyJx" };
    for (size_t i = 0; i < sizeof(tokens) / sizeof(*tokens); i++) {
        struct world w;
        char body[128];
        world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
        snprintf(body, sizeof(body), "{\"jwt\":\"%s\"}", tokens[i]);
        say(&w, TOKEN, 200, body, -1);
        tinker_future *f = tinker_service_check_health(w.service, NULL); /* without heartbeats */
        CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
        tinker_future_free(f);
        size_t n = fake_count(w.server, TOKEN);
        world_advance(&w, 150000);
        CHECK_INT(fake_count(w.server, TOKEN), n + 2);
        CHECK_INT(world_at(&w, TOKEN, n), 60000);
        CHECK_INT(world_at(&w, TOKEN, n + 1), 120000);
        world_close(&w);
    }
}

/* Only the first exchange has layer 2; a renewal that fails rests for a minute. */
static void test_renewals_have_one_layer(void) /* R-028 R-058 */
{
    struct world w;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    answer_token(&w, 310, 1);
    say(&w, TOKEN, 503, "{}", -1);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    world_advance(&w, 160000);
    REQUIRE(fake_count(w.server, TOKEN) > 13);
    for (size_t i = 1; i < 13; i++) {
        int64_t gap = world_at(&w, TOKEN, i + 1) - world_at(&w, TOKEN, i);
        CHECK(i == 11 ? gap == 60000 : gap <= 10000); /* after eleven attempts */
    }
    tinker_training_free(t);
    world_close(&w);
}

/* Tokens that live for less than five minutes, or a clock that is ahead: no storm of exchanges. */
static void test_short_lived_tokens(void) /* */
{
    struct world w;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    answer_token(&w, 250, -1);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    world_advance(&w, 100000);
    size_t n = fake_count(w.server, TOKEN);
    CHECK(n >= 10 && n <= 12);
    CHECK_INT(world_at(&w, TOKEN, 2) - world_at(&w, TOKEN, 1), 10000);
    tinker_training_free(t);
    world_close(&w);
}

static void test_one_exchange_for_many(void) /* */
{
    struct world w;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    answer_token(&w, 1000, 1);
    tinker_sampler *s = world_sampler(&w);
    REQUIRE(s);
    fake_script(w.server, TOKEN, (struct fake_reply){ .status = 403, .body = "{}", .times = -1 });
    world_advance(&w, 970000); /* 30 s are left, refreshing failed */
    fake_unscript(w.server, TOKEN);
    char jwt[512], body[600];
    snprintf(body, sizeof(body), "{\"jwt\":\"%s\"}", jwt_of(900000, "", jwt));
    fake_script(w.server, TOKEN, (struct fake_reply){ .body = body, .delay_ms = 100 });
    size_t n = fake_count(w.server, TOKEN);
    tinker_future *f[50];
    for (int i = 0; i < 50; i++)
        f[i] = tinker_sampler_sample(s, fake_prompt(2), NULL, NULL, NULL);
    for (int i = 0; i < 50; i++) {
        CHECK_INT(world_finish(&w, f[i], 10000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    CHECK_INT(fake_count(w.server, TOKEN) - n, 1);
    CHECK_STR(key_of(&w, API "asample", 49), jwt);
    CHECK(world_log_count(&w, "token not renewed") > 0);
    tinker_sampler_free(s);
    world_close(&w);
}

/* An exported sampler has the token, so that who imports it need not ask for one. */
static void test_exported_samplers_have_the_token(void)
{
    struct world w;
    tinker_text text = { 0 };
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    answer_token(&w, 100000, 1);
    tinker_sampler *s = world_sampler(&w);
    REQUIRE(s);
    CHECK_INT(tinker_sampler_export(s, &text, &w.err), TINKER_OK);
    fake_script(w.server, TOKEN, (struct fake_reply){ .status = 403, .body = "{}", .times = -1 });
    tinker_sampler *copy = tinker_service_import_sampler(w.service, text.s, &w.err);
    REQUIRE(copy);
    tinker_future *f[2] = { tinker_sampler_sample(s, fake_prompt(2), NULL, NULL, NULL), NULL };
    CHECK_INT(world_finish(&w, f[0], 10000), TINKER_OK);
    f[1] = tinker_sampler_sample(copy, fake_prompt(2), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f[1], 10000), TINKER_OK);
    CHECK_INT(fake_count(w.server, TOKEN), 1);
    CHECK_STR(key_of(&w, API "asample", 1), key_of(&w, API "asample", 0));
    tinker_future_free(f[0]);
    tinker_future_free(f[1]);
    tinker_text_clear(&text);
    tinker_sampler_free(copy);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_old_token_when_renewal_fails(void) /* */
{
    struct world w;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    answer_token(&w, 30, 1); /* stale from the start */
    say(&w, TOKEN, 403, "{}", -1);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    char jwt[512];
    CHECK_STR(key_of(&w, API "create_session", 0), jwt_of(30, "", jwt));
    tinker_training_free(t);
    world_close(&w);
}

struct pair {
    struct auth *auth;
    struct auth_wait first, second;
    int told_first, told_second;
};

static void on_first(struct auth_wait *w, const char *token, const tinker_error *err)
{
    struct pair *p = (struct pair *)(void *)((char *)w - offsetof(struct pair, first));
    (void)err;
    p->told_first += token != NULL;
    auth_forget(&p->second); /* as the chunks of a batch do when one of them fails */
}

static void on_second(struct auth_wait *w, const char *token, const tinker_error *err)
{
    struct pair *p = (struct pair *)(void *)((char *)w - offsetof(struct pair, second));
    (void)token, (void)err;
    p->told_second++;
}

static void ask_twice(void *arg)
{
    struct pair *p = arg;
    p->first.ready = on_first;
    p->second.ready = on_second;
    auth_token(p->auth, &p->first, AUTH_NORMAL);
    auth_token(p->auth, &p->second, AUTH_NORMAL);
}

/* Who was forgotten while others are told is not told any more: it may be gone. */
static void test_waiters_that_end_each_other(void)
{
    struct world w;
    world_open(&w, "{\"pjwt_auth_enabled\":true}", NULL);
    answer_token(&w, 30, -1); /* stale at once */
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    struct pair p = { .auth = w.service->session->auth };
    runtime_sync(runtime_current(), ask_twice, &p);
    world_settle(&w);
    CHECK_INT(p.told_first, 1);
    CHECK_INT(p.told_second, 0);
    tinker_training_free(t);
    world_close(&w);
}

static void test_whoami(void) /* */
{
    struct world w;
    tinker_service_options o;
    char jwt[512];
    world_options(&w, &o);
    o.api_key = jwt_of(
        1000, ",\"iss\":\"passport-x\",\"sub\":\"urn:me\",\"email\":\"\",\"org_id\":\"o-7\"", jwt);
    world_open(&w, NULL, &o);
    tinker_rest *r = tinker_service_create_rest(w.service, NULL);
    tinker_future *f = tinker_rest_whoami(r, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    const tinker_identity *id = tinker_future_identity(f);
    REQUIRE(id);
    CHECK_STR(id->user_urn, "urn:me");
    CHECK(id->email == NULL);
    CHECK_STR(id->org_urn, "tml:organization:o-7");
    size_t n = fake_count(w.server, NULL);
    tinker_future_free(f);
    f = tinker_rest_whoami(r, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK_INT(fake_count(w.server, NULL), n);
    tinker_future_free(f);
    tinker_rest_free(r);
    world_close(&w);
    world_open(&w, NULL, NULL);
    r = tinker_service_create_rest(w.service, NULL);
    f = tinker_rest_whoami(r, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_ESTATE);
    CHECK(strstr(w.err.message, "requires JWT auth") != NULL);
    tinker_future_free(f);
    tinker_rest_free(r);
    world_close(&w);
}

/* Headers of the program's own that sound like a secret are treated as one. */
static void test_own_secrets_in_dumps(void) /* */
{
    static const tinker_named_string headers[] = {
        { "Cookie", "session=hunter22" },  { "X-Auth-Token", "hunter22" },
        { "X-Client-SECRET", "hunter22" }, { "X-Proxy-Password", "hunter22" },
        { "X-Gateway-Key", "hunter22" },   { "X-Tenant", "seven" }
    };
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.observation.dump_headers = 1;
    o.network.headers = headers;
    o.network.n_headers = sizeof(headers) / sizeof(*headers);
    world_open(&w, NULL, &o);
    tinker_future *f = tinker_service_check_health(w.service, &w.err);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    tinker_future_free(f);
    CHECK_INT(world_log_count(&w, "hunter22"), 0);
    CHECK(world_log_count(&w, "X-Tenant: seven") > 0);
    CHECK(world_log_count(&w, "Cookie: [REDACTED]") > 0);
    world_close(&w);
}

static int occurrences(const char *text, const char *part)
{
    int n = 0;
    for (const char *p = text; *p; p++)
        n += strncasecmp(p, part, strlen(part)) == 0;
    return n;
}

/* Credentials are the auth layer's: a key among the program's headers would go out beside it. */
static void test_a_key_among_the_headers_is_replaced(void) /* */
{
    struct world w;
    tinker_service_options o;
    const tinker_named_string headers[] = { { "x-api-key", "tml-of-the-header" }, { "A", "b" } };
    world_options(&w, &o);
    o.network.headers = headers;
    o.network.n_headers = 2;
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    for (size_t i = 0; i < fake_count(w.server, NULL); i++) {
        const struct fake_request *r = fake_get(w.server, NULL, i);
        char v[512];
        CHECK_INT(occurrences(r->headers, "x-api-key:"), 1);
        CHECK_STR(fake_header(r, "X-API-Key", v), "tml-0123456789abcdef");
        CHECK_STR(fake_header(r, "A", v), "b");
    }
    tinker_training_free(t);
    world_close(&w);
}

static void test_secrets_stay_secret(void) /* R-010 R-169 */
{
    struct world w;
    tinker_service_options o;
    tinker_named_string header = { "CF-Access-Client-Secret", "cloudy-secret-77" };
    world_options(&w, &o);
    o.observation.dump_headers = 1;
    o.network.headers = &header;
    o.network.n_headers = 1;
    world_open(&w, NULL, &o);
    say(&w, API "create_model", 422, "{\"detail\":\"key tml-0123456789abcdef is bad\"}", 1);
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_EHTTP);
    CHECK(strstr(w.err.message, "0123456789abcdef") == NULL);
    tinker_future_free(f);
    CHECK_INT(world_log_count(&w, "attempt 1"), 4); /* one line per attempt */
    CHECK(world_log_count(&w, "X-API-Key: [REDACTED]") == 4);
    CHECK_INT(world_log_count(&w, "0123456789abcdef"), 0);
    CHECK_INT(world_log_count(&w, "cloudy-secret-77"), 0);
    world_close(&w);
}

int main(void)
{
    RUN(test_keys_are_checked);
    RUN(test_loopback_takes_any_key);
    RUN(test_nobody_on_loopback_is_final);
    RUN(test_commands);
    RUN(test_line_break_in_a_credential);
    RUN(test_choice_of_credentials);
    RUN(test_empty_commands);
    RUN(test_commands_leave_nothing);
    RUN(test_commands_that_do_not_end);
    RUN(test_first_exchange_is_retried);
    RUN(test_claims);
    RUN(test_background_refresh);
    RUN(test_renewal_that_trickles);
    RUN(test_unreadable_expiry_is_asked_every_minute);
    RUN(test_renewals_have_one_layer);
    RUN(test_short_lived_tokens);
    RUN(test_one_exchange_for_many);
    RUN(test_exported_samplers_have_the_token);
    RUN(test_old_token_when_renewal_fails);
    RUN(test_waiters_that_end_each_other);
    RUN(test_whoami);
    RUN(test_own_secrets_in_dumps);
    RUN(test_a_key_among_the_headers_is_replaced);
    RUN(test_secrets_stay_secret);
    return tap_done();
}
