/* split_known.c - hand-written matchers for the patterns of split.c.
 *
 * Each follows its pattern alternative by alternative; a comment quotes the alternative.  A
 * pattern's first matching alternative wins, and greedy repetition gives back what a later part
 * needs: those are the only subtle points, and they are spelled out where they matter.  The
 * inline bodies take constants, so every pattern gets code of its own. */
#include "tokenizer/split/split_known.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "unicode/unicode.h"

/* Left to itself the compiler would take one copy for several patterns. */
#define INLINE static inline __attribute__((always_inline))

enum { END = 256 }; /* class of the place behind the last scalar */

struct scalar {          /* one code point */
    unsigned class, len; /* UNI_* flags, or END; bytes */
};

/* The scalar at p, or END. */
INLINE struct scalar read_scalar(const unsigned char *p, const unsigned char *end)
{
    if (p >= end)
        return (struct scalar){ END, 0 };
    if (*p < 0x80)
        return (struct scalar){ uni_class_data[*p], 1 }; /* block 0 comes first */
    struct scalar a;
    uint32_t cp = uni_decode(p, &a.len);
    a.class = uni_class(cp);
    return a;
}

static inline bool is_newline(unsigned char c)
{
    return c == '\r' || c == '\n';
}

/* Eight bytes at once: the high bit of each byte that is an ASCII character of lo..hi.  Both sums
 * stay below 256, so no byte disturbs the next. */
static inline uint64_t mark_range(uint64_t x, unsigned lo, unsigned hi)
{
    const uint64_t each = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t low = x & ~high;
    return (low + (0x80 - lo) * each) & ~(low + (0x7F - hi) * each) & ~x & high;
}

/* End of the run of ASCII letters, of lower case only or of any. */
INLINE const unsigned char *run_ascii(const unsigned char *p, const unsigned char *end, bool lower)
{
    while (end - p >= 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        uint64_t letters = mark_range(lower ? x : x | 0x2020202020202020u, 'a', 'z');
        uint64_t others = letters ^ 0x8080808080808080u;
        if (others)
            return p + __builtin_ctzll(others) / 8;
        p += 8;
    }
    while (p < end && (*p | (lower ? 0u : 0x20u)) >= 'a' && (*p | (lower ? 0u : 0x20u)) <= 'z')
        p++;
    return p;
}

/* End of the run of scalars that have one of the flags. */
INLINE const unsigned char *run_with(const unsigned char *p, const unsigned char *end,
                                     unsigned flags)
{
    for (;;) {
        if (flags & UNI_L) /* of ASCII, letters are all that a word is made of */
            p = run_ascii(p, end, false);
        while (p < end && *p < 0x80) {
            if (!(uni_class_data[*p] & flags))
                return p;
            p++;
        }
        if (p >= end)
            return p;
        unsigned len;
        do {
            if (!(uni_class(uni_decode(p, &len)) & flags))
                return p;
            p += len;
        } while (p < end && *p >= 0x80);
    }
}

/* End of the run of scalars that have none of the flags. */
INLINE const unsigned char *run_without(const unsigned char *p, const unsigned char *end,
                                        unsigned flags)
{
    for (struct scalar a = read_scalar(p, end); !(a.class & (flags | END)); a = read_scalar(p, end))
        p += a.len;
    return p;
}

/* [\r\n]* or [\r\n/]* */
INLINE const unsigned char *run_newlines(const unsigned char *p, const unsigned char *end,
                                         bool slash)
{
    while (p < end && (is_newline(*p) || (slash && *p == '/')))
        p++;
    return p;
}

/* \p{N}{1,max} at a number. */
INLINE const unsigned char *match_numbers(const unsigned char *p, const unsigned char *end, int max)
{
    for (int i = 0; i < max; i++) {
        struct scalar a = read_scalar(p, end);
        if (!(a.class & UNI_N))
            break;
        p += a.len;
    }
    return p;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d) at an apostrophe: its end, or NULL. */
