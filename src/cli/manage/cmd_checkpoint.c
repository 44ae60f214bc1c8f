/* cmd_checkpoint.c - `tinker checkpoint list` and `tinker checkpoint info`. */
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

enum { PAGE = 1000 }; /* the query is slow, however little it brings */

/* ---- checkpoint list ---------------------------------------------------------------------- */

static const char *const columns[] = { "Checkpoint ID", "Type",    "Size", "Public",
                                       "Created",       "Expires", "Path" };
static const char *const path_column[] = { "Path" }; /* for --ids: what other commands take */

/* The options as given. limit 0: all. */
struct list_request {
    const char *run_id;
    int64_t limit, offset;
    bool ids;
    /* conditions, with any of which the service searches */
    const char *type;
    struct opt_list base_models, projects, metadata;
    tinker_named_string pairs[OPT_LIST_MAX]; /* the metadata, taken apart */
};

static const char *const types[] = { "training", "sampler", "external", NULL };

/* One row, and its JSON object unless only paths are printed. The order of the cells is that of
 * `columns`. */
static void put_checkpoint_row(struct listing *l, const tinker_checkpoint *c)
{
    char text[FMT_TEXT];
    if (l->columns == path_column) {
        listing_cell(l, c->path);
        return;
    }
    listing_cell(l, c->id);
    listing_cell(l, rows_checkpoint_type(c));
    listing_cell(l, fmt_size(c->size_bytes, text));
    listing_cell(l, c->is_public ? "Yes" : "No");
    listing_cell(l, fmt_cell_time(c->time_us, "N/A", text));
    listing_cell(l, fmt_cell_time(c->expires_us, "Never", text));
    listing_cell(l, c->path);
    rows_checkpoint_json(listing_object(l), c);
    listing_object_end(l);
}

/* Append one answer to the listing. Returns how many checkpoints it had, or -1 after the error
 * was printed. *total grows beyond *shown only if the service has a cursor. */
static int64_t take_page(tinker_future *f, tinker_error *err, struct listing *l, int64_t offset,
                         size_t *shown, size_t *total, int *status)
{
    f = api_wait(f, err, status);
    if (!f)
        return -1;
    const tinker_checkpoints *page = tinker_future_checkpoints(f);
    for (size_t i = 0; i < page->n; i++)
        put_checkpoint_row(l, tinker_checkpoint_at(page, i));
    int64_t n = (int64_t)page->n;
    *shown += page->n;
    /* total_count is of the whole list; what was skipped by --offset does not count as "more". */
    int64_t behind = page->cursor ? page->cursor->total_count - offset : 0;
    *total = behind > (int64_t)*shown ? (size_t)behind : *shown;
    tinker_future_free(f);
    return n;
}

/* Page by page until the limit, a short page, or the total is reached: any of the three ends
 * the loop, so a service with a wrong total cannot keep it running. */
static bool fetch_user_checkpoints(struct api *a, const struct list_request *r, struct listing *l,
                                   size_t *shown, size_t *total, int *status)
{
    tinker_page page = TINKER_PAGE_INIT;
    struct progress bar;
    int64_t want = r->limit > 0 ? r->limit : INT64_MAX, n;
    if (r->limit > 0)
        progress_start(&bar, "Fetching %lld checkpoints", (long long)r->limit);
    else
        progress_start(&bar, "Fetching all checkpoints");
    do {
        tinker_error err;
        /* From the second page on the total is known, too: nothing is asked for in vain. */
        int64_t end = *shown && (int64_t)*total < want ? (int64_t)*total : want;
        int64_t left = end - (int64_t)*shown;
        page.limit = left < PAGE ? left : PAGE;
        /* Pages follow each other by offset. */
        page.offset = r->offset + (int64_t)*shown;
        n = take_page(tinker_rest_list_user_checkpoints(a->rest, &page, &err), &err, l, r->offset,
                      shown, total, status);
        if (n < 0)
            return false;
        progress_at(&bar, (int64_t)*shown, (int64_t)*total < want ? (int64_t)*total : want);
    } while (n == page.limit && (int64_t)*shown < want && *shown < *total);
    progress_end(&bar);
    return true;
}

