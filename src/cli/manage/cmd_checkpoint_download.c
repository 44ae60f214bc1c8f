/* cmd_checkpoint_download.c - `tinker checkpoint download`: the archive, unpacked, or the files.
 *
 * External weights come as files.  Everything else comes as an archive; a service that has none any
 * more exports training state as external weights first.
 *
 * The archive is fetched into a hidden file beside the target and unpacked in a hidden
 * directory, from where it takes the target's name when it is complete; an old target goes only
 * then.  Whatever ends the program, short of kill -9, leaves neither of the two behind. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <tinker/sampling.h>
#include "base/array.h"
#include "base/os.h"
#include "cli/service/api.h"
#include "cli/command.h"
#include "cli/output/fmt.h"
#include "cli/args/opt.h"
#include "cli/output/out.h"
#include "cli/output/progress.h"
#include "cli/output/rows.h"
#include "cli/weights/adapter_dir.h"

enum { PATH_SIZE = 4096, NAME_SIZE = 1024, FOLDER_SIZE = PATH_SIZE - NAME_SIZE - 64 };

static const char disk_hint[] = "Is there room on the disk, and may you write there?";

/* The options as given. */
struct request {
    const char *path, *output;
    const char *format, *base; /* one of formats; NULL: what the checkpoint says */
    bool force, keep_archive, no_extract;
    tinker_checkpoint_kind kind;
    bool as_files; /* what came are files, not an archive */
};

static const char *const formats[] = { "peft", "tinker", NULL };

/* Where everything goes. `fresh` and `old` are inside the hidden directory `work`, on the same
 * file system as the target, so that rename() is atomic. */
struct places {
    char target[PATH_SIZE], archive[PATH_SIZE];
    char work[PATH_SIZE], fresh[PATH_SIZE], old[PATH_SIZE]; /* the latter two in the first */
};

/* The prefix for names in dir: "models/" for "./models//", "" for ".". false: it is too long. */
static bool normalize_folder(const char *dir, char out[FOLDER_SIZE])
{
    size_t n = 0, part;
    if (*dir == '/')
        out[n++] = '/';
    for (dir += strspn(dir, "/"); *dir; dir += part + strspn(dir + part, "/")) {
        part = strcspn(dir, "/");
        if (part == 1 && *dir == '.')
            continue;
        if (part + 2 > FOLDER_SIZE - n)
            return false;
        memcpy(out + n, dir, part);
        n += part;
        out[n++] = '/';
    }
    out[n] = 0;
    return true;
}

/* The archive is only a means unless the user asked to keep it: then it is a hidden file. */
static bool hides_archive(const struct request *r)
{
    return !r->keep_archive && !r->no_extract;
}

/* tinker://run/weights/final is kept in run_weights_final, as the official program names it.
 * The process id keeps two downloads of one checkpoint apart. */
static bool name_paths(const struct request *r, struct places *p)
{
    char folder[FOLDER_SIZE], name[NAME_SIZE];
    if (!normalize_folder(r->output ? r->output : "", folder) ||
        (size_t)snprintf(name, sizeof(name), "%s", r->path + strlen("tinker://")) >= sizeof(name))
        return false;
    for (char *s = name; *s; s++)
        *s = *s == '/' ? '_' : *s;
    bool hidden = hides_archive(r);
    snprintf(p->target, PATH_SIZE, "%s%s", folder, name);
    snprintf(p->archive, PATH_SIZE, "%s%s%s.tar", folder, hidden ? "." : "", name);
    snprintf(p->work, PATH_SIZE, "%s.%s.%ld", folder, name, (long)getpid());
    snprintf(p->fresh, PATH_SIZE, "%s.%s.%ld/new", folder, name, (long)getpid());
    snprintf(p->old, PATH_SIZE, "%s.%s.%ld/old", folder, name, (long)getpid());
    return true;
}

