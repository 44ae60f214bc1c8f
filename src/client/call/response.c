/* response.c - see answer.h.
 *
 * Answers for a callback travel to the courier as messages; a tap counts those on their way,
 * and knows whether the callback may still be called. */
#include "client/call/response.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <tinker/extra/http.h>
#include "client/call/call.h"
#include "client/call/call_options.h"

enum { WAITING_MAX = 1024 };

struct answer {
    atomic_int refs;
    tinker_response pub;
    struct arena arena;
};

struct tap {
    atomic_int refs; /* the future's, and one per message */
    tinker_response_callback *call;
    void *state;
    pid_t pid;        /* in a fork nobody calls */
    struct tap *also; /* a reference: closed with it; NULL: none */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    pthread_t caller; /* lock; while running */
    int waiting;      /* lock; messages on their way */
    bool running;     /* lock */
    bool closed;      /* lock */
};

struct message {
    struct tap *tap;
    struct answer *answer;
    const atomic_bool *muted; /* the service's: the session may be gone, and its configuration */
};

/* ---- an answer ------------------------------------------------------------------------------ */

static struct answer *answer_new(const struct answer_note *note)
{
    struct answer *a = calloc(1, sizeof(*a));
    if (!a)
        return NULL;
    atomic_init(&a->refs, 1);
    arena_init(&a->arena, SIZE_MAX);
    a->pub = (tinker_response){ .operation = note->operation,
                                .method = note->method,
                                .status = note->status,
                                .retries = note->retries,
                                .elapsed_ms = note->elapsed_ns / 1000000 };
    return a;
}

void answer_unref(struct answer *a)
{
    if (!a || atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1)
        return;
    arena_clear(&a->arena);
    free(a);
}

/* One "Name: value" line. */
static void add_header(struct answer *a, tinker_named_string *v, const char *line, size_t n)
{
    const char *colon = memchr(line, ':', n);
    if (!colon)
        return;
    size_t name = (size_t)(colon - line), at = name + 1;
    while (at < n && (line[at] == ' ' || line[at] == '\t'))
        at++;
    char *copy = arena_strndup(&a->arena, line, name);
    for (char *c = copy; c && *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    v[a->pub.n_headers++] =
        (tinker_named_string){ copy, arena_strndup(&a->arena, line + at, n - at) };
}

static void copy_headers(struct answer *a, const struct buf *head)
{
    const char *p = head->data, *end = p + head->len;
    size_t lines = 0;
    for (const char *c = p; c < end; c++)
        lines += *c == '\n';
    tinker_named_string *v = arena_array(&a->arena, lines, sizeof(*v));
    a->pub.headers = v;
    while (v && p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = eol ? (size_t)(eol - p) : (size_t)(end - p);
        if (eol)
            add_header(a, v, p, n);
        p += n + 1;
    }
}

static struct answer *answer_of(const struct call *c, const struct answer_note *note)
{
    const struct http_response *resp = &c->http.resp;
    struct answer *a = answer_new(note);
    char *url = a ? call_url(c) : NULL;
    if (!url) {
        answer_unref(a);
        return NULL;
    }
    a->pub.url = arena_strdup(&a->arena, url);
    free(url);
    if (resp->failure == HTTP_OK) {
        if (resp->head.len)
            copy_headers(a, &resp->head);
        a->pub.body =
            arena_strndup(&a->arena, resp->body.len ? resp->body.data : "", resp->body.len);
        a->pub.n_body = resp->body.len;
    }
    if (a->arena.failed) {
        answer_unref(a);
        return NULL;
    }
    return a;
}

/* ---- to the callback ------------------------------------------------------------------------ */

struct tap *tap_new(const struct prefs *p)
{
    struct tap *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    atomic_init(&t->refs, 1);
    t->call = p ? p->on_response : NULL;
    t->state = p ? p->on_response_state : NULL;
    t->pid = getpid();
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->cond, NULL);
    return t;
}

void tap_ref(struct tap *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
}

