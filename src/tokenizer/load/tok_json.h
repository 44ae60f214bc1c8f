/* tok_json.h - the tables of a tokenizer.json; see tok_json.c. */
#ifndef TOKENIZER_TOK_JSON_H
#define TOKENIZER_TOK_JSON_H

#include "tokenizer/tokenizer.h"

/* A block for tok_from_block(). */
tinker_status tok_build_json(const struct tok_source *source, struct os_map *block,
                             tinker_error *err);

#endif
