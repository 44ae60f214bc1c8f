/* file_writer.h - a file that grows by what arrives and is written by a worker.
 *
 * The loop fills one buffer while a worker writes another, so that a slow disk holds up
 * nobody but the sender: when sink_put() finds both full it says so, and `ready` is called
 * when there is room again.  The file has a name of its own until sink_finish() has it on
 * the disk.  Everything here runs on the loop thread. */
#ifndef CLIENT_SINK_H
#define CLIENT_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <tinker/error.h>
#include "client/io/runtime.h"

struct sink;
struct sink_owner {
    /* There is room again, or sink_error() is set. */
    void (*ready)(struct sink_owner *o);
    /* After sink_finish(): the file is there (0), or errno.  The sink may be freed in it. */
    void (*finished)(struct sink_owner *o, int error);
};

enum sink_room { SINK_ROOM, SINK_FULL, SINK_BROKEN };

/* Create `part`, which becomes `file`.  NULL with *err set. */
struct sink *sink_open(struct runtime *rt, const char *part, const char *file,
                       struct sink_owner *owner, tinker_error *err);
/* Takes the bytes in any case but BROKEN; FULL: pause until ready. */
enum sink_room sink_put(struct sink *s, const void *p, size_t n);
int sink_error(const struct sink *s); /* errno, 0: none so far */
void sink_finish(struct sink *s);
/* Forget it; an unfinished file goes.  The owner hears nothing more.  NULL is allowed. */
void sink_free(struct sink *s);

#endif
