/* credential_cmd.h - running a shell command for its output.  Blocks: call it on a worker. */
#ifndef CLIENT_CREDENTIAL_CMD_H
#define CLIENT_CREDENTIAL_CMD_H

#include <stdatomic.h>
#include <stdint.h>
#include <tinker/error.h>

/* The trimmed standard output, malloc'd; its exit status and standard error are ignored.
 * NULL with *err set: it could not run, printed nothing, or was killed, because it took longer than
 * timeout_ms or another thread set *unwanted. */
char *credential_cmd_output(const char *command, int64_t timeout_ms, const atomic_bool *unwanted,
                            tinker_error *err);

#endif