/* Page by page behind the cursor of the service, until the limit or the end. */
static bool search_checkpoints(struct api *a, const struct list_request *r, struct listing *l,
                               size_t *shown, size_t *total, int *status)
{
    enum { SEARCH_PAGE = 200 };
    tinker_checkpoint_query q = TINKER_CHECKPOINT_QUERY_INIT;
    tinker_future *before = NULL; /* owns the cursor */
    tinker_error err;
    size_t want = r->limit > 0 ? (size_t)r->limit : SIZE_MAX;
    q.project_ids = r->projects.items;
    q.n_project_ids = r->projects.n;
    q.base_models = r->base_models.items;
    q.n_base_models = r->base_models.n;
    q.user_metadata = r->pairs;
    q.n_user_metadata = r->metadata.n;
    if (r->type)
        tinker_checkpoint_kind_parse(r->type, &q.kind, NULL);
    do {
        size_t left = want - *shown;
        q.limit = left < SEARCH_PAGE ? (int64_t)left : SEARCH_PAGE;
        tinker_future *f =
            api_wait(tinker_rest_search_checkpoints(a->rest, &q, &err), &err, status);
        tinker_future_free(before);
        before = f;
        if (!f)
            return false;
        const tinker_checkpoint_matches *m = tinker_future_checkpoint_matches(f);
        for (size_t i = 0; i < m->list.n; i++)
            put_checkpoint_row(l, tinker_checkpoint_at(&m->list, i));
        *shown += m->list.n;
        q.cursor = m->next;
        /* An empty page with a cursor would go on forever. */
        if (!m->list.n)
            break;
    } while (q.cursor && *shown < want);
    *total = *shown + (q.cursor != NULL); /* that there are more is all that is known */
    tinker_future_free(before);
    return true;
}

/* The JSON document begins {"run_id":...,"checkpoints":[ for one run and {"checkpoints":[ for
 * all; listing_print() closes it. */
static int print_checkpoint_list(struct listing *l, const char *run_id, size_t shown, size_t total)
{
    struct buf title, head;
    struct json_writer w;
    buf_init(&title, 4096);
    buf_init(&head, 4096);
    json_writer_init(&w, &head);
    json_put_begin_object(&w);
    if (run_id) {
        json_put_key(&w, "run_id");
        json_put_string(&w, run_id);
    }
    json_put_key(&w, "checkpoints");
    buf_putc(&head, '[');
    char of[512] = "";
    if (run_id)
        snprintf(of, sizeof(of), " for run %s", run_id);
    listing_title(&title, "checkpoint", "checkpoints", shown, total, of);
    int status = listing_print(l, title.data, head.data);
    buf_clear(&title);
    buf_clear(&head);
    return status;
}

/* Only a search can filter, and not every service has it: asked only when it is needed. */
static bool has_conditions(const struct list_request *r)
{
    return r->type || r->base_models.n || r->projects.n || r->metadata.n;
}

/* The endpoint for one run has no pages: it returns everything, so --limit and --offset do not
 * apply to it. */
static int list_checkpoints(struct api *a, const struct list_request *r)
{
    struct listing l;
    tinker_error err;
    size_t shown = 0, total = 0;
    int status;
    bool ok;
    listing_init(&l, r->ids ? path_column : columns, r->ids ? 1 : ARRAY_LEN(columns));
    if (r->run_id) {
        ok = take_page(tinker_rest_list_checkpoints(a->rest, r->run_id, &err), &err, &l, 0, &shown,
                       &total, &status) >= 0;
        total = shown; /* it is all of them, whatever a cursor says */
    } else if (has_conditions(r)) {
        ok = search_checkpoints(a, r, &l, &shown, &total, &status);
    } else {
        ok = fetch_user_checkpoints(a, r, &l, &shown, &total, &status);
    }
    if (ok)
        names_cache_keep("checkpoints", &l, l.n_columns - 1); /* the path is the last column */
    if (ok)
        return r->ids ? listing_print_lines(&l)
                      : print_checkpoint_list(&l, r->run_id, shown, total);
    listing_clear(&l);
    return status;
}

