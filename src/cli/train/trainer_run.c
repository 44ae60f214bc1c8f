/* trainer_run.c - the folder of a run, its checkpoints, and going on where it ended.
 *
 * The checkpoint before step i is submitted before the pass of step i.  The service works in the
 * order of submission, so it holds exactly i updates, and a run that goes on from it repeats
 * nothing. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/clock.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/train/trainer.h"
#include "cli/train/train_config.h"
#include "json/json.h"

/* ---- opening ---- */

/* Kinds are single bits, so the table is sparse; only these entries are ever read. */
static const char *const kind_names[] = {
    [TRAIN_SFT] = "sft", [TRAIN_DPO] = "dpo", [TRAIN_RL] = "rl", [TRAIN_DISTILL] = "distill"
};

/* ./tinker-runs/2026-08-09-101112-sft-NAME, and -2 after it when that second has one already. */
static char *default_folder(const struct trainer *t)
{
    time_t now = time(NULL);
    struct tm tm;
    char day[32];
    struct buf b;
    const char *name = t->o.name;
    localtime_r(&now, &tm);
    strftime(day, sizeof(day), "%Y-%m-%d-%H%M%S", &tm);
    buf_init(&b, 4096);
    if (!name) {
        const char *slash = strrchr(t->o.data, '/');
        name = slash ? slash + 1 : t->o.data;
    }
    /* Without the extension of the data's file, which says nothing about the run. */
    buf_printf(&b, "tinker-runs/%s-%s-%.*s", day, kind_names[t->kind], (int)strcspn(name, "."),
               strcmp(name, "-") == 0 ? "stdin" : name);
    size_t end = b.len;
    for (int i = 2; i < 1000 && buf_ok(&b) && access(b.data, F_OK) == 0; i++) {
        b.len = end;
        buf_printf(&b, "-%d", i);
    }
    return buf_detach(&b, NULL);
}

/* An integer member of a record or a configuration; -1: none. */
static int64_t find_int(const char *json, const char *name)
{
    struct arena a;
    struct json_reader r;
    struct json_str key;
    int64_t v = -1;
    arena_init(&a, SIZE_MAX);
    json_reader_init(&r, json, strlen(json), &a);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        if (!json_str_is(key, name) || json_peek(&r) != JSON_NUMBER || !json_int64(&r, &v))
            json_skip(&r);
    arena_clear(&a);
    return v;
}

/* As find_int() for a string; *out keeps what it was when there is none. */
static void find_text(const char *json, const char *name, char *out, size_t size)
{
    struct arena a;
    struct json_reader r;
    struct json_str key;
    char *text;
    arena_init(&a, SIZE_MAX);
    json_reader_init(&r, json, strlen(json), &a);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        if (json_str_is(key, name) && json_peek(&r) == JSON_STRING && json_cstring(&r, &text))
            snprintf(out, size, "%s", text);
        else
            json_skip(&r);
    arena_clear(&a);
}

/* metadata is what `run list` shows and what chat reads to choose the renderer.  Without --seed
 * the service draws one.  The recipe borrows service and tokenizer: trainer_close() frees them. */
static int create_model(struct trainer *t, const char *from_state, bool optimizer)
{
    tinker_recipe_options o = TINKER_RECIPE_OPTIONS_INIT;
    tinker_lora lora = TINKER_LORA_INIT;
    tinker_named_string metadata[OPT_LIST_MAX + 1];
    char copies[OPT_LIST_MAX][128];
    tinker_error err;
    size_t n = 0;
    metadata[n++] = (tinker_named_string){ "renderer_name", tinker_renderer_name(t->renderer) };
    for (size_t i = 0; i < t->o.metadata.n; i++) {
        snprintf(copies[i], sizeof(copies[i]), "%s", t->o.metadata.items[i]);
        char *equals = strchr(copies[i], '=');
        if (!equals)
            return out_fail(EXIT_USAGE, NULL, "Invalid value for '--metadata': '%s' is no K=V",
                            t->o.metadata.items[i]);
        *equals = 0;
        metadata[n++] = (tinker_named_string){ copies[i], equals + 1 };
    }
    lora.rank = t->o.rank;
    lora.has_seed = t->o.seed != TRAIN_NO_SEED;
    lora.seed = lora.has_seed ? t->o.seed : 0;
    lora.train_mlp = !t->o.no_mlp;
    lora.train_attn = !t->o.no_attn;
    lora.train_unembed = !t->o.no_unembed;
    lora.user_metadata = metadata;
    lora.n_user_metadata = n;
    o.service = t->api.service;
    o.model = t->api.model;
    o.renderer = tinker_renderer_name(t->renderer);
    o.tokenizer = t->tokenizer;
    o.from_state = from_state;
    o.with_optimizer = optimizer;
    o.lora = &lora;
    o.timeout_ms = trainer_wait_ms();
    t->recipe = tinker_recipe_open(&o, &err);
    return t->recipe ? EXIT_OK : trainer_fail(t, &err);
}

