/* cmd_train_sft.c - `tinker train sft`: supervised fine-tuning from a file.
 *
 * A pass and an optimizer step are submitted together, and one further batch before the first is
 * awaited, so the service never waits for this program.  Evaluations stand between: they wait for
 * everything that was submitted before. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/train/train_eval.h"
#include "cli/train/trainer.h"

/* Metrics of an evaluation belong to the step behind it, which is awaited later. */
enum { MAX_AHEAD = 64, EVAL_METRICS = 8 };

struct sft_step {
    tinker_named_number eval[EVAL_METRICS];
    size_t n_eval;
    int64_t begin_ns;
    double submit_s, eval_s;
};

struct sft {
    struct trainer t;
    tinker_rows *rows;
    struct train_eval eval;
    struct sft_step steps[MAX_AHEAD];
    size_t submitted, finished; /* steps */
};

static double seconds_since(int64_t ns)
{
    return (double)(clock_now_ns(clock_real()) - ns) / 1e9;
}

/* ---- before anything is sent ---- */

/* --order: one row number per line, from 0, the order of every epoch.  fscanf() stops at the
 * first word that is no number; the end of the file tells that apart from success. */
static int read_order(struct sft *x)
{
    FILE *f = fopen(x->t.o.order, "re");
    size_t *order = NULL, n = 0, cap = 0, row;
    tinker_error err = { 0 };
    if (!f)
        return out_fail(EXIT_IO, NULL, "cannot open %s", x->t.o.order);
    while (fscanf(f, "%zu", &row) == 1) {
        if (n == cap) {
            cap = cap ? 2 * cap : 1024;
            size_t *grown = realloc(order, cap * sizeof(*order));
            if (!grown)
                break;
            order = grown;
        }
        order[n++] = row;
    }
    bool whole = feof(f);
    fclose(f);
    tinker_status status = tinker_rows_set_order(x->rows, order, n, &err);
    free(order);
    if (!whole)
        return out_fail(EXIT_DATA, NULL, "%s: line %zu is not a row number", x->t.o.order, n + 1);
    return status == TINKER_OK ? EXIT_OK
                               : out_fail(EXIT_DATA, NULL, "%s: %s", x->t.o.order, err.message);
}

/* All epochs one after the other, since each is shuffled with a seed of its own.  Written so
 * that a loop in Python can be fed the same rows in the same order. */
static int write_order(struct sft *x)
{
    FILE *f = fopen(x->t.o.write_order, "we");
    for (size_t e = 0; f && e < (size_t)x->t.o.epochs; e++) {
        size_t n;
        const size_t *order = tinker_rows_order(x->rows, e, &n);
        for (size_t i = 0; i < n; i++)
            fprintf(f, "%zu\n", order[i]);
    }
    return f && fclose(f) == 0 ? EXIT_OK
                               : out_fail(EXIT_IO, NULL, "cannot write %s", x->t.o.write_order);
}

/* What a user must see before paying for a run: how much of the file is trained, what was
 * dropped or cut, and one row with its trained part marked.  Most mistakes of fine-tuning are
 * visible here: a wrong template, an answer that is masked, rows cut at max_length. */
static void show_data(struct sft *x)
{
    tinker_rows_stats s = tinker_rows_count(x->rows);
    struct buf tokens, trained;
    size_t n;
    buf_init(&tokens, 64);
    buf_init(&trained, 64);
    train_view_count(&tokens, s.tokens);
    train_view_count(&trained, s.trained);
    train_view_say(&x->t.view, "data", "%s  %s  %zu train, %zu test", x->t.o.data,
                   tinker_row_form_name(s.form), s.train_rows, x->eval.n);
    train_view_say(&x->t.view, "",
                   "%s tokens, %s trained  longest %zu  dropped %zu  cut %zu  "
                   "duplicates %zu",
                   tokens.data, trained.data, s.longest, s.dropped, s.truncated, s.duplicates);
    if (s.no_answer_last)
        train_view_say(&x->t.view, "warn", "%zu rows do not end with an answer", s.no_answer_last);
    const tinker_datum *d = tinker_rows_batch(x->rows, 0, 0, &n);
    size_t count;
    const size_t *order = tinker_rows_order(x->rows, 0, &count);
    if (n)
        train_view_example(&x->t.view, &d[0], x->t.tokenizer, order[0] + 1, s.rows);
    buf_clear(&tokens);
    buf_clear(&trained);
}

/* Preference and prompt files are refused with the command that takes them; the form is read
 * from the rows themselves, so no option has to be right for that. */
