/* Clients that dribble, stall, leave or flood: none of them keeps the others waiting. */
#include <semaphore.h>

#include "server/http/listener.h"
#include "server/work/stream.h"
#include "server/dial.h"
#include "server/fake_engine.h"
#include "server/http/listener_hold.h"
#include "server/http/conn_limits.h"

static struct listener *listener;
static struct fake_clock fake;
static sem_t go_on;
static atomic_int aside_running;
static struct waitlist gate;

/* /long waits for the semaphore, /hold for the gate; the rest gives its body back. */
static void handle_test(void *state, struct request *req, struct response *res)
{
    (void)state;
    if (strcmp(req->path, "/long") == 0) {
        atomic_fetch_add(&aside_running, 1);
        sem_wait(&go_on);
        atomic_fetch_sub(&aside_running, 1);
    }
    if (strcmp(req->path, "/long") == 0 && req->n_body == 6) { /* "stream" */
        struct stream *flow = stream_new(listener);
        res->stream = flow;
        stream_unref(flow); /* the producer's side */
        return;
    }
    if (strcmp(req->path, "/hold") == 0 && !gate.fired && !req->timed_out) {
        res->wait = &gate;
        return;
    }
    res->content_type = "text/plain";
    buf_puts(&res->body, "<");
    buf_append(&res->body, req->body, req->n_body);
    buf_puts(&res->body, ">");
}

static bool check_test(void *state, struct request *req, struct response *res)
{
    (void)state;
    if (req->api_key)
        return true;
    response_error(res, 401, "Missing API key");
    return false;
}

static enum listener_place place_test(void *state, const struct request *req)
{
    (void)state;
    return strcmp(req->path, "/long") == 0 || strcmp(req->path, "/aside") == 0 ? LISTENER_WORKER
           : strcmp(req->path, "/poll") == 0                                   ? LISTENER_INLINE
                                                                               : LISTENER_EITHER;
}

static bool is_check_test(void *state, const struct request *req)
{
    (void)state;
    return strcmp(req->path, "/health") == 0;
}

static void begin_with(int max_connections, listener_checker *checker)
{
    struct listener_options o = { .host = "127.0.0.1",
                                  .max_body = 30 << 20,
                                  .max_arriving = 40 << 20,
                                  .hold_ms = 30000,
                                  .idle_ms = 10000,
                                  .body_ms = 5000,
                                  .max_connections = max_connections,
                                  .check = checker,
                                  .is_check = is_check_test,
                                  .place = place_test,
                                  .clock = &fake.clock };
    tinker_error err = { 0 };
    fake_clock_init(&fake);
    memset(&gate, 0, sizeof(gate));
    listener = listener_open(&o, &err);
    if (!listener || listener_start(listener, handle_test, NULL, &err) != TINKER_OK) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
}

static void open_test_listener(void)
{
    begin_with(100, NULL);
}

static int send_quick_request(void)
{
    return connect_local(listener_port(listener));
}

static void pass_time(int64_t ms)
{
    fake_clock_advance_ms(&fake, ms);
    listener_expire(listener);
}

/* Until the listener has seen n requests begin. */
static void wait_requests(uint64_t n)
{
    struct listener_stats stats = { 0 };
    for (int i = 0; i < 5000 && stats.requests < n; i++) {
        nap_ms(1);
        listener_stats(listener, &stats);
    }
    CHECK(stats.requests >= n);
}

/* Until one exchange went through, so everything sent before it was seen. */
static void wait_until_idle(void)
{
    int fd = send_quick_request();
    send_text(fd, "GET /poll HTTP/1.1\r\nHost: x\r\nX-API-Key: k\r\n\r\n");
    CHECK(strstr(receive_until(fd, "<>"), "<>"));
    close(fd);
}

static void test_headers_that_never_end(void)
{
    open_test_listener();
    int fd = send_quick_request();
    send_text(fd, "GET /poll HTTP/1.1\r\nHost: x\r\n");
    wait_until_idle();
    /* Every few seconds one more header does not buy more time. */
    for (int i = 0; i < 3; i++) {
        pass_time(3000);
        CHECK(is_open(fd));
        send_text(fd, "X-A: b\r\n");
        wait_until_idle();
    }
    pass_time(3000);
    CHECK(is_closed(fd));
    close(fd);
    listener_close(listener, 1000);
}

