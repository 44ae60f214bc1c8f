/* rollout.c - answers of the model to prompts, and training data from them. */
#include <tinker/recipe.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/err.h"

/* What was asked and what was answered.  The first prompt is shared by a group. */
struct turn {
    const int32_t *prompt;
    size_t n_prompt;
    const tinker_sequence *sequence;
};
struct turns {
    struct turn *at;
    size_t n;
};

/* What the answers refer to. Sequences point into the results of the futures, so these stay as
 * long as the answers do. */
struct rollouts_box {
    tinker_rollouts pub; /* first */
    struct arena arena;
    tinker_future **futures;
    size_t n_futures;
    tinker_parsed **parsed;
    size_t n_parsed;
    struct turns *turns; /* of each answer */
    struct arena data;   /* of tinker_rollouts_data() */
    const tinker_renderer *renderer;
    const tinker_tokenizer *tokenizer;
};

void tinker_rollouts_free(tinker_rollouts *x)
{
    struct rollouts_box *box = (struct rollouts_box *)x;
    if (!box)
        return;
    for (size_t i = 0; i < box->n_futures; i++)
        tinker_future_free(box->futures[i]);
    for (size_t i = 0; i < box->n_parsed; i++)
        tinker_parsed_free(box->parsed[i]);
    free(box->futures);
    free(box->parsed);
    arena_clear(&box->arena);
    arena_clear(&box->data);
    free(box);
}

/* Room for so many more futures and messages. */
static bool reserve_results(struct rollouts_box *box, size_t n)
{
    tinker_future **f = realloc(box->futures, (box->n_futures + n + 1) * sizeof(tinker_future *));
    if (f)
        box->futures = f;
    tinker_parsed **p = realloc(box->parsed, (box->n_parsed + n + 1) * sizeof(tinker_parsed *));
    if (p)
        box->parsed = p;
    return f && p;
}

/* The arena zeroes, so a box that is only partly filled can be freed. */
static struct rollouts_box *new_box(size_t n, size_t group_size)
{
    struct rollouts_box *box = calloc(1, sizeof(*box));
    size_t total = n * group_size;
    if (!box)
        return NULL;
    arena_init(&box->arena, SIZE_MAX);
    arena_init(&box->data, SIZE_MAX);
    box->pub.n_groups = n;
    box->pub.group_size = group_size;
    box->pub.at = arena_array(&box->arena, total + 1, sizeof(*box->pub.at));
    box->turns = arena_array(&box->arena, total + 1, sizeof(*box->turns));
    if (box->pub.at && box->turns && reserve_results(box, total))
        return box;
    tinker_rollouts_free(&box->pub);
    return NULL;
}

/* ---- asking ---- */

/* The tokens of the prompt, kept for the datums.  Pictures cannot be trained on this way. */
static tinker_status render_prompt(struct rollouts_box *box, const tinker_conversation *c,
                                   struct turn *out, tinker_error *err)
{
    tinker_rendered *x =
        tinker_renderer_prompt(box->renderer, c->messages, c->n_messages, NULL, NULL, err);
    tinker_tokens tokens = TINKER_TOKENS_INIT;
    tinker_status status = x ? TINKER_OK : TINKER_EINVAL;
    for (size_t i = 0; x && status == TINKER_OK && i < x->examples[0].input.n_chunks; i++) {
        const tinker_chunk *chunk = &x->examples[0].input.chunks[i];
        status = chunk->kind == TINKER_CHUNK_TEXT
                     ? tinker_tokens_append(&tokens, chunk->tokens, chunk->n_tokens, err)
                     : err_set(err, TINKER_EINVAL, "a prompt of a rollout is text alone");
    }
    tinker_rendered_free(x);
    int32_t *ids = arena_array(&box->arena, tokens.n + 1, sizeof(*ids));
    if (status == TINKER_OK && !ids)
        status = err_nomem(err, "a prompt");
    if (status == TINKER_OK && tokens.n)
        memcpy(ids, tokens.ids, tokens.n * sizeof(*ids));
    *out = (struct turn){ .prompt = ids, .n_prompt = tokens.n };
    tinker_tokens_clear(&tokens);
    return status;
}

