/* shortest.h - the shortest text that reads back as the same number. */
#ifndef JSON_SHORTEST_H
#define JSON_SHORTEST_H

#include <stddef.h>
#include <stdint.h>

enum { SHORTEST_MAX = 32 }; /* bytes that any of these may write */

/* Texts as Python writes them: 1.0, 0.0001, 1e-05, 1e+16.  v must be finite.
 * Each returns how many bytes it wrote, no NUL. */
size_t shortest_double(double v, char *out);
size_t shortest_float(float v, char *out);
size_t shortest_uint64(uint64_t v, char *out);
size_t shortest_int64(int64_t v, char *out);

#endif
