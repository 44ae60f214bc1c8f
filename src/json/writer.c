/* writer.c - the append-only writer.
 *
 * The only state is whether the next thing needs a comma.  Numbers are formatted
 * on the stack and appended, arrays of them in runs, so that the buffer's maximum
 * is met exactly and nothing else is allocated. */
#include <math.h>
#include <string.h>
#include "base/utf8.h"
#include "json/json.h"
#include "json/scan.h"
#include "json/shortest.h"

void json_writer_init(struct json_writer *w, struct buf *out)
{
    *w = (struct json_writer){ .out = out };
}

/* Append a whole value or an opening, with the comma before it. */
static void put_value(struct json_writer *w, const char *s, size_t n)
{
    if (w->need_comma)
        buf_putc(w->out, ',');
    buf_append(w->out, s, n);
    w->need_comma = true;
}

void json_put_begin_object(struct json_writer *w)
{
    put_value(w, "{", 1);
    w->need_comma = false;
}

void json_put_end_object(struct json_writer *w)
{
    w->need_comma = false; /* none before a bracket; after it, as after any value */
    put_value(w, "}", 1);
}

void json_put_begin_array(struct json_writer *w)
{
    put_value(w, "[", 1);
    w->need_comma = false;
}

void json_put_end_array(struct json_writer *w)
{
    w->need_comma = false;
    put_value(w, "]", 1);
}

void json_put_null(struct json_writer *w)
{
    put_value(w, "null", 4);
}

void json_put_bool(struct json_writer *w, bool v)
{
    put_value(w, v ? "true" : "false", v ? 4 : 5);
}

void json_put_int64(struct json_writer *w, int64_t v)
{
    char text[SHORTEST_MAX];
    put_value(w, text, shortest_int64(v, text));
}

void json_put_uint64(struct json_writer *w, uint64_t v)
{
    char text[SHORTEST_MAX];
    put_value(w, text, shortest_uint64(v, text));
}

/* NaN and infinity fail the buffer: there is no JSON for them, and a silent null would be a lie. */
void json_put_double(struct json_writer *w, double v)
{
    char text[SHORTEST_MAX];
    if (isfinite(v))
        put_value(w, text, shortest_double(v, text));
    else
        w->out->failed = true;
}

void json_put_float(struct json_writer *w, float v)
{
    char text[SHORTEST_MAX];
    if (isfinite(v))
        put_value(w, text, shortest_float(v, text));
    else
        w->out->failed = true;
}

/* json is one complete value; it is not checked. */
void json_put_raw(struct json_writer *w, const char *json, size_t n)
{
    put_value(w, json, n);
}

/* The one character at s that is not plain, escaped; returns its length in s. */
static size_t put_special(struct buf *out, const char *s, size_t n)
{
    /* The two-letter escapes of RFC 8259, section 7; other control characters get \u00xx. */
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    unsigned char c = (unsigned char)*s;
    if (c >= 0x80) {
        uint32_t cp;
        int len = utf8_decode(s, n, &cp);
        buf_append(out, len ? s : "\xef\xbf\xbd", len ? (size_t)len : 3);
        return len ? (size_t)len : 1;
    }
    const char *known = c ? strchr(from, c) : NULL;
    char escape[6] = {
        '\\', 'u', '0', '0', "0123456789abcdef"[c >> 4], "0123456789abcdef"[c & 15]
    };
    if (known)
        escape[1] = to[known - from];
    buf_append(out, escape, known ? 2 : 6);
    return 1;
}

/* A string in quotes.  Most have nothing to escape, and are copied in one go. */
static void put_quoted(struct buf *out, const char *s, size_t n)
{
    const char *end = s + n, *special = scan_plain(s, end);
    if (special == end && n < SIZE_MAX - 2 && buf_reserve(out, n + 2)) { /* nearly always */
        char *p = out->data + out->len;
        *p = '"';
        memcpy(p + 1, s, n);
        memcpy(p + n + 1, "\"", 2);
        out->len += n + 2;
        return;
    }
    buf_putc(out, '"');
    while (s < end) {
        special = scan_plain(s, end);
        buf_append(out, s, (size_t)(special - s));
        s = special;
        if (s < end)
            s += put_special(out, s, (size_t)(end - s));
    }
    buf_putc(out, '"');
}

void json_put_string_n(struct json_writer *w, const char *s, size_t n)
{
    /* As put_value(), but the text is escaped on its way. */
    if (w->need_comma)
        buf_putc(w->out, ',');
    put_quoted(w->out, s, n);
    w->need_comma = true;
}

void json_put_string(struct json_writer *w, const char *s)
{
    json_put_string_n(w, s, strlen(s));
}

void json_put_key_n(struct json_writer *w, const char *key, size_t n)
{
    /* The value behind the colon gets no comma. */
    json_put_string_n(w, key, n);
    buf_putc(w->out, ':');
    w->need_comma = false;
}

void json_put_key(struct json_writer *w, const char *key)
{
    json_put_key_n(w, key, strlen(key));
}

enum { RUN = 64 }; /* numbers formatted between two appends */

/* Text of v[i] at out, its length; 0: JSON has none. */
typedef size_t put_item(const void *v, size_t i, char *out);

/* One loop for all types: inlined, so that each has its own with no call in it. */
static inline __attribute__((always_inline)) void put_array(struct json_writer *w, const void *v,
                                                            size_t n, put_item *item)
{
    char text[RUN * SHORTEST_MAX];
    json_put_begin_array(w);
    for (size_t i = 0; i < n && buf_ok(w->out);) {
        char *p = text;
        for (size_t stop = n - i < RUN ? n : i + RUN; i < stop; i++) {
            size_t len = item(v, i, p);
            if (len == 0) {
                w->out->failed = true;
                return;
            }
            p += len;
            *p++ = ',';
        }
        /* The first run tells how much the rest will need: reserved at once, a large array is not
         * copied as the buffer grows.  A guess beyond the maximum is not made. */
        size_t len = (size_t)(p - text), space = w->out->max - w->out->len;
        if (i == RUN && n / RUN < space / (len + len / 16 + 1))
            buf_reserve(w->out, (n / RUN + 1) * (len + len / 16));
        buf_append(w->out, text, len - (i == n)); /* the last number has no comma */
    }
    json_put_end_array(w);
}

static inline size_t item_int64(const void *v, size_t i, char *out)
{
    return shortest_int64(((const int64_t *)v)[i], out);
}

static inline size_t item_int32(const void *v, size_t i, char *out)
{
    return shortest_int64(((const int32_t *)v)[i], out);
}

static inline size_t item_float(const void *v, size_t i, char *out)
{
    float f = ((const float *)v)[i];
    return isfinite(f) ? shortest_float(f, out) : 0;
}

void json_put_array_int64(struct json_writer *w, const int64_t *v, size_t n)
{
    put_array(w, v, n, item_int64);
}

void json_put_array_int32(struct json_writer *w, const int32_t *v, size_t n)
{
    put_array(w, v, n, item_int32);
}

void json_put_array_float(struct json_writer *w, const float *v, size_t n)
{
    put_array(w, v, n, item_float);
}
