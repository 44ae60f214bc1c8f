/* cmd_session.c - `tinker session list` and `tinker session info`. */
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "cli/service/api.h"
#include "cli/command.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"

enum { PAGE = 100 }; /* sessions per request */

static const char *const scopes[] = { "owned", "accessible", NULL };

/* Names were checked by the option table. */
static tinker_scope parse_scope(const char *name)
{
    return strcmp(name, scopes[1]) == 0 ? TINKER_SCOPE_ACCESSIBLE : TINKER_SCOPE_OWNED;
}

/* The options as given. limit 0: all. */
struct list_request {
    int64_t limit, offset;
    const char *scope;
    bool ids;
};

/* The next id; NULL behind the last, or after a failure, which *status has. The pager is asked
 * with timeout 0 and the page it waits for is awaited here, so that Ctrl-C works. */
static const char *next_session(tinker_pager *p, int *status)
{
    tinker_error err;
    while (tinker_pager_next(p, 0, &err) != TINKER_OK) {
        tinker_future *page = err.status == TINKER_ETIMEDOUT ? tinker_pager_future(p) : NULL;
        bool arrived = page && api_await(page, &err) == TINKER_OK;
        if (!arrived)
            *status = api_fail(&err, page);
        tinker_future_free(page);
        if (!arrived)
            return NULL;
    }
    return tinker_pager_session(p);
}

/* The cells and JSON strings of all sessions up to the limit. false after an error was printed. */
static bool fetch_sessions(struct api *a, const struct list_request *r, struct listing *l,
                           int *status)
{
    tinker_page page = TINKER_PAGE_INIT;
    tinker_error err;
    /* 0 on the command line is "all", as everywhere in this program. */
    size_t want = r->limit > 0 ? (size_t)r->limit : SIZE_MAX;
    const char *id = NULL;
    /* The first page is not larger than what is wanted. */
    page.limit = want < PAGE ? (int64_t)want : PAGE;
    page.offset = r->offset;
    page.scope = parse_scope(r->scope);
    *status = EXIT_OK;
    /* A pager rather than offsets: sessions come and go while the list is read, and none is
     * shown twice. */
    tinker_pager *p = tinker_rest_all_sessions(a->rest, &page, &err);
    if (!p)
        *status = api_fail(&err, NULL);
    while (p && l->n < want && !l->failed && (id = next_session(p, status)) != NULL) {
        /* Copied into the listing: the id is lent until the next call of the pager. */
        listing_cell(l, id);
        json_put_string(listing_object(l), id);
        listing_object_end(l);
    }
    tinker_pager_free(p);
    return *status == EXIT_OK;
}

/* The service tells no total, so the title counts what is shown. */
static int list_sessions(struct api *a, const struct list_request *r)
{
    static const char *const columns[] = { "Session ID" };
    struct listing l;
    struct buf title;
    int status;
    listing_init(&l, columns, 1);
    if (!fetch_sessions(a, r, &l, &status)) {
        listing_clear(&l);
        return status;
    }
    if (r->ids)
        return listing_print_lines(&l);
    buf_init(&title, 256);
    listing_title(&title, "session", "sessions", l.n, l.n, "");
    status = listing_print(&l, title.data, "{\"sessions\":[");
    buf_clear(&title);
    return status;
}

/* Newest first. --scope accessible adds sessions that others have shared. */
int cmd_session_list(int argc, char **argv)
{
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
        { .name = "scope",
          .kind = OPT_CHOICE,
          .value = "SCOPE",
          .help = "owned, or accessible: those of others too",
          .out = &r.scope,
          .choices = scopes },
        { .name = "ids", .kind = OPT_FLAG, .help = "print ids alone, one per line", .out = &r.ids },
    };
    const struct opt_spec spec = { .command = "session list",
                                   .about = "List sessions, newest first.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .example = "tinker session list" };
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!listing_check(&spec, r.offset, r.ids))
        return EXIT_USAGE;
    if (!api_open(&a, &status))
        return status;
    status = list_sessions(&a, &r);
    api_close(&a);
    return status;
}

/* One row with an id per line; an empty list is an empty cell and []. */
static void put_id_lines(struct listing *l, struct json_writer *w, const char *name,
                         const char *key, const tinker_strings *ids)
{
    struct buf lines;
    buf_init(&lines, SIZE_MAX / 2);
    /* An empty text, not NULL, for a session that created nothing. */
    buf_puts(&lines, "");
    json_put_key(w, key);
    json_put_begin_array(w);
    for (size_t i = 0; i < ids->n; i++) {
        buf_printf(&lines, "%s%s", i ? "\n" : "", ids->v[i]);
        json_put_string(w, ids->v[i]);
    }
    json_put_end_array(w);
    rows_property(l, name, lines.data ? lines.data : "");
    l->failed = l->failed || lines.failed;
    buf_clear(&lines);
}

/* `session info`: the ids of what the session created.
 * Ids only, in the layout of the official program. */
static int show_session(const char *id, const tinker_session *s)
{
    struct listing l;
    char title[256];
    listing_init(&l, rows_properties, 2);
    rows_property(&l, "Session ID", id);
    struct json_writer *w = listing_object(&l);
    json_put_begin_object(w);
    json_put_key(w, "session_id");
    json_put_string(w, id);
    put_id_lines(&l, w, "Training Runs", "training_run_ids", &s->training_run_ids);
    put_id_lines(&l, w, "Samplers", "sampler_ids", &s->sampler_ids);
    json_put_end_object(w);
    listing_object_end(&l);
    snprintf(title, sizeof(title), "Session: %s", id);
    return listing_print_one(&l, title);
}

/* The JSON has session_id, training_run_ids and sampler_ids; empty lists are []. */
int cmd_session_info(int argc, char **argv)
{
    const char *id = NULL, *scope = scopes[0];
    const struct opt opts[] = { { .name = "scope",
                                  .kind = OPT_CHOICE,
                                  .value = "SCOPE",
                                  .help = "owned, or accessible: those of others too",
                                  .out = &scope,
                                  .choices = scopes } };
    const struct opt_arg args[] = { { .name = "SESSION_ID", .out = &id } };
    const struct opt_spec spec = { .command = "session info",
                                   .about = "Show the training runs and samplers of a session.",
                                   .opts = opts,
                                   .n_opts = 1,
                                   .args = args,
                                   .n_args = 1,
                                   .example = "tinker session info SESSION_ID" };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_open(&a, &status))
        return status;
    tinker_future *f =
        api_wait(tinker_rest_get_session(a.rest, id, parse_scope(scope), &err), &err, &status);
    if (f)
        status = show_session(id, tinker_future_session(f));
    tinker_future_free(f);
    api_close(&a);
    return status;
}
