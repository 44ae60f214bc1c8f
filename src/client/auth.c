/* auth.c - API keys.  See auth.h. */
#include "client/auth.h"

#include <stdlib.h>
#include "base/err.h"
#include "client/holder.h"

struct auth {
    struct holder *holder;
};

struct auth *auth_new(struct holder *h, tinker_error *err)
{
    struct auth *a = calloc(1, sizeof(*a));
    if (!a)
        err_nomem(err, "credentials");
    else
        a->holder = h;
    return a;
}

void auth_free(struct auth *a)
{
    free(a);
}

void auth_stop(struct auth *a)
{
    (void)a;
}

void auth_token(struct auth *a, struct auth_wait *w, enum auth_use use)
{
    w->use = use;
    w->auth = NULL;
    w->ready(w, a->holder->cfg->api_key, NULL);
}

void auth_forget(struct auth_wait *w)
{
    w->auth = NULL;
}
