/* gguf_model.h - a GGUF file seen as a Hugging Face model: its config.json and its weights by name.
 *
 * What converters changed on the way to GGUF is undone here, so that the rest of the engine, and
 * every adapter, knows one order of rows and one set of names.  Thread safety: plain data. */
#ifndef ENGINE_GGUF_MODEL_H
#define ENGINE_GGUF_MODEL_H

#include "base/gguf.h"
#include "engine/model/model.h"

struct gguf_model {
    struct gguf file;
    struct buf config; /* the text of config.json */
    const struct gguf_family *family;
    size_t head_dim; /* set by whoever has read the config */
};

/* An architecture under its names here and there. */
struct gguf_family {
    const char *arch, *model_type, *hf_class; /* general.architecture, and of config.json */
    bool pairs; /* rows of q and k hold the two halves of each head interleaved */
};
const struct gguf_family *gguf_family_by_arch(const char *arch, size_t n);
/* NULL: we write no GGUF of it. */
const struct gguf_family *gguf_family_by_type(const char *model_type);
/* All names of architectures with ", " between them, cut to size. */
void gguf_list_families(char *out, size_t size);

/* TINKER_EINVAL: a wrong file, an architecture or a setting that we do not compute, a scale that is
 * not finite; the file and the key or tensor are named. */
tinker_status gguf_model_open(struct gguf_model *m, const char *path, tinker_error *err);
void gguf_model_close(struct gguf_model *m);
/* As engine_weight(). */
bool gguf_model_weight(const struct gguf_model *m, const char *name, size_t rows, size_t cols,
                       struct weight *out, tinker_error *err);

/* Name of a tensor in GGUF for one of Hugging Face: "model.layers.3.mlp.up_proj.weight" is
 * "blk.3.ffn_up.weight".  A matrix of an expert is part *expert of a stack; else that is -1.
 * false: there is none. */
bool gguf_tensor_name(const char *hf, char out[128], int64_t *expert);
/* The type of a tensor of ours in files, and back; false: not one that we compute with. */
bool gguf_source_dtype(uint32_t type, enum source_dtype *out);
uint32_t gguf_type_of(enum source_dtype dtype);

#endif
