/* line_input.c - see line_input.h.  The only file that knows libedit. */
#include "cli/chat/line_input.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"

enum { HISTORY_LINES = 1000, LINE_MAX_BYTES = 1 << 20 };

/* One line editor per process: libedit changes the terminal, of which there is one. */
static struct {
    EditLine *editor;
    History *history;
    char *file;
    char prompt[64];
    const char *const *words;
    struct buf line;
} input;

/* libedit asks for the prompt through a callback without state of ours, hence the static struct. */
static char *get_prompt(EditLine *e)
{
    (void)e;
    return input.prompt;
}

/* Tab: the only command that begins with what stands before the cursor; else a bell. */
static unsigned char complete_word(EditLine *e, int key)
{
    const LineInfo *l = el_line(e);
    size_t n = (size_t)(l->cursor - l->buffer);
    const char *found = NULL;
    (void)key;
    for (const char *const *w = input.words; w && *w && n; w++)
        if (strncmp(*w, l->buffer, n) == 0) {
            if (found)
                return CC_ERROR;
            found = *w;
        }
    if (!found || el_insertstr(e, found + n) != 0 || el_insertstr(e, " ") != 0)
        return CC_ERROR;
    return CC_REFRESH;
}

bool line_input_open(const char *file, const char *const *words)
{
    HistEvent event;
    /* Characters of more than one byte are edited as one. */
    setlocale(LC_CTYPE, "");
    input.editor = el_init("tinker", stdin, stdout, stderr);
    if (!input.editor)
        return false;
    input.words = words;
    buf_init(&input.line, LINE_MAX_BYTES);
    el_set(input.editor, EL_PROMPT, get_prompt);
    /* The keys of a shell; ~/.editrc, read last, may choose vi. */
    el_set(input.editor, EL_EDITOR, "emacs");
    /* The wide form keeps these texts; el_set() would copy them and never free the copies. */
    el_wset(input.editor, EL_ADDFN, L"complete", L"complete a command", complete_word);
    el_set(input.editor, EL_BIND, "^I", "complete", NULL);
    /* Search backward as in a shell; libedit has the function but binds no key to it. */
    el_set(input.editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(input.editor, NULL); /* ~/.editrc */
    input.history = history_init();
    if (input.history) {
        /* H_SETUNIQUE: asking the same thing twice leaves one line. */
        history(input.history, &event, H_SETSIZE, HISTORY_LINES);
        history(input.history, &event, H_SETUNIQUE, 1);
        el_set(input.editor, EL_HIST, history, input.history);
    }
    if (file && input.history) {
        input.file = strdup(file);
        if (input.file)
            history(input.history, &event, H_LOAD, input.file);
    }
    return true;
}

enum line_result line_input_read(const char *prompt, const char **line)
{
    int n = 0;
    snprintf(input.prompt, sizeof(input.prompt), "%s", prompt);
    /* el_gets() returns NULL for Ctrl-D and for a signal alike; errno tells them apart. */
    errno = 0;
    const char *text = el_gets(input.editor, &n);
    if (!text || n <= 0)
        return errno == EINTR ? LINE_INPUT_INTERRUPTED : LINE_INPUT_END;
    buf_reset(&input.line);
    buf_append(&input.line, text, (size_t)n);
    while (input.line.len && strchr("\r\n", input.line.data[input.line.len - 1]))
        input.line.data[--input.line.len] = 0;
    *line = buf_ok(&input.line) ? input.line.data : "";
    return LINE_INPUT_TEXT;
}

/* Messages of several lines are one entry. */
void line_input_remember(const char *line)
{
    HistEvent event;
    if (input.history && *line)
        history(input.history, &event, H_ENTER, line);
}

/* Pushed text is read as if it had been typed, so it can be edited. */
void line_input_prefill(const char *text)
{
    el_push(input.editor, text);
}

/* What people ask a model is private: the file is for its owner alone. */
void line_input_close(void)
{
    HistEvent event;
    if (input.history && input.file) {
        int fd = open(input.file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0)
            close(fd);
        history(input.history, &event, H_SAVE, input.file);
    }
    if (input.history)
        history_end(input.history);
    el_end(input.editor);
    buf_clear(&input.line);
    free(input.file);
    memset(&input, 0, sizeof(input));
}
