/* train_rl.c - sample, judge, train, again.
 *
 * An iteration samples a group of answers to each prompt of its batch with the weights as they
 * are, turns rewards into advantages within each group, and takes one or more optimizer steps.
 * On-policy distillation is the same with rewards of 0: all that moves an answer is what the
 * teacher thinks of its tokens.  Seeds depend on the iteration alone, so an iteration that is
 * repeated after an interrupt samples the same answers. */
#include "cli/train/train_rl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/number.h"
#include "base/os.h"
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/train/rl_prompt.h"
#include "cli/train/rl_turns.h"
#include "cli/train/train_eval.h"
#include "json/json.h"

/* SHOW_EVERY: iterations between two looks at answers.  ANSWER_WIDTH: bytes of an answer shown. */
enum { SHOW_EVERY = 10, MAX_CONFIG = 16, ANSWER_WIDTH = 200 };

/* An iteration whose answers are under way.  The last one that a sampler was asked for owns it. */
struct rl_ahead {
    tinker_rollouts *x;
    tinker_sampler *sampler;
    bool owns;
    size_t step; /* of the weights */
};

struct rl {
    struct trainer *t;
    tinker_rows *rows;
    size_t n_rows, groups;
    struct train_eval eval;
    tinker_sampler *reference;     /* of the KL, or the teacher */
    tinker_sampler *sampler;       /* of the weights as they are; NULL: none yet */
    tinker_grader *world;          /* --env-cmd */
    tinker_conversation *examples; /* --fewshot */
    double length_reward;
    bool clamp_cut;                             /* --length-reward clamp */
    struct rl_ahead ahead[TRAIN_MAX_AHEAD + 1]; /* iterations that are being sampled */
    size_t asked;                               /* of which this is the first that is not */
    bool distill;
    tinker_loss loss;
    tinker_named_number config[MAX_CONFIG];
    char config_names[MAX_CONFIG][48];
    tinker_advantage advantage;
    bool drop_constant;
    double format_coef;
    size_t skipped; /* iterations in a row without anything to train */
    /* of the iteration */
    struct arena arena;
    size_t *order, n; /* rows */
    tinker_rollouts *x;
    struct rl_turns turns;
    double *scores, by_grader[TRAINER_GRADERS];
    size_t failed;
};

/* ---- settings ---- */

/* NAME=NUMBER of --loss-config.  The name is copied because it ends at '=', not at a NUL.
 * Unknown names are left to the service, which may know losses that we do not. */
static int add_config(struct rl *r, const char *text)
{
    const char *equals = strchr(text, '=');
    size_t n = r->loss.n_config;
    if (!equals || n == MAX_CONFIG || !number_read(equals + 1, &r->config[n].value))
        return out_fail(EXIT_USAGE, NULL, "Invalid value for '--loss-config': '%s'", text);
    snprintf(r->config_names[n], sizeof(r->config_names[n]), "%.*s", (int)(equals - text), text);
    r->config[n].name = r->config_names[n];
    r->loss.config = r->config;
    r->loss.n_config++;
    return EXIT_OK;
}

/* Names that people know for settings of the losses that the service has. */
static int choose_loss(struct rl *r)
{
    const struct train_options *o = &r->t->o;
    tinker_error err;
    int status = EXIT_OK;
    if (tinker_advantage_parse(o->advantage, &r->advantage, &err) != TINKER_OK)
        return out_fail(EXIT_USAGE, NULL, "%s", err.message);
    r->loss.name = o->loss;
    r->drop_constant = !o->keep_constant && !r->distill;
    if (strcmp(o->loss, "grpo") == 0 || strcmp(o->loss, "dapo") == 0) {
        /* Both are the clipped surrogate of PPO; ratios outside of [low, high] give no gradient.
         * GRPO divides advantages by their deviation within the group; DAPO raises the upper
         * bound ("clip higher"), so that unlikely tokens can still gain, and drops groups
         * without any contrast. */
        bool grpo = strcmp(o->loss, "grpo") == 0;
        r->loss.name = "ppo";
        r->advantage = grpo ? TINKER_ADVANTAGE_GRPO : r->advantage;
        r->drop_constant = r->drop_constant || !grpo;
        status = add_config(r, "clip_low_threshold=0.8");
        if (status == EXIT_OK)
            status = add_config(r, grpo ? "clip_high_threshold=1.2" : "clip_high_threshold=1.28");
    } else if (strcmp(o->loss, "reinforce") == 0) {
        r->loss.name = "importance_sampling";
        r->advantage = TINKER_ADVANTAGE_RAW;
    }
    for (size_t i = 0; status == EXIT_OK && i < o->loss_config.n; i++)
        status = add_config(r, o->loss_config.items[i]);
    r->clamp_cut = o->length_reward && strcmp(o->length_reward, "clamp") == 0;
    r->length_reward = NAN;
    if (status == EXIT_OK && o->length_reward && !r->clamp_cut &&
        !number_read(o->length_reward, &r->length_reward))
        status = out_fail(EXIT_USAGE, NULL, "Invalid value for '--length-reward': '%s'",
                          o->length_reward);
    /* The penalty for a wrong form, as in the cookbook's environments: 0.1 where a form is asked
     * for by the template, none where the prompt asks for nothing. */
    r->format_coef =
        isnan(o->format_coef) ? strcmp(o->template, "none") == 0 ? 0 : 0.1 : o->format_coef;
    return status;
}

