/* safetensors.c - reader and writer of tensor files. */
#include "engine/safetensors/safetensors.h"
#include <unistd.h>
#include "support/tap.h"
#include "support/tiny_model.h"

/* A file of the given header and n bytes of data. */
static tinker_status parse(struct safetensors *s, const char *header, size_t n, tinker_error *err)
{
    static char file[4096];
    uint64_t len = strlen(header);
    memset(file, 0, sizeof(file));
    memcpy(file, &len, 8);
    memcpy(file + 8, header, len);
    return safetensors_parse(s, "f", file, 8 + len + n, err);
}

static void test_reads(void)
{
    struct safetensors s;
    tinker_error err = { 0 };
    CHECK_INT(parse(&s,
                    "{\"__metadata__\":{\"format\":\"pt\"},"
                    "\"b\":{\"shape\":[2,3],\"dtype\":\"BF16\",\"data_offsets\":[8,20]},"
                    "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                    "\"none\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[20,20]},"
                    "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[20,28]}}   ",
                    28, &err),
              TINKER_OK);
    CHECK_INT(s.n, 4);
    const struct st_tensor *b = safetensors_find(&s, "b");
    REQUIRE(b != NULL);
    CHECK_INT(b->dtype, SOURCE_BF16);
    CHECK_INT(b->ndim, 2);
    CHECK_INT(b->shape[1], 3);
    CHECK_INT(b->count, 6);
    CHECK_INT((const char *)b->data - (const char *)safetensors_find(&s, "a")->data, 8);
    CHECK(!safetensors_find(&s, "scalar")->usable);
    CHECK(!safetensors_find(&s, "c"));
    safetensors_close(&s);
}

static void test_refuses(void)
{
    static const struct {
        const char *header, *want;
        size_t n;
    } cases[] = {
        { "[]", "begin with", 0 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", "f:", 8 },
        { "{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "tensor a: no dtype", 8 },
        { "{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", "unknown dtype", 8 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "negative", 8 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "out of order", 8 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "two numbers", 8 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "do not match", 8 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "beyond the end", 7 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "longer than", 9 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "gap", 8 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
          "overlaps", 12 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
          "listed twice", 8 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4611686018427387904],"
          "\"data_offsets\":[0,8]}}",
          "overflows", 8 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}",
          "overflows", 4 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
          "8 dimensions", 4 },
        { "{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "name is empty", 4 },
        { "{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "NUL", 4 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct safetensors s;
        tinker_error err = { 0 };
        tinker_status status = parse(&s, cases[i].header, cases[i].n, &err);
        if (status != TINKER_EINVAL || !strstr(err.message, cases[i].want))
            TAP_FAIL("case %zu: wanted \"%s\", got \"%s\"", i, cases[i].want, err.message);
        if (status == TINKER_OK)
            safetensors_close(&s);
    }
}

static void test_refuses_lengths(void)
{
    struct safetensors s;
    tinker_error err = { 0 };
    uint64_t lengths[] = { 100000001, UINT64_MAX, 9, 1, 0 };
    for (size_t i = 0; i < 5; i++) {
        char file[16] = { 0 };
        memcpy(file, &lengths[i], 8);
        file[8] = '{';
        CHECK_INT(safetensors_parse(&s, "f", file, 16, &err), TINKER_EINVAL);
    }
    CHECK_INT(safetensors_parse(&s, "f", "1234567", 7, &err), TINKER_EINVAL);
    CHECK(safetensors_open(&s, "/dev/null/file", &err) != TINKER_OK);
    CHECK(strstr(err.message, "/dev/null/file") != NULL);
}

static const float values[] = { 1, 2, 3, 4, 5, 6 };
static const uint16_t halves[] = { 0x3f80, 0x4000 };

static const void *fetch(void *state, size_t i, tinker_error *err)
{
    (void)state;
    (void)err;
    return i == 1 ? (const void *)halves : (const void *)(values + (i == 2));
}

static void test_writes_sorted_and_aligned(void)
{
    struct st_entry entries[] = {
        { "z", SOURCE_F32, { 2, 3 }, 2 },
        { "a", SOURCE_BF16, { 2 }, 1 },
        { "m", SOURCE_F32, { 1 }, 1 },
    };
    tinker_error err = { 0 };
    struct safetensors s;
    char path[160];
    snprintf(path, sizeof(path), "%s", tiny_path("w.safetensors"));
    CHECK_INT(safetensors_write(path, entries, 3, fetch, NULL, &err), TINKER_OK);
    CHECK_INT(safetensors_open(&s, path, &err), TINKER_OK);
    CHECK_INT(s.header_len % 8, 0);
    CHECK_STR(s.tensors[0].name, "m"); /* F32 before BF16, then by name */
    CHECK_STR(s.tensors[1].name, "z");
    CHECK_STR(s.tensors[2].name, "a");
    CHECK_MEM(safetensors_find(&s, "z")->data, 24, values, 24);
    CHECK_MEM(safetensors_find(&s, "m")->data, 4, values + 1, 4);
    CHECK_MEM(safetensors_find(&s, "a")->data, 4, halves, 4);
    safetensors_close(&s);
    CHECK_INT(safetensors_write("/dev/null/x", entries, 3, fetch, NULL, &err), TINKER_ESTATE);
    unlink(path);
}

static float half(uint16_t h)
{
    float f;
    st_to_float(&h, SOURCE_F16, 0, 1, &f);
    return f;
}

static uint16_t to_half(float f)
{
    uint16_t h;
    st_from_float(&f, SOURCE_F16, 1, &h);
    return h;
}

static void test_half_precision(void)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = half((uint16_t)h);
        if (isnan(f))
            CHECK(isnan(half(to_half(f))));
        else if (to_half(f) != h)
            TAP_FAIL("%04x became %04x", h, to_half(f));
    }
    CHECK_INT(to_half(65519.0f), 0x7bff);
    CHECK_INT(to_half(65520.0f), 0x7c00);
    CHECK_INT(to_half(-1e9f), 0xfc00);
    CHECK_INT(to_half(0x1p-25f), 0); /* ties to even */
    CHECK_INT(to_half(0x1.8p-25f), 1);
    CHECK_INT(to_half(1.00048828125f), 0x3c00);
    CHECK_INT(to_half(1.0014648f), 0x3c02);
    CHECK_NEAR(half(0x3555), 0.33325195, 1e-7);
    float f = 3.14159274f, back;
    uint16_t b;
    st_from_float(&f, SOURCE_BF16, 1, &b);
    CHECK_INT(b, 0x4049);
    st_to_float(&b, SOURCE_BF16, 0, 1, &back);
    CHECK_NEAR(back, 3.140625, 0);
}

int main(void)
{
    RUN(test_reads);
    RUN(test_refuses);
    RUN(test_refuses_lengths);
    RUN(test_writes_sorted_and_aligned);
    RUN(test_half_precision);
    tiny_done();
    return tap_done();
}
