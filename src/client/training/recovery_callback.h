/* recovery_callback.h - telling the user how recoveries ended, on the callback thread.
 *
 * An recovery_callback outlives the recovery it belongs to as long as a message is on its way, so
 * a recovery may be freed at any time, also by the callback it just called. */
#ifndef CLIENT_RECOVERY_CALLBACK_H
#define CLIENT_RECOVERY_CALLBACK_H

#include <tinker/extra/recovery.h>

struct recovery_callback;
struct runtime;

struct recovery_callback *recovery_callback_new(struct runtime *rt,
                                                const tinker_recovery_options *policy);
void recovery_callback_unref(struct recovery_callback *a);
/* No callback runs after this, except the one that it is called from. */
void recovery_callback_close(struct recovery_callback *a);

/* Takes over `recovered`; it is freed when nobody wants it. */
void recovery_callback_recovered(struct recovery_callback *a, const char *run_id,
                                 tinker_training *old, tinker_training *recovered,
                                 const char *checkpoint);
void recovery_callback_failed(struct recovery_callback *a, const char *run_id,
                              const tinker_error *err);

#endif
