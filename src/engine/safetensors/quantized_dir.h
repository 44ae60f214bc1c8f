/* quantized_dir.h - model directories that another program quantized.
 *
 * AWQ, GPTQ, bitsandbytes and their kin store codes where config.json promises matrices.  They are
 * refused by the name that the directory itself gives, with what to do instead. */
#ifndef ENGINE_QUANTIZED_DIR_H
#define ENGINE_QUANTIZED_DIR_H

#include "engine/safetensors/weight_files.h"

/* TINKER_EINVAL when quantization_config of this config.json names a method we do not read. */
tinker_status quantized_check_config(const char *path, const char *text, size_t n,
                                     tinker_error *err);
/* The same by the names of the tensors, for directories whose config.json says nothing. */
tinker_status quantized_check_files(const struct weight_files *files, tinker_error *err);

#endif
