/* tok_json.h - the tables of a tokenizer.json; see tok_json.c. */
#ifndef TEXT_TOK_JSON_H
#define TEXT_TOK_JSON_H

#include "text/tokenizer.h"

/* A malloc'd block for tok_from_block(). */
tinker_status tok_build_json(const struct tok_source *source, struct bpe_header **block,
                             tinker_error *err);

#endif
