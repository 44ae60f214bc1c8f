/* sampler_table.h - where a sample takes its weights from.  Thread: the listener. */
#ifndef SERVER_SAMPLER_TABLE_H
#define SERVER_SAMPLER_TABLE_H

#include "server/api/routes.h"

struct sampler_source {
    struct base *base;
    struct store_checkpoint *checkpoint; /* NULL: the base model */
};
/* From the two fields of a request; false: the response says why. */
bool sampler_table_find_source(struct server *s, struct request *req, struct response *res,
                               const char *base_model, const char *model_path,
                               struct sampler_source *out);

struct sampler_view {
    struct base *base;
    const char *session_id, *dir; /* in the request's arena; dir NULL: the base model */
};
/* A sampling session of the user, from memory or the store; false: 404 or 500. */
bool sampler_table_find(struct server *s, struct request *req, struct response *res, const char *id,
                        struct sampler_view *out);

/* The session of requests that name none; it never expires.  NULL: no memory. */
struct session *sampler_table_direct_session(struct server *s, const char *user);

/* Do two records stand for the same weights, as far as their clients have said? */
bool sampler_table_is_same(const struct store_sampler *a, const struct store_sampler *b);
/* The checkpoint was deleted, or is no longer public and `except` is its owner: sampling sessions
 * on it end, those of `except` excepted. */
tinker_status sampler_table_end(struct server *s, const struct store_checkpoint *c,
                                const char *except, tinker_error *err);

#endif
