/* shortest.c - number to text: Schubfach (R. Giulietti, "The Schubfach way to render
 * doubles", 2020), whose digits are then laid out as Python's repr does. */
#include "json/shortest.h"
#include <stdbool.h>
#include <string.h>
#include "json/powers.h"

typedef unsigned __int128 uint128;

struct digits {
    uint64_t value;
    int exp10;
};

/* The eight digits of v < 10^8 as byte values, first digit lowest: halves, then pairs,
 * then single digits, each split in all lanes at once by a multiplication that is
 * exact for the lane's range. */
static inline uint64_t split_eight_digits(uint32_t v)
{
    uint64_t x = v / 10000 | (uint64_t)(v % 10000) << 32;
    uint64_t hundreds = x * 10486 >> 20 & 0x0000007f0000007fu;
    x = hundreds | (x - 100 * hundreds) << 16;
    uint64_t tens = x * 103 >> 10 & 0x000f000f000f000fu;
    return tens | (x - 10 * tens) << 8;
}

/* v < 10^8 without leading zeros; writes eight bytes and returns how many count. */
static inline size_t put_small(char *out, uint32_t v)
{
    uint64_t x = split_eight_digits(v);
    int zeros = __builtin_ctzll(x | UINT64_C(1) << 56) >> 3; /* the last digit always counts */
    x = (x | 0x3030303030303030u) >> (8 * zeros);
    memcpy(out, &x, sizeof x);
    return 8 - (size_t)zeros;
}

static void put_eight(char *out, uint32_t v)
{
    uint64_t x = split_eight_digits(v) | 0x3030303030303030u;
    memcpy(out, &x, sizeof x);
}

/* Text is built in words of eight: memory for SHORTEST_MAX bytes is there. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "eight digits are written as one word");

size_t shortest_uint64(uint64_t v, char *out)
{
    enum { E8 = 100000000 };
    if (v < E8)
        return put_small(out, (uint32_t)v);
    uint64_t high = v / E8;
    size_t n = 0;
    if (high < E8) {
        n = put_small(out, (uint32_t)high);
    } else {
        n = put_small(out, (uint32_t)(high / E8));
        put_eight(out + n, (uint32_t)(high % E8));
        n += 8;
    }
    put_eight(out + n, (uint32_t)(v % E8));
    return n + 8;
}

size_t shortest_int64(int64_t v, char *out)
{
    if (v >= 0)
        return shortest_uint64((uint64_t)v, out);
    *out = '-';
    return 1 + shortest_uint64(0 - (uint64_t)v, out + 1);
}

/* floor(g * c / 2^128), with the lowest bit set when anything was lost. */
static uint64_t round_to_odd(uint64_t hi, uint64_t lo, uint64_t c)
{
    uint128 x = (uint128)lo * c, y = (uint128)hi * c + (uint64_t)(x >> 64);
    return (uint64_t)(y >> 64) | ((uint64_t)y > 1);
}

/* Shortest digits inside the rounding interval of v = c * 2^q; `closer` says that the neighbor
 * below is only half as far away, as it is at powers of two.
 *
 * With k = floor(log10(2^q)), the interval is at most ten and at least one unit of 10^k wide: so
 * among the multiples of 10^(k+1) at most one lies in it, and among those of 10^k at least one.
 * low, mid and high are the ends and the middle of the interval in quarters of 10^k, rounded to
 * odd, which keeps comparisons with multiples of four exact. */
