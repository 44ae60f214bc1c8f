/* split_known.h - one matcher per known pattern; see split.h.  Private to split*.c. */
#ifndef TOKENIZER_SPLIT_KNOWN_H
#define TOKENIZER_SPLIT_KNOWN_H

#include "tokenizer/split/split.h"

split_fn split_gpt2, split_llama3, split_cl100k_possessive, split_qwen2, split_qwen35, split_o200k,
    split_tekken, split_kimi, split_deepseek;

#endif
