/* ratio.h - keep a ratio for the report of `make bench`, beside what is printed.
 *
 * tools/run-bench names a file in TINKER_BENCH_RATIOS and makes build/bench.json and a table of
 * its lines, each a JSON object.  A part of each bench program, not a library. */
#ifndef BENCH_RATIO_H
#define BENCH_RATIO_H

#include <stdio.h>
#include <stdlib.h>

/* ours / theirs: the median and the spread of the turns; bar 0: none is asked for. */
static inline void keep_ratio(const char *bench, const char *name, double median, double low,
                              double high, double bar)
{
    const char *path = getenv("TINKER_BENCH_RATIOS");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (f == NULL)
        return;
    fprintf(f,
            "{\"bench\":\"%s\",\"name\":\"%s\",\"ratio\":%.4g,\"low\":%.4g,\"high\":%.4g,"
            "\"bar\":%.4g}\n",
            bench, name, median, low, high, bar);
    fclose(f);
}

#endif
