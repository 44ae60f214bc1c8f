/* seq_gap.c - see seq_gap.h. */
#include "client/call/retry_policy.h"
#include "client/training/seq_gap.h"

#include <stdlib.h>
#include "base/array.h"
#include "client/call/call.h"
#include "client/training/training_client.h"
#include "wire/proto.h"

/* ---- the numbers ---------------------------------------------------------------------- */

/* Nearly always a number follows the one before, so a range grows; the chunks of a batch come in
 * any order, and a new range is as good. */
bool seq_gaps_add(struct seq_gaps *g, int64_t seq)
{
    /* Nearly always it follows the one before; the chunks of a batch come in any order. */
    struct seq_gap_range *last = g->n ? &g->v[g->n - 1] : NULL;
    if (last && (seq == last->last + 1 || seq == last->first - 1)) {
        *(seq > last->last ? &last->last : &last->first) = seq;
        return true;
    }
    if (g->n == g->room) {
        size_t room = g->room ? 2 * g->room : 8;
        struct seq_gap_range *v = realloc(g->v, room * sizeof(*v));
        if (!v)
            return false;
        g->v = v;
        g->room = room;
    }
    g->v[g->n++] = (struct seq_gap_range){ seq, seq };
    return true;
}

/* From the front of the last range: which number is filled first does not matter, the service
 * sorts them. */
bool seq_gaps_take(struct seq_gaps *g, int64_t *seq)
{
    if (!g->n)
        return false;
    struct seq_gap_range *last = &g->v[g->n - 1];
    *seq = last->first++;
    if (last->first > last->last)
        g->n--;
    return true;
}

void seq_gaps_clear(struct seq_gaps *g)
{
    free(g->v);
    *g = (struct seq_gaps){ 0 };
}

/* ---- filling them --------------------------------------------------------------------- */

enum {
    FILL_PARALLEL = 8,  /* a service takes numbers in any order */
    FILL_CONFLICTS = 3, /* 409 means "taken", or "not now": three in a row mean taken */
};

/* One of the fillers under way. */
struct fill_slot {
    struct seq_gap_fill *fill;
    struct call call;
    struct buf body;
    int64_t seq;
    int conflicts; /* 409s for this number */
    bool active;
};

struct seq_gap_fill {
    struct tinker_training *training;
    seq_gap_fill_done *done;
    void *owner;
    struct timer end;    /* tells the owner, who may free us */
    struct call *failed; /* of a slot */
    bool stopped;        /* start no more */
    size_t n_active;
    struct fill_slot slots[FILL_PARALLEL];
};

static const struct call_spec fill_spec = { .name = "forward",
                                            .method = "POST",
                                            .pool = POOL_TRAIN,
                                            .max_retries = CALL_DEFAULT,
                                            .outer = true };

/* A forward pass over one token whose weight is 0. Token 0 is in every vocabulary; the loss is 0,
 * and so is its gradient, should a service ignore forward_only. */
static tinker_status encode_filler(const char *model_id, int64_t seq, struct buf *out,
                                   tinker_error *err)
{
    static const int32_t token = 0; /* every vocabulary has it */
    static const int64_t target = 0, one = 1;
    static const float weight = 0;
    const tinker_chunk chunk = { .kind = TINKER_CHUNK_TEXT, .tokens = &token, .n_tokens = 1 };
    const tinker_named_tensor inputs[] = {
        { "target_tokens",
          { .dtype = TINKER_INT64, .data = &target, .n = 1, .shape = &one, .ndim = 1 } },
        { "weights",
          { .dtype = TINKER_FLOAT32, .data = &weight, .n = 1, .shape = &one, .ndim = 1 } },
    };
    const tinker_datum datum = { .model_input = { &chunk, 1 }, .inputs = inputs, .n_inputs = 2 };
    const struct wire_forward_backward_request req = { .model_id = model_id,
                                                       .seq_id = { 1, seq },
                                                       .data = &datum,
                                                       .n_data = 1,
                                                       .loss = { .name = "cross_entropy" },
                                                       .forward_only = true,
                                                       .shaped = true };
    return wire_encode_forward_backward_request(&req, out, err);
}

/* Does the service know the number now? So it does when it refuses the request for what it is:
 * the number is taken (409), the model is gone (404, 410), or the content is refused (400, 422).
 * What proxies on the way say (401, 403, 413) does not tell. */
static bool is_seq_taken(const struct call *c)
{
    int status = c->http.resp.status;
    if (c->outcome == CALL_OK)
        return true;
    return c->outcome == CALL_STATUS && retry_status_is(status, RETRY_REFUSED);
}

