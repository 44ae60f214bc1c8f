/* weights.h - adapters loaded for sampling, by directory, the least used one first out.
 *
 * Thread: the engine thread alone. */
#ifndef SERVER_WEIGHTS_H
#define SERVER_WEIGHTS_H

#include <tinker/engine.h>
#include "server/work/live_state.h"

enum { WEIGHTS_IDLE = 16 }; /* loaded but unused adapters to keep */

struct weights {
    char *dir;
    struct base *base;
    tinker_adapter *adapter;
    int refs;
    uint64_t used; /* tick of the last use */
    struct weights *next;
};

struct weights_cache {
    struct weights *first;
    size_t n;
    uint64_t tick;
};

/* Take a reference, loading if needed.  NULL with a retryable TINKER_ENOMEM: see
 * adapter_limit_make_space(). */
struct weights *weights_get(struct server *s, struct weights_cache *c, struct base *base,
                            const char *dir, tinker_error *err);
void weights_put(struct weights_cache *c, struct weights *w);
/* Enter an adapter that is in memory already; takes it over, also on failure. */
void weights_add(struct weights_cache *c, struct base *base, const char *dir,
                 tinker_adapter *adapter);
/* Drop the unused entry that was used longest ago; false: at most `keep` are unused. */
bool weights_drop_idle(struct weights_cache *c, size_t keep);
uint64_t weights_bytes(const struct weights_cache *c);
bool weights_idle(const struct weights_cache *c); /* is one unused? */
void weights_clear(struct weights_cache *c);

#endif
