/* Whole lists, page by page, while others create and delete. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include "base/buf.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

enum { ITEMS_MAX = 3000 };

/* A service with a list that the test changes between two answers. */
struct shelf {
    struct world w;
    tinker_rest *rest;
    int item[ITEMS_MAX]; /* newest first */
    int n, cap;          /* cap: most that one page holds, 0: as asked */
    int requests;
    bool deaf;                 /* gives the first page, whatever was asked */
    int status;                /* of the answers, 0: 200 */
    atomic_int gated, allowed; /* gated: no more answers than are allowed */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the shelf's list */

static long query_number(const char *path, const char *name)
{
    const char *at = strstr(path, name);
    return at ? strtol(at + strlen(name), NULL, 10) : -1;
}

static void put_item(char *out, size_t size, const char *path, int item)
{
    if (strncmp(path, API "sessions", strlen(API "sessions")) == 0)
        snprintf(out, size, "\"s%d\"", item);
    else if (strstr(path, "checkpoints"))
        snprintf(out, size,
                 "{\"checkpoint_id\":\"weights/%d\",\"checkpoint_type\":\"training\",\"time\":"
                 "\"2026-01-02T03:04:05Z\",\"tinker_path\":\"tinker://r/weights/%d\"}",
                 item, item);
    else
        snprintf(out, size,
                 "{\"training_run_id\":\"r%d\",\"base_model\":\"tiny\",\"model_owner\":\"me\","
                 "\"is_lora\":true,\"last_request_time\":\"2026-01-02T03:04:05Z\"}",
                 item);
}

static void answer(void *state, const struct fake_request *r, struct fake_reply *out)
{
    struct shelf *s = state;
    long limit = query_number(r->path, "limit="), offset = query_number(r->path, "offset=");
    bool sessions = strstr(r->path, "sessions") != NULL;
    const char *name = sessions                         ? "sessions"
                       : strstr(r->path, "checkpoints") ? "checkpoints"
                                                        : "training_runs";
    bool paged = offset >= 0;
    while (atomic_load(&s->gated) && s->requests >= atomic_load(&s->allowed))
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    if (s->deaf && paged)
        offset = 0;
    pthread_mutex_lock(&lock);
    s->requests++;
    if (s->cap && limit > s->cap)
        limit = s->cap;
    struct buf b;
    buf_init(&b, 1 << 24);
    buf_printf(&b, "{\"%s\":[", name);
    long from = paged ? offset : 0, to = paged ? offset + limit : s->n;
    for (long i = from; i < to && i < s->n; i++) {
        char text[512];
        put_item(text, sizeof(text), r->path, s->item[i]);
        buf_printf(&b, "%s%s", i > from ? "," : "", text);
    }
    buf_puts(&b, "]");
    if (paged && !sessions)
        buf_printf(&b, ",\"cursor\":{\"offset\":%ld,\"limit\":%ld,\"total_count\":%d}", offset,
                   limit, s->n);
    buf_puts(&b, "}");
    out->status = s->status ? s->status : 200;
    out->len = b.len;
    out->body = buf_detach(&b, NULL);
    pthread_mutex_unlock(&lock);
}

static void shelf_open(struct shelf *s, int n)
{
    memset(s, 0, sizeof(*s));
    world_open_real(&s->w, NULL);
    s->rest = tinker_service_create_rest(s->w.service, NULL);
    tinker_future *f =
        tinker_service_check_health(s->w.service, NULL); /* start with the usual answers */
    CHECK_INT(tinker_future_wait(f, 60000, NULL), TINKER_OK);
    tinker_future_free(f);
    for (s->n = 0; s->n < n; s->n++)
        s->item[s->n] = n - s->n;
    pthread_mutex_lock(&lock);
    s->w.instead_state = s;
    s->w.instead = answer;
    pthread_mutex_unlock(&lock);
}

static void shelf_close(struct shelf *s)
{
    tinker_rest_free(s->rest);
    world_close(&s->w);
}

static void shelf_remove(struct shelf *s, int item)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < s->n; i++)
        if (s->item[i] == item) {
            memmove(&s->item[i], &s->item[i + 1], (size_t)(s->n - i - 1) * sizeof(int));
            s->n--;
            break;
        }
    pthread_mutex_unlock(&lock);
}

