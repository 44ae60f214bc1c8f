/* Sampling: limits, pauses, the third retry layer, stuck detection, other processes. */
#include <pthread.h>
#include <tinker/extra/stream.h>
#include "base/base64.h"
#include "client/call/retry_policy.h"
#include "client/sampling/sample_retry.h"
#include "client/session/session.h"
#include "client/sampling/sample_limits.h"
#include "client/io/runtime.h"
#include "client/sampling/sampling_client.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define ASAMPLE API "asample"
#define POLL    API "retrieve_future"

static double half(struct runtime *rt)
{
    (void)rt;
    return 0.5;
}

static tinker_sampler *open_sampler(struct world *w, const char *config)
{
    world_open(w, config, NULL);
    runtime_current()->uniform = half;
    return world_sampler(w);
}

static tinker_future *sample(tinker_sampler *s, size_t tokens)
{
    return tinker_sampler_sample(s, fake_prompt(tokens), NULL, NULL, NULL);
}

static void drop_all(struct world *w, tinker_future **f, int n)
{
    for (int i = 0; i < n; i++) {
        tinker_future_cancel(f[i]);
        tinker_future_free(f[i]);
    }
    world_settle(w);
}

static void test_retry_options(void) /* */
{
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    CHECK_INT(o.max_connections, 1000);
    CHECK_INT(o.progress_ms, 7200000);
    CHECK_INT(o.delay_base_ms, 500);
    CHECK_INT(o.delay_max_ms, 10000);
    CHECK_NEAR(o.jitter, 0.25, 0);
    CHECK_INT(sample_retry_check(&o, NULL), TINKER_OK);
    tinker_retry_options bad[6] = { o, o, o, o, o, o };
    bad[0].max_connections = 0;
    bad[1].progress_ms = 0;
    bad[2].delay_base_ms = 0;
    bad[3].delay_max_ms = 499;
    bad[4].jitter = 1.5;
    bad[5].max_retries = -2;
    for (int i = 0; i < 6; i++)
        CHECK_INT(sample_retry_check(&bad[i], NULL), TINKER_EINVAL);
}

static void test_delays_of_layer_3(void) /* */
{
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    CHECK_INT(retry_sample_delay_ms(&o, 1, 0), 375);
    CHECK_INT(retry_sample_delay_ms(&o, 1, 0.5), 500);
    CHECK_INT(retry_sample_delay_ms(&o, 1, 1), 625);
    CHECK_INT(retry_sample_delay_ms(&o, 2, 0.5), 1000);
    CHECK_INT(retry_sample_delay_ms(&o, 9, 1), 10000);
    CHECK_INT(retry_sample_delay_ms(&o, 100000, 0), 7500);
}

static void test_request(void) /* R-127 R-128 R-130 R-133 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    for (int i = 0; i < 3; i++) {
        tinker_future *f = sample(s, 2);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
        tinker_future_free(f);
        CHECK_INT(fake_json_int(fake_get(w.server, ASAMPLE, (size_t)i), "seq_id"), i);
    }
    char v[512];
    const struct fake_request *r = fake_get(w.server, ASAMPLE, 0);
    CHECK_STR(fake_header(r, "X-Tinker-Sampling-Backpressure", v), "1");
    CHECK_STR(
        r->body,
        "{\"num_samples\":1,\"prompt\":{\"chunks\":[{\"tokens\":[0,0],\"type\":\"encoded_text\"}]},"
        "\"sampling_params\":{\"temperature\":1.0,\"top_k\":-1,\"top_p\":1.0},"
        "\"sampling_session_id\":\"sess:sample:0\",\"seq_id\":0,\"prompt_logprobs\":false,"
        "\"topk_prompt_logprobs\":0,\"type\":\"sample\"}");
    tinker_sample_options more = TINKER_SAMPLE_OPTIONS_INIT;
    more.prompt_logprobs = 1;
    more.topk_sample_logprobs = 3;
    more.prompt_logprobs_last_n = 1;
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(2), NULL, &more, &w.err);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    tinker_future_free(f);
    CHECK(strstr(fake_get(w.server, ASAMPLE, 3)->body,
                 "\"topk_sample_logprobs\":3,\"prompt_logprobs_last_n\":1"));
    size_t n = fake_count(w.server, NULL);
    tinker_sample_options none = TINKER_SAMPLE_OPTIONS_INIT;
    none.num_samples = 0;
    CHECK(tinker_sampler_sample(s, fake_prompt(2), NULL, &none, &w.err) == NULL);
    tinker_sampling_params bad = TINKER_SAMPLING_PARAMS_INIT;
    bad.max_tokens = -1;
    CHECK(tinker_sampler_sample(s, fake_prompt(2), &bad, NULL, &w.err) == NULL);
    CHECK_INT(w.err.status, TINKER_EINVAL);
    CHECK_INT(fake_count(w.server, NULL), n);
    tinker_sampler_free(s);
    world_close(&w);
}

/* Tokens of one's choice, and drawn ones, at positions of the prompt. */
static void test_other_tokens_of_the_prompt(void)
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    static const int32_t tokens[] = { 5, -1, 6, 7 };
    static const int64_t shape[] = { 2, 2 }, crow[] = { 0, 0, 1 }, col[] = { 1 };
    tinker_tensor targets = {
        .dtype = TINKER_INT32, .data = tokens, .n = 4, .shape = shape, .ndim = 2
    };
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.target_prompt_logprobs = &targets;
    o.prompt_alt_tokens_k = 2;
    say(&w, POLL, 200,
        "{\"sequences\":[],\"target_prompt_logprobs\":{\"data\":[-0.5,0,-1.5,-2.5],"
        "\"dtype\":\"float32\",\"shape\":[2,2]},\"prompt_alt_tokens\":{\"tokens\":{\"data\":[1,2,3,"
        "4],"
        "\"dtype\":\"int64\",\"shape\":[2,2]},\"logprobs\":{\"data\":[-1,-2,-3,-4],"
        "\"dtype\":\"float32\",\"shape\":[2,2]}}}",
        1);
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(3), NULL, &o, &w.err);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK(strstr(fake_get(w.server, ASAMPLE, 0)->body,
                 "\"topk_prompt_logprobs\":0,\"target_prompt_logprobs\":{\"data\":[5,-1,6,7],"
                 "\"dtype\":\"int64\",\"shape\":[2,2]},\"prompt_alt_tokens_k\":2,\"type\""));
    const tinker_sample *r = tinker_future_sample(f);
    REQUIRE(r && r->target_prompt_logprobs && r->prompt_alt_tokens && r->prompt_alt_logprobs);
    CHECK_INT(r->target_prompt_logprobs->shape[1], 2);
    CHECK_NEAR(((const float *)r->target_prompt_logprobs->data)[3], -2.5, 0);
    CHECK_INT(((const int64_t *)r->prompt_alt_tokens->data)[2], 3);
    CHECK_NEAR(((const float *)r->prompt_alt_logprobs->data)[2], -3, 0);
    tinker_future_free(f);
    targets = (tinker_tensor){ TINKER_INT32, tokens, 1, shape, 2, crow, col };
    o.prompt_alt_tokens_k = 0;
    f = tinker_sampler_sample(s, fake_prompt(3), NULL, &o, &w.err);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK(strstr(fake_get(w.server, ASAMPLE, 1)->body,
                 "\"sparse_crow_indices\":[0,0,1],\"sparse_col_indices\":[1]}"));
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

