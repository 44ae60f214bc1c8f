/* train_config.c - see train_config.h. */
#include "cli/train/train_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/version.h>
#include "cli/command.h"
#include "cli/output/out.h"
#include "json/json.h"

/* Members are never left out: the cookbook's reader expects each of them. */
static void put_text(struct json_writer *w, const char *key, const char *value)
{
    json_put_key(w, key);
    if (value)
        json_put_string(w, value);
    else
        json_put_null(w);
}

static void put_int(struct json_writer *w, const char *key, int64_t value)
{
    json_put_key(w, key);
    json_put_int64(w, value);
}

/* NaN stands for "not given" in the options and for null in the file; JSON has no NaN. */
static void put_double(struct json_writer *w, const char *key, double value)
{
    json_put_key(w, key);
    if (isfinite(value))
        json_put_double(w, value);
    else
        json_put_null(w);
}

static void put_bool(struct json_writer *w, const char *key, bool value)
{
    json_put_key(w, key);
    json_put_bool(w, value);
}

/* A feature of the cookbook that has no counterpart here. */
static void put_empty_list(struct json_writer *w, const char *key)
{
    json_put_key(w, key);
    json_put_begin_array(w);
    json_put_end_array(w);
}

/* The nesting is that of the cookbook's dataset builders, because its viewers and notebooks read
 * config.json of a run and look for these members. */
static void put_dataset(struct json_writer *w, const struct trainer *t)
{
    json_put_key(w, "dataset_builder");
    json_put_begin_object(w);
    json_put_key(w, "common_config");
    json_put_begin_object(w);
    put_text(w, "model_name_for_tokenizer", t->api.model);
    put_text(w, "renderer_name", tinker_renderer_name(t->renderer));
    put_int(w, "max_length", t->o.max_length);
    put_int(w, "batch_size", t->o.batch_size);
    put_text(w, "train_on_what", t->o.train_on);
    json_put_end_object(w);
    put_text(w, "file_path", t->o.data);
    put_int(w, "test_size", t->o.test_size);
    if (strcmp(t->o.shuffle_seed, "none") == 0)
        put_text(w, "shuffle_seed", NULL);
    else
        put_int(w, "shuffle_seed", strtoll(t->o.shuffle_seed, NULL, 10));
    json_put_end_object(w);
}

/* What must stay as it was for the rest of a run to be the rest of that run. */
static void put_resume_key(struct json_writer *w, const struct trainer *t)
{
    json_put_key(w, "resume_key");
    json_put_begin_object(w);
    put_text(w, "model", t->api.model);
    put_text(w, "command", t->argv[0]);
    put_int(w, "rank", t->o.rank);
    put_text(w, "renderer", tinker_renderer_name(t->renderer));
    put_text(w, "train_on", t->o.train_on);
    put_int(w, "max_length", t->o.max_length);
    put_text(w, "reduction", t->o.reduction);
    put_int(w, "batch_size", t->o.batch_size);
    put_int(w, "groups", t->o.groups);
    put_int(w, "group_size", t->o.group_size);
    put_text(w, "shuffle_seed", t->o.shuffle_seed);
    put_int(w, "epochs", t->o.epochs);
    put_text(w, "lr_schedule", t->o.schedule);
    put_double(w, "learning_rate", t->lr);
    put_int(w, "total_steps", (int64_t)t->total);
    json_put_end_object(w);
}

/* Members that the cookbook does not know are kept apart in one object, so that they can never
 * clash with members it adds later. */
static void put_ours(struct json_writer *w, const struct trainer *t)
{
    json_put_key(w, "tinker");
    json_put_begin_object(w);
    put_text(w, "version", TINKER_VERSION);
    json_put_key(w, "command");
    json_put_begin_array(w);
    for (int i = 0; i < t->argc; i++)
        json_put_string(w, t->argv[i]);
    json_put_end_array(w);
    put_text(w, "data_sha256", t->data_sha256);
    if (t->o.seed == TRAIN_NO_SEED)
        put_text(w, "seed", NULL);
    else
        put_int(w, "seed", t->o.seed);
    put_resume_key(w, t);
    json_put_end_object(w);
}

/* Order and names of the cookbook's Config, with null, 0 or false for features that this program
 * does not have (async saves, wandb, traces). `tail` is text from a command for members of its
 * own; `tinker` comes last. */
