/* Server-sent events: the rules of the format, cut at every byte, and the bounds.  R-217. */
#include "http/sse.h"
#include "support/tap.h"

struct log {
    char text[4096];
    size_t n;
    int events, stop_at;
};

static bool note(void *state, const struct sse_event *e)
{
    struct log *l = state;
    l->n += (size_t)snprintf(l->text + l->n, sizeof(l->text) - l->n, "[%s|%s|%s]", e->event,
                             e->data, e->id);
    CHECK_INT(strlen(e->data), e->n);
    return ++l->events != l->stop_at;
}

static tinker_status feed_in_two(struct log *l, const char *text, size_t n, size_t cut)
{
    struct sse s;
    tinker_error err;
    memset(l, 0, sizeof(*l));
    sse_init(&s, 1 << 16, note, l);
    tinker_status status = sse_feed(&s, text, cut, &err);
    if (status == TINKER_OK)
        status = sse_feed(&s, text + cut, n - cut, &err);
    sse_clear(&s);
    return status;
}

static void check(const char *text, size_t n, const char *want)
{
    struct log l;
    for (size_t cut = 0; cut <= n; cut++) { /* in two pieces, at every place */
        CHECK_INT(feed_in_two(&l, text, n, cut), TINKER_OK);
        if (strcmp(l.text, want) != 0)
            TAP_FAIL("cut at %zu: got %s, want %s", cut, l.text, want);
    }
    struct sse s; /* and byte by byte */
    memset(&l, 0, sizeof(l));
    sse_init(&s, 1 << 16, note, &l);
    for (size_t i = 0; i < n; i++)
        CHECK_INT(sse_feed(&s, text + i, 1, NULL), TINKER_OK);
    CHECK_STR(l.text, want);
    sse_clear(&s);
}

#define SAME(text, want) check(text, sizeof(text) - 1, want)

static void test_events(void)
{
    SAME("data: one\n\n", "[message|one|]");
    SAME("data: one\n\ndata: two\n\n", "[message|one|][message|two|]");
    SAME("event: token\ndata: {\"a\":1}\n\n", "[token|{\"a\":1}|]");
    SAME("data: a\ndata: b\ndata:\n\n", "[message|a\nb\n|]");
    SAME("data:no space\n\ndata:  two\n\n", "[message|no space|][message| two|]");
    SAME("data\n\n", "[message||]");
    SAME("data: x: y\n\n", "[message|x: y|]");
    /* the name is of one event, the id of all that follow */
    SAME("event: e\nid: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n",
         "[e|a|7][message|b|7][message|c|]");
}

static void test_line_ends(void)
{
    SAME("data: a\r\n\r\ndata: b\r\n\r\n", "[message|a|][message|b|]");
    SAME("data: a\r\rdata: b\r\r", "[message|a|][message|b|]");
    SAME("data: a\r\ndata: b\n\r\n", "[message|a\nb|]");
    SAME("data: a\n\r\n", "[message|a|]");
}

static void test_what_is_not_told(void)
{
    SAME(": a comment\n\ndata: a\n:\n\n", "[message|a|]");
    SAME("event: nothing\n\n", "");
    SAME("data: unfinished", "");
    SAME("data: unfinished\n", "");
    SAME("unknown: x\ndata: a\nDATA: b\n\n", "[message|a|]");
    SAME("\n\n\n", "");
    SAME("id: a\0b\ndata: x\n\n", "[message|x|]");
    SAME("\xef\xbb\xbf"
         "data: a\n\n",
         "[message|a|]");
    SAME("\xef\xbb"
         "data: a\n\ndata: b\n\n",
         "[message|b|]"); /* half a mark makes another name of the field */
}

static void test_retry(void)
{
    struct log l = { 0 };
    struct sse s;
    sse_init(&s, 1024, note, &l);
    CHECK_INT(s.retry_ms, -1);
    sse_feed(&s, "retry: 2500\n", 12, NULL);
    CHECK_INT(s.retry_ms, 2500);
    sse_feed(&s, "retry: 1x\nretry:\nretry: 99999999999999999999\n", 46, NULL);
    CHECK_INT(s.retry_ms, 2500);
    sse_clear(&s);
}

static void test_bounds(void)
{
    struct log l = { 0 };
    struct sse s;
    tinker_error err;
    sse_init(&s, 16, note, &l);
    CHECK_INT(sse_feed(&s, "data: 0123456789", 16, &err), TINKER_OK);
    CHECK_INT(sse_feed(&s, "x", 1, &err), TINKER_ENOMEM);
    CHECK(strstr(err.message, "too long") != NULL);
    sse_clear(&s);
    sse_init(&s, 16, note, &l); /* short lines, one large event */
    CHECK_INT(sse_feed(&s, "data: 01234567\n", 15, &err), TINKER_OK);
    CHECK_INT(sse_feed(&s, "data: 01234567\n", 15, &err), TINKER_ENOMEM);
    CHECK(strstr(err.message, "too large") != NULL);
    sse_clear(&s);
    CHECK_INT(l.events, 0);
    memset(&l, 0, sizeof(l));
    l.stop_at = 1;
    sse_init(&s, 1024, note, &l);
    CHECK_INT(sse_feed(&s, "data: a\n\ndata: b\n\n", 18, &err), TINKER_ECANCELED);
    CHECK_INT(l.events, 1);
    sse_clear(&s);
}

int main(void)
{
    RUN(test_events);
    RUN(test_line_ends);
    RUN(test_what_is_not_told);
    RUN(test_retry);
    RUN(test_bounds);
    return tap_done();
}
