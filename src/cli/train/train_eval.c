/* train_eval.c - see train_eval.h. */
#include "cli/train/train_eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/command.h"
#include "cli/output/out.h"
#include "json/json.h"

/* Longest wait for the log-probabilities of all test rows, in milliseconds. */
enum { MAX_SAMPLES = 16, SHOWN_TEXT = 200 };

/* Answers are shown to the first rows of a file; one that is read from stdin is gone by now. */
static int load_prompts(struct train_eval *e, struct trainer *t)
{
    tinker_rows_options q = TINKER_ROWS_OPTIONS_INIT;
    const char *path = t->o.sample_prompts ? t->o.sample_prompts
                       : t->o.test_data    ? t->o.test_data
                                           : t->o.data;
    tinker_error err;
    tinker_row row;
    q.prompts_only = 1;
    q.shuffle_seed = TINKER_SHUFFLE_NONE;
    if (strcmp(path, "-") == 0)
        return out_fail(EXIT_USAGE, NULL,
                        "--sample-every needs --sample-prompts when the data is "
                        "standard input.");
    int status = trainer_load(t, path, &q, &e->prompts);
    if (status == EXIT_OK && tinker_rows_prompt(e->prompts, 0, &row, &err) != TINKER_OK)
        return out_fail(EXIT_DATA, "Give questions with --sample-prompts.", "%s", err.message);
    return status;
}

/* Test rows from a file of their own are all used, in its order: no shuffle, nothing set apart,
 * one batch.  --test-size instead takes them from the training file, after its shuffle, so that
 * a file that is sorted by subject gives test rows of every subject. */
int train_eval_open(struct train_eval *e, struct trainer *t, tinker_rows *rows)
{
    tinker_rows_options o;
    int status = trainer_rows_options(t, &o);
    *e = (struct train_eval){ 0 };
    if (status == EXIT_OK && t->o.test_data) {
        o.shuffle_seed = TINKER_SHUFFLE_NONE;
        o.test_size = 0;
        o.batch_size = SIZE_MAX / 4;
        status = trainer_load(t, t->o.test_data, &o, &e->rows);
        if (status == EXIT_OK)
            e->data = tinker_rows_batch(e->rows, 0, 0, &e->n);
    } else if (rows) {
        e->data = tinker_rows_test(rows, &e->n);
    }
    if (status == EXIT_OK && t->o.eval_data) {
        tinker_rows_options q = TINKER_ROWS_OPTIONS_INIT;
        q.prompts_only = 1;
        q.shuffle_seed = TINKER_SHUFFLE_NONE;
        if (!t->o.graders.n && !t->o.reward_cmd)
            return out_fail(EXIT_USAGE, NULL, "--eval-data needs --grader.");
        status = trainer_load(t, t->o.eval_data, &q, &e->questions);
    }
    if (status == EXIT_OK && t->o.sample_every > 0)
        status = load_prompts(e, t);
    return status;
}

void train_eval_close(struct train_eval *e)
{
    tinker_rows_free(e->rows);
    tinker_rows_free(e->questions);
    tinker_rows_free(e->prompts);
}

/* Step 0 is due, too: the score of the untrained model is what all later ones are compared with. */
static bool test_due(const struct train_eval *e, const struct trainer *t, size_t step)
{
    return (e->n > 0 || e->questions) && t->o.eval_every > 0 && step % (size_t)t->o.eval_every == 0;
}

/* Without --sample-every no prompts were loaded, so the division is never by 0. */
static bool samples_due(const struct train_eval *e, const struct trainer *t, size_t step)
{
    return e->prompts && step % (size_t)t->o.sample_every == 0;
}

bool train_eval_due(const struct train_eval *e, const struct trainer *t, size_t step)
{
    return test_due(e, t, step) || samples_due(e, t, step);
}

/* ---- grading ---- */

/* Scores of several graders add up, weighted.  A grader that cannot judge an answer gives NaN,
 * and NaN + x is NaN: an answer that one of them could not judge has no score at all, rather
 * than a score that is too low.  by_grader[] is the mean over the answers that were judged. */
