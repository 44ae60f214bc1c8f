/* soak.c - a server's ordinary day in a loop: two models train and save, two samplers ask for texts of
 * all lengths, listings are read; clients come and go.  Usage: soak SECONDS [SAMPLES_PER_SECOND]
 * With a rate the load is even: each user takes a turn at fixed times, a step for every eight samples of a sampler.
 * Without one it is all the machine can do, and memory follows what else the machine does.
 * Prints "N steps, N samples, N saves, N listings"; exit status 1 when anything failed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tinker/rest.h>
#include <tinker/tinker.h>

enum { TIMEOUT_MS = 120000, PER_CLIENT = 40, BATCH = 8, VOCAB = 256, LENGTH_MAX = 200 };
enum { SAMPLERS = 2, NS_PER_S = 1000000000 };

static tinker_service *service;
static atomic_long steps, samples, saves, listings, failures;
static time_t end;
static long turn_ns; /* from one turn of a user to the next; 0: at once */

static void fail(const char *what, const tinker_error *err)
{
    fprintf(stderr, "soak: %s: %s\n", what, err->message);
    atomic_fetch_add(&failures, 1);
}

/* Sleeps until the turn after *turn.  Turns that were missed are left out: making up for them would be the uneven
 * load that a rate is to prevent. */
static void wait_turn(struct timespec *turn)
{
    struct timespec now;
    if (turn_ns == 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t next = ((int64_t)turn->tv_sec * NS_PER_S + turn->tv_nsec) + turn_ns;
    int64_t at = (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
    if (next < at)
        next = at;
    *turn = (struct timespec){ .tv_sec = next / NS_PER_S, .tv_nsec = next % NS_PER_S };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, turn, NULL);
}

static int wait_for(tinker_future *f, const char *what, tinker_error *err)
{
    if (f && tinker_future_wait(f, TIMEOUT_MS, err) == TINKER_OK)
        return 1;
    fail(what, err);
    return 0;
}

static void fill_tokens(int32_t *tokens, size_t n, unsigned *seed)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(rand_r(seed) % VOCAB);
}

static void train_once(tinker_training *t, unsigned *seed)
{
    tinker_error err = { 0 };
    int32_t tokens[LENGTH_MAX];
    size_t n = 2 + (size_t)(rand_r(seed) % (LENGTH_MAX - 2));
    fill_tokens(tokens, n, seed);
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_datum *d = tinker_datum_from_tokens(tokens, n, NULL, &err);
    tinker_future *pass = d ? tinker_training_forward_backward(t, d, 1, &loss, &err) : NULL;
    tinker_future *step = tinker_training_optim_step(t, NULL, &err);
    if (wait_for(pass, "forward_backward", &err) & wait_for(step, "optim_step", &err))
        atomic_fetch_add(&steps, 1);
    tinker_future_free(pass);
    tinker_future_free(step);
    tinker_datum_free(d);
}

/* A user who trains for a while, saves twice under the same names, and leaves. */
static void *run_trainer(void *arg)
{
    unsigned seed = (unsigned)(size_t)arg;
    struct timespec turn = { 0, 0 };
    while (time(NULL) < end && atomic_load(&failures) < 10) {
        tinker_error err = { 0 };
        tinker_lora lora = TINKER_LORA_INIT;
        lora.rank = 4;
        tinker_training *t =
            tinker_service_create_lora(service, "tinker/tiny", &lora, TIMEOUT_MS, &err);
        if (!t) {
            fail("create_lora", &err);
            break;
        }
        for (int i = 0; i < PER_CLIENT && time(NULL) < end; i++) {
            wait_turn(&turn);
            train_once(t, &seed);
        }
        tinker_save_options brief = TINKER_SAVE_OPTIONS_INIT;
        brief.ttl_seconds = 5;
        tinker_future *save = tinker_training_save_for_sampler(t, "soak", &brief, &err);
        if (wait_for(save, "save_for_sampler", &err))
            atomic_fetch_add(&saves, 1);
        tinker_future_free(save);
        tinker_future *unload = tinker_training_unload(t, &err);
        wait_for(unload, "unload", &err);
        tinker_future_free(unload);
        tinker_training_free(t);
    }
    return NULL;
}

static void *run_sampler(void *arg)
{
    unsigned seed = (unsigned)(size_t)arg;
    struct timespec turn = { 0, 0 };
    while (time(NULL) < end && atomic_load(&failures) < 10) {
        tinker_error err = { 0 };
        tinker_sampler *s =
            tinker_service_create_sampler(service, "tinker/tiny", NULL, TIMEOUT_MS, &err);
        if (!s) {
            fail("create_sampler", &err);
            break;
        }
        for (int i = 0; i < PER_CLIENT && time(NULL) < end; i++) {
            wait_turn(&turn);
            int32_t tokens[LENGTH_MAX];
            tinker_future *f[BATCH];
            for (int k = 0; k < BATCH; k++) {
                size_t n = 1 + (size_t)(rand_r(&seed) % (LENGTH_MAX / 2));
                fill_tokens(tokens, n, &seed);
                tinker_chunk text = { .tokens = tokens, .n_tokens = n };
                tinker_model_input input = { &text, 1 };
                tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
                p.max_tokens = 1 + rand_r(&seed) % 30;
                f[k] = tinker_sampler_sample(s, &input, &p, NULL, &err);
            }
            for (int k = 0; k < BATCH; k++) {
                if (wait_for(f[k], "sample", &err))
                    atomic_fetch_add(&samples, 1);
                tinker_future_free(f[k]);
            }
        }
        tinker_sampler_free(s);
    }
    return NULL;
}

static void *run_lister(void *arg)
{
    tinker_error err = { 0 };
    tinker_rest *r = tinker_service_create_rest(service, &err);
    (void)arg;
    while (r && time(NULL) < end && atomic_load(&failures) < 10) {
        tinker_future *f = tinker_rest_list_training_runs(r, NULL, &err);
        if (wait_for(f, "list_training_runs", &err))
            atomic_fetch_add(&listings, 1);
        tinker_future_free(f);
        nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
    }
    tinker_rest_free(r);
    return NULL;
}

int main(int argc, char **argv)
{
    tinker_error err = { 0 };
    pthread_t threads[5];
    end = time(NULL) + (argc > 1 ? strtol(argv[1], NULL, 10) : 10);
    double rate = argc > 2 ? strtod(argv[2], NULL) : 0;
    turn_ns = rate > 0 ? (long)((double)SAMPLERS * BATCH / rate * NS_PER_S) : 0;
    service = tinker_service_new(NULL, &err);
    if (!service)
        return fprintf(stderr, "soak: %s\n", err.message), 2;
    void *(*const run[])(void *) = { run_trainer, run_trainer, run_sampler, run_sampler,
                                     run_lister };
    for (size_t i = 0; i < 5; i++)
        if (pthread_create(&threads[i], NULL, run[i], (void *)(i + 1)) != 0)
            return 2;
    for (size_t i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    tinker_service_free(service);
    printf("%ld steps, %ld samples, %ld saves, %ld listings\n", atomic_load(&steps),
           atomic_load(&samples), atomic_load(&saves), atomic_load(&listings));
    return atomic_load(&failures) > 0;
}