/* A program like a grader, which also says what comes next. */
static int open_world(struct rl *r)
{
    tinker_grader_options o = TINKER_GRADER_OPTIONS_INIT;
    struct buf spec;
    tinker_error err;
    trainer_grader_options(r->t, &o);
    buf_init(&spec, 65536);
    buf_printf(&spec, "cmd:%s", r->t->o.env_cmd);
    r->world = tinker_grader_new(buf_ok(&spec) ? spec.data : "cmd:", &o, &err);
    buf_clear(&spec);
    return r->world ? EXIT_OK : out_fail(EXIT_USAGE, NULL, "%s", err.message);
}

/* The limit keeps a wrong file (a data set, a model) from filling memory before it is refused. */
static int read_examples(struct rl *r)
{
    enum { MOST = 16 << 20 };
    tinker_error err;
    char *data;
    size_t n;
    if (os_read_file(r->t->o.fewshot, MOST, &data, &n, &err) != TINKER_OK)
        return out_fail(EXIT_DATA, NULL, "%s", err.message);
    r->examples = tinker_conversation_parse(data, n, &err);
    free(data);
    return r->examples ? EXIT_OK
                       : out_fail(EXIT_DATA, NULL, "%s: %s", r->t->o.fewshot, err.message);
}

/* An epoch asks every row once, `groups` rows per iteration; its last iteration may be smaller.
 * The buffers have the size of the largest iteration and are used again by every one. */
static int prepare_prompts(struct rl *r)
{
    struct trainer *t = r->t;
    tinker_rows_options o = TINKER_ROWS_OPTIONS_INIT;
    o.prompts_only = 1;
    tinker_error err;
    if (tinker_row_form_parse(t->o.form, &o.form, &err) != TINKER_OK)
        return out_fail(EXIT_USAGE, NULL, "%s", err.message);
    int status = trainer_load(t, t->o.data, &o, &r->rows);
    if (status != EXIT_OK)
        return status;
    tinker_row row;
    if (tinker_rows_prompt(r->rows, 0, &row, &err) != TINKER_OK)
        return out_fail(EXIT_DATA, NULL, "%s", err.message);
    r->n_rows = tinker_rows_count(r->rows).rows;
    r->groups = (size_t)t->o.groups < r->n_rows ? (size_t)t->o.groups : r->n_rows;
    t->per_epoch = (r->n_rows + r->groups - 1) / r->groups;
    t->total = t->per_epoch * (size_t)t->o.epochs;
    if (t->o.max_steps >= 0 && (size_t)t->o.max_steps < t->total)
        t->total = (size_t)t->o.max_steps;
    r->order = calloc(r->n_rows + 1, sizeof(*r->order));
    r->scores = calloc(r->groups * (size_t)t->o.group_size + 1, sizeof(*r->scores));
    return r->order && r->scores ? train_eval_open(&r->eval, t, NULL)
                                 : out_fail(EXIT_FAILED, NULL, "out of memory");
}

/* Which rows an iteration asks: r->order[from..from + r->n). The order of an epoch depends on
 * seed and epoch alone, so an iteration that is run again after an interrupt asks the same rows. */
static size_t find_batch(struct rl *r, size_t i)
{
    struct trainer *t = r->t;
    size_t epoch = i / t->per_epoch, from = i % t->per_epoch * r->groups;
    uint64_t seed = t->o.seed == TRAIN_NO_SEED ? 0 : (uint64_t)t->o.seed;
    if (strcmp(t->o.shuffle_seed, "none") == 0)
        for (size_t k = 0; k < r->n_rows; k++)
            r->order[k] = k;
    else
        tinker_permutation(seed + epoch, r->n_rows, r->order);
    r->n = r->n_rows - from < r->groups ? r->n_rows - from : r->groups;
    return from;
}

/* The expected answer of the first row should be a good answer: a grader that says otherwise, or
 * fails, is found before anything is sampled. */
static int probe_graders(struct rl *r)
{
    struct trainer *t = r->t;
    tinker_row row;
    double score;
    tinker_rows_prompt(r->rows, 0, &row, NULL);
    if (t->o.no_probe || !row.expected || !t->n_graders)
        return EXIT_OK;
    char *json = strndup(row.json, row.n_json);
    tinker_grade item = { .text = row.expected,
                          .expected = row.expected,
                          .row = json,
                          .split = "train",
                          .stop_reason = "stop",
                          .tokens = 1,
                          .probe = 1 };
    int status = train_eval_grade(t, &item, 1, &score, NULL);
    free(json);
    if (status != EXIT_OK)
        return EXIT_DATA;
    if (isnan(score))
        return out_fail(EXIT_DATA, "Give --no-probe to go on all the same.",
                        "the grader cannot judge the expected answer of the first row: %s",
                        item.reason);
    train_view_say(&t->view, "grader", "the expected answer of row 1 scores %g%s", score,
                   score > 0 ? "" : ": is this the right grader?");
    return EXIT_OK;
}

