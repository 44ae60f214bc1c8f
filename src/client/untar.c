/* untar.c - the archive of a checkpoint into a directory, without trust.
 *
 * Plain tar as ustar, GNU and pax write it: files and directories only.  A name that is absolute,
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
#include "client/runtime.h"

enum { BLOCK = 512, NAME_BYTES = 1024, ENTRIES_MAX = 100000, PAX_MAX = 1 << 20 };

struct untar {
    const unsigned char *p; /* the archive */
    size_t n, at;
    const char *dir;            /* under construction */
    char next_name[NAME_BYTES]; /* of the next entry, by an extended header; "" for none */
    int64_t next_size;          /* likewise, -1 */
    size_t entries;
};

struct entry {
    char name[NAME_BYTES];
    char type;
    size_t size; /* of the data that follows */
};

/* ---- headers ------------------------------------------------------------------------------ */

/* An octal field, or, with its first bit set, a big-endian number.  -1: neither. */
static int64_t number(const unsigned char *f, size_t n)
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

static bool checksum_fits(const unsigned char *h)
{
    int64_t sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : h[i];
    return sum == number(h + 148, 8);
}

static bool is_zero(const unsigned char *h)
{
    for (int i = 0; i < BLOCK; i++)
        if (h[i])
            return false;
    return true;
}

static tinker_status bad(const struct untar *u, tinker_error *err, const char *why)
{
    return err_set(err, TINKER_EINVAL, "not a tar archive that can be unpacked, at byte %zu: %s",
                   u->at, why);
}

/* The header at u->at; *end: the archive is through. */
static tinker_status read_header(struct untar *u, struct entry *e, bool *end, tinker_error *err)
{
    const unsigned char *h = u->p + u->at;
    *end = u->at == u->n;
    if (*end)
        return TINKER_OK;
    if (u->n - u->at < BLOCK)
        return bad(u, err, "it ends inside a header");
    *end = is_zero(h);
    if (*end)
        return TINKER_OK;
    if (!checksum_fits(h))
        return bad(u, err, "the checksum of a header is wrong");
    int64_t size = number(h + 124, 12);
    e->type = (char)(h[156] ? h[156] : '0');
    if (u->next_size >= 0 && e->type != 'x' && e->type != 'g' && e->type != 'L')
        size = u->next_size;
    u->at += BLOCK;
    if (size < 0 || (uint64_t)size > u->n - u->at)
        return bad(u, err, "an entry is longer than the archive");
    e->size = (size_t)size;
    bool prefixed = memcmp(h + 257, "ustar\0", 6) == 0 && h[345];
    snprintf(e->name, sizeof(e->name), "%.155s%s%.100s", prefixed ? (const char *)h + 345 : "",
             prefixed ? "/" : "", (const char *)h);
    return TINKER_OK;
}

/* "<length> path=<value>\n" records of an extended header. */
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

static tinker_status write_all(const char *path, const unsigned char *p, size_t n,
                               tinker_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(err, "create", path);
    tinker_status s = TINKER_OK;
    while (n > 0 && s == TINKER_OK) {
        ssize_t done = write(fd, p, n > 1 << 24 ? 1 << 24 : n);
        if (done < 0 && errno != EINTR)
            s = err_errno(err, "write", path);
        else if (done > 0) {
            p += done;
            n -= (size_t)done;
        }
    }
    if (s == TINKER_OK && fsync(fd) != 0)
        s = err_errno(err, "write", path);
    close(fd);
    return s;
}

static tinker_status make_parent(const char *path, tinker_error *err)
{
    char parent[4096];
    snprintf(parent, sizeof(parent), "%s", path);
    *strrchr(parent, '/') = '\0';
    return os_make_dirs(parent, err);
}

static tinker_status put_entry(struct untar *u, struct entry *e, tinker_error *err)
{
    char path[4096];
    if (u->next_name[0])
        memcpy(e->name, u->next_name, sizeof(e->name));
    if (!clean_name(e->name))
        return bad(u, err, "a name leads out of the directory");
    if (!e->name[0])
        return TINKER_OK;
    if (e->type != '0' && e->type != '7' && e->type != '5')
        return bad(u, err, "it holds a link or a device");
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", u->dir, e->name) >= sizeof(path))
        return bad(u, err, "a name is too long");
    if (e->type == '5')
        return os_make_dirs(path, err);
    tinker_status s = make_parent(path, err);
    return s == TINKER_OK ? write_all(path, u->p + u->at, e->size, err) : s;
}

static tinker_status take_entry(struct untar *u, struct entry *e, tinker_error *err)
{
    const char *data = (const char *)u->p + u->at;
    if (++u->entries > ENTRIES_MAX)
        return bad(u, err, "it has too many entries");
    if (e->type == 'g')
        return TINKER_OK;
    if (e->type == 'x')
        return e->size <= PAX_MAX && read_pax(u, data, e->size)
                   ? TINKER_OK
                   : bad(u, err, "an extended header is malformed");
    if (e->type == 'L') {
        if (e->size >= sizeof(u->next_name))
            return bad(u, err, "a name is too long");
        snprintf(u->next_name, sizeof(u->next_name), "%.*s", (int)e->size, data);
        return TINKER_OK;
    }
    tinker_status s = put_entry(u, e, err);
    u->next_name[0] = '\0';
    u->next_size = -1;
    return s;
}

static tinker_status unpack(struct untar *u, tinker_error *err)
{
    bool end = false;
    struct entry e;
    if (u->n >= 2 && u->p[0] == 0x1f && u->p[1] == 0x8b)
        return bad(u, err, "it is compressed with gzip");
    tinker_status s = os_make_dirs(u->dir, err);
    while (s == TINKER_OK) {
        s = read_header(u, &e, &end, err);
        if (end || s != TINKER_OK)
            break;
        s = take_entry(u, &e, err);
        size_t padded = e.size + (BLOCK - e.size % BLOCK) % BLOCK;
        u->at = padded > u->n - u->at ? u->n : u->at + padded;
    }
    return s == TINKER_OK && u->entries == 0 ? bad(u, err, "it is empty") : s;
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
    struct untar u = {
        .p = (const unsigned char *)map.data, .n = map.len, .dir = part, .next_size = -1
    };
    s = unpack(&u, &mine);
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
