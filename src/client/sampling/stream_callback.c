/* stream_callback.c - see stream_callback.h. */
#include "client/sampling/stream_callback.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "client/future/future.h"
#include "client/io/callback_job.h"
#include "wire/topk.h"

/* What was told of one sequence of a stream, for the result of the future. */
struct kept_sequence {
    int32_t *tokens;
    float *logprobs;
    size_t n, cap;
    bool scored; /* some logprob is one */
    tinker_stop_reason stop_reason;
    int32_t *top_tokens; /* the likeliest, (rows, topk); unused cells are told as such */
    float *top_logprobs;
    size_t rows; /* 0: none was told so far */
};

struct stream_callback {
    struct callback_job job; /* first */
    const atomic_bool *muted;
    tinker_stream_event_fn *call;
    void *state;
    struct callback_guard *guard; /* a reference, NULL: not bound */
    /* loop thread: */
    struct stream_callback_owner *owner;
    bool again; /* there was news during the round */
    /* before the first round: */
    struct stream_list *list;     /* a reference, or NULL */
    struct tinker_future *sample; /* a reference, or NULL */
    /* the callback thread's while a round is under way: */
    bool stopped, lost;
    size_t sequence, at; /* of the sample: what comes next */
    size_t n_sequences, topk;
    struct kept_sequence *told; /* of each sequence of a stream */
};

static void destroy_callback(struct callback_job *r)
{
    struct stream_callback *t = (struct stream_callback *)r;
    for (size_t i = 0; t->told && i < t->n_sequences; i++) {
        free(t->told[i].tokens);
        free(t->told[i].logprobs);
        free(t->told[i].top_tokens);
        free(t->told[i].top_logprobs);
    }
    callback_guard_unref(t->guard);
    stream_list_unref(t->list);
    future_unref(t->sample);
    free(t->told);
    free(t);
}

/* ---- on the callback thread ------------------------------------------------------------------------- */

/* Room for one more token. cap covers both arrays, so it changes only when both have grown. */
static bool grow_tokens(struct kept_sequence *s)
{
    if (s->n < s->cap)
        return true;
    size_t cap = s->cap ? 2 * s->cap : 64;
    int32_t *tokens = realloc(s->tokens, cap * sizeof(*tokens));
    if (tokens)
        s->tokens = tokens;
    float *logprobs = tokens ? realloc(s->logprobs, cap * sizeof(*logprobs)) : NULL;
    if (!logprobs)
        return false;
    s->logprobs = logprobs;
    s->cap = cap;
    return true;
}

/* Keep the likeliest tokens at the position of the next token, as one row of k.  There are rows for
 * all tokens that fit into `cap`; cells without a token are marked as unused.  Sequences without
 * any cost nothing. */
static bool keep_topk(struct kept_sequence *s, size_t k, const tinker_stream_event *e)
{
    if (k == 0 || (e->topk == 0 && s->rows == 0))
        return true;
    if (s->rows < s->cap) {
        if (s->cap > SIZE_MAX / sizeof(int32_t) / k)
            return false;
        int32_t *tokens = realloc(s->top_tokens, s->cap * k * sizeof(*tokens));
        if (tokens)
            s->top_tokens = tokens;
        float *logprobs = tokens ? realloc(s->top_logprobs, s->cap * k * sizeof(*logprobs)) : NULL;
        if (!logprobs)
            return false;
        s->top_logprobs = logprobs;
        for (size_t i = s->rows * k; i < s->cap * k; i++) {
            tokens[i] = 0;
            logprobs[i] = TOPK_UNUSED;
        }
        s->rows = s->cap;
    }
    size_t n = e->topk < k ? e->topk : k;
    if (n) {
        memcpy(s->top_tokens + s->n * k, e->topk_tokens, n * sizeof(*s->top_tokens));
        memcpy(s->top_logprobs + s->n * k, e->topk_logprobs, n * sizeof(*s->top_logprobs));
    }
    return true;
}

/* Of a stream: keep it for the result. */
static bool keep_event(struct stream_callback *t, const tinker_stream_event *e)
{
    struct kept_sequence *s = &t->told[e->sequence];
    if (e->kind == TINKER_STREAM_FINISHED)
        s->stop_reason = e->stop_reason;
    if (e->kind != TINKER_STREAM_TOKEN)
        return true;
    if (!grow_tokens(s) || !keep_topk(s, t->topk, e))
        return false;
    s->tokens[s->n] = e->token;
    s->logprobs[s->n++] = e->logprob;
    s->scored = s->scored || !isnan(e->logprob);
    return true;
}

/* The next event of a complete sample, made from its arrays; false: there is none. */
static bool next_sample_event(struct stream_callback *t, tinker_stream_event *e)
{
    const tinker_sample *all = tinker_future_sample(t->sample);
    if (!all || t->sequence >= all->n_sequences)
        return false;
    const tinker_sequence *s = &all->sequences[t->sequence];
    *e = (tinker_stream_event){ .sequence = t->sequence, .logprob = NAN };
    if (t->at < s->n) {
        e->token = s->tokens[t->at];
        e->logprob = s->logprobs ? s->logprobs[t->at] : NAN;
        e->topk_tokens = s->topk ? s->topk_tokens + t->at * s->topk : NULL;
        e->topk_logprobs = s->topk ? s->topk_logprobs + t->at * s->topk : NULL;
        while (e->topk < s->topk && e->topk_logprobs[e->topk] > TOPK_UNUSED)
            e->topk++;
        t->at++;
        return true;
    }
    e->kind = TINKER_STREAM_FINISHED;
    e->stop_reason = s->stop_reason;
    t->sequence++;
    t->at = 0;
    return true;
}