/* ---- answers ---- */

/* The prompts of the rows r->order[from..from + r->n), in the arena. */
static const tinker_conversation **make_prompts(struct rl *r, struct arena *a, size_t from)
{
    const tinker_conversation **prompts = arena_array(a, r->n + 1, sizeof(*prompts));
    for (size_t p = 0; prompts && p < r->n; p++) {
        tinker_row row;
        tinker_rows_prompt(r->rows, r->order[from + p], &row, NULL);
        prompts[p] = rl_prompt_make(a, &r->t->o, r->examples, &row);
        if (!prompts[p])
            return NULL;
    }
    return prompts;
}

static tinker_rollout_options how_to_sample(const struct rl *r, size_t i)
{
    const struct train_options *o = &r->t->o;
    tinker_rollout_options how = TINKER_ROLLOUT_OPTIONS_INIT;
    how.group_size = (size_t)o->group_size;
    how.one_request_each = strcmp(o->sample_mode, "each") == 0;
    how.timeout_ms = trainer_wait_ms();
    how.params.max_tokens = o->max_tokens;
    how.params.temperature = o->temperature;
    how.params.has_seed = !o->no_sample_seed;
    /* Request p of iteration i gets a number that no other request of the run has, modulo 2^31 as
     * samplers expect; 1000003, a prime, keeps runs with neighboring --seed values from sharing
     * any. */
    int64_t given = o->sample_seed != TRAIN_NO_SEED ? o->sample_seed : o->seed;
    uint64_t seed = given == TRAIN_NO_SEED ? 0 : (uint64_t)given;
    uint64_t each = how.one_request_each ? how.group_size : 1;
    how.params.seed = (int64_t)((seed * 1000003 + i * r->groups * each) % (UINT64_C(1) << 31));
    return how;
}

/* At most TRAIN_MAX_AHEAD + 1 iterations are under way, so neighbors never share a slot. */
static struct rl_ahead *slot_of(struct rl *r, size_t i)
{
    return &r->ahead[i % (TRAIN_MAX_AHEAD + 1)];
}

/* Ask for the answers of iteration j with the weights after `step` steps. */
static int ask_answers(struct rl *r, size_t j, size_t step, bool last)
{
    struct trainer *t = r->t;
    struct rl_ahead *slot = slot_of(r, j);
    tinker_rollout_options how = how_to_sample(r, j);
    struct arena arena;
    tinker_error err;
    arena_init(&arena, SIZE_MAX);
    /* r->order and r->n now describe iteration j; the caller finds the batch of its own again
     * before it uses them. */
    size_t from = find_batch(r, j);
    const tinker_conversation **prompts = make_prompts(r, &arena, from);
    *slot = (struct rl_ahead){ .sampler = r->sampler, .owns = last, .step = step };
    if (prompts)
        slot->x = tinker_rollouts_submit(r->sampler, t->renderer, t->tokenizer, prompts, r->n, &how,
                                         &err);
    else
        err = (tinker_error){ .status = TINKER_ENOMEM, .message = "out of memory" };
    arena_clear(&arena);
    /* Ownership goes to the slot: these weights are freed with the last answers drawn from them. */
    if (last)
        r->sampler = NULL;
    return slot->x ? EXIT_OK : trainer_fail(t, &err);
}

/* Everything up to --async iterations ahead is asked of the weights as they are, so what is trained
 * is never older than that, and the same run samples the same answers whatever the timing. */
static int sample_answers(struct rl *r, size_t i)
{
    struct trainer *t = r->t;
    tinker_error err;
    size_t end = i + (size_t)t->o.ahead + 1;
    end = end < t->total ? end : t->total;
    if (r->asked < end && !r->sampler) {
        r->sampler = tinker_training_create_sampler(t->recipe->training, trainer_wait_ms(), &err);
        if (!r->sampler)
            return trainer_fail(t, &err);
    }
    int status = EXIT_OK;
    for (; status == EXIT_OK && r->asked < end; r->asked++)
        status = ask_answers(r, r->asked, i, r->asked + 1 == end);
    if (status != EXIT_OK)
        return status;
    r->x = slot_of(r, i)->x;
    return tinker_rollouts_wait(r->x, trainer_wait_ms(), &err) == TINKER_OK ? EXIT_OK
                                                                            : trainer_fail(t, &err);
}

/* A slot that was never asked is all zero, which every free accepts. */
static void free_slot(struct rl_ahead *slot)
{
    tinker_rollouts_free(slot->x);
    if (slot->owns)
        tinker_sampler_free(slot->sampler);
    *slot = (struct rl_ahead){ 0 };
}

/* The two words that the cookbook's files use. */
static const char *stop_of(const tinker_rollout *a)
{
    return a->sequence->stop_reason == TINKER_STOP_STOP ? "stop" : "length";
}

