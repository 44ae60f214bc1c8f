/* tar.c - see tar.h.
 *
 * POSIX.1-2008, pax, "ustar Interchange Format": an archive is a sequence of 512-byte blocks.  Each
 * entry is a header block and its data, padded with zeros; two zero blocks end the archive.  A
 * header of type 'x' (pax) or 'L' (GNU) changes name or size of the entry behind it. */
#include "base/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"

/* Offsets and widths of the header fields that are used. */
enum {
    NAME_AT = 0,
    NAME_LEN = 100,
    MODE_AT = 100,
    UID_AT = 108,
    GID_AT = 116,
    SIZE_AT = 124,
    SIZE_LEN = 12,
    MTIME_AT = 136,
    SUM_AT = 148,
    SUM_LEN = 8,
    TYPE_AT = 156,
    MAGIC_AT = 257,
    DEV_MAJOR_AT = 329,
    DEV_MINOR_AT = 337,
    PREFIX_AT = 345,
    PREFIX_LEN = 155
};

/* What fits the eleven octal digits of a size or time. */
#define OCTAL_MAX ((int64_t)077777777777)

/* The sum of all bytes of a header, its own field counted as blanks. */
static unsigned header_sum(const unsigned char *h)
{
    unsigned sum = 0;
    for (int i = 0; i < TAR_BLOCK; i++)
        sum += i >= SUM_AT && i < SUM_AT + SUM_LEN ? ' ' : h[i];
    return sum;
}

/* Zeros from the end of data of this size to the next block. */
static size_t padding_of(uint64_t size)
{
    return (TAR_BLOCK - (size_t)(size % TAR_BLOCK)) % TAR_BLOCK;
}

/* ---- reading ------------------------------------------------------------------------------- */

static tinker_status refuse_archive(const struct tar_reader *r, tinker_error *err, const char *why)
{
    return err_set(err, TINKER_EINVAL, "not a tar archive that can be unpacked, at byte %llu: %s",
                   (unsigned long long)r->at, why);
}

/* Octal digits, perhaps between blanks; or, as GNU tar writes what has no space there, 0x80 and
 * a big-endian number.  -1: neither, negative, or too large. */
static int64_t parse_number(const unsigned char *field, size_t n)
{
    int64_t v = 0;
    if (field[0] & 0x80) {
        for (size_t i = 1; i < n; i++) {
            /* The next shift must not push bits out. */
            if (v > INT64_MAX >> 8)
                return -1;
            v = v << 8 | field[i];
        }
        return field[0] == 0x80 ? v : -1;
    }
    size_t i = 0;
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        v = v << 3 | (field[i] - '0');
    return i == n || field[i] == '\0' || field[i] == ' ' ? v : -1;
}

/* All bytes taken from the source pass here, so that r->at is the place an error names. */
static tinker_status take_bytes(struct tar_reader *r, void *out, size_t n, size_t *got,
                                tinker_error *err)
{
    *got = 0;
    tinker_status s = n > 0 ? r->read(out, n, got, r->state, err) : TINKER_OK;
    r->at += *got;
    return s;
}

/* n must not exceed what is left of the entry. */
tinker_status tar_read(struct tar_reader *r, void *out, size_t n, tinker_error *err)
{
    /* The end of the source inside an entry is an error, unlike between two. */
    size_t got;
    tinker_status s = take_bytes(r, out, n, &got, err);
    r->left -= got;
    return s == TINKER_OK && got < n ? refuse_archive(r, err, "it ends inside an entry") : s;
}

/* Skip what is left of the current entry.  The padding of the last one may be missing. */
static tinker_status skip_entry(struct tar_reader *r, tinker_error *err)
{
    unsigned char waste[4096];
    tinker_status s = TINKER_OK;
    while (s == TINKER_OK && r->left > 0)
        s = tar_read(r, waste, r->left < sizeof(waste) ? (size_t)r->left : sizeof(waste), err);
    size_t got;
    if (s == TINKER_OK)
        s = take_bytes(r, waste, r->pad, &got, err);
    r->pad = 0;
    return s;
}

/* Records "<length> <key>=<value>\n" of a pax header, where the length counts all of the record.
 * Only path and size matter here: owners, times and comments are not restored. */
static bool parse_pax(struct tar_reader *r, const char *p, size_t n)
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
            if (rest - 5 >= sizeof(r->next_name) || memchr(key, '\0', rest))
                return false;
            snprintf(r->next_name, sizeof(r->next_name), "%.*s", (int)(rest - 5), key + 5);
        } else if (rest > 5 && rest < 25 && memcmp(key, "size=", 5) == 0) {
            snprintf(digits, sizeof(digits), "%.*s", (int)(rest - 5), key + 5);
            r->next_size = strtoll(digits, &end, 10);
            if (*end || r->next_size < 0)
                return false;
        }
        p += len;
        n -= len;
    }
    return true;
}

