/* checkpoints_resume.c - save training state, and continue from it in a new client.
 *
 * With the optimiser's state the continued run takes the same next step as the first. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/tinker.h>

static int train(tinker_training *t, const char *who, tinker_error *err)
{
    int32_t tokens[] = { 20, 21, 22, 23, 24, 25 };
    int64_t targets[] = { 21, 22, 23, 24, 25, 26 };
    tinker_chunk text = { .tokens = tokens, .n_tokens = 6 };
    tinker_named_tensor target = { "target_tokens",
                                   { .dtype = TINKER_INT64, .data = targets, .n = 6 } };
    tinker_datum datum = { { &text, 1 }, &target, 1 };
    tinker_loss loss = { "cross_entropy", NULL, 0 };
    tinker_future *both[2] = { tinker_training_forward_backward(t, &datum, 1, &loss, err), NULL };
    both[1] = both[0] ? tinker_training_optim_step(t, NULL, err) : NULL;
    int ok = both[1] && tinker_future_wait_all(both, 2, 120000, err) == TINKER_OK;
    if (ok) {
        const tinker_forward_backward *r = tinker_future_forward_backward(both[0]);
        printf("%-9s loss %.6f\n", who, tinker_metric(r->metrics, r->n_metrics, "loss:sum", -1));
    }
    tinker_future_free(both[0]);
    tinker_future_free(both[1]);
    return ok;
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "tinker/tiny";
    tinker_error err;
    tinker_service *service = tinker_service_new(NULL, &err);
    tinker_training *first =
        service ? tinker_service_create_lora(service, model, NULL, 60000, &err) : NULL;
    tinker_training *second = NULL;
    tinker_future *save = NULL;
    tinker_save_options keep = TINKER_SAVE_OPTIONS_INIT;
    keep.ttl_seconds = 3600;
    keep.overwrite = 1;

    int ok = first && train(first, "first", &err) &&
             (save = tinker_training_save_state(first, "step-1", &keep, &err)) != NULL &&
             tinker_future_wait(save, 120000, &err) == TINKER_OK;
    if (ok) {
        printf("saved     %s\n", tinker_future_path(save));
        tinker_from_state from = TINKER_FROM_STATE_INIT;
        from.optimizer = 1;
        second = tinker_service_create_from_state(service, tinker_future_path(save), &from, 120000,
                                                  &err);
    }
    ok = ok && second && train(first, "first", &err) && train(second, "continued", &err);
    if (!ok)
        fprintf(stderr, "checkpoints_resume: %s\n", err.message);
    tinker_future_free(save);
    tinker_training_free(second);
    tinker_training_free(first);
    tinker_service_free(service);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
