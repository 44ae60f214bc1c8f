/* auth.c - see auth.h.
 *
 * At most one exchange is under way; whoever needs a fresh JWT meanwhile waits for it in
 * `waiting`, and gets the old one when it fails. */
#include "client/session/auth.h"

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/call.h"
#include "client/session/credential_cmd.h"
#include "client/session/session.h"
#include "client/session/jwt.h"
#include "wire/wire.h"

enum {
    REFRESH_BEFORE_S = 300, /* renew in the background this long before a JWT expires */
    STALE_S = 60,           /* with less left, a request waits for a new one */
    PAUSE_MS = 60000,       /* after a failed exchange, and between looks at a JWT without exp */
    RENEW_FLOOR_MS = 10000, /* after a success: a token may come with less than REFRESH_BEFORE_S */
    COMMAND_MS = 300000
};

struct auth {
    struct session *session;
    bool use_jwt, stopped;
    char *jwt;
    struct call call;
    struct timer timer; /* the next background refresh */
    struct auth_wait *waiting;
    struct auth_wait *answered; /* waits that are being answered, one after the other */
    void (*ready)(void *arg, const tinker_error *err); /* of auth_prepare */
    void *ready_arg;
};

/* A run of the credential command on a worker.  It belongs to the runtime until it is done; the one
 * who waits may leave before, so each side knows the other only through `wait` and `unwanted`. */
struct credential_job {
    struct runtime_job job;
    struct auth_wait *wait; /* NULL: nobody waits any more */
    atomic_bool unwanted;   /* the same, for the worker */
    char *command, *output;
    tinker_error err;
};

/* The first exchange is part of the start and retried as other requests are; a later one is made
 * again by the timer instead, since the old JWT still works. */
static const struct call_spec first_spec = {
    .name = "auth/token",
    .method = "POST",
    .pool = POOL_AUTH,
    .max_retries = CALL_DEFAULT,
    .outer = true,
};
static const struct call_spec again_spec = {
    .name = "auth/token",
    .method = "POST",
    .pool = POOL_AUTH,
    .max_retries = CALL_DEFAULT,
};

/* API keys begin with tml-, JWTs with the base64url of '{"', which is eyJ. A server on loopback may
 * have keys of any form. */
bool auth_key_valid(const struct config *cfg, const char *key)
{
    return key && ((cfg->loopback && !cfg->credential_cmd) || strncmp(key, "tml-", 4) == 0 ||
                   strncmp(key, "eyJ", 3) == 0);
}

/* ---- the command ------------------------------------------------------------------------ */

/* On a worker: blocks as long as the command runs. */
static void run_credential_job(struct runtime_job *j)
{
    struct credential_job *c = (struct credential_job *)j; /* first member */
    c->output = credential_cmd_output(c->command, COMMAND_MS, &c->unwanted, &c->err);
}

/* Loop thread. */
static void finish_credential_job(struct runtime_job *j)
{
    struct credential_job *c = (struct credential_job *)j;
    log_secret(c->output); /* before anybody can log it */
    if (c->wait) {
        c->wait->job = NULL;
        c->wait->ready(c->wait, c->output, c->output ? NULL : &c->err);
    }
    free(c->output);
    free(c->command);
    free(c);
}

/* The wait and the job point to each other, so that either side can leave first: auth_forget()
 * clears c->wait, and the job then ends unheard. */
static void start_credential_job(struct auth *a, struct auth_wait *w)
{
    struct credential_job *c = calloc(1, sizeof(*c));
    char *command = strdup(a->session->cfg->credential_cmd);
    tinker_error err;
    if (c && command) {
        c->job.work = run_credential_job;
        c->job.done = finish_credential_job;
        c->wait = w;
        c->command = command;
        w->job = c;
        if (runtime_work(a->session->rt, &c->job))
            return;
        w->job = NULL;
    }
    free(c);
    free(command);
    err_nomem(&err, "credential command");
    w->ready(w, NULL, &err);
}

/* ---- which credential ------------------------------------------------------------------- */

static void set_missing_key(const struct config *cfg, tinker_error *err)
{
    if (cfg->api_key)
        err_set(err, TINKER_EINVAL, "the API key does not start with tml-");
    else
        err_set(err, TINKER_EINVAL,
                "no API key: set TINKER_API_KEY or the option api_key (a key starts with tml-)");
}

/* The raw credential: a JWT given as key always, the command when the service insists,
 * else the key, else the command. */
