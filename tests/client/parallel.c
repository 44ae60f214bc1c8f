/* Many calls at once: bounds, order, errors of single items, one deadline, cancellation. */
#include <pthread.h>
#include <time.h>
#include <tinker/extra/http.h>
#include <tinker/extra/parallel.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

#define ASAMPLE API "asample"
#define POLL    API "retrieve_future"
enum { MANY = 40 };

static struct world w;
static tinker_error err;

static tinker_sampler *open_world(void)
{
    world_open_real(&w, NULL);
    return tinker_service_create_sampler(w.service, "tiny", NULL, 5000, &err);
}

static void close_world(tinker_sampler *s, tinker_parallel *m)
{
    tinker_parallel_free(m);
    tinker_sampler_free(s);
    world_close(&w);
}

static tinker_model_input *prompts(void)
{
    static tinker_model_input v[MANY];
    for (size_t i = 0; i < MANY; i++)
        v[i] = *fake_prompt(3);
    return v;
}

/* ---- how many at a time, and in which order ----------------------------------------------------- */

struct order {
    int submitted, under_way, most, over, backwards;
};

static tinker_future *ask_item(size_t i, tinker_error *e, void *state)
{
    struct order *o = state;
    char path[64];
    o->backwards += (int)i != o->submitted;
    o->submitted++;
    o->under_way++;
    o->most = o->under_way > o->most ? o->under_way : o->most;
    if (i == 5) {
        *e = (tinker_error){ .status = TINKER_EINVAL, .message = "not five" };
        return NULL;
    }
    snprintf(path, sizeof(path), API "items/%zu", i);
    return tinker_service_call(w.service, "GET", path, NULL, 0, NULL, e);
}

static int note(size_t i, const tinker_future *f, const tinker_error *e, void *state)
{
    struct order *o = state;
    o->under_way--;
    o->over++;
    if ((i == 5) != (f == NULL) || (i == 5 || i == 7) != (e != NULL))
        TAP_FAIL("item %zu ended as another does", i);
    return 0;
}

static void test_bounds_and_order(void)
{
    tinker_sampler *s = open_world();
    struct order o = { 0 };
    for (int i = 0; i < MANY; i++) { /* the first takes longest */
        char path[64], body[64];
        snprintf(path, sizeof(path), API "items/%d", i);
        snprintf(body, sizeof(body), "{\"i\":%d}", i);
        fake_script(w.server, path,
                    (struct fake_reply){
                        .status = i == 7 ? 404 : 200, .body = body, .delay_ms = i == 0 ? 60 : 1 });
    }
    tinker_parallel_options how = TINKER_PARALLEL_OPTIONS_INIT;
    how.max_concurrency = 4;
    how.on_item = note;
    how.on_item_state = &o;
    tinker_parallel *m = tinker_parallel_run(ask_item, &o, MANY, &how, &err);
    REQUIRE(m);
    CHECK_INT(o.most, 4);
    CHECK_INT(o.over, MANY);
    CHECK_INT(o.backwards, 0);
    CHECK_INT(tinker_parallel_failed(m), 2);
    for (size_t i = 0; i < MANY; i++) {
        char body[64];
        tinker_status st = tinker_parallel_status(m, i, &err);
        snprintf(body, sizeof(body), "{\"i\":%zu}", i);
        CHECK_INT(st, i == 5 ? TINKER_EINVAL : i == 7 ? TINKER_EHTTP : TINKER_OK);
        if (i == 5)
            CHECK(tinker_parallel_future(m, i) == NULL && strstr(err.message, "not five"));
        else
            CHECK_STR(tinker_future_response(tinker_parallel_future(m, i))->body, body);
    }
    CHECK_INT(tinker_parallel_status(m, MANY, &err), TINKER_EINVAL);
    CHECK(tinker_parallel_future(m, MANY) == NULL);
    close_world(s, m);
}

static void test_samples(void)
{
    tinker_sampler *s = open_world();
    tinker_model_input *v = prompts();
    tinker_chunk bad = { .kind = TINKER_CHUNK_TEXT, .n_tokens = 3 };
    v[3] = (tinker_model_input){ &bad, 1 };
    tinker_parallel *m = tinker_sampler_sample_parallel(s, v, MANY, NULL, NULL, NULL, &err);
    REQUIRE(m);
    CHECK_INT(tinker_parallel_failed(m), 1);
    CHECK_INT(tinker_parallel_status(m, 3, &err), TINKER_EINVAL);
    CHECK(tinker_parallel_sample(m, 3) == NULL);
    CHECK_INT(tinker_parallel_sample(m, 39)->sequences[0].tokens[2], 13);
    CHECK_INT(fake_count(w.server, ASAMPLE), MANY - 1);
    tinker_parallel_free(m);
    m = tinker_sampler_sample_parallel(s, NULL, 0, NULL, NULL, NULL, &err);
    REQUIRE(m);
    CHECK_INT(tinker_parallel_failed(m), 0);
    tinker_parallel_free(m);
    m = tinker_sampler_sample_parallel(s, NULL, 1, NULL, NULL, NULL, &err);
    CHECK(!m);
    close_world(s, m);
}

