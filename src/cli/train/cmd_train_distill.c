/* cmd_train_distill.c - `tinker train distill`: what another model says.
 *
 * Off-policy the rows have answers, and the student learns the teacher's probabilities of the
 * likeliest tokens at each of their positions.  On-policy the student answers itself, and the
 * teacher judges every token: see train_rl.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/train/train_eval.h"
#include "cli/train/train_rl.h"

/* A teacher is often a far larger model than the student: half an hour per request only catches
 * a service that died. */

struct distill {
    struct trainer t;
    tinker_rows *rows;
    struct train_eval eval;
    tinker_sampler *teacher;
};

/* Rows are used in the order of the first shuffle; there are no epochs in the cookbook, further
 * ones of ours repeat that order. */
static int settle_order(struct distill *x)
{
    tinker_rows_stats s = tinker_rows_count(x->rows);
    size_t *order = calloc(s.rows + 1, sizeof(*order));
    tinker_error err;
    if (!order)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    for (size_t i = 0; i < s.rows; i++)
        order[i] = i;
    if (strcmp(x->t.o.shuffle_seed, "none") != 0)
        tinker_permutation(strtoull(x->t.o.shuffle_seed, NULL, 10), s.rows, order);
    /* The test rows are the first ones of the shuffled order, as in the cookbook; training uses
     * the rest. */
    tinker_status status = tinker_rows_set_order(x->rows, order + s.test_rows, s.train_rows, &err);
    free(order);
    return status == TINKER_OK ? EXIT_OK : out_fail(EXIT_DATA, NULL, "%s", err.message);
}

/* Everything that can be wrong with the file shows here, before a model is made.  An epoch is
 * one pass over the training rows; --max-steps may end the run in the middle of one. */
static int prepare_answers(struct distill *x)
{
    struct trainer *t = &x->t;
    tinker_rows_options o;
    int status = trainer_rows_options(t, &o);
    if (status == EXIT_OK)
        status = trainer_load(t, t->o.data, &o, &x->rows);
    if (status == EXIT_OK)
        status = settle_order(x);
    if (status == EXIT_OK)
        status = train_eval_open(&x->eval, t, x->rows);
    if (status != EXIT_OK)
        return status;
    tinker_rows_stats s = tinker_rows_count(x->rows);
    memcpy(t->data_sha256, s.sha256, sizeof(s.sha256));
    t->per_epoch = tinker_rows_batches(x->rows);
    t->total = t->per_epoch * (size_t)t->o.epochs;
    if (t->o.max_steps >= 0 && (size_t)t->o.max_steps < t->total)
        t->total = (size_t)t->o.max_steps;
    char what[128];
    size_t batch = (size_t)t->o.batch_size < s.train_rows ? (size_t)t->o.batch_size : s.train_rows;
    train_view_say(&t->view, "data", "%s  %zu train, %zu test  longest %zu  dropped %zu", t->o.data,
                   s.train_rows, x->eval.n, s.longest, s.dropped);
    snprintf(what, sizeof(what), "%zu steps of %zu rows  top %lld of %.60s", t->total, batch,
             (long long)t->o.topk, t->o.teacher);
    return trainer_plan(t, what);
}

/* The loss is a sum over positions of the cross-entropy to the teacher; per position it is at
 * least the teacher's entropy, and what is above that is the KL. */
static int train_batch(struct distill *x, size_t i)
{
    struct trainer *t = &x->t;
    int64_t begin = clock_now_ns(clock_real());
    tinker_error err;
    tinker_step r;
    size_t n, m;
    const tinker_datum *data = tinker_rows_batch(x->rows, i / t->per_epoch, i % t->per_epoch, &n);
    tinker_topk_data *top =
        tinker_topk_targets(x->teacher, data, n, (size_t)t->o.topk, trainer_wait_ms(), &err);
    if (!top)
        return trainer_fail(t, &err);
    /* The rows' weights say where the student is taught: position p counts when weights[p] is
     * not 0. inputs[1] is "weights" in every row of recipe.h. */
    double positions = 0;
    for (size_t k = 0; k < n; k++) {
        const float *w = data[k].inputs[1].tensor.data;
        for (size_t p = 0; p < data[k].inputs[1].tensor.n; p++)
            positions += w[p] != 0;
    }
    tinker_adam adam = t->adam;
    adam.learning_rate = trainer_rate(t, i);
    const tinker_datum *targets = tinker_topk_datums(top, &m);
    tinker_status done = tinker_recipe_step(t->recipe, targets, m, NULL, &adam, &r, &err);
    double entropy = tinker_topk_entropy(top);
    tinker_topk_free(top);
    if (done != TINKER_OK)
        return trainer_fail(t, &err);
    /* KL(teacher || student) = H(teacher, student) - H(teacher). The service reports the
     * cross-entropy as a sum; the teacher's entropy over its renormalized top k was computed
     * when the targets were made. */
    double loss = tinker_metric(r.loss_metrics, r.n_loss_metrics, "loss:sum") / positions;
    trainer_metric(t, "batch_size", (double)n);
    trainer_metrics_all(t, "train/", r.loss_metrics, r.n_loss_metrics);
    trainer_metrics_all(t, "", r.metrics, r.n_metrics);
    trainer_metric(t, "distill/cross_entropy", loss);
    trainer_metric(t, "distill/teacher_entropy", entropy);
    trainer_metric(t, "teacher_kl", loss - entropy);
    trainer_metric(t, "time/total", (double)(clock_now_ns(clock_real()) - begin) / 1e9);
    char numbers[48];
    snprintf(numbers, sizeof(numbers), "kl to teacher %.3f", loss - entropy);
    int status = trainer_log(t, i);
    if (status == EXIT_OK)
        status = trainer_check_loss(t, i, loss);
    if (status == EXIT_OK)
        train_view_step(&t->view, i + 1, t->total, t->start, "loss", loss, numbers,
                        adam.learning_rate, r.tokens);
    return status;
}

