/* future.h - what a 2xx answer of retrieve_future means, and what an error body says.
 * Pure functions; the result refers to the arena. */
#ifndef WIRE_FUTURE_H
#define WIRE_FUTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "wire/types.h"

enum wire_future_state {
    WIRE_FUTURE_PENDING,  /* poll again at once */
    WIRE_FUTURE_METADATA, /* large result is ready: payload_size */
    WIRE_FUTURE_FAILED,   /* error, category */
    WIRE_FUTURE_PROTO,    /* the body is the protobuf result */
    WIRE_FUTURE_JSON      /* the body is the JSON result */
};

enum wire_queue_state {
    WIRE_QUEUE_UNKNOWN,
    WIRE_QUEUE_ACTIVE,
    WIRE_QUEUE_PAUSED_CAPACITY,
    WIRE_QUEUE_PAUSED_RATE_LIMIT
};

struct wire_future_answer {
    enum wire_future_state state;
    enum wire_queue_state queue_state; /* PENDING */
    const char *queue_state_reason;    /* PENDING; NULL: none given */
    int64_t payload_size;              /* METADATA */
    const char *error;                 /* FAILED; never NULL then */
    int category;                      /* FAILED; TINKER_CATEGORY_* */
};

/* Decide on a 2xx answer.  content_type may be NULL.  TINKER_EPROTOCOL when the body
 * is neither protobuf by its type nor a JSON object. */
tinker_status wire_classify_future(const char *content_type, const char *body, size_t n,
                                   struct arena *arena, struct wire_future_answer *out,
                                   tinker_error *err);

/* The queue state of a 408 body.  false: the body is no JSON object. */
bool wire_read_queue_state(const char *body, size_t n, struct arena *arena,
                           struct wire_future_answer *out);

enum wire_queue_state wire_queue_state_parse(const char *s); /* NULL gives UNKNOWN */
const char *wire_queue_state_name(enum wire_queue_state s);  /* NULL for UNKNOWN */
int wire_category_parse(const char *s);                      /* TINKER_CATEGORY_* */
const char *wire_category_name(int category);                /* "unknown", "server", "user" */

/* Message for an error status: "Error code: 404 - Model not found".  A JSON body gives
 * its `detail`, `error` or `message` text when it has one, else its JSON text; another
 * body gives its trimmed text, an empty one just the code.  out is cut to size. */
void wire_error_text(int status, const char *body, size_t n, char *out, size_t size);

#endif
