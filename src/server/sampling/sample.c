/* sample.c - samples on the engine: see sample.h.
 *
 * Continuous batching: requests join the generator of their base model between two tokens and
 * leave it when they are done.  Stop strings are matched here, on the text decoded so far,
 * because the engine knows tokens only.
 *
 * A sample goes WAITING (queue.c) -> RUNNING (in a generator) -> DONE or FAILED; one that does
 * not fit goes back to WAITING at the head of its queue.  Thread: the engine thread alone. */
#include "server/sampling/sample.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/sampling/constraint.h"
#include "server/sampling/stop_strings.h"
#include "server/work/usage.h"
#include "wire/check.h"
#include "wire/proto.h"

/* One request in a generator, which knows it by its address (tag and state).  It is in the
 * list of struct sampling from admit_sample() until its result was taken or it was canceled. */
struct sample_task {
    struct future *f;
    struct weights *weights;       /* NULL: the base model */
    struct stop_strings *stops;    /* NULL: no stop strings */
    struct constraint *constraint; /* NULL: any token may come */
    size_t n_sequences;
    size_t n_tokens; /* of its prompt and of everything it may generate */
    struct sample_task *next;
};

/* The generator must be done with t: it uses the adapter that `weights` keeps in memory. */
static void task_free(struct weights_cache *weights, struct sample_task *t)
{
    weights_put(weights, t->weights);
    stop_strings_free(t->stops);
    constraint_free(t->constraint);
    free(t);
}

/* Unlink t; its request is no longer in a generator. */
static void unlink_task(struct server *s, struct sampling *g, struct sample_task *t)
{
    struct sample_task **p = &g->first;
    /* It must be in the list, so the walk needs no end. */
    while (*p != t)
        p = &(*p)->next;
    *p = t->next;
    /* The engine thread's own counts, then those that other threads read. */
    t->f->base->active--;
    g->active -= t->n_sequences;
    g->tokens -= t->n_tokens;
    pthread_mutex_lock(&s->lock);
    s->active_samples--;
    t->f->session->active_samples--;
    pthread_mutex_unlock(&s->lock);
}

/* Fail a sample with the category of the error: whose fault it was. */
static void fail_sample(struct server *s, struct future *f, const tinker_error *err)
{
    future_fail(s, f, future_category(err), "%s", err->message);
}

/* ---- starting ---------------------------------------------------------------------------- */

/* The generator has sampled a token; non-zero ends that sequence.  Each of the three must see every
 * token, the last one too: they keep a state, and a stream sends it. */
static int on_sample_token(size_t sample, int32_t token, float logprob, void *state)
{
    struct sample_task *t = state;
    struct observer *o = t->f->job->observer;
    int stop = t->stops ? stop_strings_add_token(t->stops, sample, token) : 0;
    if (t->constraint && constraint_add_token(t->constraint, sample, token))
        stop = 1;
    if (o && o->token(o, sample, token, logprob))
        stop = 1;
    return stop;
}

/* Called by the generator on this thread, for each sequence before its next token. */
static const uint64_t *on_sample_mask(size_t sample, void *state)
{
    struct sample_task *t = state;
    return constraint_mask(t->constraint, sample);
}

/* The tokens that end a text which its grammar allows: those of the request, else the model's. */
static tinker_status start_constraint(struct sample_task *t, const tinker_sampling_params *p,
                                      tinker_generate *g, tinker_error *err)
{
    const tinker_engine_info *info = tinker_engine_describe(t->f->base->engine);
    bool own = p->stop_tokens && p->n_stop;
    t->constraint = constraint_new(t->f->base, t->f->job->grammar, own ? p->stop_tokens : info->eos,
                                   own ? p->n_stop : info->n_eos, g->num_samples, err);
    g->on_mask = on_sample_mask;
    return t->constraint ? TINKER_OK : err->status;
}

/* Only set with an observer: a result as a whole has the alternatives anyway. */
static void on_sample_alternatives(size_t sample, const int32_t *tokens, const float *logprobs,
                                   size_t k, void *state)
{
    struct sample_task *t = state;
    struct observer *o = t->f->job->observer;
    o->alternatives(o, sample, tokens, logprobs, k);
}

/* All tokens of the prompt in one array of the arena.  Cached in the job: a sample that has to
 * wait comes here again and again. */
