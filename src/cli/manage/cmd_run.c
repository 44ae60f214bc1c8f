/* cmd_run.c - `tinker run list` and `tinker run info`. */
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "cli/service/api.h"
#include "cli/command.h"
#include "cli/output/fmt.h"
#include "cli/args/opt.h"
#include "cli/output/names_cache.h"
#include "cli/output/out.h"
#include "cli/output/progress.h"
#include "cli/output/rows.h"

/* PAGE: the most the service gives per request.  NAMES_MAX bounds the message about unknown
 * columns. */
enum { PAGE = 100, MAX_COLUMNS = 32, NAMES_MAX = 4096 };

/* ---- columns -------------------------------------------------------------------------- */

/* One function per column, so that --columns is a list of pointers into the table below. */
static void put_id_cell(struct listing *l, const tinker_training_run *r)
{
    listing_cell(l, r->id);
}

/* The name that the service knows the base model by, as `models` lists it. */
static void put_model_cell(struct listing *l, const tinker_training_run *r)
{
    listing_cell(l, r->base_model);
}

/* As the service spells it, the same text that --json has. */
static void put_owner_cell(struct listing *l, const tinker_training_run *r)
{
    listing_cell(l, r->owner);
}

/* "Rank 8", "Yes" when the rank is unknown, "No" for full fine-tuning. */
static void put_lora_cell(struct listing *l, const tinker_training_run *r)
{
    if (r->is_lora && r->lora_rank > 0)
        listing_cellf(l, "Rank %lld", (long long)r->lora_rank);
    else
        listing_cell(l, r->is_lora ? "Yes" : "No");
}

/* Time of the last request of the run, not of its creation. */
static void put_updated_cell(struct listing *l, const tinker_training_run *r)
{
    char text[FMT_TEXT];
    listing_cell(l, fmt_cell_time(r->last_request_us, "N/A", text));
}

/* "Failed": the service has marked the run as corrupted. */
static void put_status_cell(struct listing *l, const tinker_training_run *r)
{
    listing_cell(l, r->corrupted ? "Failed" : "OK");
}

/* The id of the last training checkpoint, not of sampler weights. */
static void put_checkpoint_cell(struct listing *l, const tinker_training_run *r)
{
    listing_cell(l, r->last_checkpoint ? r->last_checkpoint->id : "None");
}

/* When the last training checkpoint was made; N/A if there is none. */
static void put_checkpoint_time_cell(struct listing *l, const tinker_training_run *r)
{
    char text[FMT_TEXT];
    int64_t us = r->last_checkpoint ? r->last_checkpoint->time_us : TINKER_NO_TIME;
    listing_cell(l, fmt_cell_time(us, "N/A", text));
}

/* The order here is the order in the message that lists them. */
static const struct column {
    const char *name, *header;
    void (*put)(struct listing *l, const tinker_training_run *r);
} columns[] = {
    { "id", "Run ID", put_id_cell },
    { "model", "Base Model", put_model_cell },
    { "owner", "Owner", put_owner_cell },
    { "lora", "LoRA", put_lora_cell },
    { "updated", "Last Update", put_updated_cell },
    { "status", "Status", put_status_cell },
    { "checkpoint", "Last Checkpoint", put_checkpoint_cell },
    { "checkpoint_time", "Checkpoint Time", put_checkpoint_time_cell },
};

/* The columns of --columns in the order given; a name may be repeated. */
struct choice {
    const struct column *columns[MAX_COLUMNS];
    const char *headers[MAX_COLUMNS];
    size_t n, n_unknown;
};

/* name is not terminated: it is a part of the list. */
static const struct column *find_column(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(columns); i++)
        if (strlen(columns[i].name) == n && memcmp(columns[i].name, name, n) == 0)
            return &columns[i];
    return NULL;
}

/* Read "id, model": names separated by commas, blanks around them ignored. Unknown names are
 * collected so that one message lists all of them. false: too many columns. */
static bool choose_columns(const char *list, struct choice *choice, struct buf *unknown)
{
    for (;;) {
        list += strspn(list, " ");
        size_t n = strcspn(list, ","), trimmed = n;
        while (trimmed && list[trimmed - 1] == ' ')
            trimmed--;
        const struct column *c = find_column(list, trimmed);
        if (!c) {
            buf_printf(unknown, "%s%.*s", choice->n_unknown++ ? ", " : "", (int)trimmed, list);
        } else if (choice->n < MAX_COLUMNS) {
            choice->columns[choice->n] = c;
            choice->headers[choice->n++] = c->header;
        } else {
            return false;
        }
        if (!list[n])
            return true;
        list += n + 1;
    }
}

