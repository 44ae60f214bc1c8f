/* Building model inputs, numbers, and names: what needs no service. */
#include <tinker/tinker.h>
#include "support/tap.h"

static void test_appending(void)
{
    tinker_error err = { 0 };
    tinker_input *in = tinker_input_new(&err);
    REQUIRE(in);
    int64_t length = -1;
    CHECK_INT(tinker_input_view(in)->n_chunks, 0);
    CHECK_INT(tinker_model_input_length(tinker_input_view(in), &length, &err), TINKER_OK);
    CHECK_INT(length, 0);
    for (int32_t i = 0; i < 1000; i++)
        CHECK_INT(tinker_input_append_tokens(in, &i, 1, &err), TINKER_OK);
    CHECK_INT(tinker_input_append_tokens(in, NULL, 0, &err), TINKER_OK);
    CHECK_INT(tinker_input_view(in)->n_chunks, 1);
    char bytes[] = "png", format[] = "png";
    tinker_chunk image = { .kind = TINKER_CHUNK_IMAGE,
                           .bytes = bytes,
                           .n_bytes = 3,
                           .format = format,
                           .has_expected_tokens = 1,
                           .expected_tokens = 7 };
    CHECK_INT(tinker_input_append(in, &image, &err), TINKER_OK);
    memset(bytes, 'x', 3);
    format[0] = 'x';
    const int32_t more[] = { -5, 5 };
    const tinker_chunk text = { .tokens = more, .n_tokens = 2 };
    CHECK_INT(tinker_input_append(in, &text, &err), TINKER_OK);
    CHECK_INT(tinker_input_append(in, &text, &err), TINKER_OK);
    const tinker_model_input *view = tinker_input_view(in);
    REQUIRE(view->n_chunks == 3);
    CHECK_INT(view->chunks[0].n_tokens, 1000);
    for (int32_t i = 0; i < 1000; i++)
        if (view->chunks[0].tokens[i] != i)
            TAP_FAIL("token %d is %d", i, view->chunks[0].tokens[i]);
    CHECK_MEM(view->chunks[1].bytes, view->chunks[1].n_bytes, "png", 3);
    CHECK_STR(view->chunks[1].format, "png");
    CHECK_INT(view->chunks[2].n_tokens, 4);
    CHECK_INT(view->chunks[2].tokens[3], 5);
    CHECK_INT(tinker_model_input_length(view, &length, &err), TINKER_OK);
    CHECK_INT(length, 1000 + 7 + 4);
    /* what makes no sense changes nothing */
    image.format = "gif";
    CHECK_INT(tinker_input_append(in, &image, &err), TINKER_EINVAL);
    CHECK_INT(tinker_input_append(in, NULL, &err), TINKER_EINVAL);
    CHECK_INT(tinker_input_append_tokens(in, NULL, 3, &err), TINKER_EINVAL);
    CHECK_INT(tinker_input_view(in)->n_chunks, 3);
    tinker_input_free(in);
    tinker_input_free(NULL);
}

static void test_asking(void)
{
    const int32_t a[] = { 1, 2, 3 }, b[] = { 4 };
    tinker_chunk chunks[] = { { .tokens = a, .n_tokens = 3 }, { .tokens = b, .n_tokens = 1 } };
    tinker_model_input input = { chunks, 2 };
    tinker_error err = { 0 };
    int32_t out[4] = { 0 };
    size_t n = 0;
    int64_t length;
    CHECK_INT(tinker_model_input_tokens(&input, out, 4, &n, &err), TINKER_OK);
    CHECK_INT(n, 4);
    CHECK(out[0] == 1 && out[2] == 3 && out[3] == 4);
    int32_t few[2] = { 0, 77 };
    CHECK_INT(tinker_model_input_tokens(&input, few, 1, &n, &err), TINKER_OK);
    CHECK(n == 4 && few[0] == 1 && few[1] == 77);
    CHECK_INT(tinker_model_input_tokens(&input, NULL, 0, &n, &err), TINKER_OK);
    chunks[1] =
        (tinker_chunk){ .kind = TINKER_CHUNK_IMAGE, .bytes = "x", .n_bytes = 1, .format = "png" };
    CHECK_INT(tinker_model_input_tokens(&input, out, 4, &n, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "chunks[1]") != NULL);
    CHECK_INT(tinker_model_input_length(&input, &length, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "chunks[1]") != NULL);
}

