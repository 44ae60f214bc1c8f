/* progress.c - see progress.h. */
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "cli/command.h"
#include "cli/out.h"

enum { WIDTH = 36, NUMBERS = 40, REDRAW_NS = 100000000, SECOND_NS = 1000000000 };

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

/* As wide as the terminal allows beside the label and the numbers, at most WIDTH: a line that
 * is longer than the terminal cannot be drawn over. */
static void put_bar(double share, size_t label)
{
    size_t columns = out_width(STDERR_FILENO), taken = label + NUMBERS;
    size_t width = columns > taken ? columns - taken : 0;
    width = width > WIDTH ? WIDTH : width;
    if (width < 4)
        return;
    fputc('[', stderr);
    for (size_t i = 0; i < width; i++)
        fputc((double)i < share * (double)width ? '#' : '-', stderr);
    fputs("]  ", stderr);
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
    fprintf(stderr, "\r%s  ", p->label);
    put_bar((double)done / (double)total, strlen(p->label));
    fprintf(stderr, "%lld/%lld  %3d%%  ", (long long)done, (long long)total,
            (int)((double)done * 100 / (double)total));
    if (done > 0)
        put_eta(now - p->start_ns, done, total);
    fputs("\033[K", stderr);
}

void progress_end(struct progress *p)
{
    if (p->shown && p->drawn_ns)
        fputc('\n', stderr);
}
