/* transfer.c - one request on one curl easy handle.
 *
 * Timeouts are ours, not curl's, so that they are per phase, mean inactivity (and, for a request
 * that asks for it, the whole), and follow the loop's clock: curl's callbacks only note the phase and the last sign of
 * life; the request's timer in pool.c draws the conclusion.  Runs on the loop thread. */
#include "http/pool_impl.h"
#include "base/array.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* A request passes through these in order.  The number also is the index into the table of
 * limits in enter_phase() and in pool.c's request_timer(), so the order is part of the
 * contract. */
enum { ERROR_BODY_MAX = 1 << 20 }; /* bytes of the body of an error */
enum { PHASE_ACQUIRE, PHASE_CONNECT, PHASE_SEND, PHASE_RECEIVE };
enum {
    SMALL_BODY = 64 * 1024,   /* goes out with the request head in one write */
    LARGE_BODY = 1024 * 1024, /* worth a large upload buffer */
    UPLOAD_BUFFER = 2 * 1024 * 1024,
    BUFFER = 16 * 1024, /* for receiving */
    SMALL_BUFFER = 1024 /* when many may be held; the least that curl takes */
};
#define ENCODINGS "gzip, deflate, zstd"

/* The first failure is the one that is reported: transfer_complete() leaves resp alone when
 * a callback has called this already.  reason is cut to its array. */
void transfer_fail(struct http_request *r, enum http_failure f, const char *fmt, ...)
{
    r->resp.failure = f;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->resp.reason, sizeof(r->resp.reason), fmt, ap);
    va_end(ap);
}

/* Something moved on the wire.  Only the time is noted: rearming the timer for each piece of
 * data would cost more than letting it fire early and look again. */
static void is_alive(struct http_request *r)
{
    r->active_ns = loop_now_ns(r->pool->loop);
}

/* Milliseconds until the limit for the whole request; negative when it is over. */
int64_t transfer_left_ms(const struct http_request *r)
{
    /* 0 means no limit on the whole, only on the silence within a phase. */
    if (r->total_ms == 0)
        return INT64_MAX;
    return r->total_ms - (loop_now_ns(r->pool->loop) - r->start_ns) / 1000000;
}

void transfer_arm(struct http_request *r, int64_t ms)
{
    int64_t left = transfer_left_ms(r);
    loop_arm(r->pool->loop, &r->timer, ms < left ? ms : left);
}

static void enter_phase(struct http_request *r, int phase)
{
    const int64_t limits[] = { r->timeouts.acquire_ms, r->timeouts.connect_ms, r->timeouts.write_ms,
                               r->timeouts.read_ms };
    r->phase = phase;
    is_alive(r);
    transfer_arm(r, limits[phase]);
}

/* ---- curl's callbacks --------------------------------------------------------------- */

/* curl looks for a connection to reuse before it resolves a name.  So this is the moment
 * where waiting for a connection ends and making a new one begins. */
static int on_resolve(void *resolver, void *reserved, void *arg)
{
    (void)resolver, (void)reserved;
    enter_phase(arg, PHASE_CONNECT);
    return 0;
}

/* Sockets do not leak into programs that the host starts. */
static curl_socket_t on_open(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    (void)purpose;
    struct http_request *r = arg;
    int fd = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    if (fd >= 0)
        pool_socket_opened(r, fd);
    else
        /* Out of descriptors is no fault of the server: pool.c lets the request wait instead
         * of failing it. */
        r->no_descriptor = errno == EMFILE || errno == ENFILE;
    return fd;
}

/* A connection keeps what this was when it was made: the client, which outlives it. */
static int on_close(void *arg, curl_socket_t fd)
{
    struct http_client *c = arg;
    pool_socket_closed(c, fd);
    loop_unwatch(c->pool->loop, fd);
    return close(fd);
}

/* CURLOPT_PREREQFUNCTION: the connection stands, TLS included, new or reused, and the
 * request goes out next. */
static int on_connected(void *arg, char *ip, char *local_ip, int port, int local_port)
{
    (void)ip, (void)local_ip, (void)port;
    struct http_request *r = arg;
    pool_socket_connected(r, local_port);
    pool_count_connecting(r, false);
    r->lacking_ns = 0;
    /* From here on the server may have seen the request, which matters for what may be sent
     * again. */
    r->resp.sends++;
    /* curl sends a small body together with the head and never calls on_read(), so there is
     * no phase of sending to supervise. */
    enter_phase(r, r->body_len > SMALL_BODY ? PHASE_SEND : PHASE_RECEIVE);
    return CURL_PREREQFUNC_OK;
}

