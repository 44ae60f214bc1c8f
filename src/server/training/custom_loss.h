/* custom_loss.h - losses that clients brought as graphs, in a pass.
 *
 * Thread: the engine thread alone, but for custom_loss_id() and custom_loss_check(): any. */
#ifndef SERVER_CUSTOM_LOSS_H
#define SERVER_CUSTOM_LOSS_H

#include "server/store/store.h"
#include "wire/types.h"

struct server;
/* The loss of one pass, with what its datums gave so far. */
struct custom_loss;

/* "<session>:loss:<number>"; NULL: no memory. */
const char *custom_loss_id(struct arena *arena, const char *session_id, int64_t seq);
/* Decode a request that makes a loss, and check its graph; *out may be NULL.  TINKER_EINVAL names
 * the node. */
struct graph;
tinker_status custom_loss_check(const struct wire_create_custom_loss_request *r, struct graph **out,
                                tinker_error *err);

/* The loss that the settings of a pass name; it must be the session's.  Keeps r. */
struct custom_loss *custom_loss_new(struct server *s, const char *session_id,
                                    const struct wire_forward_backward_request *r,
                                    tinker_error *err);
/* A tinker_datum_loss_fn; state is the custom_loss. */
tinker_status custom_loss_datum(size_t datum, const float *logprobs, size_t n, double *loss,
                                float *grads, tinker_error *err, void *state);
/* The result of the pass with the metrics of the loss; lives as long as c. */
const tinker_forward_backward *custom_loss_result(struct custom_loss *c,
                                                  const tinker_forward_backward *pass);
void custom_loss_free(struct custom_loss *c);

#endif