/* What cannot be meant is refused before anything is sent. */
static void test_options_are_checked(void)
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"stream_sample\":true}");
    static const float numbers[] = { 1, 2 };
    static const int64_t tokens[] = { 1, 2 }, shape[] = { 1, 2 }, wrong[] = { 1, 3 };
    const tinker_tensor bad[] = {
        { .dtype = TINKER_FLOAT32, .data = numbers, .n = 2, .shape = shape, .ndim = 2 },
        { .dtype = TINKER_INT64, .data = tokens, .n = 2 },
        { .dtype = TINKER_INT64, .data = tokens, .n = 2, .shape = shape, .ndim = 1 },
        { .dtype = TINKER_INT64, .data = tokens, .n = 2, .shape = wrong, .ndim = 2 }
    };
    size_t n = fake_count(w.server, NULL);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
        o.target_prompt_logprobs = &bad[i];
        CHECK(!tinker_sampler_sample(s, fake_prompt(2), NULL, &o, &w.err));
        CHECK_INT(w.err.status, TINKER_EINVAL);
        CHECK(strstr(w.err.message, "target_prompt_logprobs") != NULL);
    }
    for (int i = 0; i < 4; i++) {
        tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
        size_t *const counts[] = { &o.topk_prompt_logprobs, &o.topk_sample_logprobs,
                                   &o.prompt_logprobs_last_n, &o.prompt_alt_tokens_k };
        *counts[i] = (size_t)-1;
        CHECK(!tinker_sampler_sample(s, fake_prompt(2), NULL, &o, &w.err));
        CHECK_INT(w.err.status, TINKER_EINVAL);
    }
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT; /* fine, but not for a stream */
    o.prompt_alt_tokens_k = 1;
    CHECK(!tinker_sampler_stream(s, fake_prompt(2), NULL, &o, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    CHECK(strstr(w.err.message, "prompt_alt_tokens_k") != NULL);
    CHECK_INT(fake_count(w.server, NULL), n);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_logprobs(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"sample_no_retries\":true}");
    say(&w, POLL, 200, "{\"sequences\":[],\"prompt_logprobs\":[null,-1.5,-2.5]}", 1);
    tinker_future *f = tinker_sampler_compute_logprobs(s, fake_prompt(3), NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    const tinker_sample *r = tinker_future_sample(f);
    REQUIRE(r);
    CHECK_INT(r->n_prompt, 3);
    CHECK(isnan(r->prompt_logprobs[0]));
    CHECK_NEAR(r->prompt_logprobs[2], -2.5, 0);
    const struct fake_request *q = fake_get(w.server, ASAMPLE, 0);
    CHECK(strstr(q->body, "\"max_tokens\":1") && strstr(q->body, "\"prompt_logprobs\":true") &&
          strstr(q->body, "\"num_samples\":1") && strstr(q->body, "\"topk_prompt_logprobs\":0"));
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_the_service_limits_samples_in_flight(void) /* R-062 R-124 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"sample_max_concurrent_requests\":5}");
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    o.max_connections = 100;
    CHECK_INT(tinker_sampler_set_retry(s, &o, NULL), TINKER_OK);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f[10];
    for (int i = 0; i < 10; i++)
        f[i] = sample(s, 2);
    world_settle(&w);
    CHECK_INT(fake_count(w.server, ASAMPLE), 5);
    tinker_future_cancel(f[0]); /* a permit comes back */
    world_settle(&w);
    CHECK_INT(fake_count(w.server, ASAMPLE), 6);
    drop_all(&w, f, 10);
    tinker_sampler_free(s);
    world_close(&w);
}

/* Limits that would let nobody pass let them pass one by one. */
static void test_limits_of_nothing(void)
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"sample_max_concurrent_requests\":0,"
                                         "\"sample_dispatch_bytes_semaphore_size\":-1,"
                                         "\"inflight_response_bytes_semaphore_size\":-1}");
    tinker_future *f[3];
    say(&w, POLL, 200, "{\"status\":\"complete_metadata\",\"response_payload_size\":9}", 1);
    for (int i = 0; i < 3; i++)
        f[i] = sample(s, 2);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(world_finish(&w, f[i], 1000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_dispatch_is_limited_polling_is_not(void) /* R-123 R-125 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    enum { N = 450 };
    static tinker_future *f[N];
    for (int i = 0; i < N; i++)
        f[i] = sample(s, 2);
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, POLL), N); /* more promises than dispatch permits */
    drop_all(&w, f, N);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_prompt_bytes_are_limited(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"sample_dispatch_bytes_semaphore_size\":100}");
    fake_script(w.server, ASAMPLE,
                (struct fake_reply){ .by_handler = true, .delay_ms = 100, .times = -1 });
    tinker_future *f[3];
    for (int i = 0; i < 3; i++)
        f[i] = sample(s, 20); /* 200 bytes */
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, ASAMPLE), 1);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(world_finish(&w, f[i], 1000), TINKER_OK);
        tinker_future_free(f[i]);
        CHECK_INT(world_at(&w, ASAMPLE, (size_t)i), 100 * i);
    }
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_429_pauses_everybody(void) /* R-126 R-129 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL), *other = world_sampler(&w);
    say(&w, ASAMPLE, 429, "{}", 1);
    tinker_future *a = sample(s, 2);
    world_settle(&w);
    tinker_future *b = sample(other, 2);
    world_settle(&w);
    CHECK_INT(fake_count(w.server, ASAMPLE), 1);
    CHECK_INT(world_finish(&w, a, 5000), TINKER_OK);
    CHECK_INT(world_finish(&w, b, 5000), TINKER_OK);
    CHECK_INT(world_at(&w, ASAMPLE, 1), 1000);
    CHECK_INT(world_at(&w, ASAMPLE, 2), 1000);
    int64_t first = fake_json_int(fake_get(w.server, ASAMPLE, 0), "seq_id");
    CHECK_INT(first, 0); /* the same number again */
    CHECK(fake_json_int(fake_get(w.server, ASAMPLE, 1), "seq_id") == 0 ||
          fake_json_int(fake_get(w.server, ASAMPLE, 2), "seq_id") == 0);
    tinker_future_free(a);
    tinker_future_free(b);
    /* shortly after: ten at a time */
    fake_script(w.server, ASAMPLE, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f[30];
    for (int i = 0; i < 30; i++)
        f[i] = sample(s, 2);
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, ASAMPLE), 10);
    drop_all(&w, f, 30);
    world_advance(&w, 11000);
    for (int i = 0; i < 30; i++)
        f[i] = sample(s, 2);
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, ASAMPLE), 30);
    drop_all(&w, f, 30);
    tinker_sampler_free(s);
    tinker_sampler_free(other);
    world_close(&w);
}

