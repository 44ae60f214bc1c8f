/* signed_url.c - see signed_url.h.
 *
 * The signature is HMAC-SHA256 over "place what expires" with the key that the store keeps, so
 * URLs stay valid across a restart. */
#include "server/http/signed_url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha.h"
#include "wire/path.h"

/* The signature covers what may be fetched and until when; neither can be changed. */
static void compute_signature(const struct server *s, const char *place, const char *what,
                              int64_t expires, char out[65])
{
    char text[512];
    uint8_t mac[32];
    snprintf(text, sizeof(text), "%s %s %lld", place, what, (long long)expires);
    hmac_sha256(s->key, sizeof(s->key), text, strlen(text), mac);
    hex_encode(mac, sizeof(mac), out);
}

const char *signed_url_make(struct server *s, struct request *req, const char *place,
                            const char *what, int64_t *expires)
{
    char sig[65];
    struct buf b;
    /* Escape the segments of "dir/name" one by one: their slashes stay. */
    buf_init(&b, 3 * strlen(what) + 1);
    for (const char *p = what; *p;) {
        size_t n = strcspn(p, "/");
        wire_put_segment(&b, p, n);
        p += n;
        for (; *p == '/'; p++)
            buf_putc(&b, '/');
    }
    const char *parts = buf_ok(&b) ? arena_strndup(&req->arena, b.data ? b.data : "", b.len) : NULL;
    buf_clear(&b);
    if (!parts)
        return NULL;
    *expires = clock_wall_ns(s->clock) / 1000000000 + SIGNED_URL_SECONDS;
    compute_signature(s, place, what, *expires, sig);
    /* The host the client used to reach us is the one it can fetch from. */
    return arena_printf(&req->arena, "%s://%s%s/%s/%s?exp=%lld&sig=%s", req->tls ? "https" : "http",
                        req->host ? req->host : "localhost",
                        s->opts.path_prefix ? s->opts.path_prefix : "", place, parts,
                        (long long)*expires, sig);
}

bool signed_url_check(struct server *s, struct request *req, struct response *res,
                      const char *place, const char *what)
{
    const char *exp = req->query(req, "exp"), *sig = req->query(req, "sig");
    char want[65];
    int64_t expires = exp ? strtoll(exp, NULL, 10) : 0;
    compute_signature(s, place, what, expires, want);
    /* Constant time: how long the comparison takes must not tell which byte is wrong. */
    unsigned char diff = !sig || strlen(sig) != 64;
    for (size_t i = 0; !diff && i < 64; i++)
        diff |= (unsigned char)(sig[i] ^ want[i]);
    if (!diff && expires >= clock_wall_ns(s->clock) / 1000000000)
        return true;
    response_error(res, 403, "the link is invalid or has expired");
    return false;
}