/* Read the data of a pax header or a GNU long name: it says more about the next entry. */
static tinker_status read_extension(struct tar_reader *r, char type, tinker_error *err)
{
    bool pax = type == 'x';
    if (r->left > TAR_PAX_MAX || (!pax && r->left >= sizeof(r->next_name)))
        return refuse_archive(r, err,
                              pax ? "an extended header is malformed" : "a name is too long");
    size_t n = (size_t)r->left;
    char *data = calloc(1, n + 1);
    if (!data)
        return err_nomem(err, "archive");
    tinker_status s = tar_read(r, data, n, err);
    if (s == TINKER_OK && pax && !parse_pax(r, data, n))
        s = refuse_archive(r, err, "an extended header is malformed");
    if (s == TINKER_OK && !pax)
        snprintf(r->next_name, sizeof(r->next_name), "%s", data);
    free(data);
    return s;
}

/* Strip "./" and a final slash; false: a name that does not stay below the directory. */
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

/* Check a header and say what follows it: type, name as it stands there, and r->left. */
static tinker_status parse_header(struct tar_reader *r, const unsigned char *h, struct tar_entry *e,
                                  char *type, tinker_error *err)
{
    if (header_sum(h) != parse_number(h + SUM_AT, SUM_LEN))
        return refuse_archive(r, err, "the checksum of a header is wrong");
    int64_t size = parse_number(h + SIZE_AT, SIZE_LEN);
    *type = h[TYPE_AT] ? (char)h[TYPE_AT] : '0'; /* before POSIX, 0 was a file */
    /* A size from a pax header is for the file, not for further extensions in between. */
    bool describes_next = *type == 'x' || *type == 'g' || *type == 'L';
    if (r->next_size >= 0 && !describes_next)
        size = r->next_size;
    if (size < 0 || (r->length != TAR_LENGTH_UNKNOWN && (uint64_t)size > r->length - r->at))
        return refuse_archive(r, err, "an entry is longer than the archive");
    r->left = e->size = (uint64_t)size;
    r->pad = padding_of(e->size);
    /* GNU headers say "ustar  " and keep other things where ustar has the prefix. */
    bool prefixed = memcmp(h + MAGIC_AT, "ustar\0", 6) == 0 && h[PREFIX_AT];
    snprintf(e->name, sizeof(e->name), "%.*s%s%.*s", PREFIX_LEN,
             prefixed ? (const char *)h + PREFIX_AT : "", prefixed ? "/" : "", NAME_LEN,
             (const char *)h + NAME_AT);
    return TINKER_OK;
}

void tar_reader_init(struct tar_reader *r, tar_read_fn *read, void *state, uint64_t length)
{
    *r = (struct tar_reader){ .read = read, .state = state, .length = length, .next_size = -1 };
}

