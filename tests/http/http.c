/* Pools and transfers against a small server: phases, limits, redirects, reuse. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "http/pool_impl.h"
#include "support/tap.h"

/* ---- a server that answers every request on a connection with the same bytes ---- */

enum { KEEP, CUT_FIN, CUT_RST };

struct server {
    int fd, port;
    const char *answer; /* NULL: none; "" : close */
    atomic_size_t len;
    atomic_int then;    /* what happens to the connection after the answer */
    atomic_bool single; /* one byte at a time */
    atomic_int accepted, conn;
    pthread_t thread;
};

/* Every byte in a segment of its own, and time for the reader to see it before the next. */
static bool send_single(int c, const char *p, size_t n)
{
    setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    for (size_t i = 0; i < n; i++) {
        if (send(c, p + i, 1, MSG_NOSIGNAL) != 1)
            return false;
        for (int k = 0; k < 4; k++)
            sched_yield();
    }
    return true;
}

static bool send_answer(const struct server *s, int c)
{
    if (s->single)
        return send_single(c, s->answer, s->len);
    return send(c, s->answer, s->len, MSG_NOSIGNAL) == (ssize_t)s->len;
}

static void *serve_one(void *arg)
{
    struct server *s = arg;
    for (;;) {
        int c = accept(s->fd, NULL, NULL);
        if (c < 0)
            return NULL;
        atomic_fetch_add(&s->accepted, 1);
        atomic_store(&s->conn, c);
        char buf[65536];
        size_t have = 0;
        for (;;) {
            ssize_t n = recv(c, buf + have, sizeof(buf) - 1 - have, 0);
            if (n <= 0)
                break;
            have += (size_t)n;
            buf[have] = '\0';
            if (!strstr(buf, "\r\n\r\n"))
                continue;
            have = 0;
            if (s->answer && !send_answer(s, c))
                break;
            if (s->answer && (!*s->answer || s->then != KEEP))
                break;
        }
        if (s->then == CUT_RST) /* closing discards what is unsent and resets the connection */
            setsockopt(c, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
        atomic_store(&s->conn, -1);
        close(c);
    }
}

static void server_start(struct server *s, const char *answer)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    s->answer = answer;
    s->len = answer ? strlen(answer) : 0;
    s->then = KEEP;
    s->single = false;
    atomic_init(&s->accepted, 0);
    atomic_init(&s->conn, -1);
    if (bind(s->fd, (struct sockaddr *)&a, sizeof(a)) || listen(s->fd, 16) ||
        getsockname(s->fd, (struct sockaddr *)&a, &len))
        exit(2);
    s->port = ntohs(a.sin_port);
    pthread_create(&s->thread, NULL, serve_one, s);
}

static void server_stop(struct server *s)
{
    shutdown(s->fd, SHUT_RDWR);
    shutdown(atomic_load(&s->conn), SHUT_RDWR); /* the client keeps it open for later */
    pthread_join(s->thread, NULL);
    close(s->fd);
}

/* ---- the loop, and one request at a time ---- */

static struct loop *loop;
static struct http_pool *pool;

struct trial {
    struct loop_task task;
    struct http_request r;
    char url[128];
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done, cancel_first, stale_first;
    int rounds;
};

