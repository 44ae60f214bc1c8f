/* split_regex.h - patterns without a matcher of their own, by PCRE2 with JIT.
 *
 * The reference's dialect is Oniguruma's; a pattern is rewritten where PCRE2 would read it
 * differently, and refused when it uses something we do not rewrite.  A compiled pattern is
 * immutable and shared; a split_regex_ctx belongs to one thread. */
#ifndef TOKENIZER_SPLIT_REGEX_H
#define TOKENIZER_SPLIT_REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <tinker/error.h>

struct split_regex;
struct split_regex_ctx {
    void *match_data, *match_context, *jit_stack;
    bool no_memory; /* why matching failed last */
};

/* ruby: ^ and $ match at lines, as in tokenizer.json; otherwise at the ends of the text. */
struct split_regex *split_regex_new(const char *pattern, size_t n, bool ruby, tinker_error *err);
void split_regex_free(struct split_regex *r);
void split_regex_ctx_clear(struct split_regex_ctx *c);

/* First match in text[from..n), valid UTF-8: 1 and [*begin, *end), 0: none, -1: over the budget
 * or out of memory. */
int split_regex_find(const struct split_regex *r, struct split_regex_ctx *c, const char *text,
                     size_t n, size_t from, size_t *begin, size_t *end);
/* The error after -1; whose: "the pre-tokenizer's". */
tinker_status split_regex_failed(const struct split_regex_ctx *c, const char *whose,
                                 tinker_error *err);

/* All matches one after the other, starting from { 0, SIZE_MAX }: as above, but an empty one right
 * behind another does not count. */
struct split_place {
    size_t from, last;
};
int split_regex_next(const struct split_regex *r, struct split_regex_ctx *c, const char *text,
                     size_t n, struct split_place *at, size_t *begin, size_t *end);

#endif
