/* history_points.c - see history_points.h.
 *
 * A point on disk: the difference of its step to the previous one (zigzag varint: loading a
 * checkpoint takes a run back), the number of values (varint), the mean (8 bytes), and of several
 * values also minimum and maximum (4 bytes each: they bound a band in a plot). */
#include "server/store/history_points.h"

#include <math.h>
#include <string.h>

static void put_varint(struct buf *out, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        buf_putc(out, (char)(0x80 | (v & 0x7f)));
    buf_putc(out, (char)v);
}

/* false: cut off, or longer than 64 bits. */
static bool read_varint(const unsigned char **p, const unsigned char *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; *p < end && shift < 64; shift += 7) {
        unsigned char byte = *(*p)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* Small numbers of either sign become small numbers: 0, -1, 1, -2 are 0, 1, 2, 3. */
static uint64_t encode_zigzag(int64_t v)
{
    return ((uint64_t)v << 1) ^ (v < 0 ? UINT64_MAX : 0);
}

static int64_t decode_zigzag(uint64_t v)
{
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

void history_encode(const struct history_point *p, size_t n, struct buf *out)
{
    int64_t previous = 0;
    for (size_t i = 0; i < n; i++) {
        put_varint(out, encode_zigzag(p[i].step - previous));
        put_varint(out, p[i].n);
        buf_append(out, &p[i].mean, sizeof(p[i].mean));
        if (p[i].n > 1) {
            float bounds[2] = { (float)p[i].min, (float)p[i].max };
            buf_append(out, bounds, sizeof(bounds));
        }
        previous = p[i].step;
    }
}

/* One point after `previous`; false: the bytes end in it. */
static bool read_point(const unsigned char **at, const unsigned char *end, int64_t previous,
                       struct history_point *p)
{
    uint64_t delta;
    float bounds[2];
    if (!read_varint(at, end, &delta) || !read_varint(at, end, &p->n) || !p->n)
        return false;
    size_t size = sizeof(p->mean) + (p->n > 1 ? sizeof(bounds) : 0);
    if ((size_t)(end - *at) < size)
        return false;
    /* Wraps like the encoder's difference did. */
    p->step = (int64_t)((uint64_t)previous + (uint64_t)decode_zigzag(delta));
    memcpy(&p->mean, *at, sizeof(p->mean));
    p->min = p->max = p->mean;
    if (p->n > 1) {
        memcpy(bounds, *at + sizeof(p->mean), sizeof(bounds));
        p->min = (double)bounds[0];
        p->max = (double)bounds[1];
    }
    *at += size;
    return true;
}

bool history_decode(const void *data, size_t size, struct arena *arena, struct history_point **p,
                    size_t *n, size_t *cap)
{
    const unsigned char *at = data, *end = at + size;
    int64_t previous = 0;
    while (at < end) {
        if (*n == *cap) {
            size_t grown = *cap ? *cap * 2 : 128;
            struct history_point *more =
                arena_grow(arena, *p, *cap * sizeof(**p), grown * sizeof(**p));
            if (!more)
                return false;
            *p = more;
            *cap = grown;
        }
        if (!read_point(&at, end, previous, &(*p)[*n]))
            return false;
        previous = (*p)[(*n)++].step;
    }
    return true;
}

/* a stands for b's values too from now on.  A value that is not finite would hide all others. */
static void merge_point(struct history_point *a, const struct history_point *b)
{
    if (!isfinite(a->mean)) {
        a->mean = b->mean;
        a->min = b->min;
        a->max = b->max;
    } else if (isfinite(b->mean)) {
        a->mean += (b->mean - a->mean) * ((double)b->n / (double)(a->n + b->n));
        a->min = fmin(a->min, b->min);
        a->max = fmax(a->max, b->max);
    }
    a->n += b->n;
    a->step = b->step;
}

/* The width of a merged point is a power of two, so that points which were merged before fall
 * together again without a rest, and a run that goes on for ever keeps an even resolution. */
size_t history_thin(struct history_point *p, size_t n, size_t keep, size_t target)
{
    size_t old = n > keep ? n - keep : 0, out = 0;
    uint64_t total = 0, width = 1;
    for (size_t i = 0; i < old; i++)
        total += p[i].n;
    while (target && width < total && total / width > target)
        width *= 2;
    for (size_t i = 0; i < old; i++)
        if (out && p[out - 1].n + p[i].n <= width)
            merge_point(&p[out - 1], &p[i]);
        else
            p[out++] = p[i];
    memmove(p + out, p + old, (n - old) * sizeof(*p));
    return out + (n - old);
}
