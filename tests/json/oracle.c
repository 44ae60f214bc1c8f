/* oracle.c - our reader and writer against libjansson on random documents, good and broken. */
#include "base/rand.h"
#include "support/jansson.h"
#include "support/json_again.h"
#include "support/tap.h"

static struct rng rng;

static unsigned random_below(unsigned n)
{
    return (unsigned)(rng_next(&rng) % n);
}

static void random_string(struct buf *b)
{
    static const char *const pieces[] = { "a",        "key",          " ",
                                          "\\n",      "\\\"",         "\\\\",
                                          "\\u00e9",  "\\u20ac",      "\\ud83d\\ude00",
                                          "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                          "/",        "\\/",          "0123456789abcdef" };
    buf_putc(b, '"');
    for (unsigned n = random_below(6); n; n--)
        buf_puts(b, pieces[random_below(sizeof pieces / sizeof *pieces)]);
    buf_putc(b, '"');
}

static void random_number(struct buf *b)
{
    switch (random_below(5)) {
    case 0:
        buf_printf(b, "%d", (int)random_below(2001) - 1000);
        break;
    case 1:
        buf_printf(b, "%lld", (long long)(rng_next(&rng) >> random_below(64)) >> 1);
        break;
    case 2:
        buf_printf(b, "%.17g", (rng_uniform(&rng) - 0.5) * 100);
        break;
    case 3:
        buf_printf(b, "%d.%ue%d", (int)random_below(20) - 10, random_below(100000),
                   (int)random_below(600) - 300);
        break;
    default:
        buf_printf(b, "%uE%+d", 1 + random_below(9), (int)random_below(40) - 20);
    }
}

static void random_value(struct buf *b, int depth)
{
    static const char *const gaps[] = { "", "", "", " ", "\n\t" };
    unsigned kind = random_below(depth > 4 ? 5 : 8), n = random_below(5);
    buf_puts(b, gaps[random_below(5)]);
    if (kind == 0)
        buf_puts(b, random_below(2) ? "true" : "false");
    else if (kind == 1)
        buf_puts(b, "null");
    else if (kind == 2)
        random_string(b);
    else if (kind <= 4)
        random_number(b);
    else {
        bool object = kind == 5;
        buf_putc(b, object ? '{' : '[');
        for (unsigned i = 0; i < n; i++) {
            if (i)
                buf_putc(b, ',');
            if (object) {
                random_string(b);
                buf_puts(b, gaps[random_below(5)]);
                buf_putc(b, ':');
            }
            random_value(b, depth + 1);
        }
        buf_puts(b, gaps[random_below(5)]);
        buf_putc(b, object ? '}' : ']');
    }
    buf_puts(b, gaps[random_below(5)]);
}

/* Our copy of the text in *out; false when our reader refuses it. */
static bool copy_value(const char *s, size_t n, struct buf *out)
{
    struct arena a;
    struct json_reader r;
    struct json_writer w;
    arena_init(&a, 1 << 20);
    json_reader_init(&r, s, n, &a);
    json_writer_init(&w, out);
    bool ok = json_again(&r, &w) && json_end(&r) && buf_ok(out);
    arena_clear(&a);
    return ok;
}

static json_t *load_jansson(const char *s, size_t n)
{
    return json_loadb(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

static void check_document(const char *s, size_t n)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    bool ok = copy_value(s, n, &out);
    json_t *theirs = load_jansson(s, n);
    if (ok != (theirs != NULL))
        TAP_FAIL("ours %s, jansson %s: %.*s", ok ? "takes" : "refuses",
                 theirs ? "takes" : "refuses", (int)n, s);
    if (ok && theirs) {
        json_t *ours = load_jansson(out.data, out.len);
        if (!ours || !json_equal(ours, theirs))
            TAP_FAIL("copied %.*s to %s", (int)n, s, out.data);
        json_decref(ours);
        /* and what they write, we read as the same */
        char *dump = json_dumps(theirs, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        struct buf again;
        buf_init(&again, 1 << 20);
        if (!dump || !copy_value(dump, strlen(dump), &again))
            TAP_FAIL("refused %s", dump ? dump : "(nothing)");
        json_t *back = load_jansson(again.data, again.len);
        if (!back || !json_equal(back, theirs))
            TAP_FAIL("read %s as %s", dump, again.data);
        json_decref(back);
        buf_clear(&again);
        free(dump);
    }
    json_decref(theirs);
    buf_clear(&out);
}

static void test_good_documents(void)
{
    rng_seed(&rng, 1);
    for (int i = 0; i < 3000; i++) {
        struct buf b;
        buf_init(&b, 1 << 20);
        random_value(&b, 0);
        check_document(b.data, b.len);
        buf_clear(&b);
    }
}

/* One byte changed, removed or doubled: both must agree on what is still JSON. */
static void test_broken_documents(void)
{
    static const char bytes[] = "{}[],:\"\\0123456789eE+-. tfn\n\x01\x80\xc3";
    rng_seed(&rng, 2);
    for (int i = 0; i < 20000; i++) {
        struct buf b;
        buf_init(&b, 1 << 20);
        random_value(&b, 2);
        size_t at = random_below((unsigned)b.len);
        switch (random_below(3)) {
        case 0:
            b.data[at] = bytes[random_below(sizeof bytes - 1)];
            break;
        case 1:
            memmove(b.data + at, b.data + at + 1, b.len - at);
            b.len--;
            break;
        default:
            buf_putc(&b, ' ');
            memmove(b.data + at + 1, b.data + at, b.len - at - 1);
        }
        /* the two differ by design on integers beyond 64 bits: ours become doubles */
        size_t digits = 0, most = 0;
        for (size_t k = 0; k < b.len; k++) {
            digits = b.data[k] >= '0' && b.data[k] <= '9' ? digits + 1 : 0;
            most = digits > most ? digits : most;
        }
        if (b.len && most < 18)
            check_document(b.data, b.len);
        buf_clear(&b);
    }
}

int main(void)
{
    RUN(test_good_documents);
    RUN(test_broken_documents);
    return tap_done();
}
