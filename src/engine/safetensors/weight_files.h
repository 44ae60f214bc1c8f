/* weight_files.h - the safetensors files of one directory, as one set of names. */
#ifndef ENGINE_WEIGHT_FILES_H
#define ENGINE_WEIGHT_FILES_H

#include "engine/safetensors/safetensors.h"

struct weight_files {
    struct safetensors *files; /* sorted by file name */
    size_t n;
};

/* Open model.safetensors.index.json's files, else model.safetensors, else every
 * *.safetensors.  Two files with one tensor name are refused. */
struct weight_files *weight_files_open(const char *dir, tinker_error *err);
void weight_files_close(struct weight_files *c);
/* file (may be NULL) receives which file has it. */
const struct st_tensor *weight_files_find(const struct weight_files *c, const char *name,
                                          const char **file);

#endif
