/* conform_request.c - requests of `tinker conform` and what their responses hold: see conform.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tinker/extra/http.h>
#include "base/clock.h"
#include "cli/conform/conform.h"

enum { RESULT_S = 300 }; /* how long a result may take: production queues are longer than ours */

/* false, so that `return conform_miss(...)` and `... || conform_miss(...)` end a check with its
 * reason.  The last reason of a check counts, which is the one nearest to the fault. */
bool conform_miss(struct conform *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->why, sizeof(c->why), fmt, ap);
    va_end(ap);
    return false;
}

/* The response is copied into the arena of the check: its members are read after the future is
 * gone.  Only a missing response fails here; what a status means is for the check to say. */
bool conform_send(struct conform *c, const char *method, const char *path, const char *body)
{
    tinker_error err;
    tinker_future *f =
        tinker_service_call(c->raw, method, path, body, body ? strlen(body) : 0, NULL, &err);
    tinker_status status = f ? api_await(f, &err) : err.status;
    const tinker_response *r = f ? tinker_future_response(f) : NULL;
    c->status = r ? r->status : 0;
    c->body = (struct json_str){ "", 0 };
    c->sized = false;
    if (r && r->body) {
        const char *copy = arena_memdup(&c->arena, r->body, r->n_body + 1);
        const char *length = tinker_response_header(r, "content-length");
        if (copy)
            c->body = (struct json_str){ copy, r->n_body };
        /* "0" is no length for an error that has a body. */
        c->sized = length && strcmp(length, "0") != 0;
    }
    tinker_future_free(f);
    if (status != TINKER_OK && !c->status)
        return conform_miss(c, "%s %s: %s", method, path, err.message);
    return true;
}

/* 2xx, or the check fails with the beginning of what the server said. */
static bool expect_success(struct conform *c, const char *method, const char *path)
{
    if (c->status >= 200 && c->status < 300)
        return true;
    return conform_miss(c, "%s %s: HTTP %d %.*s", method, path, c->status,
                        (int)(c->body.n < 120 ? c->body.n : 120), c->body.s);
}

bool conform_get(struct conform *c, const char *path)
{
    return conform_send(c, "GET", path, NULL) && expect_success(c, "GET", path);
}

/* 64 KB are enough for every body of the checks; a longer one is a mistake in a check. */
static bool post_text(struct conform *c, const char *path, const char *fmt, va_list ap)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_vprintf(&b, fmt, ap);
    bool ok = buf_ok(&b) ? conform_send(c, "POST", path, b.data) : conform_miss(c, "out of memory");
    buf_clear(&b);
    return ok && expect_success(c, "POST", path);
}

bool conform_post(struct conform *c, const char *path, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    bool ok = post_text(c, path, fmt, ap);
    va_end(ap);
    return ok;
}

/* 4xx, and not a number in particular: servers differ between 400, 404 and 422, clients treat
 * them alike. */
bool conform_refused(struct conform *c, const char *what)
{
    if (c->status >= 400 && c->status < 500)
        return true;
    return conform_miss(c, "%s: HTTP %d, not 4xx", what, c->status);
}

/* For calls that are accepted first and answered by retrieve_future; the id goes to c->accepted. */
bool conform_submit(struct conform *c, const char *path, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    bool ok = post_text(c, path, fmt, ap);
    va_end(ap);
    return ok && conform_text(c, "request_id", c->accepted, sizeof(c->accepted));
}

/* Go down to the value at `path`: keys and indices with dots between them. */
static bool find_value(struct conform *c, const char *path, struct json_str *raw)
{
    struct json_reader r;
    struct json_str key;
    *raw = c->body;
    while (*path) {
        size_t n = strcspn(path, ".");
        /* Parts of a path that are numbers index arrays.  A path without a match leaves *raw
         * somewhere on the way, which no caller reads. */
        size_t wanted = strtoul(path, NULL, 10), i = 0;
        bool found = false;
        json_reader_init(&r, raw->s, raw->n, &c->arena);
        if (json_peek(&r) == JSON_ARRAY) {
            for (json_begin_array(&r); !found && json_next_item(&r); i++)
                found = i == wanted && path[0] >= '0' && path[0] <= '9' ? json_raw(&r, raw)
                                                                        : json_skip(&r) && false;
        } else if (json_peek(&r) == JSON_OBJECT) {
            json_begin_object(&r);
            while (!found && json_next_key(&r, &key))
                found = key.n == n && memcmp(key.s, path, n) == 0 ? json_raw(&r, raw)
                                                                  : json_skip(&r) && false;
        }
        if (!found)
            return false;
        path += n + (path[n] == '.');
    }
    return true;
}

