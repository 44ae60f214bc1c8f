/* text.c - texts that calls return: growing, emptying, and the way through a buffer. */
#include "base/text.h"
#include "support/tap.h"

static void test_append(void)
{
    tinker_text t = TINKER_TEXT_INIT;
    tinker_error err = { 0 };
    CHECK_INT(tinker_text_append(&t, "", 0, &err), TINKER_OK);
    CHECK_STR(t.s, ""); /* an empty text, too, is a string */
    CHECK_INT(tinker_text_append(&t, "ab", 2, &err), TINKER_OK);
    CHECK_INT(tinker_text_append(&t, "c\0d", 3, &err), TINKER_OK);
    CHECK_MEM(t.s, t.n + 1, "abc\0d", 6);
    t.n = 0; /* the memory is used again */
    char *memory = t.s;
    CHECK_INT(tinker_text_append(&t, "x", 1, NULL), TINKER_OK);
    CHECK(t.s == memory);
    CHECK_STR(t.s, "x");
    tinker_text_clear(&t);
    CHECK(!t.s && t.n == 0 && t.cap == 0);
    tinker_text_clear(&t);
}

static void test_as_buffer(void)
{
    tinker_text t = TINKER_TEXT_INIT;
    CHECK_INT(tinker_text_append(&t, "one", 3, NULL), TINKER_OK);
    struct buf b = text_to_buf(&t);
    for (int i = 0; i < 100; i++) /* so that the memory moves */
        buf_puts(&b, " two");
    text_from_buf(&t, &b);
    CHECK_INT(t.n, 403);
    CHECK_MEM(t.s, 8, "one two ", 8);
    CHECK_INT(t.s[t.n], 0);
    tinker_text_clear(&t);
}

int main(void)
{
    RUN(test_append);
    RUN(test_as_buffer);
    return tap_done();
}
