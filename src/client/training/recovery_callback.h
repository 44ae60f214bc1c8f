/* recovery_callback.h - telling the user how recoveries ended, on the callback thread's thread.
 *
 * An audience outlives the recovery it belongs to as long as a message is on its way, so
 * a recovery may be freed at any time, also by the callback it just called. */
#ifndef CLIENT_AUDIENCE_H
#define CLIENT_AUDIENCE_H

#include <tinker/extra/recovery.h>

struct audience;
struct runtime;

struct audience *audience_new(struct runtime *rt, const tinker_recovery_policy *policy);
void audience_unref(struct audience *a);
/* No callback runs after this, except the one that it is called from. */
void audience_close(struct audience *a);

/* Takes over `recovered`; it is freed when nobody wants it. */
void audience_recovered(struct audience *a, const char *run_id, tinker_training *old,
                        tinker_training *recovered, const char *checkpoint);
void audience_failed(struct audience *a, const char *run_id, const tinker_error *err);

#endif
