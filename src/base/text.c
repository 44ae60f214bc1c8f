/* text.c - texts that calls return (public); here because every library of ours has them. */
#include "base/text.h"

#include <stdint.h>
#include <stdlib.h>
#include "base/err.h"

struct buf text_to_buf(const tinker_text *t)
{
    struct buf b;
    buf_init(&b, SIZE_MAX); /* the caller's memory has no limit of ours */
    b.data = t->s;
    b.len = t->n;
    b.cap = t->cap;
    return b;
}

/* Also after a failure: realloc() may have moved the memory before it. */
void text_from_buf(tinker_text *t, const struct buf *b)
{
    t->s = b->data;
    t->n = b->len;
    t->cap = b->cap;
}

tinker_status tinker_text_append(tinker_text *t, const char *s, size_t n, tinker_error *err)
{
    struct buf b = text_to_buf(t);
    buf_append(&b, s, n);
    if (n == 0 && !b.data) /* an empty text, too, ends with a NUL */
        buf_reserve(&b, 1);
    bool ok = buf_ok(&b);
    text_from_buf(t, &b);
    return ok ? TINKER_OK : err_nomem(err, "text");
}

/* Leaves an empty text, so that it can be used or cleared again. */
void tinker_text_clear(tinker_text *t)
{
    free(t->s);
    *t = (tinker_text)TINKER_TEXT_INIT;
}
