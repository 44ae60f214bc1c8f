/* writer.c - commas, escapes, numbers, and the buffer's maximum. */
#include "json/json.h"
#include "base/rand.h"
#include "support/tap.h"

static struct buf out;
static struct json_writer w;

static void begin_writer(void)
{
    buf_clear(&out);
    buf_init(&out, 1 << 20);
    json_writer_init(&w, &out);
}

static void test_structure_and_commas(void)
{
    begin_writer();
    json_put_begin_object(&w);
    json_put_key(&w, "a");
    json_put_int64(&w, 1);
    json_put_key(&w, "b");
    json_put_begin_array(&w);
    json_put_end_array(&w);
    json_put_key_n(&w, "cc", 1);
    json_put_begin_array(&w);
    json_put_null(&w);
    json_put_bool(&w, true);
    json_put_bool(&w, false);
    json_put_begin_object(&w);
    json_put_end_object(&w);
    json_put_begin_array(&w);
    json_put_uint64(&w, UINT64_MAX);
    json_put_end_array(&w);
    json_put_raw(&w, "{\"r\":1}", 7);
    json_put_string(&w, "s");
    json_put_double(&w, 2);
    json_put_float(&w, 0.1f);
    json_put_end_array(&w);
    json_put_key(&w, "d");
    json_put_int64(&w, INT64_MIN);
    json_put_end_object(&w);
    CHECK(buf_ok(&out));
    CHECK_STR(out.data, "{\"a\":1,\"b\":[],\"c\":[null,true,false,{},[18446744073709551615],"
                        "{\"r\":1},\"s\",2.0,0.1],\"d\":-9223372036854775808}");
}

static void test_written_strings(void)
{
    begin_writer();
    json_put_string(&w, "q\" b\\ s/ \b\f\n\r\t \x01\x1f\x7f caf\xc3\xa9 \xf0\x9f\x98\x80");
    CHECK_STR(out.data, "\"q\\\" b\\\\ s/ \\b\\f\\n\\r\\t \\u0001\\u001f\x7f caf\xc3\xa9 "
                        "\xf0\x9f\x98\x80\"");
    begin_writer();
    json_put_string_n(&w, "a\0b", 3);
    CHECK_STR(out.data, "\"a\\u0000b\"");
    begin_writer();
    json_put_string_n(&w, "", 0);
    CHECK_STR(out.data, "\"\"");
    begin_writer();
    json_put_string(&w, "x\xffy\xc3");
    CHECK_STR(out.data, "\"x\xef\xbf\xbdy\xef\xbf\xbd\"");
    begin_writer();
    json_put_begin_object(&w);
    json_put_key(&w, "k\n\x80");
    json_put_null(&w);
    json_put_end_object(&w);
    CHECK_STR(out.data, "{\"k\\n\xef\xbf\xbd\":null}");
}

static void test_written_arrays(void)
{
    static const int64_t ints[] = { 0, -1, INT64_MIN, INT64_MAX, 99999999, 100000000 };
    static const int32_t words[] = { INT32_MIN, INT32_MAX };
    static const float floats[] = { 0.1f, -0.0f, 1e-45f, 100 };
    begin_writer();
    json_put_begin_array(&w);
    json_put_array_int64(&w, ints, 6);
    json_put_array_int32(&w, words, 2);
    json_put_array_float(&w, floats, 4);
    json_put_array_float(&w, NULL, 0);
    json_put_end_array(&w);
    CHECK_STR(out.data, "[[0,-1,-9223372036854775808,9223372036854775807,99999999,100000000],"
                        "[-2147483648,2147483647],[0.1,-0.0,1e-45,100.0],[]]");
}

/* Around the length of a run, and far beyond it. */
static void test_array_lengths(void)
{
    static int64_t v[1000];
    for (int i = 0; i < 1000; i++)
        v[i] = i * 7919 % 1000003;
    size_t lengths[] = { 1, 63, 64, 65, 127, 128, 129, 1000 };
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        struct arena a;
        struct json_reader r;
        int64_t *back;
        size_t n;
        begin_writer();
        json_put_array_int64(&w, v, lengths[k]);
        arena_init(&a, 1 << 20);
        json_reader_init(&r, out.data, out.len, &a);
        CHECK(json_array_int64(&r, &back, &n) && json_end(&r));
        CHECK_MEM(back, n * sizeof *back, v, lengths[k] * sizeof *v);
        arena_clear(&a);
    }
}

static void test_no_number_no_json(void)
{
    double bad[] = { NAN, INFINITY, -INFINITY };
    for (int i = 0; i < 3; i++) {
        float f[2] = { 1, (float)bad[i] };
        begin_writer();
        json_put_double(&w, bad[i]);
        CHECK(!buf_ok(&out));
        begin_writer();
        json_put_float(&w, (float)bad[i]);
        CHECK(!buf_ok(&out));
        begin_writer();
        json_put_array_float(&w, f, 2);
        CHECK(!buf_ok(&out));
    }
}

/* A text of exactly the maximum is written, one byte less fails. */
static void test_maximum_is_exact(void)
{
    static int64_t v[500];
    for (int i = 0; i < 500; i++)
        v[i] = i;
    begin_writer();
    json_put_array_int64(&w, v, 500);
    size_t full = out.len;
    for (size_t max = full - 2; max <= full; max++) {
        buf_clear(&out);
        buf_init(&out, max);
        json_writer_init(&w, &out);
        json_put_array_int64(&w, v, 500);
        CHECK_INT(buf_ok(&out), max == full);
    }
}

static void test_floats_read_back_as_the_same_bits(void)
{
    enum { N = 20000 };
    float *v = malloc(N * sizeof *v), *back;
    struct arena a;
    struct json_reader r;
    struct rng rng;
    size_t n;
    REQUIRE(v);
    rng_seed(&rng, 8);
    for (int i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)rng_next(&rng);
        memcpy(&v[i], &bits, sizeof bits);
        if (!isfinite(v[i]))
            v[i] = 0;
    }
    begin_writer();
    json_put_array_float(&w, v, N);
    arena_init(&a, 1 << 20);
    json_reader_init(&r, out.data, out.len, &a);
    REQUIRE(json_array_float(&r, &back, &n));
    CHECK_MEM(back, n * sizeof *back, v, N * sizeof *v);
    arena_clear(&a);
    free(v);
}

int main(void)
{
    RUN(test_structure_and_commas);
    RUN(test_written_strings);
    RUN(test_written_arrays);
    RUN(test_array_lengths);
    RUN(test_no_number_no_json);
    RUN(test_maximum_is_exact);
    RUN(test_floats_read_back_as_the_same_bits);
    buf_clear(&out);
    return tap_done();
}
