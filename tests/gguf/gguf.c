/* GGUF: what is written is read back, and every number of a file may be wrong. */
#include "gguf/gguf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "support/tap.h"

static const float values[6] = { 1, 2, 3, 4, 5, 6 };

static const void *fetch_values(void *state, size_t index, tinker_error *err)
{
    (void)state, (void)err;
    return index == 0 ? (const void *)values : (const void *)"abcdefghijklmnopqrstuvwxyz012345678";
}

/* A small file with a value of each kind and two tensors, in memory. */
static char *make_file(size_t *n)
{
    struct gguf_writer w;
    tinker_error err = { 0 };
    char *data = NULL;
    char path[64];
    static const uint64_t shape[2] = { 3, 2 }, row[1] = { 32 };
    snprintf(path, sizeof path, "/tmp/tinker-gguf-test-%ld", (long)getpid());
    gguf_writer_init(&w);
    gguf_put_string(&w, "general.architecture", "llama", 5);
    gguf_put_u32(&w, "llama.block_count", 7);
    gguf_put_f32(&w, "eps", 0.5f);
    gguf_put_bool(&w, "yes", true);
    gguf_put_array(&w, "words", GGUF_STRING, 3);
    gguf_add_string(&w, "a", 1);
    gguf_add_string(&w, "", 0);
    gguf_add_string(&w, "bcd", 3);
    gguf_put_array(&w, "ints", GGUF_I32, 2);
    gguf_add_i32(&w, -5);
    gguf_add_i32(&w, 6);
    gguf_put_array(&w, "floats", GGUF_F32, 1);
    gguf_add_f32(&w, 1.5f);
    gguf_put_tensor(&w, "one", GGUF_TENSOR_F32, 2, shape);
    gguf_put_tensor(&w, "two", GGUF_TENSOR_Q8_0, 1, row);
    CHECK(gguf_write(&w, path, fetch_values, NULL, &err) == TINKER_OK);
    gguf_writer_clear(&w);
    CHECK(os_read_file(path, 1 << 20, &data, n, &err) == TINKER_OK);
    remove(path);
    return data;
}

static void write_and_read(void)
{
    size_t n, at = 0, length;
    char *data = make_file(&n);
    struct gguf g;
    tinker_error err = { 0 };
    int64_t i;
    double d;
    bool b;
    const char *s;
    CHECK(gguf_parse(&g, "x", data, n, &err) == TINKER_OK);
    CHECK(gguf_get_int(&g, "llama.block_count", &i) && i == 7);
    CHECK(gguf_get_double(&g, "eps", &d) && d == 0.5);
    CHECK(!gguf_get_int(&g, "eps", &i) && !gguf_get_int(&g, "none", &i));
    CHECK(gguf_get_bool(&g, "yes", &b) && b);
    CHECK(gguf_get_string(&g, "general.architecture", &s, &length) && length == 5);
    const struct gguf_value *words = gguf_get(&g, "words"), *ints = gguf_get(&g, "ints");
    CHECK(words->n == 3 && ints->n == 2 && gguf_number(ints, 0) == -5 && gguf_number(ints, 1) == 6);
    for (int k = 0; k < 3; k++)
        gguf_next_string(words, &at, &s, &length);
    CHECK(length == 3 && memcmp(s, "bcd", 3) == 0);
    const struct gguf_tensor *one = gguf_find(&g, "one"), *two = gguf_find(&g, "two");
    CHECK(one->n_dims == 2 && one->dim[0] == 3 && one->dim[1] == 2 && one->dim[2] == 1);
    CHECK(memcmp(one->data, values, sizeof values) == 0 && two->bytes == 34);
    CHECK(memcmp(two->data, "abcdef", 6) == 0);
    gguf_close(&g);
    free(data);
}

/* No cut is taken for a whole file, and none reads beyond its end (ASan looks on). */
static void every_cut(void)
{
    size_t n;
    char *data = make_file(&n);
    for (size_t k = 0; k < n - 30; k++) { /* the last padding may be missing */
        struct gguf g;
        tinker_error err = { 0 };
        char *part = malloc(k + 1);
        memcpy(part, data, k);
        CHECK(gguf_parse(&g, "x", part, k, &err) == TINKER_EINVAL);
        CHECK(strncmp(err.message, "x: ", 3) == 0);
        free(part);
    }
    free(data);
}

