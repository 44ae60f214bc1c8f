/* unicode_nfc.c - how much of a text is in normal form C already, fast: nearly all texts are.
 *
 * Only characters that start with certain bytes can be out of order, or other than composed.  With
 * AVX2 32 bytes are looked through at once for such; where there are none nothing is decoded. */
#include "unicode/unicode.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { CHUNK = 32 };
#define AVX2 __attribute__((target("avx2")))

/* Bytes that start a character of which the tables say something: a bit for each upper half of such
 * a byte, and with each lower half the bits of those that it goes with.  A test compares. */
enum { C = 1, D = 2, E = 4, F = 8 };
static const uint8_t upper[16] = { [12] = C, [13] = D, [14] = E, [15] = F };
static const uint8_t lower[16] = {
    [0] = E | F, [1] = E,  [2] = D | E, [3] = E,      [6] = D,      [7] = D,  [8] = D,
    [9] = D,     [10] = E, [11] = D,    [12] = C | D, [13] = C | D, [14] = C, [15] = D | E
};

/* table[x] for each of 32 half bytes x. */
AVX2 static inline __m256i look_up_starts(const uint8_t table[16], __m256i halves)
{
    __m128i t = _mm_loadu_si128((const __m128i *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), halves);
}

/* End of the chunks from p on without such bytes; p < end. */
AVX2 static const unsigned char *skip_chunks(const unsigned char *p, const unsigned char *end)
{
    const __m256i half = _mm256_set1_epi8(15);
    for (; end - p >= CHUNK; p += CHUNK) {
        __m256i x = _mm256_loadu_si256((const __m256i *)p);
        __m256i up = look_up_starts(upper, _mm256_and_si256(_mm256_srli_epi16(x, 4), half));
        if (!_mm256_testz_si256(up, look_up_starts(lower, _mm256_and_si256(x, half))))
            break;
    }
    return p;
}

static const unsigned char *skip_plain(const unsigned char *p, const unsigned char *end)
{
    return end - p >= CHUNK && __builtin_cpu_supports("avx2") ? skip_chunks(p, end) : p;
}
#else
enum { CHUNK = 32 };
static const unsigned char *skip_plain(const unsigned char *p, const unsigned char *end)
{
    (void)end;
    return p;
}
#endif

static inline bool is_continuation(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

size_t uni_nfc_prefix(const char *text, size_t n)
{
    /* safe: start of the last character that nothing before it combines with; last: class of the
     * character before p.  UAX 15, quick check: classes may not fall, 255 says "not NFC, or maybe
     * not". */
    const unsigned char *p = (const unsigned char *)text, *end = p + n, *safe = p;
    const unsigned char *stop = p; /* up to here characters are looked at one by one */
    unsigned last = 0;
    while (p < end) {
        if (p >= stop) {
            const unsigned char *q = skip_plain(p, end);
            stop = end - q > CHUNK ? q + CHUNK : end;
            /* Back to the start of the last character, forth to the start of the next. */
            if (q > p) { /* the last character of what was skipped may combine with the next */
                for (safe = q - 1; is_continuation(*safe); safe--)
                    ;
                for (last = 0; q < end && is_continuation(*q); q++)
                    ;
                p = q;
                continue;
            }
        }
        if (*p < 0xCC) { /* below U+0300 nothing combines and everything is composed */
            safe = p;
            last = 0;
            p += *p < 0x80 ? 1 : 2;
            continue;
        }
        unsigned len, class = uni_nfc_class(uni_decode(p, &len));
        if (class == 255 || (class && class < last))
            return (size_t)(safe - (const unsigned char *)text);
        if (class == 0)
            safe = p;
        last = class;
        p += len;
    }
    return n;
}
