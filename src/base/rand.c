/* rand.c - randomness: fast for jitter, counter-based for what must repeat.
 *
 * xoshiro256** (Blackman and Vigna, 2018) seeded through splitmix64; Philox4x32-10
 * (Salmon et al., SC 2011), whose outputs are part of what a seed promises and so
 * may never change. */
#include "base/rand.h"
#include <pthread.h>
#include <string.h>
#include "base/clock.h"
#include "base/os.h"

int rand_os(void *p, size_t n)
{
    return os_random(p, n);
}

void rng_seed(struct rng *r, uint64_t seed)
{
    /* splitmix64 spreads any seed, also 0 and 1, over the whole state. */
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        r->s[i] = z ^ (z >> 31);
    }
}

void rng_seed_os(struct rng *r)
{
    /* the all-zero state is the one the generator cannot leave */
    if (rand_os(r->s, sizeof r->s) != 0 || !(r->s[0] | r->s[1] | r->s[2] | r->s[3]))
        rng_seed(r, (uint64_t)clock_now_ns(clock_real()) ^ (uint64_t)(uintptr_t)r);
}

static uint64_t rotate_left64(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t rng_next(struct rng *r)
{
    uint64_t *s = r->s;
    uint64_t result = rotate_left64(s[1] * 5, 7) * 9; /* the "**" scrambler */
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left64(s[3], 45);
    return result;
}

double rng_uniform(struct rng *r)
{
    /* 53 bits are what a double has: every value of [0, 1) on that grid is equally likely. */
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

void philox4x32(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    /* Two 32 x 32 -> 64 bit products a round; their halves change places and are mixed with
     * the other words and the key, which grows by the golden ratio and sqrt(3) - 1. */
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double philox_uniform(uint64_t key, uint64_t counter)
{
    uint32_t w[4];
    philox4x32(key, counter, 0, w);
    uint64_t bits = (uint64_t)w[0] | (uint64_t)w[1] << 32;
    return (double)(bits >> 11) * 0x1p-53;
}

/* Random bytes fetched ahead, so that a name does not cost a system call.  Each is handed
 * out once and wiped; a forked child starts without its parent's. */
static _Thread_local struct {
    uint8_t bytes[512];
    size_t left;
} ahead;
static pthread_once_t ahead_once = PTHREAD_ONCE_INIT;

static void forget_ahead(void)
{
    ahead.left = 0;
}

static void register_rand_fork_handler(void)
{
    pthread_atfork(NULL, NULL, forget_ahead);
}

/* Hand out n <= 512 of them.  Each thread has its own, so there is no lock. */
static int take_random_ahead(uint8_t *p, size_t n)
{
    pthread_once(&ahead_once, register_rand_fork_handler);
    if (ahead.left < n) {
        if (rand_os(ahead.bytes, sizeof ahead.bytes) != 0)
            return -1;
        ahead.left = sizeof ahead.bytes;
    }
    ahead.left -= n;
    memcpy(p, ahead.bytes + ahead.left, n);
    memset(ahead.bytes + ahead.left, 0, n);
    return 0;
}

void rand_uuid(char out[37])
{
    uint8_t b[16];
    /* A system without randomness still gets names that differ. */
    if (take_random_ahead(b, sizeof b) != 0) {
        struct rng r;
        rng_seed_os(&r);
        uint64_t words[2] = { rng_next(&r), rng_next(&r) };
        memcpy(b, words, sizeof b);
    }
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40); /* version 4 */
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80); /* the RFC 4122 variant */
    char *p = out;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        *p++ = "0123456789abcdef"[b[i] >> 4];
        *p++ = "0123456789abcdef"[b[i] & 15];
    }
    *p = '\0';
}
