/* loop.c - epoll, two timer heaps and a stack of posted tasks.
 *
 * Posting is one compare-and-swap; the stack is taken as a whole and reversed, so
 * tasks run in the order they were posted.  The event descriptor is signalled only by
 * the post that found the stack empty. */
#include "http/loop.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "base/err.h"
#include "base/os.h"

enum { EVENTS_PER_TURN = 256, NS_PER_MS = 1000000 };

struct watch {
    loop_ready *ready; /* NULL: not watched, or parked */
    void *arg;
    unsigned events; /* that the kernel looks for, 0: it does not know the descriptor */
};

struct loop {
    struct clock *clock;
    int epoll, wake;
    _Atomic(struct loop_task *) posted;
    atomic_bool stop, running;
    atomic_int busy;
    int aborted;      /* loop thread */
    pthread_t thread; /* who runs it, valid while running */
    pthread_t own;    /* made by loop_start */
    bool started;
    struct timers timers, real;
    struct watch *watches; /* by descriptor */
    size_t n_watches;
    struct loop_task *ending; /* loop thread: for the end of this turn */
    /* Loop thread: the time is read once per step, that is per event, posted task or turn of the
     * timers, however often it is read. */
    bool stepping, knows_now;
    int64_t now_ns;
};

struct loop *loop_new(struct clock *clock, tinker_error *err)
{
    struct loop *l = calloc(1, sizeof(*l));
    if (!l) {
        err_nomem(err, "loop");
        return NULL;
    }
    l->clock = clock;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->wake = os_event_open();
    /* Every signal is an edge of its own, so nobody needs to read the count. */
    struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.fd = l->wake };
    if (l->epoll < 0 || l->wake < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->wake, &ev) != 0) {
        err_errno(err, "epoll", "event descriptor");
        loop_free(l);
        return NULL;
    }
    return l;
}

/* Waits for the thread of loop_start().  loop_stop() must come before, or nobody ends it. */
void loop_join(struct loop *l)
{
    if (l->started)
        pthread_join(l->own, NULL);
    l->started = false;
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    loop_join(l);
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->wake >= 0)
        close(l->wake);
    free(l->watches);
    free(l);
}

struct clock *loop_clock(const struct loop *l)
{
    return l->clock;
}

/* Any thread; only on the loop thread, within loop_run(), is the time of the step
 * remembered. */
int64_t loop_now_ns(struct loop *l)
{
    if (!l->stepping)
        return clock_now_ns(l->clock);
    if (!l->knows_now)
        l->now_ns = clock_now_ns(l->clock);
    l->knows_now = true;
    return l->now_ns;
}

static void begin_step(struct loop *l)
{
    l->knows_now = false;
}

bool loop_on_thread(const struct loop *l)
{
    return atomic_load(&l->running) && pthread_equal(pthread_self(), l->thread);
}

/* Any thread.  The task is the caller's memory and must live until it has run. */
void loop_post(struct loop *l, struct loop_task *t)
{
    struct loop_task *head = atomic_load_explicit(&l->posted, memory_order_relaxed);
    do
        t->next = head;
    while (!atomic_compare_exchange_weak_explicit(&l->posted, &head, t, memory_order_release,
                                                  memory_order_relaxed));
    /* A non-empty stack means that somebody has signaled already and the loop has not taken
     * it yet. */
    if (!head)
        os_event_signal(l->wake);
}

/* Loop thread: work that should happen once after everything else of this turn. */
void loop_at_turn_end(struct loop *l, struct loop_task *t)
{
    t->next = l->ending;
    l->ending = t;
}

static void run_ending(struct loop *l)
{
    while (l->ending) {
        struct loop_task *t = l->ending;
        l->ending = t->next;
        t->run(t);
    }
}

void loop_wake(struct loop *l)
{
    os_event_signal(l->wake);
}

static void run_posted(struct loop *l)
{
    /* Acquire pairs with the release in loop_post(): what the poster wrote before is visible
     * to the task. */
    struct loop_task *stack = atomic_exchange_explicit(&l->posted, NULL, memory_order_acquire);
    struct loop_task *queue = NULL;
    /* Posting pushes in front: reverse, so that tasks run in the order they were posted. */
    while (stack) {
        struct loop_task *t = stack;
        stack = stack->next;
        t->next = queue;
        queue = t;
    }
    while (queue) {
        struct loop_task *t = queue;
        queue = t->next; /* before the call: a task may free itself or post itself again */
        begin_step(l);
        t->run(t);
    }
}

void loop_drain(struct loop *l)
{
    run_posted(l);
}

void loop_busy(struct loop *l, int delta)
{
    atomic_fetch_add(&l->busy, delta);
}

int loop_busy_count(const struct loop *l)
{
    return atomic_load(&l->busy);
}

void loop_note_aborted(struct loop *l)
{
    l->aborted++;
}

int loop_aborted(const struct loop *l)
{
    return l->aborted;
}

