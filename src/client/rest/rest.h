/* rest.h - what the REST calls share beyond rest_op.h. */
#ifndef CLIENT_REST_H
#define CLIENT_REST_H

#include <tinker/rest.h>

struct session;

struct session *rest_session(tinker_rest *r, tinker_error *err);
/* "api/v1/training_runs/<run>/checkpoints/<id><tail>" of a tinker:// path; caller frees. */
char *rest_checkpoint_path(const char *path, const char *tail, tinker_error *err);
/* "<head><id><tail>" with the id escaped; caller frees.  NULL with *err set: it is no id, or no
 * memory.  what: for the message, "run id". */
char *rest_path_of_id(const char *head, const char *what, const char *id, const char *tail,
                      tinker_error *err);

#endif
