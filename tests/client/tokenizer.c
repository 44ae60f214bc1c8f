/* The tokenizer behind a client: which one, how often it is asked for and loaded, and text
 * through it. . */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <tinker/extra/http.h>
#include "support/fake_tinker.h"
#include "tokenizer/tok_fixture.h"

enum { THREADS = 8 };

static atomic_int loads;
static char asked[256], revision_asked[64];

/* A loader that takes its time, so that threads meet inside. */
static tinker_tokenizer *loader(void *state, const char *repo, const char *revision,
                                tinker_error *err)
{
    struct fixture f = FIXTURE_INIT;
    struct buf b = fixture_json(&f);
    atomic_fetch_add(&loads, 1);
    snprintf(asked, sizeof(asked), "%s", repo);
    snprintf(revision_asked, sizeof(revision_asked), "%s", revision);
    nanosleep(&(struct timespec){ .tv_nsec = state ? 50000000 : 0 }, NULL);
    tinker_tokenizer *t = tinker_tokenizer_load_json(b.data, b.len, NULL, 0, NULL, err);
    buf_clear(&b);
    return t;
}

static tinker_tokenizer *broken_loader(void *state, const char *repo, const char *revision,
                                       tinker_error *err)
{
    (void)state, (void)repo, (void)revision, (void)err;
    return NULL;
}

static tinker_tokenizer_options by(tinker_tokenizer_loader *l, void *state)
{
    tinker_tokenizer_options o = TINKER_TOKENIZER_OPTIONS_INIT;
    o.loader = l;
    o.loader_state = state;
    atomic_store(&loads, 0);
    return o;
}

/* a name, and what the service says, to a repository and a revision. */
static void test_rules(void)
{
    static const struct {
        const char *model, *id, *repo, *revision;
    } rules[] = {
        { "Qwen/Qwen3-8B:abc", NULL, "Qwen/Qwen3-8B", "" },
        { "a/b/c", NULL, "a/b", "" },
        { "a/b/c/d", NULL, "a/b/c/d", "" },
        { "meta-llama/Llama-3.3-70B-Instruct", NULL,
          "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer", "" },
        { "meta-llama/Llama-3.3-70B-Instruct", "own/tok", "own/tok", "" },
        { "moonshotai/Kimi-K2-Thinking", NULL, "moonshotai/Kimi-K2-Thinking",
          "612681931a8c906ddb349f8ad0f582cb552189cd" },
        { "moonshotai/Kimi-K2.5", NULL, "moonshotai/Kimi-K2.5",
          "4d01dfe0332d63057c186e0b262165819efb6611" },
        { "moonshotai/Kimi-K2.5-Text-Only", NULL, "moonshotai/Kimi-K2.5",
          "4d01dfe0332d63057c186e0b262165819efb6611" },
        { "moonshotai/Kimi-K2.6", NULL, "moonshotai/Kimi-K2.6",
          "b5aabbfb20227ed42becbf5541dbffd213942c58" },
        { "TML/private", NULL, "TML/private", "" },
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
        tinker_tokenizer_options o = by(loader, NULL);
        o.tokenizer_id = rules[i].id;
        tinker_error err = { 0 };
        tinker_tokenizer *t = tinker_tokenizer_load(rules[i].model, &o, &err);
        REQUIRE(t != NULL);
        if (atomic_load(&loads) == 1) { /* Kimi-K2.5 is remembered from the line before */
            CHECK_STR(asked, rules[i].repo);
            CHECK_STR(revision_asked, rules[i].revision);
        }
        tinker_tokenizer_free(t);
    }
}

static void *load_one(void *arg)
{
    tinker_error err;
    return tinker_tokenizer_load("org/shared", arg, &err);
}

/* eight threads that want the same one first load it once, and share it. */
static void test_loaded_once(void)
{
    int slow = 1;
    tinker_tokenizer_options o = by(loader, &slow);
    pthread_t thread[THREADS];
    void *got[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, load_one, &o);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], &got[i]);
    CHECK_INT(atomic_load(&loads), 1);
    for (int i = 0; i < THREADS; i++) {
        CHECK(got[i] != NULL && got[i] == got[0]);
        tinker_tokenizer_free(got[i]);
    }
    CHECK(tinker_tokenizer_load("org/shared:v2", &o, NULL) == got[0]); /* the same repository */
    tinker_tokenizer_free(got[0]);
    CHECK_INT(atomic_load(&loads), 1);
    tinker_tokenizer *other = tinker_tokenizer_load("org/other", &o, NULL);
    CHECK(other != NULL && other != got[0]);
    tinker_tokenizer_free(other);
    CHECK_INT(atomic_load(&loads), 2);
}

