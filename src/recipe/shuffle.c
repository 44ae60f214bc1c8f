/* shuffle.c - the permutations of numpy.random.default_rng(seed).
 *
 * Python data sets are shuffled with them, so a run here meets its rows in the order in which the
 * cookbook meets them.  A seed is spread by SeedSequence over the state of PCG64 (XSL-RR 128/64);
 * permutation() is Fisher-Yates, with masked rejection of 32-bit draws. */
#include <tinker/recipe.h>

__extension__ typedef unsigned __int128 uint128;

enum { POOL = 4 };

struct pcg64 {
    uint128 state, increment;
    uint64_t spare; /* high half of the last draw */
    int has_spare;
};

/* The constants here and below are those of numpy's SeedSequence (after M. O'Neill's
 * seed_seq_fe). */
static uint32_t mix_hash(uint32_t v, uint32_t *constant, uint32_t multiplier)
{
    v ^= *constant;
    *constant *= multiplier;
    v *= *constant;
    return v ^ v >> 16;
}

static uint32_t mix_words(uint32_t x, uint32_t y)
{
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ r >> 16;
}

/* SeedSequence(seed).generate_state(8): a seed of 64 bits has at most two words. Every word of
 * the pool is mixed into every other, so that seeds 0, 1, 2 ... give unrelated streams. */
static void spread_seed(uint64_t seed, uint32_t out[2 * POOL])
{
    uint32_t pool[POOL] = { 0 }, a = 0x43b0d7e5, b = 0x8b51f9dd;
    for (int i = 0; i < POOL; i++)
        pool[i] = mix_hash(i < 2 ? (uint32_t)(seed >> 32 * i) : 0, &a, 0x931e8875);
    for (int s = 0; s < POOL; s++)
        for (int d = 0; d < POOL; d++)
            if (s != d)
                pool[d] = mix_words(pool[d], mix_hash(pool[s], &a, 0x931e8875));
    for (int i = 0; i < 2 * POOL; i++)
        out[i] = mix_hash(pool[i % POOL], &b, 0x58f38ded);
}

/* A linear congruential generator modulo 2^128; the multiplier is PCG's. */
static void advance_state(struct pcg64 *g)
{
    const uint128 multiplier = (uint128)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;
    g->state = g->state * multiplier + g->increment;
}

static uint128 join_words(const uint32_t *w)
{
    uint64_t high = w[0] | (uint64_t)w[1] << 32, low = w[2] | (uint64_t)w[3] << 32;
    return (uint128)high << 64 | low;
}

/* The stream (increment) must be odd for the full period. */
static void seed_generator(struct pcg64 *g, uint64_t seed)
{
    uint32_t w[2 * POOL];
    spread_seed(seed, w);
    *g = (struct pcg64){ .increment = join_words(w + 4) << 1 | 1 };
    advance_state(g);
    g->state += join_words(w);
    advance_state(g);
}

/* XSL-RR: both halves xored, rotated by the top six bits of the state. */
static uint64_t draw_64(struct pcg64 *g)
{
    advance_state(g);
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned by = (unsigned)(g->state >> 122);
    return x >> by | x << ((64 - by) & 63);
}

/* The low half of a draw, then its high half. */
static uint32_t draw_32(struct pcg64 *g)
{
    if (g->has_spare) {
        g->has_spare = 0;
        return (uint32_t)g->spare;
    }
    uint64_t v = draw_64(g);
    g->spare = v >> 32;
    g->has_spare = 1;
    return (uint32_t)v;
}

/* Uniform in [0, most].  A file has far fewer rows than 2^32. Masked rejection: draws of just
 * enough bits until one is in range, which is unbiased. */
static size_t draw_below(struct pcg64 *g, size_t most)
{
    uint64_t mask = most, v;
    for (int by = 1; by < 64; by *= 2)
        mask |= mask >> by;
    do
        v = (most >> 32 ? draw_64(g) : draw_32(g)) & mask;
    while (v > most);
    return (size_t)v;
}

/* Fisher-Yates from the end, in the order in which numpy draws. */
void tinker_permutation(uint64_t seed, size_t n, size_t *out)
{
    struct pcg64 g;
    seed_generator(&g, seed);
    for (size_t i = 0; i < n; i++)
        out[i] = i;
    for (size_t i = n; i-- > 1;) {
        size_t j = draw_below(&g, i), v = out[i];
        out[i] = out[j];
        out[j] = v;
    }
}
