/* generator_step.c - one step: schedule, forward, draw, take the tokens over.
 *
 * Rows are grouped by model (an adapter of rank 0 is one of its own) and within a
 * model by adapter, then cut into batches.  Everything that can call the user or end
 * a request happens after the arithmetic, on the calling thread, in request order. */
#include "engine/generate/generator.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"

/* 64 MB of logits at once are 110 rows of a vocabulary of 150,000; below 8 rows the product with
 * the head reads all its weights for too little work. */
enum { LOGITS_BYTES = 64 << 20, LOGITS_ROWS_MIN = 8 };

static float *alloc_floats(size_t n)
{
    return aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
}

tinker_status generator_buffers(tinker_generator *g, tinker_error *err)
{
    const struct model_config *c = &g->engine->model->config;
    size_t threads = (size_t)threads_count(g->engine->threads);
    /* Rows of logits that are computed at once: bounded memory for large vocabularies, but enough
     * rows for an efficient product. */
    size_t rows = LOGITS_BYTES / (c->vocab * sizeof(float));
    rows = rows < LOGITS_ROWS_MIN ? LOGITS_ROWS_MIN : rows;
    g->logit_rows = rows > GENERATOR_ROWS ? GENERATOR_ROWS : rows;
    g->h = alloc_floats(GENERATOR_ROWS * c->hidden);
    g->logits = alloc_floats(g->logit_rows * c->vocab);
    g->wants = calloc(GENERATOR_ROWS, sizeof *g->wants);
    g->scratch = malloc(threads * c->vocab * sizeof *g->scratch);
    g->scratch_taken = calloc(threads, sizeof *g->scratch_taken);
    g->row_lora = calloc(GENERATOR_ROWS, sizeof *g->row_lora);
    g->row_tokens = calloc(GENERATOR_ROWS, sizeof *g->row_tokens);
    g->segments = calloc(GENERATOR_ROWS, sizeof *g->segments);
    if (!g->h || !g->logits || !g->wants || !g->scratch || !g->scratch_taken || !g->row_lora ||
        !g->row_tokens || !g->segments)
        return err_nomem(err, "generator");
    return TINKER_OK;
}

/* The weights of every scheduled request for this step, and workspace for the largest rank among
 * them.  They are looked up in each step because an adapter may be trained between two steps.
 * A step therefore sees one version of each adapter from its first row to its last. */
static tinker_status bind_weights(tinker_generator *g, tinker_error *err)
{
    size_t rank = 0;
    for (size_t i = 0; i < g->n_work; i++) {
        struct request *r = g->work[i].sequence->request;
        r->model = adapter_model(g->engine, r->adapter);
        r->lora = r->adapter ? adapter_lora(r->adapter) : NULL;
        if (r->model == NULL)
            return err_nomem(err, "packed weights");
        if (r->lora != NULL && r->lora->rank > rank)
            rank = r->lora->rank;
    }
    /* the workspace only ever grows */
    if (g->space != NULL && rank <= g->space_rank)
        return TINKER_OK;
    forward_space_free(g->space);
    g->space = forward_space_new(&g->engine->model->config, GENERATOR_ROWS, rank, err);
    g->space_rank = rank;
    return g->space == NULL ? TINKER_ENOMEM : TINKER_OK;
}

/* Any order that puts equal weights side by side: results do not depend on it. */
static int by_weights(const void *a, const void *b)
{
    const struct request *x = ((const struct work *)a)->sequence->request;
    const struct request *y = ((const struct work *)b)->sequence->request;
    if (x->model != y->model)
        return (uintptr_t)x->model < (uintptr_t)y->model ? -1 : 1;
    if (x->lora != y->lora)
        return (uintptr_t)x->lora < (uintptr_t)y->lora ? -1 : 1;
    return 0;
}

/* Memory for all draws of a batch, before the arithmetic: draws [w->first, ...) belong to w, one
 * per sample when its request has not forked yet. */
