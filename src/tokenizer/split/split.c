/* split.c - the table of known patterns.
 *
 * The texts are data: they must equal what stands in the files, byte for byte. */
#include "tokenizer/split/split.h"

#include <string.h>
#include "base/array.h"
#include "tokenizer/split/split_known.h"

/* Pieces that several families share, written as in their tokenizer.json. */
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LEAD         "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define UPPER_KIMI   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER_KIMI   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"

const char split_gpt2_pattern[] =
    CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char split_cl100k_pattern[] = "(?i:" CONTRACTIONS ")|" LEAD "\\p{L}+|\\p{N}{1,3}|"
                                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
const char split_o200k_pattern[] =
    LEAD UPPER "*" LOWER "+(?i:" CONTRACTIONS ")?|" LEAD UPPER "+" LOWER "*(?i:" CONTRACTIONS
               ")?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
const char split_kimi_pattern[] =
    "[\\p{Han}]+|" LEAD UPPER_KIMI "*" LOWER_KIMI "+(?i:" CONTRACTIONS ")?|" LEAD UPPER_KIMI
    "+" LOWER_KIMI "*(?i:" CONTRACTIONS ")?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;

/* Possessive forms (++, ?+) of a pattern match the same text unless noted by a matcher of their own:
 * nothing behind the repetition could have used what it would give back. */
static const struct {
    const char *pattern;
    split_fn *next;
} known[] = {
    { split_gpt2_pattern, split_gpt2 },
    { "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s",
      split_gpt2 },
    { split_cl100k_pattern, split_llama3 },
    { "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+|"
      " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
      split_cl100k_possessive },
    { "(?i:" CONTRACTIONS ")|" LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
      split_qwen2 },
    { "(?i:" CONTRACTIONS ")|" LEAD "[\\p{L}\\p{M}]+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
      split_qwen35 },
    { split_o200k_pattern, split_o200k },
    { LEAD UPPER "*" LOWER "+|" LEAD UPPER "+" LOWER
                 "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
      split_tekken },
    { split_kimi_pattern, split_kimi },
};

/* DeepSeek V3: digits, then Han and kana, then the rest. */
static const char *const deepseek[] = {
    "\\p{N}{1,3}",
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
};

/* Comparing whole texts is all that is needed: a pattern is looked up once per tokenizer. */
split_fn *split_known(const char *pattern, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i].pattern) == n && memcmp(known[i].pattern, pattern, n) == 0)
            return known[i].next;
    return NULL;
}

/* A chain is a Sequence of splits, each applied to the pieces of the one before; one function walks
 * the text once for all three. */
split_fn *split_known_chain(const char *const *patterns, const size_t *lengths, size_t n)
{
    if (n == 1)
        return split_known(patterns[0], lengths[0]);
    if (n != ARRAY_LEN(deepseek))
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (strlen(deepseek[i]) != lengths[i] || memcmp(deepseek[i], patterns[i], lengths[i]) != 0)
            return NULL;
    return split_deepseek;
}
