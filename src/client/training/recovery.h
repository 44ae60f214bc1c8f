/* recovery.h - arithmetic of recoveries, apart for its tests. */
#ifndef CLIENT_RECOVERY_H
#define CLIENT_RECOVERY_H

#include <tinker/extra/recovery.h>

/* Copy a policy (NULL: defaults), with defaults for what makes no sense. */
tinker_status recovery_policy(tinker_recovery_options *ours, const tinker_recovery_options *theirs,
                              tinker_error *err);
/* How long to wait after the k-th attempt failed (k from 1). */
int64_t recovery_delay_ms(const tinker_recovery_options *p, int k);

#endif
