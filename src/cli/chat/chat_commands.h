/* chat_commands.h - the /commands of a chat. */
#ifndef CLI_CHAT_COMMANDS_H
#define CLI_CHAT_COMMANDS_H

#include <stdbool.h>
#include "cli/chat/chat_session.h"

struct chat {
    struct chat_session session;
    struct conversation talk;
    bool quit;
    bool ask; /* the conversation ends with a message of the user: get the reply */
};

/* Names of all commands, NULL-terminated: for completion. */
extern const char *const chat_command_names[];
/* Run a line that begins with a slash; what it says goes to stderr.  false: the session is lost, and
 * *status is the exit status. */
bool chat_command_run(struct chat *c, const char *line, int *status);

#endif
