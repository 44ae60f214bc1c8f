/* cmd_audit.c - `tinker audit`: what happened to an organization's checkpoints and sessions. */
#include <stdio.h>
#include <string.h>
#include <tinker/extra/account.h>

#include "base/array.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/fmt.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"

/* What lacks in an event is an empty cell, and null in JSON; event_details are passed on as they came. */
static void add_entry(struct listing *l, const tinker_audit_entry *e)
{
    char text[FMT_TEXT];
    listing_cell(l, fmt_cell_time(e->time_us, "N/A", text));
    listing_cell(l, e->event);
    listing_cell(l, e->model_id ? e->model_id : "");
    listing_cell(l, e->path ? e->path : "");
    listing_cell(l, e->purpose ? e->purpose : "");
    struct json_writer *w = listing_object(l);
    json_put_begin_object(w);
    json_put_key(w, "timestamp");
    fmt_json_time(w, e->time_us);
    rows_put_text(w, "event", e->event);
    rows_put_text(w, "model_id", e->model_id);
    rows_put_text(w, "tinker_path", e->path);
    rows_put_text(w, "purpose", e->purpose);
    json_put_key(w, "event_details");
    /* Raw JSON as it arrived: details differ by event and grow with the service. */
    if (e->details)
        json_put_raw(w, e->details, strlen(e->details));
    else
        json_put_raw(w, "{}", 2);
    json_put_end_object(w);
    listing_object_end(l);
}

/* One request, one day: the service keeps no cursor, so there are no pages here. */
int cmd_audit(int argc, char **argv)
{
    static const char *const columns[] = { "Time", "Event", "Model", "Path", "Purpose" };
    /* in the order of tinker_audit_type */
    static const char *const types[] = { "all",   "checkpoints",   "projects",
                                         "teams", "organizations", NULL };
    const char *day = NULL, *type = types[0];
    const struct opt opts[] = {
        { .name = "day",
          .kind = OPT_STRING,
          .value = "DATE",
          .help = "a UTC day, 2026-01-31 (default: today)",
          .out = &day },
        { .name = "type",
          .kind = OPT_CHOICE,
          .value = "TYPE",
          .help = "all (default), checkpoints, projects, teams or organizations",
          .out = &type,
          .choices = types },
    };
    const struct opt_spec spec = { .command = "audit",
                                   .about =
                                       "Show the audit log of one day.  It needs the role of an "
                                       "administrator.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .example = "tinker audit --type checkpoints" };
    struct api a;
    struct listing l;
    tinker_error err;
    int status;
    int64_t us;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    /* fmt_read_date() takes times as well; the audit log is asked by the day, so a time here is
     * a mistake rather than a more exact question. */
    if (day && (strlen(day) != 10 || !fmt_read_date(day, &us)))
        return opt_usage_error(&spec, "Invalid value for '--day': '%s' is not a date.", day);
    if (!api_open(&a, &status))
        return status;
    /* The filter is the service's: a day can have many thousands of events. */
    int which = 0;
    while (strcmp(type, types[which]) != 0)
        which++;
    tinker_future *f = api_wait(
        tinker_rest_get_audit_log(a.rest, day, (tinker_audit_type)which, &err), &err, &status);
    /* An empty day is a table without rows and the title "0 events", not an error: scripts count
     * lines. */
    const tinker_audit *log = f ? tinker_future_audit(f) : NULL;
    if (log) {
        /* Shown above the table only; machine formats have no title. */
        char title[64];
        listing_init(&l, columns, ARRAY_LEN(columns));
        for (size_t i = 0; i < log->n; i++)
            add_entry(&l, tinker_audit_entry_at(log, i));
        snprintf(title, sizeof(title), "%zu event%s", log->n, log->n == 1 ? "" : "s");
        status = listing_print(&l, title, "{\"entries\":[");
    }
    tinker_future_free(f);
    api_close(&a);
    return status;
}
