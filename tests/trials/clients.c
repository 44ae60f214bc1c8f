/* clients.c - programs that treat the library badly: each ends by itself, and none disturbs another.
 *
 * Usage: clients fork|exit|free|threads|signals.  Prints what it did; exit status 0: as it should be.
 *   fork     children that submit, free and exit while the parent trains
 *   exit     ends with futures in flight and without freeing anything
 *   free     frees clients and futures while requests are in flight, in a loop
 *   threads  32 threads share a service, a sampler and futures
 *   signals  a timer signal every 2 ms, without SA_RESTART, while it trains and samples */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <tinker/tinker.h>
#include <unistd.h>

enum { TIMEOUT_MS = 120000, THREADS = 32, PER_THREAD = 6, STEPS = 12, ROUNDS = 15 };

static tinker_service *service;
static atomic_int failures;

static void fail(const char *what, const tinker_error *err)
{
    fprintf(stderr, "clients: %s: %s\n", what, err->message);
    atomic_fetch_add(&failures, 1);
}

static tinker_training *new_training(void)
{
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 2;
    tinker_training *t =
        tinker_service_create_lora(service, "tinker/tiny", &lora, TIMEOUT_MS, &err);
    if (!t)
        fail("create_lora", &err);
    return t;
}

static tinker_sampler *new_sampler(void)
{
    tinker_error err = { 0 };
    tinker_sampler *s =
        tinker_service_create_sampler(service, "tinker/tiny", NULL, TIMEOUT_MS, &err);
    if (!s)
        fail("create_sampler", &err);
    return s;
}

static tinker_future *submit_pass(tinker_training *t, tinker_error *err)
{
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_datum *d = tinker_datum_from_tokens((int32_t[]){ 5, 6, 7, 8, 9 }, 5, NULL, err);
    tinker_future *f = d ? tinker_training_forward_backward(t, d, 1, &loss, err) : NULL;
    tinker_datum_free(d);
    return f;
}

