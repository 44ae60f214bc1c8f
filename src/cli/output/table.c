/* table.c - see table.h. */
#include "cli/output/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/output/out.h"

enum { NARROW = 8 };

struct box { /* left, fill, cross, right of each rule; bar of the head and of the body */
    const char *top[4], *mid[4], *bottom[4], *head_bar, *bar, *cut;
};
static const struct box heavy = {
    { "┏", "━", "┳", "┓" }, { "┡", "━", "╇", "┩" }, { "└", "─", "┴", "┘" }, "┃", "│", "…"
};
static const struct box ascii = {
    { "+", "-", "+", "+" }, { "+", "-", "+", "+" }, { "+", "-", "+", "+" }, "|", "|", "~"
};

static const char BOLD[] = "\033[1m", ITALIC[] = "\033[3m", CYAN[] = "\033[96m",
                  PLAIN[] = "\033[0m";

/* State while one table is drawn. The arrays belong to table_put(). */
struct drawing {
    struct buf *out;
    const struct table *t;
    const struct box *box;
    bool color;
    size_t *widths;    /* of each column */
    const char **rest; /* of each cell of the row that is being drawn */
};

/* ---- texts -------------------------------------------------------------------------- */

/* Columns on a terminal: code points. Bytes 10xxxxxx continue a UTF-8 sequence and do not
 * count. Wide characters would need more, but names and ids here have none. */
static size_t measure_text(const char *s)
{
    size_t width = 0;
    for (; *s; s++)
        width += ((unsigned char)*s & 0xc0) != 0x80;
    return width;
}

/* Bytes of the first `width` code points. */
static size_t measure_prefix(const char *s, size_t width)
{
    size_t n = 0;
    for (; s[n]; n++)
        if (((unsigned char)s[n] & 0xc0) != 0x80 && width-- == 0)
            break;
    return n;
}

/* Width of the longest part between the separators. */
static size_t measure_longest_part(const char *s, const char *separators)
{
    size_t longest = 0;
    while (*s) {
        size_t n = strcspn(s, separators), width = 0;
        for (size_t i = 0; i < n; i++)
            width += ((unsigned char)s[i] & 0xc0) != 0x80;
        longest = width > longest ? width : longest;
        s += n + (s[n] != 0);
    }
    return longest;
}

/* A column that is at least this wide breaks only between words. */
static size_t measure_longest_word(const char *s)
{
    return measure_longest_part(s, " \n");
}

/* Bytes of s for one line of this width: up to its newline, or to the last blank that fits, or
 * cut inside a word that is too long. *used counts the blank or newline, too. */
static size_t take_line(const char *s, size_t width, size_t *used)
{
    size_t n = measure_prefix(s, width), end = n;
    const char *line = memchr(s, '\n', n + (s[n] == '\n'));
    if (line) {
        *used = (size_t)(line - s) + 1;
        return *used - 1;
    }
    if (s[n]) {
        while (end > 0 && s[end] != ' ')
            end--;
        n = end > 0 ? end : n;
    }
    *used = n + (s[n] == ' ');
    return n;
}

/* ---- widths ------------------------------------------------------------------------- */

/* The width that each column needs without any wrapping. The first column has one line,
 * whatever is in it; others count their longest line. */
static void measure_columns(const struct table *t, size_t *widths)
{
    for (size_t i = 0; i < t->n_columns; i++)
        widths[i] = measure_text(t->columns[i]);
    for (size_t i = 0; i < t->n_rows * t->n_columns; i++) {
        /* Cells are stored row by row. */
        size_t column = i % t->n_columns, width = column == 0
                                                      ? measure_text(t->rows[i])
                                                      : measure_longest_part(t->rows[i], "\n");
        if (width > widths[column])
            widths[column] = width;
    }
}

/* n + 1 bars, and a blank on both sides of each cell. */
static size_t sum_widths(const struct table *t, const size_t *widths)
{
    size_t total = t->n_columns + 1;
    for (size_t i = 0; i < t->n_columns; i++)
        total += widths[i] + 2;
    return total;
}

/* How narrow column i may become: as wide as its longest word, so that no id, path or number is
 * ever broken; 0: not at all, as the first column, whose cells are one line. */
