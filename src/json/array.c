/* array.c - whole arrays of numbers in one call.
 *
 * Commas are counted first, so that the array is allocated once at its final size:
 * tensors are large and this is the path they take.  The count is only a hint from
 * the peer; parsing checks every element and never goes beyond it. */
#include <math.h>
#include "json/decimal.h"
#include "json/internal.h"
#include "json/scan.h"

/* Enter the array; *n is how many elements it has, if it is well-formed: one more than its commas
 * before the first ']', which ends it because numbers contain no brackets. */
static bool begin_numbers(struct json_reader *r, size_t *n)
{
    if (!json_begin_array(r))
        return false;
    json_skip_space(r);
    *n = r->p < r->end && *r->p == ']' ? 0 : scan_commas(r->p, r->end) + 1;
    return true;
}

static void *allocate_numbers(struct json_reader *r, size_t n, size_t size)
{
    void *p = r->arena ? arena_array(r->arena, n, size) : NULL;
    if (!p)
        json_fail_at(r, r->p, "no memory for an array of %zu numbers", n);
    return p;
}

/* After element i of n: the comma, or the bracket after the last. */
static inline bool skip_separator(struct json_reader *r, size_t i, size_t n)
{
    char want = i + 1 < n ? ',' : ']';
    if (r->p == r->end || *r->p != want) {
        json_skip_space(r);
        if (r->p == r->end || *r->p != want)
            return json_fail_at(r, r->p, "expected ',' or ']'");
    }
    r->p++;
    /* the two common layouts: no space, or one */
    if (r->p < r->end && *r->p == ' ')
        r->p++;
    if (r->p < r->end && (unsigned char)*r->p <= ' ')
        json_skip_space(r);
    return true;
}

/* Leave the array: elements were all read, so the bracket was too. */
static bool end_numbers(struct json_reader *r, size_t n)
{
    if (n == 0)
        r->p++;
    r->depth--;
    return true;
}

/* A plain integer of up to 18 digits at r->p, which cannot overflow; false leaves everything as it
 * was, for json_int64() to read or to refuse. */
static inline bool read_small_int(struct json_reader *r, int64_t *out)
{
    const char *digits = r->p + (r->p < r->end && *r->p == '-');
    uint64_t v = 0;
    const char *p = decimal_digits(digits, r->end, &v);
    ptrdiff_t n = p - digits;
    if (n == 0 || n > 18 || p == r->end || (*p != ',' && *p != ']') || (n > 1 && *digits == '0'))
        return false;
    *out = digits > r->p ? -(int64_t)v : (int64_t)v;
    r->p = p;
    return true;
}

/* Two passes: count the elements, then parse into an array of exactly that size. */
bool json_array_int64(struct json_reader *r, int64_t **out, size_t *n)
{
    size_t count;
    if (!begin_numbers(r, &count))
        return false;
    int64_t *v = allocate_numbers(r, count, sizeof *v);
    if (!v)
        return false;
    /* Nearly all elements are small; json_int64() reads the others and 3.0, and says what is wrong. */
    for (size_t i = 0; i < count; i++)
        if ((!read_small_int(r, &v[i]) && !json_int64(r, &v[i])) || !skip_separator(r, i, count))
            return false;
    *out = v;
    *n = count;
    return end_numbers(r, count);
}

bool json_array_int32(struct json_reader *r, int32_t **out, size_t *n)
{
    size_t count;
    if (!begin_numbers(r, &count))
        return false;
    int32_t *v = allocate_numbers(r, count, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < count; i++) {
        const char *at = r->p;
        int64_t wide;
        if (!read_small_int(r, &wide) && !json_int64(r, &wide))
            return false;
        if (wide < INT32_MIN || wide > INT32_MAX)
            return json_fail_at(r, at, "integer out of the range of 32 bits");
        v[i] = (int32_t)wide;
        if (!skip_separator(r, i, count))
            return false;
    }
    *out = v;
    *n = count;
    return end_numbers(r, count);
}

/* A float is rounded once, from the text: through double, about one in 10^8 would be off by one
 * unit. */
static bool read_floats(struct json_reader *r, bool null_is_nan, float **out, size_t *n)
{
    size_t count;
    if (!begin_numbers(r, &count))
        return false;
    float *v = allocate_numbers(r, count, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < count; i++) {
        struct decimal d;
        const char *p = decimal_scan(r->p, r->end, &d);
        if (p) {
            r->p = p;
            if (!decimal_float(&d, &v[i]))
                return json_fail_at(r, d.text, "number out of the range of a float");
        } else if (null_is_nan && json_peek(r) == JSON_NULL) {
            v[i] = NAN;
            if (!json_null(r))
                return false;
        } else if (json_peek(r) == JSON_NUMBER) {
            return json_fail_at(r, r->p, "malformed number");
        } else {
            double unused;
            return json_double(r, &unused); /* fails, and says what was found instead */
        }
        if (!skip_separator(r, i, count))
            return false;
    }
    *out = v;
    *n = count;
    return end_numbers(r, count);
}

bool json_array_float(struct json_reader *r, float **out, size_t *n)
{
    return read_floats(r, false, out, n);
}

bool json_array_float_null(struct json_reader *r, float **out, size_t *n)
{
    return read_floats(r, true, out, n);
}
