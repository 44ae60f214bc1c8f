/* JSON forms: golden texts both ways, defaults, strictness, coercions, error places. */
#include "support/tap.h"

#include "base/arena.h"
#include "base/buf.h"
#include "support/wire_vectors.h"
#include "wire/check.h"
#include "wire/wire.h"
#include <tinker/extra/account.h>

static struct arena arena;
static tinker_error err;

static tinker_status decode_text(const struct wire_type *type, const char *json,
                                 enum wire_mode mode, void *value)
{
    memset(&err, 0, sizeof err);
    return wire_decode_json(type, json, strlen(json), mode, &arena, value, &err);
}

/* Decode and encode again; the text lives in the arena. */
static const char *decode_and_encode(const struct wire_type *type, const char *json,
                                     enum wire_mode mode)
{
    struct buf out;
    void *value = arena_alloc(&arena, wire_type_size(type));
    if (decode_text(type, json, mode, value) != TINKER_OK)
        return arena_printf(&arena, "decode: %s", err.message);
    buf_init(&out, 1 << 20);
    const char *text = NULL;
    if (wire_encode_json(type, value, &out, &err) == TINKER_OK)
        text = arena_strndup(&arena, out.data, out.len);
    else
        text = arena_printf(&arena, "encode: %s", err.message);
    buf_clear(&out);
    return text;
}

/* ---- golden texts ---------------------------------------------------------------- */

/* What the reference sends satisfies the strict reader too. */
static void comes_back(const char *name, const char *json)
{
    const struct wire_type *type = wire_type_find(name);
    if (!type) {
        TAP_FAIL("no type %s", name);
        return;
    }
    CHECK_STR(decode_and_encode(type, json, WIRE_STRICT), json);
    CHECK_STR(decode_and_encode(type, json, WIRE_LENIENT), json);
}

static void test_golden_texts(void)
{
    CHECK(wire_vectors(comes_back) >= 60);
}

/* ---- values ---------------------------------------------------------------------- */