/* Would the next request meet the same? The filler has been retried for as long as that one would
 * be, so waiting once more would only double the time until the user hears of it. */
static bool is_unreachable(const struct call *c)
{
    return c->outcome == CALL_CONNECT || c->outcome == CALL_TIMEOUT ||
           (c->outcome == CALL_STATUS && c->err.retryable);
}

/* Keep the number for the next request that comes by. Without memory it is lost, and so is the
 * order of the model: the log says so. */
static void return_seq(struct seq_gap_fill *f, int64_t seq)
{
    if (!seq_gaps_add(&f->training->base->gaps, seq))
        log_line(&f->training->session->log, LOG_WARNING,
                 "model %s: number %lld stays unused, no memory", f->training->model_id,
                 (long long)seq);
}

/* From a timer, so that the owner may free the fill: it is not on the stack of one of its own
 * calls then. */
static void on_fill_over(struct timer *t)
{
    struct seq_gap_fill *f = container_of(t, struct seq_gap_fill, end);
    f->done(f, f->owner, f->failed);
}

static void on_filled(struct call *c);

/* Send the filler of a slot, or send it again after a conflict. */
static void send_filler(struct fill_slot *slot)
{
    struct seq_gap_fill *f = slot->fill;
    struct call *c = &slot->call;
    call_clear(c);
    *c = (struct call){ .session = f->training->session,
                        .spec = &fill_spec,
                        .path = "api/v1/forward_backward",
                        .body = slot->body.data,
                        .body_len = slot->body.len,
                        .content_type = "application/x-protobuf",
                        .conflict_final = true, /* or it would be tried for five minutes */
                        .done = on_filled };
    slot->active = true;
    f->n_active++;
    call_start(c);
}

/* Take the next number in this slot; when there is none, the last slot ends the whole. */
static void fill_next(struct fill_slot *slot)
{
    struct seq_gap_fill *f = slot->fill;
    tinker_error err;
    if (!f->stopped && seq_gaps_take(&f->training->base->gaps, &slot->seq)) {
        slot->conflicts = 0;
        buf_reset(&slot->body);
        if (encode_filler(f->training->model_id, slot->seq, &slot->body, &err) == TINKER_OK) {
            send_filler(slot);
            return;
        }
        return_seq(f, slot->seq);
        f->stopped = true;
    }
    if (!f->n_active)
        loop_arm(f->training->session->rt->loop, &f->end, 0);
}

/* A filler is over. 409 has two meanings, "taken" and "not now"; three in a row are the first. */
static void on_filled(struct call *c)
{
    struct fill_slot *slot = container_of(c, struct fill_slot, call);
    struct seq_gap_fill *f = slot->fill;
    slot->active = false;
    f->n_active--;
    if (c->outcome == CALL_STATUS && c->http.resp.status == 409 &&
        ++slot->conflicts < FILL_CONFLICTS) {
        send_filler(slot);
        return;
    }
    if (!is_seq_taken(c)) {
        /* One attempt per later request is enough for a way that is closed. */
        log_line(&f->training->session->log, LOG_INFO, "model %s: number %lld is still unused: %s",
                 f->training->model_id, (long long)slot->seq, c->err.message);
        return_seq(f, slot->seq);
        f->stopped = true;
        if (is_unreachable(c))
            f->failed = c;
    }
    fill_next(slot);
    /* The first one has shown that the way is open: the others may go together. */
    for (size_t i = 0; i < FILL_PARALLEL && !f->stopped && f->training->base->gaps.n; i++)
        if (!f->slots[i].active)
            fill_next(&f->slots[i]);
}

/* Begin with one slot only: when the service cannot be reached, one filler finds out, and not
 * eight. */
struct seq_gap_fill *seq_gap_fill_start(struct tinker_training *t, seq_gap_fill_done *done,
                                        void *owner)
{
    struct seq_gap_fill *f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    f->training = t;
    f->done = done;
    f->owner = owner;
    f->end.fire = on_fill_over;
    for (size_t i = 0; i < FILL_PARALLEL; i++) {
        f->slots[i].fill = f;
        buf_init(&f->slots[i].body, 1 << 16);
    }
    fill_next(&f->slots[0]);
    return f;
}

void seq_gap_fill_free(struct seq_gap_fill *f)
{
    if (!f)
        return;
    loop_disarm(f->training->session->rt->loop, &f->end);
    for (size_t i = 0; i < FILL_PARALLEL; i++) {
        if (f->slots[i].active)
            return_seq(f, f->slots[i].seq);
        call_clear(&f->slots[i].call);
        buf_clear(&f->slots[i].body);
    }
    free(f);
}
