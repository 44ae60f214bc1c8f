/* rand.h - randomness: fast for jitter, counter-based for what must repeat. */
#ifndef BASE_RAND_H
#define BASE_RAND_H

#include <stddef.h>
#include <stdint.h>

/* Bytes from the operating system; aborts never, returns 0 or -1. */
int rand_os(void *p, size_t n);

/* xoshiro256**; one per thread or under the owner's lock. */
struct rng {
    uint64_t s[4];
};
void rng_seed(struct rng *r, uint64_t seed);
void rng_seed_os(struct rng *r);
uint64_t rng_next(struct rng *r);
double rng_uniform(struct rng *r); /* [0, 1) */

/* Philox4x32-10: 4 words from a 64-bit key and a 128-bit counter, no state. */
void philox4x32(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4]);
/* 53-bit uniform in [0, 1) of (key, counter). */
double philox_uniform(uint64_t key, uint64_t counter);

/* Random version-4 UUID text, 36 characters and NUL. */
void rand_uuid(char out[37]);

#endif