static struct digits find_shortest(uint64_t c, int q, bool closer)
{
    bool even = (c & 1) == 0;
    int k = (q * 1262611 - (closer ? 524031 : 0)) >> 22; /* floor(log10(2^q)) */
    int h = q + power10_log2(-k) + 1;
    struct power10 g = powers10[-k - POWER10_FIRST];
    if (-k < -27 || -k > 55) { /* the table rounds down there, this wants up */
        g.lo++;
        g.hi += g.lo == 0;
    }
    /* The ends belong to the interval when c is even, because ties round to even. */
    uint64_t low = round_to_odd(g.hi, g.lo, (4 * c - 2 + closer) << h) + !even;
    uint64_t mid = round_to_odd(g.hi, g.lo, (4 * c) << h);
    uint64_t high = round_to_odd(g.hi, g.lo, (4 * c + 2) << h) - !even;
    uint64_t s = mid / 4;
    /* One digit less, if exactly one of the two candidates around v is inside. */
    if (s >= 10) {
        uint64_t t = s / 10;
        bool down = low <= 40 * t, up = 40 * t + 40 <= high;
        if (down != up)
            return (struct digits){ t + up, k + 1 };
    }
    bool down = low <= 4 * s, up = 4 * s + 4 <= high; /* all digits of 10^k */
    if (down != up)
        return (struct digits){ s + up, k };
    /* Both or none are inside: the one closer to v, ties to even. */
    bool round_up = mid > 4 * s + 2 || (mid == 4 * s + 2 && (s & 1));
    return (struct digits){ s + round_up, k };
}

/* Lay out digits as Python does: fixed for 1e-4 <= v < 1e16, else scientific. */
static size_t put_number(char *out, struct digits d)
{
    char text[SHORTEST_MAX];
    int n = (int)shortest_uint64(d.value, text), point = n + d.exp10; /* 0.text * 10^point */
    /* Zeros at the end carry no information; the point says how large the number is. */
    while (n > 1 && text[n - 1] == '0')
        n--;
    if (point <= -4 || point > 16) { /* d.ddde-05 */
        char *p = out;
        *p++ = text[0];
        if (n > 1) {
            *p++ = '.';
            memcpy(p, text + 1, (size_t)n - 1);
            p += n - 1;
        }
        int exponent = point - 1;
        *p++ = 'e';
        *p++ = exponent < 0 ? '-' : '+';
        unsigned e = exponent < 0 ? (unsigned)-exponent : (unsigned)exponent;
        if (e < 10)
            *p++ = '0';
        return (size_t)(p - out) + shortest_uint64(e, p);
    }
    if (point <= 0) { /* 0.000ddd */
        static const char zeros[] = { '0', '.', '0', '0', '0' };
        memcpy(out, zeros, sizeof zeros);
        memcpy(out + 2 - point, text, (size_t)n);
        return (size_t)n + 2 + (size_t)-point;
    }
    if (point >= n) { /* ddd000.0 */
        memcpy(out, text, (size_t)n);
        memset(out + n, '0', (size_t)(point - n));
        out[point] = '.';
        out[point + 1] = '0';
        return (size_t)point + 2;
    }
    memcpy(out, text, (size_t)point);
    out[point] = '.';
    memcpy(out + point + 1, text + point, (size_t)(n - point));
    return (size_t)n + 1;
}

/* The number with significand c (hidden bit included) and exponent q, or zero. */
static size_t put_binary(char *out, bool negative, uint64_t c, int q, bool closer)
{
    size_t sign = negative;
    if (negative)
        *out++ = '-';
    if (c == 0) {
        out[0] = out[2] = '0';
        out[1] = '.';
        return sign + 3;
    }
    if (q <= 0 && q > -53 && (c & ((UINT64_C(1) << -q) - 1)) == 0) /* a small integer */
        return sign + put_number(out, (struct digits){ c >> -q, 0 });
    return sign + put_number(out, find_shortest(c, q, closer));
}

size_t shortest_double(double v, char *out)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    /* v = c * 2^q: the hidden bit is there unless the exponent is 0 (subnormal). */
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t c = exponent ? fraction | UINT64_C(1) << 52 : fraction;
    return put_binary(out, bits >> 63, c, (exponent ? exponent : 1) - 1075,
                      fraction == 0 && exponent > 1);
}

size_t shortest_float(float v, char *out)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    uint32_t fraction = bits & ((UINT32_C(1) << 23) - 1);
    int exponent = (int)(bits >> 23 & 0xff);
    uint64_t c = exponent ? fraction | UINT32_C(1) << 23 : fraction;
    return put_binary(out, bits >> 31, c, (exponent ? exponent : 1) - 150,
                      fraction == 0 && exponent > 1);
}
