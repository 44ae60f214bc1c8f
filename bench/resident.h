/* resident.h - how much memory this process has. */
#ifndef BENCH_RESIDENT_H
#define BENCH_RESIDENT_H

#include <stdio.h>
#include <unistd.h>

/* In bytes; 0 where the system does not tell. */
static inline double resident(void)
{
    long total = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &total, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

#endif
