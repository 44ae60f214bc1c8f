/* archive.c - see archive.h.
 *
 * The text of the archive with the large files left out lies in one buffer; each large file is a
 * hole in it, a place where the file's bytes come in between.  So any offset can be read, and a
 * download holds as many descriptors as the checkpoint has large files: one, or two with an
 * optimizer. */
#include "server/store/archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/tar.h"
#include "server/store/checkpoint.h"

enum { HOLES_MAX = 64, SMALL_FILE = 64 * 1024, TEXT_MAX = 16 << 20 };

struct hole {
    int fd;
    uint64_t size;
    size_t at; /* in the text: what comes before it */
};

struct archive {
    struct buf text;
    struct hole holes[HOLES_MAX];
    size_t n_holes;
    struct tar_writer tar;
};

/* The tar_write_fn: state is the text. */
static tinker_status append_text(const void *p, size_t n, void *state, tinker_error *err)
{
    struct buf *text = state;
    buf_append(text, p, n);
    return buf_ok(text) ? TINKER_OK : err_nomem(err, "an archive");
}

/* A small file becomes text: a descriptor is worth more than its bytes. */
static tinker_status add_text(struct archive *a, int fd, const char *path, tinker_error *err)
{
    char block[4096];
    for (;;) {
        ssize_t n = read(fd, block, sizeof(block));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, "read", path);
        if (n == 0)
            return TINKER_OK;
        tinker_status status = tar_write(&a->tar, block, (size_t)n, err);
        if (status != TINKER_OK)
            return status;
    }
}

/* checkpoint_each_file() callback. */
static tinker_status add_file(const char *path, const char *name, const struct stat *st,
                              void *state, tinker_error *err)
{
    struct archive *a = state;
    uint64_t size = (uint64_t)st->st_size;
    tinker_status status = tar_add_file(&a->tar, name, size, (int64_t)st->st_mtime, err);
    if (status != TINKER_OK)
        return status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_errno(err, "open", path);
    if (size > SMALL_FILE && a->n_holes < HOLES_MAX) {
        a->holes[a->n_holes++] = (struct hole){ fd, size, a->text.len };
        tar_skip_data(&a->tar);
        return TINKER_OK;
    }
    status = add_text(a, fd, path, err);
    close(fd);
    return status;
}

/* Everything that can fail with a message happens here, before the first byte is sent: a response
 * that breaks off halfway can only be cut. */
tinker_status archive_open(const struct server *s, const char *dir, struct archive **out,
                           uint64_t *size, tinker_error *err)
{
    char path[CHECKPOINT_PATH];
    struct archive *a = calloc(1, sizeof(*a));
    *out = NULL;
    if (!a)
        return err_nomem(err, "an archive");
    buf_init(&a->text, TEXT_MAX);
    tar_writer_init(&a->tar, append_text, &a->text);
    checkpoint_path(s, dir, path);
    tinker_status status = checkpoint_each_file(path, add_file, a, err);
    if (status == TINKER_OK)
        status = tar_finish(&a->tar, err);
    /* Files that were removed meanwhile are missing: the marker, which goes first, tells. */
    if (status == TINKER_OK && !checkpoint_is_complete(s, dir))
        status = err_set(err, TINKER_ESTATE, "the checkpoint was deleted while it was read");
    if (status != TINKER_OK) {
        archive_free(a);
        return status;
    }
    *size = a->text.len;
    for (size_t i = 0; i < a->n_holes; i++)
        *size += a->holes[i].size;
    *out = a;
    return TINKER_OK;
}

/* pread() leaves no position behind, so a client that asks for a part, or asks twice, gets the
 * right bytes. */
static ssize_t read_file(const struct hole *h, uint64_t at, char *out, size_t max)
{
    uint64_t left = h->size - at;
    ssize_t n;
    do
        n = pread(h->fd, out, left < max ? (size_t)left : max, (off_t)at);
    while (n < 0 && errno == EINTR);
    return n > 0 ? n : -2; /* 0: it has become shorter */
}

/* A linear search: there are one or two holes.  A piece never crosses the border between text and
 * file; the caller comes again for the rest. */
ssize_t archive_read(void *archive, uint64_t at, char *out, size_t max)
{
    const struct archive *a = archive;
    uint64_t before = 0; /* bytes of the files that lie before `at` */
    size_t end = a->text.len;
    for (size_t i = 0; i < a->n_holes; i++) {
        const struct hole *h = &a->holes[i];
        if (at < before + h->at) {
            end = h->at;
            break;
        }
        if (at < before + h->at + h->size)
            return read_file(h, at - before - h->at, out, max);
        before += h->size;
    }
    size_t from = (size_t)(at - before);
    size_t n = from < end ? end - from : 0;
    if (n > max)
        n = max;
    if (n > 0)
        memcpy(out, a->text.data + from, n);
    return (ssize_t)n;
}

void archive_free(void *archive)
{
    struct archive *a = archive;
    if (!a)
        return;
    for (size_t i = 0; i < a->n_holes; i++)
        close(a->holes[i].fd);
    buf_clear(&a->text);
    free(a);
}
