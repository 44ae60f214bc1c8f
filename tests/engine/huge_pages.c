/* Memory that is moved into large pages keeps its bytes, while others read and write it. */
#include "engine/model/huge_pages.h"
#include <stdint.h>
#include <stdlib.h>
#include "support/tap.h"

enum { WORDS = 12 << 20, WRITTEN = 4096 / sizeof(uint64_t) }; /* 96 MB; one word of each page */

static uint64_t *filled(void)
{
    uint64_t *p = malloc(WORDS * sizeof(*p));
    for (size_t i = 0; p && i < WORDS; i++)
        p[i] = i * 0x9E3779B97F4A7C15u;
    return p;
}

static void test_bytes_stay(void)
{
    uint64_t *p = filled();
    REQUIRE(p);
    struct huge_pages *pages = huge_pages_start(p, WORDS * sizeof(*p));
    for (size_t i = 0; i < WORDS; i += WRITTEN)
        p[i]++;
    huge_pages_wait(pages);
    huge_pages_wait(pages); /* once more does nothing */
    size_t wrong = 0;
    for (size_t i = 0; i < WORDS; i++)
        wrong += p[i] != i * 0x9E3779B97F4A7C15u + (i % WRITTEN == 0);
    CHECK_INT(wrong, 0);
    huge_pages_free(pages);
    free(p);
}

static void test_it_can_be_stopped(void)
{
    uint64_t *p = filled();
    REQUIRE(p);
    huge_pages_free(huge_pages_start(p, WORDS * sizeof(*p)));
    CHECK_INT(p[WORDS - 1], (WORDS - 1) * 0x9E3779B97F4A7C15u);
    free(p);
}

static void test_little_is_left_alone(void)
{
    char p[4096];
    CHECK(huge_pages_start(p, sizeof(p)) == NULL);
    huge_pages_wait(NULL);
    huge_pages_free(NULL);
}

int main(void)
{
    RUN(test_bytes_stay);
    RUN(test_it_can_be_stopped);
    RUN(test_little_is_left_alone);
    return tap_done();
}
