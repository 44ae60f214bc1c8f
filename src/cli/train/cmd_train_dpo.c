/* cmd_train_dpo.c - `tinker train dpo`: from pairs of a better and a worse answer.
 *
 * The loss is computed here, on logprobs that the service returns; its gradient goes back in a
 * second pass.  The reference is fixed for the whole run, resumed or not: the base model, or what
 * the run was begun with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/train/train_eval.h"
#include "cli/train/trainer.h"

/* Ten minutes per wait: one batch of pairs is four forward passes (two answers, model and
 * reference), which a laptop may need minutes for. */

struct dpo {
    struct trainer t;
    tinker_rows *rows;
    struct train_eval eval;
    tinker_sampler *reference;
    tinker_dpo settings;
    float **test_reference; /* of the test rows, asked once */
};

/* SimPO compares length-normalized log-probabilities of the model alone, ORPO its odds: neither
 * has a reference, so none is loaded and each step costs one pass less. */
static bool needs_reference(const struct dpo *x)
{
    return x->settings.loss != TINKER_PREFERENCE_SIMPO &&
           x->settings.loss != TINKER_PREFERENCE_ORPO;
}

/* Rows of a pair file become two datums each, chosen then rejected; that order is what the loss
 * relies on (data[2i], data[2i + 1]). */
static int prepare_pairs(struct dpo *x)
{
    struct trainer *t = &x->t;
    tinker_rows_options o;
    tinker_dpo settings = TINKER_DPO_INIT;
    tinker_error err;
    if (tinker_preference_parse(t->o.preference, &settings.loss, &err) != TINKER_OK)
        return out_fail(EXIT_USAGE, NULL, "%s", err.message);
    settings.beta = t->o.beta;
    settings.label_smoothing = t->o.label_smoothing;
    settings.gamma = t->o.gamma;
    settings.lambda = t->o.lambda;
    x->settings = settings;
    int status = trainer_rows_options(t, &o);
    if (status == EXIT_OK)
        status = trainer_load(t, t->o.data, &o, &x->rows);
    if (status != EXIT_OK)
        return status;
    tinker_rows_stats s = tinker_rows_count(x->rows);
    /* The form is known only now, because "auto" reads it from the first row. */
    if (s.form != TINKER_FORM_PAIR && s.form != TINKER_FORM_COMPARISON)
        return out_fail(EXIT_DATA, "A row has prompt, chosen and rejected.",
                        "%s holds \"%s\", not pairs", t->o.data, tinker_row_form_name(s.form));
    status = train_eval_open(&x->eval, t, x->rows);
    memcpy(t->data_sha256, s.sha256, sizeof(s.sha256));
    t->per_epoch = tinker_rows_batches(x->rows);
    t->total = t->per_epoch * (size_t)t->o.epochs;
    if (t->o.max_steps >= 0 && (size_t)t->o.max_steps < t->total)
        t->total = (size_t)t->o.max_steps;
    return status;
}

/* Both answers of one pair are shown with what is trained in them: a wrong chat format or a
 * prompt that counts as trained is seen at once, before any step was paid for. */
static int show_pairs(struct dpo *x)
{
    struct trainer *t = &x->t;
    tinker_rows_stats s = tinker_rows_count(x->rows);
    size_t n, batch = (size_t)t->o.batch_size;
    char what[128];
    const tinker_datum *d = tinker_rows_batch(x->rows, 0, 0, &n);
    batch = batch < s.train_rows ? batch : s.train_rows;
    train_view_say(&t->view, "data", "%s  %zu pairs, %zu test  longest %zu  dropped %zu  ties %zu",
                   t->o.data, s.train_rows, x->eval.n / 2, s.longest, s.dropped, s.ties);
    train_view_example(&t->view, &d[0], t->tokenizer, 1, s.rows);
    train_view_example(&t->view, &d[1], t->tokenizer, 1, s.rows);
    snprintf(what, sizeof(what), "%zu steps of %zu pairs, %lld epoch%s  %s beta %g", t->total,
             batch, (long long)t->o.epochs, t->o.epochs == 1 ? "" : "s", t->o.preference,
             t->o.beta);
    return trainer_plan(t, what);
}

