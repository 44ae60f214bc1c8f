/* decimal.h - the text of a number, taken apart and rounded to binary.
 *
 * decimal_scan() checks the grammar of RFC 8259 and collects up to 19 digits;
 * decimal_double() and decimal_float() round to nearest, ties to even, always
 * exactly and whatever the locale.  A float is rounded once, not through double. */
#ifndef JSON_DECIMAL_H
#define JSON_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "eight digits are read as one word");

enum { DECIMAL_DIGITS = 19, DECIMAL_EXP_MAX = 1000000 };

/* Value: mantissa * 10^exp10; with `more`, plus less than one unit of the mantissa. */
struct decimal {
    uint64_t mantissa;
    int exp10;
    bool negative, more;
    const char *text, *end; /* where it was read: for what the mantissa cannot hold */
};

static inline bool decimal_is_digit(char c)
{
    return (unsigned char)(c - '0') <= 9;
}

/* Eight digit values in one word, first digit lowest: pairs, then fours, then all. */
static inline uint64_t decimal_eight(uint64_t word)
{
    word = word * 10 + (word >> 8);
    uint64_t even = (word & 0x000000ff000000ffu) * 0x000f424000000064u;
    uint64_t odd = (word >> 16 & 0x000000ff000000ffu) * 0x0000271000000001u;
    return (even + odd) >> 32;
}

/* Per byte: 0x80 where the word, digits turned to 0..9, holds something else.  Only
 * the first such byte is exact: carries go upwards. */
static inline uint64_t decimal_others(uint64_t word)
{
    return ((word + 0x7676767676767676u) | word) & 0x8080808080808080u;
}

/* Digits from p on into *m (which may wrap: the caller counts them).  Where they end
 * within a word is computed: lengths vary too much for a branch to be predicted. */
static inline const char *decimal_digits(const char *p, const char *end, uint64_t *m)
{
    static const uint32_t tens[8] = { 1, 10, 100, 1000, 10000, 100000, 1000000, 10000000 };
    uint64_t v = *m, word;
    while (end - p >= 8) {
        memcpy(&word, p, 8);
        word ^= 0x3030303030303030u;
        uint64_t other = decimal_others(word);
        if (!other) {
            v = v * 100000000 + decimal_eight(word);
            p += 8;
            continue;
        }
        int n = __builtin_ctzll(other) >> 3;
        if (n) {
            v = v * tens[n] + decimal_eight(word << (64 - 8 * n));
            p += n;
        }
        *m = v;
        return p;
    }
    for (; p < end && decimal_is_digit(*p); p++)
        v = v * 10 + (uint64_t)(*p - '0');
    *m = v;
    return p;
}

extern const uint64_t decimal_tens[17];

/* The same for the digits after the point, of which there are often 14 to 17. */
static inline const char *decimal_fraction(const char *p, const char *end, uint64_t *m)
{
    uint64_t low, high;
    if (end - p < 16)
        return decimal_digits(p, end, m);
    memcpy(&low, p, 8);
    memcpy(&high, p + 8, 8);
    low ^= 0x3030303030303030u;
    high ^= 0x3030303030303030u;
    uint64_t other = decimal_others(low), other_high = decimal_others(high);
    /* with the guard bit, eight digits count as seven: hence the correction */
    int n_low = __builtin_ctzll(other | UINT64_C(1) << 63) >> 3;
    int n_high = __builtin_ctzll(other_high | UINT64_C(1) << 63) >> 3;
    int n = other ? n_low : 8 + n_high + !other_high;
    if (n == 0)
        return p;
    unsigned __int128 both = ((unsigned __int128)high << 64 | low) << (128 - 8 * n);
    *m = *m * decimal_tens[n] + decimal_eight((uint64_t)both) * 100000000 +
         decimal_eight((uint64_t)(both >> 64));
    p += n;
    return n == 16 && p < end && decimal_is_digit(*p) ? decimal_digits(p, end, m) : p;
}

/* More than 19 digits were seen: count the significant ones, keep the first 19. */
void decimal_recount(struct decimal *d);

/* The exponent part at p, added to *exp10; NULL: malformed. */
const char *decimal_exponent(const char *p, const char *end, int *exp10);

/* Take the number at p apart.  Returns what follows it, or NULL when it is malformed. */
static inline const char *decimal_scan(const char *p, const char *end, struct decimal *d)
{
    d->text = p;
    d->negative = p < end && *p == '-';
    p += d->negative;
    const char *whole = p;
    uint64_t m = 0;
    /* one digit and the point, as in most weights and logprobs: a branch predicted
     * right is faster than a length computed */
    if (end - p >= 2 && p[1] == '.' && decimal_is_digit(*p))
        m = (uint64_t)(*p++ - '0');
    else
        p = decimal_digits(p, end, &m);
    ptrdiff_t n = p - whole;
    if (n == 0 || n > DECIMAL_EXP_MAX || (n > 1 && *whole == '0'))
        return NULL;
    int exp10 = 0;
    if (p < end && *p == '.') {
        const char *fraction = ++p;
        p = decimal_fraction(p, end, &m);
        ptrdiff_t places = p - fraction;
        if (places == 0 || places > DECIMAL_EXP_MAX)
            return NULL;
        exp10 = -(int)places;
        n += places;
    }
    d->mantissa = m;
    d->exp10 = exp10;
    d->more = false;
    if (p < end && (*p | 0x20) == 'e') {
        p = decimal_exponent(p, end, &d->exp10);
        if (!p)
            return NULL;
    }
    d->end = p;
    if (n > DECIMAL_DIGITS)
        decimal_recount(d);
    return p;
}

/* false: the magnitude is too large (*out is then an infinity). */
bool decimal_double(const struct decimal *d, double *out);
bool decimal_float(const struct decimal *d, float *out);

/* Exactly an integer in range, however written (3, 3.0, 30e-1); *fraction says
 * which of the two it was that failed. */
bool decimal_uint64(const struct decimal *d, uint64_t *magnitude, bool *fraction);

#endif
