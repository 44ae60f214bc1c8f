/* trainer.h - what all kinds of `tinker train` share: opening, a folder for the run, checkpoints,
 * metrics, being interrupted, the end.
 *
 * Functions that return int return an exit status, EXIT_OK to go on; errors have been printed. */
#ifndef CLI_TRAINER_H
#define CLI_TRAINER_H

#include <stdbool.h>
#include <tinker/recipe.h>
#include "base/arena.h"
#include "cli/service/api.h"
#include "cli/train/train_options.h"
#include "cli/train/train_view.h"

enum { TRAINER_METRICS = 192, TRAINER_GRADERS = 16 };

struct trainer {
    struct train_options o;
    enum train_kind kind;
    int argc;
    char **argv;
    struct api api;
    tinker_tokenizer *tokenizer;
    tinker_renderer *renderer;
    tinker_recipe *recipe;
    tinker_run *run;
    struct train_view view;
    tinker_adam adam;
    tinker_lr schedule;
    double lr;
    size_t per_epoch, total; /* steps */
    size_t start;            /* first step of this process */
    size_t elapsed_tokens;
    size_t saved_tokens; /* when the last periodic checkpoint was saved */
    int64_t saved_ns;
    char data_sha256[65];
    char reference_path[512]; /* dpo: "" when it is the base model */
    char *out;                /* folder */
    /* a checkpoint that was submitted and not yet awaited */
    tinker_future *saving_state, *saving_sampler;
    char *words[4]; /* of argv, with paths in place of "last" */
    size_t n_words;
    size_t saving_step;
    bool saving_rolling;
    char *rolling_path; /* of the last rolling checkpoint */
    tinker_grader *graders[TRAINER_GRADERS];
    size_t n_graders;
    /* the metrics line that is being put together */
    struct arena names;
    tinker_named_number metrics[TRAINER_METRICS];
    size_t n_metrics;
    tinker_future *logging; /* the line before, on its way to the service */
    bool keeps_no_metrics;  /* the service has said so */
    double last_loss, first_loss, last_test;
};

/* Parse, connect, load tokenizer and renderer.  Signals end the program at once until
 * trainer_begin(). */
int trainer_open(struct trainer *t, enum train_kind kind, int argc, char **argv);
void trainer_close(struct trainer *t);

/* Options for tinker_rows_load() from those of the command. */
int trainer_rows_options(const struct trainer *t, tinker_rows_options *out);
/* Load a file; the first 20 problems are printed. */
int trainer_load(struct trainer *t, const char *path, tinker_rows_options *opts, tinker_rows **out);
int trainer_make_graders(struct trainer *t);
/* How commands that judge are started in this run. */
void trainer_grader_options(const struct trainer *t, tinker_grader_options *o);

/* Print "plan ..." and settle the learning rate.  what: "29 steps of 4 rows, 1 epoch". */
int trainer_plan(struct trainer *t, const char *what);
/* Open the folder, find where to go on, create or restore the model.  From here on the first
 * signal is only remembered. */
int trainer_begin(struct trainer *t, const char *config_tail);
/* A signal has come: finish what is under way and end. */
bool trainer_stopping(void);
/* Which one; 0: none. */
int trainer_signal(void);
/* How long to wait for one answer of the service: --timeout, else a day.  A step or an iteration
 * may take hours on a small machine; a service that is gone is noticed long before. */
int64_t trainer_wait_ms(void);
/* There is something to save from now on. */
void trainer_allow_saving(void);

double trainer_rate(const struct trainer *t, size_t step);
/* Submit a checkpoint if one is due before `step`. */
int trainer_save_due(struct trainer *t, size_t step);
/* Wait for it and record it. */
int trainer_save_finish(struct trainer *t);
/* After an interrupt, or at the end, with exactly `step` steps done.  Both return the exit
 * status of the program. */
int trainer_interrupt(struct trainer *t, size_t step);
int trainer_finish(struct trainer *t);

void trainer_metric(struct trainer *t, const char *name, double value);
void trainer_metrics_all(struct trainer *t, const char *prefix, const tinker_named_number *m,
                         size_t n);
/* Name the run and say its length, for those who watch it. */
void trainer_describe(struct trainer *t);
void trainer_text(struct trainer *t, size_t step, const char *prompt, const char *text);
/* Write the line, show it to the service, and forget it. */
int trainer_log(struct trainer *t, size_t step);
/* A loss that is not finite ends the run: with a message, before any further checkpoint. */
int trainer_check_loss(struct trainer *t, size_t step, double loss);
/* An error of a recipe call. */
int trainer_fail(struct trainer *t, const tinker_error *err);

/* A sampler on a model name or a tinker:// path; NULL after the error was printed. */
tinker_sampler *trainer_sampler_on(struct trainer *t, const char *name, int *status);

#endif
