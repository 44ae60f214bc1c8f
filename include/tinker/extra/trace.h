/* trace.h - W3C trace context: reading, writing and continuing traces.
 *
 * traceparent and tracestate say which trace a request belongs to.  A program that was called
 * with them reads them here, makes a child for what it calls itself, and sends that along as
 * headers of a call (see http.h) or of the whole service (traceparent and tracestate of
 * tinker_service_options, with otel).  Nothing is sent by these functions.
 *
 * Thread safety: plain data. */
#ifndef TINKER_EXTRA_TRACE_H
#define TINKER_EXTRA_TRACE_H

#include <stddef.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TINKER_TRACE_SAMPLED = 1,      /* flags: the caller may have recorded it */
    TINKER_TRACE_RANDOM = 2,       /* the trace id is random */
    TINKER_TRACEPARENT_SIZE = 56,  /* of a formatted traceparent, with its NUL */
    TINKER_TRACESTATE_MEMBERS = 32 /* at most in one tracestate */
};

typedef struct tinker_trace {
    char trace_id[33];  /* 32 digits of lower-case hex, not all 0 */
    char parent_id[17]; /* 16 of them: the span that calls */
    unsigned flags;     /* TINKER_TRACE_… */
} tinker_trace;

/* Read a traceparent ("00-<trace id>-<parent id>-<flags>").  Strict: no blanks, no capitals, no
 * id of zeros; versions after 00 may have more behind the flags.  TINKER_EINVAL says what is
 * wrong; *out is not written then. */
TINKER_API tinker_status tinker_trace_parse(const char *traceparent, tinker_trace *out,
                                            tinker_error *err);
/* Write it as version 00, without flags that this version does not know.  TINKER_EINVAL for an
 * invalid id. */
TINKER_API tinker_status tinker_trace_format(const tinker_trace *trace,
                                             char out[TINKER_TRACEPARENT_SIZE], tinker_error *err);
/* A span of our own: the same trace and flags with a new parent_id; parent NULL: a new trace,
 * sampled.  TINKER_ESTATE when the system gives no random numbers. */
TINKER_API tinker_status tinker_trace_child(const tinker_trace *parent, tinker_trace *out,
                                            tinker_error *err);

/* How many members a tracestate ("a=1,b@sys=2") has, or -1 with *err set: malformed, a key twice,
 * or more than 32.  "" has none. */
TINKER_API int tinker_tracestate_count(const char *tracestate, tinker_error *err);
/* Copy the value of a key to out[0..n), cut if need be, with NUL; its length, or -1 when the key
 * is not there or the tracestate is malformed. */
TINKER_API int tinker_tracestate_get(const char *tracestate, const char *key, char *out, size_t n);
/* Write tracestate (NULL: none) with this key in front, in place of the one it had, to
 * out[0..n), which may not overlap it; value NULL removes it.  When there are more than 32
 * members, or there is no room, members at the end are left out.  TINKER_EINVAL: the tracestate,
 * key or value is malformed, or there is not even room for the new member. */
TINKER_API tinker_status tinker_tracestate_put(const char *tracestate, const char *key,
                                               const char *value, char *out, size_t n,
                                               tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
