/* sample.h - running samples in the generators.  Thread: the engine thread alone. */
#ifndef SERVER_SAMPLE_H
#define SERVER_SAMPLE_H

#include "server/work/live_state.h"
#include "server/work/weights.h"

struct sampling {
    struct sample_task *first; /* in a generator now */
    size_t tokens;             /* of all of them, what may still come included */
    size_t active;             /* sequences being made */
    uint64_t drops;            /* of the server, when we last looked */
    /* When --max-adapters is reached; never both, so that training and sampling take turns. */
    bool yields; /* training waits for an adapter: admit no more samples that use one */
    bool
        starves; /* a sample waits for an adapter, or for the memory of passes: start no more training */
    bool drains; /* a pass waits for the memory of samples: admit no more */
};

/* Move waiting samples into the generators while they fit. */
void sample_admit(struct server *s, struct sampling *g, struct weights_cache *weights);
/* One token for every sequence of every base model. */
void sample_step(struct server *s, struct sampling *g, struct weights_cache *weights);
/* Drop canceled samples and the work of sessions that ended, if there are new ones. */
void sample_drop(struct server *s, struct sampling *g, struct weights_cache *weights);
/* At shutdown: forget everything that runs. */
void sample_abandon(struct server *s, struct sampling *g, struct weights_cache *weights);

#endif
