/* sha256.h - SHA-256 and HMAC, for fingerprints and signed URLs. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#include "base/sha_blocks.h"

struct sha256 {
    struct sha_blocks b;
};
void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *p, size_t n);
void sha256_final(struct sha256 *s, uint8_t out[32]);
void hmac_sha256(const void *key, size_t nk, const void *p, size_t n, uint8_t out[32]);
void hex_encode(const uint8_t *p, size_t n, char *out); /* 2n characters and NUL */

#endif
