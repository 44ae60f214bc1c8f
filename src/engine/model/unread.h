/* unread.h - what the files of a model have and config.json does not ask for. */
#ifndef ENGINE_UNREAD_H
#define ENGINE_UNREAD_H

#include "engine/model/model.h"

/* Refuses a directory whose layers or head hold weights that the model would leave out, so that it
 * would compute something else than whoever made them: biases that are switched off, norms that
 * the architecture has not, more layers than config.json says, a head that is not the embedding
 * although they are tied.  Weights that change nothing (zeros, a copy of the embedding, stored
 * frequencies) may be there. */
tinker_status unread_check(const tinker_engine *e, const struct model_config *c, tinker_error *err);

#endif
