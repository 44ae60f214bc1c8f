/* untar.c - the archive of a checkpoint into a directory, without trust.
 *
 * Tar as ustar, GNU and pax write it, plain or in gzip: files and directories only.  A name that is absolute,
 * climbs with "..", or comes twice, and every kind of link or device, refuses the whole archive;
 * nothing is left behind then.  The directory appears under its name when it is complete. */
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
#include "client/rest/gunzip.h"

enum {
    BLOCK = 512,
    NAME_BYTES = 1024,
    ENTRIES_MAX = 100000,
    PAX_MAX = 1 << 20,
    CHUNK = 1 << 16,
    /* What may come of gzip: weights hardly get smaller, but a new optimizer is all zeros. */
    UNPACKED_FREE = 64 << 20,
    UNPACKED_RATIO = 100
};

struct untar {
    const unsigned char *p; /* the file */
    size_t n;
    struct gunzip *gz;          /* what it is packed in, NULL: plain */
    uint64_t at;                /* in the archive */
    const char *dir;            /* under construction */
    char next_name[NAME_BYTES]; /* of the next entry, by an extended header; "" for none */
    int64_t next_size;          /* likewise, -1 */
    size_t entries;
    unsigned char chunk[CHUNK];
};

struct entry {
    char name[NAME_BYTES];
    char type;
    uint64_t size; /* of the data that follows */
};

/* ---- headers ------------------------------------------------------------------------------ */

/* An octal field, or, with its first bit set, a big-endian number.  -1: neither. */
static int64_t read_number(const unsigned char *f, size_t n)
{
    int64_t v = 0;
    if (f[0] & 0x80) {
        for (size_t i = 1; i < n; i++) {
            if (v > INT64_MAX >> 8)
                return -1;
            v = v << 8 | f[i];
        }
        return f[0] == 0x80 ? v : -1;
    }
    size_t i = 0;
    while (i < n && f[i] == ' ')
        i++;
    for (; i < n && f[i] >= '0' && f[i] <= '7'; i++)
        v = v << 3 | (f[i] - '0');
    return i == n || f[i] == '\0' || f[i] == ' ' ? v : -1;
}

static tinker_status refuse_archive(const struct untar *u, tinker_error *err, const char *why)
{
    return err_set(err, TINKER_EINVAL, "not a tar archive that can be unpacked, at byte %llu: %s",
                   (unsigned long long)u->at, why);
}

/* ---- reading ------------------------------------------------------------------------------ */

/* The next n bytes; *got is less only at the end. */
static tinker_status read_bytes(struct untar *u, void *out, size_t n, size_t *got,
                                tinker_error *err)
{
    if (u->gz) {
        tinker_status s = gunzip_read(u->gz, out, n, got, err);
        u->at += *got;
        return s;
    }
    *got = n < u->n - u->at ? n : (size_t)(u->n - u->at);
    if (*got)
        memcpy(out, u->p + u->at, *got);
    u->at += *got;
    return TINKER_OK;
}

/* The next n bytes of the data of an entry, all of them. */
static tinker_status read_data(struct untar *u, void *out, size_t n, tinker_error *err)
{
    size_t got;
    tinker_status s = read_bytes(u, out, n, &got, err);
    return s == TINKER_OK && got < n ? refuse_archive(u, err, "it ends inside an entry") : s;
}

static tinker_status skip_data(struct untar *u, uint64_t n, tinker_error *err)
{
    tinker_status s = TINKER_OK;
    for (size_t part; n > 0 && s == TINKER_OK; n -= part) {
        part = n < CHUNK ? (size_t)n : CHUNK;
        s = read_data(u, u->chunk, part, err);
    }
    return s;
}

/* The next header; *end: the archive is through.  A header of ustar, by offset:
 *
 *     0 name[100]   124 size[12]   148 checksum[8]   156 type   257 "ustar\0"   345 prefix[155]
 *
 * The checksum is the sum of all bytes, its own field counted as blanks.  A block of zeros ends the
 * archive; a second one should follow and is not asked for. */
