/* constraint.c - see constraint.h. */
#include "server/sampling/constraint.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "grammar/grammar.h"

struct constraint {
    struct grammar *grammar;             /* the job's */
    const struct vocabulary *vocabulary; /* of the base model */
    int32_t *ends;                       /* tokens that end a text, in any order */
    size_t n_ends, n;
    int32_t *states; /* of each sequence; negative: no text goes on from here, or no memory */
    uint64_t *masks; /* (n, words): the engine borrows one per sequence */
    size_t words;
};

/* Control tokens are text to a decoder only by accident: no grammar means them. */
static const char *text_token_bytes(const void *state, int32_t token, size_t *n)
{
    const tinker_tokenizer *t = state;
    return tinker_tokenizer_is_special(t, token) ? NULL : tinker_tokenizer_bytes(t, token, n);
}

struct constraint *constraint_new(struct base *base, struct grammar *grammar, const int32_t *ends,
                                  size_t n_ends, size_t n_sequences, tinker_error *err)
{
    /* A grammar is about text, and only the tokenizer knows the text of a token. */
    if (!base->tokenizer) {
        err_set(err, TINKER_EINVAL, "json_schema: this model has no tokenizer");
        return NULL;
    }
    /* Sorted once per model, when the first request needs it.  Only this thread makes and reads it,
     * so it needs no lock; server_close() frees it. */
    if (!base->vocabulary)
        base->vocabulary = vocabulary_new((size_t)tinker_engine_describe(base->engine)->vocab_size,
                                          text_token_bytes, base->tokenizer, err);
    if (!base->vocabulary)
        return NULL;
    struct constraint *c = calloc(1, sizeof(*c));
    int32_t start = grammar_start(grammar);
    if (c) {
        /* One bit per token, in words of 64. */
        c->words = vocabulary_words(base->vocabulary);
        c->ends = malloc((n_ends + 1) * sizeof(*c->ends));
        c->states = malloc(n_sequences * sizeof(*c->states));
        c->masks = calloc(n_sequences * c->words + 1, sizeof(*c->masks));
    }
    if (!c || !c->ends || !c->states || !c->masks || start < 0) {
        constraint_free(c);
        err_nomem(err, "a grammar");
        return NULL;
    }
    /* Borrowed from the job, which outlives its task. */
    c->grammar = grammar;
    c->vocabulary = base->vocabulary;
    if (n_ends)
        memcpy(c->ends, ends, n_ends * sizeof(*ends));
    c->n_ends = n_ends;
    c->n = n_sequences;
    for (size_t i = 0; i < n_sequences; i++)
        c->states[i] = start;
    return c;
}

void constraint_free(struct constraint *c)
{
    if (!c)
        return;
    free(c->ends);
    free(c->states);
    free(c->masks);
    free(c);
}

/* Before each token: bit t is set if token t may come.  The engine reads the mask before this
 * sequence's next call, so one array per sequence is enough.  Before the first token it asks for
 * one sequence and uses the answer for all: they begin in the same state. */
const uint64_t *constraint_mask(struct constraint *c, size_t sequence)
{
    uint64_t *mask = c->masks + sequence * c->words;
    int32_t state = c->states[sequence];
    /* Without memory no token may come, and the request fails. */
    if (state < 0 || !grammar_mask(c->grammar, c->vocabulary, state, mask)) {
        memset(mask, 0, c->words * sizeof(*mask));
        return mask;
    }
    /* End tokens that are control tokens have no bytes, so the grammar never sets their bits.  One
     * that is text as well is allowed by the same rule: only where the text is complete. */
    for (size_t i = 0; i < c->n_ends; i++) {
        /* An end token that is negative or beyond the vocabulary can never be sampled. */
        if (c->ends[i] < 0 || (size_t)c->ends[i] / 64 >= c->words)
            continue;
        size_t word = (size_t)c->ends[i] / 64;
        uint64_t bit = (uint64_t)1 << c->ends[i] % 64;
        mask[word] = grammar_may_end(c->grammar, state) ? mask[word] | bit : mask[word] & ~bit;
    }
    return mask;
}

/* 1: the text is over, because of an end token or since the grammar allows no more.  The engine
 * does not know the end tokens when the request has stop strings, so they are looked for here. */
int constraint_add_token(struct constraint *c, size_t sequence, int32_t token)
{
    for (size_t i = 0; i < c->n_ends; i++)
        if (c->ends[i] == token)
            return 1;
    int32_t *state = &c->states[sequence];
    *state = grammar_next_token(c->grammar, c->vocabulary, *state, token);
    return *state >= 0 && grammar_must_end(c->grammar, *state);
}
