/* cmd_billing.c - `tinker billing usage|checkpoint-storage`: what was used and what it costs.
 *
 * Columns, their order and the CSV dialect are those of the official program. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/account.h>
#include <tinker/extra/names.h>

#include "base/array.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/fmt.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"

/* Columns of a usage row; those of the kinds come in the order in which the kinds do. */
enum column {
    BUCKET_START,
    BUCKET_END,
    BASE_MODEL,
    USER_ID,
    USER_NAME,
    SESSION_ID,
    PROJECT_ID,
    COST,
    TOKEN_RATE,
    STORAGE_RATE,
    TYPE,
    CACHED,
    TOKEN_COUNT,
    COUNT,
    GIGABYTE_HOURS,
    COLUMNS
};
/* The order of the enumeration is the order of CSV columns, which spreadsheets of users rely on. */
static const char *const column_names[COLUMNS] = {
    [BUCKET_START] = "bucket_start",
    [BUCKET_END] = "bucket_end",
    [BASE_MODEL] = "base_model",
    [USER_ID] = "user_id",
    [USER_NAME] = "user_name",
    [SESSION_ID] = "session_id",
    [PROJECT_ID] = "project_id",
    [COST] = "estimated_cost_usd",
    [TOKEN_RATE] = "effective_rate_usd_per_million_tokens",
    [STORAGE_RATE] = "effective_rate_usd_per_gigabyte_month",
    [TYPE] = "type",
    [CACHED] = "cached",
    [TOKEN_COUNT] = "token_count",
    [COUNT] = "count",
    [GIGABYTE_HOURS] = "gigabyte_hours",
};

/* The members of event_info besides its type. */
static size_t list_info_columns(tinker_billing_kind kind, enum column out[2])
{
    switch (kind) {
    case TINKER_BILLING_PREFILL:
        out[0] = CACHED;
        out[1] = TOKEN_COUNT;
        return 2;
    case TINKER_BILLING_TRAINING:
    case TINKER_BILLING_SAMPLING:
        out[0] = TOKEN_COUNT;
        return 1;
    case TINKER_BILLING_CHECKPOINT:
        out[0] = COUNT;
        return 1;
    case TINKER_BILLING_STORAGE:
        out[0] = GIGABYTE_HOURS;
        return 1;
    default:
        return 0;
    }
}

/* Is the column one of texts that somebody chose?  *text is then the value; NULL: none. */
static bool read_text_column(const tinker_billing_event *e, enum column c, const char **text)
{
    const char *texts[] = { [BASE_MODEL] = e->base_model,
                            [USER_ID] = e->user_id,
                            [USER_NAME] = e->user_name,
                            [SESSION_ID] = e->session_id,
                            [PROJECT_ID] = e->project_id };
    /* The texts lie side by side in the enumeration, so two comparisons find them. */
    if (c < BASE_MODEL || c > PROJECT_ID)
        return false;
    *text = texts[c];
    return true;
}

/* One member of the event as JSON. */
static void put_value(struct json_writer *w, const tinker_billing_event *e, enum column c)
{
    const char *text = NULL;
    /* Sparse tables by column: the switch below reads only the places that are filled. */
    const double reals[] = { [COST] = e->cost_usd,
                             [TOKEN_RATE] = e->million_tokens_usd,
                             [STORAGE_RATE] = e->gigabyte_month_usd,
                             [GIGABYTE_HOURS] = e->gigabyte_hours };
    char time[FMT_TEXT];
    const char *name = column_names[c];
    switch (c) {
    case BUCKET_START:
    case BUCKET_END:
        /* Always RFC 3339, whatever --time-format says: these are for programs. */
        rows_put_text(w, name, fmt_rfc3339(c == BUCKET_START ? e->start_us : e->end_us, time));
        break;
    case TYPE:
        rows_put_text(w, name, tinker_billing_kind_name(e->kind));
        break;
    /* Only prefill events have it: whether the tokens came from the cache, at its lower price. */
    case CACHED:
        json_put_key(w, name);
        json_put_bool(w, e->cached);
        break;
    case TOKEN_COUNT:
    case COUNT:
        rows_put_count(w, name, e->count);
        break;
    case COST:
    case TOKEN_RATE:
    case STORAGE_RATE:
    case GIGABYTE_HOURS:
        rows_put_real(w, name, reals[c]);
        break;
    default:
        read_text_column(e, c, &text);
        rows_put_text(w, name, text);
    }
}

