/* alloc_nomem.c - every allocation of reader and writer fails once. */
#include "support/failmalloc.h"
#include "support/json_again.h"
#include "support/tap.h"

static const char text[] =
    "{\"a\\n\":[1,2.5,\"\\u00e9 and more\"],\"b\":{\"c\":[\"x\\\\y\",null,true]}}";
static const char same[] =
    "{\"a\\n\":[1,2.5,\"\xc3\xa9 and more\"],\"b\":{\"c\":[\"x\\\\y\",null,true]}}";

static void test_copy(void)
{
    for (long n = 1; n < 100; n++) {
        struct arena a;
        struct buf b;
        struct json_reader r;
        struct json_writer w;
        arena_init(&a, 1 << 20);
        buf_init(&b, 1 << 20);
        json_reader_init(&r, text, strlen(text), &a);
        json_writer_init(&w, &b);
        failmalloc_at(n);
        bool ok = json_again(&r, &w) && json_end(&r) && buf_ok(&b);
        bool hit = failmalloc_stop();
        CHECK(ok == !hit);
        if (ok)
            CHECK_STR(b.data, same);
        else if (r.failed)
            CHECK(strstr(json_error(&r), "no memory"));
        buf_clear(&b);
        arena_clear(&a);
        if (!hit) {
            CHECK(n > 2);
            return;
        }
    }
    TAP_FAIL("no end");
}

static bool read_array(struct json_reader *r, int kind)
{
    int64_t *i;
    int32_t *w;
    float *f;
    size_t n;
    switch (kind) {
    case 0:
        return json_array_int64(r, &i, &n);
    case 1:
        return json_array_int32(r, &w, &n);
    case 2:
        return json_array_float(r, &f, &n);
    default:
        return json_array_float_null(r, &f, &n);
    }
}

static void test_arrays(void)
{
    for (int kind = 0; kind < 4; kind++) {
        struct arena a;
        struct json_reader r;
        arena_init(&a, 1 << 20);
        json_reader_init(&r, "[1,2,3]", 7, &a);
        failmalloc_at(1);
        CHECK(!read_array(&r, kind));
        CHECK(failmalloc_stop());
        CHECK(strstr(json_error(&r), "no memory for an array of 3 numbers"));
        arena_clear(&a);
    }
}

/* A large array: the reservation, and growth when the guess was too small. */
static void test_write_array(void)
{
    static int64_t v[2000];
    for (int i = 100; i < 2000; i++)
        v[i] = INT64_MIN;
    for (long n = 1; n < 100; n++) {
        struct buf b;
        struct json_writer w;
        buf_init(&b, 1 << 20);
        json_writer_init(&w, &b);
        failmalloc_at(n);
        json_put_array_int64(&w, v, 2000);
        bool hit = failmalloc_stop();
        CHECK(buf_ok(&b) == !hit);
        buf_clear(&b);
        if (!hit) {
            CHECK(n > 2);
            return;
        }
    }
}

int main(void)
{
    RUN(test_copy);
    RUN(test_arrays);
    RUN(test_write_array);
    return tap_done();
}
