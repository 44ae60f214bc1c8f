/* gguf_metadata.h - what a GGUF file says of the model that is written into it. */
#ifndef ENGINE_GGUF_METADATA_H
#define ENGINE_GGUF_METADATA_H

#include "engine/gguf/gguf_model.h"

/* The general values of a file: "model" or "adapter", most of its matrices of this type. */
void gguf_put_kind(struct gguf_writer *w, const struct gguf_family *f, const char *type,
                   enum source_dtype dtype);
/* All values of a model's file, with its tokenizer.  TINKER_EINVAL: a setting, or a tokenizer, that
 * files of this architecture cannot say. */
tinker_status gguf_put_metadata(struct gguf_writer *w, const tinker_engine *e,
                                const struct gguf_family *f, enum source_dtype dtype,
                                tinker_error *err);

#endif
