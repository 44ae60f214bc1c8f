/* room: client - archives of checkpoints: whatever they hold, nothing appears outside the
 * directory, and nothing at all after a failure.
 *
 * The input is the file itself, plain tar or gzip. */
#include <dirent.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tinker/rest.h>
#include <unistd.h>
#include "base/os.h"

static char home[64]; /* of this process; holds the archive and what comes of it */

static void demand(int condition)
{
    if (!condition)
        abort();
}

static void leave(void)
{
    os_remove_tree(home, NULL);
}

static void prepare(void)
{
    struct stat st;
    const char *fast = stat("/dev/shm", &st) == 0 ? "/dev/shm" : "/tmp";
    snprintf(home, sizeof(home), "%s/fuzz-untar.XXXXXX", fast);
    demand(mkdtemp(home) != NULL);
    atexit(leave);
}

/* Entries of the home directory that are not the archive. */
static int strangers(void)
{
    DIR *d = opendir(home);
    int n = 0;
    demand(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
             strcmp(e->d_name, "archive") != 0;
    closedir(d);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char archive[128], out[128];
    struct stat st;
    tinker_error err = { 0 };
    if (!home[0])
        prepare();
    snprintf(archive, sizeof(archive), "%s/archive", home);
    snprintf(out, sizeof(out), "%s/out", home);
    FILE *f = fopen(archive, "wb");
    demand(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
    tinker_status s = tinker_archive_extract(archive, out, &err);
    demand(strangers() == (s == TINKER_OK));
    if (s == TINKER_OK) {
        demand(lstat(out, &st) == 0 && S_ISDIR(st.st_mode));
        demand(os_remove_tree(out, NULL) == TINKER_OK);
    } else
        demand(err.status == s && err.message[0]);
    return 0;
}