/* CURLOPT_READFUNCTION, for bodies above SMALL_BODY.  The body belongs to the caller and
 * stays valid until done(). */
static size_t on_read(char *out, size_t size, size_t count, void *arg)
{
    struct http_request *r = arg;
    size_t n = size * count;
    if (n > r->body_len - r->sent)
        n = r->body_len - r->sent;
    memcpy(out, (const char *)r->body + r->sent, n);
    r->sent += n;
    /* No enter_phase() here: the last piece is only on its way to the socket, and the
     * running timer looks at the limit of the new phase when it fires. */
    if (r->sent == r->body_len)
        r->phase = PHASE_RECEIVE;
    is_alive(r);
    return n;
}

/* curl rewinds a body when a reused connection turns out to be dead and the request goes out
 * again on a new one. */
static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct http_request *r = arg;
    if (origin != SEEK_SET || offset < 0 || (size_t)offset > r->body_len)
        return CURL_SEEKFUNC_FAIL;
    r->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* Header names are compared without case (RFC 9110, 5.1). */
static bool is_header(const char *line, size_t n, const char *name)
{
    size_t len = strlen(name);
    return n > len && line[len] == ':' && strncasecmp(line, name, len) == 0;
}

/* One line of the head per call, with its line end, not NUL-terminated. */
static size_t on_header(char *line, size_t size, size_t count, void *arg)
{
    struct http_request *r = arg;
    struct http_response *resp = &r->resp;
    size_t n = size * count, len = n;
    is_alive(r);
    /* CR LF by the book; a bare LF is accepted, too (RFC 9112, 2.2). */
    while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == '\n'))
        len--;
    if (len >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        /* A status line begins a response; a 1xx may have come before it. */
        buf_reset(&r->resp.head);
        r->resp.length = -1;
        r->resp.until_close = false;
        r->http1 = len >= 7 && memcmp(line, "HTTP/1.", 7) == 0;
        r->chunked = r->head_done = false;
        return n;
    }
    if (len == 0) {
        /* The blank line: only now the headers are known to be all there.  That of a 1xx ends no
         * response.  Without a length and without chunks the body of an HTTP/1 response ends with
         * the connection (RFC 9112, 6.3); HTTP/2 frames every body. */
        long status = 0;
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
        if (status >= 200) {
            r->head_done = true;
            resp->until_close =
                r->http1 && resp->length < 0 && !r->chunked && status != 204 && status != 304;
        }
        return n;
    }
    /* The head is kept as text, one line per header, and searched by find_header() when
     * asked: most headers are never looked at. */
    buf_append(&resp->head, line, len);
    buf_putc(&resp->head, '\n');
    if (is_header(line, len, "content-length"))
        resp->length = strtoll(line + sizeof("content-length:") - 1, NULL, 10);
    /* Only the last coding counts: "gzip, chunked" is chunked (RFC 9112, 6.1). */
    if (is_header(line, len, "transfer-encoding"))
        r->chunked = len >= 7 && strncasecmp(line + len - 7, "chunked", 7) == 0;
    if (buf_ok(&resp->head))
        return n;
    /* A buffer fails for its limit or for memory.  The first is the server's fault, the
     * second ours. */
    if (resp->head.len + len + 1 > resp->head.max)
        transfer_fail(r, HTTP_FAIL_PROTOCOL, "headers of more than %zu bytes", resp->head.max);
    else
        transfer_fail(r, HTTP_FAIL_NOMEM, "out of memory for the headers");
    /* Fewer bytes than given: curl ends the transfer with CURLE_WRITE_ERROR. */
    return 0;
}