static void finished(struct http_request *r)
{
    struct trial *t = (struct trial *)(void *)((char *)r - offsetof(struct trial, r));
    if (--t->rounds > 0) {
        http_start(pool, r); /* a completion may start it again */
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->done = true;
    pthread_cond_signal(&t->cond);
    pthread_mutex_unlock(&t->lock);
}

static void never(void *arg, int fd, unsigned events)
{
    (void)arg, (void)fd, (void)events;
}

/* A descriptor that was closed without a word: the loop thinks that the kernel looks at it. */
static void leave_stale(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(loop_watch(loop, fd, EPOLLIN, never, NULL));
    loop_park(loop, fd);
    close(fd);
}

static void begin(struct loop_task *task)
{
    struct trial *t = (struct trial *)task;
    if (t->stale_first)
        leave_stale();
    http_start(pool, &t->r);
    if (t->cancel_first) {
        http_cancel(&t->r);
        http_cancel(&t->r);
        http_start(pool, &t->r);
    }
}

static void run(struct trial *t)
{
    t->task.run = begin;
    t->r.done = finished;
    t->done = false;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->cond, NULL);
    loop_post(loop, &t->task);
    pthread_mutex_lock(&t->lock);
    while (!t->done)
        pthread_cond_wait(&t->cond, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static struct trial get(int port)
{
    struct trial t = { .rounds = 1 };
    snprintf(t.url, sizeof(t.url), "http://127.0.0.1:%d/x", port);
    t.r.method = "GET";
    t.r.timeouts = (struct http_timeouts){ 5000, 2000, 5000, 5000 };
    t.r.max_response = 1000;
    return t;
}

#define OK "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Thing:  some value \r\n\r\nhello"

static void test_answers_and_reuse(void)
{
    struct server s;
    server_start(&s, OK);
    struct trial t = get(s.port);
    t.r.url = t.url;
    t.rounds = 20;
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_OK);
    CHECK_INT(t.r.resp.status, 200);
    CHECK_MEM(t.r.resp.body.data, t.r.resp.body.len, "hello", 5);
    CHECK_INT(t.r.resp.length, 5);
    char v[64];
    CHECK(http_response_header(&t.r.resp, "x-thing", v, sizeof(v)));
    CHECK(strncmp(v, "some value", 10) == 0);
    CHECK(!http_response_header(&t.r.resp, "x-thin", v, sizeof(v)));
    CHECK_INT(atomic_load(&s.accepted), 1); /* one connection for twenty requests */
    http_request_clear(&t.r);
    server_stop(&s);
}

/* After something unusual a request is answered as ever. */
static void check_answered(bool cancel_first, bool stale_first)
{
    struct server s;
    server_start(&s, OK);
    struct trial t = get(s.port);
    t.r.url = t.url;
    t.cancel_first = cancel_first;
    t.stale_first = stale_first;
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_OK);
    CHECK_INT(t.r.resp.status, 200);
    http_request_clear(&t.r);
    server_stop(&s);
}

static void test_cancelled_then_again(void)
{
    check_answered(true, false);
}

/* The connection gets the number of a descriptor that the loop still believes in. */
static void test_number_of_a_closed_descriptor(void)
{
    check_answered(false, true);
}

static void test_limits(void)
{
    struct server s;
    server_start(&s, OK);
    struct trial t = get(s.port);
    t.r.url = t.url;
    t.r.max_response = 4;
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_FAIL_PROTOCOL);
    CHECK(strstr(t.r.resp.reason, "larger than 4 bytes") != NULL);
    http_request_clear(&t.r);
    server_stop(&s);
}

static void test_failures(void) /* */
{
    struct server s;
    server_start(&s, ""); /* closes without an answer */
    struct trial t = get(s.port);
    t.r.url = t.url;
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_FAIL_CONNECT);
    http_request_clear(&t.r);
    server_stop(&s);
    static const char *const no_http[] = { "SSH-2.0-x\r\n", "HTTP/9\r\n\r\n" };
    for (int i = 0; i < 2; i++) { /* of the transport, as any other */
        server_start(&s, no_http[i]);
        t = get(s.port);
        t.r.url = t.url;
        run(&t);
        CHECK_INT(t.r.resp.failure, HTTP_FAIL_CONNECT);
        CHECK_STR(t.r.resp.reason, "the response is not HTTP");
        http_request_clear(&t.r);
        server_stop(&s);
    }
    t = get(s.port); /* nobody listens any more */
    t.r.url = t.url;
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_FAIL_CONNECT);
    http_request_clear(&t.r);
    t = get(1);
    t.r.url = "gopher://x";
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_FAIL_INVALID);
    http_request_clear(&t.r);
    const struct http_header broken = { "X-A", "1\r\nX-Evil: 2", false };
    t = get(s.port);
    t.r.url = t.url;
    t.r.headers = &broken;
    t.r.n_headers = 1;
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_FAIL_INVALID);
    CHECK_STR(t.r.resp.reason, "header X-A has a line break in it");
    http_request_clear(&t.r);
    server_start(&s, NULL); /* never answers */
    t = get(s.port);
    t.r.url = t.url;
    t.r.timeouts.read_ms = 50;
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_FAIL_TIMEOUT);
    CHECK(strstr(t.r.resp.reason, "waiting for the response") != NULL);
    http_request_clear(&t.r);
    server_stop(&s);
}

