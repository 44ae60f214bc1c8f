/* generator.c - the life of a request: checked and copied on arrival, finished, handed out, freed.
 *
 * A request's state is where it is linked: its sequences are in g->active while it runs, then it
 * is in the list g->finished, then it is g->given until the next call of tinker_generator_next().
 * Everything that can be refused is refused in tinker_generator_add(), before anything is
 * allocated for it.  The steps themselves are in generator_step.c.
 *
 * Thread: the one that calls the generator; only the arithmetic of a step uses others. */
#include "engine/generate/generator.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/rand.h"
#include "engine/layers/delta.h"

/* A pass, or another generator, needs the memory of cached prefixes.
 * Called by the engine's budget when somebody else cannot get what it was promised.  Pages are
 * given whole, hence rounded up; only free and idle ones go, so running sequences never notice. */
static void give_pages_back(struct budget_user *user, uint64_t bytes)
{
    tinker_generator *g = container_of(user, tinker_generator, budget);
    uint64_t page = g->kv.page_floats * sizeof(float);
    kv_shrink(&g->kv, (size_t)((bytes + page - 1) / page));
    generator_account(g);
}

/* Buffers are those of the largest step, taken once: a step allocates only when a request needs
 * more draws or a larger rank than any before. */
tinker_generator *tinker_generator_new(tinker_engine *e, tinker_error *err)
{
    tinker_generator *g = calloc(1, sizeof *g);
    if (g == NULL) {
        err_nomem(err, "generator");
        return NULL;
    }
    const struct model_config *c = &e->model->config;
    /* One page: keys and values of KV_BLOCK positions in all layers, in floats.  Every limit
     * below is counted in pages. */
    size_t floats = kv_page_floats(c);
    /* Sequences that run have at most half of the memory: passes must get some, too. */
    uint64_t limit = e->memory_limit / 2 / (floats * sizeof(float));
    kv_init(&g->kv, floats, limit > SIZE_MAX / 2 ? SIZE_MAX / 2 : (size_t)limit);
    /* Layers of the delta rule keep one state per sequence instead of keys per position; it is
     * charged as so many pages, so that one limit holds for both. */
    g->state_floats = delta_state_floats(c);
    g->state_pages = (g->state_floats + floats - 1) / floats;
    g->engine = e;
    g->finished_end = &g->finished;
    g->budget.give_back = give_pages_back;
    budget_join(e, &g->budget);
    if (generator_buffers(g, err) != TINKER_OK) {
        tinker_generator_free(g);
        return NULL;
    }
    return g;
}

/* Free a request whose sequences have released their pages.
 * Arrays that grow with the samples are malloc()ed one by one, since they are as long as
 * max_new; all the rest is in the request's arena. */
static void request_free(tinker_generator *g, struct request *r)
{
    if (r == NULL)
        return;
    g->kept -= r->kept;
    for (size_t i = 0; i < r->num_samples; i++) {
        struct sequence *s = &r->samples[i];
        free(s->tokens);
        free(s->logprobs);
        free(s->topk_tokens);
        free(s->topk_logprobs);
        free(s->pages);
        free(s->data);
    }
    arena_clear(&r->arena);
    free(r);
}

/* Active sequences hold pages; they are released before their requests are freed. */
void tinker_generator_free(tinker_generator *g)
{
    if (g == NULL)
        return;
    struct request *last = NULL;
    for (size_t i = 0; i < g->n_active; i++) {
        /* a request's samples are adjacent in g->active: free it when the next one begins */
        if (last != g->active[i]->request)
            request_free(g, last);
        last = g->active[i]->request;
        sequence_release(g, g->active[i]);
    }
    request_free(g, last);
    while (g->finished != NULL) {
        struct request *r = g->finished;
        g->finished = r->next;
        request_free(g, r);
    }
    request_free(g, g->given);
    budget_leave(g->engine, &g->budget);
    kv_clear(&g->kv);
    forward_space_free(g->space);
    free(g->active);
    free(g->h);
    free(g->logits);
    free(g->work);
    free(g->wants);
    free(g->draws);
    free(g->scratch);
    free((void *)g->scratch_taken);
    free(g->row_lora);
    free(g->row_tokens);
    free(g->segments);
    free(g);
}

