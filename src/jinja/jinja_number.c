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

enum { NUMBER_TEXT = 400 }; /* as many bytes as any number needs that is not a joke */

/* s without the underscores between its digits; false where one stands elsewhere, or s is long. */
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
    text[0] = '-';
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
    int64_t steps = v / unit, rest = v % unit < 0 ? -(v % unit) : v % unit;
    if (rest > unit - rest || (rest == unit - rest && steps % 2))
        steps += v < 0 ? -1 : 1;
    if (__builtin_mul_overflow(steps, unit, &out))
        jx_fail(x, "integer overflow");
    return jv_int(out);
}

/* Rounding of decimal digits must look at the exact binary value: round(2.675, 2) is 2.67. printf()
 * does; multiplying by a power of ten does not. Ties go to even. */
struct jv jinja_round(struct jx *x, struct jv v, int64_t digits, struct jv method)
{
    bool up = jv_is(method, "ceil"), down = jv_is(method, "floor");
    if (!jv_is_number(v) || digits > 15 || digits < -15 ||
        (!up && !down && !jv_is(method, "common"))) {
        jx_fail(x, "round needs a number and common, ceil or floor");
        return v;
    }
    double f = jv_number(v), scale = pow(10, (double)digits);
    if (up || down)
        return jv_float((up ? ceil(f * scale) : floor(f * scale)) / scale + 0.0); /* no -0.0 */
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
