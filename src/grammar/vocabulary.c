/* vocabulary.c - which tokens may follow in a state: see grammar.h.
 *
 * Tokens are sorted by their bytes.  The walk over them keeps the state after every byte of the
 * current token: the next one begins where the two differ, and where a byte leads nowhere all
 * tokens with that beginning are passed over.  Masks are kept, since samples come back to the same
 * few states. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "grammar/automaton.h"

enum { TOKEN_MAX = 512, CACHE_BYTES = 32 << 20 };

struct token {
    const char *bytes;
    uint32_t n;
    uint32_t shared; /* leading bytes that it has in common with the one before */
    int32_t id;
};

struct vocabulary {
    struct token *tokens; /* sorted */
    size_t n, n_all;
    int32_t *place; /* (n_all) of an id in tokens; -1: it never comes */
};

struct mask_cache {
    uint64_t **masks; /* by state; NULL: not there */
    size_t n, bytes;
};

void mask_cache_free(struct mask_cache *m)
{
    for (size_t i = 0; m && i < m->n; i++)
        free(m->masks[i]);
    if (m)
        free(m->masks);
    free(m);
}

/* In byte order, so that tokens of a common beginning are neighbors and share the walk over it; the id
 * makes the order, and with it every mask, the same on every machine. */
static int compare_tokens(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order)
        return order;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

struct vocabulary *vocabulary_new(size_t n_tokens, vocabulary_bytes_fn *bytes, const void *state,
                                  tinker_error *err)
{
    struct vocabulary *v = calloc(1, sizeof *v);
    if (v) {
        v->tokens = malloc((n_tokens + 1) * sizeof *v->tokens);
        v->place = malloc((n_tokens + 1) * sizeof *v->place);
    }
    if (!v || !v->tokens || !v->place) {
        vocabulary_free(v);
        err_nomem(err, "a vocabulary");
        return NULL;
    }
    v->n_all = n_tokens;
    for (size_t i = 0; i < n_tokens; i++) {
        size_t n = 0;
        const char *text = bytes(state, (int32_t)i, &n);
        v->place[i] = -1;
        if (text && n > 0 && n <= TOKEN_MAX)
            v->tokens[v->n++] = (struct token){ text, (uint32_t)n, 0, (int32_t)i };
    }
    if (v->n)
        qsort(v->tokens, v->n, sizeof *v->tokens, compare_tokens);
    for (size_t i = 0; i < v->n; i++) {
        struct token *t = &v->tokens[i];
        v->place[t->id] = (int32_t)i;
        while (i > 0 && t->shared < t->n && t->shared < t[-1].n &&
               t->bytes[t->shared] == t[-1].bytes[t->shared])
            t->shared++;
    }
    return v;
}

void vocabulary_free(struct vocabulary *v)
{
    if (!v)
        return;
    free(v->tokens);
    free(v->place);
    free(v);
}

size_t vocabulary_words(const struct vocabulary *v)
{
    return (v->n_all + 63) / 64;
}

/* The mask itself, without the cache. */
static bool walk_tokens(struct grammar *g, const struct vocabulary *v, int32_t state,
                        uint64_t *mask)
{
    int32_t path[TOKEN_MAX + 1]; /* the state after so many bytes */
    size_t known = 0;            /* how many of path hold for the token before */
    path[0] = state;
    memset(mask, 0, vocabulary_words(v) * sizeof *mask);
    for (size_t i = 0; i < v->n; i++) {
        const struct token *t = &v->tokens[i];
        /* A token that shares more than what could be read of the one before cannot be read
         * either. */
        if (t->shared > known && i > 0)
            continue;
        size_t at = t->shared;
        for (; at < t->n; at++) {
            int32_t to = grammar_next(g, path[at], (unsigned char)t->bytes[at]);
            if (to == GRAMMAR_NO_MEMORY)
                return false;
            if (to == GRAMMAR_DEAD)
                break;
            path[at + 1] = to;
        }
        known = at;
        if (at == t->n)
            mask[(size_t)t->id / 64] |= (uint64_t)1 << t->id % 64;
    }
    return true;
}

bool grammar_mask(struct grammar *g, const struct vocabulary *v, int32_t state, uint64_t *mask)
{
    struct mask_cache **cache = grammar_masks(g), *m = *cache;
    size_t size = vocabulary_words(v) * sizeof *mask, at = (size_t)state;
    if (m && at < m->n && m->masks[at]) {
        memcpy(mask, m->masks[at], size);
        return true;
    }
    if (!walk_tokens(g, v, state, mask))
        return false;
    /* Keep it if there is room; without memory the next one is computed again. */
    if (!m)
        m = *cache = calloc(1, sizeof *m);
    if (!m || m->bytes + size > CACHE_BYTES)
        return true;
    if (at >= m->n) {
        size_t n = at * 2 + 64;
        uint64_t **more = realloc(m->masks, n * sizeof *more);
        if (!more)
            return true;
        for (size_t i = m->n; i < n; i++)
            more[i] = NULL;
        m->masks = more;
        m->n = n;
    }
    m->masks[at] = malloc(size ? size : 1);
    if (m->masks[at]) {
        memcpy(m->masks[at], mask, size);
        m->bytes += size;
    }
    return true;
}

int32_t grammar_next_token(struct grammar *g, const struct vocabulary *v, int32_t state,
                           int32_t token)
{
    if (token < 0 || (size_t)token >= v->n_all || v->place[token] < 0)
        return GRAMMAR_DEAD;
    const struct token *t = &v->tokens[v->place[token]];
    for (uint32_t i = 0; i < t->n && state >= 0; i++)
        state = grammar_next(g, state, (unsigned char)t->bytes[i]);
    return state;
}
