/* file_writer.h - a file that grows by what arrives and is written by a worker.
 *
 * The loop fills one buffer while a worker writes another, so that a slow disk holds up
 * nobody but the sender: when file_writer_put() finds both full it says so, and `ready` is called
 * when there is room again.  The file has a name of its own until file_writer_finish() has it on
 * the disk.  Everything here runs on the loop thread. */
#ifndef CLIENT_FILE_WRITER_H
#define CLIENT_FILE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <tinker/error.h>
#include "client/io/runtime.h"

struct file_writer;
struct file_writer_owner {
    /* There is room again, or file_writer_error() is set. */
    void (*ready)(struct file_writer_owner *o);
    /* After file_writer_finish(): the file is there (0), or errno.  The writer may be freed in it. */
    void (*finished)(struct file_writer_owner *o, int error);
};

enum file_writer_room { FILE_WRITER_ROOM, FILE_WRITER_FULL, FILE_WRITER_BROKEN };

/* Create `part`, which becomes `file`.  NULL with *err set. */
struct file_writer *file_writer_open(struct runtime *rt, const char *part, const char *file,
                                     struct file_writer_owner *owner, tinker_error *err);
/* Takes the bytes in any case but BROKEN; FULL: pause until ready. */
enum file_writer_room file_writer_put(struct file_writer *s, const void *p, size_t n);
int file_writer_error(const struct file_writer *s); /* errno, 0: none so far */
void file_writer_finish(struct file_writer *s);
/* Forget it; an unfinished file goes.  The owner hears nothing more.  NULL is allowed. */
void file_writer_free(struct file_writer *s);

#endif