static bool reserve_draws(tinker_generator *g, size_t n_wants, tinker_error *err)
{
    size_t count = 0;
    for (size_t i = 0; i < n_wants; i++) {
        struct want *w = &g->wants[i];
        struct request *r = w->sequence->request;
        if (!w->due)
            continue;
        if (w->draws && !sequence_topk_room(w->sequence)) {
            request_fail(r, TINKER_ENOMEM, "no memory for the likeliest tokens");
            w->draws = false; /* the others go on */
        }
        /* Here, not in the arithmetic: callbacks run on the calling thread. */
        if (w->draws && r->on_mask)
            w->mask = r->on_mask(w->sequence->index, r->state);
        w->first = count;
        count += !w->draws ? 0 : r->forked ? 1 : r->num_samples;
    }
    if (count <= g->cap_draws)
        return true;
    struct draw *more = realloc(g->draws, count * sizeof *more);
    if (more == NULL) {
        err_nomem(err, "draws");
        return false;
    }
    g->draws = more;
    g->cap_draws = count;
    return true;
}

/* Append one token; the sequence ends with a stop token, when on_token says so, or at its limit.
 * A stop token is part of the result.
 * State: running -> done, once; its pages go back at that moment, so that a waiting sequence can
 * start in the next step. */
static void take_token(tinker_generator *g, struct sequence *s, const struct draw *d)
{
    struct request *r = s->request;
    size_t at = s->len - r->n_prompt;
    s->tokens[s->len++] = d->token;
    s->logprobs[at] = d->logprob;
    /* A stop token ends the sequence even when it is the last one allowed; the reason is then
     * "stop". */
    bool stop = false;
    for (size_t i = 0; i < r->n_stop && !stop; i++)
        stop = r->stop[i] == d->token;
    /* alternatives first: whoever receives a token already has them */
    if (r->on_rivals != NULL && r->sample_topk > 0)
        r->on_rivals(s->index, s->topk_tokens + at * r->sample_topk,
                     s->topk_logprobs + at * r->sample_topk, r->sample_topk, r->state);
    if (r->on_token != NULL && r->on_token(s->index, d->token, d->logprob, r->state) != 0)
        stop = true;
    if (!stop && at + 1 < r->max_new)
        return;
    s->reason = stop ? TINKER_STOP_STOP : TINKER_STOP_LENGTH;
    s->done = true;
    r->unfinished--;
    sequence_release(g, s);
}

/* The prompt is computed: the other samples of the request join behind the first one, with its
 * pages and the alternatives to the first token, which are the same for all, and every sample takes
 * its first token.
 * Sample i differs from the first only from its first own token on, so the prompt is computed
 * once for all of them. */
static void fork_samples(tinker_generator *g, struct sequence *s, const struct draw *draws)
{
    struct request *r = s->request;
    size_t at = 0;
    while (g->active[at] != s)
        at++;
    r->forked = true;
    for (size_t i = 1; i < r->num_samples; i++) {
        struct sequence *to = &r->samples[i];
        /* Without a page for the copy, this sample computes the prompt again later. */
        sequence_share_prompt(g, to, s);
        if (!sequence_topk_room(to) || !generator_activate(g, to, at + i)) {
            sequence_release(g, to);
            request_fail(r, TINKER_ENOMEM, "no memory for samples");
            return;
        }
        size_t k = r->sample_topk;
        if (k > 0) {
            memcpy(to->topk_tokens, s->topk_tokens, k * sizeof *to->topk_tokens);
            memcpy(to->topk_logprobs, s->topk_logprobs, k * sizeof *to->topk_logprobs);
        }
    }
    for (size_t i = 0; i < r->num_samples && !r->canceled; i++)
        take_token(g, &r->samples[i], &draws[i]);
}

