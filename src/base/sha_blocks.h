/* sha_blocks.h - what SHA-1 and SHA-256 share: bytes in any pieces become blocks of 64. */
#ifndef BASE_SHA_BLOCKS_H
#define BASE_SHA_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

struct sha_blocks {
    uint32_t h[8];
    uint64_t n;
    uint8_t block[64];
    void (*compress)(uint32_t *h, const uint8_t *block);
};
void sha_blocks_update(struct sha_blocks *s, const void *p, size_t n);
void sha_blocks_final(struct sha_blocks *s, uint8_t *out, int bytes);

static inline uint32_t sha_read_be(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

#endif
