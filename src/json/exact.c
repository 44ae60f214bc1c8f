/* exact.c - rounding by comparing big integers.
 *
 * A decimal N * 10^e lies above or below the middle of two neighbors,
 * (2c + 1) * 2^(q-1); bringing both sides to integers decides it without error.
 * Called for about one text in a million, and for texts of more than 19 digits that
 * sit next to a middle.  Sizes: N has at most 801 digits and the decimal is within
 * 10^-345 .. 10^310, so either side stays below 2^5000. */
#include "json/exact.h"

enum { LIMBS = 192, DIGITS_MAX = 800, MOST = 310, LEAST = -345 };

struct big {
    uint32_t limb[LIMBS]; /* least significant first */
    int n;
};

/* b = b * factor + add; no leading zero limbs, so that lengths can be compared. */
static void big_multiply_add(struct big *b, uint32_t factor, uint32_t add)
{
    uint64_t carry = add;
    for (int i = 0; i < b->n; i++) {
        carry += (uint64_t)b->limb[i] * factor;
        b->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry && b->n < LIMBS)
        b->limb[b->n++] = (uint32_t)carry;
}

static void big_shift_left(struct big *b, int k)
{
    for (; k >= 31; k -= 31)
        big_multiply_add(b, UINT32_C(1) << 31, 0);
    if (k > 0)
        big_multiply_add(b, UINT32_C(1) << k, 0);
}

/* All digits of the text as an integer N, and e so that the value is N * 10^e. */
static int read_digits(const struct decimal *d, struct big *n)
{
    int e = 0, kept = 0;
    bool fraction = false, more = false;
    const char *p = d->text + d->negative;
    n->n = 0;
    for (; p < d->end && (*p | 0x20) != 'e'; p++) {
        if (*p == '.') {
            fraction = true;
            continue;
        }
        /* Digits beyond 800 only say whether anything follows. */
        if (kept == DIGITS_MAX) {
            more = more || *p != '0';
            e += !fraction;
            continue;
        }
        kept += kept > 0 || *p != '0';
        big_multiply_add(n, 10, (uint32_t)(*p - '0'));
        e -= fraction;
    }
    if (more) { /* one more digit stands for all that follow: no middle has that many */
        big_multiply_add(n, 10, 1);
        e--;
    }
    if (p < d->end)
        decimal_exponent(p, d->end, &e);
    return e;
}

/* Compare the decimal n * 10^e with the middle between `code` and the next code. */
static int compare_middle(const struct big *n, int e, uint64_t code, int bits, int inf)
{
    uint64_t hidden = UINT64_C(1) << bits;
    int exponent = (int)(code >> bits);
    uint64_t c = (code & (hidden - 1)) | (exponent ? hidden : 0);
    int q = (exponent ? exponent : 1) - inf / 2 - bits - 1; /* of half a unit */
    struct big left = *n, right = { .n = 0 };
    /* 2c + 1 has up to 54 bits: the upper half, then the lower. */
    big_multiply_add(&right, 1, (uint32_t)((2 * c + 1) >> 32));
    big_shift_left(&right, 32);
    big_multiply_add(&right, 1, (uint32_t)(2 * c + 1));
    /* n * 10^e against (2c + 1) * 2^q: a negative power goes to the other side. */
    struct big *tens = e > 0 ? &left : &right;
    int ten = e > 0 ? e : -e;
    for (; ten >= 9; ten -= 9)
        big_multiply_add(tens, 1000000000, 0);
    for (; ten > 0; ten--)
        big_multiply_add(tens, 10, 0);
    big_shift_left(q > 0 ? &right : &left, q > 0 ? q : -q);
    if (left.n != right.n)
        return left.n < right.n ? -1 : 1;
    for (int i = left.n - 1; i >= 0; i--)
        if (left.limb[i] != right.limb[i])
            return left.limb[i] < right.limb[i] ? -1 : 1;
    return 0;
}

uint64_t exact_round(const struct decimal *d, uint64_t near, int bits, int inf)
{
    uint64_t infinite = (uint64_t)inf << bits, code = near < infinite ? near : infinite - 1;
    /* 10^magnitude <= value: beyond these bounds every format is 0 or infinite */
    int magnitude = d->exp10;
    for (uint64_t m = d->mantissa; m >= 10; m /= 10)
        magnitude++;
    if (magnitude > MOST)
        return infinite;
    if (magnitude < LEAST)
        return 0;
    struct big n;
    int e = read_digits(d, &n);
    /* The guess is at most one unit off, so this ends after a step or two. */
    for (;;) {
        int above = compare_middle(&n, e, code, bits, inf);
        if (above > 0 || (above == 0 && code & 1)) {
            if (++code == infinite)
                return code;
            continue;
        }
        if (code == 0)
            return code;
        int below = compare_middle(&n, e, code - 1, bits, inf);
        if (below > 0 || (below == 0 && !(code & 1)))
            return code;
        code--;
    }
}