int train_eval_grade(struct trainer *t, tinker_grade *items, size_t n, double *scores,
                     double *by_grader)
{
    tinker_error err;
    for (size_t i = 0; i < n; i++)
        scores[i] = 0;
    for (size_t g = 0; g < t->n_graders; g++) {
        if (tinker_grader_run(t->graders[g], items, n, &err) != TINKER_OK) {
            train_view_clear(&t->view);
            return out_fail(EXIT_FAILED, NULL, "%s", err.message);
        }
        double sum = 0, count = 0;
        for (size_t i = 0; i < n; i++) {
            scores[i] += tinker_grader_weight(t->graders[g]) * items[i].score;
            if (!isnan(items[i].score)) {
                sum += items[i].score;
                count++;
            }
        }
        if (by_grader)
            by_grader[g] = count ? sum / count : NAN;
    }
    return EXIT_OK;
}

/* ---- answers ---- */

/* Scores of the answers of one item into *share (of those above 0) and *mean; failed ones are
 * wrong. */
static void score_item(const double *scores, size_t n, double *share, double *mean, size_t *errors)
{
    double right = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        *errors += isnan(scores[i]);
        right += scores[i] > 0;
        sum += isnan(scores[i]) ? 0 : scores[i];
    }
    *share = right / (double)n;
    *mean = sum / (double)n;
}

/* Accuracy is the mean over questions of the share of right answers; its standard error treats
 * questions, not answers, as the independent draws, since answers to one question are alike.
 * The sum of squares form can dip below 0 by rounding, hence fmax(). */
static void summarize_scores(const double *scores, size_t items, size_t n, struct eval_score *out)
{
    double sum = 0, square = 0, reward = 0;
    for (size_t i = 0; i < items; i++) {
        double share, mean;
        score_item(scores + i * n, n, &share, &mean, &out->errors);
        sum += share;
        square += share * share;
        reward += mean;
    }
    double m = (double)items;
    out->items = items;
    out->accuracy = sum / m;
    out->reward = reward / m;
    out->stderr_ = items > 1 ? sqrt(fmax(0, square - sum * sum / m) / (m * (m - 1))) : NAN;
}

/* Answer i belongs to question i / group_size.  The row's JSON goes to grader commands as a
 * string, one copy per question, because a row is lent for one call only. */
static int grade_rollouts(struct trainer *t, const tinker_rows *questions, tinker_rollouts *x,
                          size_t step, struct eval_score *out)
{
    size_t total = x->n_groups * x->group_size;
    tinker_grade *items = calloc(total + 1, sizeof(*items));
    double *scores = calloc(total + 1, sizeof(*scores));
    char **rows = calloc(x->n_groups + 1, sizeof(*rows));
    int status = items && scores && rows ? EXIT_OK : out_fail(EXIT_FAILED, NULL, "out of memory");
    for (size_t i = 0; status == EXIT_OK && i < total; i++) {
        tinker_row row;
        size_t g = i / x->group_size;
        tinker_rows_prompt(questions, g, &row, NULL);
        if (!rows[g])
            rows[g] = strndup(row.json, row.n_json);
        const tinker_sequence *said = x->at[i].sequence;
        items[i] = (tinker_grade){ .text = x->at[i].text,
                                   .expected = row.expected,
                                   .row = rows[g],
                                   .stop_reason =
                                       said->stop_reason == TINKER_STOP_STOP ? "stop" : "length",
                                   .split = "test",
                                   .tokens = said->n,
                                   .step = (int64_t)step,
                                   .group = (int64_t)g,
                                   .sample = (int64_t)(i % x->group_size) };
        out->sampled += x->at[i].sequence->n;
    }
    if (status == EXIT_OK)
        status = train_eval_grade(t, items, total, scores, NULL);
    if (status == EXIT_OK)
        summarize_scores(scores, x->n_groups, x->group_size, out);
    for (size_t i = 0; rows && i < x->n_groups; i++)
        free(rows[i]);
    free(rows);
    free(items);
    free(scores);
    return status;
}

/* A fixed seed: two evaluations differ by the weights, not by the draw.  All questions go in one
 * call; the service batches them. */
