/* web.c - see web.h. */
#include "cli/service/web.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/err.h"
#include "cli/args/opt.h"
#include "cli/output/progress.h"

/* Largest response that is kept in memory; downloads go to a file. */
enum { MEMORY_MAX = 64 << 20 };

/* The exchange while its loop runs. */
struct web_run {
    struct web_exchange *x;
    struct loop_task begin;
    struct loop *loop;
    struct http_pool *pool;
    bool begun;
    int error; /* of writing */
    struct progress bar;
};

void web_init(struct web_exchange *x, const char *method, const char *url)
{
    memset(x, 0, sizeof(*x));
    x->method = method;
    x->url = url;
    x->fd = -1;
    x->max = MEMORY_MAX;
}

/* More headers than there is room for are a mistake in this program; the last ones are left out. */
void web_header(struct web_exchange *x, const char *name, const char *value, bool secret)
{
    if (x->n_headers < ARRAY_LEN(x->headers))
        x->headers[x->n_headers++] = (struct http_header){ name, value, secret };
}

/* Success or failure: the loop of this one request ends. */
static void on_done(struct http_request *r)
{
    loop_stop(container_of(r, struct web_exchange, request)->run->loop);
}

/* Requests are started on the loop's own thread. */
static void on_begin(struct loop_task *t)
{
    struct web_run *f = container_of(t, struct web_run, begin);
    http_start(f->pool, &f->x->request);
}

/* write() may take less than it was given. */
static bool write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* The first bytes tell whether the server resumes where we stopped (it sends Content-Range) or
 * starts again: then the file is cut to nothing first. false aborts the request. */
static bool on_data(struct http_request *r, const void *p, size_t n)
{
    struct web_exchange *x = container_of(r, struct web_exchange, request);
    struct web_run *f = x->run;
    char range[128];
    if (!f->begun) {
        f->begun = true;
        if (!http_response_header(&r->resp, "Content-Range", range, sizeof(range)))
            x->offset = 0;
        if (ftruncate(x->fd, x->offset) != 0 || lseek(x->fd, x->offset, SEEK_SET) < 0)
            f->error = errno;
    }
    if (!f->error && !write_all(x->fd, p, n))
        f->error = errno ? errno : EIO;
    x->received += (int64_t)n;
    if (x->label)
        progress_at(&f->bar, x->offset + x->received,
                    r->resp.length > 0 ? x->offset + r->resp.length : 0);
    return !f->error;
}

/* Run it on a loop of its own until it is over: the program has no other loop.
 * The caller sleeps in it; a signal ends the program, and a file that was begun is resumed by
 * the next run. */
static tinker_status run_loop(struct web_run *f, tinker_error *err)
{
    /* As curl does: lower case first, and HTTP_PROXY never, which a CGI request could set. */
    bool tls = strncmp(f->x->url, "https:", 6) == 0;
    const char *none = getenv("no_proxy"), *proxy = getenv(tls ? "https_proxy" : "http_proxy");
    if ((!proxy || !*proxy) && tls)
        proxy = getenv("HTTPS_PROXY");
    const struct http_pool_options opts = { .per_client = 1,
                                            .proxy = proxy && *proxy ? proxy : NULL,
                                            .no_proxy = none ? none : getenv("NO_PROXY") };
    tinker_status status = http_global_init(err);
    f->loop = status == TINKER_OK ? loop_new(clock_real(), err) : NULL;
    f->pool = f->loop ? http_pool_new(f->loop, &opts, err) : NULL;
    if (f->pool) {
        f->begin.run = on_begin;
        loop_post(f->loop, &f->begin);
        loop_run(f->loop);
        http_pool_free(f->pool);
    } else {
        status = err->status;
    }
    loop_free(f->loop);
    return status;
}

/* The host of an address, for messages: its path and query may be secrets. */
static int measure_origin(const char *url)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    return (int)(host - url + (long)strcspn(host, "/?"));
}

/* --timeout shortens a wait; a longer one does not keep a dead connection. */
static int64_t limit_ms(int64_t usual_ms)
{
    int64_t ms = opt_wait_ms(usual_ms);
    return ms < usual_ms ? ms : usual_ms;
}

tinker_status web_send(struct web_exchange *x, tinker_error *err)
{
    char range[64];
    struct web_run f = { .x = x };
    if (x->offset > 0) {
        snprintf(range, sizeof(range), "bytes=%lld-", (long long)x->offset);
        web_header(x, "Range", range, false);
    }
    x->request = (struct http_request){ .method = x->method,
                                        .url = x->url,
                                        .headers = x->headers,
                                        .n_headers = x->n_headers,
                                        .body = x->body,
                                        .body_len = x->n_body,
                                        .timeouts = { limit_ms(30000), limit_ms(10000),
                                                      limit_ms(60000), limit_ms(60000) },
                                        .total_ms = x->fd < 0 ? opt_wait_ms(0) : 0,
                                        .follow = !x->keep_redirect,
                                        .max_response = x->fd < 0 ? x->max : SIZE_MAX,
                                        .done = on_done,
                                        .on_data = x->fd < 0 ? NULL : on_data };
    if (x->label)
        progress_start(&f.bar, "%s", x->label);
    x->run = &f;
    tinker_status status = run_loop(&f, err);
    x->run = NULL;
    if (x->label)
        progress_end(&f.bar);
    x->request.headers = NULL;
    if (status != TINKER_OK)
        return status;
    const struct http_response *resp = &x->request.resp;
    x->status = resp->failure == HTTP_OK ? resp->status : 0;
    if (f.error)
        return err_set(err, TINKER_ESTATE, "cannot write the file: %s", strerror(f.error));
    if (resp->failure != HTTP_OK)
        return err_set(err, resp->failure == HTTP_FAIL_TIMEOUT ? TINKER_ETIMEDOUT : TINKER_ECONNECT,
                       "%.*s: %s", measure_origin(x->url), x->url, resp->reason);
    return TINKER_OK;
}

bool web_answer_header(const struct web_exchange *x, const char *name, char *out, size_t size)
{
    if (http_response_header(&x->request.resp, name, out, size))
        return true;
    *out = 0;
    return false;
}

void web_clear(struct web_exchange *x)
{
    http_request_clear(&x->request);
}
