/* generator_extras.c - what a request wants to know of its prompt beside its own tokens:
 * logprobs of chosen tokens, and tokens drawn at every position after the first.
 *
 * Row i of both is position i + 1 of the prompt.  Logprobs are those of the model, at
 * temperature 1, as all logprobs of prompts are; draws are at the request's temperature. */
#include "engine/generate/generator.h"

#include <string.h>
#include "base/err.h"
#include "base/rand.h"
#include "engine/train/loss.h"

/* Counter of the random numbers for draws at prompts: the upper half of the range, because samples
 * count their positions from 0. */
static const uint64_t DRAWS_OF_PROMPTS = (uint64_t)1 << 63;

/* ---- checking ------------------------------------------------------------------------- */

static tinker_status bad_targets(tinker_error *err, const char *why)
{
    return err_set(err, TINKER_EINVAL, "target_prompt_logprobs: %s", why);
}

/* Dense (n_prompt - 1, k), or the same shape with the rows of a CSR matrix.
 * Everything about a tensor of the user is checked here, so that later loops need no bounds. */
static tinker_status check_shape(const tinker_tensor *t, size_t n_prompt, tinker_error *err)
{
    if (t->dtype != TINKER_INT64)
        return bad_targets(err, "must be int64");
    if (!t->shape || t->ndim != 2 || t->shape[0] < 0 || t->shape[1] < 1)
        return bad_targets(err, "must have two dimensions");
    if ((uint64_t)t->shape[0] != n_prompt - 1)
        return err_set(err, TINKER_EINVAL,
                       "target_prompt_logprobs has %lld rows, the prompt has %zu tokens after the "
                       "first",
                       (long long)t->shape[0], n_prompt - 1);
    if (t->n > n_prompt * GENERATOR_TOPK_MAX)
        return err_set(err, TINKER_EINVAL,
                       "target_prompt_logprobs has %zu values, at most %d per token of the prompt "
                       "are possible",
                       t->n, GENERATOR_TOPK_MAX);
    if (!t->crow &&
        (t->n % (uint64_t)t->shape[1] != 0 || t->n / (uint64_t)t->shape[1] != n_prompt - 1))
        return bad_targets(err, "the number of values does not match the shape");
    if (t->n > 0 && (!t->data || (t->crow && !t->col)))
        return bad_targets(err, "no data");
    const char *why = t->crow ? loss_sparse_problem(t) : NULL;
    return why ? bad_targets(err, why) : TINKER_OK;
}

/* Before anything is allocated: sizes here come from the network. */
tinker_status extras_check(const tinker_generator *g, const tinker_generate *q, tinker_error *err)
{
    if (q->prompt_alt_tokens_k > GENERATOR_TOPK_MAX)
        return err_set(err, TINKER_EINVAL, "prompt_alt_tokens_k is %zu, at most %d are possible",
                       q->prompt_alt_tokens_k, GENERATOR_TOPK_MAX);
    if (!q->target_prompt_logprobs)
        return TINKER_OK;
    const tinker_tensor *t = q->target_prompt_logprobs;
    tinker_status status = check_shape(t, q->n_prompt, err);
    if (status != TINKER_OK)
        return status;
    /* -1 pads a row; at least one real token must be named, or extras_init() would find no row */
    const int64_t *tokens = t->data;
    int64_t vocab = g->engine->info.vocab_size;
    bool any = false;
    for (size_t i = 0; i < t->n; i++) {
        if (tokens[i] < -1 || tokens[i] >= vocab)
            return err_set(err, TINKER_EINVAL,
                           "target_prompt_logprobs: token %zu is %lld, outside the vocabulary of "
                           "%lld",
                           i, (long long)tokens[i], (long long)vocab);
        any |= tokens[i] >= 0;
    }
    return any ? TINKER_OK : bad_targets(err, "names no token");
}

/* ---- a request ------------------------------------------------------------------------ */

/* Where row i begins among the values.
 * Dense rows have shape[1] values each; in CSR form crow[] has the bounds. */
static size_t row_begin(const tinker_tensor *t, size_t i)
{
    return t->crow ? (size_t)t->crow[i] : i * (size_t)t->shape[1];
}

