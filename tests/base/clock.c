/* clock.c - deadlines, texts, and a clock that stands still. */
#include "base/clock.h"
#include <limits.h>
#include "support/tap.h"

static void test_real_clock_moves_forward(void)
{
    struct clock *c = clock_real();
    int64_t a = clock_now_ns(c), b = clock_now_ns(c);
    CHECK(a > 0 && b >= a);
    CHECK(clock_wall_ns(c) > INT64_C(1700000000) * 1000000000);
    CHECK(c->poll_ms(c, INT64_MAX) == -1);
    CHECK(c->poll_ms(c, a) == 0);
    /* rounded up: a nanosecond left is a millisecond to sleep */
    CHECK_INT(c->poll_ms(c, clock_now_ns(c) + 3600 * INT64_C(1000000000)), 3600000);
    CHECK_INT(c->poll_ms(c, INT64_MAX - 1), INT_MAX);
}

static void test_deadlines_saturate(void)
{
    struct fake_clock f;
    fake_clock_init(&f);
    CHECK_INT(clock_now_ms(&f.clock), 1000);
    CHECK(clock_deadline_ns(&f.clock, -1) == INT64_MAX);
    CHECK(clock_deadline_ns(&f.clock, INT64_MAX) == INT64_MAX);
    CHECK(clock_deadline_ns(&f.clock, INT64_MAX / 1000000) == INT64_MAX);
    CHECK_INT(clock_deadline_ns(&f.clock, 250), 1250000000);
    CHECK_INT(clock_deadline_ns(&f.clock, 0), 1000000000);
}

static void count_wakeup(void *state)
{
    ++*(int *)state;
}

static void test_fake_clock_advances_only_by_hand(void)
{
    struct fake_clock f;
    int woken = 0;
    fake_clock_init(&f);
    fake_clock_on_advance(&f, count_wakeup, &woken);
    int64_t deadline = clock_deadline_ns(&f.clock, 100);
    CHECK_INT(f.clock.poll_ms(&f.clock, deadline), -1);
    fake_clock_advance_ms(&f, 99);
    CHECK_INT(f.clock.poll_ms(&f.clock, deadline), -1);
    fake_clock_advance_ms(&f, 1);
    CHECK_INT(f.clock.poll_ms(&f.clock, deadline), 0);
    CHECK_INT(f.clock.poll_ms(&f.clock, INT64_MAX), -1);
    CHECK_INT(woken, 2);
    char text[32];
    clock_format_rfc3339(clock_wall_ns(&f.clock), text);
    CHECK_STR(text, "2026-01-01T00:00:00.100000Z");
}

static const char *format_at(int64_t ns)
{
    static char text[32];
    clock_format_rfc3339(ns, text);
    return text;
}

static void test_rfc3339(void)
{
    CHECK_STR(format_at(0), "1970-01-01T00:00:00Z");
    CHECK_STR(format_at(INT64_C(1786270272345678901)), "2026-08-09T10:11:12.345678Z");
    CHECK_STR(format_at(999), "1970-01-01T00:00:00Z");
    CHECK_STR(format_at(1000), "1970-01-01T00:00:00.000001Z");
    CHECK_STR(format_at(-1), "1969-12-31T23:59:59.999999Z");
    CHECK_STR(format_at(INT64_C(1709164800) * 1000000000), "2024-02-29T00:00:00Z");
    CHECK_STR(format_at(INT64_MAX), "2262-04-11T23:47:16.854775Z");
}

int main(void)
{
    RUN(test_real_clock_moves_forward);
    RUN(test_deadlines_saturate);
    RUN(test_fake_clock_advances_only_by_hand);
    RUN(test_rfc3339);
    return tap_done();
}