/* One request of n answers.  The service takes 31 bits of seed. */
static tinker_status ask_prompt(struct rollouts_box *box, tinker_sampler *s, const struct turn *t,
                                const tinker_sampling_params *params, size_t n, uint64_t offset,
                                tinker_error *err)
{
    tinker_sample_options each = TINKER_SAMPLE_OPTIONS_INIT;
    tinker_sampling_params own = *params;
    tinker_chunk chunk = { .tokens = t->prompt, .n_tokens = t->n_prompt };
    tinker_model_input input = { &chunk, 1 };
    each.num_samples = n;
    own.seed = (int64_t)(((uint64_t)params->seed + offset) % (UINT64_C(1) << 31));
    tinker_future *f = tinker_sampler_sample(s, &input, &own, &each, err);
    if (!f)
        return TINKER_EINVAL;
    box->futures[box->n_futures++] = f;
    return TINKER_OK;
}

/* Requests of one group: one for all its answers, or one for each. Seeds differ per request and
 * follow from the given one alone: the same seed gives the same answers whatever the timing. */
static tinker_status ask_group(struct rollouts_box *box, tinker_sampler *s,
                               const tinker_rollout_options *o, size_t group,
                               const tinker_conversation *prompt, tinker_error *err)
{
    size_t size = box->pub.group_size;
    struct turn first;
    tinker_status status = render_prompt(box, prompt, &first, err);
    for (size_t i = 0; status == TINKER_OK && i < size; i++) {
        struct turns *turns = &box->turns[group * size + i];
        turns->at = arena_array(&box->arena, 1, sizeof(*turns->at));
        if (!turns->at)
            return err_nomem(err, "answers");
        *turns->at = first;
        if (o->one_request_each)
            status = ask_prompt(box, s, &first, &o->params, 1, group * size + i, err);
    }
    return status == TINKER_OK && !o->one_request_each
               ? ask_prompt(box, s, &first, &o->params, size, group, err)
               : status;
}

/* ---- reading ---- */

/* What the model wrote is never an error: text that is no message is taken as it is. A message
 * that was cut off is graded, too: its reward is what teaches the model to end in time. */
static bool read_answer(struct rollouts_box *box, const tinker_sequence *s, tinker_rollout *x)
{
    tinker_text text = TINKER_TEXT_INIT;
    tinker_parsed *p = tinker_renderer_parse(box->renderer, s->tokens, s->n, NULL);
    x->sequence = s;
    x->message = p ? p->message : NULL;
    x->termination = p ? p->termination : TINKER_TERMINATION_MALFORMED;
    bool ok;
    if (p) {
        box->parsed[box->n_parsed++] = p;
        ok = tinker_message_text(p->message, &text, NULL) == TINKER_OK;
    } else {
        ok = tinker_tokenizer_decode(box->tokenizer, s->tokens, s->n, NULL, &text, NULL) ==
             TINKER_OK;
    }
    x->text = ok ? arena_strndup(&box->arena, text.s ? text.s : "", text.n) : NULL;
    tinker_text_clear(&text);
    return x->text != NULL;
}

/* Logprobs are needed as the sampler computed them; without them no importance ratio can be
 * formed later. */
static tinker_status await_answers(tinker_future *f, size_t n, int64_t timeout_ms,
                                   const tinker_sample **out, tinker_error *err)
{
    tinker_status status = tinker_future_wait(f, timeout_ms, err);
    if (status != TINKER_OK)
        return status;
    *out = tinker_future_sample(f);
    return (*out)->n_sequences == n && (*out)->sequences[0].logprobs
               ? TINKER_OK
               : err_set(err, TINKER_EPROTOCOL, "asked for %zu answers with logprobs, got %zu", n,
                         (*out)->n_sequences);
}

static tinker_status read_answers(struct rollouts_box *box, size_t per, int64_t timeout_ms,
                                  tinker_error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < box->n_futures; i++) {
        const tinker_sample *s;
        tinker_status status = await_answers(box->futures[i], per, timeout_ms, &s, err);
        if (status != TINKER_OK)
            return status;
        for (size_t k = 0; k < per; k++, at++) {
            struct turns *turns = &box->turns[at];
            turns->at->sequence = &s->sequences[k];
            box->pub.at[at].n_turns = turns->n = 1;
            box->pub.at[at].n_prompt = turns->at->n_prompt;
            if (!read_answer(box, &s->sequences[k], &box->pub.at[at]))
                return err_nomem(err, "answers");
        }
    }
    return TINKER_OK;
}

static tinker_status read_options(tinker_rollout_options *out, const tinker_renderer *renderer,
                                  const tinker_rollout_options *opts, tinker_error *err)
{
    const tinker_rollout_options defaults = TINKER_ROLLOUT_OPTIONS_INIT;
    *out = defaults;
    if (opts && opts_copy(out, sizeof(*out), opts, "tinker_rollout_options", err) != TINKER_OK)
        return TINKER_EINVAL;
    if (!out->params.stop_tokens && !out->params.stop_strings)
        tinker_renderer_set_stop(renderer, &out->params);
    return TINKER_OK;
}

