/* jinja_case.c - changing the case of text as Python's str does.
 *
 * Full mappings: one character may become several, and a sigma at the end of a word has a letter of
 * its own.  What utf8proc maps one to one is taken from there.  Pure functions. */
#include "base/array.h"
#include "jinja/jinja_value.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/utf8.h"
#include "unicode/unicode.h"

enum { SIGMA = 0x3a3, SMALL_SIGMA = 0x3c3, FINAL_SIGMA = 0x3c2, DOTTED_I = 0x130 };

/* Characters whose upper case is several: the unconditional part of Unicode's SpecialCasing.txt.
 * title NULL: the same as upper.  U+1F80 to U+1FAF are left out, because they follow a rule, see
 * put_upper().  Sorted by code point. */
static const struct special {
    uint32_t cp;
    const char *upper, *title;
} specials[] = {
    { 0xdf, "SS", "Ss" },
    { 0x149, "\xca\xbcN", NULL },
    { 0x1f0, "J\xcc\x8c", NULL },
    { 0x390, "\xce\x99\xcc\x88\xcc\x81", NULL },
    { 0x3b0, "\xce\xa5\xcc\x88\xcc\x81", NULL },
    { 0x587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82" },
    { 0x1e96, "H\xcc\xb1", NULL },
    { 0x1e97, "T\xcc\x88", NULL },
    { 0x1e98, "W\xcc\x8a", NULL },
    { 0x1e99, "Y\xcc\x8a", NULL },
    { 0x1e9a, "A\xca\xbe", NULL },
    { 0x1f50, "\xce\xa5\xcc\x93", NULL },
    { 0x1f52, "\xce\xa5\xcc\x93\xcc\x80", NULL },
    { 0x1f54, "\xce\xa5\xcc\x93\xcc\x81", NULL },
    { 0x1f56, "\xce\xa5\xcc\x93\xcd\x82", NULL },
    { 0x1fb2, "\xe1\xbe\xba\xce\x99", "\xe1\xbe\xba\xcd\x85" },
    { 0x1fb3, "\xce\x91\xce\x99", "\xe1\xbe\xbc" },
    { 0x1fb4, "\xce\x86\xce\x99", "\xce\x86\xcd\x85" },
    { 0x1fb6, "\xce\x91\xcd\x82", NULL },
    { 0x1fb7, "\xce\x91\xcd\x82\xce\x99", "\xce\x91\xcd\x82\xcd\x85" },
    { 0x1fbc, "\xce\x91\xce\x99", "\xe1\xbe\xbc" },
    { 0x1fc2, "\xe1\xbf\x8a\xce\x99", "\xe1\xbf\x8a\xcd\x85" },
    { 0x1fc3, "\xce\x97\xce\x99", "\xe1\xbf\x8c" },
    { 0x1fc4, "\xce\x89\xce\x99", "\xce\x89\xcd\x85" },
    { 0x1fc6, "\xce\x97\xcd\x82", NULL },
    { 0x1fc7, "\xce\x97\xcd\x82\xce\x99", "\xce\x97\xcd\x82\xcd\x85" },
    { 0x1fcc, "\xce\x97\xce\x99", "\xe1\xbf\x8c" },
    { 0x1fd2, "\xce\x99\xcc\x88\xcc\x80", NULL },
    { 0x1fd3, "\xce\x99\xcc\x88\xcc\x81", NULL },
    { 0x1fd6, "\xce\x99\xcd\x82", NULL },
    { 0x1fd7, "\xce\x99\xcc\x88\xcd\x82", NULL },
    { 0x1fe2, "\xce\xa5\xcc\x88\xcc\x80", NULL },
    { 0x1fe3, "\xce\xa5\xcc\x88\xcc\x81", NULL },
    { 0x1fe4, "\xce\xa1\xcc\x93", NULL },
    { 0x1fe6, "\xce\xa5\xcd\x82", NULL },
    { 0x1fe7, "\xce\xa5\xcc\x88\xcd\x82", NULL },
    { 0x1ff2, "\xe1\xbf\xba\xce\x99", "\xe1\xbf\xba\xcd\x85" },
    { 0x1ff3, "\xce\xa9\xce\x99", "\xe1\xbf\xbc" },
    { 0x1ff4, "\xce\x8f\xce\x99", "\xce\x8f\xcd\x85" },
    { 0x1ff6, "\xce\xa9\xcd\x82", NULL },
    { 0x1ff7, "\xce\xa9\xcd\x82\xce\x99", "\xce\xa9\xcd\x82\xcd\x85" },
    { 0x1ffc, "\xce\xa9\xce\x99", "\xe1\xbf\xbc" },
    { 0xfb00, "FF", "Ff" },
    { 0xfb01, "FI", "Fi" },
    { 0xfb02, "FL", "Fl" },
    { 0xfb03, "FFI", "Ffi" },
    { 0xfb04, "FFL", "Ffl" },
    { 0xfb05, "ST", "St" },
    { 0xfb06, "ST", "St" },
    { 0xfb13, "\xd5\x84\xd5\x86", "\xd5\x84\xd5\xb6" },
    { 0xfb14, "\xd5\x84\xd4\xb5", "\xd5\x84\xd5\xa5" },
    { 0xfb15, "\xd5\x84\xd4\xbb", "\xd5\x84\xd5\xab" },
    { 0xfb16, "\xd5\x8e\xd5\x86", "\xd5\x8e\xd5\xb6" },
    { 0xfb17, "\xd5\x84\xd4\xbd", "\xd5\x84\xd5\xad" },
};

/* Cased and not of category Lu, Ll, Lt: the properties Other_Lowercase and Other_Uppercase, such as
 * modifier letters, Roman numerals and circled letters. */
static const struct uni_range cased[] = {
    { 0xaa, 0xaa },       { 0xba, 0xba },       { 0x2b0, 0x2b8 },     { 0x2c0, 0x2c1 },
    { 0x2e0, 0x2e4 },     { 0x345, 0x345 },     { 0x37a, 0x37a },     { 0x1d2c, 0x1d6a },
    { 0x1d78, 0x1d78 },   { 0x1d9b, 0x1dbf },   { 0x2071, 0x2071 },   { 0x207f, 0x207f },
    { 0x2090, 0x209c },   { 0x2160, 0x217f },   { 0x24b6, 0x24e9 },   { 0x2c7c, 0x2c7d },
    { 0xa69c, 0xa69d },   { 0xa770, 0xa770 },   { 0xa7f8, 0xa7f9 },   { 0xab5c, 0xab5f },
    { 0x10780, 0x10780 }, { 0x10783, 0x10785 }, { 0x10787, 0x107b0 }, { 0x107b2, 0x107ba },
    { 0x1f130, 0x1f149 }, { 0x1f150, 0x1f169 }, { 0x1f170, 0x1f189 },
};

/* Case_Ignorable, beyond ASCII and not of category Mn, Me, Cf, Lm, Sk: the punctuation that stands
 * inside words, such as the middle dot and the apostrophes. */
static const uint32_t ignorable[] = { 0xb7,   0x387,  0x55f,  0x5f4,  0x2018, 0x2019, 0x2024,
                                      0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a };

/* The property Cased of Unicode, section 3.13: letters with case, and the table above. */
static bool is_cased(uint32_t cp)
{
    if (cp < 0x80)
        return (cp | 0x20) >= 'a' && (cp | 0x20) <= 'z';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           uni_in(cased, ARRAY_LEN(cased), cp);
}

/* The property Case_Ignorable of Unicode: marks, quotes and format characters do not end a word for
 * the rule of the sigma. */
static bool is_ignorable(uint32_t cp)
{
    if (cp < 0x80)
        return cp == '\'' || cp == '.' || cp == ':' || cp == '^' || cp == '`';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    for (size_t i = 0; i < ARRAY_LEN(ignorable); i++)
        if (ignorable[i] == cp)
            return true;
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK;
}

/* utf8proc maps valid characters to valid ones, so encoding cannot fail. */
static void put_code_point(struct buf *out, utf8proc_int32_t cp)
{
    char bytes[4];
    buf_append(out, bytes, (size_t)utf8_encode((uint32_t)cp, bytes));
}

/* The table is sorted by code point, hence bsearch(). */
static int compare_code_point(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = ((const struct special *)b)->cp;
    return (x > y) - (x < y);
}

/* Full upper or title case of one character: SpecialCasing.txt first, then the simple mapping. */
static void put_upper(struct buf *out, uint32_t cp, bool title)
{
    static const uint32_t bases[] = { 0x1f08, 0x1f28, 0x1f68 };
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    const struct special *s = NULL;
    if (cp >= 0x80)
        s = bsearch(&cp, specials, ARRAY_LEN(specials), sizeof(specials[0]), compare_code_point);
    if (s) {
        buf_puts(out, title && s->title ? s->title : s->upper);
    } else if (cp >= 0x1f80 && cp <= 0x1faf && !title) {
        /* Three rows of 16 for alpha, eta and omega with an iota below, small ones before capitals.
         * Both halves become the capital without it, and a capital iota of its own follows. */
        put_code_point(out, (utf8proc_int32_t)(bases[(cp - 0x1f80) / 16] + cp % 8));
        put_code_point(out, 0x399);
    } else {
        put_code_point(out, title ? utf8proc_totitle(c) : utf8proc_toupper(c));
    }
}

/* What stands around the character at hand, for the rule of the sigma. */
struct around {
    bool after_letter; /* the last character that counts is cased */
    struct jv_str rest;
};

/* The condition Final_Sigma of Unicode: a cased letter before, none after, ignorable ones skipped.
 */
static bool ends_word(const struct around *a)
{
    if (!a->after_letter)
        return false;
    for (size_t i = 0; i < a->rest.n;) {
        uint32_t cp;
        int len = utf8_decode(a->rest.s + i, a->rest.n - i, &cp);
        if (len == 0)
            return true;
        if (!is_ignorable(cp))
            return !is_cased(cp);
        i += (size_t)len;
    }
    return true;
}

/* One pass with two facts about what came before: does a word begin here, and was the last letter
 * that counts cased.
 *
 * str.title() begins a word after anything uncased, so "they're" becomes "They'Re"; the filter
 * (TEXT_WORDS) does not. str.title() and str.capitalize() use the title case of a first letter (a
 * ligature fi becomes "Fi"), the filter its upper case ("FI"), as do_title() calls upper(). */
void text_case(struct buf *out, struct jv_str s, enum text_case how)
{
    struct around around = { .after_letter = false };
    bool word_start = true;
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        int len = utf8_decode(s.s + i, s.n - i, &cp);
        if (len == 0) { /* an ill-formed byte is copied and changes no state */
            buf_putc(out, s.s[i++]);
            continue;
        }
        bool up = how == TEXT_UPPER || (how == TEXT_CAPITALIZE && i == 0) ||
                  ((how == TEXT_TITLE || how == TEXT_WORDS) && word_start);
        i += (size_t)len;
        /* ends_word() looks ahead in the rest, and only for a sigma. */
        around.rest = (struct jv_str){ s.s + i, s.n - i };
        if (up)
            put_upper(out, cp, how == TEXT_CAPITALIZE || how == TEXT_TITLE);
        /* The only character whose lower case is two: U+0130 is i and U+0307, a dot above. */
        else if (cp == DOTTED_I)
            buf_puts(out, "i\xcc\x87");
        else if (cp == SIGMA)
            put_code_point(out, ends_word(&around) ? FINAL_SIGMA : SMALL_SIGMA);
        else
            put_code_point(out, utf8proc_tolower((utf8proc_int32_t)cp));
        /* The title filter begins words after spaces, dashes and opening brackets only. */
        bool gap =
            text_is_space(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<';
        word_start = how == TEXT_WORDS ? gap : !is_cased(cp);
        if (up && how == TEXT_WORDS)
            around.after_letter = false; /* the filter lowers the rest of a word on its own */
        else if (!is_ignorable(cp))
            around.after_letter = is_cased(cp);
    }
}
