/* checkpoint.c - see checkpoint.h.
 *
 * Life of a directory: files written and synced, marker written, directory and parent synced;
 * then the store's transaction names it.  Removal is the reverse: the record goes and is synced,
 * then the marker, then the files.  At any moment of a crash either no record names the
 * directory, and checkpoint_clean() removes it, or it is complete. */
#include "server/store/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/os.h"
#include "base/rand.h"
#include "base/sha.h"
#include "wire/path.h"

void checkpoint_path(const struct server *s, const char *dir, char *out)
{
    snprintf(out, CHECKPOINT_PATH, "%s/%s", s->checkpoints, dir);
}

/* The marker says that all files are there: it is written last and removed first. */
enum { MARKER_PATH = CHECKPOINT_PATH + 32 };

static void marker_path(const char *path, char *out)
{
    snprintf(out, MARKER_PATH, "%s/checkpoint_complete", path);
}

bool checkpoint_is_complete(const struct server *s, const char *dir)
{
    char path[CHECKPOINT_PATH], marker[MARKER_PATH];
    checkpoint_path(s, dir, path);
    marker_path(path, marker);
    return access(marker, F_OK) == 0;
}

/* Links and directories are passed over: nothing that is sent or counted may lie outside. */
tinker_status checkpoint_each_file(const char *path, checkpoint_file_fn *fn, void *state,
                                   tinker_error *err)
{
    DIR *d = opendir(path);
    if (!d)
        return err_errno(err, "open", path);
    tinker_status status = TINKER_OK;
    struct dirent *e;
    while (status == TINKER_OK && (e = readdir(d)) != NULL) {
        char name[CHECKPOINT_PATH + 300];
        struct stat st;
        snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        if (lstat(name, &st) == 0 && S_ISREG(st.st_mode))
            status = fn(name, e->d_name, &st, state, err);
    }
    closedir(d);
    return status;
}

/* checkpoint_each_file() callback: sum up the sizes. */
static tinker_status add_size(const char *path, const char *name, const struct stat *st,
                              void *state, tinker_error *err)
{
    (void)path, (void)name, (void)err;
    *(int64_t *)state += st->st_size;
    return TINKER_OK;
}

tinker_status checkpoint_write(struct server *s, const tinker_adapter *a, const char *base_name,
                               int flags, char *dir, int64_t *size_bytes, tinker_error *err)
{
    char path[CHECKPOINT_PATH], marker[MARKER_PATH];
    uint8_t id[16];
    if (rand_os(id, sizeof(id)) != 0)
        return err_set(err, TINKER_ESTATE, "no randomness from the system");
    hex_encode(id, sizeof(id), dir);
    checkpoint_path(s, dir, path);
    if (mkdir(path, 0700) != 0)
        return err_errno(err, "create", path);
    *size_bytes = 0;
    /* The engine syncs each file that it writes. */
    tinker_status status = tinker_adapter_save(a, path, base_name, flags, err);
    marker_path(path, marker);
    if (status == TINKER_OK)
        status = os_write_file(marker, "", 0, err);
    /* The names in the directory, then the name of the directory. */
    if (status == TINKER_OK)
        status = os_sync_dir(path, err);
    if (status == TINKER_OK)
        status = os_sync_dir(s->checkpoints, err);
    if (status == TINKER_OK)
        status = checkpoint_each_file(path, add_size, size_bytes, err);
    if (status != TINKER_OK)
        checkpoint_discard(s, dir);
    return status;
}

void checkpoint_discard(struct server *s, const char *dir)
{
    char path[CHECKPOINT_PATH], marker[MARKER_PATH];
    tinker_error err;
    checkpoint_path(s, dir, path);
    marker_path(path, marker);
    unlink(marker); /* first: a download that runs now must notice */
    if (os_remove_tree(path, &err) != TINKER_OK)
        log_line(s->log, LOG_WARNING, "%s", err.message);
}

/* A power failure may bring back a record whose deletion is not on the disk yet, and with it the
 * need for the weights: sync first.  If that fails the files stay until the next start. */
void checkpoint_remove(struct server *s, const char *dir)
{
    tinker_error err;
    if (!dir)
        return;
    if (store_sync(s->store, &err) == TINKER_OK)
        checkpoint_discard(s, dir);
    else
        log_line(s->log, LOG_WARNING, "%s", err.message);
}

void checkpoint_release(struct server *s, const char *dir)
{
    bool used = true;
    tinker_error err;
    if (!dir)
        return;
    /* Copies of a checkpoint share its directory. */
    if (store_dir_in_use(s->store, dir, &used, &err) != TINKER_OK)
        log_line(s->log, LOG_WARNING, "%s", err.message);
    else if (!used)
        checkpoint_remove(s, dir);
}

void checkpoint_drop_hidden(struct server *s, const char *model_id, size_t keep)
{
    struct arena arena;
    struct store_checkpoint *list;
    size_t n;
    arena_init(&arena, 64 << 20);
    if (store_hidden_checkpoints(s->store, model_id, &arena, &list, &n, NULL) != TINKER_OK)
        n = 0;
    /* All records first, then all files: checkpoint_remove() syncs only once for all of them. */
    for (size_t i = keep; i < n; i++)
        if (store_delete_checkpoint(s->store, model_id, STORE_SAMPLER, list[i].name, NULL) !=
            TINKER_OK)
            list[i].dir = NULL;
    for (size_t i = keep; i < n; i++)
        checkpoint_remove(s, list[i].dir);
    arena_clear(&arena);
}

