/* decimal.c - rounding a decimal to binary: Clinger's exact cases first, then the
 * 128-bit product of Eisel and Lemire ("Number parsing at a gigabyte per second",
 * 2021), and big integers (exact.c) for the few texts where that cannot decide. */
#include "json/decimal.h"
#include "json/exact.h"
#include "json/powers.h"

typedef unsigned __int128 uint128;

const uint64_t decimal_tens[17] = { 1,
                                    10,
                                    100,
                                    1000,
                                    10000,
                                    100000,
                                    1000000,
                                    10000000,
                                    100000000,
                                    1000000000,
                                    10000000000,
                                    100000000000,
                                    1000000000000,
                                    10000000000000,
                                    100000000000000,
                                    1000000000000000,
                                    10000000000000000 };

const char *decimal_exponent(const char *p, const char *end, int *exp10)
{
    p++;
    bool negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+'))
        p++;
    const char *digits = p;
    int e = 0;
    for (; p < end && decimal_is_digit(*p); p++)
        /* Beyond this every value is 0 or infinite, however many digits the exponent has. */
        if (e < DECIMAL_EXP_MAX)
            e = e * 10 + (*p - '0');
    if (p == digits)
        return NULL;
    *exp10 += negative ? -e : e;
    return p;
}

void decimal_recount(struct decimal *d)
{
    const char *p = d->text + d->negative;
    int kept = 0, dropped = 0;
    bool fraction = false, nonzero = false;
    uint64_t m = 0;
    int places = 0, all_places = 0;
    /* `places` counts digits behind the point that the mantissa has, `dropped` those before
     * it that it has not: either moves the exponent. */
    for (; p < d->end && (*p | 0x20) != 'e'; p++) {
        if (*p == '.') {
            fraction = true;
            continue;
        }
        all_places += fraction;
        if (kept == 0 && *p == '0') {
            places += fraction;
        } else if (kept < DECIMAL_DIGITS) {
            m = m * 10 + (uint64_t)(*p - '0');
            kept++;
            places += fraction;
        } else {
            dropped += !fraction && dropped < DECIMAL_EXP_MAX;
            nonzero = nonzero || *p != '0';
        }
    }
    d->mantissa = m;
    d->more = nonzero;
    d->exp10 += all_places - places + dropped;
}

/* Bits of the two formats, by what the rounding needs to know. */
struct format {
    int bits;              /* of the significand, without the hidden one */
    int min_exp;           /* exponent of the code 0 */
    int inf;               /* code of infinity */
    int even_lo, even_hi;  /* powers of ten between which exact ties exist */
    int smallest, largest; /* powers of ten beyond which all is 0 or infinite */
};
static const struct format DOUBLE = { .bits = 52,
                                      .min_exp = -1023,
                                      .inf = 0x7ff,
                                      .even_lo = -4,
                                      .even_hi = 23,
                                      .smallest = -342,
                                      .largest = 308 };
static const struct format FLOAT = { .bits = 23,
                                     .min_exp = -127,
                                     .inf = 0xff,
                                     .even_lo = -17,
                                     .even_hi = 10,
                                     .smallest = -64,
                                     .largest = 38 };

/* w * 10^q, w != 0, as the bits of the format without sign.  false: undecided, and
 * *out is within one unit of the truth.
 *
 * 10^q is hi.lo * 2^k with 128 bits of hi.lo in the table, so the significand of the result is in
 * the top bits of w * hi.lo, once w is shifted so that its highest bit is set.  Usually w * hi alone
 * has enough of them; only when all bits below the result are ones can a carry of w * lo reach
 * it.  The paper proves that 128 bits decide all cases but those where lo ends in ones, too. */
