/* config.h - config.json of a Hugging Face model directory. */
#ifndef ENGINE_CONFIG_H
#define ENGINE_CONFIG_H

#include "engine/model/model.h"

/* Read and check config.json text; `path` is for messages.  What we cannot compute
 * exactly (another architecture, Mamba layers, an unknown rope) is TINKER_EINVAL
 * with the setting named. */
tinker_status config_parse(struct model_config *c, const char *path, const char *text, size_t n,
                           tinker_error *err);
/* What follows from c->arch alone, whatever the file says. */
void config_apply_arch(struct model_config *c);
/* eos_token_id of generation_config.json overrides that of config.json. */
tinker_status config_parse_generation(struct model_config *c, const char *path, const char *text,
                                      size_t n, tinker_error *err);

#endif
