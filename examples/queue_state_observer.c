/* queue_state_observer.c - why a request waits, as the service tells it.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local queue_state_observer [model]
 *
 * While a request waits at the service, the answers to its polls say in which state its queue is
 * and why.  A machine of one's own is rarely short of anything, so the first polls are answered
 * here, by intercept.h.  The observer runs on a thread of the library that does nothing else. */
#include "intercept.h"
#include <stdatomic.h>

static const char *const names[] = { "unknown", "active", "paused: capacity",
                                     "paused: rate limit" };

struct seen {
    atomic_int capacity, rate_limit;
};

static int pause_first(void *state, const char *request, char *out, size_t size)
{
    static const char *const states[] = { "paused_capacity", "paused_capacity",
                                          "paused_rate_limit" };
    atomic_int *polls = state;
    if (!strstr(request, "/retrieve_future"))
        return 0;
    int i = atomic_fetch_add(polls, 1);
    if (i >= 3)
        return 0;
    snprintf(out, size,
             "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":\"%s\","
             "\"queue_state_reason\":\"%s (simulated)\"}",
             states[i], i < 2 ? "all machines are busy" : "too many requests of this account");
    return 408;
}

static void on_queue(const char *who, tinker_queue_state q, const char *reason, void *state)
{
    struct seen *seen = state;
    (void)who; /* the id of the model or sampler */
    printf("%s%s%s\n", names[q], *reason ? ", " : "", reason);
    atomic_fetch_add(&seen->capacity, q == TINKER_QUEUE_PAUSED_CAPACITY);
    atomic_fetch_add(&seen->rate_limit, q == TINKER_QUEUE_PAUSED_RATE_LIMIT);
}

/* The library also warns in its log, at most once a minute for each client. */
static void on_log(tinker_log_level level, const char *line, void *state)
{
    (void)state;
    if (level == TINKER_LOG_WARNING && strstr(line, "paused"))
        printf("log: %s\n", line);
}

int main(int argc, char **argv)
{
    static struct intercept proxy;
    static atomic_int polls;
    struct seen seen = { 0 };
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    o.observation.log = on_log;
    tinker_service *service = intercept(&proxy, pause_first, &polls, &o);
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");
    tinker_service_observe(service, on_queue, 1, &seen); /* changes only */

    int32_t prompt[] = { 10, 11, 12 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 3 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 8;
    tinker_future *f = await(tinker_sampler_sample(s, &input, &params, NULL, &err), "sample");
    for (int i = 0; i < 500 && !atomic_load(&seen.rate_limit); i++)
        sleep_ms(10);                               /* what is told may arrive after the result */
    tinker_service_observe(service, NULL, 0, NULL); /* from here on it is not called */
    printf("%zu tokens after %d polls\n", tinker_future_sample(f)->sequences[0].n,
           atomic_load(&polls));
    expect(seen.capacity == 1 && seen.rate_limit == 1, "each change is told once");

    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