/* false after a usage error was printed. */
static bool read_columns(const struct opt_spec *spec, const char *list, struct choice *choice)
{
    struct buf unknown;
    buf_init(&unknown, NAMES_MAX);
    bool ok = choose_columns(list, choice, &unknown);
    if (!ok)
        opt_usage_error(spec, "Invalid value for '--columns' / '-c': at most %d columns.",
                        MAX_COLUMNS);
    else if (choice->n_unknown)
        opt_usage_error(spec,
                        "Invalid value for '--columns' / '-c': Unknown column(s): %s. Available: "
                        "id, model, owner, lora, updated, status, checkpoint, checkpoint_time",
                        unknown.data ? unknown.data : "");
    buf_clear(&unknown);
    return ok && !choice->n_unknown;
}

/* ---- run list --------------------------------------------------------------------------- */

/* The options as given. limit 0: all; columns NULL: the usual five. */
struct list_request {
    int64_t limit, offset;
    const char *columns, *scope, *project;
    bool ids;
};

/* All pages up to the limit. *total is what the service has from the offset on; the loop ends
 * at a short page, the limit or the total. */
static bool fetch_runs(struct api *a, const struct list_request *r, const struct choice *choice,
                       struct listing *l, size_t *shown, size_t *total, int *status)
{
    tinker_page page = TINKER_PAGE_INIT;
    struct progress bar;
    int64_t want = r->limit > 0 ? r->limit : INT64_MAX;
    page.scope = strcmp(r->scope, "accessible") == 0 ? TINKER_SCOPE_ACCESSIBLE : TINKER_SCOPE_OWNED;
    page.project_id = r->project;
    if (r->limit > 0)
        progress_start(&bar, "Fetching %lld training runs", (long long)r->limit);
    else
        progress_start(&bar, "Fetching all training runs");
    for (;;) {
        tinker_error err;
        /* From the second page on the total is known, too: nothing is asked for in vain. */
        int64_t end = *shown && (int64_t)*total < want ? (int64_t)*total : want;
        int64_t left = end - (int64_t)*shown;
        page.limit = left < PAGE ? left : PAGE;
        /* Runs that are created meanwhile move the others down: a run may then be listed twice,
         * none is left out. */
        page.offset = r->offset + (int64_t)*shown;
        tinker_future *f =
            api_wait(tinker_rest_list_training_runs(a->rest, &page, &err), &err, status);
        if (!f)
            return false;
        const tinker_training_runs *runs = tinker_future_training_runs(f);
        for (size_t i = 0; i < runs->n; i++) {
            const tinker_training_run *run = tinker_training_run_at(runs, i);
            for (size_t k = 0; k < choice->n; k++)
                choice->columns[k]->put(l, run);
            /* JSON has all members whatever --columns says: it is for programs, which choose
             * themselves. */
            rows_run_json(listing_object(l), run);
            listing_object_end(l);
        }
        *shown += runs->n;
        int64_t behind = runs->cursor.total_count - r->offset;
        *total = behind > (int64_t)*shown ? (size_t)behind : *shown;
        /* Any of the three ends the loop, so a service with a wrong total cannot keep it
         * running. */
        bool last = runs->n < (size_t)page.limit || (int64_t)*shown >= want || *shown >= *total;
        tinker_future_free(f);
        progress_at(&bar, (int64_t)*shown,
                    (int64_t)(*total < (size_t)want ? *total : (size_t)want));
        if (last)
            break;
    }
    progress_end(&bar);
    return true;
}

/* Fetch everything first: the title has the count, and column widths need all rows. */
static int list_runs(struct api *a, const struct list_request *r, const struct choice *choice)
{
    struct listing l;
    struct buf title;
    size_t shown = 0, total = 0;
    int status;
    listing_init(&l, choice->headers, choice->n);
    bool ok = fetch_runs(a, r, choice, &l, &shown, &total, &status);
    if (!ok) {
        listing_clear(&l);
        return status;
    }
    /* The completion of the shell offers the ids that were listed last; other first columns have
     * none. */
    if (strcmp(choice->headers[0], "Run ID") == 0)
        names_cache_keep("runs", &l, 0);
    if (r->ids)
        return listing_print_lines(&l);
    buf_init(&title, 256);
    listing_title(&title, "training run", "training runs", shown, total, "");
    status = listing_print(&l, title.data, "{\"runs\":[");
    buf_clear(&title);
    return status;
}

