/* Answers of any endpoint, piece by piece: order, back-pressure, ends of every kind. */
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <tinker/extra/http.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

#define LOG API "log"
enum { WAIT_MS = 20000, LARGE = 8 << 20 };

struct reader {
    char *got; /* LARGE + 1 bytes */
    size_t n, largest;
    atomic_int pieces;
    atomic_int pause_at;  /* likewise */
    int stop_at, free_at; /* at the piece of this number, from 1 */
    bool eager;           /* it is resumed before the callback that pauses has returned */
    tinker_future *_Atomic future;
    int status;
    char url[256], kind[64], events[256];
};

static tinker_receive_next on_piece(const tinker_piece *p, void *state)
{
    struct reader *r = state;
    if (r->n + p->n <= LARGE)
        memcpy(r->got + r->n, p->data, p->n);
    r->n += p->n;
    r->largest = p->n > r->largest ? p->n : r->largest;
    r->status = p->head->status;
    snprintf(r->url, sizeof(r->url), "%s", p->head->url);
    snprintf(r->kind, sizeof(r->kind), "%s", tinker_response_header(p->head, "content-type"));
    if (p->event)
        snprintf(r->events + strlen(r->events), sizeof(r->events) - strlen(r->events), "%s:%s:%s;",
                 p->event, p->id, (const char *)p->data);
    if (((const char *)p->data)[p->n] != '\0')
        r->status = -1;
    int i = atomic_fetch_add(&r->pieces, 1) + 1;
    if (i == r->free_at) {
        while (!atomic_load(&r->future))
            sched_yield();
        tinker_future_free(atomic_load(&r->future));
    }
    if (r->eager && i == atomic_load(&r->pause_at)) {
        while (!atomic_load(&r->future))
            sched_yield();
        tinker_receive_resume(atomic_load(&r->future), NULL);
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    return i == r->stop_at                  ? TINKER_RECEIVE_STOP
           : i == atomic_load(&r->pause_at) ? TINKER_RECEIVE_PAUSE
                                            : TINKER_RECEIVE_MORE;
}

static void reader_init(struct reader *r)
{
    memset(r, 0, sizeof(*r));
    r->got = calloc(1, LARGE + 1);
}

static char *large_body(void)
{
    char *s = malloc(LARGE + 1);
    for (size_t i = 0; i < LARGE; i++)
        s[i] = (char)('a' + i * 7 % 26 + i / 4099 % 5);
    s[LARGE] = '\0';
    return s;
}

static tinker_future *ask(struct world *w, struct reader *r, const tinker_receive_options *o)
{
    tinker_future *f =
        tinker_service_receive(w->service, "GET", LOG "?key=x", NULL, 0, o, on_piece, r, &w->err);
    if (!f)
        TAP_FAIL("receive: %s", w->err.message);
    return f;
}

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000L }, NULL);
}

static void test_pieces(void)
{
    struct world w;
    struct reader r;
    char v[512], *body = large_body();
    world_open_real(&w, NULL);
    reader_init(&r);
    say(&w, LOG, 503, "{}", 1); /* nothing has come yet: tried again */
    fake_script(w.server, LOG,
                (struct fake_reply){ .body = body, .content_type = "text/plain", .times = -1 });
    tinker_future *f = ask(&w, &r, NULL);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_MEM(r.got, r.n, body, LARGE);
    CHECK(atomic_load(&r.pieces) > 4 && r.largest < 600000);
    CHECK_INT(r.status, 200);
    CHECK_STR(r.kind, "text/plain");
    CHECK_STR(strstr(r.url, LOG), LOG "?key=x");
    CHECK_INT(tinker_future_response(f)->status, 200);
    CHECK_STR(fake_header(fake_get(w.server, LOG, 0), "Accept", v), "*/*");
    CHECK(fake_header(fake_get(w.server, LOG, 0), "X-API-Key", v) != NULL);
    tinker_future_free(f);
    r.n = 0;
    f = tinker_service_receive(w.service, "POST", LOG, "{}", 2, NULL, on_piece, &r, &w.err);
    f = tinker_future_await(f, WAIT_MS, &w.err);
    CHECK(f != NULL);
    CHECK_MEM(r.got, r.n, body, LARGE);
    CHECK_STR(fake_get(w.server, LOG, 2)->body, "{}");
    tinker_future_free(f);
    free(body);
    free(r.got);
    world_close(&w);
}

