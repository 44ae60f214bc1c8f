/* socket_budget.c - how many sockets pools may have open together.
 *
 * What counts is what a request may come to need: open sockets, busy or kept for later, and requests
 * that are being connected and may open one.  So where one connection carries many requests
 * (HTTP/2), a budget that is small for connections does not bound requests.  Names are looked up
 * with descriptors, too, which is why only a part may be connecting at once.
 * Invariant: sockets and connecting are the sums over the clients of the pools.  Loop thread. */
#include <stdlib.h>
#include "http/pool_impl.h"

struct socket_budget *socket_budget_new(struct loop *l, int max)
{
    struct socket_budget *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->loop = l;
    b->max = max > 1 ? max : 1;
    /* A quarter may be connecting: the rest of the descriptors is left for resolvers and
     * established connections. */
    b->max_connecting = b->max > 4 ? b->max / 4 : 1;
    return b;
}

void socket_budget_free(struct socket_budget *b)
{
    free(b);
}

void socket_budget_add(struct socket_budget *b, struct http_pool *p)
{
    p->next_of_budget = b->pools;
    b->pools = p;
}

void socket_budget_remove(struct socket_budget *b, struct http_pool *p)
{
    for (struct http_pool **at = &b->pools; *at; at = &(*at)->next_of_budget)
        if (*at == p) {
            *at = p->next_of_budget;
            return;
        }
}

bool socket_budget_allows(struct socket_budget *b, struct http_pool *p)
{
    if (p->sockets + p->connecting == 0)
        return true; /* a pool may always have one, so none waits forever */
    /* Idle connections of other pools give way. */
    if (b->sockets + b->connecting >= b->max)
        for (struct http_pool *o = b->pools; o && b->sockets >= b->max; o = o->next_of_budget)
            if (o != p)
                pool_drop_unused(o);
    return b->sockets + b->connecting < b->max && b->connecting < b->max_connecting;
}

/* Wake all pools; each begins what it can, and socket_budget_allows() decides. */
void socket_budget_wake(struct socket_budget *b)
{
    for (struct http_pool *p = b->pools; p; p = p->next_of_budget)
        pool_wake(p, 0);
}
