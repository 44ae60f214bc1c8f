/* hf_download.h - models from the Hugging Face Hub into the local cache. */
#ifndef CLI_HF_DOWNLOAD_H
#define CLI_HF_DOWNLOAD_H

#include <tinker/error.h>
#include "cli/models/model_dir.h"

/* Fetch what is missing of the files that serving a model needs, revision main, into the
 * cache that model_dir_cached() reads.  Goes on where an earlier attempt stopped and waits for
 * another process that fetches the same model; files are checked by the SHA-256 or the SHA-1
 * of git that the Hub tells.  HF_ENDPOINT, the token (hf_token.h) and the
 * variables of proxies count.  Blocks, with a bar on stderr.  Of a repository of GGUF files one
 * model, with all its parts: that of this quantization ("Q4_K_M"; NULL: a usual one, unless there
 * are safetensors). */
tinker_status hf_download_model(const char *id, const char *quant, tinker_error *err);
/* The same without weights: all that text needs to become tokens, from the repository and revision
 * where tinker_tokenizer_load() looks for it, which some models share or pin.  dir: where it is. */
tinker_status hf_download_tokenizer(const char *id, char dir[MODEL_DIR_MAX], tinker_error *err);

#endif
