/* out.c - results to stdout, talk to stderr: see out.h. */
#include "cli/out.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "json/json.h"

/* ---- errors and talk ----------------------------------------------------------- */

static const char *kind_name(enum exit_code code)
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

static void fail_json(enum exit_code code, const char *message, const char *details)
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
    json_put_string(&w, kind_name(code));
    json_put_key(&w, "message");
    json_put_string(&w, message);
    if (details) {
        json_put_key(&w, "hint");
        json_put_string(&w, details);
    }
    json_put_end_object(&w);
    json_put_end_object(&w);
    fprintf(stderr, "%s\n", buf_ok(&b) ? b.data : "{\"error\":{\"kind\":\"failed\"}}");
    buf_clear(&b);
}

int out_fail(enum exit_code code, const char *details, const char *fmt, ...)
{
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    fflush(stdout);
    if (globals.json) {
        fail_json(code, message, details);
        return code;
    }
    fprintf(stderr, "Error: %s\n", message);
    if (details)
        fprintf(stderr, "%s\n", details);
    return code;
}

void out_say(const char *fmt, ...)
{
    if (globals.quiet)
        return;
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* ---- JSON ---------------------------------------------------------------------- */

static void put_escaped(struct buf *out, uint32_t cp)
{
    if (cp < 0x10000) {
        buf_printf(out, "\\u%04x", (unsigned)cp);
        return;
    }
    cp -= 0x10000;
    buf_printf(out, "\\u%04x\\u%04x", 0xd800u + (unsigned)(cp >> 10),
               0xdc00u + (unsigned)(cp & 0x3ff));
}

/* Copy the string that starts at s[0] == '"'; returns how many bytes it took. */
static size_t put_string_token(struct buf *out, const char *s, size_t n)
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
            put_escaped(out, cp);
            i += (size_t)len;
        } else {
            buf_putc(out, s[i++]);
        }
    }
    buf_putc(out, '"');
    return i < n ? i + 1 : n;
}

static void put_newline(struct buf *out, int depth)
{
    buf_putc(out, '\n');
    for (int i = 0; i < depth; i++)
        buf_puts(out, "  ");
}

void out_json_pretty(struct buf *out, const char *s, size_t n)
{
    int depth = 0;
    for (size_t i = 0; i < n;) {
        char c = s[i];
        if (c == '"') {
            i += put_string_token(out, s + i, n - i);
            continue;
        }
        i++;
        if (c == ' ' || c == '\n' || c == '\t' || c == '\r')
            continue;
        if (c == '{' || c == '[') {
            buf_putc(out, c);
            if (i < n && (s[i] == '}' || s[i] == ']'))
                buf_putc(out, s[i++]);
            else
                put_newline(out, ++depth);
        } else if (c == '}' || c == ']') {
            put_newline(out, --depth);
            buf_putc(out, c);
        } else if (c == ',') {
            buf_putc(out, c);
            put_newline(out, depth);
        } else if (c == ':') {
            buf_puts(out, ": ");
        } else {
            buf_putc(out, c);
        }
    }
}

void out_json(const char *json, size_t n)
{
    struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    out_json_pretty(&b, json, n);
    if (buf_ok(&b) && b.len)
        fwrite(b.data, 1, b.len, stdout);
    putchar('\n');
    buf_clear(&b);
}

/* ---- tables -------------------------------------------------------------------- */

struct box { /* left, fill, cross, right of each rule; bar of the head and of the body */
    const char *top[4], *mid[4], *bottom[4], *head_bar, *bar;
};
static const struct box heavy = {
    { "┏", "━", "┳", "┓" }, { "┡", "━", "╇", "┩" }, { "└", "─", "┴", "┘" }, "┃", "│"
};
static const struct box ascii = {
    { "+", "-", "+", "+" }, { "+", "-", "+", "+" }, { "+", "-", "+", "+" }, "|", "|"
};

/* Columns on a terminal; code points, which is right for all that we print. */
static size_t text_width(const char *s)
{
    size_t width = 0;
    for (; *s; s++)
        width += ((unsigned char)*s & 0xc0) != 0x80;
    return width;
}

static void put_times(const char *s, size_t n)
{
    while (n--)
        fputs(s, stdout);
}

static void put_rule(const char *const part[4], const size_t *widths, size_t n)
{
    fputs(part[0], stdout);
    for (size_t i = 0; i < n; i++) {
        put_times(part[1], widths[i] + 2);
        fputs(i + 1 < n ? part[2] : part[3], stdout);
    }
    putchar('\n');
}

static void put_row(const char *bar, const char *const *cells, const size_t *widths, size_t n)
{
    fputs(bar, stdout);
    for (size_t i = 0; i < n; i++) {
        printf(" %s", cells[i]);
        put_times(" ", widths[i] - text_width(cells[i]) + 1);
        fputs(bar, stdout);
    }
    putchar('\n');
}

static void put_title(const char *title, const size_t *widths, size_t n)
{
    size_t total = n + 1, width = text_width(title);
    for (size_t i = 0; i < n; i++)
        total += widths[i] + 2;
    put_times(" ", total > width ? (total - width) / 2 : 0);
    puts(title);
}

static const struct box *choose_box(void)
{
    const char *lang = getenv("LC_ALL");
    if (!lang || !*lang)
        lang = getenv("LC_CTYPE");
    if (!lang || !*lang)
        lang = getenv("LANG");
    bool utf8 = lang && (strstr(lang, "UTF-8") || strstr(lang, "utf8") || strstr(lang, "UTF8"));
    return utf8 ? &heavy : &ascii;
}

void out_table(const char *title, const char *const *columns, size_t n_columns,
               const char *const *rows, size_t n_rows)
{
    const struct box *box = choose_box();
    size_t *widths = calloc(n_columns ? n_columns : 1, sizeof(*widths));
    if (!widths)
        return;
    for (size_t i = 0; i < n_columns; i++)
        widths[i] = text_width(columns[i]);
    for (size_t i = 0; i < n_rows * n_columns; i++) {
        size_t width = text_width(rows[i]);
        if (width > widths[i % n_columns])
            widths[i % n_columns] = width;
    }
    put_title(title, widths, n_columns);
    put_rule(box->top, widths, n_columns);
    put_row(box->head_bar, columns, widths, n_columns);
    put_rule(box->mid, widths, n_columns);
    for (size_t r = 0; r < n_rows; r++)
        put_row(box->bar, rows + r * n_columns, widths, n_columns);
    put_rule(box->bottom, widths, n_columns);
    free(widths);
}
