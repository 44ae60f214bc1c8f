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

static const char PAIRS[] = "00010203040506070809101112131415161718192021222324"
                            "25262728293031323334353637383940414243444546474849"
                            "50515253545556575859606162636465666768697071727374"
                            "75767778798081828384858687888990919293949596979899";

static int count_digits(uint64_t v)
{
    static const uint64_t tens[] = { 0,
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
                                     10000000000000000,
                                     100000000000000000,
                                     1000000000000000000,
                                     UINT64_C(10000000000000000000) };
    int bits = 64 - __builtin_clzll(v | 1);
    int n = bits * 1233 >> 12; /* log10(2) */
    return n + (v >= tens[n]);
}

/* The n digits of v at out, last pair first. */
static void put_digits(char *out, uint64_t v, int n)
{
    char *p = out + n;
    while (p - out >= 2) {
        p -= 2;
        memcpy(p, PAIRS + v % 100 * 2, 2);
        v /= 100;
    }
    if (p > out)
        *out = (char)('0' + v % 10);
}

size_t shortest_uint64(uint64_t v, char *out)
{
    int n = v ? count_digits(v) : 1;
    put_digits(out, v, n);
    return (size_t)n;
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

/* Shortest digits inside the rounding interval of c * 2^q; `closer` says that the
 * neighbour below is only half as far away.  hi and lo may be cut for float. */
static struct digits shortest(uint64_t c, int q, bool closer)
{
    bool even = (c & 1) == 0;
    int k = (q * 1262611 - (closer ? 524031 : 0)) >> 22; /* floor(log10(2^q)) */
    int h = q + power10_log2(-k) + 1;
    struct power10 g = powers10[-k - POWER10_FIRST];
    if (-k < -27 || -k > 55) { /* the table rounds down there, this wants up */
        g.lo++;
        g.hi += g.lo == 0;
    }
    uint64_t low = round_to_odd(g.hi, g.lo, (4 * c - 2 + closer) << h) + !even;
    uint64_t mid = round_to_odd(g.hi, g.lo, (4 * c) << h);
    uint64_t high = round_to_odd(g.hi, g.lo, (4 * c + 2) << h) - !even;
    uint64_t s = mid / 4;
    if (s >= 10) {
        uint64_t t = s / 10;
        bool down = low <= 40 * t, up = 40 * t + 40 <= high;
        if (down != up)
            return (struct digits){ t + up, k + 1 };
    }
    bool down = low <= 4 * s, up = 4 * s + 4 <= high;
    if (down != up)
        return (struct digits){ s + up, k };
    bool round_up = mid > 4 * s + 2 || (mid == 4 * s + 2 && (s & 1));
    return (struct digits){ s + round_up, k };
}

/* d.ddde-05 */
static size_t put_scientific(char *out, const char *text, int n, int exponent)
{
    char *p = out;
    *p++ = text[0];
    if (n > 1) {
        *p++ = '.';
        memcpy(p, text + 1, (size_t)n - 1);
        p += n - 1;
    }
    *p++ = 'e';
    *p++ = exponent < 0 ? '-' : '+';
    unsigned e = exponent < 0 ? (unsigned)-exponent : (unsigned)exponent;
    if (e < 10)
        *p++ = '0';
    return (size_t)(p - out) + shortest_uint64(e, p);
}

/* Lay out digits as Python does: fixed for 1e-4 <= v < 1e16, else scientific. */
static size_t put_number(char *out, struct digits d)
{
    char text[20];
    int n = count_digits(d.value), point = n + d.exp10; /* 0.text * 10^point */
    put_digits(text, d.value, n);
    while (n > 1 && text[n - 1] == '0')
        n--;
    if (point <= -4 || point > 16)
        return put_scientific(out, text, n, point - 1);
    if (point <= 0) {
        memcpy(out, "0.000", 5);
        memcpy(out + 2 - point, text, (size_t)n);
        return (size_t)(2 - point + n);
    }
    if (point >= n) {
        memcpy(out, text, (size_t)n);
        memset(out + n, '0', (size_t)(point - n));
        memcpy(out + point, ".0", 2);
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
        memcpy(out, "0.0", 3);
        return sign + 3;
    }
    if (q <= 0 && q > -53 && (c & ((UINT64_C(1) << -q) - 1)) == 0) /* a small integer */
        return sign + put_number(out, (struct digits){ c >> -q, 0 });
    return sign + put_number(out, shortest(c, q, closer));
}

size_t shortest_double(double v, char *out)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
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
