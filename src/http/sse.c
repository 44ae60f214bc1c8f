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

static void set_field(struct buf *b, const char *v, size_t n)
{
    buf_reset(b);
    buf_append(b, v, n);
}

/* Interpret the line that is complete (HTML standard, 9.2.6). */
static tinker_status end_line(struct sse *s, tinker_error *err)
{
    const char *line = s->line.data ? s->line.data : "";
    size_t n = s->line.len;
    if (n == 0) {
        /* A blank line ends an event.  Without a data field there is nothing to deliver; the id
         * stays for later events, name and data do not. */
        bool more = true;
        if (s->has_data) {
            const struct sse_event e = { .event = s->event.len ? s->event.data : "message",
                                         .data = s->data.data ? s->data.data : "",
                                         .n = s->data.len,
                                         .id = s->id.len ? s->id.data : "" };
            more = s->call(s->state, &e);
        }
        buf_reset(&s->data);
        buf_reset(&s->event);
        s->has_data = false;
        if (!more)
            return err_set(err, TINKER_ECANCELED, "the receiver stopped the stream");
        return TINKER_OK;
    }
    const char *colon = memchr(line, ':', n);
    size_t name = colon ? (size_t)(colon - line) : n;
    size_t at = colon ? name + 1 : n;
    /* One space after the colon belongs to the syntax, further ones to the value. */
    at += at < n && line[at] == ' ';
    const char *value = line + at;
    size_t len = n - at;
    /* A line that begins with a colon is a comment; an unknown field is ignored. */
    if (name == 4 && memcmp(line, "data", 4) == 0) {
        /* Several data fields are joined with line feeds. */
        if (s->has_data)
            buf_putc(&s->data, '\n');
        buf_append(&s->data, value, len);
        s->has_data = true;
    } else if (name == 5 && memcmp(line, "event", 5) == 0) {
        set_field(&s->event, value, len);
    } else if (name == 2 && memcmp(line, "id", 2) == 0) {
        /* An id with a NUL is ignored, as the standard asks. */
        if (!memchr(value, '\0', len))
            set_field(&s->id, value, len);
    } else if (name == 5 && memcmp(line, "retry", 5) == 0) {
        /* Digits only; anything else is ignored, as the standard asks. */
        int64_t ms = 0;
        size_t i = 0;
        for (; i < len && value[i] >= '0' && value[i] <= '9' && ms <= INT64_MAX / 16; i++)
            ms = ms * 10 + (value[i] - '0');
        if (len && i == len)
            s->retry_ms = ms;
    }
    buf_reset(&s->line);
    if (buf_ok(&s->data) && buf_ok(&s->event) && buf_ok(&s->id))
        return TINKER_OK;
    return err_set(err, TINKER_ENOMEM, "an event of the stream is too large");
}

/* ---- bytes ------------------------------------------------------------------------------ */

/* Bytes arrive cut anywhere: line, after_cr and bom carry the state from one call to the
 * next. */
tinker_status sse_feed(struct sse *s, const char *p, size_t n, tinker_error *err)
{
    /* The mark may stand before the first line; what only looked like one belongs to the line. */
    static const char mark[] = "\xef\xbb\xbf";
    size_t i = 0;
    while (s->bom < BOM_SEEN && i < n) {
        if (p[i] != mark[s->bom]) {
            buf_append(&s->line, mark, s->bom);
            s->bom = BOM_SEEN;
            break;
        }
        i++;
        s->bom++;
    }
    while (i < n) {
        /* CR LF is one line end, even if the two come in different pieces. */
        if (s->after_cr && p[i] == '\n') {
            s->after_cr = false;
            i++;
            continue;
        }
        s->after_cr = false;
        size_t len = 0;
        while (i + len < n && p[i + len] != '\n' && p[i + len] != '\r')
            len++;
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