/* Members that depend on the kind are in event_info, the others beside it. */
static void put_event(struct json_writer *w, const tinker_billing_event *e)
{
    enum column info[2];
    size_t n = list_info_columns(e->kind, info);
    json_put_begin_object(w);
    for (enum column c = 0; c < TYPE; c++)
        put_value(w, e, c);
    json_put_key(w, "event_info");
    json_put_begin_object(w);
    put_value(w, e, TYPE);
    for (size_t i = 0; i < n; i++)
        put_value(w, e, info[i]);
    json_put_end_object(w);
    json_put_end_object(w);
}

/* The text of a cell, into out: as Python prints the value.  "" for none.
 * `out` is scratch memory that the caller keeps between cells; the text lives until the next
 * call. */
static const char *format_cell(const tinker_billing_event *e, enum column c, bool table,
                               struct buf *out)
{
    enum column info[2];
    struct json_writer w;
    size_t n = list_info_columns(e->kind, info);
    /* Columns up to TYPE exist for every kind of event; those behind it only for some. */
    bool has = c <= TYPE;
    for (size_t i = 0; i < n; i++)
        has = has || info[i] == c;
    if (!has)
        return "";
    const char *text;
    if (read_text_column(e, c, &text))
        return text ? text : "";
    /* Numbers, times and kinds are in JSON what they are in text, but for quotes. */
    buf_reset(out);
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    put_value(&w, e, c);
    json_put_end_object(&w);
    if (!buf_ok(out))
        return "";
    /* {"name":VALUE}: the writer formats numbers and times as Python's json does, so its text is
     * used for cells as well.  A name has no ':', so the first one ends it. */
    char *value = strchr(out->data, ':') + 1;
    value[strlen(value) - 1] = 0;
    if (strcmp(value, "null") == 0) {
        /* The official table prints "null" where a price should be but is not known yet, and
         * nothing where none applies.  CSV has empty cells for both. */
        bool tokens = e->kind == TINKER_BILLING_TRAINING || e->kind == TINKER_BILLING_PREFILL ||
                      e->kind == TINKER_BILLING_SAMPLING;
        bool applies = (c == COST && (tokens || e->kind == TINKER_BILLING_STORAGE)) ||
                       (c == TOKEN_RATE && tokens) ||
                       (c == STORAGE_RATE && e->kind == TINKER_BILLING_STORAGE);
        return table && applies ? "null" : "";
    }
    /* Python prints its own names of truth values. */
    if (c == CACHED)
        return *value == 't' ? "True" : "False";
    /* A string in quotes: times and kinds, which need no unescaping. */
    if (*value == '"') {
        value++;
        value[strlen(value) - 1] = 0;
    }
    return value;
}

/* Which columns the rows have, in the order of their first appearance, as in the official
 * program: a file without sampling events has no token_count column. */
static size_t choose_columns(const tinker_billing *b, enum column out[COLUMNS])
{
    bool has[COLUMNS] = { false };
    size_t n = 0;
    for (size_t i = 0; i < b->n_events; i++) {
        /* TYPE + 1 that every event has, and at most two of its kind. */
        enum column all[TYPE + 3];
        size_t count = 0;
        for (enum column c = 0; c <= TYPE; c++)
            all[count++] = c;
        count += list_info_columns(tinker_billing_event_at(b, i)->kind, all + count);
        for (size_t k = 0; k < count; k++)
            if (!has[all[k]]) {
                has[all[k]] = true;
                out[n++] = all[k];
            }
    }
    return n;
}

/* ---- CSV ------------------------------------------------------------------------------------------ */

/* RFC 4180: quotes only where they are needed, doubled inside, lines end with CR LF. */
static void write_csv_cell(FILE *f, const char *s, bool last)
{
    /* Blanks at the ends need no quotes either: readers of this dialect keep them. */
    bool quote = s[strcspn(s, ",\"\r\n")] != 0;
    if (quote)
        fputc('"', f);
    for (; *s; s++)
        fprintf(f, *s == '"' ? "\"\"" : "%c", *s);
    fprintf(f, "%s%s", quote ? "\"" : "", last ? "\r\n" : ",");
}

