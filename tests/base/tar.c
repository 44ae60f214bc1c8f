/* tar.c: what the writer makes, the reader takes back; what others make is not trusted. */
#include "base/tar.h"

#include <stdlib.h>
#include "base/buf.h"
#include "base/err.h"
#include "support/tap.h"

static tinker_status append_to_buf(const void *p, size_t n, void *state, tinker_error *err)
{
    buf_append(state, p, n);
    return buf_ok(state) ? TINKER_OK : err_nomem(err, "archive");
}

static tinker_status fail_to_write(const void *p, size_t n, void *state, tinker_error *err)
{
    (void)p, (void)n, (void)state;
    return err_set(err, TINKER_ESTATE, "the disk is full");
}

struct source {
    const struct buf *b;
    size_t at;
};

static tinker_status read_from_buf(void *out, size_t n, size_t *got, void *state, tinker_error *err)
{
    struct source *s = state;
    (void)err;
    *got = n < s->b->len - s->at ? n : s->b->len - s->at;
    if (*got)
        memcpy(out, s->b->data + s->at, *got);
    s->at += *got;
    return TINKER_OK;
}

static void open_reader(struct tar_reader *r, struct source *s, const struct buf *b)
{
    *s = (struct source){ .b = b };
    tar_reader_init(r, read_from_buf, s, b->len);
}

/* Compute the checksum of a header that was changed by hand. */
static void seal_header(char *h)
{
    unsigned sum = 0;
    memset(h + 148, ' ', 8);
    for (int i = 0; i < TAR_BLOCK; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
}

static void make_archive(struct buf *b)
{
    struct tar_writer w;
    buf_init(b, 1 << 20);
    tar_writer_init(&w, append_to_buf, b);
    CHECK_INT(tar_add_file(&w, "a", 5, 1700000000, NULL), TINKER_OK);
    CHECK_INT(tar_write(&w, "hel", 3, NULL), TINKER_OK);
    CHECK_INT(tar_write(&w, "lo", 2, NULL), TINKER_OK);
    CHECK_INT(tar_add_file(&w, "empty", 0, 0, NULL), TINKER_OK);
    CHECK_INT(tar_finish(&w, NULL), TINKER_OK);
}

/* The bytes of a header as POSIX lays them out: archives must not change between releases. */
static void test_header_bytes(void)
{
    struct buf b;
    make_archive(&b);
    CHECK_INT(b.len, 512 + 512 + 512 + 1024);
    CHECK_MEM(b.data, 2, "a\0", 2);
    CHECK_MEM(b.data + 100, 8, "000644 ", 8);
    CHECK_MEM(b.data + 108, 16,
              "000000 \0"
              "000000 ",
              16);
    CHECK_MEM(b.data + 124, 12, "00000000005 ", 12);
    CHECK_MEM(b.data + 136, 12, "14524770400 ", 12);
    CHECK_MEM(b.data + 154, 2, "\0 ", 2);
    CHECK_INT(b.data[156], '0');
    CHECK_MEM(b.data + 257, 8, "ustar\00000", 8);
    CHECK_MEM(b.data + 512, 6, "hello\0", 6);
    static const char zeros[1024];
    CHECK_MEM(b.data + b.len - 1024, 1024, zeros, 1024);
    buf_clear(&b);
}

static void test_round_trip(void)
{
    struct buf b;
    struct source s;
    struct tar_reader r;
    struct tar_entry e;
    bool end;
    char data[8];
    make_archive(&b);
    open_reader(&r, &s, &b);
    CHECK_INT(tar_next(&r, &e, &end, NULL), TINKER_OK);
    CHECK(!end && !e.is_dir && e.size == 5);
    CHECK_STR(e.name, "a");
    CHECK_INT(tar_read(&r, data, 2, NULL), TINKER_OK); /* the rest is skipped */
    CHECK_MEM(data, 2, "he", 2);
    CHECK_INT(tar_next(&r, &e, &end, NULL), TINKER_OK);
    CHECK_STR(e.name, "empty");
    CHECK_INT(e.size, 0);
    CHECK_INT(tar_next(&r, &e, &end, NULL), TINKER_OK);
    CHECK(end);
    CHECK_INT(s.at, b.len);
    buf_clear(&b);
}

/* Names of every length around the limits of ustar and of the digits of a pax record. */
static void test_long_names(void)
{
    static const size_t lengths[] = { 1, 99, 100, 101, 155, 256, 987, 988, 989, 1000, 1023 };
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        struct buf b;
        struct tar_writer w;
        struct source s;
        struct tar_reader r;
        struct tar_entry e;
        bool end = true;
        char name[TAR_NAME_SIZE] = "", data[3];
        memset(name, 'n', lengths[i]);
        buf_init(&b, 1 << 20);
        tar_writer_init(&w, append_to_buf, &b);
        CHECK_INT(tar_add_file(&w, name, 3, 0, NULL), TINKER_OK);
        CHECK_INT(tar_write(&w, "abc", 3, NULL), TINKER_OK);
        CHECK_INT(tar_finish(&w, NULL), TINKER_OK);
        open_reader(&r, &s, &b);
        CHECK_INT(tar_next(&r, &e, &end, NULL), TINKER_OK);
        CHECK(!end);
        CHECK_STR(e.name, name);
        CHECK_INT(tar_read(&r, data, 3, NULL), TINKER_OK);
        CHECK_MEM(data, 3, "abc", 3);
        CHECK_INT(tar_next(&r, &e, &end, NULL), TINKER_OK);
        CHECK(end);
        buf_clear(&b);
    }
}

