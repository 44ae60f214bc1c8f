/* data_dir.h - the data directory is its owner's alone.
 *
 * Prompts, weights and the key that signs links are in it.  Whatever was there before: afterwards
 * directories are 0700 and files 0600, and nothing in it is a link that leads elsewhere. */
#ifndef SERVER_DATA_DIR_H
#define SERVER_DATA_DIR_H

#include <stdbool.h>
#include <tinker/error.h>
#include "base/log.h"

/* Create it, or close it to others.  *exposed: others could have read it so far.  TINKER_ESTATE: it
 * belongs to somebody else, or something in it is a link. */
tinker_status data_dir_secure(const char *path, const struct log *log, bool *exposed,
                              tinker_error *err);
/* Open a file of it for reading and writing, created with mode 0600; links are not followed.
 * -1: err says why. */
int data_dir_open_file(const char *path, tinker_error *err);

#endif
