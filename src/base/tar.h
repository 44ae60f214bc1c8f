/* tar.h - read and write tar archives, one entry after the other.
 *
 * Neither side does I/O: bytes come from and go to functions of the caller.  The reader takes what
 * ustar, GNU tar and pax write, and does not trust it: see tar_next().  The writer makes ustar
 * archives of regular files, with a pax header only for what ustar has no space for.
 *
 *     tar_reader_init(&r, read_archive, state, TAR_LENGTH_UNKNOWN);
 *     while ((status = tar_next(&r, &entry, &end, err)) == TINKER_OK && !end)
 *         while (entry.size > done && (status = tar_read(&r, buf, part, err)) == TINKER_OK) ...
 *
 *     tar_writer_init(&w, write_archive, state);
 *     tar_add_file(&w, "weights.bin", size, mtime, err);
 *     tar_write(&w, data, size, err);
 *     tar_finish(&w, err);
 *
 * Thread safety: one thread at a time. */
#ifndef BASE_TAR_H
#define BASE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

enum {
    TAR_BLOCK = 512,          /* headers are one block, data is padded to whole blocks */
    TAR_NAME_SIZE = 1024,     /* longest name that is read, NUL included */
    TAR_ENTRIES_MAX = 100000, /* headers in one archive */
    TAR_PAX_MAX = 1 << 20     /* bytes in one extended header */
};

/* Read the next n bytes of the archive to out; *got is less than n only at its end. */
typedef tinker_status tar_read_fn(void *out, size_t n, size_t *got, void *state, tinker_error *err);

#define TAR_LENGTH_UNKNOWN UINT64_MAX

struct tar_entry {
    char name[TAR_NAME_SIZE]; /* relative, without "." and ".."; "" is the root directory */
    bool is_dir;              /* otherwise a regular file */
    uint64_t size;            /* of the data that follows */
};

struct tar_reader {
    tar_read_fn *read;
    void *state;
    uint64_t length;               /* of the archive, TAR_LENGTH_UNKNOWN if it is compressed */
    uint64_t at;                   /* bytes taken from it so far */
    uint64_t left;                 /* data of the current entry that was not read yet */
    size_t pad;                    /* padding behind that data */
    size_t entries;                /* headers so far */
    char next_name[TAR_NAME_SIZE]; /* from an extended header, for the next entry; "" if none */
    int64_t next_size;             /* likewise, -1 if none */
};

/* With a known length, an entry that claims more data than the archive has is refused at once. */
void tar_reader_init(struct tar_reader *r, tar_read_fn *read, void *state, uint64_t length);
/* Go to the next file or directory; unread data of the current one is skipped.  *end: there is
 * none, and the source was read to its end, so that a checksum there was seen.
 * TINKER_EINVAL with the byte offset refuses an archive that
 * is damaged, empty or has too many entries, holds anything but files and directories (links and
 * devices), or names something that is absolute, has a component "", "." or "..", or a control
 * character.  Names that appear twice are left to the caller. */
tinker_status tar_next(struct tar_reader *r, struct tar_entry *e, bool *end, tinker_error *err);
/* The next n bytes of the entry's data, all of them; n is at most what is left of it. */
tinker_status tar_read(struct tar_reader *r, void *out, size_t n, tinker_error *err);

/* Append p[0..n) to the archive, all of it. */
typedef tinker_status tar_write_fn(const void *p, size_t n, void *state, tinker_error *err);

struct tar_writer {
    tar_write_fn *write;
    void *state;
    uint64_t left; /* data that the current entry still needs */
    size_t pad;    /* padding behind that data */
};

void tar_writer_init(struct tar_writer *w, tar_write_fn *write, void *state);
/* Begin a regular file of exactly `size` bytes, mode 0644, owner 0, with an mtime in seconds since
 * 1970.  TINKER_EINVAL: the name is empty or has TAR_NAME_SIZE bytes or more. */
tinker_status tar_add_file(struct tar_writer *w, const char *name, uint64_t size, int64_t mtime,
                           tinker_error *err);
/* Append data of the current file.  Giving more or, at the next tar_add_file() or tar_finish(),
 * less than its size is TINKER_ESTATE: the file changed while it was read. */
tinker_status tar_write(struct tar_writer *w, const void *p, size_t n, tinker_error *err);
/* The data of the current file comes from elsewhere: only what is around it is written here. */
void tar_skip_data(struct tar_writer *w);
tinker_status tar_finish(struct tar_writer *w, tinker_error *err); /* write the end mark */

#endif