/* Who waits for one of the ten gets it, and pays twenty times for the bytes. */
static void test_shortly_after_a_pause(void) /* R-126 R-127 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    tinker_future *f[25];
    say(&w, ASAMPLE, 429, "{}", 1);
    f[0] = sample(s, 2);
    CHECK_INT(world_finish(&w, f[0], 5000), TINKER_OK);
    tinker_future_free(f[0]);
    fake_script(w.server, ASAMPLE,
                (struct fake_reply){ .by_handler = true, .delay_ms = 1000, .times = -1 });
    for (int i = 0; i < 25; i++)
        f[i] = sample(s, 2);
    for (int i = 0; i < 25; i++) {
        CHECK_INT(world_finish(&w, f[i], 10000), TINKER_OK);
        tinker_future_free(f[i]);
        CHECK_INT(world_at(&w, ASAMPLE, (size_t)i + 2), 1000 + 1000 * (i / 10));
    }
    tinker_sampler_free(s);
    world_close(&w);
    s = open_sampler(&w, "{\"sample_dispatch_bytes_semaphore_size\":4000}");
    fake_script(w.server, ASAMPLE, (struct fake_reply){ .fault = FAKE_HANG, .times = 25 });
    for (int i = 0; i < 25; i++)
        f[i] = sample(s, 20); /* 200 bytes */
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, ASAMPLE), 21); /* 4000 are used up, and one more */
    drop_all(&w, f, 25);
    fake_unscript(w.server, ASAMPLE);
    say(&w, ASAMPLE, 429, "{}", 1);
    f[0] = sample(s, 2);
    CHECK_INT(world_finish(&w, f[0], 5000), TINKER_OK);
    tinker_future_free(f[0]);
    fake_script(w.server, ASAMPLE, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    for (int i = 0; i < 25; i++)
        f[i] = sample(s, 20); /* now they count as 4000 each */
    world_settle(&w);
    CHECK_INT(fake_held_on(w.server, ASAMPLE), 2);
    drop_all(&w, f, 25);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_large_prompts_pause_longer_and_402(void) /* R-129 R-060 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    say(&w, ASAMPLE, 429, "{}", 1);
    tinker_future *f = sample(s, 20000); /* 200 000 bytes */
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(world_at(&w, ASAMPLE, 1), 5000);
    tinker_future_free(f);
    say(&w, ASAMPLE, 402, "{\"detail\":\"pay\"}", 1);
    f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(world_at(&w, ASAMPLE, 3) - world_at(&w, ASAMPLE, 2), 1000);
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_lost_promises_are_sampled_again(void) /* R-064 R-075 R-130 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    say(&w, POLL, 410, "{}", 2);
    tinker_future *f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(fake_count(w.server, ASAMPLE), 3);
    for (size_t i = 0; i < 3; i++)
        CHECK_INT(fake_json_int(fake_get(w.server, ASAMPLE, i), "seq_id"), (int64_t)i);
    CHECK_INT(world_at(&w, ASAMPLE, 1), 500);
    CHECK_INT(world_at(&w, ASAMPLE, 2), 1500);
    tinker_future_free(f);
    say(&w, POLL, 404, "{}", 1);
    f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_EHTTP);
    CHECK_INT(fake_count(w.server, ASAMPLE), 4);
    tinker_future_free(f);
    say(&w, POLL, 200, "{\"error\":\"x\",\"category\":\"server\"}", 1);
    f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_EREQUEST);
    CHECK_INT(fake_count(w.server, ASAMPLE), 5);
    CHECK_INT(world_log_count(&w, "sample failed"), 2); /* */
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

/* What was known of the lost promise does not hold for the new one. */
static void test_a_new_promise_begins_anew(void) /* R-064 R-075 R-077 */
{
    static const char large[] = "{\"status\":\"complete_metadata\",\"response_payload_size\":9}";
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    say(&w, POLL, 200, large, 1);
    say(&w, POLL, 410, "{}", 1);
    say(&w, POLL, 200, large, 1);
    tinker_future *f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    REQUIRE(fake_count(w.server, POLL) == 4);
    static const char *const asked[] = { "true", "false", "true", "false" };
    static const char *const iteration[] = { "0", "1", "0", "1" };
    for (size_t i = 0; i < 4; i++) {
        const struct fake_request *r = fake_get(w.server, POLL, i);
        char v[512], want[64];
        snprintf(want, sizeof(want), "\"allow_metadata_only\":%s}", asked[i]);
        CHECK(strstr(r->body, want) != NULL);
        CHECK_STR(fake_header(r, "X-Tinker-Request-Iteration", v), iteration[i]);
    }
    CHECK_INT(s->session->response_bytes.free,
              s->session->server.inflight_response_bytes_semaphore_size);
    tinker_future_free(f);
    say(&w, POLL, 410, "{}", 1);
    say(&w, POLL, 404, "{}", 1);
    f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 404);
    CHECK_INT(fake_count(w.server, ASAMPLE), 4); /* the second one is not lost but refused */
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_layer_2_around_asample(void) /* R-057 R-064 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    o.max_retries = 0;
    tinker_sampler_set_retry(s, &o, NULL);
    say(&w, ASAMPLE, 503, "{}", -1);
    tinker_future *f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 400000), TINKER_EHTTP);
    static const int64_t at[] = { 0, 1000, 3000, 7000, 15000, 31000, 61000, 91000 };
    for (size_t i = 0; i < 8; i++)
        CHECK_INT(world_at(&w, ASAMPLE, i), at[i]);
    CHECK_INT(world_ms(&w), 300000);
    for (size_t i = 0; i < fake_count(w.server, ASAMPLE); i++)
        CHECK_INT(fake_json_int(fake_get(w.server, ASAMPLE, i), "seq_id"), 0);
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

/* When layer 2 gives up, layer 3 begins anew. */
static void test_layer_3_around_layer_2(void) /* R-057 R-064 R-130 */
{
    static const struct {
        struct fake_reply reply;
        size_t tries; /* of layer 2 within 300 s */
    } cases[] = { { { .fault = FAKE_DROP, .times = 15 }, 15 },
                  { { .fault = FAKE_HANG, .times = 5 }, 5 }, /* 60 s each */
                  { { .status = 500, .body = "{}", .times = 15 }, 15 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct world w;
        tinker_sampler *s = open_sampler(&w, NULL);
        fake_script(w.server, ASAMPLE, cases[i].reply);
        tinker_future *f = sample(s, 2);
        CHECK_INT(world_finish(&w, f, 400000), TINKER_OK);
        size_t n = cases[i].tries;
        REQUIRE(fake_count(w.server, ASAMPLE) == n + 1);
        CHECK_INT(fake_json_int(fake_get(w.server, ASAMPLE, n - 1), "seq_id"), 0);
        CHECK_INT(fake_json_int(fake_get(w.server, ASAMPLE, n), "seq_id"), 1);
        CHECK(world_at(&w, ASAMPLE, n) >= 300500);
        tinker_future_free(f);
        tinker_sampler_free(s);
        world_close(&w);
    }
}

static void test_stuck_samples(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    o.progress_ms = 2000;
    CHECK_INT(tinker_sampler_set_retry(s, &o, NULL), TINKER_OK);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *stuck = sample(s, 2);
    world_settle(&w);
    fake_script(w.server, POLL, (struct fake_reply){ .by_handler = true, .delay_ms = 1500 });
    tinker_future *good = sample(s, 2);
    CHECK_INT(world_finish(&w, good, 5000), TINKER_OK);
    CHECK_INT(world_ms(&w), 1500);
    CHECK_INT(world_finish(&w, stuck, 10000), TINKER_ECONNECT);
    CHECK_INT(world_ms(&w), 3500); /* progress moved the deadline */
    CHECK(strstr(w.err.message, "No progress made in 2s. Requests appear to be stuck.") != NULL);
    tinker_future_free(good);
    tinker_future_free(stuck);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = 2 });
    stuck = sample(s, 2);
    world_advance(&w, 1500);
    good = sample(s, 2); /* to begin is no progress */
    CHECK_INT(world_finish(&w, stuck, 10000), TINKER_ECONNECT);
    CHECK_INT(world_ms(&w), 5500);
    tinker_future_free(stuck);
    tinker_future_cancel(good);
    world_settle(&w);
    tinker_future_free(good);
    tinker_sampler_free(s);
    world_close(&w);
    s = open_sampler(&w, "{\"sample_enable_stuck_detection\":false}");
    tinker_sampler_set_retry(s, &o, NULL);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG });
    stuck = sample(s, 2);
    world_advance(&w, 30000);
    CHECK(!tinker_future_done(stuck));
    tinker_future_free(stuck);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_clients_of_one_session_share(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"sample_max_concurrent_requests\":1}");
    char *text = export_text(s, NULL);
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_sampler *twin = sampling_client_new(s->session, s->id, NULL, NULL);
    tinker_future *f[2] = { sample(s, 2), sample(twin, 2) };
    world_settle(&w);
    CHECK_INT(fake_count(w.server, ASAMPLE), 1);
    drop_all(&w, f, 2);
    tinker_sampler_free(twin);
    free(text);
    tinker_sampler_free(s);
    world_close(&w);
}

