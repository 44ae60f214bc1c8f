/* rate_limits.c - see limits.h.  The registry belongs to the loop thread. */
#include "client/sampling/rate_limits.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>
#include <unistd.h>

enum { DISPATCH_MAX = 400, THROTTLED_MAX = 10, LARGE_PROMPT = 131072 };
static const int64_t second_ns = 1000000000;

static struct limits *shared;
static pid_t shared_by; /* the process they belong to */

char *limits_scope(const char *base_url)
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

static char *key_of(const char *base_url, const char *api_key)
{
    char *scope = limits_scope(base_url);
    size_t n = scope ? strlen(scope) + strlen(api_key) + 2 : 0;
    char *key = scope ? malloc(n) : NULL;
    if (key)
        snprintf(key, n, "%s %s", scope, api_key);
    free(scope);
    return key;
}

static struct limits *limits_new(char *key, int64_t bytes)
{
    struct limits *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->key = key;
    l->refs = 1;
    budget_init_permits(&l->dispatch, DISPATCH_MAX);
    budget_init_permits(&l->throttle, THROTTLED_MAX);
    budget_init_bytes(&l->bytes, bytes);
    return l;
}

struct limits *limits_ref(const char *base_url, const char *api_key, bool isolated, int64_t bytes)
{
    if (isolated)
        return limits_new(NULL, bytes);
    if (shared_by != getpid()) /* in a fork nobody gives back what requests of the parent hold */
        shared = NULL;
    shared_by = getpid();
    char *key = key_of(base_url, api_key ? api_key : "");
    if (!key)
        return NULL;
    for (struct limits *l = shared; l; l = l->next)
        if (strcmp(l->key, key) == 0) {
            free(key);
            l->refs++;
            return l;
        }
    struct limits *l = limits_new(key, bytes);
    if (!l) {
        free(key);
        return NULL;
    }
    l->next = shared;
    shared = l;
    return l;
}

void limits_unref(struct limits *l)
{
    if (!l || --l->refs > 0)
        return;
    for (struct limits **at = &shared; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    free(l->key);
    free(l);
}

bool limits_recent(const struct limits *l, int64_t now_ns)
{
    return l->backoff_until_ns && now_ns - l->backoff_until_ns < 10 * second_ns;
}

void limits_pause(struct limits *l, int64_t now_ns, int64_t prompt_bytes)
{
    l->backoff_until_ns = now_ns + (prompt_bytes <= LARGE_PROMPT ? 1 : 5) * second_ns;
}
