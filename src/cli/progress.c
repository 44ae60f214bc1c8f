/* progress.c - see progress.h. */
#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>
#include "base/clock.h"
#include "cli/command.h"

enum { WIDTH = 36, REDRAW_NS = 100000000, SECOND_NS = 1000000000 };

void progress_start(struct progress *p, const char *label)
{
    *p = (struct progress){ .label = label, .start_ns = clock_now_ns(clock_real()) };
    p->shown = isatty(STDERR_FILENO) && !globals.json && !globals.quiet && !globals.no_progress;
}

static void put_eta(int64_t elapsed_ns, int64_t done, int64_t total)
{
    double left = (double)elapsed_ns / SECOND_NS / (double)done * (double)(total - done);
    int64_t s = (int64_t)left;
    if (s >= 86400)
        fprintf(stderr, "%lldd ", (long long)(s / 86400));
    fprintf(stderr, "%02d:%02d:%02d", (int)(s / 3600 % 24), (int)(s / 60 % 60), (int)(s % 60));
}

void progress_at(struct progress *p, int64_t done, int64_t total)
{
    int64_t now = clock_now_ns(clock_real());
    if (!p->shown || (p->drawn_ns && now - p->drawn_ns < REDRAW_NS && done != total))
        return;
    p->drawn_ns = now;
    if (total <= 0) {
        fprintf(stderr, "\r%s  %lld\033[K", p->label, (long long)done);
        return;
    }
    int filled = (int)(done * WIDTH / total);
    fprintf(stderr, "\r%s  [", p->label);
    for (int i = 0; i < WIDTH; i++)
        fputc(i < filled ? '#' : '-', stderr);
    fprintf(stderr, "]  %lld/%lld  %3d%%  ", (long long)done, (long long)total,
            (int)(done * 100 / total));
    if (done > 0)
        put_eta(now - p->start_ns, done, total);
    fputs("\033[K", stderr);
}

void progress_end(struct progress *p)
{
    if (p->shown && p->drawn_ns)
        fputc('\n', stderr);
}