/* An answer has the right form when it ended by itself and, with a template, has its box. */
static double format_of(const struct rl *r, const tinker_rollout *a)
{
    bool boxed = strcmp(r->t->o.template, "math") == 0 || strcmp(r->t->o.template, "gsm") == 0;
    return a->termination == TINKER_TERMINATION_STOP_SEQUENCE &&
           (!boxed || strstr(a->text, "\\boxed"));
}

/* Reward = score + coefficient * (form - 1): a right form costs nothing, a wrong one costs the
 * coefficient.  What happens to an answer that no grader could judge is --grader-error; when
 * more than one in five is such an answer, the grader is broken, and training on the rest would
 * teach the wrong thing quietly. */
static int settle_rewards(struct rl *r, tinker_grade *items, size_t total)
{
    r->failed = 0;
    for (size_t k = 0; k < total; k++) {
        tinker_rollout *a = &r->x->at[k];
        a->reward = r->scores[k] + r->format_coef * (format_of(r, a) - 1);
        if (a->sequence->stop_reason != TINKER_STOP_STOP)
            a->reward = r->clamp_cut               ? fmin(a->reward, 0)
                        : !isnan(r->length_reward) ? r->length_reward
                                                   : a->reward;
        if (!isnan(r->scores[k]))
            continue;
        r->failed++;
        a->reward = 0;
        a->dropped = strcmp(r->t->o.grader_error, "drop") == 0;
        if (strcmp(r->t->o.grader_error, "fail") == 0)
            return out_fail(EXIT_FAILED, NULL, "an answer could not be judged: %s",
                            items[k].reason);
    }
    if (r->failed * 5 > total)
        return out_fail(EXIT_FAILED, NULL, "%zu of %zu answers could not be judged: %s", r->failed,
                        total, items[0].reason);
    return EXIT_OK;
}

/* What is told of each answer, all but what it says. */
static tinker_grade *describe_answers(struct rl *r, size_t i, size_t from)
{
    size_t total = r->x->n_groups * r->x->group_size;
    tinker_grade *items = arena_array(&r->arena, total + 1, sizeof(*items));
    for (size_t k = 0; items && k < total; k++) {
        size_t g = k / r->x->group_size;
        tinker_row row;
        tinker_rows_prompt(r->rows, r->order[from + g], &row, NULL);
        items[k] = (tinker_grade){ .expected = row.expected,
                                   .row = arena_strndup(&r->arena, row.json, row.n_json),
                                   .stop_reason = stop_of(&r->x->at[k]),
                                   .split = "train",
                                   .step = (int64_t)i,
                                   .group = (int64_t)g,
                                   .sample = (int64_t)(k % r->x->group_size) };
    }
    return items;
}

/* Rewards: what the environment gave for the turns, and what the graders say of the last answer. */
static int grade_answers(struct rl *r, size_t i, size_t from)
{
    struct trainer *t = r->t;
    size_t total = r->x->n_groups * r->x->group_size;
    tinker_grade *items = describe_answers(r, i, from);
    const tinker_conversation **prompts = make_prompts(r, &r->arena, from);
    double *played = arena_array(&r->arena, total + 1, sizeof(*played));
    if (!items || !prompts || !played)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    /* Played before the graders run: they judge the last answer, which playing replaces. */
    if (r->world) {
        r->turns = (struct rl_turns){ .t = t,
                                      .world = r->world,
                                      .sampler = slot_of(r, i)->sampler,
                                      .how = how_to_sample(r, i),
                                      .most = (size_t)t->o.turns,
                                      .arena = &r->arena };
        int status = rl_turns_play(&r->turns, r->x, prompts, items, played);
        if (status != EXIT_OK)
            return status;
    }
    for (size_t k = 0; k < total; k++) {
        items[k].text = r->x->at[k].text;
        items[k].tokens = r->x->at[k].sequence->n;
        items[k].stop_reason = stop_of(&r->x->at[k]);
    }
    /* The prompt is written once per group; its answers share the string. */
    for (size_t g = 0; t->n_graders && g < r->x->n_groups; g++) {
        const char *json = rl_turns_json(&r->arena, prompts[g]->messages, prompts[g]->n_messages);
        for (size_t k = 0; k < r->x->group_size; k++)
            items[g * r->x->group_size + k].prompt = json;
    }
    int status = train_eval_grade(t, items, total, r->scores, r->by_grader);
    for (size_t k = 0; k < total; k++)
        r->scores[k] += played[k];
    return status == EXIT_OK ? settle_rewards(r, items, total) : status;
}

/* ---- what is written of an iteration ---- */

/* Kept beside the last answer: what was said in between stands in no other file. */
static void put_talk(struct json_writer *w, const struct rl_turns *turns, size_t k)
{
    struct arena arena;
    arena_init(&arena, SIZE_MAX);
    char *json = rl_turns_json(&arena, turns->talk[k].messages, turns->talk[k].n);
    if (json) {
        json_put_key(w, "conversation");
        json_put_raw(w, json, strlen(json));
    }
    arena_clear(&arena);
}

