/* redirect.c - following a Location without sending secrets to another host.
 *
 * curl could follow by itself but would repeat our headers, the API key among them, to
 * whatever host the response names.  Runs on the loop thread. */
#include "http/pool_impl.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_REDIRECTS = 20 };

/* Scheme and host are compared without case (RFC 3986, 6.2.2.1). */
static bool same_part(CURLU *a, CURLU *b, CURLUPart part)
{
    char *x = NULL, *y = NULL;
    /* An absent port equals the default one of its scheme. */
    unsigned flags = part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0;
    bool same = curl_url_get(a, part, &x, flags) == CURLUE_OK &&
                curl_url_get(b, part, &y, flags) == CURLUE_OK && strcasecmp(x, y) == 0;
    curl_free(x);
    curl_free(y);
    return same;
}

/* Resolve `to` against `from`; NULL when it is not a usable address. */
static char *resolve_location(struct http_request *r, const char *from, const char *to)
{
    CURLU *base = curl_url(), *target = curl_url();
    char *url = NULL, *copy = NULL, *was = NULL, *is = NULL;
    if (base && target && curl_url_set(base, CURLUPART_URL, from, 0) == CURLUE_OK &&
        curl_url_set(target, CURLUPART_URL, from, 0) == CURLUE_OK &&
        curl_url_set(target, CURLUPART_URL, to, 0) == CURLUE_OK &&
        curl_url_get(base, CURLUPART_SCHEME, &was, 0) == CURLUE_OK &&
        curl_url_get(target, CURLUPART_SCHEME, &is, 0) == CURLUE_OK &&
        /* From https to http the request would travel in the clear. */
        (strcasecmp(was, "https") != 0 || strcasecmp(is, "https") == 0) &&
        curl_url_get(target, CURLUPART_URL, &url, 0) == CURLUE_OK) {
        /* A redirect back to the first host does not bring the secrets back, since the other
         * host chose the path. */
        r->cross_origin = r->cross_origin || !(same_part(base, target, CURLUPART_SCHEME) &&
                                               same_part(base, target, CURLUPART_HOST) &&
                                               same_part(base, target, CURLUPART_PORT));
        copy = strdup(url);
    }
    curl_free(was);
    curl_free(is);
    curl_free(url);
    curl_url_cleanup(base);
    curl_url_cleanup(target);
    return copy;
}

char *http_resolve(const char *base, const char *reference)
{
    CURLU *u = curl_url();
    char *url = NULL, *copy = NULL;
    /* the second is resolved against the first */
    if (u && curl_url_set(u, CURLUPART_URL, base, 0) == CURLUE_OK &&
        curl_url_set(u, CURLUPART_URL, reference, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_URL, &url, 0) == CURLUE_OK)
        copy = strdup(url);
    curl_free(url);
    curl_url_cleanup(u);
    return copy;
}

bool transfer_redirect(struct http_request *r)
{
    int status = r->resp.status;
    /* 300, 304 and 305 are no redirects to follow (RFC 9110, 15.4). */
    if (!r->follow || r->resp.failure != HTTP_OK ||
        (status != 301 && status != 302 && status != 303 && status != 307 && status != 308))
        return false;
    char *location = http_response_location(&r->resp);
    if (!location)
        return false;
    if (r->redirects++ >= MAX_REDIRECTS) {
        free(location);
        transfer_fail(r, HTTP_FAIL_PROTOCOL, "more than %d redirects", MAX_REDIRECTS);
        return false;
    }
    char *next = resolve_location(r, r->location ? r->location : r->url, location);
    free(location);
    if (!next) {
        transfer_fail(r, HTTP_FAIL_PROTOCOL, "redirect to an unusable address");
        return false;
    }
    /* 307 and 308 keep method and body; browsers and most clients turn the others into GET. */
    bool as_get = r->as_get || (status <= 303 && strcmp(r->method, "GET") != 0);
    size_t max = r->resp.body.max;
    http_request_clear(r);
    buf_init(&r->resp.head, 65536);
    buf_init(&r->resp.body, max);
    r->location = next;
    r->as_get = as_get;
    return true;
}

/* As forms do (application/x-www-form-urlencoded): a space becomes a plus. */
void http_query_escape(struct buf *out, const char *s)
{
    static const char hex[] = "0123456789ABCDEF";
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (strchr("-_.~", c) || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))
            buf_putc(out, (char)c);
        else if (c == ' ')
            buf_putc(out, '+');
        else {
            buf_putc(out, '%');
            buf_putc(out, hex[c >> 4]);
            buf_putc(out, hex[c & 15]);
        }
    }
}