static const char info[] = "{\"model_data\":{\"arch\":\"x\",\"model_name\":\"org/base/variant\"},"
                           "\"model_id\":\"sess:train:0\"}";

/* one question each time, and its first layer of retries only. */
static void test_asks_once(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_error err = { 0 };
    tinker_tokenizer_options o = by(loader, &w);
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 5000, &err);
    tinker_sampler *s = tinker_service_create_sampler(w.service, "tiny", NULL, 5000, &err);
    REQUIRE(t && s);
    say(&w, API "get_info", 200, info, 1);
    tinker_tokenizer *tok = tinker_training_create_tokenizer(t, &o, 5000, &err);
    REQUIRE(tok != NULL);
    CHECK_STR(asked, "org/base");
    CHECK_INT(fake_count(w.server, API "get_info"), 1);
    tinker_tokenizer_free(tok);
    say(&w, API "get_info", 200,
        "{\"model_data\":{\"model_name\":\"n\",\"base_model\":\"org/first\"},\"model_id\":\"m\"}",
        1);
    tok = tinker_training_create_tokenizer(t, &o, 5000, &err); /* base_model before model_name */
    CHECK_STR(asked, "org/first");
    tinker_tokenizer_free(tok);
    say(&w, API "get_info", 200,
        "{\"model_data\":{\"model_name\":\"n\",\"tokenizer_id\":\"own/tok:7\"},\"model_id\":\"m\"}",
        1);
    tok = tinker_training_create_tokenizer(t, &o, 5000, &err);
    CHECK_STR(asked, "own/tok");
    CHECK_INT(fake_count(w.server, API "get_info"), 3);
    tinker_tokenizer_free(tok);
    fake_script(
        w.server, API "get_info",
        (struct fake_reply){
            .status = 503, .body = "{}", .headers = "x-should-retry: false\r\n", .times = -1 });
    CHECK(!tinker_training_create_tokenizer(t, &o, 5000, &err));
    CHECK_INT(err.http_status, 503);
    CHECK_INT(fake_count(w.server, API "get_info"), 4); /* no second layer */
    say(&w, API "samplers/sess:sample:0", 200,
        "{\"sampler_id\":\"sess:sample:0\",\"base_model\":\"meta-llama/Llama-3.1-8B\"}", 1);
    tok = tinker_sampler_create_tokenizer(s, &o, 5000, &err);
    REQUIRE(tok != NULL);
    CHECK_STR(asked, "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer");
    CHECK_INT(fake_count(w.server, API "samplers/sess:sample:0"), 1);
    tinker_tokenizer_free(tok);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

/* A loader that says when it is in, and what waiting there gives. */
struct visit {
    tinker_service *service;
    atomic_int in;
    tinker_status waited;
};

static tinker_tokenizer *slow_loader(void *state, const char *repo, const char *revision,
                                     tinker_error *err)
{
    struct visit *v = state;
    tinker_error e = { 0 };
    (void)repo, (void)revision;
    tinker_future_free(tinker_future_await(tinker_service_health(v->service, &e), 1000, &e));
    v->waited = e.status;
    atomic_store(&v->in, 1);
    nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    *err = (tinker_error){ .status = TINKER_EINVAL, .message = "no such tokenizer" };
    return NULL;
}