/* Permits and progress are shared by those who are alike in everything, and by nobody else. */
static void test_strangers_do_not_share(void) /* R-062 R-066 */
{
    static const tinker_retry_options plain = TINKER_RETRY_OPTIONS_INIT;
    tinker_retry_options o[9];
    for (size_t i = 0; i < 9; i++)
        o[i] = plain;
    o[1].max_connections--;
    o[2].progress_ms--;
    o[3].delay_base_ms--;
    o[4].delay_max_ms--;
    o[5].jitter = 0.5;
    o[6].max_retries = 3;
    o[7].no_retries = 1;
    o[8].no_stuck_detection = 1;
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"sample_max_concurrent_requests\":1}");
    tinker_sampler *other = world_sampler(&w); /* a session of its own */
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_sampler *twin[9];
    tinker_future *f[10] = { NULL };
    for (size_t i = 0; i < 9; i++) {
        twin[i] = sampling_client_new(s->session, s->id, NULL, NULL);
        CHECK_INT(tinker_sampler_set_retry(twin[i], &o[i], NULL), TINKER_OK);
        f[i] = sample(twin[i], 2);
        world_settle(&w);
        CHECK_INT(fake_count(w.server, ASAMPLE), i + 1);
    }
    f[9] = sample(other, 2);
    world_settle(&w);
    CHECK_INT(fake_count(w.server, ASAMPLE), 10);
    drop_all(&w, f, 10);
    for (size_t i = 0; i < 9; i++)
        tinker_sampler_free(twin[i]);
    tinker_sampler_free(other);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_retries_may_be_off(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    o.no_retries = 1;
    tinker_sampler_set_retry(s, &o, NULL);
    say(&w, POLL, 410, "{}", 1);
    tinker_future *f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 410);
    CHECK_INT(w.err.retryable, 1);
    CHECK_INT(fake_count(w.server, ASAMPLE), 1);
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
    s = open_sampler(&w, "{\"sample_no_retries\":true,\"sample_max_concurrent_requests\":1}");
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *g[2] = { sample(s, 2), sample(s, 2) };
    world_settle(&w);
    CHECK_INT(fake_count(w.server, ASAMPLE), 2); /* the handler is bypassed */
    drop_all(&w, g, 2);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_retries_may_be_counted(void) /* R-061 R-064 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    say(&w, POLL, 410, "{}", -1);
    for (int max = 0; max < 4; max++) {
        size_t before = fake_count(w.server, ASAMPLE);
        o.max_retries = max;
        CHECK_INT(tinker_sampler_set_retry(s, &o, NULL), TINKER_OK);
        tinker_future *f = sample(s, 2);
        CHECK_INT(world_finish(&w, f, 60000), TINKER_EHTTP);
        CHECK_INT(w.err.http_status, 410);
        CHECK_INT(fake_count(w.server, ASAMPLE) - before, max + 1);
        tinker_future_free(f);
    }
    tinker_sampler_free(s);
    world_close(&w);
}

/* The service may switch the third layer off, and then failures are not its business. */
static void test_failures_without_the_handler(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"sample_no_retries\":true}");
    say(&w, POLL, 410, "{}", 1);
    tinker_future *f = sample(s, 2);
    CHECK_INT(world_finish(&w, f, 60000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 410);
    CHECK_INT(fake_count(w.server, ASAMPLE), 1);
    CHECK_INT(world_log_count(&w, "sample failed"), 0);
    tinker_future_free(f);
    say(&w, POLL, 410, "{}", 1);
    f = tinker_sampler_compute_logprobs(s, fake_prompt(3),
                                        NULL); /* this one always goes through it */
    CHECK_INT(world_finish(&w, f, 60000), TINKER_OK);
    CHECK_INT(fake_count(w.server, ASAMPLE), 3);
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_progress_lines(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    fake_script(w.server, POLL,
                (struct fake_reply){ .by_handler = true, .delay_ms = 1000, .times = -1 });
    tinker_future *f[20];
    for (int i = 0; i < 20; i++)
        f[i] = sample(s, 2);
    for (int i = 0; i < 20; i++) {
        CHECK_INT(world_finish(&w, f[i], 10000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    int lines = world_log_count(&w, "in progress");
    CHECK(lines >= 1 && lines <= 3);
    fake_unscript(w.server, POLL);
    say(&w, POLL, 410, "{\"detail\":\"gone\"}", 2);
    f[0] = sample(s, 2);
    CHECK_INT(world_finish(&w, f[0], 10000), TINKER_OK);
    tinker_future_free(f[0]);
    world_settle(&w);
    CHECK_INT(world_log_count(&w, "; failed: 2 times Error code: 410"), 1);
    tinker_sampler_free(s);
    world_close(&w);
}

static void fail_in_two_ways(void *arg)
{
    tinker_sampler *s = arg;
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    struct sample_retry *h = sample_retry_ref(s->session, "other", &o, NULL);
    tinker_error rare = { .message = "rare" }, common = { .message = "common" };
    sample_retry_enter(h);
    sample_retry_failed(h, &rare);
    sample_retry_failed(h, &common);
    sample_retry_failed(h, &common);
    sample_retry_leave(h, true);
    sample_retry_unref(h);
}

static void test_frequent_errors_come_first(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    runtime_sync(runtime_current(), fail_in_two_ways, s);
    CHECK_INT(world_log_count(&w, "1 completed; failed: 2 times common, 1 times rare"), 1);
    tinker_sampler_free(s);
    world_close(&w);
}

/* Where the service takes samples back, a canceled one and one whose time is up are given back. */
static void test_cancelled_samples_are_taken_back(void)
{
    for (int offered = 0; offered < 2; offered++) {
        struct world w;
        world_open(&w, NULL, NULL);
        if (offered)
            say(&w, API "client/dynamic_config", 200, "{\"sample_cancel_enabled\":true}", -1);
        tinker_sampler *s = world_sampler(&w);
        say(&w, API "retrieve_future", 408, "{}", 1 << 20);
        say(&w, API "cancel_future", 503, "{}", 1);
        say(&w, API "cancel_future", 204, "", 1);
        say(&w, API "cancel_future", 404, "{}", -1); /* it was complete: nobody minds */
        tinker_future *f = tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, NULL);
        tinker_future *late = tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, NULL);
        world_settle(&w);
        CHECK(*tinker_future_request_id(f) && *tinker_future_request_id(late));
        tinker_future_cancel(f);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_ECANCELED);
        world_advance(&w, 2000);
        CHECK_INT(fake_count(w.server, API "cancel_future"), offered ? 2 : 0);
        if (offered) {
            char body[160];
            snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", tinker_future_request_id(f));
            CHECK_STR(fake_get(w.server, API "cancel_future", 1)->body, body);
        }
        tinker_future_set_deadline(late, 100);
        CHECK_INT(world_finish(&w, late, 1000), TINKER_ETIMEDOUT);
        world_advance(&w, 2000);
        CHECK_INT(fake_count(w.server, API "cancel_future"), offered ? 3 : 0);
        /* What the end of a service cancels is left to the end of its session. */
        tinker_future *rest = tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, NULL);
        world_settle(&w);
        tinker_future_free(f);
        tinker_future_free(late);
        tinker_future_free(rest);
        tinker_sampler_free(s);
        world_close(&w);
    }
}

