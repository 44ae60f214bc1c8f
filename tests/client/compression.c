/* Compressed responses: asked for, decoded, bounded.  What cannot be decoded is a failure, never a
 * wrong result. */
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>
#include <tinker/rest.h>
#include "base/buf.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define RUN_API API "training_runs/r"

static const char run_json[] =
    "{\"training_run_id\":\"r\",\"base_model\":\"tiny\",\"model_owner\":\"me\",\"is_lora\":true,"
    "\"lora_rank\":8,\"last_request_time\":\"2026-01-02T03:04:05Z\"}";

enum encoding { PLAIN, GZIP, DEFLATE, ZSTD, N_ENCODINGS };

static const char *const encoding_header[N_ENCODINGS] = {
    [GZIP] = "Content-Encoding: gzip\r\n",
    [DEFLATE] = "Content-Encoding: deflate\r\n",
    [ZSTD] = "Content-Encoding: zstd\r\n",
};

/* p[0..n) in an encoding, malloc'd. */
static char *encode_body(enum encoding how, const void *p, size_t n, size_t *len)
{
    if (how == PLAIN) {
        char *copy = malloc(n);
        *len = n;
        return memcpy(copy, p, n);
    }
    if (how == ZSTD) {
        size_t bound = ZSTD_compressBound(n);
        char *out = malloc(bound);
        *len = ZSTD_compress(out, bound, p, n, 3);
        return out;
    }
    z_stream z = { 0 };
    deflateInit2(&z, 9, Z_DEFLATED, how == GZIP ? 16 + MAX_WBITS : MAX_WBITS, 8,
                 Z_DEFAULT_STRATEGY);
    size_t bound = deflateBound(&z, n);
    char *out = malloc(bound);
    z.next_in = (unsigned char *)p;
    z.avail_in = (uInt)n;
    z.next_out = (unsigned char *)out;
    z.avail_out = (uInt)bound;
    deflate(&z, Z_FINISH);
    *len = z.total_out;
    deflateEnd(&z);
    return out;
}

static void script_encoded(struct world *w, const char *path, enum encoding how, const char *type,
                           const void *p, size_t n)
{
    size_t len;
    char *body = encode_body(how, p, n, &len);
    fake_script(
        w->server, path,
        (struct fake_reply){
            .body = body, .len = len, .content_type = type, .headers = encoding_header[how] });
    free(body);
}

static void test_json_in_every_encoding(void)
{
    for (enum encoding how = PLAIN; how < N_ENCODINGS; how++) {
        struct world w;
        world_open(&w, NULL, NULL);
        tinker_rest *r = tinker_service_create_rest(w.service, NULL);
        script_encoded(&w, RUN_API, how, NULL, run_json, strlen(run_json));
        tinker_future *f = tinker_rest_get_training_run(r, "r", TINKER_SCOPE_OWNED, NULL);
        CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
        const tinker_training_run *run = tinker_future_training_run(f);
        CHECK_STR(run ? run->base_model : NULL, "tiny");
        char v[512];
        const char *asked = fake_header(fake_get(w.server, RUN_API, 0), "Accept-Encoding", v);
        CHECK(asked && strstr(asked, "gzip") && strstr(asked, "deflate") && strstr(asked, "zstd"));
        tinker_future_free(f);
        tinker_rest_free(r);
        world_close(&w);
    }
}

/* The way results come: a protobuf of a pass, polled. */
static void test_results_in_every_encoding(void)
{
    for (enum encoding how = PLAIN; how < N_ENCODINGS; how++) {
        struct world w;
        world_open(&w, NULL, NULL);
        tinker_training *t = world_training(&w);
        size_t n;
        char *result = fake_pass_result(3, (tinker_named_number[]){ { "loss:sum", 1.25 } }, 1, &n);
        script_encoded(&w, API "retrieve_future", how, "application/x-protobuf", result, n);
        free(result);
        tinker_datum *data = fake_data(3, 5);
        tinker_future *f = tinker_training_forward_backward(t, data, 3, &fake_loss, &w.err);
        CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
        const tinker_forward_backward *fb = tinker_future_forward_backward(f);
        CHECK(fb && tinker_metric(fb->metrics, fb->n_metrics, "loss:sum") == 1.25);
        fake_data_free(data, 3);
        tinker_future_free(f);
        tinker_training_free(t);
        world_close(&w);
    }
}

