/* array.c - whole arrays in one call give what element by element gives. */
#include "json/json.h"
#include "base/rand.h"
#include "support/tap.h"

static struct arena arena;
static struct json_reader reader;

static struct json_reader *on_bytes(const char *s, size_t n)
{
    static char *copy;
    free(copy);
    copy = malloc(n ? n : 1); /* exact: the sanitizer sees a read beyond the end */
    memcpy(copy, s, n);
    arena_clear(&arena);
    json_reader_init(&reader, copy, n, &arena);
    return &reader;
}

static struct json_reader *reader_on_array(const char *s)
{
    return on_bytes(s, strlen(s));
}

static void test_int64(void)
{
    int64_t *v;
    size_t n;
    CHECK(json_array_int64(
        reader_on_array("[1,-2, 3 ,\n4\t,9223372036854775807,-9223372036854775808,0,-0,5.0]"), &v,
        &n));
    CHECK(json_end(&reader));
    int64_t want[] = { 1, -2, 3, 4, INT64_MAX, INT64_MIN, 0, 0, 5 };
    CHECK_MEM(v, n * sizeof *v, want, sizeof want);
    CHECK(json_array_int64(reader_on_array("[]"), &v, &n) && n == 0 && json_end(&reader));
    CHECK(json_array_int64(reader_on_array(" [ ] "), &v, &n) && n == 0 && json_end(&reader));
    CHECK(json_array_int64(reader_on_array("[123456789012345678,1234567890123456789]"), &v, &n));
    CHECK(n == 2 && v[0] == 123456789012345678 && v[1] == 1234567890123456789);
    CHECK(!json_array_int64(reader_on_array("[9223372036854775808]"), &v, &n));
    CHECK(!json_array_int64(reader_on_array("[-9223372036854775809]"), &v, &n));
    CHECK(!json_array_int64(reader_on_array("[18446744073709551617]"), &v, &n)); /* wraps to 1 */
    CHECK(!json_array_int64(reader_on_array("[100000000000000000001]"), &v, &n));
}

static void test_int32(void)
{
    int32_t *v;
    size_t n;
    CHECK(json_array_int32(reader_on_array("[2147483647,-2147483648]"), &v, &n));
    CHECK(n == 2 && v[0] == INT32_MAX && v[1] == INT32_MIN);
    CHECK(!json_array_int32(reader_on_array("[1,2147483648]"), &v, &n));
    CHECK_STR(json_error(&reader), "line 1, column 4: integer out of the range of 32 bits");
    CHECK(!json_array_int32(reader_on_array("[-2147483649]"), &v, &n));
    CHECK(!json_array_int32(reader_on_array("[1.5]"), &v, &n));
}

static void test_floats(void)
{
    float *v;
    size_t n;
    CHECK(json_array_float(reader_on_array("[0.1, -2,3e38,1e-45,-0.0,16777217]"), &v, &n));
    CHECK_INT(n, 6);
    CHECK(v[0] == 0.1f && v[1] == -2 && v[2] == 3e38f && v[3] == 1e-45f && v[5] == 16777216.0f);
    CHECK(v[4] == 0 && signbit(v[4]));
    CHECK(!json_array_float(reader_on_array("[1,4e38]"), &v, &n));
    CHECK_STR(json_error(&reader), "line 1, column 4: number out of the range of a float");
    CHECK(!json_array_float(reader_on_array("[1,null]"), &v, &n));
    CHECK_STR(json_error(&reader), "line 1, column 4: expected a number, found null");
    CHECK(json_array_float_null(reader_on_array("[null,1, null]"), &v, &n));
    CHECK(n == 3 && isnan(v[0]) && v[1] == 1 && isnan(v[2]));
    CHECK(!json_array_float_null(reader_on_array("[nul]"), &v, &n));
    CHECK(!json_array_float_null(reader_on_array("[true]"), &v, &n));
    CHECK(!json_array_float(reader_on_array("[01]"), &v, &n));
    CHECK_STR(json_error(&reader), "line 1, column 2: malformed number");
}

