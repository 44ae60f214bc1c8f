/* tap.h - the test harness: TAP on stdout, exit status says the rest.
 *
 *     static void test_sum(void) { CHECK_INT(1 + 1, 2); }
 *     int main(void) { RUN(test_sum); return tap_done(); }
 *
 * One "ok" line per RUN; a failing CHECK prints file:line and what it saw, and the
 * rest of that test goes on unless it says REQUIRE. */
#ifndef SUPPORT_TAP_H
#define SUPPORT_TAP_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_count, tap_failed, tap_bad;

#define TAP_FAIL(...)                                     \
    do {                                                  \
        tap_bad = 1;                                      \
        fprintf(stdout, "# %s:%d: ", __FILE__, __LINE__); \
        fprintf(stdout, __VA_ARGS__);                     \
        fprintf(stdout, "\n");                            \
        fflush(stdout);                                   \
    } while (0)

#define CHECK(cond)                          \
    do {                                     \
        if (!(cond))                         \
            TAP_FAIL("not true: %s", #cond); \
    } while (0)

#define REQUIRE(cond)                        \
    do {                                     \
        if (!(cond)) {                       \
            TAP_FAIL("not true: %s", #cond); \
            return;                          \
        }                                    \
    } while (0)

#define CHECK_INT(got, want)                                           \
    do {                                                               \
        long long tap_g = (long long)(got), tap_w = (long long)(want); \
        if (tap_g != tap_w)                                            \
            TAP_FAIL("%s: got %lld, want %lld", #got, tap_g, tap_w);   \
    } while (0)

#define CHECK_STR(got, want)                                                        \
    do {                                                                            \
        const char *tap_g = (got), *tap_w = (want);                                 \
        if (!tap_g || !tap_w ? tap_g != tap_w : strcmp(tap_g, tap_w) != 0)          \
            TAP_FAIL("%s: got \"%s\", want \"%s\"", #got, tap_g ? tap_g : "(null)", \
                     tap_w ? tap_w : "(null)");                                     \
    } while (0)

#define CHECK_MEM(got, ngot, want, nwant)                                               \
    do {                                                                                \
        size_t tap_ng = (ngot), tap_nw = (nwant);                                       \
        if (tap_ng != tap_nw || (tap_ng && memcmp((got), (want), tap_ng) != 0))         \
            TAP_FAIL("%s: %zu bytes differ from the %zu wanted", #got, tap_ng, tap_nw); \
    } while (0)

#define CHECK_NEAR(got, want, tolerance)                                      \
    do {                                                                      \
        double tap_g = (got), tap_w = (want);                                 \
        if (!(fabs(tap_g - tap_w) <= (tolerance)))                            \
            TAP_FAIL("%s: got %.9g, want %.9g within %g", #got, tap_g, tap_w, \
                     (double)(tolerance));                                    \
    } while (0)

#define RUN(test)                                                          \
    do {                                                                   \
        tap_bad = 0;                                                       \
        test();                                                            \
        tap_count++;                                                       \
        tap_failed += tap_bad;                                             \
        printf("%sok %d - %s\n", tap_bad ? "not " : "", tap_count, #test); \
        fflush(stdout);                                                    \
    } while (0)

static inline int tap_done(void)
{
    printf("1..%d\n", tap_count);
    return tap_failed ? 1 : 0;
}

#endif
