/* The line of a progress bar: never longer than the terminal, on which it is drawn over itself. */
#include "cli/output/progress.c"
#include "support/tap.h"

static void check(size_t columns, int64_t done, int64_t total, const char *want)
{
    const struct progress p = { .label = "Fetching 20 runs" };
    struct buf out;
    buf_init(&out, 1024);
    put_line(&out, &p, (int64_t)90 * SECOND_NS, done, total, columns);
    CHECK(buf_ok(&out));
    CHECK_MEM(out.data, out.len, want, strlen(want));
    buf_clear(&out);
}

static void test_wide(void)
{
    check(200, 5, 20,
          "Fetching 20 runs  [#########---------------------------]  5/20   25%  00:04:30");
    check(200, 1, 2000,
          "Fetching 20 runs  [#-----------------------------------]  1/2000    0%  2d "
          "01:58:30");
    check(200, 7, 0, "Fetching 20 runs  7"); /* nobody knows how many there are */
}

static void test_narrow(void)
{
    check(80, 5, 20, "Fetching 20 runs  [######----------------]  5/20   25%  00:04:30");
    check(50, 5, 20, "Fetching 20 runs  5/20   25%  00:04:30");
    check(30, 5, 20, "Fetching 20 runs  5/20   25% ");
    check(12, 5, 20, "Fetching 20");
    check(12, 7, 0, "Fetching 20");
    check(1, 5, 20, "");
}

int main(void)
{
    RUN(test_wide);
    RUN(test_narrow);
    return tap_done();
}