/* At position `at`: samples of a request stay next to each other, which sweep and free rely on.
 * The order of g->active is the order of age, by which memory is taken away: see
 * generator_pages.c. */
bool generator_activate(tinker_generator *g, struct sequence *s, size_t at)
{
    /* work has the same capacity: a step has at most one piece of work per active sequence */
    if (g->n_active == g->cap_active) {
        size_t cap = g->cap_active ? g->cap_active * 2 : 16;
        /* A realloc() that succeeds before the second one fails leaves a larger array with the
         * old cap: harmless. */
        struct sequence **active = realloc(g->active, cap * sizeof *active);
        if (active == NULL)
            return false;
        g->active = active;
        struct work *work = realloc(g->work, cap * sizeof *work);
        if (work == NULL)
            return false;
        g->work = work;
        g->cap_active = cap;
    }
    memmove(g->active + at + 1, g->active + at, (g->n_active - at) * sizeof *g->active);
    g->active[at] = s;
    g->n_active++;
    return true;
}

/* The first step that notices ends the request; other requests of the batch go on. */
void request_fail(struct request *r, tinker_status status, const char *message)
{
    err_set(&r->error, status, "%s", message);
}

/* ---- adding ------------------------------------------------------------------------ */

/* A prompt may fill the context only if its own tokens are to be scored; otherwise at least one
 * position must be left for a new token. */
static tinker_status check_prompt(const tinker_generator *g, const tinker_generate *q,
                                  tinker_error *err)
{
    const tinker_engine_info *info = &g->engine->info;
    if (q->n_prompt == 0)
        return err_set(err, TINKER_EINVAL, "the prompt is empty");
    bool scores = q->prompt_logprobs || q->topk_prompt_logprobs > 0 || q->target_prompt_logprobs ||
                  q->prompt_alt_tokens_k > 0;
    if ((uint64_t)q->n_prompt > (uint64_t)info->context)
        return err_set(err, TINKER_EINVAL, "prompt of %zu tokens exceeds the context of %lld",
                       q->n_prompt, (long long)info->context);
    if ((uint64_t)q->n_prompt == (uint64_t)info->context && !scores)
        return err_set(err, TINKER_EINVAL,
                       "prompt of %zu tokens leaves no room in the context of %lld", q->n_prompt,
                       (long long)info->context);
    for (size_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i] < 0 || q->prompt[i] >= info->vocab_size)
            return err_set(err, TINKER_EINVAL,
                           "prompt token %zu is %ld, outside the vocabulary of %lld", i,
                           (long)q->prompt[i], (long long)info->vocab_size);
    return TINKER_OK;
}

/* Written as !(x > 0), so that NaN is refused, too. */
static tinker_status check_params(const tinker_generate *q, const tinker_sampling_params *p,
                                  tinker_error *err)
{
    if (q->num_samples == 0)
        return err_set(err, TINKER_EINVAL, "num_samples must be at least 1");
    if (q->topk_prompt_logprobs > GENERATOR_TOPK_MAX)
        return err_set(err, TINKER_EINVAL, "topk_prompt_logprobs is %zu, at most %d are possible",
                       q->topk_prompt_logprobs, GENERATOR_TOPK_MAX);
    if (q->topk_sample_logprobs > GENERATOR_TOPK_MAX)
        return err_set(err, TINKER_EINVAL, "topk_sample_logprobs is %zu, at most %d are possible",
                       q->topk_sample_logprobs, GENERATOR_TOPK_MAX);
    if (q->prompt_logprobs_last_n >= q->n_prompt && q->prompt_logprobs_last_n > 0)
        return err_set(err, TINKER_EINVAL,
                       "prompt_logprobs_last_n is %zu, the prompt has %zu tokens after the first",
                       q->prompt_logprobs_last_n, q->n_prompt ? q->n_prompt - 1 : 0);
    /* 0 is allowed here and means up to the limit of the context, see limit_new_tokens(). */
    if (p->max_tokens < 0)
        return err_set(err, TINKER_EINVAL, "max_tokens must be a positive number");
    if (!(p->temperature >= 0) || isinf(p->temperature))
        return err_set(err, TINKER_EINVAL, "temperature is %g, must be 0 or more", p->temperature);
    /* Above 1 is allowed and keeps everything, as services do. */
    if (!(p->top_p > 0))
        return err_set(err, TINKER_EINVAL, "top_p is %g, must be above 0", p->top_p);
    if (p->top_k < -1)
        return err_set(err, TINKER_EINVAL, "top_k is %lld, must be -1 or more",
                       (long long)p->top_k);
    if (p->stop_strings != NULL)
        return err_set(err, TINKER_EINVAL, "stop strings are the caller's: use on_token");
    return TINKER_OK;
}

