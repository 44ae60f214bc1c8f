/* sha1.c - SHA-1 (FIPS 180-4); see sha1.h. */
#include "base/sha1.h"

static uint32_t rotate_left32(uint32_t x, int k)
{
    return x << k | x >> (32 - k);
}

/* f_t(b, c, d) + K_t of FIPS 180-4, 4.1.1 and 4.2.1: choose, parity, majority, parity. */
static uint32_t mix_round(int round, uint32_t b, uint32_t c, uint32_t d)
{
    if (round < 20)
        return ((b & c) | (~b & d)) + 0x5a827999;
    if (round < 40)
        return (b ^ c ^ d) + 0x6ed9eba1;
    if (round < 60)
        return ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc;
    return (b ^ c ^ d) + 0xca62c1d6;
}

static void compress_sha1(uint32_t *state, const uint8_t *block)
{
    uint32_t w[80];
    for (int i = 0; i < 16; i++)
        w[i] = sha_read_be(block + 4 * i);
    /* The message schedule, then 80 rounds (6.1.2). */
    for (int i = 16; i < 80; i++)
        w[i] = rotate_left32(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < 80; i++) {
        uint32_t next = rotate_left32(a, 5) + mix_round(i, b, c, d) + e + w[i];
        e = d;
        d = c;
        c = rotate_left32(b, 30);
        b = a;
        a = next;
    }
    /* Added to the state, so that a block cannot be computed backwards. */
    const uint32_t add[5] = { a, b, c, d, e };
    for (int i = 0; i < 5; i++)
        state[i] += add[i];
}

void sha1_init(struct sha1 *s)
{
    *s = (struct sha1){ .b = { .h = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0 },
                               .compress = compress_sha1 } };
}

void sha1_update(struct sha1 *s, const void *p, size_t n)
{
    sha_blocks_update(&s->b, p, n);
}

void sha1_final(struct sha1 *s, uint8_t out[20])
{
    sha_blocks_final(&s->b, out, 20);
}
