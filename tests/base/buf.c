/* buf.c - growth, the maximum, and what stays after a failure. */
#include "base/buf.h"
#include <stdint.h>
#include "support/tap.h"

static void test_append_grows_and_terminates(void)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 1000; i++) {
        buf_puts(&b, "abc");
        CHECK_INT(b.data[b.len], 0);
    }
    buf_putc(&b, 'd');
    CHECK_INT(b.len, 3001);
    CHECK(strncmp(b.data + 2997, "abcd", 5) == 0);
    CHECK(buf_ok(&b));
    buf_clear(&b);
    CHECK(b.data == NULL && b.len == 0 && b.max == 1 << 20);
}

static void test_maximum_is_exact_and_sticky(void)
{
    struct buf b;
    buf_init(&b, 5);
    buf_puts(&b, "12345");
    CHECK(buf_ok(&b));
    buf_putc(&b, '6');
    CHECK(!buf_ok(&b));
    CHECK_STR(b.data, "12345");
    buf_append(&b, "", 0);
    CHECK(!buf_ok(&b));
    buf_reset(&b);
    CHECK(buf_ok(&b));
    CHECK_STR(b.data, "");
    buf_puts(&b, "6");
    CHECK_STR(b.data, "6");
    buf_clear(&b);
}

static void test_huge_requests_fail_without_overflow(void)
{
    struct buf b;
    buf_init(&b, SIZE_MAX);
    buf_puts(&b, "x");
    CHECK(!buf_reserve(&b, SIZE_MAX));
    CHECK(!buf_ok(&b));
    buf_reset(&b);
    CHECK(!buf_reserve(&b, SIZE_MAX - 1));
    buf_clear(&b);
}

static void test_printf(void)
{
    struct buf b;
    buf_init(&b, 100);
    buf_printf(&b, "%s-%d", "a", 7);
    buf_printf(&b, "%060d", 1);
    CHECK_INT(b.len, 63);
    CHECK(memcmp(b.data, "a-70000", 7) == 0);
    CHECK_INT(b.data[62], '1');
    buf_printf(&b, "%090d", 2);
    CHECK(!buf_ok(&b));
    CHECK_INT(b.len, 63);
    CHECK_INT(strlen(b.data), 63);
    buf_clear(&b);
}

/* The capacity may exceed the maximum's rest: the maximum must win. */
static void test_printf_respects_the_maximum_inside_the_capacity(void)
{
    struct buf b;
    buf_init(&b, 4);
    buf_printf(&b, "%d", 1234);
    CHECK(buf_ok(&b));
    buf_printf(&b, "%d", 5);
    CHECK(!buf_ok(&b));
    CHECK_STR(b.data, "1234");
    buf_clear(&b);
}

static void test_detach(void)
{
    struct buf b;
    buf_init(&b, 10);
    size_t n = 9;
    char *empty = buf_detach(&b, &n);
    CHECK_STR(empty, "");
    CHECK_INT(n, 0);
    free(empty);
    buf_puts(&b, "hello");
    char *s = buf_detach(&b, &n);
    CHECK_STR(s, "hello");
    CHECK_INT(n, 5);
    CHECK(b.data == NULL && b.len == 0);
    free(s);
    buf_puts(&b, "too long for it");
    CHECK(buf_detach(&b, &n) == NULL);
    buf_puts(&b, "again");
    CHECK_STR(b.data, "again");
    buf_clear(&b);
}

static void test_binary_content(void)
{
    struct buf b;
    buf_init(&b, 10);
    buf_append(&b, "a\0b", 3);
    CHECK_MEM(b.data, b.len, "a\0b", 3);
    buf_clear(&b);
}

int main(void)
{
    RUN(test_append_grows_and_terminates);
    RUN(test_maximum_is_exact_and_sticky);
    RUN(test_huge_requests_fail_without_overflow);
    RUN(test_printf);
    RUN(test_printf_respects_the_maximum_inside_the_capacity);
    RUN(test_detach);
    RUN(test_binary_content);
    return tap_done();
}
