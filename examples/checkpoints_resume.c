/* checkpoints_resume.c - save training state, and continue from it in a new client.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local checkpoints_resume [model]
 *
 * With the optimizer's state the continued run takes the same next step as the first. */
#include "example.h"

static double train(tinker_training *t, const char *who)
{
    struct row row;
    tinker_datum datum = counting(&row, 0, 1);
    double loss = train_step(t, &datum, 1);
    printf("%-9s loss %.6f\n", who, loss);
    return loss;
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_training *first =
        need(tinker_service_create_lora(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "training client");
    train(first, "first");

    tinker_save_options keep = TINKER_SAVE_OPTIONS_INIT;
    keep.ttl_seconds = 3600;
    keep.overwrite = 1;
    tinker_future *save = await(tinker_training_save_state(first, "step-1", &keep, &err), "save");
    printf("saved     %s\n", tinker_future_saved_path(save));

    tinker_from_state_options from = TINKER_FROM_STATE_OPTIONS_INIT;
    from.optimizer = 1;
    tinker_training *second =
        need(tinker_service_create_from_state(service, tinker_future_saved_path(save), &from,
                                              MINUTE_MS, &err),
             "new client");
    double here = train(first, "first"), there = train(second, "continued");
    expect(here == there, "both take the same step");

    tinker_future_free(save);
    tinker_training_free(second);
    tinker_training_free(first);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
