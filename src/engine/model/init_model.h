/* init_model.h - write a model directory with random weights.
 *
 * The start of pre-training, and the tiny models of tests: config.json,
 * generation_config.json, safetensors, and a byte-level tokenizer.json. */
#ifndef ENGINE_INIT_MODEL_H
#define ENGINE_INIT_MODEL_H

#include "engine/model/model.h"

struct init_model {
    struct model_config config;
    uint64_t seed;
    double embed_std; /* of the embedding (and an untied head) */
    double noise;     /* norms are 1 + noise * normal, biases noise * normal */
    enum source_dtype dtype;
    size_t shards; /* 1: model.safetensors; more: numbered files and an index */
};

/* A Qwen3 of 2 layers, hidden 64, 4 heads of 16 with 2 key/value heads, vocab 300. */
void init_model_defaults(struct init_model *o);
/* Architecture by its name in arch.c, with what follows from it; false: unknown. */
bool init_model_arch(struct init_model *o, const char *name);
/* dir is made if it does not exist. */
tinker_status init_model_write(const struct init_model *o, const char *dir, tinker_error *err);

/* tokenizer.json and tokenizer_config.json: token i is byte i, then three specials. */
enum { BYTE_TOKENS = 256, BYTE_END_OF_TEXT = 256, BYTE_IM_START, BYTE_IM_END, BYTE_VOCAB };
tinker_status init_tokenizer_write(const char *dir, size_t vocab, tinker_error *err);

#endif
