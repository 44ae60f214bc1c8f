/* trainer.c - see trainer.h. */
#include "cli/train/trainer.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/array.h"
#include "base/number.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/text/text_model.h"
#include "cli/train/train_rate.h"

/* Problems of a file that are printed; the rest is counted.  LOG_PATIENCE_MS: longest wait for a
 * metrics line that is on its way to the service. */
enum { SHOWN_PROBLEMS = 20, LOG_PATIENCE_MS = 2000 };

/* ---- signals ---- */

/* Written by the handler, read by the loops between steps; can_save once, before the first step. */
static volatile sig_atomic_t stop_signal, can_save;

/* Before there is anything to save, and the second time, a signal ends the program at once. */
static void on_stop(int number)
{
    if (!can_save || stop_signal)
        _exit(128 + number);
    stop_signal = number;
}

/* SA_RESTART: file reads of the loop must not fail with EINTR. A signal that was ignored when
 * the program began (nohup, a shell's background job) stays ignored. */
static void watch_signals(void)
{
    static const int numbers[] = { SIGINT, SIGTERM };
    struct sigaction action = { .sa_handler = on_stop, .sa_flags = SA_RESTART }, old;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        sigaction(numbers[i], NULL, &old);
        if (old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
}

bool trainer_stopping(void)
{
    return stop_signal != 0;
}

int trainer_signal(void)
{
    return stop_signal;
}

void trainer_allow_saving(void)
{
    can_save = 1;
}

int64_t trainer_wait_ms(void)
{
    return opt_wait_ms(24 * 3600 * INT64_C(1000));
}

/* ---- opening ---- */

/* The error goes to the run's log as well, so that a run that died overnight says why in its
 * folder. */
int trainer_fail(struct trainer *t, const tinker_error *err)
{
    if (t->view.line_open)
        fputc('\n', stderr);
    t->view.line_open = false;
    if (t->run)
        tinker_run_note(t->run, "ERROR", err->message);
    return api_fail(err, NULL);
}

/* A renderer that does not suit the model is used all the same: fine-tuning a base model into a
 * new chat format is legitimate.  The warning names the one that would fit. */
static int open_text(struct trainer *t)
{
    tinker_renderer_options o = TINKER_RENDERER_OPTIONS_INIT;
    tinker_error err;
    t->tokenizer = text_model_open(&t->api, t->o.tokenizer, &err);
    if (!t->tokenizer)
        return text_model_fail(&err, "Give its directory with --tokenizer DIR.");
    const char *name =
        t->o.renderer ? t->o.renderer : tinker_renderer_for(t->api.model, t->tokenizer);
    tinker_text warning = TINKER_TEXT_INIT;
    if (t->o.renderer && !tinker_renderer_suits(t->api.model, name, &warning))
        out_say("warning: %s", warning.s ? warning.s : "the renderer does not suit the model");
    tinker_text_clear(&warning);
    o.warn = text_model_warn;
    t->renderer = tinker_renderer_new(name, t->tokenizer, &o, &err);
    return t->renderer ? EXIT_OK : out_fail(EXIT_USAGE, NULL, "%s", err.message);
}

/* Replace a "last" by what it means now: it would be another once this run has saved.  The word of
 * argv is replaced, too, since the command to go on is made of them. */
static bool resolve_last(struct trainer *t, const char **option, tinker_checkpoint_kind kind,
                         int *status)
{
    if (!*option || strcmp(*option, "last") != 0)
        return true;
    char *path = api_find_newest(&t->api, "last", kind, status);
    for (int i = 1; path && i < t->argc; i++) {
        if (*option < t->argv[i] || *option > t->argv[i] + strlen(t->argv[i]))
            continue;
        size_t n = (size_t)(*option - t->argv[i]); /* of "--init=" */
        char *word = malloc(n + strlen(path) + 1);
        if (!word)
            break;
        memcpy(word, t->argv[i], n);
        memcpy(word + n, path, strlen(path) + 1);
        t->words[t->n_words++] = t->argv[i] = word;
        *option = word + n;
        break;
    }
    free(path);
    return path != NULL;
}

static int resolve_names(struct trainer *t)
{
    int status = EXIT_OK;
    if (resolve_last(t, &t->o.init, TINKER_CHECKPOINT_TRAINING, &status) &&
        resolve_last(t, &t->o.teacher, TINKER_CHECKPOINT_SAMPLER, &status) &&
        resolve_last(t, &t->o.reference, TINKER_CHECKPOINT_SAMPLER, &status))
        resolve_last(t, &t->o.kl_reference, TINKER_CHECKPOINT_SAMPLER, &status);
    return status;
}

/* The data file is looked at before the network: a typing error should not cost a connection and
 * a tokenizer. */
int trainer_open(struct trainer *t, enum train_kind kind, int argc, char **argv)
{
    int status = EXIT_OK;
    *t = (struct trainer){ .kind = kind, .argc = argc, .argv = argv };
    t->last_loss = t->first_loss = t->last_test = NAN;
    arena_init(&t->names, SIZE_MAX);
    if (!train_options_parse(&t->o, kind, argc, argv, &status))
        return status;
    if (access(t->o.data, R_OK) != 0 && strcmp(t->o.data, "-") != 0)
        return out_fail(EXIT_DATA, NULL, "%s: %s", t->o.data, strerror(errno));
    watch_signals();
    if (!api_open_model(&t->api, t->o.model, NULL, &status))
        return status;
    status = resolve_names(t);
    if (status != EXIT_OK)
        return status;
    train_view_init(&t->view);
    return open_text(t);
}

/* What is sent for people who watch must never fail or delay a run: one request at a time is on
 * its way, and the first that fails is the last, since most services have no place for it. */
static bool may_send_metrics(struct trainer *t)
{
    tinker_error err;
    if (t->logging && tinker_future_wait(t->logging, LOG_PATIENCE_MS, &err) != TINKER_OK)
        t->keeps_no_metrics = true;
    tinker_future_free(t->logging);
    t->logging = NULL;
    return !t->keeps_no_metrics;
}

void trainer_close(struct trainer *t)
{
    train_view_clear(&t->view);
    for (size_t i = 0; i < t->n_graders; i++)
        tinker_grader_free(t->graders[i]);
    tinker_future_free(t->saving_state);
    tinker_future_free(t->saving_sampler);
    may_send_metrics(t); /* the last line arrives */
    tinker_recipe_close(t->recipe);
    tinker_run_close(t->run);
    tinker_renderer_free(t->renderer);
    tinker_tokenizer_free(t->tokenizer);
    if (t->api.service)
        api_close(&t->api);
    arena_clear(&t->names);
    for (size_t i = 0; i < t->n_words; i++)
        free(t->words[i]);
    free(t->rolling_path);
    free(t->out);
}

/* ---- data ---- */

/* The words of the options into the values of recipe.h; the parser has refused other words
 * already where a table of choices exists. */
int trainer_rows_options(const struct trainer *t, tinker_rows_options *out)
{
    const struct train_options *o = &t->o;
    const tinker_rows_options defaults = TINKER_ROWS_OPTIONS_INIT;
    tinker_error err;
    char *end;
    *out = defaults;
    if (tinker_row_form_parse(o->form, &out->form, &err) != TINKER_OK ||
        tinker_train_on_parse(o->train_on, &out->train_on, &err) != TINKER_OK)
        return out_fail(EXIT_USAGE, NULL, "%s", err.message);
    out->reduction =
        strcmp(o->reduction, "none") == 0 ? TINKER_REDUCTION_NONE : TINKER_REDUCTION_MEAN;
    out->on_truncate = strcmp(o->on_truncate, "cut") == 0    ? TINKER_TRUNCATE_CUT
                       : strcmp(o->on_truncate, "fail") == 0 ? TINKER_TRUNCATE_FAIL
                                                             : TINKER_TRUNCATE_DROP;
    out->max_length = (size_t)o->max_length;
    out->test_size = (size_t)o->test_size;
    out->batch_size = (size_t)o->batch_size;
    out->keep_last = strcmp(o->last_batch, "keep") == 0;
    out->shuffle_seed = strcmp(o->shuffle_seed, "none") == 0
                            ? TINKER_SHUFFLE_NONE
                            : (int64_t)strtoll(o->shuffle_seed, &end, 10);
    if (out->shuffle_seed >= 0 && (*end || end == o->shuffle_seed))
        return out_fail(EXIT_USAGE, NULL, "Invalid value for '--shuffle-seed': '%s'",
                        o->shuffle_seed);
    return EXIT_OK;
}

struct problem_list {
    const char *path;
    size_t n;
};

/* file:line:column, which editors and CI systems turn into links. */
static void print_problem(size_t line, size_t column, const char *reason, void *state)
{
    struct problem_list *list = state;
    if (list->n++ < SHOWN_PROBLEMS)
        fprintf(stderr, "%s:%zu:%zu: %s\n", list->path, line, column, reason);
}

int trainer_load(struct trainer *t, const char *path, tinker_rows_options *opts, tinker_rows **out)
{
    struct problem_list list = { path, 0 };
    tinker_error err;
    opts->problem = print_problem;
    opts->problem_state = &list;
    *out = tinker_rows_load(path, t->renderer, t->tokenizer, opts, &err);
    if (*out)
        return EXIT_OK;
    if (list.n > SHOWN_PROBLEMS)
        fprintf(stderr, "... and %zu more\n", list.n - SHOWN_PROBLEMS);
    if (list.n > 0)
        return out_fail(EXIT_DATA, "Nothing was sent.", "%s: %zu row%s cannot be used", path,
                        list.n, list.n == 1 ? "" : "s");
    /* More test rows than rows is a wrong option, not wrong data; both come as TINKER_EINVAL. */
    bool usage = strstr(err.message, "test rows") != NULL;
    return out_fail(usage ? EXIT_USAGE : EXIT_DATA, NULL, "%s", err.message);
}

void trainer_grader_options(const struct trainer *t, tinker_grader_options *o)
{
    o->ignore_case = t->o.ignore_case;
    o->normalize = t->o.normalize;
    o->timeout_ms = t->o.grader_timeout * 1000;
    o->workers = (size_t)t->o.grader_workers;
    o->run_dir = t->out;
    o->log_fd = t->run ? tinker_run_log_fd(t->run) : -1;
}

/* --reward-cmd is the last grader, "cmd:COMMAND". Graders of a run write what their commands say
 * on stderr into its log; without a run (tinker eval) it goes to ours. */
int trainer_make_graders(struct trainer *t)
{
    tinker_grader_options o = TINKER_GRADER_OPTIONS_INIT;
    tinker_error err;
    char command[4096];
    trainer_grader_options(t, &o);
    for (size_t i = 0; i < t->o.graders.n + (t->o.reward_cmd != NULL); i++) {
        const char *spec = i < t->o.graders.n ? t->o.graders.items[i] : command;
        snprintf(command, sizeof(command), "cmd:%s", t->o.reward_cmd ? t->o.reward_cmd : "");
        if (t->n_graders == TRAINER_GRADERS)
            return out_fail(EXIT_USAGE, NULL, "At most %d graders.", TRAINER_GRADERS);
        tinker_grader *g = tinker_grader_new(spec, &o, &err);
        if (!g)
            return out_fail(EXIT_USAGE, NULL, "%s", err.message);
        t->graders[t->n_graders++] = g;
    }
    return EXIT_OK;
}

/* ---- the plan ---- */

static int settle_rate(struct trainer *t, const char **rule)
{
    char dir[MODEL_DIR_MAX];
    *rule = NULL;
    if (strcmp(t->o.lr, "auto") == 0)
        t->lr = train_rate_auto(t->api.model, text_model_dir(&t->api, dir) ? dir : NULL, t->kind,
                                strcmp(t->o.mode, "on-policy") == 0, rule);
    else if (!number_read(t->o.lr, &t->lr) || !(t->lr >= 0))
        return out_fail(EXIT_USAGE, NULL, "Invalid value for '--lr': '%s'", t->o.lr);
    tinker_error err;
    if (tinker_lr_parse(t->o.schedule, &t->schedule, &err) != TINKER_OK)
        return out_fail(EXIT_USAGE, NULL, "%s", err.message);
    tinker_adam adam = TINKER_ADAM_RECIPE;
    adam.beta1 = t->o.beta1;
    adam.beta2 = t->o.beta2;
    /* the cookbook's loops say 1e-8, but off-policy distillation leaves it to the service */
    if (isnan(t->o.eps))
        t->o.eps = strcmp(t->o.mode, "off-policy") == 0 ? 1e-12 : 1e-8;
    adam.eps = t->o.eps;
    adam.weight_decay = t->o.weight_decay;
    adam.grad_clip_norm = t->o.grad_clip;
    t->adam = adam;
    return EXIT_OK;
}

/* Printed before anything is sent, and all that --dry-run prints: enough to see that the run is
 * the intended one. */
int trainer_plan(struct trainer *t, const char *what)
{
    const char *rule;
    int status = settle_rate(t, &rule);
    if (status != EXIT_OK)
        return status;
    train_view_say(&t->view, "model", "%s  %s  rank %lld", t->api.model,
                   tinker_renderer_name(t->renderer), (long long)t->o.rank);
    train_view_say(&t->view, "plan", "%s  lr %.1e %s%s%s%s", what, t->lr, t->o.schedule,
                   rule ? " (" : "", rule ? rule : "", rule ? ")" : "");
    return EXIT_OK;
}

/* --min-lr is a floor below schedule and warm-up; it also holds during warm-up. */
double trainer_rate(const struct trainer *t, size_t step)
{
    double rate = t->lr * tinker_lr_multiplier(t->schedule, step, t->total, (size_t)t->o.warmup);
    return rate > t->o.min_lr ? rate : t->o.min_lr;
}

/* ---- metrics ---- */

/* Names are copied into an arena that lives as long as the line.  Beyond TRAINER_METRICS names
 * the rest is left out: a service that sends hundreds of metrics must not end a run. */
void trainer_metric(struct trainer *t, const char *name, double value)
{
    if (t->n_metrics == TRAINER_METRICS)
        return;
    t->metrics[t->n_metrics].name = arena_strdup(&t->names, name);
    t->metrics[t->n_metrics++].value = value;
}

/* The prefix keeps the service's names apart from ours where both have a "loss". */
void trainer_metrics_all(struct trainer *t, const char *prefix, const tinker_named_number *m,
                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char name[160];
        snprintf(name, sizeof(name), "%s%.120s", prefix, m[i].name);
        trainer_metric(t, name, m[i].value);
    }
}