/* Checkpoints first, then the evaluation, then the step: a checkpoint named i holds exactly i
 * updates, and the evaluation at i judges those same weights. */
static int run_batches(struct distill *x)
{
    struct trainer *t = &x->t;
    size_t i = t->start;
    int status = EXIT_OK;
    x->teacher = trainer_sampler_on(t, t->o.teacher, &status);
    for (; status == EXIT_OK && i < t->total && !trainer_stopping(); i++) {
        status = trainer_save_due(t, i);
        if (status == EXIT_OK)
            status = trainer_save_finish(t);
        trainer_metric(t, "progress/done_frac", (double)(i + 1) / (double)t->total);
        trainer_metric(t, "optim/lr", trainer_rate(t, i));
        if (status == EXIT_OK && train_eval_due(&x->eval, t, i))
            status = train_eval_run(&x->eval, t, i);
        if (status == EXIT_OK)
            status = train_batch(x, i);
    }
    if (status != EXIT_OK)
        return status;
    if (i < t->total)
        return trainer_interrupt(t, i);
    status = train_eval_end(&x->eval, t);
    return status == EXIT_OK ? trainer_finish(t) : status;
}

/* trainer_begin() leaves no recipe when the run that is resumed was complete already; that is
 * success with nothing to do. */
static int run_off_policy(struct distill *x)
{
    struct trainer *t = &x->t;
    int status = prepare_answers(x);
    if (status != EXIT_OK || t->o.dry_run)
        return status;
    status = trainer_begin(t, "");
    if (status == EXIT_OK)
        status = trainer_make_graders(t);
    return status == EXIT_OK && t->recipe ? run_batches(x) : status;
}

/* Rows with answers are learned from as they are; prompts alone want the student's own. */
static int choose_mode(struct trainer *t)
{
    tinker_rows_options o = TINKER_ROWS_OPTIONS_INIT;
    tinker_rows *rows;
    tinker_row row;
    if (strcmp(t->o.mode, "auto") != 0)
        return EXIT_OK;
    o.prompts_only = 1;
    int status = trainer_load(t, t->o.data, &o, &rows);
    if (status != EXIT_OK)
        return status;
    tinker_row_form form = tinker_rows_count(rows).form;
    bool answers = form == TINKER_FORM_TOKENS || form == TINKER_FORM_TEXT ||
                   (tinker_rows_prompt(rows, 0, &row, NULL) == TINKER_OK && row.expected);
    t->o.mode = answers ? "off-policy" : "on-policy";
    tinker_rows_free(rows);
    return EXIT_OK;
}

/* On-policy distillation is the RL loop with the teacher in place of a reward. */
int cmd_train_distill(int argc, char **argv)
{
    struct distill *x = calloc(1, sizeof(*x));
    if (!x)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    int status = trainer_open(&x->t, TRAIN_DISTILL, argc, argv);
    if (status == EXIT_OK && x->t.tokenizer) {
        status = choose_mode(&x->t);
        if (status == EXIT_OK)
            status =
                strcmp(x->t.o.mode, "on-policy") == 0 ? train_rl_run(&x->t) : run_off_policy(x);
    }
    tinker_sampler_free(x->teacher);
    train_eval_close(&x->eval);
    tinker_rows_free(x->rows);
    trainer_close(&x->t);
    free(x);
    return status;
}
