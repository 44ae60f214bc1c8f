/* user_agent.h - how this program introduces itself: operating system, machine, process. */
#ifndef CLIENT_USER_AGENT_H
#define CLIENT_USER_AGENT_H

#include <stddef.h>

struct user_agent {
    char product[48];  /* "libtinker/0.1.0" */
    char os[64];       /* X-Stainless-OS: "Linux", "MacOS", "Other:…" */
    char arch[32];     /* X-Stainless-Arch: "x64", "arm64", "other:…" */
    char platform[64]; /* telemetry: "Linux", "Darwin" */
};

const struct user_agent *user_agent_of_machine(void); /* constant after the first call */
void user_agent_process_uuid(char out[37]);           /* one per process, renewed after fork */

/* From uname's sysname and machine and the text of /etc/os-release ("" when none). */
void user_agent_name_os(const char *sysname, const char *os_release, char *out, size_t size);
void user_agent_name_arch(const char *machine, char *out, size_t size);

#endif