/* Newest first, which is the order of the service. */
int cmd_checkpoint_list(int argc, char **argv)
{
    struct list_request r = { .limit = 20 };
    const struct opt opts[] = {
        { .name = "run-id",
          .kind = OPT_STRING,
          .value = "ID",
          .help = "all checkpoints of this training run",
          .out = &r.run_id },
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
        { .name = "ids",
          .kind = OPT_FLAG,
          .help = "print paths alone, one per line",
          .out = &r.ids },
        { .name = "type",
          .kind = OPT_CHOICE,
          .value = "TYPE",
          .help = "only these: training, sampler or external",
          .out = &r.type,
          .choices = types },
        { .name = "base-model",
          .kind = OPT_LIST,
          .value = "MODEL",
          .help = "only those on one of these models",
          .out = &r.base_models },
        { .name = "metadata",
          .kind = OPT_LIST,
          .value = "KEY=VALUE",
          .help = "only those that were saved with all of these",
          .out = &r.metadata },
        { .name = "project",
          .kind = OPT_LIST,
          .value = "ID",
          .help = "only those of one of these projects",
          .out = &r.projects },
    };
    const struct opt_spec spec = { .command = "checkpoint list",
                                   .about = "List checkpoints, newest first.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .example = "tinker checkpoint list --limit 0" };
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (r.run_id && r.offset)
        return opt_usage_error(&spec, "--run-id shows all checkpoints of a run: no --offset.");
    if (has_conditions(&r) && (r.run_id || r.offset))
        return opt_usage_error(&spec, "--run-id and --offset do not go with conditions.");
    for (size_t i = 0; i < r.metadata.n; i++) {
        char *value = strchr(r.metadata.items[i], '=');
        if (!value || value == r.metadata.items[i])
            return opt_usage_error(&spec, "--metadata: expected KEY=VALUE.");
        *value = 0; /* argv is ours */
        r.pairs[i] = (tinker_named_string){ r.metadata.items[i], value + 1 };
    }
    if (!listing_check(&spec, r.offset, r.ids))
        return EXIT_USAGE;
    if (!api_open(&a, &status))
        return status;
    status = list_checkpoints(&a, &r);
    api_close(&a);
    return status;
}

/* ---- checkpoint info ---------------------------------------------------------------------- */

/* `checkpoint info` for people and as JSON. Size -1 means unknown and has no row; in JSON it is
 * null. */
static int show_checkpoint(const tinker_checkpoint *c, const tinker_weights_info *info)
{
    struct listing l;
    char text[FMT_TEXT], title[256];
    listing_init(&l, rows_properties, 2);
    rows_property(&l, "Checkpoint ID", c->id);
    rows_property(&l, "Type", rows_checkpoint_type(c));
    rows_property(&l, "Tinker Path", c->path);
    if (c->size_bytes >= 0)
        rows_property(&l, "Size", fmt_size(c->size_bytes, text));
    rows_property(&l, "Public", c->is_public ? "Yes" : "No");
    rows_property(&l, "Created", fmt_cell_time(c->time_us, "N/A", text));
    rows_property(&l, "Expires", fmt_cell_time(c->expires_us, "Never", text));
    /* tinker://RUN_ID/KIND/NAME: the run is the first part. */
    const char *run = c->path + strlen("tinker://");
    listing_cell(&l, "Training Run ID");
    listing_cellf(&l, "%.*s", (int)strcspn(run, "/"), run);
    rows_lora(&l, info->is_lora, info->lora_rank);

    struct json_writer *w = listing_object(&l);
    json_put_begin_object(w);
    rows_checkpoint_members(w, c);
    json_put_key(w, "is_lora");
    json_put_bool(w, info->is_lora);
    json_put_key(w, "lora_rank");
    if (info->lora_rank < 0)
        json_put_null(w);
    else
        json_put_int64(w, info->lora_rank);
    json_put_end_object(w);
    listing_object_end(&l);
    snprintf(title, sizeof(title), "Checkpoint: %s", c->id);
    return listing_print_one(&l, title);
}

/* Somebody else's public checkpoint is in no list of ours: what its path and its weights say. */
static int show_foreign_checkpoint(const char *path, const tinker_weights_info *info)
{
    tinker_checkpoint_path parts = { .kind = TINKER_CHECKPOINT_UNKNOWN };
    tinker_checkpoint_path_parse(path, &parts, NULL); /* the caller has checked it */
    tinker_checkpoint c = { .id = parts.checkpoint_id,
                            .kind = parts.kind,
                            .path = path,
                            .time_us = TINKER_NO_TIME,
                            .expires_us = TINKER_NO_TIME,
                            .size_bytes = -1,
                            .is_public = 1 };
    out_say("The checkpoint is not among yours; its times are unknown.");
    return show_checkpoint(&c, info);
}

/* Ask for the weights of a path. c is the checkpoint in the user's own list, or NULL if it is
 * somebody else's. */
static int show_weights(struct api *a, const char *path, const tinker_checkpoint *c)
{
    tinker_error err;
    int status;
    tinker_future *f = tinker_rest_get_weights_info(a->rest, path, &err);
    if (f && api_await(f, &err) == TINKER_OK)
        status = c ? show_checkpoint(c, tinker_future_weights_info(f))
                   : show_foreign_checkpoint(path, tinker_future_weights_info(f));
    else if (err.http_status == 404)
        status = out_fail(EXIT_NOT_FOUND, NULL, "Checkpoint not found: %s", path);
    else
        status = api_fail(&err, f);
    tinker_future_free(f);
    return status;
}

/* The list of the run has times and size, the weights endpoint has the rank: both are needed. A
 * run that is not ours answers 403 or 404, and a public checkpoint of it can still be described
 * from its weights. */
static int show_checkpoint_info(struct api *a, const char *path, const char *run)
{
    tinker_error err;
    int status;
    tinker_future *f = tinker_rest_list_checkpoints(a->rest, run, &err);
    if (f && api_await(f, &err) == TINKER_OK) {
        const tinker_checkpoints *all = tinker_future_checkpoints(f);
        const tinker_checkpoint *c = NULL;
        for (size_t i = 0; !c && i < all->n; i++)
            if (strcmp(tinker_checkpoint_at(all, i)->path, path) == 0)
                c = tinker_checkpoint_at(all, i);
        status = c ? show_weights(a, path, c)
                   : out_fail(EXIT_NOT_FOUND, NULL, "Checkpoint not found: %s", path);
    } else if (err.http_status == 403 || err.http_status == 404) {
        status = show_weights(a, path, NULL);
    } else {
        status = api_fail(&err, f);
    }
    tinker_future_free(f);
    return status;
}

int cmd_checkpoint_info(int argc, char **argv)
{
    const char *path = NULL;
    const struct opt_arg args[] = { { .name = "CHECKPOINT_PATH", .out = &path } };
    const struct opt_spec spec = { .command = "checkpoint info",
                                   .about = "Show one checkpoint.",
                                   .args = args,
                                   .n_args = 1,
                                   .example =
                                       "tinker checkpoint info tinker://RUN_ID/weights/0001" };
    tinker_checkpoint_path parts;
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_read_path(path, &parts, &status) ||
        !api_open(&a, &status))
        return status;
    status = show_checkpoint_info(&a, path, parts.training_run);
    api_close(&a);
    return status;
}