/* lstat(): a dangling link is in the way, too. */
static bool path_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Called by the library's thread. 0: go on. */
static int on_progress(int64_t done, int64_t total, void *state)
{
    progress_at(state, done, total);
    return 0;
}

/* Does the status say that the service makes no archives?  404 may also mean that there is no such
 * checkpoint, which another call tells. */
static bool has_no_archives(struct api *a, const char *path, int http_status)
{
    tinker_error err;
    if (http_status != 404)
        return http_status == 405 || http_status == 410 || http_status == 501;
    tinker_future *f = tinker_rest_get_weights_info(a->rest, path, &err);
    bool there = f && api_await(f, &err) == TINKER_OK;
    tinker_future_free(f);
    return there;
}

/* Fetch the archive into p->archive. The library resumes, retries and checks; here is the bar
 * and the exit code: 9 for the local disk, else as for any request. */
static int fetch_archive(struct api *a, const struct request *r, const struct places *p,
                         bool *no_archives)
{
    tinker_download_options o = TINKER_DOWNLOAD_OPTIONS_INIT;
    static struct progress bar; /* the library's thread may be about to tell it something */
    tinker_error err;
    int status = EXIT_OK;
    progress_start(&bar, "Downloading archive");
    o.force = 1; /* a hidden file that was left behind, or one that was looked for before */
    o.progress = on_progress;
    o.progress_state = &bar;
    tinker_future *f = tinker_rest_download_checkpoint(a->rest, r->path, p->archive, &o, &err);
    bool ok = f && api_await_download(f, &err) == TINKER_OK;
    progress_end(&bar);
    if (!ok && err.status == TINKER_ESTATE) /* of the file system */
        status = out_fail(EXIT_IO, disk_hint, "Failed to save checkpoint: %s", err.message);
    else if (!ok && has_no_archives(a, r->path, err.http_status))
        *no_archives = true;
    else if (!ok)
        status = api_fail(&err, f);
    tinker_future_free(f);
    return status;
}

/* Fetch the files of external weights into p->fresh. */
static int fetch_files(struct api *a, const char *path, const struct places *p)
{
    tinker_download_options o = TINKER_DOWNLOAD_OPTIONS_INIT;
    static struct progress bar;
    tinker_error err;
    int status = EXIT_OK;
    progress_start(&bar, "Downloading files");
    o.progress = on_progress;
    o.progress_state = &bar;
    tinker_future *f = tinker_rest_download_files(a->rest, path, p->fresh, &o, &err);
    bool ok = f && api_await_download(f, &err) == TINKER_OK;
    progress_end(&bar);
    if (!ok && err.status == TINKER_ESTATE)
        status = out_fail(EXIT_IO, disk_hint, "Failed to save checkpoint: %s", err.message);
    else if (!ok)
        status = api_fail(&err, f);
    tinker_future_free(f);
    return status;
}

enum { EXPORT_TTL_S = 3600 };

/* Training state of a service without archives: load it, export it as external weights, which
 * expire by themselves, fetch those, and delete them. */
static int fetch_by_export(struct api *a, const struct request *r, const struct places *p)
{
    static const tinker_named_string created_by[] = { { "created_by",
                                                        "tinker checkpoint download" } };
    tinker_from_state_options from = TINKER_FROM_STATE_OPTIONS_INIT;
    tinker_save_options save = TINKER_SAVE_OPTIONS_INIT;
    tinker_error err;
    int status = EXIT_OK;
    out_say("Exporting %s as external weights (this starts a training session on the checkpoint's "
            "base model)...",
            r->path);
    from.user_metadata = created_by;
    from.n_user_metadata = 1;
    save.ttl_seconds = EXPORT_TTL_S;
    tinker_future *f = api_wait(tinker_service_request_from_state(a->service, r->path, &from, &err),
                                &err, &status);
    tinker_training *t = f ? tinker_future_take_training(f) : NULL;
    tinker_future_free(f);
    f = t ? api_wait(tinker_training_save_external(t, "download", &save, &err), &err, &status)
          : NULL;
    char *path = f ? strdup(tinker_future_saved_path(f)) : NULL;
    tinker_future_free(f);
    if (path)
        status = fetch_files(a, path, p);
    /* It expires anyway: that it could not be deleted is no failure. */
    f = path ? tinker_rest_delete_checkpoint(a->rest, path, &err) : NULL;
    if (path && (!f || api_await(f, &err) != TINKER_OK))
        out_say("note: the export could not be deleted and expires in an hour: %s", err.message);
    tinker_future_free(f);
    f = tinker_service_finish(
        a->service, status == EXIT_OK ? TINKER_FINISH_SUCCESS : TINKER_FINISH_ERRORED, NULL, &err);
    if (f)
        api_await(f, &err);
    tinker_future_free(f);
    tinker_training_free(t);
    free(path);
    return status;
}