/* How many tokens may follow the prompt: the smallest of max_tokens, what the context has left,
 * and, only if max_tokens is 0 (no limit), what the pages of keys and values can hold.  A request
 * that can never fit is refused here; one that merely has to wait for pages is not. */
static tinker_status limit_new_tokens(const tinker_generator *g, size_t n_prompt,
                                      int64_t max_tokens, size_t *out, tinker_error *err)
{
    /* A page holds keys and values of KV_BLOCK positions in all layers. */
    uint64_t room = (uint64_t)g->engine->info.context - n_prompt;
    uint64_t page = g->kv.page_floats * sizeof(float);
    /* positions = prompt + new tokens - 1 when the last token is drawn. */
    uint64_t drawn = room > 0; /* the keys of a last token that is drawn are never needed */
    uint64_t pages = g->kv.limit > g->state_pages ? g->kv.limit - g->state_pages : 0;
    uint64_t memory = pages * KV_BLOCK + drawn;
    uint64_t want = max_tokens > 0 && (uint64_t)max_tokens < room ? (uint64_t)max_tokens : room;
    /* Without a limit of its own a request takes what fits; with one it gets all of it or is
     * refused, because a caller that asked for 1,000 tokens counts on them. */
    if (max_tokens == 0 && n_prompt < memory && n_prompt + want > memory)
        want = memory - n_prompt;
    if (n_prompt + want > memory)
        return err_set(err, TINKER_ENOMEM,
                       "%zu prompt and %llu new tokens need %llu bytes for keys and values, the "
                       "limit is %llu",
                       n_prompt, (unsigned long long)want,
                       (unsigned long long)(((n_prompt + want + KV_BLOCK - 1 - drawn) / KV_BLOCK +
                                             g->state_pages) *
                                            page),
                       (unsigned long long)(g->kv.limit * page));
    *out = (size_t)want;
    return TINKER_OK;
}

/* What the request may come to need is promised to it before it begins, so that a pass that begins
 * later cannot take it. */
static tinker_status check_budget(tinker_generator *g, uint64_t pages, uint64_t kept,
                                  tinker_error *err)
{
    const tinker_engine *e = g->engine;
    generator_account(g);
    /* Promises count, not what is in use now: a sequence that runs will need its last page in
     * the end. */
    uint64_t need = generator_reserve(g, g->page_needs + pages, g->kept + kept);
    uint64_t others = budget_promised(e) - g->budget.reserved;
    if (need <= e->memory_limit && others <= e->memory_limit - need)
        return TINKER_OK;
    err_set(err, TINKER_ENOMEM,
            "samples need %llu bytes of memory, of the limit of %llu passes hold %llu",
            (unsigned long long)need, (unsigned long long)e->memory_limit,
            (unsigned long long)others);
    if (err)
        err->retryable = others > 0; /* once the passes are done */
    return TINKER_ENOMEM;
}

