/* hash.c: requests that say the same have the same hash, and no other two of a type. */
#include "base/arena.h"
#include "base/buf.h"
#include "support/tap.h"
#include "support/wire_vectors.h"
#include "wire/proto.h"
#include "wire/wire.h"

static struct arena arena;
static tinker_error err;

static uint64_t hash_of(const struct wire_type *type, const char *json)
{
    void *value = arena_alloc(&arena, wire_type_size(type));
    if (wire_decode_json(type, json, strlen(json), WIRE_LENIENT, &arena, value, &err) !=
        TINKER_OK) {
        TAP_FAIL("%s: %s", json, err.message);
        return 0;
    }
    return wire_hash(type, value);
}

/* Every request of the golden texts, each another one. */
static struct {
    uint64_t hash;
    const char *json;
} seen[200];
static size_t n_seen;

static void hash_vector(const char *name, const char *json)
{
    size_t n = strlen(name);
    if (n < 7 || strcmp(name + n - 7, "Request") != 0)
        return;
    uint64_t h = hash_of(wire_type_find(name), json);
    CHECK(h == hash_of(wire_type_find(name), json));
    for (size_t i = 0; i < n_seen; i++)
        if (seen[i].hash == h)
            TAP_FAIL("%s %s: same hash as %s", name, json, seen[i].json);
    seen[n_seen].json = arena_strdup(&arena, json);
    seen[n_seen++].hash = h;
}

static void test_golden_requests_differ(void)
{
    wire_vectors(hash_vector);
    CHECK(n_seen >= 30);
}

#define SAMPLE(prompt, params, more) \
    "{\"prompt\":{\"chunks\":[" prompt "]},\"sampling_params\":{" params "}" more "}"
#define TEXT          "{\"type\":\"encoded_text\",\"tokens\":[1,2]}"
#define IMAGE(more)   "{\"type\":\"image\",\"data\":\"AQID\"," more "}"
#define POINTER(more) "{\"type\":\"image_asset_pointer\"," more "}"
#define PASS(inputs, more)                                                                      \
    "{\"model_id\":\"m\",\"seq_id\":1,\"forward_backward_input\":{\"loss_fn\":\"ppo\"" more "," \
    "\"data\":[{\"model_input\":{\"chunks\":[" TEXT "]},\"loss_fn_inputs\":{" inputs "}}]}}"
#define TENSOR(data, dtype, more) "{\"data\":" data ",\"dtype\":\"" dtype "\"" more "}"