void trainer_describe(struct trainer *t)
{
    tinker_error err;
    tinker_run_description d = TINKER_RUN_DESCRIPTION_INIT;
    const char *slash = strrchr(t->out, '/');
    d.name = t->o.name ? t->o.name : slash ? slash + 1 : t->out;
    if (t->o.resume && !t->o.name)
        d.name = NULL; /* keeps the name that the run began with */
    d.planned_steps = (int64_t)t->total;
    if (t->recipe && may_send_metrics(t)) /* none: the run that is resumed was done */
        t->logging = tinker_training_describe(t->recipe->training, &d, &err);
}

/* The service has its own numbers of a pass, whose names have a colon. */
static void send_metrics(struct trainer *t, size_t step)
{
    tinker_named_number own[TRAINER_METRICS];
    tinker_error err;
    size_t n = 0;
    for (size_t i = 0; i < t->n_metrics; i++)
        if (!strchr(t->metrics[i].name, ':') && isfinite(t->metrics[i].value))
            own[n++] = t->metrics[i];
    if (n > 0 && may_send_metrics(t))
        t->logging = tinker_training_log(t->recipe->training, (int64_t)step + 1, own, n, &err);
}

/* An answer of the model, for the page of the run. */
void trainer_text(struct trainer *t, size_t step, const char *prompt, const char *text)
{
    tinker_error err;
    if (may_send_metrics(t))
        t->logging =
            tinker_training_log_text(t->recipe->training, (int64_t)step, NULL, prompt, text, &err);
}