/* "-" is stdout, as usual; errors name the path as it was given. */
static FILE *open_csv(const char *path, int *status)
{
    FILE *f = strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    if (!f)
        *status = out_fail(EXIT_IO, NULL, "open %s: %s", path, strerror(errno));
    return f;
}

/* A full disk may show only here. */
static int close_csv(FILE *f, const char *path, size_t rows)
{
    if (f == stdout)
        return EXIT_OK;
    bool ok = !ferror(f);
    if (fclose(f) != 0 || !ok)
        return out_fail(EXIT_IO, NULL, "write %s: %s", path, strerror(errno));
    out_say("Wrote %zu row(s) to %s", rows, path);
    return EXIT_OK;
}

/* Without any event there are no columns: the header is an empty line, as Python's csv module
 * writes it. */
static int write_usage_csv(const tinker_billing *b, const char *path)
{
    enum column columns[COLUMNS];
    size_t n = choose_columns(b, columns);
    struct buf text;
    int status = EXIT_OK;
    FILE *f = open_csv(path, &status);
    if (!f)
        return status;
    buf_init(&text, 1 << 16);
    for (size_t k = 0; k < n; k++)
        write_csv_cell(f, column_names[columns[k]], k + 1 == n);
    if (!n)
        fputs("\r\n", f);
    for (size_t i = 0; i < b->n_events; i++)
        for (size_t k = 0; k < n; k++)
            write_csv_cell(f, format_cell(tinker_billing_event_at(b, i), columns[k], false, &text),
                           k + 1 == n);
    buf_clear(&text);
    return close_csv(f, path, b->n_events);
}

/* {"k": "v"} with blanks, as Python's json.dumps() writes it. */
static void put_metadata_text(struct buf *out, const tinker_billing_session *s)
{
    struct buf compact;
    struct json_writer w;
    buf_init(&compact, 1 << 20);
    json_writer_init(&w, &compact);
    json_put_begin_object(&w);
    for (size_t i = 0; i < s->n_user_metadata; i++)
        rows_put_text(&w, s->user_metadata[i].name, s->user_metadata[i].value);
    json_put_end_object(&w);
    out_json_text_line(out, &compact);
    buf_clear(&compact);
}

/* Metadata is one cell of JSON text, so that the columns do not depend on what users stored. */
static int write_sessions_csv(const tinker_billing *b, const char *path)
{
    struct buf text;
    int status = EXIT_OK;
    FILE *f = open_csv(path, &status);
    if (!f)
        return status;
    /* As above: without rows there is no header. */
    fputs(b->n_sessions ? "session_id,user_metadata\r\n" : "\r\n", f);
    buf_init(&text, 1 << 20);
    for (size_t i = 0; i < b->n_sessions; i++) {
        const tinker_billing_session *s = tinker_billing_session_at(b, i);
        buf_reset(&text);
        /* An empty text, not NULL, for sessions without metadata. */
        buf_puts(&text, "");
        if (s->n_user_metadata)
            put_metadata_text(&text, s);
        write_csv_cell(f, s->id, false);
        write_csv_cell(f, buf_ok(&text) && text.data ? text.data : "", true);
    }
    buf_clear(&text);
    return close_csv(f, path, b->n_sessions);
}

/* ---- usage ------------------------------------------------------------------------------------------ */

/* The members and their nesting are those of the API's own response, so that a script may use
 * either. */
static void print_usage_json(const tinker_billing *b)
{
    struct buf text;
    struct json_writer w;
    char time[FMT_TEXT];
    /* A year of hours for many users stays far below this bound, which only stops a runaway
     * response. */
    buf_init(&text, 1 << 30);
    json_writer_init(&w, &text);
    json_put_begin_object(&w);
    json_put_key(&w, "data");
    json_put_begin_array(&w);
    for (size_t i = 0; i < b->n_events; i++)
        put_event(&w, tinker_billing_event_at(b, i));
    json_put_end_array(&w);
    json_put_key(&w, "sessions");
    json_put_begin_object(&w);
    for (size_t i = 0; i < b->n_sessions; i++) {
        const tinker_billing_session *s = tinker_billing_session_at(b, i);
        json_put_key(&w, s->id);
        json_put_begin_object(&w);
        json_put_key(&w, "user_metadata");
        if (s->n_user_metadata) {
            json_put_begin_object(&w);
            for (size_t k = 0; k < s->n_user_metadata; k++)
                rows_put_text(&w, s->user_metadata[k].name, s->user_metadata[k].value);
            json_put_end_object(&w);
        } else {
            json_put_null(&w);
        }
        json_put_end_object(&w);
    }
    json_put_end_object(&w);
    /* Costs are known up to this hour only; events behind it have null prices. */
    rows_put_text(&w, "cost_data_through",
                  b->invoiced_until_us == TINKER_NO_TIME ? NULL
                                                         : fmt_rfc3339(b->invoiced_until_us, time));
    json_put_end_object(&w);
    out_json(&text);
    buf_clear(&text);
}

