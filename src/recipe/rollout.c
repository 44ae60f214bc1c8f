/* rollout.c - answers of the model to prompts, and training data from them. */
#include <tinker/recipe.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/err.h"

/* What the answers refer to. Sequences point into the results of the futures, so these stay as
 * long as the answers do. */
struct rollouts_box {
    tinker_rollouts pub; /* first */
    struct arena arena;
    tinker_future **futures;
    size_t n_futures;
    tinker_tokens *prompts;          /* one per group */
    tinker_parsed **parsed;          /* one per answer */
    struct arena data;               /* of tinker_rollouts_data() */
    const tinker_renderer *renderer; /* while the answers are read */
    const tinker_tokenizer *tokenizer;
};

void tinker_rollouts_free(tinker_rollouts *x)
{
    struct rollouts_box *box = (struct rollouts_box *)x;
    if (!box)
        return;
    for (size_t i = 0; i < box->n_futures; i++)
        tinker_future_free(box->futures[i]);
    for (size_t i = 0; box->prompts && i < x->n_groups; i++)
        tinker_tokens_clear(&box->prompts[i]);
    for (size_t i = 0; box->parsed && i < x->n_groups * x->group_size; i++)
        tinker_parsed_free(box->parsed[i]);
    arena_clear(&box->arena);
    arena_clear(&box->data);
    free(box);
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
    box->futures = arena_array(&box->arena, total + 1, sizeof(tinker_future *));
    box->prompts = arena_array(&box->arena, n + 1, sizeof(*box->prompts));
    box->parsed = arena_array(&box->arena, total + 1, sizeof(tinker_parsed *));
    if (box->pub.at && box->futures && box->prompts && box->parsed)
        return box;
    tinker_rollouts_free(&box->pub);
    return NULL;
}

/* ---- asking ---- */

/* The tokens of the prompt, kept for the datums.  Pictures cannot be trained on this way. */
static tinker_status render_prompt(const tinker_renderer *r, const tinker_conversation *c,
                                   tinker_tokens *out, tinker_error *err)
{
    tinker_rendered *x = tinker_renderer_prompt(r, c->messages, c->n_messages, NULL, NULL, err);
    tinker_status status = x ? TINKER_OK : TINKER_EINVAL;
    for (size_t i = 0; x && status == TINKER_OK && i < x->examples[0].input.n_chunks; i++) {
        const tinker_chunk *chunk = &x->examples[0].input.chunks[i];
        status = chunk->kind == TINKER_CHUNK_TEXT
                     ? tinker_tokens_append(out, chunk->tokens, chunk->n_tokens, err)
                     : err_set(err, TINKER_EINVAL, "a prompt of a rollout is text alone");
    }
    tinker_rendered_free(x);
    return status;
}

/* Requests of one prompt: one for all its answers, or one for each. Seeds differ per request and
 * follow from the given one alone: the same seed gives the same answers whatever the timing. The
 * service takes 31 bits. */
static tinker_status ask_prompt(struct rollouts_box *box, tinker_sampler *s,
                                const tinker_rollout_options *o, size_t p, tinker_error *err)
{
    tinker_sample_options each = TINKER_SAMPLE_OPTIONS_INIT;
    tinker_sampling_params params = o->params;
    tinker_chunk chunk = { .tokens = box->prompts[p].ids, .n_tokens = box->prompts[p].n };
    tinker_model_input input = { &chunk, 1 };
    size_t group = box->pub.group_size, requests = o->one_request_each ? group : 1;
    each.num_samples = o->one_request_each ? 1 : group;
    for (size_t i = 0; i < requests; i++) {
        uint64_t offset = o->one_request_each ? p * group + i : p;
        params.seed = (int64_t)(((uint64_t)o->params.seed + offset) % (UINT64_C(1) << 31));
        tinker_future *f = tinker_sampler_sample(s, &input, &params, &each, err);
        if (!f)
            return TINKER_EINVAL;
        box->futures[box->n_futures++] = f;
    }
    return TINKER_OK;
}

/* ---- reading ---- */

/* What the model wrote is never an error: text that is no message is taken as it is. A message
 * that was cut off is graded, too: its reward is what teaches the model to end in time. */