tinker_status tar_next(struct tar_reader *r, struct tar_entry *e, bool *end, tinker_error *err)
{
    static const unsigned char zeros[TAR_BLOCK];
    unsigned char h[TAR_BLOCK];
    char type = 'g';
    *end = false;
    while (type == 'g' || type == 'x' || type == 'L') {
        size_t got;
        tinker_status s = skip_entry(r, err);
        if (s == TINKER_OK)
            s = take_bytes(r, h, TAR_BLOCK, &got, err);
        if (s != TINKER_OK)
            return s;
        /* A zero block ends the archive; so does the end of the file, as old writers left it. */
        if (got == 0 || (got == TAR_BLOCK && memcmp(h, zeros, TAR_BLOCK) == 0)) {
            *end = true;
            /* Read the rest of the source: a compressed one has its checksum there. */
            for (got = TAR_BLOCK; s == TINKER_OK && got == TAR_BLOCK;)
                s = take_bytes(r, h, TAR_BLOCK, &got, err);
            return s == TINKER_OK && r->entries == 0 ? refuse_archive(r, err, "it is empty") : s;
        }
        if (got < TAR_BLOCK)
            return refuse_archive(r, err, "it ends inside a header");
        s = parse_header(r, h, e, &type, err);
        if (s == TINKER_OK && ++r->entries > TAR_ENTRIES_MAX)
            s = refuse_archive(r, err, "it has too many entries");
        if (s == TINKER_OK && (type == 'x' || type == 'L'))
            s = read_extension(r, type, err);
        if (s != TINKER_OK)
            return s;
    }
    if (r->next_name[0])
        memcpy(e->name, r->next_name, sizeof(e->name));
    r->next_name[0] = '\0';
    r->next_size = -1;
    e->is_dir = type == '5';
    if (!clean_name(e->name))
        return refuse_archive(r, err, "a name leads out of the directory");
    if (type != '0' && type != '7' && type != '5') /* '7': a file that should be contiguous */
        return refuse_archive(r, err, "it holds a link or a device");
    return TINKER_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

void tar_writer_init(struct tar_writer *w, tar_write_fn *write, void *state)
{
    *w = (struct tar_writer){ .write = write, .state = state };
}

/* Pad the current entry to whole blocks. */
static tinker_status end_entry(struct tar_writer *w, tinker_error *err)
{
    static const char zeros[TAR_BLOCK];
    if (w->left > 0)
        return err_set(err, TINKER_ESTATE, "archive: a file became shorter while it was read");
    size_t pad = w->pad;
    w->pad = 0;
    return pad > 0 ? w->write(zeros, pad, w->state, err) : TINKER_OK;
}

/* One header block.  The name, size and time are cut to what ustar has space for; a pax header
 * in front of it says the rest. */
static tinker_status write_header(struct tar_writer *w, char type, const char *name, uint64_t size,
                                  int64_t mtime, tinker_error *err)
{
    char h[TAR_BLOCK] = { 0 };
    size_t n = strlen(name);
    memcpy(h + NAME_AT, name, n < NAME_LEN ? n : NAME_LEN);
    memcpy(h + MODE_AT, "000644 ", 8);
    memcpy(h + UID_AT, "000000 ", 8);
    memcpy(h + GID_AT, "000000 ", 8);
    char digits[16];
    snprintf(digits, sizeof(digits), "%011llo ",
             (unsigned long long)(size <= (uint64_t)OCTAL_MAX ? size : 0));
    memcpy(h + SIZE_AT, digits, 12);
    snprintf(digits, sizeof(digits), "%011llo ",
             (unsigned long long)(mtime >= 0 && mtime <= OCTAL_MAX ? mtime : 0));
    memcpy(h + MTIME_AT, digits, 12);
    h[TYPE_AT] = type;
    memcpy(h + MAGIC_AT,
           "ustar\0"
           "00",
           8);
    memcpy(h + DEV_MAJOR_AT, "000000 ", 8);
    memcpy(h + DEV_MINOR_AT, "000000 ", 8);
    snprintf(digits, sizeof(digits), "%06o", header_sum((const unsigned char *)h));
    memcpy(h + SUM_AT, digits, 7); /* with its NUL; POSIX ends it with a blank */
    h[SUM_AT + 7] = ' ';
    return w->write(h, TAR_BLOCK, w->state, err);
}

/* Append "<length> <key>=<value>\n" to a pax header; the length counts its own digits. */
static void add_pax_record(char *out, size_t size, const char *key, const char *value)
{
    size_t used = strlen(out), body = strlen(key) + strlen(value) + 3; /* blank, '=', newline */
    size_t len = body + 1;
    for (size_t next; (next = body + (size_t)snprintf(NULL, 0, "%zu", len)) != len;)
        len = next;
    snprintf(out + used, size - used, "%zu %s=%s\n", len, key, value);
}

tinker_status tar_add_file(struct tar_writer *w, const char *name, uint64_t size, int64_t mtime,
                           tinker_error *err)
{
    char pax[TAR_NAME_SIZE + 128] = "", digits[24];
    size_t n = strlen(name);
    if (n == 0 || n >= TAR_NAME_SIZE || size > INT64_MAX)
        return err_set(err, TINKER_EINVAL, "archive: the name or size of %.100s is out of range",
                       name);
    tinker_status s = end_entry(w, err);
    if (n > NAME_LEN)
        add_pax_record(pax, sizeof(pax), "path", name);
    if (size > (uint64_t)OCTAL_MAX) {
        snprintf(digits, sizeof(digits), "%llu", (unsigned long long)size);
        add_pax_record(pax, sizeof(pax), "size", digits);
    }
    if (s == TINKER_OK && pax[0]) {
        s = write_header(w, 'x', "PaxHeader", strlen(pax), mtime, err);
        w->left = strlen(pax);
        w->pad = padding_of(w->left);
        if (s == TINKER_OK)
            s = tar_write(w, pax, strlen(pax), err);
        if (s == TINKER_OK)
            s = end_entry(w, err);
    }
    if (s == TINKER_OK)
        s = write_header(w, '0', name, size, mtime, err);
    w->left = size;
    w->pad = padding_of(size);
    return s;
}

tinker_status tar_write(struct tar_writer *w, const void *p, size_t n, tinker_error *err)
{
    if (n > w->left)
        return err_set(err, TINKER_ESTATE, "archive: a file became longer while it was read");
    /* Even when the write fails: the archive is lost then, and no call brings it back. */
    w->left -= n;
    return n > 0 ? w->write(p, n, w->state, err) : TINKER_OK;
}

void tar_skip_data(struct tar_writer *w)
{
    w->left = 0;
}

tinker_status tar_finish(struct tar_writer *w, tinker_error *err)
{
    static const char zeros[2 * TAR_BLOCK];
    tinker_status s = end_entry(w, err);
    return s == TINKER_OK ? w->write(zeros, sizeof(zeros), w->state, err) : s;
}
