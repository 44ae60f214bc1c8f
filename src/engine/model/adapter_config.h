/* adapter_config.h - what adapter_config.json says, ours or PEFT's. */
#ifndef ENGINE_ADAPTER_CONFIG_H
#define ENGINE_ADAPTER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/error.h>
#include "base/arena.h"

struct adapter_config {
    int64_t rank; /* 0: all weights of the model instead of factors */
    double alpha;
    bool parameters;       /* experts in the form of PEFT */
    const char *base_name; /* in the arena; "" where it is not said */
};

/* TINKER_EINVAL: what would change the arithmetic in a way that we do not compute is refused by its
 * name.  `experts`: the model has some, so that their parameters may be targets. */
tinker_status adapter_config_read(struct adapter_config *out, const char *path, bool experts,
                                  struct arena *arena, tinker_error *err);

#endif
