/* base64.c - standard and URL-safe base64 (RFC 4648).
 *
 * Standard decoding is as forgiving as the peers are: foreign characters are
 * skipped and what follows complete padding is ignored.  A failed decode leaves
 * the output as it was. */
#include "base/base64.h"
#include <stdint.h>
#include <string.h>

static const char STANDARD[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const char URL_SAFE[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void encode_bytes(struct buf *out, const uint8_t *p, size_t n, const char *alphabet,
                         bool pad)
{
    size_t tail = n % 3, extra = n / 3 * 4 + (tail ? pad ? 4 : tail + 1 : 0);
    if (n > SIZE_MAX / 2 || !buf_reserve(out, extra)) {
        out->failed = true;
        return;
    }
    char *q = out->data + out->len;
    /* Three bytes are 24 bits, which are four characters of six. */
    for (; n >= 3; n -= 3, p += 3) {
        uint32_t v = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        *q++ = alphabet[v >> 18];
        *q++ = alphabet[v >> 12 & 63];
        *q++ = alphabet[v >> 6 & 63];
        *q++ = alphabet[v & 63];
    }
    /* One byte left over gives two characters, two give three. */
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
    encode_bytes(out, p, n, STANDARD, true);
}

void base64url_encode(struct buf *out, const void *p, size_t n)
{
    encode_bytes(out, p, n, URL_SAFE, false);
}

enum { FOREIGN = 0x80 }; /* in the table: not of the alphabet */

/* Decode whole groups of four good characters, up to the first that is none; returns how many
 * characters they were.  The fast path: a block of clean base64 never leaves this loop. */
static size_t decode_groups(struct buf *out, const char *s, size_t n, const uint8_t table[256])
{
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 0;
    bool good = true;
    while (good && n - i >= 4) {
        /* Collected on the stack, so that the buffer is checked once for many groups. */
        char bytes[3 * 256];
        size_t len = 0;
        for (; n - i >= 4 && len < sizeof bytes; i += 4) {
            uint8_t a = table[p[i]], b = table[p[i + 1]], c = table[p[i + 2]], d = table[p[i + 3]];
            good = !((a | b | c | d) & FOREIGN);
            if (!good)
                break;
            bytes[len++] = (char)(a << 2 | b >> 4);
            bytes[len++] = (char)(b << 4 | c >> 2);
            bytes[len++] = (char)(c << 6 | d);
        }
        buf_append(out, bytes, len);
    }
    return i;
}

/* Bytes of an unfinished group of 2 or 3 characters held in bits. */
static void put_tail(struct buf *out, uint32_t bits, int held)
{
    if (held == 3)
        buf_putc(out, (char)(bits >> 10));
    if (held >= 2)
        buf_putc(out, (char)(held == 3 ? bits >> 2 : bits >> 4));
}

/* The slow path takes single characters: between groups that line breaks or padding interrupt.
 * URL-safe text is held to RFC 4648: no foreign characters, padding may be missing. */
static bool decode_chars(struct buf *out, const char *s, size_t n, bool url)
{
    uint8_t table[256];
    const char *alphabet = url ? URL_SAFE : STANDARD;
    memset(table, FOREIGN, sizeof table);
    for (int i = 0; i < 64; i++)
        table[(unsigned char)alphabet[i]] = (uint8_t)i;
    /* Reserve all of it at once, unless it depends on the skipped characters whether it fits. */
    if (n / 4 * 3 + 3 <= out->max - out->len && !buf_reserve(out, n / 4 * 3 + 3))
        return false;
    uint32_t bits = 0;
    int held = 0, pads = 0;
    for (size_t i = 0; i < n; i++) {
        if (held == 0 && pads == 0) {
            i += decode_groups(out, s + i, n - i, table);
            if (i == n)
                break;
        }
        /* Padding completes a group of two or three; elsewhere standard decoding skips it. */
        if (s[i] == '=') {
            if (held >= 2 && held + ++pads >= 4) {
                put_tail(out, bits, held);
                return buf_ok(out) && (!url || i + 1 == n);
            }
            if (url && held < 2)
                return false;
            continue;
        }
        uint8_t v = table[(unsigned char)s[i]];
        /* Nothing but padding may follow padding. */
        if (url && (v == FOREIGN || pads))
            return false;
        if (v == FOREIGN)
            continue;
        pads = 0;
        bits = bits << 6 | v;
        if (++held < 4)
            continue;
        char group[3] = { (char)(bits >> 16), (char)(bits >> 8), (char)bits };
        buf_append(out, group, 3);
        bits = 0;
        held = 0;
    }
    /* JSON web tokens leave the padding out. */
    if (url && held >= 2) {
        put_tail(out, bits, held);
        held = 0;
    }
    return buf_ok(out) && held == 0;
}

/* Decode, or leave *out as it was. */
static bool decode_whole(struct buf *out, const char *s, size_t n, bool url)
{
    size_t before = out->len;
    bool ok = decode_chars(out, s, n, url);
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
