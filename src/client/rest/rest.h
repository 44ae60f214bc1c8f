/* rest.h - what the REST calls share beyond rest_op.h. */
#ifndef CLIENT_REST_H
#define CLIENT_REST_H

#include <stdbool.h>
#include <tinker/rest.h>
#include "base/buf.h"

struct session;
struct rest_kind;
struct wire_type;

struct session *rest_session(tinker_rest *r, tinker_error *err);
struct call_options *rest_options(const tinker_rest *r); /* borrowed; NULL: none */
/* "api/v1/training_runs/<run>/checkpoints/<id><tail>" of a tinker:// path; caller frees. */
char *rest_checkpoint_path(const char *path, const char *tail, tinker_error *err);
/* "<head><id><tail>" with the id escaped; caller frees.  NULL with *err set: it is no id, or no
 * memory.  what: for the message, "run id". */
char *rest_path_of_id(const char *head, const char *what, const char *id, const char *tail,
                      tinker_error *err);

/* Make a path of a format; NULL: no memory, which rest_send() reports.  Caller frees. */
char *rest_format_path(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *rest_scope_name(tinker_scope scope); /* as in a query */
/* Copy the caller's page (may be NULL) over the defaults and check it. */
tinker_status rest_check_page(tinker_page *ours, const tinker_page *page, int64_t limit,
                              tinker_error *err);
/* What searches have in common: the bounds of the service, and that pairs are whole. */
tinker_status rest_check_search(int64_t limit, size_t n_owner_urns,
                                const tinker_named_string *metadata, size_t n_metadata,
                                tinker_error *err);
/* TINKER_EINVAL for an empty text in a list of them; what: the name of the list. */
tinker_status rest_check_texts(const char *what, const char *const *v, size_t n, tinker_error *err);
/* A body from a request struct; false: *err says why, and there is nothing to clear. */
bool rest_encode(struct buf *out, const struct wire_type *type, const void *value,
                 tinker_error *err);
/* Submit a call of the handle; takes over path and body as rest_submit() does. */
tinker_future *rest_send(tinker_rest *r, const struct rest_kind *kind, char *path, struct buf *body,
                         tinker_error *err);

#endif