/* Who pauses makes the sender wait: what is kept meanwhile is bounded. */
static void test_back_pressure(void)
{
    struct world w;
    struct reader r;
    char *body = large_body();
    world_open_real(&w, NULL);
    reader_init(&r);
    fake_script(w.server, LOG, (struct fake_reply){ .body = body });
    atomic_store(&r.pause_at, 1);
    tinker_future *f = ask(&w, &r, NULL);
    while (atomic_load(&r.pieces) == 0)
        sched_yield();
    sleep_ms(100);
    CHECK_INT(atomic_load(&r.pieces), 1);
    CHECK(!tinker_future_done(f));
    atomic_store(&r.pause_at, 2);
    CHECK_INT(tinker_receive_resume(f, &w.err), TINKER_OK);
    while (atomic_load(&r.pieces) == 1)
        sched_yield();
    sleep_ms(50);
    CHECK_INT(atomic_load(&r.pieces), 2);
    CHECK(r.n < 1200000); /* two windows, and not all there is */
    CHECK_INT(tinker_receive_resume(f, &w.err), TINKER_OK);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_INT(tinker_receive_resume(f, &w.err), TINKER_OK); /* harmless */
    CHECK_MEM(r.got, r.n, body, LARGE);
    tinker_future_free(f);
    free(body);
    free(r.got);
    world_close(&w);
}

static void test_stops(void)
{
    struct world w;
    struct reader r;
    char *body = large_body();
    world_open_real(&w, NULL);
    reader_init(&r);
    fake_script(w.server, LOG, (struct fake_reply){ .body = body, .times = -1 });
    r.stop_at = 2;
    tinker_future *f = ask(&w, &r, NULL);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_ECANCELED);
    CHECK(strstr(w.err.message, "stopped") != NULL);
    CHECK_INT(atomic_load(&r.pieces), 2);
    tinker_future_free(f);
    free(r.got);
    reader_init(&r); /* paused, and then canceled */
    atomic_store(&r.pause_at, 1);
    f = ask(&w, &r, NULL);
    while (atomic_load(&r.pieces) == 0)
        sched_yield();
    tinker_future_cancel(f);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_ECANCELED);
    tinker_future_free(f);
    atomic_store(&r.pause_at, 0);
    r.free_at = 3; /* by the callback itself, in the middle */
    atomic_store(&r.pieces, 0);
    r.n = 0;
    atomic_store(&r.future, ask(&w, &r, NULL));
    while (atomic_load(&r.pieces) < 3)
        sched_yield();
    sleep_ms(30);
    CHECK_INT(atomic_load(&r.pieces), 3);
    free(body);
    free(r.got);
    world_close(&w);
}

