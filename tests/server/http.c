/* The listener over real sockets: bodies, limits, holds, streams. */
#include "server/http/listener.h"
#include "server/work/stream.h"
#include "support/tap.h"
#include "server/dial.h"
#include "server/fake_engine.h"

static struct waitlist gate;
static struct stream *flow;
static struct listener *listener;

/* /echo gives the body back, /hold waits for the gate, at most for the milliseconds of its body,
 * /stream sends what is written. */
static void handle_test(void *state, struct request *req, struct response *res)
{
    (void)state;
    if (strcmp(req->path, "/hold") == 0 && !gate.fired && !req->timed_out) {
        res->wait = &gate;
        res->wait_ms = strtol(req->body, NULL, 10);
        return;
    }
    if (strcmp(req->path, "/stream") == 0) {
        flow = stream_new(listener);
        res->stream = flow;
        res->content_type = "text/event-stream";
        return;
    }
    res->content_type = "text/plain";
    if (strcmp(req->path, "/hold") == 0)
        buf_puts(&res->body, req->timed_out ? "late" : "woken");
    else
        buf_append(&res->body, req->body, req->n_body);
}

static void start_listener(int64_t hold_ms)
{
    struct listener_options o = { .host = "127.0.0.1",
                                  .max_body = 100000,
                                  .hold_ms = hold_ms,
                                  .idle_ms = 60000,
                                  .body_ms = 60000,
                                  .max_arriving = 1000000,
                                  .max_connections = 1000,
                                  .clock = clock_real() };
    tinker_error err = { 0 };
    memset(&gate, 0, sizeof(gate));
    listener = listener_open(&o, &err);
    if (!listener || listener_start(listener, handle_test, NULL, &err) != TINKER_OK) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
}

static void test_bodies(void)
{
    start_listener(1000);
    int fd = connect_local(listener_port(listener));
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    const char *r = receive_until(fd, "hello");
    CHECK(strstr(r, "200 OK") && strstr(r, "Content-Length: 5"));
    /* Keep-alive, and a chunked body. */
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                  "chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
    CHECK(strstr(receive_until(fd, "abcdefg"), "abcdefg"));
    close(fd);
    listener_close(listener, 2000);
}

static void test_large_bodies_are_refused(void)
{
    start_listener(1000);
    int fd = connect_local(listener_port(listener));
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n");
    const char *r = receive_until(fd, "}");
    CHECK(strstr(r, " 413 ") && strstr(r, "larger than 100000 bytes"));
    close(fd);
    /* A chunked one does not say its size first. */
    fd = connect_local(listener_port(listener));
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    char block[10100];
    int k = snprintf(block, sizeof(block), "2710\r\n");
    memset(block + k, 'x', 10000);
    snprintf(block + k + 10000, sizeof(block) - (size_t)k - 10000, "\r\n");
    for (int i = 0; i < 12; i++)
        if (send(fd, block, (size_t)k + 10002, MSG_NOSIGNAL) < 0)
            break;
    if (send(fd, "0\r\n\r\n", 5, MSG_NOSIGNAL) > 0)
        CHECK(strstr(receive_until(fd, "}"), " 413 "));
    close(fd);
    listener_close(listener, 2000);
}

static void test_a_body_without_end_is_cut_off(void)
{
    char block[10100];
    int k = snprintf(block, sizeof(block), "2710\r\n"), sent = 0;
    memset(block + k, 'x', 10000);
    snprintf(block + k + 10000, sizeof(block) - (size_t)k - 10000, "\r\n");
    start_listener(1000);
    int fd = connect_local(listener_port(listener));
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (sent < 10000 && send(fd, block, (size_t)k + 10002, MSG_NOSIGNAL) > 0)
        sent++;
    CHECK(sent < 10000); /* 100 MB; a body may have 100 KB */
    close(fd);
    listener_close(listener, 2000);
}