/* ---- ends --------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    return clock_now_ms(clock_real());
}

/* What is under way at the deadline is canceled, what has not begun is not begun. */
static void test_one_deadline(void)
{
    tinker_sampler *s = open_world();
    fake_script(w.server, POLL, (struct fake_reply){ .by_handler = true, .times = 2 });
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_parallel_options how = TINKER_PARALLEL_OPTIONS_INIT;
    how.max_concurrency = 3;
    how.timeout_ms = 400;
    int64_t start = now_ms();
    tinker_parallel *m = tinker_sampler_sample_parallel(s, prompts(), MANY, NULL, NULL, &how, &err);
    REQUIRE(m);
    CHECK(now_ms() - start >= 400 && now_ms() - start < 60000);
    CHECK_INT(tinker_parallel_failed(m), MANY - 2);
    int ok = 0, late = 0;
    for (size_t i = 0; i < MANY; i++) {
        tinker_status st = tinker_parallel_status(m, i, &err);
        ok += st == TINKER_OK;
        late += st == TINKER_ETIMEDOUT && strstr(err.message, "400 ms");
        if (tinker_parallel_future(m, i))
            CHECK(tinker_future_done(tinker_parallel_future(m, i)));
    }
    CHECK_INT(ok, 2);
    CHECK_INT(late, MANY - 2);
    CHECK_INT(fake_count(w.server, ASAMPLE), 5);
    close_world(s, m);
}

static int after_two(size_t i, const tinker_future *f, const tinker_error *e, void *state)
{
    (void)i, (void)f, (void)e;
    return ++*(int *)state == 2;
}

static void test_cancelled_by_callback(void)
{
    tinker_sampler *s = open_world();
    int n = 0;
    tinker_parallel_options how = TINKER_PARALLEL_OPTIONS_INIT;
    how.max_concurrency = 1;
    how.on_item = after_two;
    how.on_item_state = &n;
    tinker_parallel *m = tinker_sampler_sample_parallel(s, prompts(), MANY, NULL, NULL, &how, &err);
    REQUIRE(m);
    CHECK_INT(n, 2);
    CHECK_INT(fake_count(w.server, ASAMPLE), 2);
    CHECK_INT(tinker_parallel_status(m, 1, &err), TINKER_OK);
    CHECK_INT(tinker_parallel_status(m, 2, &err), TINKER_ECANCELED);
    tinker_parallel_free(m);
    say(&w, ASAMPLE, 422, "{}", 1); /* the first failure ends it */
    how.on_item = NULL;
    how.stop_on_error = 1;
    m = tinker_sampler_sample_parallel(s, prompts(), MANY, NULL, NULL, &how, &err);
    REQUIRE(m);
    CHECK_INT(tinker_parallel_failed(m), MANY);
    CHECK_INT(tinker_parallel_status(m, 0, &err), TINKER_EHTTP);
    CHECK_INT(tinker_parallel_status(m, 1, &err), TINKER_ECANCELED);
    CHECK_INT(fake_count(w.server, ASAMPLE), 3);
    close_world(s, m);
}

static void *cancel_soon(void *arg)
{
    nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    tinker_canceler_request(arg);
    return NULL;
}

static void test_cancelled_by_another(void)
{
    tinker_sampler *s = open_world();
    pthread_t thread;
    fake_script(w.server, POLL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_parallel_options how = TINKER_PARALLEL_OPTIONS_INIT;
    how.canceler = tinker_canceler_new(&err);
    pthread_create(&thread, NULL, cancel_soon, how.canceler);
    int64_t start = now_ms();
    tinker_parallel *m = tinker_sampler_sample_parallel(s, prompts(), 5, NULL, NULL, &how, &err);
    pthread_join(thread, NULL);
    CHECK(now_ms() - start < 60000);
    REQUIRE(m);
    for (size_t i = 0; i < 5; i++)
        CHECK_INT(tinker_parallel_status(m, i, &err), TINKER_ECANCELED);
    tinker_parallel_free(m);
    m = tinker_sampler_sample_parallel(s, prompts(), 5, NULL, NULL, &how, &err); /* still wanted */
    CHECK_INT(tinker_parallel_failed(m), 5);
    CHECK_INT(fake_count(w.server, ASAMPLE), 5);
    tinker_canceler_free(how.canceler);
    close_world(s, m);
}

int main(void)
{
    RUN(test_bounds_and_order);
    RUN(test_samples);
    RUN(test_one_deadline);
    RUN(test_cancelled_by_callback);
    RUN(test_cancelled_by_another);
    return tap_done();
}