static void test_request_from_struct(void)
{
    const char *const tags[] = { "a", "b" };
    struct wire_create_session_request req = { .tags = { tags, 2 },
                                               .user_metadata = { "{}", 2 },
                                               .sdk_version = "0.25.0" };
    struct buf out;
    buf_init(&out, 4096);
    CHECK_INT(wire_encode_json(&wire_create_session_request, &req, &out, &err), TINKER_OK);
    CHECK_STR(out.data, "{\"tags\":[\"a\",\"b\"],\"user_metadata\":{},\"sdk_version\":\"0.25.0\","
                        "\"type\":\"create_session\"}");
    buf_reset(&out);
    req.sdk_version = NULL;
    CHECK_INT(wire_encode_json(&wire_create_session_request, &req, &out, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "sdk_version: is required");
    buf_reset(&out);
    req.sdk_version = "x";
    req.user_metadata = (struct json_str){ "[1]", 3 };
    CHECK_INT(wire_encode_json(&wire_create_session_request, &req, &out, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "user_metadata: is not a JSON object");
    buf_clear(&out);
}

static void test_client_config_defaults(void)
{
    struct wire_client_config_response c;
    CHECK_INT(decode_text(&wire_client_config_response, "{}", WIRE_LENIENT, &c), TINKER_OK);
    CHECK_STR(c.credential_default_source, "api_key");
    CHECK_INT(c.sample_dispatch_bytes_semaphore_size, 10485760);
    CHECK_INT(c.inflight_response_bytes_semaphore_size, 52428800);
    CHECK_INT(c.parallel_fwdbwd_chunks, 1);
    CHECK_INT(c.proto_compress_fwdbwd, 0);
    CHECK_INT(c.fwdbwd_max_chunk_len, 1024);
    CHECK_INT(c.fwdbwd_max_chunk_bytes_count, 5000000);
    CHECK_INT(c.fwdbwd_dispatch_bytes_semaphore_size, 50000000);
    CHECK_INT(c.billing_exception_max_pause_duration_sec, 3600);
    CHECK_INT(c.sample_enable_stuck_detection, 1);
    CHECK_INT(c.sample_max_concurrent_requests, 2000);
    CHECK_INT(
        decode_text(&wire_client_config_response,
                    "{\"proto_compress_fwdbwd\":true,\"fwdbwd_max_chunk_len\":512,\"new\":[{}]}",
                    WIRE_LENIENT, &c),
        TINKER_OK);
    CHECK_INT(c.proto_compress_fwdbwd, 1);
    CHECK_INT(c.fwdbwd_max_chunk_len, 512);
    CHECK_INT(c.fwdbwd_max_chunk_bytes_count, 5000000);
    /* a field with a default may be absent but not null */
    CHECK_INT(decode_text(&wire_client_config_response, "{\"fwdbwd_max_chunk_len\":null}",
                          WIRE_LENIENT, &c),
              TINKER_EINVAL);
    CHECK_STR(err.message, "fwdbwd_max_chunk_len: expected a number, got null");
}

static void test_lora_and_adam_defaults(void)
{
    struct wire_create_model_request m;
    CHECK_INT(decode_text(&wire_create_model_request,
                          "{\"session_id\":\"s\",\"model_seq_id\":1,\"base_model\":\"b\","
                          "\"lora_config\":{\"rank\":8}}",
                          WIRE_LENIENT, &m),
              TINKER_OK);
    REQUIRE(m.lora_config != NULL);
    CHECK_INT(m.lora_config->size, sizeof(tinker_lora));
    CHECK_INT(m.lora_config->rank, 8);
    CHECK_INT(m.lora_config->has_seed, 0);
    CHECK_INT(m.lora_config->train_attn, 1);
    CHECK_INT(m.lora_config->train_unembed, 1);
    struct wire_optim_step_request o;
    CHECK_INT(decode_text(&wire_optim_step_request,
                          "{\"model_id\":\"m\",\"adam_params\":{\"beta2\":0.5}}", WIRE_LENIENT, &o),
              TINKER_OK);
    CHECK_INT(o.adam_params->size, sizeof(tinker_adam));
    CHECK_NEAR(o.adam_params->learning_rate, 1e-4, 0);
    CHECK_NEAR(o.adam_params->beta2, 0.5, 0);
    CHECK_NEAR(o.adam_params->eps, 1e-12, 0);
    CHECK_INT(o.seq_id.has, 0);
}

static void test_sample_request_of_old_clients(void)
{
    struct wire_sample_request s;
    /* no type tags, no defaults: what SDKs before 0.18 sent */
    CHECK_INT(decode_text(
                  &wire_sample_request,
                  "{\"prompt\":{\"chunks\":[{\"tokens\":[1,2,3]},"
                  "{\"data\":\"aGk=\",\"format\":\"png\",\"height\":4,\"width\":4,\"tokens\":9}]},"
                  "\"sampling_params\":{},\"base_model\":\"b\"}",
                  WIRE_LENIENT, &s),
              TINKER_OK);
    CHECK_INT(s.num_samples, 1);
    REQUIRE(s.prompt.n_chunks == 2);
    CHECK_INT(s.prompt.chunks[0].kind, TINKER_CHUNK_TEXT);
    CHECK_INT(s.prompt.chunks[0].n_tokens, 3);
    CHECK_INT(s.prompt.chunks[0].tokens[2], 3);
    CHECK_INT(s.prompt.chunks[1].kind, TINKER_CHUNK_IMAGE);
    CHECK_MEM(s.prompt.chunks[1].bytes, s.prompt.chunks[1].n_bytes, "hi", 2);
    CHECK_INT(s.prompt.chunks[1].expected_tokens, 9);
    CHECK_INT(s.sampling_params.max_tokens, 0);
    CHECK_INT(s.sampling_params.top_k, -1);
    CHECK_NEAR(s.sampling_params.temperature, 1.0, 0);
    CHECK(s.sampling_params.stop_strings == NULL && s.sampling_params.stop_tokens == NULL);
}

/* A number of tokens is an image's; a text chunk must not lose its tokens that way. */
static void test_text_chunk_with_a_number_of_tokens(void)
{
    tinker_model_input m;
    CHECK_INT(decode_text(&wire_model_input,
                          "{\"chunks\":[{\"tokens\":3,\"type\":\"encoded_text\"}]}", WIRE_LENIENT,
                          &m),
              TINKER_EINVAL);
    CHECK_STR(err.message, "chunks[0]: tokens: expected an array, got a number");
    CHECK_INT(decode_text(&wire_model_input,
                          "{\"chunks\":[{\"tokens\":[],\"type\":\"encoded_text\"}]}", WIRE_LENIENT,
                          &m),
              TINKER_OK);
    CHECK_INT(m.chunks[0].n_tokens, 0);
}

static void test_stop_shapes(void)
{
    tinker_sampling_params p;
    CHECK_INT(decode_text(&wire_sampling_params, "{\"stop\":\"END\"}", WIRE_STRICT, &p), TINKER_OK);
    CHECK_INT(p.n_stop, 1);
    CHECK_STR(p.stop_strings[0], "END");
    CHECK_INT(decode_text(&wire_sampling_params, "{\"stop\":[\"a\",\"b\"]}", WIRE_STRICT, &p),
              TINKER_OK);
    CHECK_INT(p.n_stop, 2);
    CHECK_STR(p.stop_strings[1], "b");
    CHECK(p.stop_tokens == NULL);
    CHECK_INT(decode_text(&wire_sampling_params, "{\"stop\":[7]}", WIRE_STRICT, &p), TINKER_OK);
    CHECK_INT(p.stop_tokens[0], 7);
    CHECK(p.stop_strings == NULL);
    CHECK_INT(decode_text(&wire_sampling_params, "{\"stop\":[]}", WIRE_STRICT, &p), TINKER_OK);
    CHECK(p.stop_tokens != NULL && p.n_stop == 0);
    CHECK_INT(decode_text(&wire_sampling_params, "{\"stop\":null}", WIRE_STRICT, &p), TINKER_OK);
    CHECK(p.stop_tokens == NULL && p.stop_strings == NULL);
    CHECK_INT(decode_text(&wire_sampling_params, "{\"stop\":[\"a\",1]}", WIRE_STRICT, &p),
              TINKER_EINVAL);
    CHECK_STR(err.message, "stop[1]: expected a text, got a number");
    /* unlike other requests, sampling settings ignore what they do not know */
    CHECK_INT(decode_text(&wire_sampling_params, "{\"min_p\":0.1}", WIRE_STRICT, &p), TINKER_OK);
}

static void test_seed_is_folded(void)
{
    static const struct {
        const char *text;
        int64_t want;
    } cases[] = {
        { "7", 7 },
        { "-7", -7 },
        { "9223372036854775807", INT64_MAX },
        { "9223372036854775808", 1 },              /* 2^63 mod (2^63 - 1) */
        { "18446744073709551616", 2 },             /* 2^64 */
        { "-9223372036854775809", INT64_MAX - 2 }, /* -(2^63 + 1) */
        { "123456789012345678901234567890", INT64_C(4860475750367701695) },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tinker_sampling_params p;
        char json[80];
        snprintf(json, sizeof json, "{\"seed\":%s}", cases[i].text);
        CHECK_INT(decode_text(&wire_sampling_params, json, WIRE_LENIENT, &p), TINKER_OK);
        CHECK_INT(p.has_seed, 1);
        CHECK_INT(p.seed, cases[i].want);
    }
}

/* ---- strictness and coercion ----------------------------------------------------- */

static void test_unknown_fields(void)
{
    struct wire_get_info_request g;
    struct wire_create_model_request m;
    const char *deep = "{\"session_id\":\"s\",\"model_seq_id\":0,\"base_model\":\"b\","
                       "\"lora_config\":{\"rank\":8,\"rnk\":1}}";
    CHECK_INT(decode_text(&wire_get_info_request, "{\"model_id\":\"m\",\"x\":1}", WIRE_STRICT, &g),
              TINKER_EINVAL);
    CHECK_STR(err.message, "unknown field \"x\"");
    CHECK_INT(decode_text(&wire_get_info_request, "{\"model_id\":\"m\",\"x\":{\"y\":[1]}}",
                          WIRE_LENIENT, &g),
              TINKER_OK);
    CHECK_INT(decode_text(&wire_create_model_request, deep, WIRE_STRICT, &m), TINKER_EINVAL);
    CHECK_STR(err.message, "lora_config: unknown field \"rnk\"");
    CHECK_INT(decode_text(&wire_create_model_request, deep, WIRE_LENIENT, &m), TINKER_OK);
}

static void survives_an_extra_key(const char *name, const char *json)
{
    char *more = arena_printf(&arena, "{\"brand_new\":{\"a\":[1,null]}%s%s",
                              json[1] == '}' ? "" : ",", json + 1);
    CHECK_STR(decode_and_encode(wire_type_find(name), more, WIRE_LENIENT), json);
}

static void test_every_answer_survives_an_extra_key(void)
{
    CHECK(wire_vectors(survives_an_extra_key) >= 60);
}

static void test_required_and_literals(void)
{
    struct wire_untyped_api_future u;
    struct wire_create_model_response m;
    struct wire_get_info_response g;
    CHECK_INT(decode_text(&wire_untyped_api_future, "{}", WIRE_LENIENT, &u), TINKER_EINVAL);
    CHECK_STR(err.message, "request_id: is required");
    CHECK_INT(decode_text(&wire_untyped_api_future, "{\"request_id\":17}", WIRE_LENIENT, &u),
              TINKER_EINVAL);
    CHECK_STR(err.message, "request_id: expected a text, got a number");
    CHECK_INT(wire_as_answer(TINKER_EINVAL, &err), TINKER_EPROTOCOL);
    CHECK_INT(err.status, TINKER_EPROTOCOL);
    CHECK_INT(decode_text(&wire_create_model_response, "{\"model_id\":\"m\",\"type\":\"other\"}",
                          WIRE_LENIENT, &m),
              TINKER_EINVAL);
    CHECK_STR(err.message, "type: expected \"create_model\", got \"other\"");
    CHECK_INT(decode_text(&wire_create_model_response, "{\"model_id\":\"m\",\"type\":null}",
                          WIRE_LENIENT, &m),
              TINKER_EINVAL);
    CHECK_INT(decode_text(&wire_get_info_response,
                          "{\"model_data\":{},\"model_id\":\"m\",\"type\":null}", WIRE_LENIENT, &g),
              TINKER_OK);
    CHECK_INT(decode_text(&wire_get_info_response, "{\"model_data\":[],\"model_id\":\"m\"}",
                          WIRE_LENIENT, &g),
              TINKER_EINVAL);
    CHECK_STR(err.message, "model_data: expected an object, got an array");
}

static void test_coercions(void)
{
    static const char *const good[] = { "3", "3.0", "\"3\"", "\" +3 \"", "\"3.00\"", "3e0" };
    static const char *const bad[] = { "3.5",  "\"3.5\"", "\"x\"", "\"\"",    "[3]",
                                       "null", "\"3 4\"", "1e30",  "\"1__0\"" };
    tinker_cursor c;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char *json = arena_printf(
            &arena, "{\"offset\":%s,\"limit\":true,\"total_count\":\"1_000\"}", good[i]);
        CHECK_INT(decode_text(&wire_cursor, json, WIRE_LENIENT, &c), TINKER_OK);
        CHECK_INT(c.offset, 3);
        CHECK_INT(c.limit, 1);
        CHECK_INT(c.total_count, 1000);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *json = arena_printf(&arena, "{\"offset\":%s,\"limit\":1,\"total_count\":1}", bad[i]);
        CHECK_INT(decode_text(&wire_cursor, json, WIRE_LENIENT, &c), TINKER_EINVAL);
        CHECK(strncmp(err.message, "offset: ", 8) == 0);
    }
    CHECK_INT(decode_text(&wire_cursor, "{\"offset\":\"3\",\"limit\":1,\"total_count\":1}",
                          WIRE_STRICT, &c),
              TINKER_EINVAL);
    CHECK_STR(err.message, "offset: expected a number, got a text");
}

static void test_bool_coercions(void)
{
    static const char *const yes[] = { "true", "1", "1.0", "\"YES\"", "\"on\"", "\"t\"", "\"1\"" };
    static const char *const no[] = { "false", "0", "\"No\"", "\"off\"", "\"F\"", "\"n\"" };
    static const char *const bad[] = {
        "2", "\"maybe\"", "null", "[]", "-1", "\" true\"", "\"1 \""
    };
    struct wire_weights_info_response w;
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        char *json = arena_printf(&arena, "{\"base_model\":\"b\",\"is_lora\":%s}", yes[i]);
        CHECK_INT(decode_text(&wire_weights_info_response, json, WIRE_LENIENT, &w), TINKER_OK);
        CHECK_INT(w.is_lora, 1);
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        char *json = arena_printf(&arena, "{\"base_model\":\"b\",\"is_lora\":%s}", no[i]);
        CHECK_INT(decode_text(&wire_weights_info_response, json, WIRE_LENIENT, &w), TINKER_OK);
        CHECK_INT(w.is_lora, 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *json = arena_printf(&arena, "{\"base_model\":\"b\",\"is_lora\":%s}", bad[i]);
        CHECK_INT(decode_text(&wire_weights_info_response, json, WIRE_LENIENT, &w), TINKER_EINVAL);
    }
}

static void test_metric_coercions(void)
{
    struct wire_optim_step_response o;
    CHECK_INT(decode_text(&wire_optim_step_response,
                          "{\"metrics\":{\"a\":1,\"b\":\"2.5\",\"c\":true,\"a\":4}}", WIRE_LENIENT,
                          &o),
              TINKER_OK);
    CHECK_INT(o.metrics.n, 3); /* a repeated key means its last value */
    CHECK_NEAR(tinker_metric(o.metrics.v, o.metrics.n, "a"), 4, 0);
    CHECK_NEAR(tinker_metric(o.metrics.v, o.metrics.n, "b"), 2.5, 0);
    CHECK_INT(
        decode_text(&wire_optim_step_response, "{\"metrics\":{\"a\":\"none\"}}", WIRE_LENIENT, &o),
        TINKER_EINVAL);
    CHECK_STR(err.message, "metrics.a: expected a number, got a text");
    CHECK_INT(decode_text(&wire_optim_step_response, "{\"metrics\":null}", WIRE_LENIENT, &o),
              TINKER_OK);
    CHECK_INT(o.metrics.has, 0);
}

/* JSON has no word for them, so servers write texts, which the reference reads. */
static void test_metrics_that_are_not_finite(void)
{
    struct wire_optim_step_response o;
    CHECK_INT(decode_text(
                  &wire_optim_step_response,
                  "{\"metrics\":{\"a\":\"NaN\",\"b\":\"-inf\",\"c\":\" Infinity\",\"d\":\"+inf\"}}",
                  WIRE_LENIENT, &o),
              TINKER_OK);
    REQUIRE(o.metrics.n == 4);
    CHECK(isnan(o.metrics.v[0].value));
    CHECK(o.metrics.v[1].value == -INFINITY);
    CHECK(o.metrics.v[2].value == INFINITY && o.metrics.v[3].value == INFINITY);
    CHECK_INT(
        decode_text(&wire_optim_step_response, "{\"metrics\":{\"a\":\"NaN\"}}", WIRE_STRICT, &o),
        TINKER_EINVAL);
    /* settings are not metrics */
    struct wire_optim_step_request r;
    CHECK_INT(decode_text(&wire_optim_step_request,
                          "{\"model_id\":\"m\",\"adam_params\":{\"beta2\":\"NaN\"}}", WIRE_LENIENT,
                          &r),
              TINKER_EINVAL);
    CHECK_STR(err.message, "adam_params.beta2: expected a number, got a text");
}

static void test_many_keys(void)
{
    struct wire_optim_step_response o;
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"metrics\":{");
    for (int i = 0; i < 3000; i++)
        buf_printf(&b, "%s\"m%d\":%d", i ? "," : "", i % 1500, i);
    buf_puts(&b, "}}");
    CHECK_INT(
        wire_decode_json(&wire_optim_step_response, b.data, b.len, WIRE_LENIENT, &arena, &o, &err),
        TINKER_OK);
    CHECK_INT(o.metrics.n, 1500);
    for (size_t i = 0; i < o.metrics.n; i++)
        CHECK_NEAR(o.metrics.v[i].value, 1500.0 + (double)i, 0);
    buf_clear(&b);
}

