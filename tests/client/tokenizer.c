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
static char info_seen[1]; /* a state of its own: what is remembered goes by it */
static char asked[256], revision_asked[64];

/* A loader that takes its time, so that threads meet inside. */
static tinker_tokenizer *loader(const char *repo, const char *revision, tinker_error *err,
                                void *state)
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

static tinker_tokenizer *broken_loader(const char *repo, const char *revision, tinker_error *err,
                                       void *state)
{
    (void)state, (void)repo, (void)revision, (void)err;
    return NULL;
}

static tinker_tokenizer_options by(tinker_tokenizer_loader_fn *l, void *state)
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
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &err);
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
    atomic_int go; /* it may return */
    tinker_status waited;
};

static tinker_tokenizer *slow_loader(const char *repo, const char *revision, tinker_error *err,
                                     void *state)
{
    struct visit *v = state;
    tinker_error e = { 0 };
    (void)repo, (void)revision;
    tinker_future_free(tinker_future_await(tinker_service_check_health(v->service, &e), 60000, &e));
    v->waited = e.status;
    atomic_store(&v->in, 1);
    while (!atomic_load(&v->go))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
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
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &err);
    tinker_sampler *s = tinker_service_create_sampler(w.service, "tiny", NULL, 5000, &err);
    REQUIRE(t && s);
    say(&w, API "get_info", 200, info, -1);
    char id[] = "given/here";
    o.tokenizer_id = id;
    tinker_future *f = tinker_training_request_tokenizer(t, &o, &err);
    REQUIRE(f);
    memset(id, 'x', sizeof(id) - 1); /* it was copied */
    CHECK_INT(tinker_future_wait(f, 60000, &err), TINKER_OK);
    CHECK_STR(asked, "given/here");
    tinker_tokenizer *tok = tinker_future_take_tokenizer(f);
    CHECK(tok != NULL && tinker_future_take_tokenizer(f) == NULL);
    tinker_tokenizer_free(tok);
    tinker_future_free(f);
    o.tokenizer_id = NULL;
    say(&w, API "samplers/sess:sample:0", 200,
        "{\"sampler_id\":\"sess:sample:0\",\"base_model\":\"org/futures\"}", -1);
    f = tinker_sampler_request_tokenizer(s, &o, &err);
    CHECK_INT(tinker_future_wait(f, 60000, &err), TINKER_OK);
    CHECK_STR(asked, "org/futures");
    CHECK_INT(tinker_future_response(f)->status, 200);
    tinker_future_free(f); /* with what was not taken */
    fake_unscript(w.server, API "samplers/sess:sample:0");
    say(&w, API "samplers/sess:sample:0", 404, "{\"detail\":\"gone\"}", -1);
    f = tinker_sampler_request_tokenizer(s, &o, &err);
    CHECK_INT(tinker_future_wait(f, 60000, &err), TINKER_EHTTP);
    CHECK(tinker_future_take_tokenizer(f) == NULL);
    CHECK_STR(tinker_future_error_body(f), "{\"detail\":\"gone\"}");
    tinker_future_free(f);
    struct visit v = { .service = w.service, .go = 1 };
    o = by(slow_loader, &v);
    /* late, or the loader's wait may find it complete, which is allowed on any thread */
    fake_script(w.server, API "healthz",
                (struct fake_reply){ .body = "{}", .delay_ms = 60000, .times = -1 });
    f = tinker_training_request_tokenizer(t, &o, &err);
    CHECK_INT(tinker_future_wait(f, 60000, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "no such tokenizer") != NULL);
    CHECK_INT(v.waited, TINKER_ESTATE);
    tinker_future_free(f);
    atomic_store(&v.in, 0);
    atomic_store(&v.go, 0);
    f = tinker_training_request_tokenizer(t, &o, &err);
    while (!atomic_load(&v.in))
        sched_yield();
    tinker_future_cancel(f); /* while it is being loaded, and then everything goes */
    atomic_store(&v.go, 1);
    CHECK_INT(tinker_future_wait(f, 60000, &err), TINKER_ECANCELED);
    tinker_future_free(f);
    o.size = 0;
    CHECK(!tinker_sampler_request_tokenizer(s, &o, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

struct worker {
    const tinker_tokenizer *t;
    size_t n;
};

static void *encode_one(void *arg)
{
    struct worker *k = arg;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_error err;
    for (int i = 0; i < 5; i++)
        tinker_tokenizer_encode(k->t, "hello world", 11, NULL, &ids, &err);
    k->n = ids.n;
    tinker_tokens_clear(&ids);
    return NULL;
}

/* R-211 on a client: one question, then any number of threads encode with the answer. */
static void test_encode_on_clients(void)
{
    struct world w;
    world_open_real(&w, NULL);
    tinker_error err = { 0 };
    tinker_tokenizer_options o = by(loader, info_seen);
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &err);
    REQUIRE(t != NULL);
    say(&w, API "get_info", 400, "{\"detail\":\"not yet\"}", 1);
    CHECK(!tinker_training_create_tokenizer(t, &o, 5000, &err));
    CHECK_INT(err.status, TINKER_EHTTP);
    say(&w, API "get_info", 200, info, -1); /* a failure is not remembered */
    tinker_tokenizer *tok = tinker_training_create_tokenizer(t, &o, 5000, &err);
    REQUIRE(tok != NULL);
    pthread_t thread[THREADS];
    struct worker k[THREADS];
    for (int i = 0; i < THREADS; i++) {
        k[i] = (struct worker){ tok, 0 };
        pthread_create(&thread[i], NULL, encode_one, &k[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_INT(k[i].n, 10); /* "hello" and " world", five times */
    }
    CHECK_INT(fake_count(w.server, API "get_info"), 2);
    CHECK_INT(atomic_load(&loads), 1);
    /* there and back, ASCII and not */
    static const char *const texts[] = { "hello world", "\xC3\xA9 \xE6\xBC\xA2 \xF0\x9F\x99\x82",
                                         "" };
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_text back = TINKER_TEXT_INIT;
    for (size_t i = 0; i < 3; i++) {
        ids.n = back.n = 0;
        CHECK_INT(tinker_tokenizer_encode(tok, texts[i], strlen(texts[i]), NULL, &ids, &err),
                  TINKER_OK);
        CHECK_INT(tinker_tokenizer_decode(tok, ids.ids, ids.n, NULL, &back, &err), TINKER_OK);
        CHECK_MEM(back.s, back.n, texts[i], strlen(texts[i]));
    }
    tinker_tokenizer_free(tok);
    tinker_sampler *s = tinker_service_create_sampler(w.service, "tiny", NULL, 5000, &err);
    REQUIRE(s != NULL);
    say(&w, API "samplers/sess:sample:0", 200,
        "{\"sampler_id\":\"sess:sample:0\",\"base_model\":\"org/base\"}", -1);
    tok = tinker_sampler_create_tokenizer(s, &o, 5000, &err);
    REQUIRE(tok != NULL);
    ids.n = back.n = 0;
    CHECK_INT(tinker_tokenizer_encode(tok, "hello", 5, NULL, &ids, &err), TINKER_OK);
    CHECK_INT(tinker_tokenizer_decode(tok, ids.ids, ids.n, NULL, &back, &err), TINKER_OK);
    CHECK_STR(back.s, "hello");
    CHECK_INT(fake_count(w.server, API "samplers/sess:sample:0"), 1);
    CHECK_INT(tinker_tokenizer_encode(tok, NULL, 5, NULL, &ids, &err), TINKER_EINVAL);
    CHECK_INT(tinker_tokenizer_decode(tok, NULL, 5, NULL, &back, &err), TINKER_EINVAL);
    tinker_tokenizer_free(tok);
    tinker_text_clear(&back);
    tinker_tokens_clear(&ids);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

/* R-211 without a client: by the name of a model, loaded once however often it is asked for. */
static void test_by_name(void)
{
    tinker_tokenizer_options o = by(loader, NULL);
    tinker_error err = { 0 };
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_text back = TINKER_TEXT_INIT;
    tinker_tokenizer *t = tinker_tokenizer_load("org/free", &o, &err);
    REQUIRE(t != NULL);
    CHECK_INT(tinker_tokenizer_encode(t, "hello world", 11, NULL, &ids, &err), TINKER_OK);
    CHECK_INT(ids.n, 2);
    tinker_tokenizer_free(t);
    t = tinker_tokenizer_load("org/free", &o, &err);
    REQUIRE(t != NULL);
    CHECK_INT(tinker_tokenizer_decode(t, ids.ids, ids.n, NULL, &back, &err), TINKER_OK);
    CHECK_STR(back.s, "hello world");
    CHECK_INT(atomic_load(&loads), 1);
    CHECK_INT(tinker_tokenizer_encode(t, "\xFF", 1, NULL, &ids, &err), TINKER_EINVAL);
    tinker_decode_options strict = TINKER_DECODE_OPTIONS_INIT;
    strict.strict = 1;
    const int32_t unknown = 99999;
    CHECK_INT(tinker_tokenizer_decode(t, &unknown, 1, &strict, &back, &err), TINKER_EINVAL);
    tinker_tokenizer_free(t);
    CHECK(!tinker_tokenizer_load("", &o, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    o = by(broken_loader, NULL); /* the error names what could not be loaded */
    CHECK(!tinker_tokenizer_load("org/broken:5", &o, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK(strstr(err.message, "org/broken") != NULL);
    o = (tinker_tokenizer_options)TINKER_TOKENIZER_OPTIONS_INIT;
    o.hf_home = "/nonexistent";
    CHECK(!tinker_tokenizer_load("org/nowhere", &o, &err));
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
    RUN(test_encode_on_clients);
    RUN(test_by_name);
    return tap_done();
}