static tinker_status flatten_prompt(struct job *w, const int32_t **tokens, size_t *n,
                                    tinker_error *err)
{
    const tinker_model_input *in = &w->sample.prompt;
    /* One array, because the engine's prefix cache compares prompts token by token, whatever their
     * chunks. */
    size_t total = (size_t)job_tokens(w);
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

/* An optional count of a request; absent means 0. */
static size_t optional_count(struct wire_opt_int n)
{
    return n.has ? (size_t)n.value : 0;
}

/* Hand the request to the generator.  TINKER_ENOMEM: it does not fit now.  On failure the caller
 * frees t, and with it what was made for it here. */
static tinker_status start_sample(struct server *s, struct sample_task *t,
                                  struct weights_cache *weights, tinker_error *err)
{
    struct future *f = t->f;
    struct wire_sample_request *r = &f->job->sample;
    tinker_sampling_params params = r->sampling_params;
    tinker_generate g = { .params = &params,
                          .num_samples = (size_t)r->num_samples,
                          /* who asks for the likeliest tokens of the prompt wants its own, too */
                          .prompt_logprobs = (r->prompt_logprobs.has && r->prompt_logprobs.value) ||
                                             r->topk_prompt_logprobs > 0,
                          .topk_prompt_logprobs = (size_t)r->topk_prompt_logprobs,
                          .topk_sample_logprobs = optional_count(r->topk_sample_logprobs),
                          .prompt_logprobs_last_n = optional_count(r->prompt_logprobs_last_n),
                          .target_prompt_logprobs = r->target_prompt_logprobs,
                          .prompt_alt_tokens_k = optional_count(r->prompt_alt_tokens_k),
                          .state = t,
                          .tag = t,
                          .cache_scope = f->session->tenant->number };
    tinker_status status = flatten_prompt(f->job, &g.prompt, &g.n_prompt, err);
    if (status != TINKER_OK)
        return status;
    /* Without --strict-context a sample just ends at the end of the context. */
    int64_t context = tinker_engine_describe(f->base->engine)->context;
    if (s->opts.strict_context && params.max_tokens > 0 &&
        (int64_t)g.n_prompt + params.max_tokens > context)
        return err_set(err, TINKER_EINVAL,
                       "prompt of %zu tokens and max_tokens %lld exceed the context of %lld",
                       g.n_prompt, (long long)params.max_tokens, (long long)context);
    if (params.stop_strings && params.n_stop) {
        t->stops = stop_strings_new(f->base->tokenizer, params.stop_strings, params.n_stop,
                                    g.num_samples, err);
        if (!t->stops)
            return err->status;
    }
    if (f->job->grammar)
        status = start_constraint(t, &params, &g, err);
    if (status != TINKER_OK)
        return status;
    if (params.stop_strings || (!params.stop_tokens && s->opts.no_implicit_eos)) {
        /* To the engine no list means the model's own end tokens, an empty list means none: stop
         * strings replace the end tokens. */
        static const int32_t none[1];
        params.stop_strings = NULL;
        params.stop_tokens = none;
        params.n_stop = 0;
    }
    /* A checkpoint: its adapter stays in the cache while the task has a reference. */
    if (f->job->dir) {
        t->weights = weights_get(s, weights, f->base, f->job->dir, err);
        if (!t->weights)
            return err->status;
        g.adapter = t->weights->adapter;
    }
    if (t->stops || t->constraint || f->job->observer)
        g.on_token = on_sample_token;
    if (f->job->observer)
        g.on_rivals = on_sample_alternatives;
    /* It copies the prompt and `params`, which is on this stack; t keeps the adapter in memory. */
    return tinker_generator_add(f->base->generator, &g, err);
}

/* Tokens of the prompt and of all sequences if each becomes as long as it may: what the request
 * may need in the KV cache. */
static size_t max_tokens_of(const struct future *f)
{
    const struct wire_sample_request *r = &f->job->sample;
    int64_t prompt = job_tokens(f->job);
    int64_t left = tinker_engine_describe(f->base->engine)->context - prompt;
    /* 0 means "to the end of the context", as for the engine. */
    int64_t most = r->sampling_params.max_tokens;
    if (most <= 0 || most > left)
        most = left > 0 ? left : 0;
    return (size_t)prompt + (size_t)most * (size_t)r->num_samples;
}

/* Back to the head of its queue: it is next when something has left the generator. */
static void requeue_sample(struct server *s, struct future *f)
{
    pthread_mutex_lock(&s->lock);
    queue_return_sample_locked(s, f);
    pthread_mutex_unlock(&s->lock);
}

/* Why a sample should end now; NULL: it goes on. */
static const char *drop_reason(struct server *s, const struct future *f)
{
    pthread_mutex_lock(&s->lock);
    const char *reason = f->canceled           ? "the sample was canceled"
                         : f->session->expired ? "the session has expired"
                                               : NULL;
    pthread_mutex_unlock(&s->lock);
    const struct observer *o = f->job->observer; /* the engine thread's while it runs */
    if (!reason && o && o->left(o))
        reason = "the client has left";
    return reason;
}

/* Move a sample from the queue into its generator, or fail it.  false: it did not fit and is back
 * in its queue; admit no more for now. */
static bool admit_sample(struct server *s, struct sampling *g, struct weights_cache *weights,
                         struct future *f)
{
    tinker_error err = { 0 };
    /* It may have been canceled, or its session expired, since it was queued. */
    const char *reason = drop_reason(s, f);
    if (reason) {
        err_set(&err, TINKER_EREQUEST, "%s", reason);
        fail_sample(s, f, &err);
        return true;
    }
    /* A single sample is always admitted, however long: it would never fit otherwise. */
    size_t max = (size_t)s->opts.max_batch_tokens;
    bool over_limit = max && g->tokens && g->tokens + max_tokens_of(f) > max;
    if (over_limit || (g->yields && f->job->dir)) {
        requeue_sample(s, f);
        return false;
    }
    struct sample_task *t = calloc(1, sizeof(*t));
    if (!t) {
        err_nomem(&err, "sample");
        fail_sample(s, f, &err);
        return true;
    }
    t->f = f;
    t->n_sequences = (size_t)f->job->sample.num_samples;
    t->n_tokens = max_tokens_of(f);
    if (start_sample(s, t, weights, &err) == TINKER_OK) {
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
    /* Retryable: all adapters that may be in memory are in use (adapter_limit.h), or passes hold
     * the memory.  Otherwise the KV cache is full, and a running sample will free some. */
    g->starves = err.status == TINKER_ENOMEM && err.retryable;
    if (g->starves || (err.status == TINKER_ENOMEM && f->base->active)) {
        requeue_sample(s, f);
        return false;
    }
    fail_sample(s, f, &err);
    return true;
}

void sample_admit(struct server *s, struct sampling *g, struct weights_cache *weights)
{
    size_t max = (size_t)s->opts.max_batch;
    g->starves = false;
    if (g->drains)
        return;
    /* A full batch still admits samples of sessions that have none in it, up to twice its size:
     * nobody has to wait for the long samples of another session.  Each is looked up again under
     * the lock, because submits and cancels go on meanwhile.  The first that does not fit ends the
     * round: admitting smaller ones behind it would starve it. */
    while (g->active < 2 * max) {
        pthread_mutex_lock(&s->lock);
        struct future *f = queue_next_sample_locked(s, g->active >= max);
        pthread_mutex_unlock(&s->lock);
        if (!f || !admit_sample(s, g, weights, f))
            return;
    }
}

/* ---- finishing ------------------------------------------------------------------------------- */

/* All sequences of a request are done: encode the result and publish it.  r is the generator's
 * until its next result is taken.  The store keeps no results of samples: after a restart clients
 * send them again. */
static void finish_sample(struct server *s, struct future *f, const tinker_sample *r)
{
    struct buf b;
    tinker_error err = { 0 };
    size_t n;
    uint64_t sampled = 0;
    for (size_t i = 0; i < r->n_sequences; i++)
        sampled += r->sequences[i].n;
    struct server_counters *all = &s->counters, *own = &f->session->tenant->counters;
    live_count(&all->sample_tokens, &own->sample_tokens, sampled);
    live_count(&all->prompt_tokens, &own->prompt_tokens, (uint64_t)job_tokens(f->job));
    live_count(&all->cached_tokens, &own->cached_tokens, (uint64_t)r->prompt_cache_hit_tokens);
    live_count(&all->samples, &own->samples, 1);
    /* Requests without a session have one that nobody can name. */
    const char *owner = f->session->owner, *id = f->session->direct ? NULL : f->session->id;
    int64_t cached = (int64_t)r->prompt_cache_hit_tokens;
    usage_add(s, USAGE_SAMPLING, owner, id, f->base->name, (int64_t)sampled);
    usage_add(s, USAGE_PREFILL, owner, id, f->base->name, job_tokens(f->job) - cached);
    usage_add(s, USAGE_PREFILL_CACHED, owner, id, f->base->name, cached);
    buf_init(&b, (size_t)1 << 30);
    if (wire_encode_sample_response(r, &b, &err) != TINKER_OK) {
        buf_clear(&b);
        fail_sample(s, f, &err);
        return;
    }
    if (f->job->observer)
        f->job->observer->finished(f->job->observer, r, NULL);
    char *data = buf_detach(&b, &n);
    future_finish(s, f, false, data, n, true, 0);
}

void sample_step(struct server *s, struct sampling *g, struct weights_cache *weights)
{
    for (size_t i = 0; i < s->n_bases; i++) {
        struct base *base = &s->bases[i];
        tinker_error err = { 0 };
        if (!base->active)
            continue;
        /* The real clock, not the server's: tests with a fake one would account no time at all. */
        int64_t start = clock_now_ns(clock_real());
        int left = tinker_generator_step(base->generator, &err);
        int64_t ns = clock_now_ns(clock_real()) - start;
        /* Time is accounted to sessions, which share the engine fairly by it (queue.c).
         * A step serves every sequence of this base model once, so each counts the same. */
        size_t n_sequences = 0;
        for (struct sample_task *t = g->first; t; t = t->next)
            n_sequences += t->f->base == base ? t->n_sequences : 0;
        uint64_t share = (uint64_t)ns / (n_sequences ? n_sequences : 1);
        atomic_fetch_add(&s->counters.rounds, 1);
        atomic_fetch_add(&s->counters.round_rows, n_sequences);
        pthread_mutex_lock(&s->lock);
        for (struct sample_task *t = g->first; t; t = t->next)
            if (t->f->base == base) {
                t->f->session->used_ns += share * t->n_sequences;
                atomic_fetch_add(&t->f->session->tenant->counters.sample_ns,
                                 share * t->n_sequences);
            }
        pthread_mutex_unlock(&s->lock);
        if (left < 0) {
            /* The generator itself failed: everything in it is lost, results that were not taken
             * yet included. */
            log_line(s->log, LOG_ERROR, "%s: sampling failed: %s", base->name, err.message);
            for (struct sample_task *t = g->first, *next; t; t = next) {
                next = t->next;
                if (t->f->base != base)
                    continue;
                tinker_generator_cancel(base->generator, t);
                unlink_task(s, g, t);
                fail_sample(s, t->f, &err);
                task_free(weights, t);
            }
            /* The next request gets a new one; without memory the old one, which is empty. */
            tinker_generator *fresh = tinker_generator_new(base->engine, NULL);
            if (fresh) {
                tinker_generator_free(base->generator);
                base->generator = fresh;
            }
            continue;
        }
        void *tag;
        const tinker_sample *result; /* borrowed until the next call of the generator */
        while (base->active && tinker_generator_next(base->generator, &tag, &result, &err)) {
            struct sample_task *t = tag;
            unlink_task(s, g, t);
            if (result)
                finish_sample(s, t->f, result);
            else
                fail_sample(s, t->f, &err);
            task_free(weights, t);
            memset(&err, 0, sizeof(err));
        }
    }
}

/* Between two steps.  Two counters are compared before any list is walked: nearly always nothing
 * has changed. */
void sample_drop(struct server *s, struct sampling *g, struct weights_cache *weights)
{
    pthread_mutex_lock(&s->lock);
    uint64_t drops = s->drops;
    pthread_mutex_unlock(&s->lock);
    if (drops == g->drops) /* nothing was canceled and no session ended since the last look */
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
        unlink_task(s, g, t);
        fail_sample(s, t->f, &err);
        task_free(weights, t);
    }
}

/* Samples are not in the journal: after a restart clients send them again.  Their futures stay
 * RUNNING; live_clear() frees them, which ends their streams. */
void sample_abandon(struct server *s, struct sampling *g, struct weights_cache *weights)
{
    while (g->first) {
        struct sample_task *t = g->first;
        tinker_generator_cancel(t->f->base->generator, t);
        unlink_task(s, g, t);
        task_free(weights, t);
    }
}
