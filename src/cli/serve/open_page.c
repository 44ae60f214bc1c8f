/* open_page.c - see open_page.h.
 *
 * The browser is the child of a child that ends at once, so that it belongs to nobody here: it
 * outlives the server, and a Ctrl-C in the terminal does not reach it. */
#include "cli/serve/open_page.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"

/* The signals that the server has blocked are unblocked again: a mask survives exec(), and a
 * browser that ignores Ctrl-C is a nuisance. */
static void run_opener(const char *url)
{
    const char *openers[] = { getenv("BROWSER"), "xdg-open", "open", "sensible-browser" };
    sigset_t none;
    int null = open("/dev/null", O_RDWR);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(null, fd);
    setsid();
    for (size_t i = 0; i < ARRAY_LEN(openers); i++)
        if (openers[i] && *openers[i])
            execlp(openers[i], openers[i], url, (char *)NULL);
}

/* The pipe closes by itself when a browser starts, and carries a byte when none does. */
int open_page(const char *url)
{
    int ends[2], status;
    char byte;
    if (pipe(ends) != 0)
        return -1;
    /* A successful exec() closes it, which the reader sees as the end. */
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            run_opener(url);
            _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
        }
        _exit(0);
    }
    close(ends[1]);
    if (child > 0)
        waitpid(child, &status, 0);
    bool started = child > 0 && read(ends[0], &byte, 1) == 0;
    close(ends[0]);
    return started ? 0 : -1;
}
