/* bpe_boundary.h - how tokens come about, and between which of them nothing ever merges. */
#ifndef TOKENIZER_BPE_BOUNDARY_H
#define TOKENIZER_BPE_BOUNDARY_H

#include "tokenizer/bpe/bpe.h"

/* For a vocabulary without affixes, from its merges by rank: how each token is made, in any text.
 * Other merges never happen.  parts are those that the view has, all zero; near is filled in as well.
 * false: not decided, because merges are out of order or memory ran out. */
bool bpe_boundary_find_parts(const struct bpe *b, const struct bpe_pair *merges, size_t n,
                             struct bpe_part *parts);

/* Whether nothing ever merges over the boundary of left and right, two tokens that can be made,
 * when nothing else is around. */
bool bpe_boundary_holds(const struct bpe *b, uint32_t left, uint32_t right);

#endif