static void test_bodies_that_never_end(void)
{
    open_test_listener();
    int slow = send_quick_request(), fast = send_quick_request();
    send_text(slow, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc");
    send_text(fast, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100004\r\n\r\n");
    wait_requests(2);
    char piece[20001];
    memset(piece, 'x', 20000);
    piece[20000] = 0;
    for (int i = 0; i < 3; i++) { /* 20 kB buy almost five seconds more */
        send_text(fast, piece);
        send_text(slow, "y");
        wait_until_idle();
        pass_time(1600);
        CHECK(is_open(slow) && is_open(fast));
    }
    wait_until_idle();
    pass_time(1600);
    CHECK(is_closed(slow));
    CHECK(is_open(fast));
    send_text(fast, piece);
    send_text(fast, piece);
    send_text(fast, "last");
    CHECK(strstr(receive_until(fast, "last>"), "last>"));
    close(slow);
    close(fast);
    listener_close(listener, 1000);
}

static void test_an_idle_connection_ends(void)
{
    open_test_listener();
    int fd = send_quick_request();
    send_text(fd, "GET /poll HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(strstr(receive_until(fd, "<>"), "<>"));
    pass_time(9000);
    CHECK(is_open(fd));
    send_text(fd, "GET /poll HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(strstr(receive_until(fd, "<>"), "<>"));
    wait_until_idle();
    pass_time(9000);
    CHECK(is_open(fd));
    pass_time(2000);
    CHECK(is_closed(fd));
    close(fd);
    listener_close(listener, 1000);
}

static void test_a_held_poll_is_not_slow(void)
{
    open_test_listener();
    int fd = send_quick_request();
    send_text(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    struct listener_stats stats = { 0 };
    for (int i = 0; i < 5000 && !stats.held; i++) {
        nap_ms(1);
        listener_stats(listener, &stats);
    }
    pass_time(25000);
    CHECK(is_open(fd));
    listener_wake(listener, &gate);
    CHECK(strstr(receive_until(fd, "<>"), "<>"));
    close(fd);
    listener_close(listener, 1000);
}

static void test_half_closed_clients_get_their_answer(void)
{
    open_test_listener();
    int fd = send_quick_request();
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    shutdown(fd, SHUT_WR);
    CHECK(strstr(receive_until(fd, "<hi>"), "<hi>"));
    close(fd);
    /* And one that ends its body early gets nothing, and costs nothing for long. */
    fd = send_quick_request();
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\nhi");
    shutdown(fd, SHUT_WR);
    wait_requests(2);
    pass_time(6000);
    CHECK(is_closed(fd));
    struct listener_stats stats = { .active = 1 };
    for (int i = 0; i < 5000 && stats.active; i++) {
        nap_ms(1);
        listener_stats(listener, &stats);
    }
    CHECK_INT(stats.active, 0);
    close(fd);
    listener_close(listener, 1000);
}

static void test_no_key_no_body(void)
{
    begin_with(100, check_test);
    int fd = send_quick_request();
    /* The answer comes before the body is sent. */
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n");
    const char *r = receive_until(fd, "}");
    CHECK(strstr(r, " 401 ") && strstr(r, "Missing API key"));
    close(fd);
    listener_close(listener, 1000);
}

static void test_bodies_arriving_at_once_are_bounded(void)
{
    open_test_listener();
    int a = send_quick_request(), b = send_quick_request(), c = send_quick_request();
    send_text(a, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 25000000\r\n\r\n");
    wait_requests(1);
    send_text(b, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 25000000\r\n\r\n");
    const char *r = receive_until(b, "}");
    CHECK(strstr(r, " 429 ") && strstr(r, "Retry-After: 1"));
    send_text(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nsmall");
    CHECK(strstr(receive_until(c, "<small>"), "<small>"));
    close(a);
    close(b);
    /* The first one left: its place is free again. */
    bool taken = false;
    for (int i = 0; i < 200 && !taken; i++) {
        b = send_quick_request();
        send_text(b, "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
                     "25000000\r\n\r\n");
        taken = strstr(receive_until(b, "\r\n\r\n"), "100 Continue") != NULL;
        close(b);
    }
    CHECK(taken);
    close(c);
    listener_close(listener, 1000);
}

/* All connections are taken: told to come back, and hung up on.  Closes fd. */
static void check_refused(int fd)
{
    send_text(fd, "GET /poll HTTP/1.1\r\nHost: x\r\n\r\n");
    const char *r = receive_until(fd, "}");
    CHECK(strstr(r, " 429 ") && strstr(r, "Retry-After: 1") && strstr(r, "onnection: close"));
    CHECK(is_closed(fd));
    close(fd);
}

/* A connection that is served; the listener needs a moment to see that another has closed. */
static int connect_when_free(void)
{
    bool served = false;
    int fd = -1;
    for (int i = 0; i < 500 && !served; i++) {
        if (i) {
            close(fd);
            nap_ms(10);
        }
        fd = send_quick_request();
        send_text(fd, "GET /poll HTTP/1.1\r\nHost: x\r\n\r\n");
        served = strstr(receive_until(fd, ">"), "<>") != NULL;
    }
    CHECK(served);
    return fd;
}

static void test_the_number_of_connections_is_bounded(void)
{
    enum { MOST = 8 };
    int fds[MOST], one_more;
    begin_with(MOST, NULL);
    for (int i = 0; i < MOST; i++) {
        fds[i] = send_quick_request();
        send_text(fds[i], "GET /poll HTTP/1.1\r\nHost: x\r\n\r\n");
        CHECK(strstr(receive_until(fds[i], "<>"), "<>"));
    }
    one_more = send_quick_request();
    check_refused(one_more);
    /* A health check is answered all the same. */
    one_more = send_quick_request();
    send_text(one_more, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    const char *r = receive_until(one_more, "<>");
    CHECK(strstr(r, " 200 ") && strstr(r, "onnection: close") && strstr(r, "<>"));
    CHECK(is_closed(one_more));
    close(one_more);
    /* Those who only connect do not keep it from being so. */
    int silent[CONN_EXTRA];
    for (int i = 0; i < CONN_EXTRA; i++)
        silent[i] = send_quick_request();
    one_more = send_quick_request();
    send_text(one_more, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    pass_time(CONN_CROWDED_MS / 2); /* too early for the others, which are not idle long enough */
    for (int i = 0; i < 1000 && is_open(silent[0]); i++) {
        pass_time(CONN_CROWDED_MS / 8);
        nap_ms(2);
    }
    CHECK(strstr(receive_until(one_more, "<>"), "<>"));
    for (int i = 0; i < CONN_EXTRA; i++)
        close(silent[i]);
    close(one_more);
    /* There is room again when somebody leaves. */
    close(fds[0]);
    one_more = connect_when_free();
    for (int i = 1; i < MOST; i++)
        close(fds[i]);
    close(one_more);
    listener_close(listener, 1000);
}

/* Nobody is kept out by those who took all connections and do nothing with them. */
static void test_idle_connections_make_room(void)
{
    enum { MOST = 8 };
    int fds[MOST];
    begin_with(MOST, NULL);
    for (int i = 0; i < MOST; i++) {
        fds[i] = send_quick_request();
        send_text(fds[i], "GET /poll HTTP/1.1\r\nHost: x\r\n\r\n");
        CHECK(strstr(receive_until(fds[i], "<>"), "<>"));
    }
    check_refused(send_quick_request());
    pass_time(CONN_CROWDED_MS);
    int one_more = connect_when_free();
    CHECK(is_closed(fds[0]));      /* who came first */
    CHECK(is_open(fds[MOST - 1])); /* the others stay */
    for (int i = 0; i < MOST; i++)
        close(fds[i]);
    close(one_more);
    listener_close(listener, 1000);
}

static void test_holds_make_room(void)
{
    enum { MOST = 8 };
    int fds[MOST];
    begin_with(MOST, NULL);
    for (int i = 0; i < MOST; i++) {
        fds[i] = send_quick_request();
        send_text(fds[i], "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    struct listener_stats stats = { 0 };
    for (int i = 0; i < 5000 && stats.held < MOST; i++) {
        nap_ms(1);
        listener_stats(listener, &stats);
    }
    CHECK_INT(stats.held, MOST);
    check_refused(send_quick_request());
    pass_time(HOLD_CROWDED_MS);
    CHECK(strstr(receive_until(fds[0], "<>"), "Connection: close"));
    CHECK(is_closed(fds[0]));
    int one_more = connect_when_free();
    for (int i = 0; i < MOST; i++)
        close(fds[i]);
    close(one_more);
    listener_close(listener, 1000);
}

static void test_long_requests_keep_nobody_waiting(void)
{
    open_test_listener();
    int a = send_quick_request(), b = send_quick_request(), c = send_quick_request(),
        d = send_quick_request();
    send_text(a, "POST /long HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na");
    send_text(b, "POST /long HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nb");
    for (int i = 0; i < 5000 && atomic_load(&aside_running) < 2; i++)
        nap_ms(1);
    CHECK_INT(atomic_load(&aside_running), 2);
    /* A poll is answered meanwhile, and so is what might have to wait for the store: it has a
     * thread of its own. */
    send_text(c, "GET /other HTTP/1.1\r\nHost: x\r\n\r\n");
    send_text(d, "GET /poll HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(strstr(receive_until(d, "<>"), "<>"));
    CHECK(strstr(receive_until(c, "<>"), "<>"));
    sem_post(&go_on);
    sem_post(&go_on);
    CHECK(strstr(receive_until(a, "<a>"), "<a>"));
    CHECK(strstr(receive_until(b, "<b>"), "<b>"));
    close(a);
    close(b);
    close(c);
    close(d);
    listener_close(listener, 1000);
}

static void test_a_client_that_left_while_aside(void)
{
    open_test_listener();
    int fd = send_quick_request();
    send_text(fd, "POST /long HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na");
    for (int i = 0; i < 5000 && atomic_load(&aside_running) < 1; i++)
        nap_ms(1);
    close(fd);
    sem_post(&go_on);
    wait_until_idle();
    /* The same with a stream, which then has no reader. */
    fd = send_quick_request();
    send_text(fd, "POST /long HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nstream");
    for (int i = 0; i < 5000 && atomic_load(&aside_running) < 1; i++)
        nap_ms(1);
    close(fd);
    sem_post(&go_on);
    wait_until_idle();
    listener_close(listener, 1000);
}

/* Requests one after the other until the connection is closed. */
static void *keep_asking(void *arg)
{
    static const char text[] = "GET /aside HTTP/1.1\r\nHost: x\r\n\r\n";
    char answer[4096];
    int fd = *(int *)arg;
    while (send(fd, text, sizeof(text) - 1, MSG_NOSIGNAL) > 0 && recv(fd, answer, 4096, 0) > 0)
        continue;
    return NULL;
}

static void test_clients_that_go_on_while_it_stops(void)
{
    enum { CLIENTS = 4, ROUNDS = 30 };
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[CLIENTS];
        int fds[CLIENTS];
        open_test_listener();
        for (int i = 0; i < CLIENTS; i++) {
            fds[i] = send_quick_request();
            pthread_create(&threads[i], NULL, keep_asking, &fds[i]);
        }
        wait_requests(20);
        listener_close(listener, 0);
        for (int i = 0; i < CLIENTS; i++) {
            pthread_join(threads[i], NULL);
            close(fds[i]);
        }
    }
}

int main(void)
{
    sem_init(&go_on, 0, 0);
    RUN(test_headers_that_never_end);
    RUN(test_bodies_that_never_end);
    RUN(test_an_idle_connection_ends);
    RUN(test_a_held_poll_is_not_slow);
    RUN(test_half_closed_clients_get_their_answer);
    RUN(test_no_key_no_body);
    RUN(test_bodies_arriving_at_once_are_bounded);
    RUN(test_the_number_of_connections_is_bounded);
    RUN(test_idle_connections_make_room);
    RUN(test_holds_make_room);
    RUN(test_long_requests_keep_nobody_waiting);
    RUN(test_a_client_that_left_while_aside);
    RUN(test_clients_that_go_on_while_it_stops);
    return tap_done();
}
