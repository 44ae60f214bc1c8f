/* generator_draw.c - from logits to tokens and logprobs, row by row.
 *
 * Rows are evaluated on all threads; each writes only what belongs to its row.  The scratch
 * memory for sampling has one buffer per thread, each claimed by a flag. */
#include "engine/generate/generator.h"

#include <math.h>
#include <stdatomic.h>
#include "base/rand.h"
#include "engine/kernels/vec.h"

struct job {
    tinker_generator *g;
    struct want *wants;
};

enum { NO_LOGPROB = -99999 };

/* The k likeliest tokens; where the vocabulary has fewer, cells are left unused. */
static void put_top(const float *z, size_t vocab, size_t k, const struct logits_norm *norm,
                    struct candidate *scratch, int32_t *tokens, float *logprobs)
{
    size_t n = sample_top(z, vocab, k, scratch);
    while (n > 0 && scratch[n - 1].z == -INFINITY) /* tokens that cannot come are not likely ones */
        n--;
    for (size_t i = 0; i < k; i++) {
        tokens[i] = i < n ? scratch[i].id : 0;
        logprobs[i] = i < n ? logits_logprob(norm, scratch[i].z) : NO_LOGPROB;
    }
}

/* Logprobs of the prompt are those of the model, at temperature 1, whatever the request samples
 * with.  z are the logits of the position before `at`. */
static void score_prompt(struct request *r, size_t at, const float *z, size_t vocab,
                         struct candidate *scratch)
{
    struct logits_norm norm = logits_normalize(z, vocab, 1.0f);
    extras_score(r, at, z, vocab, &norm);
    if (at <= r->logprobs_from)
        return;
    if (r->prompt_logprobs != NULL)
        r->prompt_logprobs[at] = logits_logprob(&norm, z[r->prompt[at]]);
    if (r->topk > 0)
        put_top(z, vocab, r->topk, &norm, scratch, r->topk_tokens + at * r->topk,
                r->topk_logprobs + at * r->topk);
}

/* Draw the token after the last known one: for all samples of the request when its prompt has
 * just been computed, afterwards for this one.  The random number depends on the seed, the sample
 * and the position alone, so a draw is the same whatever else runs in the batch.
 * u is uniform in [0, 1): a counter-based generator (Philox), so no state is kept between
 * tokens. */
static void draw_tokens(tinker_generator *g, struct want *w, float *z, size_t vocab,
                        struct candidate *scratch)
{
    const struct sequence *s = w->sequence;
    const struct request *r = s->request;
    /* In place: a row that is drawn from is not scored, so nobody needs the model's own logits. */
    logit_rule_apply(&r->logit_rule, s->tokens, r->n_prompt, s->len, z, scratch);
    for (size_t i = 0; w->mask && i < vocab; i++)
        if (!(w->mask[i / 64] >> i % 64 & 1))
            z[i] = -INFINITY;
    w->barred = w->mask && !isfinite(vec_ops()->largest(z, vocab));
    if (w->barred)
        return;
    size_t count = r->forked ? 1 : r->num_samples;
    /* Logprobs are reported at the sampling temperature, unless the engine is asked for those of
     * the model; greedy sampling has no temperature to apply. */
    float inv = r->rule.inv_temperature;
    if (inv == 0 || g->engine->opts.raw_logprobs)
        inv = 1.0f;
    struct logits_norm norm = logits_normalize(z, vocab, inv);
    for (size_t i = 0; i < count; i++) {
        size_t sample = w->sequence->index + i;
        double u = philox_uniform(r->seed + sample, w->sequence->len - r->n_prompt);
        int32_t token = sample_token(z, vocab, &r->rule, u, scratch);
        g->draws[w->first + i] = (struct draw){ token, logits_logprob(&norm, z[token]) };
    }
    size_t k = r->sample_topk, at = (w->sequence->len - r->n_prompt) * k;
    if (k > 0)
        put_top(z, vocab, k, &norm, scratch, w->sequence->topk_tokens + at,
                w->sequence->topk_logprobs + at);
}

/* All that is wanted of the rows [begin, end) of logits. */
static void evaluate_slice(void *arg, size_t begin, size_t end)
{
    const struct job *j = arg;
    tinker_generator *g = j->g;
    size_t vocab = g->engine->model->config.vocab;
    size_t threads = (size_t)threads_count(g->engine->threads);
    for (size_t i = begin; i < end; i++) {
        struct want *w = &j->wants[i];
        if (!w->due)
            continue;
        float *z = g->logits + i * vocab;
        /* NaN or +infinity anywhere, or nothing finite: there is no distribution to draw from */
        w->bad = vec_ops()->has_nan(z, vocab) || !isfinite(vec_ops()->largest(z, vocab));
        if (w->bad)
            continue;
        /* as many buffers as threads, so one is free: search for it */
        size_t mine = 0;
        for (int no = 0; !atomic_compare_exchange_strong(&g->scratch_taken[mine], &no, 1); no = 0)
            mine = (mine + 1) % threads;
        struct candidate *scratch = g->scratch + mine * vocab;
        if (w->scores)
            score_prompt(w->sequence->request, w->position + 1, z, vocab, scratch);
        if (w->draws)
            draw_tokens(g, w, z, vocab, scratch);
        atomic_store(&g->scratch_taken[mine], 0);
    }
}

void generator_evaluate(tinker_generator *g, size_t first, size_t n)
{
    struct job job = { g, g->wants + first };
    threads_run(g->engine->threads, n, 1, evaluate_slice, &job);
}
