/* exact.h - the slow, certain way to round a decimal text. */
#ifndef JSON_EXACT_H
#define JSON_EXACT_H

#include "json/decimal.h"

/* Bits (without sign) nearest to d in a binary format with `bits` explicit
 * significand bits and `inf` as its largest exponent code; near is a guess. */
uint64_t exact_round(const struct decimal *d, uint64_t near, int bits, int inf);

#endif