/* ---- unpacking ----------------------------------------------------------------------------- */

enum { FINISHED = SIGUSR1 }; /* what the thread that unpacks tells the one that waits */

struct unpacking {
    const struct places *p;
    pthread_t waiter;
    tinker_status status;
    tinker_error err;
};

/* Sends FINISHED to the waiting thread instead of setting a flag, because that thread sleeps in
 * sigwait(). */
static void *run_unpack_thread(void *arg)
{
    struct unpacking *u = arg;
    u->status = tinker_archive_extract(u->p->archive, u->p->fresh, &u->err);
    pthread_kill(u->waiter, FINISHED);
    return NULL;
}

/* A thread in the middle of tinker_archive_extract() cannot be canceled safely. With a file
 * size limit of 0 its next write fails with EFBIG (main() ignores SIGXFSZ), so it comes back on
 * its own. */
static void stop_unpacking(pthread_t thread)
{
    struct rlimit limit = { 0 };
    bool known = getrlimit(RLIMIT_FSIZE, &limit) == 0;
    struct rlimit none = limit;
    none.rlim_cur = 0;
    if (known)
        setrlimit(RLIMIT_FSIZE, &none);
    pthread_join(thread, NULL);
    if (known)
        setrlimit(RLIMIT_FSIZE, &limit);
}

/* Unpack in a thread while this one waits for signals, which the library does not do. Returns
 * the signal that came before the end, or 0. Without a thread it unpacks here and signals end
 * it late. */
static int extract_archive(struct unpacking *u)
{
    static const struct timespec now = { 0 };
    sigset_t set = api_stopping_signals(), finished, old;
    pthread_t thread;
    int number;
    sigemptyset(&finished);
    sigaddset(&finished, FINISHED);
    sigaddset(&set, FINISHED);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    u->waiter = pthread_self();
    bool apart = pthread_create(&thread, NULL, run_unpack_thread, u) == 0;
    if (!apart)
        run_unpack_thread(u);
    while (sigwait(&set, &number) != 0)
        continue;
    if (apart && number != FINISHED)
        stop_unpacking(thread);
    else if (apart)
        pthread_join(thread, NULL);
    /* If a stop signal came first, FINISHED may be pending still: take it off. */
    sigtimedwait(&finished, NULL, &now); /* it has told so since */
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return number == FINISHED ? 0 : number;
}

/* Swap in two renames: target to old, fresh to target. If the second fails the first is undone,
 * so the user never ends up with neither. false: errno says why. */
static bool move_into_place(const struct places *p)
{
    bool replace = path_exists(p->target);
    if (replace && rename(p->target, p->old) != 0)
        return false;
    if (rename(p->fresh, p->target) == 0)
        return true;
    int why = errno;
    if (replace)
        rename(p->old, p->target);
    errno = why;
    return false;
}

/* The unpacked files as PEFT reads them.  The service knows the base model better than the files,
 * which may name a directory of its own machine.  A checkpoint that is no adapter stays as it is. */
