/* recovery_live.c - train through a crash that loses the model: see recovery_live.sh.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local recovery_live [model]
 *
 * Takes eight steps and saves after every second one.  A step that fails means trouble; the program
 * then waits for the recovery, which has been watching the run, to hand it a new client, and goes
 * on from the step of the checkpoint.  Without a crash it simply takes its steps. */
#include "example.h"
#include <stdatomic.h>
#include <string.h>
#include <tinker/extra/recovery.h>

enum { STEPS = 8 };

struct handover {
    _Atomic(tinker_training *) client;
    int step; /* of the checkpoint; written before client */
};

static void on_recovery(const char *run, tinker_training *old, tinker_training *new,
                        const char *checkpoint, void *state)
{
    struct handover *h = state;
    (void)run, (void)old;
    h->step = (int)strtol(strrchr(checkpoint, '-') + 1, NULL, 10); /* "…/step-4" */
    printf("recovered from step %d\n", h->step);
    atomic_store(&h->client, new);
}

/* As train_step(), but a failure is an answer.  A run that is being recovered fails for good, with
 * 404 or as a failed request; connection errors in between are tried again by the library. */
static tinker_status try_step(tinker_training *t, const tinker_datum *datum, double *loss)
{
    tinker_loss plain = { .name = "cross_entropy" };
    tinker_future *f[2] = { tinker_training_forward_backward(t, datum, 1, &plain, &err), NULL };
    f[1] = f[0] ? tinker_training_optim_step(t, NULL, &err) : NULL;
    tinker_status status = f[1] ? tinker_future_wait_all(f, 2, MINUTE_MS, &err) : err.status;
    if (status == TINKER_OK)
        *loss = loss_of(f[0]) / ROW;
    tinker_future_free(f[0]);
    tinker_future_free(f[1]);
    return status;
}

static tinker_training *wait_for(struct handover *h)
{
    for (int i = 0; i < 1500; i++, sleep_ms(20)) {
        tinker_training *t = atomic_exchange(&h->client, NULL);
        if (t)
            return t;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct handover handover = { .client = NULL };
    struct row row;
    tinker_datum datum = counting(&row, 0, 1);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");
    tinker_recovery_options policy = TINKER_RECOVERY_OPTIONS_INIT;
    policy.enabled = 1;
    policy.max_attempts = 5;
    policy.backoff_ms = 200;
    policy.poll_interval_ms = 200;
    policy.on_recovery = on_recovery;
    policy.state = &handover;
    tinker_recovery *r = need(tinker_recovery_new(service, &policy, &err), "recovery");
    if (tinker_recovery_watch(r, tinker_training_model_id(t), t, &err) != TINKER_OK)
        die("watch");

    for (int step = 1, recoveries = 0; step <= STEPS; step++) {
        double loss;
        if (try_step(t, &datum, &loss) != TINKER_OK) {
            printf("step %d failed: %s\n", step, err.message);
            expect(++recoveries <= 3, "a run is not lost over and over");
            tinker_training *new = need(wait_for(&handover), "recovery");
            tinker_training_free(t);
            t = new;
            step = handover.step;
            if (tinker_recovery_watch(r, tinker_training_model_id(t), t, &err) != TINKER_OK)
                die("watch");
            continue;
        }
        printf("step %d  loss %.6f\n", step, loss);
        if (step % 2 == 0) {
            char name[32];
            snprintf(name, sizeof(name), "step-%d", step);
            tinker_future *save = tinker_future_await(
                tinker_training_save_state(t, name, NULL, &err), MINUTE_MS, &err);
            printf("%s %s\n", save ? "saved" : "not saved:", save ? name : err.message);
            tinker_future_free(save); /* when the model is lost the next step will tell */
        }
        fflush(stdout);
        sleep_ms(200); /* a larger model takes longer than that */
    }
    tinker_recovery_free(r);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