/* The reward stands at the last turn. */
static void put_turn(struct json_writer *w, const struct rl *r, size_t k, size_t turn)
{
    const tinker_rollout *a = &r->x->at[k];
    bool last = turn + 1 == a->n_turns;
    size_t n_prompt = 0;
    const tinker_sequence *s = tinker_rollouts_turn(r->x, k, turn, &n_prompt);
    json_put_begin_object(w);
    json_put_key(w, "step_idx");
    json_put_int64(w, (int64_t)turn);
    json_put_key(w, "ob_len");
    json_put_int64(w, (int64_t)n_prompt);
    json_put_key(w, "ac_len");
    json_put_int64(w, (int64_t)s->n);
    json_put_key(w, "reward");
    json_put_double(w, last ? a->reward : 0);
    json_put_key(w, "episode_done");
    json_put_bool(w, last);
    json_put_key(w, "logs");
    json_put_begin_object(w);
    if (!r->t->o.no_rollout_text && last) {
        if (r->world)
            put_talk(w, &r->turns, k);
        json_put_key(w, "response");
        json_put_string(w, a->text);
    }
    json_put_key(w, "stop_reason");
    json_put_string(w, s->stop_reason == TINKER_STOP_STOP ? "stop" : "length");
    json_put_end_object(w);
    json_put_end_object(w);
}

/* One line per answer, as the cookbook's tools read them. */
static void put_rollout(struct buf *out, const struct rl *r, size_t i, size_t k)
{
    const tinker_rollout *a = &r->x->at[k];
    struct json_writer w;
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    /* The first three are counters (integers in the file), the others rewards.  A single-turn
     * episode has all of its reward in the one step, so final_reward is 0. */
    const struct {
        const char *name;
        double value;
    } numbers[] = { { "iteration", (double)i },
                    { "group_idx", (double)(k / r->x->group_size) },
                    { "traj_idx", (double)(k % r->x->group_size) },
                    { "total_reward", a->reward },
                    { "final_reward", 0 } };
    json_put_key(&w, "schema_version");
    json_put_int64(&w, 1);
    json_put_key(&w, "split");
    json_put_string(&w, "train");
    for (size_t m = 0; m < 5; m++) {
        json_put_key(&w, numbers[m].name);
        if (m < 3)
            json_put_int64(&w, (int64_t)numbers[m].value);
        else
            json_put_double(&w, numbers[m].value);
    }
    json_put_key(&w, "steps");
    json_put_begin_array(&w);
    for (size_t turn = 0; turn < a->n_turns; turn++)
        put_turn(&w, r, k, turn);
    json_put_end_array(&w);
    json_put_end_object(&w);
    buf_putc(out, '\n');
}

/* One folder per iteration, as the cookbook's viewers expect.  mkdir() may find it there after a
 * resume; a real failure shows when the file cannot be opened.  An iteration that is repeated
 * overwrites its file with the same answers. */
static int write_rollouts(const struct rl *r, size_t i)
{
    char path[4096];
    struct buf out;
    snprintf(path, sizeof(path), "%.4000s/iteration_%06zu", r->t->out, i);
    mkdir(path, 0777);
    snprintf(path, sizeof(path), "%.4000s/iteration_%06zu/train_rollout_summaries.jsonl", r->t->out,
             i);
    buf_init(&out, (size_t)1 << 30);
    for (size_t k = 0; k < r->x->n_groups * r->x->group_size; k++)
        put_rollout(&out, r, i, k);
    FILE *f = fopen(path, "we");
    bool ok = f && buf_ok(&out) && fwrite(out.data, 1, out.len, f) == out.len;
    ok = f && fclose(f) == 0 && ok;
    buf_clear(&out);
    return ok ? EXIT_OK : out_fail(EXIT_IO, NULL, "cannot write %s", path);
}

struct env_sums {
    double answer_tokens, prompt_tokens, turns, reward, right, format, mixed, good, bad;
};

/* A group is mixed when its rewards differ; only mixed groups carry a gradient after centering.
 * frac_mixed near 0 says that the task is too hard or too easy, which the mean reward does not
 * show. */
static void sum_answers(const struct rl *r, struct env_sums *s)
{
    *s = (struct env_sums){ 0 };
    for (size_t g = 0; g < r->x->n_groups; g++) {
        const tinker_rollout *a = &r->x->at[g * r->x->group_size];
        bool same = true;
        for (size_t k = 0; k < r->x->group_size; k++) {
            for (size_t turn = 0, n_prompt; turn < a[k].n_turns; turn++) {
                const tinker_sequence *said =
                    tinker_rollouts_turn(r->x, g * r->x->group_size + k, turn, &n_prompt);
                s->answer_tokens += (double)said->n;
                s->prompt_tokens += (double)n_prompt;
                s->turns++;
            }
            s->reward += a[k].reward;
            s->right += r->scores[g * r->x->group_size + k] > 0;
            s->format += format_of(r, &a[k]);
            same = same && a[k].reward == a[0].reward;
        }
        s->mixed += !same;
        s->good += same && a[0].reward >= 0.5;
        s->bad += same && a[0].reward < 0.5;
    }
}