/* Cut inside, or with a wrong byte: asked again, and the second response counts. */
static void test_damage_is_retried(void)
{
    for (enum encoding how = GZIP; how < N_ENCODINGS; how++)
        for (int flip = 0; flip < 2; flip++) {
            struct world w;
            world_open(&w, NULL, NULL);
            tinker_rest *r = tinker_service_create_rest(w.service, NULL);
            size_t len;
            char *body = encode_body(how, run_json, strlen(run_json), &len);
            if (flip)
                body[1] ^= 0x55; /* the magic number, or the check of the first two bytes */
            fake_script(w.server, RUN_API,
                        (struct fake_reply){ .body = body,
                                             .len = flip ? len : len / 2,
                                             .headers = encoding_header[how] });
            free(body);
            script_encoded(&w, RUN_API, how, NULL, run_json, strlen(run_json));
            tinker_future *f = tinker_rest_get_training_run(r, "r", TINKER_SCOPE_OWNED, NULL);
            CHECK_INT(world_finish(&w, f, 60000), TINKER_OK);
            if (w.err.message[0] && tinker_future_training_run(f) == NULL)
                printf("# encoding %d, flip %d: %s\n", (int)how, flip, w.err.message);
            CHECK_INT(fake_count(w.server, RUN_API), 2);
            tinker_future_free(f);
            tinker_rest_free(r);
            world_close(&w);
        }
}

/* A response says an encoding that nobody asked for: never read as if it were plain. */
static void test_unknown_encoding(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_rest *r = tinker_service_create_rest(w.service, NULL);
    fake_script(w.server, RUN_API,
                (struct fake_reply){
                    .body = run_json, .headers = "Content-Encoding: rot13\r\n", .times = -1 });
    tinker_future *f = tinker_rest_get_training_run(r, "r", TINKER_SCOPE_OWNED, NULL);
    CHECK(world_finish(&w, f, 600000) != TINKER_OK);
    CHECK(tinker_future_training_run(f) == NULL);
    printf("# %s\n", w.err.message);
    tinker_future_free(f);
    tinker_rest_free(r);
    world_close(&w);
}

/* A response of 30 MB of blanks before its JSON, a few KB on the wire; and one of its own size. */
static void script_padded(struct world *w, const char *path, size_t pad, int status)
{
    char *text = malloc(pad + 64);
    memset(text, ' ', pad);
    size_t n = pad + (size_t)snprintf(text + pad, 64, "{\"detail\":\"late\"}"), len;
    char *body = encode_body(GZIP, text, n, &len);
    fake_script(w->server, path,
                (struct fake_reply){
                    .status = status, .body = body, .len = len, .headers = encoding_header[GZIP] });
    free(body);
    free(text);
}

/* Decompressed bytes count, and what was asked for says how many there can be: four tokens, a page of
 * a listing, the message of an error. */
static void test_responses_have_the_size_of_what_was_asked(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_sampler *s = world_sampler(&w);
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.max_tokens = 4;
    int32_t tokens[] = { 1, 2 };
    tinker_chunk text = { .tokens = tokens, .n_tokens = 2 };
    tinker_model_input input = { &text, 1 };
    script_padded(&w, API "retrieve_future", 30 << 20, 200);
    tinker_future *f = tinker_sampler_sample(s, &input, &p, NULL, &w.err);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_EPROTOCOL);
    CHECK(strstr(w.err.message, "larger than") && strstr(w.err.message, "more than was asked for"));
    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_rest *r = tinker_service_create_rest(w.service, NULL);
    script_padded(&w, RUN_API, 70 << 20, 200);
    f = tinker_rest_get_training_run(r, "r", TINKER_SCOPE_OWNED, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_EPROTOCOL);
    CHECK(strstr(w.err.message, "larger than 67108864 bytes"));
    tinker_future_free(f);
    script_padded(&w, RUN_API, 2 << 20, 404);
    f = tinker_rest_get_training_run(r, "r", TINKER_SCOPE_OWNED, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_EPROTOCOL);
    CHECK(strstr(w.err.message, "error response (status 404) larger than 1048576 bytes"));
    tinker_future_free(f);
    tinker_rest_free(r);
    world_close(&w);
}

int main(void)
{
    RUN(test_json_in_every_encoding);
    RUN(test_results_in_every_encoding);
    RUN(test_damage_is_retried);
    RUN(test_unknown_encoding);
    RUN(test_responses_have_the_size_of_what_was_asked);
    return tap_done();
}
