/* Settings: option over environment over default, the table of variables, identity. */
#include <sys/stat.h>
#include <unistd.h>
#include "base/array.h"
#include "client/session/config.h"
#include "client/session/env.h"
#include "client/session/session.h"
#include "client/session/user_agent.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

static void clear(void)
{
    static const char *const names[] = { "TINKER_API_KEY",
                                         "TINKER_CREDENTIAL_CMD",
                                         "TINKER_BASE_URL",
                                         "TINKER_PROJECT_ID",
                                         "TINKER_TAGS",
                                         "TINKER_FEATURE_GATES",
                                         "TINKER_TELEMETRY",
                                         "TINKER_LOG",
                                         "TINKER_SUBPROCESS_SAMPLING",
                                         "TINKER_SAMPLING_HELPER",
                                         "CLOUDFLARE_ACCESS_CLIENT_ID",
                                         "CLOUDFLARE_ACCESS_CLIENT_SECRET",
                                         "TINKEX_TIMEOUT",
                                         "TINKEX_MAX_RETRIES",
                                         "TINKEX_PARITY",
                                         "TINKEX_DUMP_HEADERS",
                                         "TINKEX_POLL_BACKOFF",
                                         "TINKEX_POOL_SIZE",
                                         "TINKEX_POOL_COUNT",
                                         "TINKEX_PROXY",
                                         "TINKEX_PROXY_HEADERS",
                                         "TINKEX_DEFAULT_HEADERS",
                                         "TINKEX_DEFAULT_QUERY",
                                         "TINKEX_OTEL_PROPAGATE",
                                         "TINKER_TIMEOUT",
                                         "TINKER_MAX_RETRIES",
                                         "TINKER_PARITY",
                                         "TINKER_DUMP_HEADERS",
                                         "TINKER_POLL_BACKOFF",
                                         "TINKER_POOL_SIZE",
                                         "TINKER_POOL_COUNT",
                                         "TINKER_PROXY",
                                         "TINKER_PROXY_HEADERS",
                                         "TINKER_DEFAULT_HEADERS",
                                         "TINKER_DEFAULT_QUERY",
                                         "TINKER_OTEL_PROPAGATE",
                                         "http_proxy",
                                         "https_proxy",
                                         "HTTPS_PROXY",
                                         "all_proxy",
                                         "ALL_PROXY",
                                         "no_proxy",
                                         "NO_PROXY" };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        unsetenv(names[i]);
    setenv("TINKER_API_KEY", "tml-environment", 1);
}

static struct config with(const char *name, const char *value, const tinker_service_options *o)
{
    struct config c;
    tinker_error err;
    clear();
    if (name)
        setenv(name, value, 1);
    if (config_init(&c, o, &err) != TINKER_OK) {
        printf("# %s\n", err.message);
        memset(&c, 0, sizeof(c));
    }
    return c;
}

static void test_defaults(void) /* R-009 R-011 R-061 */
{
    struct config c = with(NULL, NULL, NULL);
    CHECK_STR(c.base_url, "https://tinker.thinkingmachines.dev/services/tinker-prod/");
    CHECK_STR(c.api_key, "tml-environment");
    CHECK_INT(c.timeout_ms, 60000);
    CHECK_INT(c.connect_ms, 5000);
    CHECK_STR(c.timeout_text, "60");
    CHECK_INT(c.max_retries, 10);
    CHECK(c.telemetry);
    CHECK(!c.subprocess_sampling && !c.dump_headers && !c.otel && !c.poll_backoff);
    CHECK_INT(c.n_tags, 0);
    CHECK_INT(c.n_feature_gates, 1);
    CHECK_STR(c.feature_gates[0], "async_sampling");
    CHECK_STR(c.default_query, "");
    CHECK(c.proxy == NULL && c.project_id == NULL);
    CHECK_INT(c.close_ms, 5000);
    CHECK_INT(c.log.level, LOG_OFF);
    config_clear(&c);
}

