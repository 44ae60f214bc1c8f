/* serve_place.h - where a server of this machine keeps its things, and whether it runs.
 *
 * A running server holds a lock on <data>/lock and has written <data>/server.json; after
 * kill -9 the file is stale, but the lock is free. */
#ifndef CLI_SERVE_PLACE_H
#define CLI_SERVE_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

enum { SERVE_PLACE_MAX = 4096 };

struct serve_info {
    int64_t pid, port;
    char url[400];         /* "unix:PATH" for a socket */
    char path_prefix[200]; /* "" for none */
};

/* The data directory: given (may be NULL), or the default of this user.  false: there is no
 * home directory. */
bool serve_place_data(const char *given, char out[SERVE_PLACE_MAX]);

tinker_status serve_place_write(const char *data, const struct serve_info *info, tinker_error *err);
void serve_place_remove(const char *data);
/* false: no server has left its name there. */
bool serve_place_read(const char *data, struct serve_info *info);
/* Does a server run on this directory now? */
bool serve_place_busy(const char *data);

#endif