/* Weights that a run begins with are saved once, so that all its parts have the same reference. */
static int open_reference(struct dpo *x)
{
    struct trainer *t = &x->t;
    tinker_error err;
    int status = EXIT_OK;
    if (!needs_reference(x))
        return EXIT_OK;
    const char *name = t->o.reference ? t->o.reference : t->api.model;
    if (!t->o.reference && t->o.init && !*t->reference_path) {
        const char *path = tinker_recipe_save(t->recipe, "reference", 0, NULL, &err);
        if (!path)
            return trainer_fail(t, &err);
        snprintf(t->reference_path, sizeof(t->reference_path), "%s", path);
    }
    /* A run that is resumed has the path in its checkpoint record: the reference is the one that
     * the first part used, even when --init has been changed since. */
    if (*t->reference_path)
        name = t->reference_path;
    x->reference = trainer_sampler_on(t, name, &status);
    return status;
}

/* The test pairs get the very loss of training, computed here on log-probabilities of the
 * current weights.  The reference never changes, so its log-probabilities are asked once and
 * kept for the run. */
static int evaluate_pairs(struct dpo *x, size_t step)
{
    struct trainer *t = &x->t;
    static const char *const names[] = { "dpo_loss", "accuracy", "margin" };
    tinker_error err;
    int status = train_eval_run(&x->eval, t, step);
    if (status != EXIT_OK || !x->eval.n)
        return status;
    if (x->reference && !x->test_reference)
        x->test_reference = tinker_reference_logprobs(x->reference, x->eval.data, x->eval.n,
                                                      trainer_wait_ms(), &err);
    tinker_sampler *s =
        tinker_training_create_sampler(t->recipe->training, trainer_wait_ms(), &err);
    float **now =
        s ? tinker_reference_logprobs(s, x->eval.data, x->eval.n, trainer_wait_ms(), &err) : NULL;
    tinker_sampler_free(s);
    tinker_tensor *logprobs = now ? calloc(x->eval.n + 1, sizeof(*logprobs)) : NULL;
    tinker_loss_report *report = NULL;
    for (size_t i = 0; logprobs && i < x->eval.n; i++)
        logprobs[i] = (tinker_tensor){ .dtype = TINKER_FLOAT32,
                                       .data = now[i],
                                       .n = x->eval.data[i].inputs[0].tensor.n };
    x->settings.reference = x->test_reference;
    if (logprobs && (x->test_reference || !x->reference))
        report = tinker_loss_evaluate(tinker_loss_preference, &x->settings, x->eval.data, logprobs,
                                      x->eval.n, NULL, &err);
    for (size_t i = 0; report && i < 3; i++) {
        char name[32];
        snprintf(name, sizeof(name), "test/%s", names[i]);
        trainer_metric(t, name, tinker_metric(report->metrics, report->n_metrics, names[i]));
    }
    status = report ? EXIT_OK : trainer_fail(t, &err);
    tinker_loss_report_free(report);
    free(logprobs);
    free(now);
    return status;
}

/* What the service calls the loss is the sum that carries the gradient; people mean their own. */
static void log_pass(struct trainer *t, const tinker_step *r)
{
    for (size_t k = 0; k < r->n_loss_metrics; k++) {
        const tinker_named_number *m = &r->loss_metrics[k];
        bool sum = strcmp(m->name, "loss:sum") == 0;
        trainer_metric(t, sum ? "surrogate_loss:sum" : m->name, m->value);
        if (sum)
            trainer_metric(t, "loss:sum",
                           tinker_metric(r->loss_metrics, r->n_loss_metrics, "dpo_loss"));
    }
}

/* One step: log-probabilities of the reference, then a forward pass of the model whose
 * log-probabilities make the loss and its gradient here, then a backward pass with that gradient
 * as weights (what tinker_recipe_submit_custom() does), then Adam. */
