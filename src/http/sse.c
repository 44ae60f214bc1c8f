/* sse.c - see sse.h. */
#include "http/sse.h"

#include <string.h>
#include "base/err.h"

enum { NAME_MAX_BYTES = 1024, BOM_SEEN = 3 };

void sse_init(struct sse *s, size_t max, sse_callback *call, void *state)
{
    memset(s, 0, sizeof(*s));
    buf_init(&s->line, max);
    buf_init(&s->data, max);
    buf_init(&s->event, NAME_MAX_BYTES);
    buf_init(&s->id, NAME_MAX_BYTES);
    s->retry_ms = -1;
    s->call = call;
    s->state = state;
}

void sse_clear(struct sse *s)
{
    buf_clear(&s->line);
    buf_clear(&s->data);
    buf_clear(&s->event);
    buf_clear(&s->id);
}

/* ---- one line ------------------------------------------------------------------------- */

/* A blank line ends an event.  Without a data field there is nothing to deliver (HTML
 * standard, 9.2.6); the id stays for later events, name and data do not. */
static bool dispatch_event(struct sse *s)
{
    bool go_on = true;
    if (s->has_data) {
        const struct sse_event e = { s->event.len ? s->event.data : "message",
                                     s->data.data ? s->data.data : "", s->data.len,
                                     s->id.len ? s->id.data : "" };
        go_on = s->call(s->state, &e);
    }
    buf_reset(&s->data);
    buf_reset(&s->event);
    s->has_data = false;
    return go_on;
}

static void set_field(struct buf *b, const char *v, size_t n)
{
    buf_reset(b);
    buf_append(b, v, n);
}

/* Digits only; anything else is ignored, as the standard asks. */
static void set_retry(struct sse *s, const char *v, size_t n)
{
    int64_t ms = 0;
    for (size_t i = 0; i < n; i++) {
        if (v[i] < '0' || v[i] > '9' || ms > INT64_MAX / 16)
            return;
        ms = ms * 10 + (v[i] - '0');
    }
    if (n)
        s->retry_ms = ms;
}

/* An unknown field is ignored. */
static void take_field(struct sse *s, const char *name, size_t n, const char *v, size_t len)
{
    if (n == 4 && memcmp(name, "data", 4) == 0) {
        /* Several data fields are joined with line feeds. */
        if (s->has_data)
            buf_putc(&s->data, '\n');
        buf_append(&s->data, v, len);
        s->has_data = true;
    } else if (n == 5 && memcmp(name, "event", 5) == 0) {
        set_field(&s->event, v, len);
    } else if (n == 2 && memcmp(name, "id", 2) == 0) {
        /* An id with a NUL is ignored, as the standard asks. */
        if (!memchr(v, '\0', len))
            set_field(&s->id, v, len);
    } else if (n == 5 && memcmp(name, "retry", 5) == 0) {
        set_retry(s, v, len);
    }
}

static tinker_status end_line(struct sse *s, tinker_error *err)
{
    const char *line = s->line.data ? s->line.data : "";
    size_t n = s->line.len;
    if (n == 0)
        return dispatch_event(s)
                   ? TINKER_OK
                   : err_set(err, TINKER_ECANCELED, "nobody wants more of the stream");
    const char *colon = memchr(line, ':', n);
    size_t name = colon ? (size_t)(colon - line) : n;
    size_t at = colon ? name + 1 : n;
    /* One space after the colon belongs to the syntax, further ones to the value. */
    at += at < n && line[at] == ' ';
    if (name > 0) /* else a comment */
        take_field(s, line, name, line + at, n - at);
    buf_reset(&s->line);
    if (buf_ok(&s->data) && buf_ok(&s->event) && buf_ok(&s->id))
        return TINKER_OK;
    return err_set(err, TINKER_ENOMEM, "an event of the stream is too large");
}

/* ---- bytes ------------------------------------------------------------------------------ */

/* The mark may stand before the first line; what only looked like one belongs to the line. */
static size_t skip_mark(struct sse *s, const char *p, size_t n)
{
    static const char mark[] = "\xef\xbb\xbf";
    size_t used = 0;
    while (s->bom < BOM_SEEN && used < n) {
        if (p[used] != mark[s->bom]) {
            buf_append(&s->line, mark, s->bom);
            s->bom = BOM_SEEN;
            break;
        }
        used++;
        s->bom++;
    }
    return used;
}

static size_t line_length(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] != '\n' && p[i] != '\r')
        i++;
    return i;
}

/* Bytes arrive cut anywhere: line, after_cr and bom carry the state from one call to the
 * next. */
tinker_status sse_feed(struct sse *s, const char *p, size_t n, tinker_error *err)
{
    size_t i = skip_mark(s, p, n);
    while (i < n) {
        /* CR LF is one line end, even if the two come in different pieces. */
        if (s->after_cr && p[i] == '\n') {
            s->after_cr = false;
            i++;
            continue;
        }
        s->after_cr = false;
        size_t len = line_length(p + i, n - i);
        buf_append(&s->line, p + i, len);
        i += len;
        if (!buf_ok(&s->line))
            return err_set(err, TINKER_ENOMEM, "a line of the stream is too long");
        /* No line end yet: the rest waits in line for the next piece. */
        if (i == n)
            break;
        s->after_cr = p[i++] == '\r';
        tinker_status status = end_line(s, err);
        if (status != TINKER_OK)
            return status;
    }
    return TINKER_OK;
}