static tinker_status read_header(struct untar *u, struct entry *e, bool *end, tinker_error *err)
{
    unsigned char h[BLOCK];
    size_t got;
    tinker_status s = read_bytes(u, h, BLOCK, &got, err);
    int64_t sum = 0, bits = 0;
    for (int i = 0; s == TINKER_OK && got == BLOCK && i < BLOCK; i++) {
        sum += i >= 148 && i < 156 ? ' ' : h[i];
        bits |= h[i];
    }
    *end = s == TINKER_OK && (got == 0 || (got == BLOCK && !bits));
    if (s != TINKER_OK || *end)
        return s;
    if (got < BLOCK)
        return refuse_archive(u, err, "it ends inside a header");
    if (sum != read_number(h + 148, 8))
        return refuse_archive(u, err, "the checksum of a header is wrong");
    int64_t size = read_number(h + 124, 12);
    e->type = (char)(h[156] ? h[156] : '0');
    /* A size from a pax header is that of the file, not of the headers in between. */
    if (u->next_size >= 0 && e->type != 'x' && e->type != 'g' && e->type != 'L')
        size = u->next_size;
    /* Packed data is bounded by gunzip.c instead, since its length is not known before. */
    if (size < 0 || (!u->gz && (uint64_t)size > u->n - u->at))
        return refuse_archive(u, err, "an entry is longer than the archive");
    e->size = (uint64_t)size;
    bool prefixed = memcmp(h + 257, "ustar\0", 6) == 0 && h[345];
    snprintf(e->name, sizeof(e->name), "%.155s%s%.100s", prefixed ? (const char *)h + 345 : "",
             prefixed ? "/" : "", (const char *)h);
    return TINKER_OK;
}

/* "<length> path=<value>\n" records of an extended header (POSIX pax): the length counts the whole
 * record, itself and the newline included.  Keys other than path and size are not needed. */
static bool read_pax(struct untar *u, const char *p, size_t n)
{
    while (n > 0) {
        char *end;
        char digits[24];
        snprintf(digits, sizeof(digits), "%.*s", (int)(n < 20 ? n : 20), p);
        unsigned long len = strtoul(digits, &end, 10);
        size_t skip = (size_t)(end - digits) + 1;
        if (*end != ' ' || len > n || len <= skip || p[len - 1] != '\n')
            return false;
        const char *key = p + skip;
        size_t rest = len - skip - 1;
        if (rest > 5 && memcmp(key, "path=", 5) == 0) {
            if (rest - 5 >= sizeof(u->next_name) || memchr(key, '\0', rest))
                return false;
            snprintf(u->next_name, sizeof(u->next_name), "%.*s", (int)(rest - 5), key + 5);
        } else if (rest > 5 && rest < 25 && memcmp(key, "size=", 5) == 0) {
            snprintf(digits, sizeof(digits), "%.*s", (int)(rest - 5), key + 5);
            u->next_size = strtoll(digits, &end, 10);
            if (*end || u->next_size < 0)
                return false;
        }
        p += len;
        n -= len;
    }
    return true;
}

/* ---- names ---------------------------------------------------------------------------------- */

/* Strip "./" and a final slash; false: a name that leads elsewhere. */
static bool clean_name(char *name)
{
    size_t n = strlen(name);
    while (n > 1 && name[n - 1] == '/')
        name[--n] = '\0';
    while (strncmp(name, "./", 2) == 0)
        memmove(name, name + 2, strlen(name) - 1);
    if (strcmp(name, ".") == 0)
        name[0] = '\0';
    if (name[0] == '/')
        return false;
    for (const char *p = name; *p;) {
        size_t len = strcspn(p, "/");
        if (len == 0 || (len == 2 && memcmp(p, "..", 2) == 0) || (len == 1 && *p == '.'))
            return false;
        for (size_t i = 0; i < len; i++)
            if ((unsigned char)p[i] < 0x20)
                return false;
        p += len + (p[len] == '/');
    }
    return true;
}

/* ---- writing ---------------------------------------------------------------------------------- */

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

/* The data of an entry into a new file. */
static tinker_status write_file(struct untar *u, const char *path, uint64_t n, tinker_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(err, "create", path);
    tinker_status s = TINKER_OK;
    for (size_t part; n > 0 && s == TINKER_OK; n -= part) {
        part = n < CHUNK ? (size_t)n : CHUNK;
        s = read_data(u, u->chunk, part, err);
        if (s == TINKER_OK)
            s = write_chunk(fd, path, u->chunk, part, err);
    }
    if (s == TINKER_OK && fsync(fd) != 0)
        s = err_errno(err, "write", path);
    close(fd);
    return s;
}

