/* wait_table.c - see bell.h.  A forked child gets fresh bells: its parent's waiters are not in it. */
#include "client/io/wait_table.h"

#include "client/future/future.h"

enum { BELLS_LOG2 = 6 };

static pthread_cond_t bells[1 << BELLS_LOG2];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_bells(void)
{
    for (int i = 0; i < 1 << BELLS_LOG2; i++)
        future_cond_init(&bells[i]);
}

static void init(void)
{
    make_bells();
    pthread_atfork(NULL, NULL, make_bells);
}

static pthread_cond_t *bell_of(const void *object)
{
    pthread_once(&once, init);
    return &bells[(uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15u >> (64 - BELLS_LOG2)];
}

bool bell_wait(const void *object, pthread_mutex_t *lock, int64_t deadline_ms)
{
    return future_cond_wait_on(bell_of(object), lock, deadline_ms);
}

void bell_ring(const void *object)
{
    pthread_cond_broadcast(bell_of(object));
}