static void test_halves(void)
{
    static const struct {
        uint16_t half;
        float value;
    } cases[] = {
        { 0x0000, 0.0F },
        { 0x3c00, 1.0F },
        { 0xc000, -2.0F },
        { 0x7bff, 65504.0F },
        { 0x0400, 6.103515625e-05F },
        { 0x0001, 5.9604644775390625e-08F },
        { 0x03ff, 6.09755516e-05F },
        { 0x8001, -5.9604644775390625e-08F },
        { 0x3555, 0.333251953F },
        { 0x7c00, INFINITY },
        { 0xfc00, -INFINITY },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        float f;
        tinker_widen_float16(&cases[i].half, 1, &f);
        if (f != cases[i].value)
            TAP_FAIL("%04x: got %.9g, want %.9g", cases[i].half, f, cases[i].value);
    }
    const uint16_t odd[] = { 0x7e01, 0x8000 }, brain[] = { 0x3f80, 0xc049, 0x7fc0, 0x0001 };
    float f[4];
    tinker_widen_float16(odd, 2, f);
    CHECK(isnan(f[0]) && f[1] == 0 && signbit(f[1]));
    tinker_widen_bfloat16(brain, 4, f);
    CHECK(f[0] == 1 && f[1] == -3.140625F && isnan(f[2]) && f[3] == 9.18354962e-41F);
}

static void test_exact(void)
{
    const double fine[] = { 0.5, -3, NAN }, rounded[] = { 0.5, 0.1 }, huge[] = { 1e300 };
    const int32_t whole[] = { 1, 2 };
    const uint64_t large[] = { UINT64_MAX };
    const tinker_tensor t[] = { { .dtype = TINKER_FLOAT64, .data = fine, .n = 3 },
                                { .dtype = TINKER_INT32, .data = whole, .n = 2 },
                                { .dtype = TINKER_FLOAT64, .data = rounded, .n = 2 },
                                { .dtype = TINKER_FLOAT64, .data = huge, .n = 1 },
                                { .dtype = TINKER_UINT64, .data = large, .n = 1 },
                                { .dtype = TINKER_BFLOAT16, .data = whole, .n = 1 } };
    for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++)
        CHECK_INT(tinker_tensor_is_exact(&t[i]), i < 2);
}

#define ROUND(type, text, value_)                       \
    do {                                                \
        tinker_##type v_ = (tinker_##type)99;           \
        CHECK_INT(tinker_##type##_parse(text, &v_), 1); \
        CHECK_INT(v_, value_);                          \
    } while (0)

static void test_names(void)
{
    ROUND(dtype, "Float32", TINKER_FLOAT32);
    ROUND(dtype, "bfloat16", TINKER_BFLOAT16);
    ROUND(stop_reason, "LENGTH", TINKER_STOP_LENGTH);
    ROUND(queue_state, "paused_rate_limit", TINKER_QUEUE_PAUSED_RATE_LIMIT);
    ROUND(severity, "critical", TINKER_SEVERITY_CRITICAL);
    ROUND(log_level, "warn", TINKER_LOG_WARNING);
    ROUND(scope, "accessible", TINKER_SCOPE_ACCESSIBLE);
    ROUND(billing_kind, "sampling_sample", TINKER_BILLING_SAMPLING);
    ROUND(breaker_state, "half_open", TINKER_BREAKER_HALF_OPEN);
    int category = 99;
    CHECK_INT(tinker_category_parse("User", &category), 1);
    CHECK_INT(category, TINKER_CATEGORY_USER);
    CHECK_INT(tinker_category_parse("", &category), 0);
    CHECK_INT(tinker_category_parse(NULL, &category), 0);
    CHECK_INT(category, TINKER_CATEGORY_USER);
    for (int i = 1; i <= TINKER_UINT64; i++) {
        tinker_dtype d;
        CHECK(tinker_dtype_parse(tinker_dtype_name((tinker_dtype)i), &d) && (int)d == i);
    }
    CHECK_STR(tinker_dtype_name((tinker_dtype)0), "unknown");
    CHECK_STR(tinker_log_level_name(TINKER_LOG_WARNING), "warning");
    CHECK_STR(tinker_billing_kind_name(TINKER_BILLING_OTHER), "unknown");
    CHECK_STR(tinker_queue_state_name(TINKER_QUEUE_ACTIVE), "active");
    CHECK_STR(tinker_stop_reason_name(TINKER_STOP_STOP), "stop");
    CHECK_STR(tinker_severity_name(TINKER_SEVERITY_DEBUG), "debug");
    CHECK_STR(tinker_scope_name(TINKER_SCOPE_OWNED), "owned");
    CHECK_STR(tinker_category_name(TINKER_CATEGORY_SERVER), "server");
    CHECK_STR(tinker_breaker_state_name(TINKER_BREAKER_OPEN), "open");
}

static void test_printing_events(void)
{
    char text[200] = "";
    FILE *f = tmpfile();
    REQUIRE(f);
    const tinker_named_string metadata = { "reason", "two\nlines" };
    const tinker_event e = { .name = "queue.state_change", .metadata = &metadata, .n_metadata = 1 };
    CHECK_INT(tinker_event_print(f, &e), 0);
    rewind(f);
    CHECK(fgets(text, sizeof(text), f) != NULL);
    CHECK_STR(text, "queue.state_change reason=two lines\n");
    fclose(f);
}

int main(void)
{
    RUN(test_appending);
    RUN(test_asking);
    RUN(test_halves);
    RUN(test_exact);
    RUN(test_names);
    RUN(test_printing_events);
    return tap_done();
}
