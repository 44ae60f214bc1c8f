/* A service that fails nearly every third time: everything ends, in order, once.
 *
 * FAULT_OPERATIONS says how many operations; the default is smaller under sanitizers. */
#include <dirent.h>
#include <malloc.h>
#include <stdlib.h>
#include "client/session/session.h"
#include "client/sampling/sample_limits.h"
#include "client/sampling/sampling_client.h"
#include "client/session/service.h"
#include "client/training/training_client.h"
#include "support/fake_faulty.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { OPERATIONS = 1500, EXACT_MEMORY = 0 };
#else
enum { OPERATIONS = 20000, EXACT_MEMORY = 1 };
#endif
enum { TRAINERS = 16, SAMPLERS = 4, WINDOW = 256, DEADLINE_MS = 900000, GRAIN_MS = 50 };

enum kind {
    PASS,
    BIG_PASS,
    FORWARD,
    STEP,
    SAVE,
    SAVE_SAMPLER,
    LOAD,
    SAMPLE,
    LOGPROBS,
    GET_RUN,
    PUBLISH,
    TTL,
    DELETE,
    CAPABILITIES
};

struct fault_case {
    enum kind kind;
    tinker_future *f;
    int64_t number, submitted_ms;
};

struct run {
    struct world w;
    struct faulty faulty;
    struct rng rng;
    tinker_training *trainers[TRAINERS];
    tinker_sampler *samplers[SAMPLERS];
    tinker_rest *rest;
    tinker_queue *q;
    int64_t submitted, ended, ok, failed, canceled, wrong, late;
};

/* ---- the process -------------------------------------------------------------------------- */

