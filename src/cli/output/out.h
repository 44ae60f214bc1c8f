/* out.h - results to stdout, talk to stderr.
 *
 * Errors have one shape everywhere: "Error: <headline>", then details.  Not thread-safe. */
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

/* The same for a failure that a server told. */
struct out_answer {
    int status;             /* 0: none */
    const char *request_id; /* "": none */
};
int out_fail_answer(enum exit_code code, const struct out_answer *answer, const char *details,
                    const char *message);

/* A line to stderr unless --quiet. */
void out_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Text to stdout; without memory for it nothing is printed, and out_finish() tells. */
void out_text(const struct buf *text);

/* One JSON document, given compactly, printed as the reference does: ASCII only, with indent 2,
 * or on one line. */
void out_json(const struct buf *json);
void out_json_line(const struct buf *json);
/* The indented text with its newline, appended to out. */
void out_pretty_json(struct buf *out, const struct buf *json);
/* On one line, without newline. */
void out_json_text_line(struct buf *out, const struct buf *json);

/* Write out what was printed so far, where the reader waits for it. */
void out_flush(void);
/* At the end: has all of it been written?  EXIT_OK, also when the reader just left; else
 * EXIT_IO after the error was printed. */
int out_finish(void);

/* Columns of the terminal behind fd (COLUMNS wins); 0: it is none. */
size_t out_width(int fd);

/* Is it a terminal that obeys control sequences?  TERM says which do not. */
bool out_can_draw(int fd);
/* May stdout have colors?  Only such a terminal, unless --no-color or NO_COLOR. */
bool out_colored(void);

#endif
