/* automaton.h - what automaton.c and vocabulary.c share. */
#ifndef GRAMMAR_AUTOMATON_H
#define GRAMMAR_AUTOMATON_H

#include "grammar/node.h"

/* Masks of states that were asked for; it belongs to the grammar, vocabulary.c fills it. */
struct mask_cache;
struct mask_cache **grammar_masks(struct grammar *g);
void mask_cache_free(struct mask_cache *m);

#endif