/* On the callback thread: call the user until there is nothing more to tell. He may be gone
 * between two calls (muted, or the guard of the future closed): then the rest is dropped. */
static void deliver_events(struct callback_job *r)
{
    struct stream_callback *t = (struct stream_callback *)r;
    tinker_stream_event e;
    while (!t->stopped) {
        if (t->sample) {
            if (!next_sample_event(t, &e))
                return;
        } else {
            if (!t->list || stream_list_next(t->list, 0, &e, NULL) != TINKER_OK ||
                e.kind == TINKER_STREAM_END)
                return; /* nothing to tell now */
            t->lost = t->lost || !keep_event(t, &e);
            if (t->lost)
                return;
        }
        if (atomic_load(t->muted) || !callback_guard_enter(t->guard)) {
            t->stopped = true;
            return;
        }
        t->stopped = t->call(&e, t->state) != 0;
        callback_guard_leave(t->guard);
    }
}

/* ---- on the loop ---------------------------------------------------------------------------- */

/* There may be something to tell. While a round is under way this is only noted; its end looks
 * again. */
void stream_callback_kick(struct stream_callback *t)
{
    t->again = t->job.under_way;
    if (t->job.under_way || t->stopped || t->lost)
        return;
    if (!callback_job_begin(&t->job)) /* else all this is the callback thread's */
        t->lost = true;
}

/* Back on the loop. The owner is notified last, because it may free this. */
static void on_round_over(struct callback_job *r)
{
    struct stream_callback *t = (struct stream_callback *)r;
    if (t->again)
        stream_callback_kick(t);
    if (!t->job.under_way)
        t->owner->told(t->owner); /* which may free it */
}

static const struct callback_job_class rounds = { .work = deliver_events,
                                                  .ended = on_round_over,
                                                  .destroy = destroy_callback };

struct stream_callback *stream_callback_new(struct session *h, size_t n_sequences, size_t topk,
                                            tinker_stream_event_fn *call, void *state)
{
    struct stream_callback *t = calloc(1, sizeof(*t));
    struct kept_sequence *told = t ? calloc(n_sequences + 1, sizeof(*told)) : NULL;
    if (!told) {
        free(t);
        return NULL;
    }
    callback_job_init(&t->job, &rounds, h->rt);
    t->muted = h->cfg->muted_by;
    t->call = call;
    t->state = state;
    t->told = told;
    t->n_sequences = n_sequences;
    t->topk = topk;
    return t;
}

void stream_callback_bind(struct stream_callback *t, struct stream_callback_owner *owner,
                          struct callback_guard *guard)
{
    t->owner = owner;
    t->guard = guard;
    callback_guard_ref(guard);
}

void stream_callback_read_list(struct stream_callback *t, struct stream_list *list)
{
    stream_list_ref(list);
    t->list = list;
}

void stream_callback_read_sample(struct stream_callback *t, struct tinker_future *sample)
{
    future_ref(sample);
    t->sample = sample;
}

bool stream_callback_is_idle(const struct stream_callback *t)
{
    return !t->job.under_way;
}

bool stream_callback_gave_up(const struct stream_callback *t, tinker_error *err)
{
    if (t->stopped)
        err_set(err, TINKER_ECANCELED, "the sample was ended by its callback");
    else if (t->lost)
        err_nomem(err, "tokens");
    return t->stopped || t->lost;
}

/* Copies, because the arrays here grow by doubling and end with this object. */
tinker_sample *stream_callback_result(const struct stream_callback *t, struct arena *arena)
{
    tinker_sample *out = arena_alloc(arena, sizeof(*out));
    tinker_sequence *v = arena_array(arena, t->n_sequences, sizeof(*v));
    if (!out || !v || t->lost)
        return NULL;
    for (size_t i = 0; i < t->n_sequences; i++) {
        const struct kept_sequence *s = &t->told[i];
        v[i] = (tinker_sequence){ .stop_reason = s->stop_reason, .n = s->n };
        v[i].tokens = arena_memdup(arena, s->n ? s->tokens : (const void *)"", s->n * 4);
        if (s->scored)
            v[i].logprobs = arena_memdup(arena, s->logprobs, s->n * sizeof(float));
        if (!v[i].tokens || (s->scored && !v[i].logprobs))
            return NULL;
        if (s->rows == 0)
            continue;
        v[i].topk = t->topk;
        v[i].topk_tokens = arena_memdup(arena, s->top_tokens, s->n * t->topk * sizeof(int32_t));
        v[i].topk_logprobs = arena_memdup(arena, s->top_logprobs, s->n * t->topk * sizeof(float));
        if (!v[i].topk_tokens || !v[i].topk_logprobs)
            return NULL;
    }
    *out = (tinker_sample){ .sequences = v, .n_sequences = t->n_sequences };
    return out;
}

void stream_callback_free(struct stream_callback *t)
{
    if (t)
        callback_job_close(&t->job);
}