static void test_precedence(void) /* R-008 */
{
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    struct config c = with("TINKER_BASE_URL", " http://env:1/base ", NULL);
    CHECK_STR(c.base_url, "http://env:1/base/");
    config_clear(&c);
    c = with("TINKER_BASE_URL", "   ", NULL);
    CHECK_STR(c.base_url, "https://tinker.thinkingmachines.dev/services/tinker-prod/");
    config_clear(&c);
    o.base_url = "http://option/";
    o.api_key = "tml-option";
    c = with("TINKER_BASE_URL", "http://env", &o);
    CHECK_STR(c.base_url, "http://option/");
    CHECK_STR(c.api_key, "tml-option");
    config_clear(&c);
    o = (tinker_service_options)TINKER_SERVICE_OPTIONS_INIT;
    o.base_url = "ftp://x";
    tinker_error err;
    CHECK_INT(config_init(&c, &o, &err), TINKER_EINVAL);
    tinker_service_options blank = { 0 };
    CHECK_INT(config_init(&c, &blank, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "not initialized") != NULL);
}

static void test_words(void) /* R-009 */
{
    struct config c = with("TINKER_TAGS", " a, b ,,a,c ", NULL);
    REQUIRE(c.n_tags == 3);
    CHECK_STR(c.tags[0], "a");
    CHECK_STR(c.tags[1], "b");
    CHECK_STR(c.tags[2], "c");
    config_clear(&c);
    c = with("TINKER_FEATURE_GATES", "x,y", NULL);
    CHECK_INT(c.n_feature_gates, 2);
    config_clear(&c);
    c = with("TINKER_PROJECT_ID", "p1", NULL);
    CHECK_STR(c.project_id, "p1");
    config_clear(&c);
}

static void test_flags(void) /* R-009 R-151 */
{
    static const struct {
        const char *name, *value;
        int want;
    } telemetry[] = { { "", "1", 1 }, { "", "TRUE", 1 },  { "", "yes", 1 }, { "", "On", 1 },
                      { "", "0", 0 }, { "", "maybe", 0 }, { "", "", 0 },    { "", "off", 0 } };
    for (size_t i = 0; i < 8; i++) {
        struct config c = with("TINKER_TELEMETRY", telemetry[i].value, NULL);
        CHECK_INT(c.telemetry, telemetry[i].want);
        config_clear(&c);
    }
    struct config c = with("TINKER_SUBPROCESS_SAMPLING", "on", NULL);
    CHECK(!c.subprocess_sampling);
    config_clear(&c);
    c = with("TINKER_SUBPROCESS_SAMPLING", "Yes", NULL); /* R-137 */
    CHECK(c.subprocess_sampling);
    CHECK_STR(c.sampling_helper, "tinker");
    config_clear(&c);
    c = with("TINKER_SUBPROCESS_SAMPLING", "yes",
             &(tinker_service_options){ .size = sizeof(tinker_service_options),
                                        .api_key = "tml-key",
                                        .subprocess_sampling = -1 });
    CHECK(!c.subprocess_sampling);
    config_clear(&c);
    c = with("TINKER_SAMPLING_HELPER", "/opt/helper", NULL);
    CHECK_STR(c.sampling_helper, "/opt/helper");
    config_clear(&c);
    c = with("TINKEX_DUMP_HEADERS", "on", NULL);
    CHECK(c.dump_headers);
    config_clear(&c);
    c = with("TINKEX_OTEL_PROPAGATE", "1", NULL);
    CHECK(c.otel);
    config_clear(&c);
    c = with("TINKEX_POLL_BACKOFF", "exponential", NULL);
    CHECK(c.poll_backoff && c.poll_backoff_initial_ms == 1000 && c.poll_backoff_max_ms == 30000);
    config_clear(&c);
    c = with("TINKEX_POLL_BACKOFF", "none", NULL);
    CHECK(!c.poll_backoff);
    config_clear(&c);
}

