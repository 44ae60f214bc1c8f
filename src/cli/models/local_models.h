/* local_models.h - the models on this machine: what they are, what they take, whether they fit. */
#ifndef CLI_LOCAL_MODELS_H
#define CLI_LOCAL_MODELS_H

#include <stdbool.h>
#include <stdint.h>
#include "cli/models/model_dir.h"

struct local_model {
    char name[256];
    char dir[MODEL_DIR_MAX];
    const char *place; /* "bundled", "cache" or "directory" */
    char type[64];     /* model_type of config.json, general.architecture of GGUF */
    int64_t context, hidden, layers;
    int64_t weight_bytes; /* of *.safetensors, or of the tensors of GGUF files */
    bool has_tokenizer;
    /* of local_models_measure() */
    bool loads;
    char problem[512]; /* why it does not load; "": it does, or is not measured */
    int64_t weights, training, context_cache; /* bytes: in memory, to train, of a full context */
    int64_t trains, trains_q4; /* longest text that fits now, as stored and with q4 */
};

struct local_models {
    struct local_model *v;
    size_t n, cap;
};

/* All of them; clear with local_models_clear().  false: out of memory. */
bool local_models_find(struct local_models *out);
void local_models_clear(struct local_models *m);

/* What the files of one model say: a directory, or a GGUF file.  What they do not say stays 0. */
void local_models_read(const char *dir, struct local_model *out);

/* Asks the engine whether it loads, and what it takes: weights as stored, an adapter of rank 32 and
 * a text of 512 tokens.  Only headers of the files are read. */
void local_models_measure(struct local_model *m);
/* In a few words whether it fits into what is free now. */
enum { LOCAL_FIT_MAX = 96 };
const char *local_models_fit(const struct local_model *m, char text[LOCAL_FIT_MAX]);
/* The learning rate of the cookbook for LoRA, 0 when it has none for the family. */
double local_models_rate(const char *name, int64_t hidden);

#endif
