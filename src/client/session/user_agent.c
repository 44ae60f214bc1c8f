/* user_agent.c - see user_agent.h.  Thread-safe. */
#include "client/session/user_agent.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <tinker/version.h>
#include "base/array.h"
#include "base/os.h"
#include "base/rand.h"

/* Process-wide: the machine does not change, and services of one process share an id. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct user_agent machine;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t uuid_pid; /* lock */
static char uuid[37];  /* lock */

/* Does os-release say ID=name? */
static int distribution_is(const char *os_release, const char *name)
{
    for (const char *line = os_release; line && *line;) {
        if (strncmp(line, "ID=", 3) == 0) {
            const char *v = line + 3 + (line[3] == '"');
            size_t n = strlen(name);
            return strncasecmp(v, name, n) == 0 && strchr("\"\n", v[n]) != NULL;
        }
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return 0;
}

/* Anywhere in the text, without case. */
static int contains_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (; *text; text++)
        if (strncasecmp(text, word, n) == 0)
            return 1;
    return 0;
}

/* The names are those of the Stainless SDKs, which the service counts by; the order of the questions
 * is theirs, too. */
void user_agent_name_os(const char *sysname, const char *os_release, char *out, size_t size)
{
    const char *name = NULL;
    if (contains_word(sysname, "iphone") || contains_word(sysname, "ipad"))
        name = "iOS";
    else if (strcasecmp(sysname, "darwin") == 0)
        name = "MacOS";
    else if (contains_word(sysname, "windows"))
        name = "Windows";
    else if (contains_word(sysname, "android"))
        name = "Android";
    else if (strcasecmp(sysname, "freebsd") == 0 || distribution_is(os_release, "freebsd"))
        name = "FreeBSD";
    else if (strcasecmp(sysname, "openbsd") == 0 || distribution_is(os_release, "openbsd"))
        name = "OpenBSD";
    else if (strcasecmp(sysname, "linux") == 0)
        name = "Linux";
    else if (!*sysname)
        name = "Unknown";
    snprintf(out, size, name ? "%s" : "Other:%s", name ? name : sysname);
}

void user_agent_name_arch(const char *m, char *out, size_t size)
{
    /* uname -m of Linux and of the BSDs; 32-bit x86 is x32 for the Stainless SDKs. */
    static const struct {
        const char *machine, *name;
    } names[] = { { "x86_64", "x64" },    { "amd64", "x64" }, { "arm64", "arm64" },
                  { "aarch64", "arm64" }, { "arm", "arm" },   { "armv6l", "arm" },
                  { "armv7l", "arm" },    { "i386", "x32" },  { "i686", "x32" } };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcasecmp(m, names[i].machine) == 0) {
            snprintf(out, size, "%s", names[i].name);
            return;
        }
    snprintf(out, size, *m ? "other:%s" : "unknown", m);
}

/* Once per process.  What cannot be found out is "Unknown"; no request fails for it. */
static void describe_machine(void)
{
    struct utsname u;
    if (uname(&u) != 0)
        memset(&u, 0, sizeof(u));
    /* os-release tells the distribution, which uname() does not. */
    char *release = NULL;
    size_t n;
    if (os_read_file("/etc/os-release", 1 << 16, &release, &n, NULL) != TINKER_OK)
        release = NULL;
    user_agent_name_os(u.sysname, release ? release : "", machine.os, sizeof(machine.os));
    user_agent_name_arch(u.machine, machine.arch, sizeof(machine.arch));
    snprintf(machine.platform, sizeof(machine.platform), "%.63s",
             *u.sysname ? u.sysname : "Unknown");
    snprintf(machine.product, sizeof(machine.product), "libtinker/%s", TINKER_VERSION);
    free(release);
}

const struct user_agent *user_agent_of_machine(void)
{
    pthread_once(&once, describe_machine);
    return &machine;
}

void user_agent_process_uuid(char out[37])
{
    pthread_mutex_lock(&lock);
    if (uuid_pid != getpid()) { /* a child is a process of its own */
        rand_uuid(uuid);
        uuid_pid = getpid();
    }
    memcpy(out, uuid, sizeof(uuid));
    pthread_mutex_unlock(&lock);
}
