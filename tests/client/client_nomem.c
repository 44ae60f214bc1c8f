/* Every allocation of a small program fails once: it ends with TINKER_ENOMEM or well.
 *
 * The server is a process of its own, so that its allocations do not fail. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <tinker/extra/http.h>
#include <tinker/extra/parallel.h>
#include "client/io/runtime.h"
#include "support/failmalloc.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 7 }; /* a prime: all places come up over the cases */
#else
enum { STRIDE = 1 };
#endif
enum { WAIT_MS = 20000, MOST = 20000 };

static char url[64];
static tinker_error err;

/* ---- time runs faster, for the pauses before something is tried again ---------------------- */

enum { FASTER = 50 };

static int64_t fast_now(struct clock *c)
{
    (void)c;
    return clock_now_ns(clock_real()) * FASTER;
}

static int64_t fast_wall(struct clock *c)
{
    (void)c;
    return clock_wall_ns(clock_real());
}

static int fast_poll(struct clock *c, int64_t deadline_ns)
{
    int64_t left = deadline_ns == INT64_MAX ? -1 : deadline_ns - fast_now(c);
    if (deadline_ns == INT64_MAX)
        return -1;
    return left <= 0 ? 0 : (int)(left / (FASTER * 1000000) + 1);
}

static struct clock fast = { fast_now, fast_wall, fast_poll };

/* ---- the programs --------------------------------------------------------------------------- */

/* Start the fake service in a child; its address comes through a pipe. */
static pid_t serve(void)
{
    int fds[2];
    if (pipe(fds) != 0)
        exit(2);
    pid_t child = fork();
    if (child == 0) {
        struct world w;
        world_open_real(&w, "{\"fwdbwd_max_chunk_len\":1}");
        const char *where = fake_server_url(w.server);
        fake_forget(w.server);
        if (write(fds[1], where, strlen(where) + 1) < 0)
            _exit(2);
        for (;;)
            pause();
    }
    close(fds[1]);
    if (read(fds[0], url, sizeof(url)) <= 0)
        exit(2);
    close(fds[0]);
    return child;
}

static tinker_status finish(tinker_future *f)
{
    tinker_status s = f ? tinker_future_wait(f, WAIT_MS, &err) : err.status;
    tinker_future_free(f);
    return s;
}

static tinker_status train(tinker_service *service)
{
    static const int32_t tokens[2] = { 1, 2 };
    static const int64_t targets[2] = { 2, 3 };
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = 2 };
    tinker_named_tensor input = { "target_tokens",
                                  { .dtype = TINKER_INT64, .data = targets, .n = 2 } };
    tinker_datum data[2] = { { .model_input = { &chunk, 1 }, .inputs = &input, .n_inputs = 1 },
                             { .model_input = { &chunk, 1 }, .inputs = &input, .n_inputs = 1 } };
    tinker_training *t = tinker_service_create_lora(service, "tiny", NULL, WAIT_MS, &err);
    if (!t)
        return err.status;
    tinker_future *pass = tinker_training_forward_backward(t, data, 2, &fake_loss, &err);
    tinker_status s = pass ? TINKER_OK : err.status;
    tinker_future *step = s ? NULL : tinker_training_optim_step(t, NULL, &err);
    tinker_status a = s ? s : finish(pass), b = s ? s : finish(step);
    s = a ? a : b ? b : finish(tinker_training_save_state(t, "x", NULL, &err));
    tinker_training_free(t);
    return s;
}

static tinker_status sample(tinker_service *service)
{
    tinker_sampler *s = tinker_service_create_sampler(service, "tiny", NULL, WAIT_MS, &err);
    if (!s)
        return err.status;
    tinker_queue *q = tinker_queue_new(&err);
    tinker_future *f = q ? tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &err) : NULL;
    tinker_status status = f ? tinker_queue_add(q, f, NULL, &err) : err.status;
    if (status == TINKER_OK && tinker_queue_next(q, WAIT_MS, NULL) != f)
        status = TINKER_ETIMEDOUT;
    if (status == TINKER_OK)
        status = tinker_future_wait(f, 0, &err);
    tinker_future_free(f);
    tinker_queue_free(q);
    tinker_sampler_free(s);
    return status;
}

