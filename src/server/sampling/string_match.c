/* string_match.c - see string_match.h.
 *
 * The strings form a trie; a node is a state, the root is 0, and the text of a node is the bytes on
 * the way to it.  `fail` of a node is the longest proper suffix of its text that is a node, too:
 * where to go on when no child fits.  Following it shortens the text, and each byte lengthens it by
 * one at most, so all steps together are at most two per byte.  Children are a list; those of the
 * root, where every mismatch ends, are a table as well. */
#include "server/sampling/string_match.h"

#include <stdlib.h>
#include <string.h>

struct node {
    uint32_t first_child, sibling; /* 0: none; the root is nobody's child */
    uint32_t fail;
    unsigned char byte; /* that leads here */
    bool end;           /* a string ends here: the node's text, or a suffix of it */
};

struct string_match {
    uint32_t n;
    uint32_t root[256]; /* children of the root by byte; 0: none, which is the root itself */
    struct node nodes[];
};

/* A node has few children, the root may have many and is asked most: hence its table. */
static uint32_t find_child(const struct string_match *m, uint32_t node, unsigned char byte)
{
    if (!node)
        return m->root[byte];
    uint32_t child = m->nodes[node].first_child;
    while (child && m->nodes[child].byte != byte)
        child = m->nodes[child].sibling;
    return child;
}

/* nodes[] has room for every byte of every string, so it never moves and never fills up. */
static uint32_t add_child(struct string_match *m, uint32_t node, unsigned char byte)
{
    uint32_t child = m->n++;
    m->nodes[child] = (struct node){ .byte = byte, .sibling = m->nodes[node].first_child };
    m->nodes[node].first_child = child;
    if (!node)
        m->root[byte] = child;
    return child;
}

/* The automaton of Aho and Corasick, CACM 18 (1975). */
uint32_t string_match_next(const struct string_match *m, uint32_t state, unsigned char byte)
{
    uint32_t next;
    /* At the root 0 is both "no child" and the state to stay in. */
    while ((next = find_child(m, state, byte)) == 0 && state)
        state = m->nodes[state].fail;
    return next;
}

/* Breadth first: the fail of a node is shorter than the node, hence known before it. */
static void link_fails(struct string_match *m, uint32_t *queue)
{
    uint32_t head = 0, tail = 0;
    for (uint32_t c = m->nodes[0].first_child; c; c = m->nodes[c].sibling)
        queue[tail++] = c; /* their fail is the root */
    while (head < tail) {
        uint32_t node = queue[head++];
        for (uint32_t c = m->nodes[node].first_child; c; c = m->nodes[c].sibling) {
            struct node *child = &m->nodes[c];
            /* A suffix of the child's text is a suffix of the parent's plus the byte.  It is
             * shorter than the child, so its own fail and end are final. */
            child->fail = string_match_next(m, m->nodes[node].fail, child->byte);
            child->end = child->end || m->nodes[child->fail].end;
            queue[tail++] = c;
        }
    }
}

struct string_match *string_match_new(const char *const *strings, size_t n)
{
    size_t most = 1; /* nodes: the root and one per byte */
    for (size_t i = 0; i < n; i++)
        most += strlen(strings[i]);
    /* Zeroed: no children, no fails, no ends. */
    struct string_match *m =
        most < UINT32_MAX ? calloc(1, sizeof(*m) + most * sizeof(*m->nodes)) : NULL;
    uint32_t *queue = m ? calloc(most, sizeof(*queue)) : NULL;
    if (!queue) {
        free(m);
        return NULL;
    }
    m->n = 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t node = 0;
        /* Strings with a common beginning share its nodes. */
        for (const char *p = strings[i]; *p; p++) {
            uint32_t child = find_child(m, node, (unsigned char)*p);
            node = child ? child : add_child(m, node, (unsigned char)*p);
        }
        m->nodes[node].end = true;
    }
    link_fails(m, queue);
    free(queue);
    return m;
}

void string_match_free(struct string_match *m)
{
    free(m);
}

/* Also true in the middle of a longer string that another one ends in. */
bool string_match_is_end(const struct string_match *m, uint32_t state)
{
    return m->nodes[state].end;
}
