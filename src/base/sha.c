/* sha.c - SHA-1 and SHA-256 (FIPS 180-4) and HMAC (RFC 2104); see sha.h.
 *
 * Both digests process blocks of 64 bytes and end with the same padding; they differ in the
 * function that compresses one block into the state. */
#include "base/sha.h"
#include <string.h>

/* ---- blocks ---------------------------------------------------------------------- */

/* Add n bytes; compress() sees whole blocks only. */
void sha_blocks_update(struct sha_blocks *s, const void *p, size_t n)
{
    const uint8_t *in = p;
    size_t held = s->n % 64;
    s->n += n;
    /* Complete the block that was begun before. */
    if (held) {
        size_t take = n < 64 - held ? n : 64 - held;
        if (take)
            memcpy(s->block + held, in, take);
        in += take;
        n -= take;
        if (held + take < 64)
            return;
        s->compress(s->h, s->block);
    }
    /* Whole blocks are read where they lie. */
    for (; n >= 64; in += 64, n -= 64)
        s->compress(s->h, in);
    if (n)
        memcpy(s->block, in, n);
}

/* Pad, compress the last block and write the first `bytes` of the state. */
static void finish_blocks(struct sha_blocks *s, uint8_t *out, int bytes)
{
    /* A one bit, zeros up to 56 of 64, and the length in bits, big-endian (FIPS 180-4, 5.1.1). */
    uint64_t bits = s->n * 8;
    uint8_t tail[72] = { 0x80 };
    size_t held = s->n % 64, zeros = (held < 56 ? 56 : 120) - held;
    for (int i = 0; i < 8; i++)
        tail[zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    sha_blocks_update(s, tail, zeros + 8);
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

static uint32_t read_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t rotate_right32(uint32_t x, int k)
{
    return x >> k | x << (32 - k);
}

/* ---- SHA-1 ----------------------------------------------------------------------- */

/* f_t(b, c, d) + K_t of FIPS 180-4, 4.1.1 and 4.2.1: choose, parity, majority, parity. */
static uint32_t mix_sha1(int round, uint32_t b, uint32_t c, uint32_t d)
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
        w[i] = read_be32(block + 4 * i);
    /* The message schedule, then 80 rounds (FIPS 180-4, 6.1.2).  Rotating right by 32 - k is the
     * standard's ROTL^k. */
    for (int i = 16; i < 80; i++)
        w[i] = rotate_right32(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 31);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < 80; i++) {
        uint32_t next = rotate_right32(a, 27) + mix_sha1(i, b, c, d) + e + w[i];
        e = d;
        d = c;
        c = rotate_right32(b, 2);
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
    finish_blocks(&s->b, out, 20);
}

/* ---- SHA-256 and HMAC ------------------------------------------------------------ */

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* One round; instead of moving eight words, the caller rotates their names. */
static inline void mix_sha256(uint32_t a, uint32_t b, uint32_t c, uint32_t *d, uint32_t e,
                              uint32_t f, uint32_t g, uint32_t *h, uint32_t kw)
{
    /* t = h + Sigma1(e) + Ch(e, f, g) + K + w; the new d and h, the rest only changes names. */
    uint32_t s1 = rotate_right32(e, 6) ^ rotate_right32(e, 11) ^ rotate_right32(e, 25);
    uint32_t s0 = rotate_right32(a, 2) ^ rotate_right32(a, 13) ^ rotate_right32(a, 22);
    uint32_t t = *h + s1 + (g ^ (e & (f ^ g))) + kw;
    *d += t;
    *h = t + s0 + ((a & b) | (c & (a | b)));
}

static void compress_sha256(uint32_t *state, const uint8_t *block)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = read_be32(block + 4 * i);
    /* The message schedule, then 64 rounds (FIPS 180-4, 6.2.2). */
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate_right32(w[i - 15], 7) ^ rotate_right32(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate_right32(w[i - 2], 17) ^ rotate_right32(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    /* Unrolled by eight: after eight rounds the names are where they began. */
    for (int i = 0; i < 64; i += 8) {
        mix_sha256(a, b, c, &d, e, f, g, &h, K[i] + w[i]);
        mix_sha256(h, a, b, &c, d, e, f, &g, K[i + 1] + w[i + 1]);
        mix_sha256(g, h, a, &b, c, d, e, &f, K[i + 2] + w[i + 2]);
        mix_sha256(f, g, h, &a, b, c, d, &e, K[i + 3] + w[i + 3]);
        mix_sha256(e, f, g, &h, a, b, c, &d, K[i + 4] + w[i + 4]);
        mix_sha256(d, e, f, &g, h, a, b, &c, K[i + 5] + w[i + 5]);
        mix_sha256(c, d, e, &f, g, h, a, &b, K[i + 6] + w[i + 6]);
        mix_sha256(b, c, d, &e, f, g, h, &a, K[i + 7] + w[i + 7]);
    }
    const uint32_t add[8] = { a, b, c, d, e, f, g, h };
    for (int i = 0; i < 8; i++)
        state[i] += add[i];
}

void sha256_init(struct sha256 *s)
{
    *s = (struct sha256){ .b = { .h = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                        0x9b05688c, 0x1f83d9ab, 0x5be0cd19 },
                                 .compress = compress_sha256 } };
}

void sha256_update(struct sha256 *s, const void *p, size_t n)
{
    sha_blocks_update(&s->b, p, n);
}

void sha256_final(struct sha256 *s, uint8_t out[32])
{
    finish_blocks(&s->b, out, 32);
}

void hmac_sha256(const void *key, size_t nk, const void *p, size_t n, uint8_t out[32])
{
    uint8_t block[64] = { 0 }, inner[32];
    struct sha256 s;
    /* A long key is hashed first, a short one padded with zeros (RFC 2104, 2). */
    if (nk > sizeof block) {
        sha256_init(&s);
        sha256_update(&s, key, nk);
        sha256_final(&s, block);
    } else if (nk) {
        memcpy(block, key, nk);
    }
    /* H(K ^ opad, H(K ^ ipad, text)) */
    for (size_t i = 0; i < sizeof block; i++)
        block[i] ^= 0x36;
    sha256_init(&s);
    sha256_update(&s, block, sizeof block);
    sha256_update(&s, p, n);
    sha256_final(&s, inner);
    for (size_t i = 0; i < sizeof block; i++)
        block[i] ^= 0x36 ^ 0x5c;
    sha256_init(&s);
    sha256_update(&s, block, sizeof block);
    sha256_update(&s, inner, sizeof inner);
    sha256_final(&s, out);
}

void hex_encode(const uint8_t *p, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = "0123456789abcdef"[p[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[p[i] & 15];
    }
    out[2 * n] = '\0';
}
