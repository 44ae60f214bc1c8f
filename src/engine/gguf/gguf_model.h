/* gguf_model.h - a GGUF file seen as a Hugging Face model: its config.json and its weights by name.
 *
 * What converters changed on the way to GGUF is undone here, so that the rest of the engine, and
 * every adapter, knows one order of rows and one set of names.  Thread safety: plain data. */
#ifndef ENGINE_GGUF_MODEL_H
#define ENGINE_GGUF_MODEL_H

#include "gguf/gguf.h"
#include "engine/model/model.h"
#include "json/json.h"

/* An architecture under its names here and there, and what files of it do not say. */
struct gguf_family {
    const char *arch, *model_type, *hf_class; /* general.architecture, and of config.json */
    bool experts, window; /* only files that have them; another row has the same arch */
    bool pairs;           /* rows of q and k hold the two halves of each head interleaved */
    bool norm_after;      /* post_attention_layernorm is post_attention_norm, not ffn_norm */
    bool keep_fraction;   /* yarn: truncate is false */
    size_t period;        /* every so many layers one does not slide; 0: no such layers */
    size_t large;         /* Gemma: with so many layers queries are scaled by hidden / heads */
    double local_theta;   /* of layers that slide; 0: that of all */
};
/* experts, window: whether the file has them. */
const struct gguf_family *gguf_family_by_arch(const char *arch, size_t n, bool experts,
                                              bool window);
/* NULL: we write no GGUF of it. */
const struct gguf_family *gguf_family_by_type(const char *model_type);
/* All names of architectures with ", " between them, cut to size. */
void gguf_list_families(char *out, size_t size);

/* The value heads of the delta rule stand in files as 0, n, 2n, ..., 1, n + 1, ... where n of them
 * share a key head; in models as 0, 1, 2, ... */
struct gguf_heads {
    size_t keys, values, key_dim, value_dim; /* keys 0: there are none */
};
/* Rows of a tensor, or columns, that are those of value heads: `skip` of others, then `size` of each
 * head.  size 0: the tensor is as it is. */
struct gguf_order {
    const struct gguf_heads *heads;
    size_t skip, size;
    bool columns;
};
struct gguf_order gguf_order_of(const struct gguf_heads *heads, const char *gguf_name);
/* Where row (or column) i of the model lies in the file. */
size_t gguf_order_place(const struct gguf_order *o, size_t i);

struct gguf_model {
    struct gguf file;
    struct buf config; /* the text of config.json */
    const struct gguf_family *family;
    size_t head_dim; /* this and heads: see gguf_model_configure() */
    struct gguf_heads heads;
};

/* TINKER_EINVAL: a wrong file, an architecture or a setting that we do not compute, a scale that is
 * not finite; the file and the key or tensor are named. */
tinker_status gguf_model_open(struct gguf_model *m, const char *path, tinker_error *err);
void gguf_model_close(struct gguf_model *m);
/* What weights depend on; for whoever has read the config, before asking for any. */
void gguf_model_configure(struct gguf_model *m, const struct model_config *c);
/* As engine_weight(). */
bool gguf_model_weight(const struct gguf_model *m, const char *name, size_t rows, size_t cols,
                       struct weight *out, tinker_error *err);

/* The type that gguf_model_weight() gives a matrix. */
bool gguf_model_dtype(const struct gguf_model *m, const char *name, enum source_dtype *out);

/* Write the text of config.json that the metadata of a family's file means. */
tinker_status gguf_put_config(struct json_writer *w, const struct gguf *g,
                              const struct gguf_family *f, tinker_error *err);

/* Name of a tensor in GGUF for one of Hugging Face: "model.layers.3.mlp.up_proj.weight" is
 * "blk.3.ffn_up.weight".  A matrix of an expert is part *expert of a stack; else that is -1.
 * false: there is none. */
bool gguf_tensor_name(const struct gguf_family *f, const char *hf, char out[128], int64_t *expert);
/* The type of a tensor of ours in files, and back; false: not one that we compute with. */
bool gguf_source_dtype(uint32_t type, enum source_dtype *out);
uint32_t gguf_type_of(enum source_dtype dtype);

#endif
