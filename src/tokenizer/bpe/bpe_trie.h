/* bpe_trie.h - making the trie of a vocabulary; bpe_trie_find() is in bpe.h. */
#ifndef TOKENIZER_BPE_TRIE_H
#define TOKENIZER_BPE_TRIE_H

#include "base/os.h"
#include "tokenizer/bpe/bpe.h"

struct bpe_word { /* a token, not empty, and the bytes it is found by */
    const unsigned char *p;
    uint32_t n, id;
    uint64_t head; /* the first 8 bytes, the first one highest, and zeros behind */
};

/* The trie of n different tokens, whose order is changed, as *n_cells cells in a new mapping, behind
 * `front` bytes that stay zero.  The mapping is as long as that.  false: no memory, or too many. */
bool bpe_trie_build(struct bpe_word *words, size_t n, size_t front, struct os_map *out,
                    size_t *n_cells);

#endif