static size_t on_write(char *p, size_t size, size_t count, void *arg)
{
    struct http_request *r = arg;
    size_t n = size * count;
    is_alive(r);
    if (r->paused)
        return CURL_WRITEFUNC_PAUSE; /* curl keeps it */
    /* on_data may want to know the status before the end. */
    long status = 0;
    if (r->on_data) {
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
        r->resp.status = (int)status;
    }
    /* A stream is for success only.  The body of an error is collected below, because it
     * carries the message for the user. */
    if (r->on_data && status >= 200 && status < 300) {
        if (r->on_data(r, p, n))
            return n;
        transfer_fail(r, HTTP_FAIL_SINK, "the receiver stopped the transfer");
        return 0;
    }
    struct buf *body = &r->resp.body;
    /* Content-Length may count compressed bytes, so it is a first guess, and only taken when
     * the limit allows it: a peer can write any number there. */
    if (body->len == 0 && r->resp.length > 0 && (size_t)r->resp.length <= body->max)
        buf_reserve(body, (size_t)r->resp.length);
    /* An error is a message, however much the request may be answered with. */
    if (body->len + n > ERROR_BODY_MAX && body->max > ERROR_BODY_MAX) {
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
        if (status >= 400) {
            transfer_fail(r, HTTP_FAIL_PROTOCOL, "error response (status %ld) larger than %d bytes",
                          status, ERROR_BODY_MAX);
            return 0;
        }
    }
    /* What arrives here is decompressed: the limit is for the memory, not for the wire. */
    buf_append(body, p, n);
    if (buf_ok(body))
        return n;
    if (body->len + n > body->max)
        transfer_fail(r, HTTP_FAIL_PROTOCOL,
                      "response larger than %zu bytes, which is more than was asked for can take",
                      body->max);
    else
        transfer_fail(r, HTTP_FAIL_NOMEM, "out of memory for the response");
    return 0;
}

/* ---- setting up --------------------------------------------------------------------- */

/* Write "name: value" with its NUL to out, which has room for both and 3 bytes; how many.
 * An empty value is spelled curl's way. */
static size_t put_header(char *out, const struct http_header *h)
{
    size_t name = strlen(h->name), value = strlen(h->value);
    memcpy(out, h->name, name);
    if (value == 0) {
        memcpy(out + name, ";", 2);
        return name + 2;
    }
    memcpy(out + name, ": ", 2);
    memcpy(out + name + 2, h->value, value + 1);
    return name + value + 3;
}

/* malloc'ed; the caller frees.  NULL: no memory. */
char *transfer_header_line(const struct http_header *h)
{
    char *line = malloc(strlen(h->name) + strlen(h->value) + 3);
    if (line)
        put_header(line, h);
    return line;
}

/* Headers that are the same for all requests of a session, built once.  Requests link their
 * own nodes in front of this list and never change it, so many can share it. */
struct http_common {
    struct curl_slist *list;
};

struct http_common *http_common_new(const struct http_header *headers, size_t n)
{
    struct http_common *c = calloc(1, sizeof(*c));
    bool ok = c != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        char *line = transfer_header_line(&headers[i]);
        struct curl_slist *longer = line ? curl_slist_append(c->list, line) : NULL;
        free(line);
        ok = longer != NULL;
        if (ok)
            c->list = longer;
    }
    if (!ok && c) {
        http_common_free(c);
        c = NULL;
    }
    return c;
}

const char *http_common_line(const struct http_common *c, size_t i)
{
    const struct curl_slist *n = c ? c->list : NULL;
    while (n && i-- > 0)
        n = n->next;
    return n ? n->data : NULL;
}

void http_common_free(struct http_common *c)
{
    if (c)
        curl_slist_free_all(c->list);
    free(c);
}

/* The request's own headers in one block, nodes first, in front of the shared ones.  host
 * (may be NULL) replaces the one of the URL.  curl only reads the list. */
static bool set_headers(struct http_request *r, const char *host)
{
    const struct http_header host_header = { "Host", host, false };
    size_t n = 0, size = 0;
    bool own_encoding = false;
    /* First pass: count nodes and bytes.  A secret (the API key) does not go to another
     * origin after a redirect. */
    for (size_t i = 0; i < r->n_headers + 1; i++) {
        const struct http_header *h = i < r->n_headers ? &r->headers[i] : &host_header;
        own_encoding = own_encoding || strcasecmp(h->name, "accept-encoding") == 0;
        if (!h->value || (r->cross_origin && h->secret))
            continue;
        n++;
        size += strlen(h->name) + strlen(h->value) + 3;
    }
    /* Two more nodes, for Accept-Encoding and Expect, whose texts are constants. */
    struct curl_slist *nodes = malloc((n + 2) * sizeof(*nodes) + size);
    if (!nodes)
        return false;
    char *text = (char *)(nodes + n + 2);
    n = 0;
    if (!r->on_data && !own_encoding)
        nodes[n++].data = (char *)"Accept-Encoding: " ENCODINGS; /* curl would write it twice */
    if (r->body_len > SMALL_BODY)
        nodes[n++].data = (char *)"Expect:"; /* none: curl would wait for a 100 */
    for (size_t i = 0; i < r->n_headers + 1; i++) {
        const struct http_header *h = i < r->n_headers ? &r->headers[i] : &host_header;
        if (!h->value || (r->cross_origin && h->secret))
            continue;
        nodes[n++].data = text;
        text += put_header(text, h);
    }
    /* Link from the last to the first, so that the request's own headers come before the
     * shared ones. */
    struct curl_slist *list = r->common ? r->common->list : NULL;
    while (n > 0) {
        nodes[--n].next = list;
        list = &nodes[n];
    }
    free(r->header_list);
    r->header_list = nodes;
    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, list);
    return true;
}

