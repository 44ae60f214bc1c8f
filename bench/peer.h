/* peer.h - the other side of a ratio, in a process of its own.
 *
 * A peer is a Python script that answers every line it is sent with a line of figures: so the
 * two sides of a ratio take turns, and a machine that slows down slows both.  Its packages come
 * from tests/conformance/run, which installs them the first time.  A part of each bench program,
 * not a library: everything is static. */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer {
    pid_t pid; /* 0: there is none */
    FILE *ask, *answer;
};

/* The first line that a command prints; 0 if it fails. */
static inline int peer_line(const char *command, char *line, size_t size)
{
    FILE *f = popen(command, "r");
    if (f == NULL)
        return 0;
    int got = fgets(line, (int)size, f) != NULL;
    if (pclose(f) != 0 || !got)
        return 0;
    line[strcspn(line, "\n")] = '\0';
    return 1;
}

/* The Python that has the packages of a set; 0: they cannot be installed. */
static inline int peer_python(const char *set, char *path, size_t size)
{
    char command[256];
    snprintf(command, sizeof command, "tests/conformance/run --environment %s", set);
    if (peer_line(command, path, size))
        return 1;
    printf("# no peer: the packages of tests/conformance/requirements-%s.txt are not there\n", set);
    return 0;
}

/* A script of bench/ with its two arguments and one more or NULL under this Python; returns whether
 * it runs. */
static inline int peer_run(struct peer *p, const char *python, const char *script, const char *what,
                           const char *where, const char *how)
{
    int to[2], from[2];
    *p = (struct peer){ 0 };
    fflush(stdout);
    if (pipe(to) != 0 || pipe(from) != 0)
        return 0;
    p->pid = fork();
    if (p->pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        close(from[0]);
        execl(python, python, script, what, where, how, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    p->ask = fdopen(to[1], "w");
    p->answer = fdopen(from[0], "r");
    return p->pid > 0 && p->ask != NULL && p->answer != NULL;
}

/* The same under the Python that has the packages of a set. */
static inline int peer_open(struct peer *p, const char *set, const char *script, const char *what,
                            const char *where, const char *how)
{
    char python[1024];
    *p = (struct peer){ 0 };
    return peer_python(set, python, sizeof python) && peer_run(p, python, script, what, where, how);
}

/* Up to two figures; returns how many there were. */
static inline int peer_answer(struct peer *p, double *a, double *b)
{
    char line[256];
    if (p->answer == NULL || fgets(line, sizeof line, p->answer) == NULL)
        return 0;
    int n = sscanf(line, "%lf %lf", a, b);
    return n < 0 ? 0 : n;
}

/* The figures of one turn, for as long as the answer takes. */
static inline int peer_turn(struct peer *p, int amount, double *a, double *b)
{
    if (p->pid <= 0)
        return 0;
    fprintf(p->ask, "%d\n", amount);
    fflush(p->ask);
    return peer_answer(p, a, b);
}

static inline void peer_close(struct peer *p)
{
    if (p->pid <= 0)
        return;
    fclose(p->ask);
    fclose(p->answer);
    waitpid(p->pid, NULL, 0);
    p->pid = 0;
}

#endif
