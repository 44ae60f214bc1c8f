/* optimizer.h - optimizer_params: {"type": "dimuon", "learning_rate": 0.02, …}, numbers and texts. */
#ifndef WIRE_OPTIMIZER_H
#define WIRE_OPTIMIZER_H

#include <tinker/data.h>
#include "base/arena.h"
#include "base/buf.h"
#include "json/json.h"

tinker_status wire_optimizer_encode(const tinker_optimizer *o, struct buf *out, tinker_error *err);
/* All of it is in the arena. */
tinker_status wire_optimizer_decode(struct json_str text, struct arena *arena,
                                    tinker_optimizer *out, tinker_error *err);

#endif
