/* credential_cmd.c - see credential_cmd.h.
 *
 * The request that waits may be gone before the command ends, and a command that hangs would block
 * its worker forever: so both are checked all the time.  The command gets its own process group, to
 * be killed with everything it started, unless there is a terminal: a background group could not
 * read a password from it. */
#include "client/session/credential_cmd.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"

extern char **environ;

enum { OUTPUT_MAX = 65536, LOOK_MS = 50 };

/* From pipe to spawn: no command inherits the pipe of another, whose end would wait for its own. */
static pthread_mutex_t spawn_lock = PTHREAD_MUTEX_INITIALIZER;

/* When to stop waiting for the command, whichever comes first. */
struct cmd_limit {
    int64_t deadline_ms;
    const atomic_bool *unwanted;
};

/* Start the command with its output on *fd; 0 or an errno. */
static int spawn_locked(const char *command, bool own_group, pid_t *pid, int *fd)
{
    int pipe_fd[2];
    if (pipe(pipe_fd) != 0)
        return errno;
    fcntl(pipe_fd[0], F_SETFD, FD_CLOEXEC);
    fcntl(pipe_fd[1], F_SETFD, FD_CLOEXEC);
    /* posix_spawn() and not fork(): a fork of a program with threads may only call async-signal-
     * safe functions. */
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attr);
    int group = own_group ? POSIX_SPAWN_SETPGROUP : 0;
    posix_spawnattr_setflags(&attr, (short)(POSIX_SPAWN_SETSIGMASK | group));
    posix_spawnattr_setsigmask(&attr, &none); /* workers block all signals */
    posix_spawnattr_setpgroup(&attr, 0);
    char sh[] = "sh", dash_c[] = "-c";
    char *argv[] = { sh, dash_c, (char *)command, NULL };
    int rc = posix_spawn(pid, "/bin/sh", &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    close(pipe_fd[1]);
    /* Our copy of the write end is closed: read() then ends when the command does. */
    if (rc != 0)
        close(pipe_fd[0]);
    *fd = pipe_fd[0];
    return rc;
}

static bool limit_reached(const struct cmd_limit *p)
{
    return atomic_load(p->unwanted) || clock_now_ms(clock_real()) >= p->deadline_ms;
}

/* Read until the command closes its output; false: the limit came first.  poll() returns now and
 * then, because nothing wakes it when the request is canceled. */
static bool read_output(int fd, struct buf *out, const struct cmd_limit *p)
{
    char chunk[4096];
    while (!limit_reached(p)) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        if (poll(&ready, 1, LOOK_MS) <= 0)
            continue;
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return true;
        buf_append(out, chunk, (size_t)n);
    }
    return false;
}

/* Wait for its end, or end it, and its group; false: it was killed.  A command may close its output
 * and go on, so the wait has the same limit; waitpid() has no timeout, hence the short sleeps. */
static bool reap_command(pid_t pid, bool own_group, bool kill_now, const struct cmd_limit *p)
{
    pid_t got = 0;
    bool killed = kill_now;
    while (!killed && got == 0) {
        got = waitpid(pid, NULL, WNOHANG);
        killed = got == 0 && limit_reached(p);
        if (got == 0 && !killed)
            nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    if (killed)
        kill(own_group ? -pid : pid, SIGKILL);
    while (killed && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return !killed;
}

char *credential_cmd_output(const char *command, int64_t timeout_ms, const atomic_bool *unwanted,
                            tinker_error *err)
{
    /* A command with a terminal may ask for a password there; only the foreground group may read
     * from it. */
    const struct cmd_limit p = { clock_now_ms(clock_real()) + timeout_ms, unwanted };
    bool own_group = !isatty(STDIN_FILENO);
    pid_t pid;
    int fd = -1;
    pthread_mutex_lock(&spawn_lock);
    int rc = spawn_locked(command, own_group, &pid, &fd);
    pthread_mutex_unlock(&spawn_lock);
    if (rc != 0) {
        err_set(err, TINKER_ESTATE, "credential command: %s", strerror(rc));
        return NULL;
    }
    struct buf out;
    buf_init(&out, OUTPUT_MAX);
    bool ended = read_output(fd, &out, &p);
    close(fd);
    if (!reap_command(pid, own_group, !ended, &p)) {
        buf_clear(&out);
        err_set(err, TINKER_ETIMEDOUT, "the credential command did not end within %g s",
                (double)timeout_ms / 1000);
        return NULL;
    }
    /* The credential is what is printed, without the newline that echo adds. */
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
