/* sha.h - digests: SHA-256 and HMAC for fingerprints and signed URLs, SHA-1 for names given by git.
 *
 * SHA-1 is broken: use it only to compare with names that others made, never against an attacker.
 * Bytes may arrive in pieces of any size.  After _final the digest must be initialized again. */
#ifndef BASE_SHA_H
#define BASE_SHA_H

#include <stddef.h>
#include <stdint.h>

/* State shared by both digests. */
struct sha_blocks {
    uint32_t h[8];
    uint64_t n;        /* bytes so far */
    uint8_t block[64]; /* the n % 64 bytes that do not fill a block yet */
    void (*compress)(uint32_t *h, const uint8_t *block);
};
/* What sha1_update() and sha256_update() do, for code that handles either digest. */
void sha_blocks_update(struct sha_blocks *s, const void *p, size_t n);

struct sha1 {
    struct sha_blocks b;
};
void sha1_init(struct sha1 *s);
void sha1_update(struct sha1 *s, const void *p, size_t n);
void sha1_final(struct sha1 *s, uint8_t out[20]);

struct sha256 {
    struct sha_blocks b;
};
void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *p, size_t n);
void sha256_final(struct sha256 *s, uint8_t out[32]);

/* HMAC-SHA-256 of p[0..n) under key[0..nk). */
void hmac_sha256(const void *key, size_t nk, const void *p, size_t n, uint8_t out[32]);

/* p[0..n) as 2n lower-case characters and NUL. */
void hex_encode(const uint8_t *p, size_t n, char *out);

#endif