/* Which of two lengths counts is nothing that a server and a proxy before it may differ about. */
static void test_a_body_has_one_length(void)
{
    static const char *const lengths[] = { "Content-Length: 5\r\nContent-Length: 7\r\n",
                                           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                                           "Transfer-Encoding: chunked\r\n"
                                           "Transfer-Encoding: identity\r\n" };
    start_listener(1000);
    for (size_t i = 0; i < 3; i++) {
        char text[256];
        int fd = connect_local(listener_port(listener));
        snprintf(text, sizeof(text), "POST /echo HTTP/1.1\r\nHost: x\r\n%s\r\nhello", lengths[i]);
        send_text(fd, text);
        const char *r = receive_until(fd, "}");
        CHECK(strstr(r, " 400 ") && strstr(r, "more than one way") &&
              strstr(r, "onnection: close"));
        close(fd);
    }
    listener_close(listener, 2000);
}

/* What two programs could read in two ways is refused. */
static void test_headers_have_one_meaning(void)
{
    static const struct {
        const char *text, *says;
    } tries[] = {
        { "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\nhello", "name of a header" },
        { "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length\t: 5\r\n\r\nhello",
          "name of a header" },
        { "GET /echo HTTP/1.1\r\nHost: x\r\nX (y): 5\r\n\r\n", "name of a header" },
        { "GET /echo HTTP/1.1\r\nAccept: x\r\n\r\n", "Host" },
        { "GET /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "two headers Host" },
        { "GET /echo HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\nOrigin: http://y\r\n\r\n",
          "two headers Origin" },
        { "GET /echo HTTP/1.1\r\nHost: x\r\nX-API-Key: a\r\nx-api-key: b\r\n\r\n",
          "two headers X-API-Key" },
    };
    start_listener(1000);
    for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
        int fd = connect_local(listener_port(listener));
        send_text(fd, tries[i].text);
        const char *r = receive_until(fd, "}");
        if (!strstr(r, " 400 ") || !strstr(r, tries[i].says) || !strstr(r, "onnection: close"))
            TAP_FAIL("try %zu: %s", i, r);
        close(fd);
    }
    /* HTTP/1.0 had no Host, and Accept is a list. */
    int fd = connect_local(listener_port(listener));
    send_text(fd, "GET /echo HTTP/1.0\r\nAccept: a\r\nAccept: b\r\n\r\n");
    CHECK(strstr(receive_until(fd, "\r\n\r\n"), " 200 "));
    close(fd);
    listener_close(listener, 2000);
}

/* More than the library has memory for is refused, not left without an answer. */
static void test_many_query_arguments(void)
{
    static const int counts[] = { 10, 500, 1500, 5000 };
    start_listener(1000);
    for (size_t i = 0; i < 4; i++) {
        struct buf b;
        buf_init(&b, SIZE_MAX);
        buf_puts(&b, "GET /echo?");
        for (int k = 0; k < counts[i]; k++)
            buf_printf(&b, "%sa%d=%d", k ? "&" : "", k, k);
        buf_puts(&b, " HTTP/1.1\r\nHost: x\r\n\r\n");
        int fd = connect_local(listener_port(listener));
        send_text(fd, b.data);
        const char *r = receive_until(fd, "\r\n\r\n");
        int status = strlen(r) > 12 ? atoi(r + 9) : 0;
        printf("# %d arguments: %d\n", counts[i], status);
        CHECK(status == 200 || (i > 0 && status >= 400 && status < 500));
        close(fd);
        buf_clear(&b);
    }
    listener_close(listener, 2000);
}

/* One that is not known has no end that could be seen. */
static void test_unknown_codings_are_refused(void)
{
    static const char *const codings[] = { "gzip, chunked", "identity", "chunked, chunked" };
    start_listener(1000);
    for (size_t i = 0; i < 3; i++) {
        char text[256];
        int fd = connect_local(listener_port(listener));
        snprintf(text, sizeof(text),
                 "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: %s\r\n\r\n"
                 "5\r\nhello\r\n0\r\n\r\n",
                 codings[i]);
        send_text(fd, text);
        const char *r = receive_until(fd, "}");
        CHECK(strstr(r, " 501 ") && strstr(r, "use chunked") && strstr(r, "onnection: close"));
        close(fd);
    }
    listener_close(listener, 2000);
}

static int64_t now_ms(void)
{
    return clock_now_ms(clock_real());
}

