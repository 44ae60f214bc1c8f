/* tok_ctx.c - the working memory of one encode or decode call.
 *
 * Contexts are kept for reuse: their buffers have grown to size and their piece cache is warm.
 * There are never more than calls in progress at once. */
#include <stdlib.h>
#include <string.h>
#include "tokenizer/tokenizer.h"

/* The last one that was given back, as its memory is most likely still in the processor's cache. */
struct tok_ctx *tok_ctx_take(const tinker_tokenizer *t)
{
    tinker_tokenizer *shared = (tinker_tokenizer *)(uintptr_t)t; /* the pool has its own lock */
    pthread_mutex_lock(&shared->lock);
    struct tok_ctx *c = shared->idle;
    if (c)
        shared->idle = c->next;
    pthread_mutex_unlock(&shared->lock);
    if (c)
        return c;
    c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    for (int i = 0; i < 2; i++) {
        buf_init(&c->norm[i].text, SIZE_MAX);
        buf_init(&c->pre[i].text, SIZE_MAX);
    }
    buf_init(&c->repaired, SIZE_MAX);
    return c;
}

void tok_ctx_give(const tinker_tokenizer *t, struct tok_ctx *c)
{
    tinker_tokenizer *shared = (tinker_tokenizer *)(uintptr_t)t;
    pthread_mutex_lock(&shared->lock);
    c->next = shared->idle;
    shared->idle = c;
    pthread_mutex_unlock(&shared->lock);
}

void tok_ctx_free(struct tok_ctx *c)
{
    bpe_ctx_clear(&c->bpe);
    split_regex_ctx_clear(&c->regex);
    for (int i = 0; i < 2; i++) {
        buf_clear(&c->norm[i].text);
        buf_clear(&c->pre[i].text);
        tinker_spans_clear(&c->norm[i].map);
        tinker_spans_clear(&c->pre[i].map);
        free(c->pieces[i].at);
    }
    buf_clear(&c->repaired);
    tinker_spans_clear(&c->identity);
    free(c);
}

/* Empty, with the memory that it has; from now on at most `most` bytes. */
void tok_outbuf_reset(struct tok_outbuf *o, bool want_map, size_t most)
{
    buf_reset(&o->text);
    buf_limit(&o->text, most);
    o->map.n = 0;
    o->want_map = want_map;
}

/* Doubling, so that appending one by one takes linear time. */
bool tok_spans_reserve(tinker_spans *s, size_t extra)
{
    if (s->cap - s->n >= extra)
        return true;
    size_t cap = s->cap < 64 ? 64 : s->cap;
    while (cap - s->n < extra) {
        if (cap > SIZE_MAX / 32)
            return false;
        cap *= 2;
    }
    tinker_span *spans = realloc(s->spans, cap * sizeof(*spans));
    if (!spans)
        return false;
    s->spans = spans;
    s->cap = cap;
    return true;
}

/* Append s[0..n) with one origin for all of it. */
static void put_with_origin(struct tok_outbuf *o, const char *s, size_t n, tinker_span origin)
{
    buf_append(&o->text, s, n);
    if (!o->want_map || !buf_ok(&o->text))
        return;
    if (!tok_spans_reserve(&o->map, n)) {
        o->text.failed = true; /* one flag for both */
        return;
    }
    for (size_t i = 0; i < n; i++) /* one entry for each byte */
        o->map.spans[o->map.n++] = origin;
}

void tok_outbuf_put(struct tok_outbuf *o, const struct tok_text *in, size_t begin, size_t end,
                    const char *s, size_t n)
{
    tinker_span origin = { 0, 0 };
    if (o->want_map)
        origin = (tinker_span){ in->map[begin].begin, in->map[end - 1].end };
    put_with_origin(o, s, n, origin);
}

void tok_outbuf_insert(struct tok_outbuf *o, const struct tok_text *in, size_t at, const char *s,
                       size_t n)
{
    tinker_span origin = { 0, 0 };
    if (o->want_map && in->n > 0)
        /* before the first character: an empty span where that begins */
        origin = at > 0 ? in->map[at - 1] : (tinker_span){ in->map[0].begin, in->map[0].begin };
    put_with_origin(o, s, n, origin);
}

bool tok_outbuf_ok(const struct tok_outbuf *o)
{
    return buf_ok(&o->text);
}

bool tok_pieces_put(struct tok_pieces *p, size_t begin, size_t end)
{
    if (begin == end)
        return true;
    if (p->n == p->cap) { /* memory stays with the context */
        size_t cap = p->cap ? p->cap * 2 : 64;
        struct tok_piece *at = realloc(p->at, cap * sizeof(*at));
        if (!at)
            return false;
        p->at = at;
        p->cap = cap;
    }
    p->at[p->n++] = (struct tok_piece){ begin, end };
    return true;
}
