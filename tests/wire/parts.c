/* Parts that do not fit together, and tensors of every type: what is refused, what is converted. */
#include "support/tap.h"

#include "base/arena.h"
#include "base/buf.h"
#include "wire/json/data_types.h"
#include "wire/wire.h"

static struct arena arena;
static tinker_error err;

/* Answers and tensors whose parts do not fit together: each is refused with what is wrong. */
static void test_parts_that_do_not_fit(void)
{
#define SPARSE(shape, crow, col)                                                              \
    "{\"data\":[1.0],\"dtype\":\"float32\",\"shape\":" shape ",\"sparse_crow_indices\":" crow \
    ",\"sparse_col_indices\":" col "}"
    static const struct {
        const struct wire_type *type;
        const char *json, *want;
    } cases[] = {
        { &wire_tensor_data, "{\"data\":[1]}", "dtype is required" },
        { &wire_tensor_data, "{\"dtype\":\"int64\"}", "data is required" },
        { &wire_tensor_data, "{\"data\":[1],\"dtype\":\"int8\"}",
          "expected \"int64\" or \"float32\" as dtype, got \"int8\"" },
        { &wire_tensor_data, "{\"data\":[1.5],\"dtype\":\"int64\"}", "found a fraction" },
        { &wire_tensor_data, SPARSE("[1,2]", "[0,1]", "null"), "go together" },
        { &wire_tensor_data, SPARSE("[2]", "[0,1]", "[0]"), "a shape of two dimensions" },
        { &wire_tensor_data, SPARSE("[1,2]", "[0,1]", "[0,1]"),
          "expected 1 column indices, got 2" },
        { &wire_tensor_data, SPARSE("[1,2]", "[0,1,1]", "[0]"), "expected 2 row pointers, got 3" },
        { &wire_tensor_data, SPARSE("[-1,2]", "[0,1]", "[0]"), "negative size" },
        { &wire_tensor_data, SPARSE("[9223372036854775807,2]", "[0,1]", "[0]"),
          "expected 9223372036854775808 row pointers, got 2" },
        { &wire_sample_response, "{\"type\":\"sample\"}", "sequences is required" },
        { &wire_sample_response, "{\"sequences\":[{\"tokens\":[1]}]}", "stop_reason is required" },
        { &wire_sample_response, "{\"sequences\":[{\"stop_reason\":\"stop\"}]}",
          "tokens is required" },
        { &wire_sample_response, "{\"sequences\":[{\"stop_reason\":\"eos\",\"tokens\":[]}]}",
          "expected \"stop\" or \"length\", got \"eos\"" },
        { &wire_sample_response,
          "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[1],\"logprobs\":[]}]}",
          "logprobs: expected 1 values, got 0" },
        { &wire_sample_response,
          "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[],\"topk_logprobs\":[null]}]}",
          NULL }, /* a row without cells counts for nothing */
        { &wire_sample_response,
          "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[],"
          "\"topk_logprobs\":[[[1,-0.5]]]}]}",
          "topk_logprobs: expected 0 rows, got 1" },
        { &wire_sample_response,
          "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[7],"
          "\"topk_logprobs\":[[[4294967296,-0.5]]]}]}",
          "token 4294967296 does not fit 32 bits" },
        { &wire_sample_response,
          "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[7],\"topk_logprobs\":[[[1]]]}]}",
          "expected pairs of token and logprob" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *value = arena_alloc(&arena, wire_type_size(cases[i].type));
        tinker_status status = wire_decode_json(cases[i].type, cases[i].json, strlen(cases[i].json),
                                                WIRE_LENIENT, &arena, value, &err);
        CHECK_INT(status, cases[i].want ? TINKER_EINVAL : TINKER_OK);
        if (cases[i].want && !strstr(err.message, cases[i].want))
            TAP_FAIL("%s: got \"%s\"", cases[i].json, err.message);
    }
#undef SPARSE
}

/* Types that the service does not know are widened or rounded to those it does. */
static void test_tensor_types(void)
{
    static const double f64[] = { 0.1, -2 };
    static const uint16_t bf16[] = { 0x3f80, 0xc020 };
    static const int32_t i32[] = { INT32_MIN, 5 };
    static const uint32_t u32[] = { UINT32_MAX, 5 };
    static const uint64_t u64[] = { INT64_MAX, 5 };
    static const struct {
        tinker_tensor tensor;
        const char *want;
    } cases[] = {
        { { .dtype = TINKER_FLOAT64, .data = f64, .n = 2 },
          "{\"data\":[0.1,-2.0],\"dtype\":\"float32\"}" },
        { { .dtype = TINKER_INT32, .data = i32, .n = 2 },
          "{\"data\":[-2147483648,5],\"dtype\":\"int64\"}" },
        { { .dtype = TINKER_UINT32, .data = u32, .n = 2 },
          "{\"data\":[4294967295,5],\"dtype\":\"int64\"}" },
        { { .dtype = TINKER_UINT64, .data = u64, .n = 2 },
          "{\"data\":[9223372036854775807,5],\"dtype\":\"int64\"}" },
        { { .dtype = TINKER_BFLOAT16, .data = bf16, .n = 2 },
          "bfloat16 is not accepted as input: use float32" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out;
        buf_init(&out, 4096);
        tinker_status status = wire_encode_json(&wire_tensor_data, &cases[i].tensor, &out, &err);
        CHECK_STR(status == TINKER_OK ? out.data : err.message, cases[i].want);
        buf_clear(&out);
    }
    tinker_named_tensor result = { "logits", { .dtype = TINKER_BFLOAT16, .data = bf16, .n = 2 } };
    struct buf out;
    buf_init(&out, 4096);
    CHECK_INT(wire_encode_json(&wire_result_tensor, &result, &out, &err), TINKER_OK);
    CHECK_STR(out.data, "{\"data\":[1.0,-2.5],\"dtype\":\"float32\"}");
    buf_clear(&out);
}

int main(void)
{
    arena_init(&arena, 1 << 20);
    RUN(test_parts_that_do_not_fit);
    RUN(test_tensor_types);
    arena_clear(&arena);
    return tap_done();
}
