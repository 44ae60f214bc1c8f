/* Every allocation fails once: no crash, no leak, TINKER_ENOMEM, and nothing half done. */
#include "support/tap.h"

#include <stdint.h>
#include <stdlib.h>
#include "base/arena.h"
#include "base/buf.h"
#include "support/failmalloc.h"
#include "support/wire_vectors.h"
#include "wire/future.h"
#include "wire/proto.h"
#include "wire/wire.h"
#include "wire/zstd.h"

static const char request[] =
    "{\"forward_backward_input\":{\"data\":[{\"loss_fn_inputs\":{\"a\":{\"data\":[1,2],\"dtype\":"
    "\"int64\",\"shape\":[2]},\"b\":{\"data\":[1.5],\"dtype\":\"float32\"}},\"model_input\":{"
    "\"chunks\":"
    "[{\"tokens\":[1,2],\"type\":\"encoded_text\"},{\"data\":\"aGVsbG8=\",\"format\":\"png\","
    "\"type\":"
    "\"image\"}]}}],\"loss_fn\":\"ppo\",\"loss_fn_config\":{\"c\":1}},\"model_id\":\"m\",\"seq_"
    "id\":1}";
static const char sample[] =
    "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[1],\"logprobs\":[-1]}],"
    "\"prompt_logprobs\":[null,-1.5],\"topk_prompt_logprobs\":[null,[[7,-1.5],[8,-2]]]}";
static const char run[] = "{\"training_run_id\":\"r\",\"base_model\":\"esc\\u0061ped\",\"model_"
                          "owner\":\"o\",\"is_lora\":true,"
                          "\"last_request_time\":\"2026-08-09T10:30:00Z\",\"last_checkpoint\":{"
                          "\"checkpoint_id\":\"weights/x\","
                          "\"checkpoint_type\":\"training\",\"time\":0,\"tinker_path\":\"p\"},"
                          "\"user_metadata\":{\"a\":\"b\"}}";

static const char failed[] = "{\"error\":\"a\\n\",\"category\":\"user\"}";

/* JSON in, JSON out. */
static tinker_status json_again(const struct wire_type *type, const char *json)
{
    struct arena a;
    struct buf out;
    tinker_error err;
    arena_init(&a, SIZE_MAX);
    buf_init(&out, SIZE_MAX);
    void *value = arena_alloc(&a, wire_type_size(type));
    tinker_status status = TINKER_ENOMEM;
    if (value)
        status = wire_decode_json(type, json, strlen(json), WIRE_LENIENT, &a, value, &err);
    if (status == TINKER_OK)
        status = wire_encode_json(type, value, &out, &err);
    buf_clear(&out);
    arena_clear(&a);
    return status;
}

/* JSON to protobuf, compressed and back. */
static tinker_status proto_again(void)
{
    struct arena a;
    struct buf out, packed, plain;
    tinker_error err;
    struct wire_forward_backward_request req, back;
    arena_init(&a, SIZE_MAX);
    buf_init(&out, SIZE_MAX);
    buf_init(&packed, SIZE_MAX);
    buf_init(&plain, SIZE_MAX);
    tinker_status status = wire_decode_json(&wire_forward_backward_request, request,
                                            strlen(request), WIRE_STRICT, &a, &req, &err);
    if (status == TINKER_OK)
        status = wire_encode_forward_backward_request(&req, &out, &err);
    if (status == TINKER_OK)
        status = wire_zstd_compress(out.data, out.len, &packed, &err);
    if (status == TINKER_OK)
        status = wire_zstd_decompress(packed.data, packed.len, 1 << 20, &plain, &err);
    if (status == TINKER_OK)
        status = wire_decode_forward_backward_request(plain.data, plain.len, &a, &back, &err);
    if (status == TINKER_OK && back.n_data != 1)
        status = TINKER_EPROTOCOL;
    buf_clear(&out);
    buf_clear(&packed);
    buf_clear(&plain);
    arena_clear(&a);
    return status;
}

