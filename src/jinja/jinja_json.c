/* jinja_json.c - values from JSON, and JSON as Python's json.dumps writes it.
 *
 * Key order is kept, a repeated key keeps its first place and takes the last value,
 * floats are the shortest text that reads back, integers beyond 64 bits keep their
 * digits.  Thread: the one that owns the jx. */
#include "base/array.h"
#include "jinja/jinja_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/utf8.h"
#include "json/json.h"

/* Recursion is bounded by the reader, which refuses more than 64 levels. */
static struct jv load_value(struct jx *x, struct json_reader *r);

/* Python distinguishes 1 and 1.0; so does the reader, by the spelling: a point or an exponent makes
 * a float, even in 1e2. The raw text is then read again, as the kind that it turned out to be. */
static struct jv load_number(struct jx *x, struct json_reader *r)
{
    struct json_str raw;
    if (!json_raw(r, &raw))
        return jv_undefined(NULL);
    bool real = false;
    for (size_t i = 0; i < raw.n; i++)
        real = real || raw.s[i] == '.' || raw.s[i] == 'e' || raw.s[i] == 'E';
    struct json_reader one;
    json_reader_init(&one, raw.s, raw.n, x->arena);
    if (real) {
        double f = 0;
        if (!json_double(&one, &f)) /* 1e999: Python reads infinity */
            f = raw.s[0] == '-' ? -HUGE_VAL : HUGE_VAL;
        return jv_float(f);
    }
    int64_t i;
    /* Python's integers have no limit; one beyond 64 bits is kept as its digits. */
    if (json_int64(&one, &i))
        return jv_int(i);
    struct jv v = jv_str_copy(x, raw.s, raw.n);
    v.kind = JV_BIG;
    return v;
}

/* The next value of any kind. Strings are copied: the reader may lend them from the input, which
 * need not live as long as the arena. On a syntax error r fails, not x, and jv_loads() drops what
 * was read so far. */
static struct jv load_value(struct jx *x, struct json_reader *r)
{
    bool b = false;
    struct json_str s = { "", 0 };
    struct jv out;
    static const struct {
        const char *word;
        double value;
    } words[] = { { "NaN", NAN }, { "Infinity", INFINITY }, { "-Infinity", -INFINITY } };
    if (!jx_step(x, 1))
        return jv_undefined(NULL);
    /* NaN and Infinity are no JSON (RFC 8259, section 6), but Python writes and reads them. To the
     * reader "-Infinity" begins like a number and the other two like nothing at all. */
    enum json_kind kind = json_peek(r);
    for (size_t i = 0; i < ARRAY_LEN(words) && !r->failed; i++) {
        size_t n = strlen(words[i].word);
        if ((kind == JSON_NUMBER || kind == JSON_NONE) && (size_t)(r->end - r->p) >= n &&
            memcmp(r->p, words[i].word, n) == 0) {
            r->p += n;
            return jv_float(words[i].value);
        }
    }
    switch (kind) {
    case JSON_NULL:
        json_null(r);
        return jv_none();
    case JSON_BOOL:
        json_bool(r, &b);
        return jv_bool(b);
    case JSON_NUMBER:
        return load_number(x, r);
    case JSON_STRING:
        return json_string(r, &s) ? jv_str_copy(x, s.s, s.n) : jv_undefined(NULL);
    case JSON_ARRAY:
        out = jv_list_new(x);
        json_begin_array(r);
        while (!x->failed && json_next_item(r))
            jv_push(x, out, load_value(x, r));
        return out;
    case JSON_OBJECT:
        out = jv_dict_new(x);
        json_begin_object(r);
        while (!x->failed && json_next_key(r, &s)) {
            struct jv key = jv_str_copy(x, s.s, s.n); /* reading the value reuses s */
            /* json.loads() keeps the last of repeated keys; so does jv_put(). */
            jv_put(x, out, key, load_value(x, r));
        }
        return out;
    default:
        json_skip(r); /* records what is wrong */
        return jv_undefined(NULL);
    }
}

/* A failure of the text is the caller's to judge, who may keep the text as it is (arguments of a
 * tool call need not be JSON); only memory and limits make x fail. Text after the value is an
 * error. */
