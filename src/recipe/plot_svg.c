/* plot_svg.c - panels as one SVG document.
 *
 * Numbers have two decimals and a point whatever the locale says, so that equal runs give equal
 * files. */
#include <math.h>
#include <string.h>
#include "base/number.h"
#include "recipe/plot.h"
#include "recipe/plot_range.h"

/* In units of the viewBox; the document scales with its window. */
enum { WIDTH = 720, LEFT = 64, RIGHT = 16, TOP = 34, BOTTOM = 34, BODY = 180 };
enum { PANEL = TOP + BODY + BOTTOM };

static const char *const colors[PLOT_COLORS] = { "#2563eb", "#dc2626", "#16a34a",
                                                 "#d97706", "#7c3aed", "#0891b2" };

/* A hundredth of a unit is below what a screen shows, and short numbers keep files of long runs
 * small. */
static void put_coordinate(struct buf *out, double v)
{
    char text[NUMBER_SIZE];
    number_text(round(v * 100) / 100, 9, text);
    buf_puts(out, text);
}

/* Names of metrics come from users' programs. Control characters are not allowed in XML, not
 * even escaped. */
static void put_escaped(struct buf *out, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '&':
            buf_puts(out, "&amp;");
            break;
        case '<':
            buf_puts(out, "&lt;");
            break;
        case '"':
            buf_puts(out, "&quot;");
            break;
        default:
            if ((unsigned char)*s >= ' ')
                buf_putc(out, *s);
        }
}

/* One label of class `class`, anchored where the class says. */
static void put_label(struct buf *out, const char *class, double x, double y, const char *text)
{
    buf_printf(out, "<text class=\"%s\" x=\"", class);
    put_coordinate(out, x);
    buf_puts(out, "\" y=\"");
    put_coordinate(out, y);
    buf_puts(out, "\">");
    put_escaped(out, text);
    buf_puts(out, "</text>\n");
}

static double place_x(const struct plot_range *r, double x)
{
    return LEFT + (x - r->x0) / (r->x1 - r->x0) * (WIDTH - LEFT - RIGHT);
}

/* SVG counts y downward, the panel upward. */
static double place_y(const struct plot_range *r, double y, double top)
{
    return top + TOP + (r->y1 - y) / (r->y1 - r->y0) * BODY;
}

static void put_line(struct buf *out, double x0, double y0, double x1, double y1)
{
    const double v[] = { x0, y0, x1, y1 };
    static const char *const names[] = { "x1", "y1", "x2", "y2" };
    buf_puts(out, "<line");
    for (size_t i = 0; i < 4; i++) {
        buf_printf(out, " %s=\"", names[i]);
        put_coordinate(out, v[i]);
        buf_putc(out, '"');
    }
    buf_puts(out, "/>\n");
}

/* Grid lines with the values they stand for, on both axes. */
static void put_axes(struct buf *out, const struct plot_range *r, double top)
{
    char text[NUMBER_SIZE];
    double step = plot_tick(r->y1 - r->y0, 5);
    for (double v = ceil(r->y0 / step) * step; v <= r->y1 + step * 1e-9; v += step) {
        double y = place_y(r, v, top);
        put_line(out, LEFT, y, WIDTH - RIGHT, y);
        number_text(fabs(v) < step * 1e-9 ? 0 : v, 6, text);
        put_label(out, "y", LEFT - 6, y + 4, text);
    }
    step = plot_tick(r->x1 - r->x0, 8);
    step = step < 1 ? 1 : step; /* steps are whole */
    for (double v = ceil(r->x0 / step) * step; v <= r->x1 + step * 1e-9; v += step) {
        number_text(v, 9, text);
        put_label(out, "x", place_x(r, v), top + TOP + BODY + 16, text);
    }
}

/* A path with a new beginning after every gap; a point that stands alone becomes a dot, which
 * a line of no length with round ends is. */
static void put_curve(struct buf *out, const struct plot_range *r, const struct plot_series *s,
                      size_t color, double top)
{
    bool drawing = false;
    buf_printf(out, "<path stroke=\"%s\" d=\"", colors[color % PLOT_COLORS]);
    for (size_t i = 0; i < s->n; i++) {
        double x = plot_x(s, i), y = s->y[i];
        if (!isfinite(x) || !isfinite(y)) {
            drawing = false;
            continue;
        }
        buf_putc(out, drawing ? 'L' : 'M');
        put_coordinate(out, place_x(r, x));
        buf_putc(out, ' ');
        put_coordinate(out, place_y(r, y, top));
        if (!drawing)
            buf_puts(out, "h0");
        drawing = true;
    }
    buf_puts(out, "\"/>\n");
}

static void put_panel(struct buf *out, const struct plot_panel *p, double top)
{
    struct plot_range r = plot_range_of(p);
    double at = WIDTH - RIGHT;
    put_label(out, "title", LEFT, top + 20, p->title);
    put_axes(out, &r, top);
    for (size_t k = 0; k < p->n_series; k++)
        put_curve(out, &r, &p->series[k], k, top);
    /* the legend from right to left, about 7 units for each letter */
    for (size_t k = p->n_series; p->n_series > 1 && k-- > 0;) {
        buf_printf(out, "<g fill=\"%s\">", colors[k % PLOT_COLORS]);
        put_label(out, "legend", at, top + 20, p->series[k].name);
        buf_puts(out, "</g>\n");
        at -= 12 + 7 * (double)strlen(p->series[k].name);
    }
}

void plot_svg(struct buf *out, const struct plot_panel *panels, size_t n, const char *x_label)
{
    size_t height = n * PANEL + 24;
    buf_printf(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" width=\"%d\" "
               "height=\"%zu\" font-family=\"sans-serif\" font-size=\"12\">\n",
               WIDTH, height, WIDTH, height);
    buf_puts(out, "<style>\nrect{fill:#fff}text{fill:#333}line{stroke:#ddd}\n"
                  "path{fill:none;stroke-width:1.6;stroke-linecap:round;stroke-linejoin:round}\n"
                  ".title{font-weight:bold;font-size:14px}.y,.legend{text-anchor:end}"
                  ".x{text-anchor:middle}.legend{fill:inherit}\n"
                  "@media (prefers-color-scheme:dark){rect{fill:#161b22}text{fill:#ccc}"
                  "line{stroke:#333}.legend{fill:inherit}}\n</style>\n");
    buf_printf(out, "<rect width=\"%d\" height=\"%zu\"/>\n", WIDTH, height);
    for (size_t i = 0; i < n; i++)
        put_panel(out, &panels[i], (double)(i * PANEL));
    put_label(out, "x", (WIDTH + LEFT - RIGHT) / 2.0, (double)height - 10, x_label);
    buf_puts(out, "</svg>\n");
}
