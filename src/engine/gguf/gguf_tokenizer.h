/* gguf_tokenizer.h - the tokenizer of a model as GGUF metadata. */
#ifndef ENGINE_GGUF_TOKENIZER_H
#define ENGINE_GGUF_TOKENIZER_H

#include "gguf/gguf.h"
#include "engine/model/model.h"

/* Values for the tokenizer and chat template of the engine's model: those of its GGUF file, or from
 * the tokenizer.json, tokenizer_config.json and chat_template.jinja of its directory.
 * TINKER_EINVAL: a tokenizer that GGUF has no name for. */
tinker_status gguf_put_tokenizer(struct gguf_writer *w, const tinker_engine *e, tinker_error *err);

#endif
