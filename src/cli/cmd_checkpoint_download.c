/* cmd_checkpoint_download.c - `tinker checkpoint download`: the archive, unpacked.
 *
 * The archive is fetched into a hidden file beside the target and unpacked into a new
 * directory that takes the target's name when it is complete; an old target goes only
 * then. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/os.h"
#include "cli/api.h"
#include "cli/command.h"
#include "cli/fmt.h"
#include "cli/opt.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/rows.h"

enum { PATH_SIZE = 4096 };

struct request {
    const char *path, *output;
    bool force, keep_archive, no_extract;
};

struct places {
    char target[PATH_SIZE], archive[PATH_SIZE], old[PATH_SIZE];
};

/* tinker://run/weights/final is kept in run_weights_final. */
static bool name_places(const struct request *r, struct places *p)
{
    const char *dir = r->output && *r->output ? r->output : ".";
    char name[1024];
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if ((size_t)snprintf(name, sizeof(name), "%s", r->path + strlen("tinker://")) >= sizeof(name))
        return false;
    for (char *s = name; *s; s++)
        *s = *s == '/' ? '_' : *s;
    bool here = n == 1 && dir[0] == '.';
    int room = PATH_SIZE - 1100;
    if ((int)n > room)
        return false;
    snprintf(p->target, PATH_SIZE, "%.*s%s%s", here ? 0 : (int)n, dir, here ? "" : "/", name);
    snprintf(p->archive, PATH_SIZE, "%.*s/%s%s.tar", (int)n, dir,
             r->keep_archive || r->no_extract ? "" : ".", name);
    snprintf(p->old, PATH_SIZE, "%.*s/.%s.old.%ld", (int)n, dir, name, (long)getpid());
    return true;
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static int on_progress(void *state, int64_t done, int64_t total)
{
    progress_at(state, done, total);
    return api_interrupted() != 0;
}

static int fetch(struct api *a, const struct request *r, const struct places *p)
{
    tinker_download_options o = TINKER_DOWNLOAD_OPTIONS_INIT;
    struct progress bar;
    tinker_error err;
    int status = EXIT_OK;
    progress_start(&bar, "Downloading archive");
    o.force = 1; /* a hidden file that was left behind, or one that --force covers */
    o.progress = on_progress;
    o.progress_state = &bar;
    tinker_future *f = api_wait(
        tinker_rest_download_checkpoint(a->rest, r->path, p->archive, &o, &err), &err, &status);
    progress_end(&bar);
    tinker_future_free(f);
    return status;
}

/* Unpack under another name first when the old target must give way. */
static int unpack(const struct places *p)
{
    tinker_error err;
    bool replace = exists(p->target);
    if (replace && rename(p->target, p->old) != 0)
        return out_fail(EXIT_IO, NULL, "cannot replace %s: %s", p->target, strerror(errno));
    if (tinker_archive_extract(p->archive, p->target, &err) != TINKER_OK) {
        if (replace)
            rename(p->old, p->target);
        return out_fail(EXIT_IO, "Download it again; the archive may be damaged.",
                        "Failed to extract archive: %s", err.message);
    }
    if (replace)
        os_remove_tree(p->old, NULL);
    return EXIT_OK;
}

static int report(const struct request *r, const char *where, int64_t size)
{
    struct listing l;
    char text[FMT_TEXT], title[PATH_SIZE];
    listing_init(&l, rows_properties, 2);
    rows_property(&l, "Checkpoint Path", r->path);
    rows_property(&l, "Archive Size", fmt_size(size, text));
    rows_property(&l, r->no_extract ? "Saved to" : "Extracted to", where);
    struct json_writer *w = listing_object(&l);
    json_put_begin_object(w);
    json_put_key(w, "checkpoint_path");
    json_put_string(w, r->path);
    json_put_key(w, "destination");
    json_put_string(w, where);
    json_put_key(w, "file_size_bytes");
    json_put_int64(w, size);
    json_put_end_object(w);
    listing_object_end(&l);
    snprintf(title, sizeof(title), "Checkpoint Download: %s", r->path);
    return listing_print_one(&l, title);
}

static void warn_if_incomplete(const char *dir)
{
    char marker[PATH_SIZE + 32];
    snprintf(marker, sizeof(marker), "%s/checkpoint_complete", dir);
    if (!exists(marker))
        out_say("warning: the archive has no checkpoint_complete, so it may not be whole");
}

static int download(struct api *a, const struct request *r, const struct places *p)
{
    struct stat st = { 0 };
    int status = fetch(a, r, p);
    if (status != EXIT_OK)
        return status;
    stat(p->archive, &st);
    if (r->no_extract)
        return report(r, p->archive, (int64_t)st.st_size);
    status = unpack(p);
    if (!r->keep_archive)
        unlink(p->archive);
    if (status != EXIT_OK)
        return status;
    warn_if_incomplete(p->target);
    return report(r, p->target, (int64_t)st.st_size);
}

int cmd_checkpoint_download(int argc, char **argv)
{
    struct request r = { 0 };
    const struct opt opts[] = {
        { "output", 'o', OPT_STRING, "DIR", "folder to put it in (default: this one)", &r.output,
          NULL },
        { "force", 0, OPT_FLAG, NULL, "replace what is there already", &r.force, NULL },
        { "keep-archive", 0, OPT_FLAG, NULL, "keep the tar file too", &r.keep_archive, NULL },
        { "no-extract", 0, OPT_FLAG, NULL, "only the tar file", &r.no_extract, NULL },
    };
    const struct opt_arg args[] = { { "CHECKPOINT_PATH", &r.path, false, NULL } };
    const struct opt_spec spec = {
        "checkpoint download",
        "Fetch a checkpoint and unpack it.",
        opts,
        sizeof(opts) / sizeof(opts[0]),
        args,
        1,
        "tinker checkpoint download tinker://RUN_ID/sampler_weights/final -o models"
    };
    struct places p;
    struct api a;
    tinker_error err;
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !api_check_path(r.path, &status))
        return status;
    if (!name_places(&r, &p))
        return out_fail(EXIT_USAGE, NULL, "the path is too long");
    const char *made = r.no_extract ? p.archive : p.target;
    if (exists(made) && !r.force)
        return out_fail(EXIT_IO, "Use --force to replace it.", "Target %s already exists: %s",
                        r.no_extract ? "file" : "directory", made);
    if (r.output && *r.output && os_make_dirs(r.output, &err) != TINKER_OK)
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    if (!api_open(&a, &status))
        return status;
    status = download(&a, &r, &p);
    api_close(&a);
    return status;
}
