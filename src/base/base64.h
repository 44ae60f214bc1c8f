/* base64.h - standard and URL-safe base64. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

void base64_encode(struct buf *out, const void *p, size_t n);    /* with padding */
void base64url_encode(struct buf *out, const void *p, size_t n); /* without padding */
/* Lenient as the reference: characters outside the alphabet are skipped, padding is
 * needed.  false: not decodable. */
bool base64_decode(struct buf *out, const char *s, size_t n);
bool base64url_decode(struct buf *out, const char *s, size_t n); /* padding optional */

#endif
