/* cmd_session_more.c - `tinker session export-trace|move|sampler`. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/os.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/confirm.h"
#include "cli/output/fmt.h"
#include "cli/output/out.h"
#include "cli/output/rows.h"
#include "cli/service/api.h"
#include "cli/service/web.h"

/* Of file names, as the system allows them. */
enum { PATH_SIZE = 4096 };

/* ---- export-trace ------------------------------------------------------------------------------ */

/* url or destination is NULL; size -1: nothing was fetched.
 * Only what there is: an address, or a file with its size. */
static int print_trace_report(const char *id, const char *url, const char *destination,
                              int64_t size)
{
    struct listing l;
    char text[FMT_TEXT], title[512];
    listing_init(&l, rows_properties, 2);
    struct json_writer *w = listing_object(&l);
    rows_property(&l, "Session ID", id);
    json_put_begin_object(w);
    rows_put_text(w, "session_id", id);
    if (url) {
        rows_property(&l, "Download URL", url);
        rows_put_text(w, "url", url);
    }
    if (destination) {
        rows_property(&l, "Saved to", destination);
        rows_put_text(w, "destination", destination);
    }
    if (size > 0) {
        rows_property(&l, "Size", fmt_size(size, text));
        rows_put_count(w, "file_size_bytes", size);
    }
    json_put_end_object(w);
    listing_object_end(&l);
    snprintf(title, sizeof(title), "Trace Export: %s", id);
    return listing_print_one(&l, title);
}

/* Into a file beside the final one, which appears when it is complete.
 * The address is signed, so no credentials are sent along. */
static int fetch_trace(const char *url, const char *path, int64_t *size)
{
    char part[PATH_SIZE + 16], dir[PATH_SIZE];
    struct web_exchange x;
    tinker_error err;
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) : 0, path);
    if (*dir && os_make_dirs(dir, &err) != TINKER_OK)
        return out_fail(EXIT_IO, "Check the permissions.", "Failed to save trace: %s", err.message);
    snprintf(part, sizeof(part), "%s.partial", path);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return out_fail(EXIT_IO, "Check the permissions.", "Failed to save trace: %s: %s", part,
                        strerror(errno));
    web_init(&x, "GET", url);
    x.fd = fd;
    x.label = "Downloading trace";
    tinker_status got = web_send(&x, &err);
    int http = x.status;
    /* Read before web_clear(), which forgets it. */
    *size = x.received;
    web_clear(&x);
    /* A full disk may show only here. */
    if (close(fd) != 0 && got == TINKER_OK)
        got = TINKER_ESTATE;
    /* rename() last: a file under the final name is always a whole one. */
    if (got == TINKER_OK && http == 200 && rename(part, path) == 0)
        return EXIT_OK;
    /* unlink() may overwrite it. */
    int reason = errno;
    unlink(part);
    if (got == TINKER_OK && http == 200)
        return out_fail(EXIT_IO, NULL, "Failed to save trace: %s: %s", path, strerror(reason));
    /* An HTTP status other than 200: the bytes in the file are an error message. */
    if (got == TINKER_OK)
        return out_fail(EXIT_FAILED, "The address may have expired; ask again.",
                        "Failed to download trace: the server answers %d", http);
    return out_fail(got == TINKER_ESTATE ? EXIT_IO : EXIT_NETWORK,
                    "The address may have expired; ask again.", "Failed to download trace: %s",
                    err.message);
}