/* All prompts are submitted before the first answer is awaited, so that the service can batch
 * them. */
tinker_rollouts *tinker_rollouts_submit(tinker_sampler *s, const tinker_renderer *renderer,
                                        const tinker_tokenizer *tokenizer,
                                        const tinker_conversation *const *prompts, size_t n,
                                        const tinker_rollout_options *opts, tinker_error *err)
{
    tinker_rollout_options o;
    if (read_options(&o, renderer, opts, err) != TINKER_OK)
        return NULL;
    struct rollouts_box *box = new_box(n, o.group_size);
    if (!box) {
        err_nomem(err, "answers");
        return NULL;
    }
    box->renderer = renderer;
    box->tokenizer = tokenizer;
    tinker_status status = TINKER_OK;
    for (size_t p = 0; p < n && status == TINKER_OK; p++)
        status = ask_group(box, s, &o, p, prompts[p], err);
    if (status == TINKER_OK)
        return &box->pub;
    tinker_rollouts_free(&box->pub);
    return NULL;
}

/* How many answers a request has follows from how many requests there are. */
tinker_status tinker_rollouts_wait(tinker_rollouts *x, int64_t timeout_ms, tinker_error *err)
{
    struct rollouts_box *box = (struct rollouts_box *)x;
    if (x->n_groups == 0 || box->turns[0].n > 0)
        return TINKER_OK;
    return read_answers(box, box->n_futures == x->n_groups ? x->group_size : 1, timeout_ms, err);
}

tinker_rollouts *tinker_sampler_rollouts(tinker_sampler *s, const tinker_renderer *renderer,
                                         const tinker_tokenizer *tokenizer,
                                         const tinker_conversation *const *prompts, size_t n,
                                         const tinker_rollout_options *opts, tinker_error *err)
{
    const tinker_rollout_options defaults = TINKER_ROLLOUT_OPTIONS_INIT;
    tinker_rollouts *x = tinker_rollouts_submit(s, renderer, tokenizer, prompts, n, opts, err);
    if (!x ||
        tinker_rollouts_wait(x, opts ? opts->timeout_ms : defaults.timeout_ms, err) == TINKER_OK)
        return x;
    tinker_rollouts_free(x);
    return NULL;
}

/* Without a sampler in the options one is made from the present weights and freed again: the
 * answers then come from the model that the next step trains. */
tinker_rollouts *tinker_recipe_rollouts(tinker_recipe *r, const tinker_conversation *const *prompts,
                                        size_t n, const tinker_rollout_options *opts,
                                        tinker_error *err)
{
    enum { PATIENCE_MS = 600000 };
    tinker_sampler *given = opts ? opts->sampler : NULL;
    tinker_sampler *own = given ? NULL
                                : tinker_training_create_sampler(
                                      r->training, opts ? opts->timeout_ms : PATIENCE_MS, err);
    tinker_rollouts *x = NULL;
    if (given || own)
        x = tinker_sampler_rollouts(given ? given : own, r->renderer, r->tokenizer, prompts, n,
                                    opts, err);
    tinker_sampler_free(own);
    return x;
}

/* ---- further turns ---- */

/* Room for one more turn; what is there stays. */
static bool reserve_turn(struct rollouts_box *box, struct turns *turns)
{
    struct turn *grown = arena_array(&box->arena, turns->n + 1, sizeof(*grown));
    if (!grown)
        return false;
    memcpy(grown, turns->at, turns->n * sizeof(*grown));
    turns->at = grown;
    return true;
}

static tinker_status ask_next(struct rollouts_box *box, tinker_sampler *s,
                              const tinker_conversation *const *next, struct turn *turns,
                              const tinker_rollout_options *o, tinker_error *err)
{
    tinker_status status = TINKER_OK;
    for (size_t i = 0; i < box->pub.n_groups * box->pub.group_size; i++) {
        if (!next[i])
            continue;
        if (!reserve_turn(box, &box->turns[i]))
            return err_nomem(err, "answers");
        status = render_prompt(box, next[i], &turns[i], err);
        if (status == TINKER_OK)
            status = ask_prompt(box, s, &turns[i], &o->params, 1, i, err);
        if (status != TINKER_OK)
            break;
    }
    return status;
}