static size_t find_least_width(const struct table *t, size_t i)
{
    size_t least = measure_longest_word(t->columns[i]);
    for (size_t r = 0; r < t->n_rows; r++) {
        size_t word = measure_longest_word(t->rows[r * t->n_columns + i]);
        least = word > least ? word : least;
    }
    return i == 0 ? 0 : least;
}

/* The widest column that may still shrink; n_columns: none. */
static size_t find_widest(const struct table *t, const size_t *widths, const size_t *least)
{
    size_t widest = t->n_columns;
    for (size_t i = 0; i < t->n_columns; i++)
        if (least[i] && widths[i] > least[i] &&
            (widest == t->n_columns || widths[i] > widths[widest]))
            widest = i;
    return widest;
}

/* Take one column of the terminal at a time from the widest that may shrink, until the table
 * fits or nothing is left to take. `least` has room for a number per column. */
static void fit_columns(const struct table *t, size_t *widths, size_t *least, size_t width)
{
    size_t total = sum_widths(t, widths), widest;
    for (size_t i = 0; i < t->n_columns; i++)
        least[i] = find_least_width(t, i);
    while (total > width && (widest = find_widest(t, widths, least)) < t->n_columns) {
        widths[widest]--;
        total--;
    }
}

/* ---- drawing ------------------------------------------------------------------------ */

/* s, n times. */
static void put_times(struct buf *out, const char *s, size_t n)
{
    while (n--)
        buf_puts(out, s);
}

/* Bytes of the control character that s begins with: one for C0 and DEL, two for C1 in UTF-8
 * (C2 80 to C2 9F); 0: none. */
static size_t control_length(const char *s, size_t n)
{
    unsigned char c = (unsigned char)s[0], next = n > 1 ? (unsigned char)s[1] : 0;
    if (c < 0x20 || c == 0x7f)
        return 1;
    return c == 0xc2 && next >= 0x80 && next < 0xa0 ? 2 : 0;
}

/* Control characters become "?": texts come from the service and must not steer the terminal.
 * Color sequences are only ours. */
static void put_colored(const struct drawing *d, const char *color, const char *s, size_t n)
{
    bool colored = d->color && *color && n > 0;
    if (colored)
        buf_puts(d->out, color);
    for (size_t i = 0, skip; i < n; i += skip ? skip : 1) {
        skip = control_length(s + i, n - i);
        buf_putc(d->out, skip ? '?' : s[i]);
    }
    if (colored)
        buf_puts(d->out, PLAIN);
}

/* A horizontal line; part: left end, fill, crossing, right end. */
static void put_rule(const struct drawing *d, const char *const part[4])
{
    buf_puts(d->out, part[0]);
    for (size_t i = 0; i < d->t->n_columns; i++) {
        put_times(d->out, part[1], d->widths[i] + 2);
        buf_puts(d->out, i + 1 < d->t->n_columns ? part[2] : part[3]);
    }
    buf_putc(d->out, '\n');
}

/* The next line of cell i, padded with blanks. The first column is one line, whatever is in it. */
static void put_cell(const struct drawing *d, size_t i, const char *color)
{
    const char *s = d->rest[i];
    size_t used = strlen(s), n = i == 0 ? used : take_line(s, d->widths[i], &used), shown = 0;
    d->rest[i] = s + used;
    put_colored(d, color, s, n);
    for (size_t k = 0; k < n; k++)
        shown += ((unsigned char)s[k] & 0xc0) != 0x80;
    put_times(d->out, " ", d->widths[i] - shown);
}

/* As many lines as the cell with the most lines needs. */
static void put_row(const struct drawing *d, const char *bar, const char *const *cells, bool head)
{
    memcpy(d->rest, cells, d->t->n_columns * sizeof(*cells));
    bool more;
    do {
        more = false;
        buf_puts(d->out, bar);
        for (size_t i = 0; i < d->t->n_columns; i++) {
            buf_putc(d->out, ' ');
            put_cell(d, i, head ? BOLD : i == 0 ? CYAN : "");
            buf_putc(d->out, ' ');
            buf_puts(d->out, bar);
            more = more || *d->rest[i];
        }
        buf_putc(d->out, '\n');
    } while (more);
}

