/* gunzip.h - gzip in memory, read piece by piece, up to a limit.
 *
 * Thread safety: one thread at a time. */
#ifndef CLIENT_GUNZIP_H
#define CLIENT_GUNZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

struct gunzip;

bool gunzip_is(const void *p, size_t n); /* does it begin as gzip does? */
/* p[0..n) stays the caller's and must live on.  NULL with *err set: TINKER_ENOMEM. */
struct gunzip *gunzip_open(const void *p, size_t n, uint64_t max, tinker_error *err);
void gunzip_close(struct gunzip *g);
/* The next n bytes to out; *got is less only at the end.  TINKER_EINVAL: damaged, cut off, or more
 * than max bytes come of it. */
tinker_status gunzip_read(struct gunzip *g, void *out, size_t n, size_t *got, tinker_error *err);

#endif