/* --ids is a shorthand for one column without head, made for xargs. */
int cmd_run_list(int argc, char **argv)
{
    static const char *const scopes[] = { "owned", "accessible", NULL };
    struct list_request r = { .limit = 20, .scope = scopes[0] };
    const struct opt opts[] = {
        { .name = "limit",
          .kind = OPT_INT,
          .value = "N",
          .help = "how many to show, 0 for all (default 20)",
          .out = &r.limit },
        { .name = "offset",
          .kind = OPT_INT,
          .value = "N",
          .help = "leave out the newest N",
          .out = &r.offset },
        { .name = "columns",
          .letter = 'c',
          .kind = OPT_STRING,
          .value = "LIST",
          .help = "id, model, owner, lora, updated, status, checkpoint, checkpoint_time",
          .out = &r.columns },
        { .name = "scope",
          .kind = OPT_CHOICE,
          .value = "SCOPE",
          .help = "owned, or accessible: those of others too",
          .out = &r.scope,
          .choices = scopes },
        { .name = "project",
          .kind = OPT_STRING,
          .value = "ID",
          .help = "only runs of this project",
          .out = &r.project },
        { .name = "ids", .kind = OPT_FLAG, .help = "print ids alone, one per line", .out = &r.ids },
    };
    const struct opt_spec spec = { .command = "run list",
                                   .about = "List training runs, newest first.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .example =
                                       "tinker run list --limit 0 --columns id,model,checkpoint" };
    struct choice choice = { .n = 0 };
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (r.ids && r.columns)
        return opt_usage_error(&spec, "Give either --ids or --columns.");
    /* "owner" is left out of the usual ones: nearly always it is oneself. */
    const char *usual = r.ids ? "id" : "id,model,lora,updated,status";
    if (!listing_check(&spec, r.offset, r.ids) ||
        !read_columns(&spec, r.columns ? r.columns : usual, &choice))
        return EXIT_USAGE;
    if (!api_open(&a, &status))
        return status;
    status = list_runs(&a, &r, &choice);
    api_close(&a);
    return status;
}

/* ---- run info --------------------------------------------------------------------------- */

/* Three rows for a checkpoint, none if there is no such checkpoint. */
static void put_checkpoint_properties(struct listing *l, const char *name,
                                      const tinker_checkpoint *c)
{
    char text[FMT_TEXT];
    if (!c)
        return;
    rows_property(l, name, c->id);
    rows_property(l, "  - Time", fmt_cell_time(c->time_us, "N/A", text));
    /* The path last: it is what people copy, and the longest. */
    rows_property(l, "  - Path", c->path);
}

/* `run info` for people and as JSON. User metadata comes last, one row per entry. */
static int show_run(const tinker_training_run *r)
{
    struct listing l;
    char text[FMT_TEXT], title[256];
    listing_init(&l, rows_properties, 2);
    rows_property(&l, "Run ID", r->id);
    rows_property(&l, "Base Model", r->base_model);
    rows_property(&l, "Owner", r->owner);
    rows_lora(&l, r->is_lora, r->lora_rank);
    rows_property(&l, "Last Update", fmt_cell_time(r->last_request_us, "N/A", text));
    rows_property(&l, "Status", r->corrupted ? "Failed" : "OK");
    put_checkpoint_properties(&l, "Last Training Checkpoint", r->last_checkpoint);
    put_checkpoint_properties(&l, "Last Sampler Checkpoint", r->last_sampler_checkpoint);
    if (r->n_user_metadata)
        rows_property(&l, "Metadata", "");
    for (size_t i = 0; i < r->n_user_metadata; i++) {
        listing_cellf(&l, "  - %s", r->user_metadata[i].name);
        listing_cell(&l, r->user_metadata[i].value);
    }
    rows_run_json(listing_object(&l), r);
    listing_object_end(&l);
    snprintf(title, sizeof(title), "Training Run: %s", r->id);
    return listing_print_one(&l, title);
}

/* Exit code 5 if there is no such run in the scope. */
int cmd_run_info(int argc, char **argv)
{
    static const char *const scopes[] = { "owned", "accessible", NULL };
    const char *id = NULL, *scope = scopes[0];
    const struct opt opts[] = { { .name = "scope",
                                  .kind = OPT_CHOICE,
                                  .value = "SCOPE",
                                  .help = "owned, or accessible: those of others too",
                                  .out = &scope,
                                  .choices = scopes } };
    const struct opt_arg args[] = { { .name = "RUN_ID", .out = &id } };
    const struct opt_spec spec = { .command = "run info",
                                   .about = "Show one training run.",
                                   .opts = opts,
                                   .n_opts = 1,
                                   .args = args,
                                   .n_args = 1,
                                   .example = "tinker run info RUN_ID" };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_open(&a, &status))
        return status;
    /* "accessible" also finds runs that others have shared. */
    tinker_scope s = scope == scopes[0] || strcmp(scope, scopes[0]) == 0 ? TINKER_SCOPE_OWNED
                                                                         : TINKER_SCOPE_ACCESSIBLE;
    tinker_future *f = api_wait(tinker_rest_get_training_run(a.rest, id, s, &err), &err, &status);
    if (f)
        status = show_run(tinker_future_training_run(f));
    tinker_future_free(f);
    api_close(&a);
    return status;
}
