/* plot_range.h - what the two kinds of plots ask of their data. */
#ifndef RECIPE_PLOT_RANGE_H
#define RECIPE_PLOT_RANGE_H

#include "recipe/plot.h"

/* The smallest box around all points; never empty. */
struct plot_range {
    double x0, x1, y0, y1;
};
struct plot_range plot_range_of(const struct plot_panel *p);
double plot_x(const struct plot_series *s, size_t i);

#endif