static void test_malformed_arrays(void)
{
    static const char *const bad[] = { "[",      "[1",    "[1,",  "[1,]",    "[,1]", "[1 2]",
                                       "[1,,2]", "[[1]]", "[1}",  "{}",      "1",    "",
                                       "[-]",    "[01]",  "[1.]", "[\"1\"]", "[1]2", "[1,[2],3]",
                                       "[1;2]",  "[00]",  "[1e]" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t *v;
        int32_t *w;
        float *f;
        size_t n;
        CHECK(!(json_array_int64(reader_on_array(bad[i]), &v, &n) && json_end(&reader)));
        CHECK(!(json_array_int32(reader_on_array(bad[i]), &w, &n) && json_end(&reader)));
        CHECK(!(json_array_float(reader_on_array(bad[i]), &f, &n) && json_end(&reader)));
        CHECK(reader.failed && json_error(&reader)[0]);
    }
}

/* Inside a document: the reader goes on where the array ended. */
static void test_between_other_members(void)
{
    struct json_reader *r = reader_on_array("{\"a\":[1,2],\"b\":[],\"c\":[[3],[4,5]],\"d\":[0.5]}");
    struct json_str key;
    int64_t *v;
    float *f;
    size_t n, total = 0;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "c")) {
            json_begin_array(r);
            while (json_next_item(r) && json_array_int64(r, &v, &n))
                total += n;
        } else if (json_str_is(key, "d")) {
            CHECK(json_array_float(r, &f, &n) && n == 1 && f[0] == 0.5f);
        } else {
            CHECK(json_array_int64(r, &v, &n));
            total += n;
        }
    }
    CHECK(json_end(r));
    CHECK_INT(total, 5);
}

static void test_every_cut_fails(void)
{
    static const char text[] = "[12345678,-1,0.123456789012345678,1e10, 7 ,123456789012]";
    float *v;
    size_t n;
    CHECK(json_array_float(reader_on_array(text), &v, &n) && n == 6);
    for (size_t cut = 0; cut < strlen(text); cut++)
        CHECK(!json_array_float(on_bytes(text, cut), &v, &n));
}

static void test_random_arrays_match_single_reads(void)
{
    struct rng rng;
    rng_seed(&rng, 11);
    for (int round = 0; round < 300; round++) {
        struct buf b;
        size_t n, count = (size_t)(rng_next(&rng) % 40);
        int64_t want[40], *got;
        buf_init(&b, 1 << 16);
        buf_putc(&b, '[');
        for (size_t i = 0; i < count; i++) {
            static const char *const gaps[] = { ",", ", ", " ,", "\n,\t " };
            want[i] = (int64_t)(rng_next(&rng) >> (rng_next(&rng) % 64));
            buf_printf(&b, "%s%lld", i ? gaps[rng_next(&rng) % 4] : "", (long long)want[i]);
        }
        buf_putc(&b, ']');
        CHECK(json_array_int64(reader_on_array(b.data), &got, &n));
        CHECK(json_end(&reader));
        CHECK_MEM(got, n * sizeof *got, want, count * sizeof *want);
        buf_clear(&b);
    }
}

/* One allocation of the final size: nothing is wasted on growth. */
static void test_memory_is_exact(void)
{
    struct buf b;
    int64_t *v;
    size_t n;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "[0");
    for (int i = 1; i < 1000; i++)
        buf_puts(&b, ",7");
    buf_puts(&b, "]");
    CHECK(json_array_int64(reader_on_array(b.data), &v, &n) && n == 1000);
    CHECK_INT(arena.used, 8000);
    buf_clear(&b);
    struct arena small;
    struct json_reader r;
    arena_init(&small, 16);
    json_reader_init(&r, "[1,2,3]", 7, &small);
    CHECK(!json_array_int64(&r, &v, &n));
    CHECK(strstr(json_error(&r), "no memory for an array of 3 numbers"));
    arena_clear(&small);
}

int main(void)
{
    arena_init(&arena, 1 << 20);
    RUN(test_int64);
    RUN(test_int32);
    RUN(test_floats);
    RUN(test_malformed_arrays);
    RUN(test_between_other_members);
    RUN(test_every_cut_fails);
    RUN(test_random_arrays_match_single_reads);
    RUN(test_memory_is_exact);
    reader_on_array("");
    arena_clear(&arena);
    return tap_done();
}