static void give_credential(struct auth *a, struct auth_wait *w, bool insist)
{
    const struct config *cfg = a->session->cfg;
    const char *key = cfg->api_key;
    tinker_error err;
    if (key && strncmp(key, "eyJ", 3) == 0)
        w->ready(w, key, NULL);
    else if (insist && !cfg->credential_cmd) {
        err_set(&err, TINKER_EINVAL,
                "this organization requires dynamic credentials: set TINKER_CREDENTIAL_CMD");
        w->ready(w, NULL, &err);
    } else if (!insist && auth_key_valid(cfg, key))
        w->ready(w, key, NULL);
    else if (cfg->credential_cmd)
        start_credential_job(a, w);
    else {
        set_missing_key(cfg, &err);
        w->ready(w, NULL, &err);
    }
}

/* ---- exchange --------------------------------------------------------------------------- */

/* Arm the timer for the next exchange: REFRESH_BEFORE_S before the JWT expires, but not earlier than
 * floor_ms from now.  A JWT without a readable exp is looked at again in a minute. */
static void schedule_refresh(struct auth *a, int64_t floor_ms)
{
    struct arena scratch;
    struct jwt_claims claims;
    struct runtime *rt = a->session->rt;
    if (a->stopped)
        return;
    arena_init(&scratch, 1 << 18);
    int64_t ms = PAUSE_MS;
    if (jwt_read(a->jwt, &scratch, &claims) && claims.has_exp) {
        double s = claims.exp - (double)clock_wall_ns(rt->clock) / 1e9 - REFRESH_BEFORE_S;
        ms = s > 0 ? (int64_t)(s < 1e9 ? s * 1000 : 1e12) : 0; /* exp may be any number */
    }
    arena_clear(&scratch);
    loop_arm(rt->loop, &a->timer, ms > floor_ms ? ms : floor_ms);
}

/* Take the JWT out of the answer of an exchange; false: c->err says why there is none. */
static bool keep_jwt(struct auth *a, struct call *c)
{
    struct wire_auth_token_response res;
    struct arena scratch;
    const struct buf *body = &c->http.resp.body;
    if (c->outcome != CALL_OK)
        return false;
    arena_init(&scratch, 1 << 20);
    tinker_status s = wire_decode_json(&wire_auth_token_response, body->data ? body->data : "",
                                       body->len, WIRE_LENIENT, &scratch, &res, &c->err);
    char *jwt = wire_as_answer(s, &c->err) == TINKER_OK ? strdup(res.jwt) : NULL;
    arena_clear(&scratch);
    if (!jwt)
        return false;
    free(a->jwt);
    a->jwt = jwt;
    log_secret(jwt);
    return true;
}

static void on_pause_timer(struct timer *t);
static void on_refresh_timer(struct timer *t);

/* The end of an exchange.
 *
 *   first, failed:   auth_prepare() fails, and with it the start of the session
 *   later, failed:   go on with the old JWT, look again in a minute
 *   succeeded:       renew in time
 *
 * Those who wait are answered in any case but the first: nobody can wait before the start. */
static void on_exchanged(struct call *c)
{
    struct auth *a = container_of(c, struct auth, call);
    bool ok = keep_jwt(a, c);
    void (*ready)(void *arg, const tinker_error *err) = a->ready;
    a->ready = NULL;
    if (ready && !ok) {
        ready(a->ready_arg, &c->err);
        return;
    }
    a->timer.fire = on_refresh_timer;
    if (ok)
        schedule_refresh(a, RENEW_FLOOR_MS);
    else if (!a->stopped) {
        log_line(&a->session->log, LOG_WARNING, "token not renewed, going on with the old one: %s",
                 c->err.message);
        a->timer.fire = on_pause_timer;
        loop_arm(a->session->rt->loop, &a->timer, PAUSE_MS);
    }
    /* Give the JWT, new or old, to all who wait.  One of them may end others, which then leave the
     * list through auth_forget(); so the list is taken over first and its head read again each time. */
    a->answered = a->waiting;
    a->waiting = NULL;
    for (struct auth_wait *w; (w = a->answered) != NULL;) {
        a->answered = w->next;
        w->auth = NULL;
        /* without any, the key itself may do */
        w->ready(w, a->jwt ? a->jwt : a->session->cfg->api_key, NULL);
    }
    if (ready)
        ready(a->ready_arg, NULL);
}

