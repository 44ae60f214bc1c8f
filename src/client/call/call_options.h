/* call_options.h - options of calls (tinker_call_options), as handles and operations keep them.
 *
 * Constant once made, and shared by a handle and all operations that were submitted through it.
 * Thread safety: any thread, any time. */
#ifndef CLIENT_CALL_OPTIONS_H
#define CLIENT_CALL_OPTIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <tinker/extra/http.h>
#include "base/arena.h"
#include "base/number.h"
#include "http/http.h"

struct call_options {
    atomic_int refs;
    atomic_int submits; /* operations so far */
    struct arena arena; /* all below */
    int64_t timeout_ms; /* 0: as configured */
    char timeout_text[NUMBER_SIZE];
    int64_t deadline_ms;         /* 0: none */
    int max_retries;             /* -1: as configured */
    struct http_header *headers; /* none of them goes to another origin */
    size_t n_headers;
    const char *query;      /* "a=b&c=d", NULL: none */
    const char *key;        /* NULL: random */
    const char *extra_body; /* "\"a\":1", NULL: none */
    size_t n_extra_body;
    tinker_named_string *metadata; /* redacted */
    size_t n_metadata;
    bool keep;
    tinker_response_fn *on_response;
    void *on_response_state;
};

/* Checked and copied, with one reference.  NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
struct call_options *call_options_make(const tinker_call_options *opts, tinker_error *err);
struct call_options *call_options_ref(struct call_options *p); /* NULL stays NULL */
void call_options_unref(struct call_options *p);
/* Do they have a header of this name?  p may be NULL. */
bool call_options_has_header(const struct call_options *p, const char *name);

/* May it be sent at all?  TINKER_EINVAL says why not, and shows no value. */
tinker_status call_options_check_header(const tinker_named_string *h, tinker_error *err);

#endif
