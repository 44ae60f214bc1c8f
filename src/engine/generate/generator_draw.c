/* generator_draw.c - from logits to tokens and logprobs, one row per task.
 *
 * Row tasks run on all threads; each writes only what belongs to its row.  The
 * sampling scratch is claimed by a flag, one per thread, so a task always finds one. */
#include "engine/generate/generator.h"

#include <math.h>
#include <stdatomic.h>
#include "base/rand.h"
#include "engine/kernels/vec.h"

struct job {
    tinker_generator *g;
    struct want *wants;
};

static size_t claim_scratch(tinker_generator *g)
{
    for (size_t i = 0;; i = (i + 1) % (size_t)threads_count(g->engine->threads)) {
        int no = 0;
        if (atomic_compare_exchange_strong(&g->scratch_taken[i], &no, 1))
            return i;
    }
}

enum { NO_LOGPROB = -99999 };

/* The k likeliest tokens; where the vocabulary has fewer, cells are left unused. */
static void put_top(const float *z, size_t vocab, size_t k, const struct logits_norm *norm,
                    struct candidate *scratch, int32_t *tokens, float *logprobs)
{
    size_t n = sample_top(z, vocab, k, scratch);
    for (size_t i = 0; i < k; i++) {
        tokens[i] = i < n ? scratch[i].id : 0;
        logprobs[i] = i < n ? logits_logprob(norm, scratch[i].z) : NO_LOGPROB;
    }
}

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

static void draw_tokens(tinker_generator *g, const struct want *w, const float *z, size_t vocab,
                        struct candidate *scratch)
{
    const struct request *r = w->sequence->request;
    size_t count = r->forked ? 1 : r->num_samples;
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

/* False for NaN and +infinity anywhere, and when nothing is finite. */
static bool usable(const float *z, size_t vocab)
{
    return !vec_ops()->has_nan(z, vocab) && isfinite(vec_ops()->largest(z, vocab));
}

static void evaluate_row(tinker_generator *g, struct want *w, const float *z)
{
    size_t vocab = g->engine->model->config.vocab;
    w->bad = !usable(z, vocab);
    if (w->bad)
        return;
    size_t mine = claim_scratch(g);
    struct candidate *scratch = g->scratch + mine * vocab;
    if (w->scores)
        score_prompt(w->sequence->request, w->position + 1, z, vocab, scratch);
    if (w->draws)
        draw_tokens(g, w, z, vocab, scratch);
    atomic_store(&g->scratch_taken[mine], 0);
}

static void evaluate_slice(void *arg, size_t begin, size_t end)
{
    const struct job *j = arg;
    size_t vocab = j->g->engine->model->config.vocab;
    for (size_t i = begin; i < end; i++)
        evaluate_row(j->g, &j->wants[i], j->g->logits + i * vocab);
}

void generator_evaluate(tinker_generator *g, size_t first, size_t n)
{
    struct job job = { g, g->wants + first };
    threads_run(g->engine->threads, n, 1, evaluate_slice, &job);
}
