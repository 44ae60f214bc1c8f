/* sse.h - server-sent events out of a stream of bytes.
 *
 * Bytes are fed as they arrive, cut anywhere; events come out whole.  Lines end with LF, CR
 * or CRLF; fields are event, data, id and retry; a comment is ignored; an event without data,
 * or one that the stream ends in, is not told.  What is kept of one event is bounded.
 * Not thread-safe. */
#ifndef HTTP_SSE_H
#define HTTP_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>
#include "base/buf.h"

struct sse_event {
    const char *event; /* "message" when the stream does not say */
    const char *data;  /* lines joined by newlines; NUL-terminated */
    size_t n;
    const char *id; /* the last one seen, "" for none */
};

/* Called for every event, inside sse_feed(); false stops. */
typedef bool sse_callback(void *state, const struct sse_event *e);

struct sse {
    struct buf line, data, event, id;
    int64_t retry_ms; /* asked for by the stream, -1: not */
    sse_callback *call;
    void *state;
    unsigned char bom; /* bytes of a byte order mark seen so far; 3: past it */
    bool after_cr;     /* a LF that follows belongs to the line that ended */
    bool has_data;
};

/* max: bytes of one line, and of the data of one event. */
void sse_init(struct sse *s, size_t max, sse_callback *call, void *state);
void sse_clear(struct sse *s);
/* Take p[0..n).  TINKER_ENOMEM: an event is larger than max, or there is no memory;
 * TINKER_ECANCELED: the callback said stop.  After either no more may be fed. */
tinker_status sse_feed(struct sse *s, const char *p, size_t n, tinker_error *err);

#endif
