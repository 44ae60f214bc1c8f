/* draft.h - guess the next tokens of a text from its own past.
 *
 * Text that repeats itself (code, quotations, tables, JSON) continues after a phrase as it did the
 * last time.  The generator computes guessed tokens in the same step as the last known one, draws
 * each token as ever and goes on while the draw is the guess: so guesses change the time, and
 * neither tokens nor logprobs. */
#ifndef ENGINE_DRAFT_H
#define ENGINE_DRAFT_H

#include <stddef.h>
#include <stdint.h>

enum {
    DRAFT_MAX = 8,     /* tokens of one draft */
    DRAFT_PHRASE = 2,  /* tokens that must have occurred before */
    DRAFT_CONTEXT = 8, /* longer phrases count as equal */
    DRAFT_PAUSE = 32   /* tokens without drafts after one that failed */
};

/* How well the drafts of a sequence did; zeroed: not known yet. */
struct draft_state {
    size_t most;   /* tokens of the next one */
    size_t pause;  /* tokens to go without one */
    size_t failed; /* drafts in a row of which no token came */
};

/* draft = up to n tokens that followed the longest and latest occurrence of the end of tokens[0..len)
 * earlier in it; how many there are. */
size_t draft_tokens(const int32_t *tokens, size_t len, int32_t *draft, size_t n);

/* How many tokens to guess next, once for each step. */
size_t draft_length(struct draft_state *s);
/* Of a draft of n tokens the first `came` came. */
void draft_result(struct draft_state *s, size_t n, size_t came);

#endif