/* curl derives much from the method it knows; CUSTOMREQUEST only replaces the word that is
 * sent. */
static void set_method(struct http_request *r, const char *method)
{
    CURL *e = r->easy;
    curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, NULL); /* of the handle's last request */
    if (strcmp(method, "GET") == 0) {
        curl_easy_setopt(e, CURLOPT_HTTPGET, 1L);
        return;
    }
    /* A DELETE without a body goes out as a GET with another word, else curl would send a
     * Content-Length. */
    if (strcmp(method, "DELETE") == 0 && r->body_len == 0) {
        curl_easy_setopt(e, CURLOPT_HTTPGET, 1L);
        curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, "DELETE");
        return;
    }
    curl_easy_setopt(e, CURLOPT_POST, 1L);
    if (strcmp(method, "POST") != 0)
        curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_len);
    r->sent = 0;
    /* Not copied by curl: body must live until the transfer ends. */
    if (r->body_len <= SMALL_BODY) {
        curl_easy_setopt(e, CURLOPT_POSTFIELDS, r->body_len ? r->body : "");
        return;
    }
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, NULL); /* of the handle's last request, freed */
    curl_easy_setopt(e, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(e, CURLOPT_READDATA, r);
    curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(e, CURLOPT_SEEKDATA, r);
    if (r->body_len > LARGE_BODY)
        curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, (long)UPLOAD_BUFFER);
}

/* TLS libraries refuse a server name with an underscore.  Such a host is asked for, and
 * its certificate checked, under the name with dashes, while the connection goes to the
 * real one. */
static bool set_underscore_host(struct http_request *r, const char *url)
{
    const char *host = url + strlen("https://");
    size_t n = strcspn(host, "/?#:");
    if (!memchr(host, '_', n))
        return true;
    char port[16] = "443", name[256], line[600];
    if (n >= sizeof(name))
        return false;
    if (host[n] == ':')
        snprintf(port, sizeof(port), "%.*s", (int)strcspn(host + n + 1, "/?#"), host + n + 1);
    memcpy(name, host, n);
    name[n] = '\0';
    char *renamed = strdup(url);
    if (!renamed)
        return false;
    for (size_t i = 0; i < n; i++)
        if (host[i] == '_')
            renamed[strlen("https://") + i] = '-';
    /* "host:port:real-host:real-port": curl resolves and connects to the last two, but uses
     * the first for TLS (server name and certificate). */
    snprintf(line, sizeof(line), "%.*s:%s:%s:%s", (int)n, renamed + strlen("https://"), port, name,
             port);
    /* A parsed address would take precedence over CURLOPT_URL. */
    curl_easy_setopt(r->easy, CURLOPT_CURLU, NULL);
    r->connect_to = curl_slist_append(NULL, line);
    bool https_port = strcmp(port, "443") == 0;
    /* The Host header carries the real name, with the port only where it is not the default
     * (RFC 9110, 7.2). */
    char value[300];
    snprintf(value, sizeof(value), https_port ? "%s" : "%s:%s", name, port);
    bool ok = r->connect_to && set_headers(r, value);
    curl_easy_setopt(r->easy, CURLOPT_CONNECT_TO, r->connect_to);
    curl_easy_setopt(r->easy, CURLOPT_URL, renamed);
    free(renamed);
    return ok;
}

