/* resident.h - how much memory this process has. */
#ifndef BENCH_RESIDENT_H
#define BENCH_RESIDENT_H

#include <stdio.h>
#include <string.h>
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

/* The most that it ever had. */
static inline double resident_peak(void)
{
    char line[128];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            sscanf(line + 6, "%lf", &kib);
    if (f)
        fclose(f);
    return kib * 1024;
}

#endif