/* ---- responses that are cut ---- */

static int get_once(struct server *s, struct trial *t)
{
    *t = get(s->port);
    t->r.url = t->url;
    run(t);
    return t->r.resp.failure;
}

/* "{}" as gzip makes it. */
#define GZIP \
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00"

static const struct {
    const char *bytes;
    size_t len;
    int status;
} framed[] = {
#define FRAMED(text, status)           \
    {                                  \
        text, sizeof(text) - 1, status \
    }
/* the newline that ends the trailer tells nothing that the return before it does not */
#define CHUNKED(text)                    \
    {                                    \
        text "\n", sizeof(text) - 1, 200 \
    }
    FRAMED("HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 5\r\nX-Z: z\r\n\r\nhello", 200),
    FRAMED("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200),
    FRAMED("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200),
    FRAMED("HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", 200), /* lone newlines end lines, too */
    FRAMED("HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy", 503),
    FRAMED("HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 2\r\n\r\n{}", 302),
    FRAMED("HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", 204),
    FRAMED("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n", 304),
    FRAMED("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200),
    FRAMED("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 103 Early Hints\r\n"
           "Content-Length: 9\r\n\r\nHTTP/1.1 204 None\r\n\r\n",
           204),
    CHUNKED("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n"
            "0\r\nX-Trailer: 1\r\n\r"),
    FRAMED("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 22\r\n\r\n" GZIP, 200),
    CHUNKED("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
            "16\r\n" GZIP "\r\n0\r\n\r"),
};

/* Cut anywhere, it is a connection failure; complete, it is a response, however it arrives. */
static void test_cut_at_every_byte(void)
{
    struct server s;
    struct trial t;
    for (size_t i = 0; i < sizeof(framed) / sizeof(*framed); i++) {
        server_start(&s, framed[i].bytes);
        for (int how = CUT_FIN; how <= CUT_RST; how++)
            for (size_t n = 0; n < framed[i].len; n++) {
                s.len = n;
                s.then = how;
                s.single = n % 7 == 3;
                int failure = get_once(&s, &t);
                CHECK_INT(failure, HTTP_FAIL_CONNECT);
                if (failure != HTTP_FAIL_CONNECT)
                    printf("# response %zu, %s after %zu bytes: status %d\n", i,
                           how == CUT_FIN ? "FIN" : "RST", n, t.r.resp.status);
                CHECK(t.r.resp.reason[0] != '\0');
                http_request_clear(&t.r);
            }
        server_stop(&s);
        /* a server of its own for each: nobody may reuse a connection that is being closed */
        for (int single = 0; single < 2; single++) {
            server_start(&s, framed[i].bytes);
            s.len = framed[i].len;
            s.then = CUT_FIN;
            s.single = single;
            CHECK_INT(get_once(&s, &t), HTTP_OK);
            CHECK_INT(t.r.resp.status, framed[i].status);
            CHECK(!t.r.resp.until_close);
            http_request_clear(&t.r);
            server_stop(&s);
        }
    }
}

/* Without a length the end of the body is that of the connection, and the response says so. */
static void test_until_close(void)
{
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello",
        "HTTP/1.1 404 None\r\n\r\nhello",
    };
    struct server s;
    struct trial t;
    for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++) {
        server_start(&s, answers[i]);
        size_t len = s.len, head = (size_t)(strstr(answers[i], "\r\n\r\n") + 4 - answers[i]);
        s.then = CUT_FIN;
        for (size_t n = 0; n <= len; n++) {
            s.len = n;
            CHECK_INT(get_once(&s, &t), n < head ? HTTP_FAIL_CONNECT : HTTP_OK);
            if (n >= head)
                CHECK(t.r.resp.until_close && t.r.resp.body.len == n - head);
            http_request_clear(&t.r);
        }
        server_stop(&s);
    }
}

static void test_connect_timeout(void) /* */
{
    /* a listener whose queue is full does not complete handshakes */
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0), fill[4];
    REQUIRE(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 0) == 0 &&
            getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    for (int i = 0; i < 4; i++) {
        fill[i] = socket(AF_INET, SOCK_STREAM, 0);
        fcntl(fill[i], F_SETFL, O_NONBLOCK);
        if (connect(fill[i], (struct sockaddr *)&a, sizeof(a)) != 0)
            continue;
    }
    struct trial t = get(ntohs(a.sin_port));
    t.r.url = t.url;
    t.r.timeouts.connect_ms = 80;
    run(&t);
    CHECK_INT(t.r.resp.failure, HTTP_FAIL_TIMEOUT);
    CHECK(strstr(t.r.resp.reason, "connecting") != NULL);
    http_request_clear(&t.r);
    for (int i = 0; i < 4; i++)
        close(fill[i]);
    close(fd);
}

