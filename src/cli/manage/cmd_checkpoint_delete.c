/* cmd_checkpoint_delete.c - `tinker checkpoint delete`: by path, or of a run by filters.
 *
 * What will go is shown and confirmed first.  Deletions run a few at a time; one that fails
 * does not stop the others, and its reason is printed in the order of the input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tinker/rest.h>
#include <unistd.h>
#include "base/array.h"
#include "cli/service/api.h"
#include "cli/command.h"
#include "cli/output/fmt.h"
#include "cli/args/opt.h"
#include "cli/output/confirm.h"
#include "cli/output/out.h"
#include "cli/output/progress.h"
#include "json/json.h"

/* MAX_CONCURRENCY: more deletions at once would only wait for connections. */
enum { REASON = 512, MAX_CONCURRENCY = 64, MAX_REPORT = 1 << 30 };

/* The options as given; before_us and after_us are valid only if the text is set. */
struct request {
    struct opt_words paths;
    const char *run_id, *type, *before, *after;
    int64_t before_us, after_us, concurrency;
    bool dry_run;
};

/* One checkpoint of the plan; `failed` is set with a reason, so an empty reason means success. */
struct item {
    char *path;
    char reason[REASON]; /* "": deleted, or not tried yet */
    bool failed;
};

struct plan {
    struct item *items;
    size_t n;
    struct buf text; /* what the user is asked about */
};

/* For a plan that is half made, too: entries are counted only once their path is there. */
static void clear_plan(struct plan *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->items[i].path);
    free(p->items);
    buf_clear(&p->text);
}

/* The path is copied: the answer it comes from is freed before the deletion. */
static bool add_to_plan(struct plan *p, const char *path)
{
    struct item *items = realloc(p->items, (p->n + 1) * sizeof(*items));
    if (!items)
        return false;
    p->items = items;
    items[p->n] = (struct item){ .path = strdup(path) };
    return items[p->n].path && ++p->n;
}

/* ---- what to delete ------------------------------------------------------------------- */

/* Returns a tinker_checkpoint_kind, -1 for any, -2 for an unknown type. Accepted are the path
 * segments and the short names that the service uses ("training", "sampler"). */
static int parse_type_filter(const char *type)
{
    static const char *const segments[] = { "weights", "sampler_weights", "external_weights" };
    tinker_checkpoint_kind kind;
    if (!type)
        return -1;
    for (int i = 0; i < 3; i++)
        if (strcmp(type, segments[i]) == 0)
            return i;
    return tinker_checkpoint_kind_parse(type, &kind, NULL) == TINKER_OK ? (int)kind : -2;
}

/* The limits are exclusive on both sides. */
static bool matches_filters(const struct request *r, const tinker_checkpoint *c)
{
    int type = parse_type_filter(r->type);
    if (type >= 0 && (int)c->kind != type)
        return false;
    /* Written as "not earlier": a checkpoint without a time (TINKER_NO_TIME) counts as old. */
    if (r->before && !(c->time_us < r->before_us))
        return false;
    return !r->after || c->time_us > r->after_us;
}

/* List the run and keep what the filters match. The text for the confirmation is built on the
 * way, with size and age, so that nothing is asked twice. */
static bool plan_run_checkpoints(struct api *a, const struct request *r, struct plan *p,
                                 int *status)
{
    tinker_error err;
    char size[FMT_TEXT], when[FMT_TEXT];
    int64_t total = 0;
    bool ok = true;
    tinker_future *f =
        api_wait(tinker_rest_list_checkpoints(a->rest, r->run_id, &err), &err, status);
    if (!f)
        return false;
    const tinker_checkpoints *all = tinker_future_checkpoints(f);
    for (size_t i = 0; ok && i < all->n; i++) {
        const tinker_checkpoint *c = tinker_checkpoint_at(all, i);
        if (!matches_filters(r, c))
            continue;
        ok = add_to_plan(p, c->path);
        total += c->size_bytes > 0 ? c->size_bytes : 0;
        buf_printf(&p->text, "  - %s (%s, created %s)\n", c->path, fmt_size(c->size_bytes, size),
                   fmt_cell_time(c->time_us, "N/A", when));
    }
    /* An unknown size (-1) adds nothing, so the sum is a lower bound. */
    buf_printf(&p->text, "\nTotal size: %s\n", fmt_size(total, size));
    tinker_future_free(f);
    if (!ok)
        *status = out_fail(EXIT_FAILED, NULL, "out of memory");
    return ok;
}

/* Paths of the command line are taken as they are, without asking the service about them; one
 * that does not exist fails at its own deletion. */
static bool plan_given_paths(const struct request *r, struct plan *p, int *status)
{
    for (size_t i = 0; i < r->paths.n; i++) {
        if (!add_to_plan(p, r->paths.items[i])) {
            *status = out_fail(EXIT_FAILED, NULL, "out of memory");
            return false;
        }
        buf_printf(&p->text, "  - %s\n", r->paths.items[i]);
    }
    buf_putc(&p->text, '\n');
    return true;
}