static int prepare_data(struct sft *x)
{
    struct trainer *t = &x->t;
    tinker_rows_options o;
    int status = trainer_rows_options(t, &o);
    if (status == EXIT_OK)
        status = trainer_load(t, t->o.data, &o, &x->rows);
    if (status != EXIT_OK)
        return status;
    tinker_rows_stats s = tinker_rows_count(x->rows);
    if (s.form == TINKER_FORM_PAIR || s.form == TINKER_FORM_COMPARISON)
        return out_fail(EXIT_DATA, "Use: tinker train dpo", "%s holds preferences", t->o.data);
    if (s.form == TINKER_FORM_PROMPT)
        return out_fail(EXIT_DATA, "Use: tinker train rl", "%s holds prompts without answers",
                        t->o.data);
    if (t->o.order)
        status = read_order(x);
    if (status == EXIT_OK && t->o.write_order)
        status = write_order(x);
    if (status == EXIT_OK)
        status = train_eval_open(&x->eval, t, x->rows);
    memcpy(t->data_sha256, s.sha256, sizeof(s.sha256));
    t->per_epoch = tinker_rows_batches(x->rows);
    t->total = t->per_epoch * (size_t)t->o.epochs;
    if (t->o.max_steps >= 0 && (size_t)t->o.max_steps < t->total)
        t->total = (size_t)t->o.max_steps;
    return status;
}

/* A file with fewer rows than --batch-size makes one batch of all of them; the plan says the
 * real number. */
static int show_plan(struct sft *x)
{
    struct trainer *t = &x->t;
    char what[128];
    tinker_rows_stats s = tinker_rows_count(x->rows);
    size_t batch = (size_t)t->o.batch_size < s.train_rows ? (size_t)t->o.batch_size : s.train_rows;
    snprintf(what, sizeof(what), "%zu step%s of %zu rows, %lld epoch%s", t->total,
             t->total == 1 ? "" : "s", batch, (long long)t->o.epochs, t->o.epochs == 1 ? "" : "s");
    show_data(x);
    return trainer_plan(t, what);
}

/* ---- the loop ---- */

/* Steps finish in the order of submission.  Everything about step i is put into one metrics line
 * here: the pass, the optimizer, times, and the evaluation that ran before it. */
static int finish_step(struct sft *x)
{
    struct trainer *t = &x->t;
    size_t i = x->finished;
    struct sft_step *s = &x->steps[i % MAX_AHEAD];
    tinker_step r;
    tinker_error err;
    int64_t wait_ns = clock_now_ns(clock_real());
    int status = t->saving_step <= i ? trainer_save_finish(t) : EXIT_OK;
    if (status != EXIT_OK)
        return status;
    if (tinker_recipe_next(t->recipe, &r, &err) != TINKER_OK)
        return trainer_fail(t, &err);
    x->finished++;
    if (i == t->start && t->start > 0) {
        /* After a resume the service must count on from where the checkpoint was.  One that lost
         * the optimizer state starts at 1; training would go on with cold Adam moments and a
         * jump in the loss that nobody could explain.  --init restores weights only, on purpose,
         * and is left alone. */
        double steps = tinker_metric(r.metrics, r.n_metrics, "step:max");
        if (isfinite(steps) && !t->o.init && steps != (double)(t->start + 1))
            return out_fail(EXIT_FAILED, NULL,
                            "the service restored a cold optimizer: it counts %.0f steps, not %zu",
                            steps, t->start + 1);
    }
    t->elapsed_tokens += r.tokens;
    trainer_metric(t, "epoch", (double)(i / t->per_epoch));
    trainer_metric(t, "progress", fmin((double)(i + 1) / (double)t->total, 1));
    trainer_metric(t, "learning_rate", trainer_rate(t, i));
    trainer_metrics_all(t, "", r.metrics, r.n_metrics);
    trainer_metric(t, "num_sequences", (double)r.sequences);
    trainer_metric(t, "num_tokens", (double)r.tokens);
    trainer_metric(t, "num_loss_tokens", r.weight);
    trainer_metric(t, "train_mean_nll", r.nll);
    trainer_metric(t, "train_mean_bpb", r.bpb);
    trainer_metrics_all(t, "", s->eval, s->n_eval);
    trainer_metric(t, "num_trained_tokens", (double)r.trained);
    trainer_metric(t, "time/submit", s->submit_s);
    if (s->n_eval)
        trainer_metric(t, "time/evals", s->eval_s);
    trainer_metric(t, "time/wait", seconds_since(wait_ns));
    /* From submission to result: with steps in flight this includes the wait behind the step
     * before, which is the rate that a user sees. */
    double total_s = seconds_since(s->begin_ns);
    trainer_metric(t, "time/total", total_s);
    trainer_metric(t, "time/tokens_per_second", (double)r.tokens / (total_s > 0 ? total_s : 1));
    status = trainer_log(t, i);
    if (status == EXIT_OK)
        status = trainer_check_loss(t, i, r.nll);
    if (status == EXIT_OK)
        train_view_step(&t->view, i + 1, t->total, t->start, "loss", r.nll, "", trainer_rate(t, i),
                        r.tokens);
    return status;
}

