/* buf.c - a growing byte buffer with a maximum.
 *
 * Invariants: len <= max; when data is not NULL, cap >= len + 1 and data[len] is
 * NUL.  Growth doubles, so n appends cost O(n).  Not thread-safe. */
#include "base/buf.h"
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_FIRST = 64 };

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){ .max = 0 };
    buf_limit(b, max);
}

void buf_limit(struct buf *b, size_t max)
{
    /* What is there stays: a limit below it would break the invariant. */
    max = max > b->cap ? max : b->cap;
    /* no object is larger than PTRDIFF_MAX, and one byte is for the NUL */
    b->max = max < PTRDIFF_MAX ? max : PTRDIFF_MAX - 1;
}

void buf_clear(struct buf *b)
{
    free(b->data);
    buf_init(b, b->max);
}

void buf_reset(struct buf *b)
{
    /* Keeps the memory: a buffer that is filled again and again allocates once. */
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

bool buf_ok(const struct buf *b)
{
    return !b->failed;
}

/* Space for `extra` bytes and the NUL. The capacity doubles, so n appends cost O(n). */
bool buf_grow(struct buf *b, size_t extra)
{
    /* A failure sticks: text with a hole in it must not look complete. */
    if (b->failed)
        return false;
    /* len <= max, so this cannot wrap. */
    if (extra > b->max - b->len) {
        b->failed = true;
        return false;
    }
    size_t want = b->len + extra + 1; /* for the NUL */
    if (want <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : BUF_FIRST;
    while (cap < want)
        cap = cap > SIZE_MAX / 2 ? want : cap * 2;
    if (cap > b->max + 1)
        cap = b->max + 1;
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    if (!b->data)
        data[0] = '\0';
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *p, size_t n)
{
    if (!buf_reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

/* A text that does not fit below max fails the buffer; it is never cut silently. */
void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    if (b->failed)
        return;
    va_list again;
    va_copy(again, ap);
    /* Print into the space that is there; most lines fit, and need no second pass. */
    size_t space = b->cap - b->len;
    int n = vsnprintf(b->data ? b->data + b->len : NULL, space, fmt, ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < space && (size_t)n <= b->max - b->len) {
        b->len += (size_t)n;
    } else if (buf_reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    /* a refused text was written in part: the content ends where it did before */
    if (b->data)
        b->data[b->len] = '\0';
    va_end(again);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

/* The memory becomes the caller's, to be freed with free(); the buffer is empty again. */
char *buf_detach(struct buf *b, size_t *len)
{
    /* An empty buffer has no memory yet, but its owner expects a NUL. */
    if (b->failed || !buf_reserve(b, 0)) {
        buf_clear(b);
        return NULL;
    }
    char *data = b->data;
    if (len)
        *len = b->len;
    buf_init(b, b->max);
    return data;
}