static void start_exchange(struct auth *a, const struct call_spec *spec)
{
    struct call *c = &a->call;
    if (c->active) /* at most one: its result is shared */
        return;
    loop_disarm(a->session->rt->loop, &a->timer);
    c->session = a->session;
    c->spec = spec;
    c->path = "api/v1/auth/token";
    c->body = "{}";
    c->body_len = 2;
    c->use = AUTH_EXCHANGE;
    c->done = on_exchanged;
    call_start(c);
}

static void on_refresh_timer(struct timer *t)
{
    start_exchange(container_of(t, struct auth, timer), &again_spec);
}

/* A minute after a failure the waiting time is computed anew: the old JWT may have hours left. */
static void on_pause_timer(struct timer *t)
{
    struct auth *a = container_of(t, struct auth, timer);
    t->fire = on_refresh_timer;
    schedule_refresh(a, 0);
}

/* ---- public ----------------------------------------------------------------------------- */

void auth_token(struct auth *a, struct auth_wait *w, enum auth_use use)
{
    const struct session *h = a->session;
    w->auth = NULL;
    w->job = NULL;
    if (use == AUTH_BOOTSTRAP || use == AUTH_EXCHANGE) {
        bool insist = use == AUTH_EXCHANGE &&
                      strcmp(h->server.credential_default_source, "credential_cmd") == 0;
        give_credential(a, w, insist);
        return;
    }
    if (!a->use_jwt) {
        w->ready(w, h->cfg->api_key, NULL);
        return;
    }
    if (a->stopped && !a->jwt) { /* of a handle that nobody used */
        w->ready(w, h->cfg->api_key, NULL);
        return;
    }
    /* While the session closes there is no renewal: its last requests use what there is. */
    if (a->stopped || (a->jwt && jwt_remaining(a->jwt, clock_wall_ns(h->rt->clock)) > STALE_S)) {
        w->ready(w, a->jwt, NULL);
        return;
    }
    struct auth_wait **at = &a->waiting; /* at the end: first come, first served */
    while (*at)
        at = &(*at)->next;
    w->next = NULL;
    w->auth = a;
    *at = w;
    start_exchange(a, &again_spec);
}

static bool remove_wait(struct auth_wait **at, const struct auth_wait *w)
{
    while (*at && *at != w)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = w->next;
    return true;
}

void auth_forget(struct auth_wait *w)
{
    if (w->job) { /* the worker kills the command when it sees that nobody waits */
        w->job->wait = NULL;
        atomic_store(&w->job->unwanted, true);
    }
    w->job = NULL;
    if (!w->auth)
        return;
    if (!remove_wait(&w->auth->waiting, w))
        remove_wait(&w->auth->answered, w);
    w->auth = NULL;
}

void auth_prepare(struct auth *a, void (*ready)(void *arg, const tinker_error *err), void *arg)
{
    const struct session *h = a->session;
    tinker_error err;
    a->use_jwt = h->server.pjwt_auth_enabled;
    if (!a->use_jwt) {
        bool ok = auth_key_valid(h->cfg, h->cfg->api_key);
        if (!ok)
            set_missing_key(h->cfg, &err);
        ready(arg, ok ? NULL : &err);
        return;
    }
    a->ready = ready;
    a->ready_arg = arg;
    start_exchange(a, &first_spec);
}

/* Another process has exchanged it: this one begins with the renewal. */
void auth_seed(struct auth *a, const char *jwt)
{
    /* A handle holds no token: the first request that needs one asks for it. */
    a->use_jwt = jwt || a->session->server.pjwt_auth_enabled;
    if (!jwt)
        return;
    free(a->jwt);
    a->jwt = strdup(jwt);
    log_secret(jwt);
    a->timer.fire = on_refresh_timer;
    schedule_refresh(a, 0);
}

const char *auth_jwt(const struct auth *a)
{
    return a->use_jwt ? a->jwt : NULL;
}

struct auth *auth_new(struct session *h, tinker_error *err)
{
    struct auth *a = calloc(1, sizeof(*a));
    if (!a) {
        err_nomem(err, "credentials");
        return NULL;
    }
    a->session = h;
    a->timer.fire = on_refresh_timer;
    return a;
}

void auth_stop(struct auth *a)
{
    a->stopped = true;
    call_cancel(&a->call);
    loop_disarm(a->session->rt->loop, &a->timer);
}

void auth_free(struct auth *a)
{
    if (!a)
        return;
    call_clear(&a->call);
    free(a->jwt);
    free(a);
}
