/* tok_gguf.h - the tokenizer that the metadata of a GGUF file describes. */
#ifndef TOKENIZER_TOK_GGUF_H
#define TOKENIZER_TOK_GGUF_H

#include "gguf/gguf.h"

/* The same tokenizer as texts of tokenizer.json and tokenizer_config.json, appended to two buffers.
 * TINKER_EINVAL: a kind or split that we do not know, by its name, or lists that do not fit
 * together. */
tinker_status tok_gguf_describe(const struct gguf *g, struct buf *json, struct buf *config,
                                tinker_error *err);

#endif