static tinker_future *submit_sample(tinker_sampler *s, int64_t seed, tinker_error *err)
{
    tinker_chunk text = { .tokens = (int32_t[]){ 5, 6, 7 }, .n_tokens = 3 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.max_tokens = 5;
    p.has_seed = 1;
    p.seed = seed;
    return tinker_sampler_sample(s, &input, &p, NULL, err);
}

/* Train, all requests at once; every step must be there, once and in order. */
static void train(tinker_training *t, int steps)
{
    tinker_error err = { 0 };
    tinker_future *pass[STEPS], *step[STEPS];
    for (int i = 0; i < steps; i++) {
        pass[i] = submit_pass(t, &err);
        step[i] = tinker_training_optim_step(t, NULL, &err);
        if (!pass[i] || !step[i])
            fail("submit", &err);
    }
    for (int i = 0; i < steps; i++) {
        size_t n = 0;
        if (pass[i] && tinker_future_wait(pass[i], TIMEOUT_MS, &err) != TINKER_OK)
            fail("forward_backward", &err);
        if (step[i] && tinker_future_wait(step[i], TIMEOUT_MS, &err) != TINKER_OK)
            fail("optim_step", &err);
        const tinker_named_number *m = step[i] ? tinker_future_metrics(step[i], &n) : NULL;
        if (!m || tinker_metric(m, n, "step:max") != i + 1)
            fail("a step was lost or done twice", &err);
        tinker_future_free(pass[i]);
        tinker_future_free(step[i]);
    }
}

static void try_fork(void)
{
    tinker_training *t = new_training();
    tinker_error err = { 0 };
    tinker_future *flying = submit_pass(t, &err);
    for (int i = 0; i < 8; i++) {
        pid_t child = fork();
        if (child == 0) { /* everything here is the parent's; the child must not hang or crash */
            tinker_future *f = submit_pass(t, &err);
            if (f && i % 2)
                tinker_future_wait(f, 1000, &err);
            tinker_future_free(f);
            if (i % 3 == 0)
                tinker_future_free(flying), tinker_training_free(t), tinker_service_free(service);
            _exit(0);
        }
        int status = 0;
        alarm(60);
        if (waitpid(child, &status, 0) != child || status != 0)
            fail("a child crashed or failed", &err);
        alarm(0);
    }
    if (tinker_future_wait(flying, TIMEOUT_MS, &err) != TINKER_OK)
        fail("the parent's request", &err);
    tinker_future_free(flying);
    train(t, STEPS);
    tinker_training_free(t);
}

static void try_exit(void)
{
    tinker_error err = { 0 };
    tinker_training *t = new_training();
    tinker_sampler *s = new_sampler();
    for (int i = 0; i < 20; i++)
        if (!submit_pass(t, &err) || !submit_sample(s, i, &err))
            fail("submit", &err);
    exit(atomic_load(&failures) > 0);
}

static void try_free(void)
{
    tinker_error err = { 0 };
    for (int i = 0; i < ROUNDS; i++) {
        tinker_training *t = new_training();
        tinker_sampler *s = new_sampler();
        tinker_future *f[6];
        for (int k = 0; k < 6; k++)
            f[k] = k % 2 ? submit_pass(t, &err) : submit_sample(s, k, &err);
        if (i % 3 == 0)
            tinker_future_wait(f[5], TIMEOUT_MS, &err);
        if (i % 3 == 1)
            for (int k = 0; k < 6; k++)
                tinker_future_cancel(f[k]);
        for (int k = 0; k < 3; k++)
            tinker_future_free(f[k]);
        tinker_training_free(t); /* half of its futures live on */
        tinker_sampler_free(s);
        for (int k = 3; k < 6; k++)
            tinker_future_free(f[k]);
    }
}

static tinker_sampler *shared;
static int32_t first_tokens[PER_THREAD][5];

static void *use_from_thread(void *arg)
{
    tinker_error err = { 0 };
    int me = (int)(size_t)arg;
    tinker_training *t = me % 8 == 0 ? new_training() : NULL;
    for (int i = 0; i < PER_THREAD; i++) {
        tinker_future *f = submit_sample(shared, i, &err);
        if (!f || tinker_future_wait(f, TIMEOUT_MS, &err) != TINKER_OK)
            fail("sample", &err);
        else if (memcmp(tinker_future_sample(f)->sequences[0].tokens, first_tokens[i],
                        tinker_future_sample(f)->sequences[0].n * sizeof(int32_t)) != 0)
            fail("a sample of the same seed differs", &err);
        tinker_future_free(f);
    }
    if (t)
        train(t, 4);
    tinker_training_free(t);
    return NULL;
}

static void try_threads(void)
{
    tinker_error err = { 0 };
    pthread_t threads[THREADS];
    shared = new_sampler();
    for (int i = 0; i < PER_THREAD; i++) {
        tinker_future *f = submit_sample(shared, i, &err);
        if (!f || tinker_future_wait(f, TIMEOUT_MS, &err) != TINKER_OK)
            fail("sample", &err);
        else
            memcpy(first_tokens[i], tinker_future_sample(f)->sequences[0].tokens,
                   tinker_future_sample(f)->sequences[0].n * sizeof(int32_t));
        tinker_future_free(f);
    }
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, use_from_thread, (void *)(size_t)i) != 0)
            exit(2);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tinker_sampler_free(shared);
}

static void on_signal(int sig)
{
    (void)sig;
}

static void try_signals(void)
{
    tinker_error err = { 0 };
    struct sigaction a = { .sa_handler = on_signal }; /* without SA_RESTART */
    struct itimerval every = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } };
    sigaction(SIGALRM, &a, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    tinker_training *t = new_training();
    tinker_sampler *s = new_sampler();
    for (int i = 0; t && s && i < 4; i++) {
        tinker_future *f = submit_sample(s, i, &err);
        if (!f || tinker_future_wait(f, TIMEOUT_MS, &err) != TINKER_OK)
            fail("sample", &err);
        tinker_future_free(f);
    }
    train(t, STEPS);
    tinker_training_free(t);
    tinker_sampler_free(s);
    setitimer(ITIMER_REAL, &never, NULL);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } trials[] = { { "fork", try_fork },
                   { "exit", try_exit },
                   { "free", try_free },
                   { "threads", try_threads },
                   { "signals", try_signals } };
    tinker_error err = { 0 };
    for (size_t i = 0; argc == 2 && i < sizeof(trials) / sizeof(*trials); i++) {
        if (strcmp(argv[1], trials[i].name) != 0)
            continue;
        service = tinker_service_new(NULL, &err);
        if (!service)
            return fprintf(stderr, "clients: %s\n", err.message), 2;
        trials[i].run();
        tinker_service_free(service);
        return atomic_load(&failures) > 0;
    }
    return 2;
}