struct jv jv_loads(struct jx *x, const char *s, size_t n, const char **why)
{
    struct json_reader r;
    json_reader_init(&r, s, n, x->arena);
    struct jv v = load_value(x, &r);
    if (x->failed || json_end(&r))
        return x->failed ? jv_undefined(NULL) : v;
    /* The reader's message is in r, on this stack: the caller gets a copy in the arena. */
    if (why) {
        struct jv copy = jv_str_copy(x, json_error(&r), strlen(json_error(&r)));
        *why = copy.str.s;
    }
    return jv_undefined(NULL);
}

/* ---- writing ---- */

/* Escapes as json.dumps(): short ones where they exist, \u00XX for other control characters, and
 * with ensure_ascii \uXXXX, in pairs of surrogates beyond the BMP. 0x7f counts as non-ASCII only
 * there. */
static void dump_string(struct buf *out, struct jv_str s, bool ascii)
{
    buf_putc(out, '"');
    for (size_t i = 0; i < s.n;) {
        unsigned char c = (unsigned char)s.s[i];
        uint32_t cp = c;
        int len = c < 0x80 ? 1 : utf8_decode(s.s + i, s.n - i, &cp);
        /* Values hold valid UTF-8. If a byte is not, it becomes \ufffd with ensure_ascii and is
         * copied otherwise. */
        if (len == 0) {
            cp = 0xfffd;
            len = 1;
        }
        static const char shorts[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
        const char *found = cp && cp < 0x80 ? strchr(shorts, (int)cp) : NULL;
        if (found)
            buf_printf(out, "\\%c", letters[found - shorts]);
        else if (cp < 0x20 || (ascii && cp > 0x7e && cp < 0x10000))
            buf_printf(out, "\\u%04x", (unsigned)cp);
        /* UTF-16, as RFC 8259, section 7, wants it: the 20 bits of cp - 0x10000 in two halves. */
        else if (ascii && cp >= 0x10000)
            buf_printf(out, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((cp - 0x10000) >> 10)),
                       (unsigned)(0xdc00 + ((cp - 0x10000) & 0x3ff)));
        else
            buf_append(out, s.s + i, (size_t)len);
        i += (size_t)len;
    }
    buf_putc(out, '"');
}

/* One call of jv_dump(): where to write and how. The separators are borrowed: literals, or text in
 * the arena. */
struct dumper {
    struct jx *x;
    struct buf *out;
    struct jv_dumps how;
    const char *item_sep, *key_sep;
};

static void dump_value(struct dumper *d, struct jv v, int level);

/* With an indent, each item begins a line of its own; without, nothing is written. An indent of 0
 * breaks lines as well: only -1 means one line, as Python's None. */
static void put_newline(struct dumper *d, int level)
{
    /* Blanks cost no steps: the buffer's limit ends a deep value with a wide indent. */
    if (d->how.indent < 0)
        return;
    buf_putc(d->out, '\n');
    for (int i = 0; i < level * d->how.indent && buf_ok(d->out); i++)
        buf_putc(d->out, ' ');
}

/* An empty list is "[]" even with an indent, as Python writes it. */
static void dump_list(struct dumper *d, struct jv v, int level)
{
    if (v.list->n == 0) {
        buf_puts(d->out, "[]");
        return;
    }
    buf_putc(d->out, '[');
    for (size_t i = 0; i < v.list->n && !d->x->failed; i++) {
        if (i > 0)
            buf_puts(d->out, d->item_sep);
        put_newline(d, level + 1);
        dump_value(d, v.list->items[i], level + 1);
    }
    put_newline(d, level);
    buf_putc(d->out, ']');
}

/* By bytes, which is by code points, as Python's sort_keys. */
static int compare_pairs(const void *a, const void *b)
{
    const struct jv_pair *p = a, *q = b;
    size_t n = p->key.str.n < q->key.str.n ? p->key.str.n : q->key.str.n;
    int c = n ? memcmp(p->key.str.s, q->key.str.s, n) : 0;
    return c ? c : (p->key.str.n > q->key.str.n) - (p->key.str.n < q->key.str.n);
}