/* The timeline of everything the service did for a session, in the format of Perfetto. */
int cmd_session_export_trace(int argc, char **argv)
{
    const char *id = NULL, *output = NULL;
    bool url_only = false;
    const struct opt opts[] = {
        { .name = "output",
          .letter = 'o',
          .kind = OPT_STRING,
          .value = "FILE",
          .help = "where to save it (default: ./SESSION_ID.pftrace)",
          .out = &output },
        { .name = "url-only",
          .kind = OPT_FLAG,
          .help = "print the address instead",
          .out = &url_only },
    };
    const struct opt_arg args[] = { { .name = "SESSION_ID", .out = &id } };
    const struct opt_spec spec = { .command = "session export-trace",
                                   .about = "Fetch the timeline of a session, for ui.perfetto.dev.",
                                   .opts = opts,
                                   .n_opts = ARRAY_LEN(opts),
                                   .args = args,
                                   .n_args = 1,
                                   .example =
                                       "tinker session export-trace SESSION_ID -o run.pftrace" };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_open(&a, &status))
        return status;
    /* The service writes the trace on demand, which may take minutes. */
    if (!globals.json)
        out_say("Exporting the trace of session %s; this may take a while", id);
    tinker_future *f = tinker_rest_export_trace(a.rest, id, &err);
    if (f && api_await_download(f, &err) == TINKER_OK) {
        /* Borrowed from the future, which is freed at the end. */
        const char *url = tinker_future_file(f);
        int64_t size = -1;
        char path[PATH_SIZE], cwd[PATH_SIZE - 512] = ".";
        /* The address alone, for `curl "$(...)"`. */
        if (url_only && !globals.json) {
            puts(url);
            status = EXIT_OK;
        } else if (url_only) {
            status = print_trace_report(id, url, NULL, size);
        } else {
            if (!getcwd(cwd, sizeof(cwd)))
                snprintf(cwd, sizeof(cwd), ".");
            snprintf(path, sizeof(path), output ? "%s" : "%s/%s.pftrace", output ? output : cwd,
                     id);
            status = fetch_trace(url, path, &size);
            if (status == EXIT_OK)
                status = print_trace_report(id, NULL, path, size);
        }
    } else {
        status = api_fail(&err, f);
    }
    tinker_future_free(f);
    api_close(&a);
    return status;
}

/* ---- move, sampler ------------------------------------------------------------------------------- */

/* Asked first, since nothing moves it back. */
int cmd_session_move(int argc, char **argv)
{
    const char *id = NULL, *project = NULL;
    const struct opt opts[] = {
        { .name = "project",
          .kind = OPT_STRING,
          .value = "ID",
          .help = "the project that will own it",
          .out = &project },
    };
    const struct opt_arg args[] = { { .name = "SESSION_ID", .out = &id } };
    const struct opt_spec spec = { .command = "session move",
                                   .about = "Assign a session to a project.  It cannot be undone.",
                                   .opts = opts,
                                   .n_opts = 1,
                                   .args = args,
                                   .n_args = 1,
                                   .example = "tinker session move SESSION_ID --project PROJECT" };
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    if (!project)
        return opt_usage_error(&spec, "Missing option '--project'.");
    if (!confirm_ask(&status, "Move session %s to project %s, for good?", id, project))
        return status;
    if (!api_open(&a, &status))
        return status;
    status = api_done(tinker_rest_assign_project(a.rest, id, project, &err), &err);
    if (status == EXIT_OK)
        out_say("Moved %s to %s", id, project);
    api_close(&a);
    return status;
}

/* The way back from an id in a log to the weights that answered. */
int cmd_session_sampler(int argc, char **argv)
{
    const char *id = NULL;
    const struct opt_arg args[] = { { .name = "SAMPLER_ID", .out = &id } };
    const struct opt_spec spec = { .command = "session sampler",
                                   .about = "Show what a sampler of a session samples from.",
                                   .args = args,
                                   .n_args = 1,
                                   .example = "tinker session sampler SESSION_ID:sample:0" };
    struct api a;
    struct listing l;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_open(&a, &status))
        return status;
    tinker_future *f = api_wait(tinker_rest_get_sampler(a.rest, id, &err), &err, &status);
    if (f) {
        /* model_path is NULL for a sampler of the base model itself. */
        const tinker_sampler_info *s = tinker_future_sampler_info(f);
        char title[300];
        listing_init(&l, rows_properties, 2);
        rows_property(&l, "Sampler ID", s->sampler_id);
        rows_property(&l, "Base Model", s->base_model);
        rows_property(&l, "Path", s->model_path);
        struct json_writer *w = listing_object(&l);
        json_put_begin_object(w);
        rows_put_text(w, "sampler_id", s->sampler_id);
        rows_put_text(w, "base_model", s->base_model);
        rows_put_text(w, "model_path", s->model_path);
        json_put_end_object(w);
        listing_object_end(&l);
        snprintf(title, sizeof(title), "Sampler: %s", s->sampler_id);
        status = listing_print_one(&l, title);
    }
    tinker_future_free(f);
    api_close(&a);
    return status;
}
