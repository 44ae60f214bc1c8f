/* telemetry_demo.c - events of your own in the session's telemetry, errors, and the end of it.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local telemetry_demo [model]
 *
 * Telemetry goes to the service in batches, beside everything else, and never delays a result.
 * To show what leaves the machine the program looks at it on the way, with intercept.h.
 * TINKER_TELEMETRY=0 or `telemetry = -1` turns all of it off. */
#include "intercept.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Count what passes: how often each kind of event is named. */
static const char *const kinds[] = { "SESSION_START",       "checkpoint_reached", "\"loss\"",
                                     "UNHANDLED_EXCEPTION", "SESSION_END",        "tml-local" };
enum { START, CUSTOM, DATA, EXCEPTION, END, SECRET, KINDS };

static int look(void *state, const char *request, char *out, size_t size)
{
    int *counts = state;
    (void)out, (void)size;
    const char *body = strstr(request, "\r\n\r\n"); /* the key is in a header, where it belongs */
    if (!strstr(request, "/telemetry") || !body)
        return 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KINDS; i++)
        for (const char *p = body; (p = strstr(p, kinds[i])) != NULL; p++)
            counts[i]++;
    pthread_mutex_unlock(&lock);
    return 0; /* let it pass */
}

int main(int argc, char **argv)
{
    static struct intercept proxy;
    static int counts[KINDS];
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    tinker_named_string who = { "experiment", "telemetry demo" };
    o.telemetry.enabled = 1;
    o.user_metadata = &who;
    o.n_user_metadata = 1;
    tinker_service *service = intercept(&proxy, look, counts, &o);
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client"); /* opens the session */

    struct row row;
    tinker_datum datum = counting(&row, 0, 1);
    for (int i = 1; i <= 3; i++) {
        char json[64];
        snprintf(json, sizeof(json), "{\"step\":%d,\"loss\":%.4f}", i, train_step(t, &datum, 1));
        expect(tinker_service_log_event(service, "checkpoint_reached", json, TINKER_SEVERITY_INFO),
               "an event is queued");
    }
    expect(!tinker_service_log_event(service, "bad", "not JSON", TINKER_SEVERITY_INFO),
           "what is not a JSON object is refused");

    /* An error of the program; 1 instead of 0 would also end the session. */
    tinker_error mine = { .status = TINKER_ESTATE };
    snprintf(mine.message, sizeof(mine.message), "the reward function gave NaN for key %s",
             "tml-local-0123456789abcdef0123456789");
    tinker_service_log_error(service, &mine, 0);
    int drained = tinker_service_flush_telemetry(service, 5000);
    tinker_training_free(t);
    tinker_service_free(service); /* sends the end of the session */

    for (int i = 0; i < KINDS; i++)
        printf("%-20s %d\n", kinds[i], counts[i]);
    printf("drained: %s\n", drained ? "yes" : "no");
    expect(drained && counts[CUSTOM] == 3 && counts[DATA] == 3, "all events arrived");
    expect(counts[EXCEPTION] == 1 && counts[START] == 1 && counts[END] == 1,
           "so did the error, and the ends of the session");
    expect(counts[SECRET] == 0, "keys are redacted");
    return EXIT_SUCCESS;
}
