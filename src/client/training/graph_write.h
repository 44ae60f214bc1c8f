/* graph_write.h - a loss on a tape as a graph of torch operations. */
#ifndef CLIENT_GRAPH_WRITE_H
#define CLIENT_GRAPH_WRITE_H

#include <tinker/custom_loss.h>
#include "base/arena.h"
#include "base/buf.h"

enum { GRAPH_LOSS_INPUTS_MAX = 15 }; /* beside logprobs */

tinker_status graph_loss_check(const tinker_graph_loss *loss, tinker_error *err);
/* {"format": 1, "nodes": […]} */
tinker_status graph_write(const tinker_graph_loss *loss, struct buf *out, tinker_error *err);

#endif
