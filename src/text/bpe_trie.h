/* bpe_trie.h - see bpe_trie.c. */
#ifndef TEXT_BPE_TRIE_H
#define TEXT_BPE_TRIE_H

#include "text/bpe.h"

struct bpe_word { /* a token, not empty, and the bytes it is found by */
    const unsigned char *p;
    uint32_t n, id;
    uint64_t head; /* set by bpe_trie_build() */
};

/* The trie of n tokens, whose order is changed, as *n_cells cells from malloc; NULL: no memory, or
 * too many. */
struct bpe_cell *bpe_trie_build(struct bpe_word *words, size_t n, size_t *n_cells);

#endif
