/* A service that fails nearly every third time: everything ends, in order, once. */
#include "client/holder.h"
#include "client/limits.h"
#include "client/sampler.h"
#include "client/trainer.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

enum { STEPS = 150, SAMPLES = 300 };

static void test_everything_ends(void) /* R-095 R-103 R-184 R-185 R-218 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    rng_seed(&w.fault_rng, 4);
    tinker_training *t = world_training(&w);
    tinker_sampler *s = world_sampler(&w);
    REQUIRE(t && s);
    w.fault_percent = 30;
    static tinker_future *steps[STEPS], *samples[SAMPLES];
    for (int i = 0; i < STEPS; i++)
        steps[i] = tinker_training_optim_step(t, NULL, NULL);
    for (int i = 0; i < SAMPLES; i++)
        samples[i] = tinker_sampler_sample(s, fake_prompt(4), NULL, NULL, NULL);
    int ok = 0, failed = 0;
    for (int i = 0; i < STEPS + SAMPLES; i++) {
        tinker_future *f = i < STEPS ? steps[i] : samples[i - STEPS];
        tinker_status status = world_finish(&w, f, 4000000);
        CHECK(status != TINKER_ETIMEDOUT || tinker_future_done(f));
        ok += status == TINKER_OK;
        failed += status != TINKER_OK;
        tinker_future_free(f);
    }
    /* a lost poll of a training step cannot be helped: 409 and 400 on a poll are final */
    CHECK(ok > (STEPS + SAMPLES) * 8 / 10);
    CHECK(w.n_faults > 300);
    CHECK(w.n_repeats > 0); /* answers were lost after the work was done */
    int64_t last = 0;       /* the order of first arrivals is the order of submission */
    for (size_t i = 0; i < fake_count(w.server, API "optim_step"); i++) {
        int64_t seq = fake_json_int(fake_get(w.server, API "optim_step", i), "seq_id");
        CHECK(seq == last || seq == last + 1);
        last = seq;
    }
    CHECK_INT(last, STEPS);
    world_settle(&w);
    struct holder *h = t->holder; /* nothing is held any more */
    CHECK_INT(h->response_bytes.free, h->server.inflight_response_bytes_semaphore_size);
    CHECK_INT(h->train_bytes.free, h->server.fwdbwd_dispatch_bytes_semaphore_size);
    CHECK_INT(h->limits->dispatch.free, 400);
    CHECK_INT(h->limits->throttle.free, 10);
    CHECK_INT(h->limits->bytes.free, h->server.sample_dispatch_bytes_semaphore_size);
    CHECK(h->ops == NULL && h->handlers == NULL);
    printf("# %d ok, %d failed, %d faults, %d repeats, %lld s\n", ok, failed, w.n_faults,
           w.n_repeats, (long long)world_ms(&w) / 1000);
    tinker_training_free(t);
    tinker_sampler_free(s);
    w.fault_percent = 0;
    world_close(&w);
}

int main(void)
{
    RUN(test_everything_ends);
    return tap_done();
}
