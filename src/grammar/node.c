/* node.c - expressions over bytes: literals, classes, sequences, choices, repetitions.
 *
 * They are a graph, not a tree: a schema may refer to itself.  Nodes live in the arena of their
 * grammar and never change once it is made. */
#include "grammar/node.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* Keeps the first failure; NULL, so that a caller may return it. */
struct node *node_fail(struct builder *b, const char *fmt, ...)
{
    char text[300];
    va_list args;
    if (b->failed)
        return NULL;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    b->failed = true;
    err_set(b->err, TINKER_EINVAL, "json_schema: %s", text);
    return NULL;
}

static struct node *node_new(struct builder *b, enum node_kind kind)
{
    if (b->failed)
        return NULL;
    /* A bound for schemas whose repetitions and ranges multiply: a few kilobytes of text could
     * otherwise take all memory. */
    if (b->count++ == NODES_MAX)
        return node_fail(b, "it is too large");
    struct node *x = arena_alloc(b->arena, sizeof *x);
    if (!x) {
        b->failed = true;
        err_nomem(b->err, "a grammar");
        return NULL;
    }
    memset(x, 0, sizeof *x);
    /* All nodes in one list, for node_check_productive(). */
    x->kind = kind;
    x->next = b->all;
    b->all = x;
    return x;
}

struct node *node_text(struct builder *b, const char *text, size_t n)
{
    struct node *x = node_new(b, NODE_TEXT);
    if (!x)
        return NULL;
    x->text = arena_memdup(b->arena, n ? text : "", n);
    x->n = (int32_t)n;
    /* The node itself may be larger than its text; a text of this size never reaches here from a
     * schema, which is bounded. */
    if (!x->text || n > INT32_MAX)
        return node_fail(b, "no memory for a text of %zu bytes", n);
    return x;
}

struct node *node_set(struct builder *b, const uint64_t set[4])
{
    struct node *x = node_new(b, NODE_CLASS);
    if (x)
        memcpy(x->set, set, sizeof x->set);
    return x;
}

/* Pairs of first and last byte; a single byte is written twice. */
struct node *node_class(struct builder *b, const char *ranges)
{
    uint64_t set[4] = { 0 };
    for (const unsigned char *p = (const unsigned char *)ranges; *p; p += 2)
        for (unsigned c = p[0]; c <= p[1]; c++)
            set[c / 64] |= (uint64_t)1 << c % 64;
    return node_set(b, set);
}

struct node *node_list(struct builder *b, enum node_kind kind, struct node *const *parts, size_t n)
{
    struct node *x = node_new(b, kind);
    if (!x)
        return NULL;
    /* One more than needed: node_resolve() fills it in for node_later(). */
    x->parts = arena_array(b->arena, n + 1, sizeof *x->parts);
    if (!x->parts)
        return node_fail(b, "no memory for %zu parts", n);
    if (n)
        memcpy(x->parts, parts, n * sizeof *parts);
    x->n = (int32_t)n;
    return x;
}

void node_add_part(struct builder *b, struct node_parts *parts, struct node *x)
{
    if (b->failed)
        return;
    if (parts->n == parts->cap) {
        size_t cap = parts->cap ? parts->cap * 2 : 8;
        struct node **v = arena_grow(b->arena, parts->v, parts->cap * sizeof *v, cap * sizeof *v);
        if (!v) {
            node_fail(b, "no memory for %zu parts", cap);
            return;
        }
        parts->v = v;
        parts->cap = cap;
    }
    parts->v[parts->n++] = x;
}

struct node *node_seq2(struct builder *b, struct node *x, struct node *y)
{
    struct node *const parts[] = { x, y };
    return node_list(b, NODE_SEQ, parts, 2);
}

struct node *node_seq3(struct builder *b, struct node *x, struct node *y, struct node *z)
{
    struct node *const parts[] = { x, y, z };
    return node_list(b, NODE_SEQ, parts, 3);
}

