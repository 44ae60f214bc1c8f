/* failmalloc.c - stands between the program and the allocator.
 *
 * The linker's --wrap sends our calls here; those that the C library makes for
 * itself are not seen.  Counters are atomic: any thread may allocate. */
#include "support/failmalloc.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);

static atomic_long count, first, last; /* those counted first..last fail; first 0: none */
static atomic_bool failed;

static bool fails(void)
{
    long n = atomic_fetch_add(&count, 1) + 1, from = atomic_load(&first);
    if (from == 0 || n < from || n > atomic_load(&last))
        return false;
    atomic_store(&failed, true);
    return true;
}

static void arm(long from, long to)
{
    atomic_store(&count, 0);
    atomic_store(&failed, false);
    atomic_store(&last, to);
    atomic_store(&first, from);
}

void failmalloc_at(long n)
{
    arm(n, n);
}

void failmalloc_after(long n)
{
    arm(n + 1, __LONG_MAX__);
}

bool failmalloc_stop(void)
{
    atomic_store(&first, 0);
    return atomic_load(&failed);
}

long failmalloc_count(void)
{
    return atomic_load(&count);
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t count_, size_t n)
{
    return fails() ? NULL : __real_calloc(count_, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : __real_aligned_alloc(align, n);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
    return fails() ? NULL : __real_strndup(s, n);
}
