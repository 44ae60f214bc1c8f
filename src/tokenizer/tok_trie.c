/* tok_trie.c - finding added tokens in text, leftmost and longest.
 *
 * Added tokens are rare in text and nearly all start with the same byte, so the search is a
 * memchr, or a scan with a bitmap of first pairs, and only candidates walk the trie. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tokenizer/tokenizer.h"

enum { MAX_NODES = 1 << 26 }; /* a file of added tokens that needs more is no tokenizer */

/* Index of a new node, or 0: out of memory. */
static uint32_t add_node(struct tok_trie *t, unsigned char byte)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        struct tok_trie_node *nodes =
            cap > MAX_NODES ? NULL : realloc(t->nodes, cap * sizeof(*nodes));
        if (!nodes)
            return 0;
        t->nodes = nodes;
        t->cap = cap;
        t->n += t->n == 0; /* index 0 means none */
    }
    t->nodes[t->n] = (struct tok_trie_node){ .byte = byte };
    return (uint32_t)t->n++;
}

/* Children are a list: few nodes have more than a handful. */
static uint32_t find_child(const struct tok_trie *t, uint32_t node, unsigned char byte)
{
    uint32_t i = t->nodes[node].child;
    while (i && t->nodes[i].byte != byte)
        i = t->nodes[i].sibling;
    return i;
}

tinker_status tok_trie_add(struct tok_trie *t, const char *s, size_t n, uint32_t index,
                           tinker_error *err)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0)
        return TINKER_OK;
    uint32_t node = t->root[p[0]];
    if (!node) {
        node = add_node(t, p[0]);
        if (!node)
            return err_nomem(err, "added tokens");
        t->root[p[0]] = node;
    }
    for (size_t i = 1; i < n; i++) { /* the first byte is an index, the others are nodes */
        uint32_t next = find_child(t, node, p[i]);
        if (!next) {
            next = add_node(t, p[i]);
            if (!next)
                return err_nomem(err, "added tokens");
            t->nodes[next].sibling = t->nodes[node].child;
            t->nodes[node].child = next;
        }
        node = next;
    }
    t->nodes[node].value = index + 1; /* of two tokens with one text the later */
    t->any = true;
    return TINKER_OK;
}

/* The filters: which byte all tokens start with, and the bitmap of their first pairs. */
void tok_trie_done(struct tok_trie *t)
{
    int firsts = 0;
    t->only_first = -1;
    memset(t->pairs, 0, sizeof(t->pairs));
    for (unsigned a = 0; a < 256; a++) {
        if (!t->root[a])
            continue;
        firsts++;
        t->only_first = (int)a;
        if (t->nodes[t->root[a]].value) /* a token of one byte: anything may follow */
            memset(t->pairs + a * 32, 0xFF, 32);
        for (uint32_t i = t->nodes[t->root[a]].child; i; i = t->nodes[i].sibling)
            t->pairs[a * 32 + t->nodes[i].byte / 8] |= (unsigned char)(1u << t->nodes[i].byte % 8);
    }
    if (firsts != 1)
        t->only_first = -1;
}

void tok_trie_clear(struct tok_trie *t)
{
    free(t->nodes);
    memset(t, 0, sizeof(*t));
}

int tok_trie_find(const struct tok_trie *t, const char *text, size_t n, size_t from, size_t *begin,
                  size_t *end)
{
    const unsigned char *base = (const unsigned char *)text, *stop = base + n, *p = base + from;
    if (!t->any)
        return -1;
    while (p < stop) {
        /* the next place where a token may start */
        if (t->only_first >= 0)
            p = memchr(p, t->only_first, (size_t)(stop - p));
        else
            while (p < stop && !t->root[*p])
                p++;
        if (!p || p == stop)
            break;
        /* walk down the trie and remember the last node that ends a token */
        bool pair = p + 1 == stop || (t->pairs[p[0] * 32 + p[1] / 8] >> p[1] % 8 & 1);
        uint32_t value = 0, node = pair ? t->root[*p] : 0;
        for (const unsigned char *q = p + 1; node; node = find_child(t, node, *q++)) {
            if (t->nodes[node].value) {
                value = t->nodes[node].value;
                *begin = (size_t)(p - base);
                *end = (size_t)(q - base);
            }
            if (q == stop)
                break;
        }
        if (value)
            return (int)value - 1;
        p++;
    }
    return -1;
}