/* Everything is asked and awaited before the first answer changes. */
tinker_status tinker_rollouts_next_turn(tinker_rollouts *x, tinker_sampler *s,
                                        const tinker_conversation *const *next,
                                        const tinker_rollout_options *opts, tinker_error *err)
{
    struct rollouts_box *box = (struct rollouts_box *)x;
    size_t total = x->n_groups * x->group_size, at = box->n_futures;
    tinker_rollout_options o;
    if (read_options(&o, box->renderer, opts, err) != TINKER_OK)
        return TINKER_EINVAL;
    struct turn *turns = arena_array(&box->arena, total + 1, sizeof(*turns));
    tinker_rollout *answers = arena_array(&box->arena, total + 1, sizeof(*answers));
    if (!turns || !answers || !reserve_results(box, total))
        return err_nomem(err, "answers");
    tinker_status status = ask_next(box, s, next, turns, &o, err);
    for (size_t i = 0; i < total && status == TINKER_OK; i++) {
        const tinker_sample *sample;
        if (!next[i])
            continue;
        status = await_answers(box->futures[at++], 1, o.timeout_ms, &sample, err);
        if (status != TINKER_OK)
            break;
        turns[i].sequence = &sample->sequences[0];
        answers[i] = x->at[i];
        answers[i].n_prompt = turns[i].n_prompt;
        answers[i].n_turns++;
        if (!read_answer(box, turns[i].sequence, &answers[i]))
            status = err_nomem(err, "answers");
    }
    for (size_t i = 0; i < total && status == TINKER_OK; i++)
        if (next[i]) {
            box->turns[i].at[box->turns[i].n++] = turns[i];
            x->at[i] = answers[i];
        }
    return status;
}

const tinker_sequence *tinker_rollouts_turn(const tinker_rollouts *x, size_t i, size_t turn,
                                            size_t *n_prompt)
{
    const struct rollouts_box *box = (const struct rollouts_box *)x;
    if (i >= x->n_groups * x->group_size || turn >= box->turns[i].n)
        return NULL;
    *n_prompt = box->turns[i].at[turn].n_prompt;
    return box->turns[i].at[turn].sequence;
}

/* ---- advantages ---- */

/* The rewards of a group without the answers that were dropped; how many. */
static size_t collect_rewards(const tinker_rollouts *x, size_t group, double *reward)
{
    size_t n = 0;
    for (size_t i = 0; i < x->group_size; i++)
        if (!x->at[group * x->group_size + i].dropped)
            reward[n++] = x->at[group * x->group_size + i].reward;
    return n;
}

/* Such a group has advantages of 0 and teaches nothing. */
static bool is_constant(const double *v, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (v[i] != v[0])
            return false;
    return true;
}

/* When all groups are constant, the first one that has answers stays: a step without data would
 * be an error of the service. Returns the mean reward before anything is dropped for that
 * reason. */
double tinker_rollouts_advantages(tinker_rollouts *x, tinker_advantage how, int drop_constant)
{
    double *reward = calloc(2 * x->group_size + 1, sizeof(*reward)), sum = 0;
    double *advantage = reward ? reward + x->group_size : NULL;
    size_t total = 0, mixed = 0, first = x->n_groups;
    for (size_t g = 0; reward && g < x->n_groups; g++) {
        size_t n = collect_rewards(x, g, reward), k = 0;
        tinker_group_advantages(reward, n, how, advantage);
        if (n && first == x->n_groups)
            first = g;
        mixed += !is_constant(reward, n);
        for (size_t i = 0; i < x->group_size; i++) {
            tinker_rollout *a = &x->at[g * x->group_size + i];
            if (a->dropped)
                continue;
            sum += a->reward;
            a->advantage = advantage[k++];
        }
        total += n;
    }
    for (size_t g = 0; reward && drop_constant && g < x->n_groups; g++) {
        size_t n = collect_rewards(x, g, reward);
        if (!is_constant(reward, n) || (mixed == 0 && g == first))
            continue;
        for (size_t i = 0; i < x->group_size; i++)
            x->at[g * x->group_size + i].dropped = 1;
    }
    free(reward);
    return total ? sum / (double)total : 0;
}

/* ---- data ---- */

/* A sequence that grows turn by turn, and what is known of each of its tokens: 0 for those that
 * the model has read, for those that it chose their logprob, the advantage and a mask of 1. */
struct sequence {
    int32_t *tokens;
    float *logprobs, *advantages, *mask;
    size_t n;
};

