/* http_message.c - filling a response: see http_message.h. */
#include "server/http/http_message.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "json/json.h"

void response_init(struct response *res)
{
    memset(res, 0, sizeof(*res));
    res->status = 200;
    res->fd = -1;
    buf_init(&res->body, (size_t)2 << 30); /* results of large passes */
}

/* Free what a response owns when no library takes it over. */
void response_drop(struct response *res)
{
    buf_clear(&res->body);
    if (res->fd >= 0)
        close(res->fd);
    res->fd = -1;
    if (res->source.state)
        res->source.free(res->source.state);
    res->source.state = NULL;
}

void response_header(struct response *res, const char *name, const char *value)
{
    assert(res->n_headers < RESPONSE_HEADERS);
    res->headers[res->n_headers].name = name;
    res->headers[res->n_headers++].value = value;
}

void response_error(struct response *res, int status, const char *fmt, ...)
{
    char text[1024];
    struct json_writer w;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_redact(text, sizeof(text)); /* a message may quote what the client sent */
    /* Replace whatever the handler has written so far. */
    buf_reset(&res->body);
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "detail");
    json_put_string(&w, text);
    json_put_end_object(&w);
    res->status = status;
    res->content_type = "application/json";
    res->wait = NULL; /* an error is an answer: do not hold the request */
}

/* 503, not 500 or 413: nothing is wrong with the request, and later it may work. */
void response_no_memory(struct response *res)
{
    res->n_headers = 0; /* of the response that could not be made */
    response_header(res, "Retry-After", "1");
    response_error(res, 503, "out of memory; retry later");
}

void response_json(struct response *res, const char *json)
{
    buf_reset(&res->body);
    buf_puts(&res->body, json);
    res->status = 200;
    res->content_type = "application/json";
}

void response_no_content(struct response *res)
{
    buf_reset(&res->body);
    res->status = 204;
    res->content_type = NULL;
}
