/* rate_limits.h - how much sampling one account may have under way, and its pauses.
 *
 * Shared by all sessions with the same address and key, because the service counts per
 * account; an option gives a session limits of its own.  Runs on the loop thread. */
#ifndef CLIENT_LIMITS_H
#define CLIENT_LIMITS_H

#include <stdbool.h>
#include <stdint.h>
#include "client/io/budget.h"

struct limits {
    struct limits *next;
    int refs;
    char *key;                /* NULL: not shared */
    struct budget dispatch;   /* requests being submitted */
    struct budget throttle;   /* fewer, shortly after a pause */
    struct budget bytes;      /* of prompts being submitted */
    int64_t backoff_until_ns; /* 0: never */
};

/* The limits of base_url and api_key; isolated: new ones.  NULL: no memory. */
struct limits *limits_ref(const char *base_url, const char *api_key, bool isolated, int64_t bytes);
void limits_unref(struct limits *l);
/* In a pause, or within 10 s after one. */
bool limits_recent(const struct limits *l, int64_t now_ns);
/* The service asked for a pause: 1 s, or 5 s after a large prompt. */
void limits_pause(struct limits *l, int64_t now_ns, int64_t prompt_bytes);

/* "https://Host:443/path" becomes "https://host": the scope of limits.  Caller frees. */
char *limits_scope(const char *base_url);

#endif
