/* cmd_run_plot.c - `tinker run plot` and `tinker run watch`: curves of a run, once or while it
 * trains, in the terminal or as an SVG file. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/os.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/manage/run_history.h"
#include "cli/output/fmt.h"
#include "cli/output/out.h"

/* PLOT_POINTS: the service thins out longer series, keeping lows and highs; a terminal has fewer
 * columns, an SVG file shows no more.  WIDTH_USUAL is for pipes. */
enum { PLOT_ROWS = 16, PLOT_POINTS = 2000, PANELS_MAX = 16, WIDTH_MIN = 30, WIDTH_USUAL = 100 };

/* One panel per metric, in the order of the list.  Returns how many there are.
 * Names that the run does not have make no panel. */
static size_t make_panels(const struct run_history *h, const char *names, struct arena *arena,
                          struct plot_panel *panels)
{
    size_t n = 0;
    while (*names && n < PANELS_MAX) {
        size_t len = strcspn(names, ",");
        const char *name = arena_strndup(arena, names, len);
        const struct history_metric *m = name ? run_history_metric(h, name) : NULL;
        struct plot_series *s = m ? arena_alloc(arena, sizeof(*s)) : NULL;
        if (s) {
            /* Borrowed from the history, which outlives the panels. */
            *s = (struct plot_series){ m->name, m->steps, m->values, m->n };
            panels[n++] = (struct plot_panel){ m->name, s, 1 };
        }
        names += len + (names[len] == ',');
    }
    return n;
}

/* "-" is stdout, for a pipe into a viewer. */
static int save_svg(const char *path, const struct plot_panel *panels, size_t n)
{
    struct buf b;
    tinker_error err = { 0 };
    buf_init(&b, 64 << 20);
    plot_svg(&b, panels, n, "step");
    int status = EXIT_OK;
    if (strcmp(path, "-") == 0)
        out_text(&b);
    else if (!buf_ok(&b) || os_write_file(path, b.data, b.len, &err) != TINKER_OK)
        status = out_fail(EXIT_IO, err.message, "The plot cannot be written");
    else
        out_say("Wrote %s", path);
    buf_clear(&b);
    return status;
}

/* Append the panels as text for the terminal. */
static void draw_panels(struct buf *b, const struct plot_panel *panels, size_t n, size_t width)
{
    for (size_t i = 0; i < n; i++)
        plot_terminal(b, &panels[i], width, PLOT_ROWS);
}

/* Asked anew for each picture: a window may have been resized. */
static size_t find_width(void)
{
    size_t width = out_width(STDOUT_FILENO);
    width = width ? width : WIDTH_USUAL;
    return width < WIDTH_MIN ? WIDTH_MIN : width;
}

/* Fetch what the names ask for and make panels of it; false after the error was printed. */
static bool load_panels(struct api *a, const char *id, const char *names, struct arena *arena,
                        struct run_history *h, struct plot_panel *panels, size_t *n, int *status)
{
    struct run_query q = { .names = names, .max_points = PLOT_POINTS };
    if (!run_history_fetch(a, id, &q, h, status))
        return false;
    *n = make_panels(h, names, arena, panels);
    return true;
}

/* Fetch, then draw once: characters in a terminal, an SVG file for a report. */
int cmd_run_plot(int argc, char **argv)
{
    const char *text = NULL, *names = "loss", *output = NULL;
    const struct opt opts[] = {
        { .name = "names",
          .letter = 'n',
          .kind = OPT_STRING,
          .value = "LIST",
          .help = "metrics, separated by commas (default loss)",
          .out = &names },
        { .name = "output",
          .letter = 'o',
          .kind = OPT_STRING,
          .value = "FILE",
          .help = "write an SVG picture; - for stdout",
          .out = &output },
    };
    const struct opt_arg args[] = { { .name = "RUN", .out = &text } };
    const struct opt_spec spec = { .command = "run plot",
                                   .about = "Draw metrics of a run: an id, a name, or \"last\".",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .args = args,
                                   .n_args = 1,
                                   .example = "tinker run plot last -n loss,reward -o run.svg" };
    struct api a;
    struct arena arena;
    struct run_progress run;
    struct plot_panel panels[PANELS_MAX];
    size_t n = 0;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_open(&a, &status))
        return status;
    arena_init(&arena, 256 << 20);
    struct run_history *h = calloc(1, sizeof(*h));
    if (!h) {
        status = out_fail(EXIT_FAILED, NULL, "Out of memory");
    } else if (run_history_find(&a, text, &arena, &run, &status) &&
               load_panels(&a, run.id, names, &arena, h, panels, &n, &status)) {
        /* A name that the run does not have; other names beside it would have been drawn. */
        if (!n) {
            status = out_fail(EXIT_NOT_FOUND, "`tinker run metrics` shows what there is",
                              "The run has no metric %s", names);
        } else if (output) {
            status = save_svg(output, panels, n);
        } else {
            struct buf b;
            buf_init(&b, 16 << 20);
            draw_panels(&b, panels, n, find_width());
            out_text(&b);
            buf_clear(&b);
            status = EXIT_OK;
        }
    }
    if (h)
        run_history_clear(h);
    free(h);
    arena_clear(&arena);
    api_close(&a);
    return status;
}

