/* split_block.c - see split_block.h.
 *
 * A block starts where a piece starts.  Bit i of every set is byte i, so "the one before" is a
 * shift to the left, and the first byte has nothing before it: what was there belongs to another
 * piece.  Whether a piece starts at byte i depends on no byte behind i + 1, except in a run of
 * white space, which is cut only when all of it is seen. */
#include "tokenizer/split/split_block.h"

#include <stdint.h>
#include <string.h>
#include "base/array.h"
#include "tokenizer/split/split_known.h"

enum { BLOCK = 64 };
/* For code that is compiled twice, once for each kind of processor. */
#define INLINE static inline __attribute__((always_inline))

#ifdef __x86_64__
#include <immintrin.h>

/* Which of the 64 bytes are what; high: not ASCII. */
struct block {
    uint64_t letter, upper, digit, space, newline, white, quote, slash, high;
};

/* Bytes from lo to hi, as all ones.  Signed comparison: bytes that are not ASCII are negative, so
 * they match no range of ours. */
static inline __m128i match_range_16(__m128i x, char lo, char hi)
{
    return _mm_and_si128(_mm_cmpgt_epi8(x, _mm_set1_epi8((char)(lo - 1))),
                         _mm_cmplt_epi8(x, _mm_set1_epi8((char)(hi + 1))));
}

static inline __m128i match_byte_16(__m128i x, char c)
{
    return _mm_cmpeq_epi8(x, _mm_set1_epi8(c));
}

static inline uint64_t move_mask(__m128i x, int at)
{
    return (uint64_t)(uint32_t)_mm_movemask_epi8(x) << at;
}

/* The sets of 64 bytes with SSE2, which every x86-64 has. */
static inline void read_block_16(struct block *b, const unsigned char *p)
{
    memset(b, 0, sizeof(*b));
    for (int i = 0; i < BLOCK; i += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        __m128i newline = _mm_or_si128(match_byte_16(x, '\n'), match_byte_16(x, '\r'));
        /* 0x20 is what a letter's two cases differ in */
        b->letter |= move_mask(match_range_16(_mm_or_si128(x, _mm_set1_epi8(0x20)), 'a', 'z'), i);
        b->upper |= move_mask(match_range_16(x, 'A', 'Z'), i);
        b->digit |= move_mask(match_range_16(x, '0', '9'), i);
        b->space |= move_mask(match_byte_16(x, ' '), i);
        b->newline |= move_mask(newline, i);
        b->white |= move_mask(match_range_16(x, '\t', '\r'), i);
        b->quote |= move_mask(match_byte_16(x, '\''), i);
        b->slash |= move_mask(match_byte_16(x, '/'), i);
        b->high |= move_mask(x, i);
    }
    b->white |= b->space;
}

#define WIDE __attribute__((target("avx512f,avx512bw,bmi,lzcnt")))

/* Bit i: byte i lies between the two. */
WIDE static inline uint64_t match_range_64(__m512i x, char lo, char hi)
{
    return _mm512_cmple_epu8_mask(_mm512_sub_epi8(x, _mm512_set1_epi8(lo)),
                                  _mm512_set1_epi8((char)(hi - lo)));
}

WIDE static inline uint64_t match_byte_64(__m512i x, char c)
{
    return _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(c));
}

/* read_block_16() where all of it fits into a register. */
WIDE static inline void read_block_64(struct block *b, const unsigned char *p)
{
    __m512i x = _mm512_loadu_si512(p);
    b->letter = match_range_64(_mm512_or_si512(x, _mm512_set1_epi8(0x20)), 'a', 'z');
    b->upper = match_range_64(x, 'A', 'Z');
    b->digit = match_range_64(x, '0', '9');
    b->space = match_byte_64(x, ' ');
    b->newline = match_byte_64(x, '\n') | match_byte_64(x, '\r');
    b->white = match_range_64(x, '\t', '\r') | b->space;
    b->quote = match_byte_64(x, '\'');
    b->slash = match_byte_64(x, '/');
    b->high = _mm512_movepi8_mask(x);
}

/* Starts of numbers: of their runs, and every third digit behind. */
INLINE uint64_t find_number_starts(uint64_t digit, bool three)
{
    if (!three)
        return digit;
    uint64_t starts = digit & ~(digit << 1);
    uint64_t third = digit & digit << 1 & digit << 2; /* of digits in a row, at least */
    for (uint64_t next = starts << 3 & third; next; next = next << 3 & third)
        starts |= next;
    return starts;
}

/* In a run with newlines a piece ends behind the last of them.  `after`: where the part behind a
 * newline starts; `plain`: white space that is no newline. */
INLINE uint64_t find_last_parts(uint64_t after, uint64_t plain, uint64_t white)
{
    uint64_t starts = 0;
    for (; after; after &= after - 1) {
        uint64_t first = after & -after;
        uint64_t behind = (plain + first) & ~plain; /* the carry stops behind the part */
        if (!(behind & white))
            starts |= first;
    }
    return starts;
}

/* The bits that are known to be right when the bytes from `hard` on are not known. */
INLINE uint64_t find_known_bits(int hard, uint64_t white)
{
    uint64_t seen = hard < BLOCK ? ((uint64_t)1 << hard) - 1 : UINT64_MAX;
    uint64_t others = seen & ~white;
    if (!(white & seen & ~(seen >> 1)))
        return seen >> 1;
    /* White space that may go on: only where it starts is known. */
    return others ? ((uint64_t)2 << (BLOCK - __builtin_clzll(others))) - 1 : 1;
}

/* Bit i: a piece starts there; only those that are known.  *hard: the first byte that needs the
 * matcher, BLOCK when there is none. */
