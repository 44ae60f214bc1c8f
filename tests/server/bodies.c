/* Bodies: what they take in memory and for how long, compressed or not; users share the threads
 * that read them; work whose client has left ends. */
#include "server/http/user_queue.h"
#include "server/harness.h"
#include "server/dial.h"
#include "wire/zstd.h"

/* A JSON object padded with blanks to n bytes, compressed. */
static struct buf pack_padded(const char *object, size_t n)
{
    struct buf plain, packed;
    buf_init(&plain, SIZE_MAX);
    buf_init(&packed, SIZE_MAX);
    buf_append(&plain, object, strlen(object) - 1);
    while (plain.len + 1 < n)
        buf_append(&plain, "                                ", 32);
    buf_putc(&plain, '}');
    CHECK_INT(wire_zstd_compress(plain.data, plain.len, &packed, NULL), TINKER_OK);
    buf_clear(&plain);
    return packed;
}

static void send_packed(int fd, const char *path, const char *key, const struct buf *body)
{
    char head[400];
    snprintf(head, sizeof(head),
             "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: %s\r\nContent-Encoding: zstd\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
             path, key, body->len);
    send_text(fd, head);
    CHECK(send(fd, body->data, body->len, MSG_NOSIGNAL) == (ssize_t)body->len);
}

/* A sample that runs until the fake engine is told to hurry, and a poll's body for it. */
static void start_long_sample(struct server *s, const char *key, char *poll, size_t size)
{
    struct ask a = { .method = "POST",
                     .path = "/api/v1/asample",
                     .key = key,
                     .body = "{\"base_model\":\"test/model\",\"prompt\":{\"chunks\":[{\"tokens\":"
                             "[5]}]},\"sampling_params\":{\"max_tokens\":250}}" };
    atomic_store(&fake_step_us, 100000);
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    snprintf(poll, size, "{\"request_id\":\"%s\"}", find_member(&r, "request_id"));
    reply_clear(&r);
}

static struct listener_stats wait_held(struct server *s, uint64_t held)
{
    struct listener_stats stats = { 0 };
    for (int i = 0; i < 4000; i++) {
        listener_stats(s->listener, &stats);
        if (stats.held == held)
            break;
        nap_ms(5);
    }
    return stats;
}

static void test_a_held_poll_has_no_body(void)
{
    enum { POLLS = 6 };
    char object[300];
    int fd[POLLS];
    struct server *s = start_fresh(two_keys);
    REQUIRE(s);
    start_long_sample(s, ALICE, object, sizeof(object));
    struct buf small = pack_padded(object, 1000000), large = pack_padded(object, 100 << 20);
    CHECK(small.len < 20000 && large.len < 20000);
    for (int i = 0; i < POLLS; i++) {
        fd[i] = connect_local(server_port(s));
        send_packed(fd[i], "/api/v1/retrieve_future", ALICE, &small);
    }
    struct listener_stats stats = wait_held(s, POLLS);
    CHECK_INT(stats.held, POLLS);
    CHECK_INT(stats.bodies, 0);
    /* More than a question can need is refused before it is in memory. */
    int other = connect_local(server_port(s));
    send_packed(other, "/api/v1/retrieve_future", ALICE, &large);
    CHECK(strstr(receive_until(other, "bytes\"}"), "413"));
    close(other);
    /* The question is still known when the sample is done. */
    atomic_store(&fake_step_us, 0);
    for (int i = 0; i < POLLS; i++) {
        CHECK(strstr(receive_until(fd[i], "\r\n\r\n"), "200 OK"));
        close(fd[i]);
    }
    buf_clear(&small);
    buf_clear(&large);
    server_close(s);
}

static void small_bodies(struct server_options *o)
{
    two_keys(o);
    o->max_body = 4 << 20; /* 16 MB together, 8 MB of each user */
    o->max_decoded_body = 64 << 20;
}

static struct reply post_packed(struct server *s, const char *path, const struct buf *body)
{
    int fd = connect_local(server_port(s));
    send_packed(fd, path, ALICE, body);
    const char *text = receive_until(fd, "}");
    struct reply r = { .fd = -1, .status = atoi(text + 9), .body = strdup(text) };
    close(fd);
    return r;
}