/* ---- asking ----------------------------------------------------------------------------- */

/* stdout as in the official program, but stderr when stdout is to hold JSON alone. */
static FILE *choose_talk_stream(void)
{
    return globals.json ? stderr : stdout;
}

/* What will go, then the question. */
static bool ask_to_confirm(const struct plan *p)
{
    char question[96];
    FILE *f = choose_talk_stream();
    fprintf(f, "Will delete %zu checkpoint(s):\n%s", p->n, p->text.data ? p->text.data : "");
    fprintf(f, "WARNING: This action is permanent and cannot be undone.\n");
    snprintf(question, sizeof(question), "Are you sure you want to delete %zu checkpoint(s)?",
             p->n);
    return confirm_yes(f, question);
}

/* ---- deleting --------------------------------------------------------------------------- */

/* A failed deletion is recorded and the others go on. */
static void await_deletion(struct item *item, tinker_future *f, tinker_error *err)
{
    if (!f || api_await(f, err) != TINKER_OK) {
        item->failed = true;
        api_error_text(item->reason, sizeof(item->reason), err, f);
    }
    tinker_future_free(f);
}

/* Keep up to `window` deletions in flight and wait for the oldest, so that results come in the
 * order of the input. Slot i % window is free again when item i is done. After an interrupt
 * nothing new is sent; what is in flight is waited for, the rest is marked "interrupted". */
static size_t delete_all(struct api *a, struct plan *p, size_t window)
{
    tinker_future *futures[MAX_CONCURRENCY] = { NULL };
    tinker_error errors[MAX_CONCURRENCY];
    struct progress bar;
    size_t sent = 0, failed = 0;
    progress_start(&bar, "Deleting checkpoints");
    for (size_t done = 0; done < p->n; done++) {
        for (; sent < p->n && sent < done + window && !api_interrupted(); sent++)
            futures[sent % window] =
                tinker_rest_delete_checkpoint(a->rest, p->items[sent].path, &errors[sent % window]);
        /* Nothing was sent for this item. */
        if (done == sent) { /* interrupted: the rest stays */
            p->items[done].failed = true;
            snprintf(p->items[done].reason, REASON, "interrupted");
            sent++;
        } else {
            await_deletion(&p->items[done], futures[done % window], &errors[done % window]);
        }
        failed += p->items[done].failed;
        progress_at(&bar, (int64_t)done + 1, (int64_t)p->n);
    }
    progress_end(&bar);
    return failed;
}

/* {"deleted_count": N, "failed": [{"tinker_path": ..., "error": ...}]} on one line. */
static void print_deletion_json(const struct plan *p, size_t failed)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b, MAX_REPORT);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "deleted_count");
    json_put_uint64(&w, p->n - failed);
    json_put_key(&w, "failed");
    json_put_begin_array(&w);
    for (size_t i = 0; i < p->n; i++) {
        if (!p->items[i].failed)
            continue;
        json_put_begin_object(&w);
        json_put_key(&w, "tinker_path");
        json_put_string(&w, p->items[i].path);
        json_put_key(&w, "error");
        json_put_string(&w, p->items[i].reason);
        json_put_end_object(&w);
    }
    json_put_end_array(&w);
    json_put_end_object(&w);
    out_json_line(&b);
    buf_clear(&b);
}

/* What a run without --dry-run would delete: {"would_delete": [...]} with --json. */
static void print_dry_run(const struct plan *p)
{
    struct buf b;
    struct json_writer w;
    if (!globals.json) {
        printf("Would delete %zu checkpoint(s):\n%s", p->n, p->text.data ? p->text.data : "");
        return;
    }
    buf_init(&b, MAX_REPORT);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "would_delete");
    json_put_begin_array(&w);
    for (size_t i = 0; i < p->n; i++)
        json_put_string(&w, p->items[i].path);
    json_put_end_array(&w);
    json_put_end_object(&w);
    out_json_line(&b);
    buf_clear(&b);
}

/* Counts first, then the failures in the order of the input. */
static void print_deletion_report(const struct plan *p, size_t failed)
{
    if (globals.json) {
        print_deletion_json(p, failed);
        return;
    }
    printf("Deleted %zu checkpoint(s)\n", p->n - failed);
    if (failed)
        printf("Failed to delete %zu checkpoint(s):\n", failed);
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].failed)
            printf("  - %s: %s\n", p->items[i].path, p->items[i].reason);
}

/* Exit codes: 0 all deleted (or nothing to do, or the user said no), 4 some failed, 1 all
 * failed, 128 + signal when interrupted. */