int train_eval_sample(struct trainer *t, tinker_sampler *s, const tinker_rows *questions, size_t n,
                      double temperature, size_t max_tokens, size_t step, struct eval_score *out)
{
    tinker_rollout_options o = TINKER_ROLLOUT_OPTIONS_INIT;
    size_t rows = tinker_rows_count(questions).rows;
    const tinker_conversation **prompts = calloc(rows + 1, sizeof(*prompts));
    tinker_error err;
    *out = (struct eval_score){ 0 };
    if (!prompts)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    for (size_t i = 0; i < rows; i++) {
        tinker_row row;
        if (tinker_rows_prompt(questions, i, &row, &err) != TINKER_OK) {
            free(prompts);
            return out_fail(EXIT_DATA, NULL, "%s", err.message);
        }
        prompts[i] = row.prompt;
    }
    o.group_size = n;
    o.params.temperature = temperature;
    o.params.max_tokens = (int64_t)max_tokens;
    o.params.has_seed = 1;
    tinker_rollouts *x =
        tinker_sampler_rollouts(s, t->renderer, t->tokenizer, prompts, rows, &o, &err);
    int status = x ? grade_rollouts(t, questions, x, step, out) : trainer_fail(t, &err);
    tinker_rollouts_free(x);
    free(prompts);
    return status;
}

/* ---- while training ---- */

/* A forward pass on a copy of the weights, without gradient: nll is the mean over weighted
 * tokens, as the loss of training is, and bpb divides it by the bytes of text, so that models
 * with other tokenizers can be compared. */
static int run_test_rows(struct train_eval *e, struct trainer *t, tinker_sampler *s, char *shown,
                         size_t size)
{
    tinker_error err;
    double nll, bpb;
    float **logprobs = tinker_reference_logprobs(s, e->data, e->n, trainer_wait_ms(), &err);
    if (!logprobs)
        return trainer_fail(t, &err);
    tinker_score_logprobs(logprobs, e->data, e->n, t->tokenizer, &nll, &bpb);
    free(logprobs);
    trainer_metric(t, "test/nll", nll);
    trainer_metric(t, "test/bpb", bpb);
    t->last_test = nll;
    snprintf(shown, size, "  nll %.3f  bpb %.3f", nll, bpb);
    return EXIT_OK;
}

/* The names are those of the cookbook's loops, which differ: its RL loop reports rewards per
 * environment group, the others an accuracy with its standard error. */
static int run_questions(struct train_eval *e, struct trainer *t, tinker_sampler *s, size_t step,
                         char *shown, size_t size)
{
    struct eval_score score;
    int status = train_eval_sample(t, s, e->questions, (size_t)t->o.eval_n, t->o.eval_temperature,
                                   (size_t)t->o.eval_max_tokens, step, &score);
    if (status != EXIT_OK)
        return status;
    trainer_metric(t, t->kind == TRAIN_RL ? "test/env/all/reward/total" : "test/accuracy",
                   t->kind == TRAIN_RL ? score.reward : score.accuracy);
    trainer_metric(t, t->kind == TRAIN_RL ? "test/env/all/correct" : "test/accuracy_stderr",
                   t->kind == TRAIN_RL ? score.accuracy : score.stderr_);
    snprintf(shown, size, "  accuracy %.3f ± %.3f", score.accuracy, score.stderr_);
    return EXIT_OK;
}

/* ---- answers to look at ---- */

/* The last thing that was said of a prompt, on one line. */
static const char *last_words(const tinker_conversation *c)
{
    const tinker_message *m = c->n_messages ? &c->messages[c->n_messages - 1] : NULL;
    return m && m->content ? m->content : "";
}

/* One line of samples.jsonl for each answer; what cannot be written stops no run. */
static void keep_sample(struct trainer *t, size_t step, const char *prompt, const char *answer)
{
    char path[4096];
    struct buf line;
    struct json_writer w;
    snprintf(path, sizeof(path), "%.4000s/samples.jsonl", t->out);
    FILE *f = fopen(path, "ae");
    if (!f)
        return;
    buf_init(&line, 16 << 20);
    json_writer_init(&w, &line);
    json_put_begin_object(&w);
    json_put_key(&w, "step");
    json_put_int64(&w, (int64_t)step);
    json_put_key(&w, "prompt");
    json_put_string(&w, prompt);
    json_put_key(&w, "response");
    json_put_string(&w, answer);
    json_put_end_object(&w);
    if (buf_ok(&line))
        fprintf(f, "%s\n", line.data);
    buf_clear(&line);
    fclose(f);
}