static tinker_status manage(tinker_service *service)
{
    tinker_rest *r = tinker_service_create_rest(service, &err);
    if (!r)
        return err.status;
    tinker_status s = finish(tinker_service_get_capabilities(service, &err));
    tinker_rest_free(r);
    return s;
}

static void ignore(const tinker_response *response, void *state)
{
    (void)state, (void)response;
}

static tinker_status call_any(tinker_service *service)
{
    tinker_future *f = tinker_service_call(service, "POST", "/api/v1/get_server_capabilities",
                                           "{\"b\":2}", 7, NULL, &err);
    tinker_status s = f ? tinker_future_wait(f, WAIT_MS, &err) : err.status;
    const tinker_response *r = s == TINKER_OK ? tinker_future_response(f) : NULL;
    if (s == TINKER_OK && (!r || r->status != 200 || !r->body || !r->n_body))
        s = TINKER_EPROTOCOL; /* success, and the answer is lost */
    tinker_future_free(f);
    return s;
}

/* Any request, without options and with all that a call can have. */
static tinker_status call(tinker_service *service)
{
    static const tinker_named_string pair = { "X-Mine", "1" };
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.headers = o.query = o.metadata = &pair;
    o.n_headers = o.n_query = o.n_metadata = 1;
    o.idempotency_key = "key";
    o.extra_body = "{\"a\":1}";
    o.keep_response = 1;
    o.on_response = ignore;
    tinker_status s = call_any(service);
    if (s != TINKER_OK)
        return s;
    tinker_service *derived = tinker_service_with(service, &o, &err);
    if (!derived)
        return err.status;
    s = call_any(derived);
    tinker_service_free(derived);
    return s;
}

static tinker_receive_next take(const tinker_piece *piece, void *state)
{
    *(size_t *)state += piece->n;
    return TINKER_RECEIVE_MORE;
}

static int hear(const tinker_stream_event *event, void *state)
{
    *(size_t *)state += event->kind == TINKER_STREAM_TOKEN;
    return 0;
}

/* Answers and tokens by callback, and several samples at once: all of them, or an error. */
static tinker_status tell(tinker_service *service)
{
    size_t bytes = 0, tokens = 0;
    tinker_status s = finish(tinker_service_receive(
        service, "POST", "/api/v1/get_server_capabilities", "{}", 2, NULL, take, &bytes, &err));
    tinker_sampler *m =
        s == TINKER_OK ? tinker_service_create_sampler(service, "tiny", NULL, WAIT_MS, &err) : NULL;
    if (!m)
        return s == TINKER_OK ? err.status : s;
    s = finish(tinker_sampler_sample_stream(m, fake_prompt(3), NULL, NULL, hear, &tokens, &err));
    if (s == TINKER_OK && (bytes == 0 || tokens != 3))
        s = TINKER_EPROTOCOL;
    const tinker_model_input two[] = { *fake_prompt(3), *fake_prompt(3) };
    tinker_parallel *map =
        s == TINKER_OK ? tinker_sampler_sample_parallel(m, two, 2, NULL, NULL, NULL, &err) : NULL;
    if (s == TINKER_OK)
        s = map ? tinker_parallel_status(map, 0, &err) : err.status;
    if (s == TINKER_OK)
        s = tinker_parallel_status(map, 1, &err);
    tinker_parallel_free(map);
    tinker_sampler_free(m);
    return s;
}

/* A transport that answers at once. */
static void carry(tinker_exchange *x, const tinker_http_request *q, void *state)
{
    static const tinker_named_string json = { "Content-Type", "application/json" };
    const char *body = strstr(q->url, "healthz") ? "{\"status\":\"ok\"}" : "{}";
    (void)state;
    tinker_exchange_done(x, 200, &json, 1, body, strlen(body));
}