INLINE const unsigned char *match_contraction(const unsigned char *p, const unsigned char *end,
                                              bool any_case)
{
    unsigned fold = any_case ? 0x20 : 0;
    if (end - p < 2)
        return NULL;
    unsigned a = p[1] | fold;
    if (any_case && p[1] >= 0x80) /* U+017F folds to s */
        return end - p >= 3 && p[1] == 0xC5 && p[2] == 0xBF ? p + 3 : NULL;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return p + 2;
    if (end - p < 3)
        return NULL;
    unsigned b = p[2] | fold;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return p + 3;
    return NULL;
}

/* Whitespace at p: \s*[\r\n]+ (when newlines), \s+(?!\S), \s+.
 * The first ends after the run's last newline; the second leaves the last scalar of the run to
 * what follows, unless the segment ends there. */
INLINE const unsigned char *match_spaces(const unsigned char *p, const unsigned char *end,
                                         bool newlines, bool end_first)
{
    const unsigned char *q = p, *last = p, *newline = NULL;
    for (struct scalar a = read_scalar(q, end); a.class & UNI_WS; a = read_scalar(q, end)) {
        last = q;
        if (newlines && is_newline(*q))
            newline = q + 1;
        q += a.len;
    }
    if (end_first && q == end)
        return q;
    if (newline)
        return newline;
    return q == end || last == p ? q : last;
}

const unsigned char *split_gpt2(const unsigned char *p, const unsigned char *end)
{
    if (*p == '\'') {
        const unsigned char *q = match_contraction(p, end, false);
        if (q)
            return q;
    }
    const unsigned char *start = p + (*p == ' '); /* " ?" of the next three */
    struct scalar a = read_scalar(start, end);
    if (a.class & UNI_L)
        return run_with(start + a.len, end, UNI_L);
    if (a.class & UNI_N)
        return run_with(start + a.len, end, UNI_N);
    if (!(a.class & (UNI_WS | END)))
        return run_without(start + a.len, end, UNI_WS | UNI_L | UNI_N);
    return match_spaces(p, end, false, false);
}

/* cl100k and its children; `word` is L, or L and M. */
INLINE const unsigned char *split_cl100k(const unsigned char *p, const unsigned char *end,
                                         unsigned word, int digits, bool end_first)
{
    struct scalar a = read_scalar(p, end);
    /* \p{L}+ : most pieces, so it is asked first; no earlier alternative starts with a letter */
    if (a.class & UNI_L)
        return run_with(p + a.len, end, word);
    if (*p == '\'') {
        const unsigned char *q = match_contraction(p, end, true);
        if (q)
            return q;
    }
    if (a.class & UNI_N)
        return match_numbers(p, end, digits);
    struct scalar b = read_scalar(p + a.len, end);
    /* [^\r\n\p{L}\p{N}]?\p{L}+ at something else: with the optional scalar, then (marks only) without it */
    if ((b.class & word) && !is_newline(*p))
        return run_with(p + a.len + b.len, end, word);
    if (a.class & word)
        return p + a.len;
    /* " ?[^\s\p{L}\p{N}]+[\r\n]*" */
    if (!(a.class & UNI_WS))
        return run_newlines(run_without(p + a.len, end, UNI_WS | word | UNI_N), end, false);
    if (*p == ' ' && !(b.class & (UNI_WS | UNI_L | UNI_N | END)))
        return run_newlines(run_without(p + 1, end, UNI_WS | word | UNI_N), end, false);
    return match_spaces(p, end, true, end_first);
}

const unsigned char *split_llama3(const unsigned char *p, const unsigned char *end)
{
    return split_cl100k(p, end, UNI_L, 3, false);
}

const unsigned char *split_cl100k_possessive(const unsigned char *p, const unsigned char *end)
{
    return split_cl100k(p, end, UNI_L, 3, true);
}

const unsigned char *split_qwen2(const unsigned char *p, const unsigned char *end)
{
    return split_cl100k(p, end, UNI_L, 1, false);
}

const unsigned char *split_qwen35(const unsigned char *p, const unsigned char *end)
{
    return split_cl100k(p, end, UNI_L | UNI_M, 1, false);
}

