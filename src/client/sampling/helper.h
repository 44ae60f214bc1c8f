/* helper.h - samples made in another process: what the two processes say to each other.
 *
 * The helper is a fresh program (`tinker sampling-helper`, or any that calls
 * tinker_sampling_helper()) at the other end of a socket, one for all samplers of this process.  It
 * has imported_sessions of the samplers and does for them all that concerns the network, so that whatever
 * stops this process (a debugger, a signal) stops neither heartbeats nor samples under way.
 *
 * Frames are structs of the machine: both ends are the same version, which HELLO makes sure of.
 * Runs on the loop thread, except where said. */
#ifndef CLIENT_HELPER_H
#define CLIENT_HELPER_H

#include <stdint.h>
#include "base/buf.h"
#include "client/session/config.h"
#include "client/sampling/sampling_client.h"

enum helper_kind {
    HELPER_HELLO,      /* from the helper, once: its version */
    HELPER_REGISTER,   /* settings, NUL, exported sampler; `target` is its number from now on */
    HELPER_UNREGISTER, /* target */
    HELPER_SAMPLE,     /* target, id: struct sample_order, body of the request */
    HELPER_CANCEL,     /* id */
    HELPER_RESULT,     /* id: request id, NUL, protobuf of the sample */
    HELPER_FAILURE,    /* id: struct helper_failure, request id, NUL, body of the answer */
    HELPER_STATE,      /* target, id (a tinker_queue_state): reason */
    HELPER_LINE        /* target, id (a tinker_log_level): line of the log */
};

struct helper_frame {
    uint64_t len; /* of what follows */
    uint64_t id;
    uint32_t target;
    uint32_t kind;
};

struct helper_failure {
    tinker_error err;
    int64_t retry_after_ms;
    int has_body;
};

enum { HELPER_FRAME_MAX = 1 << 30 };

/* The next whole frame in b from *at on: its content, and *at behind it; NULL: there is none yet,
 * or (*broken) never will be. */
const char *helper_frame_next(const struct buf *b, size_t *at, struct helper_frame *out,
                              bool *broken);
/* Forget the first `used` bytes. */
void helper_frame_drop(struct buf *b, size_t used);
/* How many bytes of text, at most n, up to its NUL; n: there is none. */
size_t helper_text_length(const char *text, size_t n);

/* helper_options.c: settings that concern requests, as JSON, and into another configuration. */
void helper_options_write(const struct config *c, struct buf *out);
tinker_status helper_options_read(struct config *c, const char *json, size_t n, tinker_error *err);

struct helper_target; /* a sampler as the helper knows it; loop thread */
/* The sampler is gone.  Any thread. */
void helper_release(struct helper_target *t);

/* Are samples of s made by the helper?  Any thread. */
bool helper_wanted(const tinker_sampler *s);
/* As the submits of sampling.c; body is taken over.  Any thread. */
tinker_future *helper_submit(tinker_sampler *s, const struct sample_order *order, struct buf *body,
                             tinker_error *err);

#endif
