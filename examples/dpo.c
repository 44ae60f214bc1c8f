/* dpo.c - preferences: of two answers to a question, the better one becomes likelier.
 *
 * The reference is the base model, which the adapter begins as; its logprobs are asked once. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/recipe.h>

enum { STEPS = 12 };

int main(int argc, char **argv)
{
    tinker_error err = { 0 };
    tinker_rows_options how = TINKER_ROWS_OPTIONS_INIT;
    tinker_adam adam = TINKER_ADAM_RECIPE;
    tinker_dpo dpo = TINKER_DPO_INIT;
    const char *file = argc > 1 ? argv[1] : "examples/data/pairs.jsonl";
    adam.learning_rate = 1e-3;
    tinker_recipe *r = tinker_recipe_open(NULL, &err);
    tinker_rows *rows = r ? tinker_rows_load(file, r->renderer, r->tokenizer, &how, &err) : NULL;
    tinker_sampler *base =
        rows ? tinker_service_create_sampler(r->service, r->model, NULL, 60000, &err) : NULL;
    size_t n = 0;
    const tinker_datum *data = base ? tinker_rows_batch(rows, 0, 0, &n) : NULL;
    float **reference = data ? tinker_reference_logprobs(base, data, n, 60000, &err) : NULL;
    if (!reference)
        return fprintf(stderr, "dpo: %s\n", err.message), 1;
    dpo.reference = reference;
    for (int i = 0; i < STEPS; i++) {
        tinker_step step;
        if (tinker_recipe_submit_custom(r, data, n, tinker_loss_preference, &dpo, &adam, &err) !=
                TINKER_OK ||
            tinker_recipe_next(r, &step, &err) != TINKER_OK)
            return fprintf(stderr, "dpo: %s\n", err.message), 1;
        printf("step %2d  loss %.4f  accuracy %.2f  margin %.2f\n", i + 1,
               tinker_metric(step.loss_metrics, step.n_loss_metrics, "dpo_loss"),
               tinker_metric(step.loss_metrics, step.n_loss_metrics, "accuracy"),
               tinker_metric(step.loss_metrics, step.n_loss_metrics, "margin"));
    }
    free(reference);
    tinker_sampler_free(base);
    tinker_rows_free(rows);
    tinker_recipe_close(r);
    return 0;
}