/* No two of these are the same request. */
static const char *const samples[] = {
    SAMPLE(TEXT, "", ""),
    SAMPLE("{\"type\":\"encoded_text\",\"tokens\":[1,3]}", "", ""),
    SAMPLE("{\"tokens\":[1]},{\"tokens\":[2]}", "", ""),
    SAMPLE(IMAGE("\"format\":\"png\""), "", ""),
    SAMPLE(IMAGE("\"format\":\"jpeg\""), "", ""),
    SAMPLE(IMAGE("\"format\":\"png\",\"expected_tokens\":0"), "", ""),
    SAMPLE(IMAGE("\"format\":\"png\",\"expected_tokens\":7"), "", ""),
    SAMPLE(POINTER("\"format\":\"png\",\"location\":\"a\""), "", ""),
    SAMPLE(POINTER("\"format\":\"png\",\"location\":\"b\""), "", ""),
    SAMPLE("{\"type\":\"dmel\",\"dmel\":\"AQID\"}", "", ""),
    SAMPLE(TEXT, "\"max_tokens\":1", ""),
    SAMPLE(TEXT, "\"seed\":0", ""),
    SAMPLE(TEXT, "\"seed\":1", ""),
    SAMPLE(TEXT, "\"temperature\":0.5", ""),
    SAMPLE(TEXT, "\"top_k\":1", ""),
    SAMPLE(TEXT, "\"top_p\":0.5", ""),
    SAMPLE(TEXT, "\"stop\":[\"ab\",\"c\"]", ""),
    SAMPLE(TEXT, "\"stop\":[\"a\",\"bc\"]", ""),
    SAMPLE(TEXT, "\"stop\":[\"abc\"]", ""),
    SAMPLE(TEXT, "\"stop\":[1,2]", ""),
    SAMPLE(TEXT, "", ",\"num_samples\":2"),
    SAMPLE(TEXT, "", ",\"base_model\":\"x\""),
    SAMPLE(TEXT, "", ",\"model_path\":\"x\""),
    SAMPLE(TEXT, "", ",\"sampling_session_id\":\"x\""),
    SAMPLE(TEXT, "", ",\"seq_id\":1"),
    SAMPLE(TEXT, "", ",\"prompt_logprobs\":true"),
    SAMPLE(TEXT, "", ",\"topk_prompt_logprobs\":1"),
    SAMPLE(TEXT, "", ",\"topk_sample_logprobs\":1"),
    SAMPLE(TEXT, "", ",\"prompt_alt_tokens_k\":1"),
    SAMPLE(TEXT, "", ",\"prompt_logprobs_last_n\":1"),
    SAMPLE(TEXT, "", ",\"record_stability_info\":true"),
    SAMPLE(TEXT, "", ",\"target_prompt_logprobs\":" TENSOR("[1,2]", "int64", "")),
    SAMPLE(TEXT, "", ",\"target_prompt_logprobs\":" TENSOR("[1,3]", "int64", "")),
    NULL
};
static const char *const passes[] = {
    PASS("", ""),
    PASS("", ",\"loss_fn_config\":{\"a\":1}"),
    PASS("", ",\"loss_fn_config\":{\"a\":2}"),
    PASS("", ",\"loss_fn_config\":{\"b\":1}"),
    PASS("", ",\"loss_fn_config\":{\"a\":1,\"b\":2}"),
    PASS("", ",\"loss_fn_config\":{\"a\":2,\"b\":1}"),
    PASS("\"w\":" TENSOR("[1,2]", "float32", ""), ""),
    PASS("\"w\":" TENSOR("[1,2]", "int64", ""), ""),
    PASS("\"w\":" TENSOR("[2,1]", "int64", ""), ""),
    PASS("\"w\":" TENSOR("[1,2]", "int64", ",\"shape\":[2,1]"), ""),
    PASS("\"w\":" TENSOR("[1,2]", "int64", ",\"shape\":[1,2]"), ""),
    PASS("\"v\":" TENSOR("[1,2]", "int64", ""), ""),
    PASS("\"w\":" TENSOR("[1,2]", "float32",
                         ",\"shape\":[2,3],\"sparse_crow_indices\":[0,1,2],"
                         "\"sparse_col_indices\":[0,1]"),
         ""),
    PASS("\"w\":" TENSOR("[1,2]", "float32",
                         ",\"shape\":[2,3],\"sparse_crow_indices\":[0,1,2],"
                         "\"sparse_col_indices\":[0,2]"),
         ""),
    PASS("\"w\":" TENSOR("[1,2]", "float32",
                         ",\"shape\":[2,3],\"sparse_crow_indices\":[0,2,2],"
                         "\"sparse_col_indices\":[0,2]"),
         ""),
    NULL
};
static const char *const creates[] = {
    "{\"session_id\":\"s\",\"model_seq_id\":0,\"base_model\":\"b\"}",
    "{\"session_id\":\"s\",\"model_seq_id\":0,\"base_model\":\"c\"}",
    "{\"session_id\":\"s\",\"model_seq_id\":0,\"base_model\":\"b\",\"lora_config\":{\"rank\":8}}",
    "{\"session_id\":\"s\",\"model_seq_id\":0,\"base_model\":\"b\","
    "\"lora_config\":{\"rank\":8,\"seed\":0}}",
    "{\"session_id\":\"s\",\"model_seq_id\":0,\"base_model\":\"b\","
    "\"lora_config\":{\"rank\":8,\"train_mlp\":false}}",
    "{\"session_id\":\"s\",\"model_seq_id\":0,\"base_model\":\"b\",\"user_metadata\":{\"a\":1}}",
    "{\"session_id\":\"s\",\"model_seq_id\":0,\"base_model\":\"b\","
    "\"optimizer_config\":{\"type\":\"dimuon\"}}",
    NULL
};
static const char *const saves[] = {
    "{\"model_id\":\"m\",\"path\":\"p\"}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"seq_id\":0}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"overwrite\":true}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"ttl_seconds\":9}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"user_metadata\":{}}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"user_metadata\":{\"a\":\"bc\"}}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"user_metadata\":{\"ab\":\"c\"}}",
    "{\"model_id\":\"m\"}",
    NULL
};
static const char *const externals[] = {
    "{\"model_id\":\"m\",\"path\":\"p\"}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"age_encryption_recipients\":[\"a\"]}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"age_encryption_recipients\":[\"b\"]}",
    "{\"model_id\":\"m\",\"path\":\"p\",\"age_encryption_recipients\":[\"a\",\"b\"]}", NULL
};
static const char *const loads[] = {
    "{\"path\":\"p\",\"optimizer\":true}",
    "{\"path\":\"p\",\"optimizer\":false}",
    "{\"path\":\"p\",\"optimizer\":true,\"user_metadata\":{\"a\":1}}",
    "{\"path\":\"p\",\"optimizer\":true,\"optimizer_config\":{\"type\":\"dimuon\"}}",
    "{\"path\":\"p\",\"optimizer\":true,\"weights_access_token\":\"t\"}",
    NULL
};

