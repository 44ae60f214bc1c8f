/* plot_terminal.c - a panel as text: a grid of Braille characters, two dots wide and four high.
 *
 * A dot (column c, row r of a character) is one bit of a code point from U+2800 on; the two
 * lowest rows were added to Braille later, hence the order of the bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/number.h"
#include "recipe/plot.h"
#include "recipe/plot_range.h"

enum { LABEL = 9 }; /* columns for the values of the y axis, at least */

struct grid {
    unsigned char *cells;
    size_t columns, rows; /* of characters */
    int label;            /* columns in front of it */
};

/* Values may round to one dot beyond the grid; those are left out. */
static void set_dot(struct grid *g, size_t x, size_t y)
{
    static const unsigned char bits[4][2] = { { 1, 8 }, { 2, 16 }, { 4, 32 }, { 64, 128 } };
    if (x / 2 < g->columns && y / 4 < g->rows)
        g->cells[y / 4 * g->columns + x / 2] |= bits[y % 4][x % 2];
}

/* Every dot between two points, by steps along the longer direction. */
static void draw_segment(struct grid *g, double x0, double y0, double x1, double y1)
{
    double longest = fmax(fabs(x1 - x0), fabs(y1 - y0));
    size_t steps = (size_t)ceil(longest) + 1;
    for (size_t i = 0; i <= steps; i++) {
        double t = (double)i / (double)steps;
        set_dot(g, (size_t)lround(x0 + t * (x1 - x0)), (size_t)lround(y0 + t * (y1 - y0)));
    }
}

/* The grid has 2 by 4 dots per character. A value that is not finite interrupts the line; the
 * first point after it is a dot of its own. */
static void draw_series(struct grid *g, const struct plot_range *r, const struct plot_series *s)
{
    double wide = (double)(g->columns * 2 - 1), high = (double)(g->rows * 4 - 1);
    double last_x = NAN, last_y = NAN;
    for (size_t i = 0; i < s->n; i++) {
        double x = (plot_x(s, i) - r->x0) / (r->x1 - r->x0) * wide;
        double y = (r->y1 - s->y[i]) / (r->y1 - r->y0) * high;
        if (isfinite(x) && isfinite(y)) {
            if (isfinite(last_x) && isfinite(last_y))
                draw_segment(g, last_x, last_y, x, y);
            else
                draw_segment(g, x, y, x, y);
        }
        last_x = x;
        last_y = y;
    }
}

/* U+2800 + cell as UTF-8; an empty cell is a blank, which copies better. */
static void put_cell(struct buf *out, unsigned char cell)
{
    char utf8[4] = { (char)0xe2, (char)(0xa0 | cell >> 6), (char)(0x80 | (cell & 63)), 0 };
    buf_puts(out, cell ? utf8 : " ");
}

/* Only the first and the last row are labeled: with more labels rows look like levels of a scale
 * that 4 dots per row do not have. Blanks at the end of a line would make copies of the plot
 * ragged. */
static void put_rows(struct buf *out, const struct grid *g, const struct plot_range *r)
{
    for (size_t row = 0; row < g->rows; row++) {
        char text[NUMBER_SIZE] = "";
        if (row == 0 || row + 1 == g->rows)
            number_text(row ? r->y0 : r->y1, 4, text);
        buf_printf(out, "%*s ┤", g->label - 2, text);
        for (size_t c = 0; c < g->columns; c++)
            put_cell(out, g->cells[row * g->columns + c]);
        while (out->len && out->data[out->len - 1] == ' ')
            out->len--;
        buf_putc(out, '\n');
    }
}

/* The two ends of the x axis, then each series with its last value. */
static void put_footer(struct buf *out, const struct plot_panel *p, const struct plot_range *r,
                       const struct grid *g)
{
    char first[NUMBER_SIZE], last[NUMBER_SIZE];
    number_text(r->x0, 6, first);
    number_text(r->x1, 6, last);
    size_t text = strlen(first) + strlen(last), gap = g->columns > text ? g->columns - text : 1;
    buf_printf(out, "%*s%s%*s%s\n", g->label, "", first, (int)gap, "", last);
    for (size_t k = 0; k < p->n_series; k++) {
        const struct plot_series *s = &p->series[k];
        size_t i = s->n;
        while (i > 0 && !isfinite(s->y[i - 1]))
            i--;
        char value[NUMBER_SIZE] = "none";
        if (i > 0)
            number_text(s->y[i - 1], 5, value);
        buf_printf(out, "%*s%s  %s\n", g->label, "", s->name, value);
    }
}

/* The values and " ┤" fit into it: -0.0007601 takes ten columns. */
static size_t find_label_width(const struct plot_range *r)
{
    char low[NUMBER_SIZE], top[NUMBER_SIZE];
    number_text(r->y0, 4, low);
    number_text(r->y1, 4, top);
    size_t n = strlen(low) > strlen(top) ? strlen(low) : strlen(top);
    return n + 2 > LABEL ? n + 2 : LABEL;
}

void plot_terminal(struct buf *out, const struct plot_panel *p, size_t columns, size_t rows)
{
    struct plot_range r = plot_range_of(p);
    size_t label = find_label_width(&r);
    struct grid g = { NULL, columns > label + 10 ? columns - label : 10, rows ? rows : 1,
                      (int)label };
    g.cells = calloc(g.columns * g.rows, 1);
    if (!g.cells) {
        out->failed = true;
        return;
    }
    for (size_t k = 0; k < p->n_series; k++)
        draw_series(&g, &r, &p->series[k]);
    buf_printf(out, "%*s%s\n", g.label, "", p->title);
    put_rows(out, &g, &r);
    put_footer(out, p, &r, &g);
    free(g.cells);
}
