/* gguf_scores.h - the scores that GGUF wants of SentencePiece's tokens, from a list of merges.
 *
 * SentencePiece joins the two neighbors whose result has the highest score.  A tokenizer.json made
 * of such a model has lost the scores: it lists every cut of every token into two others instead,
 * in the order of the scores.  That order is all that matters of them. */
#ifndef ENGINE_GGUF_SCORES_H
#define ENGINE_GGUF_SCORES_H

#include "base/arena.h"
#include "json/json.h"
#include <tinker/error.h>

/* The numbers of llama.cpp's token types. */
enum gguf_token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER,
    TOKEN_UNUSED,
    TOKEN_BYTE
};

struct gguf_token {
    struct json_str text; /* s NULL: a row of the embedding that no text has */
    enum gguf_token_type type;
};

/* scores (n) of tokens (n) from the "merges" of a tokenizer.json.  TINKER_EINVAL: the list is not
 * one that follows from scores, because it has some cuts of a token and not all. */
tinker_status gguf_scores(const struct gguf_token *tokens, size_t n, struct json_str merges,
                          struct arena *arena, float *scores, tinker_error *err);

/* The two parts of one merge, "left right" or a pair; false: neither. */
bool gguf_read_merge(struct json_reader *r, struct json_str part[2]);

#endif
