/* line_input.h - lines from a person: editing, history, completion of /commands.
 *
 * Thread safety: one thread, one at a time in a process. */
#ifndef CLI_LINE_INPUT_H
#define CLI_LINE_INPUT_H

#include <stdbool.h>
#include <stddef.h>

enum line_result { LINE_INPUT_TEXT, LINE_INPUT_INTERRUPTED, LINE_INPUT_END };

/* history: a file that keeps the lines from one chat to the next, NULL for none.  words: what Tab
 * completes at the beginning of a line, NULL-terminated, borrowed.  false: the terminal cannot be
 * used. */
bool line_input_open(const char *history, const char *const *words);
/* The next line without its newline, borrowed until the next call.  prompt is copied. */
enum line_result line_input_read(const char *prompt, const char **line);
/* Keep a line, which may be several, in the history. */
void line_input_remember(const char *line);
/* What the next read begins with, as if it had been typed. */
void line_input_prefill(const char *text);
void line_input_close(void);

#endif