/* Pages of the request if each sample becomes as long as it may. */
static uint64_t count_pages(const tinker_generator *g, const tinker_generate *q, size_t max_new)
{
    uint64_t positions = (uint64_t)q->n_prompt + max_new, pages;
    uint64_t each = (positions + KV_BLOCK - 1) / KV_BLOCK + g->state_pages;
    /* generator_reserve() has a limit far below, so the sum of many such numbers must not wrap */
    if (__builtin_mul_overflow(each, (uint64_t)q->num_samples, &pages) || pages > g->kv.limit)
        pages = g->kv.limit;
    return pages;
}

/* Bytes that the likeliest tokens and drawn alternatives of a request can take: at most
 * n_prompt * (topk + alternatives) + num_samples * max_new * topk entries.  They are kept until
 * the request is freed, so those of all requests together must fit into half of the memory. */
static tinker_status check_kept(const tinker_generator *g, const tinker_generate *q, size_t max_new,
                                uint64_t *bytes, tinker_error *err)
{
    uint64_t limit = g->engine->memory_limit / 2;
    /* Bytes of one entry: an id with its log-probability, for the likeliest tokens and for drawn
     * ones. */
    uint64_t likely = sizeof(int32_t) + sizeof(float), drawn = sizeof(int64_t) + sizeof(float);
    /* these products cannot overflow: counts per position are at most GENERATOR_TOPK_MAX */
    uint64_t prompt =
        q->n_prompt * (q->topk_prompt_logprobs * likely + q->prompt_alt_tokens_k * drawn);
    uint64_t sample = max_new * q->topk_sample_logprobs * likely, samples;
    if (__builtin_mul_overflow(sample, (uint64_t)q->num_samples, &samples) ||
        __builtin_add_overflow(prompt, samples, bytes) || *bytes > limit)
        return err_set(err, TINKER_EINVAL,
                       "the likeliest tokens of a prompt of %zu tokens and of %zu samples of %zu "
                       "tokens exceed the limit of %llu bytes",
                       q->n_prompt, q->num_samples, max_new, (unsigned long long)limit);
    if (*bytes > 0 && *bytes + g->kept > limit)
        return err_set(err, TINKER_ENOMEM,
                       "likeliest tokens need %llu bytes, of the limit of %llu other requests hold "
                       "%llu",
                       (unsigned long long)*bytes, (unsigned long long)limit,
                       (unsigned long long)g->kept);
    return TINKER_OK;
}

/* Whether logits are needed at positions of the prompt, too, and not only after its last token. */
bool request_scores(const struct request *r)
{
    return r->prompt_logprobs != NULL || r->topk > 0 || r->extras.from < r->n_prompt;
}

/* Grow by doubling up to max_new rows: most sequences stop early, so the most is not allocated
 * at once. */
bool sequence_topk_room(struct sequence *s)
{
    const struct request *r = s->request;
    size_t k = r->sample_topk, need = s->len - r->n_prompt + 1;
    if (k == 0 || need <= s->topk_rows)
        return true;
    size_t rows = s->topk_rows ? s->topk_rows * 2 : 16;
    rows = rows > r->max_new ? r->max_new : rows;
    int32_t *tokens = realloc(s->topk_tokens, rows * k * sizeof *tokens);
    if (tokens == NULL)
        return false;
    s->topk_tokens = tokens;
    float *logprobs = realloc(s->topk_logprobs, rows * k * sizeof *logprobs);
    if (logprobs == NULL)
        return false;
    s->topk_logprobs = logprobs;
    s->topk_rows = rows;
    return true;
}

/* Tokens and pages for the longest that this sample can become; on failure request_free() frees
 * what was allocated.
 * Taken at once, not grown: a step must not fail for lack of a few bytes in the middle of a
 * sample. */
