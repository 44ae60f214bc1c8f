/* jinja_number.c - numbers out of text, and rounding, as Python's int(), float() and round() do.
 *
 * Pure functions but for failures, which stick in the jx.  ASCII digits only. */
#include "jinja/jinja.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/number.h"

/* Bytes of a number as text. "%.15f" of the largest double needs 326: a sign, 309 digits, a point
 * and 15 digits, which is what jinja_round() may print. Longer input does not count as a number. */
enum { NUMBER_TEXT = 400 };

/* s without the underscores between its digits (PEP 515); false where one stands elsewhere, or s is
 * empty, has a NUL in it, or is too long. */
static bool plain_text(struct jv_str s, char out[NUMBER_TEXT])
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.s[i] == '_' && (i == 0 || i + 1 == s.n || !isdigit((unsigned char)s.s[i - 1]) ||
                              !isdigit((unsigned char)s.s[i + 1])))
            return false;
        if (s.s[i] == 0 || n + 1 == NUMBER_TEXT)
            return false;
        if (s.s[i] != '_')
            out[n++] = s.s[i];
    }
    out[n] = 0;
    return n > 0;
}

/* ASCII digits; isdigit() does not depend on the locale. */
static const char *skip_digits(const char *s)
{
    while (isdigit((unsigned char)*s))
        s++;
    return s;
}

static const char *skip_sign(const char *s)
{
    return *s == '+' || *s == '-' ? s + 1 : s;
}

/* None: no integer. Beyond 64 bits the digits are kept, without leading zeros, and only printed. */
static struct jv parse_int(struct jx *x, const char *s)
{
    const char *digits = skip_sign(s);
    if (!isdigit((unsigned char)*digits) || *skip_digits(digits))
        return jv_none();
    errno = 0;
    long long i = strtoll(s, NULL, 10);
    if (errno != ERANGE)
        return jv_int(i);
    digits += strspn(digits, "0");
    size_t n = strlen(digits), sign = *s == '-';
    char *text = jx_alloc(x, n + sign + 1);
    if (!text)
        return jv_none();
    text[0] = '-'; /* overwritten by the digits when there is no sign */
    memcpy(text + sign, digits, n + 1);
    struct jv v = jv_strn(text, n + sign);
    v.kind = JV_BIG;
    return v;
}

/* [sign] digits [. digits] [e [sign] digits], where one of the two groups of digits may be missing;
 * inf, infinity and nan in any case. */
static struct jv parse_float(const char *s)
{
    const char *body = skip_sign(s), *e = skip_digits(body), *point = e;
    bool negative = *s == '-';
    if (strcasecmp(body, "inf") == 0 || strcasecmp(body, "infinity") == 0)
        return jv_float(negative ? -HUGE_VAL : HUGE_VAL);
    if (strcasecmp(body, "nan") == 0)
        return jv_float(NAN);
    if (*e == '.')
        e = skip_digits(e + 1);
    /* Neither group of digits: nothing at all, or a point alone. */
    if (e == body || (e == body + 1 && *point == '.' && point == body))
        return jv_none();
    if (*e == 'e' || *e == 'E') {
        const char *exponent = skip_sign(e + 1);
        e = skip_digits(exponent);
        if (e == exponent)
            return jv_none();
    }
    if (*e)
        return jv_none();
    double v = 0;
    number_read(s, &v); /* infinite where it is too large, as in the reference */
    return jv_float(v);
}

/* White space around the number is ignored. With real false, text that is no integer is read as a
 * float, for which the filter "int" relies on: "42.23"|int is 42. */
struct jv jinja_parse_number(struct jx *x, struct jv_str s, bool real)
{
    char text[NUMBER_TEXT];
    if (!plain_text(text_trim(s, NULL, true, true), text))
        return jv_none();
    struct jv v = real ? jv_none() : parse_int(x, text);
    return v.kind == JV_NONE ? parse_float(text) : v;
}

/* To a power of ten, ties to the even multiple: in integers, as a double has no 19 digits. */
static struct jv round_int(struct jx *x, int64_t v, int64_t digits)
{
    int64_t unit = 1, out;
    for (int64_t i = digits; i < 0; i++)
        unit *= 10;
    /* v = steps * unit +- rest. rest > unit - rest says 2 * rest > unit without overflow. */
    int64_t steps = v / unit, rest = v % unit < 0 ? -(v % unit) : v % unit;
    if (rest > unit - rest || (rest == unit - rest && steps % 2))
        steps += v < 0 ? -1 : 1;
    if (__builtin_mul_overflow(steps, unit, &out))
        jx_fail(x, "integer overflow");
    return jv_int(out);
}

/* Rounding of decimal digits must look at the exact binary value: round(2.675, 2) is 2.67. printf()
 * does; multiplying by a power of ten does not. Ties go to even. "common" keeps an int an int;
 * "ceil" and "floor" multiply and divide as the reference does, and always give a float.
 *
 * More than 15 digits are refused: up to there the power of ten is exact in a double. */
struct jv jinja_round(struct jx *x, struct jv v, int64_t digits, struct jv method)
{
    bool up = jv_is(method, "ceil"), down = jv_is(method, "floor");
    if (!jv_is_number(v) || digits > 15 || digits < -15 ||
        (!up && !down && !jv_is(method, "common"))) {
        jx_fail(x, "round needs a number and common, ceil or floor");
        return v;
    }
    double f = jv_number(v), scale = pow(10, (double)digits);
    /* Python's ceil() and floor() give integers, which have no -0; adding 0.0 makes -0.0 a 0.0. */
    if (up || down)
        return jv_float((up ? ceil(f * scale) : floor(f * scale)) / scale + 0.0);
    if (v.kind != JV_FLOAT && digits >= 0)
        return jv_int(v.kind == JV_INT ? v.i : v.b);
    if (v.kind != JV_FLOAT)
        return round_int(x, v.kind == JV_INT ? v.i : v.b, digits);
    if (digits < 0 || !isfinite(f))
        return jv_float(rint(f * scale) / scale);
    char text[NUMBER_TEXT];
    snprintf(text, sizeof(text), "%.*f", (int)digits, f); /* rounds the exact value */
    for (char *point = text; *point; point++)
        if (*point == ',') /* of a locale */
            *point = '.';
    number_read(text, &f);
    return jv_float(f);
}