/* ---- unions ---------------------------------------------------------------------- */

static void test_unknown_members(void)
{
    tinker_billing b;
    tinker_model_input m;
    CHECK_INT(decode_text(&wire_billing_usage_response,
                          "{\"data\":[{\"bucket_start\":0,\"bucket_end\":3600,"
                          "\"event_info\":{\"type\":\"teleport\",\"km\":3}}]}",
                          WIRE_LENIENT, &b),
              TINKER_OK);
    CHECK_INT(((const tinker_billing_event *)b.events)->kind, TINKER_BILLING_OTHER);
    CHECK_INT(((const tinker_billing_event *)b.events)->end_us, INT64_C(3600000000));
    CHECK_INT(decode_text(&wire_model_input, "{\"chunks\":[{\"type\":\"video\",\"frames\":[]}]}",
                          WIRE_LENIENT, &m),
              TINKER_EINVAL);
    CHECK_STR(err.message, "chunks[0].type: expected \"encoded_text\", \"image\", "
                           "\"image_asset_pointer\", \"dmel\", got \"video\"");
    CHECK_INT(decode_text(&wire_model_input, "{\"chunks\":[{\"tokens\":[1]},{\"type\":\"image\"}]}",
                          WIRE_LENIENT, &m),
              TINKER_EINVAL);
    CHECK_STR(err.message, "chunks[1].data: is required");
    CHECK_INT(decode_text(&wire_model_input, "{\"chunks\":[{\"tokens\":[1]}]}", WIRE_STRICT, &m),
              TINKER_EINVAL);
    CHECK_STR(err.message, "chunks[0].type: is required");
    CHECK_INT(
        decode_text(&wire_model_input,
                    "{\"chunks\":[{\"tokens\":[1],\"location\":\"l\",\"type\":\"encoded_text\"}]}",
                    WIRE_STRICT, &m),
        TINKER_EINVAL);
    CHECK_STR(err.message, "chunks[0]: unknown field \"location\"");
}