void tap_unref(struct tap *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    tap_unref(t->also);
    pthread_cond_destroy(&t->cond);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void tap_chain(struct tap *t, struct tap *other)
{
    t->also = other;
    if (other)
        tap_ref(other);
}

void tap_close(struct tap *t)
{
    if (!t || t->pid != getpid())
        return;
    pthread_mutex_lock(&t->lock);
    t->closed = true;
    while (t->running && !pthread_equal(t->caller, pthread_self()))
        pthread_cond_wait(&t->cond, &t->lock);
    pthread_mutex_unlock(&t->lock);
    tap_close(t->also);
}

bool tap_enter(struct tap *t)
{
    pthread_mutex_lock(&t->lock);
    t->running = !t->closed;
    t->caller = pthread_self();
    bool may = t->running;
    pthread_mutex_unlock(&t->lock);
    return may;
}

void tap_leave(struct tap *t)
{
    pthread_mutex_lock(&t->lock);
    t->running = false;
    pthread_cond_broadcast(&t->cond);
    pthread_mutex_unlock(&t->lock);
}

static void deliver(void *arg)
{
    struct message *m = arg;
    struct tap *t = m->tap;
    pthread_mutex_lock(&t->lock);
    t->waiting--;
    pthread_mutex_unlock(&t->lock);
    if (!atomic_load(m->muted) && tap_enter(t)) {
        t->call(t->state, &m->answer->pub);
        tap_leave(t);
    }
    answer_unref(m->answer);
    tap_unref(t);
    free(m);
}

static void send(struct tap *t, struct answer *a, const struct session *h)
{
    pthread_mutex_lock(&t->lock);
    bool room = !t->closed && t->waiting < WAITING_MAX;
    t->waiting += room;
    pthread_mutex_unlock(&t->lock);
    struct message *m = room ? malloc(sizeof(*m)) : NULL;
    if (m) {
        *m = (struct message){ t, a, h->cfg->muted_by };
        tap_ref(t);
        atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
        if (runtime_deliver(h->rt, deliver, m))
            return;
        answer_unref(a);
        tap_unref(t);
        free(m);
    }
    if (room) {
        pthread_mutex_lock(&t->lock);
        t->waiting--;
        pthread_mutex_unlock(&t->lock);
    }
}

/* ---- from the call -------------------------------------------------------------------------- */

static void replace(struct tinker_future *f, struct answer *a)
{
    answer_unref(f->answer);
    f->answer = a;
}

static struct answer_note note_of(const struct call *c)
{
    return (struct answer_note){ c->spec->name, c->spec->method, c->http.resp.status, c->sent - 1,
                                 loop_now_ns(c->session->rt->loop) - c->sent_ns };
}

struct answer *answer_begun(const struct call *c)
{
    const struct answer_note note = note_of(c);
    return answer_of(c, &note);
}

const tinker_response *answer_response(const struct answer *a)
{
    return &a->pub;
}

void answer_note(struct call *c)
{
    struct tinker_future *f = c->op->future;
    if (!f)
        return;
    f->note = note_of(c);
    const struct prefs *p = c->op->prefs;
    if (!p || !(p->keep || p->on_response))
        return;
    struct answer *a = answer_of(c, &f->note);
    if (a && p->on_response)
        send(f->tap, a, c->session);
    if (p->keep)
        replace(f, a); /* an older one would not be the last */
    else
        answer_unref(a);
}

bool answer_keep(struct op *op, const struct call *c)
{
    struct tinker_future *f = op->future;
    if (!f || !f->note.operation || f->answer)
        return true;
    f->answer = answer_of(c, &f->note);
    return f->answer != NULL;
}

/* ---- public --------------------------------------------------------------------------------- */

const tinker_response *tinker_future_response(const tinker_future *future)
{
    tinker_future *f = (tinker_future *)future;
    if (!tinker_future_done(f) || !f->note.operation)
        return NULL;
    pthread_mutex_lock(&future_lock);
    if (!f->answer)
        f->answer = answer_new(&f->note);
    const struct answer *a = f->answer;
    pthread_mutex_unlock(&future_lock);
    return a ? &a->pub : NULL;
}

const char *tinker_response_header(const tinker_response *r, const char *name)
{
    for (size_t i = 0; r && i < r->n_headers; i++)
        if (strcasecmp(r->headers[i].name, name) == 0)
            return r->headers[i].value;
    return NULL;
}
