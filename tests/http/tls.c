/* TLS against openssl's own test server: trust, names with underscores. */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "http/http.h"
#include "support/tap.h"

static struct loop *loop;
static struct http_pool *trusting, *strict;
static char dir[64], cert[96], key[96];
static int port;
static pid_t server;

static int free_port(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        exit(2);
    close(fd);
    return ntohs(a.sin_port);
}

static bool listening(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port) };
    for (int i = 0; i < 500; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        int rc = connect(fd, (struct sockaddr *)&a, sizeof(a));
        close(fd);
        if (rc == 0)
            return true;
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    return false;
}

/* false: no openssl program here */
static bool start_server(void)
{
    char command[1024], text[16];
    snprintf(dir, sizeof(dir), "/tmp/tinker-tls-XXXXXX");
    if (!mkdtemp(dir))
        exit(2);
    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(key, sizeof(key), "%s/key.pem", dir);
    snprintf(command, sizeof(command),
             "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext "
             "subjectAltName=DNS:localhost,DNS:a-b.localhost -keyout %s -out %s >/dev/null 2>&1",
             key, cert);
    if (system(command) != 0)
        return false;
    port = free_port();
    snprintf(text, sizeof(text), "%d", port);
    server = fork();
    if (server == 0) {
        freopen("/dev/null", "r", stdin);
        freopen("/dev/null", "w", stdout);
        freopen("/dev/null", "w", stderr);
        execlp("openssl", "openssl", "s_server", "-accept", text, "-cert", cert, "-key", key,
               "-cert2", cert, "-key2", key, "-servername", "a-b.localhost", "-servername_fatal",
               "-www", "-quiet", (char *)NULL);
        _exit(127);
    }
    return listening();
}

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
    if (f == HTTP_OK)
        CHECK_INT(t.r.resp.status, 200);
    http_request_clear(&t.r);
    return f;
}

static void test_trust(void) /* */
{
    CHECK_INT(fetch(trusting, "a-b.localhost"), HTTP_OK);
    CHECK_INT(fetch(strict, "a-b.localhost"), HTTP_FAIL_CONNECT); /* not in the system's store */
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
    loop_stop(loop);
}

int main(void)
{
    bool there = start_server();
    if (!there) {
        printf("# no openssl program: TLS is not tested\n");
        return tap_done();
    }
    struct loop_task last = { NULL, end };
    struct http_pool_options o = { .per_client = 2, .ca_file = cert }, none = { .per_client = 2 };
    http_global_init(NULL);
    loop = loop_new(clock_real(), NULL);
    trusting = http_pool_new(loop, &o, NULL);
    strict = http_pool_new(loop, &none, NULL);
    loop_start(loop, NULL);
    RUN(test_trust);
    RUN(test_underscores);
    loop_post(loop, &last);
    loop_free(loop);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    unlink(cert);
    unlink(key);
    rmdir(dir);
    return tap_done();
}
