/* archive.h - the tar archive of a checkpoint, made while it is sent.
 *
 * Nothing is written to disk: headers and small files are in memory, the large files are open.
 * They stay readable when the checkpoint is deleted meanwhile, and all that can be missing or
 * unreadable is found before the first byte is sent.
 *
 * Thread safety: one thread at a time. */
#ifndef SERVER_ARCHIVE_H
#define SERVER_ARCHIVE_H

#include <stdint.h>
#include <sys/types.h>
#include <tinker/error.h>

struct archive;
struct server;

/* *size: of the whole archive, in bytes.  Free with archive_free(). */
tinker_status archive_open(const struct server *s, const char *dir, struct archive **out,
                           uint64_t *size, tinker_error *err);
/* Up to max bytes from the offset `at`, at least one before the end; 0: the end; -2: a file cannot be
 * read or has become shorter, as struct body_source wants it. */
ssize_t archive_read(void *archive, uint64_t at, char *out, size_t max);
void archive_free(void *archive); /* NULL: nothing */

#endif
