/* Canceling while a worker has what the I/O thread gave it: a large result, or a batch. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <tinker/extra/events.h>
#include "client/io/runtime.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define POLL API "retrieve_future"

enum { WORKERS = 2, N_TOKENS = 100000 };

/* Jobs that keep all workers from whatever comes after them. */
struct crowd {
    pthread_mutex_t gate; /* held: they stay */
    struct crowd_job {
        struct runtime_job job;
        struct crowd *crowd;
    } jobs[WORKERS];
};

static void stay(struct runtime_job *j)
{
    struct crowd *c = ((struct crowd_job *)j)->crowd; /* first member */
    pthread_mutex_lock(&c->gate);
    pthread_mutex_unlock(&c->gate);
}

static void went(struct runtime_job *j)
{
    (void)j;
}

static void send_crowd(void *arg)
{
    struct crowd *c = arg;
    for (int i = 0; i < WORKERS; i++) {
        c->jobs[i] = (struct crowd_job){ { .work = stay, .done = went }, c };
        CHECK(runtime_work(runtime_current(), &c->jobs[i].job));
    }
}

static void crowd_begin(struct crowd *c, struct world *w)
{
    pthread_mutex_init(&c->gate, NULL);
    pthread_mutex_lock(&c->gate);
    runtime_sync(runtime_current(), send_crowd, c);
    w->outside = WORKERS;
}

static void crowd_end(struct crowd *c, struct world *w)
{
    pthread_mutex_unlock(&c->gate);
    w->outside = 0;
    world_settle(w);
    pthread_mutex_destroy(&c->gate);
}

static void script_large_sample(struct world *w)
{
    int32_t *tokens = malloc(N_TOKENS * sizeof(*tokens));
    for (int32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = i;
    size_t len;
    char *body = fake_sample_result(tokens, N_TOKENS, &len);
    CHECK(len > 256 << 10);
    fake_script(
        w->server, POLL,
        (struct fake_reply){ .body = body, .len = len, .content_type = "application/x-protobuf" });
    free(body);
    free(tokens);
}

static int count_polls(const tinker_event *e, void *state)
{
    const char *operation = tinker_event_text(e, "operation");
    if (operation && strcmp(operation, "retrieve_future") == 0)
        atomic_fetch_add((atomic_int *)state, 1);
    return 0;
}

static void test_cancel_while_a_result_is_read(void) /* */
{
    struct world w;
    struct crowd crowd;
    atomic_int polls = 0; /* written by the thread that tells events */
    world_open(&w, NULL, NULL);
    tinker_sampler *s = world_sampler(&w);
    tinker_service_attach(w.service, "polls", "http.request.stop", count_polls, &polls, NULL);
    crowd_begin(&crowd, &w);
    script_large_sample(&w);
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(2), NULL, NULL, NULL);
    /* an answer on its way and one that waits for a worker look alike to world_settle() */
    for (int i = 0; i < 100000 && atomic_load(&polls) == 0; i++) {
        nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
        runtime_drain_callbacks(runtime_current());
    }
    CHECK_INT(atomic_load(&polls), 1);
    w.outside++;
    world_settle(&w);
    CHECK_INT(fake_count(w.server, POLL), 1);
    CHECK(!tinker_future_done(f));
    tinker_future_cancel(f);
    world_settle(&w);
    CHECK_INT(tinker_future_wait(f, 0, &w.err), TINKER_ECANCELED);
    tinker_future_free(f);
    crowd_end(&crowd, &w); /* it comes back to nobody */
    f = tinker_sampler_sample(s, fake_prompt(2), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    tinker_future_free(f);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_cancel_while_a_batch_is_compressed(void) /* R-012 R-081 R-095 */
{
    struct world w;
    struct crowd crowd;
    world_open(&w, "{\"proto_compress_fwdbwd\":true}", NULL);
    tinker_training *t = world_training(&w);
    crowd_begin(&crowd, &w);
    tinker_datum *data = fake_data(1, 4);
    tinker_future *f = tinker_training_forward_backward(t, data, 1, &fake_loss, NULL);
    tinker_future *step = tinker_training_optim_step(t, NULL, NULL);
    w.outside++; /* the batch waits for a worker, and the step for the batch */
    world_settle(&w);
    CHECK_INT(fake_count(w.server, API "optim_step"), 0);
    tinker_future_cancel(f);
    CHECK_INT(world_finish(&w, step, 1000), TINKER_OK); /* its turn came all the same */
    CHECK_INT(tinker_future_wait(f, 0, &w.err), TINKER_ECANCELED);
    tinker_future_free(f);
    crowd_end(&crowd, &w);
    /* The batch was never sent; what was fills its number, and nobody compressed that. */
    char encoding[512];
    REQUIRE(fake_count(w.server, API "forward_backward") == 1);
    CHECK(
        !fake_header(fake_get(w.server, API "forward_backward", 0), "Content-Encoding", encoding));
    CHECK_INT(fake_pass_seq(fake_get(w.server, API "forward_backward", 0)), 1);
    tinker_future_free(step);
    fake_data_free(data, 1);
    tinker_training_free(t);
    world_close(&w);
}

int main(void)
{
    RUN(test_cancel_while_a_result_is_read);
    RUN(test_cancel_while_a_batch_is_compressed);
    return tap_done();
}
