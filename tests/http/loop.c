/* Descriptors of a loop: watched, parked between two uses, and number reused after a close. */
#include <stdatomic.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include "http/loop.h"
#include "support/tap.h"

static struct loop *loop;
static atomic_int calls[4];

static void on_ready(void *arg, int fd, unsigned events)
{
    (void)events;
    char c[8];
    CHECK(read(fd, c, sizeof(c)) > 0);
    calls[*(int *)arg]++;
}

/* What the test asks of the loop, carried out on its thread. */
struct request {
    struct loop_task task;
    int fd;
    int *arg;
    enum { WATCH, PARK, UNWATCH } what;
    atomic_bool done;
};

static void carry_out(struct loop_task *t)
{
    struct request *r = (struct request *)t; /* first member */
    if (r->what == WATCH)
        CHECK(loop_watch(loop, r->fd, EPOLLIN, on_ready, r->arg));
    else if (r->what == PARK)
        loop_park(loop, r->fd);
    else
        loop_unwatch(loop, r->fd);
    atomic_store(&r->done, true);
}

static void ask(int what, int fd, int *arg)
{
    struct request r = { .task.run = carry_out, .fd = fd, .arg = arg, .what = what };
    loop_post(loop, &r.task);
    while (!atomic_load(&r.done))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Let the loop look at what is there. */
static void turn(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
}

static void test_parked_is_silent_and_comes_back(void)
{
    static int a = 1;
    int p[2];
    CHECK(pipe(p) == 0);
    ask(WATCH, p[0], &a);
    CHECK(write(p[1], "x", 1) == 1);
    turn();
    CHECK_INT(calls[a], 1);
    ask(PARK, p[0], NULL);
    turn();
    ask(WATCH, p[0], &a); /* the kernel still looks */
    CHECK(write(p[1], "x", 1) == 1);
    turn();
    CHECK_INT(calls[a], 2);
    ask(PARK, p[0], NULL);
    CHECK(write(p[1], "x", 1) == 1); /* nobody is told, and the loop does not spin */
    turn();
    CHECK_INT(calls[a], 2);
    ask(WATCH, p[0], &a); /* it had stopped looking */
    turn();
    CHECK_INT(calls[a], 3);
    ask(UNWATCH, p[0], NULL);
    close(p[0]);
    close(p[1]);
}

static void test_a_number_is_reused(void)
{
    static int a = 2, b = 3;
    int p[2], q[2];
    CHECK(pipe(p) == 0);
    ask(WATCH, p[0], &a);
    ask(PARK, p[0], NULL);
    ask(UNWATCH, p[0], NULL);
    close(p[0]);
    close(p[1]);
    CHECK(pipe(q) == 0);
    CHECK_INT(q[0], p[0]);
    ask(WATCH, q[0], &b);
    CHECK(write(q[1], "x", 1) == 1);
    turn();
    CHECK_INT(calls[a], 0);
    CHECK_INT(calls[b], 1);
    ask(UNWATCH, q[0], NULL);
    close(q[0]);
    close(q[1]);
}

int main(void)
{
    tinker_error err;
    loop = loop_new(clock_real(), &err);
    CHECK(loop && loop_start(loop, &err) == TINKER_OK);
    RUN(test_parked_is_silent_and_comes_back);
    RUN(test_a_number_is_reused);
    loop_stop(loop);
    loop_free(loop);
    return tap_done();
}
