/* listing.c - see listing.h. */
#include "cli/output/listing.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/output/table.h"

enum { MAX_OBJECTS = 1 << 30 };

void listing_init(struct listing *l, const char *const *columns, size_t n_columns)
{
    memset(l, 0, sizeof(*l));
    l->columns = columns;
    l->n_columns = n_columns;
    buf_init(&l->objects, MAX_OBJECTS);
}

/* Only for a listing that is not printed: printing frees it. */
void listing_clear(struct listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->cells[i]);
    /* Column names are the caller's. */
    free(l->cells);
    buf_clear(&l->objects);
}

/* Failure is remembered in l->failed and reported once, at the end. */
void listing_cell(struct listing *l, const char *text)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        char **cells = realloc(l->cells, cap * sizeof(*cells));
        if (!cells) {
            l->failed = true;
            return;
        }
        l->cells = cells;
        l->cap = cap;
    }
    char *copy = strdup(text);
    if (copy)
        l->cells[l->n++] = copy;
    else
        l->failed = true;
}

/* At most 1 MiB of text, beyond that an empty cell. */
void listing_cellf(struct listing *l, const char *fmt, ...)
{
    struct buf b;
    va_list ap;
    buf_init(&b, 1 << 20);
    va_start(ap, fmt);
    buf_vprintf(&b, fmt, ap);
    va_end(ap);
    listing_cell(l, buf_ok(&b) && b.data ? b.data : "");
    buf_clear(&b);
}

/* JSON of the row that is being built; rows are separated by newlines, which compact JSON never
 * contains. */
struct json_writer *listing_object(struct listing *l)
{
    json_writer_init(&l->writer, &l->objects);
    return &l->writer;
}

void listing_object_end(struct listing *l)
{
    buf_putc(&l->objects, '\n');
}

/* ---- formats ---------------------------------------------------------------------- */

/* head, the objects with commas for their newlines, and the closing brackets. The last newline
 * is dropped. */
static void print_json_document(const struct listing *l, const char *head)
{
    struct buf b;
    buf_init(&b, MAX_OBJECTS);
    buf_puts(&b, head);
    for (size_t i = 0; i + 1 < l->objects.len; i++)
        buf_putc(&b, l->objects.data[i] == '\n' ? ',' : l->objects.data[i]);
    buf_puts(&b, "]}");
    out_json(&b);
    buf_clear(&b);
}

/* RFC 4180: quotes only where they are needed, doubled inside. */
static void print_csv_cell(const char *s)
{
    if (!s[strcspn(s, ",\"\r\n")]) {
        fputs(s, stdout);
        return;
    }
    putchar('"');
    for (; *s; s++) {
        if (*s == '"')
            putchar('"');
        putchar(*s);
    }
    putchar('"');
}

/* A tab or a newline would break the row: they become spaces. */
static void print_tsv_cell(const char *s)
{
    for (; *s; s++)
        putchar(*s == '\t' || *s == '\n' || *s == '\r' ? ' ' : *s);
}

/* The header is a row like the others. CSV ends lines with CR LF (RFC 4180, 2), TSV with LF. */
static void print_separated(const struct listing *l, bool csv)
{
    size_t n = l->n_columns;
    for (size_t i = 0; i < n + l->n; i++) {
        const char *cell = i < n ? l->columns[i] : l->cells[i - n];
        (csv ? print_csv_cell : print_tsv_cell)(cell);
        fputs(i % n + 1 < n ? (csv ? "," : "\t") : (csv ? "\r\n" : "\n"), stdout);
    }
}

/* Something did not fit into memory. */
static bool is_incomplete(const struct listing *l)
{
    return l->failed || !buf_ok(&l->objects);
}

/* Free the listing; the exit status. */
static int finish_listing(struct listing *l)
{
    bool failed = is_incomplete(l);
    listing_clear(l);
    return failed ? out_fail(EXIT_FAILED, NULL, "out of memory") : EXIT_OK;
}

/* Every format but json, which listing_print() and listing_print_one() treat differently. */
static void print_rows(const struct listing *l, const char *title)
{
    const struct table table = { title, l->columns, l->n_columns, (const char *const *)l->cells,
                                 l->n / l->n_columns };
    if (strcmp(globals.format, "jsonl") == 0)
        out_text(&l->objects);
    else if (strcmp(globals.format, "csv") == 0 || strcmp(globals.format, "tsv") == 0)
        print_separated(l, globals.format[0] == 'c');
    else
        table_print(&table);
}

int listing_print(struct listing *l, const char *title, const char *json_head)
{
    if (is_incomplete(l))
        return finish_listing(l);
    if (globals.json)
        print_json_document(l, json_head);
    else
        print_rows(l, title);
    return finish_listing(l);
}

/* The bound keeps offset + rows far from overflow. */
bool listing_check(const struct opt_spec *spec, int64_t offset, bool ids)
{
    if (offset < 0 || offset > INT32_MAX)
        opt_usage_error(spec, "Invalid value for '--offset': must be 0 to %d.", INT32_MAX);
    else if (ids && strcmp(globals.format, "table") != 0)
        opt_usage_error(spec, "--ids prints lines: no --format %s.", globals.format);
    else
        return true;
    return false;
}

/* One cell per line, without head, for other programs to read. */
int listing_print_lines(struct listing *l)
{
    for (size_t i = 0; !is_incomplete(l) && i < l->n; i++)
        puts(l->cells[i]);
    return finish_listing(l);
}

/* One object, so JSON has no list around it. */
int listing_print_one(struct listing *l, const char *title)
{
    if (is_incomplete(l))
        return finish_listing(l);
    if (globals.json)
        out_json(&l->objects);
    else
        print_rows(l, title);
    return finish_listing(l);
}

/* The plural is passed in: "training runs" has two words. */
void listing_title(struct buf *out, const char *one, const char *many, size_t shown, size_t total,
                   const char *of)
{
    if (shown == 0)
        buf_printf(out, "No %s found", many);
    else if (shown == 1)
        buf_printf(out, "1 %s", one);
    else
        buf_printf(out, "%zu %s", shown, many);
    buf_puts(out, of);
    if (total > shown)
        buf_printf(out, " (%zu more not shown, use --limit to see more)", total - shown);
}
