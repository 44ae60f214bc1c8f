/* poll.h - asking for the result of an accepted request until it is there.
 *
 * Polls follow each other without delay, because the service holds them; only
 * connection errors and 429 back off.  Large results are announced first and fetched
 * when the byte budget allows.  Runs on the loop thread. */
#ifndef CLIENT_POLL_H
#define CLIENT_POLL_H

#include "client/call/call.h"
#include "wire/future.h"

struct poll_kind {
    const char *request_type; /* "ForwardBackward" */
    bool proto;               /* the result is protobuf (JSON of older servers is read too) */
};

/* A result into memory of the arena; pure.  NULL with *err set. */
typedef void *poll_reader(struct arena *a, const char *body, size_t n, bool proto,
                          tinker_error *err);

struct aside;

struct poll {
    /* set by the owner */
    struct session *session;
    const struct poll_kind *kind;
    struct tinker_future *future; /* learns the request id; may be NULL */
    int64_t started_ns;           /* of the operation, for the round-trip header */
    size_t max_result;            /* bytes that what was asked for can take; 0: not known */
    /* Read the result; a failure ends the poll.  The body is valid during the call. */
    tinker_status (*decode)(struct poll *p, const char *body, size_t n, bool proto,
                            tinker_error *err);
    /* Optional, for large results: read into an arena on a worker thread, then take what
     * became of it, back on the loop. */
    poll_reader *read_aside;
    tinker_status (*take_aside)(struct poll *p, void *out, struct arena *a, tinker_error *err);
    /* changed: state or reason differ from the last ones of this request. */
    void (*queue_state)(struct poll *p, enum wire_queue_state state, const char *reason,
                        bool changed);
    void (*done)(struct poll *p);

    /* the outcome, in done: */
    bool ok, gone; /* gone: the service lost the promise (410) */
    /* unless ok, call.err says why */

    /* private */
    struct call call;
    char *request_id;
    struct buf body;
    struct budget_wait bytes;
    struct timer timer;
    char iteration_text[SHORTEST_MAX], roundtrip_text[SHORTEST_MAX];
    int64_t iteration, poll_start_ns, sent_ns;
    int conn, bad400;
    bool metadata_seen, active, state_known;
    enum wire_queue_state last_state;
    uint64_t last_reason; /* its hash */
    struct aside *aside;  /* a result that is being read by a worker */
};

void poll_start(struct poll *p, const char *request_id);
void poll_cancel(struct poll *p); /* done is not called; harmless when not active */
void poll_clear(struct poll *p);

#endif
