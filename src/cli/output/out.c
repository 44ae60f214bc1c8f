/* out.c - results to stdout, talk to stderr: see out.h. */
#include "cli/output/out.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/output/progress.h"
#include "json/json.h"

static int write_error; /* the first; stdio itself forgets the reason */

/* Remember the first error: ferror() keeps no reason, and errno is overwritten soon. */
void out_flush(void)
{
    if (fflush(stdout) != 0 && !write_error)
        write_error = errno;
}

/* A buffer that failed is not printed at all: half a result looks like a whole one. */
void out_text(const struct buf *text)
{
    if (buf_ok(text))
        fwrite(text->data ? text->data : "", 1, text->len, stdout);
    else if (!write_error)
        write_error = ENOMEM;
}

/* ---- errors and talk ----------------------------------------------------------- */

/* "kind" of an error in JSON: stable, for programs. */
static const char *get_kind_name(enum exit_code code)
{
    switch (code) {
    case EXIT_USAGE:
        return "usage";
    case EXIT_CONFIG:
        return "configuration";
    case EXIT_PARTIAL:
        return "partial_failure";
    case EXIT_NOT_FOUND:
        return "not_found";
    case EXIT_CAPACITY:
        return "capacity";
    case EXIT_NETWORK:
        return "network";
    case EXIT_DATA:
        return "invalid_data";
    case EXIT_IO:
        return "io";
    case EXIT_INTERRUPTED:
        return "interrupted";
    default:
        return "failed";
    }
}

/* {"error":{"code":5,"kind":"not_found","status":404,"message":...,"hint":...,"request_id":...}}
 * on one line of stderr; members that are unknown are left out. */
static void print_error_json(enum exit_code code, const struct out_answer *answer,
                             const char *message, const char *details)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b, 1 << 16);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "error");
    json_put_begin_object(&w);
    json_put_key(&w, "code");
    json_put_int64(&w, code);
    json_put_key(&w, "kind");
    json_put_string(&w, get_kind_name(code));
    if (answer && answer->status) {
        json_put_key(&w, "status");
        json_put_int64(&w, answer->status);
    }
    json_put_key(&w, "message");
    json_put_string(&w, message);
    if (details) {
        json_put_key(&w, "hint");
        json_put_string(&w, details);
    }
    if (answer && *answer->request_id) {
        json_put_key(&w, "request_id");
        json_put_string(&w, answer->request_id);
    }
    json_put_end_object(&w);
    json_put_end_object(&w);
    fprintf(stderr, "%s\n", buf_ok(&b) ? b.data : "{\"error\":{\"kind\":\"failed\"}}");
    buf_clear(&b);
}

/* Flush stdout first, so that the error comes behind what was printed before it. */
int out_fail_answer(enum exit_code code, const struct out_answer *answer, const char *details,
                    const char *message)
{
    out_flush();
    progress_break();
    if (globals.json) {
        print_error_json(code, answer, message, details);
        return code;
    }
    fprintf(stderr, "Error: %s\n", message);
    if (details)
        fprintf(stderr, "%s\n", details);
    if (answer && *answer->request_id)
        fprintf(stderr, "Request id: %s\n", answer->request_id);
    return code;
}

/* Messages are cut at 1023 bytes. */
int out_fail(enum exit_code code, const char *details, const char *fmt, ...)
{
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    return out_fail_answer(code, NULL, details, message);
}