/* Cells say "null" in tables only; the machine formats leave them empty, see format_cell(). */
static int print_usage_rows(const tinker_billing *b)
{
    enum column columns[COLUMNS];
    const char *names[COLUMNS];
    size_t n = choose_columns(b, columns);
    bool table = strcmp(globals.format, "table") == 0;
    struct listing l;
    struct buf text;
    char title[64];
    if (!n) {
        out_say("No billing usage in this window");
        return EXIT_OK;
    }
    for (size_t k = 0; k < n; k++)
        names[k] = column_names[columns[k]];
    listing_init(&l, names, n);
    buf_init(&text, 1 << 16);
    for (size_t i = 0; i < b->n_events; i++) {
        const tinker_billing_event *e = tinker_billing_event_at(b, i);
        for (size_t k = 0; k < n; k++)
            listing_cell(&l, format_cell(e, columns[k], table, &text));
        put_event(listing_object(&l), e);
        listing_object_end(&l);
    }
    buf_clear(&text);
    snprintf(title, sizeof(title), "%zu hourly usage row(s)", b->n_events);
    return listing_print(&l, title, "{\"data\":[");
}

/* Files are written instead of the table, not in addition to it: stdout may be one of them. */
static int show_usage(const tinker_billing *b, const char *csv, const char *sessions_csv)
{
    int status = sessions_csv ? write_sessions_csv(b, sessions_csv) : EXIT_OK;
    if (status == EXIT_OK && csv)
        status = write_usage_csv(b, csv);
    if (status != EXIT_OK || csv || sessions_csv)
        return status;
    if (globals.json)
        print_usage_json(b);
    else
        status = print_usage_rows(b);
    return status;
}

/* The bounds are arguments, not options, as in the official program: a report without them is
 * never meant. */
int cmd_billing_usage(int argc, char **argv)
{
    const char *start = NULL, *end = NULL, *csv = NULL, *sessions = NULL;
    const struct opt opts[] = {
        { .name = "csv",
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "write the rows as CSV, - for stdout",
          .out = &csv },
        { .name = "sessions-csv",
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "write the metadata of the sessions as CSV, - for stdout",
          .out = &sessions },
    };
    const struct opt_arg args[] = { { .name = "STARTING_ON", .out = &start },
                                    { .name = "ENDING_BEFORE", .out = &end } };
    const struct opt_spec spec = {
        .command = "billing usage",
        .about = "Show hourly usage.  The times are whole UTC hours, at most 14 days apart.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = ARRAY_LEN(args),
        .example = "tinker billing usage 2026-07-13T00:00:00Z 2026-07-14T00:00:00Z"
    };
    struct api a;
    tinker_error err;
    int status;
    int64_t us;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    /* Checked here for a message that names the argument; the service would refuse the request
     * as a whole.  The library sends the text as it was given. */
    if (!fmt_read_date(start, &us) || !fmt_read_date(end, &us))
        return opt_usage_error(&spec, "'%s' is not a time such as 2026-07-13T00:00:00Z.",
                               fmt_read_date(start, &us) ? end : start);
    if (!api_open(&a, &status))
        return status;
    tinker_future *f =
        api_wait(tinker_rest_get_billing_usage(a.rest, start, end, &err), &err, &status);
    if (f)
        status = show_usage(tinker_future_billing(f), csv, sessions);
    tinker_future_free(f);
    api_close(&a);
    return status;
}

/* ---- storage ------------------------------------------------------------------------------------------ */