/* Who gave up is not waiting any more. */
static void test_progress_without_the_canceled(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, "{\"sample_max_concurrent_requests\":1}");
    fake_script(w.server, POLL,
                (struct fake_reply){ .by_handler = true, .delay_ms = 5000, .times = -1 });
    tinker_future *f[3] = { sample(s, 2), sample(s, 2), sample(s, 2) };
    world_settle(&w);
    tinker_future_cancel(f[1]);
    tinker_future_cancel(f[2]);
    CHECK_INT(world_finish(&w, f[0], 10000), TINKER_OK);
    CHECK_INT(world_log_count(&w, "0 waiting, 0 in progress, 1 completed"), 1);
    for (int i = 0; i < 3; i++)
        tinker_future_free(f[i]);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_base_model(void) /* */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    say(&w, API "samplers/sess:sample:0", 200,
        "{\"sampler_id\":\"sess:sample:0\",\"base_model\":\"tiny\"}", -1);
    for (int i = 0; i < 2; i++) {
        tinker_future *f = tinker_sampler_get_base_model(s, NULL);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
        CHECK_STR(tinker_future_base_model(f), "tiny");
        tinker_future_free(f);
    }
    CHECK_INT(fake_count(w.server, API "samplers/sess:sample:0"), 2);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_samplers_travel(void) /* R-037 R-135 R-136 R-130 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    char *text = export_text(s, &w.err);
    REQUIRE(text);
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.api_key = "tml-not-the-right-one";
    o.base_url = "http://127.0.0.1:1";
    o.telemetry.enabled = -1;
    tinker_service *other = tinker_service_new(&o, &w.err);
    REQUIRE(other);
    size_t before = fake_count(w.server, NULL);
    tinker_sampler *copy = tinker_service_import_sampler(other, text, &w.err);
    tinker_sampler *again = tinker_service_import_sampler(other, text, &w.err);
    REQUIRE(copy && again);
    CHECK(copy->session == again->session); /* one shadow per session */
    CHECK_INT(fake_count(w.server, NULL), before);
    tinker_future *f = sample(copy, 2);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK(fake_json_int(fake_get(w.server, ASAMPLE, 0), "seq_id") >= 1000000000);
    char v[512];
    CHECK_STR(fake_header(fake_get(w.server, ASAMPLE, 0), "X-API-Key", v), "tml-0123456789abcdef");
    CHECK_INT(fake_count(w.server, API "create_session"), 1);
    world_advance(&w, 15000);
    CHECK_INT(fake_count(w.server, API "session_heartbeat"), 2); /* both beat */
    CHECK_STR(fake_get(w.server, API "session_heartbeat", 0)->body,
              fake_get(w.server, API "session_heartbeat", 1)->body);
    CHECK(tinker_service_import_sampler(other, "{}", &w.err) == NULL);
    CHECK_INT(w.err.status, TINKER_EINVAL);
    tinker_future_free(f);
    tinker_sampler_free(copy);
    tinker_sampler_free(again);
    tinker_service_free(other);
    free(text);
    tinker_sampler_free(s);
    world_close(&w);
}