static void test_transport(void) /* R-009 R-192 R-215 */
{
    struct config c = with("TINKEX_TIMEOUT", "7000", NULL);
    CHECK_INT(c.timeout_ms, 7000);
    CHECK_INT(c.connect_ms, 7000); /* a number replaces all phases */
    CHECK_STR(c.timeout_text, "7");
    config_clear(&c);
    c = with("TINKEX_TIMEOUT", "soon", NULL);
    CHECK_INT(c.timeout_ms, 60000);
    config_clear(&c);
    c = with("TINKER_TIMEOUT", "8000", NULL);
    CHECK_INT(c.timeout_ms, 8000);
    config_clear(&c);
    c = with("TINKEX_MAX_RETRIES", "0", NULL);
    CHECK_INT(c.max_retries, 0);
    config_clear(&c);
    c = with("TINKEX_PARITY", "BEAM", NULL);
    CHECK_INT(c.timeout_ms, 120000);
    CHECK_INT(c.max_retries, 2);
    CHECK_STR(c.timeout_text, "120");
    config_clear(&c);
    c = with("TINKEX_PARITY", "whatever", NULL);
    CHECK_INT(c.max_retries, 10);
    config_clear(&c);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.network.parity = "python";
    c = with("TINKEX_PARITY", "elixir", &o);
    CHECK_INT(c.max_retries, 10);
    config_clear(&c);
    o.network.parity = "conservative";
    o.network.max_retries = 5;
    c = with(NULL, NULL, &o);
    CHECK_INT(c.max_retries, 5);
    CHECK_INT(c.timeout_ms, 120000);
    config_clear(&c);
    c = with("TINKEX_POOL_SIZE", "7", NULL);
    CHECK_INT(c.pool_max[POOL_SAMPLE], 140);
    config_clear(&c);
    clear(); /* 2^48 * 2^16 is not 0 */
    setenv("TINKEX_POOL_SIZE", "281474976710656", 1);
    setenv("TINKEX_POOL_COUNT", "65536", 1);
    CHECK_INT(config_init(&c, NULL, NULL), TINKER_OK);
    CHECK_INT(c.pool_max[POOL_SAMPLE], 100000);
    config_clear(&c);
    c = with("TINKEX_POOL_SIZE", "-7", NULL);
    CHECK_INT(c.pool_max[POOL_SAMPLE], 0);
    config_clear(&c);
}

