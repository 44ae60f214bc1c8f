/* breaker.h - circuit breakers by name: admission, and what became of it.
 *
 * Probes are counted when they are admitted, so two that come together are never both
 * let through.  Thread safety: any thread, any time. */
#ifndef CLIENT_BREAKER_H
#define CLIENT_BREAKER_H

#include <stdint.h>
#include <tinker/extra/breaker.h>

struct breaker;

/* Leave to make one call; end it with breaker_end().  breaker NULL: none. */
struct breaker_ticket {
    struct breaker *breaker; /* a reference */
    unsigned generation;
};

enum breaker_verdict {
    BREAKER_SUCCESS,
    BREAKER_FAILURE,
    BREAKER_NEITHER /* the call was given up: its place is free again */
};

/* Check opts and copy them over the defaults. */
tinker_status breaker_options(tinker_breaker_options *ours, const tinker_breaker_options *opts,
                              tinker_error *err);
/* now_ms is monotonic.  Makes the breaker if need be.  TINKER_ECIRCUIT: refused. */
tinker_status breaker_admit(const char *name, const tinker_breaker_options *opts, int64_t now_ms,
                            struct breaker_ticket *ticket, tinker_error *err);
void breaker_end(struct breaker_ticket *ticket, enum breaker_verdict verdict, int64_t now_ms);
tinker_breaker_state breaker_state(const char *name, int64_t now_ms);

#endif
