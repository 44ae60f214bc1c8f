/* checkpoint.h - directories of weights.
 *
 * Every set of weights is a directory of its own below <data>/checkpoints, named by
 * 32 random hex digits: no text of a user ever becomes part of a path.  It counts once
 * a record in the store names it; a directory that no record names is removed at start.
 *
 * Thread safety: any thread. */
#ifndef SERVER_CHECKPOINT_H
#define SERVER_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <tinker/engine.h>
#include "server/work/live_state.h"

enum { CHECKPOINT_DIR = 33, CHECKPOINT_PATH = 4096 };

/* Path of a directory name; out has CHECKPOINT_PATH bytes. */
void checkpoint_path(const struct server *s, const char *dir, char *out);
/* Write weights (engine flags as tinker_adapter_save()) into a new directory, synced,
 * with its completion marker.  dir has CHECKPOINT_DIR bytes.  Nothing stays on failure. */
tinker_status checkpoint_write(struct server *s, const tinker_adapter *a, const char *base_name,
                               int flags, char *dir, int64_t *size_bytes, tinker_error *err);
/* Remove weights that were never recorded. */
void checkpoint_discard(struct server *s, const char *dir);
/* Remove weights whose record is gone, once that is on the disk. */
void checkpoint_remove(struct server *s, const char *dir); /* NULL: nothing */
/* A record that named the directory is gone: remove it unless another one names it. */
void checkpoint_release(struct server *s, const char *dir); /* NULL: nothing */
/* Forget the unnamed sampler weights of a model but the newest `keep`. */
void checkpoint_drop_hidden(struct server *s, const char *model_id, size_t keep);
/* Names of its regular files in the arena, in order; NULL: an error. */
const char *const *checkpoint_files(struct server *s, const char *dir, struct arena *arena,
                                    size_t *n, tinker_error *err);
/* One of those files, open for reading. */
tinker_status checkpoint_open_file(struct server *s, const char *dir, const char *name, int *fd,
                                   uint64_t *size, tinker_error *err);
/* Are all entries of a directory, which is not one of ours, regular files?  Opening a FIFO would
 * keep the engine thread waiting for a writer. */
tinker_status checkpoint_check_local(const char *path, tinker_error *err);
/* Remove what no record names. */
tinker_status checkpoint_clean(struct server *s, tinker_error *err);
/* The database is new, so no record names what is there: if there are complete weights, move all
 * of it to another directory, because the old database may be found again. */
tinker_status checkpoint_set_aside(struct server *s, tinker_error *err);
/* Call fn for every regular file of a directory; stops at the first failure. */
typedef tinker_status checkpoint_file_fn(const char *path, const char *name, const struct stat *st,
                                         void *state, tinker_error *err);
tinker_status checkpoint_each_file(const char *path, checkpoint_file_fn *fn, void *state,
                                   tinker_error *err);
/* Are all files there?  False as well while they are being removed. */
bool checkpoint_is_complete(const struct server *s, const char *dir);

#endif