/* Names of the cookbook's RL loop, so that its notebooks can plot metrics.jsonl. */
static void log_answers(struct rl *r, const struct env_sums *s, size_t dropped)
{
    struct trainer *t = r->t;
    double n = (double)(r->x->n_groups * r->x->group_size), groups = (double)r->x->n_groups;
    const tinker_named_number values[] = {
        { "ac_tokens_per_turn", s->answer_tokens / s->turns },
        { "ob_tokens_per_turn", s->prompt_tokens / s->turns },
        { "turns_per_episode", s->turns / n },
        { "total_episodes", n },
        { "total_turns", s->turns },
        { "total_ac_tokens", s->answer_tokens },
        { "total_ob_tokens", s->prompt_tokens },
        { "reward/total", s->reward / n },
        { "format", s->format / n },
        { "correct", s->right / n },
        { "by_group/frac_mixed", s->mixed / groups },
        { "by_group/frac_all_good", s->good / groups },
        { "by_group/frac_all_bad", s->bad / groups },
        { "groups_dropped", (double)dropped },
    };
    trainer_metrics_all(t, "env/all/", values, sizeof(values) / sizeof(values[0]));
    for (size_t g = 0; g < t->n_graders; g++) {
        char name[64];
        snprintf(name, sizeof(name), "grader/%s", tinker_grader_name(t->graders[g]));
        trainer_metric(t, name, r->by_grader[g]);
    }
    if (r->failed)
        trainer_metric(t, "rollout_errors/grader", (double)r->failed);
}

/* The best and the worst answer of the first group that has both. */
/* A group without contrast would show the same answer twice; it is passed over. */
static void show_answers(const struct rl *r)
{
    for (size_t g = 0; g < r->x->n_groups; g++) {
        const tinker_rollout *a = &r->x->at[g * r->x->group_size];
        size_t best = 0, worst = 0;
        for (size_t k = 1; k < r->x->group_size; k++) {
            best = a[k].reward > a[best].reward ? k : best;
            worst = a[k].reward < a[worst].reward ? k : worst;
        }
        if (a[best].reward == a[worst].reward)
            continue;
        train_view_say(&r->t->view, "best", "%.2f  %.*s", a[best].reward, ANSWER_WIDTH,
                       a[best].text);
        train_view_say(&r->t->view, "worst", "%.2f  %.*s", a[worst].reward, ANSWER_WIDTH,
                       a[worst].text);
        return;
    }
}

/* ---- training ---- */

/* Reference logprobs of the answers, and what they change of the advantages. */
static int add_reference(struct rl *r, const tinker_datum *data, size_t n)
{
    struct trainer *t = r->t;
    tinker_error err;
    if (!r->reference || n == 0)
        return EXIT_OK;
    float **reference = tinker_reference_logprobs(r->reference, data, n, trainer_wait_ms(), &err);
    if (!reference)
        return trainer_fail(t, &err);
    double kl = tinker_add_kl(data, n, reference, t->o.kl, t->o.kl_discount, !r->distill);
    free(reference);
    trainer_metric(t, r->distill ? "teacher_kl" : "kl_policy_base", kl);
    return EXIT_OK;
}

/* How the update changed the logprobs of what was sampled.  The sampler of the new weights serves
 * the next iteration, too. */
static int measure_change(struct rl *r, const tinker_datum *data, size_t n)
{
    struct trainer *t = r->t;
    tinker_error err;
    double v1 = 0, v2 = 0, tokens = 0;
    r->sampler = tinker_training_create_sampler(t->recipe->training, trainer_wait_ms(), &err);
    float **now =
        r->sampler ? tinker_reference_logprobs(r->sampler, data, n, trainer_wait_ms(), &err) : NULL;
    if (!now)
        return trainer_fail(t, &err);
    for (size_t i = 0; i < n; i++) {
        /* Inputs of a datum of reinforcement: targets, log-probabilities of the sampler,
         * advantages, mask. */
        const float *before = data[i].inputs[1].tensor.data, *mask = data[i].inputs[3].tensor.data;
        for (size_t k = 0; k < data[i].inputs[1].tensor.n; k++) {
            double d = mask[k] > 0 ? (double)before[k] - (double)now[i][k] : 0;
            v1 += d;
            v2 += 0.5 * d * d;
            tokens += mask[k] > 0;
        }
    }
    free(now);
    trainer_metric(t, "kl_pre_post_v1", v1 / tokens);
    trainer_metric(t, "kl_pre_post_v2", v2 / tokens);
    return EXIT_OK;
}

/* A long answer has as many tokens to push as it is long; divided, all answers weigh the same. */
static void divide_advantages(tinker_rollouts *x)
{
    for (size_t k = 0; k < x->n_groups * x->group_size; k++) {
        size_t tokens = 0, n_prompt;
        for (size_t turn = 0; turn < x->at[k].n_turns; turn++)
            tokens += tinker_rollouts_turn(x, k, turn, &n_prompt)->n;
        x->at[k].advantage /= tokens ? (double)tokens : 1;
    }
}

