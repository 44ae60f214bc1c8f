/* unicode_valid.c - how much of a text is UTF-8, fast: encoding checks every text it is given.
 *
 * With AVX2 32 bytes are checked at once.  All that can be wrong about two bytes in a row shows in
 * both halves of the first and the upper half of the second.  A table for each of the three says,
 * a bit a rule, which rules that half does not clear; a rule that none of them clears is broken.
 * Only what a third and a fourth byte must be depends on bytes farther back.  (The method: Keiser
 * and Lemire, "Validating UTF-8 in less than one instruction per byte", 2021.)  Where something is
 * wrong, and on other processors, the loop over characters finds the place. */
#include <string.h>
#include "base/utf8.h"
#include "unicode/unicode.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { CHUNK = 32 };
#define AVX2 __attribute__((target("avx2")))

/* Rules about two bytes. */
enum {
    LONE = 1,   /* a continuation byte behind ASCII */
    LACK = 2,   /* none behind a byte that starts a character */
    LONG2 = 4,  /* C0, C1: two bytes where one is enough */
    LONG3 = 8,  /* E0 80-9F: three where two are */
    SURR = 16,  /* ED A0-BF: surrogates */
    LARGE = 32, /* F4-FF 90-BF: beyond the last character */
    EDGE = 64,  /* F0 80-8F: four where three are; F5-FF 80-8F: beyond the last character */
    CONT = 128  /* two continuation bytes: right as the third or fourth byte and nowhere else */
};

/* What each half may break, where that is more than one rule. */
enum { UC = LACK | LONG2, UE = LACK | LONG3 | SURR, UF = LACK | LARGE | EDGE };
enum {
    ANY = LONE | LACK | CONT, /* for these the lower half does not matter */
    L0 = ANY | LONG2 | LONG3 | EDGE,
    L1 = ANY | LONG2,
    L4 = ANY | LARGE,
    OVER = ANY | LARGE | EDGE,
    LD = OVER | SURR
};
enum {
    NEXT = LONE | CONT | LONG2,
    N8 = NEXT | LONG3 | EDGE,
    N9 = NEXT | LONG3 | LARGE,
    NA = NEXT | SURR | LARGE
};
static const uint8_t first_upper[16] = { LONE, LONE, LONE, LONE, LONE, LONE, LONE, LONE,
                                         CONT, CONT, CONT, CONT, UC,   LACK, UE,   UF };
static const uint8_t first_lower[16] = { L0,   L1,   ANY,  ANY,  L4,   OVER, OVER, OVER,
                                         OVER, OVER, OVER, OVER, OVER, LD,   OVER, OVER };
static const uint8_t second_upper[16] = { LACK, LACK, LACK, LACK, LACK, LACK, LACK, LACK,
                                          N8,   N9,   NA,   NA,   LACK, LACK, LACK, LACK };

/* table[x] for each of 32 half bytes x. */
AVX2 static inline __m256i look_up_rules(const uint8_t table[16], __m256i halves)
{
    __m128i t = _mm_loadu_si128((const __m128i *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), halves);
}

/* The 32 bytes that end `back` before the end of chunk, which stands behind before. */
#define SHIFTED(before, chunk, back) \
    _mm256_alignr_epi8(chunk, _mm256_permute2x128_si256(before, chunk, 0x21), 16 - (back))

/* Not zero where something is wrong about the bytes of chunk, given those before it. */
AVX2 static inline __m256i find_errors(__m256i before, __m256i chunk)
{
    const __m256i half = _mm256_set1_epi8(15);
    __m256i first = SHIFTED(before, chunk, 1);
    __m256i pair = look_up_rules(first_lower, _mm256_and_si256(first, half));
    pair = _mm256_and_si256(
        pair, look_up_rules(first_upper, _mm256_and_si256(_mm256_srli_epi16(first, 4), half)));
    pair = _mm256_and_si256(
        pair, look_up_rules(second_upper, _mm256_and_si256(_mm256_srli_epi16(chunk, 4), half)));
    /* the upper bit: two before is E0 or more, or three before F0 or more */
    __m256i third = _mm256_subs_epu8(SHIFTED(before, chunk, 2), _mm256_set1_epi8(0xE0 - 0x80));
    __m256i fourth = _mm256_subs_epu8(SHIFTED(before, chunk, 3), _mm256_set1_epi8(0xF0 - 0x80));
    __m256i due = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8((char)CONT));
    return _mm256_xor_si256(pair, due);
}

/* n, or where a character starts up to which text[0..n) is UTF-8. */
AVX2 static size_t check_chunks(const char *text, size_t n)
{
    __m256i before = _mm256_setzero_si256();
    bool plain = true;                       /* before is ASCII */
    for (size_t i = 0; i <= n; i += CHUNK) { /* zeros behind the end break off what it breaks off */
        __m256i chunk = _mm256_setzero_si256();
        if (n - i >= CHUNK)
            chunk = _mm256_loadu_si256((const __m256i *)(text + i));
        else
            memcpy(&chunk, text + i, n - i);
        bool was_plain = plain;
        plain = _mm256_movemask_epi8(chunk) == 0;
        if (!plain || !was_plain) {
            __m256i bad = find_errors(before, chunk);
            if (!_mm256_testz_si256(bad, bad)) {
                /* the error may have begun in the chunk before */
                while (i > 0 && (text[i - 1] & 0xC0) == 0x80)
                    i--;
                return i > 0 && (text[i - 1] & 0xC0) == 0xC0 ? i - 1 : i;
            }
        }
        before = chunk;
    }
    return n;
}

static size_t check_fast(const char *text, size_t n)
{
    return n >= CHUNK / 2 && __builtin_cpu_supports("avx2") ? check_chunks(text, n) : 0;
}
#else
static size_t check_fast(const char *text, size_t n)
{
    (void)text, (void)n;
    return 0;
}
#endif

/* Character by character, with shortcuts for ASCII and the commonest lengths. */
static size_t check_slow(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    while (end - p >= 8) {
        uint64_t word;
        memcpy(&word, p, sizeof(word));
        if (!(word & 0x8080808080808080u)) {
            p += 8;
        } else if (p[0] < 0x80) {
            p += __builtin_ctzll(word & 0x8080808080808080u) / 8;
        } else if (p[0] >= 0xC2 && p[0] < 0xE0 && (p[1] & 0xC0) == 0x80) {
            p += 2;
        } else if (p[0] > 0xE0 && p[0] < 0xF0 && p[0] != 0xED && (p[1] & 0xC0) == 0x80 &&
                   (p[2] & 0xC0) == 0x80) { /* E0 and ED have second bytes that are too much */
            p += 3;
        } else {
            uint32_t cp;
            int len = utf8_decode((const char *)p, (size_t)(end - p), &cp);
            if (len == 0)
                return (size_t)(p - (const unsigned char *)text);
            p += len;
        }
    }
    size_t done = (size_t)(p - (const unsigned char *)text);
    return done + utf8_valid_prefix((const char *)p, n - done);
}

size_t uni_valid_prefix(const char *text, size_t n)
{
    /* Where the fast way stopped something is wrong, or the fast way is not there. */
    size_t done = check_fast(text, n);
    return done + check_slow(text + done, n - done);
}