static bool init_sequence(struct sequence *s, struct request *r, size_t index)
{
    /* data[i] is pages[i]->data, as attention wants it: an array of pointers to blocks of keys and
     * values. */
    size_t pages = (r->n_prompt + r->max_new) / KV_BLOCK + 2;
    s->request = r;
    s->index = index;
    s->reason = TINKER_STOP_LENGTH;
    s->len = r->n_prompt;
    s->tokens = malloc((r->n_prompt + r->max_new) * sizeof *s->tokens);
    s->logprobs = malloc((r->max_new + 1) * sizeof *s->logprobs);
    s->pages = malloc(pages * sizeof *s->pages);
    s->data = malloc(pages * sizeof *s->data);
    if (!s->tokens || !s->logprobs || !s->pages || !s->data)
        return false;
    memcpy(s->tokens, r->prompt, r->n_prompt * sizeof *s->tokens);
    return true;
}

/* Memory for what is to be known of the prompt, and r->scored: the position up to which no logits
 * are needed, so that cached pages can stand in for computing. */
static bool init_scores(struct request *r, const tinker_generate *q)
{
    enum { NO_LOGPROB = -99999 };
    size_t last = q->prompt_logprobs_last_n;
    r->logprobs_from = last ? r->n_prompt - last - 1 : 0;
    if (q->prompt_logprobs) {
        r->prompt_logprobs = arena_array(&r->arena, r->n_prompt, sizeof(float));
        if (r->prompt_logprobs == NULL)
            return false;
        for (size_t i = 0; i <= r->logprobs_from; i++)
            r->prompt_logprobs[i] = NAN;
    }
    r->sample_topk = q->topk_sample_logprobs;
    r->topk = q->topk_prompt_logprobs;
    if (r->topk > 0) {
        size_t cells = r->n_prompt * r->topk;
        r->topk_tokens = arena_array(&r->arena, cells, sizeof(int32_t));
        r->topk_logprobs = arena_array(&r->arena, cells, sizeof(float));
        if (r->topk_tokens == NULL || r->topk_logprobs == NULL)
            return false;
        for (size_t i = 0; i < cells; i++)
            r->topk_logprobs[i] = NO_LOGPROB;
    }
    if (!extras_init(r, q))
        return false;
    r->scored = r->extras.from;
    if ((r->prompt_logprobs || r->topk > 0) && r->logprobs_from < r->scored)
        r->scored = r->logprobs_from;
    return true;
}

/* Copy the request, because the caller may free its arrays; everything was checked before. */
static bool request_fill(struct request *r, tinker_generator *g, const tinker_generate *q,
                         const tinker_sampling_params *p)
{
    const tinker_engine_info *info = &g->engine->info;
    /* A list of stop tokens, even an empty one, replaces the model's own. */
    const int32_t *stop = p->stop_tokens ? p->stop_tokens : info->eos;
    size_t n_stop = p->stop_tokens ? p->n_stop : info->n_eos;
    arena_init(&r->arena, SIZE_MAX);
    r->tag = q->tag;
    r->adapter = q->adapter;
    /* With the adapter's id this names the weights that cached pages were computed with. */
    r->steps = q->adapter ? (uint64_t)q->adapter->steps : 0;
    r->on_token = q->on_token;
    r->on_rivals = q->on_rivals;
    r->on_mask = q->on_mask;
    r->state = q->state;
    r->cache_scope = q->cache_scope;
    r->n_prompt = q->n_prompt;
    /* Some models scale positions differently beyond their original context.  Decided by the
     * longest that the request may become, so that a page is computed with one rule from its
     * first position to its last. */
    r->is_long = model_is_long(&g->engine->model->config, r->n_prompt + r->max_new);
    /* Inverse temperature 0 means argmax.  A temperature so small that 1/T overflows a float is
     * argmax, too; one so large that 1/T underflows must not become it. */
    float inv = p->temperature > 0 ? fmaxf((float)(1.0 / p->temperature), FLT_MIN) : 0;
    /* Beyond this only the order of logits counts, but their distances times it would be infinite. */
    const float inv_max = 1e30f;
    r->rule = (struct sample_rule){
        .inv_temperature = isfinite(inv) ? fminf(inv, inv_max) : 0,
        .top_k = p->top_k > 0 ? (size_t)p->top_k : 0,
        .top_p = p->top_p,
        .min_p = p->min_p,
    };
    if (!logit_rule_init(&r->logit_rule, p, &r->arena))
        return false;
    r->prompt = arena_memdup(&r->arena, q->prompt, q->n_prompt * sizeof *q->prompt);
    if (r->prompt == NULL)
        return false;
    if (n_stop > 0) {
        r->stop = arena_memdup(&r->arena, stop, n_stop * sizeof *stop);
        r->n_stop = n_stop;
        if (r->stop == NULL)
            return false;
    }
    r->samples = arena_array(&r->arena, q->num_samples, sizeof *r->samples);
    if (r->samples == NULL)
        return false;
    r->num_samples = r->unfinished = q->num_samples;
    for (size_t i = 0; i < q->num_samples; i++)
        if (!init_sequence(&r->samples[i], r, i))
            return false;
    return init_scores(r, q);
}

