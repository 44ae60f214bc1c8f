/* sample.c - samples on the engine: see sample.h.
 *
 * Requests join the generator of their base model between two tokens and leave it
 * when they are done.  Stop strings are matched here, on the text decoded so far,
 * because the engine knows tokens only. */
#include "server/work/sample.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/work/stop_strings.h"
#include "wire/check.h"
#include "wire/proto.h"

struct sample_task {
    struct future *f;
    struct weights *weights; /* NULL: the base model */
    struct stops *stops;     /* NULL: no stop strings */
    size_t n_sequences;
    size_t n_tokens; /* of its prompt and of all that may follow */
    struct sample_task *next;
};

static void task_free(struct weights_cache *weights, struct sample_task *t)
{
    weights_put(weights, t->weights);
    stops_free(t->stops);
    free(t);
}

/* Unlink t; its request is no longer in a generator. */
static void leave(struct server *s, struct sampling *g, struct sample_task *t)
{
    struct sample_task **p = &g->first;
    while (*p != t)
        p = &(*p)->next;
    *p = t->next;
    t->f->base->active--;
    g->active -= t->n_sequences;
    g->tokens -= t->n_tokens;
    pthread_mutex_lock(&s->lock);
    s->active_samples--;
    t->f->session->active_samples--;
    pthread_mutex_unlock(&s->lock);
}

static void fail_sample(struct server *s, struct future *f, const tinker_error *err)
{
    future_fail(s, f, future_category(err), "%s", err->message);
}

/* ---- joining ---------------------------------------------------------------------------- */

static int on_token(void *state, size_t sample, int32_t token, float logprob)
{
    struct sample_task *t = state;
    struct observer *o = t->f->work->observer;
    int stop = t->stops ? stops_token(t->stops, sample, token) : 0;
    if (o && o->token(o, sample, token, logprob))
        stop = 1;
    return stop;
}

static void on_rivals(void *state, size_t sample, const int32_t *tokens, const float *logprobs,
                      size_t k)
{
    struct sample_task *t = state;
    struct observer *o = t->f->work->observer;
    o->rivals(o, sample, tokens, logprobs, k);
}

/* All tokens of the prompt in one array of the arena: made once, for a sample that has to wait
 * comes here again and again. */
static tinker_status flatten(struct work *w, const int32_t **tokens, size_t *n, tinker_error *err)
{
    const tinker_model_input *in = &w->sample.prompt;
    size_t total = (size_t)work_tokens(w);
    *tokens = w->flat;
    *n = total;
    if (w->flat)
        return TINKER_OK;
    int32_t *all = arena_array(&w->arena, total ? total : 1, sizeof(*all));
    if (!all)
        return err_nomem(err, "prompt");
    size_t at = 0;
    for (size_t i = 0; i < in->n_chunks; i++) {
        const tinker_chunk *c = &in->chunks[i];
        if (c->kind != TINKER_CHUNK_TEXT)
            return err_set(err, TINKER_EINVAL,
                           "prompt.chunks[%zu]: only encoded_text inputs are supported", i);
        if (c->n_tokens)
            memcpy(all + at, c->tokens, c->n_tokens * sizeof(*all));
        at += c->n_tokens;
    }
    *tokens = w->flat = all;
    return TINKER_OK;
}

static tinker_status check_context(const struct base *b, size_t n_prompt,
                                   const tinker_sampling_params *params, tinker_error *err)
{
    int64_t context = tinker_engine_describe(b->engine)->context;
    if (params->max_tokens <= 0 || (int64_t)n_prompt + params->max_tokens <= context)
        return TINKER_OK;
    return err_set(err, TINKER_EINVAL,
                   "prompt of %zu tokens and max_tokens %lld exceed the context of %lld", n_prompt,
                   (long long)params->max_tokens, (long long)context);
}

static size_t asked(struct wire_opt_int n)
{
    return n.has ? (size_t)n.value : 0;
}