/* ---- watch ---------------------------------------------------------------------------------- */

/* "step 120/400, loss 2.1234, 850 tokens/s, 3 min left" */
/* Parts that the service does not know yet are left out: a run may have no plan and no rate. */
static void put_progress(struct buf *b, const struct run_progress *p)
{
    buf_printf(b, "%s: %s, step %lld", *p->name ? p->name : p->id, p->state, (long long)p->step);
    if (p->planned_steps)
        buf_printf(b, "/%lld", (long long)p->planned_steps);
    if (isfinite(p->loss))
        buf_printf(b, ", loss %.4f", p->loss);
    if (p->tokens_per_second > 0)
        buf_printf(b, ", %.0f tokens/s", p->tokens_per_second);
    if (isfinite(p->seconds_left) && p->seconds_left >= 90)
        buf_printf(b, ", %.0f min left", p->seconds_left / 60);
    else if (isfinite(p->seconds_left))
        buf_printf(b, ", %.0f s left", p->seconds_left);
    buf_putc(b, '\n');
}

/* One look at the run: false at its end, or after an error was printed.
 * Everything is fetched anew: a run may be renamed, resumed or lost between two looks. */
static bool watch_once(struct api *a, const char *text, const char *names, bool draw,
                       int64_t *last_step, int *status)
{
    struct arena arena;
    struct run_progress run;
    struct plot_panel panels[PANELS_MAX];
    struct buf b;
    size_t n = 0;
    bool more = false;
    arena_init(&arena, 256 << 20);
    buf_init(&b, 16 << 20);
    struct run_history *h = calloc(1, sizeof(*h));
    if (h && run_history_find(a, text, &arena, &run, status) &&
        (!draw || load_panels(a, run.id, names, &arena, h, panels, &n, status))) {
        /* In a terminal the picture is drawn in place; elsewhere a line for each new step. */
        if (draw)
            /* Cursor home, then clear to the end: the next picture replaces the last one. */
            buf_puts(&b, "\033[H\033[J");
        if (draw || run.step != *last_step)
            put_progress(&b, &run);
        if (draw)
            draw_panels(&b, panels, n, find_width());
        out_text(&b);
        out_flush();
        *last_step = run.step;
        *status = EXIT_OK;
        /* From the other states, "finished", "stopped" and "lost", a run does not come back by
         * itself. */
        more = strcmp(run.state, "training") == 0 || strcmp(run.state, "idle") == 0;
    }
    if (h)
        run_history_clear(h);
    free(h);
    buf_clear(&b);
    arena_clear(&arena);
    return more;
}

/* The same picture again and again until the run ends; the exit status is that of the last look. */
int cmd_run_watch(int argc, char **argv)
{
    const char *text = NULL, *names = "loss";
    int64_t every = 2, last_step = -1;
    const struct opt opts[] = {
        { .name = "names",
          .letter = 'n',
          .kind = OPT_STRING,
          .value = "LIST",
          .help = "metrics, separated by commas (default loss)",
          .out = &names },
        { .name = "every",
          .kind = OPT_INT,
          .value = "S",
          .help = "seconds between looks (default 2)",
          .out = &every },
    };
    const struct opt_arg args[] = { { .name = "RUN", .out = &text } };
    const struct opt_spec spec = { .command = "run watch",
                                   .about =
                                       "Follow a run until it ends: an id, a name, or \"last\".",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .args = args,
                                   .n_args = 1,
                                   .example = "tinker run watch last -n loss,reward" };
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    /* Each look fetches up to 2,000 points of each metric: not more than once a second. */
    if (every < 1 || every > 3600)
        return opt_usage_error(&spec, "--every is from 1 to 3600 seconds.");
    if (!api_open(&a, &status))
        return status;
    /* Decided once: output does not become a terminal halfway. */
    bool draw = out_can_draw(STDOUT_FILENO);
    /* Polled rather than held: a picture every two seconds is what an eye follows.  Ctrl-C ends
     * it, as its message says. */
    while (watch_once(&a, text, names, draw, &last_step, &status)) {
        struct timespec wait = { (time_t)every, 0 };
        nanosleep(&wait, NULL);
    }
    api_close(&a);
    return status;
}