/* ---- error places ---------------------------------------------------------------- */

static void test_places(void)
{
    struct wire_forward_backward_request f;
    CHECK_INT(decode_text(
                  &wire_forward_backward_request,
                  "{\"model_id\":\"m\",\"forward_backward_input\":{\"loss_fn\":\"ppo\",\"data\":["
                  "{\"model_input\":{\"chunks\":[]},\"loss_fn_inputs\":{}},"
                  "{\"model_input\":{\"chunks\":[]},\"loss_fn_inputs\":{\"weights\":"
                  "{\"shape\":[12],\"data\":[1,2,3,4,5,6,7,8,9,10,11],\"dtype\":\"float32\"}}}]}}",
                  WIRE_LENIENT, &f),
              TINKER_EINVAL);
    CHECK_STR(err.message, "forward_backward_input.data[1].loss_fn_inputs.weights: "
                           "expected 12 values, got 11");
    CHECK_INT(decode_text(&wire_forward_backward_request,
                          "{\"forward_backward_input\":{\"data\":[{\"model_input\":{\"chunks\":"
                          "[{\"tokens\":[1,2147483648]}]}}]}}",
                          WIRE_LENIENT, &f),
              TINKER_EINVAL);
    CHECK(strncmp(err.message,
                  "forward_backward_input.data[0].model_input.chunks[0].tokens: ", 61) == 0);
    /* values that are read once their type is known: the column is that of the whole text */
    tinker_datum d;
    CHECK_INT(
        decode_text(&wire_datum,
                    "{\"loss_fn_inputs\":\n{\"weights\":{\"data\":[1, 2.5],\"dtype\":\"int64\"}}}",
                    WIRE_LENIENT, &d),
        TINKER_EINVAL);
    CHECK_STR(err.message, "loss_fn_inputs.weights.data: line 2, column 24: expected an integer, "
                           "found a fraction");
    tinker_sampling_params p;
    CHECK_INT(decode_text(&wire_sampling_params, "{\"seed\":1.5}", WIRE_LENIENT, &p),
              TINKER_EINVAL);
    CHECK_STR(err.message, "seed: line 1, column 9: expected an integer, found a fraction");
    tinker_training_run t;
    CHECK_INT(decode_text(&wire_training_run, "{\"last_checkpoint\":{\"time\":\"yesterday\"}}",
                          WIRE_LENIENT, &t),
              TINKER_EINVAL);
    CHECK_STR(err.message, "last_checkpoint.time: expected a date and time such as "
                           "2026-08-09T10:11:12Z");
}

