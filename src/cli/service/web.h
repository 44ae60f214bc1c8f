/* web.h - one HTTP exchange with a host that is not the Tinker service: signed addresses, the Hub.
 *
 * The only part of the program that knows http/.  Blocks, in the caller's thread, which runs the
 * loop.  Proxies come from the environment, as curl reads them. */
#ifndef CLI_WEB_H
#define CLI_WEB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>
#include "http/http.h"

struct web_exchange {
    /* What is sent. */
    const char *method, *url;
    struct http_header headers[8];
    size_t n_headers;
    const void *body;
    size_t n_body;
    bool keep_redirect; /* give back 3xx: credentials must not go along */
    /* Where the body of the answer goes: to fd from offset on, or (fd < 0) to memory. */
    int fd;
    int64_t offset;
    size_t max;        /* bytes in memory */
    const char *label; /* of a progress bar, NULL: none */
    /* What came back; status 0: nothing did. */
    int status;
    int64_t received;
    struct http_request request;
    struct web_run *run; /* while it is under way */
};

void web_init(struct web_exchange *x, const char *method, const char *url);
/* The texts are borrowed until web_clear(). */
void web_header(struct web_exchange *x, const char *name, const char *value, bool secret);
/* TINKER_OK when there was an answer, whatever its status; else TINKER_ECONNECT, TINKER_ETIMEDOUT,
 * or TINKER_ESTATE when the file could not be written. */
tinker_status web_send(struct web_exchange *x, tinker_error *err);
/* A header of the answer, "" when it is not there. */
bool web_answer_header(const struct web_exchange *x, const char *name, char *out, size_t size);
void web_clear(struct web_exchange *x);

#endif
