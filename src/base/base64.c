/* base64.c - standard and URL-safe base64 (RFC 4648).
 *
 * Standard decoding is as forgiving as the peers are: foreign characters are
 * skipped and what follows complete padding is ignored.  A failed decode leaves
 * the output as it was. */
#include "base/base64.h"
#include <stdint.h>

static const char STANDARD[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const char URL_SAFE[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void encode(struct buf *out, const uint8_t *p, size_t n, const char *alphabet, bool pad)
{
    size_t tail = n % 3, extra = n / 3 * 4 + (tail ? pad ? 4 : tail + 1 : 0);
    if (n > SIZE_MAX / 2 || !buf_reserve(out, extra)) {
        out->failed = true;
        return;
    }
    char *q = out->data + out->len;
    for (; n >= 3; n -= 3, p += 3) {
        uint32_t v = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        *q++ = alphabet[v >> 18];
        *q++ = alphabet[v >> 12 & 63];
        *q++ = alphabet[v >> 6 & 63];
        *q++ = alphabet[v & 63];
    }
    if (tail) {
        uint32_t v = (uint32_t)p[0] << 16 | (tail == 2 ? (uint32_t)p[1] << 8 : 0);
        *q++ = alphabet[v >> 18];
        *q++ = alphabet[v >> 12 & 63];
        if (tail == 2)
            *q++ = alphabet[v >> 6 & 63];
        for (size_t i = tail; pad && i < 3; i++)
            *q++ = '=';
    }
    *q = '\0';
    out->len += extra;
}

void base64_encode(struct buf *out, const void *p, size_t n)
{
    encode(out, p, n, STANDARD, true);
}

void base64url_encode(struct buf *out, const void *p, size_t n)
{
    encode(out, p, n, URL_SAFE, false);
}

/* The six bits of a character, or -1; c62 and c63 are the two that differ. */
static int value_of(char c, char c62, char c63)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == c62 ? 62 : c == c63 ? 63 : -1;
}

/* Bytes of an unfinished group of 2 or 3 characters held in bits. */
static void put_tail(struct buf *out, uint32_t bits, int held)
{
    if (held == 3)
        buf_putc(out, (char)(bits >> 10));
    if (held >= 2)
        buf_putc(out, (char)(held == 3 ? bits >> 2 : bits >> 4));
}

static bool decode(struct buf *out, const char *s, size_t n, bool url)
{
    /* ask for all of it at once, unless what is skipped decides whether it fits */
    if (n / 4 * 3 + 3 <= out->max - out->len && !buf_reserve(out, n / 4 * 3 + 3))
        return false;
    uint32_t bits = 0;
    int held = 0, pads = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '=') {
            if (held >= 2 && held + ++pads >= 4) {
                put_tail(out, bits, held);
                return buf_ok(out) && (!url || i + 1 == n);
            }
            if (url && held < 2)
                return false;
            continue;
        }
        int v = url ? value_of(s[i], '-', '_') : value_of(s[i], '+', '/');
        if (v < 0 && url)
            return false;
        if (v < 0)
            continue;
        if (url && pads)
            return false;
        pads = 0;
        bits = bits << 6 | (uint32_t)v;
        if (++held < 4)
            continue;
        char group[3] = { (char)(bits >> 16), (char)(bits >> 8), (char)bits };
        buf_append(out, group, 3);
        bits = 0;
        held = 0;
    }
    if (url && held >= 2) {
        put_tail(out, bits, held);
        held = 0;
    }
    return buf_ok(out) && held == 0;
}

static bool decode_whole(struct buf *out, const char *s, size_t n, bool url)
{
    size_t before = out->len;
    bool ok = decode(out, s, n, url);
    if (!ok && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    return ok;
}

bool base64_decode(struct buf *out, const char *s, size_t n)
{
    return decode_whole(out, s, n, false);
}

bool base64url_decode(struct buf *out, const char *s, size_t n)
{
    return decode_whole(out, s, n, true);
}
