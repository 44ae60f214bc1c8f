/* cmd_run_metrics.c - `tinker run metrics`: what a run recorded, as a summary, JSON or CSV. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tinker/extra/http.h>

#include "base/array.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/manage/run_history.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"

/* JSON and CSV pass through as the service made them: exact numbers, not those of a table. */
static int print_body(struct api *a, const char *id, const struct run_query *q, const char *format)
{
    int status;
    tinker_future *f = run_history_ask(a, id, q, format, &status);
    if (!f)
        return status;
    const tinker_response *r = tinker_future_response(f);
    struct buf b;
    buf_init(&b, r->n_body + 1);
    buf_append(&b, r->body, r->n_body);
    if (strcmp(format, "json") == 0)
        out_json(&b);
    else
        out_text(&b);
    buf_clear(&b);
    tinker_future_free(f);
    return EXIT_OK;
}

/* Six digits: enough to compare, few enough for a column. */
static void put_value_cell(struct listing *l, double v)
{
    listing_cellf(l, isfinite(v) ? "%.6g" : "N/A", v);
}

/* A row per metric: where it began, where it is, how far it went.
 * Lowest and highest are those of all steps, not only of the points that were sent. */
static int print_summary(const struct run_progress *run, const struct run_history *h)
{
    static const char *const columns[] = {
        "Metric", "First", "Last", "Lowest", "Highest", "Steps"
    };
    struct listing l;
    char title[256];
    listing_init(&l, columns, ARRAY_LEN(columns));
    for (size_t i = 0; i < h->n; i++) {
        const struct history_metric *m = &h->metrics[i];
        /* Names that were asked for but never recorded. */
        if (!m->n)
            continue;
        double first = m->values[0], last = m->values[m->n - 1], step = m->steps[m->n - 1];
        listing_cell(&l, m->name);
        put_value_cell(&l, first);
        put_value_cell(&l, last);
        put_value_cell(&l, m->low);
        put_value_cell(&l, m->top);
        listing_cellf(&l, "%.0f-%.0f", m->steps[0], step);
        struct json_writer *w = listing_object(&l);
        json_put_begin_object(w);
        rows_put_text(w, "metric", m->name);
        rows_put_real(w, "first", first);
        rows_put_real(w, "last", last);
        rows_put_real(w, "lowest", isfinite(m->low) ? m->low : NAN);
        rows_put_real(w, "highest", isfinite(m->top) ? m->top : NAN);
        rows_put_count(w, "last_step", (int64_t)step);
        json_put_end_object(w);
        listing_object_end(&l);
    }
    snprintf(title, sizeof(title), "%.120s: %s, step %lld", *run->name ? run->name : run->id,
             run->state, (long long)run->step);
    return listing_print(&l, title, "{\"metrics\":[");
}

/* One command, three outputs: a summary for people, the service's own JSON or CSV for programs. */
int cmd_run_metrics(int argc, char **argv)
{
    const char *text = NULL;
    struct run_query q = { 0 };
    const struct opt opts[] = {
        { .name = "names",
          .letter = 'n',
          .kind = OPT_STRING,
          .value = "LIST",
          .help = "only these metrics, separated by commas",
          .out = &q.names },
        { .name = "from",
          .kind = OPT_INT,
          .value = "STEP",
          .help = "not before this step",
          .out = &q.from },
        { .name = "to",
          .kind = OPT_INT,
          .value = "STEP",
          .help = "not after this step",
          .out = &q.to },
        { .name = "max-points",
          .kind = OPT_INT,
          .value = "N",
          .help = "about so many points of each; 0: all",
          .out = &q.max_points },
    };
    const struct opt_arg args[] = { { .name = "RUN", .out = &text } };
    const struct opt_spec spec = { .command = "run metrics",
                                   .about =
                                       "Show the metrics of a run: an id, a name, or \"last\".",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .args = args,
                                   .n_args = 1,
                                   .example =
                                       "tinker run metrics last --format csv > metrics.csv" };
    struct api a;
    struct arena arena;
    struct run_progress run;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    /* The service would refuse them, too, but after a connection. */
    if (q.from < 0 || q.to < 0 || q.max_points < 0)
        return opt_usage_error(&spec, "--from, --to and --max-points must not be negative.");
    if (!api_open(&a, &status))
        return status;
    /* For the names of runs; points have an arena of their own, see run_history_fetch(). */
    arena_init(&arena, 64 << 20);
    if (run_history_find(&a, text, &arena, &run, &status)) {
        /* Pointers to all series: too large for the stack. */
        struct run_history *h = arena_alloc(&arena, sizeof(*h));
        /* Both machine formats are the service's own, with every point; the summary is for
         * people. */
        if (globals.json)
            status = print_body(&a, run.id, &q, "json");
        else if (strcmp(globals.format, "csv") == 0)
            status = print_body(&a, run.id, &q, "csv");
        else if (!h)
            status = out_fail(EXIT_FAILED, NULL, "Out of memory");
        else if (run_history_fetch(&a, run.id, &q, h, &status))
            status = print_summary(&run, h);
        if (h)
            run_history_clear(h);
    }
    arena_clear(&arena);
    api_close(&a);
    return status;
}