/* The handler of forward_backward runs for a while, as it would with a body of a gigabyte. */
static void test_decompressed_bytes_are_counted(void)
{
    struct server *s = start_fresh(small_bodies);
    REQUIRE(s);
    struct buf body = pack_padded("{\"model_id\":\"x\",\"seq_id\":1}", 32 << 20);
    /* Alone it passes, whatever the limit: it would never pass otherwise. */
    struct reply r = post_packed(s, "/api/v1/forward_backward", &body);
    CHECK_INT(r.status, 404); /* no such model: it was read */
    reply_clear(&r);
    /* Beside another body it does not. */
    int slow = connect_local(server_port(s));
    send_text(slow, "POST /api/v1/asample HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: "
                    "tml-alice-0123456789\r\nContent-Length: 1000000\r\n\r\n{");
    for (int i = 0; i < 4000; i++) {
        struct listener_stats stats;
        listener_stats(s->listener, &stats);
        if (stats.bodies >= 1000000)
            break;
        nap_ms(5);
    }
    r = post_packed(s, "/api/v1/forward_backward", &body);
    CHECK_INT(r.status, 429);
    CHECK(strstr(r.body, "Retry-After: 1"));
    reply_clear(&r);
    close(slow);
    buf_clear(&body);
    for (int i = 0; i < 4000; i++) { /* everything is given back */
        struct listener_stats stats;
        listener_stats(s->listener, &stats);
        if (!stats.bodies)
            break;
        nap_ms(5);
    }
    struct listener_stats stats;
    listener_stats(s->listener, &stats);
    CHECK_INT(stats.bodies, 0);
    server_close(s);
}

/* ---- threads -------------------------------------------------------------------------------- */

static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static char order[64];
static atomic_bool go;

struct letter {
    struct user_job job;
    char name;
};

static void note_letter(struct user_job *job)
{
    struct letter *l = (struct letter *)job;
    while (!atomic_load(&go))
        nap_ms(1);
    pthread_mutex_lock(&order_lock);
    strncat(order, &l->name, 1);
    pthread_mutex_unlock(&order_lock);
}

/* One user has ten jobs waiting; another's only one is next. */
static void test_users_take_turns(void)
{
    static struct letter jobs[12];
    struct user_queue *q = user_queue_new(1, "test");
    REQUIRE(q);
    for (size_t i = 0; i < 12; i++) {
        bool late = i >= 10;
        jobs[i] = (struct letter){ .job = { .run = note_letter, .user = late ? i : 1 },
                                   .name = late ? (char)('X' + (i - 10)) : 'a' };
        CHECK(user_queue_submit(q, &jobs[i].job));
    }
    nap_ms(50);
    atomic_store(&go, true);
    user_queue_free(q);
    CHECK_INT(strlen(order), 12);
    /* The thread had one of the first user when the others came, or none yet. */
    CHECK(strchr(order, 'X') - order <= 2 && strchr(order, 'Y') - order <= 3);
    CHECK(order[11] == 'a');
}

/* ---- clients that leave ------------------------------------------------------------------------ */

static size_t running_samples(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->active_samples + s->queued_samples;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void wait_samples(struct server *s, size_t want)
{
    for (int i = 0; i < 4000 && running_samples(s) != want; i++)
        nap_ms(5);
    CHECK_INT(running_samples(s), want);
}

static void check_canceled_when_left(struct server *s, const char *extra)
{
    enum { CLIENTS = 20 };
    char body[300], head[600];
    int fd[CLIENTS];
    snprintf(body, sizeof(body), "{\"model\":\"test/model\",\"prompt\":[1],\"max_tokens\":250%s}",
             extra);
    snprintf(head, sizeof(head),
             "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    atomic_store(&fake_step_us, 50000);
    atomic_store(&fake_token_steps, 0);
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = connect_local(server_port(s));
        send_text(fd[i], head);
    }
    wait_samples(s, CLIENTS);
    for (int i = 0; i < CLIENTS; i++)
        close(fd[i]);
    wait_samples(s, 0);
    CHECK(atomic_load(&fake_token_steps) < 250); /* none was made to its end */
    atomic_store(&fake_step_us, 0);
}

static void test_completions_end_with_their_clients(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    check_canceled_when_left(s, "");
    server_close(s);
}

/* A poll is no reason to go on, but the sample is its session's, not the connection's. */
static void test_samples_outlive_their_polls(void)
{
    char object[300], head[600];
    struct server *s = start_server();
    REQUIRE(s);
    start_long_sample(s, NULL, object, sizeof(object));
    snprintf(head, sizeof(head),
             "POST /api/v1/retrieve_future HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: "
             "%zu\r\n\r\n%s",
             strlen(object), object);
    int fd = connect_local(server_port(s));
    send_text(fd, head);
    CHECK_INT(wait_held(s, 1).held, 1);
    close(fd);
    CHECK_INT(wait_held(s, 0).held, 0); /* not only after its 30 s */
    CHECK_INT(running_samples(s), 1);
    atomic_store(&fake_step_us, 0);
    wait_samples(s, 0);
    struct ask a = { .method = "POST", .path = "/api/v1/retrieve_future", .body = object };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"tokens\":[6,7"));
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_a_held_poll_has_no_body);
    RUN(test_decompressed_bytes_are_counted);
    RUN(test_users_take_turns);
    RUN(test_completions_end_with_their_clients);
    RUN(test_samples_outlive_their_polls);
    harness_clear();
    return tap_done();
}