/* Gigabytes are 10^9 bytes, as storage is billed. */
static void put_share(struct json_writer *w, const tinker_storage_share *s)
{
    json_put_begin_object(w);
    rows_put_text(w, "project_id", s->project_id);
    rows_put_text(w, "org_user_urn", s->user_urn);
    rows_put_text(w, "user_email", s->user_email);
    rows_put_text(w, "user_name", s->user_name);
    rows_put_count(w, "checkpoint_count", s->n_checkpoints);
    rows_put_count(w, "size_bytes", s->bytes);
    rows_put_real(w, "size_gigabytes", (double)s->bytes / 1e9);
    rows_put_real(w, "estimated_monthly_cost_usd", s->monthly_cost_usd);
    json_put_end_object(w);
}

/* NaN: the service did not say. */
static void add_real_cell(struct listing *l, double value)
{
    if (isnan(value))
        listing_cell(l, "");
    else
        listing_cellf(l, "%.6g", value);
}

/* One row per project and user.  The price is the same for all, so JSON has it once, beside
 * "data". */
static int show_storage(const tinker_storage *s, const char *csv)
{
    static const char *const columns[] = { "effective_rate_usd_per_gigabyte_month",
                                           "project_id",
                                           "org_user_urn",
                                           "user_email",
                                           "user_name",
                                           "checkpoint_count",
                                           "size_bytes",
                                           "size_gigabytes",
                                           "estimated_monthly_cost_usd" };
    struct listing l;
    char head[128];
    listing_init(&l, columns, ARRAY_LEN(columns));
    for (size_t i = 0; i < s->n; i++) {
        const tinker_storage_share *x = tinker_storage_share_at(s, i);
        add_real_cell(&l, s->gigabyte_month_usd);
        listing_cell(&l, x->project_id ? x->project_id : "");
        listing_cell(&l, x->user_urn ? x->user_urn : "");
        listing_cell(&l, x->user_email ? x->user_email : "");
        listing_cell(&l, x->user_name ? x->user_name : "");
        listing_cellf(&l, "%lld", (long long)x->n_checkpoints);
        listing_cellf(&l, "%lld", (long long)x->bytes);
        add_real_cell(&l, (double)x->bytes / 1e9);
        add_real_cell(&l, x->monthly_cost_usd);
        put_share(listing_object(&l), x);
        listing_object_end(&l);
    }
    if (csv) {
        int status = EXIT_OK;
        FILE *f = open_csv(csv, &status);
        /* The cells of the listing in one run, header first: every ninth one ends a line. */
        for (size_t i = 0; f && i < ARRAY_LEN(columns) + l.n; i++)
            write_csv_cell(f, i < ARRAY_LEN(columns) ? columns[i] : l.cells[i - ARRAY_LEN(columns)],
                           i % ARRAY_LEN(columns) + 1 == ARRAY_LEN(columns));
        listing_clear(&l);
        return f ? close_csv(f, csv, s->n) : status;
    }
    /* The price goes through the JSON writer for its number format, then into the head of the
     * object. */
    struct buf rate;
    struct json_writer w;
    buf_init(&rate, 256);
    json_writer_init(&w, &rate);
    json_put_begin_object(&w);
    rows_put_real(&w, columns[0], s->gigabyte_month_usd);
    json_put_end_object(&w);
    /* {"rate":1.0} becomes {"rate":1.0,"data":[ */
    snprintf(head, sizeof(head), "%.*s,\"data\":[", (int)rate.len - 1, rate.data ? rate.data : "{");
    buf_clear(&rate);
    return listing_print(&l, s->n ? "Current checkpoint storage" : "No active checkpoint storage",
                         head);
}

/* What is stored at this moment, unlike `billing usage`, which is about the past. */
int cmd_billing_storage(int argc, char **argv)
{
    const char *project = NULL, *csv = NULL;
    const struct opt opts[] = {
        { .name = "project-id",
          .kind = OPT_STRING,
          .value = "ID",
          .help = "of one project",
          .out = &project },
        { .name = "csv",
          .kind = OPT_STRING,
          .value = "PATH",
          .help = "write the rows as CSV, - for stdout",
          .out = &csv },
    };
    const struct opt_spec spec = { .command = "billing checkpoint-storage",
                                   .about = "Show what checkpoints take now, per project and user.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .example = "tinker billing checkpoint-storage" };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_open(&a, &status))
        return status;
    tinker_future *f =
        api_wait(tinker_rest_get_storage_usage(a.rest, project, &err), &err, &status);
    if (f)
        status = show_storage(tinker_future_storage(f), csv);
    tinker_future_free(f);
    api_close(&a);
    return status;
}
