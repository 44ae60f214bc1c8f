/* clock.c - real time, and a fake that tests advance by hand.
 *
 * The real clock has no state.  The fake keeps its two times in plain fields that
 * are only touched with atomic builtins.  Thread-safe. */
#include "base/clock.h"
#include <limits.h>
#include <stdio.h>
#include <time.h>

enum { NS_PER_MS = 1000000 };
#define NS_PER_S INT64_C(1000000000)

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    /* Cannot fail for the two clocks that are asked for here. */
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* Time that only goes forward, for measuring and deadlines. */
static int64_t real_now(struct clock *c)
{
    (void)c;
    return read_clock(CLOCK_MONOTONIC);
}

/* The time of day, for people and for peers; it may jump. */
static int64_t real_wall(struct clock *c)
{
    (void)c;
    return read_clock(CLOCK_REALTIME);
}

/* What epoll_wait() takes: milliseconds, -1 for ever. */
static int real_poll_ms(struct clock *c, int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return -1;
    int64_t now = real_now(c);
    if (deadline_ns <= now)
        return 0;
    /* rounded up: a poll that returns early would spin */
    int64_t ms = (deadline_ns - now - 1) / NS_PER_MS + 1;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

struct clock *clock_real(void)
{
    static struct clock real = { .now_ns = real_now,
                                 .wall_ns = real_wall,
                                 .poll_ms = real_poll_ms };
    return &real;
}

int64_t clock_now_ns(struct clock *c)
{
    return c->now_ns(c);
}

int64_t clock_now_ms(struct clock *c)
{
    return c->now_ns(c) / NS_PER_MS;
}

int64_t clock_wall_ns(struct clock *c)
{
    return c->wall_ns(c);
}

/* A negative timeout waits for ever. */
int64_t clock_deadline_ns(struct clock *c, int64_t timeout_ms)
{
    if (timeout_ms < 0)
        return INT64_MAX;
    int64_t now = c->now_ns(c);
    /* Very long waits become endless ones instead of overflowing. */
    if (timeout_ms > (INT64_MAX - now) / NS_PER_MS)
        return INT64_MAX;
    return now + timeout_ms * NS_PER_MS;
}

void clock_format_rfc3339(int64_t wall_ns, char out[32])
{
    /* Rounded down, before 1970 too, so that the fraction is never negative. */
    int64_t us = wall_ns / 1000 - (wall_ns % 1000 < 0);
    int64_t s = us / 1000000 - (us % 1000000 < 0);
    int fraction = (int)(us - s * 1000000);
    time_t t = (time_t)s;
    struct tm tm;
    gmtime_r(&t, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    if (fraction)
        snprintf(out + n, 32 - n, ".%06dZ", fraction);
    else
        snprintf(out + n, 32 - n, "Z");
}

static int64_t fake_now(struct clock *c)
{
    return __atomic_load_n(&((struct fake_clock *)c)->now, __ATOMIC_SEQ_CST);
}

static int64_t fake_wall(struct clock *c)
{
    return __atomic_load_n(&((struct fake_clock *)c)->wall, __ATOMIC_SEQ_CST);
}

/* A poll sleeps until fake_clock_advance_ms() wakes it, whatever its deadline. */
static int fake_poll_ms(struct clock *c, int64_t deadline_ns)
{
    return deadline_ns <= fake_now(c) ? 0 : -1;
}

void fake_clock_init(struct fake_clock *f)
{
    *f = (struct fake_clock){
        .clock = { .now_ns = fake_now, .wall_ns = fake_wall, .poll_ms = fake_poll_ms },
        .now = NS_PER_S,
        .wall = INT64_C(1767225600) * NS_PER_S, /* 2026-01-01T00:00:00Z */
    };
}

/* Once, before other threads use the clock. */
void fake_clock_on_advance(struct fake_clock *f, void (*wake)(void *), void *state)
{
    f->wake = wake;
    f->wake_state = state;
}

void fake_clock_advance_ms(struct fake_clock *f, int64_t ms)
{
    __atomic_add_fetch(&f->wall, ms * NS_PER_MS, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&f->now, ms * NS_PER_MS, __ATOMIC_SEQ_CST);
    /* Last, so that whoever wakes up sees the new time. */
    if (f->wake)
        f->wake(f->wake_state);
}
