/* powers.h - top 128 bits of the powers of ten, for reading and writing numbers. */
#ifndef JSON_POWERS_H
#define JSON_POWERS_H

#include <stdint.h>

enum { POWER10_FIRST = -342, POWER10_LAST = 324 };

struct power10 {
    uint64_t hi, lo; /* highest bit of hi is set */
};
extern const struct power10 powers10[POWER10_LAST - POWER10_FIRST + 1];

/* 2^k with k = this is the unit of the highest bit: floor(log2(10^e)). */
static inline int power10_log2(int e)
{
    return e * 1741647 >> 19;
}

#endif
