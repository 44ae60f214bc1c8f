/* sampler_table.h - where a sample takes its weights from.  Thread: the listener. */
#ifndef SERVER_SAMPLERS_H
#define SERVER_SAMPLERS_H

#include "server/api/routes.h"

struct samplers_source {
    struct base *base;
    struct store_checkpoint *checkpoint; /* NULL: the base model */
};
/* From the two fields of a request; false: the response says why. */
bool samplers_source(struct server *s, struct request *req, struct response *res,
                     const char *base_model, const char *model_path, struct samplers_source *out);

struct samplers_view {
    struct base *base;
    const char *session_id, *dir; /* in the request's arena; dir NULL: the base model */
};
/* A sampling session of the user, from memory or the store; false: 404 or 500. */
bool samplers_find(struct server *s, struct request *req, struct response *res, const char *id,
                   struct samplers_view *out);

/* The session of requests that name none; it never expires.  NULL: no memory. */
struct session *samplers_direct_session(struct server *s, const char *user);

#endif
