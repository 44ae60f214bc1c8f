/* gguf_split.c - see gguf_split.h.  The expressions are those of the models' own tokenizer.json. */
#include "gguf/gguf_split.h"

#include <string.h>
#include "base/array.h"

/* Parts that several expressions share: English contractions; white space with line ends first, and
 * without the blank that belongs to the next word; letters that may begin or continue a word. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define ENDS         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* GPT-4o cuts "CamelCase" at the change of case; Tekken is the same without contractions and with
 * every digit alone. */
#define O200K(end, digits)                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
    "*" end "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" ENDS
#define LLAMA3(digits) \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" ENDS
/* The first of them; it has no rule for upper-case contractions. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

enum { LLAMA_BPE, QWEN2, QWEN35, GPT_2, STARCODER, GPT_4O, TEKKEN, SPLITS };
static const struct gguf_split splits[SPLITS] = {
    [LLAMA_BPE] = { .regex = LLAMA3("\\p{N}{1,3}"), .whole = true, .bos = true },
    [QWEN2] = { .regex = LLAMA3("\\p{N}"), .nfc = true },
    [QWEN35] = { .regex = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                                       "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" ENDS,
                 .nfc = true },
    [GPT_2] = { .regex = GPT2 },
    [STARCODER] = { .regex = GPT2, .digits = true },
    [GPT_4O] = { .regex = O200K(CONTRACTIONS "?", "\\p{N}{1,3}") },
    [TEKKEN] = { .regex = O200K("", "\\p{N}"), .whole = true, .bos = true },
};
/* Converters write the name of the model that first had an expression, or of the model itself. */
static const struct {
    const char *name;
    int split;
} pre_names[] = {
    { "llama-bpe", LLAMA_BPE }, { "llama3", LLAMA_BPE },    { "llama-v3", LLAMA_BPE },
    { "dbrx", LLAMA_BPE },      { "smaug-bpe", LLAMA_BPE }, { "qwen2", QWEN2 },
    { "qwen35", QWEN35 },       { "gpt-2", GPT_2 },         { "olmo", GPT_2 },
    { "phi-2", GPT_2 },         { "refact", STARCODER },    { "starcoder", STARCODER },
    { "smollm", STARCODER },    { "command-r", STARCODER }, { "codeshell", STARCODER },
    { "gpt-4o", GPT_4O },       { "tekken", TEKKEN },       { "granite-docling", GPT_2 },
};

/* An unknown name is refused by the caller: a guess would cut text in other places than training
 * did. */
const struct gguf_split *gguf_split_find(const char *pre, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(pre_names); i++)
        if (strlen(pre_names[i].name) == n && memcmp(pre_names[i].name, pre, n) == 0)
            return &splits[pre_names[i].split];
    return NULL;
}

/* The first name of several with one expression is the usual one. */
const char *gguf_split_name(const char *regex, size_t n, bool digits)
{
    for (size_t i = 0; i < ARRAY_LEN(pre_names); i++) {
        const struct gguf_split *s = &splits[pre_names[i].split];
        if (strlen(s->regex) == n && memcmp(s->regex, regex, n) == 0 && s->digits == digits)
            return pre_names[i].name;
    }
    return NULL;
}
