/* stream.h - a body that is produced while it is sent (server-sent events).
 *
 * The engine thread appends, the listener thread takes; the waitlist wakes the
 * sender.  A stream is owned by its producer and its reader together and dies with
 * the last of the two.  Thread-safe. */
#ifndef SERVER_STREAM_H
#define SERVER_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include "server/http/http_message.h"

struct listener;
struct stream;

struct stream *stream_new(struct listener *l); /* two references; NULL: no memory */
void stream_unref(struct stream *s);
/* Append; false when the reader has left, so that the producer may stop. */
bool stream_write(struct stream *s, const void *p, size_t n);
void stream_end(struct stream *s);
/* The reader left. */
void stream_abandon(struct stream *s);
bool stream_is_abandoned(struct stream *s);
/* Take up to max bytes: > 0 taken, 0 nothing yet, -1 the end, -2 the rest was lost. */
ssize_t stream_read(struct stream *s, char *out, size_t max);
struct waitlist *stream_waitlist(struct stream *s);

#endif
