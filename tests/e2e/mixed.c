/* mixed.c - everything at once against one server: models that train, samples, saves, large
 * batches, listings, and clients that leave in the middle.
 *
 * For the thread sanitizer as much as for the outcome: every number is checked.
 * Usage: mixed ROUNDS PORT */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <tinker/tinker.h>
#include <unistd.h>

enum { TRAINERS = 3, SAMPLERS = 2, SAMPLES = 16, N = 12, BATCH = 400, TIMEOUT_MS = 200000 };

static tinker_service *service;
static atomic_int failures, busy;
static int rounds, port;

static void fail(const char *what, const tinker_error *err)
{
    fprintf(stderr, "mixed: %s: %s\n", what, err->message);
    atomic_fetch_add(&failures, 1);
}

/* Waits; NULL after a failure was told. */
static tinker_future *done(tinker_future *f, const char *what, tinker_error *err)
{
    if (f && tinker_future_wait(f, TIMEOUT_MS, err) == TINKER_OK)
        return f;
    fail(what, err);
    tinker_future_free(f);
    return NULL;
}

static void sample_some(tinker_sampler *m, int n)
{
    tinker_error err = { 0 };
    tinker_future *f[SAMPLES];
    int32_t prompt[] = { 20, 21, 22 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 3 };
    tinker_model_input input = { &text, 1 };
    for (int i = 0; i < n; i++) {
        tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
        params.max_tokens = 1 + i % 5;
        params.has_seed = 1;
        params.seed = i;
        params.stop_tokens = prompt; /* an empty list: only max_tokens ends it */
        f[i] = tinker_sampler_sample(m, &input, &params, NULL, &err);
    }
    for (int i = 0; i < n; i++) {
        f[i] = done(f[i], "sample", &err);
        if (f[i] && tinker_future_sample(f[i])->sequences[0].n != (size_t)(1 + i % 5))
            fail("a sample has another length", &err);
        tinker_future_free(f[i]);
    }
}

static void *run_sampler(void *arg)
{
    tinker_error err = { 0 };
    (void)arg;
    tinker_sampler *m =
        tinker_service_create_sampler(service, "tinker/tiny", NULL, TIMEOUT_MS, &err);
    if (!m)
        fail("create_sampler", &err);
    for (int i = 0; m && i < rounds; i++)
        sample_some(m, SAMPLES);
    tinker_sampler_free(m);
    atomic_fetch_sub(&busy, 1);
    return NULL;
}

/* One step on a batch that is large enough to be read aside of the HTTP thread. */
static void train_once(tinker_training *t, const tinker_datum *data, int step)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_future *pass = tinker_training_forward_backward(t, data, BATCH, &loss, &err);
    tinker_future *optim = tinker_training_optim_step(t, &adam, &err);
    pass = done(pass, "forward_backward", &err);
    optim = done(optim, "optim_step", &err);
    size_t n = 0;
    const tinker_named_number *m = optim ? tinker_future_metrics(optim, &n) : NULL;
    if (!m || tinker_metric(m, n, "step:max") != step)
        fail("a step was lost or done twice", &err);
    tinker_future_free(pass);
    tinker_future_free(optim);
}

static void save_and_sample(tinker_training *t, int step)
{
    tinker_error err = { 0 };
    char name[32];
    snprintf(name, sizeof(name), "at-%d", step);
    tinker_future *w = done(tinker_training_save_for_sampler(t, name, NULL, &err), "save", &err);
    tinker_sampler *m = w ? tinker_service_create_sampler(
                                service, NULL, tinker_future_saved_path(w), TIMEOUT_MS, &err)
                          : NULL;
    if (m)
        sample_some(m, 3);
    else
        fail("create_sampler", &err);
    tinker_sampler_free(m);
    tinker_future_free(w);
}

static void *run_trainer(void *arg)
{
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    static int32_t tokens[N];
    static int64_t targets[N] = { 1, 2, 3 };
    tinker_chunk text = { .tokens = tokens, .n_tokens = N };
    tinker_named_tensor target = { "target_tokens",
                                   { TINKER_INT64, targets, N, NULL, 0, NULL, NULL } };
    tinker_datum data[BATCH];
    for (int i = 0; i < BATCH; i++)
        data[i] = (tinker_datum){ .model_input = { &text, 1 }, .inputs = &target, .n_inputs = 1 };
    lora.rank = 2;
    (void)arg;
    tinker_training *t =
        tinker_service_create_lora(service, "tinker/tiny", &lora, TIMEOUT_MS, &err);
    if (!t)
        fail("create_lora", &err);
    for (int step = 1; t && step <= rounds; step++) {
        train_once(t, data, step);
        save_and_sample(t, step);
    }
    tinker_training_free(t);
    atomic_fetch_sub(&busy, 1);
    return NULL;
}

static void *run_lister(void *arg)
{
    tinker_error err = { 0 };
    tinker_rest *r = tinker_service_create_rest(service, &err);
    (void)arg;
    while (r && atomic_load(&busy) > 0) {
        tinker_future_free(done(tinker_rest_list_training_runs(r, NULL, &err), "runs", &err));
        tinker_future_free(
            done(tinker_rest_list_user_checkpoints(r, NULL, &err), "checkpoints", &err));
        tinker_future_free(done(tinker_rest_list_sessions(r, NULL, &err), "sessions", &err));
    }
    tinker_rest_free(r);
    return NULL;
}

/* Clients that leave: in the headers, in the body, before the answer, while it is held. */
static void *run_leaver(void *arg)
{
    static const char *const texts[] = {
        "POST /api/v1/asample HTTP/1.1\r\nHost: localhost\r\n",
        "POST /api/v1/asample HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        "90000\r\n\r\n{\"prompt\":",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 69\r\n\r\n"
        "{\"model\":\"tinker/tiny\",\"prompt\":[1,2],\"max_tokens\":40,\"stream\":true }",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 54\r\n\r\n"
        "{\"model\":\"tinker/tiny\",\"prompt\":[1,2],\"max_tokens\":40}",
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
    };
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    (void)arg;
    for (unsigned i = 0; atomic_load(&busy) > 0; i++) {
        const char *text = texts[i % (sizeof(texts) / sizeof(texts[0]))];
        struct timespec pause = { 0, (long)(i % 4) * 3000000 };
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
            send(fd, text, strlen(text), MSG_NOSIGNAL);
        nanosleep(&pause, NULL);
        close(fd);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    tinker_error err = { 0 };
    pthread_t threads[TRAINERS + SAMPLERS + 2];
    int n = 0;
    rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2;
    port = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
    service = tinker_service_new(NULL, &err);
    if (!service) {
        fail("service", &err);
        return 1;
    }
    atomic_store(&busy, TRAINERS + SAMPLERS);
    for (int i = 0; i < TRAINERS; i++)
        pthread_create(&threads[n++], NULL, run_trainer, NULL);
    for (int i = 0; i < SAMPLERS; i++)
        pthread_create(&threads[n++], NULL, run_sampler, NULL);
    pthread_create(&threads[n++], NULL, run_lister, NULL);
    pthread_create(&threads[n++], NULL, run_leaver, NULL);
    while (n)
        pthread_join(threads[--n], NULL);
    tinker_service_free(service);
    printf("%d failures\n", atomic_load(&failures));
    return atomic_load(&failures) != 0;
}