/* Every byte in turn set to four others: refused, or read without harm. */
static void every_byte(void)
{
    static const unsigned char others[] = { 0x00, 0x01, 0x7f, 0xff };
    size_t n, accepted = 0;
    char *data = make_file(&n);
    for (size_t k = 0; k < n; k++)
        for (size_t o = 0; o < sizeof others; o++) {
            struct gguf g;
            tinker_error err = { 0 };
            char *copy = malloc(n);
            memcpy(copy, data, n);
            copy[k] = (char)others[o];
            if (gguf_parse(&g, "x", copy, n, &err) == TINKER_OK) {
                accepted++;
                for (size_t t = 0; t < g.n; t++)
                    CHECK((const char *)g.tensors[t]->data + g.tensors[t]->bytes <= copy + n);
                gguf_close(&g);
            }
            free(copy);
        }
    CHECK(accepted > 0 && accepted < 4 * n);
    free(data);
}

/* One field of the file is changed; the words that the message must have. */
static void check_refused(size_t at, const void *bytes, size_t n_bytes, const char *words)
{
    size_t n;
    char *data = make_file(&n);
    struct gguf g;
    tinker_error err = { 0 };
    memcpy(data + at, bytes, n_bytes);
    CHECK(gguf_parse(&g, "x", data, n, &err) == TINKER_EINVAL);
    if (!strstr(err.message, words))
        TAP_FAIL("'%s' lacks '%s'", err.message, words);
    free(data);
}

static size_t find_bytes(const char *data, size_t n, const char *what)
{
    for (size_t i = 0; i + strlen(what) <= n; i++)
        if (memcmp(data + i, what, strlen(what)) == 0)
            return i;
    return 0;
}

static void named_refusals(void)
{
    size_t n;
    char *data = make_file(&n);
    size_t one = find_bytes(data, n, "one") + 3, two = find_bytes(data, n, "two") + 3;
    uint64_t huge = UINT64_MAX, odd = 33, far = 1 << 20, zero = 0;
    uint32_t swapped = 0x03000000, version = 1, five = 5, iq2 = 16;
    check_refused(0, "GGML", 4, "not a GGUF file");
    check_refused(4, &version, 4, "version 1");
    check_refused(4, &swapped, 4, "big-endian");
    check_refused(8, &huge, 8, "more values or tensors than bytes");
    check_refused(16, &huge, 8, "more values or tensors than bytes");
    check_refused(24, &huge, 8, "a key is cut off");
    check_refused(one, &five, 4, "1 to 4 dimensions");
    check_refused(one + 4, &huge, 8, "overflows");
    check_refused(one + 20, &iq2, 4, "tensor one has type 16, which is not read");
    check_refused(two + 4, &odd, 8, "no whole blocks");
    check_refused(two + 16, &odd, 8, "not aligned");
    check_refused(two + 16, &far, 8, "beyond the end of the file");
    check_refused(two + 16, &zero, 8, "overlaps");
    check_refused(two - 3, "one", 3, "comes twice");
    check_refused(find_bytes(data, n, "yes"), "eps", 3, "comes twice");
    for (size_t k = 4; k < 8; k++) {
        struct gguf g;
        tinker_error err = { 0 };
        CHECK(gguf_parse(&g, "x", data, k, &err) == TINKER_EINVAL);
        CHECK(strstr(err.message, "it ends behind its first four bytes") != NULL);
    }
    free(data);
}

static void names_of_parts(void)
{
    struct gguf g;
    tinker_error err = { 0 };
    CHECK(gguf_is_name("a.gguf") && !gguf_is_name(".gguf") && !gguf_is_name("a.gguf.bak"));
    CHECK(gguf_open(&g, "/nowhere/m-00002-of-00003.gguf", &err) != TINKER_OK);
    CHECK(strstr(err.message, "m-00001-of-00003.gguf") != NULL);
    CHECK(gguf_open(&g, "/nowhere/m-00001-of-00000.gguf", &err) == TINKER_EINVAL);
}

int main(void)
{
    RUN(write_and_read);
    RUN(every_cut);
    RUN(every_byte);
    RUN(named_refusals);
    RUN(names_of_parts);
    return tap_done();
}
