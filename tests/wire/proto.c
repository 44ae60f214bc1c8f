/* Protobuf: golden bytes both ways, tolerance of decoders, conversions, damage. */
#include "support/tap.h"

#include <stdint.h>
#include "base/arena.h"
#include "base/buf.h"
#include "wire/check.h"
#include "wire/proto.h"
#include "wire/wire.h"

static struct arena arena;
static struct buf out;
static tinker_error err;

/* Hex digits and spaces to bytes in the arena. */
static const uint8_t *parse_hex(const char *hex, size_t *n)
{
    uint8_t *bytes = arena_alloc(&arena, strlen(hex));
    *n = 0;
    for (; *hex; hex++) {
        unsigned v;
        if (*hex == ' ')
            continue;
        sscanf(hex, "%2x", &v);
        bytes[(*n)++] = (uint8_t)v;
        hex++;
    }
    return bytes;
}

static void check_bytes(const char *hex)
{
    size_t n;
    const uint8_t *want = parse_hex(hex, &n);
    CHECK_MEM(out.data, out.len, want, n);
}

static const char request_hex[] =
    "0a 09 73 3a 74 72 61 69 6e 3a 30 10 01 1a 38 0a 0c 0a 0a 0a 08 01 00 00 00 02 00 00 00 12 28 "
    "0a 0d 74 61 72 67 65 74 5f 74 6f 6b 65 6e 73 12 17 0a 10 02 00 00 00 00 00 00 00 03 00 00 00 "
    "00 00 00 00 18 02 22 01 02 22 03 70 70 6f 2a 1d 0a 12 63 6c 69 70 5f 6c 6f 77 5f 74 68 72 65 "
    "73 68 6f 6c 64 11 9a 99 99 99 99 99 e9 3f 30 01";

/* A request around one datum. */
static struct wire_forward_backward_request request_of(const tinker_datum *d, size_t n)
{
    return (struct wire_forward_backward_request){
        .model_id = "m", .data = d, .n_data = n, .loss = { .name = "ppo" }
    };
}

/* Encode *req and decode it again. */
static tinker_status encode_and_decode(const struct wire_forward_backward_request *req,
                                       struct wire_forward_backward_request *back)
{
    buf_reset(&out);
    memset(&err, 0, sizeof err);
    tinker_status status = wire_encode_forward_backward_request(req, &out, &err);
    if (status)
        return status;
    return wire_decode_forward_backward_request(out.data, out.len, &arena, back, &err);
}

/* ---- golden bytes ---------------------------------------------------------------- */

/* Settings that are texts, and spans: the bytes that the official SDK 0.36 wrote. */
static void test_text_settings_and_spans(void)
{
    static const char hex[] =
        "0a026d3110031a710a0c0a0a0a08010000000200000012280a0d7461726765745f746f6b656e7312170a100200"
        "00"
        "000000000003000000000000001802220102121a0a0777656967687473120f0a080000803f0000803f18012201"
        "021a070a050a0161180222090a070a016110011801220712050a016118012206637573746f6d2a0c0a01781100"
        "00"
        "0000000000403a130a076c6f73735f6964120812066c6f73732d313a0e0a01781209090000000000000040";
    struct wire_forward_backward_request req, back;
    struct buf b;
    size_t n;
    const uint8_t *bytes = parse_hex(hex, &n);
    buf_init(&b, 1 << 20);
    REQUIRE(wire_decode_forward_backward_request(bytes, n, &arena, &req, &err) == TINKER_OK);
    REQUIRE(req.n_data == 1 && req.loss.n_texts == 1 && req.loss.n_config == 1);
    CHECK_STR(req.loss.texts[0].name, "loss_id");
    CHECK_STR(req.loss.texts[0].value, "loss-1");
    CHECK_NEAR(req.loss.config[0].value, 2, 0);
    const tinker_datum *d = &req.data[0];
    REQUIRE(d->n_input_spans == 1 && d->n_target_spans == 2);
    CHECK_INT(d->input_spans[0].sampled, 0);
    CHECK_INT(d->input_spans[0].length, 2);
    CHECK_INT(d->target_spans[0].offset, 1);
    CHECK_INT(d->target_spans[1].sampled, 1);
    CHECK_STR(d->target_spans[1].sequence_id, "a");
    /* written again: as long, and read back the same; only the order of the settings may differ */
    req.shaped = true;
    REQUIRE(wire_encode_forward_backward_request(&req, &b, &err) == TINKER_OK);
    CHECK_INT(b.len, n);
    CHECK(memcmp(b.data, bytes, n - 2 * 18) == 0);
    REQUIRE(wire_decode_forward_backward_request(b.data, b.len, &arena, &back, &err) == TINKER_OK);
    CHECK(wire_hash(&wire_forward_backward_request, &req) ==
          wire_hash(&wire_forward_backward_request, &back));
    /* spans count in the hash, and must cover what they describe */
    tinker_datum changed = *d;
    changed.n_target_spans = 1;
    back.data = &changed;
    CHECK(wire_hash(&wire_forward_backward_request, &req) !=
          wire_hash(&wire_forward_backward_request, &back));
    CHECK_INT(wire_check_data(&changed, 1, &err), TINKER_EINVAL);
    CHECK_STR(err.message,
              "data[0].loss_fn_input_spans: the spans cover 1 positions but the field has 2");
    changed.n_target_spans = 0;
    CHECK_INT(wire_check_data(&changed, 1, &err), TINKER_EINVAL);
    buf_clear(&b);
    arena_clear(&arena);
}

