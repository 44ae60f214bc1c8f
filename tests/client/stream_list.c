/* Events between two threads: order, bounds, and memory that does not grow with what was read. */
#include "client/sampling/stream_list.c"
#include "support/tap.h"

static tinker_stream_event token(int i)
{
    return (tinker_stream_event){ .kind = TINKER_STREAM_TOKEN, .token = i };
}

/* A reader who is always one behind never empties the list. */
static void test_read_events_leave_memory(void)
{
    struct stream_list *l = stream_list_new();
    tinker_stream_event e = token(0);
    REQUIRE(l);
    CHECK(stream_list_push(l, &e));
    for (int i = 1; i < 1 << 17; i++) {
        e = token(i);
        CHECK(stream_list_push(l, &e));
        CHECK_INT(stream_list_next(l, 0, &e, NULL), TINKER_OK);
        CHECK_INT(e.token, i - 1);
    }
    CHECK_INT(l->cap, 64);
    stream_list_unref(l);
}

static void test_unread_events_are_bounded(void)
{
    struct stream_list *l = stream_list_new();
    tinker_stream_event e = token(0);
    int n = 0;
    REQUIRE(l);
    CHECK(stream_list_push(l, &e));
    CHECK_INT(stream_list_next(l, 0, &e, NULL), TINKER_OK); /* what was read does not count */
    while (n < 2 * UNREAD_MAX && stream_list_push(l, &e))
        n++;
    CHECK_INT(n, UNREAD_MAX);
    stream_list_unref(l);
}

/* Rivals are copied with their event, lent until the next call, and bounded together. */
static void test_rivals(void)
{
    enum { K = 4096 };
    static int32_t tokens[K];
    static float logprobs[K];
    struct stream_list *l = stream_list_new();
    tinker_stream_event e = token(7);
    size_t n = 0;
    REQUIRE(l);
    e.topk_tokens = tokens;
    e.topk_logprobs = logprobs;
    e.topk = 2;
    for (int i = 0; i < 3; i++) {
        tokens[1] = i;
        logprobs[1] = (float)-i;
        CHECK(stream_list_push(l, &e));
    }
    tokens[1] = 99;
    for (int i = 0; i < 2; i++) {
        tinker_stream_event got;
        CHECK_INT(stream_list_next(l, 0, &got, NULL), TINKER_OK);
        REQUIRE(got.topk == 2);
        CHECK_INT(got.topk_tokens[1], i);
        CHECK_NEAR(got.topk_logprobs[1], -i, 0);
    }
    e.topk = K; /* one of the small ones is unread, one is lent */
    while (n < UNREAD_MAX && stream_list_push(l, &e))
        n++;
    CHECK_INT(n, TOPK_BYTES_MAX / (8 * K) - 1);
    e.topk = 0;
    CHECK(stream_list_push(l, &e));
    stream_list_unref(l);
}

static void test_ends(void)
{
    struct stream_list *l = stream_list_new();
    tinker_stream_event e = token(7);
    tinker_error err = { .status = TINKER_ECONNECT, .message = "gone" }, got;
    REQUIRE(l);
    CHECK_INT(stream_list_next(l, 0, &e, &got), TINKER_ETIMEDOUT);
    e = token(7);
    CHECK(stream_list_push(l, &e));
    stream_list_end(l, &err);
    stream_list_end(l, NULL); /* the first end stands */
    CHECK_INT(stream_list_next(l, -1, &e, &got), TINKER_OK);
    CHECK_INT(e.token, 7);
    CHECK_INT(stream_list_next(l, -1, &e, &got), TINKER_ECONNECT);
    CHECK_STR(got.message, "gone");
    CHECK_INT(e.kind, TINKER_STREAM_END);
    stream_list_unref(l);
}

int main(void)
{
    RUN(test_read_events_leave_memory);
    RUN(test_unread_events_are_bounded);
    RUN(test_rivals);
    RUN(test_ends);
    return tap_done();
}
