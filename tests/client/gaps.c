/* Numbers of requests that ended before they were accepted: a strict service, which knows nothing
 * of ours and waits for every number for ever, must run what comes after them. */
#include "client/training/seq_gap.h"
#include "client/training/training_client.h"
#include "support/fake_faulty.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define PASS API "forward_backward"
#define STEP API "optim_step"

static struct world w;
static struct faulty strict;
static tinker_training *t;

static void open_strict(const char *config)
{
    faulty_init(&strict, 1, 0, config ? config : "{}");
    strict.strict = true;
    world_open(&w, NULL, NULL);
    w.instead_state = &strict;
    w.instead = faulty_answer;
    t = world_training(&w);
    REQUIRE(t != NULL);
}

static void close_strict(void)
{
    tinker_training_free(t);
    world_close(&w);
    faulty_clear(&strict);
}

static tinker_future *step(void)
{
    tinker_future *f = tinker_training_optim_step(t, NULL, &w.err);
    CHECK(f != NULL);
    return f;
}

static tinker_future *pass(size_t n)
{
    tinker_datum *data = fake_data(n, 3);
    tinker_future *f = tinker_training_forward_backward(t, data, n, &fake_loss, &w.err);
    CHECK(f != NULL);
    fake_data_free(data, n);
    return f;
}

static void finish(tinker_future *f, tinker_status want, int64_t max_ms)
{
    CHECK_INT(world_finish(&w, f, max_ms), want);
    tinker_future_free(f);
}

/* The next request runs, soon, and with the number of its call. */
static void check_goes_on(int64_t seq)
{
    size_t n = fake_count(w.server, STEP);
    finish(step(), TINKER_OK, 20000);
    CHECK_INT(faulty_missing(&strict), 0);
    REQUIRE(fake_count(w.server, STEP) > n);
    CHECK_INT(fake_json_int(fake_get(w.server, STEP, fake_count(w.server, STEP) - 1), "seq_id"),
              seq);
}

/* ---- ways in --------------------------------------------------------------------------------- */

static void test_cancelled_before_its_turn(void)
{
    open_strict(NULL);
    fake_script(w.server, STEP, (struct fake_reply){ .by_handler = true, .delay_ms = 3000 });
    tinker_future *first = step(), *second = step(), *third = pass(1);
    world_settle(&w);
    tinker_future_cancel(second);
    tinker_future_cancel(third);
    finish(first, TINKER_OK, 20000);
    CHECK_INT(fake_count(w.server, PASS), 0); /* nobody waits: nothing to fill */
    check_goes_on(4);
    CHECK_INT(strict.fillers, 2);
    finish(second, TINKER_ECANCELED, 0);
    finish(third, TINKER_ECANCELED, 0);
    close_strict();
}

