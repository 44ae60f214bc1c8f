/* receive.h - answers of any endpoint, piece by piece as they arrive.
 *
 *     static tinker_receive_next on_piece(void *state, const tinker_piece *piece)
 *     {
 *         fwrite(piece->data, 1, piece->n, state);
 *         return TINKER_RECEIVE_MORE;
 *     }
 *     tinker_future *f = tinker_service_receive(s, "GET", "/api/v1/log", NULL, 0, NULL, on_piece,
 *                                               stdout, &err);
 *
 * For an answer as a whole see tinker_service_call() in call.h. */
#ifndef TINKER_RECEIVE_H
#define TINKER_RECEIVE_H

#include <tinker/call.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tinker_receive_next {
    TINKER_RECEIVE_MORE = 0,
    TINKER_RECEIVE_PAUSE, /* this piece was taken; none comes until tinker_receive_resume() */
    TINKER_RECEIVE_STOP   /* end the transfer; the future says TINKER_ECANCELED */
} tinker_receive_next;

/* Borrowed until the callback returns.  Thread safety: plain data. */
typedef struct tinker_piece {
    const tinker_response *head; /* status, address and headers; no body */
    const void *data;            /* a NUL follows */
    size_t n;                    /* at least 1, except for an event without text */
    const char *event, *id;      /* with `events`: its name ("message") and id (""); else NULL */
} tinker_piece;

/* Called for every piece of a 2xx answer, on a library thread that does nothing else, one call at
 * a time and in order; it may submit but not wait.  When it is slow, or pauses, the sender is made
 * to wait: at most about 512 KB are kept.  Not after tinker_future_free() has returned. */
typedef tinker_receive_next tinker_receive_callback(void *state, const tinker_piece *piece);

typedef struct tinker_receive_options {
    size_t size;              /* set by TINKER_RECEIVE_OPTIONS_INIT */
    const char *content_type; /* of the body that is sent, NULL: JSON */
    const char *accept;       /* NULL: anything; with events text/event-stream */
    int events;               /* the answer is server-sent events: one call for each */
} tinker_receive_options;
#define TINKER_RECEIVE_OPTIONS_INIT                   \
    {                                                 \
        sizeof(tinker_receive_options), NULL, NULL, 0 \
    }

/* Any request to the service, as tinker_service_call() makes it.  It is tried again like all
 * requests until the first piece has come; from then on a failure is final.  The future completes
 * when the last piece was taken; until then it can be cancelled and have a deadline.  Its result
 * is nothing but success, or a failure that names the request, after the pieces that came before.
 * NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_service_receive(tinker_service *s, const char *method,
                                                 const char *path, const void *body, size_t n,
                                                 const tinker_receive_options *opts,
                                                 tinker_receive_callback *on_piece, void *state,
                                                 tinker_error *err);
/* Let pieces come again after TINKER_RECEIVE_PAUSE; harmless without, and for futures of other
 * calls.  TINKER_ENOMEM.  Thread safety: any thread, any time. */
TINKER_API tinker_status tinker_receive_resume(tinker_future *f, tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
