/* bpe_reach.h - see bpe_reach.c. */
#ifndef TEXT_BPE_REACH_H
#define TEXT_BPE_REACH_H

#include "text/bpe.h"

/* For a vocabulary without affixes, from its merges by rank: reachable[id] for all ids, and used[k]
 * for all merges: whether it ever happens, in any text.  false: not decided, because the merges are
 * out of order or memory ran out. */
bool bpe_reach(const struct bpe *b, const struct bpe_pair *merges, size_t n, uint8_t *reachable,
               uint8_t *used);

#endif
