/* weight_files.h - the safetensors files of one directory, as one set of names. */
#ifndef ENGINE_CHECKPOINT_H
#define ENGINE_CHECKPOINT_H

#include "engine/model/safetensors.h"

struct checkpoint {
    struct safetensors *files; /* sorted by file name */
    size_t n;
};

/* Open model.safetensors.index.json's files, else model.safetensors, else every
 * *.safetensors.  Two files with one tensor name are refused. */
struct checkpoint *checkpoint_open(const char *dir, tinker_error *err);
void checkpoint_close(struct checkpoint *c);
/* file (may be NULL) receives which file has it. */
const struct st_tensor *checkpoint_find(const struct checkpoint *c, const char *name,
                                        const char **file);

#endif
