/* sample_limits.h - how much sampling an account may have under way: its permits and pauses.
 *
 * sample_limits are the limits of one account.  All sessions with the same address and key
 * share them, because the service counts per account; an option gives a session limits of its
 * own.  sample_permits are what one request holds of them, taken in this order:
 *
 *   one of 400 -> shortly after a pause also one of 10 -> bytes of the prompt -> no pause now
 *
 * Everything runs on the loop thread. */
#ifndef CLIENT_SAMPLE_LIMITS_H
#define CLIENT_SAMPLE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>
#include "client/io/budget.h"
#include "client/session/session.h"

struct sample_limits {
    struct sample_limits *next;
    int refs;
    char *key;                /* NULL: not shared */
    struct budget dispatch;   /* requests being submitted */
    struct budget throttle;   /* fewer, shortly after a pause */
    struct budget bytes;      /* of prompts being submitted */
    int64_t backoff_until_ns; /* 0: never */
};

/* The limits of base_url and api_key; isolated: new ones.  NULL: no memory. */
struct sample_limits *sample_limits_ref(const char *base_url, const char *api_key, bool isolated,
                                        int64_t bytes);
void sample_limits_unref(struct sample_limits *l);
/* In a pause, or within 10 s after one. */
bool sample_limits_recent(const struct sample_limits *l, int64_t now_ns);
/* The service asked for a pause: 1 s, or 5 s after a large prompt. */
void sample_limits_pause(struct sample_limits *l, int64_t now_ns, int64_t prompt_bytes);

/* "https://Host:443/path" becomes "https://host": the scope of limits.  Caller frees. */
char *sample_limits_scope(const char *base_url);

/* A member of the operation that owns it; zero-initialize, then set the first three. */
struct sample_permits {
    struct session *session;
    int64_t bytes; /* of the prompt */
    void (*go)(struct sample_permits *p);

    /* private */
    struct budget_wait permit, throttle, budget;
    struct timer timer;
};

/* Take all permits, then call go: now or later. */
void sample_permits_take(struct sample_permits *p);
/* Wait for the end of the account's pause with the permits that are held; then call go. */
void sample_permits_wait_pause(struct sample_permits *p);
/* The service asked for a pause. */
void sample_permits_pause(struct sample_permits *p);
/* Give everything back, or stop waiting for it; harmless otherwise. */
void sample_permits_give(struct sample_permits *p);

#endif
