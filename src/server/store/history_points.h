/* history_points.h - one metric over time as points: bytes, and fewer points where there are many.
 *
 * A point is the value of one step, or stands for several steps that were thinned: their minimum,
 * maximum and mean.  Pure functions over arrays, any thread. */
#ifndef SERVER_HISTORY_POINTS_H
#define SERVER_HISTORY_POINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/buf.h"

enum {
    HISTORY_CHUNK = 128,        /* points of a blob */
    HISTORY_KEEP_POINTS = 2048, /* a series that is thinned keeps its newest points, ... */
    HISTORY_THIN_POINTS = 3072, /* ... and of the older ones about so many */
};

struct history_point {
    int64_t step;          /* the last one it stands for */
    uint64_t n;            /* how many values it stands for */
    double mean, min, max; /* all the same when n is 1 */
};

/* Append p[0..n) to *out.  About ten bytes a point, eighteen for one of several steps. */
void history_encode(const struct history_point *p, size_t n, struct buf *out);
/* Append the points of a blob to an array in the arena that has *n of *cap; false: no memory, or
 * the bytes are not such a blob. */
bool history_decode(const void *data, size_t size, struct arena *arena, struct history_point **p,
                    size_t *n, size_t *cap);
/* Merge neighbors so that of all but the newest `keep` points about `target` are left, each for
 * about as many values as the others.  Returns the new count. */
size_t history_thin(struct history_point *p, size_t n, size_t keep, size_t target);

#endif