/* A line break would break the column. */
static void show_sample(struct trainer *t, const char *label, const char *prompt,
                        const char *answer)
{
    char line[2 * SHOWN_TEXT + 8];
    snprintf(line, sizeof(line), "%.*s → %.*s", SHOWN_TEXT, prompt, SHOWN_TEXT, answer);
    for (char *c = line; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    train_view_say(&t->view, label, "%s", line);
}

/* Few on purpose: these answers are for the eye; --eval-data is what measures. */
static int run_samples(struct train_eval *e, struct trainer *t, tinker_sampler *s, size_t step)
{
    tinker_rollout_options o = TINKER_ROLLOUT_OPTIONS_INIT;
    size_t n = tinker_rows_count(e->prompts).rows, most = t->o.sample_prompts ? MAX_SAMPLES : 3;
    const tinker_conversation *prompts[MAX_SAMPLES];
    tinker_error err;
    n = n < most ? n : most;
    for (size_t i = 0; i < n; i++) {
        tinker_row row;
        if (tinker_rows_prompt(e->prompts, i, &row, &err) != TINKER_OK)
            return out_fail(EXIT_DATA, NULL, "%s", err.message);
        prompts[i] = row.prompt;
    }
    o.group_size = 1;
    o.params.temperature = t->o.eval_temperature;
    o.params.max_tokens = t->o.eval_max_tokens;
    o.params.has_seed = 1;
    tinker_rollouts *x =
        tinker_sampler_rollouts(s, t->renderer, t->tokenizer, prompts, n, &o, &err);
    if (!x)
        return trainer_fail(t, &err);
    for (size_t i = 0; i < n; i++) {
        show_sample(t, i == 0 ? "sample" : "", last_words(prompts[i]), x->at[i].text);
        keep_sample(t, step, last_words(prompts[i]), x->at[i].text);
        trainer_text(t, step, last_words(prompts[i]), x->at[i].text);
    }
    tinker_rollouts_free(x);
    return EXIT_OK;
}

/* The parts that are due, of one snapshot of the weights. */
static int run_parts(struct train_eval *e, struct trainer *t, size_t step, bool test, bool samples)
{
    tinker_error err;
    char nll[80] = "", accuracy[80] = "";
    tinker_sampler *s =
        tinker_training_create_sampler(t->recipe->training, trainer_wait_ms(), &err);
    if (!s)
        return trainer_fail(t, &err);
    int status = test && e->n ? run_test_rows(e, t, s, nll, sizeof(nll)) : EXIT_OK;
    if (status == EXIT_OK && test && e->questions)
        status = run_questions(e, t, s, step, accuracy, sizeof(accuracy));
    if (status == EXIT_OK && test)
        train_view_say(&t->view, "eval", "step %zu%s%s", step, nll, accuracy);
    if (status == EXIT_OK && samples)
        status = run_samples(e, t, s, step);
    tinker_sampler_free(s);
    return status;
}

/* The sampler holds a copy of the weights as they are now.  Training steps that follow do not
 * change it, and it is freed before the next evaluation makes another. */
int train_eval_run(struct train_eval *e, struct trainer *t, size_t step)
{
    return run_parts(e, t, step, test_due(e, t, step), samples_due(e, t, step));
}

/* After the last step, whatever the period: the numbers that the run is judged by.  Its metrics
 * belong to no step, so no line of metrics.jsonl is written. */
int train_eval_end(struct train_eval *e, struct trainer *t)
{
    bool test = (e->n || e->questions) && t->o.eval_every > 0;
    if (!test && !e->prompts)
        return EXIT_OK;
    int status = run_parts(e, t, t->total, test, e->prompts != NULL);
    t->n_metrics = 0;
    return status;
}
