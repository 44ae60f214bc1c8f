/* scan.h - finding the bytes that matter, sixteen at a time where the machine can. */
#ifndef JSON_SCAN_H
#define JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A byte that may stand in a JSON string as it is and needs no other look. */
static inline bool scan_is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

#ifdef __SSE2__
#include <emmintrin.h>

/* First byte in p..end that is not plain. */
static inline const char *scan_plain(const char *p, const char *end)
{
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    const __m128i space = _mm_set1_epi8(0x20);
    for (; end - p >= 16; p += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
        __m128i special = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash));
        /* signed: below 0x20 catches control characters and everything from 0x80 on */
        special = _mm_or_si128(special, _mm_cmplt_epi8(v, space));
        int mask = _mm_movemask_epi8(special);
        if (mask)
            return p + __builtin_ctz((unsigned)mask);
    }
    while (p < end && scan_is_plain((unsigned char)*p))
        p++;
    return p;
}

/* Commas before the first ']' in p..end. */
static inline size_t scan_commas(const char *p, const char *end)
{
    const __m128i comma = _mm_set1_epi8(','), close = _mm_set1_epi8(']');
    const __m128i zero = _mm_setzero_si128();
    __m128i sum = zero; /* two counters of 64 bits */
    for (; end - p >= 16; p += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
        if (_mm_movemask_epi8(_mm_cmpeq_epi8(v, close)))
            break;
        __m128i ones = _mm_sub_epi8(zero, _mm_cmpeq_epi8(v, comma));
        sum = _mm_add_epi64(sum, _mm_sad_epu8(ones, zero));
    }
    uint64_t halves[2];
    _mm_storeu_si128((__m128i *)(void *)halves, sum);
    size_t n = (size_t)(halves[0] + halves[1]);
    for (; p < end && *p != ']'; p++)
        n += *p == ',';
    return n;
}

#else

static inline const char *scan_plain(const char *p, const char *end)
{
    while (p < end && scan_is_plain((unsigned char)*p))
        p++;
    return p;
}

static inline size_t scan_commas(const char *p, const char *end)
{
    size_t n = 0;
    for (; p < end && *p != ']'; p++)
        n += *p == ',';
    return n;
}

#endif
#endif