/* Results: JSON to protobuf and back. */
static tinker_status results_again(void)
{
    static const char output[] =
        "{\"loss_fn_output_type\":\"TorchLossReturn\",\"loss_fn_outputs\":[{\"logprobs\":{\"data\":"
        "[-1.5,-2],\"dtype\":\"float32\",\"shape\":[2]}},{}],\"metrics\":{\"loss:sum\":3.5}}";
    struct arena a;
    struct buf out;
    tinker_error err;
    tinker_forward_backward v;
    tinker_sample s;
    arena_init(&a, SIZE_MAX);
    buf_init(&out, SIZE_MAX);
    tinker_status status = wire_decode_json(&wire_forward_backward_output, output, strlen(output),
                                            WIRE_LENIENT, &a, &v, &err);
    if (status == TINKER_OK)
        status = wire_encode_forward_backward_output(&v, &out, &err);
    struct arena b; /* of its own, so that every part may be the one that finds no room */
    arena_init(&b, SIZE_MAX);
    if (status == TINKER_OK)
        status = wire_decode_forward_backward_output(out.data, out.len, &b, &v, &err);
    arena_clear(&b);
    buf_reset(&out);
    if (status == TINKER_OK)
        status = wire_decode_json(&wire_sample_response, sample, strlen(sample), WIRE_LENIENT, &a,
                                  &s, &err);
    if (status == TINKER_OK)
        status = wire_encode_sample_response(&s, &out, &err);
    if (status == TINKER_OK)
        status = wire_decode_sample_response(out.data, out.len, &b, &s, &err);
    arena_clear(&b);
    buf_clear(&out);
    arena_clear(&a);
    return status;
}

static tinker_status run_case(int i)
{
    struct wire_future_answer answer;
    struct arena a;
    char text[64];
    tinker_status status;
    switch (i) {
    case 0:
        return json_again(&wire_forward_backward_request, request);
    case 1:
        return json_again(&wire_sample_response, sample);
    case 2:
        return json_again(&wire_training_run, run);
    case 3:
        return proto_again();
    case 4:
        return results_again();
    default:
        arena_init(&a, SIZE_MAX);
        status = wire_classify_future(NULL, failed, strlen(failed), &a, &answer, NULL);
        arena_clear(&a);
        wire_error_text(500, "{\"detail\":\"x\\n\"}", 16, text, sizeof text);
        return status;
    }
}

static void test_every_allocation(void)
{
    for (int i = 0; i < 6; i++) {
        long n = 1;
        CHECK_INT(run_case(i), TINKER_OK);
        for (;; n++) {
            failmalloc_at(n);
            tinker_status status = run_case(i);
            if (!failmalloc_stop())
                break;
            /* the error text of the last case works without memory */
            if (status != TINKER_ENOMEM && i < 5)
                TAP_FAIL("case %d, allocation %ld: %s", i, n, tinker_status_name(status));
        }
        CHECK(n > 1);
    }
}

/* An arena with room for one value more at a time, so that each finds none once. */
static void finds_room_at_last(const char *name, const char *json)
{
    const struct wire_type *type = wire_type_find(name);
    void *value = malloc(wire_type_size(type));
    tinker_status status = TINKER_ENOMEM;
    for (size_t max = 0; value && status == TINKER_ENOMEM; max += 16) {
        struct arena a;
        tinker_error err;
        arena_init(&a, max);
        status = wire_decode_json(type, json, strlen(json), WIRE_LENIENT, &a, value, &err);
        arena_clear(&a);
    }
    if (status != TINKER_OK)
        TAP_FAIL("%s: %s", name, tinker_status_name(status));
    free(value);
}

static void test_every_type(void)
{
    CHECK(wire_vectors(finds_room_at_last) >= 60);
}

int main(void)
{
    RUN(test_every_allocation);
    RUN(test_every_type);
    return tap_done();
}
