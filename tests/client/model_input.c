/* Building model inputs, numbers, and names: what needs no service. */
#include <tinker/tinker.h>
#include <tinker/extra/breaker.h>
#include <tinker/extra/events.h>
#include <tinker/extra/account.h>
#include <tinker/extra/names.h>
#include <tinker/extra/tensor.h>
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

/* Every value of an enumeration has the name of the list, which reads back in any case; a value
 * that is none is "unknown"; a text that is none leaves *out alone. */
#define CHECK_NAMES(type, name, parse, ...)                           \
    do {                                                              \
        static const struct {                                         \
            type value;                                               \
            const char *text;                                         \
        } all[] = { __VA_ARGS__ };                                    \
        for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {     \
            type v = (type)99;                                        \
            CHECK_STR(name(all[i].value), all[i].text);               \
            CHECK_INT(parse(all[i].text, &v, NULL), TINKER_OK);       \
            CHECK_INT(v, all[i].value);                               \
        }                                                             \
        type kept = (type)99;                                         \
        CHECK_INT(parse("no such name", &kept, NULL), TINKER_EINVAL); \
        CHECK_INT(parse("", &kept, NULL), TINKER_EINVAL);             \
        CHECK_INT(parse(NULL, &kept, NULL), TINKER_EINVAL);           \
        CHECK_INT(kept, 99);                                          \
        CHECK(name((type)99) == NULL);                                \
    } while (0)