/* {"session_id":"sess", ...} of a server at url, as the official SDK writes it. */
static char *make_handle(const char *url, const char *more)
{
    struct buf json, out;
    buf_init(&json, 1 << 16);
    buf_init(&out, 1 << 16);
    buf_printf(
        &json,
        "{\"session_id\":\"other\",\"sampling_session_id\":\"other:sample:3\",\"holder\":{"
        "\"base_url\":\"%s\",\"default_headers_overrides\":{},\"client_config\":"
        "{\"sample_no_retries\":true,\"new\":1},\"client_dynamic_config\":{},\"api_key\":null}%s}",
        url, more);
    base64url_encode(&out, json.data, json.len);
    for (size_t i = json.len % 3; i && i < 3; i++)
        buf_putc(&out, '=');
    buf_clear(&json);
    return buf_detach(&out, NULL);
}

static void test_handles_of_the_official_sdk(void)
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    /* written: no credential, and what its reader demands */
    tinker_text text = { 0 };
    struct buf json;
    buf_init(&json, 1 << 16);
    tinker_sampler_record_stability_info(s, 1);
    CHECK_INT(tinker_sampler_export_handle(s, &text, &w.err), TINKER_OK);
    CHECK(text.n % 4 == 0 && base64url_decode(&json, text.s, text.n));
    CHECK(json.data && !strstr(json.data, "tml-"));
    CHECK(strncmp(json.data,
                  "{\"session_id\":\"sess\",\"sampling_session_id\":\"sess:sample:0\",\"holder\":{"
                  "\"base_url\":\"http://",
                  85) == 0);
    CHECK(strstr(json.data, "\"default_headers_overrides\":{},\"client_config\":{") &&
          strstr(json.data, "\"client_dynamic_config\":{\"sample_cancel_enabled\":") &&
          strstr(json.data, "},\"api_key\":null},\"record_stability_info\":true}"));
    buf_clear(&json);
    /* and read back, with the key of the reader */
    tinker_sampler *copy = tinker_service_import_sampler(w.service, text.s, &w.err);
    REQUIRE(copy);
    tinker_future *f = sample(copy, 2);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    const struct fake_request *q = fake_get(w.server, ASAMPLE, 0);
    CHECK(strstr(q->body, "\"record_stability_info\":true"));
    CHECK(fake_json_int(q, "seq_id") >= 1000000000);
    tinker_future_free(f);
    tinker_sampler_free(copy);
    tinker_text_clear(&text);
    /* one of the SDK's own */
    char *handle = make_handle(fake_server_url(w.server), ",\"record_stability_info\":false");
    copy = tinker_service_import_sampler(w.service, handle, &w.err);
    REQUIRE(copy);
    CHECK_STR(tinker_sampler_id(copy), "other:sample:3");
    f = sample(copy, 2);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    q = fake_get(w.server, ASAMPLE, 1);
    char v[512];
    CHECK(strstr(q->body, "\"other:sample:3\"") && !strstr(q->body, "record_stability_info"));
    CHECK_STR(fake_header(q, "X-API-Key", v), "tml-0123456789abcdef");
    tinker_future_free(f);
    tinker_sampler_free(copy);
    free(handle);
    CHECK(!tinker_service_import_sampler(w.service, "bm90IGpzb24=", &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_sequences_have_names(void)
{
    static const struct {
        const char *answer;
        const char *want; /* of the second sequence */
    } cases[] = {
        { "{\"request_id\":\"q\",\"sample_sequence_ids\":[\"q:0\",\"q:1\"]}", "q:1" },
        { "{\"request_id\":\"q\"}", NULL },
        { "{\"request_id\":\"q\",\"sample_sequence_ids\":[\"q:0\"]}", NULL }, /* not as many */
        { "{\"request_id\":\"q\",\"sample_sequence_ids\":7}", NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct world w;
        tinker_sampler *s = open_sampler(&w, NULL);
        say(&w, ASAMPLE, 200, cases[i].answer, 1);
        say(&w, API "retrieve_future", 200,
            "{\"sequences\":[{\"stop_reason\":\"length\",\"tokens\":[1]},"
            "{\"stop_reason\":\"length\",\"tokens\":[2]}],\"type\":\"sample\"}",
            1);
        tinker_future *f = sample(s, 2);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
        const tinker_sample *r = tinker_future_sample(f);
        REQUIRE(r && r->n_sequences == 2);
        if (cases[i].want)
            CHECK(r->sequence_ids && strcmp(r->sequence_ids[1], cases[i].want) == 0);
        else
            CHECK(!r->sequence_ids);
        tinker_future_free(f);
        tinker_sampler_free(s);
        world_close(&w);
    }
}

static void test_scope_of_limits(void) /* */
{
    char *scope = sample_limits_scope("HTTPS://Host.Example:443/some/path");
    CHECK_STR(scope, "https://host.example");
    free(scope);
    scope = sample_limits_scope("http://h:80");
    CHECK_STR(scope, "http://h");
    free(scope);
    scope = sample_limits_scope("http://h:8000/x");
    CHECK_STR(scope, "http://h:8000");
    free(scope);
    static const struct {
        const char *key;
        int isolated;
        size_t sent; /* while the first one pauses */
    } cases[] = { { "tml-0123456789abcdef", 0, 1 },
                  { "tml-0123456789abcdef", 1, 2 },
                  { "tml-of-somebody-else", 0, 2 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct world w;
        tinker_sampler *s = open_sampler(&w, NULL);
        tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
        o.api_key = cases[i].key;
        o.base_url = fake_server_url(w.server);
        o.telemetry.enabled = -1;
        o.limits.isolate = cases[i].isolated;
        tinker_service *second = tinker_service_new(&o, NULL);
        tinker_future *c = tinker_service_request_sampler(second, "tiny", NULL, NULL);
        CHECK_INT(world_finish(&w, c, 1000), TINKER_OK);
        tinker_sampler *s2 = tinker_future_take_sampler(c);
        say(&w, ASAMPLE, 429, "{}", 1);
        tinker_future *a = sample(s, 2);
        world_settle(&w);
        tinker_future *b = sample(s2, 2);
        world_settle(&w);
        CHECK_INT(fake_count(w.server, ASAMPLE), cases[i].sent);
        CHECK_INT(world_finish(&w, a, 5000), TINKER_OK);
        CHECK_INT(world_finish(&w, b, 5000), TINKER_OK);
        tinker_future_free(a);
        tinker_future_free(b);
        tinker_future_free(c);
        tinker_sampler_free(s2);
        tinker_service_free(second);
        tinker_sampler_free(s);
        world_close(&w);
    }
}

static void test_accounts_come_and_go(void) /* */
{
    struct sample_limits *a = sample_limits_ref("http://h/x", "k", false, 100);
    struct sample_limits *b = sample_limits_ref("http://h/y", "other", false, 100);
    struct sample_limits *c = sample_limits_ref("http://i/x", "k", false, 100);
    CHECK(a != b && a != c && b != c);
    CHECK(sample_limits_ref("http://H:80/z", "k", false, 100) == a);
    sample_limits_unref(b); /* the one in the middle: the others stay */
    CHECK(sample_limits_ref("http://i", "k", false, 100) == c);
    sample_limits_unref(a);
    sample_limits_unref(c);
    CHECK(sample_limits_ref("http://h", "k", false, 100) == a &&
          sample_limits_ref("http://i", "k", false, 1) == c);
    sample_limits_unref(a);
    sample_limits_unref(a);
    sample_limits_unref(c);
    sample_limits_unref(c);
}

static void test_few_sockets_serve_many_samples(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.network.sampling_sockets = 2;
    o.network.polling_sockets = 3;
    world_open(&w, NULL, &o);
    tinker_sampler *s = world_sampler(&w);
    int before = fake_connections(w.server);
    enum { N = 100 };
    tinker_future *f[N];
    for (int i = 0; i < N; i++)
        f[i] = sample(s, 2);
    for (int i = 0; i < N; i++) {
        CHECK_INT(world_finish(&w, f[i], 10000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    CHECK(fake_connections(w.server) - before <= 5);
    tinker_sampler_free(s);
    world_close(&w);
}

struct caller {
    tinker_sampler *s;
    tinker_future *f[50];
};

static void *call_many(void *arg)
{
    struct caller *c = arg;
    for (int i = 0; i < 50; i++)
        c->f[i] = sample(c->s, 2);
    return NULL;
}

static void test_any_thread_may_sample(void) /* R-123 R-174 R-213 */
{
    struct world w;
    tinker_sampler *s = open_sampler(&w, NULL);
    struct caller c[8];
    pthread_t t[8];
    for (int i = 0; i < 8; i++) {
        c[i].s = s;
        pthread_create(&t[i], NULL, call_many, &c[i]);
    }
    static char seen[400];
    memset(seen, 0, sizeof(seen));
    for (int i = 0; i < 8; i++) {
        pthread_join(t[i], NULL);
        for (int k = 0; k < 50; k++) {
            CHECK_INT(world_finish(&w, c[i].f[k], 10000), TINKER_OK);
            tinker_future_free(c[i].f[k]);
        }
    }
    for (size_t i = 0; i < 400; i++) { /* numbers are unique and dense */
        int64_t seq = fake_json_int(fake_get(w.server, ASAMPLE, i), "seq_id");
        REQUIRE(seq >= 0 && seq < 400 && !seen[seq]);
        seen[seq] = 1;
    }
    tinker_sampler_free(s);
    world_close(&w);
}

int main(void)
{
    RUN(test_retry_options);
    RUN(test_delays_of_layer_3);
    RUN(test_request);
    RUN(test_other_tokens_of_the_prompt);
    RUN(test_options_are_checked);
    RUN(test_logprobs);
    RUN(test_the_service_limits_samples_in_flight);
    RUN(test_limits_of_nothing);
    RUN(test_dispatch_is_limited_polling_is_not);
    RUN(test_prompt_bytes_are_limited);
    RUN(test_429_pauses_everybody);
    RUN(test_shortly_after_a_pause);
    RUN(test_large_prompts_pause_longer_and_402);
    RUN(test_lost_promises_are_sampled_again);
    RUN(test_a_new_promise_begins_anew);
    RUN(test_layer_2_around_asample);
    RUN(test_layer_3_around_layer_2);
    RUN(test_stuck_samples);
    RUN(test_clients_of_one_session_share);
    RUN(test_strangers_do_not_share);
    RUN(test_retries_may_be_off);
    RUN(test_retries_may_be_counted);
    RUN(test_failures_without_the_handler);
    RUN(test_progress_lines);
    RUN(test_frequent_errors_come_first);
    RUN(test_cancelled_samples_are_taken_back);
    RUN(test_progress_without_the_canceled);
    RUN(test_base_model);
    RUN(test_samplers_travel);
    RUN(test_handles_of_the_official_sdk);
    RUN(test_sequences_have_names);
    RUN(test_scope_of_limits);
    RUN(test_accounts_come_and_go);
    RUN(test_few_sockets_serve_many_samples);
    RUN(test_any_thread_may_sample);
    return tap_done();
}