/* How many requests are held, as soon as they are `n`. */
static int await_held(uint64_t n)
{
    struct listener_stats stats = { 0 };
    for (int64_t end = now_ms() + 60000; stats.held < n && now_ms() < end;) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        listener_stats(listener, &stats);
    }
    return (int)stats.held;
}

static void test_a_hold_ends_at_once_when_woken(void)
{
    enum { N = 200 };
    int fds[N];
    start_listener(600000);
    for (int i = 0; i < N; i++) {
        fds[i] = connect_local(listener_port(listener));
        send_text(fds[i], "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    CHECK_INT(await_held(N), N);
    CHECK(listener_waits(listener, &gate));
    listener_wake(listener, &gate);
    for (int i = 0; i < N; i++)
        CHECK(strstr(receive_until(fds[i], "woken"), "woken"));
    struct listener_stats stats;
    listener_stats(listener, &stats);
    CHECK_INT(stats.held, 0);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    listener_close(listener, 2000);
}

static void test_a_hold_ends_by_time(void)
{
    start_listener(50);
    int fd = connect_local(listener_port(listener));
    send_text(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    struct listener_stats stats = { .held = 1 };
    for (int i = 0; i < 2000; i++) {
        struct timespec t = { 0, 5000000 };
        nanosleep(&t, NULL);
        listener_expire(listener);
        listener_stats(listener, &stats);
        if (stats.requests && !stats.held)
            break;
    }
    CHECK(strstr(receive_until(fd, "late"), "late"));
    close(fd);
    listener_close(listener, 2000);
}

/* Beside longer ones that came before and after it. */
static void test_a_hold_may_be_short(void)
{
    static const int wait_ms[] = { 0, 9000, 30, 8000, 60, 0 };
    enum { N = sizeof(wait_ms) / sizeof(wait_ms[0]) };
    struct listener_stats stats = { 0 };
    int fds[N];
    char text[100];
    start_listener(20000);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof(text),
                 "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n%04d", wait_ms[i]);
        fds[i] = connect_local(listener_port(listener));
        send_text(fds[i], text);
    }
    for (int i = 0; i < 2000 && (stats.requests < N || stats.held > N - 2); i++) {
        nap_ms(5);
        listener_expire(listener);
        listener_stats(listener, &stats);
    }
    CHECK_INT(stats.held, N - 2);
    CHECK(strstr(receive_until(fds[2], "late"), "late"));
    CHECK(strstr(receive_until(fds[4], "late"), "late"));
    listener_wake(listener, &gate);
    for (int i = 0; i < N; i++) {
        if (i != 2 && i != 4)
            CHECK(strstr(receive_until(fds[i], "woken"), "woken"));
        close(fds[i]);
    }
    listener_close(listener, 2000);
}

static void test_closing_ends_holds(void)
{
    start_listener(600000);
    int fd = connect_local(listener_port(listener)), gone = connect_local(listener_port(listener));
    send_text(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    send_text(gone, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK_INT(await_held(2), 2);
    close(gone); /* a client that left must not keep the server */
    int64_t before = now_ms();
    listener_close(listener, 60000);
    CHECK(now_ms() - before < 60000);
    CHECK(strstr(receive_until(fd, "late"), "late"));
    close(fd);
}

/* Of two that wait, the one who leaves ends alone, whoever came first. */
static void test_who_leaves_ends_alone(void)
{
    for (int first = 0; first < 2; first++) {
        start_listener(600000);
        int fd[2];
        for (int i = 0; i < 2; i++) {
            fd[i] = connect_local(listener_port(listener));
            send_text(fd[i], "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
            CHECK_INT(await_held((uint64_t)i + 1), i + 1);
        }
        close(fd[first]);
        struct listener_stats stats = { .held = 2 };
        for (int64_t end = now_ms() + 60000; stats.held > 1 && now_ms() < end;) {
            nap_ms(1);
            listener_expire(listener);
            listener_stats(listener, &stats);
        }
        CHECK_INT(stats.held, 1);
        CHECK(listener_waits(listener, &gate));
        listener_wake(listener, &gate);
        CHECK(strstr(receive_until(fd[!first], "woken"), "woken"));
        close(fd[!first]);
        listener_close(listener, 60000);
    }
}

static void test_stream(void)
{
    start_listener(20000);
    int fd = connect_local(listener_port(listener));
    flow = NULL;
    send_text(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(strstr(receive_until(fd, "\r\n\r\n"), "text/event-stream"));
    REQUIRE(flow);
    CHECK(stream_write(flow, "one", 3));
    CHECK(strstr(receive_until(fd, "one"), "one"));
    CHECK(stream_write(flow, "two", 3));
    CHECK(strstr(receive_until(fd, "two"), "two"));
    stream_end(flow);
    CHECK(strstr(receive_until(fd, "0\r\n\r\n"), "0\r\n\r\n"));
    stream_unref(flow);
    close(fd);
    listener_close(listener, 2000);
}

static uint64_t n_active(void)
{
    struct listener_stats stats;
    listener_stats(listener, &stats);
    return stats.active;
}

static void test_a_stream_that_waits_says_so(void)
{
    start_listener(10);
    int fd = connect_local(listener_port(listener));
    flow = NULL;
    send_text(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(strstr(receive_until(fd, "\r\n\r\n"), "text/event-stream"));
    REQUIRE(flow);
    nap_ms(30);
    listener_expire(listener);
    CHECK(strstr(receive_until(fd, ":\n\n"), ":\n\n"));
    CHECK(stream_write(flow, "one", 3));
    CHECK(strstr(receive_until(fd, "one"), "one"));
    /* A client who leaves is noticed though nothing is written. */
    close(fd);
    for (int i = 0; i < 500 && n_active(); i++) {
        nap_ms(10);
        listener_expire(listener);
    }
    CHECK_INT(n_active(), 0);
    CHECK(!stream_write(flow, "two", 3));
    stream_unref(flow);
    listener_close(listener, 2000);
}

static void test_half_a_stream_is_no_whole_one(void)
{
    start_listener(20000);
    int fd = connect_local(listener_port(listener));
    flow = NULL;
    send_text(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(strstr(receive_until(fd, "\r\n\r\n"), "text/event-stream"));
    REQUIRE(flow);
    CHECK(stream_write(flow, "one", 3));
    CHECK(strstr(receive_until(fd, "one"), "one"));
    listener_stop(listener, 2000);
    CHECK(!strstr(receive_until(fd, "0\r\n\r\n"), "0\r\n\r\n"));
    stream_unref(flow);
    close(fd);
    listener_close(listener, 2000);
}

static void test_a_reader_that_is_behind(void)
{
    enum { MB = 1 << 20 };
    start_listener(20000);
    struct stream *s = stream_new(listener);
    char *data = calloc(1, 12 * MB);
    REQUIRE(s && data);
    /* Never at the end, and never far from it. */
    for (int i = 0; i < 4; i++) {
        CHECK(stream_write(s, data, 12 * MB));
        CHECK_INT(stream_read(s, data, 11 * MB), 11 * MB);
    }
    /* Too far. */
    CHECK(!stream_write(s, data, 12 * MB) || !stream_write(s, data, 12 * MB));
    stream_end(s);
    ssize_t n;
    while ((n = stream_read(s, data, 12 * MB)) > 0)
        continue;
    CHECK_INT(n, -2);
    free(data);
    stream_unref(s);
    stream_unref(s);
    listener_close(listener, 2000);
}

int main(void)
{
    RUN(test_bodies);
    RUN(test_large_bodies_are_refused);
    RUN(test_a_body_without_end_is_cut_off);
    RUN(test_a_body_has_one_length);
    RUN(test_headers_have_one_meaning);
    RUN(test_many_query_arguments);
    RUN(test_unknown_codings_are_refused);
    RUN(test_a_hold_ends_at_once_when_woken);
    RUN(test_a_hold_ends_by_time);
    RUN(test_a_hold_may_be_short);
    RUN(test_closing_ends_holds);
    RUN(test_who_leaves_ends_alone);
    RUN(test_stream);
    RUN(test_a_stream_that_waits_says_so);
    RUN(test_half_a_stream_is_no_whole_one);
    RUN(test_a_reader_that_is_behind);
    return tap_done();
}