struct node *node_choice2(struct builder *b, struct node *x, struct node *y)
{
    struct node *const parts[] = { x, y };
    return node_list(b, NODE_CHOICE, parts, 2);
}

struct node *node_repeat(struct builder *b, struct node *part, int64_t min, int64_t max)
{
    enum { TIMES_MAX = 1000000 };
    struct node *x = node_list(b, NODE_REPEAT, &part, 1);
    if (!x)
        return NULL;
    if (min > TIMES_MAX)
        return node_fail(b, "more than %d repetitions are not supported", TIMES_MAX);
    x->min = (int32_t)min;
    /* A count stays an int32_t in every cell of the automaton, which the bound guarantees. */
    x->max = max > TIMES_MAX || max < 0 ? NODE_NO_MAX : (int32_t)max;
    if (max > TIMES_MAX) /* a limit that no sample reaches must still hold */
        x->max = TIMES_MAX;
    return x;
}

struct node *node_optional(struct builder *b, struct node *part)
{
    return node_repeat(b, part, 0, 1);
}

/* An empty choice matches nothing, so a reference that leads only to itself is found to be
 * unproductive. */
struct node *node_later(struct builder *b)
{
    return node_list(b, NODE_CHOICE, NULL, 0);
}

void node_resolve(struct builder *b, struct node *later, struct node *target)
{
    if (b->failed)
        return;
    later->parts[0] = target; /* node_list() has room for one more */
    later->n = 1;
}

/* Is there any text at all that it matches?  A rule that can only go on for ever has none, and would
 * leave the sampler without a token; repeated until nothing changes, since rules refer to each other. */
static bool is_productive(const struct node *x)
{
    switch (x->kind) {
    case NODE_TEXT:
        return true;
    case NODE_CLASS:
        /* An empty class arises from a pattern such as [^\d\D]. */
        return x->set[0] || x->set[1] || x->set[2] || x->set[3];
    case NODE_REPEAT:
        /* {0} of something impossible is the empty text. */
        return (x->min == 0 || x->parts[0]->productive) && (x->max < 0 || x->max >= x->min);
    case NODE_SEQ:
        for (int32_t i = 0; i < x->n; i++)
            if (!x->parts[i]->productive)
                return false;
        return true;
    case NODE_CHOICE:
        for (int32_t i = 0; i < x->n; i++)
            if (x->parts[i]->productive)
                return true;
        return false;
    }
    return false;
}

static bool is_nullable(const struct node *x)
{
    switch (x->kind) {
    case NODE_TEXT:
        return x->n == 0;
    case NODE_CLASS:
        return false;
    case NODE_REPEAT:
        return x->productive && (x->min == 0 || x->parts[0]->nullable);
    case NODE_SEQ:
        for (int32_t i = 0; i < x->n; i++)
            if (!x->parts[i]->nullable)
                return false;
        return true;
    case NODE_CHOICE:
        for (int32_t i = 0; i < x->n; i++)
            if (x->parts[i]->nullable)
                return true;
        return false;
    }
    return false;
}

/* Rounds until nothing changes: a node in a circle is productive if there is a way out.  Each round
 * marks at least one node or is the last, so this ends. */
bool node_classify(struct builder *b, const struct node *root)
{
    for (bool more = true; more;) {
        more = false;
        for (struct node *x = b->all; x; x = x->next)
            if (!x->productive && is_productive(x))
                x->productive = more = true;
    }
    for (bool more = true; more;) {
        more = false;
        for (struct node *x = b->all; x; x = x->next)
            if (!x->nullable && is_nullable(x))
                x->nullable = more = true;
    }
    /* What may be empty need not come: (a?){5} is (a?){0,5}, which has fewer counts to tell apart. */
    for (struct node *x = b->all; x; x = x->next)
        if (x->kind == NODE_REPEAT && x->productive && x->parts[0]->nullable)
            x->min = 0;
    return root->productive;
}