/* What is the same for every request of a pool: set once per handle. */
static void set_constants(const struct http_pool *p, CURL *e)
{
    const struct http_pool_options *o = &p->opts;
    /* Never file:// or another scheme that curl knows, whatever a redirect says. */
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    /* A library must not touch the signals of its host program. */
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    /* The head that a proxy gives to CONNECT is not the response's head. */
    curl_easy_setopt(e, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(e, CURLOPT_RESOLVER_START_FUNCTION, on_resolve);
    curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, on_open);
    curl_easy_setopt(e, CURLOPT_CLOSESOCKETFUNCTION, on_close);
    curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, on_connected);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(e, CURLOPT_ACCEPT_ENCODING, ENCODINGS); /* to be decoded */
    curl_easy_setopt(e, CURLOPT_PROXY, o->proxy ? o->proxy : "");
    /* without it curl looks into the environment, which the program may be changing */
    curl_easy_setopt(e, CURLOPT_NOPROXY, o->no_proxy ? o->no_proxy : "");
    if (p->proxy_headers) {
        curl_easy_setopt(e, CURLOPT_PROXYHEADER, p->proxy_headers);
        /* Headers for the proxy stay with the proxy and those for the server with the
         * server. */
        curl_easy_setopt(e, CURLOPT_HEADEROPT, (long)CURLHEADER_SEPARATE);
    }
    if (o->ca_file)
        curl_easy_setopt(e, CURLOPT_CAINFO, o->ca_file);
}

/* Linear search: there are at most POOL_ADDRESSES. */
static CURLU *parsed_address(struct http_pool *p, const char *url)
{
    for (int i = 0; i < p->n_addresses; i++)
        if (strcmp(p->addresses[i].url, url) == 0)
            return p->addresses[i].parsed;
    /* Remember url; NULL: no more, no memory, or it is wrong, which curl will say. */
    if (p->n_addresses == POOL_ADDRESSES)
        return NULL;
    struct http_address a = { strdup(url), curl_url() };
    if (!a.url || !a.parsed || curl_url_set(a.parsed, CURLUPART_URL, url, 0) != CURLUE_OK) {
        free(a.url);
        curl_url_cleanup(a.parsed);
        return NULL;
    }
    p->addresses[p->n_addresses++] = a;
    return a.parsed;
}

/* Everything that differs between requests, whatever the handle did before. */
static bool configure_easy(struct http_request *r)
{
    CURL *e = r->easy;
    /* After a redirect the location replaces the URL. */
    const char *url = r->location ? r->location : r->url;
    bool https = strncasecmp(url, "https://", 8) == 0;
    curl_easy_setopt(e, CURLOPT_URL, url);
    /* what is asked again and again is a POST */
    bool again = strcmp(r->method, "POST") == 0 && !r->location;
    curl_easy_setopt(e, CURLOPT_CURLU, again ? parsed_address(r->pool, url) : NULL);
    /* HTTP/2 is negotiated in the TLS handshake (ALPN); without TLS it is HTTP/1.1. */
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION,
                     https && !r->pool->opts.only_http1 ? CURL_HTTP_VERSION_2TLS
                                                        : CURL_HTTP_VERSION_1_1);
    /* Wait for a connection being made to turn out as HTTP/2 and share it, instead of
     * opening one per request. */
    curl_easy_setopt(e, CURLOPT_PIPEWAIT, https ? 1L : 0L);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, r->small_response ? (long)SMALL_BUFFER : (long)BUFFER);
    /* A stream is handed on as it arrives; a compressing proxy would hold it back. */
    if (r->on_data)
        curl_easy_setopt(e, CURLOPT_ACCEPT_ENCODING, NULL);
    curl_easy_setopt(e, CURLOPT_PRIVATE, r);
    curl_easy_setopt(e, CURLOPT_RESOLVER_START_DATA, r);
    curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, r);
    curl_easy_setopt(e, CURLOPT_CLOSESOCKETDATA, r->client);
    curl_easy_setopt(e, CURLOPT_PREREQDATA, r);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, r);
    if (!set_headers(r, NULL))
        return false;
    if (https) {
        /* Only this buffer says what is wrong with a certificate. */
        r->detail = calloc(1, CURL_ERROR_SIZE);
        curl_easy_setopt(e, CURLOPT_ERRORBUFFER, r->detail);
        if (!r->detail)
            return false;
    }
    /* A redirect with 301, 302 or 303 has turned the method into GET. */
    set_method(r, r->as_get ? "GET" : r->method);
    return !https || set_underscore_host(r, url);
}

/* Afterwards curl owns the progress: the multi handle reports through client_ready() and
 * client_timer().  On failure nothing is left on the client. */
