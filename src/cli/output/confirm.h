/* confirm.h - questions that are answered with yes or no. */
#ifndef CLI_CONFIRM_H
#define CLI_CONFIRM_H

#include <stdbool.h>
#include <stdio.h>

/* Ask on f until there is an answer.  The end of the input is a no. */
bool confirm_yes(FILE *f, const char *question);
/* The same on stderr; true at once with --yes.  false: *status is the exit status: 0 after a no,
 * EXIT_USAGE when there is nobody to ask. */
bool confirm_ask(int *status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
