/* auth.h - which credential a request carries.
 *
 * A token is asked for before every HTTP attempt; the answer may need a request or a
 * command of its own, so it comes by callback.  Runs on the loop thread. */
#ifndef CLIENT_AUTH_H
#define CLIENT_AUTH_H

#include <stdbool.h>
#include <tinker/error.h>

struct holder;
struct auth;

enum auth_use {
    AUTH_NORMAL,    /* every request once the service said which kind it wants */
    AUTH_BOOTSTRAP, /* the configuration request */
    AUTH_EXCHANGE   /* the request that exchanges a credential for a JWT */
};

struct auth_wait {
    struct auth_wait *next;
    enum auth_use use;
    /* token NULL and err set: none can be had.  token is valid during the call. */
    void (*ready)(struct auth_wait *w, const char *token, const tinker_error *err);
    struct auth *auth; /* not NULL while waiting */
};

struct auth *auth_new(struct holder *h, tinker_error *err);
void auth_free(struct auth *a);
void auth_stop(struct auth *a); /* no more refreshing */
void auth_token(struct auth *a, struct auth_wait *w, enum auth_use use);
void auth_forget(struct auth_wait *w); /* stop waiting */

#endif
