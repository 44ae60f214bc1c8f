/* access_log.c - see access_log.h. */
#include "server/http/access_log.h"

#include <string.h>

enum { VALUE_MAX = 256, LINE_MAX_BYTES = 4096 };

/* May the character stand unquoted, so that a line splits at blanks and equals signs? */
static bool is_plain_char(unsigned char c)
{
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
}

/* Append name=value, quoted and escaped if needed: the value may come from a client. */
static void put_word(struct buf *b, const char *name, const char *value)
{
    if (!value)
        return;
    /* Cut long values: a path may be as long as the library allows. */
    size_t n = strnlen(value, VALUE_MAX), plain = 0;
    while (plain < n && is_plain_char((unsigned char)value[plain]))
        plain++;
    buf_printf(b, "%s%s=", b->len ? " " : "", name);
    if (plain == n && n) {
        buf_append(b, value, n);
        return;
    }
    buf_putc(b, '"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)value[i];
        if (is_plain_char(c) || c == ' ' || c == '=')
            buf_putc(b, (char)c);
        else
            buf_printf(b, "\\x%02x", c);
    }
    buf_putc(b, '"');
}

static void put_ms(struct buf *b, const char *name, int64_t ns)
{
    buf_printf(b, " %s=%.1f", name, (double)ns / 1e6);
}

void access_log_write(const struct log *log, const struct request *req,
                      const struct access_entry *a)
{
    struct buf b;
    /* Formatting costs more than answering a heartbeat: skip it when nobody reads the log. */
    if (!log || !log->sink || log->level > LOG_INFO)
        return;
    buf_init(&b, LINE_MAX_BYTES);
    put_word(&b, "method", req->method);
    put_word(&b, "path", req->path);
    buf_printf(&b, " status=%d", a->status);
    put_ms(&b, "ms", a->ns);
    buf_printf(&b, " in=%llu out=%llu", (unsigned long long)a->n_in, (unsigned long long)a->n_out);
    put_word(&b, "user", req->user);
    put_word(&b, "model", req->model);
    if (req->tokens)
        buf_printf(&b, " tokens=%lld", (long long)req->tokens);
    /* Only a request that fetches a finished future knows these. */
    if (req->queue_ns || req->compute_ns) {
        put_ms(&b, "queue_ms", req->queue_ns);
        put_ms(&b, "compute_ms", req->compute_ns);
    }
    if (a->aborted)
        buf_puts(&b, " aborted=1");
    if (buf_ok(&b))
        log_line(log, LOG_INFO, "%s", b.data);
    buf_clear(&b);
}
