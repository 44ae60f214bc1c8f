/* response.c - see response.h.
 *
 * Responses for a callback travel to the callback thread as messages; a callback guard counts those
 * on their way, and knows whether the callback may still be called. */
#include "client/call/response.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tinker/extra/http.h>
#include "client/call/call.h"
#include "client/call/call_options.h"

enum { WAITING_MAX = 1024 };

struct response {
    atomic_int refs;
    tinker_response pub;
    struct arena arena;
};

struct message {
    struct callback_guard *guard; /* a reference */
    tinker_response_fn *call;
    void *state;
    struct response *response;
    const atomic_bool *muted; /* the service's: the session may be gone, and its configuration */
};

/* ---- a response ---------------------------------------------------------------------------- */

/* The note is what every future keeps; headers and body only come with response_from_call(). */
static struct response *response_new(const struct response_note *note)
{
    struct response *a = calloc(1, sizeof(*a));
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

void response_unref(struct response *a)
{
    if (!a || atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1)
        return;
    arena_clear(&a->arena);
    free(a);
}

/* Two passes: count the lines, then fill exactly one array. */
static void copy_response_headers(struct response *a, const struct buf *head)
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
        const char *colon = eol ? memchr(p, ':', n) : NULL;
        if (colon) {
            size_t name = (size_t)(colon - p), at = name + 1;
            while (at < n && (p[at] == ' ' || p[at] == '\t'))
                at++;
            char *copy = arena_strndup(&a->arena, p, name);
            /* In lower case, because HTTP/2 sends them so and programs compare. */
            for (char *c = copy; c && *c; c++)
                if (*c >= 'A' && *c <= 'Z')
                    *c = (char)(*c - 'A' + 'a');
            v[a->pub.n_headers++] =
                (tinker_named_string){ .name = copy,
                                       .value = arena_strndup(&a->arena, p + at, n - at) };
        }
        p += n + 1;
    }
}

static struct response *response_from_call(const struct call *c, const struct response_note *note)
{
    const struct http_response *resp = &c->http.resp;
    struct response *a = response_new(note);
    char *url = a ? call_url(c) : NULL;
    /* The URL is built again, because free_attempt() may have freed that of the attempt. */
    if (!url) {
        response_unref(a);
        return NULL;
    }
    a->pub.url = arena_strdup(&a->arena, url);
    free(url);
    if (resp->failure == HTTP_OK) {
        if (resp->head.len)
            copy_response_headers(a, &resp->head);
        a->pub.body =
            arena_strndup(&a->arena, resp->body.len ? resp->body.data : "", resp->body.len);
        a->pub.n_body = resp->body.len;
    }
    if (a->arena.failed) {
        response_unref(a);
        return NULL;
    }
    return a;
}

/* ---- to the callback ------------------------------------------------------------------------ */

/* On the callback thread. */
static void deliver_response(void *arg)
{
    struct message *m = arg;
    callback_guard_arrived(m->guard);
    if (!atomic_load(m->muted) && callback_guard_enter(m->guard)) {
        m->call(&m->response->pub, m->state);
        callback_guard_leave(m->guard);
    }
    response_unref(m->response);
    callback_guard_unref(m->guard);
    free(m);
}

/* A slow callback loses responses, but never slows the network down or fills the memory. */
static void post_response(struct callback_guard *g, const struct call_options *p,
                          struct response *r, const struct session *h)
{
    if (!callback_guard_admit(g, WAITING_MAX))
        return;
    struct message *m = malloc(sizeof(*m));
    if (m) {
        *m = (struct message){ .guard = g,
                               .call = p->on_response,
                               .state = p->on_response_state,
                               .response = r,
                               .muted = h->cfg->muted_by };
        callback_guard_ref(g);
        atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
        if (runtime_post_callback(h->rt, deliver_response, m))
            return;
        response_unref(r);
        callback_guard_unref(g);
        free(m);
    }
    callback_guard_arrived(g);
}

/* ---- from the call -------------------------------------------------------------------------- */

/* retries: attempts before this one. */
static struct response_note make_note(const struct call *c)
{
    return (struct response_note){ c->spec->name, c->spec->method, c->http.resp.status, c->sent - 1,
                                   loop_now_ns(c->session->rt->loop) - c->sent_ns };
}

struct response *response_begin(const struct call *c)
{
    const struct response_note note = make_note(c);
    return response_from_call(c, &note);
}

const tinker_response *response_public(const struct response *a)
{
    return &a->pub;
}

/* After each attempt: the last one stays. */
void response_record(struct call *c)
{
    struct tinker_future *f = c->op->future;
    if (!f)
        return;
    f->note = make_note(c);
    const struct call_options *p = c->op->options;
    if (!p || !(p->keep || p->on_response))
        return;
    struct response *a = response_from_call(c, &f->note);
    if (a && p->on_response)
        post_response(f->guard, p, a, c->session);
    if (p->keep) {
        /* Loop thread, before the future is done: readers wait for that. */
        response_unref(f->response);
        f->response = a;
    } else
        response_unref(a);
}

bool response_keep(struct operation *op, const struct call *c)
{
    struct tinker_future *f = op->future;
    if (!f || !f->note.operation || f->response)
        return true;
    f->response = response_from_call(c, &f->note);
    return f->response != NULL;
}

/* ---- public --------------------------------------------------------------------------------- */

const tinker_response *tinker_future_response(const tinker_future *future)
{
    tinker_future *f = (tinker_future *)future;
    /* Complete: nobody writes to it any more except under the lock below. */
    if (!tinker_future_done(f) || !f->note.operation)
        return NULL;
    pthread_mutex_lock(&future_lock);
    if (!f->response)
        f->response = response_new(&f->note);
    const struct response *a = f->response;
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
