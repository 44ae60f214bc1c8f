/* TLS against openssl's own test server: trust, names with underscores. */
#include <pthread.h>
#include "http/http.h"
#include "support/tap.h"
#include "support/tls_server.h"

static struct loop *loop;
static struct http_pool *trusting, *strict, *missing;

static char reason[HTTP_REASON_MAX]; /* of the last request */

struct trial {
    struct loop_task task;
    struct http_pool *pool;
    struct http_request r;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
};

static void finished(struct http_request *r)
{
    struct trial *t = (struct trial *)(void *)((char *)r - offsetof(struct trial, r));
    pthread_mutex_lock(&t->lock);
    t->done = true;
    pthread_cond_signal(&t->cond);
    pthread_mutex_unlock(&t->lock);
}

static void begin(struct loop_task *task)
{
    struct trial *t = (struct trial *)task;
    http_start(t->pool, &t->r);
}

static enum http_failure fetch(struct http_pool *pool, const char *host)
{
    char url[128];
    snprintf(url, sizeof(url), "https://%s:%d/", host, port);
    struct trial t = { .task.run = begin, .pool = pool };
    t.r.method = "GET";
    t.r.url = url;
    t.r.timeouts = (struct http_timeouts){ 5000, 5000, 5000, 5000 };
    t.r.max_response = 1 << 20;
    t.r.done = finished;
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.cond, NULL);
    loop_post(loop, &t.task);
    pthread_mutex_lock(&t.lock);
    while (!t.done)
        pthread_cond_wait(&t.cond, &t.lock);
    pthread_mutex_unlock(&t.lock);
    enum http_failure f = t.r.resp.failure;
    snprintf(reason, sizeof(reason), "%s", t.r.resp.reason);
    if (f == HTTP_OK)
        CHECK_INT(t.r.resp.status, 200);
    http_request_clear(&t.r);
    return f;
}

static void test_trust(void) /* */
{
    CHECK_INT(fetch(trusting, "a-b.localhost"), HTTP_OK);
    CHECK_INT(fetch(strict, "a-b.localhost"), HTTP_FAIL_TLS); /* not in the system's store */
    char host[64];
    snprintf(host, sizeof(host), "the certificate of a-b.localhost:%d is refused: ", port);
    CHECK(strncmp(reason, host, strlen(host)) == 0);
    CHECK(strstr(reason, "self-signed") && strstr(reason, "SSL_CERT_FILE"));
    CHECK_INT(fetch(trusting, "127.0.0.1"), HTTP_FAIL_TLS); /* trusted, but not for this name */
    CHECK(strstr(reason, "127.0.0.1") && !strstr(reason, "SSL_CERT_FILE"));
    CHECK_INT(fetch(missing, "a-b.localhost"), HTTP_FAIL_TLS);
    CHECK(strstr(reason, "/no/such/file.pem") && strstr(reason, "ca_file"));
}

static void *say_hello(void *arg)
{
    int c = accept(*(int *)arg, NULL, NULL);
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    char in[512];
    if (recv(c, in, sizeof(in), 0) > 0)
        send(c, answer, sizeof(answer) - 1, MSG_NOSIGNAL);
    close(c);
    return NULL;
}

/* https:// where http:// is spoken */
static void test_no_tls(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    pthread_t thread;
    int fd = socket(AF_INET, SOCK_STREAM, 0), secure = port;
    REQUIRE(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 4) == 0 &&
            getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    REQUIRE(pthread_create(&thread, NULL, say_hello, &fd) == 0);
    port = ntohs(a.sin_port);
    CHECK_INT(fetch(trusting, "localhost"), HTTP_FAIL_TLS);
    CHECK(strstr(reason, "does not speak TLS"));
    pthread_join(thread, NULL);
    close(fd);
    port = secure;
}

static void test_underscores(void) /* */
{
    CHECK_INT(fetch(trusting, "a_b.localhost"), HTTP_OK); /* asked for as a-b.localhost */
    CHECK_INT(fetch(trusting, "c_d.localhost"), HTTP_FAIL_CONNECT);
}

static void end(struct loop_task *t)
{
    (void)t;
    http_pool_free(trusting);
    http_pool_free(strict);
    http_pool_free(missing);
    loop_stop(loop);
}

/* Trusted and for this host, but of the past. */
static void test_expired(void)
{
    CHECK_INT(fetch(trusting, "a-b.localhost"), HTTP_FAIL_TLS);
    CHECK(strstr(reason, "is refused: ") && strstr(reason, "expired"));
}

static void open_pools(void)
{
    struct http_pool_options o = { .per_client = 2, .ca_file = cert }, none = { .per_client = 2 };
    struct http_pool_options wrong = { .per_client = 2, .ca_file = "/no/such/file.pem" };
    loop = loop_new(clock_real(), NULL);
    trusting = http_pool_new(loop, &o, NULL);
    strict = http_pool_new(loop, &none, NULL);
    missing = http_pool_new(loop, &wrong, NULL);
    loop_start(loop, NULL);
}

static void close_pools(void)
{
    struct loop_task last = { NULL, end };
    loop_post(loop, &last);
    loop_free(loop);
    stop_server();
}

int main(void)
{
    if (!start_server()) {
        printf("# no openssl program: TLS is not tested\n");
        return tap_done();
    }
    http_global_init(NULL);
    open_pools();
    RUN(test_trust);
    RUN(test_no_tls);
    RUN(test_underscores);
    close_pools();
    if (!start_server_with(true))
        return 2;
    open_pools();
    RUN(test_expired);
    close_pools();
    return tap_done();
}
