/* zstd.h - compressed bodies: one frame, level 3, content size in its header. */
#ifndef WIRE_ZSTD_H
#define WIRE_ZSTD_H

#include <stdbool.h>
#include <stddef.h>
#include <tinker/error.h>
#include "base/buf.h"

/* Has this build the library?  Without it everything below fails with TINKER_EINVAL. */
bool wire_zstd_available(void);

/* Append the compressed form of p[0..n). */
tinker_status wire_zstd_compress(const void *p, size_t n, struct buf *out, tinker_error *err);
/* Append the content of one or more frames, at most max bytes: TINKER_ENOMEM above
 * (checked before allocating when the header states the size), TINKER_EINVAL for
 * damaged or truncated input. */
tinker_status wire_zstd_decompress(const void *p, size_t n, size_t max, struct buf *out,
                                   tinker_error *err);

/* How many bytes the frames hold: as the header says, else found by decoding into nothing, which
 * takes time but no memory.  TINKER_ENOMEM: more than max, as *out is then, or no memory. */
tinker_status wire_zstd_content_size(const void *p, size_t n, size_t max, size_t *out,
                                     tinker_error *err);

#endif