/* Talk is on stderr, so that stdout stays data. */
void out_say(const char *fmt, ...)
{
    if (globals.quiet)
        return;
    progress_break();
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* ---- the end of the output ------------------------------------------------------ */

/* EPIPE, or the other end of the pipe is closed: then nobody misses the output. */
static bool has_reader_left(void)
{
    struct pollfd p = { .fd = STDOUT_FILENO, .events = POLLOUT };
    return write_error == EPIPE || (poll(&p, 1, 0) == 1 && (p.revents & POLLERR));
}

/* A full disk is an error (exit code 9), a reader such as head that has seen enough is not. */
int out_finish(void)
{
    out_flush();
    if ((!write_error && !ferror(stdout)) || has_reader_left())
        return EXIT_OK;
    return out_fail(EXIT_IO, NULL, "cannot write the result%s%s", write_error ? ": " : "",
                    write_error ? strerror(write_error) : "");
}

/* COLUMNS wins over the terminal's own idea; 80 if neither tells. */
size_t out_width(int fd)
{
    enum { DEFAULT = 80 };
    const char *columns = getenv("COLUMNS");
    long told = columns ? strtol(columns, NULL, 10) : 0;
    struct winsize size;
    if (!isatty(fd))
        return 0;
    if (told > 0)
        return (size_t)told;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : DEFAULT;
}

/* TERM=dumb, as in editors and some CI systems, knows no control sequences. */
bool out_can_draw(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

/* https://no-color.org: any value but an empty one means no colors. */
bool out_colored(void)
{
    const char *no = getenv("NO_COLOR");
    return out_can_draw(STDOUT_FILENO) && !globals.no_color && !(no && *no);
}

/* ---- JSON ---------------------------------------------------------------------- */

/* Copy the string that starts at s[0] == '"', with non-ASCII characters as \u escapes. Returns
 * how many bytes it took. */
static size_t copy_json_string(struct buf *out, const char *s, size_t n)
{
    size_t i = 1;
    buf_putc(out, '"');
    while (i < n && s[i] != '"') {
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);
        if (s[i] == '\\' && i + 1 < n) {
            buf_append(out, s + i, 2);
            i += 2;
        } else if (len > 1) {
            /* Code points above the BMP are a pair of UTF-16 surrogates (RFC 8259, 7). */
            if (cp < 0x10000)
                buf_printf(out, "\\u%04x", (unsigned)cp);
            else
                buf_printf(out, "\\u%04x\\u%04x", 0xd800u + (unsigned)((cp - 0x10000) >> 10),
                           0xdc00u + (unsigned)((cp - 0x10000) & 0x3ff));
            i += (size_t)len;
        } else {
            buf_putc(out, s[i++]);
        }
    }
    buf_putc(out, '"');
    return i < n ? i + 1 : n;
}

enum { ONE_LINE = -1 }; /* as depth */

/* Indent two spaces per level. */
static void put_newline(struct buf *out, int depth)
{
    if (depth <= ONE_LINE)
        return;
    buf_putc(out, '\n');
    for (int i = 0; i < depth; i++)
        buf_puts(out, "  ");
}

/* Reformat compact JSON as Python's json.dumps(indent=2) does, or on one line with ", " and ":
 * ". Only strings need care; brackets outside of them give the depth. depth: 0, or ONE_LINE. */
static void put_pretty(struct buf *out, const char *s, size_t n, int depth)
{
    int step = depth == ONE_LINE ? 0 : 1;
    for (size_t i = 0; i < n;) {
        char c = s[i];
        if (c == '"') {
            i += copy_json_string(out, s + i, n - i);
            continue;
        }
        i++;
        /* Blanks between tokens are replaced by our own layout. */
        if (c == ' ' || c == '\n' || c == '\t' || c == '\r')
            continue;
        if (c == '{' || c == '[') {
            buf_putc(out, c);
            /* Empty objects and lists stay on one line. */
            if (i < n && (s[i] == '}' || s[i] == ']'))
                buf_putc(out, s[i++]);
            else
                put_newline(out, depth += step);
        } else if (c == '}' || c == ']') {
            put_newline(out, depth -= step);
            buf_putc(out, c);
        } else if (c == ',') {
            buf_puts(out, step ? "," : ", ");
            put_newline(out, depth);
        } else if (c == ':') {
            buf_puts(out, ": ");
        } else {
            buf_putc(out, c);
        }
    }
}

/* A failed input gives a failed output, which out_text() reports. */
static void put_document(struct buf *out, const struct buf *json, int depth)
{
    put_pretty(out, json->data, json->len, depth);
    buf_putc(out, '\n');
    out->failed = out->failed || json->failed;
}

void out_pretty_json(struct buf *out, const struct buf *json)
{
    put_document(out, json, 0);
}

void out_json_text_line(struct buf *out, const struct buf *json)
{
    put_pretty(out, json->data, json->len, ONE_LINE);
}

/* Indented, for one document. */
void out_json(const struct buf *json)
{
    struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    put_document(&b, json, 0);
    out_text(&b);
    buf_clear(&b);
}

/* On one line, for results the official program prints that way. */
void out_json_line(const struct buf *json)
{
    struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    put_document(&b, json, ONE_LINE);
    out_text(&b);
    buf_clear(&b);
}