static tinker_status join(struct server *s, struct sample_task *t, struct weights_cache *weights,
                          tinker_error *err)
{
    struct future *f = t->f;
    struct wire_sample_request *r = &f->work->sample;
    tinker_sampling_params params = r->sampling_params;
    tinker_generate g = { .params = &params,
                          .num_samples = (size_t)r->num_samples,
                          .prompt_logprobs = r->prompt_logprobs.has && r->prompt_logprobs.value,
                          .topk_prompt_logprobs = (size_t)r->topk_prompt_logprobs,
                          .topk_sample_logprobs = asked(r->topk_sample_logprobs),
                          .prompt_logprobs_last_n = asked(r->prompt_logprobs_last_n),
                          .target_prompt_logprobs = r->target_prompt_logprobs,
                          .prompt_alt_tokens_k = asked(r->prompt_alt_tokens_k),
                          .state = t,
                          .tag = t };
    tinker_status status = flatten(f->work, &g.prompt, &g.n_prompt, err);
    if (status == TINKER_OK && s->opts.strict_context)
        status = check_context(f->base, g.n_prompt, &params, err);
    if (status != TINKER_OK)
        return status;
    if (params.stop_strings && params.n_stop) {
        t->stops =
            stops_new(f->base->tokenizer, params.stop_strings, params.n_stop, g.num_samples, err);
        if (!t->stops)
            return err->status;
    }
    if (params.stop_strings || (!params.stop_tokens && s->opts.no_implicit_eos)) {
        /* A list replaces the model's end tokens: an empty list of tokens says so. */
        static const int32_t none[1];
        params.stop_strings = NULL;
        params.stop_tokens = none;
        params.n_stop = 0;
    }
    if (f->work->dir) {
        t->weights = weights_get(s, weights, f->base, f->work->dir, err);
        if (!t->weights)
            return err->status;
        g.adapter = t->weights->adapter;
    }
    if (t->stops || f->work->observer)
        g.on_token = on_token;
    if (f->work->observer)
        g.on_rivals = on_rivals;
    return tinker_generator_add(f->base->generator, &g, err);
}

/* Tokens of the prompt and of all sequences if each becomes as long as it may. */
static size_t tokens_of(const struct future *f)
{
    const struct wire_sample_request *r = &f->work->sample;
    int64_t prompt = work_tokens(f->work);
    int64_t room = tinker_engine_describe(f->base->engine)->context - prompt;
    int64_t most = r->sampling_params.max_tokens;
    if (most <= 0 || most > room)
        most = room > 0 ? room : 0;
    return (size_t)prompt + (size_t)most * (size_t)r->num_samples;
}

/* Is it one too many for the tokens at once?  The only one never is. */
static bool is_too_much(const struct server *s, const struct sampling *g, const struct future *f)
{
    size_t max = (size_t)s->opts.max_batch_tokens;
    return max && g->tokens && g->tokens + tokens_of(f) > max;
}

static void put_back(struct server *s, struct future *f)
{
    pthread_mutex_lock(&s->lock);
    queue_return_sample_locked(s, f);
    pthread_mutex_unlock(&s->lock);
}

/* Why a sample should end now; NULL: it should not. */
static const char *drop_reason(struct server *s, const struct future *f)
{
    pthread_mutex_lock(&s->lock);
    const char *reason = f->canceled           ? "the sample was canceled"
                         : f->session->expired ? "the session has expired"
                                               : NULL;
    pthread_mutex_unlock(&s->lock);
    return reason;
}

/* false: no room now, try again later. */
static bool admit(struct server *s, struct sampling *g, struct weights_cache *weights,
                  struct future *f)
{
    tinker_error err = { 0 };
    /* It may have been canceled, or its session have ended, between two tries. */
    const char *reason = drop_reason(s, f);
    if (reason) {
        err_set(&err, TINKER_EREQUEST, "%s", reason);
        fail_sample(s, f, &err);
        return true;
    }
    if (is_too_much(s, g, f) || (g->yields && f->work->dir)) {
        put_back(s, f);
        return false;
    }
    struct sample_task *t = calloc(1, sizeof(*t));
    if (!t) {
        err_nomem(&err, "sample");
        fail_sample(s, f, &err);
        return true;
    }
    t->f = f;
    t->n_sequences = (size_t)f->work->sample.num_samples;
    t->n_tokens = tokens_of(f);
    if (join(s, t, weights, &err) == TINKER_OK) {
        t->next = g->first;
        g->first = t;
        g->active += t->n_sequences;
        g->tokens += t->n_tokens;
        f->base->active++;
        pthread_mutex_lock(&s->lock);
        s->active_samples++;
        f->session->active_samples++;
        f->starved = false;
        pthread_mutex_unlock(&s->lock);
        return true;
    }
    task_free(weights, t);
    g->starves = err.status == TINKER_ENOMEM && err.retryable;
    if (g->starves || (err.status == TINKER_ENOMEM && f->base->active)) {
        put_back(s, f);
        return false;
    }
    fail_sample(s, f, &err);
    return true;
}

void sample_admit(struct server *s, struct sampling *g, struct weights_cache *weights)
{
    size_t max = (size_t)s->opts.max_batch;
    g->starves = false;
    /* A full batch still takes in a sample of a session that has none in it: nobody has
     * to wait until the long samples of another are done. */
    while (g->active < 2 * max) {
        pthread_mutex_lock(&s->lock);
        struct future *f = queue_next_sample_locked(s, g->active >= max);
        pthread_mutex_unlock(&s->lock);
        if (!f || !admit(s, g, weights, f))
            return;
    }
}