/* [..&&[^\p{Han}]]: with han, Han is neither A nor B.  A is what words begin with (UPPER of
 * split.c), B what they go on with (LOWER); letters without case are both. */
INLINE struct scalar read_not_han(const unsigned char *p, const unsigned char *end, bool han)
{
    struct scalar a = read_scalar(p, end);
    if (han && a.len > 1) {
        unsigned len;
        if (uni_in(uni_han, uni_han_n, uni_decode(p, &len)))
            a.class &= ~(unsigned)(UNI_A | UNI_B);
    }
    return a;
}

/* A*B+ at p: its end, or NULL.  When no B follows the run of A, it is given back up to the last
 * scalar that is both. */
INLINE const unsigned char *match_mixed_word(const unsigned char *p, const unsigned char *end,
                                             bool han)
{
    const unsigned char *both = NULL;
    struct scalar a;
    for (a = read_not_han(p, end, han); a.class & UNI_A; a = read_not_han(p, end, han)) {
        p += a.len;
        if (a.class & UNI_B)
            both = p;
    }
    if (!(a.class & UNI_B) || (a.class & END))
        return both;
    for (; (a.class & UNI_B) && !(a.class & END); a = read_not_han(p, end, han)) {
        p += a.len;
        if (a.len == 1) /* of ASCII, lower case is all of B */
            p = run_ascii(p, end, true);
    }
    return p;
}

/* A+B* at p, where A*B+ does not match: the run of A, or NULL. */
INLINE const unsigned char *match_upper_word(const unsigned char *p, const unsigned char *end,
                                             bool han)
{
    const unsigned char *q = p;
    for (struct scalar a = read_not_han(q, end, han); a.class & UNI_A;
         a = read_not_han(q, end, han))
        q += a.len;
    return q > p ? q : NULL;
}

/* o200k and its children. */
INLINE const unsigned char *split_cased(const unsigned char *p, const unsigned char *end,
                                        bool contract, int digits, bool slash, bool han)
{
    struct scalar a = read_scalar(p, end);
    bool lead = !(a.class & (UNI_L | UNI_N)) && !is_newline(*p);
    const unsigned char *q = NULL;
    /* In the order of the pattern: A*B+ with the optional scalar before it, without it; then A+B*
     * alike.  The first test spares the four where no word can be. */
    bool word = (a.class & (UNI_A | UNI_B)) ||
                (lead && (read_scalar(p + a.len, end).class & (UNI_A | UNI_B)));
    if (word && lead)
        q = match_mixed_word(p + a.len, end, han);
    if (word && !q)
        q = match_mixed_word(p, end, han);
    if (word && !q && lead)
        q = match_upper_word(p + a.len, end, han);
    if (word && !q)
        q = match_upper_word(p, end, han);
    if (q) {
        const unsigned char *tail =
            contract && q < end && *q == '\'' ? match_contraction(q, end, true) : NULL;
        return tail ? tail : q;
    }
    if (a.class & UNI_N)
        return match_numbers(p, end, digits);
    const unsigned char *start = p + (*p == ' ');
    struct scalar b = read_scalar(start, end);
    if (!(b.class & (UNI_WS | UNI_L | UNI_N | END)))
        return run_newlines(run_without(start, end, UNI_WS | UNI_L | UNI_N), end, slash);
    return match_spaces(p, end, true, false);
}

const unsigned char *split_o200k(const unsigned char *p, const unsigned char *end)
{
    return split_cased(p, end, true, 3, true, false);
}

const unsigned char *split_tekken(const unsigned char *p, const unsigned char *end)
{
    return split_cased(p, end, false, 1, true, false);
}

const unsigned char *split_kimi(const unsigned char *p, const unsigned char *end)
{
    const unsigned char *q = p;
    while (q < end && *q >= 0x80) { /* [\p{Han}]+ */
        unsigned len;
        if (!uni_in(uni_han, uni_han_n, uni_decode(q, &len)))
            break;
        q += len;
    }
    return q > p ? q : split_cased(p, end, true, 3, false, true);
}

