/* retry_and_capture.c - trying again: what the library does by itself, and for code of yours.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local retry_and_capture [model]
 *
 * A sample is submitted through a proxy (intercept.h) that refuses it once with status 503: the
 * library tries again and the program sees only the result.  tinker_retry() gives a function of
 * one's own the same manners.  What fails in the end is reported with the session's telemetry. */
#include "intercept.h"
#include <stdatomic.h>
#include <tinker/extra/events.h>

static int refuse_once(void *state, const char *request, char *out, size_t size)
{
    atomic_int *submissions = state;
    if (!strstr(request, "/asample") || atomic_fetch_add(submissions, 1) >= 1)
        return 0;
    snprintf(out, size, "{\"detail\":\"overloaded (simulated)\"}");
    return 503;
}

/* A hook sees what is tried again; see events.h for the names. */
static int on_event(const tinker_event *event, void *state)
{
    atomic_int *retries = state;
    printf("%s: again in %g ms\n", tinker_event_text(event, "operation"),
           tinker_metric(event->measurements, event->n_measurements, "delay_ms"));
    atomic_fetch_add(retries, 1);
    return 0;
}

/* Code of yours: works at the third attempt. */
static tinker_status flaky(int attempt, tinker_error *e, void *state)
{
    int *calls = state;
    ++*calls;
    if (attempt >= 2)
        return TINKER_OK;
    *e = (tinker_error){ .status = TINKER_EHTTP, .http_status = 500, .retryable = 1 };
    snprintf(e->message, sizeof(e->message), "attempt %d failed", attempt);
    return e->status;
}

/* An error that the request is guilty of is not tried again. */
static tinker_status hopeless(int attempt, tinker_error *e, void *state)
{
    (void)attempt;
    ++*(int *)state;
    *e = (tinker_error){ .status = TINKER_EHTTP, .http_status = 422 };
    snprintf(e->message, sizeof(e->message), "this can never work");
    return e->status;
}

static size_t sample(tinker_sampler *s)
{
    int32_t prompt[] = { 10, 11, 12 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 3 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 8;
    tinker_future *f = await(tinker_sampler_sample(s, &input, &params, NULL, &err), "sample");
    size_t n = tinker_future_sample(f)->sequences[0].n;
    tinker_future_free(f);
    return n;
}

int main(int argc, char **argv)
{
    static struct intercept proxy;
    static atomic_int submissions, retries;
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.telemetry.enabled = 1;
    tinker_service *service = intercept(&proxy, refuse_once, &submissions, &o);
    if (tinker_service_attach(service, "retries", "retry.attempt.retry", on_event, &retries,
                              &err) != TINKER_OK)
        die("hook");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");
    size_t tokens = sample(s);
    printf("%zu tokens after %d submissions\n", tokens, atomic_load(&submissions));
    expect(atomic_load(&submissions) == 2, "the second submission is accepted");
    expect(atomic_load(&retries) == 1, "the hook saw one retry");

    int calls = 0, hopeless_calls = 0;
    tinker_retry_options quick = TINKER_RETRY_OPTIONS_INIT;
    quick.delay_base_ms = 20;
    quick.jitter = 0;
    quick.max_retries = 5;
    if (tinker_retry(flaky, &calls, &quick, &err) != TINKER_OK)
        die("flaky");
    printf("flaky: worked at call %d\n", calls);
    if (tinker_retry(hopeless, &hopeless_calls, &quick, &err) != TINKER_OK) {
        printf("hopeless: %s, after %d call\n", err.message, hopeless_calls);
        tinker_service_log_error(service, &err, 0); /* capture it, and go on */
    }
    expect(calls == 3 && hopeless_calls == 1, "retries help where they can, and only there");
    int drained = tinker_service_flush_telemetry(service, 5000);
    printf("captured: %s\n", drained ? "delivered" : "not delivered");

    tinker_sampler_free(s);
    tinker_service_free(service);
    return drained ? EXIT_SUCCESS : EXIT_FAILURE;
}