/* Asks the kernel by duplicating a descriptor; there is no call that only tells. */
bool loop_can_open(const struct loop *l)
{
    int fd = fcntl(l->wake, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || (errno != EMFILE && errno != ENFILE);
}

void loop_arm(struct loop *l, struct timer *t, int64_t delay_ms)
{
    /* Saturate: a caller's "never" must not overflow into the past. */
    int64_t now = loop_now_ns(l), most = (INT64_MAX - now) / NS_PER_MS;
    int64_t delay = delay_ms < 0 ? 0 : delay_ms;
    timers_arm(&l->timers, t, delay < most ? now + delay * NS_PER_MS : INT64_MAX);
}

void loop_disarm(struct loop *l, struct timer *t)
{
    timers_disarm(&l->timers, t);
}

int64_t loop_next_ns(const struct loop *l)
{
    return timers_next_ns(&l->timers);
}

/* Timers of the real clock serve curl and descriptors, whose time a fake clock cannot move. */
void loop_arm_real(struct loop *l, struct timer *t, int64_t delay_ms)
{
    timers_arm(&l->real, t, clock_deadline_ns(clock_real(), delay_ms < 0 ? 0 : delay_ms));
}

void loop_disarm_real(struct loop *l, struct timer *t)
{
    timers_disarm(&l->real, t);
}

static bool watch_reserve(struct loop *l, int fd)
{
    /* The kernel hands out the lowest free number, so an array by descriptor stays dense. */
    size_t need = (size_t)fd + 1;
    if (need <= l->n_watches)
        return true;
    size_t n = l->n_watches ? l->n_watches : 64;
    while (n < need)
        n *= 2;
    struct watch *w = realloc(l->watches, n * sizeof(*w));
    if (!w)
        return false;
    memset(w + l->n_watches, 0, (n - l->n_watches) * sizeof(*w));
    l->watches = w;
    l->n_watches = n;
    return true;
}

bool loop_watch(struct loop *l, int fd, unsigned events, loop_ready *ready, void *arg)
{
    if (!watch_reserve(l, fd))
        return false;
    struct watch *w = &l->watches[fd];
    if (w->events != events) { /* else the kernel looks for just that */
        struct epoll_event ev = { .events = events, .data.fd = fd };
        /* The kernel forgets a closed descriptor by itself: either call may be right. */
        int op = w->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
        int rc = epoll_ctl(l->epoll, op, fd, &ev);
        if (rc != 0 && (errno == ENOENT || errno == EEXIST))
            rc = epoll_ctl(l->epoll, op == EPOLL_CTL_ADD ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev);
        if (rc != 0)
            return false;
    }
    *w = (struct watch){ ready, arg, events };
    return true;
}

void loop_unwatch(struct loop *l, int fd)
{
    if (fd < 0 || (size_t)fd >= l->n_watches || !l->watches[fd].events)
        return;
    l->watches[fd] = (struct watch){ 0 };
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, fd, NULL);
}

/* A connection between two requests: stays registered, so that the next request needs no
 * call to the kernel, but its events are ignored. */
void loop_park(struct loop *l, int fd)
{
    if (fd >= 0 && (size_t)fd < l->n_watches)
        l->watches[fd].ready = NULL;
}

void loop_run(struct loop *l)
{
    l->thread = pthread_self();
    atomic_store(&l->running, true);
    l->stepping = true;
    struct epoll_event events[EVENTS_PER_TURN];
    while (!atomic_load(&l->stop)) {
        /* Sleep until the nearer of the two heaps is due; -1 is forever. */
        int fake = l->clock->poll_ms(l->clock, timers_next_ns(&l->timers));
        int real = clock_real()->poll_ms(clock_real(), timers_next_ns(&l->real));
        int timeout = fake < 0 || (real >= 0 && real < fake) ? real : fake;
        int n = epoll_wait(l->epoll, events, EVENTS_PER_TURN, timeout);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            /* It only had to end epoll_wait(). */
            if (fd == l->wake)
                continue;
            /* An earlier event of this turn may have closed it. */
            if ((size_t)fd >= l->n_watches || !l->watches[fd].events)
                continue;
            begin_step(l);
            /* A parked connection has no reader: stop watching it. */
            if (l->watches[fd].ready)
                l->watches[fd].ready(l->watches[fd].arg, fd, events[i].events);
            else
                loop_unwatch(l, fd);
        }
        /* Events first, then tasks, then timers: an answer that is there wins over its
         * timeout. */
        run_posted(l);
        begin_step(l);
        timers_run(&l->timers, loop_now_ns(l));
        begin_step(l);
        timers_run(&l->real, clock_now_ns(clock_real()));
        run_ending(l);
    }
    /* What was posted before the stop still runs: tasks own memory that they free
     * themselves. */
    run_posted(l);
    run_ending(l);
    l->stepping = false;
    atomic_store(&l->running, false);
}

static void *loop_main(void *arg)
{
    os_thread_name("tinker-io");
    loop_run(arg);
    return NULL;
}

tinker_status loop_start(struct loop *l, tinker_error *err)
{
    /* A new thread inherits the mask, so block everything around its start. */
    sigset_t all, old; /* the host's signals are for the host's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&l->own, NULL, loop_main, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return err_set(err, TINKER_ESTATE, "start the I/O thread: %s", strerror(rc));
    l->started = true;
    return TINKER_OK;
}

void loop_stop(struct loop *l)
{
    atomic_store(&l->stop, true);
    os_event_signal(l->wake);
}