/* All substeps are submitted before the first is awaited. */
static int train_answers(struct rl *r, size_t i, const tinker_datum *data, size_t n,
                         tinker_step *last)
{
    struct trainer *t = r->t;
    /* No part may be empty: the service refuses a batch without rows. */
    size_t parts = (size_t)t->o.substeps < n ? (size_t)t->o.substeps : n;
    tinker_adam adam = t->adam;
    tinker_error err;
    double v1 = 0, v2 = 0, k3 = 0, entropy = 0, tokens = 0;
    adam.learning_rate = trainer_rate(t, i);
    for (size_t k = 0; k < parts; k++) {
        size_t from = k * n / parts, to = (k + 1) * n / parts;
        if (tinker_recipe_submit(t->recipe, data + from, to - from, &r->loss, &adam, &err) !=
            TINKER_OK)
            return trainer_fail(t, &err);
    }
    for (size_t k = 0; k < parts; k++) {
        if (tinker_recipe_next(t->recipe, last, &err) != TINKER_OK)
            return trainer_fail(t, &err);
        /* Means over sampled tokens of all substeps: parts differ in size, so their means are
         * weighted. */
        double weight = (double)last->sampled;
        v1 += last->kl_v1 * weight;
        v2 += last->kl_v2 * weight;
        k3 += last->kl_k3 * weight;
        entropy += last->entropy * weight;
        tokens += weight;
    }
    trainer_metrics_all(t, "", last->metrics, last->n_metrics);
    last->entropy = entropy / tokens;
    last->kl_v1 = v1 / tokens;
    trainer_metric(t, "optim/kl_sample_train_v1", last->kl_v1);
    trainer_metric(t, "optim/kl_sample_train_v2", v2 / tokens);
    trainer_metric(t, "optim/entropy", last->entropy);
    trainer_metric(t, "optim/kl_sample_train_k3", k3 / tokens);
    return EXIT_OK;
}

/* A group counts as dropped when all of its answers are: for lack of contrast, or of a judgment. */
static size_t count_dropped(const tinker_rollouts *x)
{
    size_t n = 0;
    for (size_t g = 0; g < x->n_groups; g++) {
        bool all = true;
        for (size_t k = 0; k < x->group_size; k++)
            all = all && x->at[g * x->group_size + k].dropped;
        n += all;
    }
    return n;
}

/* Evaluate (weights before this iteration), sample, grade, turn rewards into advantages, add
 * what the reference says, train, write everything down.  The metrics line is written even when
 * there was nothing to train, so that line i is always iteration i. */
static int train_iteration(struct rl *r, size_t i)
{
    struct trainer *t = r->t;
    int64_t begin = clock_now_ns(clock_real());
    tinker_error err;
    tinker_step last = { .kl_v1 = NAN, .entropy = NAN };
    struct env_sums sums;
    size_t n = 0;
    trainer_metric(t, "progress/batch", (double)i);
    trainer_metric(t, "optim/lr", trainer_rate(t, i));
    trainer_metric(t, "progress/done_frac", (double)(i + 1) / (double)t->total);
    int status = EXIT_OK;
    if (train_eval_due(&r->eval, t, i))
        status = train_eval_run(&r->eval, t, i);
    if (status == EXIT_OK)
        status = sample_answers(r, i);
    double sampling_s = (double)(clock_now_ns(clock_real()) - begin) / 1e9;
    if (status == EXIT_OK)
        status = grade_answers(r, i, find_batch(r, i));
    if (status != EXIT_OK)
        return status;
    /* Distillation without a grader has rewards of 0, and centering keeps them 0: the teacher
     * alone moves the tokens. */
    tinker_rollouts_advantages(r->x,
                               r->distill && !t->n_graders ? TINKER_ADVANTAGE_CENTER : r->advantage,
                               r->drop_constant);
    if (strcmp(t->o.advantage_norm, "token") == 0)
        divide_advantages(r->x);
    sum_answers(r, &sums);
    log_answers(r, &sums, count_dropped(r->x));
    const tinker_datum *data = tinker_rollouts_data(r->x, &n, &err);
    status = data ? add_reference(r, data, n) : trainer_fail(t, &err);
    if (status == EXIT_OK && n > 0)
        status = train_answers(r, i, data, n, &last);
    if (status == EXIT_OK && n > 0 && t->o.post_kl)
        status = measure_change(r, data, n);
    if (t->o.ahead)
        trainer_metric(t, "sampling_client/step_mean", (double)slot_of(r, i)->step);
    r->skipped = n > 0 ? 0 : r->skipped + 1;
    if (status == EXIT_OK)
        status = write_rollouts(r, i);
    trainer_metric(t, "time/sampling", sampling_s);
    trainer_metric(t, "time/total", (double)(clock_now_ns(clock_real()) - begin) / 1e9);
    if (status != EXIT_OK)
        return status;
    double answers = (double)(r->x->n_groups * r->x->group_size);
    double shown = sums.reward / answers;
    char numbers[128];
    snprintf(numbers, sizeof(numbers), "correct %.2f  len %.0f  mixed %.2f  entropy %.2f",
             sums.right / answers, sums.answer_tokens / answers,
             sums.mixed / (double)r->x->n_groups, last.entropy);
    if (r->distill)
        for (size_t m = 0; m < t->n_metrics; m++)
            if (strcmp(t->metrics[m].name, "teacher_kl") == 0) {
                shown = t->metrics[m].value;
                snprintf(numbers, sizeof(numbers), "len %.0f  entropy %.2f",
                         sums.answer_tokens / answers, last.entropy);
            }
    status = trainer_log(t, i);
    if (status == EXIT_OK)
        status = trainer_check_loss(t, i, shown);
    if (status == EXIT_OK)
        train_view_step(&t->view, i + 1, t->total, t->start, r->distill ? "kl" : "reward", shown,
                        numbers, trainer_rate(t, i),
                        (size_t)(sums.answer_tokens + sums.prompt_tokens));
    if (status == EXIT_OK && !r->distill && i % SHOW_EVERY == 0)
        show_answers(r);
    /* Groups whose answers all score the same teach nothing; three whole iterations of them will
     * not get better by waiting, and each costs as much as one that trains. */
    if (status == EXIT_OK && r->skipped >= 3)
        status = out_fail(EXIT_FAILED, "Try another grader, or more answers in a group.",
                          "three iterations in a row had nothing to train");
    return status;
}