/* Write a file or directory below u->dir.  Its name was checked before, and the directory is new
 * and ours, so no link in it can lead elsewhere.  An archive need not name directories: those on
 * the way to a file are made. */
static tinker_status put_entry(struct untar *u, struct entry *e, tinker_error *err)
{
    char path[4096], parent[4096];
    if (u->next_name[0])
        memcpy(e->name, u->next_name, sizeof(e->name));
    if (!clean_name(e->name))
        return refuse_archive(u, err, "a name leads out of the directory");
    if (!e->name[0])
        return skip_data(u, e->size, err);
    if (e->type != '0' && e->type != '7' && e->type != '5')
        return refuse_archive(u, err, "it holds a link or a device");
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", u->dir, e->name) >= sizeof(path))
        return refuse_archive(u, err, "a name is too long");
    snprintf(parent, sizeof(parent), "%s", path);
    *strrchr(parent, '/') = '\0'; /* u->dir at least stands before it */
    tinker_status s = os_make_dirs(e->type == '5' ? path : parent, err);
    if (s != TINKER_OK)
        return s;
    return e->type == '5' ? skip_data(u, e->size, err) : write_file(u, path, e->size, err);
}

/* An extended header (pax, type x), or a long name (GNU, type L), of the entry that follows. */
static tinker_status read_extension(struct untar *u, const struct entry *e, tinker_error *err)
{
    bool pax = e->type == 'x';
    if (e->size > PAX_MAX || (!pax && e->size >= sizeof(u->next_name)))
        return refuse_archive(u, err,
                              pax ? "an extended header is malformed" : "a name is too long");
    size_t n = (size_t)e->size;
    char *data = calloc(1, n + 1);
    if (!data)
        return err_nomem(err, "archive");
    tinker_status s = read_data(u, data, n, err);
    if (s == TINKER_OK && pax && !read_pax(u, data, n))
        s = refuse_archive(u, err, "an extended header is malformed");
    if (s == TINKER_OK && !pax)
        snprintf(u->next_name, sizeof(u->next_name), "%s", data);
    free(data);
    return s;
}

/* What an extension said holds for one entry only. */
static tinker_status unpack_entry(struct untar *u, struct entry *e, tinker_error *err)
{
    if (++u->entries > ENTRIES_MAX)
        return refuse_archive(u, err, "it has too many entries");
    if (e->type == 'g')
        return skip_data(u, e->size, err);
    if (e->type == 'x' || e->type == 'L')
        return read_extension(u, e, err);
    tinker_status s = put_entry(u, e, err);
    u->next_name[0] = '\0';
    u->next_size = -1;
    return s;
}

/* Header, data, padding to the next block; again until the end. */
static tinker_status unpack_entries(struct untar *u, tinker_error *err)
{
    bool end = false;
    struct entry e;
    tinker_status s = os_make_dirs(u->dir, err);
    while (s == TINKER_OK) {
        s = read_header(u, &e, &end, err);
        if (end || s != TINKER_OK)
            break;
        s = unpack_entry(u, &e, err);
        size_t pad = (BLOCK - (size_t)(e.size % BLOCK)) % BLOCK, got;
        if (s == TINKER_OK)
            s = read_bytes(u, u->chunk, pad, &got, err); /* the last may do without */
    }
    size_t got = CHUNK;
    while (s == TINKER_OK && u->gz && got == CHUNK) /* its checksum is at its end */
        s = read_bytes(u, u->chunk, CHUNK, &got, err);
    return s == TINKER_OK && u->entries == 0 ? refuse_archive(u, err, "it is empty") : s;
}

static tinker_status unpack_file(const struct os_map *map, const char *dir, tinker_error *err)
{
    struct untar *u = calloc(1, sizeof(*u));
    if (!u)
        return err_nomem(err, "archive");
    u->p = (const unsigned char *)map->data;
    u->n = map->len;
    u->dir = dir;
    u->next_size = -1;
    tinker_status s = TINKER_OK;
    /* A bound for what comes of gzip: a few kilobytes can unpack to a full disk. */
    if (gunzip_is(u->p, u->n)) {
        u->gz = gunzip_open(u->p, u->n, UNPACKED_FREE + UNPACKED_RATIO * (uint64_t)u->n, err);
        s = u->gz ? TINKER_OK : TINKER_ENOMEM;
    }
    if (s == TINKER_OK)
        s = unpack_entries(u, err);
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
