/* A program that carries the requests itself. */
#include <pthread.h>
#include <stdatomic.h>
#include <tinker/extra/http.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

/* A service in a few lines: no sockets. */
struct carrier {
    pthread_mutex_t lock;
    tinker_exchange *held[16];
    int n_held, n_canceled, n_sent;
    int fail;      /* so many requests on /healthz fail first */
    bool hold;     /* keep /healthz */
    bool threaded; /* answer from another thread */
    char last_url[256], last_method[16], last_key[64], agent[64];
};

struct reply {
    tinker_exchange *x;
    int status;
    char body[512];
};

static void *answer_elsewhere(void *arg)
{
    struct reply *r = arg;
    static const tinker_named_string headers[] = { { "Content-Type", "application/json" },
                                                   { "X-Request-Id", "r1" },
                                                   { "Bad\nName", "x" } };
    tinker_exchange_done(r->x, r->status, headers, 3, r->body, strlen(r->body));
    free(r);
    return NULL;
}

static void answer(const struct carrier *c, tinker_exchange *x, int status, const char *body)
{
    struct reply *r = calloc(1, sizeof(*r));
    pthread_t thread;
    r->x = x;
    r->status = status;
    snprintf(r->body, sizeof(r->body), "%s", body);
    if (c->threaded && pthread_create(&thread, NULL, answer_elsewhere, r) == 0)
        pthread_detach(thread);
    else
        answer_elsewhere(r);
}

static void note(struct carrier *c, const tinker_http_request *q)
{
    c->n_sent++;
    snprintf(c->last_url, sizeof(c->last_url), "%s", q->url);
    snprintf(c->last_method, sizeof(c->last_method), "%s", q->method);
    for (size_t i = 0; i < q->n_headers; i++) {
        if (strcmp(q->headers[i].name, "X-API-Key") == 0)
            snprintf(c->last_key, sizeof(c->last_key), "%s", q->headers[i].value);
        if (strcmp(q->headers[i].name, "User-Agent") == 0)
            snprintf(c->agent, sizeof(c->agent), "%s", q->headers[i].value);
    }
}

static void carry(tinker_exchange *x, const tinker_http_request *q, void *state)
{
    struct carrier *c = state;
    pthread_mutex_lock(&c->lock);
    note(c, q);
    bool health = strstr(q->url, "/healthz") != NULL, fail = health && c->fail > 0;
    c->fail -= fail;
    bool hold = health && c->hold;
    if (hold && c->n_held < 16)
        c->held[c->n_held++] = x;
    pthread_mutex_unlock(&c->lock);
    if (hold)
        return;
    if (fail)
        tinker_exchange_fail(x, TINKER_ECONNECT, "the pigeon\ngot lost");
    else if (health)
        answer(c, x, 200, "{\"status\":\"ok\"}");
    else if (strstr(q->url, "/client/"))
        answer(c, x, 200, "{}");
    else if (strstr(q->url, "/create_session"))
        answer(c, x, 200, "{\"session_id\":\"sess\"}");
    else if (strstr(q->url, "/create_model"))
        answer(c, x, 200, "{\"request_id\":\"m\"}");
    else if (strstr(q->url, "/optim_step"))
        answer(c, x, 200, "{\"request_id\":\"o\"}");
    else if (strstr(q->url, "/retrieve_future"))
        answer(c, x, 200,
               strstr(q->body, "\"m\"") ? "{\"model_id\":\"sess:train:0\"}"
                                        : "{\"metrics\":{\"loss\":2.5}}");
    else
        answer(c, x, 404, "{}");
}

static void drop(tinker_exchange *x, void *state)
{
    struct carrier *c = state;
    pthread_mutex_lock(&c->lock);
    c->n_canceled++;
    bool known = false;
    for (int i = 0; i < c->n_held; i++)
        known = known || c->held[i] == x;
    pthread_mutex_unlock(&c->lock);
    CHECK(known);
}

static tinker_service *open_service(struct carrier *c, bool threaded)
{
    memset(c, 0, sizeof(*c));
    pthread_mutex_init(&c->lock, NULL);
    c->threaded = threaded;
    tinker_transport t = TINKER_TRANSPORT_INIT;
    t.send = carry;
    t.cancel = drop;
    t.state = c;
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.base_url = "https://nowhere.invalid/prefix";
    o.telemetry.enabled = -1;
    o.network.transport = &t;
    return tinker_service_new(&o, NULL);
}

