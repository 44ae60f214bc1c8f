/* file_writer.c - see sink.h. */
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

struct sink {
    struct runtime_job job; /* first member; under way while `busy` */
    struct runtime *rt;
    struct sink_owner *owner; /* NULL: freed, the worker is still at it */
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

static void sink_destroy(struct sink *s)
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

struct sink *sink_open(struct runtime *rt, const char *part, const char *file,
                       struct sink_owner *owner, tinker_error *err)
{
    struct sink *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "download");
        return NULL;
    }
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
    sink_destroy(s);
    return NULL;
}

/* ---- on a worker --------------------------------------------------------------------- */

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

static void sink_work(struct runtime_job *j)
{
    struct sink *s = (struct sink *)j;
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

static void sink_done(struct runtime_job *j);

static void sink_write(struct sink *s)
{
    struct buf empty = s->out;
    s->out = s->fill;
    s->fill = empty;
    s->last = s->finishing;
    s->job.work = sink_work;
    s->job.done = sink_done;
    s->busy = runtime_work(s->rt, &s->job);
    if (!s->busy)
        s->error = ENOMEM;
}

/* Nothing more will be written: tell the owner, who may free the sink. */
static void sink_end(struct sink *s)
{
    s->finishing = false;
    s->owner->finished(s->owner, s->error);
}

static void sink_done(struct runtime_job *j)
{
    struct sink *s = (struct sink *)j;
    s->busy = false;
    s->error = s->failed;
    buf_reset(&s->out);
    if (!s->owner) {
        sink_destroy(s);
        return;
    }
    if (s->finishing && !s->error && !s->last)
        sink_write(s);
    else if (!s->finishing && !s->error && s->fill.len >= PIECE)
        sink_write(s);
    if (s->finishing && !s->busy) {
        sink_end(s);
    } else if (s->waiting) {
        s->waiting = false;
        s->owner->ready(s->owner);
    }
}

enum sink_room sink_put(struct sink *s, const void *p, size_t n)
{
    if (s->error)
        return SINK_BROKEN;
    buf_append(&s->fill, p, n);
    if (!buf_ok(&s->fill)) {
        s->error = ENOMEM;
        return SINK_BROKEN;
    }
    if (s->fill.len < PIECE)
        return SINK_ROOM;
    if (!s->busy)
        sink_write(s);
    if (s->error)
        return SINK_BROKEN;
    s->waiting = s->fill.len >= PIECE;
    return s->waiting ? SINK_FULL : SINK_ROOM;
}

int sink_error(const struct sink *s)
{
    return s->error;
}

void sink_finish(struct sink *s)
{
    s->finishing = true;
    if (s->busy)
        return;
    if (!s->error)
        sink_write(s);
    if (!s->busy)
        sink_end(s);
}

void sink_free(struct sink *s)
{
    if (!s)
        return;
    s->owner = NULL;
    if (s->busy)
        unlink(s->part); /* at once: what the worker still writes goes nowhere */
    else
        sink_destroy(s);
}