/* the same as a future. */
static void test_as_futures(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_error err = { 0 };
    tinker_tokenizer_options o = by(loader, &w);
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 5000, &err);
    tinker_sampler *s = tinker_service_create_sampler(w.service, "tiny", NULL, 5000, &err);
    REQUIRE(t && s);
    say(&w, API "get_info", 200, info, -1);
    char id[] = "given/here";
    o.tokenizer_id = id;
    tinker_future *f = tinker_training_request_tokenizer(t, &o, &err);
    REQUIRE(f);
    memset(id, 'x', sizeof(id) - 1); /* it was copied */
    CHECK_INT(tinker_future_wait(f, 5000, &err), TINKER_OK);
    CHECK_STR(asked, "given/here");
    tinker_tokenizer *tok = tinker_future_take_tokenizer(f);
    CHECK(tok != NULL && tinker_future_take_tokenizer(f) == NULL);
    tinker_tokenizer_free(tok);
    tinker_future_free(f);
    o.tokenizer_id = NULL;
    say(&w, API "samplers/sess:sample:0", 200,
        "{\"sampler_id\":\"sess:sample:0\",\"base_model\":\"org/futures\"}", -1);
    f = tinker_sampler_request_tokenizer(s, &o, &err);
    CHECK_INT(tinker_future_wait(f, 5000, &err), TINKER_OK);
    CHECK_STR(asked, "org/futures");
    CHECK_INT(tinker_future_response(f)->status, 200);
    tinker_future_free(f); /* with what was not taken */
    fake_unscript(w.server, API "samplers/sess:sample:0");
    say(&w, API "samplers/sess:sample:0", 404, "{\"detail\":\"gone\"}", -1);
    f = tinker_sampler_request_tokenizer(s, &o, &err);
    CHECK_INT(tinker_future_wait(f, 5000, &err), TINKER_EHTTP);
    CHECK(tinker_future_take_tokenizer(f) == NULL);
    CHECK_STR(tinker_future_error_body(f), "{\"detail\":\"gone\"}");
    tinker_future_free(f);
    struct visit v = { .service = w.service };
    o = by(slow_loader, &v);
    f = tinker_training_request_tokenizer(t, &o, &err);
    CHECK_INT(tinker_future_wait(f, 5000, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "no such tokenizer") != NULL);
    CHECK_INT(v.waited, TINKER_ESTATE);
    tinker_future_free(f);
    atomic_store(&v.in, 0);
    f = tinker_training_request_tokenizer(t, &o, &err);
    while (!atomic_load(&v.in))
        sched_yield();
    tinker_future_cancel(f); /* while it is being loaded, and then everything goes */
    CHECK_INT(tinker_future_wait(f, 5000, &err), TINKER_ECANCELED);
    tinker_future_free(f);
    o.size = 0;
    CHECK(!tinker_sampler_request_tokenizer(s, &o, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

/* by the name of a model, and as a model input. */
static void test_by_name(void)
{
    tinker_tokenizer_options o = by(loader, NULL);
    tinker_error err = { 0 };
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_text back = TINKER_TEXT_INIT;
    CHECK_INT(tinker_model_encode("org/free", "hello world", 11, &o, NULL, &ids, &err), TINKER_OK);
    CHECK_INT(ids.n, 2);
    CHECK_INT(tinker_model_decode("org/free", ids.ids, ids.n, &o, NULL, &back, &err), TINKER_OK);
    CHECK_STR(back.s, "hello world");
    CHECK_INT(atomic_load(&loads), 1);
    CHECK_INT(tinker_model_encode("", "x", 1, &o, NULL, &ids, &err), TINKER_EINVAL);
    CHECK_INT(tinker_model_encode("org/free", "\xFF", 1, &o, NULL, &ids, &err), TINKER_EINVAL);
    tinker_decode_options strict = TINKER_DECODE_OPTIONS_INIT;
    strict.strict = 1;
    const int32_t unknown = 99999;
    CHECK_INT(tinker_model_decode("org/free", &unknown, 1, &o, &strict, &back, &err),
              TINKER_EINVAL);
    tinker_tokenizer *t = tinker_tokenizer_load("org/free", &o, &err);
    REQUIRE(t != NULL);
    tinker_model_input *in = tinker_model_input_from_text(t, "hello world", 11, NULL, &err);
    REQUIRE(in != NULL);
    CHECK_INT(in->n_chunks, 1);
    CHECK_INT(in->chunks[0].kind, TINKER_CHUNK_TEXT);
    CHECK_MEM(in->chunks[0].tokens, in->chunks[0].n_tokens * 4, ids.ids, 8);
    tinker_model_input_free(in);
    CHECK(!tinker_model_input_from_text(t, "\xFF", 1, NULL, &err));
    tinker_tokenizer_free(t);
    o = by(broken_loader, NULL); /* the error names what could not be loaded */
    CHECK_INT(tinker_model_encode("org/broken:5", "x", 1, &o, NULL, &ids, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "org/broken") != NULL);
    o = (tinker_tokenizer_options)TINKER_TOKENIZER_OPTIONS_INIT;
    o.hf_home = "/nonexistent";
    CHECK(tinker_model_encode("org/nowhere", "x", 1, &o, NULL, &ids, &err) != TINKER_OK);
    CHECK(strstr(err.message, "org/nowhere") != NULL);
    tinker_tokens_clear(&ids);
    tinker_text_clear(&back);
}

int main(void)
{
    RUN(test_rules);
    RUN(test_loaded_once);
    RUN(test_asks_once);
    RUN(test_as_futures);
    RUN(test_by_name);
    return tap_done();
}
