/* listing.h - rows of texts and the objects behind them, printed in any format.
 *
 *     struct listing l;
 *     listing_init(&l, columns, n_columns);
 *     for each thing: listing_cell() per column, then its JSON into listing_object()
 *     return listing_print(&l, "3 runs", "{\"runs\":[");
 *
 * Running out of memory is remembered and reported by listing_print().  Not thread-safe. */
#ifndef CLI_LISTING_H
#define CLI_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "cli/args/opt.h"
#include "json/json.h"

struct listing {
    const char *const *columns;
    size_t n_columns;
    char **cells;
    size_t n, cap;
    struct buf objects; /* compact JSON, a newline behind each */
    struct json_writer writer;
    bool failed;
};

void listing_init(struct listing *l, const char *const *columns, size_t n_columns);
void listing_cell(struct listing *l, const char *text); /* copied */
void listing_cellf(struct listing *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void listing_clear(struct listing *l); /* when it is not printed */
/* Where to write the next object; listing_object_end() closes it. */
struct json_writer *listing_object(struct listing *l);
void listing_object_end(struct listing *l);

/* Print as --format says; json_head, such as {"runs":[, begins the one JSON document that
 * holds all objects.  Frees the listing.  The exit status. */
int listing_print(struct listing *l, const char *title, const char *json_head);
/* The same for two columns of one thing: its JSON is the first object itself. */
int listing_print_one(struct listing *l, const char *title);
/* Only the cells, a line each: for --ids, which --format table alone allows. */
int listing_print_lines(struct listing *l);
/* Do --offset and --ids of a list make sense?  false after a usage error was printed. */
bool listing_check(const struct opt_spec *spec, int64_t offset, bool ids);

/* "No runs found", "1 run", "20 runs (3 more not shown, use --limit to see more)". */
void listing_title(struct buf *out, const char *one, const char *many, size_t shown, size_t total,
                   const char *of);

#endif
