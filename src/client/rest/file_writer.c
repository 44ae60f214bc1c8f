/* file_writer.c - see file_writer.h. */
#include "client/rest/file_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/err.h"

enum { PIECE = 1 << 20, LIMIT = 64 << 20 }; /* a transport may deliver more than was asked for */

struct file_writer {
    struct runtime_job job; /* first member; under way while `busy` */
    struct runtime *rt;
    struct file_writer_owner *owner; /* NULL: freed, the worker is still at it */
    int fd;
    char *part, *file;
    struct buf fill;
    int error; /* errno, 0: none so far */
    bool busy, waiting, finishing;
    /* the worker's while busy, as is fd */
    struct buf out;
    bool last; /* nothing comes after `out`: put it on the disk */
    int failed;
};

/* A descriptor that is still open means that the file was not completed: remove the part. */
static void file_writer_destroy(struct file_writer *s)
{
    if (s->fd >= 0) {
        close(s->fd);
        unlink(s->part);
    }
    buf_clear(&s->fill);
    buf_clear(&s->out);
    free(s->part);
    free(s->file);
    free(s);
}

struct file_writer *file_writer_open(struct runtime *rt, const char *part, const char *file,
                                     struct file_writer_owner *owner, tinker_error *err)
{
    struct file_writer *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "download");
        return NULL;
    }
    /* O_EXCL: a name of our own, so another process cannot make us write into its file. */
    s->rt = rt;
    s->owner = owner;
    s->fd = -1;
    s->part = strdup(part);
    s->file = strdup(file);
    buf_init(&s->fill, LIMIT);
    buf_init(&s->out, LIMIT);
    if (!s->part || !s->file)
        err_nomem(err, "download");
    else if ((s->fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) >= 0)
        return s;
    else
        err_errno(err, "create", part);
    file_writer_destroy(s);
    return NULL;
}

/* ---- on a worker --------------------------------------------------------------------- */

/* write() may take less than it was given, or be interrupted by a signal. */
static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno != EINTR)
            return false;
        if (w > 0) {
            p += w;
            n -= (size_t)w;
        }
    }
    return true;
}

/* The last piece makes the file durable before it gets its name: data (fsync), then the rename. */
static void file_writer_work(struct runtime_job *j)
{
    struct file_writer *s = (struct file_writer *)j;
    if (!write_all(s->fd, s->out.data, s->out.len) || (s->last && fsync(s->fd) != 0))
        s->failed = errno;
    if (!s->last || s->failed)
        return;
    if (close(s->fd) != 0 || rename(s->part, s->file) != 0) {
        s->failed = errno;
        unlink(s->part);
    }
    s->fd = -1;
}

/* ---- on the loop --------------------------------------------------------------------- */

static void file_writer_done(struct runtime_job *j);

/* Swap the buffers and give the full one to a worker.  While `busy`, `out`, `fd` and `last` are the
 * worker's; everything else stays with the loop thread. */
static void file_writer_write(struct file_writer *s)
{
    struct buf empty = s->out;
    s->out = s->fill;
    s->fill = empty;
    s->last = s->finishing;
    s->job.work = file_writer_work;
    s->job.done = file_writer_done;
    s->busy = runtime_work(s->rt, &s->job);
    if (!s->busy)
        s->error = ENOMEM;
}

/* Nothing more will be written: tell the owner, who may free the file writer. */
static void file_writer_end(struct file_writer *s)
{
    s->finishing = false;
    s->owner->finished(s->owner, s->error);
}

/* A piece is on the disk, or failed: write the next, finish, or ask the owner for more. */
static void file_writer_done(struct runtime_job *j)
{
    struct file_writer *s = (struct file_writer *)j;
    s->busy = false;
    s->error = s->failed;
    buf_reset(&s->out);
    if (!s->owner) {
        file_writer_destroy(s);
        return;
    }
    if (s->finishing && !s->error && !s->last)
        file_writer_write(s);
    else if (!s->finishing && !s->error && s->fill.len >= PIECE)
        file_writer_write(s);
    if (s->finishing && !s->busy) {
        file_writer_end(s);
    } else if (s->waiting) {
        s->waiting = false;
        s->owner->ready(s->owner);
    }
}

/* Loop thread. The data is copied; FULL asks the caller to pause until owner->ready(). */
enum file_writer_room file_writer_put(struct file_writer *s, const void *p, size_t n)
{
    if (s->error)
        return FILE_WRITER_BROKEN;
    buf_append(&s->fill, p, n);
    if (!buf_ok(&s->fill)) {
        s->error = ENOMEM;
        return FILE_WRITER_BROKEN;
    }
    if (s->fill.len < PIECE)
        return FILE_WRITER_ROOM;
    if (!s->busy)
        file_writer_write(s);
    if (s->error)
        return FILE_WRITER_BROKEN;
    s->waiting = s->fill.len >= PIECE;
    return s->waiting ? FILE_WRITER_FULL : FILE_WRITER_ROOM;
}

int file_writer_error(const struct file_writer *s)
{
    return s->error;
}

/* Write what is left, make it durable and give the file its name; owner->finished() follows, maybe
 * from inside. */
void file_writer_finish(struct file_writer *s)
{
    s->finishing = true;
    if (s->busy)
        return;
    if (!s->error)
        file_writer_write(s);
    if (!s->busy)
        file_writer_end(s);
}

/* While the worker is busy the struct is its own: file_writer_done() destroys it when the owner is
 * gone. */
void file_writer_free(struct file_writer *s)
{
    if (!s)
        return;
    s->owner = NULL;
    if (s->busy)
        unlink(s->part); /* at once: what the worker still writes goes nowhere */
    else
        file_writer_destroy(s);
}