/* Title, head and body between rules. */
static void put_table(const struct drawing *d)
{
    /* The title is centered over the table; not all tables have one. */
    const char *title = d->t->title;
    size_t total = sum_widths(d->t, d->widths), width = title ? measure_text(title) : 0;
    if (title) {
        put_times(d->out, " ", total > width ? (total - width) / 2 : 0);
        put_colored(d, ITALIC, title, strlen(title));
        buf_putc(d->out, '\n');
    }
    put_rule(d, d->box->top);
    put_row(d, d->box->head_bar, d->t->columns, true);
    put_rule(d, d->box->mid);
    for (size_t r = 0; r < d->t->n_rows; r++)
        put_row(d, d->box->bar, d->t->rows + r * d->t->n_columns, false);
    put_rule(d, d->box->bottom);
}

/* "Head: text", further lines of the text indented below it. */
static void put_entry(const struct drawing *d, const char *head, const char *text,
                      const char *color)
{
    const char *separator = ": ";
    size_t used, n;
    put_colored(d, BOLD, head, strlen(head));
    do {
        n = take_line(text, SIZE_MAX, &used);
        buf_puts(d->out, separator);
        put_colored(d, color, text, n);
        buf_putc(d->out, '\n');
        separator = "  ";
        text += used;
    } while (*text);
}

/* The fallback for narrow terminals: an entry per cell, a blank line between rows.  Of properties
 * the name is the head, not the word "Property", and one thing is one block. */
static void put_list(const struct drawing *d)
{
    size_t n = d->t->n_columns;
    bool properties = n == 2 && strcmp(d->t->columns[0], "Property") == 0;
    if (d->t->title) {
        put_colored(d, ITALIC, d->t->title, strlen(d->t->title));
        buf_putc(d->out, '\n');
    }
    for (size_t r = 0; r < d->t->n_rows; r++) {
        const char *const *row = d->t->rows + r * n;
        if (r == 0 || !properties)
            buf_putc(d->out, '\n');
        if (properties)
            put_entry(d, row[0], row[1], "");
        for (size_t i = 0; i < n && !properties; i++)
            put_entry(d, d->t->columns[i], row[i], i == 0 ? CYAN : "");
    }
}

/* Width 0, a pipe, never wraps or cuts. If the narrowest layout is still too wide, print a list. */
void table_put(struct buf *out, const struct table *t, const struct table_style *style)
{
    /* One allocation for the widths and the scratch numbers of fit_columns(). */
    struct drawing d = { .out = out,
                         .t = t,
                         .box = style->utf8 ? &heavy : &ascii,
                         .color = style->color,
                         .widths = calloc(2 * t->n_columns + 1, sizeof(*d.widths)),
                         .rest = calloc(t->n_columns + 1, sizeof(*d.rest)) };
    if (d.widths && d.rest) {
        measure_columns(t, d.widths);
        if (style->width)
            fit_columns(t, d.widths, d.widths + t->n_columns, style->width);
        if (style->width && sum_widths(t, d.widths) > style->width)
            put_list(&d);
        else
            put_table(&d);
    } else
        out->failed = true;
    free(d.widths);
    free(d.rest);
}

/* ---- the style of stdout -------------------------------------------------------------- */

/* The first variable that is set decides, as in setlocale(); that function itself is not used,
 * because it would change how numbers are read and printed. */
static bool locale_is_utf8(void)
{
    const char *lang = getenv("LC_ALL");
    if (!lang || !*lang)
        lang = getenv("LC_CTYPE");
    if (!lang || !*lang)
        lang = getenv("LANG");
    return lang && (strstr(lang, "UTF-8") || strstr(lang, "utf8") || strstr(lang, "UTF8"));
}

void table_print(const struct table *t)
{
    const struct table_style style = { out_width(STDOUT_FILENO), locale_is_utf8(), out_colored() };
    struct buf out;
    buf_init(&out, SIZE_MAX / 2);
    table_put(&out, t, &style);
    out_text(&out);
    buf_clear(&out);
}