static int train_pairs(struct dpo *x, size_t i)
{
    struct trainer *t = &x->t;
    tinker_error err;
    tinker_step r;
    size_t n;
    int64_t begin = clock_now_ns(clock_real());
    const tinker_datum *data = tinker_rows_batch(x->rows, i / t->per_epoch, i % t->per_epoch, &n);
    float **reference = NULL;
    if (x->reference) {
        reference = tinker_reference_logprobs(x->reference, data, n, trainer_wait_ms(), &err);
        if (!reference)
            return trainer_fail(t, &err);
    }
    double reference_s = (double)(clock_now_ns(clock_real()) - begin) / 1e9;
    x->settings.reference = reference;
    tinker_adam adam = t->adam;
    adam.learning_rate = trainer_rate(t, i);
    tinker_status done = tinker_recipe_submit_custom(t->recipe, data, n, tinker_loss_preference,
                                                     &x->settings, &adam, &err);
    if (done == TINKER_OK)
        done = tinker_recipe_next(t->recipe, &r, &err);
    free(reference);
    if (done != TINKER_OK)
        return trainer_fail(t, &err);
    trainer_metric(t, "num_pairs", (double)n / 2);
    trainer_metric(t, "num_tokens", (double)r.tokens);
    trainer_metric(t, "learning_rate", adam.learning_rate);
    trainer_metric(t, "progress", (double)i / (double)t->total);
    log_pass(t, &r);
    trainer_metrics_all(t, "", r.metrics, r.n_metrics);
    trainer_metric(t, "time/get_ref_logprobs", reference_s);
    trainer_metric(t, "time/total", (double)(clock_now_ns(clock_real()) - begin) / 1e9);
    double loss = tinker_metric(r.loss_metrics, r.n_loss_metrics, "dpo_loss");
    char numbers[64];
    snprintf(numbers, sizeof(numbers), "acc %.2f  margin %.2f",
             tinker_metric(r.loss_metrics, r.n_loss_metrics, "accuracy"),
             tinker_metric(r.loss_metrics, r.n_loss_metrics, "margin"));
    int status = trainer_log(t, i);
    if (status == EXIT_OK)
        status = trainer_check_loss(t, i, loss);
    if (status == EXIT_OK)
        train_view_step(&t->view, i + 1, t->total, t->start, "loss", loss, numbers,
                        adam.learning_rate, r.tokens);
    return status;
}

/* The last step is evaluated in any case, not only when its number is due: the figure people
 * compare is the one at the end.  Evaluation precedes the step, so it judges i updates, as the
 * metrics line i says. */
static int run_pairs(struct dpo *x)
{
    struct trainer *t = &x->t;
    size_t i = t->start;
    int status = open_reference(x);
    for (; status == EXIT_OK && i < t->total && !trainer_stopping(); i++) {
        status = trainer_save_due(t, i);
        if (status == EXIT_OK)
            status = trainer_save_finish(t);
        trainer_metric(t, "epoch", (double)(i / t->per_epoch));
        bool last = i + 1 == t->total && (x->eval.n || x->eval.questions) && t->o.eval_every > 0;
        if (status == EXIT_OK && (last || train_eval_due(&x->eval, t, i)))
            status = evaluate_pairs(x, i);
        if (status == EXIT_OK)
            status = train_pairs(x, i);
    }
    if (status != EXIT_OK)
        return status;
    if (i < t->total)
        return trainer_interrupt(t, i);
    status = train_eval_end(&x->eval, t);
    return status == EXIT_OK ? trainer_finish(t) : status;
}

/* No tokenizer after trainer_open(): --help was printed or the options are wrong, and status
 * says which. */
int cmd_train_dpo(int argc, char **argv)
{
    struct dpo *x = calloc(1, sizeof(*x));
    char tail[128];
    if (!x)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    int status = trainer_open(&x->t, TRAIN_DPO, argc, argv);
    bool opened = x->t.tokenizer != NULL;
    if (status == EXIT_OK && opened)
        status = prepare_pairs(x);
    if (status == EXIT_OK && opened)
        status = show_pairs(x);
    if (status == EXIT_OK && opened && !x->t.o.dry_run) {
        /* Members of the cookbook's DPO configuration that its tools look for; num_replicas has
         * no meaning here and keeps the cookbook's default. */
        snprintf(tail, sizeof(tail),
                 ",\"dpo_beta\":%.17g,\"num_replicas\":8,\"reference_model_name\":null",
                 x->t.o.beta);
        status = trainer_begin(&x->t, tail);
        if (status == EXIT_OK)
            status = trainer_make_graders(&x->t);
        if (status == EXIT_OK && x->t.recipe)
            status = run_pairs(x);
    }
    free(x->test_reference);
    tinker_sampler_free(x->reference);
    train_eval_close(&x->eval);
    tinker_rows_free(x->rows);
    trainer_close(&x->t);
    free(x);
    return status;
}