static tinker_status carried(tinker_service *unused)
{
    tinker_transport t = TINKER_TRANSPORT_INIT;
    tinker_service_options opts = TINKER_SERVICE_OPTIONS_INIT;
    (void)unused;
    t.send = carry;
    opts.base_url = url;
    opts.api_key = "tml-0123456789abcdef";
    opts.telemetry.enabled = -1;
    opts.network.transport = &t;
    tinker_service *service = tinker_service_new(&opts, &err);
    tinker_status s = service ? finish(tinker_service_check_health(service, &err)) : err.status;
    tinker_service_free(service);
    return s;
}

static tinker_status work(tinker_status (*what)(tinker_service *))
{
    tinker_service_options opts = TINKER_SERVICE_OPTIONS_INIT;
    opts.base_url = url;
    opts.api_key = "tml-0123456789abcdef";
    opts.telemetry.enabled = -1;
    memset(&err, 0, sizeof(err));
    tinker_service *service = tinker_service_new(&opts, &err);
    tinker_status s = service ? what(service) : err.status;
    tinker_service_free(service);
    return s;
}

static void fail_each(const char *name, tinker_status (*what)(tinker_service *))
{
    long n = 1, refused = 0, survived = 0;
    REQUIRE(work(what) == TINKER_OK);
    for (; n < MOST; n += STRIDE) {
        alarm(60); /* a hang */
        failmalloc_at(n);
        tinker_status s = work(what);
        if (!failmalloc_stop())
            break;
        refused += s == TINKER_ENOMEM;
        survived += s == TINKER_OK;
        if (s != TINKER_ENOMEM && s != TINKER_OK)
            TAP_FAIL("%s, allocation %ld: %s: %s", name, n, tinker_status_name(s), err.message);
        if (s == TINKER_ENOMEM && !err.message[0])
            TAP_FAIL("%s, allocation %ld: no message", name, n);
    }
    alarm(0);
    CHECK(n < MOST && refused > survived);
    printf("# %s: %ld allocations, %ld refused, %ld survived\n", name, n - 1, refused, survived);
}

static void test_training_without_memory(void)
{
    fail_each("training", train);
}

static void test_sampling_without_memory(void)
{
    fail_each("sampling", sample);
}

static void test_rest_without_memory(void)
{
    fail_each("rest", manage);
}

static void test_options_without_memory(void)
{
    fail_each("options", call);
}

static void test_callbacks_without_memory(void)
{
    fail_each("callbacks", tell);
}

static void test_transport_without_memory(void)
{
    fail_each("transport", carried);
}

/* Only from the sample on, which starts the helper; in real time, of which that has 30 s. */
static void test_helper_without_memory(void)
{
    tinker_service_options opts = TINKER_SERVICE_OPTIONS_INIT;
    long n = 1, refused = 0;
    opts.base_url = url;
    opts.api_key = "tml-0123456789abcdef";
    opts.telemetry.enabled = -1;
    opts.subprocess_sampling = 1;
    opts.sampling_helper = "/proc/self/exe";
    runtime_use_clock(NULL);
    tinker_service *service = tinker_service_new(&opts, &err);
    for (bool failed = true; failed && n < MOST; n += STRIDE) {
        tinker_sampler *s = tinker_service_create_sampler(service, "tiny", NULL, WAIT_MS, &err);
        REQUIRE(s != NULL);
        alarm(60);
        failmalloc_at(n);
        tinker_status status = finish(tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &err));
        failed = failmalloc_stop();
        refused += status == TINKER_ENOMEM;
        if (status != TINKER_ENOMEM && status != TINKER_OK)
            TAP_FAIL("helper, allocation %ld: %s: %s", n, tinker_status_name(status), err.message);
        tinker_sampler_free(s);
    }
    alarm(0);
    tinker_service_free(service);
    CHECK(n < MOST && refused > 0);
    printf("# helper: %ld allocations, %ld refused\n", n - 1, refused);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "sampling-helper") == 0)
        return tinker_sampling_helper();
    pid_t child = serve();
    unsetenv("TINKER_API_KEY");
    runtime_use_clock(&fast);
    RUN(test_training_without_memory);
    RUN(test_sampling_without_memory);
    RUN(test_rest_without_memory);
    RUN(test_options_without_memory);
    RUN(test_callbacks_without_memory);
    RUN(test_transport_without_memory);
    RUN(test_helper_without_memory);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return tap_done();
}