/* Is it a name that checkpoint_write() or checkpoint_tar() gives?  Anything else in the directory
 * belongs to somebody else and is not removed. */
static bool is_own_name(const char *name)
{
    size_t n = strspn(name, "0123456789abcdef");
    return (n == CHECKPOINT_DIR - 1 && !name[n]) || strncmp(name, "tar.", 4) == 0;
}

tinker_status checkpoint_clean(struct server *s, tinker_error *err)
{
    DIR *d = opendir(s->checkpoints);
    if (!d)
        return err_errno(err, "open", s->checkpoints);
    tinker_status status = TINKER_OK;
    struct dirent *e;
    while (status == TINKER_OK && (e = readdir(d)) != NULL) {
        bool used = true; /* when in doubt, keep it */
        if (!is_own_name(e->d_name))
            continue;
        status = store_dir_in_use(s->store, e->d_name, &used, err);
        if (status == TINKER_OK && !used) {
            log_line(s->log, LOG_INFO, "removing unfinished weights %s", e->d_name);
            checkpoint_remove(s, e->d_name);
        }
    }
    closedir(d);
    return status;
}

tinker_status checkpoint_set_aside(struct server *s, tinker_error *err)
{
    char aside[CHECKPOINT_PATH], path[CHECKPOINT_PATH], marker[MARKER_PATH];
    bool complete = false; /* is any? */
    DIR *d = opendir(s->checkpoints);
    for (struct dirent *e; d && !complete && (e = readdir(d)) != NULL;) {
        checkpoint_path(s, e->d_name, path);
        marker_path(path, marker);
        complete = is_own_name(e->d_name) && access(marker, F_OK) == 0;
    }
    if (d)
        closedir(d);
    if (!complete)
        return TINKER_OK;
    /* The time makes the name unique; the user may move the weights back. */
    snprintf(aside, sizeof(aside), "%s.%lld", s->checkpoints,
             (long long)(clock_wall_ns(s->clock) / 1000000000));
    if (rename(s->checkpoints, aside) != 0)
        return err_errno(err, "rename", s->checkpoints);
    log_line(s->log, LOG_WARNING, "the database is new: the weights found here were moved to %s",
             aside);
    return os_make_dirs(s->checkpoints, err);
}

/* ---- single files --------------------------------------------------------------------- */

enum { FILES_MAX = 64 }; /* an adapter has a handful */

struct listing {
    struct arena *arena;
    const char **names;
    size_t n;
};

/* checkpoint_each_file() callback: collect the names. */
static tinker_status add_name(const char *path, const char *name, const struct stat *st,
                              void *state, tinker_error *err)
{
    struct listing *l = state;
    (void)path, (void)st;
    char *copy = l->n < FILES_MAX ? arena_strdup(l->arena, name) : NULL;
    if (!copy)
        return err_nomem(err, "files of a checkpoint");
    l->names[l->n++] = copy;
    return TINKER_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *const *checkpoint_files(struct server *s, const char *dir, struct arena *arena,
                                    size_t *n, tinker_error *err)
{
    char path[CHECKPOINT_PATH];
    struct listing l = { arena, arena_array(arena, FILES_MAX, sizeof(*l.names)), 0 };
    checkpoint_path(s, dir, path);
    if (!l.names) {
        err_nomem(err, "files of a checkpoint");
        return NULL;
    }
    if (checkpoint_each_file(path, add_name, &l, err) != TINKER_OK)
        return NULL;
    /* readdir() has no order; the listing should not depend on the file system. */
    qsort(l.names, l.n, sizeof(*l.names), compare_names);
    *n = l.n;
    return l.names;
}

tinker_status checkpoint_open_file(struct server *s, const char *dir, const char *name, int *fd,
                                   uint64_t *size, tinker_error *err)
{
    char path[CHECKPOINT_PATH], file[CHECKPOINT_PATH + 300];
    struct stat st;
    *fd = -1;
    /* The name comes from a URL: one segment, never ".." or a path. */
    if (strchr(name, '/') || wire_check_segment("the name of a file", name, strlen(name), err))
        return err_set(err, TINKER_EINVAL, "a checkpoint has no file of that name");
    checkpoint_path(s, dir, path);
    if ((size_t)snprintf(file, sizeof(file), "%s/%s", path, name) >= sizeof(file))
        return err_set(err, TINKER_EINVAL, "a checkpoint has no file of that name");
    /* No links: the file must be the one in the directory. */
    *fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0)
        return err_errno(err, "open", file);
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *size = (uint64_t)st.st_size;
        return TINKER_OK;
    }
    close(*fd);
    *fd = -1;
    return err_set(err, TINKER_ESTATE, "%s is not a regular file", file);
}

tinker_status checkpoint_check_local(const char *path, tinker_error *err)
{
    DIR *d = opendir(path);
    if (!d)
        return err_errno(err, "open", path);
    tinker_status status = TINKER_OK;
    for (struct dirent *e; status == TINKER_OK && (e = readdir(d)) != NULL;) {
        struct stat st;
        /* Links are followed: the directory is the user's, and tools link weights. */
        if (fstatat(dirfd(d), e->d_name, &st, 0) == 0 && !S_ISREG(st.st_mode) &&
            !S_ISDIR(st.st_mode))
            status = err_set(err, TINKER_EINVAL, "%s/%s is not a regular file", path, e->d_name);
    }
    closedir(d);
    return status;
}