static void test_every_field_counts(void)
{
    const struct {
        const struct wire_type *type;
        const char *const *json;
    } lists[] = { { &wire_sample_request, samples },
                  { &wire_forward_backward_request, passes },
                  { &wire_create_model_request, creates },
                  { &wire_save_weights_request, saves },
                  { &wire_save_weights_external_request, externals },
                  { &wire_load_weights_request, loads } };
    for (size_t k = 0; k < sizeof(lists) / sizeof(*lists); k++)
        for (size_t i = 0; lists[k].json[i]; i++)
            for (size_t j = 0; j < i; j++)
                if (hash_of(lists[k].type, lists[k].json[i]) ==
                    hash_of(lists[k].type, lists[k].json[j]))
                    TAP_FAIL("same hash: %s and %s", lists[k].json[i], lists[k].json[j]);
}

static void test_equal_requests_are_equal(void)
{
    const struct {
        const struct wire_type *type;
        const char *a, *b;
    } same[] = {
        { &wire_sample_request, SAMPLE(TEXT, "\"stop\":\"x\"", ""),
          SAMPLE(TEXT, "\"stop\":[\"x\"]", "") },
        { &wire_sample_request, SAMPLE(TEXT, "", ""),
          SAMPLE(TEXT, "\"temperature\":1.0,\"top_k\":-1,\"stop\":null", ",\"num_samples\":1") },
        { &wire_forward_backward_request, PASS("", ",\"loss_fn_config\":{\"a\":1,\"b\":2}"),
          PASS("", ",\"loss_fn_config\":{\"b\":2,\"a\":1}") },
        { &wire_forward_backward_request, PASS("\"w\":" TENSOR("[1,2]", "int64", ""), ""),
          PASS("\"w\":" TENSOR("[1,2]", "int64", ",\"shape\":[2]"), "") },
        { &wire_save_weights_request,
          "{\"model_id\":\"m\",\"user_metadata\":{\"a\":\"1\",\"b\":\"2\"}}",
          "{\"user_metadata\":{\"b\":\"2\",\"a\":\"1\"},\"model_id\":\"m\",\"overwrite\":false}" },
        /* the one field that a retry may change */
        { &wire_save_weights_for_sampler_request,
          "{\"model_id\":\"m\",\"sampling_session_seq_id\":1}",
          "{\"model_id\":\"m\",\"sampling_session_seq_id\":2}" },
    };
    for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++)
        if (hash_of(same[i].type, same[i].a) != hash_of(same[i].type, same[i].b))
            TAP_FAIL("not the same: %s and %s", same[i].a, same[i].b);
}

static void test_protobuf_is_equal_to_json(void)
{
    for (size_t i = 0; passes[i]; i++) {
        struct wire_forward_backward_request json, proto;
        struct buf out;
        buf_init(&out, 1 << 20);
        CHECK_INT(wire_decode_json(&wire_forward_backward_request, passes[i], strlen(passes[i]),
                                   WIRE_LENIENT, &arena, &json, &err),
                  TINKER_OK);
        CHECK_INT(wire_encode_forward_backward_request(&json, &out, &err), TINKER_OK);
        CHECK_INT(wire_decode_forward_backward_request(out.data, out.len, &arena, &proto, &err),
                  TINKER_OK);
        if (wire_hash(&wire_forward_backward_request, &json) !=
            wire_hash(&wire_forward_backward_request, &proto))
            TAP_FAIL("not the same in protobuf: %s", passes[i]);
        buf_clear(&out);
    }
}

/* Hashes are stored: a value that changes here needs another schema version of the store. */
static void test_hashes_are_stable(void)
{
    CHECK(hash_of(&wire_sample_request, SAMPLE(TEXT, "\"seed\":1", ",\"num_samples\":2")) ==
          0x30d164b9565477b7u);
    CHECK(hash_of(&wire_save_weights_request, saves[5]) == 0xf4ccfe8f063c4099u);
}

int main(void)
{
    arena_init(&arena, 1 << 24);
    RUN(test_golden_requests_differ);
    RUN(test_every_field_counts);
    RUN(test_equal_requests_are_equal);
    RUN(test_protobuf_is_equal_to_json);
    RUN(test_hashes_are_stable);
    arena_clear(&arena);
    return tap_done();
}
