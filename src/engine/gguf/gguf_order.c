/* gguf_order.c - the order of value heads in files; see struct gguf_heads.
 *
 * llama.cpp repeats key heads as a whole, so that value head v reads key head v mod keys; in models
 * neighbors share one. */
#include "engine/gguf/gguf_model.h"

#include <string.h>
#include "base/array.h"

struct gguf_order gguf_order_of(const struct gguf_heads *heads, const char *gguf_name)
{
    size_t mixed = 2 * heads->keys * heads->key_dim, dim = heads->value_dim;
    const struct {
        const char *name;
        struct gguf_order order;
    } orders[] = {
        { ".attn_qkv.", { heads, mixed, dim, false } },
        { ".attn_gate.", { heads, 0, dim, false } },
        { ".ssm_conv1d.", { heads, mixed, dim, false } },
        { ".ssm_beta.", { heads, 0, 1, false } },
        { ".ssm_alpha.", { heads, 0, 1, false } },
        { ".ssm_a", { heads, 0, 1, false } },
        { ".ssm_dt.", { heads, 0, 1, false } },
        { ".ssm_out.", { heads, 0, dim, true } },
    };
    for (size_t i = 0; heads->keys != heads->values && i < ARRAY_LEN(orders); i++)
        if (strstr(gguf_name, orders[i].name))
            return orders[i].order;
    return (struct gguf_order){ .heads = heads };
}

size_t gguf_order_place(const struct gguf_order *o, size_t i)
{
    if (!o->size || i < o->skip)
        return i;
    size_t head = (i - o->skip) / o->size, group = o->heads->values / o->heads->keys;
    size_t place = head % group * o->heads->keys + head / group;
    return o->skip + place * o->size + (i - o->skip) % o->size;
}
