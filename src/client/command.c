/* command.c - see command.h. */
#include "client/command.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/err.h"

extern char **environ;

enum { OUTPUT_MAX = 65536 };

/* Start the command with its output on *fd; 0 or an errno. */
static int start(const char *command, pid_t *pid, int *fd)
{
    int pipe_fd[2];
    if (pipe(pipe_fd) != 0)
        return errno;
    fcntl(pipe_fd[0], F_SETFD, FD_CLOEXEC);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, pipe_fd[1]);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK); /* workers block all signals */
    posix_spawnattr_setsigmask(&attr, &none);
    char sh[] = "sh", dash_c[] = "-c";
    char *argv[] = { sh, dash_c, (char *)command, NULL };
    int rc = posix_spawn(pid, "/bin/sh", &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    close(pipe_fd[1]);
    if (rc != 0)
        close(pipe_fd[0]);
    *fd = pipe_fd[0];
    return rc;
}

static void read_all(int fd, struct buf *out)
{
    char chunk[4096];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        buf_append(out, chunk, (size_t)n);
    }
}

char *command_output(const char *command, tinker_error *err)
{
    pid_t pid;
    int fd;
    int rc = start(command, &pid, &fd);
    if (rc != 0) {
        err_set(err, TINKER_ESTATE, "credential command: %s", strerror(rc));
        return NULL;
    }
    struct buf out;
    buf_init(&out, OUTPUT_MAX);
    read_all(fd, &out);
    close(fd);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    const char *from = out.data ? out.data : "";
    size_t n = out.len;
    while (n > 0 && isspace((unsigned char)from[n - 1]))
        n--;
    while (n > 0 && isspace((unsigned char)*from))
        from++, n--;
    char *text = n > 0 ? strndup(from, n) : NULL;
    if (!text)
        err_set(err, TINKER_EINVAL, "the credential command returned an empty credential");
    buf_clear(&out);
    return text;
}
