/* buf.h - a growing byte buffer with a maximum.
 *
 * An append that fails (no memory, or over the maximum) sets `failed` and leaves
 * the content as it was; later appends do nothing.  So a writer appends freely and
 * checks buf_ok() once at the end.  data[len] is always NUL once anything was
 * appended.  Not thread-safe. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data;
    size_t len, cap, max;
    bool failed;
};

void buf_init(struct buf *b, size_t max); /* max: bytes it may ever hold */
/* From now on another maximum; what it has room for it may use in any case. */
void buf_limit(struct buf *b, size_t max);
void buf_clear(struct buf *b); /* frees; may be used again */
void buf_reset(struct buf *b); /* len 0, memory kept, failed forgotten */
bool buf_ok(const struct buf *b);
bool buf_grow(struct buf *b, size_t extra); /* buf_reserve() when the room is not there */
void buf_append(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
char *buf_detach(struct buf *b, size_t *len); /* caller frees; NULL if it failed; b is empty */

/* Room for extra more bytes. */
static inline bool buf_reserve(struct buf *b, size_t extra)
{
    return (extra < b->cap - b->len && !b->failed) || buf_grow(b, extra);
}

static inline void buf_putc(struct buf *b, char c)
{
    if (!buf_reserve(b, 1))
        return;
    b->data[b->len++] = c;
    b->data[b->len] = '\0';
}

#endif