/* The evaluation's numbers are put aside: the line of this step is written later. */
static int evaluate_before(struct sft *x, size_t i, struct sft_step *s)
{
    struct trainer *t = &x->t;
    int64_t begin = clock_now_ns(clock_real());
    int status = EXIT_OK;
    while (status == EXIT_OK && x->finished < i)
        status = finish_step(x);
    if (status == EXIT_OK)
        status = train_eval_run(&x->eval, t, i);
    for (size_t k = 0; k < t->n_metrics && s->n_eval < EVAL_METRICS; k++) {
        static const char *const names[] = { "test/nll", "test/bpb", "test/accuracy",
                                             "test/accuracy_stderr" };
        for (size_t m = 0; m < 4; m++)
            if (strcmp(t->metrics[k].name, names[m]) == 0)
                s->eval[s->n_eval++] = (tinker_named_number){ names[m], t->metrics[k].value };
    }
    t->n_metrics = 0;
    s->eval_s = seconds_since(begin);
    return status;
}

/* A due checkpoint is submitted before the pass, so it holds exactly i updates.  Evaluating
 * needs the weights after step i - 1, so everything in flight is finished first; otherwise
 * nothing here waits for the service. */
static int submit_step(struct sft *x, size_t i)
{
    struct trainer *t = &x->t;
    struct sft_step *s = &x->steps[i % MAX_AHEAD];
    tinker_error err;
    size_t n;
    *s = (struct sft_step){ .begin_ns = clock_now_ns(clock_real()) };
    int status = trainer_save_due(t, i);
    if (status == EXIT_OK && train_eval_due(&x->eval, t, i))
        status = evaluate_before(x, i, s);
    if (status != EXIT_OK)
        return status;
    int64_t begin = clock_now_ns(clock_real());
    const tinker_datum *data = tinker_rows_batch(x->rows, i / t->per_epoch, i % t->per_epoch, &n);
    tinker_adam adam = t->adam;
    adam.learning_rate = trainer_rate(t, i);
    if (tinker_recipe_submit(t->recipe, data, n, NULL, &adam, &err) != TINKER_OK)
        return trainer_fail(t, &err);
    s->submit_s = seconds_since(begin);
    x->submitted = i + 1;
    return EXIT_OK;
}

/* The window: at most `ahead` steps are submitted and not finished.  With one ahead the service
 * always has the next step while we read the result of this one.  More only helps when the
 * network is slow.  MAX_AHEAD bounds the ring of struct sft_step, and one slot is always left
 * for the step that is being submitted. */
static int run_steps(struct sft *x)
{
    struct trainer *t = &x->t;
    size_t ahead = t->o.submit_ahead < 0 ? 0 : (size_t)t->o.submit_ahead;
    int status = EXIT_OK;
    ahead = ahead < MAX_AHEAD - 1 ? ahead : MAX_AHEAD - 1;
    x->submitted = x->finished = t->start;
    while (status == EXIT_OK && x->submitted < t->total && !trainer_stopping()) {
        status = submit_step(x, x->submitted);
        while (status == EXIT_OK && x->submitted - x->finished > ahead)
            status = finish_step(x);
    }
    while (status == EXIT_OK && x->finished < x->submitted)
        status = finish_step(x);
    if (status != EXIT_OK)
        return status;
    if (x->finished < t->total)
        return trainer_interrupt(t, x->finished);
    status = train_eval_end(&x->eval, t);
    return status == EXIT_OK ? trainer_finish(t) : status;
}

/* Everything up to trainer_begin() sends nothing that changes the service, which is what
 * --dry-run promises. */
int cmd_train_sft(int argc, char **argv)
{
    struct sft *x = calloc(1, sizeof(*x));
    if (!x)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    int status = trainer_open(&x->t, TRAIN_SFT, argc, argv);
    bool opened = x->t.tokenizer != NULL;
    if (status == EXIT_OK && opened)
        status = prepare_data(x);
    if (status == EXIT_OK && opened)
        status = show_plan(x);
    if (status == EXIT_OK && opened && !x->t.o.dry_run) {
        status = trainer_begin(&x->t, "");
        if (status == EXIT_OK)
            status = trainer_make_graders(&x->t);
        if (status == EXIT_OK && x->t.recipe)
            status = run_steps(x);
    }
    train_eval_close(&x->eval);
    tinker_rows_free(x->rows);
    trainer_close(&x->t);
    free(x);
    return status;
}
