/* sha1.h - SHA-1, only to compare with what others name by it: git and who keeps its names.
 * It proves nothing against someone who means harm. */
#ifndef BASE_SHA1_H
#define BASE_SHA1_H

#include <stddef.h>
#include <stdint.h>

#include "base/sha_blocks.h"

struct sha1 {
    struct sha_blocks b;
};
void sha1_init(struct sha1 *s);
void sha1_update(struct sha1 *s, const void *p, size_t n);
void sha1_final(struct sha1 *s, uint8_t out[20]);

#endif
