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

enum { LOGITS_BYTES = 64 << 20, LOGITS_ROWS_MIN = 8 };

static size_t logit_rows(size_t vocab)
{
    size_t rows = LOGITS_BYTES / (vocab * sizeof(float));
    rows = rows < LOGITS_ROWS_MIN ? LOGITS_ROWS_MIN : rows;
    return rows > GENERATOR_ROWS ? GENERATOR_ROWS : rows;
}

static float *floats(size_t n)
{
    return aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
}

tinker_status generator_buffers(tinker_generator *g, tinker_error *err)
{
    const struct model_config *c = &g->engine->model->config;
    size_t threads = (size_t)threads_count(g->engine->threads);
    g->logit_rows = logit_rows(c->vocab);
    g->h = floats(GENERATOR_ROWS * c->hidden);
    g->logits = floats(g->logit_rows * c->vocab);
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

/* The weights of every active request for this step, and space for their ranks. */
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
    if (g->space != NULL && rank <= g->space_rank)
        return TINKER_OK;
    forward_space_free(g->space);
    g->space = forward_space_new(&g->engine->model->config, GENERATOR_ROWS, rank, err);
    g->space_rank = rank;
    return g->space == NULL ? TINKER_ENOMEM : TINKER_OK;
}

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

/* Note which of the rows [row, row + n) of a sequence need logits. */
static size_t add_wants(tinker_generator *g, size_t n_wants, struct sequence *s, size_t row,
                        size_t n)
{
    struct request *r = s->request;
    bool scoring = request_scores(r);
    for (size_t i = 0; i < n; i++) {
        size_t position = s->computed + i;
        bool scores = scoring && position + 1 < r->n_prompt && position + 1 > r->scored;
        bool draws = position + 1 == s->len && r->max_new > 0;
        if (scores || draws)
            g->wants[n_wants++] = (struct want){ .sequence = s,
                                                 .position = position,
                                                 .row = row + i,
                                                 .scores = scores,
                                                 .draws = draws };
    }
    return n_wants;
}