INLINE uint64_t find_starts(const struct split_rules *r, const struct block *b, int *hard)
{
    /* punctuation and all else that is ASCII */
    uint64_t other = ~(b->letter | b->digit | b->white | b->high);
    uint64_t run = other & ~(other << 1); /* where runs of it start */
    /* newlines right behind punctuation belong to it */
    uint64_t tail = b->newline & other << 1;
    uint64_t ending = b->newline & ~(b->newline + tail);
    uint64_t white = b->white & ~ending, plain = white & ~b->newline;
    /* what goes before a word: the last white space, or one other that is alone */
    uint64_t lead = (plain | (run & ~(b->space << 1))) & b->letter >> 1;

    /* words, unless what leads them starts the piece; then these */
    uint64_t starts = b->letter & ~(b->letter << 1) & ~(lead << 1);
    if (r->cased) /* aB */
        starts |= b->upper & (b->letter & ~b->upper) << 1;
    starts |= lead | find_number_starts(b->digit, r->three);
    /* punctuation, with one space before it */
    starts |= (run & ~(b->space << 1)) | (b->space & run >> 1);
    /* runs of white space; the last of a run is left to what follows: \s+(?!\S) */
    starts |= white & ~(white << 1);
    starts |= plain & ~(white >> 1);
    starts |= find_last_parts(plain & (white & b->newline) << 1, plain, white);

    /* what only the matcher can tell */
    uint64_t odd = b->high;
    if (r->contract == CONTRACT_ALONE)
        odd |= b->quote & lead;
    if (r->contract == CONTRACT_IN_WORD)
        odd |= b->quote & b->letter << 1 & b->letter >> 1;
    if (r->slash)
        odd |= b->slash & ending << 1;
    *hard = odd ? __builtin_ctzll(odd) : BLOCK;
    return starts & find_known_bits(*hard, white);
}

/* Put the ends of the pieces that are known into ends; returns how many.  *stop: up to there the
 * matcher is needed. */
INLINE size_t cut_block(const struct split_rules *r, const unsigned char *p, const struct block *b,
                        const unsigned char **ends, size_t max, const unsigned char **stop)
{
    int hard;
    size_t n = 0;
    uint64_t starts = find_starts(r, b, &hard) & ~(uint64_t)1; /* p is known */
    if (hard < BLOCK)
        *stop = p + hard + 1;
    for (; starts && n < max; starts &= starts - 1)
        ends[n++] = p + __builtin_ctzll(starts);
    return n;
}

/* A block is worth its while when it starts with some ASCII. */
INLINE bool is_plain(const unsigned char *p, const unsigned char **stop)
{
    int high = _mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(const void *)p));
    if (high)
        *stop = p + 32 - __builtin_clz((unsigned)high);
    return high == 0;
}

typedef void read_fn(struct block *b, const unsigned char *p);

/* Blocks where they are of use, the matcher where not. */
INLINE size_t cut_many(split_fn *next, const struct split_rules *rules, const unsigned char *p,
                       const unsigned char *end, const unsigned char **starts, size_t max,
                       read_fn *read)
{
    size_t n = 0;
    const unsigned char *stop = p; /* up to here the matcher is asked */
    starts[0] = p;
    while (n < max && p < end) {
        size_t k = 0;
        if (rules && p >= stop && end - p >= BLOCK && is_plain(p, &stop)) {
            struct block b;
            read(&b, p);
            k = cut_block(rules, p, &b, starts + n + 1, max - n, &stop);
        }
        if (k == 0)
            starts[n + ++k] = next(p, end);
        n += k;
        p = starts[n];
    }
    return n;
}

WIDE static size_t cut_wide(split_fn *next, const struct split_rules *rules, const unsigned char *p,
                            const unsigned char *end, const unsigned char **starts, size_t max)
{
    return cut_many(next, rules, p, end, starts, max, read_block_64);
}

static size_t cut_narrow(split_fn *next, const struct split_rules *rules, const unsigned char *p,
                         const unsigned char *end, const unsigned char **starts, size_t max)
{
    return cut_many(next, rules, p, end, starts, max, read_block_16);
}

size_t split_many(split_fn *next, const struct split_rules *rules, const unsigned char *p,
                  const unsigned char *end, const unsigned char **starts, size_t max)
{
    bool wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("bmi");
    return (wide ? cut_wide : cut_narrow)(next, rules, p, end, starts, max);
}

#else

size_t split_many(split_fn *next, const struct split_rules *rules, const unsigned char *p,
                  const unsigned char *end, const unsigned char **starts, size_t max)
{
    size_t n = 0;
    (void)rules;
    for (starts[0] = p; n < max && p < end; starts[++n] = p)
        p = next(p, end);
    return n;
}

#endif

const struct split_rules *split_rules_of(split_fn *next)
{
    static const struct {
        split_fn *next;
        struct split_rules rules;
    } table[] = {
        { split_llama3, { .three = true, .contract = CONTRACT_ALONE } },
        { split_cl100k_possessive, { .three = true, .contract = CONTRACT_ALONE } },
        { split_qwen2, { .contract = CONTRACT_ALONE } },
        { split_qwen35, { .contract = CONTRACT_ALONE } },
        { split_o200k,
          { .cased = true, .slash = true, .three = true, .contract = CONTRACT_IN_WORD } },
        { split_tekken, { .cased = true, .slash = true, .contract = CONTRACT_NEVER } },
        { split_kimi, { .cased = true, .three = true, .contract = CONTRACT_IN_WORD } },
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].next == next)
            return &table[i].rules;
    return NULL;
}
