/* plot.h - curves over steps: as an SVG picture, as text for a terminal, as one line.
 *
 * Values that are not finite are gaps.  Everything is appended to a buffer, whose failure the
 * caller checks once.  Thread safety: any thread, any time. */
#ifndef RECIPE_PLOT_H
#define RECIPE_PLOT_H

#include <stddef.h>
#include "base/buf.h"

/* y[i] over x[i], x ascending; x NULL: 0, 1, 2, ... */
struct plot_series {
    const char *name;
    const double *x, *y;
    size_t n;
};

/* One diagram: curves that share both axes.  At most PLOT_COLORS are told apart by color. */
enum { PLOT_COLORS = 6 };
struct plot_panel {
    const char *title;
    const struct plot_series *series;
    size_t n_series;
};

/* The panels one below the other as an SVG document of its own, readable on a light and on a
 * dark page.  x_label names the common axis, for example "step". */
void plot_svg(struct buf *out, const struct plot_panel *panels, size_t n, const char *x_label);

/* The panel as text of `columns` by `rows` characters (Braille dots), with its axes; the series
 * are drawn over each other and named below with their last value. */
void plot_terminal(struct buf *out, const struct plot_panel *panel, size_t columns, size_t rows);

/* The last values as one line of at most `width` block characters, lowest to highest; with more
 * values than that, each character is the mean of its share. */
void plot_sparkline(struct buf *out, const double *y, size_t n, size_t width);

/* A step between axis labels: the smallest of 1, 2, 5 times a power of ten that divides the span
 * into at most `most` parts. */
double plot_tick(double span, size_t most);

#endif
