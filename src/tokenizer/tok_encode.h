/* tok_encode.h - encoding one text; the public calls are thin around it. */
#ifndef TOKENIZER_TOK_ENCODE_H
#define TOKENIZER_TOK_ENCODE_H

#include "tokenizer/tokenizer.h"

/* Append the ids of text[0..n) to *out and, when spans is not NULL, where they came from.
 * On failure both are as before. */
tinker_status tok_encode(const tinker_tokenizer *t, struct tok_ctx *c, const char *text, size_t n,
                         const tinker_encode_options *o, tinker_tokens *out, tinker_spans *spans,
                         tinker_error *err);
tinker_status tok_encode_options(tinker_encode_options *ours, const tinker_encode_options *theirs,
                                 tinker_error *err);

#endif