void train_config_put(struct buf *out, const struct trainer *t, const char *tail)
{
    const struct train_options *o = &t->o;
    struct json_writer w;
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    put_text(&w, "log_path", t->out);
    put_text(&w, "model_name", t->api.model);
    put_text(&w, "recipe_name", t->argv[0]);
    put_text(&w, "load_checkpoint_path", o->init);
    put_text(&w, "renderer_name", tinker_renderer_name(t->renderer));
    put_dataset(&w, t);
    put_double(&w, "learning_rate", t->lr);
    put_text(&w, "lr_schedule", o->schedule);
    put_int(&w, "num_epochs", o->epochs);
    put_int(&w, "lora_rank", o->rank);
    put_text(&w, "base_url", NULL);
    put_empty_list(&w, "evaluator_builders");
    put_empty_list(&w, "infrequent_evaluator_builders");
    put_int(&w, "save_every", o->save_every);
    put_int(&w, "save_every_tokens", o->save_every_tokens);
    put_double(&w, "save_every_seconds", (double)o->save_every_seconds);
    put_int(&w, "eval_every", o->eval_every);
    put_int(&w, "infrequent_eval_every", 100);
    put_int(&w, "ttl_seconds", o->ttl);
    put_int(&w, "rolling_save_every", o->rolling_save_every);
    put_int(&w, "rolling_ttl_seconds", o->rolling_ttl);
    put_bool(&w, "async_periodic_saves", false);
    put_double(&w, "adam_beta1", o->beta1);
    put_double(&w, "adam_beta2", o->beta2);
    put_double(&w, "adam_eps", o->eps);
    put_text(&w, "wandb_project", NULL);
    put_text(&w, "wandb_name", NULL);
    put_text(&w, "session_name", o->name);
    put_bool(&w, "enable_trace", false);
    put_int(&w, "span_chart_every", 0);
    json_put_key(&w, "max_steps");
    if (o->max_steps < 0)
        json_put_null(&w);
    else
        json_put_int64(&w, o->max_steps);
    put_int(&w, "submit_ahead", o->submit_ahead);
    buf_puts(out, tail);
    put_ours(&w, t);
    json_put_end_object(&w);
    buf_putc(out, '\n');
}

/* ---- comparing ---- */

/* The value as it stands in the file, so that comparing two configurations needs no types: equal
 * text is an equal setting. */
static struct json_str find_raw(struct arena *a, struct json_str from, const char *name, size_t n)
{
    struct json_reader r;
    struct json_str key, value = { NULL, 0 };
    json_reader_init(&r, from.s, from.n, a);
    if (json_peek(&r) != JSON_OBJECT)
        return value;
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        if (key.n != n || memcmp(key.s, name, n) != 0 || !json_raw(&r, &value))
            json_skip(&r);
    return value;
}

/* Two levels down: members of ours are kept in one object. */
static struct json_str find_resume_key(struct arena *a, const char *json)
{
    struct json_str all = { json, strlen(json) };
    return find_raw(a, find_raw(a, all, "tinker", 6), "resume_key", 10);
}

/* Only resume_key decides: names, addresses and what is shown may change between two parts of a
 * run, what determines its steps may not. */
int train_config_compare(const struct trainer *t, const char *old, const char *new)
{
    struct arena a;
    struct json_reader r;
    struct json_str key, value, was;
    int status = EXIT_OK;
    (void)t;
    arena_init(&a, SIZE_MAX);
    struct json_str before = find_resume_key(&a, old), now = find_resume_key(&a, new);
    if (before.s && now.s) {
        json_reader_init(&r, now.s, now.n, &a);
        json_begin_object(&r);
        while (status == EXIT_OK && json_next_key(&r, &key) && json_raw(&r, &value)) {
            /* A member that the old file lacks was added by a later version of this program and
             * had no meaning then. */
            was = find_raw(&a, before, key.s, key.n);
            if (was.s && (was.n != value.n || memcmp(was.s, value.s, was.n) != 0))
                status = out_fail(EXIT_USAGE, "Give --force-resume to go on all the same.",
                                  "this run was begun with %.*s %.*s, not %.*s", (int)key.n, key.s,
                                  (int)was.n, was.s, (int)value.n, value.s);
        }
    }
    arena_clear(&a);
    return status;
}
