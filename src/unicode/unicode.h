/* unicode.h - what kind of character, and normal forms, as the reference engine sees them.
 *
 * Classes are those of Unicode 16.0, normalization is that of Unicode 9.0: the versions that
 * the reference carries.  Text given here is valid UTF-8.  No state; thread-safe. */
#ifndef UNICODE_UNICODE_H
#define UNICODE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

enum {
    UNI_L = 1,   /* letter */
    UNI_N = 2,   /* number */
    UNI_M = 4,   /* mark */
    UNI_P = 8,   /* punctuation */
    UNI_S = 16,  /* symbol */
    UNI_WS = 32, /* White_Space */
    UNI_A = 64,  /* Lu Lt Lm Lo M: may start a capitalised word */
    UNI_B = 128  /* Ll Lm Lo M: may continue one */
};

struct uni_range {
    uint32_t first, last;
};
struct uni_new {
    uint32_t first, last;
    char category[3];
};

/* generated */
extern const char uni_version[];
extern const uint8_t uni_class_index[8704], uni_class_data[];
extern const uint8_t uni_nfc_index[8704], uni_nfc_data[];
extern const struct uni_range uni_late[], uni_han[]; /* younger than normalization; script Han */
extern const size_t uni_late_n, uni_han_n;
extern const struct uni_new uni_new_since_regex[]; /* younger than the oldest PCRE2 we meet */
extern const size_t uni_new_since_regex_n;

/* Flags of a code point, at most U+10FFFF. */
static inline unsigned uni_class(uint32_t cp)
{
    return uni_class_data[((unsigned)uni_class_index[cp >> 7] << 7) | (cp & 127)];
}

/* Decode one code point of text known to be valid; *n receives its length. */
static inline uint32_t uni_decode(const unsigned char *p, unsigned *n)
{
    if (p[0] < 0x80) {
        *n = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *n = 2;
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *n = 3;
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *n = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
           (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

bool uni_in(const struct uni_range *ranges, size_t n, uint32_t cp);
bool uni_is_word(uint32_t cp); /* Alphabetic, Mark, Nd, Pc, Join_Control: \w of the reference */

/* What decides about the normal form C: the combining class, or 255 where that is not enough. */
static inline unsigned uni_nfc_class(uint32_t cp)
{
    return uni_nfc_data[((unsigned)uni_nfc_index[cp >> 7] << 7) | (cp & 127)];
}
/* First byte of text[0..n), valid UTF-8, from which it may differ from its NFC form; n: it is NFC. */
size_t uni_nfc_prefix(const char *text, size_t n);

/* A character of a decomposed text. */
struct uni_part {
    uint32_t cp;
    uint8_t class; /* combining class: 0 for those younger than normalization */
    bool first;    /* stands for a character of the source; the others were added */
    bool used;     /* scratch of the composition */
};
enum { UNI_PARTS_MAX = 32 }; /* of one character; U+FDFA has 18 */
/* Decompose one character; younger ones are left alone.  Returns how many there are. */
int uni_decompose(uint32_t cp, bool compat, int32_t out[UNI_PARTS_MAX]);
/* The parts of text[0..n), n > 0, in canonical order; free() them.  NULL: out of memory. */
struct uni_part *uni_parts(const char *text, size_t n, bool compat, size_t *count);

enum uni_form { UNI_NFC, UNI_NFD, UNI_NFKC, UNI_NFKD };
/* Append the normal form of text[0..n) to out; false: out of memory. */
bool uni_normalize(struct buf *out, const char *text, size_t n, enum uni_form form);

/* Length of the prefix of text[0..n) that is UTF-8: utf8_valid_prefix(), faster on long text. */
size_t uni_valid_prefix(const char *text, size_t n);
/* Append text[0..n) with each maximal ill-formed part replaced by U+FFFD. */
void uni_repair(struct buf *out, const char *text, size_t n);
/* At text[0..n), where decoding failed: length of the maximal ill-formed part, and whether
 * more bytes could still have completed it (only then may it end the text). */
size_t uni_bad_part(const char *text, size_t n, bool *incomplete);

#endif
