/* queue.c - which request runs next: see live_state.h.
 *
 * Training: each model runs its requests one at a time in ascending number, whatever the
 * order of arrival.  A missing number is waited for, but not forever.  A model is
 *
 *     idle       nothing pending
 *     gapped     the number of its first pending request is too high: gap_since_ns is set
 *     ready      its next request is there: in the ready list
 *     busy       the engine thread runs its request; more may be pending
 *
 * and update_ready_locked() moves it whenever a request arrives or ends or a gap is skipped.
 *
 * Sampling: each session has a queue of its own; sessions with waiting samples are in a list.
 *
 * In both cases the session that has had the least engine time goes first (fair queueing with
 * used_ns as virtual time).  A session with SESSION_PASSES passes in progress waits with its
 * next one, so that it cannot take all task slots.
 *
 * All functions need server.lock. */
#include "server/work/live_state.h"

#include <stdlib.h>
#include <string.h>

/* A session that was idle starts level with the others, not with a credit: otherwise one that
 * slept for an hour would have the engine to itself for an hour. */
static void raise_to_floor_locked(struct server *s, struct session *session)
{
    if (session->used_ns < s->floor_ns)
        session->used_ns = s->floor_ns;
}

/* f was chosen to run: WAITING -> RUNNING.  The floor follows the virtual time of the session
 * that runs, which is the lowest of those that wait. */
static void mark_running_locked(struct server *s, struct future *f)
{
    if (s->floor_ns < f->session->used_ns)
        s->floor_ns = f->session->used_ns;
    f->state = FUTURE_RUNNING;
    f->started_ns = clock_now_ns(s->clock);
}

/* ---- limits -------------------------------------------------------------------------- */

/* Memory and number of waiting requests, of all users and of each; count_out undoes it. */
static void count_in_locked(struct server *s, struct future *f)
{
    struct tenant *t = f->session->tenant;
    s->queued_bytes += f->job->arena.used;
    t->queued_bytes += f->job->arena.used;
    s->queued_samples += f->kind == JOB_SAMPLE;
    t->queued_samples += f->kind == JOB_SAMPLE;
}

/* What count_in_locked() added: the limits of the user and of the server hold together. */
static void count_out_locked(struct server *s, struct future *f)
{
    struct tenant *t = f->session->tenant;
    s->queued_bytes -= f->job->arena.used;
    t->queued_bytes -= f->job->arena.used;
    s->queued_samples -= f->kind == JOB_SAMPLE;
    t->queued_samples -= f->kind == JOB_SAMPLE;
}

/* A user with more unfetched results than this many times max_result_bytes is refused. */
enum { RESULTS_KEPT = 4 };

bool queue_has_space_locked(const struct server *s, const struct tenant *t, size_t bytes,
                            bool sample)
{
    /* When the queue is full, each user may still have 1 / (2 * users) of its size in it; all
     * users together exceed the limit by at most half. */
    size_t shares = 2 * (s->opts.n_api_keys ? s->opts.n_api_keys : 1);
    size_t max_bytes = (size_t)s->opts.max_queued_bytes;
    size_t max_samples = (size_t)s->opts.max_queued_samples;
    /* A client that does not fetch its results may not produce more. */
    if (t->result_bytes / RESULTS_KEPT > (size_t)s->opts.max_result_bytes)
        return false;
    /* A request larger than the whole queue is accepted when it is empty; told to retry, it
     * would come back forever. */
    bool fits = s->queued_bytes + bytes <= max_bytes || s->queued_bytes == 0;
    if (!fits && t->queued_bytes + bytes > max_bytes / shares)
        return false;
    return !sample || s->queued_samples < max_samples || t->queued_samples < max_samples / shares;
}

/* ---- training ------------------------------------------------------------------------ */

/* Recompute the state of m: enter the ready list, or start or end the time of a gap. */
static void update_ready_locked(struct server *s, struct model *m)
{
    struct future *head = m->pending;
    /* seq < next_seq: the unload that the server adds itself (-1).  On a model that ended every
     * request fails at once, also behind a gap. */
    bool runnable = head && (head->seq <= m->next_seq || m->state == MODEL_UNLOADED);
    if (!head || runnable || m->busy)
        m->gap_since_ns = 0;
    else if (!m->gap_since_ns)
        m->gap_since_ns = clock_now_ns(s->clock);
    /* The ready list is first in, first out for sessions with equal time. */
    if (!runnable || m->busy || m->ready)
        return;
    raise_to_floor_locked(s, m->session);
    m->ready = true;
    m->next_ready = NULL;
    *(s->last_ready ? &s->last_ready->next_ready : &s->first_ready) = m;
    s->last_ready = m;
    pthread_cond_signal(&s->work_ready);
}

/* A model's queue is a skip list, so that a request finds its place in any order of arrival: every
 * fourth request on average is also in the first lane, every fourth of those in the second, and so
 * on.  The number itself decides, so no randomness is needed.  Requests leave at the head only. */
static unsigned count_lanes(int64_t seq)
{
    uint64_t x = (uint64_t)seq * 0x9e3779b97f4a7c15u; /* spread the bits */
    unsigned n = 0;
    for (x >>= 32; n < QUEUE_LANES && (x & 3) == 3; x >>= 2)
        n++;
    return n;
}