static int convert_to_peft(struct api *a, const struct request *r, const struct places *p)
{
    struct adapter_dir dir;
    char config[PATH_SIZE + 32];
    tinker_error err;
    snprintf(config, sizeof(config), "%s/adapter_config.json", p->fresh);
    if (!path_exists(config)) {
        out_say("note: the checkpoint has no adapter_config.json and is kept as it is");
        return EXIT_OK;
    }
    int status = adapter_dir_open(&dir, p->fresh);
    if (status != EXIT_OK)
        return status;
    tinker_future *f = tinker_rest_get_weights_info(a->rest, r->path, &err);
    if (f && api_await(f, &err) == TINKER_OK)
        snprintf(dir.base, sizeof(dir.base), "%s", tinker_future_weights_info(f)->base_model);
    tinker_future_free(f);
    status = adapter_dir_to_peft(&dir, r->base);
    adapter_dir_close(&dir);
    return status;
}

/* The old target is removed only after the new one is in place. On failure the hidden directory
 * is removed, but an old target inside it is not. */
static int keep_fresh(const struct places *p, int status)
{
    if (status == EXIT_OK && !move_into_place(p))
        status = out_fail(EXIT_IO, NULL, "cannot make %s: %s", p->target, strerror(errno));
    os_remove_tree(p->fresh, NULL);
    if (status == EXIT_OK)
        os_remove_tree(p->old, NULL);
    rmdir(p->work);
    return status;
}

static int make_work(const struct places *p)
{
    return mkdir(p->work, 0700) == 0
               ? EXIT_OK
               : out_fail(EXIT_IO, NULL, "cannot make %s: %s", p->work, strerror(errno));
}

static int unpack_archive(struct api *a, const struct request *r, const struct places *p)
{
    struct unpacking u = { .p = p };
    int status = make_work(p);
    if (status != EXIT_OK)
        return status;
    int number = extract_archive(&u);
    if (number) {
        os_remove_tree(p->work, NULL);
        out_say("Interrupted.");
        return 128 + number;
    }
    /* The local disk, or what the service sent. */
    if (u.status == TINKER_ESTATE)
        status = out_fail(EXIT_IO, disk_hint, "Failed to extract archive: %s", u.err.message);
    else if (u.status != TINKER_OK)
        status = out_fail(EXIT_FAILED, "Download it again; the archive may be damaged.",
                          "Failed to extract archive: %s", u.err.message);
    else if (strcmp(r->format, formats[0]) == 0)
        status = convert_to_peft(a, r, p);
    return keep_fresh(p, status);
}

/* ---- the command --------------------------------------------------------------------------- */

/* A table of three properties, or the JSON object with checkpoint_path, destination and
 * file_size_bytes. */
static int print_download_report(const struct request *r, const char *where, int64_t size)
{
    struct listing l;
    char text[FMT_TEXT], title[PATH_SIZE], here[PATH_SIZE], whole[2 * PATH_SIZE];
    /* Without --output the official program tells the whole path. */
    if (!r->output && getcwd(here, sizeof(here))) {
        snprintf(whole, sizeof(whole), "%s/%s", strcmp(here, "/") == 0 ? "" : here, where);
        where = whole;
    }
    listing_init(&l, rows_properties, 2);
    rows_property(&l, "Checkpoint Path", r->path);
    rows_property(&l, r->as_files ? "Total Size" : "Archive Size", fmt_size(size, text));
    rows_property(&l, r->no_extract || r->as_files ? "Saved to" : "Extracted to", where);
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

/* An archive of a complete checkpoint has a file checkpoint_complete. */
static void warn_if_incomplete(const char *dir)
{
    char marker[PATH_SIZE + 32];
    snprintf(marker, sizeof(marker), "%s/checkpoint_complete", dir);
    if (!path_exists(marker))
        out_say("warning: the archive has no checkpoint_complete, so it may not be whole");
}

/* The bytes of the files in a directory; those below it are few and do not count. */
static int64_t sum_sizes(const char *dir)
{
    char path[2 * PATH_SIZE];
    struct stat st;
    int64_t sum = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (lstat(path, &st) == 0 && S_ISREG(st.st_mode))
            sum += (int64_t)st.st_size;
    }
    if (d)
        closedir(d);
    return sum;
}

