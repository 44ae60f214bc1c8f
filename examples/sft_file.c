/* sft_file.c - supervised fine-tuning on a file of conversations: sft_file mine.jsonl */
#include <stdio.h>
#include <tinker/recipe.h>

enum { BATCH = 8, EPOCHS = 3 };

int main(int argc, char **argv)
{
    tinker_error err = { 0 };
    tinker_rows_options how = TINKER_ROWS_OPTIONS_INIT;
    tinker_adam adam = TINKER_ADAM_RECIPE;
    how.batch_size = BATCH;
    tinker_recipe *r = tinker_recipe_open(NULL, &err);
    const char *file = argc > 1 ? argv[1] : "examples/data/greetings.jsonl";
    tinker_rows *rows = r ? tinker_rows_load(file, r->renderer, r->tokenizer, &how, &err) : NULL;
    if (!rows)
        return fprintf(stderr, "sft: %s\n", err.message), 1;
    size_t per_epoch = tinker_rows_batches(rows), total = EPOCHS * per_epoch;
    for (size_t i = 0, n; i < total; i++) {
        const tinker_datum *data = tinker_rows_batch(rows, i / per_epoch, i % per_epoch, &n);
        tinker_step step;
        adam.learning_rate = 1e-3 * tinker_lr_multiplier(TINKER_LR_LINEAR, i, total, 0);
        if (tinker_recipe_step(r, data, n, NULL, &adam, &step, &err) != TINKER_OK)
            return fprintf(stderr, "step %zu: %s\n", i, err.message), 1;
        printf("step %zu/%zu  loss %.6f\n", i + 1, total, step.nll);
    }
    const char *path = tinker_recipe_save(r, "final", 0, NULL, &err);
    printf("%s\n", path ? path : err.message);
    tinker_rows_free(rows);
    tinker_recipe_close(r);
    return !path;
}