/* A size beyond eleven octal digits goes into a pax header; nothing of that size is written. */
static void test_huge_size(void)
{
    const uint64_t huge = (uint64_t)1 << 33;
    struct buf b;
    struct tar_writer w;
    struct source s;
    struct tar_reader r;
    struct tar_entry e;
    bool end;
    buf_init(&b, 1 << 20);
    tar_writer_init(&w, append_to_buf, &b);
    CHECK_INT(tar_add_file(&w, "huge", huge, 0, NULL), TINKER_OK);
    CHECK_INT(tar_finish(&w, NULL), TINKER_ESTATE);
    CHECK_MEM(b.data + 512, 19, "19 size=8589934592\n", 19);
    open_reader(&r, &s, &b);
    CHECK_INT(tar_next(&r, &e, &end, NULL), TINKER_EINVAL); /* longer than the archive */
    s.at = 0;
    tar_reader_init(&r, read_from_buf, &s, TAR_LENGTH_UNKNOWN);
    CHECK_INT(tar_next(&r, &e, &end, NULL), TINKER_OK);
    CHECK(e.size == huge);
    buf_clear(&b);
}

static void test_writer_errors(void)
{
    struct buf b;
    struct tar_writer w;
    char name[TAR_NAME_SIZE + 1];
    tinker_error err = { 0 };
    buf_init(&b, 1 << 20);
    tar_writer_init(&w, append_to_buf, &b);
    memset(name, 'n', sizeof(name));
    name[TAR_NAME_SIZE] = '\0';
    CHECK_INT(tar_add_file(&w, name, 0, 0, &err), TINKER_EINVAL);
    CHECK_INT(tar_add_file(&w, "", 0, 0, &err), TINKER_EINVAL);
    CHECK_INT(tar_add_file(&w, "a", 2, 0, &err), TINKER_OK);
    CHECK_INT(tar_write(&w, "abc", 3, &err), TINKER_ESTATE);
    CHECK(strstr(err.message, "longer"));
    CHECK_INT(tar_write(&w, "a", 1, &err), TINKER_OK);
    CHECK_INT(tar_add_file(&w, "b", 0, 0, &err), TINKER_ESTATE);
    CHECK(strstr(err.message, "shorter"));
    tar_writer_init(&w, fail_to_write, NULL);
    CHECK_INT(tar_add_file(&w, "a", 2, 0, &err), TINKER_ESTATE);
    CHECK_STR(err.message, "the disk is full");
    buf_clear(&b);
}

/* The status of reading the archive to its end. */
static tinker_status read_all(const struct buf *b, uint64_t length, tinker_error *err)
{
    struct source s = { .b = b };
    struct tar_reader r;
    struct tar_entry e;
    bool end = false;
    tar_reader_init(&r, read_from_buf, &s, length);
    tinker_status status = TINKER_OK;
    while (status == TINKER_OK && !end)
        status = tar_next(&r, &e, &end, err);
    return status;
}

