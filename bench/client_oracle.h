/* client_oracle.h - the official SDK and httpx as the other side of bench/client's ratios. */
#ifndef BENCH_CLIENT_ORACLE_H
#define BENCH_CLIENT_ORACLE_H

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "client_server.h"

struct figure {
    double rate, cpu_us; /* per second; of one */
};

/* The oracle in a process of its own (importing takes seconds), asked for one figure at a
 * time: so the two sides of a ratio alternate, and a machine that slows down slows both. */
struct oracle {
    pid_t pid; /* 0: it is not installed */
    FILE *ask, *answer;
};

static struct oracle oracle_open(const char *what, const char *where)
{
    char python[1024];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    glob_t g = { 0 };
    struct oracle o = { 0 };
    int in[2], out[2];
    snprintf(python, sizeof(python), "%s%s/tinker-conformance/venv-sdk-[0-9]*/bin/python",
             cache  ? cache
             : home ? home
                    : "",
             cache ? "" : "/.cache");
    if (glob(python, 0, NULL, &g) != 0) {
        printf("# no SDK here: run tests/conformance/run wire once\n");
        return o;
    }
    if (pipe(in) != 0 || pipe(out) != 0 || (o.pid = fork()) < 0)
        server_die("start the oracle");
    if (o.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl(g.gl_pathv[0], g.gl_pathv[0], "bench/client_oracle.py", what, where, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    o.ask = fdopen(in[1], "w");
    o.answer = fdopen(out[0], "r");
    globfree(&g);
    return o;
}

/* For as long as its answer takes, with n in flight. */
static struct figure oracle_figure(struct oracle *o, int n)
{
    struct figure f = { 0 };
    if (!o->pid)
        return f;
    fprintf(o->ask, "%d\n", n);
    fflush(o->ask);
    if (fscanf(o->answer, "%lf %lf", &f.rate, &f.cpu_us) != 2)
        server_die("the oracle has ended");
    return f;
}

static void oracle_close(struct oracle *o)
{
    if (!o->pid)
        return;
    fclose(o->ask);
    fclose(o->answer);
    waitpid(o->pid, NULL, 0);
}

#endif
