/* multipart.c - see <tinker/multipart.h>.  The boundary is random, 128 bits: no content has it by
 * accident, and cannot be guessed. */
#include <tinker/extra/http.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/os.h"
#include "base/rand.h"
#include "client/call/call_options.h"

struct tinker_multipart {
    char boundary[40];
    char content_type[96];
    struct buf body;
    struct buf headers; /* of the next part: "\r\nName: value" each */
    bool complete;
};

tinker_multipart *tinker_multipart_new(tinker_error *err)
{
    unsigned char raw[16];
    if (rand_os(raw, sizeof(raw)) != 0) {
        err_set(err, TINKER_ESTATE, "the system gives no random numbers");
        return NULL;
    }
    tinker_multipart *m = calloc(1, sizeof(*m));
    if (!m) {
        err_nomem(err, "multipart body");
        return NULL;
    }
    for (size_t i = 0; i < sizeof(raw); i++)
        snprintf(m->boundary + 2 * i, 3, "%02x", raw[i]);
    snprintf(m->content_type, sizeof(m->content_type), "multipart/form-data; boundary=%s",
             m->boundary);
    buf_init(&m->body, SIZE_MAX / 4);
    buf_init(&m->headers, 1 << 20);
    return m;
}

void tinker_multipart_free(tinker_multipart *m)
{
    if (!m)
        return;
    buf_clear(&m->body);
    buf_clear(&m->headers);
    free(m);
}

/* As browsers write it: a quote or a line break cannot end the parameter. */
static void put_quoted(struct buf *b, const char *s)
{
    buf_putc(b, '"');
    for (; *s; s++)
        if (*s == '"')
            buf_puts(b, "%22");
        else if (*s == '\r')
            buf_puts(b, "%0D");
        else if (*s == '\n')
            buf_puts(b, "%0A");
        else
            buf_putc(b, *s);
    buf_putc(b, '"');
}

static tinker_status check_parts(const tinker_multipart *m, const char *name, tinker_error *err)
{
    if (!name || !*name)
        return err_set(err, TINKER_EINVAL, "a part of a multipart body needs a name");
    if (m->complete)
        return err_set(err, TINKER_EINVAL, "the multipart body is complete; %s comes too late",
                       name);
    return TINKER_OK;
}

tinker_status tinker_multipart_header(tinker_multipart *m, const char *name, const char *value,
                                      tinker_error *err)
{
    const tinker_named_string header = { name, value };
    tinker_status s = call_options_check_header(&header, err);
    if (s != TINKER_OK)
        return s;
    if (strcasecmp(name, "Content-Disposition") == 0 || strcasecmp(name, "Content-Type") == 0)
        return err_set(err, TINKER_EINVAL, "%s of a part is made from its name and type", name);
    size_t before = m->headers.len;
    buf_printf(&m->headers, "\r\n%s: %s", name, value);
    if (buf_ok(&m->headers))
        return TINKER_OK;
    m->headers.len = before;
    m->headers.failed = false;
    return err_nomem(err, "multipart body");
}

/* Nothing of a part stays when there is no memory for all of it. */
static tinker_status put_part(tinker_multipart *m, const char *name, const char *filename,
                              const char *content_type, const void *data, size_t n,
                              tinker_error *err)
{
    struct buf *b = &m->body;
    size_t before = b->len;
    /* RFC 7578: each part begins with the boundary, its own headers and an empty line. */
    buf_printf(b, "--%s\r\nContent-Disposition: form-data; name=", m->boundary);
    put_quoted(b, name);
    if (filename) {
        buf_puts(b, "; filename=");
        put_quoted(b, filename);
    }
    if (content_type)
        buf_printf(b, "\r\nContent-Type: %s", content_type);
    buf_append(b, m->headers.data, m->headers.len);
    buf_puts(b, "\r\n\r\n");
    if (n)
        buf_append(b, data, n);
    buf_puts(b, "\r\n");
    if (buf_ok(b)) {
        buf_reset(&m->headers);
        return TINKER_OK;
    }
    /* Cut back to the end of the previous part, which is still valid. */
    b->len = before;
    b->failed = false;
    if (b->data)
        b->data[before] = '\0';
    return err_nomem(err, "multipart body");
}

tinker_status tinker_multipart_field(tinker_multipart *m, const char *name, const char *value,
                                     tinker_error *err)
{
    tinker_status s = check_parts(m, name, err);
    if (s == TINKER_OK && !value)
        s = err_set(err, TINKER_EINVAL, "field %s has no value", name);
    return s == TINKER_OK ? put_part(m, name, NULL, NULL, value, strlen(value), err) : s;
}

tinker_status tinker_multipart_bytes(tinker_multipart *m, const char *name, const char *filename,
                                     const char *content_type, const void *data, size_t n,
                                     tinker_error *err)
{
    /* A part with bytes always has a file name, else many servers take it for a field. */
    const char *type = content_type ? content_type : "application/octet-stream";
    const tinker_named_string header = { "Content-Type", type };
    tinker_status s = check_parts(m, name, err);
    if (s == TINKER_OK)
        s = call_options_check_header(&header, err);
    return s == TINKER_OK ? put_part(m, name, filename ? filename : name, type, data, n, err) : s;
}

tinker_status tinker_multipart_file(tinker_multipart *m, const char *name, const char *path,
                                    const char *filename, const char *content_type,
                                    tinker_error *err)
{
    struct os_map map;
    if (!path)
        return err_set(err, TINKER_EINVAL, "no file to add");
    tinker_status s = os_map_open(&map, path, err);
    if (s != TINKER_OK)
        return s;
    const char *slash = strrchr(path, '/');
    s = tinker_multipart_bytes(m, name,
                               filename ? filename
                               : slash  ? slash + 1
                                        : path,
                               content_type, map.data, map.len, err);
    os_map_close(&map);
    return s;
}

/* The closing boundary is written once; then no part can follow. */
const void *tinker_multipart_body(tinker_multipart *m, size_t *n)
{
    if (!m->complete)
        buf_printf(&m->body, "--%s--\r\n", m->boundary);
    m->complete = true;
    *n = m->body.len;
    return buf_ok(&m->body) ? m->body.data : NULL;
}

const char *tinker_multipart_content_type(const tinker_multipart *m)
{
    return m->content_type;
}
