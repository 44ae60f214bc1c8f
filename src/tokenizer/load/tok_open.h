/* tok_open.h - files of a tokenizer: finding, identifying, mapping, sharing. */
#ifndef TOKENIZER_TOK_OPEN_H
#define TOKENIZER_TOK_OPEN_H

#include "tokenizer/load/hf_cache.h"
#include "tokenizer/tokenizer.h"

enum tok_format { TOK_JSON, TOK_RANKS, TOK_GGUF };

struct tok_files { /* "" when there is none */
    char main[HF_PATH], config[HF_PATH], chat_template[HF_PATH];
    enum tok_format format;
    uint8_t identity[32]; /* of paths, sizes and times: changes when a file does */
    uint8_t place[32];    /* of the paths alone */
    bool settled;         /* no file changed just now: the next change will have another time */
};

/* Files of a path (file or directory).  TINKER_ESTATE: none found. */
tinker_status tok_files_find(struct tok_files *f, const char *path, bool lenient,
                             tinker_error *err);

/* Load them, through the prebuilt file in `dir` (NULL: without one). */
tinker_tokenizer *tok_files_load(const struct tok_files *f, const char *dir, bool lenient,
                                 tinker_error *err);

/* Pattern and special tokens of a rank file, by its name and what stands beside it. */
tinker_status tiktoken_family_find(const struct tok_files *f, struct tok_source *source,
                                   struct arena *arena, tinker_error *err);

bool tok_files_same(const struct tok_files *f, bool lenient); /* as when they were found */

/* Prebuilt files.  NULL, silently, when there is no usable one. */
tinker_tokenizer *tok_prebuilt_open(const char *dir, const struct tok_files *f);
/* main and config: the bytes that the block was made from. */
void tok_prebuilt_write(const char *dir, const struct tok_files *f, const struct bpe_header *block,
                        struct tok_str main, struct tok_str config);

/* One object per identity while it is in use, and the last 32 beyond.  make() is called by one
 * thread at a time for an identity. */
tinker_tokenizer *tok_cache_load(const uint8_t identity[32],
                                 tinker_tokenizer *(*make)(void *state, tinker_error *err),
                                 void *state, tinker_error *err);

#endif
