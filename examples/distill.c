/* distill.c - a student learns the probabilities of a teacher.
 *
 * The teacher is the base model after some steps of fine-tuning; a fresh student sees nothing of
 * its data but the likeliest tokens at every position, and comes to agree with it. */
#include <stdio.h>
#include <stdlib.h>
#include <tinker/recipe.h>

enum { STEPS = 20, TOP = 20, MINUTE_MS = 60000 };

static tinker_error err;

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "distill: %s\n", err.message);
        exit(1);
    }
    return p;
}

int main(int argc, char **argv)
{
    tinker_rows_options how = TINKER_ROWS_OPTIONS_INIT;
    tinker_adam adam = TINKER_ADAM_RECIPE;
    adam.learning_rate = 1e-3;
    tinker_recipe *master = need(tinker_recipe_open(NULL, &err));
    tinker_rows *rows = need(tinker_rows_load(argc > 1 ? argv[1] : "examples/data/greetings.jsonl",
                                              master->renderer, master->tokenizer, &how, &err));
    size_t n, m;
    const tinker_datum *data = tinker_rows_batch(rows, 0, 0, &n);
    for (int i = 0; i < STEPS; i++)
        if (tinker_recipe_step(master, data, n, NULL, &adam, NULL, &err) != TINKER_OK)
            need(NULL);
    tinker_sampler *teacher =
        need(tinker_training_create_sampler(master->training, MINUTE_MS, &err));
    tinker_topk_data *top = need(tinker_topk_targets(teacher, data, n, TOP, MINUTE_MS, &err));
    const tinker_datum *targets = tinker_topk_datums(top, &m);
    double positions = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < data[i].inputs[1].tensor.n; k++)
            positions += ((const float *)data[i].inputs[1].tensor.data)[k] != 0;

    tinker_recipe_options o = TINKER_RECIPE_OPTIONS_INIT;
    o.service = master->service;
    tinker_recipe *student = need(tinker_recipe_open(&o, &err));
    for (int i = 0; i < STEPS; i++) {
        tinker_step step;
        if (tinker_recipe_step(student, targets, m, NULL, &adam, &step, &err) != TINKER_OK)
            need(NULL);
        double loss = tinker_metric(step.loss_metrics, step.n_loss_metrics, "loss:sum") / positions;
        printf("step %2d  cross-entropy %.4f  kl to the teacher %.4f\n", i + 1, loss,
               loss - tinker_topk_entropy(top));
    }
    tinker_topk_free(top);
    tinker_sampler_free(teacher);
    tinker_rows_free(rows);
    tinker_recipe_close(student);
    tinker_recipe_close(master);
    return 0;
}