static bool read_answer(struct rollouts_box *box, size_t at, const tinker_sequence *s,
                        size_t n_prompt)
{
    tinker_rollout *x = &box->pub.at[at];
    tinker_text text = TINKER_TEXT_INIT;
    tinker_parsed *p = tinker_renderer_parse(box->renderer, s->tokens, s->n, NULL);
    *x = (tinker_rollout){ .sequence = s,
                           .n_prompt = n_prompt,
                           .termination = TINKER_TERMINATION_MALFORMED };
    box->parsed[at] = p;
    bool ok;
    if (p) {
        x->message = p->message;
        x->termination = p->termination;
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
static tinker_status read_answers(struct rollouts_box *box, const tinker_rollout_options *o,
                                  tinker_error *err)
{
    size_t at = 0, per = o->one_request_each ? 1 : box->pub.group_size;
    for (size_t i = 0; i < box->n_futures; i++) {
        tinker_status status = tinker_future_wait(box->futures[i], o->timeout_ms, err);
        if (status != TINKER_OK)
            return status;
        const tinker_sample *s = tinker_future_sample(box->futures[i]);
        if (s->n_sequences != per || !s->sequences[0].logprobs)
            return err_set(err, TINKER_EPROTOCOL, "asked for %zu answers with logprobs, got %zu",
                           per, s->n_sequences);
        for (size_t k = 0; k < per; k++, at++)
            if (!read_answer(box, at, &s->sequences[k], box->prompts[at / box->pub.group_size].n))
                return err_nomem(err, "answers");
    }
    return TINKER_OK;
}

/* All prompts are submitted before the first answer is awaited, so that the service can batch
 * them. */
tinker_rollouts *tinker_sampler_rollouts(tinker_sampler *s, const tinker_renderer *renderer,
                                         const tinker_tokenizer *tokenizer,
                                         const tinker_conversation *const *prompts, size_t n,
                                         const tinker_rollout_options *opts, tinker_error *err)
{
    tinker_rollout_options o = TINKER_ROLLOUT_OPTIONS_INIT;
    if (opts && opts_copy(&o, sizeof(o), opts, "tinker_rollout_options", err) != TINKER_OK)
        return NULL;
    if (!o.params.stop_tokens && !o.params.stop_strings)
        tinker_renderer_set_stop(renderer, &o.params);
    struct rollouts_box *box = new_box(n, o.group_size);
    if (!box) {
        err_nomem(err, "answers");
        return NULL;
    }
    box->renderer = renderer;
    box->tokenizer = tokenizer;
    tinker_status status = TINKER_OK;
    for (size_t p = 0; p < n && status == TINKER_OK; p++) {
        status = render_prompt(renderer, prompts[p], &box->prompts[p], err);
        if (status == TINKER_OK)
            status = ask_prompt(box, s, &o, p, err);
    }
    if (status == TINKER_OK)
        status = read_answers(box, &o, err);
    if (status == TINKER_OK)
        return &box->pub;
    tinker_rollouts_free(&box->pub);
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

struct rollout_arrays {
    int32_t *tokens;
    int64_t *targets;
    float *logprobs, *advantages, *mask;
};

/* Prompt and answer without the last token; targets, logprobs, advantages and mask without the
 * first element. The mask is 1 where the model chose the token; the prompt has logprob and
 * advantage 0. */
static void fill_arrays(struct rollout_arrays *a, const tinker_tokens *prompt,
                        const tinker_rollout *x)
{
    size_t p = prompt->n, n = p + x->sequence->n;
    for (size_t i = 0; i < n; i++) {
        int32_t token = i < p ? prompt->ids[i] : x->sequence->tokens[i - p];
        if (i + 1 < n)
            a->tokens[i] = token;
        if (i == 0)
            continue;
        a->targets[i - 1] = token;
        a->logprobs[i - 1] = i < p ? 0 : x->sequence->logprobs[i - p];
        a->advantages[i - 1] = i < p ? 0 : (float)x->advantage;
        a->mask[i - 1] = i < p ? 0 : 1;
    }
}

static bool fill_rollout(struct arena *m, const tinker_tokens *prompt, const tinker_rollout *x,
                         tinker_datum *out)
{
    size_t n = prompt->n + x->sequence->n - 1;
    struct rollout_arrays a = { arena_array(m, n + 1, sizeof(int32_t)),
                                arena_array(m, n + 1, sizeof(int64_t)),
                                arena_array(m, n + 1, sizeof(float)),
                                arena_array(m, n + 1, sizeof(float)),
                                arena_array(m, n + 1, sizeof(float)) };
    tinker_chunk *chunk = arena_alloc(m, sizeof(*chunk));
    tinker_named_tensor *in = arena_array(m, 4, sizeof(*in));
    if (!a.tokens || !a.targets || !a.logprobs || !a.advantages || !a.mask || !chunk || !in)
        return false;
    fill_arrays(&a, prompt, x);
    chunk->tokens = a.tokens;
    chunk->n_tokens = n;
    in[0] = (tinker_named_tensor){ "target_tokens",
                                   { .dtype = TINKER_INT64, .data = a.targets, .n = n } };
    in[1] = (tinker_named_tensor){ "logprobs",
                                   { .dtype = TINKER_FLOAT32, .data = a.logprobs, .n = n } };
    in[2] = (tinker_named_tensor){ "advantages",
                                   { .dtype = TINKER_FLOAT32, .data = a.advantages, .n = n } };
    in[3] = (tinker_named_tensor){ "mask", { .dtype = TINKER_FLOAT32, .data = a.mask, .n = n } };
    *out = (tinker_datum){ .model_input = { chunk, 1 }, .inputs = in, .n_inputs = 4 };
    return true;
}

/* Called again, it replaces the data of the last call, which may be in use no longer. */
const tinker_datum *tinker_rollouts_data(tinker_rollouts *x, size_t *n, tinker_error *err)
{
    struct rollouts_box *box = (struct rollouts_box *)x;
    size_t total = x->n_groups * x->group_size;
    arena_clear(&box->data);
    arena_init(&box->data, SIZE_MAX);
    tinker_datum *data = arena_array(&box->data, total + 1, sizeof(*data));
    *n = 0;
    for (size_t i = 0; data && i < total; i++) {
        const tinker_rollout *a = &x->at[i];
        const tinker_tokens *prompt = &box->prompts[i / x->group_size];
        if (a->dropped || a->sequence->n == 0 || prompt->n + a->sequence->n < 2)
            continue;
        if (!fill_rollout(&box->data, prompt, a, &data[*n])) {
            data = NULL;
            break;
        }
        ++*n;
    }
    if (!data)
        err_nomem(err, "training data");
    return data;
}
