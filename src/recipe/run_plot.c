/* run_plot.c - metrics.svg: the curves of a run that people look at first. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "base/os.h"
#include "json/json.h"
#include "recipe/plot.h"
#include "recipe/run.h"

/* Each panel has the curves that share an axis; one without any data is left out. */
static const struct {
    const char *title;
    const char *names[3];
} panels[] = {
    { "Loss (mean over weighted tokens)", { "train_mean_nll", "test/nll" } },
    { "Bits per byte", { "train_mean_bpb", "test/bpb" } },
    { "Preference loss", { "dpo_loss", "test/dpo_loss" } },
    { "Preference accuracy", { "accuracy", "test/accuracy" } },
    { "Reward", { "env/all/reward/total", "test/env/all/reward/total" } },
    { "Cross-entropy to the teacher", { "distill/cross_entropy" } },
    { "KL", { "kl_policy_base", "teacher_kl", "optim/kl_sample_train_v1" } },
    { "Learning rate", { "learning_rate", "optim/lr" } },
};

enum { PANELS = ARRAY_LEN(panels), CURVES = 3 };

struct curve {
    double *x, *y;
    size_t n, cap;
};

/* Both arrays grow together; c->cap changes only when both did. */
static bool add_point(struct curve *c, double x, double y)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 64;
        double *xs = realloc(c->x, cap * sizeof(*xs));
        if (xs)
            c->x = xs;
        double *ys = xs ? realloc(c->y, cap * sizeof(*ys)) : NULL;
        if (!ys)
            return false;
        c->y = ys;
        c->cap = cap;
    }
    c->x[c->n] = x;
    c->y[c->n++] = y;
    return true;
}

/* The number behind "name": in a line of metrics, which this program wrote; NaN when there is
 * none.  (Python's NaN is not JSON, so the reader would refuse the line.) */
static double find_number(const char *line, size_t n, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i + len + 4 < n; i++) {
        if (line[i] != '"' || memcmp(line + i + 1, name, len) != 0 ||
            memcmp(line + i + 1 + len, "\": ", 3) != 0)
            continue;
        const char *v = line + i + len + 4;
        return strchr("-0123456789", *v) ? strtod(v, NULL) : NAN;
    }
    return NAN;
}

/* Every metric of every line is looked for by name. Plots are drawn at the end of a run, so
 * simple counts more than fast. */
static bool read_curves(const char *s, size_t n, struct curve curves[PANELS][CURVES])
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end ? (size_t)(end - s) - at : n - at;
        double step = find_number(s + at, len, "step");
        for (size_t p = 0; p < PANELS; p++)
            for (size_t c = 0; c < CURVES && panels[p].names[c]; c++) {
                double y = find_number(s + at, len, panels[p].names[c]);
                if (isfinite(step) && isfinite(y) && !add_point(&curves[p][c], step, y))
                    return false;
            }
        at += len + 1;
    }
    return true;
}

/* Series borrow the arrays of the curves. */
static size_t lay_out_panels(struct curve curves[PANELS][CURVES],
                             struct plot_series series[PANELS][CURVES], struct plot_panel *out)
{
    size_t n = 0;
    for (size_t p = 0; p < PANELS; p++) {
        size_t k = 0;
        for (size_t c = 0; c < CURVES; c++)
            if (curves[p][c].n)
                series[p][k++] = (struct plot_series){ panels[p].names[c], curves[p][c].x,
                                                       curves[p][c].y, curves[p][c].n };
        if (k)
            out[n++] = (struct plot_panel){ panels[p].title, series[p], k };
    }
    return n;
}

/* Metrics without any known name make no file, and that is no error. */
tinker_status tinker_run_plot(tinker_run *run, tinker_error *err)
{
    struct curve curves[PANELS][CURVES] = { 0 };
    struct plot_series series[PANELS][CURVES];
    struct plot_panel shown[PANELS];
    char *from = run_path(run, "metrics.jsonl"), *to = run_path(run, "metrics.svg"), *data = NULL;
    size_t n = 0;
    struct buf svg;
    buf_init(&svg, (size_t)256 << 20);
    tinker_status status =
        from && to ? os_read_file(from, (size_t)1 << 32, &data, &n, err) : err_nomem(err, "a path");
    if (status == TINKER_OK && !read_curves(data, n, curves))
        status = err_nomem(err, "curves");
    size_t count = status == TINKER_OK ? lay_out_panels(curves, series, shown) : 0;
    if (count > 0) {
        plot_svg(&svg, shown, count, "step");
        status =
            buf_ok(&svg) ? os_write_file(to, svg.data, svg.len, err) : err_nomem(err, "curves");
    }
    for (size_t p = 0; p < PANELS; p++)
        for (size_t c = 0; c < CURVES; c++) {
            free(curves[p][c].x);
            free(curves[p][c].y);
        }
    buf_clear(&svg);
    free(data);
    free(from);
    free(to);
    return status;
}
