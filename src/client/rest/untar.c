/* untar.c - the archive of a checkpoint into a directory, without trust.
 *
 * base/tar.c reads the format, plain or in gzip, and refuses links, devices and names that lead
 * out of the directory.  Here a name that comes twice, or a gzip file that unpacks to far more
 * than its size, refuses the whole archive, too; nothing is left behind then.  The directory
 * appears under its name when it is complete. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tinker/rest.h>
#include <unistd.h>
#include "base/err.h"
#include "base/os.h"
#include "base/rand.h"
#include "base/tar.h"
#include "client/rest/gunzip.h"

enum {
    CHUNK = 1 << 16,
    /* What may come of gzip: weights hardly get smaller, but a new optimizer is all zeros. */
    UNPACKED_FREE = 64 << 20,
    UNPACKED_RATIO = 100
};

struct untar {
    const unsigned char *p; /* the file */
    size_t n;
    size_t at;         /* in a plain file */
    struct gunzip *gz; /* what it is packed in, NULL: plain */
    const char *dir;   /* under construction */
    struct tar_reader tar;
    unsigned char chunk[CHUNK];
};

/* The tar_read_fn of both kinds of file. */
static tinker_status read_unpacked(void *out, size_t n, size_t *got, void *state, tinker_error *err)
{
    struct untar *u = state;
    if (u->gz)
        return gunzip_read(u->gz, out, n, got, err);
    *got = n < u->n - u->at ? n : u->n - u->at;
    if (*got)
        memcpy(out, u->p + u->at, *got);
    u->at += *got;
    return TINKER_OK;
}

/* write() may take less than it was given, or be interrupted by a signal. */
static tinker_status write_chunk(int fd, const char *path, const unsigned char *p, size_t n,
                                 tinker_error *err)
{
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno != EINTR)
            return err_errno(err, "write", path);
        if (done > 0) {
            p += done;
            n -= (size_t)done;
        }
    }
    return TINKER_OK;
}

/* The data of an entry into a new file; O_EXCL refuses a name that came before. */
static tinker_status write_file(struct untar *u, const char *path, uint64_t n, tinker_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(err, "create", path);
    tinker_status s = TINKER_OK;
    for (size_t part; n > 0 && s == TINKER_OK; n -= part) {
        part = n < CHUNK ? (size_t)n : CHUNK;
        s = tar_read(&u->tar, u->chunk, part, err);
        if (s == TINKER_OK)
            s = write_chunk(fd, path, u->chunk, part, err);
    }
    if (s == TINKER_OK && fsync(fd) != 0)
        s = err_errno(err, "write", path);
    close(fd);
    return s;
}

/* Names were checked by tar_next(): relative, without "..", so they stay below dir. */
static tinker_status unpack_file(const struct os_map *map, const char *dir, tinker_error *err)
{
    struct untar *u = calloc(1, sizeof(*u));
    if (!u)
        return err_nomem(err, "archive");
    u->p = (const unsigned char *)map->data;
    u->n = map->len;
    u->dir = dir;
    tinker_status s = TINKER_OK;
    /* A bound for what comes of gzip: a few kilobytes can unpack to a full disk. */
    if (gunzip_is(u->p, u->n)) {
        u->gz = gunzip_open(u->p, u->n, UNPACKED_FREE + UNPACKED_RATIO * (uint64_t)u->n, err);
        s = u->gz ? TINKER_OK : TINKER_ENOMEM;
    }
    if (s == TINKER_OK)
        s = os_make_dirs(dir, err);
    tar_reader_init(&u->tar, read_unpacked, u, u->gz ? TAR_LENGTH_UNKNOWN : u->n);
    bool end = false;
    struct tar_entry e;
    while (s == TINKER_OK && !end) {
        s = tar_next(&u->tar, &e, &end, err);
        if (s != TINKER_OK || end || !e.name[0]) /* "": the directory itself, "./" */
            continue;
        char path[4096], parent[4096];
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", u->dir, e.name) >= sizeof(path)) {
            s = err_set(err, TINKER_EINVAL, "a name is too long: %s", e.name);
            continue;
        }
        /* Archives need not list the directories of their files. */
        snprintf(parent, sizeof(parent), "%s", path);
        *strrchr(parent, '/') = '\0';
        s = os_make_dirs(e.is_dir ? path : parent, err);
        if (s == TINKER_OK && !e.is_dir)
            s = write_file(u, path, e.size, err);
    }
    gunzip_close(u->gz);
    free(u);
    return s;
}

tinker_status tinker_archive_extract(const char *file, const char *dir, tinker_error *err)
{
    struct os_map map;
    struct stat st;
    char part[4096], uuid[37];
    tinker_error mine;
    if (!file || !dir || !*dir)
        return err_set(err, TINKER_EINVAL, "no archive, or no directory to unpack it to");
    if (lstat(dir, &st) == 0)
        return err_set(err, TINKER_EINVAL, "%s exists", dir);
    /* Unpack beside the target and rename at the end: dir is complete or not there. */
    rand_uuid(uuid);
    if ((size_t)snprintf(part, sizeof(part), "%s.part.%.8s", dir, uuid) >= sizeof(part))
        return err_set(err, TINKER_EINVAL, "the name of the directory is too long");
    tinker_status s = os_map_open(&map, file, err);
    if (s != TINKER_OK)
        return s;
    s = unpack_file(&map, part, &mine);
    os_map_close(&map);
    if (s == TINKER_OK && rename(part, dir) != 0)
        s = err_errno(&mine, "rename to", dir);
    if (s == TINKER_OK)
        return s;
    os_remove_tree(part, NULL);
    err_prefix(&mine, "%s", file);
    if (err)
        *err = mine;
    return s;
}