bool extras_init(struct request *r, const tinker_generate *q)
{
    struct prompt_extras *x = &r->extras;
    x->alt_k = q->prompt_alt_tokens_k;
    x->from = r->n_prompt;
    if (q->target_prompt_logprobs) {
        /* copied: the caller's arrays need not outlive tinker_generator_add() */
        const tinker_tensor *t = q->target_prompt_logprobs;
        x->targets = *t;
        x->targets.data = arena_memdup(&r->arena, t->data, t->n * sizeof(int64_t));
        x->targets.shape = arena_memdup(&r->arena, t->shape, 2 * sizeof *t->shape);
        if (t->crow) { /* n_prompt - 1 rows have n_prompt bounds */
            x->targets.crow = arena_memdup(&r->arena, t->crow, r->n_prompt * sizeof *t->crow);
            x->targets.col = arena_memdup(&r->arena, t->col, t->n * sizeof *t->col);
        }
        x->target_logprobs = arena_array(&r->arena, t->n, sizeof(float));
        if (!x->targets.data || !x->targets.shape || !x->target_logprobs ||
            (t->crow && (!x->targets.crow || !x->targets.col)))
            return false;
        /* Rows before the first value that is not padding need no logits.  extras_check() has
         * seen such a value, so both loops end. */
        const int64_t *tokens = x->targets.data;
        size_t first = 0, row = 0;
        while (tokens[first] < 0)
            first++;
        while (row_begin(&x->targets, row + 1) <= first)
            row++;
        x->from = row;
    }
    if (x->alt_k == 0)
        return true;
    /* Alternatives are wanted at every position, so every one needs logits. */
    x->from = 0;
    x->alt_tokens = arena_array(&r->arena, r->n_prompt * x->alt_k, sizeof(int64_t));
    x->alt_logprobs = arena_array(&r->arena, r->n_prompt * x->alt_k, sizeof(float));
    return x->alt_tokens && x->alt_logprobs;
}

/* ---- positions ------------------------------------------------------------------------- */

void extras_score(struct request *r, size_t at, const float *z, size_t vocab,
                  const struct logits_norm *norm)
{
    struct prompt_extras *x = &r->extras;
    const int64_t *tokens = x->targets.data;
    if (tokens)
        for (size_t i = row_begin(&x->targets, at - 1); i < row_begin(&x->targets, at); i++)
            if (tokens[i] >= 0)
                x->target_logprobs[i] = logits_logprob(norm, z[tokens[i]]);
    /* Alternatives come from the whole distribution: no top_k, no top_p, hence no scratch. */
    struct sample_rule rule = { .inv_temperature = r->rule.inv_temperature, .top_p = 1 };
    /* The counter is the index in the result, so the draws of a position do not depend on which
     * positions share its batch. */
    for (size_t i = (at - 1) * x->alt_k; i < at * x->alt_k; i++) {
        double u = philox_uniform(r->seed, DRAWS_OF_PROMPTS | i);
        int32_t token = sample_token(z, vocab, &rule, u, NULL);
        x->alt_tokens[i] = token;
        x->alt_logprobs[i] = logits_logprob(norm, z[token]);
    }
}

/* ---- the result ------------------------------------------------------------------------ */

/* A copy of t in the arena with other data.
 * Shape and indices are shared with t: all of them live in the request's arena. */
static const tinker_tensor *copy_tensor(struct arena *arena, tinker_tensor t, tinker_dtype dtype,
                                        const void *data)
{
    t.dtype = dtype;
    t.data = data;
    return arena_memdup(arena, &t, sizeof t);
}

bool extras_result(struct request *r)
{
    struct prompt_extras *x = &r->extras;
    if (x->targets.data) {
        r->result.target_prompt_logprobs =
            copy_tensor(&r->arena, x->targets, TINKER_FLOAT32, x->target_logprobs);
        if (!r->result.target_prompt_logprobs)
            return false;
    }
    if (x->alt_k == 0)
        return true;
    /* Row 0 is the second token of the prompt: the first one has no distribution. */
    const int64_t shape[2] = { (int64_t)r->n_prompt - 1, (int64_t)x->alt_k };
    tinker_tensor t = { .n = (r->n_prompt - 1) * x->alt_k,
                        .shape = arena_memdup(&r->arena, shape, sizeof shape),
                        .ndim = 2 };
    r->result.prompt_alt_tokens = copy_tensor(&r->arena, t, TINKER_INT64, x->alt_tokens);
    r->result.prompt_alt_logprobs = copy_tensor(&r->arena, t, TINKER_FLOAT32, x->alt_logprobs);
    return t.shape && r->result.prompt_alt_tokens && r->result.prompt_alt_logprobs;
}