/* The order of the checks is from cheap to dear, and messages name the first thing that is
 * wrong.  Nothing is allocated and nothing counted until all have passed. */
tinker_status tinker_generator_add(tinker_generator *g, const tinker_generate *q, tinker_error *err)
{
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    tinker_status status = TINKER_OK;
    if (q->params != NULL)
        status = opts_copy(&p, sizeof p, q->params, "tinker_sampling_params", err);
    if (status == TINKER_OK)
        status = check_params(q, &p, err);
    if (status == TINKER_OK)
        status = logit_rule_check(&p, g->engine->info.vocab_size, err);
    if (status == TINKER_OK)
        status = check_prompt(g, q, err);
    if (status == TINKER_OK && q->adapter != NULL && q->adapter->engine != g->engine)
        status = err_set(err, TINKER_EINVAL, "the adapter belongs to another engine");
    size_t max_new = 0;
    uint64_t kept = 0;
    if (status == TINKER_OK)
        status = limit_new_tokens(g, q->n_prompt, p.max_tokens, &max_new, err);
    if (status == TINKER_OK)
        status = extras_check(g, q, err);
    if (status == TINKER_OK)
        status = check_kept(g, q, max_new, &kept, err);
    uint64_t pages = status == TINKER_OK ? count_pages(g, q, max_new) : 0;
    if (status == TINKER_OK)
        status = check_budget(g, pages, kept, err);
    if (status != TINKER_OK)
        return status;
    struct request *r = calloc(1, sizeof *r);
    if (r == NULL)
        return err_nomem(err, "request");
    r->max_new = max_new;
    r->seed = (uint64_t)p.seed;
    /* Without a seed one is drawn, so that two equal requests differ. */
    uint32_t random = 0;
    if (!p.has_seed && rand_os(&random, sizeof random) != 0) {
        request_free(g, r);
        return err_set(err, TINKER_ESTATE, "the system gives no random numbers for a seed");
    }
    if (!p.has_seed)
        r->seed = random & 0x7fffffff;
    /* Only the first sample starts: it computes the prompt, from which fork_samples() (in
     * generator_step.c) starts the others. */
    if (!request_fill(r, g, q, &p) || !generator_activate(g, &r->samples[0], g->n_active)) {
        request_free(g, r);
        return err_nomem(err, "request");
    }
    /* Everything that can fail is behind us: from here on the request is accepted. */
    g->unfinished++;
    r->kept = kept;
    g->kept += kept;
    r->page_needs = pages;
    g->page_needs += pages;
    generator_account(g);
    return TINKER_OK;
}

/* ---- finishing ----------------------------------------------------------------------- */