static void test_sparse(void)
{
    tinker_error err;
    int64_t ids[12] = { -1, -1, 7, -1, -1, -1, -1, -1, 9, -1, -1, 3 }, shape[2] = { 3, 4 };
    tinker_tensor t = { TINKER_INT64, ids, 12, shape, 2, NULL, NULL };
    tinker_tensor *s = tinker_tensor_to_sparse(&t, -1, &err);
    REQUIRE(s && s->crow && s->col && s->n == 3);
    CHECK(s->crow[0] == 0 && s->crow[1] == 1 && s->crow[2] == 1 && s->crow[3] == 3);
    CHECK(s->col[0] == 2 && s->col[1] == 0 && s->col[2] == 3);
    const int64_t *v = s->data;
    CHECK(v[0] == 7 && v[1] == 9 && v[2] == 3);
    CHECK(s->shape[0] == 3 && s->shape[1] == 4 && s->dtype == TINKER_INT64);
    CHECK(tinker_tensor_to_sparse(s, -1, &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
    tinker_tensor *d = tinker_tensor_to_dense(s, -1, &err);
    REQUIRE(d && !d->crow && d->n == 12);
    CHECK(memcmp(d->data, ids, sizeof(ids)) == 0);
    tinker_tensor_free(s);
    tinker_tensor_free(d);
    s = tinker_tensor_to_sparse(&t, 0, &err); /* would not get smaller */
    REQUIRE(s && !s->crow && s->n == 12);
    CHECK(s->data != t.data && memcmp(s->data, ids, sizeof(ids)) == 0);
    tinker_tensor_free(s);
    float x[10] = { 0, -0.0f, 2.5f };
    tinker_tensor row = { TINKER_FLOAT32, x, 10, NULL, 0, NULL, NULL }; /* no matrix */
    s = tinker_tensor_to_sparse(&row, 0, &err);
    REQUIRE(s && !s->crow && s->ndim == 1 && s->shape[0] == 10);
    tinker_tensor_free(s);
    int64_t wide[2] = { 1, 10 };
    row.shape = wide;
    row.ndim = 2;
    s = tinker_tensor_to_sparse(&row, 0, &err);
    REQUIRE(s && s->crow && s->n == 1); /* minus zero is zero */
    d = tinker_tensor_to_dense(s, 0, &err);
    REQUIRE(d);
    CHECK(((const float *)d->data)[2] == 2.5f && ((const float *)d->data)[9] == 0);
    tinker_tensor_free(d);
    d = tinker_tensor_to_dense(s, -99999, &err);
    REQUIRE(d);
    CHECK(((const float *)d->data)[0] == -99999);
    tinker_tensor_free(d);
    tinker_tensor_free(s);
    row.n = 9;
    CHECK(tinker_tensor_to_sparse(&row, 0, &err) == NULL);
    CHECK(tinker_tensor_to_dense(&row, 0, &err) == NULL);
    tinker_tensor_free(NULL);
}

static void test_datum(void)
{
    const int32_t tokens[] = { 5, 6, 7 };
    const float weights[] = { 9, 0, 0.5f };
    tinker_error err;
    tinker_datum *d = tinker_datum_from_tokens(tokens, 3, weights, &err);
    REQUIRE(d != NULL);
    CHECK_INT(d->model_input.n_chunks, 1);
    CHECK_MEM(d->model_input.chunks[0].tokens, d->model_input.chunks[0].n_tokens * 4, tokens, 8);
    CHECK_INT(d->n_inputs, 2);
    CHECK_STR(d->inputs[0].name, "target_tokens");
    CHECK_INT(d->inputs[0].tensor.dtype, TINKER_INT64);
    CHECK_MEM(d->inputs[0].tensor.data, d->inputs[0].tensor.n * 8, ((int64_t[]){ 6, 7 }), 16);
    CHECK_STR(d->inputs[1].name, "weights");
    CHECK_MEM(d->inputs[1].tensor.data, d->inputs[1].tensor.n * 4, ((float[]){ 0, 0.5f }), 8);
    tinker_datum_free(d);
    d = tinker_datum_from_tokens(tokens, 2, NULL, &err);
    REQUIRE(d != NULL);
    CHECK_NEAR(((const float *)d->inputs[1].tensor.data)[0], 1, 0);
    tinker_datum_free(d);
    CHECK(!tinker_datum_from_tokens(tokens, 1, NULL, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK(!tinker_datum_from_tokens(NULL, 3, NULL, NULL));
    tinker_datum_free(NULL);
}

static void test_names(void)
{
    CHECK_NAMES(tinker_dtype, tinker_dtype_name, tinker_dtype_parse, { TINKER_FLOAT32, "float32" },
                { TINKER_INT64, "int64" }, { TINKER_INT32, "int32" }, { TINKER_UINT32, "uint32" },
                { TINKER_UINT64, "uint64" }, { TINKER_FLOAT64, "float64" },
                { TINKER_BFLOAT16, "bfloat16" });
    CHECK_NAMES(tinker_stop_reason, tinker_stop_reason_name, tinker_stop_reason_parse,
                { TINKER_STOP_STOP, "stop" }, { TINKER_STOP_LENGTH, "length" });
    CHECK_NAMES(tinker_queue_state, tinker_queue_state_name, tinker_queue_state_parse,
                { TINKER_QUEUE_UNKNOWN, "unknown" }, { TINKER_QUEUE_ACTIVE, "active" },
                { TINKER_QUEUE_PAUSED_CAPACITY, "paused_capacity" },
                { TINKER_QUEUE_PAUSED_RATE_LIMIT, "paused_rate_limit" });
    CHECK_NAMES(int, tinker_category_name, tinker_category_parse,
                { TINKER_CATEGORY_UNKNOWN, "unknown" }, { TINKER_CATEGORY_SERVER, "server" },
                { TINKER_CATEGORY_USER, "user" });
    CHECK_NAMES(tinker_severity, tinker_severity_name, tinker_severity_parse,
                { TINKER_SEVERITY_DEBUG, "debug" }, { TINKER_SEVERITY_INFO, "info" },
                { TINKER_SEVERITY_WARNING, "warning" }, { TINKER_SEVERITY_ERROR, "error" },
                { TINKER_SEVERITY_CRITICAL, "critical" });
    CHECK_NAMES(tinker_log_level, tinker_log_level_name, tinker_log_level_parse,
                { TINKER_LOG_DEBUG, "debug" }, { TINKER_LOG_INFO, "info" },
                { TINKER_LOG_WARNING, "warning" }, { TINKER_LOG_ERROR, "error" });
    CHECK_NAMES(tinker_scope, tinker_scope_name, tinker_scope_parse,
                { TINKER_SCOPE_OWNED, "owned" }, { TINKER_SCOPE_ACCESSIBLE, "accessible" });
    CHECK_NAMES(tinker_checkpoint_kind, tinker_checkpoint_kind_name, tinker_checkpoint_kind_parse,
                { TINKER_CHECKPOINT_TRAINING, "training" },
                { TINKER_CHECKPOINT_SAMPLER, "sampler" },
                { TINKER_CHECKPOINT_EXTERNAL, "external" });
    CHECK_NAMES(tinker_billing_kind, tinker_billing_kind_name, tinker_billing_kind_parse,
                { TINKER_BILLING_TRAINING, "training" },
                { TINKER_BILLING_PREFILL, "sampling_prefill" },
                { TINKER_BILLING_SAMPLING, "sampling_sample" },
                { TINKER_BILLING_CHECKPOINT, "checkpoint" }, { TINKER_BILLING_STORAGE, "storage" });
    CHECK_NAMES(tinker_breaker_state, tinker_breaker_state_name, tinker_breaker_state_parse,
                { TINKER_BREAKER_CLOSED, "closed" }, { TINKER_BREAKER_OPEN, "open" },
                { TINKER_BREAKER_HALF_OPEN, "half_open" });
    tinker_dtype d = TINKER_INT64;
    CHECK(tinker_dtype_parse("Float32", &d, NULL) == TINKER_OK &&
          d == TINKER_FLOAT32); /* any case */
    tinker_log_level l = TINKER_LOG_ERROR;
    CHECK(tinker_log_level_parse("WARN", &l, NULL) == TINKER_OK && l == TINKER_LOG_WARNING);
    CHECK(tinker_dtype_name((tinker_dtype)0) == NULL);
    CHECK(tinker_billing_kind_name(TINKER_BILLING_OTHER) == NULL);
    tinker_error err;
    CHECK_INT(tinker_scope_parse("mine", &(tinker_scope){ 0 }, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "\"mine\" is not a known scope; known are owned, accessible");
}

static void test_printing_events(void)
{
    char text[200] = "";
    const tinker_named_string metadata = { "reason", "two\nlines" };
    const tinker_event e = { .name = "queue.state_change", .metadata = &metadata, .n_metadata = 1 };
    tinker_event_line(&e, text, sizeof(text));
    CHECK_STR(text, "queue.state_change reason=two lines");
}

int main(void)
{
    RUN(test_appending);
    RUN(test_asking);
    RUN(test_halves);
    RUN(test_exact);
    RUN(test_sparse);
    RUN(test_datum);
    RUN(test_names);
    RUN(test_printing_events);
    return tap_done();
}
