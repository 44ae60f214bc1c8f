/* gunzip.c - see gunzip.h.  Members may follow each other, and zeros may follow the last, as
 * gzip has it; checksums are zlib's to check. */
#include "client/rest/gunzip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include "base/err.h"

enum { GZIP_ONLY = 16 + MAX_WBITS, PIECE = 1 << 30 };

struct gunzip {
    z_stream z;
    const unsigned char *p;
    size_t n; /* not given to zlib yet */
    uint64_t left, max;
    bool end;
};

bool gunzip_is(const void *p, size_t n)
{
    return n >= 2 && memcmp(p, "\x1f\x8b", 2) == 0;
}

/* p[0..n) must stay until gunzip_close(). max bounds the unpacked size. */
struct gunzip *gunzip_open(const void *p, size_t n, uint64_t max, tinker_error *err)
{
    struct gunzip *g = calloc(1, sizeof(*g));
    if (!g || inflateInit2(&g->z, GZIP_ONLY) != Z_OK) {
        free(g);
        err_nomem(err, "gzip");
        return NULL;
    }
    g->p = p;
    g->n = n;
    g->left = g->max = max;
    return g;
}

void gunzip_close(struct gunzip *g)
{
    if (!g)
        return;
    inflateEnd(&g->z);
    free(g);
}

/* zlib counts its input in unsigned int: a large file is given in pieces. */
static void feed_input(struct gunzip *g)
{
    if (g->z.avail_in > 0)
        return;
    g->z.next_in = (unsigned char *)g->p; /* zlib only reads it */
    g->z.avail_in = (uInt)(g->n < PIECE ? g->n : PIECE);
    g->p += g->z.avail_in;
    g->n -= g->z.avail_in;
}

/* One call of inflate(): some input for some output.  Z_BUF_ERROR only means that there was no
 * progress; with input left it is not an error, without it the data ends too early. */
static tinker_status inflate_some(struct gunzip *g, tinker_error *err)
{
    feed_input(g);
    bool starved = g->z.avail_in == 0;
    int rc = inflate(&g->z, Z_NO_FLUSH);
    if (rc == Z_STREAM_END) {
        /* A member ended.  Zeros up to the end of the input are padding; else another member must
         * follow at once (RFC 1952, 2.2). */
        feed_input(g);
        const unsigned char *p = g->z.next_in;
        size_t n = g->z.avail_in;
        while (n > 0 && *p == 0) {
            p++;
            n--;
        }
        g->end = n == 0 && g->n == 0;
        if (g->end || (p == g->z.next_in && inflateReset(&g->z) == Z_OK))
            return TINKER_OK;
        return err_set(err, TINKER_EINVAL, "something follows the gzip data");
    }
    if (rc == Z_MEM_ERROR)
        return err_nomem(err, "gzip");
    if (rc != Z_OK && !(rc == Z_BUF_ERROR && !starved))
        return err_set(err, TINKER_EINVAL,
                       starved ? "the gzip data is cut off" : "the gzip data is damaged");
    return TINKER_OK;
}

/* Up to n bytes; *got < n only at the end or on error. The bound is checked after each piece of
 * PIECE bytes, so at most one piece more than allowed is ever unpacked. */
tinker_status gunzip_read(struct gunzip *g, void *out, size_t n, size_t *got, tinker_error *err)
{
    tinker_status s = TINKER_OK;
    *got = 0;
    while (*got < n && !g->end && s == TINKER_OK) {
        size_t room = n - *got < PIECE ? n - *got : PIECE;
        g->z.next_out = (unsigned char *)out + *got;
        g->z.avail_out = (uInt)room;
        s = inflate_some(g, err);
        size_t made = room - g->z.avail_out;
        if (made > g->left)
            return err_set(err, TINKER_EINVAL, "the gzip data unpacks to more than %llu bytes",
                           (unsigned long long)g->max);
        g->left -= made;
        *got += made;
    }
    return s;
}