/* Keys in insertion order, or sorted; those that are not text are written as text. */
static void dump_dict(struct dumper *d, struct jv v, int level)
{
    struct jv_pair *pairs = v.dict->pairs;
    size_t n = v.dict->n;
    if (n == 0) {
        buf_puts(d->out, "{}");
        return;
    }
    /* Keys of several types are compared as text, where Python refuses to sort them. The pairs are
     * copied, because the order of the value itself must not change. */
    if (d->how.sort_keys) {
        pairs = arena_memdup(d->x->arena, pairs, n * sizeof(*pairs));
        /* A failure of jv_to_str() is x's own already; jx_nomem() then changes nothing. */
        for (size_t i = 0; pairs && i < n; i++)
            pairs[i].key = jv_to_str(d->x, pairs[i].key);
        if (!pairs || d->x->failed) {
            jx_nomem(d->x);
            return;
        }
        qsort(pairs, n, sizeof(*pairs), compare_pairs);
    }
    buf_putc(d->out, '{');
    for (size_t i = 0; i < n && !d->x->failed; i++) {
        if (i > 0)
            buf_puts(d->out, d->item_sep);
        put_newline(d, level + 1);
        if (pairs[i].key.kind == JV_STRING) {
            dump_string(d->out, pairs[i].key.str, d->how.ascii);
        } else { /* keys of JSON are strings: 1 becomes "1", None becomes "null" */
            buf_putc(d->out, '"');
            dump_value(d, pairs[i].key, 0);
            buf_putc(d->out, '"');
        }
        buf_puts(d->out, d->key_sep);
        dump_value(d, pairs[i].value, level + 1);
    }
    put_newline(d, level);
    buf_putc(d->out, '}');
}

/* Writes one value of any kind. The level bounds recursion; steps bound the output of a value whose
 * parts are shared, since each occurrence is written again: 60 levels of [a, a] are 2^60 items. */
static void dump_value(struct dumper *d, struct jv v, int level)
{
    if (!jx_step(d->x, 1))
        return;
    if (level > JV_DEPTH_MAX) {
        jx_fail(d->x, "value nested too deeply");
        return;
    }
    if (!buf_ok(d->out)) {
        jx_nomem(d->x);
        return;
    }
    /* A view of a dict is refused like a method: json.dumps() cannot write either. */
    switch (jv_is_view(v) ? JV_METHOD : v.kind) {
    case JV_NONE:
        buf_puts(d->out, "null");
        break;
    case JV_BOOL:
        buf_puts(d->out, v.b ? "true" : "false");
        break;
    case JV_INT:
    case JV_BIG:
        jv_repr(d->x, d->out, v);
        break;
    case JV_FLOAT:
        /* What JSON has no words for is written as Python writes it. */
        if (isnan(v.f))
            buf_puts(d->out, "NaN");
        else if (isinf(v.f))
            buf_puts(d->out, v.f > 0 ? "Infinity" : "-Infinity");
        else
            jv_repr(d->x, d->out, v);
        break;
    case JV_STRING:
        dump_string(d->out, v.str, d->how.ascii);
        break;
    case JV_LIST:
    case JV_TUPLE:
        dump_list(d, v, level);
        break;
    case JV_DICT:
        dump_dict(d, v, level);
        break;
    /* Undefined, too: a misspelled variable must not end up in a prompt as null. */
    default:
        jx_fail(d->x, "object of type %s is not JSON serializable", jv_type_name(v));
    }
}

/* Python's defaults: ", " and ": ", but "," at the ends of lines that an indent makes, so that no
 * line ends in a blank. */
void jv_dump(struct jx *x, struct buf *out, struct jv v, const struct jv_dumps *how)
{
    struct dumper d = { .x = x, .out = out, .how = *how };
    d.item_sep = how->item_sep ? how->item_sep : how->indent >= 0 ? "," : ", ";
    d.key_sep = how->key_sep ? how->key_sep : ": ";
    dump_value(&d, v, 0);
    if (!buf_ok(out))
        jx_nomem(x);
}