/* The blocks of the second pattern: Han and kana. */
static inline bool is_cjk(const unsigned char *p, unsigned len)
{
    if (len != 3)
        return false;
    uint32_t cp = uni_decode(p, &len);
    return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

/* The first two patterns cut text into numbers, runs of Han and kana, and the rest; the third
 * sees each run (cjk) and each rest on its own, so what is of the other kind is its end. */
static inline struct scalar read_deepseek(const unsigned char *p, const unsigned char *end,
                                          bool cjk)
{
    struct scalar a = read_scalar(p, end);
    if ((a.class & UNI_N) || (a.class != END && is_cjk(p, a.len) != cjk))
        a.class = END;
    return a;
}

/* End of the run of scalars of this kind that have one of the flags. */
static inline const unsigned char *run_deepseek(const unsigned char *p, const unsigned char *end,
                                                bool cjk, unsigned flags)
{
    for (struct scalar a = read_deepseek(p, end, cjk); a.class & flags;
         a = read_deepseek(p, end, cjk)) {
        p += a.len;
        if ((flags & UNI_L) && a.len == 1)
            p = run_ascii(p, end, false);
    }
    return p;
}

/* match_spaces() of a rest.  A rest ends where a number or the other kind begins, and what is behind
 * its end does not exist for \s+(?!\S). */
static const unsigned char *match_spaces_deepseek(const unsigned char *p, const unsigned char *end)
{
    const unsigned char *q = run_deepseek(p, end, false, UNI_WS);
    bool at_end = read_deepseek(q, end, false).class == END;
    return match_spaces(p, at_end ? q : q + read_scalar(q, end).len, true, false);
}

static inline bool is_ascii_letter(unsigned char c)
{
    return (c | 0x20u) >= 'a' && (c | 0x20u) <= 'z';
}

/* The third pattern: end of the match at p, or NULL. */
static const unsigned char *match_deepseek(const unsigned char *p, const unsigned char *end,
                                           bool cjk, struct scalar a)
{
    struct scalar b = read_deepseek(p + a.len, end, cjk);
    /* [ASCII punctuation][A-Za-z]+ */
    if (*p < 0x80 && (a.class & (UNI_P | UNI_S)) && p + 1 < end && is_ascii_letter(p[1])) {
        for (p += 2; p < end && is_ascii_letter(*p);)
            p++;
        return p;
    }
    /* [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ */
    if (!(a.class & (UNI_L | UNI_P | UNI_S)) && !is_newline(*p) && (b.class & (UNI_L | UNI_M)))
        return run_deepseek(p + a.len, end, cjk, UNI_L | UNI_M);
    if (a.class & (UNI_L | UNI_M))
        return run_deepseek(p, end, cjk, UNI_L | UNI_M);
    /* " ?[\p{P}\p{S}]+[\r\n]*" */
    if (a.class & (UNI_P | UNI_S)) {
        const unsigned char *q = run_deepseek(p, end, cjk, UNI_P | UNI_S);
        return cjk ? q : run_newlines(q, end, false);
    }
    if (*p == ' ' && (b.class & (UNI_P | UNI_S)))
        return run_newlines(run_deepseek(p + 1, end, cjk, UNI_P | UNI_S), end, false);
    return a.class & UNI_WS ? match_spaces_deepseek(p, end) : NULL;
}

const unsigned char *split_deepseek(const unsigned char *p, const unsigned char *end)
{
    struct scalar a = read_scalar(p, end);
    if (a.class & UNI_N)
        return match_numbers(p, end, 3);
    bool cjk = is_cjk(p, a.len);
    const unsigned char *q = match_deepseek(p, end, cjk, a);
    if (q)
        return q;
    /* nothing matches here: the gap up to the next match is a piece */
    for (p += a.len;
         (a = read_deepseek(p, end, cjk)).class != END && !match_deepseek(p, end, cjk, a);)
        p += a.len;
    return p;
}
