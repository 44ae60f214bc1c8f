/* sha_blocks.c - see sha_blocks.h. */
#include "base/sha_blocks.h"

#include <string.h>

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

void sha_blocks_final(struct sha_blocks *s, uint8_t *out, int bytes)
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