static void test_broken_json(void)
{
    static const char *const texts[] = { "",
                                         "{",
                                         "[]",
                                         "null",
                                         "{\"request_id\":\"a\"} x",
                                         "{\"request_id\":\"a\"",
                                         "{\"request_id\":}",
                                         "{\"a\":1,}",
                                         "\"x\"",
                                         "{\"request_id\":\"\xff\"}" };
    struct wire_untyped_api_future u;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        CHECK_INT(decode_text(&wire_untyped_api_future, texts[i], WIRE_LENIENT, &u), TINKER_EINVAL);
        CHECK(err.message[0] != '\0');
    }
    CHECK_INT(wire_decode_json(&wire_untyped_api_future, "[]", 2, WIRE_LENIENT, &arena, &u, NULL),
              TINKER_EINVAL);
}

static void test_no_memory(void)
{
    const char *json =
        "{\"sessions\":[\"aaaaaaaaaaaaaaaaaaaaaaaa\",\"b\",\"c\",\"d\",\"e\",\"f\"]}";
    tinker_strings s;
    struct arena small;
    int failed = 0;
    for (size_t max = 0; max < 400; max += 16) {
        arena_init(&small, max);
        tinker_status status = wire_decode_json(&wire_list_sessions_response, json, strlen(json),
                                                WIRE_LENIENT, &small, &s, &err);
        CHECK(status == TINKER_OK || status == TINKER_ENOMEM);
        failed += status == TINKER_ENOMEM;
        arena_clear(&small);
    }
    CHECK(failed > 3 && failed < 25);
}