/* ---- leaving ------------------------------------------------------------------------------- */

static void count_tokens(struct server *s, const tinker_sample *r, const struct work *w)
{
    uint64_t made = 0;
    for (size_t i = 0; i < r->n_sequences; i++)
        made += r->sequences[i].n;
    atomic_fetch_add(&s->counters.sample_tokens, made);
    atomic_fetch_add(&s->counters.prompt_tokens, (uint64_t)work_tokens(w));
    atomic_fetch_add(&s->counters.cached_tokens, (uint64_t)r->prompt_cache_hit_tokens);
    atomic_fetch_add(&s->counters.samples, 1);
}

static void finish(struct server *s, struct future *f, const tinker_sample *r)
{
    struct buf b;
    tinker_error err = { 0 };
    size_t n;
    count_tokens(s, r, f->work);
    buf_init(&b, (size_t)1 << 30);
    if (wire_encode_sample_response(r, &b, &err) != TINKER_OK) {
        buf_clear(&b);
        fail_sample(s, f, &err);
        return;
    }
    if (f->work->observer)
        f->work->observer->finished(f->work->observer, r, NULL);
    char *data = buf_detach(&b, &n);
    future_finish(s, f, false, data, n, true, 0);
}

static void take_finished(struct server *s, struct sampling *g, struct weights_cache *weights,
                          struct base *base)
{
    void *tag;
    const tinker_sample *result;
    tinker_error err = { 0 };
    while (base->active && tinker_generator_next(base->generator, &tag, &result, &err)) {
        struct sample_task *t = tag;
        leave(s, g, t);
        if (result)
            finish(s, t->f, result);
        else
            fail_sample(s, t->f, &err);
        task_free(weights, t);
        memset(&err, 0, sizeof(err));
    }
}

/* The generator itself failed: everything in it is lost, the next request gets a new one. */
static void fail_all(struct server *s, struct sampling *g, struct weights_cache *weights,
                     struct base *base, const tinker_error *err)
{
    log_line(s->log, LOG_ERROR, "%s: sampling failed: %s", base->name, err->message);
    for (struct sample_task *t = g->first, *next; t; t = next) {
        next = t->next;
        if (t->f->base != base)
            continue;
        tinker_generator_cancel(base->generator, t);
        leave(s, g, t);
        fail_sample(s, t->f, err);
        task_free(weights, t);
    }
    tinker_generator *fresh = tinker_generator_new(base->engine, NULL);
    if (!fresh)
        return; /* the old one is empty, too */
    tinker_generator_free(base->generator);
    base->generator = fresh;
}

/* The time of a step is shared by the sequences that took part. */
static void charge(struct server *s, struct sampling *g, const struct base *base, int64_t ns)
{
    size_t sequences = 0;
    for (struct sample_task *t = g->first; t; t = t->next)
        sequences += t->f->base == base ? t->n_sequences : 0;
    uint64_t share = (uint64_t)ns / (sequences ? sequences : 1);
    pthread_mutex_lock(&s->lock);
    for (struct sample_task *t = g->first; t; t = t->next)
        if (t->f->base == base)
            t->f->session->used_ns += share * t->n_sequences;
    pthread_mutex_unlock(&s->lock);
}

void sample_step(struct server *s, struct sampling *g, struct weights_cache *weights)
{
    for (size_t i = 0; i < s->n_bases; i++) {
        struct base *base = &s->bases[i];
        tinker_error err = { 0 };
        if (!base->active)
            continue;
        int64_t start = clock_now_ns(clock_real());
        int left = tinker_generator_step(base->generator, &err);
        charge(s, g, base, clock_now_ns(clock_real()) - start);
        if (left < 0)
            fail_all(s, g, weights, base, &err);
        else
            take_finished(s, g, weights, base);
    }
}

void sample_drop(struct server *s, struct sampling *g, struct weights_cache *weights)
{
    pthread_mutex_lock(&s->lock);
    uint64_t drops = s->drops;
    pthread_mutex_unlock(&s->lock);
    if (drops == g->drops)
        return;
    g->drops = drops;
    for (struct sample_task *t = g->first, *next; t; t = next) {
        next = t->next;
        tinker_error err = { 0 };
        const char *reason = drop_reason(s, t->f);
        if (!reason)
            continue;
        err_set(&err, TINKER_EREQUEST, "%s", reason);
        tinker_generator_cancel(t->f->base->generator, t);
        leave(s, g, t);
        fail_sample(s, t->f, &err);
        task_free(weights, t);
    }
}

void sample_abandon(struct server *s, struct sampling *g, struct weights_cache *weights)
{
    while (g->first) {
        struct sample_task *t = g->first;
        tinker_generator_cancel(t->f->base->generator, t);
        leave(s, g, t);
        task_free(weights, t);
    }
}
