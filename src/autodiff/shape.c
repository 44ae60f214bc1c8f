/* shape.c - sizes of values: checking, broadcasting, printing. */
#include <stdint.h>
#include <stdio.h>
#include "autodiff/tape.h"

/* The sizes come from the user. false: too many dimensions, a negative one, or more elements than
 * can be counted. */
bool shape_set(struct shape *s, const int64_t *dim, size_t ndim)
{
    if (ndim > RANK_MAX)
        return false;
    *s = (struct shape){ .ndim = ndim, .n = 1 };
    for (size_t i = 0; i < ndim; i++) {
        /* A margin of 64, so that sizes in bytes and sums of a few shapes cannot overflow, either. */
        if (dim[i] < 0 || (uint64_t)dim[i] > SIZE_MAX / 64)
            return false;
        s->dim[i] = (size_t)dim[i];
        if (s->dim[i] && s->n > SIZE_MAX / 64 / s->dim[i])
            return false;
        s->n *= s->dim[i];
    }
    return true;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (size_t i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

/* NumPy's rule. (3, 1) and (4) give (3, 4); (3) and (4) do not fit. */
bool shape_broadcast(const struct shape *a, const struct shape *b, struct shape *out)
{
    size_t ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    *out = (struct shape){ .ndim = ndim, .n = 1 };
    for (size_t i = 0; i < ndim; i++) {
        /* Aligned at the last axis; missing axes in front count as 1, and 1 repeats. */
        size_t da = i + a->ndim < ndim ? 1 : a->dim[i + a->ndim - ndim];
        size_t db = i + b->ndim < ndim ? 1 : b->dim[i + b->ndim - ndim];
        if (da != db && da != 1 && db != 1)
            return false;
        out->dim[i] = da == 1 ? db : da;
        if (out->dim[i] && out->n > SIZE_MAX / 64 / out->dim[i])
            return false;
        out->n *= out->dim[i];
    }
    return true;
}

/* "[3, 4]" for messages; 96 bytes hold RANK_MAX dimensions of 20 digits. */
const char *shape_text(const struct shape *s, char out[96])
{
    int at = snprintf(out, 96, "[");
    for (size_t i = 0; i < s->ndim; i++)
        at += snprintf(out + at, 96 - (size_t)at, "%s%zu", i ? ", " : "", s->dim[i]);
    snprintf(out + at, 96 - (size_t)at, "]");
    return out;
}

bool shape_axis(const struct shape *s, int axis, size_t *out)
{
    int ndim = (int)s->ndim;
    if (axis < -ndim || axis >= ndim)
        return false;
    *out = (size_t)(axis < 0 ? axis + ndim : axis);
    return true;
}

/* Seen along `axis`, a value is outer x n x inner numbers: element (o, k, i) is at (o * n + k) *
 * inner + i. All reductions and joins are three nested loops over that. */
struct span shape_span(const struct shape *s, size_t axis)
{
    /* Row-major: axes before `axis` are the outer loop, those behind it the inner one. */
    struct span p = { 1, s->dim[axis], 1 };
    for (size_t i = 0; i < axis; i++)
        p.outer *= s->dim[i];
    for (size_t i = axis + 1; i < s->ndim; i++)
        p.inner *= s->dim[i];
    return p;
}

/* The shape with another length of one axis; false: more elements than can be counted. */
bool shape_resize(const struct shape *s, size_t axis, size_t n, struct shape *out)
{
    struct span p = shape_span(s, axis);
    size_t rest = p.outer * p.inner;
    *out = *s;
    out->dim[axis] = n;
    out->n = rest * n;
    return n == 0 || rest <= SIZE_MAX / 64 / n;
}
