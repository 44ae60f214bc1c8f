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
};

struct local_models {
    struct local_model *v;
    size_t n, cap;
};

/* All of them; clear with local_models_clear().  false: out of memory. */
bool local_models_find(struct local_models *out);
void local_models_clear(struct local_models *m);

/* Memory that training takes: the weights as stored, an adapter and activations. */
int64_t local_models_need(const struct local_model *m);
/* The learning rate of the cookbook for LoRA, 0 when it has none for the family. */
double local_models_rate(const char *name, int64_t hidden);

#endif
