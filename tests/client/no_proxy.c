/* Which requests go through a proxy: http_proxy, all_proxy, no_proxy and the option. */
#include <stdlib.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

/* Serves as a proxy for plain HTTP: requests come with the whole address as their path. */
static void refuse_by_proxy(void *state, const struct fake_request *r, struct fake_reply *out)
{
    (void)state;
    (void)r;
    out->status = 403;
    out->body = strdup("{\"detail\":\"the proxy was asked\"}");
}

/* Does a health check of a service on loopback reach a proxy named by these variables?  -1: neither
 * proxy nor service saw it. */
static int asks_proxy(const char *proxy_name, const char *no_name, const char *no_value,
                      bool by_option)
{
    struct world w;
    tinker_service_options opts;
    world_options(&w, &opts);
    struct fake_server *proxy = fake_server_start(&w.clock.clock, refuse_by_proxy, NULL);
    if (proxy_name)
        setenv(proxy_name, fake_server_url(proxy), 1);
    if (no_name)
        setenv(no_name, no_value, 1);
    if (by_option)
        opts.network.proxy = fake_server_url(proxy);
    opts.network.max_retries = -1;
    world_open(&w, NULL, &opts);
    tinker_future *f = tinker_service_check_health(w.service, &w.err);
    tinker_status s = f ? world_finish(&w, f, 60000) : TINKER_ESTATE;
    size_t direct = fake_count(w.server, API "healthz"), through = fake_count(proxy, NULL);
    if (through) { /* a proxy is told the whole address */
        const struct fake_request *r = fake_get(proxy, NULL, 0);
        CHECK(strncmp(r->path, "http://127.0.0.1:", 17) == 0);
        CHECK(s != TINKER_OK);
        CHECK_INT(direct, 0);
    } else
        CHECK_INT(s, TINKER_OK);
    tinker_future_free(f);
    world_close(&w);
    fake_server_stop(proxy);
    if (proxy_name)
        unsetenv(proxy_name);
    if (no_name)
        unsetenv(no_name);
    return through ? 1 : direct ? 0 : -1;
}

static void test_variables(void)
{
    CHECK_INT(asks_proxy(NULL, NULL, NULL, false), 0);
    CHECK_INT(asks_proxy("http_proxy", NULL, NULL, false), 1);
    CHECK_INT(asks_proxy("all_proxy", NULL, NULL, false), 1);
    CHECK_INT(asks_proxy("ALL_PROXY", NULL, NULL, false), 1);
    /* for https:// addresses only; and HTTP_PROXY is what a CGI script's client may set */
    CHECK_INT(asks_proxy("https_proxy", NULL, NULL, false), 0);
    CHECK_INT(asks_proxy("HTTP_PROXY", NULL, NULL, false), 0);
}

static void test_exceptions(void)
{
    static const char *const without[] = { "127.0.0.1", "*", "example.com,127.0.0.1",
                                           "example.com, 127.0.0.1", "127.0.0.0/8" };
    static const char *const still[] = { "", "example.com", "127.0.0.2", "10.0.0.0/8" };
    static const char *const names[] = { "no_proxy", "NO_PROXY" };
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof(without) / sizeof(*without); i++)
            if (asks_proxy("http_proxy", names[k], without[i], false) != 0)
                TAP_FAIL("%s=%s went through the proxy", names[k], without[i]);
        for (size_t i = 0; i < sizeof(still) / sizeof(*still); i++)
            if (asks_proxy("http_proxy", names[k], still[i], false) != 1)
                TAP_FAIL("%s=%s went past the proxy", names[k], still[i]);
    }
}

/* A proxy that the program names itself is meant for everything. */
static void test_option(void)
{
    CHECK_INT(asks_proxy(NULL, NULL, NULL, true), 1);
    CHECK_INT(asks_proxy(NULL, "no_proxy", "127.0.0.1", true), 1);
}

int main(void)
{
    RUN(test_variables);
    RUN(test_exceptions);
    RUN(test_option);
    return tap_done();
}