/* What came before a failure is handed out before it, and nothing is asked for twice. */
static void test_failures(void)
{
    struct world w;
    struct reader r;
    world_open_real(&w, NULL);
    reader_init(&r);
    fake_script(w.server, LOG,
                (struct fake_reply){ .body = "0123456789", .fault = FAKE_TRUNCATE, .times = -1 });
    tinker_future *f = ask(&w, &r, NULL);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_ECONNECT);
    CHECK_MEM(r.got, r.n, "0123456789", 10);
    CHECK(strncmp(w.err.message, "GET " LOG ": ", strlen("GET " LOG ": ")) == 0);
    CHECK(strstr(w.err.message, "key=") == NULL);
    CHECK_INT(fake_count(w.server, LOG), 1);
    tinker_future_free(f);
    fake_unscript(w.server, LOG);
    say(&w, LOG, 404, "{\"detail\":\"no log\"}", 1);
    r.n = 0;
    f = ask(&w, &r, NULL);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 404);
    CHECK(strstr(w.err.message, "no log") != NULL && r.n == 0);
    CHECK_STR(tinker_future_error_body(f), "{\"detail\":\"no log\"}");
    tinker_future_free(f);
    fake_script(w.server, LOG, (struct fake_reply){ .fault = FAKE_HANG });
    f = ask(&w, &r, NULL);
    tinker_future_set_deadline(f, 50);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_ETIMEDOUT);
    CHECK(strstr(w.err.message, "deadline") && strstr(w.err.message, LOG));
    tinker_future_free(f);
    CHECK(!tinker_service_receive(w.service, "GET", "log", NULL, 0, NULL, on_piece, &r, &w.err));
    CHECK(!tinker_service_receive(w.service, "GET", LOG, NULL, 0, NULL, NULL, &r, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    tinker_receive_options o = TINKER_RECEIVE_OPTIONS_INIT;
    o.accept = "a\r\nb";
    CHECK(!tinker_service_receive(w.service, "GET", LOG, NULL, 0, &o, on_piece, &r, &w.err));
    free(r.got);
    world_close(&w);
}

static void test_events(void)
{
    struct world w;
    struct reader r;
    char v[512];
    world_open_real(&w, NULL);
    reader_init(&r);
    fake_script(w.server, LOG,
                (struct fake_reply){ .body = ": hello\n\nid: 7\nevent: step\ndata: a\ndata: b\n\n"
                                             "data: last\n\ndata: cut off",
                                     .content_type = "text/event-stream" });
    tinker_receive_options o = TINKER_RECEIVE_OPTIONS_INIT;
    o.events = 1;
    tinker_future *f = ask(&w, &r, &o);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_STR(r.events, "step:7:a\nb;message:7:last;");
    CHECK_STR(fake_header(fake_get(w.server, LOG, 0), "Accept", v), "text/event-stream");
    tinker_future_free(f);
    free(r.got);
    world_close(&w);
}

static void carry(tinker_exchange *x, const tinker_http_request *q, void *state)
{
    static const tinker_named_string plain = { "Content-Type", "text/plain" };
    bool log = strstr(q->url, LOG) != NULL;
    tinker_exchange_done(x, 200, &plain, 1, log ? state : "{}", log ? LARGE : 2);
}

/* A transport gives everything at once; the callback sees the same. */
static void test_transport(void)
{
    struct world w;
    struct reader r;
    char *body = large_body();
    tinker_service_options so;
    tinker_transport t = TINKER_TRANSPORT_INIT;
    world_options(&w, &so);
    world_open_real(&w, NULL);
    reader_init(&r);
    t.send = carry;
    t.state = body;
    so.network.transport = &t;
    so.base_url = "http://nowhere";
    tinker_service *s = tinker_service_new(&so, &w.err);
    REQUIRE(s);
    atomic_store(&r.pause_at, 1);
    tinker_future *f = tinker_service_receive(s, "GET", LOG, NULL, 0, NULL, on_piece, &r, &w.err);
    while (atomic_load(&r.pieces) == 0)
        sched_yield();
    tinker_receive_resume(f, NULL);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_MEM(r.got, r.n, body, LARGE);
    CHECK_INT(r.status, 200);
    tinker_future_free(f);
    tinker_service_free(s);
    free(body);
    free(r.got);
    world_close(&w);
}

/* A pause holds between events that came together, too. */
static void test_pauses_between_events(void)
{
    struct world w;
    struct reader r;
    tinker_receive_options o = TINKER_RECEIVE_OPTIONS_INIT;
    world_open_real(&w, NULL);
    reader_init(&r);
    o.events = 1;
    fake_script(w.server, LOG,
                (struct fake_reply){ .body = "data: a\r\n\r\ndata: b\r\rdata: c\n\n",
                                     .content_type = "text/event-stream" });
    atomic_store(&r.pause_at, 1);
    tinker_future *f = ask(&w, &r, &o);
    for (int i = 1; i <= 3; i++) {
        while (atomic_load(&r.pieces) < i)
            sched_yield();
        sleep_ms(50);
        CHECK_INT(atomic_load(&r.pieces), i);
        atomic_store(&r.pause_at, i + 1);
        CHECK_INT(tinker_receive_resume(f, &w.err), TINKER_OK);
    }
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_STR(r.events, "message::a;message::b;message::c;");
    tinker_future_free(f);
    free(r.got);
    world_close(&w);
}

/* Another thread may be through with the piece before the callback has returned. */
static void test_resumed_early(void)
{
    struct world w;
    struct reader r;
    char *body = large_body();
    world_open_real(&w, NULL);
    reader_init(&r);
    fake_script(w.server, LOG, (struct fake_reply){ .body = body });
    atomic_store(&r.pause_at, 1);
    r.eager = true;
    tinker_future *f = ask(&w, &r, NULL);
    atomic_store(&r.future, f);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_MEM(r.got, r.n, body, LARGE);
    tinker_future_free(f);
    free(body);
    free(r.got);
    world_close(&w);
}

int main(void)
{
    RUN(test_pieces);
    RUN(test_back_pressure);
    RUN(test_stops);
    RUN(test_failures);
    RUN(test_events);
    RUN(test_pauses_between_events);
    RUN(test_resumed_early);
    RUN(test_transport);
    return tap_done();
}
