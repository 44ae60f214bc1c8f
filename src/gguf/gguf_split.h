/* gguf_split.h - the names that GGUF has for rules that cut text before byte pairs are merged. */
#ifndef GGUF_SPLIT_H
#define GGUF_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

/* What a name ("pre") stands for. */
struct gguf_split {
    const char *regex;
    bool digits; /* first every digit alone */
    bool nfc;    /* text is composed before */
    bool whole;  /* a piece that is a token is taken without merging */
    bool bos;    /* a beginning is added where the file does not say */
};

const struct gguf_split *gguf_split_find(const char *pre, size_t n); /* NULL: unknown */
/* The name for a regular expression as tokenizer.json has it; NULL: there is none. */
const char *gguf_split_name(const char *regex, size_t n, bool digits);

#endif
