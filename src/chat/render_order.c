/* render_order.c - see render_order.h. */
#include "chat/render_order.h"

#include <stdlib.h>
#include <string.h>

void order_init(struct call_order *o)
{
    map_init(&o->numbers);
    o->n = 0;
}

void order_clear(struct call_order *o)
{
    map_clear(&o->numbers);
}

/* Numbers are stored plus one, as the map's NULL means "absent". */
bool order_take(struct render_call *c, struct call_order *o, const tinker_message *m)
{
    bool clear = true;
    map_clear(&o->numbers);
    order_init(o);
    o->n = m->n_tool_calls;
    for (size_t i = 0; i < m->n_tool_calls; i++) {
        const char *id = m->tool_calls[i].id;
        void *old = NULL;
        if (!id || !*id) {
            clear = false;
            continue;
        }
        if (!map_put(&o->numbers, id, strlen(id), (void *)(uintptr_t)(i + 1), &old))
            jx_nomem(&c->x);
        /* Two calls with one id: which of them a result answers is not certain. */
        clear = clear && !old;
    }
    return clear;
}

size_t order_number(const struct call_order *o, const char *id)
{
    uintptr_t number = id ? (uintptr_t)map_get(&o->numbers, id, strlen(id)) : 0;
    return number ? number - 1 : SIZE_MAX;
}

tinker_message *order_copy(struct render_call *c, const tinker_message *messages, size_t n)
{
    tinker_message *copy = c->x.failed ? NULL : arena_array(c->x.arena, n + 1, sizeof(*copy));
    if (!copy)
        jx_nomem(&c->x);
    else if (n > 0)
        memcpy(copy, messages, n * sizeof(*copy));
    return copy;
}

/* A result with its sort key; `place` makes the order stable, which qsort() is not. */
struct result {
    size_t number, place;
    tinker_message message;
};

static int compare_results(const void *a, const void *b)
{
    const struct result *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

/* Only tool messages move, and only among the places of tool messages: user messages between
 * results stay where they are. */
void order_sort(struct render_call *c, const struct call_order *o, tinker_message *messages,
                size_t n)
{
    size_t k = 0;
    struct result *results = c->x.failed ? NULL : arena_array(c->x.arena, n, sizeof(*results));
    if (!results) {
        jx_nomem(&c->x);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t number = order_number(o, messages[i].tool_call_id);
        if (role_is(&messages[i], "tool"))
            results[k++] = (struct result){ number == SIZE_MAX ? 0 : number, i, messages[i] };
    }
    qsort(results, k, sizeof(*results), compare_results);
    for (size_t i = 0, next = 0; i < n; i++)
        if (role_is(&messages[i], "tool"))
            messages[i] = results[next++].message;
}
