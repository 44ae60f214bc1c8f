/* credentials_file.h - the key that `tinker auth login` of the reference has kept in
 * ~/.tinker/credentials.json. */
#ifndef CLIENT_CREDENTIALS_FILE_H
#define CLIENT_CREDENTIALS_FILE_H

#include <tinker/error.h>
#include "base/arena.h"

/* The default key, in the arena; *out NULL: there is no file, or no default in it.  TINKER_EINVAL
 * names a file that makes no sense; TINKER_ESTATE one that cannot be read. */
tinker_status credentials_file_key(struct arena *a, const char **out, tinker_error *err);

#endif
