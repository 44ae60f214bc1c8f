/* clock.h - time that tests can drive.
 *
 * Code that waits takes a struct clock and asks it how long to sleep; tests give
 * it a fake one and advance it by hand.  clock_real() is process-wide and needs
 * no free.  Thread-safe. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

struct clock {
    int64_t (*now_ns)(struct clock *c);  /* monotonic */
    int64_t (*wall_ns)(struct clock *c); /* since 1970, UTC */
    /* How long a poll may sleep before deadline_ns (INT64_MAX: none): ms rounded up,
     * 0 when it has passed, -1 for "until woken".  A fake clock answers 0 or -1. */
    int (*poll_ms)(struct clock *c, int64_t deadline_ns);
};

struct clock *clock_real(void);
int64_t clock_now_ns(struct clock *c);
int64_t clock_now_ms(struct clock *c);
int64_t clock_wall_ns(struct clock *c);

/* deadline from a timeout in ms; -1 gives INT64_MAX, overflow saturates. */
int64_t clock_deadline_ns(struct clock *c, int64_t timeout_ms);

/* "2026-08-09T10:11:12.345678Z", microseconds left out when zero; out has 32 bytes. */
void clock_format_rfc3339(int64_t wall_ns, char out[32]);

/* A clock that stands still until it is advanced; starts at 1 s, wall 2026-01-01.
 * The callback (may be NULL) is called after each advance, to wake a loop. */
struct fake_clock {
    struct clock clock;
    int64_t now, wall; /* atomic access inside */
    void (*wake)(void *state);
    void *wake_state;
};
void fake_clock_init(struct fake_clock *f);
void fake_clock_on_advance(struct fake_clock *f, void (*wake)(void *), void *state);
void fake_clock_advance_ms(struct fake_clock *f, int64_t ms);

#endif