static void test_golden_request(void)
{
    static const int32_t tokens[] = { 1, 2 };
    static const int64_t targets[] = { 2, 3 }, shape[] = { 2 };
    tinker_chunk chunk = { .kind = TINKER_CHUNK_TEXT, .tokens = tokens, .n_tokens = 2 };
    tinker_named_tensor input = { "target_tokens",
                                  { TINKER_INT64, targets, 2, shape, 1, NULL, NULL } };
    tinker_datum d = { .model_input = { &chunk, 1 }, .inputs = &input, .n_inputs = 1 };
    tinker_named_number config = { "clip_low_threshold", 0.8 };
    struct wire_forward_backward_request req = {
        .model_id = "s:train:0",
        .seq_id = { 1, 1 },
        .data = &d,
        .n_data = 1,
        .loss = { .name = "ppo", .config = &config, .n_config = 1 },
        .forward_only = true
    };
    struct wire_forward_backward_request back;
    CHECK_INT(encode_and_decode(&req, &back), TINKER_OK);
    CHECK_INT(out.len, 109);
    check_bytes(request_hex);
    CHECK_STR(back.model_id, "s:train:0");
    CHECK_INT(back.seq_id.has, 1);
    CHECK_INT(back.seq_id.value, 1);
    CHECK_INT(back.forward_only, 1);
    CHECK_STR(back.loss.name, "ppo");
    REQUIRE(back.loss.n_config == 1 && back.n_data == 1 && back.data[0].n_inputs == 1);
    CHECK_STR(back.loss.config[0].name, "clip_low_threshold");
    CHECK_NEAR(back.loss.config[0].value, 0.8, 0);
    REQUIRE(back.data[0].model_input.n_chunks == 1);
    CHECK_MEM(back.data[0].model_input.chunks[0].tokens, 8, tokens, 8);
    CHECK_STR(back.data[0].inputs[0].name, "target_tokens");
    CHECK_INT(back.data[0].inputs[0].tensor.dtype, TINKER_INT64);
    CHECK_MEM(back.data[0].inputs[0].tensor.data, 16, targets, 16);
    CHECK_INT(back.data[0].inputs[0].tensor.shape[0], 2);
}

/* The tensor of data[0].loss_fn_inputs.t as encoded: what follows the map key. */
static void check_tensor_bytes(const tinker_tensor *t, const char *hex)
{
    tinker_named_tensor input = { "t", *t };
    tinker_datum d = { .model_input = { NULL, 0 }, .inputs = &input, .n_inputs = 1 };
    struct wire_forward_backward_request req = request_of(&d, 1), back;
    size_t n;
    const uint8_t *want = parse_hex(hex, &n);
    CHECK_INT(encode_and_decode(&req, &back), TINKER_OK);
    if (err.message[0])
        TAP_FAIL("%s", err.message);
    /* 0a 01 m | 1a len | 12 len | 0a 01 t | 12 len <tensor> | 22 03 ppo */
    REQUIRE(out.len == 3 + 2 + 2 + 3 + 2 + n + 5);
    CHECK_MEM(out.data + 12, n, want, n);
    const tinker_tensor *b = &back.data[0].inputs[0].tensor;
    CHECK_INT(b->n, t->n);
    CHECK_INT(b->ndim, t->ndim);
}

