/* json_again.h - read any JSON value and write it again, through our own reader and writer.
 *
 * Integers stay integers, other numbers become doubles. */
#ifndef SUPPORT_JSON_AGAIN_H
#define SUPPORT_JSON_AGAIN_H

#include <string.h>
#include "json/json.h"

static inline void json_again_number(struct json_reader *r, struct json_writer *w)
{
    struct json_reader before = *r;
    int64_t i;
    double d;
    if (json_int64(r, &i) && !memchr(before.p, '.', (size_t)(r->p - before.p)) &&
        !memchr(before.p, 'e', (size_t)(r->p - before.p)) &&
        !memchr(before.p, 'E', (size_t)(r->p - before.p))) {
        json_put_int64(w, i);
        return;
    }
    *r = before;
    if (json_double(r, &d))
        json_put_double(w, d);
}

static inline bool json_again(struct json_reader *r, struct json_writer *w)
{
    struct json_str s;
    bool flag;
    switch (json_peek(r)) {
    case JSON_OBJECT:
        json_begin_object(r);
        json_put_begin_object(w);
        while (json_next_key(r, &s)) {
            json_put_key_n(w, s.s, s.n);
            json_again(r, w);
        }
        json_put_end_object(w);
        break;
    case JSON_ARRAY:
        json_begin_array(r);
        json_put_begin_array(w);
        while (json_next_item(r))
            json_again(r, w);
        json_put_end_array(w);
        break;
    case JSON_STRING:
        if (json_string(r, &s))
            json_put_string_n(w, s.s, s.n);
        break;
    case JSON_NUMBER:
        json_again_number(r, w);
        break;
    case JSON_BOOL:
        if (json_bool(r, &flag))
            json_put_bool(w, flag);
        break;
    case JSON_NULL:
        if (json_null(r))
            json_put_null(w);
        break;
    case JSON_NONE:
        json_skip(r); /* says what is wrong */
        break;
    }
    return !r->failed;
}

#endif