/* The result points into the sequences, which live as long as the request. */
static bool fill_result(struct request *r)
{
    tinker_sequence *sequences = arena_array(&r->arena, r->num_samples, sizeof *sequences);
    if (sequences == NULL)
        return false;
    for (size_t i = 0; i < r->num_samples; i++) {
        const struct sequence *s = &r->samples[i];
        sequences[i] = (tinker_sequence){
            /* Tokens of the sample only; the prompt in front of them in s->tokens is not
             * repeated. */
            .stop_reason = s->reason,
            .tokens = s->tokens + r->n_prompt,
            .logprobs = s->logprobs,
            .n = s->len - r->n_prompt,
            .topk_tokens = s->topk_tokens,
            .topk_logprobs = s->topk_logprobs,
            .topk = s->topk_tokens ? r->sample_topk : 0,
        };
    }
    r->result = (tinker_sample){
        .sequences = sequences,
        .n_sequences = r->num_samples,
        .prompt_logprobs = r->prompt_logprobs,
        .n_prompt = r->n_prompt,
        .topk_tokens = r->topk_tokens,
        .topk_logprobs = r->topk_logprobs,
        .topk = r->topk,
        .prompt_cache_hit_tokens = r->cache_hits,
    };
    return extras_result(r);
}

/* Keep what still runs in g->active, in order; a request whose last sample has ended, or that
 * was canceled or failed, moves to the list of finished ones, or is freed if it was canceled. */
void generator_sweep(tinker_generator *g)
{
    size_t kept = 0;
    for (size_t i = 0; i < g->n_active;) {
        struct request *r = g->active[i]->request;
        bool dead = r->canceled || r->error.status != TINKER_OK;
        for (; i < g->n_active && g->active[i]->request == r; i++) {
            struct sequence *s = g->active[i];
            if (dead || s->done)
                sequence_release(g, s);
            else
                g->active[kept++] = s;
        }
        if (!dead && r->unfinished > 0)
            continue;
        g->unfinished--;
        g->page_needs -= r->page_needs;
        if (r->canceled) {
            request_free(g, r);
            continue;
        }
        if (r->error.status == TINKER_OK && !fill_result(r))
            request_fail(r, TINKER_ENOMEM, "no memory for the result");
        r->next = NULL;
        /* Appended: requests come back in the order in which they ended. */
        *g->finished_end = r;
        g->finished_end = &r->next;
    }
    g->n_active = kept;
    generator_account(g);
}

/* The result stays valid until the next call: it is in g->given. */
int tinker_generator_next(tinker_generator *g, void **tag, const tinker_sample **sample,
                          tinker_error *err)
{
    request_free(g, g->given);
    g->given = g->finished;
    if (g->given == NULL)
        return 0;
    g->finished = g->given->next;
    if (g->finished == NULL)
        g->finished_end = &g->finished;
    bool ok = g->given->error.status == TINKER_OK;
    if (tag != NULL)
        *tag = g->given->tag;
    if (sample != NULL)
        *sample = ok ? &g->given->result : NULL;
    if (err != NULL)
        *err = g->given->error;
    generator_account(g); /* what it kept is free */
    return 1;
}

/* Also from on_token. A canceled request gives no result. */
void tinker_generator_cancel(tinker_generator *g, void *tag)
{
    for (size_t i = 0; i < g->n_active; i++)
        if (g->active[i]->request->tag == tag)
            g->active[i]->request->canceled = true;
    /* results that have not been fetched yet */
    struct request **at = &g->finished;
    while (*at != NULL) {
        struct request *r = *at;
        if (r->tag == tag) {
            *at = r->next;
            request_free(g, r);
        } else {
            at = &r->next;
        }
    }
    g->finished_end = at;
    /* Called from on_token, inside a step: the step still uses the sequences and sweeps later. */
    if (!g->stepping)
        generator_sweep(g);
}

uint64_t tinker_generator_memory(const tinker_generator *g)
{
    return kv_bytes(&g->kv);
}

uint64_t tinker_generator_trim(tinker_generator *g, int64_t unused_ms)
{
    /* INT64_MAX: everything that is idle now, however long. */
    int64_t since = INT64_MAX;
    if (unused_ms > 0)
        since = clock_now_ns(clock_real()) - unused_ms * 1000000;
    uint64_t bytes = (uint64_t)kv_trim(&g->kv, since) * g->kv.page_floats * sizeof(float);
    generator_account(g);
    return bytes;
}
