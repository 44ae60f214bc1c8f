/* A refused certificate through all layers: it is final at once, and the message says what to do. */
#include "support/fake_tinker.h"
#include "support/tap.h"
#include "support/tls_server.h"

static void test_refused_at_once(void)
{
    struct world w;
    tinker_service_options o;
    char url[64];
    snprintf(url, sizeof(url), "https://a-b.localhost:%d", port);
    world_open_real(&w, NULL);
    tinker_service_free(w.service);
    o = (tinker_service_options)TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.base_url = url;
    o.telemetry.enabled = -1;
    w.service = tinker_service_new(&o, &w.err);
    REQUIRE(w.service != NULL);
    /* tried again, it would be for 300 s */
    CHECK(!tinker_service_create_sampler(w.service, "tiny", NULL, 60000, &w.err));
    CHECK_INT(w.err.status, TINKER_ECONNECT);
    CHECK_INT(w.err.retryable, 0);
    CHECK(strstr(w.err.message, "the certificate of a-b.localhost") != NULL);
    CHECK(strstr(w.err.message, "SSL_CERT_FILE") != NULL);
    tinker_rest *r = tinker_service_create_rest(w.service, &w.err);
    tinker_future *f = tinker_rest_list_training_runs(r, NULL, &w.err);
    CHECK_INT(tinker_future_wait(f, 60000, &w.err), TINKER_ECONNECT);
    tinker_future_free(f);
    tinker_rest_free(r);
    world_close(&w);
}

int main(void)
{
    if (start_server())
        RUN(test_refused_at_once);
    else
        printf("# no openssl program: TLS is not tested\n");
    stop_server();
    return tap_done();
}
