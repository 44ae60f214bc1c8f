/* progress.c - see progress.h. */
#include "cli/output/progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/clock.h"
#include "cli/command.h"
#include "cli/output/out.h"

enum {
    WIDTH = 36,
    NUMBERS = 40,
    REDRAW_NS = 100000000,
    PATIENCE_NS = 300000000,
    SECOND_NS = 1000000000
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* bars and line_open */
static bool line_open; /* a bar stands on the last line of the terminal */

/* Whether a bar is drawn is decided once: stderr must be a terminal that obeys control
 * sequences, and neither --json, --quiet nor --no-progress may be given. */
void progress_start(struct progress *p, const char *fmt, ...)
{
    va_list ap;
    *p = (struct progress){ .start_ns = clock_now_ns(clock_real()) };
    va_start(ap, fmt);
    vsnprintf(p->label, sizeof(p->label), fmt, ap);
    va_end(ap);
    p->shown =
        out_can_draw(STDERR_FILENO) && !globals.json && !globals.quiet && !globals.no_progress;
}

/* Remaining time = elapsed / done * (total - done), as [Nd ]HH:MM:SS. */
static void put_eta(struct buf *out, int64_t elapsed_ns, int64_t done, int64_t total)
{
    /* done > 0: the caller has checked it. */
    double left = (double)elapsed_ns / SECOND_NS / (double)done * (double)(total - done);
    int64_t s = (int64_t)left;
    if (s >= 86400)
        buf_printf(out, "%lldd ", (long long)(s / 86400));
    buf_printf(out, "%02d:%02d:%02d", (int)(s / 3600 % 24), (int)(s / 60 % 60), (int)(s % 60));
}

/* As wide as the terminal allows beside the label and the numbers, at most WIDTH. Below four
 * columns it is left out. */
static void put_bar(struct buf *out, double share, size_t columns)
{
    size_t taken = out->len + NUMBERS, width = columns > taken ? columns - taken : 0;
    width = width > WIDTH ? WIDTH : width;
    if (width < 4)
        return;
    buf_putc(out, '[');
    for (size_t i = 0; i < width; i++)
        buf_putc(out, (double)i < share * (double)width ? '#' : '-');
    buf_puts(out, "]  ");
}

/* A line longer than the terminal would wrap, and \r would not return to its beginning: it is
 * cut one column short, because some terminals wrap at the last one. */
static void put_line(struct buf *out, const struct progress *p, int64_t elapsed_ns, int64_t done,
                     int64_t total, size_t columns)
{
    buf_printf(out, "%s  ", p->label);
    if (total > 0) {
        put_bar(out, (double)done / (double)total, columns);
        buf_printf(out, "%lld/%lld  %3d%%  ", (long long)done, (long long)total,
                   (int)((double)done * 100 / (double)total));
        if (done > 0)
            put_eta(out, elapsed_ns, done, total);
    } else {
        buf_printf(out, "%lld", (long long)done);
    }
    if (columns && out->len >= columns)
        out->len = columns - 1;
}

/* \r returns to the first column, ESC [K clears what a longer line left behind. */
static void draw_line(const struct progress *p, int64_t now, int64_t done, int64_t total)
{
    struct buf line;
    buf_init(&line, 1024);
    put_line(&line, p, now - p->start_ns, done, total, out_width(STDERR_FILENO));
    if (buf_ok(&line))
        fprintf(stderr, "\r%.*s\033[K", (int)line.len, line.data);
    buf_clear(&line);
}

/* At most one drawing per REDRAW_NS, but the last state always. Called by the library's
 * threads, too. */
void progress_at(struct progress *p, int64_t done, int64_t total)
{
    int64_t now = clock_now_ns(clock_real());
    pthread_mutex_lock(&lock);
    /* What is over in a moment needs no bar. */
    if (p->shown && (p->drawn_ns || now - p->start_ns >= PATIENCE_NS) &&
        (!p->drawn_ns || now - p->drawn_ns >= REDRAW_NS || done == total)) {
        p->drawn_ns = now;
        line_open = true;
        draw_line(p, now, done, total);
    }
    pthread_mutex_unlock(&lock);
}

/* The lock is held. The bar stays on the screen; what follows begins a new line. */
static void end_line_locked(void)
{
    if (line_open)
        fputc('\n', stderr);
    line_open = false;
}

void progress_break(void)
{
    pthread_mutex_lock(&lock);
    end_line_locked();
    pthread_mutex_unlock(&lock);
}

void progress_end(struct progress *p)
{
    pthread_mutex_lock(&lock);
    if (p->shown)
        end_line_locked();
    p->shown = false;
    pthread_mutex_unlock(&lock);
}