static void test_training(void)
{
    for (int threaded = 0; threaded < 2; threaded++) {
        struct carrier c;
        tinker_error err = { 0 };
        tinker_service *s = open_service(&c, threaded);
        REQUIRE(s);
        tinker_training *t = tinker_service_create_lora(s, "tiny", NULL, 20000, &err);
        if (!t)
            TAP_FAIL("%s", err.message);
        REQUIRE(t);
        tinker_future *f = tinker_training_optim_step(t, NULL, &err);
        CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_OK);
        size_t n;
        const tinker_named_number *m = tinker_future_metrics(f, &n);
        CHECK(m && n == 1 && m[0].value == 2.5);
        CHECK_INT(tinker_future_response(f)->status, 200);
        CHECK_STR(c.last_url, "https://nowhere.invalid/prefix/api/v1/retrieve_future");
        CHECK_STR(c.last_method, "POST");
        CHECK_STR(c.last_key, "tml-0123456789abcdef");
        CHECK(strncmp(c.agent, "libtinker/", 10) == 0);
        tinker_future_free(f);
        tinker_training_free(t);
        tinker_service_free(s);
    }
}

static void test_failures(void)
{
    struct carrier c;
    tinker_error err = { 0 };
    tinker_service *s = open_service(&c, false);
    tinker_future *f = tinker_service_check_health(s, &err);
    CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_OK); /* it has started */
    tinker_future_free(f);
    c.fail = 1; /* tried again */
    f = tinker_service_check_health(s, &err);
    CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_OK);
    CHECK_INT(tinker_future_response(f)->retries, 1);
    tinker_future_free(f);
    c.fail = 1;
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.max_retries = -1;
    o.timeout_ms = 50;
    tinker_service *derived = tinker_service_with(s, &o, &err);
    REQUIRE(derived);
    f = tinker_service_check_health(derived, &err);
    CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_ECONNECT);
    CHECK(strstr(err.message, "the pigeon got lost") != NULL);
    tinker_future_free(f);
    c.hold = true; /* the library gives up by itself */
    f = tinker_service_check_health(derived, &err);
    CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_ETIMEDOUT);
    tinker_service_free(derived);
    tinker_future_free(f);
    o = (tinker_call_options)TINKER_CALL_OPTIONS_INIT;
    o.keep_response = 1;
    derived = tinker_service_with(s, &o, &err);
    REQUIRE(derived);
    c.hold = false;
    f = tinker_service_call(derived, "GET", "/api/v1/nothing", NULL, 0, NULL, &err);
    tinker_service_free(derived);
    CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_EHTTP);
    CHECK_INT(tinker_future_response(f)->n_headers, 2); /* not the malformed one */
    CHECK_STR(tinker_response_header(tinker_future_response(f), "x-request-id"), "r1");
    tinker_future_free(f);
    tinker_service_free(s);
    CHECK_INT(c.n_canceled, 1);
    REQUIRE(c.n_held == 1);
    tinker_exchange_done(c.held[0], 200, NULL, 0, "{}", 2); /* late, and harmless */
}

/* Canceled by the user, and by the end of the service; answered after it. */
static void test_canceling(void)
{
    struct carrier c;
    tinker_error err = { 0 };
    tinker_service *s = open_service(&c, false);
    tinker_future *f = tinker_service_check_health(s, &err);
    CHECK_INT(tinker_future_wait(f, 20000, &err), TINKER_OK);
    tinker_future_free(f);
    c.hold = true;
    tinker_future *two[2];
    for (int i = 0; i < 2; i++)
        two[i] = tinker_service_check_health(s, &err);
    for (int held = 0; held < 2;) {
        pthread_mutex_lock(&c.lock);
        held = c.n_held;
        pthread_mutex_unlock(&c.lock);
        sched_yield();
    }
    tinker_future_cancel(two[0]);
    CHECK_INT(tinker_future_wait(two[0], 20000, &err), TINKER_ECANCELED);
    tinker_service_free(s);
    CHECK_INT(tinker_future_wait(two[1], 0, &err), TINKER_ECANCELED);
    CHECK_INT(c.n_canceled, 2);
    for (int i = 0; i < c.n_held; i++) {
        tinker_future_free(two[i]);
        if (i == 0)
            tinker_exchange_fail(c.held[i], TINKER_ECANCELED, NULL);
        else
            tinker_exchange_done(c.held[i], 200, NULL, 0, NULL, 0);
    }
}

static void test_options(void)
{
    tinker_error err = { 0 };
    tinker_transport t = TINKER_TRANSPORT_INIT;
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-0123456789abcdef";
    o.network.transport = &t;
    CHECK(tinker_service_new(&o, &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
    t.size = 0;
    CHECK(tinker_service_new(&o, &err) == NULL);
}

int main(void)
{
    RUN(test_training);
    RUN(test_failures);
    RUN(test_canceling);
    RUN(test_options);
    return tap_done();
}
