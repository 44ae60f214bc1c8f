/* recovery_simulated.c - the service says that a training run is corrupted; go on from its last
 * checkpoint.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local recovery_simulated [model]
 *
 * Only the bad news is made up: intercept.h tells the watcher once that the run is corrupted.  The
 * new client, its weights and its optimizer are real.  A second run has no checkpoint and cannot
 * be saved; the program is told that, too.  recovery_live.sh has a server that really crashes. */
#include "intercept.h"
#include <stdatomic.h>
#include <tinker/extra/events.h>
#include <tinker/extra/recovery.h>

struct news {
    char run[256], checkpoint[512]; /* what the made-up answer says */
    atomic_int begin, asked, failed;
    _Atomic(tinker_training *) recovered;
};

/* The answer to "how is run …?" while there is bad news. */
static int bad_news(void *state, const char *request, char *out, size_t size)
{
    struct news *n = state;
    if (!atomic_load(&n->begin) || strncmp(request, "GET ", 4) != 0 ||
        !strstr(request, "/training_runs/"))
        return 0;
    if (atomic_fetch_add(&n->asked, 1) > 0)
        return 0; /* only once: what is asked later gets the truth */
    snprintf(out, size,
             "{\"training_run_id\":\"%s\",\"base_model\":\"m\",\"model_owner\":\"me\","
             "\"is_lora\":true,\"corrupted\":true,\"last_request_time\":\"2026-01-01T00:00:00Z\","
             "\"last_checkpoint\":{\"checkpoint_id\":\"%s\",\"checkpoint_type\":\"training\","
             "\"time\":\"2026-01-01T00:00:00Z\",\"tinker_path\":\"%s\"}}",
             n->run, strstr(n->checkpoint, "weights/"), n->checkpoint);
    return 200;
}

/* Both run on a thread of the library; the client is handed over to main. */
static void on_recovery(const char *run, tinker_training *old, tinker_training *new,
                        const char *checkpoint, void *state)
{
    struct news *n = state;
    (void)run, (void)old;
    printf("recovered from %s\n", strstr(checkpoint, "weights/"));
    atomic_store(&n->recovered, new);
}
static void on_failure(const char *run, const tinker_error *reason, void *state)
{
    struct news *n = state;
    (void)run;
    printf("not recovered: %s\n", reason->message);
    atomic_store(&n->failed, 1);
}

static int on_event(const tinker_event *event, void *state)
{
    (void)state;
    printf("event %s\n", event->name);
    return 0;
}

int main(int argc, char **argv)
{
    static struct intercept proxy;
    static struct news news;
    struct row row;
    tinker_datum datum = counting(&row, 0, 1);
    const char *model = model_name(argc, argv);
    tinker_service *service = intercept(&proxy, bad_news, &news, NULL);
    tinker_training *t =
        need(tinker_service_create_lora(service, model, NULL, MINUTE_MS, &err), "training client");
    tinker_training *bare =
        need(tinker_service_create_lora(service, model, NULL, MINUTE_MS, &err), "training client");
    if (tinker_service_attach(service, "story", "recovery.", on_event, NULL, &err) != TINKER_OK)
        die("hook");
    train_step(t, &datum, 1);
    tinker_future *save = await(tinker_training_save_state(t, "one", NULL, &err), "save");
    double at_save = train_step(t, &datum, 1);

    tinker_recovery_options policy = TINKER_RECOVERY_OPTIONS_INIT;
    policy.enabled = 1;
    policy.max_attempts = 2;
    policy.backoff_ms = 50;
    policy.poll_interval_ms = 100;
    policy.on_recovery = on_recovery;
    policy.on_failure = on_failure;
    policy.state = &news;
    tinker_recovery *r = need(tinker_recovery_new(service, &policy, &err), "recovery");
    snprintf(news.run, sizeof(news.run), "%s", tinker_training_model_id(t));
    snprintf(news.checkpoint, sizeof(news.checkpoint), "%s", tinker_future_saved_path(save));
    atomic_store(&news.begin, 1);
    if (tinker_recovery_watch(r, news.run, t, &err) != TINKER_OK)
        die("watch");
    for (int i = 0; i < 500 && !atomic_load(&news.recovered); i++)
        sleep_ms(10); /* a real program trains here */
    tinker_training *new = atomic_load(&news.recovered);
    expect(new != NULL, "the run is recovered");
    double again = train_step(new, &datum, 1);
    printf("loss %.6f then, %.6f now\n", at_save, again);
    expect(again == at_save, "it goes on exactly where the checkpoint was");

    if (tinker_recovery_start(r, tinker_training_model_id(bare), NULL, bare, &err) != TINKER_OK)
        die("start");
    for (int i = 0; i < 500 && !atomic_load(&news.failed); i++)
        sleep_ms(10);
    expect(atomic_load(&news.failed), "a run without a checkpoint cannot be recovered");
    tinker_recovery_free(r);
    tinker_future_free(save);
    tinker_training_free(new);
    tinker_training_free(bare);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