/* External weights, or an export of training state. */
static int download_files(struct api *a, struct request *r, const struct places *p, int64_t *size)
{
    if (r->no_extract || r->keep_archive)
        return out_fail(EXIT_USAGE, "Leave out --no-extract and --keep-archive.",
                        "The service gives files of this checkpoint, and no archive.");
    if (r->kind == TINKER_CHECKPOINT_SAMPLER)
        return out_fail(EXIT_FAILED,
                        "Save external weights of the run (save_weights_external) and download "
                        "those, or download training state.",
                        "The service has no archives of sampler weights any more: %s", r->path);
    int status = make_work(p);
    if (status != EXIT_OK)
        return status;
    r->as_files = true;
    status = r->kind == TINKER_CHECKPOINT_EXTERNAL ? fetch_files(a, r->path, p)
                                                   : fetch_by_export(a, r, p);
    if (status == EXIT_OK)
        *size = sum_sizes(p->fresh);
    return keep_fresh(p, status);
}

/* Fetch, then unpack. Signals are blocked here except inside waits, where they end what is
 * under way and nothing is left behind. */
static int download_checkpoint(struct api *a, struct request *r, const struct places *p,
                               int64_t *size)
{
    struct stat st = { 0 };
    bool no_archives = r->kind == TINKER_CHECKPOINT_EXTERNAL;
    int status = no_archives ? EXIT_OK : fetch_archive(a, r, p, &no_archives);
    if (status != EXIT_OK)
        return status;
    if (no_archives)
        return download_files(a, r, p, size);
    /* The size for the report; unpacking may delete the archive. */
    stat(p->archive, &st);
    *size = (int64_t)st.st_size;
    if (r->no_extract)
        return EXIT_OK;
    status = unpack_archive(a, r, p);
    if (!r->keep_archive)
        unlink(p->archive);
    return status;
}

/* api_close() comes before the signals are allowed again: it waits for the library's threads,
 * which remove partial files. */
static int download_and_close(struct api *a, struct request *r, const struct places *p,
                              int64_t *size)
{
    sigset_t set = api_stopping_signals(), old;
    sigprocmask(SIG_BLOCK, &set, &old);
    int status = download_checkpoint(a, r, p, size);
    api_close(a); /* the library removes what it has begun, and nothing new comes */
    if (status != EXIT_OK && hides_archive(r))
        unlink(p->archive);
    sigprocmask(SIG_SETMASK, &old, NULL);
    return status;
}

/* Refuse before the download, not after gigabytes of it. --force replaces what is there. */
static bool check_target_free(const struct request *r, const struct places *p, int *status)
{
    bool archive = (r->keep_archive || r->no_extract) && path_exists(p->archive);
    bool target = !r->no_extract && path_exists(p->target);
    if (r->force || (!archive && !target))
        return true;
    *status = out_fail(EXIT_IO, "Use --force to replace it.", "Target %s already exists: %s",
                       target ? "directory" : "file", target ? p->target : p->archive);
    return false;
}

/* dir without its last name: "a/b" for "a/b/c/". */
static void cut_last_name(char *dir)
{
    size_t n = strlen(dir);
    while (n > 0 && dir[n - 1] == '/')
        n--;
    while (n > 0 && dir[n - 1] != '/')
        n--;
    while (n > 0 && dir[n - 1] == '/')
        n--;
    dir[n] = 0;
}

/* Create the folder like mkdir -p. *before is the length of the part of the path that existed
 * before, for remove_output_folder(). */