/* Callbacks run in here, and may cancel any request: look at each one again. */
static void take_results(tinker_generator *g, size_t n_wants)
{
    for (size_t i = 0; i < n_wants; i++) {
        struct want *w = &g->wants[i];
        struct request *r = w->sequence->request;
        if (!w->due)
            continue;
        w->due = false;
        if (r->canceled || r->error.status != TINKER_OK)
            continue;
        if (w->bad) {
            request_fail(r, TINKER_EREQUEST, "the model's logits are not finite");
            continue;
        }
        if (w->barred) {
            request_fail(r, TINKER_EREQUEST,
                         "no token of the vocabulary may come here: biases and the schema "
                         "leave none, or the schema has become too large");
            continue;
        }
        /* wants of a sequence ascend, so every earlier position has its score, too */
        if (w->scores)
            r->scored = w->position + 1;
        if (w->draws && !r->forked)
            fork_samples(g, w->sequence, &g->draws[w->first]);
        else if (w->draws)
            take_token(g, w->sequence, &g->draws[w->first]);
    }
}

/* Logits of the wanted rows, a chunk at a time.  Their hidden states move to the front first,
 * which is safe because wants ascend by row. */
static void evaluate_wants(tinker_generator *g, const struct model *m, size_t n_wants)
{
    size_t hidden = m->config.hidden;
    for (size_t i = 0; i < n_wants; i++) {
        if (g->wants[i].row != i)
            memcpy(g->h + i * hidden, g->h + g->wants[i].row * hidden, hidden * sizeof(float));
        g->row_lora[i] = g->wants[i].sequence->request->lora;
    }
    /* The head is the largest matrix of a small model: only rows that somebody wants are
     * multiplied with it. */
    for (size_t i = 0; i < n_wants; i += g->logit_rows) {
        size_t n = n_wants - i < g->logit_rows ? n_wants - i : g->logit_rows;
        forward_logits(m, g->engine->threads, g->space, g->h + i * hidden, n, g->row_lora + i,
                       g->logits);
        generator_evaluate(g, i, n);
    }
}

/* A guess is right when it was drawn: then the row behind it was computed from what is known, and
 * its logits are those of the next token. */
static bool guess_came(const struct want *w)
{
    const struct sequence *s = w->sequence;
    return !s->done && !s->request->canceled && s->request->error.status == TINKER_OK &&
           s->len == w->position + 1 && s->tokens[w->position] == s->draft[w->ahead - 1];
}

/* Token after token of the drafts, as long as one of them comes.  Each is drawn and taken as if a
 * step of its own had computed it: callbacks, masks and penalties see the tokens before it. */
static tinker_status take_guesses(tinker_generator *g, size_t n_wants, tinker_error *err)
{
    bool any = true;
    for (size_t ahead = 1; ahead <= DRAFT_MAX && any; ahead++) {
        any = false;
        for (size_t i = 0; i < n_wants; i++) {
            struct want *w = &g->wants[i];
            if (w->ahead != ahead || !guess_came(w))
                continue;
            w->due = any = true;
            w->sequence->came = ahead;
            w->sequence->computed++;
            w->sequence->reached = w->sequence->computed;
            sequence_publish(g, w->sequence);
        }
        if (!any)
            break;
        if (!reserve_draws(g, n_wants, err))
            return TINKER_ENOMEM;
        generator_evaluate(g, 0, n_wants);
        take_results(g, n_wants);
    }
    return TINKER_OK;
}

/* What the drafts of a batch were worth, for the next ones. */
static void judge_drafts(tinker_generator *g, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct work *w = &g->work[first + i];
        if (w->drafted == 0)
            continue;
        draft_result(&w->sequence->drafts, w->drafted, w->sequence->came);
        g->drafted += w->drafted;
        g->came += w->sequence->came;
    }
}

/* One forward batch of work[first..first + n): gather its rows, compute, then take the results.
 * Do not keep pointers into g->work across take_results(), which may reallocate it. */
