/* timers.c - the pairing heap.  Insert is O(1), removal O(log n) amortized; both only
 * relink nodes.  A node's `prev` is its elder sibling or, for the first child, its
 * parent, which is what lets any node be cut out without a search. */
#include "http/timers.h"

#include <stddef.h>

/* Join two heaps; either may be NULL.  The roots have no siblings. */
static struct timer *meld_heaps(struct timer *a, struct timer *b)
{
    if (!a)
        return b;
    if (!b)
        return a;
    /* The earlier root wins; the other becomes its first child.  order breaks ties, so timers of
     * the same instant fire in the order they were armed. */
    if (b->due_ns < a->due_ns || (b->due_ns == a->due_ns && b->order < a->order)) {
        struct timer *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->child;
    if (a->child)
        a->child->prev = b;
    b->prev = a;
    a->child = b;
    return a;
}

static struct timer *detach_first(struct timer **list)
{
    struct timer *t = *list;
    if (t) {
        *list = t->next;
        t->next = t->prev = NULL;
    }
    return t;
}

void timers_disarm(struct timers *h, struct timer *t)
{
    if (!t->armed)
        return;
    t->armed = false;
    /* Meld the children in pairs from the first to the last, then the pairs from the last to the
     * first: the two passes that make the pairing heap O(log n) amortized. */
    struct timer *list = t->child, *pairs = NULL, *rest = NULL;
    t->child = NULL;
    while (list) {
        struct timer *a = detach_first(&list);
        struct timer *b = detach_first(&list);
        struct timer *pair = meld_heaps(a, b);
        pair->next = pairs;
        pairs = pair;
    }
    while (pairs) {
        struct timer *pair = pairs;
        pairs = pairs->next;
        pair->next = NULL;
        rest = meld_heaps(rest, pair);
    }
    if (t == h->root) {
        h->root = rest;
        return;
    }
    /* prev is the parent for a first child, the left sibling for others. */
    if (t->prev->child == t)
        t->prev->child = t->next;
    else
        t->prev->next = t->next;
    if (t->next)
        t->next->prev = t->prev;
    t->next = t->prev = NULL;
    h->root = meld_heaps(h->root, rest);
}

void timers_arm(struct timers *h, struct timer *t, int64_t due_ns)
{
    timers_disarm(h, t);
    t->due_ns = due_ns;
    t->order = h->order++;
    t->armed = true;
    t->child = t->next = t->prev = NULL;
    h->root = meld_heaps(h->root, t);
}

int64_t timers_next_ns(const struct timers *h)
{
    return h->root ? h->root->due_ns : INT64_MAX;
}

void timers_run(struct timers *h, int64_t now_ns)
{
    /* Timers armed by a callback of this turn wait for the next one, else a delay of 0 could
     * keep the loop here for ever. */
    uint64_t limit = h->order;
    while (h->root && h->root->due_ns <= now_ns && h->root->order < limit) {
        struct timer *t = h->root;
        timers_disarm(h, t);
        t->fire(t);
    }
}