static void shelf_add(struct shelf *s, int item)
{
    pthread_mutex_lock(&lock);
    memmove(&s->item[1], &s->item[0], (size_t)s->n * sizeof(int));
    s->item[0] = item;
    s->n++;
    pthread_mutex_unlock(&lock);
}

/* The number of the current item, 0: none. */
static int item_of(const tinker_pager *p)
{
    const tinker_training_run *run = tinker_pager_training_run(p);
    const tinker_checkpoint *c = tinker_pager_checkpoint(p);
    const char *session = tinker_pager_session(p);
    return session ? (int)strtol(session + 1, NULL, 10)
           : run   ? (int)strtol(run->id + 1, NULL, 10)
           : c     ? (int)strtol(strrchr(c->path, '/') + 1, NULL, 10)
                   : 0;
}

static tinker_pager *open_kind(struct shelf *s, int kind, const tinker_page *page)
{
    tinker_error *err = &s->w.err;
    return kind == 0   ? tinker_rest_all_sessions(s->rest, page, err)
           : kind == 1 ? tinker_rest_all_training_runs(s->rest, page, err)
           : kind == 2 ? tinker_rest_all_checkpoints(s->rest, NULL, page, err)
                       : tinker_rest_all_checkpoints(s->rest, "r", page, err);
}

static void test_whole_lists(void)
{
    static const int sizes[] = { 0, 1, 2, 9, 10, 11, 20, 21, 95 };
    for (int kind = 0; kind < 4; kind++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
            struct shelf s;
            shelf_open(&s, sizes[k]);
            tinker_page page = TINKER_PAGE_INIT;
            page.limit = 10;
            tinker_pager *p = open_kind(&s, kind, &page);
            REQUIRE(p);
            CHECK_INT(s.requests, 0);
            CHECK_INT(item_of(p), 0);
            for (int want = sizes[k]; want > 0; want--) {
                if (tinker_pager_next(p, 60000, &s.w.err) != TINKER_OK)
                    TAP_FAIL("%s", s.w.err.message);
                CHECK_INT(item_of(p), want);
            }
            for (int again = 0; again < 2; again++) {
                CHECK_INT(tinker_pager_next(p, 60000, &s.w.err), TINKER_OK);
                CHECK_INT(item_of(p), 0);
            }
            CHECK(s.requests <= sizes[k] / 10 + 2);
            tinker_pager_free(p);
            shelf_close(&s);
        }
}

/* A service that gives less per page than was asked for. */
static void test_small_pages(void)
{
    for (int kind = 0; kind < 3; kind++) {
        struct shelf s;
        shelf_open(&s, 40);
        s.cap = 3;
        tinker_page page = TINKER_PAGE_INIT;
        page.offset = 4;
        tinker_pager *p = open_kind(&s, kind, &page);
        int n = 0;
        while (tinker_pager_next(p, 60000, &s.w.err) == TINKER_OK && item_of(p))
            CHECK_INT(item_of(p), 40 - 4 - n++);
        CHECK_INT(n, 36);
        tinker_pager_free(p);
        shelf_close(&s);
    }
}

/* Delete what was read, what is next, and what is long past; create in between. */
static void test_changes(void)
{
    for (int kind = 0; kind < 3; kind++)
        for (unsigned seed = 1; seed <= 20; seed++) {
            struct shelf s;
            enum { N = 120 };
            bool deleted[N + 1] = { 0 }, got[N + 1] = { 0 };
            int created = 1000;
            unsigned x = seed;
            shelf_open(&s, N);
            tinker_page page = TINKER_PAGE_INIT;
            page.limit = 7;
            tinker_pager *p = open_kind(&s, kind, &page);
            tinker_status status;
            while ((status = tinker_pager_next(p, 60000, &s.w.err)) == TINKER_OK && item_of(p)) {
                int item = item_of(p);
                if (item > N) /* one that was created meanwhile */
                    continue;
                if (got[item])
                    TAP_FAIL("seed %u: item %d came twice", seed, item);
                got[item] = true;
                for (int change = 0; change < 3; change++) {
                    x = x * 1103515245U + 12345U;
                    int victim = change == 0 ? item : (int)((x >> 16) % N) + 1;
                    if ((x >> 8) % 3 == 0) {
                        deleted[victim] = true;
                        shelf_remove(&s, victim);
                    } else if ((x >> 8) % 11 == 0)
                        shelf_add(&s, created++);
                }
            }
            CHECK_INT(status, TINKER_OK);
            for (int i = 1; i <= N; i++)
                if (!deleted[i] && !got[i])
                    TAP_FAIL("kind %d, seed %u: item %d was left out", kind, seed, i);
            tinker_pager_free(p);
            shelf_close(&s);
        }
}