static int threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = -2; /* . and .. */
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static size_t memory(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* ---- operations --------------------------------------------------------------------------- */

static tinker_future *submit_pass(struct run *r, tinker_training *t, int64_t number, size_t n,
                                  bool forward)
{
    int32_t tokens[5][2];
    int64_t targets[2] = { 1, 2 };
    tinker_chunk chunks[5];
    tinker_named_tensor input = { "target_tokens",
                                  { .dtype = TINKER_INT64, .data = targets, .n = 2 } };
    tinker_datum data[5];
    for (size_t i = 0; i < n; i++) {
        tokens[i][0] = (int32_t)number;
        tokens[i][1] = (int32_t)i;
        chunks[i] = (tinker_chunk){ .tokens = tokens[i], .n_tokens = 2 };
        data[i] =
            (tinker_datum){ .model_input = { &chunks[i], 1 }, .inputs = &input, .n_inputs = 1 };
    }
    return forward ? tinker_training_forward(t, data, n, &fake_loss, &r->w.err)
                   : tinker_training_forward_backward(t, data, n, &fake_loss, &r->w.err);
}

static tinker_future *submit_named(struct run *r, tinker_training *t, enum kind kind,
                                   int64_t number)
{
    char name[80];
    tinker_error *err = &r->w.err;
    snprintf(name, sizeof(name), "%sop-%lld", kind == LOAD ? "tinker://run/weights/" : "",
             (long long)number);
    return kind == SAVE   ? tinker_training_save_state(t, name, NULL, err)
           : kind == LOAD ? tinker_training_load_state(t, name, 0, NULL, err)
                          : tinker_training_save_for_sampler(t, name, NULL, err);
}

static tinker_future *submit_rest(struct run *r, enum kind kind, int64_t number)
{
    char run[32], path[80];
    tinker_error *err = &r->w.err;
    snprintf(run, sizeof(run), "run-%lld", (long long)number);
    snprintf(path, sizeof(path), "tinker://%s/weights/a", run);
    return kind == GET_RUN   ? tinker_rest_get_training_run(r->rest, run, TINKER_SCOPE_OWNED, err)
           : kind == PUBLISH ? tinker_rest_publish_checkpoint(r->rest, path, err)
           : kind == TTL     ? tinker_rest_set_checkpoint_ttl(r->rest, path, 60, err)
           : kind == DELETE  ? tinker_rest_delete_checkpoint(r->rest, path, err)
                             : tinker_service_get_capabilities(r->w.service, err);
}

static tinker_future *submit_sample(struct run *r, enum kind kind, int64_t number)
{
    int32_t token = (int32_t)number;
    tinker_chunk chunk = { .tokens = &token, .n_tokens = 1 };
    tinker_model_input prompt = { &chunk, 1 };
    tinker_sampler *s = r->samplers[rng_next(&r->rng) % SAMPLERS];
    return kind == SAMPLE ? tinker_sampler_sample(s, &prompt, NULL, NULL, &r->w.err)
                          : tinker_sampler_compute_logprobs(s, &prompt, &r->w.err);
}

static tinker_future *submit(struct run *r, enum kind kind, int64_t number)
{
    tinker_training *t = r->trainers[rng_next(&r->rng) % TRAINERS];
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = (double)number * 1e-6;
    switch (kind) {
    case PASS:
    case FORWARD:
        return submit_pass(r, t, number, 1, kind == FORWARD);
    case BIG_PASS:
        return submit_pass(r, t, number, 5, false);
    case STEP:
        return tinker_training_optim_step(t, &adam, &r->w.err);
    case SAVE:
    case SAVE_SAMPLER:
    case LOAD:
        return submit_named(r, t, kind, number);
    case SAMPLE:
    case LOGPROBS:
        return submit_sample(r, kind, number);
    default:
        return submit_rest(r, kind, number);
    }
}

static enum kind choose(struct run *r)
{
    static const struct {
        enum kind kind;
        unsigned share; /* of 100, added up */
    } mix[] = { { PASS, 9 },      { BIG_PASS, 13 },     { FORWARD, 15 },      { STEP, 25 },
                { SAVE, 27 },     { LOAD, 29 },         { SAVE_SAMPLER, 31 }, { SAMPLE, 72 },
                { LOGPROBS, 76 }, { GET_RUN, 84 },      { PUBLISH, 89 },      { TTL, 93 },
                { DELETE, 97 },   { CAPABILITIES, 100 } };
    uint64_t x = rng_next(&r->rng) % 100;
    size_t i = 0;
    while (x >= mix[i].share)
        i++;
    return mix[i].kind;
}

/* Is the result that of the operation it is given for? */
static bool is_own(const struct fault_case *o)
{
    const tinker_forward_backward *p = tinker_future_forward_backward(o->f);
    size_t n = 0;
    const tinker_named_number *m = tinker_future_metrics(o->f, &n);
    char name[32];
    snprintf(name, sizeof(name), "/op-%lld", (long long)o->number);
    switch (o->kind) {
    case PASS:
    case FORWARD:
    case BIG_PASS:
        return p && p->n_outputs == (o->kind == BIG_PASS ? 5 : 1) &&
               tinker_metric(p->metrics, p->n_metrics, "operation:max") == (double)o->number &&
               tinker_metric(p->metrics, p->n_metrics, "loss:sum") == (double)p->n_outputs;
    case STEP:
        return tinker_metric(m, n, "operation:max") == (double)o->number;
    case SAMPLE:
    case LOGPROBS:
        return tinker_future_sample(o->f)->sequences[0].tokens[0] == o->number;
    case SAVE:
    case SAVE_SAMPLER:
        return strstr(tinker_future_saved_path(o->f), name) != NULL;
    case LOAD:
        return strstr(tinker_future_loaded_path(o->f), name) != NULL;
    case GET_RUN:
        return strtoll(tinker_future_training_run(o->f)->id + 4, NULL, 10) == o->number;
    default:
        return true;
    }
}

static void begin(struct run *r)
{
    struct fault_case *o = calloc(1, sizeof(*o));
    o->kind = choose(r);
    o->number = ++r->submitted;
    o->submitted_ms = world_ms(&r->w);
    o->f = submit(r, o->kind, o->number);
    REQUIRE(o->f != NULL);
    tinker_future_set_deadline(o->f, DEADLINE_MS);
    REQUIRE(tinker_queue_add(r->q, o->f, o, &r->w.err) == TINKER_OK);
    if (rng_next(&r->rng) % 100 == 0)
        tinker_future_cancel(o->f);
}

static void end(struct run *r, struct fault_case *o)
{
    tinker_status s = tinker_future_wait(o->f, 0, &r->w.err);
    r->ended++;
    r->ok += s == TINKER_OK;
    r->canceled += s == TINKER_ECANCELED;
    r->failed += s != TINKER_OK && s != TINKER_ECANCELED;
    r->wrong += s == TINKER_OK ? !is_own(o) : r->w.err.message[0] == '\0';
    r->late += world_ms(&r->w) - o->submitted_ms > DEADLINE_MS + 1000;
    tinker_future_free(o->f);
    free(o);
}

/* ---- the run ------------------------------------------------------------------------------- */

static void run_open(struct run *r, uint64_t seed)
{
    memset(r, 0, sizeof(*r));
    rng_seed(&r->rng, seed);
    faulty_init(&r->faulty, seed + 1, 30, "{\"fwdbwd_max_chunk_len\":2}");
    world_open(&r->w, NULL, NULL);
    fake_forget(r->w.server);
    r->w.instead_state = &r->faulty;
    r->w.instead = faulty_answer;
    r->rest = tinker_service_create_rest(r->w.service, NULL);
    r->q = tinker_queue_new(NULL);
    for (int i = 0; i < TRAINERS; i++)
        REQUIRE((r->trainers[i] = world_training(&r->w)) != NULL);
    for (int i = 0; i < SAMPLERS; i++)
        REQUIRE((r->samplers[i] = world_sampler(&r->w)) != NULL);
}

/* Nothing is held any more. */
static void check_calm(struct run *r)
{
    struct session *h = r->trainers[0]->session;
    world_settle(&r->w);
    CHECK_INT(h->response_bytes.free, h->server.inflight_response_bytes_semaphore_size);
    CHECK_INT(h->train_bytes.free, h->server.fwdbwd_dispatch_bytes_semaphore_size);
    CHECK_INT(h->limits->dispatch.free, 400);
    CHECK_INT(h->limits->throttle.free, 10);
    CHECK_INT(h->limits->bytes.free, h->server.sample_dispatch_bytes_semaphore_size);
    CHECK(h->ops == NULL && h->sample_retries == NULL);
    CHECK(r->w.service->rest->ops == NULL);
}

static void run_close(struct run *r)
{
    for (int i = 0; i < TRAINERS; i++)
        tinker_training_free(r->trainers[i]);
    for (int i = 0; i < SAMPLERS; i++)
        tinker_sampler_free(r->samplers[i]);
    tinker_rest_free(r->rest);
    tinker_queue_free(r->q);
    r->faulty.percent = 0; /* closing has its own tests */
    world_close(&r->w);
    faulty_clear(&r->faulty);
}

static void go(struct run *r, int64_t operations)
{
    while (r->ended < operations) {
        while (r->submitted < operations && r->submitted - r->ended < WINDOW)
            begin(r);
        world_step(&r->w, GRAIN_MS);
        void *tag;
        while (tinker_queue_next(r->q, 0, &tag))
            end(r, tag);
        REQUIRE(world_ms(&r->w) < 100 * (int64_t)DEADLINE_MS); /* nothing moves any more */
    }
}

/* A last step of each client, without faults: it fills what the others left. */
static void step_all(struct run *r)
{
    r->faulty.percent = 0;
    for (int i = 0; i < TRAINERS; i++) {
        tinker_adam adam = TINKER_ADAM_INIT;
        adam.learning_rate = (double)++r->submitted / 1e6;
        tinker_future *f = tinker_training_optim_step(r->trainers[i], &adam, &r->w.err);
        CHECK_INT(world_finish(&r->w, f, DEADLINE_MS), TINKER_OK);
        tinker_future_free(f);
    }
}

static int64_t operations(void)
{
    const char *s = getenv("FAULT_OPERATIONS");
    int64_t n = s ? strtoll(s, NULL, 10) : 0;
    return n > 0 ? n : OPERATIONS;
}

static struct run run;

static void test_everything_ends(void) /* R-095 R-103 R-184 R-185 R-218 */
{
    run_open(&run, 3); /* what is allocated once, is */
    go(&run, 300);
    run_close(&run);
    size_t before = memory();
    int threads_before = threads();
    int64_t n = operations();

    run_open(&run, 4);
    go(&run, n);
    step_all(&run);
    check_calm(&run);
    CHECK_INT(run.ok + run.failed + run.canceled, n);
    CHECK_INT(run.late, 0);  /* all ended within their deadline */
    CHECK_INT(run.wrong, 0); /* with their own result, or an error that says something */
    CHECK(run.ok > n * 8 / 10);
    const struct faulty *f = &run.faulty;
    CHECK_INT(f->twice, 0);
    CHECK_INT(f->out_of_order, 0);
    CHECK_INT(f->changed, 0);
    CHECK(f->fillers > 0);
    CHECK_INT(faulty_missing(&run.faulty), 0); /* nobody waits for a number */
    CHECK(f->repeats > n / 50);                /* answers were lost after the work was done */
    long faults = faulty_faults(f);
    CHECK(faults > f->requests / 4);
    for (int i = 0; i < FAULTY_KINDS; i++)
        CHECK(f->faults[i] > f->requests / 50);
    printf("# %lld operations: %lld ok, %lld failed, %lld canceled; %ld requests, %ld faults, "
           "%ld repeats, %lld s\n",
           (long long)n, (long long)run.ok, (long long)run.failed, (long long)run.canceled,
           f->requests, faults, f->repeats, (long long)world_ms(&run.w) / 1000);
    run_close(&run);

    int64_t grown = (int64_t)memory() - (int64_t)before;
    printf("# %lld bytes more than before, %d threads\n", (long long)grown, threads());
    if (EXACT_MEMORY)
        CHECK(grown < 65536);
    CHECK_INT(threads(), threads_before);
}

int main(void)
{
    RUN(test_everything_ends);
    return tap_done();
}
