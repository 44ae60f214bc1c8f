/* queue.c - who runs next: see live_state.h.
 *
 * Training: each model runs its requests one at a time in ascending number, whatever the
 * order of arrival; a number that is missing is waited for, but not for ever.  Models whose
 * next request is there stand in the ready list.  Sampling: each session has a line of its own.  In both cases the
 * session that has had the least engine time goes first.  A session with as many passes
 * in progress as one may have waits with its next, so that it cannot take all places.
 *
 * All functions need the lock. */
#include "server/work/live_state.h"

#include <stdlib.h>
#include <string.h>

/* A session that was idle starts level with the others, not with a credit. */
static void raise_to_floor_locked(struct server *s, struct session *session)
{
    if (session->used_ns < s->floor_ns)
        session->used_ns = s->floor_ns;
}

/* f is chosen to run now. */
static void mark_running_locked(struct server *s, struct future *f)
{
    if (s->floor_ns < f->session->used_ns)
        s->floor_ns = f->session->used_ns;
    f->state = FUTURE_RUNNING;
    f->started_ns = clock_now_ns(s->clock);
}

/* ---- room ---------------------------------------------------------------------------- */

static void count_in_locked(struct server *s, struct future *f)
{
    struct tenant *t = f->session->tenant;
    s->queued_bytes += f->job->arena.used;
    t->queued_bytes += f->job->arena.used;
    s->queued_samples += f->kind == JOB_SAMPLE;
    t->queued_samples += f->kind == JOB_SAMPLE;
}

static void count_out_locked(struct server *s, struct future *f)
{
    struct tenant *t = f->session->tenant;
    s->queued_bytes -= f->job->arena.used;
    t->queued_bytes -= f->job->arena.used;
    s->queued_samples -= f->kind == JOB_SAMPLE;
    t->queued_samples -= f->kind == JOB_SAMPLE;
}

enum { RESULTS_KEPT = 4 }; /* times what is kept gladly, for one user */

bool queue_has_space_locked(const struct server *s, const struct tenant *t, size_t bytes,
                            bool sample)
{
    size_t shares = 2 * (s->opts.n_api_keys ? s->opts.n_api_keys : 1);
    size_t max_bytes = (size_t)s->opts.max_queued_bytes;
    size_t max_samples = (size_t)s->opts.max_queued_samples;
    /* Who does not fetch results makes no more of them. */
    if (t->result_bytes / RESULTS_KEPT > (size_t)s->opts.max_result_bytes)
        return false;
    /* What is larger than the queue itself must not be told to come back for ever. */
    bool fits = s->queued_bytes + bytes <= max_bytes || s->queued_bytes == 0;
    if (!fits && t->queued_bytes + bytes > max_bytes / shares)
        return false;
    return !sample || s->queued_samples < max_samples || t->queued_samples < max_samples / shares;
}

/* ---- training ------------------------------------------------------------------------ */

static void update_ready_locked(struct server *s, struct model *m)
{
    struct future *head = m->pending;
    /* On a model that ended every request fails at once, also behind a gap. */
    bool runnable = head && (head->seq <= m->next_seq || m->state == MODEL_UNLOADED);
    if (!head || runnable || m->busy)
        m->gap_since_ns = 0;
    else if (!m->gap_since_ns)
        m->gap_since_ns = clock_now_ns(s->clock);
    if (!runnable || m->busy || m->ready)
        return;
    raise_to_floor_locked(s, m->session);
    m->ready = true;
    m->next_ready = NULL;
    *(s->last_ready ? &s->last_ready->next_ready : &s->first_ready) = m;
    s->last_ready = m;
    pthread_cond_signal(&s->work_ready);
}

void queue_train_locked(struct server *s, struct future *f)
{
    struct model *m = f->model;
    struct future **p = &m->pending;
    /* Nearly all come in order, and there may be a hundred thousand. */
    if (m->last && m->last->seq <= f->seq)
        p = &m->last->next;
    while (*p && (*p)->seq <= f->seq)
        p = &(*p)->next;
    f->next = *p;
    *p = f;
    if (!f->next)
        m->last = f;
    if (f->seq > m->max_seq)
        m->max_seq = f->seq;
    count_in_locked(s, f);
    update_ready_locked(s, m);
}

/* Unlink m from the ready list. */
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

static bool is_pass(const struct future *f)
{
    return f->kind == JOB_FORWARD || f->kind == JOB_FORWARD_BACKWARD;
}

static bool needs_adapter(const struct model *m)
{
    return !m->adapter && m->state == MODEL_ACTIVE && m->pending->kind != JOB_UNLOAD;
}

struct future *queue_next_train_locked(struct server *s, bool loaded)
{
    struct model *best = NULL;
    for (struct model *m = s->first_ready; m; m = m->next_ready) {
        if (is_pass(m->pending) && m->session->passes >= SESSION_PASSES)
            continue;
        if (loaded && needs_adapter(m))
            continue;
        if (!best || m->session->used_ns < best->session->used_ns)
            best = m;
    }
    if (!best)
        return NULL;
    remove_ready_locked(s, best);
    struct future *f = best->pending;
    best->pending = f->next;
    if (!best->pending)
        best->last = NULL;
    f->next = NULL;
    mark_running_locked(s, f);
    best->busy = true;
    count_out_locked(s, f);
    return f;
}

void queue_done_locked(struct server *s, struct future *f)
{
    struct model *m = f->model;
    m->busy = false;
    if (f->seq >= m->next_seq)
        m->next_seq = f->seq + 1;
    update_ready_locked(s, m);
}