/* The file first: it is the record of the run.  What the service gets is for those who watch. */
int trainer_log(struct trainer *t, size_t step)
{
    tinker_error err;
    tinker_status status = tinker_run_log(t->run, step, t->metrics, t->n_metrics, &err);
    send_metrics(t, step);
    t->n_metrics = 0;
    arena_clear(&t->names);
    arena_init(&t->names, SIZE_MAX);
    return status == TINKER_OK ? EXIT_OK : out_fail(EXIT_IO, NULL, "%s", err.message);
}

/* NaN or infinity never heals: Adam's moments are NaN from here on.  The run ends before the
 * next checkpoint, so the last one on disk is still good, and the message names it. */
int trainer_check_loss(struct trainer *t, size_t step, double loss)
{
    if (isfinite(loss)) {
        if (isnan(t->first_loss))
            t->first_loss = loss;
        t->last_loss = loss;
        return EXIT_OK;
    }
    const tinker_checkpoint_record *last = tinker_run_last(t->run);
    char hint[640];
    snprintf(hint, sizeof(hint), "Try a lower --lr.%s%s", last ? " The last good checkpoint: " : "",
             last ? last->state_path : "");
    train_view_clear(&t->view);
    return out_fail(EXIT_FAILED, hint, "step %zu: the loss is not finite", step);
}
