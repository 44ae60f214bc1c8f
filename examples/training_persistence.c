/* training_persistence.c - go on from a saved state, with and without the optimizer.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local training_persistence [model]
 *
 * Trains four steps, saves for an hour after the second, then takes the last two again in new
 * clients: made from the state with its optimizer, made fresh and loaded, and made from the weights
 * alone.  The first two repeat the run exactly; the third starts Adam's averages afresh. */
#include "example.h"

enum { ROWS = 4 };

static struct row rows[ROWS];
static tinker_datum data[ROWS];

/* Two steps and a look; returns the loss after them. */
static double two_steps(tinker_training *t, const char *what)
{
    double a = train_step(t, data, ROWS), b = train_step(t, data, ROWS);
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_future *pass = await(tinker_training_forward(t, data, ROWS, &loss, &err), "forward");
    double after = loss_of(pass) / (ROWS * ROW);
    tinker_future_free(pass);
    printf("%-24s %.6f %.6f %.6f\n", what, a, b, after);
    return after;
}

int main(int argc, char **argv)
{
    const char *model = model_name(argc, argv);
    for (int i = 0; i < ROWS; i++)
        data[i] = counting(&rows[i], 11 * i, 1);
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *t =
        need(tinker_service_create_lora(service, model, NULL, MINUTE_MS, &err), "training client");
    double second = two_steps(t, "steps 1 and 2");
    tinker_save_options hour = TINKER_SAVE_OPTIONS_INIT;
    hour.ttl_seconds = 3600;
    tinker_future *save = await(tinker_training_save_state(t, "second", &hour, &err), "save");
    const char *path = tinker_future_saved_path(save);
    double first_time = two_steps(t, "steps 3 and 4");

    tinker_from_state_options from = TINKER_FROM_STATE_OPTIONS_INIT;
    from.optimizer = 1;
    tinker_training *made =
        need(tinker_service_create_from_state(service, path, &from, MINUTE_MS, &err), "new client");
    double again = two_steps(made, "made from the state");

    tinker_training *loaded =
        need(tinker_service_create_lora(service, model, NULL, MINUTE_MS, &err), "training client");
    finish(tinker_training_load_state(loaded, path, 1, NULL, &err), "load state");
    double elsewhere = two_steps(loaded, "made fresh and loaded");

    from.optimizer = 0;
    tinker_training *weights =
        need(tinker_service_create_from_state(service, path, &from, MINUTE_MS, &err), "new client");
    double weights_only = two_steps(weights, "weights only");

    expect(first_time < second, "training helps");
    expect(again == first_time && elsewhere == first_time, "the state repeats the run exactly");
    expect(weights_only != first_time, "without the optimizer the steps differ");
    puts("both states repeat the run exactly");

    /* A model that has learnt something since is not loaded over: make a new client instead. */
    tinker_future *f =
        tinker_future_await(tinker_training_load_state(t, path, 1, NULL, &err), MINUTE_MS, &err);
    expect(!f && err.status == TINKER_EHTTP, "a used client refuses");
    printf("loading into a used client: status %d\n", err.http_status);
    tinker_training_free(weights);
    tinker_training_free(loaded);
    tinker_training_free(made);
    tinker_future_free(save);
    tinker_training_free(t);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
