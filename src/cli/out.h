/* out.h - results to stdout, talk to stderr.
 *
 * Errors have one shape everywhere: "Error: <headline>", then details.  Tables use
 * a heavy head on a UTF-8 terminal and ASCII otherwise.  Not thread-safe. */
#ifndef CLI_OUT_H
#define CLI_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "cli/command.h"

/* Print "Error: <fmt>" and, when not NULL, the details below it (with --json one
 * JSON line instead), both to stderr.  Returns the exit status to use. */
int out_fail(enum exit_code code, const char *details, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A line to stderr unless --quiet. */
void out_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* One JSON document, given compactly, printed to stdout with indent 2, ASCII only. */
void out_json(const char *json, size_t n);
/* The same into a buffer, without the final newline. */
void out_json_pretty(struct buf *out, const char *json, size_t n);

/* rows is n_rows * n_columns texts, row by row. */
void out_table(const char *title, const char *const *columns, size_t n_columns,
               const char *const *rows, size_t n_rows);

#endif