/* Everything read so far is deleted at once: back to the beginning. */
static void test_all_read_is_deleted(void)
{
    struct shelf s;
    shelf_open(&s, 1000);
    tinker_pager *p = tinker_rest_all_checkpoints(s.rest, NULL, NULL, &s.w.err);
    int n = 0;
    while (tinker_pager_next(p, 60000, &s.w.err) == TINKER_OK && item_of(p)) {
        CHECK_INT(item_of(p), 1000 - n);
        if (++n % 100 == 0) {
            pthread_mutex_lock(&lock);
            memmove(s.item, s.item + 100, (size_t)(s.n - 100) * sizeof(int));
            s.n -= 100;
            pthread_mutex_unlock(&lock);
        }
    }
    CHECK_INT(n, 1000);
    CHECK(s.requests < 40);
    tinker_pager_free(p);
    shelf_close(&s);
}

static void test_errors_are_final(void)
{
    struct shelf s;
    shelf_open(&s, 50);
    tinker_page page = TINKER_PAGE_INIT;
    page.limit = 10;
    tinker_pager *p = tinker_rest_all_training_runs(s.rest, &page, &s.w.err);
    for (int i = 0; i < 10; i++)
        CHECK_INT(tinker_pager_next(p, 60000, &s.w.err), TINKER_OK);
    CHECK(tinker_pager_session(p) == NULL && tinker_pager_checkpoint(p) == NULL);
    CHECK_INT(tinker_pager_next(p, 60000, &s.w.err), TINKER_OK); /* the eleventh of its page */
    s.status = 403;
    for (int again = 0; again < 2; again++) {
        memset(&s.w.err, 0, sizeof(s.w.err));
        CHECK_INT(tinker_pager_next(p, 60000, &s.w.err), TINKER_EHTTP);
        CHECK_INT(s.w.err.http_status, 403);
        CHECK(tinker_pager_training_run(p) == NULL);
        s.status = 0;
    }
    CHECK_INT(s.requests, 2);
    tinker_pager_free(p);
    shelf_close(&s);
}

/* A service that does not know offsets gives its first page for ever. */
static void test_the_same_page_again(void)
{
    struct shelf s;
    shelf_open(&s, 50);
    s.deaf = true;
    tinker_page page = TINKER_PAGE_INIT;
    page.limit = 10;
    tinker_pager *p = tinker_rest_all_sessions(s.rest, &page, &s.w.err);
    tinker_status status = TINKER_OK;
    int n = 0;
    while (status == TINKER_OK && n <= 50 && s.requests < 1000) {
        status = tinker_pager_next(p, 60000, &s.w.err);
        n += status == TINKER_OK;
        if (status == TINKER_OK && !tinker_pager_session(p))
            break;
    }
    CHECK_INT(n, 11);
    CHECK_INT(status, TINKER_EPROTOCOL);
    CHECK(strstr(s.w.err.message, "again") != NULL);
    tinker_pager_free(p);
    shelf_close(&s);
}