bool transfer_begin(struct http_client *c, struct http_request *r)
{
    /* Line breaks in a value would let whoever supplies it inject headers. */
    for (size_t i = 0; i < r->n_headers; i++)
        if (r->headers[i].value && strpbrk(r->headers[i].value, "\r\n")) {
            transfer_fail(r, HTTP_FAIL_INVALID, "header %s has a line break in it",
                          r->headers[i].name);
            return false;
        }
    struct http_pool *p = c->pool;
    if (p->n_idle > 0)
        r->easy = p->idle[--p->n_idle];
    else {
        r->easy = curl_easy_init();
        if (r->easy)
            set_constants(p, r->easy);
    }
    r->resp.length = -1;
    r->head_done = false;
    if (r->easy)
        loop_busy(c->pool->loop, 1);
    if (!r->easy || !configure_easy(r) || curl_multi_add_handle(c->multi, r->easy) != CURLM_OK) {
        /* transfer_end() first, since it frees what configure_easy() made half. */
        transfer_end(r);
        transfer_fail(r, HTTP_FAIL_NOMEM, "out of memory for a request");
        return false;
    }
    r->no_descriptor = false;
    pool_count_connecting(r, true);
    enter_phase(r, PHASE_ACQUIRE);
    return true;
}

bool transfer_connected(const struct http_request *r)
{
    return r->phase >= PHASE_SEND;
}

void transfer_end(struct http_request *r)
{
    /* Removing the handle closes the connection of a transfer in flight (HTTP/1) or resets
     * its stream (HTTP/2); a finished one leaves its connection in the cache of the multi
     * handle. */
    if (r->easy) {
        if (r->client)
            curl_multi_remove_handle(r->client->multi, r->easy);
        /* A handle that did something unusual is not worth the trouble of undoing it. */
        struct http_pool *p = r->pool;
        bool usual = r->body_len <= SMALL_BODY && !r->on_data && !r->connect_to;
        curl_easy_setopt(r->easy, CURLOPT_PRIVATE, NULL);
        curl_easy_setopt(r->easy, CURLOPT_ERRORBUFFER, NULL);
        if (usual && p->n_idle < POOL_IDLE_MAX)
            p->idle[p->n_idle++] = r->easy;
        else
            curl_easy_cleanup(r->easy);
        loop_busy(r->pool->loop, -1);
    }
    free(r->header_list);
    free(r->detail);
    curl_slist_free_all(r->connect_to);
    r->easy = r->header_list = r->connect_to = NULL;
    r->detail = NULL;
}

/* What the retry layers need to know of curl's hundred codes.  The default is the retryable
 * one: most are the network's, and a compressed body that cannot be decoded may have been damaged
 * on its way. */
static enum http_failure classify_failure(CURLcode code)
{
    switch (code) {
    case CURLE_OK:
        return HTTP_OK;
    case CURLE_OPERATION_TIMEDOUT:
        return HTTP_FAIL_TIMEOUT;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
        return HTTP_FAIL_INVALID;
    case CURLE_OUT_OF_MEMORY:
        return HTTP_FAIL_NOMEM;
    default:
        return HTTP_FAIL_CONNECT;
    }
}

/* Certificates and ciphers do not get better by trying again, so these are not retried. */
static bool refuses_tls(const struct http_request *r, CURLcode code)
{
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CRL_BADFILE:
    case CURLE_SSL_INVALIDCERTSTATUS:
    case CURLE_SSL_CLIENTCERT:
        return true;
    default:
        break;
    }
    /* curl has one code for all failed handshakes.  OpenSSL's text tells those that failed for what
     * the two sides are from those that the network broke. */
    static const char *const signs[] = { "wrong version number", "unsupported protocol",
                                         "alert protocol version" };
    for (size_t i = 0; code == CURLE_SSL_CONNECT_ERROR && r->detail && i < ARRAY_LEN(signs); i++)
        if (strstr(r->detail, signs[i]))
            return true;
    return false;
}