static void test_query_escape(void)
{
    struct buf b;
    buf_init(&b, 100);
    http_query_escape(&b, "a b:c/\xc3\xa9-_.~9Z");
    CHECK_STR(b.data, "a+b%3Ac%2F%C3%A9-_.~9Z");
    buf_clear(&b);
}

static void test_pools_belong_to_their_loop(void) /* */
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct http_request r = { .method = "GET", .url = "http://x" };
        freopen("/dev/null", "w", stderr);
        signal(SIGABRT, SIG_DFL);
        http_start(pool, &r); /* not on the loop thread: refused by an assertion */
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

static int count_sockets(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_storage a;
        socklen_t len = sizeof(a);
        if (getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.ss_family == AF_INET)
            n++;
    }
    return n;
}

static struct socket_budget *budget;
static struct {
    int sockets, counted, connecting, left;
} at_end;

static void end(struct loop_task *t)
{
    (void)t;
    at_end.sockets = count_sockets() - 2; /* without those of the server: listening, accepted */
    at_end.counted = budget->sockets;
    at_end.connecting = budget->connecting;
    http_pool_free(pool);
    at_end.left = budget->sockets;
    loop_stop(loop);
}

/* After all that went well and wrong, the budget knows what is open. */
static void test_sockets_are_counted(void)
{
    CHECK(at_end.sockets > 0);
    CHECK_INT(at_end.counted, at_end.sockets);
    CHECK_INT(at_end.connecting, 0);
    CHECK_INT(at_end.left, 0);
}

int main(void)
{
    struct loop_task last = { NULL, end };
    struct http_pool_options o = { .per_client = 2 };
    http_global_init(NULL);
    loop = loop_new(clock_real(), NULL);
    budget = o.budget = socket_budget_new(loop, 100);
    pool = http_pool_new(loop, &o, NULL);
    loop_start(loop, NULL);
    RUN(test_answers_and_reuse);
    RUN(test_cancelled_then_again);
    RUN(test_number_of_a_closed_descriptor);
    RUN(test_limits);
    RUN(test_failures);
    RUN(test_cut_at_every_byte);
    RUN(test_until_close);
    RUN(test_connect_timeout);
    RUN(test_query_escape);
    RUN(test_pools_belong_to_their_loop);
    /* One connection is certainly idle at the end: its server still runs then. */
    struct server s;
    server_start(&s, OK);
    struct trial t = get(s.port);
    t.r.url = t.url;
    run(&t);
    http_request_clear(&t.r);
    loop_post(loop, &last);
    loop_free(loop);
    server_stop(&s);
    RUN(test_sockets_are_counted);
    socket_budget_free(budget);
    return tap_done();
}
