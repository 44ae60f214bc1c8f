/* draft.c - find the end of a text in its past; see draft.h. */
#include "engine/generate/draft.h"

/* How many tokens before `at` equal those before `len`, DRAFT_CONTEXT at most: places that agree
 * further back are no better guesses, and a text of one token over and over would make the search
 * quadratic. */
static size_t common_end(const int32_t *tokens, size_t at, size_t len)
{
    size_t n = 0;
    while (n < at && n < DRAFT_CONTEXT && tokens[at - 1 - n] == tokens[len - 1 - n])
        n++;
    return n;
}

/* One pass from the end: a few microseconds for thousands of tokens, which a step that takes
 * milliseconds does not notice, and no index to keep. */
size_t draft_tokens(const int32_t *tokens, size_t len, int32_t *draft, size_t n)
{
    /* Shorter matches than a phrase are chance.  Of equally long ones the most recent wins, because
     * the search goes backward and asks for more. */
    size_t best = DRAFT_PHRASE - 1, from = 0;
    for (size_t at = len; at-- > DRAFT_PHRASE && best < DRAFT_CONTEXT;) {
        if (tokens[at - 1] != tokens[len - 1])
            continue;
        size_t common = common_end(tokens, at, len);
        if (common > best) {
            best = common;
            from = at;
        }
    }
    if (from == 0) /* no match begins there: at stays above DRAFT_PHRASE */
        return 0;
    /* A text that repeats its end at once goes on with the draft itself: from "abcabc" the guess is
     * "abcabc...", although only three tokens follow the first "abc". */
    for (size_t i = 0; i < n; i++)
        draft[i] = from + i < len ? tokens[from + i] : draft[from + i - len];
    return n;
}

/* A pause is counted in steps that ask for a draft and get none.  The first draft of a text tries
 * half of the most; after a pause a single token finds out whether the text repeats itself again,
 * which costs little more than the step itself. */
size_t draft_length(struct draft_state *s)
{
    if (s->pause > 0) {
        s->pause--;
        return 0;
    }
    if (s->most == 0)
        s->most = DRAFT_MAX / 2;
    return s->most;
}

/* Twice as many after a draft that came as a whole, as many as came after one that did not, one more to
 * see whether it goes on; after failures longer and longer pauses. */
void draft_result(struct draft_state *s, size_t n, size_t came)
{
    if (came == n)
        s->most = s->most * 2 < DRAFT_MAX ? s->most * 2 : DRAFT_MAX;
    else
        s->most = came + 1;
    s->failed = came > 0 ? 0 : s->failed + 1;
    if (s->failed > 1) {
        s->most = 1;
        s->pause = s->failed < 5 ? (size_t)2 << s->failed : DRAFT_PAUSE;
    }
}
