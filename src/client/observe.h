/* observe.h - queue states, told to the log at most once a minute and to the user's
 * observer each time.  Runs on the loop thread. */
#ifndef CLIENT_OBSERVE_H
#define CLIENT_OBSERVE_H

#include <stdint.h>
#include "wire/future.h"

struct holder;

struct observe {
    int64_t logged_ns; /* 0: never */
};

enum observe_kind { OBSERVE_TRAINING, OBSERVE_CREATION, OBSERVE_SAMPLING };

void observe_state(struct observe *o, struct holder *h, enum observe_kind kind, const char *id,
                   enum wire_queue_state state, const char *reason);
/* The reason to show: the server's, or one by state. */
const char *observe_reason(enum observe_kind kind, enum wire_queue_state state, const char *reason);

#endif
