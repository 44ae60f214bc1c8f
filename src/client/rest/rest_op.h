/* rest_op.h - a call that is answered directly: no turn, no promise.
 *
 * Waits until the session has started, sends one call and reads its answer into the
 * future.  Loop thread, except rest_submit(). */
#ifndef CLIENT_REST_OP_H
#define CLIENT_REST_OP_H

#include "client/call/call.h"
#include "client/future/operation.h"

struct rest_op;

/* What a 409 means. */
enum rest_conflict {
    REST_CONFLICT_RETRIED = false,
    REST_CONFLICT_FINAL = true,
    REST_CONFLICT_ALREADY /* final: all is already as it should be */
};

struct rest_kind {
    struct operation_class class; /* rest_start, rest_abandon, rest_destroy */
    struct call_spec spec;
    enum result_kind result;
    /* RESULT_VALUE: what the body is, and the tag of the future's result.  Without `read` the
     * struct of this type is the result, as the wire table fills it. */
    const struct wire_type *type;
    /* Make the result from a 2xx body, where its shape is not that of the wire; neither type nor
     * read: any body will do. */
    tinker_status (*read)(struct rest_op *r, const char *body, size_t n, tinker_error *err);
    enum rest_conflict conflict;
};

struct rest_op {
    struct operation op;
    const struct rest_kind *kind;
    struct session_wait wait;
    struct call call;
    char *path; /* "api/v1/…" */
    struct buf body;
    bool once;   /* one idempotency key for all tries */
    bool quiet;  /* no future waits for it: failures are only logged */
    char *token; /* of the account whose weights it is about, or NULL */
};

void rest_start(struct operation *op);
void rest_ready(struct session_wait *w, const tinker_error *err); /* what it waits for */
void rest_abandon(struct operation *op);
void rest_destroy(struct operation *op);

/* The parts of a rest_kind that most have: its name in errors and metrics, and the method. */
#define REST_KIND(text, verb) .class = REST_CLASS(text), .spec = REST_SPEC(text, verb)
#define REST_CLASS(text)                                                                    \
    {                                                                                       \
        .name = text, .start = rest_start, .abandon = rest_abandon, .destroy = rest_destroy \
    }
#define REST_SPEC(text, verb)                                                          \
    {                                                                                  \
        .name = text, .method = verb, .pool = POOL_TRAIN, .max_retries = CALL_DEFAULT, \
        .outer = true                                                                  \
    }

/* Decode the body into *wire, and allocate the result of `size` bytes, which becomes the value of
 * the future; for `read` functions.  Both live in the future's arena, so the result may point into
 * what was decoded. */
tinker_status rest_decode(struct rest_op *r, const char *body, size_t n, void *wire, size_t size,
                          void **out, tinker_error *err);

/* Takes over `path` and `body` (may be NULL), whether it succeeds or not; path NULL: no
 * memory.  options: of the handle, borrowed; may be NULL.  Any thread. */
struct tinker_future *rest_submit(struct session *h, const struct rest_kind *kind, char *path,
                                  struct buf *body, struct call_options *options,
                                  tinker_error *err);
/* The same for what must happen only once, also when it is retried; token (may be NULL) is copied. */
struct tinker_future *rest_submit_once(struct session *h, const struct rest_kind *kind, char *path,
                                       struct buf *body, const char *token,
                                       struct call_options *options, tinker_error *err);
/* Send it and forget it. */
void rest_tell(struct session *h, const struct rest_kind *kind, char *path, struct buf *body);

#endif
