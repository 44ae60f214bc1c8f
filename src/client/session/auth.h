/* auth.h - which credential a request carries.
 *
 * A token is asked for before every HTTP attempt; the answer may need a request or a
 * command of its own, so it comes by callback, perhaps at once.
 *
 *   bootstrap: the key, else the command's output
 *   normal:    the key; or, when the service wants it, a JWT that is exchanged for a
 *              credential, renewed 300 s before it expires and checked before each use
 *
 * Runs on the loop thread. */
#ifndef CLIENT_AUTH_H
#define CLIENT_AUTH_H

#include <stdbool.h>
#include <tinker/error.h>

struct config;
struct session;
struct auth;
struct credential_job;

enum auth_use {
    AUTH_NORMAL,    /* every request once the service said which kind it wants */
    AUTH_BOOTSTRAP, /* the configuration request */
    AUTH_EXCHANGE   /* the request that exchanges a credential for a JWT */
};

struct auth_wait {
    struct auth_wait *next;
    /* err not NULL: no credential can be had.  token NULL: send without one.  token is
     * valid during the call. */
    void (*ready)(struct auth_wait *w, const char *token, const tinker_error *err);
    struct auth *auth;          /* not NULL while in the list of those who wait for a JWT */
    struct credential_job *job; /* not NULL while its command runs */
};

struct auth *auth_new(struct session *h, tinker_error *err);
void auth_free(struct auth *a);
void auth_stop(struct auth *a); /* no more refreshing */
/* The service has said what it wants (session->server): get ready, then ready(arg, err). */
void auth_prepare(struct auth *a, void (*ready)(void *arg, const tinker_error *err), void *arg);
void auth_seed(struct auth *a, const char *jwt); /* start from this token: no exchange yet */
void auth_token(struct auth *a, struct auth_wait *w, enum auth_use use);
void auth_forget(struct auth_wait *w); /* stop waiting */
/* The JWT in use, NULL when none is. */
const char *auth_jwt(const struct auth *a);

/* tml-… or eyJ…; on loopback anything */
bool auth_key_valid(const struct config *cfg, const char *key);

#endif