static void append_read(struct sequence *q, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++, q->n++) {
        q->tokens[q->n] = tokens[i];
        q->logprobs[q->n] = q->advantages[q->n] = q->mask[q->n] = 0;
    }
}

static void append_chosen(struct sequence *q, const tinker_sequence *s, double advantage)
{
    for (size_t i = 0; i < s->n; i++, q->n++) {
        q->tokens[q->n] = s->tokens[i];
        q->logprobs[q->n] = s->logprobs[i];
        q->advantages[q->n] = (float)advantage;
        q->mask[q->n] = 1;
    }
}

static tinker_named_tensor float_input(const char *name, const float *data, size_t n)
{
    return (tinker_named_tensor){ name, { .dtype = TINKER_FLOAT32, .data = data, .n = n } };
}

/* The input is the sequence without its last token, everything else without its first. */
static bool put_datum(struct arena *m, const struct sequence *q, tinker_datum *out)
{
    size_t n = q->n - 1;
    int64_t *targets = arena_array(m, n + 1, sizeof(*targets));
    tinker_chunk *chunk = arena_alloc(m, sizeof(*chunk));
    tinker_named_tensor *in = arena_array(m, 4, sizeof(*in));
    if (!targets || !chunk || !in)
        return false;
    for (size_t i = 0; i < n; i++)
        targets[i] = q->tokens[i + 1];
    chunk->tokens = q->tokens;
    chunk->n_tokens = n;
    in[0] = (tinker_named_tensor){ "target_tokens",
                                   { .dtype = TINKER_INT64, .data = targets, .n = n } };
    in[1] = float_input("logprobs", q->logprobs + 1, n);
    in[2] = float_input("advantages", q->advantages + 1, n);
    in[3] = float_input("mask", q->mask + 1, n);
    *out = (tinker_datum){ .model_input = { chunk, 1 }, .inputs = in, .n_inputs = 4 };
    return true;
}

static bool new_sequence(struct arena *m, size_t room, struct sequence *q)
{
    *q = (struct sequence){ arena_array(m, room + 1, sizeof(int32_t)),
                            arena_array(m, room + 1, sizeof(float)),
                            arena_array(m, room + 1, sizeof(float)),
                            arena_array(m, room + 1, sizeof(float)), 0 };
    return q->tokens && q->logprobs && q->advantages && q->mask;
}

/* The datums of one answer, *n of them: a prompt that begins with all that came before continues
 * the sequence, any other (a renderer that leaves out old thinking, a conversation that was
 * shortened) begins a new one. */
static bool put_answer(struct arena *m, const struct turns *turns, double advantage,
                       tinker_datum *out, size_t *n)
{
    struct sequence q = { 0 };
    *n = 0;
    for (size_t i = 0; i < turns->n; i++) {
        const struct turn *t = &turns->at[i];
        size_t room = 0, known = q.n;
        if (t->sequence->n == 0)
            continue;
        if (!known || known > t->n_prompt ||
            memcmp(q.tokens, t->prompt, known * sizeof(*q.tokens)) != 0) {
            if (known > 1 && !put_datum(m, &q, &out[(*n)++]))
                return false;
            /* Room for all that may follow in this sequence. */
            for (size_t k = i; k < turns->n; k++)
                room += turns->at[k].n_prompt + turns->at[k].sequence->n;
            if (!new_sequence(m, room, &q))
                return false;
            known = 0;
        }
        append_read(&q, t->prompt + known, t->n_prompt - known);
        append_chosen(&q, t->sequence, advantage);
    }
    return q.n < 2 || put_datum(m, &q, &out[(*n)++]);
}

/* Called again, it replaces the data of the last call, which may be in use no longer. */
const tinker_datum *tinker_rollouts_data(tinker_rollouts *x, size_t *n, tinker_error *err)
{
    struct rollouts_box *box = (struct rollouts_box *)x;
    size_t total = x->n_groups * x->group_size, most = 0;
    arena_clear(&box->data);
    arena_init(&box->data, SIZE_MAX);
    for (size_t i = 0; i < total; i++)
        most += box->turns[i].n;
    tinker_datum *data = arena_array(&box->data, most + 1, sizeof(*data));
    *n = 0;
    for (size_t i = 0; data && i < total; i++) {
        size_t count;
        if (x->at[i].dropped)
            continue;
        if (put_answer(&box->data, &box->turns[i], x->at[i].advantage, &data[*n], &count))
            *n += count;
        else
            data = NULL;
    }
    if (!data)
        err_nomem(err, "training data");
    return data;
}
