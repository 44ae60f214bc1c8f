/* confirm.c - see confirm.h. */
#include "cli/output/confirm.h"

#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/output/out.h"

/* Anything but y, yes, n, no or an empty line is asked again: nothing is done by accident. */
bool confirm_yes(FILE *f, const char *question)
{
    char line[64];
    for (;;) {
        fprintf(f, "%s [y/N]: ", question);
        fflush(f);
        if (!fgets(line, sizeof(line), stdin)) {
            fputc('\n', f);
            return false;
        }
        line[strcspn(line, "\r\n")] = 0;
        if (strcasecmp(line, "y") == 0 || strcasecmp(line, "yes") == 0)
            return true;
        if (!*line || strcasecmp(line, "n") == 0 || strcasecmp(line, "no") == 0)
            return false;
        fprintf(f, "Error: invalid input\n");
    }
}

bool confirm_ask(int *status, const char *fmt, ...)
{
    char question[1024];
    va_list ap;
    if (globals.yes)
        return true;
    if (!isatty(STDIN_FILENO)) {
        *status = out_fail(EXIT_USAGE, "Pass --yes.",
                           "Cannot ask for confirmation: standard input is not a terminal");
        return false;
    }
    va_start(ap, fmt);
    vsnprintf(question, sizeof(question), fmt, ap);
    va_end(ap);
    *status = EXIT_OK;
    return confirm_yes(stderr, question);
}
