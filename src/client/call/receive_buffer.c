/* receive_buffer.c - see intake.h.  A delivery is a round; the end of one begins the next. */
#include "client/call/receive_buffer.h"

#include <stdlib.h>
#include <tinker/extra/http.h>
#include "base/buf.h"
#include "base/err.h"
#include "client/io/callback_job.h"
#include "http/sse.h"

enum { WINDOW = 1 << 18, LIMIT = 64 << 20, EVENT_BYTES_MAX = 16 << 20 };

struct intake {
    struct round round; /* first */
    const atomic_bool *muted;
    tinker_receive_callback *call;
    void *state;
    struct tap *tap;     /* a reference, NULL: not bound */
    struct answer *head; /* a reference */
    bool events;
    /* loop thread: */
    struct intake_owner *owner;
    struct buf fill;
    bool paused;
    bool resumed; /* during the delivery that may end with a pause */
    bool lost;    /* there was no memory for a piece */
    /* the courier's while a delivery is under way: */
    struct buf out;
    size_t at; /* of out: what was handed out */
    struct sse sse;
    tinker_receive_next next;
    tinker_error err; /* TINKER_OK: none */
};

static void destroy(struct round *r)
{
    struct intake *i = (struct intake *)r;
    tap_unref(i->tap);
    answer_unref(i->head);
    sse_clear(&i->sse);
    buf_clear(&i->fill);
    buf_clear(&i->out);
    free(i);
}

/* ---- on the courier ------------------------------------------------------------------------- */

static void hand_out(struct intake *i, tinker_piece *piece)
{
    piece->head = answer_response(i->head);
    bool may = !atomic_load(i->muted) && tap_enter(i->tap);
    tinker_receive_next next = may ? i->call(i->state, piece) : TINKER_RECEIVE_STOP;
    if (may)
        tap_leave(i->tap);
    if (next != TINKER_RECEIVE_MORE)
        i->next = next;
}

static bool on_event(void *state, const struct sse_event *e)
{
    struct intake *i = state;
    tinker_piece piece = { .data = e->data, .n = e->n, .event = e->event, .id = e->id };
    hand_out(i, &piece);
    return i->next != TINKER_RECEIVE_STOP;
}

/* Line by line, because an event ends with one and the user may want no other. */
static void feed(struct intake *i)
{
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
        err_prefix(&i->err, "an event of the answer");
}

static void deliver(struct round *r)
{
    struct intake *i = (struct intake *)r;
    i->next = TINKER_RECEIVE_MORE;
    if (i->events)
        feed(i);
    else {
        tinker_piece piece = { .data = i->out.data, .n = i->out.len };
        i->at = i->out.len;
        hand_out(i, &piece);
    }
    if (i->next == TINKER_RECEIVE_STOP)
        err_set(&i->err, TINKER_ECANCELED, "the receiver stopped the transfer");
}

/* ---- on the loop ---------------------------------------------------------------------------- */

/* Begin a delivery, if there is something and the user wants it. */
static void pump(struct intake *i)
{
    if (i->round.under_way || i->paused || i->lost || i->err.status != TINKER_OK)
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
    i->resumed = false;
    i->lost = !round_begin(&i->round);
}

/* Who takes the piece may be through with it, and say so, before the callback has returned. */
static void delivered(struct round *r)
{
    struct intake *i = (struct intake *)r;
    i->paused = i->next == TINKER_RECEIVE_PAUSE && !i->resumed;
    pump(i);
    i->owner->moved(i->owner); /* who may free it */
}

static const struct round_class deliveries = { deliver, delivered, destroy };

struct intake *intake_new(struct session *h, bool events, tinker_receive_callback *call,
                          void *state)
{
    struct intake *i = calloc(1, sizeof(*i));
    if (!i)
        return NULL;
    round_init(&i->round, &deliveries, h->rt);
    i->muted = h->cfg->muted_by;
    i->call = call;
    i->state = state;
    i->events = events;
    buf_init(&i->fill, LIMIT);
    buf_init(&i->out, LIMIT);
    sse_init(&i->sse, EVENT_BYTES_MAX, on_event, i);
    return i;
}

void intake_bind(struct intake *i, struct intake_owner *owner, struct tap *tap)
{
    i->owner = owner;
    i->tap = tap;
    tap_ref(tap);
}

bool intake_has_head(const struct intake *i)
{
    return i->head != NULL;
}

void intake_set_head(struct intake *i, struct answer *head)
{
    i->head = head;
}

void intake_put(struct intake *i, const void *p, size_t n)
{
    buf_append(&i->fill, p, n);
    i->lost = i->lost || !i->head || !buf_ok(&i->fill);
    pump(i);
}

void intake_resume(struct intake *i)
{
    i->resumed = true;
    i->paused = false;
    pump(i);
}

enum intake_state intake_state(struct intake *i)
{
    if (i->lost || (!i->round.under_way && i->err.status != TINKER_OK))
        return INTAKE_BROKEN;
    if (i->fill.len >= WINDOW)
        return INTAKE_FULL;
    bool some = i->round.under_way || i->fill.len || i->at < i->out.len;
    return some ? INTAKE_ROOM : INTAKE_EMPTY;
}

void intake_error(struct intake *i, tinker_error *err)
{
    if (i->lost)
        err_nomem(err, "the answer");
    else
        *err = i->err;
}

void intake_free(struct intake *i)
{
    if (i)
        round_close(&i->round);
}