static void test_golden_tensors(void)
{
    static const float values[] = { 1, 2 };
    static const int64_t crow[] = { 0, 1, 1, 2 }, col[] = { 1, 3 }, shape[] = { 3, 4 };
    static const int64_t zero[] = { 0 };
    tinker_tensor sparse = { TINKER_FLOAT32, values, 2, shape, 2, crow, col };
    check_tensor_bytes(&sparse, "12 3e 0a 08 00 00 80 3f 00 00 00 40 12 20 00 00 00 00 00 00 00 00 "
                                "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 "
                                "00 00 1a 10 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 18 01 "
                                "22 02 03 04");
    tinker_tensor empty = { TINKER_FLOAT32, NULL, 0, zero, 1, NULL, NULL };
    check_tensor_bytes(&empty, "0a 00 18 01 22 01 00");
    tinker_tensor bare = { TINKER_INT64, (int64_t[]){ -1 }, 1, NULL, 0, NULL, NULL };
    check_tensor_bytes(&bare, "0a 08 ff ff ff ff ff ff ff ff 18 02");
}

static void test_vectors_without_shape(void)
{
    static const int64_t values[] = { 5, 6, 7 };
    tinker_named_tensor input = { "t", { TINKER_INT64, values, 3, NULL, 0, NULL, NULL } };
    tinker_datum d = { .model_input = { NULL, 0 }, .inputs = &input, .n_inputs = 1 };
    struct wire_forward_backward_request req = request_of(&d, 1), back;
    req.shaped = true;
    REQUIRE(encode_and_decode(&req, &back) == TINKER_OK);
    CHECK_INT(back.data[0].inputs[0].tensor.ndim, 1);
    CHECK_INT(back.data[0].inputs[0].tensor.shape[0], 3);
}

static void test_golden_chunks(void)
{
    tinker_chunk chunks[] = {
        { .kind = TINKER_CHUNK_IMAGE,
          .bytes = "\x89PNG",
          .n_bytes = 4,
          .format = "png",
          .has_expected_tokens = 1 },
        { .kind = TINKER_CHUNK_TEXT },
        { .kind = TINKER_CHUNK_DMEL, .bytes = "\x04\x01\x03", .n_bytes = 3 },
    };
    tinker_datum d = { .model_input = { chunks, 3 }, .inputs = NULL, .n_inputs = 0 };
    struct wire_forward_backward_request req = request_of(&d, 1), back;
    CHECK_INT(encode_and_decode(&req, &back), TINKER_OK);
    check_bytes("0a 01 6d 1a 1e"
                " 0a 0f 12 0d 0a 04 89 50 4e 47 12 03 70 6e 67 18 00"
                " 0a 02 0a 00"
                " 0a 07 1a 05 0a 03 04 01 03"
                " 22 03 70 70 6f");
    REQUIRE(back.n_data == 1 && back.data[0].model_input.n_chunks == 3);
    const tinker_chunk *c = back.data[0].model_input.chunks;
    CHECK_INT(c[0].kind, TINKER_CHUNK_IMAGE);
    CHECK_STR(c[0].format, "png");
    CHECK_INT(c[0].has_expected_tokens, 1);
    CHECK_INT(c[0].expected_tokens, 0);
    CHECK_INT(c[1].kind, TINKER_CHUNK_TEXT);
    CHECK_INT(c[1].n_tokens, 0);
    CHECK_INT(c[2].kind, TINKER_CHUNK_DMEL);
    CHECK_MEM(c[2].bytes, c[2].n_bytes, "\x04\x01\x03", 3);
}

static const char sample_hex[] =
    "0a 16 08 01 12 08 0b 00 00 00 0c 00 00 00 1a 08 00 00 00 bf 00 00 80 be 12 08 00 00 c0 7f 00 "
    "00 c0 bf 1a 18 0a 08 00 00 00 00 07 00 00 00 12 08 80 4f c3 c7 00 00 c0 bf 18 01 20 02 20 02";

static void test_golden_sample(void)
{
    tinker_sample s;
    size_t n;
    const uint8_t *bytes = parse_hex(sample_hex, &n);
    CHECK_INT(n, 62);
    CHECK_INT(wire_decode_sample_response(bytes, n, &arena, &s, &err), TINKER_OK);
    REQUIRE(s.n_sequences == 1 && s.n_prompt == 2);
    CHECK_INT(s.sequences[0].stop_reason, TINKER_STOP_LENGTH);
    CHECK_INT(s.sequences[0].n, 2);
    CHECK_INT(s.sequences[0].tokens[1], 12);
    CHECK_NEAR(s.sequences[0].logprobs[1], -0.25, 0);
    CHECK(isnan(s.prompt_logprobs[0]));
    CHECK_NEAR(s.prompt_logprobs[1], -1.5, 0);
    CHECK_INT(s.topk, 1);
    CHECK_INT(s.topk_tokens[1], 7);
    CHECK_NEAR(s.topk_logprobs[0], -99999.0, 0);
    CHECK_INT(s.prompt_cache_hit_tokens, 2);
    buf_reset(&out);
    CHECK_INT(wire_encode_sample_response(&s, &out, &err), TINKER_OK);
    CHECK_MEM(out.data, out.len, bytes, n);
}