static int execute_plan(struct api *a, const struct request *r, struct plan *p)
{
    if (p->n == 0) {
        fprintf(choose_talk_stream(), "No checkpoints found for run %s matching filters\n",
                r->run_id);
        if (globals.json && r->dry_run)
            print_dry_run(p);
        else if (globals.json)
            print_deletion_report(p, 0);
        return EXIT_OK;
    }
    if (r->dry_run) {
        print_dry_run(p);
        return EXIT_OK;
    }
    /* A "no" is not an error: the user got what was asked for. */
    if (!globals.yes && !ask_to_confirm(p)) {
        /* The word of the official program, whose output scripts compare. */
        fprintf(choose_talk_stream(), "Deletion cancelled.\n");
        return EXIT_OK;
    }
    size_t failed = delete_all(a, p, (size_t)r->concurrency);
    print_deletion_report(p, failed);
    if (api_interrupted())
        return 128 + api_interrupted();
    /* The official program exits with 0 whatever failed. */
    if (failed == 0 || globals.compat_exit)
        return EXIT_OK;
    return failed < p->n ? EXIT_PARTIAL : EXIT_FAILED;
}

/* ---- the command ------------------------------------------------------------------------- */

/* An option that was not given is no error and leaves *us alone. */
static bool read_date(const char *text, int64_t *us, int *status)
{
    if (!text || fmt_read_date(text, us))
        return true;
    *status = out_fail(EXIT_USAGE, "Use ISO 8601: 2024-01-01 or 2024-01-01T12:00:00Z.",
                       "Invalid date: %s", text);
    return false;
}

/* Everything that can be wrong without asking the service, so that no request is sent for a
 * command line that cannot work. */
static bool check_delete_request(const struct opt_spec *spec, struct request *r, int *status)
{
    *status = EXIT_USAGE;
    if (!r->paths.n && !r->run_id)
        out_fail(EXIT_USAGE,
                 "tinker checkpoint delete tinker://RUN_ID/weights/0001\n"
                 "tinker checkpoint delete --run-id RUN_ID\n"
                 "tinker checkpoint delete --run-id RUN_ID --type sampler --before 2024-01-01",
                 "Must specify checkpoint paths or --run-id");
    else if (r->paths.n && r->run_id)
        out_fail(EXIT_USAGE, NULL, "Cannot specify both checkpoint paths and --run-id");
    else if (!r->run_id && (r->type || r->before || r->after))
        out_fail(EXIT_USAGE, NULL, "--type, --before, and --after require --run-id");
    else if (r->concurrency < 1 || r->concurrency > MAX_CONCURRENCY)
        opt_usage_error(spec, "Invalid value for '--concurrency': must be 1 to %d.",
                        MAX_CONCURRENCY);
    else if (parse_type_filter(r->type) == -2)
        out_fail(EXIT_USAGE, "Use weights, sampler_weights or external_weights.",
                 "Invalid checkpoint type: %s", r->type);
    else if (!globals.yes && !r->dry_run && !isatty(STDIN_FILENO))
        opt_usage_error(
            spec, "Cannot ask for confirmation: standard input is not a terminal. Pass --yes.");
    else
        *status = EXIT_OK;
    if (*status != EXIT_OK || !read_date(r->before, &r->before_us, status) ||
        !read_date(r->after, &r->after_us, status))
        return false;
    for (size_t i = 0; i < r->paths.n; i++)
        if (!api_check_path(r->paths.items[i], status))
            return false;
    return true;
}

/* The plan is complete before anything is asked or deleted. */
int cmd_checkpoint_delete(int argc, char **argv)
{
    struct request r = { .concurrency = 4 };
    const struct opt opts[] = {
        { .name = "run-id",
          .kind = OPT_STRING,
          .value = "ID",
          .help = "checkpoints of this training run",
          .out = &r.run_id },
        { .name = "type",
          .kind = OPT_STRING,
          .value = "TYPE",
          .help = "only weights, sampler_weights or external_weights",
          .out = &r.type },
        { .name = "before",
          .kind = OPT_STRING,
          .value = "DATE",
          .help = "only those made before this time",
          .out = &r.before },
        { .name = "after",
          .kind = OPT_STRING,
          .value = "DATE",
          .help = "only those made after this time",
          .out = &r.after },
        { .name = "dry-run",
          .kind = OPT_FLAG,
          .help = "show what would be deleted",
          .out = &r.dry_run },
        { .name = "concurrency",
          .kind = OPT_INT,
          .value = "N",
          .help = "deletions at a time (default 4)",
          .out = &r.concurrency },
    };
    const struct opt_arg args[] = {
        { .name = "CHECKPOINT_PATHS", .optional = true, .many = &r.paths }
    };
    const struct opt_spec spec = {
        .command = "checkpoint delete",
        .about = "Permanently delete checkpoints.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker checkpoint delete --run-id RUN_ID --before 2024-01-01"
    };
    struct plan p = { 0 };
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !check_delete_request(&spec, &r, &status) ||
        !api_open(&a, &status))
        return status;
    /* 64 MiB of text for the question: some 500,000 paths. */
    buf_init(&p.text, 1 << 26);
    if (r.run_id ? plan_run_checkpoints(&a, &r, &p, &status) : plan_given_paths(&r, &p, &status))
        status = execute_plan(&a, &r, &p);
    clear_plan(&p);
    api_close(&a);
    return status;
}
