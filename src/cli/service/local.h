/* local.h - the server of a command that names none: this user's running one, else the engine
 * inside the command itself.
 *
 * A running server is found by the default data directory, which it holds locked.  The engine of a
 * command works on the same directory, so that what one command trains another finds. */
#ifndef CLI_LOCAL_H
#define CLI_LOCAL_H

#include <stdbool.h>
#include "cli/models/model_dir.h"

enum { LOCAL_URL_MAX = 640, LOCAL_NAME_MAX = 256 };

struct local {
    char url[LOCAL_URL_MAX];
    char model[LOCAL_NAME_MAX];  /* that the engine of this command has; "" for a running server */
    char dir[MODEL_DIR_MAX];     /* where that model lies */
    struct local_engine *engine; /* NULL: a running server */
};

/* model (may be NULL: the bundled one): a name, an id of the Hub that is in the cache, or a
 * directory; a running server has what it has.  recorded: it is the name that weights keep of their
 * base, so a directory of that name here means nothing.  Waits while another command has the engine.
 * false after the error was printed; *status is then the exit status. */
bool local_open(struct local *l, const char *model, bool recorded, int *status);
void local_close(struct local *l);

#endif
