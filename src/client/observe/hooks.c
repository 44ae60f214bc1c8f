/* hooks.c - see hooks.h.
 *
 * The lock guards the list of hooks and is never held over a call of one.  Delivery finds
 * the next hook by its serial number, so hooks may come and go between two calls. */
#include "client/observe/hooks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tinker/extra/events.h>
#include "base/arena.h"
#include "base/err.h"
#include "base/number.h"
#include "client/session/config.h"
#include "client/observe/metrics.h"
#include "client/io/runtime.h"
#include "client/session/service.h"

/* WAITING_MAX bounds what a slow hook can pile up; beyond it events are dropped and counted. */
enum { WAITING_MAX = 10000, NUMBERS_MAX = 8, TEXTS_MAX = 12, TEXT_LEN_MAX = 2048 };

struct hook {
    struct hook *next;
    uint64_t serial; /* rising along the list */
    tinker_hook_fn *call;
    void *state;
    char *prefix;
    char id[];
};

/* One event on its way to the callback thread.  It owns all its texts, because the call or
 * session that it tells about may be gone when a hook reads it. */
struct event {
    struct hooks *hooks;
    struct arena arena;
    tinker_event pub;
    tinker_named_number numbers[NUMBERS_MAX];
    tinker_named_string *texts; /* TEXTS_MAX and the user's */
};

static void hook_free(struct hook *k)
{
    if (k)
        free(k->prefix);
    free(k);
}

/* ---- delivery, on the callback thread -------------------------------------------------------------- */

/* A copy of what delivery needs of a hook, so that the lock need not be held while it is
 * called. */
struct found {
    uint64_t serial; /* 0: none */
    tinker_hook_fn *call;
    void *state;
    char id[64];
};

/* Called anew after each hook: serial numbers rise along the list, so `after` finds the
 * place again even if hooks were attached or detached in between. */
static struct found next_hook(struct hooks *h, uint64_t after, const char *name)
{
    struct found f = { 0 };
    /* The service is being freed, and promises that no callback comes any more. */
    if (atomic_load(&h->cfg->muted))
        return f;
    pthread_mutex_lock(&h->lock);
    for (const struct hook *k = h->first; k && !f.serial; k = k->next)
        if (k->serial > after && strncmp(name, k->prefix, strlen(k->prefix)) == 0) {
            f = (struct found){ .serial = k->serial, .call = k->call, .state = k->state };
            snprintf(f.id, sizeof(f.id), "%s", k->id);
        }
    pthread_mutex_unlock(&h->lock);
    return f;
}

/* Take the hook with this id or serial out of the list; NULL: it is not there. */
static struct hook *remove_hook(struct hooks *h, const char *id, uint64_t serial)
{
    struct hook *k = NULL;
    pthread_mutex_lock(&h->lock);
    for (struct hook **at = &h->first; *at; at = &(*at)->next)
        if (id ? strcmp((*at)->id, id) == 0 : (*at)->serial == serial) {
            k = *at;
            *at = k->next;
            atomic_fetch_sub(&h->n, 1);
            break;
        }
    pthread_mutex_unlock(&h->lock);
    return k;
}

/* The session's own log would post to this very thread; here the user's function is called
 * directly. */
static void log_on_callback_thread(void *state, enum log_level level, const char *line)
{
    const struct config *cfg = state;
    if (atomic_load(&cfg->muted))
        return;
    if (cfg->log_callback)
        cfg->log_callback((tinker_log_level)level, line, cfg->log_state);
    else
        log_stderr(NULL, level, line);
}

static void event_free(struct event *e)
{
    arena_clear(&e->arena);
    free(e);
}

