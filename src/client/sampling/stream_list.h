/* stream_list.h - events of a stream on their way from the loop thread to the user's.
 *
 * Shared by the stream and by the operation that fills it; each has a reference.
 * Thread safety: any thread, any time. */
#ifndef CLIENT_STREAM_LIST_H
#define CLIENT_STREAM_LIST_H

#include <stdbool.h>
#include <tinker/sampling.h>

struct stream_list;

struct stream_list *stream_list_new(void); /* NULL: no memory */
void stream_list_ref(struct stream_list *l);
void stream_list_unref(struct stream_list *l);

/* A copy, with its likeliest tokens.  false: no memory, or nobody reads. */
bool stream_list_push(struct stream_list *l, const tinker_stream_event *e);
void stream_list_end(struct stream_list *l, const tinker_error *err); /* NULL: as it should */

/* Loop thread: have wake called there after every push and end.  NULL: nobody. */
void stream_list_listen(struct stream_list *l, void (*wake)(void *arg), void *arg);

/* The next event, or how it ended: TINKER_ETIMEDOUT: neither until the deadline (see
 * future_deadline_ms(); 0: do not wait).  What the event points to is valid until the next call. */
tinker_status stream_list_next(struct stream_list *l, int64_t deadline_ms, tinker_stream_event *out,
                               tinker_error *err);
/* Readable while next would not wait; made by the first call.  -1 and errno: none. */
int stream_list_fd(struct stream_list *l);

#endif