/* Two ways to say "not yet": HTTP 408, or 200 with the type try_again.  Clients know both. */
bool conform_pending(struct conform *c)
{
    static const char again[] = "\"try_again\"";
    struct json_str type;
    return c->status == 408 || (find_value(c, "type", &type) && type.n == strlen(again) &&
                                memcmp(type.s, again, type.n) == 0);
}

bool conform_result(struct conform *c, const char *id)
{
    const int64_t end = clock_now_ns(clock_real()) + RESULT_S * (int64_t)1000000000;
    char body[CONFORM_ID_MAX + 64];
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\",\"allow_metadata_only\":false}", id);
    for (;;) {
        int64_t start = clock_now_ns(clock_real());
        if (!conform_send(c, "POST", CONFORM_API "retrieve_future", body))
            return false;
        if (!conform_pending(c))
            break;
        /* Checked after a poll, so that at least one is made, however late it is. */
        if (start > end || api_interrupted())
            return conform_miss(c, "no result of %s after %d s", id, RESULT_S);
        /* A server that does not hold polls is asked ten times a second. */
        if (clock_now_ns(clock_real()) - start < 100000000)
            nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
    }
    if (!expect_success(c, "POST", CONFORM_API "retrieve_future"))
        return false;
    if (conform_has(c, "error"))
        return conform_miss(c, "%s failed: %.*s", id, (int)(c->body.n < 160 ? c->body.n : 160),
                            c->body.s);
    return true;
}

/* ---- members of a response ----------------------------------------------------------------------- */

/* null counts as missing: servers write optional members either way. */
bool conform_has(struct conform *c, const char *path)
{
    struct json_str raw;
    return find_value(c, path, &raw) && !(raw.n == 4 && memcmp(raw.s, "null", 4) == 0);
}

/* The reader stands before the value, which has the kind that is wanted. */
static bool open_value(struct conform *c, const char *path, enum json_kind kind, const char *word,
                       struct json_reader *r)
{
    struct json_str raw;
    if (!find_value(c, path, &raw))
        return conform_miss(c, "the response has no %s: %.*s", path,
                            (int)(c->body.n < 120 ? c->body.n : 120), c->body.s);
    json_reader_init(r, raw.s, raw.n, &c->arena);
    if (json_peek(r) != kind)
        return conform_miss(c, "%s is no %s: %.*s", path, word, (int)(raw.n < 60 ? raw.n : 60),
                            raw.s);
    return true;
}

bool conform_text(struct conform *c, const char *path, char *out, size_t size)
{
    struct json_reader r;
    char *text;
    if (!open_value(c, path, JSON_STRING, "text", &r))
        return false;
    /* Ids go back into requests: what would have to be escaped is none. */
    if (!json_cstring(&r, &text) || strlen(text) >= size || strpbrk(text, "\"\\\n"))
        return conform_miss(c, "%s is no usable text", path);
    snprintf(out, size, "%s", text);
    return true;
}

bool conform_number(struct conform *c, const char *path, double *out)
{
    struct json_reader r;
    return open_value(c, path, JSON_NUMBER, "number", &r) &&
           (json_double(&r, out) || conform_miss(c, "%s: %s", path, json_error(&r)));
}

/* null becomes NaN, as prompt_logprobs has it for the first token. */
bool conform_numbers(struct conform *c, const char *path, float **out, size_t *n)
{
    struct json_reader r;
    return open_value(c, path, JSON_ARRAY, "array", &r) &&
           (json_array_float_null(&r, out, n) || conform_miss(c, "%s: %s", path, json_error(&r)));
}

bool conform_object(struct conform *c, const char *path, struct json_str *out)
{
    struct json_reader r;
    return open_value(c, path, JSON_OBJECT, "object", &r) &&
           (json_raw(&r, out) || conform_miss(c, "%s: %s", path, json_error(&r)));
}