/* SDK 0.36's SampleResponse of two tokens with two rivals each. */
static const char rivals_hex[] =
    "0a 36 08 01 12 08 0b 00 00 00 0c 00 00 00 22 28 0a 10 0b 00 00 00 07 00 00 00 0c 00 00 00 00 "
    "00 "
    "00 00 12 10 00 00 00 bf 00 00 80 bf 00 00 80 be 80 4f c3 c7 18 02 20 02";

static void test_golden_sampled_topk(void)
{
    tinker_sample s;
    size_t n;
    const uint8_t *bytes = parse_hex(rivals_hex, &n);
    REQUIRE(wire_decode_sample_response(bytes, n, &arena, &s, &err) == TINKER_OK);
    REQUIRE(s.n_sequences == 1 && s.sequences[0].n == 2 && s.sequences[0].topk == 2);
    CHECK_INT(s.sequences[0].topk_tokens[1], 7);
    CHECK_NEAR(s.sequences[0].topk_logprobs[2], -0.25, 0);
    CHECK_NEAR(s.sequences[0].topk_logprobs[3], -99999.0, 0);
    CHECK(!s.topk_tokens && !s.sequences[0].logprobs);
    buf_reset(&out);
    CHECK_INT(wire_encode_sample_response(&s, &out, &err), TINKER_OK);
    CHECK_MEM(out.data, out.len, bytes, n);
}

static const char output_hex[] =
    "0a 0f 54 6f 72 63 68 4c 6f 73 73 52 65 74 75 72 6e 12 3a 12 36 0a 08 6c 6f 67 70 72 6f 62 73 "
    "12 2a 0a 0c 00 00 80 bf 00 00 00 c0 00 00 40 c0 12 18 00 00 00 00 00 00 00 00 08 00 00 00 00 "
    "00 00 00 0c 00 00 00 00 00 00 00 18 01 18 02 1a 13 0a 08 6c 6f 73 73 3a 73 75 6d 11 00 00 00 "
    "00 00 00 18 40";

static void test_golden_output(void)
{
    tinker_forward_backward v;
    size_t n;
    const uint8_t *bytes = parse_hex(output_hex, &n);
    CHECK_INT(n, 98);
    CHECK_INT(wire_decode_forward_backward_output(bytes, n, &arena, &v, &err), TINKER_OK);
    CHECK_STR(v.output_type, "TorchLossReturn");
    REQUIRE(v.n_outputs == 2 && v.outputs[0].n_tensors == 1 && v.outputs[1].n_tensors == 1);
    CHECK_STR(v.outputs[1].tensors[0].name, "logprobs");
    CHECK_INT(v.outputs[0].tensors[0].tensor.n, 2);
    CHECK_INT(v.outputs[1].tensors[0].tensor.n, 1);
    CHECK_INT(v.outputs[1].tensors[0].tensor.shape[0], 1);
    CHECK_NEAR(((const float *)v.outputs[0].tensors[0].tensor.data)[1], -2, 0);
    CHECK_NEAR(((const float *)v.outputs[1].tensors[0].tensor.data)[0], -3, 0);
    CHECK_NEAR(tinker_metric(v.metrics, v.n_metrics, "loss:sum"), 6, 0);
    buf_reset(&out);
    CHECK_INT(wire_encode_forward_backward_output(&v, &out, &err), TINKER_OK);
    CHECK_MEM(out.data, out.len, bytes, n);
}

/* ---- conversions ----------------------------------------------------------------- */

static void test_conversions(void)
{
    static const double doubles[] = { 0.1, -1e30, INFINITY };
    static const int32_t ints[] = { -5, INT32_MAX };
    static const uint32_t words[] = { UINT32_MAX };
    static const uint64_t longs[] = { INT64_MAX };
    tinker_named_tensor in[] = {
        { "d", { TINKER_FLOAT64, doubles, 3, NULL, 0, NULL, NULL } },
        { "i", { TINKER_INT32, ints, 2, NULL, 0, NULL, NULL } },
        { "w", { TINKER_UINT32, words, 1, NULL, 0, NULL, NULL } },
        { "l", { TINKER_UINT64, longs, 1, NULL, 0, NULL, NULL } },
    };
    tinker_datum d = { .model_input = { NULL, 0 }, .inputs = in, .n_inputs = 4 };
    struct wire_forward_backward_request req = request_of(&d, 1), back;
    CHECK_INT(encode_and_decode(&req, &back), TINKER_OK);
    REQUIRE(back.data[0].n_inputs == 4);
    const float *f = back.data[0].inputs[0].tensor.data;
    CHECK_INT(back.data[0].inputs[0].tensor.dtype, TINKER_FLOAT32);
    CHECK(f[0] == 0.1f && f[1] == -1e30f && isinf(f[2]));
    const int64_t *i = back.data[0].inputs[1].tensor.data;
    CHECK_INT(back.data[0].inputs[1].tensor.dtype, TINKER_INT64);
    CHECK(i[0] == -5 && i[1] == INT32_MAX);
    CHECK(*(const int64_t *)back.data[0].inputs[2].tensor.data == UINT32_MAX);
    CHECK(*(const int64_t *)back.data[0].inputs[3].tensor.data == INT64_MAX);
}

