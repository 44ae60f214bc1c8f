/* plot.c - see plot.h.  What the pictures share: ranges, ticks, the sparkline. */
#include "recipe/plot.h"

#include <math.h>
#include "recipe/plot_range.h"

/* 1, 2 or 5 times a power of ten, the smallest that gives at most `most` intervals. The factor
 * below 1 keeps a span that is a tick times an integer from jumping to the next one by rounding. */
double plot_tick(double span, size_t most)
{
    double raw = span / (double)(most ? most : 1);
    double power = pow(10, floor(log10(raw)));
    static const double steps[] = { 1, 2, 5, 10 };
    for (size_t i = 0; i < 4; i++)
        if (steps[i] * power >= raw * (1 - 1e-9))
            return steps[i] * power;
    return raw;
}

/* A series without x counts its points. */
double plot_x(const struct plot_series *s, size_t i)
{
    return s->x ? s->x[i] : (double)i;
}

static void include_value(double v, double *lo, double *hi)
{
    *lo = v < *lo ? v : *lo;
    *hi = v > *hi ? v : *hi;
}

/* A span of nothing is widened, so that one point, or a constant, has a place. */
static void widen_span(double *lo, double *hi)
{
    if (*lo > *hi)
        *lo = 0, *hi = 1;
    if (*hi - *lo > 1e-12 * (fabs(*lo) + fabs(*hi)) && *hi > *lo)
        return;
    double by = *lo == 0 ? 1 : fabs(*lo) * 0.1;
    *lo -= by;
    *hi += by;
}

/* Points that are not finite are gaps of a curve and widen nothing. */
struct plot_range plot_range_of(const struct plot_panel *p)
{
    struct plot_range r = { INFINITY, -INFINITY, INFINITY, -INFINITY };
    for (size_t k = 0; k < p->n_series; k++)
        for (size_t i = 0; i < p->series[k].n; i++) {
            double x = plot_x(&p->series[k], i), y = p->series[k].y[i];
            if (!isfinite(x) || !isfinite(y))
                continue;
            include_value(x, &r.x0, &r.x1);
            include_value(y, &r.y0, &r.y1);
        }
    widen_span(&r.x0, &r.x1);
    widen_span(&r.y0, &r.y1);
    return r;
}

/* Mean of the finite values of y[from..to); NaN when there is none. */
static double mean_of(const double *y, size_t from, size_t to)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        if (isfinite(y[i]))
            sum += y[i], n++;
    return n ? sum / (double)n : NAN;
}

/* A cell shows the mean of its share of the values, not one of them: a spike narrower than a
 * cell would come and go with the width of the terminal. */
void plot_sparkline(struct buf *out, const double *y, size_t n, size_t width)
{
    static const char *const blocks[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    size_t cells = n < width ? n : width;
    double lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < cells; i++) {
        double v = mean_of(y, i * n / cells, (i + 1) * n / cells);
        if (isfinite(v))
            include_value(v, &lo, &hi);
    }
    for (size_t i = 0; i < cells; i++) {
        double v = mean_of(y, i * n / cells, (i + 1) * n / cells);
        if (!isfinite(v))
            buf_putc(out, ' ');
        else
            buf_puts(out, blocks[hi > lo ? (size_t)((v - lo) / (hi - lo) * 7 + 0.5) : 3]);
    }
}
