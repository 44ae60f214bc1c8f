/* The heap of deadlines. */
#include "base/rand.h"
#include "http/timers.h"
#include "support/tap.h"

enum { N = 2000 };

struct entry {
    struct timer timer;
    int id;
};

static struct timers heap;
static int fired[2 * N], n_fired;

static void on_fire(struct timer *t)
{
    fired[n_fired++] = ((struct entry *)t)->id;
}

static void test_random_order(void)
{
    static struct entry e[N];
    struct rng r;
    rng_seed(&r, 1);
    n_fired = 0;
    for (int i = 0; i < N; i++) {
        e[i] = (struct entry){ { .fire = on_fire }, i };
        timers_arm(&heap, &e[i].timer, (int64_t)(rng_next(&r) % 500));
    }
    for (int i = 0; i < N; i += 3)
        timers_disarm(&heap, &e[i].timer);
    for (int i = 1; i < N; i += 3)
        timers_arm(&heap, &e[i].timer, (int64_t)(rng_next(&r) % 500)); /* moves it */
    int64_t last = -1;
    for (int64_t now = timers_next_ns(&heap); now != INT64_MAX; now = timers_next_ns(&heap)) {
        CHECK(now > last);
        last = now;
        int before = n_fired;
        timers_run(&heap, now);
        for (int i = before; i < n_fired; i++)
            CHECK_INT(e[fired[i]].timer.due_ns, now);
    }
    CHECK_INT(n_fired, N - (N + 2) / 3);
}

static void test_equal_deadlines_fire_in_order(void)
{
    struct entry e[5];
    n_fired = 0;
    for (int i = 0; i < 5; i++) {
        e[i] = (struct entry){ { .fire = on_fire }, i };
        timers_arm(&heap, &e[i].timer, 7);
    }
    timers_arm(&heap, &e[1].timer, 7); /* armed again: last */
    timers_run(&heap, 6);
    CHECK_INT(n_fired, 0);
    timers_run(&heap, 7);
    static const int want[] = { 0, 2, 3, 4, 1 };
    for (int i = 0; i < 5; i++)
        CHECK_INT(fired[i], want[i]);
}

static void rearm(struct timer *t)
{
    n_fired++;
    timers_arm(&heap, t, 0);
}

static void test_a_timer_armed_while_firing_waits(void)
{
    struct timer t = { .fire = rearm };
    n_fired = 0;
    timers_arm(&heap, &t, 0);
    timers_run(&heap, 100);
    CHECK_INT(n_fired, 1);
    timers_disarm(&heap, &t);
    CHECK(timers_next_ns(&heap) == INT64_MAX);
}

int main(void)
{
    RUN(test_random_order);
    RUN(test_equal_deadlines_fire_in_order);
    RUN(test_a_timer_armed_while_firing_waits);
    return tap_done();
}
