/* arena.c - alignment, zeroing, the maximum, growing. */
#include "base/arena.h"
#include <stdalign.h>
#include <stdint.h>
#include "support/tap.h"

static void test_memory_is_zero_aligned_and_distinct(void)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    unsigned char *last = NULL;
    for (size_t n = 0; n < 3000; n += 7) {
        unsigned char *p = arena_alloc(&a, n);
        REQUIRE(p && p != last);
        CHECK((uintptr_t)p % alignof(max_align_t) == 0);
        for (size_t i = 0; i < n; i++)
            if (p[i])
                TAP_FAIL("byte %zu of %zu is not zero", i, n);
        memset(p, 0xee, n);
        last = p;
    }
    arena_clear(&a);
    CHECK(a.blocks == NULL && a.used == 0);
}

/* Earlier allocations keep their content whatever comes later. */
static void test_neighbors_do_not_overlap(void)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    enum { N = 200 };
    unsigned char *p[N];
    size_t size[N];
    for (int i = 0; i < N; i++) {
        size[i] = (size_t)(i * 37 % 900) + (i % 50 == 0 ? 300000 : 1);
        p[i] = arena_alloc(&a, size[i]);
        REQUIRE(p[i]);
        memset(p[i], i, size[i]);
    }
    for (int i = 0; i < N; i++)
        CHECK(p[i][0] == i && p[i][size[i] - 1] == i);
    arena_clear(&a);
}

static void test_maximum(void)
{
    struct arena a;
    arena_init(&a, 64);
    CHECK(arena_alloc(&a, 65) == NULL);
    char *p = arena_alloc(&a, 48);
    REQUIRE(p);
    memcpy(p, "kept", 5);
    CHECK(arena_alloc(&a, 32) == NULL);
    CHECK_STR(p, "kept");
    CHECK(arena_alloc(&a, 16) != NULL);
    CHECK(arena_alloc(&a, 1) == NULL);
    CHECK(arena_alloc(&a, 0) == NULL);
    arena_clear(&a);
    CHECK(arena_alloc(&a, 64) != NULL);
    arena_clear(&a);
}

static void test_sizes_do_not_overflow(void)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    CHECK(arena_alloc(&a, SIZE_MAX) == NULL);
    CHECK(arena_alloc(&a, SIZE_MAX - 8) == NULL);
    CHECK(arena_array(&a, SIZE_MAX / 2, 4) == NULL);
    CHECK(arena_array(&a, 1, 0) != NULL);
    CHECK(arena_strndup(&a, "x", SIZE_MAX) == NULL);
    arena_clear(&a);
}

static void test_copies(void)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    CHECK_STR(arena_strdup(&a, "hello"), "hello");
    CHECK_STR(arena_strndup(&a, "hello", 2), "he");
    CHECK_STR(arena_printf(&a, "%d %s", 5, "x"), "5 x");
    CHECK(memcmp(arena_memdup(&a, "a\0b", 3), "a\0b", 3) == 0);
    arena_clear(&a);
}

static void test_grow_in_place_when_last(void)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    int *p = arena_alloc(&a, 4 * sizeof *p);
    REQUIRE(p);
    p[0] = 11;
    p[3] = 44;
    CHECK(arena_grow(&a, p, 4 * sizeof *p, 40 * sizeof *p) == p);
    CHECK(p[39] == 0 && p[3] == 44);
    CHECK(arena_grow(&a, p, 40 * sizeof *p, 10 * sizeof *p) == p);
    char *between = arena_alloc(&a, 1);
    int *moved = arena_grow(&a, p, 40 * sizeof *p, 80 * sizeof *p);
    REQUIRE(between && moved && moved != p);
    CHECK(moved[0] == 11 && moved[3] == 44 && moved[79] == 0);
    CHECK(arena_grow(&a, NULL, 0, 8) != NULL);
    arena_clear(&a);
}

/* The last allocation of a block that is too small for it moves to another. */
static void test_grow_beyond_the_block(void)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    char *p = arena_alloc(&a, 100), *old = p;
    REQUIRE(p);
    memset(p, 'x', 100);
    for (size_t n = 100; n < 1000000; n *= 3) {
        p = arena_grow(&a, p, n, n * 3);
        REQUIRE(p);
        CHECK(p[0] == 'x' && p[n - 1] == 'x');
        for (size_t i = n; i < n * 3; i++)
            if (p[i])
                TAP_FAIL("byte %zu is not zero", i);
        memset(p, 'x', n * 3);
    }
    CHECK(p != old);
    /* what comes after lies elsewhere */
    char *next = arena_alloc(&a, 1000);
    REQUIRE(next);
    CHECK_INT(next[0], 0);
    memset(next, 'y', 1000);
    CHECK_INT(p[500000], 'x');
    arena_clear(&a);
}

static void test_grow_respects_the_maximum(void)
{
    struct arena a;
    arena_init(&a, 100);
    char *p = arena_strdup(&a, "text");
    REQUIRE(p);
    CHECK(arena_grow(&a, p, 5, 200) == NULL);
    CHECK_STR(p, "text");
    arena_clear(&a);
}

int main(void)
{
    RUN(test_memory_is_zero_aligned_and_distinct);
    RUN(test_neighbors_do_not_overlap);
    RUN(test_maximum);
    RUN(test_sizes_do_not_overflow);
    RUN(test_copies);
    RUN(test_grow_in_place_when_last);
    RUN(test_grow_beyond_the_block);
    RUN(test_grow_respects_the_maximum);
    return tap_done();
}
