/* What goes over the wire: tags, types, defaults, links.  The codecs have tests of their
 * own; these look at it from the client's side. */
#define _GNU_SOURCE
#include <unistd.h>
#include "support/fake_tinker.h"
#include "support/tap.h"
#include "wire/wire.h"

static void test_tags_are_written_by_the_library(void) /* R-017 R-183 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_sampler *s = world_sampler(&w);
    int32_t tokens[] = { 1, 2 };
    tinker_chunk chunks[] = {
        { .tokens = tokens, .n_tokens = 2 },
        { .kind = TINKER_CHUNK_IMAGE_POINTER,
          .format = "png",
          .location = "s3://x",
          .has_expected_tokens = 1,
          .expected_tokens = 9 },
        { .kind = TINKER_CHUNK_IMAGE, .format = "jpeg", .bytes = "\xff\xd8", .n_bytes = 2 },
    };
    tinker_model_input input = { chunks, 3 };
    tinker_future *f = tinker_sampler_sample(s, &input, NULL, NULL, &w.err);
    REQUIRE(f);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK(strstr(fake_get(w.server, API "asample", 0)->body,
                 "{\"chunks\":[{\"tokens\":[1,2],\"type\":\"encoded_text\"},{\"format\":\"png\","
                 "\"location\":\"s3://x\",\"expected_tokens\":9,\"type\":\"image_asset_pointer\"},"
                 "{\"data\":\"/9g=\",\"format\":\"jpeg\",\"type\":\"image\"}]}") != NULL);
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_unknown_fields(void) /* */
{
    struct arena a;
    struct wire_session_heartbeat_request req;
    arena_init(&a, 1 << 16);
    const char *json = "{\"session_id\":\"s\",\"extra\":1}";
    CHECK_INT(wire_decode_json(&wire_session_heartbeat_request, json, strlen(json), WIRE_STRICT, &a,
                               &req, NULL),
              TINKER_EINVAL);
    CHECK_INT(wire_decode_json(&wire_session_heartbeat_request, json, strlen(json), WIRE_LENIENT,
                               &a, &req, NULL),
              TINKER_OK);
    arena_clear(&a);
}

static tinker_status send_tensor(struct world *w, tinker_training *t, tinker_tensor tensor)
{
    int32_t tokens[] = { 1, 2 };
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = 2 };
    int64_t targets[] = { 2, 3 };
    tinker_named_tensor inputs[] = { { "target_tokens",
                                       { .dtype = TINKER_INT64, .data = targets, .n = 2 } },
                                     { "weights", tensor } };
    tinker_datum datum = { .model_input = { &chunk, 1 }, .inputs = inputs, .n_inputs = 2 };
    tinker_future *f = tinker_training_forward(t, &datum, 1, &fake_loss, &w->err);
    if (!f)
        return w->err.status;
    tinker_status s = world_finish(w, f, 1000);
    tinker_future_free(f);
    return s;
}

static void test_dtypes(void) /* R-189 R-190 R-188 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_training *t = world_training(&w);
    double f64[] = { 0.5, 1 };
    float f32[] = { 0.5f, 1 };
    int32_t i32[] = { 1, 2 };
    uint64_t big[] = { 1, UINT64_C(1) << 63 };
    CHECK_INT(send_tensor(&w, t, (tinker_tensor){ .dtype = TINKER_FLOAT64, .data = f64, .n = 2 }),
              TINKER_OK);
    CHECK_INT(send_tensor(&w, t, (tinker_tensor){ .dtype = TINKER_FLOAT32, .data = f32, .n = 2 }),
              TINKER_OK);
    CHECK_INT(send_tensor(&w, t, (tinker_tensor){ .dtype = TINKER_INT32, .data = i32, .n = 2 }),
              TINKER_OK);
    const struct fake_request *a = fake_get(w.server, API "forward_backward", 0),
                              *b = fake_get(w.server, API "forward_backward", 1);
    CHECK_INT(a->len, b->len);
    CHECK(memmem(a->body, a->len, f32, sizeof(f32)) != NULL); /* narrowed, raw, not text */
    size_t n = fake_count(w.server, NULL);
    CHECK_INT(send_tensor(&w, t, (tinker_tensor){ .dtype = TINKER_UINT64, .data = big, .n = 2 }),
              TINKER_EINVAL);
    CHECK(strstr(w.err.message, "weights") != NULL);
    CHECK_INT(fake_count(w.server, NULL), n);
    tinker_training_free(t);
    world_close(&w);
}

static void test_defaults_do_not_drift(void) /* R-186 R-012 */
{
    tinker_adam adam = TINKER_ADAM_INIT;
    CHECK(adam.learning_rate == 1e-4 && adam.beta1 == 0.9 && adam.beta2 == 0.95 &&
          adam.eps == 1e-12 && adam.weight_decay == 0 && adam.grad_clip_norm == 0);
    const struct wire_client_config_response *c = &wire_client_config_defaults;
    CHECK(!c->pjwt_auth_enabled && c->parallel_fwdbwd_chunks && !c->proto_compress_fwdbwd &&
          !c->sample_no_retries && c->sample_enable_stuck_detection &&
          !c->create_model_via_load_weights);
    CHECK_STR(c->credential_default_source, "api_key");
    CHECK_INT(c->sample_dispatch_bytes_semaphore_size, 10485760);
    CHECK_INT(c->inflight_response_bytes_semaphore_size, 52428800);
    CHECK_INT(c->fwdbwd_max_chunk_len, 1024);
    CHECK_INT(c->fwdbwd_max_chunk_bytes_count, 5000000);
    CHECK_INT(c->fwdbwd_dispatch_bytes_semaphore_size, 50000000);
    CHECK_INT(c->billing_exception_max_pause_duration_sec, 3600);
    CHECK_INT(c->sample_max_concurrent_requests, 2000);
    CHECK_INT(TINKER_STOP_STOP + TINKER_STOP_LENGTH, 1);
}

static void test_links(void) /* */
{
    char command[256], line[256];
    snprintf(command, sizeof(command), "ldd /proc/%d/exe 2>/dev/null", (int)getpid());
    FILE *f = popen(command, "r");
    static const char *const heavy[] = { "libsqlite",   "libmicrohttpd", "libtorch",
                                         "libopenblas", "libpython",     "libarchive" };
    while (f && fgets(line, sizeof(line), f))
        for (size_t i = 0; i < sizeof(heavy) / sizeof(*heavy); i++)
            if (strstr(line, heavy[i]))
                TAP_FAIL("the client links %s", line);
    if (f)
        pclose(f);
}

int main(void)
{
    RUN(test_tags_are_written_by_the_library);
    RUN(test_unknown_fields);
    RUN(test_dtypes);
    RUN(test_defaults_do_not_drift);
    RUN(test_links);
    return tap_done();
}