/* Put f behind all requests with numbers up to its own. */
static void insert_pending_locked(struct model *m, struct future *f)
{
    struct future **at[QUEUE_LANES]; /* the link in each lane that f comes behind */
    struct future **next = &m->pending, *before = NULL;
    /* From the fastest lane down; `before` is the last request known to stay in front of f. */
    for (size_t i = QUEUE_LANES; i-- > 0;) {
        at[i] = before ? &before->lanes[i] : &m->lanes[i];
        while (*at[i] && (*at[i])->seq <= f->seq) {
            before = *at[i];
            at[i] = &before->lanes[i];
        }
    }
    if (before)
        next = &before->next;
    while (*next && (*next)->seq <= f->seq)
        next = &(*next)->next;
    f->next = *next;
    *next = f;
    for (size_t i = 0; i < count_lanes(f->seq); i++) {
        f->lanes[i] = *at[i];
        *at[i] = f;
    }
}

/* Take the first request out of the queue. */
static struct future *pop_pending_locked(struct model *m)
{
    struct future *f = m->pending;
    m->pending = f->next;
    if (!m->pending)
        m->last = NULL;
    for (size_t i = 0; i < QUEUE_LANES; i++)
        if (m->lanes[i] == f)
            m->lanes[i] = f->lanes[i];
    f->next = NULL;
    return f;
}

void queue_train_locked(struct server *s, struct future *f)
{
    struct model *m = f->model;
    insert_pending_locked(m, f);
    if (!f->next)
        m->last = f;
    if (f->seq > m->max_seq)
        m->max_seq = f->seq;
    count_in_locked(s, f);
    update_ready_locked(s, m);
}

/* Unlink m from the ready list; nothing happens when it is not in it. */
static void remove_ready_locked(struct server *s, struct model *m)
{
    struct model **p = &s->first_ready, *prev = NULL;
    while (*p && *p != m) {
        prev = *p;
        p = &(*p)->next_ready;
    }
    if (!*p)
        return;
    *p = m->next_ready;
    if (s->last_ready == m)
        s->last_ready = prev;
    m->next_ready = NULL;
    m->ready = false;
}

/* Passes are the only requests that take many slices. */
static bool is_pass(const struct future *f)
{
    return f->kind == JOB_FORWARD || f->kind == JOB_FORWARD_BACKWARD;
}

struct future *queue_next_train_locked(struct server *s, bool loaded)
{
    /* The ready list is short: one entry per model whose next request is there. */
    struct model *best = NULL;
    for (struct model *m = s->first_ready; m; m = m->next_ready) {
        if (is_pass(m->pending) && m->session->passes >= SESSION_PASSES)
            continue;
        /* No space for another adapter: take only requests that need none.  An unload needs none,
         * and on a model that ended every request just fails. */
        bool needs_adapter =
            !m->adapter && m->state == MODEL_ACTIVE && m->pending->kind != JOB_UNLOAD;
        if (loaded && needs_adapter)
            continue;
        if (!best || m->session->used_ns < best->session->used_ns)
            best = m;
    }
    if (!best)
        return NULL;
    remove_ready_locked(s, best);
    struct future *f = pop_pending_locked(best);
    mark_running_locked(s, f);
    best->busy = true; /* until queue_done_locked(): one request of a model at a time */
    count_out_locked(s, f);
    return f;
}

void queue_done_locked(struct server *s, struct future *f)
{
    struct model *m = f->model;
    m->busy = false;
    /* The server's own unload (-1) does not move the numbers. */
    if (f->seq >= m->next_seq)
        m->next_seq = f->seq + 1;
    update_ready_locked(s, m);
}

/* ---- missing numbers ------------------------------------------------------------------
 *
 * A number is missing because it is late, or because its request ended before it reached
 * us: refused by a proxy, canceled, failed inside the client.  Clients assign numbers at the
 * call and send in order, each request after the exchange of the previous one has ended, with
 * one exception: the requests of one batch go out together, the first of them last.  So
 *
 * - a request of another kind behind the gap (an optim_step after forward_backward, for
 *   example) proves that the client has given up the number.  GAP_GRACE_MS are left for
 *   clients that send out of order anyway;
 * - while only passes of one kind wait, the missing one may be the first of their batch,
 *   between two attempts: wait seq_gap_ms, counted only while heartbeats arrive;
 * - no client retries for longer than GAP_RETRY_MS.
 *
 * A body that is arriving right now may be the missing one: see skip_gap() in timers.c. */
enum { GAP_GRACE_MS = 5000, GAP_RETRY_MS = 300000 };

