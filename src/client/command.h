/* command.h - running a shell command for its output.  Blocks: call it on a worker. */
#ifndef CLIENT_COMMAND_H
#define CLIENT_COMMAND_H

#include <tinker/error.h>

/* The trimmed standard output, malloc'd; its exit status and standard error are ignored.
 * NULL with *err set: it could not run, or printed nothing. */
char *command_output(const char *command, tinker_error *err);

#endif
