/* progress.h - a bar on stderr, only when that is a terminal and nobody objects. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *label;
    int64_t start_ns, drawn_ns;
    bool shown;
};

void progress_start(struct progress *p, const char *label);
/* total 0: unknown.  Redraws at most ten times a second. */
void progress_at(struct progress *p, int64_t done, int64_t total);
void progress_end(struct progress *p);

#endif
