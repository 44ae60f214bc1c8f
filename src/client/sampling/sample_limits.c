/* sample_limits.c - see dispatch.h. */
#include "client/sampling/sample_limits.h"

#include <stddef.h>
#include "base/array.h"

enum { PAUSE_CHECK_MS = 1000, RECENT_COST = 20 };

static void on_pause(struct timer *t)
{
    dispatch_again(container_of(t, struct dispatch, timer));
}

void dispatch_again(struct dispatch *d)
{
    struct loop *l = d->session->rt->loop;
    if (loop_now_ns(l) >= d->session->limits->backoff_until_ns) {
        d->go(d);
        return;
    }
    d->timer.fire = on_pause;
    loop_arm(l, &d->timer, PAUSE_CHECK_MS);
}

static void on_budget(struct budget_wait *w)
{
    dispatch_again(container_of(w, struct dispatch, budget));
}

static void take_budget(struct dispatch *d)
{
    bool recent = d->throttle.budget != NULL;
    d->budget.granted = on_budget;
    if (budget_take(&d->session->limits->bytes, &d->budget,
                    recent ? d->bytes * RECENT_COST : d->bytes))
        dispatch_again(d);
}

static void on_throttle(struct budget_wait *w)
{
    take_budget(container_of(w, struct dispatch, throttle));
}

static void take_throttle(struct dispatch *d)
{
    struct limits *l = d->session->limits;
    d->throttle.granted = on_throttle;
    if (!limits_recent(l, loop_now_ns(d->session->rt->loop)) ||
        budget_take(&l->throttle, &d->throttle, 1))
        take_budget(d);
}

static void on_permit(struct budget_wait *w)
{
    take_throttle(container_of(w, struct dispatch, permit));
}

void dispatch_start(struct dispatch *d)
{
    d->permit.granted = on_permit;
    if (budget_take(&d->session->limits->dispatch, &d->permit, 1))
        take_throttle(d);
}

void dispatch_pause(struct dispatch *d)
{
    limits_pause(d->session->limits, loop_now_ns(d->session->rt->loop), d->bytes);
}

void dispatch_end(struct dispatch *d)
{
    if (!d->session)
        return;
    loop_disarm(d->session->rt->loop, &d->timer);
    budget_give(&d->budget);
    budget_give(&d->throttle);
    budget_give(&d->permit);
}
