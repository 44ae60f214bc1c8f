/* breaker.c - one word of state per breaker, changed by compare and swap.
 *
 * The word holds state, generation, count and time.  The generation rises with every
 * change of state: what ends in another generation than it began in has no say.  The
 * registry has a lock, held for a look-up and never while anything else is called. */
#include "client/call/breaker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/future.h>
#include <tinker/extra/breaker.h>
#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/map.h"

/* 2 bits of state, 12 of generation, 12 of count and 38 of milliseconds (8.7 years) make one
 * 64-bit word. */
enum { NAMES_MAX = 4096, COUNT_LIMIT = 4000, COUNT_BITS = 12, TIME_BITS = 38 };
static const uint64_t time_mask = (UINT64_C(1) << TIME_BITS) - 1;
static const unsigned count_mask = (1 << COUNT_BITS) - 1;

struct breaker {
    atomic_int refs; /* the registry's, and one per ticket */
    _Atomic uint64_t word;
    int threshold, half_open; /* constant */
    int64_t open_ms;          /* constant */
};

/* The word, taken apart. */
struct view {
    tinker_breaker_state state;
    unsigned generation;
    unsigned count; /* closed: failures in a row; half open: probes admitted */
    uint64_t time;  /* open: since when, ms */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct map names; /* lock; name to struct breaker */
static bool ready;       /* lock: names is initialized */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* Layout from the top: state 62, generation 50, count 38, time 0. */
static uint64_t pack_state(struct view v)
{
    return (uint64_t)v.state << 62 | (uint64_t)(v.generation & count_mask) << 50 |
           (uint64_t)(v.count & count_mask) << TIME_BITS | (v.time & time_mask);
}

static struct view unpack_state(uint64_t w)
{
    return (struct view){ (tinker_breaker_state)(w >> 62), (unsigned)(w >> 50) & count_mask,
                          (unsigned)(w >> TIME_BITS) & count_mask, w & time_mask };
}

/* On failure *old is the value of another thread, and the caller decides again. */
static bool swap_state(struct breaker *b, uint64_t *old, struct view v)
{
    return atomic_compare_exchange_weak(&b->word, old, pack_state(v));
}

static struct view change_state(struct view v, tinker_breaker_state state, unsigned count,
                                int64_t now_ms)
{
    return (struct view){ state, v.generation + 1, count, (uint64_t)now_ms };
}

/* The difference modulo 2^38, so the clock may wrap. */
static bool has_waited(const struct breaker *b, const struct view *v, int64_t now_ms)
{
    return (int64_t)(((uint64_t)now_ms - v->time) & time_mask) >= b->open_ms;
}

/* ---- forks -------------------------------------------------------------------------------- */

/* Held over the fork, so that the child does not inherit the lock from a thread that it does
 * not have. */
static void lock_names(void)
{
    pthread_mutex_lock(&lock);
}

static void unlock_names(void)
{
    pthread_mutex_unlock(&lock);
}

/* Probes of the parent do not end in the child, which may make its own. */
static void forget_probes(void)
{
    size_t it = 0, len;
    const char *name;
    void *value;
    while (ready && map_next(&names, &it, &name, &len, &value)) {
        struct breaker *b = value;
        struct view v = unpack_state(atomic_load(&b->word));
        if (v.state == TINKER_BREAKER_HALF_OPEN)
            atomic_store(&b->word, pack_state(change_state(v, v.state, 0, 0)));
    }
    pthread_mutex_unlock(&lock);
}

static void guard_forks(void)
{
    pthread_atfork(lock_names, unlock_names, forget_probes);
}

/* ---- the registry ------------------------------------------------------------------------- */

/* The last one frees: a deleted breaker lives until its last ticket has ended. */
static void unref_breaker(struct breaker *b)
{
    if (b && atomic_fetch_sub(&b->refs, 1) == 1)
        free(b);
}

/* The options of the first call count; later calls with the same name get the same breaker. */
static struct breaker *make_breaker_locked(const char *name, const tinker_breaker_options *o)
{
    if (!ready)
        map_init(&names);
    ready = true;
    struct breaker *b = names.len < NAMES_MAX ? calloc(1, sizeof(*b)) : NULL;
    if (!b)
        return NULL;
    atomic_init(&b->refs, 1);
    b->threshold = o->failure_threshold;
    b->half_open = o->half_open_calls;
    b->open_ms = o->open_ms;
    if (map_put(&names, name, strlen(name), b, NULL))
        return b;
    free(b);
    return NULL;
}

/* A new reference; opts NULL: do not make it. */
static struct breaker *get_breaker(const char *name, const tinker_breaker_options *opts)
{
    pthread_once(&fork_once, guard_forks);
    pthread_mutex_lock(&lock);
    struct breaker *b = ready ? map_get(&names, name, strlen(name)) : NULL;
    if (!b && opts)
        b = make_breaker_locked(name, opts);
    if (b)
        atomic_fetch_add(&b->refs, 1);
    pthread_mutex_unlock(&lock);
    return b;
}

/* ---- admission ------------------------------------------------------------------------------ */

tinker_status breaker_options(tinker_breaker_options *ours, const tinker_breaker_options *opts,
                              tinker_error *err)
{
    *ours = (tinker_breaker_options)TINKER_BREAKER_OPTIONS_INIT;
    tinker_status s = opts_copy(ours, sizeof(*ours), opts, "tinker_breaker_options", err);
    if (s != TINKER_OK)
        return s;
    if (ours->failure_threshold < 1 || ours->failure_threshold > COUNT_LIMIT)
        return err_set(err, TINKER_EINVAL, "breaker: failure_threshold is %d, expected 1 to %d",
                       ours->failure_threshold, COUNT_LIMIT);
    if (ours->half_open_calls < 1 || ours->half_open_calls > COUNT_LIMIT)
        return err_set(err, TINKER_EINVAL, "breaker: half_open_calls is %d, expected 1 to %d",
                       ours->half_open_calls, COUNT_LIMIT);
    if (ours->open_ms < 0)
        return err_set(err, TINKER_EINVAL, "breaker: open_ms is negative");
    return TINKER_OK;
}

/* The generation in which the call was admitted, -1: refused. */
static int admit_try(struct breaker *b, int64_t now_ms)
{
    uint64_t w = atomic_load(&b->word);
    for (;;) {
        struct view v = unpack_state(w), next = v;
        if (v.state == TINKER_BREAKER_CLOSED)
            return (int)v.generation;
        if (v.state == TINKER_BREAKER_OPEN) {
            if (!has_waited(b, &v, now_ms))
                return -1;
            next = change_state(v, TINKER_BREAKER_HALF_OPEN, 1, 0);
            /* Half open: as many probes as allowed are under way. */
        } else if (v.count >= (unsigned)b->half_open)
            return -1;
        else
            next.count++;
        if (swap_state(b, &w, next))
            return (int)(next.generation & count_mask);
    }
}

/* Any thread.  A ticket must be ended with breaker_end(), whatever happens. */
tinker_status breaker_admit(const char *name, const tinker_breaker_options *opts, int64_t now_ms,
                            struct breaker_ticket *ticket, tinker_error *err)
{
    struct breaker *b = get_breaker(name, opts);
    *ticket = (struct breaker_ticket){ 0 };
    if (!b)
        return err_nomem(err, "circuit breaker");
    int generation = admit_try(b, now_ms);
    if (generation >= 0) {
        *ticket = (struct breaker_ticket){ b, (unsigned)generation };
        return TINKER_OK;
    }
    unref_breaker(b);
    err_set(err, TINKER_ECIRCUIT, "circuit breaker \"%s\" is open after repeated failures", name);
    if (err)
        /* Later: open is a state that passes. */
        err->retryable = 1;
    return TINKER_ECIRCUIT;
}

void breaker_end(struct breaker_ticket *ticket, enum breaker_verdict verdict, int64_t now_ms)
{
    struct breaker *b = ticket->breaker;
    if (!b)
        return;
    uint64_t w = atomic_load(&b->word);
    for (;;) {
        struct view v = unpack_state(w);
        if (v.generation != ticket->generation) /* it has changed since */
            break;
        struct view next = v;
        if (v.state == TINKER_BREAKER_CLOSED) {
            /* Closed: count failures in a row. */
            if (verdict == BREAKER_SUCCESS)
                next.count = 0;
            else if (verdict == BREAKER_FAILURE && ++next.count >= (unsigned)b->threshold)
                next = change_state(next, TINKER_BREAKER_OPEN, 0, now_ms);
            /* Half open: the first probe that ends decides.  One without a verdict gives its place
             * back. */
        } else if (verdict == BREAKER_SUCCESS)
            next = change_state(v, TINKER_BREAKER_CLOSED, 0, 0);
        else if (verdict == BREAKER_FAILURE)
            next = change_state(v, TINKER_BREAKER_OPEN, 0, now_ms);
        else
            next.count--;
        /* Nothing to change: no write, so calls that succeed do not fight for the cache
         * line. */
        if (pack_state(next) == w || swap_state(b, &w, next))
            break;
    }
    *ticket = (struct breaker_ticket){ 0 };
    unref_breaker(b);
}

/* An open breaker becomes half open by time alone: report the state that the next call would
 * find. */
static tinker_breaker_state state_at(const struct breaker *b, const struct view *v, int64_t now_ms)
{
    return v->state == TINKER_BREAKER_OPEN && has_waited(b, v, now_ms) ? TINKER_BREAKER_HALF_OPEN
                                                                       : v->state;
}

tinker_breaker_state breaker_state(const char *name, int64_t now_ms)
{
    struct breaker *b = get_breaker(name, NULL);
    if (!b)
        return TINKER_BREAKER_CLOSED;
    struct view v = unpack_state(atomic_load(&b->word));
    tinker_breaker_state state = state_at(b, &v, now_ms);
    unref_breaker(b);
    return state;
}

/* ---- public --------------------------------------------------------------------------------- */

static int64_t breaker_now_ms(void)
{
    return clock_now_ms(clock_real());
}

int tinker_breaker_spare_users(const tinker_error *outcome, void *state)
{
    (void)state;
    return outcome->status == TINKER_OK || tinker_error_is_user(outcome);
}

tinker_status tinker_breaker_call(const char *name, const tinker_breaker_options *opts,
                                  tinker_breaker_fn *fn, void *state, tinker_error *err)
{
    tinker_breaker_options o;
    struct breaker_ticket ticket;
    tinker_error outcome = { 0 };
    if (!name || !*name || !fn)
        return err_set(err, TINKER_EINVAL, "a circuit breaker needs a name and a function");
    tinker_status s = breaker_options(&o, opts, err);
    if (s == TINKER_OK)
        s = breaker_admit(name, &o, breaker_now_ms(), &ticket, err);
    if (s != TINKER_OK)
        return s;
    /* Without any lock: fn may take long, and may use other breakers. */
    s = fn(&outcome, state);
    outcome.status = s;
    bool success = o.judge ? o.judge(&outcome, o.judge_state) != 0 : s == TINKER_OK;
    breaker_end(&ticket, success ? BREAKER_SUCCESS : BREAKER_FAILURE, breaker_now_ms());
    if (s != TINKER_OK && err)
        *err = outcome;
    return s;
}

tinker_breaker_state tinker_breaker_state_of(const char *name)
{
    return breaker_state(name, breaker_now_ms());
}

void tinker_breaker_reset(const char *name)
{
    struct breaker *b = get_breaker(name, NULL);
    if (!b)
        return;
    /* A new generation: calls under way have no say in the fresh state. */
    uint64_t w = atomic_load(&b->word);
    while (!swap_state(b, &w, change_state(unpack_state(w), TINKER_BREAKER_CLOSED, 0, 0))) {
    }
    unref_breaker(b);
}

void tinker_breaker_delete(const char *name)
{
    pthread_mutex_lock(&lock);
    struct breaker *b = ready ? map_remove(&names, name, strlen(name)) : NULL;
    pthread_mutex_unlock(&lock);
    unref_breaker(b); /* calls under way keep theirs until they end */
}

struct list {
    tinker_breakers pub; /* first: what the user holds */
    struct arena arena;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const tinker_breaker_info *)a)->name, ((const tinker_breaker_info *)b)->name);
}