static bool make_output_folder(const char *dir, size_t *before, tinker_error *err)
{
    char part[PATH_SIZE];
    snprintf(part, sizeof(part), "%s", dir);
    while (*part && !path_exists(part))
        cut_last_name(part);
    *before = strlen(part);
    return os_make_dirs(dir, err) == TINKER_OK;
}

/* After a failure, remove the folders that were created and are still empty. */
static void remove_output_folder(const char *dir, size_t before)
{
    char part[PATH_SIZE];
    snprintf(part, sizeof(part), "%s", dir);
    while (strlen(part) > before && rmdir(part) == 0)
        cut_last_name(part);
}

/* "last" names folders, too, so it is looked up before anything else. */
static bool find_last(struct request *r, char path[NAME_SIZE], int *status)
{
    struct api a;
    if (strcmp(r->path, "last") != 0)
        return true;
    char *newest = NULL;
    if (api_open(&a, status)) {
        newest = api_find_newest(&a, "last", TINKER_CHECKPOINT_SAMPLER, status);
        api_close(&a);
    }
    if (newest)
        snprintf(path, NAME_SIZE, "%s", newest);
    r->path = path;
    free(newest);
    return newest != NULL;
}

/* Exit codes: 9 for anything on the local disk, a target that exists included; 128 + signal
 * when interrupted; else as for any request. */
int cmd_checkpoint_download(int argc, char **argv)
{
    struct request r = { .format = formats[0] };
    const struct opt opts[] = {
        { .name = "format",
          .kind = OPT_CHOICE,
          .value = "FORM",
          .help = "peft (default): what PEFT and transformers read; tinker: the files of the "
                  "service",
          .out = &r.format,
          .choices = formats },
        { .name = "base",
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "its base model for peft (default: what the checkpoint says)",
          .out = &r.base },
        { .name = "output",
          .letter = 'o',
          .kind = OPT_STRING,
          .value = "DIR",
          .help = "folder to put it in (default: this one)",
          .out = &r.output },
        { .name = "force",
          .kind = OPT_FLAG,
          .help = "replace what is there already",
          .out = &r.force },
        { .name = "keep-archive",
          .kind = OPT_FLAG,
          .help = "keep the tar file too",
          .out = &r.keep_archive },
        { .name = "no-extract",
          .kind = OPT_FLAG,
          .help = "only the tar file",
          .out = &r.no_extract },
    };
    const struct opt_arg args[] = { { .name = "CHECKPOINT_PATH", .out = &r.path } };
    const struct opt_spec spec = {
        .command = "checkpoint download",
        .about = "Fetch a checkpoint, or last, and unpack it, as an adapter for PEFT.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker checkpoint download tinker://RUN_ID/sampler_weights/final -o models"
    };
    tinker_checkpoint_path parts;
    struct places p;
    struct api a;
    tinker_error err;
    int64_t size = 0;
    size_t before = 0;
    char newest[NAME_SIZE];
    int status;
    if (!opt_parse(&spec, argc, argv, &status) || !find_last(&r, newest, &status) ||
        !api_read_path(r.path, &parts, &status))
        return status;
    r.kind = parts.kind;
    if (!name_paths(&r, &p))
        return out_fail(EXIT_USAGE, NULL, "the path is too long");
    if (!check_target_free(&r, &p, &status))
        return status;
    /* Without -o everything goes into the current directory, which exists. */
    bool folder = r.output && *r.output;
    if (folder && !make_output_folder(r.output, &before, &err))
        return out_fail(EXIT_IO, NULL, "%s", err.message);
    if (api_open(&a, &status))
        status = download_and_close(&a, &r, &p, &size);
    if (status != EXIT_OK) {
        if (folder)
            remove_output_folder(r.output, before);
        return status;
    }
    if (r.no_extract)
        return print_download_report(&r, p.archive, size);
    if (!r.as_files)
        warn_if_incomplete(p.target);
    return print_download_report(&r, p.target, size);
}
