/* utf8.c - UTF-8, strictly, by the table of Unicode 15 section 3.9 (D92). */
#include "base/utf8.h"
#include <string.h>

static bool is_tail(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

/* The table of well-formed sequences (Unicode Standard, table 3-7), as comparisons. */
int utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    uint32_t c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xc2 || c > 0xf4)
        return 0; /* a tail, an overlong pair, or beyond U+10FFFF */
    if (n < 2 || !is_tail(p[1]))
        return 0;
    /* 110xxxxx 10xxxxxx */
    if (c < 0xe0) {
        *cp = (c & 0x1f) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (n < 3 || !is_tail(p[2]))
        return 0;
    /* 1110xxxx 10xxxxxx 10xxxxxx; neither overlong nor half of a surrogate pair */
    if (c < 0xf0) {
        uint32_t v = (c & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        *cp = v;
        return v < 0x800 || (v >= 0xd800 && v <= 0xdfff) ? 0 : 3;
    }
    if (n < 4 || !is_tail(p[3]))
        return 0;
    /* 11110xxx and three tails; neither overlong nor beyond U+10FFFF */
    uint32_t v = (c & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    *cp = v;
    return v < 0x10000 || v > 0x10ffff ? 0 : 4;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    for (;;) {
        /* Runs of ASCII eight bytes at a time: no byte has its top bit set. */
        for (uint64_t word; n - i >= 8; i += 8) {
            memcpy(&word, s + i, 8);
            if (word & 0x8080808080808080u)
                break;
        }
        while (i < n && (unsigned char)s[i] < 0x80)
            i++;
        if (i == n)
            return n;
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);
        if (!len)
            return i;
        i += (size_t)len;
    }
}

/* 6 bits per tail byte; the head byte has as many leading ones as there are bytes. */
int utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}