/* The KL reference defaults to the base model, so the penalty limits how far the run as a whole
 * has moved.  The arena is per iteration: nothing of an iteration is needed in the next. */
static int run_iterations(struct rl *r)
{
    struct trainer *t = r->t;
    size_t i = t->start;
    int status = EXIT_OK;
    const char *reference = r->distill          ? t->o.teacher
                            : t->o.kl_reference ? t->o.kl_reference
                                                : t->api.model;
    if (r->distill || t->o.kl != 0)
        r->reference = trainer_sampler_on(t, reference, &status);
    r->asked = i;
    for (; status == EXIT_OK && i < t->total && !trainer_stopping(); i++) {
        /* Awaited at once: this loop waits for answers next, so nothing is gained by going on. */
        status = trainer_save_due(t, i);
        if (status == EXIT_OK)
            status = trainer_save_finish(t);
        arena_init(&r->arena, SIZE_MAX);
        if (status == EXIT_OK)
            status = train_iteration(r, i);
        rl_turns_close(&r->turns);
        free_slot(slot_of(r, i));
        r->x = NULL;
        arena_clear(&r->arena);
    }
    if (status != EXIT_OK)
        return status;
    if (i < t->total)
        return trainer_interrupt(t, i);
    status = train_eval_end(&r->eval, t);
    return status == EXIT_OK ? trainer_finish(t) : status;
}

/* At a temperature other than 1 the sampler draws from softmax(z / T), but the loss computes
 * ratios with log softmax(z): they are off-policy by construction, which the plan says aloud. */
static int show_prompts(struct rl *r)
{
    struct trainer *t = r->t;
    char what[160];
    train_view_say(&t->view, "data", "%s  %zu prompts", t->o.data, r->n_rows);
    snprintf(what, sizeof(what), "%zu iteration%s of %zu prompts x %lld answers  %s", t->total,
             t->total == 1 ? "" : "s", r->groups, (long long)t->o.group_size,
             r->distill ? "on-policy" : t->o.loss);
    if (t->o.temperature != 1)
        train_view_say(&t->view, "warn",
                       "at temperature %g the sampled logprobs are not those "
                       "that are trained",
                       t->o.temperature);
    return trainer_plan(t, what);
}

int train_rl_run(struct trainer *t)
{
    struct rl *r = calloc(1, sizeof(*r));
    if (!r)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    r->t = t;
    r->distill = t->kind == TRAIN_DISTILL;
    int status = choose_loss(r);
    if (status == EXIT_OK && t->o.fewshot)
        status = read_examples(r);
    if (status == EXIT_OK)
        status = prepare_prompts(r);
    if (status == EXIT_OK)
        status = show_prompts(r);
    if (status == EXIT_OK && !t->o.dry_run) {
        status = trainer_begin(t, "");
        if (status == EXIT_OK)
            status = trainer_make_graders(t);
        if (status == EXIT_OK && t->o.env_cmd)
            status = open_world(r);
        if (status == EXIT_OK && t->recipe)
            status = probe_graders(r);
        if (status == EXIT_OK && t->recipe)
            status = run_iterations(r);
    }
    /* After an interrupt later iterations may still be under way; nobody reads their answers. */
    for (size_t k = 0; k <= TRAIN_MAX_AHEAD; k++)
        free_slot(&r->ahead[k]);
    tinker_sampler_free(r->sampler);
    tinker_sampler_free(r->reference);
    tinker_grader_free(r->world);
    tinker_conversation_free(r->examples);
    train_eval_close(&r->eval);
    tinker_rows_free(r->rows);
    free(r->order);
    free(r->scores);
    free(r);
    return status;
}