/* ---- missing numbers ------------------------------------------------------------------
 *
 * A number is missing because it is late, or because its request ended before it reached
 * us: refused by a proxy, canceled, failed inside the client.  Clients count at the call
 * and send in order, each request when the exchange of the one before has ended, with one
 * exception: the requests of one batch go out together, the first of them last.  So
 *
 * - something of another kind behind the gap (an optim_step after forward_backward, for
 *   example) proves that the client has given the number up.  GAP_GRACE_MS are left for
 *   clients that send out of order all the same;
 * - while only passes of one kind wait, the missing one may be the first of their batch,
 *   between two attempts: seq_gap_ms, counted while the client can be heard;
 * - no client makes attempts for longer than GAP_RETRY_MS.
 *
 * A body that is arriving just now may be the missing one: see the sweeper. */
enum { GAP_GRACE_MS = 5000, GAP_RETRY_MS = 300000 };

static int64_t min_ns(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_ns(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The first request behind the gap that cannot be of the same batch as the missing one. */
static const struct future *find_other_batch(const struct model *m)
{
    const struct future *f = m->pending;
    while (f && is_pass(f) && f->kind == m->pending->kind)
        f = f->next;
    return f;
}

/* When the gap of m is over; INT64_MAX: not as long as nothing changes. */
static int64_t gap_end_locked(const struct server *s, const struct model *m, int64_t now_ns)
{
    const int64_t ms = 1000000, wait_ns = s->opts.seq_gap_ms * ms;
    const struct future *other = find_other_batch(m);
    if (other)
        return max_ns(m->gap_since_ns, other->created_ns) + min_ns(wait_ns, GAP_GRACE_MS * ms);
    int64_t end = max_ns(m->gap_since_ns, m->session->returned_ns) + wait_ns;
    if (now_ns - m->session->seen_ns > SESSION_SILENCE_MS * ms)
        end = INT64_MAX;
    return min_ns(end, m->gap_since_ns + max_ns(wait_ns, GAP_RETRY_MS * ms));
}

struct model *queue_due_gaps_locked(struct server *s, int64_t now_ns)
{
    struct model *list = NULL;
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(&s->models, &it, &key, &n, &value)) {
        struct model *m = value;
        if (!m->gap_since_ns)
            continue;
        m->gap_end_ns = gap_end_locked(s, m, now_ns);
        if (m->gap_end_ns > now_ns)
            continue;
        m->next_gap = list;
        list = m;
    }
    return list;
}

bool queue_skip_gap_locked(struct server *s, struct model *m, int64_t seq)
{
    if (!m->gap_since_ns || m->pending->seq != seq)
        return false;
    m->next_seq = seq;
    update_ready_locked(s, m);
    return true;
}

struct future *queue_drop_model_locked(struct server *s, struct model *m)
{
    struct future *list = m->pending;
    for (struct future *f = list; f; f = f->next)
        count_out_locked(s, f);
    m->pending = m->last = NULL;
    m->gap_since_ns = 0;
    remove_ready_locked(s, m);
    return list;
}

/* ---- sampling -------------------------------------------------------------------------- */

static void add_waiting_locked(struct server *s, struct session *session)
{
    if (session->waiting)
        return;
    raise_to_floor_locked(s, session);
    session->waiting = true;
    session->next_waiting = s->waiting;
    s->waiting = session;
}

void queue_sample_locked(struct server *s, struct future *f)
{
    struct session *v = f->session;
    f->next = NULL;
    add_waiting_locked(s, v);
    *(v->last_sample ? &v->last_sample->next : &v->first_sample) = f;
    v->last_sample = f;
    count_in_locked(s, f);
    pthread_cond_signal(&s->work_ready);
}

void queue_return_sample_locked(struct server *s, struct future *f)
{
    struct session *v = f->session;
    add_waiting_locked(s, v);
    f->state = FUTURE_WAITING;
    f->starved = true;
    f->next = v->first_sample;
    v->first_sample = f;
    if (!v->last_sample)
        v->last_sample = f;
    count_in_locked(s, f);
}

static void remove_waiting_locked(struct server *s, struct session *session)
{
    struct session **p = &s->waiting;
    while (*p && *p != session)
        p = &(*p)->next_waiting;
    if (*p)
        *p = session->next_waiting;
    session->next_waiting = NULL;
    session->waiting = false;
}

struct future *queue_next_sample_locked(struct server *s, bool idle)
{
    struct session *best = NULL;
    for (struct session *v = s->waiting; v; v = v->next_waiting)
        if (!(idle && v->active_samples) && (!best || v->used_ns < best->used_ns))
            best = v;
    if (!best)
        return NULL;
    struct future *f = best->first_sample;
    best->first_sample = f->next;
    if (!best->first_sample) {
        best->last_sample = NULL;
        remove_waiting_locked(s, best);
    }
    f->next = NULL;
    mark_running_locked(s, f);
    count_out_locked(s, f);
    return f;
}

bool queue_remove_sample_locked(struct server *s, struct future *f)
{
    struct session *v = f->session;
    struct future **p = &v->first_sample, *prev = NULL;
    while (*p && *p != f) {
        prev = *p;
        p = &(*p)->next;
    }
    if (!*p)
        return false;
    *p = f->next;
    if (v->last_sample == f)
        v->last_sample = prev;
    if (!v->first_sample)
        remove_waiting_locked(s, v);
    f->next = NULL;
    count_out_locked(s, f);
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
