/* names_cache.h - names that a shell completes: what the last lists showed.
 *
 * $XDG_CACHE_HOME/tinker/names/<kind> has one name per line.  Completion reads it and asks nobody. */
#ifndef CLI_NAMES_CACHE_H
#define CLI_NAMES_CACHE_H

#include "cli/output/listing.h"

/* Keep the cells of one column of a list as the names of a kind: "models", "runs" or "checkpoints".
 * Failures are nothing to tell: it is a convenience. */
void names_cache_keep(const char *kind, const struct listing *l, size_t column);

#endif