/* ---- numbers that JSON cannot carry ---------------------------------------------- */

static void test_not_finite(void)
{
    tinker_adam adam = TINKER_ADAM_INIT;
    struct wire_optim_step_request o = { .adam_params = &adam, .model_id = "m" };
    struct buf out;
    buf_init(&out, 4096);
    adam.eps = NAN;
    CHECK_INT(wire_encode_json(&wire_optim_step_request, &o, &out, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "adam_params.eps: must be a finite number");
    buf_reset(&out);
    tinker_named_number m = { "loss:sum", INFINITY };
    struct wire_optim_step_response r = { .metrics = { 1, &m, 1 } };
    CHECK_INT(wire_encode_json(&wire_optim_step_response, &r, &out, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "metrics.loss:sum: must be a finite number");
    buf_reset(&out);
    float lp = NAN;
    tinker_sequence seq = { .tokens = (int32_t[]){ 1 }, .logprobs = &lp, .n = 1 };
    tinker_sample s = { .sequences = &seq, .n_sequences = 1 };
    CHECK_INT(wire_encode_json(&wire_sample_response, &s, &out, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "sequences[0]: must be finite");
    buf_reset(&out);
    tinker_tensor t = { TINKER_FLOAT32, (float[]){ 1, -INFINITY }, 2, NULL, 0, NULL, NULL };
    CHECK_INT(wire_encode_json(&wire_tensor_data, &t, &out, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "value 1 is not finite, which JSON cannot carry");
    buf_clear(&out);
}

/* ---- metadata -------------------------------------------------------------------- */

static void test_metadata(void)
{
    tinker_named_string v[] = { { "a", "x\"y" }, { "b", NULL } };
    struct wire_named_strings out;
    struct buf b;
    buf_init(&b, 256);
    CHECK_INT(wire_metadata_encode(v, 2, &b, &err), TINKER_OK);
    CHECK_STR(b.data, "{\"a\":\"x\\\"y\",\"b\":null}");
    buf_clear(&b);
    const char *raw = "{\"s\":\"t\",\"n\":3.50,\"o\":{\"x\":[1]},\"z\":null}";
    CHECK_INT(wire_metadata_decode((struct json_str){ raw, strlen(raw) }, &arena, &out, &err),
              TINKER_OK);
    REQUIRE(out.n == 4);
    CHECK_STR(out.v[0].value, "t");
    CHECK_STR(out.v[1].value, "3.50");
    CHECK_STR(out.v[2].value, "{\"x\":[1]}");
    CHECK_STR(out.v[3].value, "null");
    CHECK_INT(wire_metadata_decode((struct json_str){ 0 }, &arena, &out, &err), TINKER_OK);
    CHECK_INT(out.has, 0);
}

int main(void)
{
    arena_init(&arena, SIZE_MAX);
    RUN(test_golden_texts);
    RUN(test_request_from_struct);
    RUN(test_client_config_defaults);
    RUN(test_lora_and_adam_defaults);
    RUN(test_sample_request_of_old_clients);
    RUN(test_text_chunk_with_a_number_of_tokens);
    RUN(test_stop_shapes);
    RUN(test_seed_is_folded);
    RUN(test_unknown_fields);
    RUN(test_every_answer_survives_an_extra_key);
    RUN(test_required_and_literals);
    RUN(test_coercions);
    RUN(test_bool_coercions);
    RUN(test_metric_coercions);
    RUN(test_metrics_that_are_not_finite);
    RUN(test_many_keys);
    RUN(test_unknown_members);
    RUN(test_places);
    RUN(test_broken_json);
    RUN(test_no_memory);
    RUN(test_not_finite);
    RUN(test_metadata);
    arena_clear(&arena);
    return tap_done();
}
