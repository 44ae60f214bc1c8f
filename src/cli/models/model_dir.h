/* model_dir.h - from what a user calls a model to a directory on this machine. */
#ifndef CLI_MODEL_DIR_H
#define CLI_MODEL_DIR_H

#include <stdbool.h>
#include <stddef.h>

enum { MODEL_DIR_MAX = 4096, MODEL_FOLDER_MAX = MODEL_DIR_MAX / 2 };

/* The model that comes with the program: its name, and its directory when found. */
#define MODEL_DIR_BUNDLED "tinker/tiny"
bool model_dir_bundled(char out[MODEL_DIR_MAX]);

/* Is it a model: a directory with a readable config.json, or a readable file x.gguf? */
bool model_dir_is_model(const char *dir);
/* Does it look like an id of the Hub, "owner/name"? */
bool model_dir_is_id(const char *id);
/* The folder of an id in the local Hugging Face cache, there or not. */
void model_dir_folder(const char *id, char out[MODEL_FOLDER_MAX]);
/* A model of the local Hugging Face cache ("Qwen/Qwen3-0.6B"): its directory or, of a repository of
 * GGUF files, the first of these by name.  Never downloads. */
bool model_dir_cached(const char *id, char out[MODEL_DIR_MAX]);

/* For an error about a model that was not found: what is known of this name, and what helps. */
enum { MODEL_HINT_MAX = 768 };
const char *model_dir_hint(const char *name, char out[MODEL_HINT_MAX]);

#endif
