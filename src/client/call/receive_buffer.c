/* receive_buffer.c - see receive_buffer.h.  A delivery is a round; the end of one begins the next. */
#include "client/call/receive_buffer.h"

#include <stdlib.h>
#include <tinker/extra/http.h>
#include "base/buf.h"
#include "base/err.h"
#include "client/io/callback_job.h"
#include "http/sse.h"

/* WINDOW: above it the transfer pauses.  LIMIT: what may come in before the pause takes
 * effect. */
enum { WINDOW = 1 << 18, LIMIT = 64 << 20, EVENT_BYTES_MAX = 16 << 20 };

struct receive_buffer {
    struct callback_job job; /* first */
    const atomic_bool *muted;
    tinker_receive_fn *call;
    void *state;
    struct callback_guard *guard; /* a reference, NULL: not bound */
    struct response *head;        /* a reference */
    bool events;
    /* loop thread: */
    struct receive_buffer_owner *owner;
    struct buf fill;
    bool paused;
    bool resumed; /* during the delivery that may end with a pause */
    bool lost;    /* there was no memory for a piece */
    /* the callback thread's while a delivery is under way: */
    struct buf out;
    size_t at; /* of out: what was handed out */
    struct sse sse;
    tinker_receive_next next;
    tinker_error err; /* TINKER_OK: none */
};

static void destroy_buffer(struct callback_job *r)
{
    struct receive_buffer *i = (struct receive_buffer *)r;
    callback_guard_unref(i->guard);
    response_unref(i->head);
    sse_clear(&i->sse);
    buf_clear(&i->fill);
    buf_clear(&i->out);
    free(i);
}

/* ---- on the callback thread ------------------------------------------------------------------------- */

/* Sticky within a delivery: after PAUSE or STOP a later MORE does not change it. */
static void call_receiver(struct receive_buffer *i, tinker_piece *piece)
{
    piece->head = response_public(i->head);
    bool may = !atomic_load(i->muted) && callback_guard_enter(i->guard);
    tinker_receive_next next = may ? i->call(piece, i->state) : TINKER_RECEIVE_STOP;
    if (may)
        callback_guard_leave(i->guard);
    if (next != TINKER_RECEIVE_MORE)
        i->next = next;
}

static bool on_sse_event(void *state, const struct sse_event *e)
{
    struct receive_buffer *i = state;
    tinker_piece piece = { .data = e->data, .n = e->n, .event = e->event, .id = e->id };
    call_receiver(i, &piece);
    return i->next != TINKER_RECEIVE_STOP;
}

static void deliver_pieces(struct callback_job *r)
{
    struct receive_buffer *i = (struct receive_buffer *)r;
    i->next = TINKER_RECEIVE_MORE;
    if (i->events) {
        /* Line by line, because an event ends with one and the user may want no other. */
        tinker_status s = TINKER_OK;
        while (s == TINKER_OK && i->at < i->out.len && i->next == TINKER_RECEIVE_MORE) {
            const char *line = i->out.data + i->at;
            size_t rest = i->out.len - i->at, n = 0;
            while (n < rest && line[n] != '\n' && line[n] != '\r')
                n++;
            n += n < rest;
            i->at += n;
            s = sse_feed(&i->sse, line, n, &i->err);
        }
        if (s != TINKER_OK && i->next != TINKER_RECEIVE_STOP)
            err_prefix(&i->err, "an event of the response");
    } else {
        tinker_piece piece = { .data = i->out.data, .n = i->out.len };
        i->at = i->out.len;
        call_receiver(i, &piece);
    }
    if (i->next == TINKER_RECEIVE_STOP)
        err_set(&i->err, TINKER_ECANCELED, "the receiver stopped the transfer");
}

/* ---- on the loop ---------------------------------------------------------------------------- */

/* Begin a delivery, if there is something and the user wants it.
 * Two buffers change places: the network fills one while the callback thread empties the
 * other. */
static void start_delivery(struct receive_buffer *i)
{
    /* Only one delivery at a time, so pieces keep their order. */
    if (i->job.under_way || i->paused || i->lost || i->err.status != TINKER_OK)
        return;
    if (i->at == i->out.len) {
        if (i->fill.len == 0)
            return;
        struct buf empty = i->out;
        i->out = i->fill;
        i->fill = empty;
        buf_reset(&i->fill);
        i->at = 0;
    }
    /* A resume that comes from now on is for this delivery. */
    i->resumed = false;
    i->lost = !callback_job_begin(&i->job);
}

/* The program may resume from another thread before its callback has returned. */
static void end_delivery(struct callback_job *r)
{
    struct receive_buffer *i = (struct receive_buffer *)r;
    i->paused = i->next == TINKER_RECEIVE_PAUSE && !i->resumed;
    start_delivery(i);
    i->owner->moved(i->owner); /* which may free i */
}

static const struct callback_job_class deliveries = { .work = deliver_pieces,
                                                      .ended = end_delivery,
                                                      .destroy = destroy_buffer };

struct receive_buffer *receive_buffer_new(struct session *h, bool events, tinker_receive_fn *call,
                                          void *state)
{
    struct receive_buffer *i = calloc(1, sizeof(*i));
    if (!i)
        return NULL;
    callback_job_init(&i->job, &deliveries, h->rt);
    i->muted = h->cfg->muted_by;
    i->call = call;
    i->state = state;
    i->events = events;
    buf_init(&i->fill, LIMIT);
    buf_init(&i->out, LIMIT);
    sse_init(&i->sse, EVENT_BYTES_MAX, on_sse_event, i);
    return i;
}

void receive_buffer_bind(struct receive_buffer *i, struct receive_buffer_owner *owner,
                         struct callback_guard *guard)
{
    i->owner = owner;
    i->guard = guard;
    callback_guard_ref(guard);
}

bool receive_buffer_has_head(const struct receive_buffer *i)
{
    return i->head != NULL;
}

void receive_buffer_set_head(struct receive_buffer *i, struct response *head)
{
    i->head = head;
}

/* Loop thread. */
void receive_buffer_put(struct receive_buffer *i, const void *p, size_t n)
{
    buf_append(&i->fill, p, n);
    i->lost = i->lost || !i->head || !buf_ok(&i->fill);
    start_delivery(i);
}

void receive_buffer_resume(struct receive_buffer *i)
{
    i->resumed = true;
    i->paused = false;
    start_delivery(i);
}

/* BROKEN before FULL before the rest: an error counts whatever is buffered. */
enum receive_buffer_state receive_buffer_state(struct receive_buffer *i)
{
    if (i->lost || (!i->job.under_way && i->err.status != TINKER_OK))
        return RECEIVE_BROKEN;
    if (i->fill.len >= WINDOW)
        return RECEIVE_FULL;
    bool some = i->job.under_way || i->fill.len || i->at < i->out.len;
    return some ? RECEIVE_ROOM : RECEIVE_EMPTY;
}

void receive_buffer_error(struct receive_buffer *i, tinker_error *err)
{
    if (i->lost)
        err_nomem(err, "the response");
    else
        *err = i->err;
}

void receive_buffer_free(struct receive_buffer *i)
{
    if (i)
        callback_job_close(&i->job);
}