static void test_refused(void)
{
    static const uint64_t big[] = { 1, UINT64_C(1) << 63 };
    static const double huge[] = { 1e39 };
    static const float f[12] = { 0 };
    static const int64_t shape[] = { 12 }, csr[] = { 2, 2 }, crow[] = { 0, 2, 1 }, col[] = { 0, 9 };
    static const int64_t crow2[] = { 0, 1, 2 };
    struct {
        tinker_tensor t;
        const char *want;
    } cases[] = {
        { { TINKER_UINT64, big, 2, NULL, 0, NULL, NULL }, "value 1 is above the largest int64" },
        { { TINKER_FLOAT64, huge, 1, NULL, 0, NULL, NULL },
          "value 0 (1e+39) is too large for float32" },
        { { TINKER_BFLOAT16, f, 2, NULL, 0, NULL, NULL },
          "bfloat16 is not accepted as input: use float32" },
        { { 0, f, 2, NULL, 0, NULL, NULL }, "unknown element type 0" },
        { { TINKER_FLOAT32, f, 11, shape, 1, NULL, NULL }, "expected 12 values, got 11" },
        { { TINKER_FLOAT32, NULL, 3, NULL, 0, NULL, NULL }, "has no data" },
        { { TINKER_FLOAT32, f, 1, csr, 2, crow, col }, "row pointer 2 decreases" },
        { { TINKER_FLOAT32, f, 2, csr, 2, crow, col }, "row pointers must run from 0 to 2" },
        { { TINKER_FLOAT32, f, 2, csr, 2, crow2, col }, "column index 1 is 9, of 2 columns" },
        { { TINKER_FLOAT32, f, 2, shape, 1, crow2, col },
          "a sparse tensor needs a shape of two dimensions" },
        { { TINKER_FLOAT32, f, 2, csr, 2, crow2, NULL },
          "row pointers and column indices go together" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tinker_named_tensor in = { "weights", cases[i].t };
        tinker_datum d[] = { { .model_input = { NULL, 0 }, .inputs = NULL, .n_inputs = 0 },
                             { .model_input = { NULL, 0 }, .inputs = &in, .n_inputs = 1 } };
        struct wire_forward_backward_request req = request_of(d, 2), back;
        char want[200];
        snprintf(want, sizeof want, "data[1].loss_fn_inputs.weights: %s", cases[i].want);
        CHECK_INT(encode_and_decode(&req, &back), TINKER_EINVAL);
        CHECK_STR(err.message, want);
    }
}

static void test_refused_inputs(void)
{
    tinker_chunk pointer = { .kind = TINKER_CHUNK_IMAGE_POINTER, .format = "png", .location = "l" };
    tinker_chunk gif = { .kind = TINKER_CHUNK_IMAGE, .bytes = "x", .n_bytes = 1, .format = "gif" };
    tinker_datum a = { .model_input = { &pointer, 1 }, .inputs = NULL, .n_inputs = 0 },
                 b = { .model_input = { &gif, 1 }, .inputs = NULL, .n_inputs = 0 };
    tinker_named_tensor twice[] = {
        { "w", { TINKER_FLOAT32, NULL, 0, NULL, 0, NULL, NULL } },
        { "w", { TINKER_FLOAT32, NULL, 0, NULL, 0, NULL, NULL } },
    };
    tinker_datum c = { .model_input = { NULL, 0 }, .inputs = twice, .n_inputs = 2 };
    struct wire_forward_backward_request req = request_of(&a, 1), back;
    CHECK_INT(encode_and_decode(&req, &back), TINKER_EINVAL);
    CHECK_STR(err.message, "data[0].model_input.chunks[0]: an image_asset_pointer works for "
                           "sampling only: training needs the image bytes");
    req.data = &b;
    CHECK_INT(encode_and_decode(&req, &back), TINKER_EINVAL);
    CHECK_STR(err.message,
              "data[0].model_input.chunks[0].format: expected \"png\" or \"jpeg\", got \"gif\"");
    req.data = &c;
    CHECK_INT(encode_and_decode(&req, &back), TINKER_EINVAL);
    CHECK_STR(err.message, "data[0].loss_fn_inputs.w: is given twice");
    req.n_data = 0;
    CHECK_INT(encode_and_decode(&req, &back), TINKER_EINVAL);
    CHECK_STR(err.message, "data: at least one datum is needed");
    req.n_data = 1;
    req.seq_id = (struct wire_opt_int){ 1, INT64_C(1) << 31 };
    CHECK_INT(encode_and_decode(&req, &back), TINKER_EINVAL);
}

/* ---- tolerance ------------------------------------------------------------------- */

static void test_any_order_and_unknown_fields(void)
{
    /* loss first, unknown varint 15, group 14, fixed32 13, seq_id twice, model_id last;
     * unpacked shape; map value before key; the map key repeated: last wins. */
    const char *hex = "22 03 70 70 6f 78 05 73 08 01 74 6d 01 02 03 04 10 07 10 02"
                      "1a 28 12 11 12 0c 22 01 02 18 02 0a 05 00 00 00 00 00 0a 01 74"
                      "12 13 12 0e 20 01 18 01 0a 04 00 00 80 3f 20 01 28 09 0a 01 74"
                      "0a 01 6d";
    struct wire_forward_backward_request back;
    size_t n;
    const uint8_t *bytes = parse_hex(hex, &n);
    /* the first value of the map is damaged (5 bytes of int64): refused as such */
    CHECK_INT(wire_decode_forward_backward_request(bytes, n, &arena, &back, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "data[0].loss_fn_inputs.t: 5 bytes are no whole number of elements of "
                           "8 bytes");
    hex = "22 03 70 70 6f 78 05 73 08 01 74 6d 01 02 03 04 10 07 10 02"
          "1a 2b 12 14 12 0f 22 01 01 18 02 0a 08 00 00 00 00 00 00 00 00 0a 01 74"
          "12 13 12 0e 20 01 18 01 0a 04 00 00 80 3f 20 01 28 09 0a 01 74"
          "0a 01 6d";
    bytes = parse_hex(hex, &n);
    CHECK_INT(wire_decode_forward_backward_request(bytes, n, &arena, &back, &err), TINKER_OK);
    CHECK_STR(back.model_id, "m");
    CHECK_INT(back.seq_id.value, 2);
    REQUIRE(back.n_data == 1 && back.data[0].n_inputs == 1);
    CHECK_INT(back.data[0].inputs[0].tensor.dtype, TINKER_FLOAT32);
    CHECK_INT(back.data[0].inputs[0].tensor.ndim, 2);
    CHECK_NEAR(*(const float *)back.data[0].inputs[0].tensor.data, 1, 0);
}

static void test_output_records(void)
{
    /* two records: bf16 with trailing [2], then a record of no fields that counts one,
     * then int32; type "mod:Cls". */
    const char *hex = "0a 07 6d 6f 64 3a 43 6c 73"
                      "12 2a 12 26 0a 01 78 12 21 0a 08 80 3f 00 40 40 40 80 40 12 10 00 00 00 00 "
                      "00 00 00 00 08 00 00 00 00 00 00 00 18 04 22 01 02 18 01"
                      "12 02 18 01"
                      "12 21 12 1f 0a 01 78 12 1a 0a 04 fb ff ff ff 12 10 00 00 00 00 00 00 00 00 "
                      "04 00 00 00 00 00 00 00 18 03";
    tinker_forward_backward v;
    size_t n;
    const uint8_t *bytes = parse_hex(hex, &n);
    memset(&err, 0, sizeof err);
    CHECK_INT(wire_decode_forward_backward_output(bytes, n, &arena, &v, &err), TINKER_OK);
    CHECK_STR(err.message, "");
    CHECK_STR(v.output_type, "Cls");
    REQUIRE(v.n_outputs == 3);
    const tinker_tensor *t = &v.outputs[0].tensors[0].tensor;
    CHECK_INT(t->dtype, TINKER_FLOAT32);
    CHECK_INT(t->ndim, 2);
    CHECK_INT(t->shape[0], 2);
    CHECK_INT(t->shape[1], 2);
    CHECK_NEAR(((const float *)t->data)[3], 4, 0);
    CHECK_INT(v.outputs[1].n_tensors, 0);
    t = &v.outputs[2].tensors[0].tensor;
    CHECK_INT(t->dtype, TINKER_INT64);
    CHECK_INT(*(const int64_t *)t->data, -5);
    /* encoding it again splits where the layout changes and reads back the same */
    buf_reset(&out);
    tinker_forward_backward w;
    CHECK_INT(wire_encode_forward_backward_output(&v, &out, &err), TINKER_OK);
    CHECK_INT(wire_decode_forward_backward_output(out.data, out.len, &arena, &w, &err), TINKER_OK);
    REQUIRE(w.n_outputs == 3);
    CHECK_INT(w.outputs[0].tensors[0].tensor.shape[1], 2);
    CHECK_INT(w.outputs[1].n_tensors, 0);
    CHECK_INT(*(const int64_t *)w.outputs[2].tensors[0].tensor.data, -5);
}

static void test_output_without_records(void)
{
    tinker_forward_backward v;
    CHECK_INT(wire_decode_forward_backward_output("", 0, &arena, &v, &err), TINKER_OK);
    CHECK_STR(v.output_type, "ArrayRecord");
    CHECK_INT(v.n_outputs, 0);
    CHECK_INT(wire_decode_forward_backward_output("\x0a\x03\x61\x3a\x62", 5, &arena, &v, &err),
              TINKER_OK);
    CHECK_STR(v.output_type, "a:b");
}

static void test_empty_sample_parts(void)
{
    tinker_sample s;
    size_t n;
    /* empty logprobs, empty prompt_logprobs, topk with k 0: all mean none */
    const uint8_t *bytes = parse_hex("0a 08 12 04 05 00 00 00 1a 00 12 00 1a 02 20 03", &n);
    CHECK_INT(wire_decode_sample_response(bytes, n, &arena, &s, &err), TINKER_OK);
    CHECK_INT(s.sequences[0].stop_reason, TINKER_STOP_STOP);
    CHECK(s.sequences[0].logprobs == NULL);
    CHECK(s.prompt_logprobs == NULL);
    CHECK(s.topk_tokens == NULL);
    CHECK_INT(s.topk, 0);
}

/* ---- damage ---------------------------------------------------------------------- */

struct damage {
    const char *hex, *want;
};

static void test_bad_samples(void)
{
    static const char cut[] = "the protobuf message is damaged or cut off";
    static const struct damage cases[] = {
        { "0a 02 08 02", "sequences[0]: unknown stop_reason 2" },
        { "0a 05 12 03 01 02 03",
          "sequences[0]: 3 bytes are no whole number of elements of 4 bytes" },
        { "0a 00 0a 0e 12 08 01 00 00 00 02 00 00 00 1a 04 00 00 00 00", cut },
        { "0a 10 12 08 01 00 00 00 02 00 00 00 1a 04 00 00 00 00",
          "sequences[0]: logprobs: expected 2 values, got 1" },
        { "0a 1c 12 08 01 00 00 00 02 00 00 00 22 10 0a 04 00 00 00 00 12 04 00 00 00 00 18 01 20 "
          "01",
          "sequences[0]: topk_sampled_logprobs: expected 2 rows, got 1" },
        { "0a 1c 12 08 01 00 00 00 02 00 00 00 22 10 0a 04 00 00 00 00 12 04 00 00 00 00 18 02 20 "
          "01",
          "sequences[0]: expected 1 rows of 2 values" },
        { "1a 08 0a 05 00 00 00 00 18 01",
          "topk_prompt_logprobs: the protobuf message is damaged or cut off" },
        { "1a 10 0a 04 00 00 00 00 12 04 00 00 00 00 18 01 20 02",
          "topk_prompt_logprobs: expected 2 rows of 1 values" },
        { "1a 14 0a 04 00 00 00 00 12 04 00 00 00 00 18 ff ff ff ff 0f 20 01",
          "topk_prompt_logprobs: expected 1 rows of 4294967295 values" },
        { "12 08 00 00 00 00 00 00 00 00 1a 10 0a 04 00 00 00 00 12 04 00 00 00 00 18 01 20 01",
          "topk_prompt_logprobs: expected 2 rows, got 1" },
        { "0f", cut },                                  /* no such wire type */
        { "0b 0c 0c", cut },                            /* group closed twice */
        { "0b", cut },                                  /* group never closed */
        { "00 00", cut },                               /* field number 0 */
        { "08 ff ff ff ff ff ff ff ff ff ff 01", cut }, /* varint of 11 bytes */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tinker_sample s;
        size_t n;
        const uint8_t *bytes = parse_hex(cases[i].hex, &n);
        memset(&err, 0, sizeof err);
        CHECK_INT(wire_decode_sample_response(bytes, n, &arena, &s, &err), TINKER_EINVAL);
        CHECK_STR(err.message, cases[i].want);
    }
}

static void test_bad_outputs(void)
{
    static const struct damage cases[] = {
        { "12 0a 18 ff ff ff ff ff ff ff ff 7f", "loss_fn_outputs[0]: 9223372036854775807 datums" },
        { "12 0b 18 ff ff ff ff ff ff ff ff ff 01", "loss_fn_outputs[0]: -1 datums" },
        { "12 0b 12 07 0a 01 78 12 02 18 01 18 01",
          "loss_fn_outputs[0]: x: expected 1 datums, got 0" },
        { "12 07 12 05 0a 01 78 12 00", "loss_fn_outputs[0].x: unknown element type 0" },
        { "12 1d 12 19 0a 01 78 12 14 12 10 00 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 18 01 "
          "18 01",
          "loss_fn_outputs[0].x: offset 1 is 4, after 0, in 0 bytes" },
        { "12 29 12 25 0a 01 78 12 20 12 10 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 18 01 "
          "22 0a "
          "ff ff ff ff ff ff ff ff ff 01 18 01",
          "loss_fn_outputs[0].x: trailing dimension 0 is -1" },
        { "12 26 12 22 0a 01 78 12 1d 0a 04 00 00 00 00 12 10 00 00 00 00 00 00 00 00 04 00 00 00 "
          "00 00 "
          "00 00 18 01 22 01 02 18 01",
          "loss_fn_outputs[0]: datum 0: 1 values are no whole rows of 2" },
        { "1a 03 0a 01 ff", "a text is not valid UTF-8" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tinker_forward_backward v;
        size_t n;
        const uint8_t *bytes = parse_hex(cases[i].hex, &n);
        memset(&err, 0, sizeof err);
        CHECK_INT(wire_decode_forward_backward_output(bytes, n, &arena, &v, &err), TINKER_EINVAL);
        CHECK_STR(err.message, cases[i].want);
    }
}

/* Every cut of a good message is an error or, at a field boundary, a shorter one. */
static void test_cut_messages(void)
{
    size_t n;
    const uint8_t *bytes = parse_hex(request_hex, &n);
    int refused = 0;
    for (size_t cut = 0; cut < n; cut++) {
        struct wire_forward_backward_request back;
        /* an exact copy, so that a sanitizer sees a read past the end */
        uint8_t *copy = malloc(cut ? cut : 1);
        memcpy(copy, bytes, cut);
        refused +=
            wire_decode_forward_backward_request(copy, cut, &arena, &back, &err) != TINKER_OK;
        free(copy);
    }
    CHECK(refused > 90);
}

static void test_no_memory(void)
{
    size_t n;
    const uint8_t *bytes = parse_hex(request_hex, &n);
    int failed = 0;
    for (size_t max = 0; max < 1024; max += 16) {
        struct wire_forward_backward_request back;
        struct arena small;
        arena_init(&small, max);
        tinker_status status = wire_decode_forward_backward_request(bytes, n, &small, &back, &err);
        CHECK(status == TINKER_OK || status == TINKER_ENOMEM);
        failed += status == TINKER_ENOMEM;
        arena_clear(&small);
    }
    CHECK(failed > 8 && failed < 64);
    bytes = parse_hex(output_hex, &n);
    for (size_t max = 0; max < 1024; max += 16) {
        tinker_forward_backward back;
        struct arena little;
        arena_init(&little, max);
        tinker_status status = wire_decode_forward_backward_output(bytes, n, &little, &back, &err);
        CHECK(status == TINKER_OK || status == TINKER_ENOMEM);
        arena_clear(&little);
    }
    struct buf small;
    tinker_sample s = { .n_prompt = 0 };
    tinker_sequence seq = { .stop_reason = TINKER_STOP_LENGTH,
                            .tokens = (int32_t[]){ 1, 2 },
                            .n = 2 };
    s.sequences = &seq;
    s.n_sequences = 1;
    buf_init(&small, 5);
    CHECK_INT(wire_encode_sample_response(&s, &small, &err), TINKER_ENOMEM);
    buf_clear(&small);
}

int main(void)
{
    arena_init(&arena, SIZE_MAX);
    buf_init(&out, 1 << 20);
    RUN(test_text_settings_and_spans);
    RUN(test_golden_request);
    RUN(test_golden_tensors);
    RUN(test_vectors_without_shape);
    RUN(test_golden_chunks);
    RUN(test_golden_sample);
    RUN(test_golden_sampled_topk);
    RUN(test_golden_output);
    RUN(test_conversions);
    RUN(test_refused);
    RUN(test_refused_inputs);
    RUN(test_any_order_and_unknown_fields);
    RUN(test_output_records);
    RUN(test_output_without_records);
    RUN(test_empty_sample_parts);
    RUN(test_bad_samples);
    RUN(test_bad_outputs);
    RUN(test_cut_messages);
    RUN(test_no_memory);
    buf_clear(&out);
    arena_clear(&arena);
    return tap_done();
}
