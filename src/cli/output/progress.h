/* progress.h - a bar on stderr, only when that is a terminal and nobody objects.
 *
 * Thread safety: any thread, any time; a bar that has ended ignores what still arrives. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    char label[64];
    int64_t start_ns, drawn_ns;
    bool shown;
};

void progress_start(struct progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* total 0: unknown.  Redraws at most ten times a second. */
void progress_at(struct progress *p, int64_t done, int64_t total);
void progress_end(struct progress *p);

/* What is said next begins a line of its own, not behind a bar. */
void progress_break(void);

#endif