static void test_cancelled_while_it_is_sent(void)
{
    open_strict(NULL);
    fake_script(w.server, STEP, (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = step();
    world_settle(&w);
    tinker_future_cancel(f);
    finish(f, TINKER_ECANCELED, 0);
    check_goes_on(2);
    close_strict();
}

/* It did arrive, and only its answer was lost: the number is taken, which is as well. */
static void test_cancelled_after_it_arrived(void)
{
    open_strict(NULL);
    fake_script(w.server, STEP, (struct fake_reply){ .by_handler = true, .delay_ms = 30000 });
    tinker_future *f = step();
    world_settle(&w);
    tinker_future_cancel(f);
    finish(f, TINKER_ECANCELED, 0);
    check_goes_on(2);
    close_strict();
}

/* The service restarts, and the caller does not wait so long. */
static void test_timed_out_while_the_service_restarts(void)
{
    open_strict(NULL);
    fake_script(w.server, PASS, (struct fake_reply){ .fault = FAKE_DROP, .times = -1 });
    tinker_future *f = pass(1);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_ETIMEDOUT);
    tinker_future_cancel(f);
    finish(f, TINKER_ECANCELED, 0);
    tinker_future *g = pass(1);
    tinker_future_set_deadline(g, 10000);
    finish(g, TINKER_ETIMEDOUT, 11000);
    fake_unscript(w.server, PASS);
    check_goes_on(3);
    CHECK_INT(strict.fillers, 2);
    close_strict();
}

/* Refused by somebody on the way, or answered by somebody who is not the service. */
static void test_refused_on_the_way(void)
{
    static const struct {
        int status;
        const char *body;
        tinker_status want;
    } cases[] = { { 413, "too large", TINKER_EHTTP },
                  { 403, "<html>no</html>", TINKER_EHTTP },
                  { 401, "{}", TINKER_EHTTP },
                  { 422, "{\"detail\":\"bad\"}", TINKER_EHTTP },
                  { 200, "<html>please log in</html>", TINKER_EPROTOCOL } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_strict(NULL);
        say(&w, PASS, cases[i].status, cases[i].body, 1);
        finish(pass(1), cases[i].want, 20000);
        check_goes_on(2);
        CHECK_INT(strict.fillers, 1);
        close_strict();
    }
}

/* As long as the filler is refused, too, it is tried once per request; then all are filled. */
static void test_refused_for_a_while(void)
{
    open_strict(NULL);
    say(&w, PASS, 403, "no", 5);
    for (int i = 0; i < 3; i++) /* the second and the third try to fill before they go */
        finish(pass(1), TINKER_EHTTP, 20000);
    CHECK_INT(fake_count(w.server, PASS), 5);
    check_goes_on(4);
    CHECK_INT(strict.fillers, 3);
    close_strict();
}

/* Of a batch some are accepted, some refused, and the first is never sent. */
static void test_a_chunk_is_refused(void)
{
    static const char *const configs[] = {
        "{\"fwdbwd_max_chunk_len\":1}",
        "{\"fwdbwd_max_chunk_len\":1,\"parallel_fwdbwd_chunks\":false}"
    };
    for (int i = 0; i < 2; i++) {
        open_strict(configs[i]);
        fake_script(w.server, PASS, (struct fake_reply){ .by_handler = true });
        say(&w, PASS, 413, "too large", 1);
        finish(pass(4), TINKER_EHTTP, 20000);
        check_goes_on(5);
        close_strict();
    }
}

/* Thousands may be canceled at once. */
static void test_many(void)
{
    enum { N = 300 };
    tinker_future *f[N];
    open_strict(NULL);
    fake_script(w.server, STEP, (struct fake_reply){ .fault = FAKE_HANG });
    for (int i = 0; i < N; i++)
        f[i] = step();
    world_settle(&w);
    for (int i = N - 1; i >= 0; i--)
        tinker_future_cancel(f[i]);
    check_goes_on(N + 1);
    CHECK_INT(strict.fillers, N);
    for (int i = 0; i < N; i++)
        finish(f[i], TINKER_ECANCELED, 0);
    close_strict();
}

/* ---- filling --------------------------------------------------------------------------------- */

/* A service that cannot be reached is that for the next request, too: one budget, one error. */
static void test_unreachable(void)
{
    open_strict(NULL);
    say(&w, PASS, 413, "too large", 1);
    finish(pass(1), TINKER_EHTTP, 20000);
    fake_script(w.server, PASS, (struct fake_reply){ .fault = FAKE_DROP, .times = -1 });
    int64_t start = world_ms(&w);
    finish(step(), TINKER_ECONNECT, 700000);
    CHECK(strstr(w.err.message, "earlier request") != NULL);
    CHECK(world_ms(&w) - start < 500000);
    CHECK_INT(fake_count(w.server, STEP), 0);
    fake_unscript(w.server, PASS);
    check_goes_on(3);
    close_strict();
}

/* What is canceled while it fills leaves the rest to the next. */
static void test_cancelled_while_it_fills(void)
{
    open_strict(NULL);
    say(&w, PASS, 413, "too large", 1);
    finish(pass(1), TINKER_EHTTP, 20000);
    fake_script(w.server, PASS, (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = step();
    world_settle(&w);
    CHECK_INT(fake_count(w.server, PASS), 2);
    tinker_future_cancel(f);
    finish(f, TINKER_ECANCELED, 0);
    check_goes_on(3);
    close_strict();
}

/* Unloading has no number, and needs none of those before it. */
static void test_unload_fills_nothing(void)
{
    open_strict(NULL);
    say(&w, PASS, 413, "too large", 1);
    finish(pass(1), TINKER_EHTTP, 20000);
    say(&w, API "unload_model", 200, "{\"model_id\":\"m\",\"type\":\"unload_model\"}", 1);
    finish(tinker_training_unload(t, &w.err), TINKER_OK, 20000);
    CHECK_INT(fake_count(w.server, PASS), 1);
    close_strict();
}

static void test_ranges(void)
{
    struct seq_gaps g = { 0 };
    int64_t seq, sum = 0;
    CHECK(!seq_gaps_take(&g, &seq));
    for (int64_t i = 1; i <= 1000; i++)
        CHECK(seq_gaps_add(&g, i));
    CHECK_INT(g.n, 1);
    CHECK(seq_gaps_add(&g, 2003) && seq_gaps_add(&g, 2002) && seq_gaps_add(&g, 2004));
    CHECK_INT(g.n, 2);
    for (int64_t i = 0; i < 100; i++)
        CHECK(seq_gaps_add(&g, 3000 + 2 * i));
    CHECK_INT(g.n, 102);
    while (seq_gaps_take(&g, &seq))
        sum += seq;
    CHECK_INT(sum, 500500 + 6009 + 309900);
    seq_gaps_clear(&g);
}

int main(void)
{
    RUN(test_cancelled_before_its_turn);
    RUN(test_cancelled_while_it_is_sent);
    RUN(test_cancelled_after_it_arrived);
    RUN(test_timed_out_while_the_service_restarts);
    RUN(test_refused_on_the_way);
    RUN(test_refused_for_a_while);
    RUN(test_a_chunk_is_refused);
    RUN(test_many);
    RUN(test_unreachable);
    RUN(test_cancelled_while_it_fills);
    RUN(test_unload_fills_nothing);
    RUN(test_ranges);
    return tap_done();
}
