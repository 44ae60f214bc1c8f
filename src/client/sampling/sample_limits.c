/* sample_limits.c - see sample_limits.h.
 *
 * The list of shared limits belongs to the loop thread, of which a process has one.  A request
 * takes its permits in one fixed order and gives all of them back together, so two requests
 * never wait for each other. */
#include "client/sampling/sample_limits.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>
#include <unistd.h>
#include "base/array.h"

enum {
    DISPATCH_MAX = 400,    /* requests being submitted */
    THROTTLED_MAX = 10,    /* the same, shortly after a pause */
    LARGE_PROMPT = 131072, /* bytes: a pause after one of these is longer */
    PAUSE_CHECK_MS = 1000, /* how often a request looks whether the pause is over */
    RECENT_COST = 20       /* a prompt counts this many times its size after a pause */
};
static const int64_t second_ns = 1000000000;

/* All limits that are shared, of the process that made them. */
static struct sample_limits *shared;
static pid_t shared_by; /* the process they belong to */

/* Scheme and host in lower case, without path and default port: two spellings of one service
 * share their limits. */
char *sample_limits_scope(const char *base_url)
{
    const char *host = strstr(base_url, "://");
    host = host ? host + 3 : base_url;
    size_t n = (size_t)(host - base_url) + strcspn(host, "/?#");
    char *scope = strndup(base_url, n);
    if (!scope)
        return NULL;
    for (char *p = scope; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    const char *port = strncmp(scope, "https:", 6) == 0 ? ":443" : ":80";
    size_t len = strlen(scope), np = strlen(port);
    if (len > np && strcmp(scope + len - np, port) == 0)
        scope[len - np] = '\0';
    return scope;
}

static struct sample_limits *sample_limits_new(char *key, int64_t bytes)
{
    struct sample_limits *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->key = key;
    l->refs = 1;
    budget_init_permits(&l->dispatch, DISPATCH_MAX);
    budget_init_permits(&l->throttle, THROTTLED_MAX);
    budget_init_bytes(&l->bytes, bytes);
    return l;
}

/* Find or make. After fork() the child starts with an empty list, because nobody would give back
 * what requests of the parent hold. */
struct sample_limits *sample_limits_ref(const char *base_url, const char *api_key, bool isolated,
                                        int64_t bytes)
{
    if (isolated)
        return sample_limits_new(NULL, bytes);
    if (shared_by != getpid()) /* in a fork nobody gives back what requests of the parent hold */
        shared = NULL;
    shared_by = getpid();
    /* Scope and credential: the service counts per account. */
    char *scope = sample_limits_scope(base_url);
    const char *credential = api_key ? api_key : "";
    size_t n = scope ? strlen(scope) + strlen(credential) + 2 : 0;
    char *key = scope ? malloc(n) : NULL;
    if (key)
        snprintf(key, n, "%s %s", scope, credential);
    free(scope);
    if (!key)
        return NULL;
    for (struct sample_limits *l = shared; l; l = l->next)
        if (strcmp(l->key, key) == 0) {
            free(key);
            l->refs++;
            return l;
        }
    struct sample_limits *l = sample_limits_new(key, bytes);
    if (!l) {
        free(key);
        return NULL;
    }
    l->next = shared;
    shared = l;
    return l;
}

void sample_limits_unref(struct sample_limits *l)
{
    if (!l || --l->refs > 0)
        return;
    for (struct sample_limits **at = &shared; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    free(l->key);
    free(l);
}

bool sample_limits_recent(const struct sample_limits *l, int64_t now_ns)
{
    return l->backoff_until_ns && now_ns - l->backoff_until_ns < 10 * second_ns;
}

void sample_limits_pause(struct sample_limits *l, int64_t now_ns, int64_t prompt_bytes)
{
    l->backoff_until_ns = now_ns + (prompt_bytes <= LARGE_PROMPT ? 1 : 5) * second_ns;
}

/* ---- the permits of one request --------------------------------------------------------------- */

static void on_pause_check(struct timer *t)
{
    sample_permits_wait_pause(container_of(t, struct sample_permits, timer));
}

/* A pause may be prolonged while it lasts, so it is looked at again every PAUSE_CHECK_MS instead
 * of waited for once. */
void sample_permits_wait_pause(struct sample_permits *p)
{
    struct loop *l = p->session->rt->loop;
    if (loop_now_ns(l) >= p->session->limits->backoff_until_ns) {
        p->go(p);
        return;
    }
    p->timer.fire = on_pause_check;
    loop_arm(l, &p->timer, PAUSE_CHECK_MS);
}

static void on_bytes_granted(struct budget_wait *w)
{
    sample_permits_wait_pause(container_of(w, struct sample_permits, budget));
}

/* Bytes of prompts being submitted. Shortly after a pause each counts RECENT_COST times, so that
 * large prompts come back slowly. */
static void take_budget(struct sample_permits *p)
{
    bool recent = p->throttle.budget != NULL;
    p->budget.granted = on_bytes_granted;
    if (budget_take(&p->session->limits->bytes, &p->budget,
                    recent ? p->bytes * RECENT_COST : p->bytes))
        sample_permits_wait_pause(p);
}

static void on_throttle_granted(struct budget_wait *w)
{
    take_budget(container_of(w, struct sample_permits, throttle));
}

/* Shortly after a pause only a few requests at a time try whether the service takes more. */
static void take_throttle(struct sample_permits *p)
{
    struct sample_limits *l = p->session->limits;
    p->throttle.granted = on_throttle_granted;
    if (!sample_limits_recent(l, loop_now_ns(p->session->rt->loop)) ||
        budget_take(&l->throttle, &p->throttle, 1))
        take_budget(p);
}

static void on_dispatch_granted(struct budget_wait *w)
{
    take_throttle(container_of(w, struct sample_permits, permit));
}

void sample_permits_take(struct sample_permits *p)
{
    p->permit.granted = on_dispatch_granted;
    if (budget_take(&p->session->limits->dispatch, &p->permit, 1))
        take_throttle(p);
}

void sample_permits_pause(struct sample_permits *p)
{
    sample_limits_pause(p->session->limits, loop_now_ns(p->session->rt->loop), p->bytes);
}

/* In the reverse order of taking; what was not taken is left alone. */
void sample_permits_give(struct sample_permits *p)
{
    if (!p->session)
        return;
    loop_disarm(p->session->rt->loop, &p->timer);
    budget_give(&p->budget);
    budget_give(&p->throttle);
    budget_give(&p->permit);
}
