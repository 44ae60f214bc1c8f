/* train_eval.h - evaluations while a model is trained. */
#ifndef CLI_TRAIN_EVAL_H
#define CLI_TRAIN_EVAL_H

#include "cli/train/trainer.h"

struct train_eval {
    const tinker_datum *data; /* test rows; borrowed */
    size_t n;
    tinker_rows *rows;      /* of --test-data, or NULL */
    tinker_rows *questions; /* of --eval-data, or NULL */
    tinker_rows *prompts;   /* whose answers are shown, or NULL */
};

/* The test rows: of --test-data, else those set apart from `rows` (may be NULL); and --eval-data. */
int train_eval_open(struct train_eval *e, struct trainer *t, tinker_rows *rows);
void train_eval_close(struct train_eval *e);
/* Is an evaluation due before `step`, or are answers to be shown? */
bool train_eval_due(const struct train_eval *e, const struct trainer *t, size_t step);
/* Evaluate the weights as they are, and put the results into the metrics line. */
int train_eval_run(struct train_eval *e, struct trainer *t, size_t step);
/* Evaluate what a run ends with.  The numbers belong to no step: they are shown and in the result,
 * not in the metrics. */
int train_eval_end(struct train_eval *e, struct trainer *t);

/* Sampled answers to questions, graded. */
struct eval_score {
    size_t items, errors;
    double accuracy, stderr_; /* share of answers with a score above 0, mean over items */
    double reward;            /* mean score */
    size_t sampled;           /* tokens */
};
/* Ask a sampler n answers to each question and grade them. */
int train_eval_sample(struct trainer *t, tinker_sampler *s, const tinker_rows *questions, size_t n,
                      double temperature, size_t max_tokens, size_t step, struct eval_score *out);
/* Judge answers with all graders of t: the weighted sum into score, NaN when one failed. */
int train_eval_grade(struct trainer *t, tinker_grade *items, size_t n, double *scores,
                     double *by_grader);

#endif