static inline __attribute__((always_inline)) bool eisel_lemire(uint64_t w, int q,
                                                               const struct format f, uint64_t *out)
{
    if (q < f.smallest) {
        *out = 0;
        return true;
    }
    if (q > f.largest) {
        *out = (uint64_t)f.inf << f.bits;
        return true;
    }
    /* The product has 127 or 128 bits: `upper` says which. */
    int lz = __builtin_clzll(w);
    w <<= lz;
    const struct power10 *pow = &powers10[q - POWER10_FIRST];
    uint128 product = (uint128)w * pow->hi;
    uint64_t hi = (uint64_t)(product >> 64), lo = (uint64_t)product;
    uint64_t mask = UINT64_MAX >> (f.bits + 3);
    /* Everything below the bits that matter is one: a carry from w * lo would reach them. */
    if ((hi & mask) == mask) {
        uint64_t below = (uint64_t)((uint128)w * pow->lo >> 64);
        lo += below;
        hi += lo < below;
    }
    /* The powers -27 to 55 are exact in the table, so the product is, too. */
    bool sure = lo != UINT64_MAX || (q >= -27 && q <= 55);
    int upper = (int)(hi >> 63), shift = upper + 64 - f.bits - 3;
    /* One bit more than the format has, for rounding. */
    uint64_t m = hi >> shift;
    int exponent = power10_log2(q) + 63 + upper - lz - f.min_exp;
    if (exponent <= 0) { /* subnormal, or nothing is left */
        m = 1 - exponent >= 64 ? 0 : m >> (1 - exponent);
        m = (m + (m & 1)) >> 1;
        *out = m; /* a carry into the hidden bit is the smallest normal number */
        return sure;
    }
    if (lo <= 1 && q >= f.even_lo && q <= f.even_hi && (m & 3) == 1 && m << shift == hi)
        m &= ~UINT64_C(1); /* an exact tie goes to the even neighbor */
    m = (m + (m & 1)) >> 1;
    if (m >> (f.bits + 1)) { /* 1.11…1 was rounded up to 10.0…0 */
        m >>= 1;
        exponent++;
    }
    if (exponent >= f.inf)
        *out = (uint64_t)f.inf << f.bits;
    else
        *out = (m & ~(UINT64_C(1) << f.bits)) | (uint64_t)exponent << f.bits;
    return sure;
}

/* With digits beyond the mantissa, the value lies between mantissa and mantissa + 1: when both round
 * to the same number, so does everything between.  Rare, and kept out of the way of the loop over
 * an array. */
static __attribute__((noinline)) uint64_t round_slowly(const struct decimal *d,
                                                       const struct format f)
{
    uint64_t below, above;
    bool sure = eisel_lemire(d->mantissa, d->exp10, f, &below);
    if (sure && eisel_lemire(d->mantissa + 1, d->exp10, f, &above) && above == below)
        return below;
    return exact_round(d, below, f.bits, f.inf);
}

static inline uint64_t round_decimal(const struct decimal *d, const struct format f)
{
    uint64_t bits;
    if (d->mantissa == 0)
        return 0;
    if (!d->more && eisel_lemire(d->mantissa, d->exp10, f, &bits))
        return bits;
    return round_slowly(d, f);
}

bool decimal_double(const struct decimal *d, double *out)
{
    static const double tens[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    /* both factors are exact in a double: one rounding, the right one */
    if (d->mantissa >> 53 == 0 && !d->more && d->exp10 >= -22 && d->exp10 <= 22) {
        double v = (double)d->mantissa;
        v = d->exp10 < 0 ? v / tens[-d->exp10] : v * tens[d->exp10];
        *out = d->negative ? -v : v;
        return true;
    }
    /* The sign is not part of the rounding: nearest, ties to even is symmetric. */
    uint64_t bits = round_decimal(d, DOUBLE);
    bool finite = bits >> 52 != 0x7ff;
    bits |= (uint64_t)d->negative << 63;
    memcpy(out, &bits, sizeof *out);
    return finite;
}

bool decimal_float(const struct decimal *d, float *out)
{
    uint32_t bits = (uint32_t)round_decimal(d, FLOAT);
    bool finite = bits >> 23 != 0xff;
    bits |= (uint32_t)d->negative << 31;
    memcpy(out, &bits, sizeof *out);
    return finite;
}

bool decimal_uint64(const struct decimal *d, uint64_t *magnitude, bool *fraction)
{
    uint64_t m = d->mantissa;
    int e = d->exp10;
    *fraction = false;
    /* 3.0 and 30e-1 are integers: take zeros from the end, and see whether a fraction is left. */
    for (; m && e < 0 && m % 10 == 0; e++)
        m /= 10;
    if (m && (e < 0 || (d->more && e <= 0))) {
        *fraction = true;
        return false;
    }
    for (; m && e > 0; e--)
        if (__builtin_mul_overflow(m, 10, &m))
            return false;
    *magnitude = m;
    if (!d->more)
        return true;
    /* Twenty digits may still fit: uint64 goes up to 18446744073709551615. */
    const char *p = d->text + d->negative;
    if (d->end - p != DECIMAL_DIGITS + 1)
        return false;
    for (m = 0; p < d->end; p++)
        if (!decimal_is_digit(*p) || __builtin_mul_overflow(m, 10, &m) ||
            __builtin_add_overflow(m, (uint64_t)(*p - '0'), &m))
            return false;
    *magnitude = m;
    return true;
}
