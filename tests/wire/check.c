/* Checks before sending, size estimates, paths, zstd bodies. */
#include "support/tap.h"

#include <stdint.h>
#include "base/arena.h"
#include "base/array.h"
#include "base/buf.h"
#include "wire/check.h"
#include "wire/path.h"
#include "wire/zstd.h"

static tinker_error err;

/* ---- settings -------------------------------------------------------------------- */

static void test_loss(void)
{
    /* one of ours, one of the hosted service, and one that only a newer service may know */
    static const char *const good[] = { "cross_entropy", "gspo", "loss_of_tomorrow" };
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        tinker_loss l = { .name = good[i] };
        CHECK_INT(wire_check_loss(&l, &err), TINKER_OK);
    }
    tinker_named_number c = { "clip", NAN };
    tinker_loss newer = { .name = "mse" }, none = { .name = "" },
                nan = { .name = "ppo", .config = &c, .n_config = 1 };
    CHECK_INT(wire_check_loss(&newer, &err), TINKER_OK); /* the service may know it */
    CHECK_INT(wire_check_loss(&none, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "loss_fn: has no name, for example cross_entropy");
    CHECK_INT(wire_check_loss(&nan, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "loss_fn_config.clip: must be finite");
}

static void test_lora_adam_sampling(void)
{
    tinker_lora l = TINKER_LORA_INIT;
    CHECK_INT(wire_check_lora(&l, &err), TINKER_OK);
    l.rank = 0;
    CHECK_INT(wire_check_lora(&l, &err), TINKER_EINVAL);
    l.rank = 1;
    l.train_attn = l.train_mlp = l.train_unembed = 0;
    CHECK_INT(wire_check_lora(&l, &err), TINKER_EINVAL);
    tinker_adam a = TINKER_ADAM_INIT;
    CHECK_INT(wire_check_adam(&a, &err), TINKER_OK);
    a.grad_clip_norm = INFINITY;
    CHECK_INT(wire_check_adam(&a, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "adam_params.grad_clip_norm: must be finite");
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    CHECK_INT(wire_check_sampling_params(&p, &err), TINKER_OK);
    p.temperature = -0.5;
    CHECK_INT(wire_check_sampling_params(&p, &err), TINKER_EINVAL);
    p = (tinker_sampling_params)TINKER_SAMPLING_PARAMS_INIT;
    p.top_p = 1.5;
    CHECK_INT(wire_check_sampling_params(&p, &err), TINKER_EINVAL);
    p = (tinker_sampling_params)TINKER_SAMPLING_PARAMS_INIT;
    p.n_stop = 1;
    CHECK_INT(wire_check_sampling_params(&p, &err), TINKER_EINVAL);
}

static void test_checkpoint_names(void)
{
    static const char *const good[] = { "a", "000080", "rolling_000012", "v1.2-final" };
    static const char *const bad[] = { "", ".hidden", "..", "a/b", "a b", "\xc3\xa9", "a\n" };
    char longest[300];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK_INT(wire_check_checkpoint_name(good[i], &err), TINKER_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_INT(wire_check_checkpoint_name(bad[i], &err), TINKER_EINVAL);
    CHECK_INT(wire_check_checkpoint_name(NULL, &err), TINKER_EINVAL);
    memset(longest, 'x', sizeof longest);
    longest[255] = '\0';
    CHECK_INT(wire_check_checkpoint_name(longest, &err), TINKER_OK);
    longest[255] = 'x';
    longest[256] = '\0';
    CHECK_INT(wire_check_checkpoint_name(longest, &err), TINKER_EINVAL);
}

static void test_pointers_in_sampling(void)
{
    tinker_chunk c = { .kind = TINKER_CHUNK_IMAGE_POINTER, .format = "png", .location = "l" };
    tinker_model_input in = { &c, 1 };
    CHECK_INT(wire_check_model_input(&in, true, &err), TINKER_OK);
    CHECK_INT(wire_check_model_input(&in, false, &err), TINKER_EINVAL);
    c.location = NULL;
    CHECK_INT(wire_check_model_input(&in, true, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "chunks[0].location: is required");
}

/* ---- estimates ------------------------------------------------------------------- */

static void test_datum_bytes(void)
{
    static const int64_t shape[] = { 3, 4 }, crow[] = { 0, 1, 1, 2 }, col[] = { 1, 3 };
    static const char data[64] = { 0 };
    tinker_chunk chunks[] = {
        { .kind = TINKER_CHUNK_TEXT, .tokens = (const int32_t *)(const void *)data, .n_tokens = 7 },
        { .kind = TINKER_CHUNK_IMAGE, .bytes = data, .n_bytes = 10, .format = "png" },
        { .kind = TINKER_CHUNK_DMEL, .bytes = data, .n_bytes = 5 },
        { .kind = TINKER_CHUNK_IMAGE_POINTER, .location = "abc", .format = "png" },
    };
    tinker_named_tensor in[] = {
        { "a", { TINKER_FLOAT32, data, 6, NULL, 0, NULL, NULL } }, /* 24 */
        { "b", { TINKER_INT32, data, 6, NULL, 0, NULL, NULL } },   /* 48: int64 on the wire */
        { "c", { TINKER_FLOAT64, data, 2, NULL, 0, NULL, NULL } }, /* 8 */
        { "d", { TINKER_FLOAT32, data, 2, shape, 2, crow, col } }, /* 8 + 32 + 16 */
    };
    tinker_datum d = { .model_input = { chunks, 4 }, .inputs = in, .n_inputs = 4 };
    CHECK_INT(wire_datum_bytes(&d), 28 + 10 + 5 + 3 + 24 + 48 + 8 + 56);
    CHECK_INT(wire_prompt_bytes(&d.model_input), 70 + 10 + 5 + 3);
}

/* Sizes of the chunks that a batch of text datums is cut into, as text. */
static const char *cut_batch(const size_t *tokens, size_t n, size_t max_len, size_t max_bytes)
{
    static char out[256];
    tinker_chunk chunks[16];
    tinker_datum data[16];
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        chunks[i] = (tinker_chunk){ .n_tokens = tokens[i] };
        data[i] = (tinker_datum){ .model_input = { &chunks[i], 1 } };
    }
    out[0] = '\0';
    for (size_t i = 0; i < n;) {
        size_t bytes, end = wire_chunk_end(data, n, i, max_len, max_bytes, &bytes);
        used += (size_t)snprintf(out + used, sizeof out - used, "%zu:%zu ", end - i, bytes);
        i = end;
    }
    return out;
}

static void test_chunking(void)
{
    CHECK_STR(cut_batch((size_t[]){ 3, 3, 1 }, 3, 1024, 16), "1:12 2:16 ");
    CHECK_STR(cut_batch((size_t[]){ 750, 750, 250 }, 3, 1024, 5000), "1:3000 2:4000 ");
    CHECK_STR(cut_batch((size_t[]){ 1, 1, 1, 1, 1 }, 5, 2, 1000), "2:8 2:8 1:4 ");
    CHECK_STR(cut_batch((size_t[]){ 9000, 1, 9000 }, 3, 10, 100), "1:36000 1:4 1:36000 ");
    CHECK_STR(cut_batch((size_t[]){ 25, 1 }, 2, 10, 100), "1:100 1:4 "); /* exactly full */
    CHECK_STR(cut_batch((size_t[]){ 24, 1 }, 2, 10, 100), "2:100 ");
    CHECK_STR(cut_batch((size_t[]){ 5 }, 1, 0, 0), "1:20 "); /* always progress */
}

static void test_lengths(void)
{
    int64_t n = -1;
    tinker_chunk text = { .kind = TINKER_CHUNK_TEXT, .n_tokens = 3 };
    CHECK_INT(wire_chunk_length(&text, &n, &err), TINKER_OK);
    CHECK_INT(n, 3);
    tinker_chunk image = { .kind = TINKER_CHUNK_IMAGE };
    CHECK_INT(wire_chunk_length(&image, &n, &err), TINKER_EINVAL);
    image.has_expected_tokens = 1;
    image.expected_tokens = 64;
    CHECK_INT(wire_chunk_length(&image, &n, &err), TINKER_OK);
    CHECK_INT(n, 64);
    static const struct {
        const char *bytes;
        size_t n;
        int64_t want; /* -1: refused */
    } dmel[] = {
        { "\x04\x02\x82\x01\x50", 5, 130 }, /* uint8, 2 dimensions, 130 x 80 */
        { "\xfe\x04\x01\x05", 4, 5 },       /* constant tensor */
        { "", 0, -1 },
        { "\xfe", 1, -1 },
        { "\x08\x01\x05", 3, -1 }, /* unknown element type */
        { "\x04\x00", 2, -1 },     /* no dimension */
        { "\x04\x02\x05", 3, -1 }, /* second dimension missing */
        { "\x04\x01\x82", 3, -1 }, /* cut varint */
        { "\x04\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 13, -1 },
    };
    for (size_t i = 0; i < sizeof dmel / sizeof dmel[0]; i++) {
        tinker_chunk c = { .kind = TINKER_CHUNK_DMEL,
                           .bytes = dmel[i].bytes,
                           .n_bytes = dmel[i].n };
        n = -1;
        wire_chunk_length(&c, &n, &err);
        CHECK_INT(n, dmel[i].want);
    }
}

static void test_worth_sparse(void)
{
    CHECK(wire_worth_sparse(10, 10, 44));  /* 11 + 88 < 100 */
    CHECK(!wire_worth_sparse(10, 10, 45)); /* 101 */
    CHECK(!wire_worth_sparse(1, 3, 1));    /* 4 */
}

/* ---- paths ----------------------------------------------------------------------- */

static void test_paths(void)
{
    static const char *const bad[] = { "",
                                       "weights/x",
                                       "tinker://run/weights",
                                       "tinker://run/weights/",
                                       "tinker:///weights/x",
                                       "tinker://run/weights/a/b",
                                       "tinker://run/other/x",
                                       "http://run/weights/x",
                                       "tinker://run/Weights/x",
                                       "tinker://" };
    struct wire_path p;
    const char *text = "tinker://b89f:train:0/weights/step-100";
    CHECK_INT(wire_path_parse(text, &p, &err), TINKER_OK);
    CHECK_MEM(p.run, p.n_run, "b89f:train:0", 12);
    CHECK_STR(p.checkpoint_id, "weights/step-100");
    CHECK_STR(p.name, "step-100");
    CHECK_INT(p.sampler, 0);
    CHECK_INT(wire_path_parse("tinker://r/sampler_weights/x", &p, &err), TINKER_OK);
    CHECK_INT(p.sampler, 1);
    CHECK_STR(p.checkpoint_id, "sampler_weights/x");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_INT(wire_path_parse(bad[i], &p, &err), TINKER_EINVAL);
    CHECK_INT(wire_path_parse(NULL, &p, &err), TINKER_EINVAL);
    CHECK_STR(wire_checkpoint_type(true), "sampler");
    CHECK_STR(wire_checkpoint_type(false), "training");
}

static void test_segments(void)
{
    char all[256], back[256];
    struct buf b;
    struct wire_path p;
    for (int i = 0; i < 255; i++)
        all[i] = (char)(i + 1);
    buf_init(&b, 1 << 12);
    wire_put_segment(&b, all, 255);
    CHECK(strspn(b.data, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:%") ==
          b.len);
    CHECK(wire_read_segment(b.data, b.len, back));
    CHECK_MEM(back, 255, all, 255);
    buf_clear(&b);
    static const char *const bad[] = { "%", "a%4", "%zz", "%4g", "a%00b", "%-1" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(!wire_read_segment(bad[i], strlen(bad[i]), back));
    CHECK(wire_read_segment("%252F", 5, back)); /* once is enough */
    CHECK_STR(back, "%2F");
    CHECK_INT(wire_check_segment("name", "...", 3, &err), TINKER_OK);
    CHECK_INT(wire_check_segment("name", "..", 2, &err), TINKER_EINVAL);
    CHECK_INT(wire_check_segment("name", "", 0, &err), TINKER_EINVAL);
    CHECK_INT(wire_check_segment("name", "a\0b", 3, &err), TINKER_EINVAL);
    /* what another service may have named */
    CHECK_INT(wire_path_parse_any("tinker://model_x/0001", &p, &err), TINKER_OK);
    CHECK(p.bare && !p.sampler && !p.external);
    CHECK_STR(p.checkpoint_id, "0001");
    CHECK_INT(wire_path_parse("tinker://model_x/0001", &p, &err), TINKER_EINVAL);
    CHECK_INT(wire_path_parse("tinker://../weights/x", &p, &err), TINKER_EINVAL);
    CHECK_INT(wire_path_parse("tinker://r/weights/..", &p, &err), TINKER_EINVAL);
    CHECK_INT(wire_path_parse("tinker://r/weights/a\nb", &p, &err), TINKER_EINVAL);
}

/* ---- zstd ------------------------------------------------------------------------ */

static void test_zstd(void)
{
    enum { N = 300000 };
    char *text = malloc(N);
    struct buf packed, plain;
    REQUIRE(text != NULL);
    for (int i = 0; i < N; i++)
        text[i] = (char)(i * 31 % 97);
    buf_init(&packed, 1 << 20);
    buf_init(&plain, 1 << 20);
    CHECK_INT(wire_zstd_compress(text, N, &packed, &err), TINKER_OK);
    CHECK(packed.len < N / 10);
    /* magic number, then a descriptor that says: single segment, content size given */
    CHECK_MEM(packed.data, 4, "\x28\xb5\x2f\xfd", 4);
    CHECK((packed.data[4] & 0x20) || (packed.data[4] & 0xc0));
    CHECK_INT(wire_zstd_decompress(packed.data, packed.len, N, &plain, &err), TINKER_OK);
    CHECK_MEM(plain.data, plain.len, text, N);
    buf_reset(&plain);
    CHECK_INT(wire_zstd_decompress(packed.data, packed.len, N - 1, &plain, &err), TINKER_ENOMEM);
    buf_reset(&plain);
    CHECK_INT(wire_zstd_decompress(packed.data, packed.len - 1, N, &plain, &err), TINKER_EINVAL);
    buf_reset(&plain);
    CHECK_INT(wire_zstd_decompress("plain text", 10, N, &plain, &err), TINKER_EINVAL);
    /* two frames, one after the other */
    size_t one = packed.len;
    CHECK_INT(wire_zstd_compress("tail", 4, &packed, &err), TINKER_OK);
    buf_reset(&plain);
    CHECK_INT(wire_zstd_decompress(packed.data, packed.len, N + 4, &plain, &err), TINKER_OK);
    CHECK_INT(plain.len, N + 4);
    CHECK_MEM(plain.data + N, 4, "tail", 4);
    buf_reset(&plain);
    CHECK_INT(wire_zstd_decompress(packed.data, packed.len, N + 3, &plain, &err), TINKER_ENOMEM);
    /* an empty body is a frame too */
    buf_reset(&plain);
    buf_reset(&packed);
    CHECK_INT(wire_zstd_compress("", 0, &packed, &err), TINKER_OK);
    CHECK_INT(wire_zstd_decompress(packed.data, packed.len, 0, &plain, &err), TINKER_OK);
    CHECK_INT(plain.len, 0);
    CHECK(one > 0);
    buf_clear(&packed);
    buf_clear(&plain);
    free(text);
}

int main(void)
{
    RUN(test_loss);
    RUN(test_lora_adam_sampling);
    RUN(test_checkpoint_names);
    RUN(test_pointers_in_sampling);
    RUN(test_datum_bytes);
    RUN(test_chunking);
    RUN(test_lengths);
    RUN(test_worth_sparse);
    RUN(test_paths);
    RUN(test_segments);
    RUN(test_zstd);
    return tap_done();
}