/* What the reference's `tinker auth login` writes. */
static void test_stored_keys(void)
{
    char home[] = "/tmp/tinker-home-XXXXXX", dir[64], file[96];
    tinker_error err;
    struct config c;
    const char *old = getenv("HOME");
    char *kept = old ? strdup(old) : NULL;
    REQUIRE(mkdtemp(home));
    snprintf(dir, sizeof(dir), "%s/.tinker", home);
    snprintf(file, sizeof(file), "%s/credentials.json", dir);
    mkdir(dir, 0700);
    clear();
    setenv("HOME", home, 1);
    unsetenv("TINKER_API_KEY");
    CHECK_INT(config_init(&c, NULL, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "no API key") != NULL);
    static const struct {
        const char *text, *key;
    } cases[] = {
        { "{\"version\":1,\"default\":\"b\",\"keys\":{\"a\":{\"type\":\"manual\",\"key\":\"tml-"
          "stored-a\",\"name\":\"a\"},"
          "\"b\":{\"type\":\"manual\",\"key\":\"tml-stored-b\",\"name\":\"b\",\"note\":null}}}",
          "tml-stored-b" },
        { "{\"keys\":{\"a\":{\"key\":\"tml-stored-a\"}},\"default\":\"a\"}", "tml-stored-a" },
        { "{\"version\":1,\"default\":null,\"keys\":{\"a\":{\"key\":\"tml-stored-a\"}}}", NULL },
        { "{\"version\":1,\"default\":\"gone\",\"keys\":{}}", NULL },
        { "{\"default\":\"a\",\"keys\":{\"a\":{\"key\":\"other\"}}}",
          NULL }, /* no key of the service */
        { "{\"default\":\"a\"", NULL },
        { "[]", NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        FILE *f = fopen(file, "w");
        REQUIRE(f);
        fputs(cases[i].text, f);
        fclose(f);
        tinker_status s = config_init(&c, NULL, &err);
        CHECK_INT(s, cases[i].key ? TINKER_OK : TINKER_EINVAL);
        if (s == TINKER_OK) {
            CHECK_STR(c.api_key, cases[i].key);
            config_clear(&c);
        }
    }
    CHECK(strstr(err.message, "credentials.json") != NULL);
    /* Whatever is in the file, a key or a command that was given wins. */
    setenv("TINKER_API_KEY", "tml-environment", 1);
    CHECK_INT(config_init(&c, NULL, &err), TINKER_OK);
    CHECK_STR(c.api_key, "tml-environment");
    config_clear(&c);
    unsetenv("TINKER_API_KEY");
    setenv("TINKER_CREDENTIAL_CMD", "echo tml-cmd", 1);
    CHECK_INT(config_init(&c, NULL, &err), TINKER_OK);
    CHECK(c.api_key == NULL);
    config_clear(&c);
    unlink(file);
    rmdir(dir);
    rmdir(home);
    if (kept)
        setenv("HOME", kept, 1);
    free(kept);
    clear();
}

static void test_proxies(void) /* R-009 */
{
    struct config c = with("TINKEX_PROXY", "http://user:pa@proxy:3128", NULL);
    CHECK_STR(c.proxy, "http://proxy:3128");
    REQUIRE(c.n_proxy_headers == 1);
    CHECK_STR(c.proxy_headers[0].name, "Proxy-Authorization");
    CHECK_STR(c.proxy_headers[0].value, "Basic dXNlcjpwYQ==");
    config_clear(&c);
    tinker_error err;
    clear();
    setenv("TINKEX_PROXY", "socks5://x", 1);
    CHECK_INT(config_init(&c, NULL, &err), TINKER_EINVAL);
    c = with("TINKEX_PROXY_HEADERS", "[[\"a\",\"b\"],[\"c\",\"d\"]]", NULL);
    CHECK_INT(c.n_proxy_headers, 2);
    config_clear(&c);
    /* Both the credentials of the address and the headers; what was said first counts. */
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    tinker_named_string headers[] = { { "X-Team", "blue" }, { "proxy-authorization", "Bearer t" } };
    o.network.proxy = "http://user:pa@proxy:3128";
    o.api_key = "tml-x-0001";
    o.network.proxy_headers = headers;
    o.network.n_proxy_headers = 1;
    CHECK_INT(config_init(&c, &o, NULL), TINKER_OK);
    REQUIRE(c.n_proxy_headers == 2); /* and not those of the variable */
    CHECK_STR(c.proxy_headers[0].value, "blue");
    CHECK_STR(c.proxy_headers[1].value, "Basic dXNlcjpwYQ==");
    config_clear(&c);
    o.network.n_proxy_headers = 2;
    CHECK_INT(config_init(&c, &o, NULL), TINKER_OK);
    REQUIRE(c.n_proxy_headers == 2);
    CHECK_STR(c.proxy_headers[1].value, "Bearer t");
    config_clear(&c);
    headers[0].value = "a\nb";
    CHECK_INT(config_init(&c, &o, &err), TINKER_EINVAL);
    clear();
    setenv("TINKEX_PROXY_HEADERS", "[[\"a\",\"b\\r\\nc: d\"]]", 1);
    setenv("TINKER_API_KEY", "tml-x-0001", 1);
    CHECK_INT(config_init(&c, NULL, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "header a") != NULL);
    c = with("TINKEX_PROXY_HEADERS", "[[\"a\"]]", NULL);
    CHECK_INT(c.n_proxy_headers, 0);
    config_clear(&c);
    c = with("https_proxy", "http://p:1", NULL);
    CHECK_STR(c.proxy, "http://p:1");
    config_clear(&c);
    clear();
}

/* A number of entries without entries, or entries without content, are an error and no crash. */
static void test_lists_that_are_none(void)
{
    const tinker_named_string empty = { "name", NULL };
    const char *no_tag = NULL;
    for (int given = 0; given < 2; given++)
        for (int i = 0; i < 5; i++) {
            const tinker_named_string *v = given ? &empty : NULL;
            tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
            struct config c;
            tinker_error err = { 0 };
            clear();
            o.api_key = "tml-x-0001";
            o.tags = given ? &no_tag : NULL;
            o.network.headers = o.network.query = o.network.proxy_headers = o.user_metadata = v;
            *(size_t *[]){ &o.n_tags, &o.network.n_headers, &o.network.n_query,
                           &o.network.n_proxy_headers, &o.n_user_metadata }[i] = 1;
            CHECK_INT(config_init(&c, &o, &err), TINKER_EINVAL);
            CHECK(strstr(err.message, "entry 0") != NULL);
        }
}

/* The documented names; TINKEX_ ones, which the other tests use, count when these are unset. */
static void test_names_of_variables(void)
{
    static const char *const pairs[][2] = { { "TINKER_TIMEOUT", "8000" },
                                            { "TINKER_MAX_RETRIES", "3" },
                                            { "TINKER_DUMP_HEADERS", "1" },
                                            { "TINKER_POLL_BACKOFF", "1" },
                                            { "TINKER_POOL_SIZE", "2" },
                                            { "TINKER_POOL_COUNT", "3" },
                                            { "TINKER_PROXY", "http://p:1" },
                                            { "TINKER_PROXY_HEADERS", "[[\"a\",\"b\"]]" },
                                            { "TINKER_DEFAULT_HEADERS", "{\"X-A\":1}" },
                                            { "TINKER_DEFAULT_QUERY", "{\"q\":1}" },
                                            { "TINKER_OTEL_PROPAGATE", "1" } };
    struct config c;
    tinker_error err;
    clear();
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        setenv(pairs[i][0], pairs[i][1], 1);
    setenv("TINKEX_TIMEOUT", "9000", 1);
    REQUIRE(config_init(&c, NULL, &err) == TINKER_OK);
    CHECK_INT(c.timeout_ms, 8000);
    CHECK_INT(c.max_retries, 3);
    CHECK(c.dump_headers && c.poll_backoff && c.otel);
    CHECK_INT(c.pool_max[POOL_SAMPLE], 6);
    CHECK_STR(c.proxy, "http://p:1");
    CHECK_INT(c.n_proxy_headers, 1);
    CHECK_INT(c.n_default_headers, 1);
    CHECK_STR(c.default_query, "q=1");
    config_clear(&c);
    setenv("TINKER_TIMEOUT", " ", 1); /* blank is unset */
    REQUIRE(config_init(&c, NULL, &err) == TINKER_OK);
    CHECK_INT(c.timeout_ms, 9000);
    config_clear(&c);
    c = with("TINKER_PARITY", "conservative", NULL);
    CHECK_INT(c.max_retries, 2);
    config_clear(&c);
    clear();
}

static void test_headers_and_query(void) /* R-009 R-197 */
{
    struct config c = with("CLOUDFLARE_ACCESS_CLIENT_ID", "id", NULL);
    REQUIRE(c.n_default_headers == 1);
    CHECK_STR(c.default_headers[0].name, "CF-Access-Client-Id");
    CHECK(c.default_headers[0].secret);
    config_clear(&c);
    c = with("TINKEX_DEFAULT_HEADERS", "{\"X-A\":1,\"X-B\":\"two\"}", NULL);
    REQUIRE(c.n_default_headers == 2);
    CHECK_STR(c.default_headers[0].value, "1");
    CHECK_STR(c.default_headers[1].value, "two");
    config_clear(&c);
    c = with("TINKEX_DEFAULT_HEADERS", "{\"X-A\":", NULL);
    CHECK_INT(c.n_default_headers, 0);
    config_clear(&c);
    c = with("TINKEX_DEFAULT_QUERY", "{\"a b\":\"c&d\",\"n\":true}", NULL);
    CHECK_STR(c.default_query, "a+b=c%26d&n=true");
    config_clear(&c);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.telemetry.traceparent = "00-1-2-01";
    c = with(NULL, NULL, &o);
    CHECK_INT(c.n_default_headers, 0);
    config_clear(&c);
    o.telemetry.otel = 1;
    c = with(NULL, NULL, &o);
    CHECK_INT(c.n_default_headers, 1);
    config_clear(&c);
    static const tinker_named_string smuggled[] = { { "X-A", "1\r\nX-API-Key: mine" },
                                                    { "X A", "1" },
                                                    { "X-A\n", "1" } };
    for (size_t i = 0; i < 3; i++) {
        tinker_error err = { 0 };
        o = (tinker_service_options)TINKER_SERVICE_OPTIONS_INIT;
        o.api_key = "tml-0123456789abcdef";
        o.network.headers = &smuggled[i];
        o.network.n_headers = 1;
        CHECK(tinker_service_new(&o, &err) == NULL);
        CHECK_INT(err.status, TINKER_EINVAL);
        CHECK(strstr(err.message, "mine") == NULL);
    }
}

/* Text that becomes part of a request stays the part that it is. */
static void test_line_breaks(void)
{
    static const char *const keys[] = { "tml-x\nX-Evil: 1", "tml-x\r", "eyJ\x01", "tml-\x7f" };
    static const char *const urls[] = { "http://h/?a=", "http://h/#", "http://h/a b",
                                        "http://h\n/" };
    struct config c;
    tinker_error err = { 0 };
    clear();
    for (size_t i = 0; i < 4; i++) {
        tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
        o.api_key = keys[i];
        CHECK_INT(config_init(&c, &o, &err), TINKER_EINVAL);
        CHECK(strstr(err.message, "control character") != NULL);
        o.api_key = "tml-x-0001";
        o.base_url = urls[i];
        CHECK_INT(config_init(&c, &o, &err), TINKER_EINVAL);
    }
    setenv("TINKER_API_KEY", "tml-x-0001", 1);
    setenv("TINKEX_PROXY_HEADERS", "[[\"X-A\",\"1\\r\\nX-Evil: 1\"]]", 1);
    CHECK_INT(config_init(&c, NULL, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "X-A") != NULL);
    setenv("TINKEX_PROXY_HEADERS", "[[\"X-A: 1\\nX-Evil\",\"1\"]]", 1);
    CHECK_INT(config_init(&c, NULL, &err), TINKER_EINVAL);
    clear();
}

static void test_log_levels(void) /* R-167 */
{
    static const struct {
        const char *value;
        int level;
    } cases[] = { { "debug", LOG_DEBUG },
                  { "info", LOG_INFO },
                  { "WARN", LOG_WARNING },
                  { "error", LOG_ERROR },
                  { "nonsense", LOG_WARNING } };
    for (size_t i = 0; i < 5; i++) {
        struct config c = with("TINKER_LOG", cases[i].value, NULL);
        CHECK_INT(c.log.level, cases[i].level);
        config_clear(&c);
    }
}

static void test_masked_keys(void) /* R-010 */
{
    char out[64];
    config_mask_key("tml-0123456789abcdef", out, sizeof(out));
    CHECK_STR(out, "tml-01...cdef");
    config_mask_key("abcd", out, sizeof(out));
    CHECK_STR(out, "****");
    config_mask_key("abcdefgh", out, sizeof(out));
    CHECK(strstr(out, "abcdefgh") == NULL && strlen(out) < 16);
    CHECK(strstr(out, "cdefgh") == NULL);
}

static void test_headers_reach_the_service(void) /* R-009 R-053 R-192 R-197 */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    tinker_named_string headers[] = { { "X-Mine", "1" },
                                      { "user-agent", "me" },
                                      { "x-stainless-retry-count", "77" } };
    tinker_named_string query = { "tenant", "a b" };
    o.network.headers = headers;
    o.network.n_headers = 3;
    o.network.query = &query;
    o.network.n_query = 1;
    o.telemetry.otel = 1;
    o.telemetry.traceparent = "00-aa-bb-01";
    o.network.parity = "conservative";
    world_open(&w, NULL, &o);
    tinker_rest *r = tinker_service_create_rest(w.service, NULL);
    fake_script(w.server, API "sessions", (struct fake_reply){ .body = "{\"sessions\":[]}" });
    tinker_future *f = tinker_rest_list_sessions(r, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    const struct fake_request *q = fake_get(w.server, API "sessions", 0);
    REQUIRE(q);
    char v[512];
    CHECK_STR(q->path, API "sessions?limit=20&offset=0&access_scope=owned&tenant=a+b");
    CHECK_STR(fake_header(q, "X-Mine", v), "1");
    CHECK_STR(fake_header(q, "User-Agent", v), "me");
    CHECK_STR(fake_header(q, "x-stainless-retry-count", v), "77");
    CHECK_STR(fake_header(q, "traceparent", v), "00-aa-bb-01");
    CHECK_STR(fake_header(q, "x-stainless-read-timeout", v), "120");
    CHECK(fake_header(q, "Content-Type", v) == NULL); /* GET */
    CHECK(fake_header(q, "X-Idempotency-Key", v) == NULL);
    CHECK(fake_header(q, "Expect", v) == NULL);
    CHECK_INT(q->len, 0);
    tinker_future_free(f);
    tinker_rest_free(r);
    world_close(&w);
}

static void test_base_paths(void) /* R-009 */
{
    struct world w;
    tinker_service_options o;
    char url[128];
    world_options(&w, &o);
    struct fake_server *probe = NULL;
    (void)probe;
    world_open(&w, NULL, &o);
    snprintf(url, sizeof(url), "%s/services/prod", fake_server_url(w.server));
    tinker_service_options p = o;
    p.base_url = url;
    tinker_service *s = tinker_service_new(&p, NULL);
    tinker_future *f = tinker_service_check_health(s, NULL);
    world_settle(&w);
    CHECK_STR(fake_get(w.server, NULL, 0)->path, "/services/prod/api/v1/client/config");
    tinker_future_free(f);
    tinker_service_free(s);
    world_close(&w);
}

static void test_names_of_systems(void) /* R-222 */
{
    char out[64];
    static const struct {
        const char *sysname, *release, *want;
    } os[] = { { "Linux", "", "Linux" },        { "Darwin", "", "MacOS" },
               { "FreeBSD", "", "FreeBSD" },    { "OpenBSD", "", "OpenBSD" },
               { "Windows_NT", "", "Windows" }, { "Plan9", "", "Other:Plan9" },
               { "", "", "Unknown" },           { "Linux", "NAME=x\nID=\"freebsd\"\n", "FreeBSD" },
               { "iPhone OS", "", "iOS" },      { "Android", "", "Android" } };
    for (size_t i = 0; i < sizeof(os) / sizeof(*os); i++) {
        user_agent_name_os(os[i].sysname, os[i].release, out, sizeof(out));
        CHECK_STR(out, os[i].want);
    }
    static const char *const arch[][2] = {
        { "x86_64", "x64" }, { "aarch64", "arm64" },         { "armv7l", "arm" },
        { "i686", "x32" },   { "riscv64", "other:riscv64" }, { "", "unknown" }
    };
    for (size_t i = 0; i < 6; i++) {
        user_agent_name_arch(arch[i][0], out, sizeof(out));
        CHECK_STR(out, arch[i][1]);
    }
    CHECK_STR(user_agent_of_machine()->platform, "Linux");
}

/* User and password travel as a header, and no message shows them. */
static void test_password_in_the_address(void) /* R-010 */
{
    struct config c = with("TINKER_BASE_URL", "https://me%40x:pa%3ass@host/v1@2", NULL);
    CHECK_STR(c.base_url, "https://host/v1@2/");
    CHECK_STR(c.url_auth, "Basic bWVAeDpwYTpzcw=="); /* me@x:pa:ss */
    CHECK_INT(c.n_default_headers, 1);
    CHECK(c.default_headers[0].secret);
    config_clear(&c);
    c = with("TINKER_BASE_URL", "http://host/a@b", NULL);
    CHECK_STR(c.base_url, "http://host/a@b/");
    CHECK(c.url_auth == NULL);
    config_clear(&c);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    tinker_error err;
    clear();
    o.base_url = "me:hunter2@host";
    CHECK_INT(config_init(&c, &o, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "hunter2") == NULL);
    struct world w;
    char v[512], url[128];
    world_options(&w, &o);
    world_open(&w, NULL, &o);
    snprintf(url, sizeof(url), "http://me:hunter2@%s",
             fake_server_url(w.server) + strlen("http://"));
    o.base_url = url;
    o.network.max_retries = -1;
    tinker_service *s = tinker_service_new(&o, &err);
    REQUIRE(s);
    fake_script(w.server, API "healthz", (struct fake_reply){ .fault = FAKE_DROP, .times = -1 });
    tinker_future *f = tinker_service_check_health(s, &w.err);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_ECONNECT);
    CHECK(strstr(w.err.message, "hunter2") == NULL);
    CHECK_INT(world_log_count(&w, "hunter2"), 0);
    CHECK_STR(fake_header(fake_get(w.server, API "healthz", 0), "Authorization", v),
              "Basic bWU6aHVudGVyMg==");
    tinker_future_free(f);
    /* an exported sampler takes them along */
    f = tinker_service_request_sampler(s, "tiny", NULL, &w.err);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    tinker_sampler *from = tinker_future_take_sampler(f);
    REQUIRE(from);
    tinker_future_free(f);
    char *text = export_text(from, &w.err);
    tinker_sampler *to = tinker_service_import_sampler(w.service, text, &w.err);
    REQUIRE(to);
    f = tinker_sampler_sample(to, fake_prompt(2), NULL, NULL, &w.err);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK_STR(fake_header(fake_get(w.server, API "asample", 0), "Authorization", v),
              "Basic bWU6aHVudGVyMg==");
    tinker_future_free(f);
    free(text);
    tinker_sampler_free(to);
    tinker_sampler_free(from);
    tinker_service_free(s);
    world_close(&w);
}

int main(void)
{
    RUN(test_defaults);
    RUN(test_precedence);
    RUN(test_words);
    RUN(test_flags);
    RUN(test_transport);
    RUN(test_stored_keys);
    RUN(test_proxies);
    RUN(test_names_of_variables);
    RUN(test_headers_and_query);
    RUN(test_line_breaks);
    RUN(test_lists_that_are_none);
    RUN(test_log_levels);
    RUN(test_masked_keys);
    clear();
    RUN(test_headers_reach_the_service);
    RUN(test_base_paths);
    RUN(test_names_of_systems);
    RUN(test_password_in_the_address);
    return tap_done();
}