static tinker_status run_batch(tinker_generator *g, size_t first, size_t n, tinker_error *err)
{
    const struct model *m = g->work[first].sequence->request->model;
    struct batch batch = { .tokens = g->row_tokens, .segments = g->segments, .n_segments = n };
    size_t n_wants = 0, n_drafted = 0;
    for (size_t i = 0; i < n; i++) {
        struct sequence *s = g->work[first + i].sequence;
        struct request *r = s->request;
        size_t rows = g->work[first + i].rows;
        g->segments[i] = (struct segment){ .row = batch.n,
                                           .n = rows,
                                           .pos = s->computed,
                                           .lora = r->lora,
                                           .pages = s->data,
                                           .is_long = r->is_long,
                                           .state = s->state };
        size_t drafted = g->work[first + i].drafted, known = rows - drafted;
        memcpy(g->row_tokens + batch.n, s->tokens + s->computed, known * sizeof(int32_t));
        memcpy(g->row_tokens + batch.n + known, s->draft, drafted * sizeof(int32_t));
        s->came = 0;
        n_drafted += drafted;
        /* Logits are needed where a prompt token is to be scored, and from the last known token
         * on. */
        for (size_t k = 0; k < rows; k++) {
            size_t position = s->computed + k;
            /* Logits at position p predict the token at p + 1, so a prompt token is scored by
             * the row before it. */
            bool scores =
                request_scores(r) && position + 1 < r->n_prompt && position + 1 > r->scored;
            bool draws = position + 1 >= s->len && r->max_new > 0;
            if (scores || draws)
                g->wants[n_wants++] = (struct want){ .sequence = s,
                                                     .position = position,
                                                     .row = batch.n + k,
                                                     .scores = scores,
                                                     .draws = draws,
                                                     .ahead = draws ? position + 1 - s->len : 0,
                                                     .due = position < s->len };
        }
        batch.n += rows;
    }
    if (!reserve_draws(g, n_wants, err))
        return TINKER_ENOMEM;
    /* The arithmetic: no callback runs and nothing is freed until it is done. */
    forward_rows(m, g->engine->threads, g->space, &batch, g->h);
    evaluate_wants(g, m, n_wants);
    /* Publish before sequences take tokens: one that ends releases its pages, and only published
     * ones stay in the cache. */
    for (size_t i = 0; i < n; i++) {
        struct sequence *s = g->work[first + i].sequence;
        s->computed += g->work[first + i].rows - g->work[first + i].drafted;
        s->reached = s->computed > s->reached ? s->computed : s->reached;
        sequence_publish(g, s);
    }
    take_results(g, n_wants);
    if (n_drafted > 0 && take_guesses(g, n_wants, err) != TINKER_OK)
        return TINKER_ENOMEM;
    judge_drafts(g, first, n);
    /* A prompt that fills the context is only scored: its samples end empty. */
    for (size_t i = 0; i < n; i++) {
        struct sequence *s = g->work[first + i].sequence;
        struct request *r = s->request;
        if (r->max_new > 0 || s->computed < s->len || r->error.status != TINKER_OK)
            continue;
        for (size_t k = 0; k < r->num_samples; k++)
            r->samples[k].done = true;
        r->unfinished = 0;
        sequence_release(g, s);
    }
    return TINKER_OK;
}

/* The order matters: callbacks only mark requests while `stepping` is set, and the sweep, which
 * frees them, comes last, even after a failure. */
int tinker_generator_step(tinker_generator *g, tinker_error *err)
{
    g->stepping = true;
    generator_schedule(g);
    tinker_status status = TINKER_OK;
    if (g->n_work > 0)
        status = bind_weights(g, err);
    if (g->n_work > 0 && status == TINKER_OK)
        /* Adapters side by side let one pass over the base weights serve all of them; see lora.c
         * for the products that differ. */
        qsort(g->work, g->n_work, sizeof *g->work, by_weights);
    /* batches of one model and at most GENERATOR_ROWS rows */
    for (size_t i = 0, n; i < g->n_work && status == TINKER_OK; i += n) {
        const struct model *m = g->work[i].sequence->request->model;
        size_t rows = 0;
        /* One piece of work is never cut: generator_schedule() gives none more than
         * GENERATOR_PREFILL rows. */
        for (n = 0; i + n < g->n_work && g->work[i + n].sequence->request->model == m &&
                    rows + g->work[i + n].rows <= GENERATOR_ROWS;
             n++)
            rows += g->work[i + n].rows;
        status = run_batch(g, i, n, err);
    }
    g->stepping = false;
    generator_sweep(g);
    return status == TINKER_OK ? (int)g->unfinished : -1;
}
