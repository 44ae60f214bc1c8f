/* grammar.h - texts that a JSON schema allows, one byte after the other.
 *
 * A grammar has states; a byte leads from one to the next or nowhere.  From every state the end can
 * be reached.  States are made as they are needed and live as long as the grammar.
 *
 * What is generated is JSON on one line: one optional space after ':' and ',', members in the order
 * of `properties`, integers of at most 15 digits, exponents of at most two.  All of it is valid;
 * not everything that is valid can be generated.
 *
 * Thread safety: one thread at a time per grammar; a vocabulary is read only. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

struct grammar;

/* Compile schema[0..n).  NULL with *err set: TINKER_EINVAL names the keyword that is not supported or
 * makes no sense, TINKER_ENOMEM. */
struct grammar *grammar_from_schema(const char *schema, size_t n, tinker_error *err);

/* One call of one of several functions: before, its name as JSON, between, arguments as JSON, after. */
struct grammar_call {
    const char *name;
    const char *schema; /* NULL: any object */
    size_t n_schema;
};
struct grammar *grammar_from_calls(const struct grammar_call *calls, size_t n, const char *before,
                                   const char *between, const char *after, tinker_error *err);
void grammar_free(struct grammar *g);

enum { GRAMMAR_DEAD = -1, GRAMMAR_NO_MEMORY = -2 };

/* The state before the first byte; GRAMMAR_NO_MEMORY. */
int32_t grammar_start(struct grammar *g);
/* The state after one more byte; GRAMMAR_DEAD: it may not come; GRAMMAR_NO_MEMORY: also when the
 * grammar has more states than it may. */
int32_t grammar_next(struct grammar *g, int32_t state, unsigned char byte);
bool grammar_may_end(const struct grammar *g, int32_t state);  /* the text is complete */
bool grammar_must_end(const struct grammar *g, int32_t state); /* and nothing may follow */

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The bytes of a token, borrowed; NULL or n 0: it never comes (control tokens). */
typedef const char *vocabulary_bytes_fn(const void *state, int32_t token, size_t *n);

struct vocabulary;
struct vocabulary *vocabulary_new(size_t n_tokens, vocabulary_bytes_fn *bytes, const void *state,
                                  tinker_error *err);
void vocabulary_free(struct vocabulary *v);
size_t vocabulary_words(const struct vocabulary *v); /* of a mask: 64 tokens each */

/* Set the bits of the tokens that may follow in `state`, and clear all others.  false: no memory. */
bool grammar_mask(struct grammar *g, const struct vocabulary *v, int32_t state, uint64_t *mask);
/* The state after a token, as grammar_next(). */
int32_t grammar_next_token(struct grammar *g, const struct vocabulary *v, int32_t state,
                           int32_t token);

#endif
