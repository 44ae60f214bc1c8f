/* hf_cache.h - which repository holds a model's tokenizer, and where that lies on this machine. */
#ifndef TOKENIZER_HF_CACHE_H
#define TOKENIZER_HF_CACHE_H

#include <tinker/tokenizer.h>

enum { HF_PATH = 4096 }; /* bytes of a path, with its NUL */

/* Directory of a repository's files in the Hugging Face cache.  revision NULL or "": the one
 * that was fetched as main.  hf_home NULL: from the environment.  TINKER_ESTATE when it is not
 * there, with how to get it. */
tinker_status hf_cache_find(const char *repo, const char *revision, const char *hf_home,
                            char out[HF_PATH], tinker_error *err);

#endif
