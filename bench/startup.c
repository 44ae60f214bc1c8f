/* startup.c - CPU time of `tinker version` and `tinker --help`, which do nothing but start.
 *
 * User and system time of the process, from wait4(); the smallest and the median of 50 runs.  What
 * it tells is how much is loaded and initialized before main().
 * Usage: startup [PROGRAM] */
#define _DEFAULT_SOURCE /* wait4() */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUNS = 50 };

/* Milliseconds of CPU; ends the bench when the program cannot run. */
static double run_program(const char *program, const char *argument)
{
    struct rusage used;
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        execl(program, program, argument, (char *)NULL);
        _exit(127);
    }
    if (pid < 0 || wait4(pid, &status, 0, &used) != pid || status != 0) {
        fprintf(stderr, "startup: %s %s failed\n", program, argument);
        exit(1);
    }
    return 1e3 * (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-3 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static const char *const arguments[] = { "version", "--help" };
    const char *program = argc > 1 ? argv[1] : "build/release/tinker";
    for (int k = 0; k < 2; k++) {
        double ms[RUNS];
        for (int i = 0; i < RUNS; i++)
            ms[i] = run_program(program, arguments[k]);
        qsort(ms, RUNS, sizeof(ms[0]), compare_times);
        printf("startup %-9s %.2f ms of CPU (smallest %.2f; aim 5)\n", arguments[k], ms[RUNS / 2],
               ms[0]);
    }
    return 0;
}
