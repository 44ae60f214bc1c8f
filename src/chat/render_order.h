/* render_order.h - results of tools in the order of the calls they answer. */
#ifndef CHAT_RENDER_ORDER_H
#define CHAT_RENDER_ORDER_H

#include "base/map.h"
#include "chat/render.h"

/* Numbers of the calls of one message by their ids. */
struct call_order {
    struct map numbers;
    size_t n; /* calls */
};
void order_init(struct call_order *o);
void order_clear(struct call_order *o);
/* Forget all, take the calls of m: of calls with the same id the last counts.  Whether each has
 * an id of its own. */
bool order_take(struct render_call *c, struct call_order *o, const tinker_message *m);
/* Number of the call with this id, which may be NULL; SIZE_MAX: none. */
size_t order_number(const struct call_order *o, const char *id);
/* A copy of messages[0..n) that may be written to; NULL: out of memory. */
tinker_message *order_copy(struct render_call *c, const tinker_message *messages, size_t n);
/* Sort the tool messages among messages[0..n) by number, unknown ones as the first; others stay
 * where they are. */
void order_sort(struct render_call *c, const struct call_order *o, tinker_message *messages,
                size_t n);

#endif