static bool fill_status_locked(struct list *l)
{
    size_t it = 0, len, n = ready ? names.len : 0;
    tinker_breaker_info *v = arena_array(&l->arena, n + 1, sizeof(*v));
    const char *name;
    void *value;
    while (v && ready && l->pub.n < n && map_next(&names, &it, &name, &len, &value)) {
        const struct breaker *b = value;
        struct view view = unpack_state(atomic_load(&b->word));
        tinker_breaker_info *i = &v[l->pub.n++];
        i->name = arena_strndup(&l->arena, name, len);
        i->state = state_at(b, &view, breaker_now_ms());
        i->failures = view.state == TINKER_BREAKER_CLOSED ? (int)view.count : 0;
        if (!i->name)
            return false;
    }
    l->pub.breakers = v;
    if (v)
        qsort(v, l->pub.n, sizeof(*v), compare_names);
    return v != NULL;
}

tinker_breakers *tinker_breaker_list(tinker_error *err)
{
    struct list *l = calloc(1, sizeof(*l));
    if (l) {
        arena_init(&l->arena, SIZE_MAX);
        pthread_mutex_lock(&lock);
        bool ok = fill_status_locked(l);
        pthread_mutex_unlock(&lock);
        if (ok)
            return &l->pub;
        tinker_breakers_free(&l->pub);
    }
    err_nomem(err, "circuit breakers");
    return NULL;
}

void tinker_breakers_free(tinker_breakers *b)
{
    struct list *l = (struct list *)b; /* first member */
    if (!l)
        return;
    arena_clear(&l->arena);
    free(l);
}