static bool room_for_draws(tinker_generator *g, size_t n_wants, tinker_error *err)
{
    size_t count = 0;
    for (size_t i = 0; i < n_wants; i++) {
        struct want *w = &g->wants[i];
        struct request *r = w->sequence->request;
        if (w->draws && !sequence_topk_room(w->sequence)) {
            request_fail(r, TINKER_ENOMEM, "no memory for the likeliest tokens");
            w->draws = false; /* the others go on */
        }
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

static bool is_stop(const struct request *r, int32_t token)
{
    for (size_t i = 0; i < r->n_stop; i++)
        if (r->stop[i] == token)
            return true;
    return false;
}

/* Append one token; the sequence may end with it. */
static void take_token(tinker_generator *g, struct sequence *s, const struct draw *d)
{
    struct request *r = s->request;
    size_t at = s->len - r->n_prompt;
    s->tokens[s->len++] = d->token;
    s->logprobs[at] = d->logprob;
    bool stop = is_stop(r, d->token);
    if (r->on_rivals != NULL && r->sample_topk > 0)
        r->on_rivals(r->state, s->index, s->topk_tokens + at * r->sample_topk,
                     s->topk_logprobs + at * r->sample_topk, r->sample_topk);
    if (r->on_token != NULL && r->on_token(r->state, s->index, d->token, d->logprob) != 0)
        stop = true;
    if (!stop && at + 1 < r->max_new)
        return;
    s->reason = stop ? TINKER_STOP_STOP : TINKER_STOP_LENGTH;
    s->done = true;
    r->unfinished--;
    sequence_release(g, s);
}

/* The first token's rivals are the same for all samples. */
static bool share_topk(const struct sequence *from, struct sequence *to)
{
    size_t k = from->request->sample_topk;
    if (!sequence_topk_room(to))
        return false;
    if (k > 0) {
        memcpy(to->topk_tokens, from->topk_tokens, k * sizeof *to->topk_tokens);
        memcpy(to->topk_logprobs, from->topk_logprobs, k * sizeof *to->topk_logprobs);
    }
    return true;
}

/* The prompt is computed: every sample takes its first token. */
static void fork_samples(tinker_generator *g, struct sequence *s, const struct draw *draws)
{
    struct request *r = s->request;
    size_t at = 0;
    while (g->active[at] != s)
        at++;
    r->forked = true;
    for (size_t i = 1; i < r->num_samples; i++) {
        /* Without room in memory for a copy it computes the prompt again later. */
        sequence_share_prompt(g, &r->samples[i], s);
        if (!share_topk(s, &r->samples[i]) || !generator_activate(g, &r->samples[i], at + i)) {
            sequence_release(g, &r->samples[i]);
            request_fail(r, TINKER_ENOMEM, "no memory for samples");
            return;
        }
    }
    for (size_t i = 0; i < r->num_samples && !r->canceled; i++)
        take_token(g, &r->samples[i], &draws[i]);
}

static void take_results(tinker_generator *g, size_t n_wants)
{
    for (size_t i = 0; i < n_wants; i++) {
        struct want *w = &g->wants[i];
        struct request *r = w->sequence->request;
        if (r->canceled || r->error.status != TINKER_OK)
            continue;
        if (w->bad) {
            request_fail(r, TINKER_EREQUEST, "the model's logits are not finite");
            continue;
        }
        if (w->scores)
            r->scored = w->position + 1;
        if (w->draws && !r->forked)
            fork_samples(g, w->sequence, &g->draws[w->first]);
        else if (w->draws)
            take_token(g, w->sequence, &g->draws[w->first]);
    }
}

/* A prompt that fills the context is only scored: its samples are empty. */
static void end_if_full(tinker_generator *g, struct sequence *s)
{
    struct request *r = s->request;
    if (r->max_new > 0 || s->computed < s->len || r->error.status != TINKER_OK)
        return;
    for (size_t i = 0; i < r->num_samples; i++)
        r->samples[i].done = true;
    r->unfinished = 0;
    sequence_release(g, s);
}

/* Logits of the wanted rows, a chunk at a time; their h moves to the front first. */
static void evaluate(tinker_generator *g, const struct model *m, size_t n_wants)
{
    size_t hidden = m->config.hidden;
    for (size_t i = 0; i < n_wants; i++) {
        if (g->wants[i].row != i)
            memcpy(g->h + i * hidden, g->h + g->wants[i].row * hidden, hidden * sizeof(float));
        g->row_lora[i] = g->wants[i].sequence->request->lora;
    }
    for (size_t i = 0; i < n_wants; i += g->logit_rows) {
        size_t n = n_wants - i < g->logit_rows ? n_wants - i : g->logit_rows;
        forward_logits(m, g->engine->threads, g->space, g->h + i * hidden, n, g->row_lora + i,
                       g->logits);
        generator_evaluate(g, i, n);
    }
}

/* One forward batch of work[first..first + n).  Taking results may move g->work. */
static tinker_status run_batch(tinker_generator *g, size_t first, size_t n, tinker_error *err)
{
    const struct model *m = g->work[first].sequence->request->model;
    struct batch batch = { 0, g->row_tokens, g->segments, n };
    size_t n_wants = 0;
    for (size_t i = 0; i < n; i++) {
        struct sequence *s = g->work[first + i].sequence;
        g->segments[i] = (struct segment){ batch.n, g->work[first + i].rows, s->computed,
                                           s->request->lora, s->data };
        memcpy(g->row_tokens + batch.n, s->tokens + s->computed,
               g->work[first + i].rows * sizeof(int32_t));
        n_wants = add_wants(g, n_wants, s, batch.n, g->work[first + i].rows);
        batch.n += g->work[first + i].rows;
    }
    if (!room_for_draws(g, n_wants, err))
        return TINKER_ENOMEM;
    forward_rows(m, g->engine->threads, g->space, &batch, g->h);
    evaluate(g, m, n_wants);
    for (size_t i = 0; i < n; i++) {
        struct sequence *s = g->work[first + i].sequence;
        s->computed += g->work[first + i].rows;
        s->reached = s->computed > s->reached ? s->computed : s->reached;
        sequence_publish(g, s);
    }
    take_results(g, n_wants);
    for (size_t i = 0; i < n; i++)
        end_if_full(g, g->work[first + i].sequence);
    return TINKER_OK;
}

static tinker_status run_work(tinker_generator *g, tinker_error *err)
{
    qsort(g->work, g->n_work, sizeof *g->work, by_weights);
    for (size_t i = 0; i < g->n_work;) {
        const struct model *m = g->work[i].sequence->request->model;
        size_t rows = 0, n = 0;
        while (i + n < g->n_work && g->work[i + n].sequence->request->model == m &&
               rows + g->work[i + n].rows <= GENERATOR_ROWS)
            rows += g->work[i + n++].rows;
        tinker_status status = run_batch(g, i, n, err);
        if (status != TINKER_OK)
            return status;
        i += n;
    }
    return TINKER_OK;
}

int tinker_generator_step(tinker_generator *g, tinker_error *err)
{
    g->stepping = true;
    generator_schedule(g);
    tinker_status status = TINKER_OK;
    if (g->n_work > 0)
        status = bind_weights(g, err);
    if (g->n_work > 0 && status == TINKER_OK)
        status = run_work(g, err);
    g->stepping = false;
    generator_sweep(g);
    return status == TINKER_OK ? (int)g->unfinished : -1;
}