static void test_waiting_again(void)
{
    struct shelf s;
    shelf_open(&s, 3);
    fake_script(s.w.server, API "sessions", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_pager *p = tinker_rest_all_sessions(s.rest, NULL, &s.w.err);
    CHECK_INT(tinker_pager_next(p, 30, &s.w.err), TINKER_ETIMEDOUT);
    CHECK_INT(tinker_pager_next(p, 0, NULL), TINKER_ETIMEDOUT);
    CHECK(fake_await(s.w.server, API "sessions", 1));
    tinker_pager_free(p); /* and gives the request up */
    tinker_page page = TINKER_PAGE_INIT;
    page.limit = -1;
    CHECK(!tinker_rest_all_sessions(s.rest, &page, &s.w.err));
    CHECK_INT(s.w.err.status, TINKER_EINVAL);
    shelf_close(&s);
}

/* ---- without waiting --------------------------------------------------------------------------- */

/* Go to the next item by way of a queue alone. */
static tinker_status next_by_queue(struct shelf *s, tinker_pager *p, tinker_queue *q, int *pages)
{
    tinker_status status;
    while ((status = tinker_pager_next(p, 0, &s->w.err)) == TINKER_ETIMEDOUT) {
        tinker_future *f = tinker_pager_future(p);
        if (!f) {
            TAP_FAIL("no page is under way");
            return TINKER_ESTATE;
        }
        ++*pages;
        CHECK_INT(tinker_queue_add(q, f, p, NULL), TINKER_OK);
        atomic_fetch_add(&s->allowed, 1); /* it was not answered before it was in the queue */
        void *tag = NULL;
        CHECK(tinker_queue_next(q, 60000, &tag) == f && tag == p);
        tinker_future_free(f); /* the pager reads its own */
    }
    CHECK(tinker_pager_future(p) == NULL);
    return status;
}

static void test_pages_in_a_queue(void)
{
    for (int kind = 0; kind < 4; kind++) {
        struct shelf s;
        int pages = 0;
        shelf_open(&s, 25);
        atomic_store(&s.gated, 1);
        tinker_queue *q = tinker_queue_new(NULL);
        tinker_page page = TINKER_PAGE_INIT;
        page.limit = 10;
        tinker_pager *p = open_kind(&s, kind, &page);
        REQUIRE(p && q);
        CHECK(tinker_pager_future(p) == NULL); /* nothing is sent before the first next */
        for (int want = 25; want >= 0; want--) {
            CHECK_INT(next_by_queue(&s, p, q, &pages), TINKER_OK);
            CHECK_INT(item_of(p), want);
        }
        CHECK_INT(pages, s.requests);
        tinker_pager_free(p);
        tinker_queue_free(q);
        shelf_close(&s);
    }
}

/* A page that was given up ends the list; one that nobody took from the queue leaves with it. */
static void test_a_page_is_canceled(void)
{
    struct shelf s;
    shelf_open(&s, 25);
    atomic_store(&s.gated, 1);
    tinker_queue *q = tinker_queue_new(NULL);
    tinker_pager *p = open_kind(&s, 0, NULL);
    CHECK_INT(tinker_pager_next(p, 0, &s.w.err), TINKER_ETIMEDOUT);
    tinker_future *page = tinker_pager_future(p);
    tinker_queue_add(q, page, NULL, NULL);
    tinker_pager_free(p);
    CHECK(tinker_queue_next(q, 0, NULL) == NULL);
    CHECK_INT(tinker_future_wait(page, 60000, NULL), TINKER_ECANCELED); /* outlives the pager */
    tinker_future_free(page);
    atomic_store(&s.gated, 0);
    pthread_mutex_lock(&lock);
    s.status = 503; /* tried again, for minutes */
    pthread_mutex_unlock(&lock);
    p = open_kind(&s, 0, NULL);
    CHECK_INT(tinker_pager_next(p, 0, &s.w.err), TINKER_ETIMEDOUT);
    page = tinker_pager_future(p);
    tinker_future_cancel(page);
    tinker_future_free(page);
    CHECK_INT(tinker_pager_next(p, 60000, &s.w.err), TINKER_ECANCELED);
    CHECK(tinker_pager_future(p) == NULL);
    CHECK_INT(tinker_pager_next(p, 60000, &s.w.err), TINKER_ECANCELED);
    tinker_pager_free(p);
    tinker_queue_free(q);
    shelf_close(&s);
}

int main(void)
{
    RUN(test_whole_lists);
    RUN(test_small_pages);
    RUN(test_changes);
    RUN(test_all_read_is_deleted);
    RUN(test_errors_are_final);
    RUN(test_the_same_page_again);
    RUN(test_waiting_again);
    RUN(test_pages_in_a_queue);
    RUN(test_a_page_is_canceled);
    return tap_done();
}