static void deliver_event(void *arg)
{
    struct event *e = arg;
    struct hooks *h = e->hooks;
    /* Its place in the queue is free as soon as delivery begins. */
    atomic_fetch_sub(&h->waiting, 1);
    for (struct found f = next_hook(h, 0, e->pub.name); f.serial;
         f = next_hook(h, f.serial, e->pub.name))
        /* A result other than 0 means that the hook failed: it is detached.  Other hooks
         * still get the event. */
        if (f.call(&e->pub, f.state) != 0) {
            /* The level is that of the configuration; only the destination differs. */
            struct log log = { log_on_callback_thread, (void *)h->cfg, h->cfg->log.level };
            hook_free(remove_hook(h, NULL, f.serial));
            log_line(&log, LOG_WARNING, "hook %s failed at %s and is detached", f.id, e->pub.name);
        }
    event_free(e);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Any thread.  NULL: no hook wants it, or no memory; all event_*() functions take NULL and do
 * nothing, so callers need no test. */
struct event *event_new(struct hooks *h, const char *name)
{
    /* Two steps, because most programs attach no hook: the relaxed load costs nothing on the hot
     * path, and the lock is taken only if a hook is attached. */
    if (!(h && atomic_load_explicit(&h->n, memory_order_relaxed) > 0 &&
          next_hook(h, 0, name).serial))
        return NULL;
    struct event *e = calloc(1, sizeof(*e));
    if (!e)
        return NULL;
    e->hooks = h;
    e->pub.name = name;
    e->pub.measurements = e->numbers;
    arena_init(&e->arena, 1 << 20);
    /* Room for the library's texts and, behind them, the user's of the service. */
    e->texts = arena_array(&e->arena, TEXTS_MAX + h->cfg->n_metadata, sizeof(*e->texts));
    if (!e->texts) {
        event_free(e);
        return NULL;
    }
    e->pub.metadata = e->texts;
    return e;
}

/* Beyond NUMBERS_MAX numbers are ignored.  The key is a literal: it is not copied. */
void event_number(struct event *e, const char *key, double value)
{
    if (e && e->pub.n_measurements < NUMBERS_MAX)
        e->numbers[e->pub.n_measurements++] = (tinker_named_number){ key, value };
}

/* A NULL value leaves the key out.  The text is cut and redacted here, at the one place that
 * all texts pass. */
void event_text(struct event *e, const char *key, const char *value)
{
    if (!e || !value || e->pub.n_metadata == TEXTS_MAX)
        return;
    char text[TEXT_LEN_MAX];
    snprintf(text, sizeof(text), "%s", value);
    log_redact(text, sizeof(text));
    char *copy = arena_strdup(&e->arena, text);
    if (copy)
        e->texts[e->pub.n_metadata++] = (tinker_named_string){ key, copy };
}

/* Metadata of one call.  The array grows by n; the old one stays in the arena until the
 * event is freed. */
void event_own(struct event *e, const tinker_named_string *v, size_t n)
{
    if (!e || n == 0)
        return;
    size_t had = e->pub.n_metadata, room = TEXTS_MAX + n + e->hooks->cfg->n_metadata;
    tinker_named_string *texts = arena_array(&e->arena, room, sizeof(*texts));
    if (!texts)
        return;
    memcpy(texts, e->texts, had * sizeof(*texts));
    e->texts = texts;
    e->pub.metadata = texts;
    for (size_t i = 0; i < n; i++) {
        char *name = arena_strdup(&e->arena, v[i].name),
             *value = arena_strdup(&e->arena, v[i].value);
        if (name && value && !tinker_event_text(&e->pub, name))
            texts[e->pub.n_metadata++] = (tinker_named_string){ name, value };
    }
}

/* Takes e.  After a successful post the callback thread owns it. */
void event_send(struct event *e)
{
    if (!e)
        return;
    struct hooks *h = e->hooks;
    /* The service's metadata comes last: a key that the event or the call has set wins. */
    const struct config *cfg = h->cfg;
    for (size_t i = 0; i < cfg->n_metadata; i++)
        if (!tinker_event_text(&e->pub, cfg->metadata[i].name))
            e->texts[e->pub.n_metadata++] = cfg->metadata[i];
    if (atomic_fetch_add(&h->waiting, 1) < WAITING_MAX &&
        runtime_post_callback(h->rt, deliver_event, e))
        return;
    /* Take the place back that was reserved above, and count the loss. */
    atomic_fetch_sub(&h->waiting, 1);
    metric_add(h->cfg->metrics.events_dropped, 1);
    event_free(e);
}

/* ---- public --------------------------------------------------------------------------------- */

void hooks_init(struct hooks *h, struct runtime *rt, const struct config *cfg)
{
    memset(h, 0, sizeof(*h));
    h->rt = rt;
    h->cfg = cfg;
    h->next_serial = 1;
    pthread_mutex_init(&h->lock, NULL);
}

/* The owner calls this when no event can be delivered any more, so no lock is needed. */
void hooks_clear(struct hooks *h)
{
    for (struct hook *k; (k = h->first) != NULL;) {
        h->first = k->next;
        hook_free(k);
    }
    pthread_mutex_destroy(&h->lock);
}

tinker_status tinker_service_attach(tinker_service *s, const char *id, const char *prefix,
                                    tinker_hook_fn *hook, void *state, tinker_error *err)
{
    if (!id || !*id || !hook)
        return err_set(err, TINKER_EINVAL, "a hook needs an id and a function");
    size_t n = strlen(id) + 1;
    /* The id lives in the same block as the hook. */
    struct hook *k = calloc(1, sizeof(*k) + n);
    if (k)
        k->prefix = strdup(prefix ? prefix : "");
    if (!k || !k->prefix) {
        hook_free(k);
        return err_nomem(err, "hook");
    }
    k->call = hook;
    k->state = state;
    memcpy(k->id, id, n);
    /* At the end of the list, which keeps the serial numbers rising. */
    struct hooks *h = &s->base->hooks;
    struct hook **at = &h->first;
    pthread_mutex_lock(&h->lock);
    while (*at && strcmp((*at)->id, k->id) != 0)
        at = &(*at)->next;
    bool fresh = *at == NULL;
    if (fresh) {
        k->serial = h->next_serial++;
        *at = k;
        atomic_fetch_add(&h->n, 1);
    }
    pthread_mutex_unlock(&h->lock);
    if (fresh)
        return TINKER_OK;
    err_set(err, TINKER_EINVAL, "a hook with the id \"%s\" is attached", k->id);
    hook_free(k);
    return TINKER_EINVAL;
}

/* When it returns, no call of this hook is running or will come, unless a thread of the
 * library calls it: waiting for itself would never end. */
int tinker_service_detach(tinker_service *s, const char *id)
{
    struct hook *k = remove_hook(&s->base->hooks, id, 0);
    hook_free(k);
    if (s->base->rt->pid == getpid()) /* a fork has no callback thread */
        runtime_drain_callbacks(s->base->rt);
    return k != NULL;
}

const char *tinker_event_text(const tinker_event *event, const char *name)
{
    for (size_t i = 0; i < event->n_metadata; i++)
        if (strcmp(event->metadata[i].name, name) == 0)
            return event->metadata[i].value;
    return NULL;
}

void tinker_event_line(const tinker_event *event, char *out, size_t n)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, event->name);
    for (size_t i = 0; i < event->n_measurements; i++) {
        char text[NUMBER_SIZE];
        /* 15 digits, without the noise of the last bits. */
        number_text(event->measurements[i].value, 15, text);
        buf_printf(&b, " %s=%s", event->measurements[i].name, text);
    }
    for (size_t i = 0; i < event->n_metadata; i++)
        buf_printf(&b, " %s=%s", event->metadata[i].name, event->metadata[i].value);
    /* One event, one line, whatever the texts contain. */
    for (char *c = b.data; c && *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    snprintf(out, n, "%s", b.data ? b.data : event->name);
    buf_clear(&b);
}