static int64_t min_ns(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_ns(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct model *queue_due_gaps_locked(struct server *s, int64_t now_ns)
{
    const int64_t ms = 1000000, wait_ns = s->opts.seq_gap_ms * ms;
    struct model *list = NULL;
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(&s->models, &it, &key, &n, &value)) {
        struct model *m = value;
        if (!m->gap_since_ns)
            continue;
        /* The first request behind the gap that cannot be of the missing one's batch. */
        const struct future *other = m->pending;
        while (other && is_pass(other) && other->kind == m->pending->kind)
            other = other->next;
        if (other) {
            m->gap_end_ns =
                max_ns(m->gap_since_ns, other->created_ns) + min_ns(wait_ns, GAP_GRACE_MS * ms);
        } else {
            /* A silent client may be cut off and still hold the number: wait until its
             * heartbeats return, then seq_gap_ms more, at most as long as it retries. */
            bool silent = now_ns - m->session->seen_ns > SESSION_SILENCE_MS * ms;
            int64_t end =
                silent ? INT64_MAX : max_ns(m->gap_since_ns, m->session->returned_ns) + wait_ns;
            m->gap_end_ns = min_ns(end, m->gap_since_ns + max_ns(wait_ns, GAP_RETRY_MS * ms));
        }
        if (m->gap_end_ns > now_ns)
            continue;
        m->next_gap = list;
        list = m;
    }
    return list;
}

bool queue_skip_gap_locked(struct server *s, struct model *m, int64_t seq)
{
    /* The missing request arrived, or another filled part of the gap. */
    if (!m->gap_since_ns || m->pending->seq != seq)
        return false;
    m->next_seq = seq;
    update_ready_locked(s, m);
    return true;
}

struct future *queue_drop_model_locked(struct server *s, struct model *m)
{
    struct future *list = m->pending;
    /* The list keeps its links; the caller fails each request without the lock. */
    for (struct future *f = list; f; f = f->next)
        count_out_locked(s, f);
    m->pending = m->last = NULL;
    memset(m->lanes, 0, sizeof(m->lanes));
    m->gap_since_ns = 0;
    remove_ready_locked(s, m);
    return list;
}

/* ---- sampling -------------------------------------------------------------------------- */

/* Enter the list of sessions with waiting samples; its order does not matter. */
static void add_waiting_locked(struct server *s, struct session *session)
{
    if (session->waiting)
        return;
    raise_to_floor_locked(s, session);
    session->waiting = true;
    session->prev_waiting = NULL;
    session->next_waiting = s->waiting;
    if (s->waiting)
        s->waiting->prev_waiting = session;
    s->waiting = session;
}

void queue_sample_locked(struct server *s, struct future *f)
{
    struct session *v = f->session;
    f->next = NULL;
    f->prev = v->last_sample;
    add_waiting_locked(s, v);
    *(v->last_sample ? &v->last_sample->next : &v->first_sample) = f;
    v->last_sample = f;
    count_in_locked(s, f);
    pthread_cond_signal(&s->work_ready); /* only the engine thread waits for it */
}

void queue_return_sample_locked(struct server *s, struct future *f)
{
    struct session *v = f->session;
    add_waiting_locked(s, v);
    f->state = FUTURE_WAITING;
    f->starved = true; /* polls are told that it waits for memory */
    f->prev = NULL;
    f->next = v->first_sample;
    *(f->next ? &f->next->prev : &v->last_sample) = f;
    /* At the head: it had its turn already, and must not lose it to later ones. */
    v->first_sample = f;
    count_in_locked(s, f);
}

/* Doubly linked, so that a session can leave from anywhere without a search. */
static void remove_waiting_locked(struct server *s, struct session *session)
{
    *(session->prev_waiting ? &session->prev_waiting->next_waiting : &s->waiting) =
        session->next_waiting;
    if (session->next_waiting)
        session->next_waiting->prev_waiting = session->prev_waiting;
    session->next_waiting = session->prev_waiting = NULL;
    session->waiting = false;
}

/* Unlink a waiting sample; its session leaves the list when it was the last. */
static void unlink_sample_locked(struct server *s, struct future *f)
{
    struct session *v = f->session;
    *(f->prev ? &f->prev->next : &v->first_sample) = f->next;
    *(f->next ? &f->next->prev : &v->last_sample) = f->prev;
    f->next = f->prev = NULL;
    if (!v->first_sample)
        remove_waiting_locked(s, v);
    count_out_locked(s, f);
}

struct future *queue_next_sample_locked(struct server *s, bool idle)
{
    /* A scan: there are as many sessions here as clients that sample at this moment. */
    struct session *best = NULL;
    for (struct session *v = s->waiting; v; v = v->next_waiting)
        if (!(idle && v->active_samples) && (!best || v->used_ns < best->used_ns))
            best = v;
    if (!best)
        return NULL;
    struct future *f = best->first_sample;
    unlink_sample_locked(s, f);
    mark_running_locked(s, f);
    return f;
}

bool queue_remove_sample_locked(struct server *s, struct future *f)
{
    if (f->session->first_sample != f && !f->prev) /* in no queue */
        return false;
    unlink_sample_locked(s, f);
    return true;
}

struct future *queue_drop_session_locked(struct server *s, struct session *session)
{
    struct future *list = session->first_sample;
    for (struct future *f = list; f; f = f->next)
        count_out_locked(s, f);
    session->first_sample = session->last_sample = NULL;
    if (session->waiting)
        remove_waiting_locked(s, session);
    return list;
}