/* Name the host, which after a redirect is not the service's, and what may help. */
static void fail_tls(struct http_request *r, CURLcode code)
{
    static const char prefix[] = "SSL certificate problem: ";
    const char *ca_file = r->pool->opts.ca_file, *why = r->detail && *r->detail ? r->detail : NULL;
    const char *url = r->location ? r->location : r->url, *host = strstr(url, "://");
    host = host ? host + 3 : url;
    size_t n = strcspn(host, "/?#");
    /* Skip user:password@, which must not appear in a message. */
    for (const char *at; (at = memchr(host, '@', n)) != NULL; host = at + 1)
        n -= (size_t)(at + 1 - host);
    int len = (int)(n < 80 ? n : 80);
    why = why ? why : curl_easy_strerror(code);
    bool untrusted = strncmp(why, prefix, sizeof(prefix) - 1) == 0; /* else of another name */
    why += untrusted ? sizeof(prefix) - 1 : 0;
    if (code == CURLE_SSL_CACERT_BADFILE)
        transfer_fail(r, HTTP_FAIL_TLS,
                      "cannot load the certificates to trust from %.120s (option ca_file, "
                      "SSL_CERT_FILE)",
                      ca_file ? ca_file : "the system's store");
    else if (code == CURLE_SSL_CONNECT_ERROR)
        transfer_fail(r, HTTP_FAIL_TLS, "%.*s does not speak TLS as https:// needs it: %.100s", len,
                      host, why);
    else
        transfer_fail(r, HTTP_FAIL_TLS, "the certificate of %.*s is refused: %.90s%s", len, host,
                      why, untrusted ? "; ca_file or SSL_CERT_FILE names those to trust" : "");
}

void transfer_complete(struct http_request *r, CURLcode code)
{
    long status = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
    r->resp.status = (int)status;
    /* A callback or the timer has said why already; curl's code would only be "write error". */
    if (r->resp.failure != HTTP_OK)
        return;
    if (code == CURLE_COULDNT_CONNECT) {
        /* "Couldn't connect to server" alone does not tell a wrong port from a wrong network. */
        long number = 0;
        char why[128] = "";
        curl_easy_getinfo(r->easy, CURLINFO_OS_ERRNO, &number);
        if (number != 0 && strerror_r((int)number, why, sizeof(why)) != 0)
            why[0] = '\0';
        r->resp.refused = number == ECONNREFUSED;
        transfer_fail(r, HTTP_FAIL_CONNECT, "%s%s%s", curl_easy_strerror(CURLE_COULDNT_CONNECT),
                      why[0] ? ": " : "", why);
    } else if (refuses_tls(r, code))
        fail_tls(r, code);
    else if (code == CURLE_WEIRD_SERVER_REPLY ||
             (code == CURLE_UNSUPPORTED_PROTOCOL && transfer_connected(r)))
        /* a middlebox may have broken this connection: another may work */
        transfer_fail(r, HTTP_FAIL_CONNECT, "the response is not HTTP");
    else if (code != CURLE_OK)
        transfer_fail(r, classify_failure(code), "%s", curl_easy_strerror(code));
    else if (!r->head_done) {
        /* curl calls it a success when the connection closes after the status line, with the
         * headers so far and no body */
        r->resp.status = 0;
        transfer_fail(r, HTTP_FAIL_CONNECT, "the connection closed within the response's headers");
    }
}

/* Leaves the caller's fields (method, URL, headers, body) as they are. */
void http_request_clear(struct http_request *r)
{
    buf_clear(&r->resp.head);
    buf_clear(&r->resp.body);
    memset(&r->resp, 0, sizeof(r->resp));
    free(r->location);
    r->location = NULL;
    r->as_get = false;
}

/* The value, *len bytes of the head; NULL: absent. */
static const char *find_header(const struct http_response *resp, const char *name, size_t *len)
{
    const char *p = resp->head.data, *end = p ? p + resp->head.len : NULL;
    while (p < end) {
        size_t n = strcspn(p, "\n");
        if (is_header(p, n, name)) {
            const char *value = p + strlen(name) + 1;
            /* Optional white space before the value (RFC 9110, 5.5). */
            value += strspn(value, " \t");
            *len = (size_t)(p + n - value);
            return value;
        }
        p += n + 1;
    }
    return NULL;
}

/* A value longer than out is cut. */
bool http_response_header(const struct http_response *resp, const char *name, char *out,
                          size_t size)
{
    size_t len;
    const char *value = find_header(resp, name, &len);
    if (!value)
        return false;
    len = len < size ? len : size - 1;
    memcpy(out, value, len);
    out[len] = '\0';
    return true;
}

char *http_response_location(const struct http_response *resp)
{
    size_t len;
    const char *value = find_header(resp, "location", &len);
    return value ? strndup(value, len) : NULL;
}