static void test_hostile_names_and_types(void)
{
    static const struct {
        const char *name;
        char type;
        const char *says; /* NULL: taken */
    } cases[] = {
        { "../escape", '0', "leads out" },
        { "a/../b", '0', "leads out" },
        { "/etc/passwd", '0', "leads out" },
        { "a//b", '0', "leads out" },
        { "a/./b", '0', "leads out" },
        { "..", '5', "leads out" },
        { "a\nb", '0', "leads out" },
        { "hard", '1', "link" },
        { "soft", '2', "link" },
        { "character", '3', "device" },
        { "block", '4', "device" },
        { "fifo", '6', "device" },
        { "./", '2', "link" },
        { "./", '5', NULL },
        { "./a/b/", '5', NULL },
        { "contiguous", '7', NULL },
        { "old", '\0', NULL },
        { "..a", '0', NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buf b;
        tinker_error err = { 0 };
        make_archive(&b);
        char *h = b.data + 1024; /* of the second entry */
        memset(h, 0, 100);
        snprintf(h, 100, "%s", cases[i].name);
        h[156] = cases[i].type;
        seal_header(h);
        tinker_status s = read_all(&b, b.len, &err);
        CHECK_INT(s, cases[i].says ? TINKER_EINVAL : TINKER_OK);
        if (cases[i].says && !strstr(err.message, cases[i].says))
            TAP_FAIL("%s: %s", cases[i].name, err.message);
        buf_clear(&b);
    }
}

/* Cut off anywhere, or with any header byte changed: an error or the same entries, never a crash. */
static void test_damage(void)
{
    struct buf b;
    tinker_error err;
    make_archive(&b);
    size_t whole = b.len;
    for (b.len = 0; b.len < 1536; b.len++) {
        bool between = b.len > 516 && b.len <= 1024; /* one whole entry, its padding may miss */
        CHECK_INT(read_all(&b, b.len, &err), between ? TINKER_OK : TINKER_EINVAL);
        CHECK_INT(read_all(&b, TAR_LENGTH_UNKNOWN, &err), between ? TINKER_OK : TINKER_EINVAL);
    }
    b.len = whole;
    for (size_t i = 0; i < 512; i++) {
        b.data[i] ^= 0x41;
        read_all(&b, b.len, &err);
        b.data[i] ^= 0x41;
    }
    memset(b.data, 0, b.len);
    CHECK_INT(read_all(&b, b.len, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "empty"));
    buf_clear(&b);
}

static void test_malformed_pax(void)
{
    static const struct {
        const char *text;
        bool fine;
    } cases[] = {
        { "10 path=b\n", true },     { "8 path=b\n", false },    { "11 path=b\n", false },
        { "path=b\n", false },       { "0 path=b\n", false },    { "10 path=b ", false },
        { "9 size=5\n", true },      { "10 size=-5\n", false },  { "10 size=5x\n", false },
        { "12 mtime=1.5\n", false }, { "13 mtime=1.5\n", true }, { "99999999999999999999", false },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buf b;
        struct tar_writer w;
        tinker_error err = { 0 };
        size_t n = strlen(cases[i].text);
        buf_init(&b, 1 << 20);
        tar_writer_init(&w, append_to_buf, &b);
        tar_add_file(&w, "PaxHeader", n, 0, NULL);
        tar_write(&w, cases[i].text, n, NULL);
        tar_add_file(&w, "a", 5, 0, NULL);
        tar_write(&w, "hello", 5, NULL);
        tar_finish(&w, NULL);
        b.data[156] = 'x';
        seal_header(b.data);
        CHECK_INT(read_all(&b, b.len, &err), cases[i].fine ? TINKER_OK : TINKER_EINVAL);
        if (cases[i].fine != !err.message[0])
            TAP_FAIL("%s: %s", cases[i].text, err.message);
        buf_clear(&b);
    }
}

static void test_too_many_entries(void)
{
    struct buf b;
    struct tar_writer w;
    tinker_error err = { 0 };
    buf_init(&b, (size_t)(TAR_ENTRIES_MAX + 4) * TAR_BLOCK);
    tar_writer_init(&w, append_to_buf, &b);
    for (int i = 0; i <= TAR_ENTRIES_MAX; i++)
        tar_add_file(&w, "a", 0, 0, NULL);
    CHECK_INT(read_all(&b, b.len, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "too many"));
    b.len -= TAR_BLOCK;
    CHECK_INT(read_all(&b, b.len, &err), TINKER_OK);
    buf_clear(&b);
}

int main(void)
{
    RUN(test_header_bytes);
    RUN(test_round_trip);
    RUN(test_long_names);
    RUN(test_huge_size);
    RUN(test_writer_errors);
    RUN(test_hostile_names_and_types);
    RUN(test_damage);
    RUN(test_malformed_pax);
    RUN(test_too_many_entries);
    return tap_done();
}
