/* wait_table.c - see wait_table.h.  A forked child gets fresh conditions: its parent's waiters are not in it. */
#include "client/io/wait_table.h"

#include "client/future/future.h"

/* 64 conditions for all objects: an object needs none of its own, and two that share one
 * only wake each other for nothing. */
enum { CONDITIONS_LOG2 = 6 };

static pthread_cond_t conditions[1 << CONDITIONS_LOG2];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_conditions(void)
{
    for (int i = 0; i < 1 << CONDITIONS_LOG2; i++)
        future_cond_init(&conditions[i]);
}

static void init_table(void)
{
    init_conditions();
    pthread_atfork(NULL, NULL, init_conditions);
}

static pthread_cond_t *find_condition(const void *object)
{
    pthread_once(&once, init_table);
    /* Fibonacci hashing: 2^64 / golden ratio spreads addresses that differ in few bits; the
     * top bits are the best mixed. */
    return &conditions[(uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15u >> (64 - CONDITIONS_LOG2)];
}

bool wait_table_wait(const void *object, pthread_mutex_t *lock, int64_t deadline_ms)
{
    return future_cond_wait_on(find_condition(object), lock, deadline_ms);
}

/* With or without the lock; all waiters look at their own object again. */
void wait_table_wake(const void *object)
{
    pthread_cond_broadcast(find_condition(object));
}
