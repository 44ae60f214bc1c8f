/* known_models.h - where the models lie that were served on this machine under a name of their own.
 *
 * A run remembers its base model by name only.  <data>/models.json remembers the directory, so that
 * a later command can start the engine on it again. */
#ifndef CLI_KNOWN_MODELS_H
#define CLI_KNOWN_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include "cli/models/model_dir.h"

/* Remember it; failures are not worth an error, since the model can be named again. */
void known_models_add(const char *data, const char *name, const char *dir);
/* The directory of a name, if it is still a model. */
bool known_models_find(const char *data, const char *name, char out[MODEL_DIR_MAX]);
/* Call `each` for all of them. */
typedef void known_models_fn(const char *name, const char *dir, void *state);
void known_models_each(const char *data, known_models_fn *each, void *state);

#endif
