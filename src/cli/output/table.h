/* table.h - a table of texts for people: it fits a terminal, and is never cut in a pipe.
 *
 * A heavy head where the locale is UTF-8, ASCII otherwise.  Too wide for the terminal, columns
 * become narrower and their texts take more lines, between words only: ids and paths are never
 * cut or broken.  Texts may have lines of their own, but for those of the first column.  A table
 * that is too wide all the same becomes a list, a line for each text.
 * Control characters are shown as ?, so that no text can steer the terminal.  Not thread-safe. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

struct table {
    const char *title; /* NULL: none */
    const char *const *columns;
    size_t n_columns;
    const char *const *rows; /* n_rows * n_columns texts, row by row */
    size_t n_rows;
};

struct table_style {
    size_t width; /* of the terminal, 0: as wide as need be */
    bool utf8, color;
};

/* To stdout, in the style that suits it. */
void table_print(const struct table *t);

void table_put(struct buf *out, const struct table *t, const struct table_style *style);

#endif