/* A record counts epoch and batch, as the cookbook's do; steps follow from the length of an
 * epoch.  Another file under the same name would make step numbers point at other rows, so its
 * hash is compared. */
static int find_start(struct trainer *t, const tinker_checkpoint_record *last)
{
    char was[65] = "";
    size_t epoch = last->epoch > 0 ? (size_t)last->epoch : 0;
    t->start = epoch * t->per_epoch + (size_t)last->batch;
    int64_t tokens = find_int(last->extra, "elapsed_tokens");
    t->elapsed_tokens = tokens > 0 ? (size_t)tokens : 0;
    find_text(last->extra, "data_sha256", was, sizeof(was));
    find_text(last->extra, "reference_path", t->reference_path, sizeof(t->reference_path));
    if (*was && strcmp(was, t->data_sha256) != 0 && !t->o.force_resume)
        return out_fail(EXIT_USAGE, "Give --force-resume to go on all the same.",
                        "the rows are not those that this run was begun with");
    return EXIT_OK;
}

/* tinker_run_rewind() cuts metrics behind the checkpoint: steps after it were lost with the
 * process and will be written again.  A finished run prints its paths again, so that a script
 * can repeat the command safely. */
static int resume_run(struct trainer *t, const tinker_checkpoint_record *last)
{
    tinker_error err;
    char state[512];
    int status = find_start(t, last);
    if (status != EXIT_OK)
        return status;
    snprintf(state, sizeof(state), "%s", last->state_path);
    if (t->start >= t->total) {
        train_view_say(&t->view, "done", "this run was finished: %s", state);
        if (!globals.json)
            printf("%s\n", state);
        if (!globals.json && last->sampler_path)
            printf("%s\n", last->sampler_path);
        return EXIT_OK;
    }
    if (tinker_run_rewind(t->run, t->start, &err) != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    train_view_say(&t->view, "resume", "at step %zu from %s", t->start, state);
    return create_model(t, state, true);
}

/* The folder and its configuration come first: whatever fails later leaves a log there.  The
 * command to continue is noted before the first step, since a machine that loses power prints
 * nothing. */
int trainer_begin(struct trainer *t, const char *config_tail)
{
    tinker_error err;
    struct buf compact, config;
    tinker_run_mode mode = t->o.resume      ? TINKER_RUN_RESUME
                           : t->o.overwrite ? TINKER_RUN_OVERWRITE
                                            : TINKER_RUN_NEW;
    t->out = t->o.out ? strdup(t->o.out) : default_folder(t);
    if (!t->out)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    t->o.out = t->out;
    buf_init(&compact, 16 << 20);
    buf_init(&config, 16 << 20);
    train_config_put(&compact, t, config_tail);
    out_pretty_json(&config, &compact);
    buf_clear(&compact);
    t->run = tinker_run_open(t->out, mode, buf_ok(&config) ? config.data : "{}", &err);
    int status = EXIT_OK;
    if (!t->run)
        status =
            out_fail(strstr(err.message, "is not empty") ? EXIT_USAGE : EXIT_IO,
                     strstr(err.message, "is not empty") ? "Give --resume or --overwrite." : NULL,
                     "%s", err.message);
    else if (tinker_run_config(t->run) && !t->o.force_resume)
        status = train_config_compare(t, tinker_run_config(t->run), config.data);
    buf_clear(&config);
    if (status != EXIT_OK)
        return status;
    train_view_say(&t->view, "folder", "%s", t->out);
    struct buf line;
    buf_init(&line, 65536);
    train_options_repeat(&line, &t->o, t->argc, t->argv);
    tinker_run_note(t->run, "INFO", buf_ok(&line) ? line.data : "");
    buf_clear(&line);
    const tinker_checkpoint_record *last = tinker_run_last(t->run);
    /* A record in the folder means that training has begun; without one even --resume starts
     * from the beginning. */
    status = last ? resume_run(t, last) : create_model(t, t->o.init, t->o.with_optimizer);
    if (status == EXIT_OK)
        trainer_describe(t);
    train_view_init(&t->view);
    t->saved_tokens = t->elapsed_tokens;
    t->saved_ns = clock_now_ns(clock_real());
    /* From here on the first signal is only remembered, see on_stop(). */
    trainer_allow_saving();
    return status;
}

/* ---- checkpoints ---- */

/* Neither is awaited here: both requests take their turn behind the steps that were submitted,
 * and training goes on behind them.  State may be overwritten (a run that is repeated after a
 * crash saves the same name again). Rolling checkpoints exist for resuming only and need no
 * weights for sampling. */
static int submit_save(struct trainer *t, const char *name, size_t step, bool rolling, int64_t ttl)
{
    tinker_save_options o = TINKER_SAVE_OPTIONS_INIT;
    tinker_error err;
    o.ttl_seconds = ttl;
    o.overwrite = 1;
    t->saving_state = tinker_training_save_state(t->recipe->training, name, &o, &err);
    /* Weights for sampling are immutable once saved, since samplers may be using them; only state
     * is overwritten. */
    o.overwrite = 0;
    if (t->saving_state && !rolling)
        t->saving_sampler = tinker_training_save_for_sampler(t->recipe->training, name, &o, &err);
    if (!t->saving_state || (!rolling && !t->saving_sampler))
        return trainer_fail(t, &err);
    t->saving_step = step;
    t->saving_rolling = rolling;
    return EXIT_OK;
}

/* Never at step 0 or where this process began: that state exists already.  At most one save is
 * in flight, so a slow disk slows training down instead of piling saves up. */
int trainer_save_due(struct trainer *t, size_t step)
{
    char name[24];
    if (step == 0 || step == t->start)
        return EXIT_OK;
    int64_t now = clock_now_ns(clock_real());
    bool periodic =
        (t->o.save_every > 0 && step % (size_t)t->o.save_every == 0) ||
        (t->o.save_every_tokens > 0 &&
         t->elapsed_tokens >= t->saved_tokens + (size_t)t->o.save_every_tokens) ||
        (t->o.save_every_seconds > 0 && now - t->saved_ns >= t->o.save_every_seconds * 1000000000);
    bool rolling =
        !periodic && t->o.rolling_save_every > 0 && step % (size_t)t->o.rolling_save_every == 0;
    if (!periodic && !rolling)
        return EXIT_OK;
    int status = trainer_save_finish(t);
    if (status != EXIT_OK)
        return status;
    if (periodic) {
        t->saved_tokens = t->elapsed_tokens;
        t->saved_ns = now;
    }
    snprintf(name, sizeof(name), "%06zu", step);
    return submit_save(t, name, step, rolling, rolling ? t->o.rolling_ttl : t->o.ttl);
}

/* The line in checkpoints.jsonl, written once the service has confirmed the files: a path in it
 * always exists.  `extra` carries what resuming needs beside the cookbook's members. */
static int record_save(struct trainer *t, const char *name, const char *state, const char *sampler)
{
    struct buf extra;
    tinker_error err;
    struct json_writer w;
    bool final = strcmp(name, "final") == 0;
    bool by_epoch = t->kind == TRAIN_SFT || t->kind == TRAIN_DPO;
    size_t step = t->saving_step, epoch = by_epoch && t->per_epoch ? step / t->per_epoch : 0;
    tinker_checkpoint_record c = { .name = name,
                                   .state_path = state,
                                   .sampler_path = sampler,
                                   .rolling = t->saving_rolling,
                                   .epoch = by_epoch ? (int64_t)epoch : -1,
                                   .batch = (int64_t)(step - epoch * t->per_epoch) };
    /* The loops over iterations have no epochs in their records: the batch number is the
     * iteration. */
    if (!by_epoch)
        c.batch = (int64_t)step;
    /* At the very end the cookbook writes (epochs, 0), not (epochs - 1, per_epoch). */
    if (final && by_epoch && step == t->per_epoch * (size_t)t->o.epochs) {
        c.epoch = t->o.epochs;
        c.batch = 0;
    }
    buf_init(&extra, 65536);
    json_writer_init(&w, &extra);
    json_put_begin_object(&w);
    if (t->kind == TRAIN_SFT) {
        json_put_key(&w, "elapsed_tokens");
        json_put_int64(&w, (int64_t)t->elapsed_tokens);
    }
    json_put_key(&w, "step");
    json_put_int64(&w, (int64_t)step);
    json_put_key(&w, "data_sha256");
    json_put_string(&w, t->data_sha256);
    if (*t->reference_path) {
        json_put_key(&w, "reference_path");
        json_put_string(&w, t->reference_path);
    }
    json_put_end_object(&w);
    c.extra = buf_ok(&extra) ? extra.data : NULL;
    tinker_status status = tinker_run_checkpoint(t->run, &c, &err);
    buf_clear(&extra);
    if (status != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    train_view_say(&t->view, "saved", "%s  %s", name, sampler ? sampler : state);
    return EXIT_OK;
}

/* The one before is deleted once the next is safe; if that fails its time will end it. */
static void replace_rolling(struct trainer *t, const char *path)
{
    tinker_error err;
    if (t->rolling_path) {
        tinker_future *f = tinker_rest_delete_checkpoint(t->api.rest, t->rolling_path, &err);
        tinker_future_free(tinker_future_await(f, 10000, &err));
    }
    free(t->rolling_path);
    t->rolling_path = path ? strdup(path) : NULL;
}

/* Without --timeout there is no limit: giving up on a checkpoint that is still being written would
 * lose it. */
static int finish_save(struct trainer *t, const char *name)
{
    int64_t limit_ms = opt_wait_ms(-1);
    tinker_error err;
    if (!t->saving_state)
        return EXIT_OK;
    if (tinker_future_wait(t->saving_state, limit_ms, &err) != TINKER_OK ||
        (t->saving_sampler && tinker_future_wait(t->saving_sampler, limit_ms, &err) != TINKER_OK))
        return trainer_fail(t, &err);
    const char *state = tinker_future_saved_path(t->saving_state);
    const char *sampler = t->saving_sampler ? tinker_future_saved_path(t->saving_sampler) : NULL;
    int status = record_save(t, name, state, sampler);
    if (status == EXIT_OK && t->saving_rolling)
        replace_rolling(t, state);
    tinker_future_free(t->saving_state);
    tinker_future_free(t->saving_sampler);
    t->saving_state = t->saving_sampler = NULL;
    return status;
}

/* Without a save in flight this returns at once; loops call it wherever order matters. */
int trainer_save_finish(struct trainer *t)
{
    char name[24];
    snprintf(name, sizeof(name), "%06zu", t->saving_step);
    return finish_save(t, name);
}

/* ---- the end ---- */

/* Stopped by a signal with `step` steps done: save exactly there unless a checkpoint of this
 * step exists, and print the command that continues.  The exit status is that of a process that
 * the signal ended, so that scripts see an interrupt and not success. */
int trainer_interrupt(struct trainer *t, size_t step)
{
    char name[24];
    struct buf line;
    int status = trainer_save_finish(t);
    const tinker_checkpoint_record *last = tinker_run_last(t->run);
    bool there = last && find_int(last->extra, "step") == (int64_t)step;
    if (status == EXIT_OK && step > t->start && !there) {
        snprintf(name, sizeof(name), "%06zu", step);
        status = submit_save(t, name, step, true, t->o.ttl);
        if (status == EXIT_OK)
            status = finish_save(t, name);
    }
    if (status != EXIT_OK)
        return status;
    buf_init(&line, 65536);
    train_options_repeat(&line, &t->o, t->argc, t->argv);
    train_view_say(&t->view, "stop", "after step %zu; go on with:", step);
    fprintf(stderr, "       %s\n", buf_ok(&line) ? line.data : "");
    buf_clear(&line);
    return 128 + trainer_signal();
}

/* stdout carries data only: two paths for `$(...)`, or one JSON object. */
static void print_result(struct trainer *t, const char *state, const char *sampler)
{
    struct buf out;
    struct json_writer w;
    if (!globals.json) {
        printf("%s\n%s\n", state, sampler);
        return;
    }
    buf_init(&out, 1 << 20);
    json_writer_init(&w, &out);
    json_put_begin_object(&w);
    json_put_key(&w, "run_dir");
    json_put_string(&w, t->out);
    json_put_key(&w, "run_id");
    json_put_string(&w, tinker_training_model_id(t->recipe->training));
    json_put_key(&w, "steps");
    json_put_int64(&w, (int64_t)t->total);
    json_put_key(&w, "state_path");
    json_put_string(&w, state);
    json_put_key(&w, "sampler_path");
    json_put_string(&w, sampler);
    json_put_key(&w, "metrics");
    json_put_begin_object(&w);
    const double values[] = { t->last_loss, t->last_test };
    static const char *const names[] = { "loss", "test" };
    for (size_t i = 0; i < 2; i++)
        if (isfinite(values[i])) {
            json_put_key(&w, names[i]);
            json_put_double(&w, values[i]);
        }
    json_put_end_object(&w);
    json_put_end_object(&w);
    out_json(&out);
    buf_clear(&out);
}

/* "final" has no time to live, unlike the periodic ones: what a run was for does not expire.
 * The lines after "done" are the next commands people type, with the path filled in. */
int trainer_finish(struct trainer *t)
{
    int status = trainer_save_finish(t);
    if (status == EXIT_OK)
        status = submit_save(t, "final", t->total, false, 0);
    t->saving_rolling = false;
    char state[512] = "", sampler[512] = "";
    if (status == EXIT_OK)
        status = finish_save(t, "final");
    if (status != EXIT_OK)
        return status;
    /* "final" is safe, so the last rolling checkpoint has served its purpose. */
    replace_rolling(t, NULL);
    const tinker_checkpoint_record *last = tinker_run_last(t->run);
    snprintf(state, sizeof(state), "%s", last->state_path);
    snprintf(sampler, sizeof(sampler), "%s", last->sampler_path);
    char test[48] = "";
    if (isfinite(t->last_test))
        snprintf(test, sizeof(test), "   test %.3f", t->last_test);
    train_view_say(&t->view, "done", "%zu steps in %.1f s   %s %.3f → %.3f%s", t->total - t->start,
                   train_view_seconds(&t->view), t->kind == TRAIN_RL ? "reward" : "loss",
                   t->first_loss, t->last_loss, test);
    train_view_say(&t->view, "plots", "%s/metrics.svg", t->out);
    /* "last" and not the path, of which a line has room for little else; the paths follow. */
    train_view_say(&t->view, "next", "tinker chat -p last");
    if (t->kind != TRAIN_DPO && (t->kind != TRAIN_RL || t->o.graders.n))
        train_view_say(&t->view, "", "tinker eval -p last --data %s --grader %s", t->o.data,
                       t->o.graders.n ? t->o.graders.items[0] : "exact");
    train_view_say(&t->view, "", "tinker checkpoint download last");
    print_result(t, state, sampler);
    return EXIT_OK;
}

/* A name is a base model, a tinker:// path saved weights: exactly one of the two is given. */
tinker_sampler *trainer_sampler_on(struct trainer *t, const char *name, int *status)
{
    tinker_error err;
    bool path = strncmp(name, "tinker://", 9) == 0;
    tinker_sampler *s = tinker_service_create_sampler(t->api.service, path ? NULL : name,
                                                      path ? name : NULL, trainer_wait_ms(), &err);
    if (!s)
        *status = trainer_fail(t, &err);
    return s;
}
