/* tok_stream.c - decoding as tokens arrive.
 *
 * Byte-level vocabularies keep the at most three bytes of a character that is not complete.
 * SentencePiece-like ones keep a run of byte tokens, because how it reads is known only at its
 * end, and remember what is still to be stripped from the start.  For any other list of decoders
 * all ids are kept and decoded again, and what the two results have in common is given out, as
 * the reference does. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/utf8.h"
#include "tokenizer/tok_decode.h"
#include "unicode/unicode.h"

/* How a decoder works; chosen by the tokenizer's list of decoders. */
enum way { WAY_BYTES, WAY_META, WAY_AGAIN };

struct tinker_decoder {
    tinker_tokenizer *t;
    tinker_decode_options opts;
    enum way way;
    struct buf pending; /* WAY_BYTES: incomplete character; WAY_AGAIN: what was given out */
    tinker_tokens ids;  /* WAY_META: a run of byte tokens; WAY_AGAIN: all */
    size_t strip;       /* WAY_META: copies to take off, while nothing was given out */
};

tinker_decoder *tinker_decoder_new(tinker_tokenizer *t, const tinker_decode_options *opts,
                                   tinker_error *err)
{
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    if (opts && opts_copy(&o, sizeof(o), opts, "tinker_decode_options", err) != TINKER_OK)
        return NULL;
    if (o.raw_bytes || o.cleanup) {
        err_set(err, TINKER_EINVAL, "raw_bytes and cleanup do not stream");
        return NULL;
    }
    tinker_decoder *d = calloc(1, sizeof(*d));
    if (!d) {
        err_nomem(err, "decoder");
        return NULL;
    }
    d->t = tinker_tokenizer_ref(t);
    d->opts = o;
    d->way = t->functions           ? WAY_AGAIN
             : tok_decodes_bytes(t) ? WAY_BYTES
             : tok_decodes_meta(t)  ? WAY_META
                                    : WAY_AGAIN;
    d->strip = d->way == WAY_META ? tok_strips(t) : 0;
    buf_init(&d->pending, SIZE_MAX);
    return d;
}

void tinker_decoder_free(tinker_decoder *d)
{
    if (!d)
        return;
    buf_clear(&d->pending);
    tinker_tokens_clear(&d->ids);
    tinker_tokenizer_free(d->t);
    free(d);
}

/* Length of the part of s[0..n) behind which only an incomplete character remains. */
static size_t find_complete_prefix(const char *s, size_t n)
{
    size_t back = n < 3 ? n : 3; /* more bytes do not lack one */
    for (size_t i = n - back; i < n; i++) {
        bool incomplete;
        uint32_t cp;
        if (((unsigned char)s[i] & 0xC0) == 0x80 || (unsigned char)s[i] < 0x80)
            continue; /* no first byte of a longer character */
        if (utf8_decode(s + i, n - i, &cp) == 0 &&
            uni_bad_part(s + i, n - i, &incomplete) == n - i && incomplete)
            return i;
    }
    return n;
}

/* Keep those of the ids that have a text. */
static tinker_status keep_ids(tinker_decoder *d, const int32_t *ids, size_t n, tinker_error *err)
{
    size_t had = d->ids.n;
    if (d->t->functions) /* whether an id has one shows when it is decoded */
        return tinker_tokens_append(&d->ids, ids, n, err);
    for (size_t i = 0; i < n; i++) {
        bool use;
        tinker_status status = tok_use_id(d->t, ids[i], &d->opts, &use, err);
        if (status == TINKER_OK && use)
            status = tinker_tokens_append(&d->ids, &ids[i], 1, err);
        if (status != TINKER_OK) {
            d->ids.n = had;
            return status;
        }
    }
    return TINKER_OK;
}

/* Number of the kept ids whose text can no longer change; the first `known` are byte tokens. */
static size_t count_settled(const tinker_decoder *d, size_t known, bool end)
{
    size_t n = d->ids.n, len;
    for (; !end && n > known; n--) { /* a byte token may be part of a character */
        const char *p = tinker_tokenizer_bytes(d->t, d->ids.ids[n - 1], &len);
        if (!p || tok_byte_token(p, len) < 0)
            break;
    }
    return n > known || end ? n : 0;
}

/* WAY_META: decode the kept ids up to the last one whose text is settled. */
static tinker_status put_meta(tinker_decoder *d, const int32_t *ids, size_t n, bool end,
                              struct buf *text, tinker_error *err)
{
    size_t had = d->ids.n;
    bool sound;
    tinker_status status = keep_ids(d, ids, n, err);
    /* What was kept from earlier calls are byte tokens. */
    size_t ready = status == TINKER_OK ? count_settled(d, had, end) : 0;
    if (ready == 0)
        return status;
    status = tok_decode_part(d->t, d->ids.ids, ready, &d->opts, text, &sound, err);
    if (status != TINKER_OK)
        return status;
    /* Stripping ends with the first character that is not stripped. */
    d->strip -= tok_strip_meta(d->t, text, 0, d->strip);
    if (text->len > 0)
        d->strip = 0;
    d->ids.n -= ready;
    memmove(d->ids.ids, d->ids.ids + ready, d->ids.n * sizeof(*d->ids.ids));
    return TINKER_OK;
}

/* WAY_AGAIN: decode everything, give out what is new.  pending holds what was given out. */
static tinker_status put_again(tinker_decoder *d, const int32_t *ids, size_t n, bool end,
                               struct buf *text, tinker_error *err)
{
    size_t had = d->ids.n;
    tinker_status status = keep_ids(d, ids, n, err);
    if (status != TINKER_OK)
        return status;
    struct buf whole;
    bool sound;
    buf_init(&whole, SIZE_MAX);
    status = tok_decode(d->t, d->ids.ids, count_settled(d, 0, end), &d->opts, &whole, &sound, err);
    if (status == TINKER_OK && whole.len > d->pending.len) {
        size_t same = d->pending.len;
        size_t ready = find_complete_prefix(whole.data, whole.len);
        while (!end && ready >= same + 3 && memcmp(whole.data + ready - 3, "\xEF\xBF\xBD", 3) == 0)
            ready -= 3; /* may become a character */
        if (ready > same) {
            buf_append(text, whole.data + same, ready - same);
            buf_append(&d->pending, whole.data + same, ready - same);
        }
    }
    if (status == TINKER_OK && (!buf_ok(&d->pending) || !buf_ok(text)))
        status = err_nomem(err, "text");
    if (status != TINKER_OK && d->t->functions) /* an id without a text is refused, once */
        d->ids.n = had;
    buf_clear(&whole);
    return status;
}

/* Hand a step's text over to the caller, if it succeeded; the text is cleared. */
static tinker_status append_result(tinker_text *out, struct buf *text, tinker_status status,
                                   tinker_error *err)
{
    if (status == TINKER_OK && !buf_ok(text))
        status = err_nomem(err, "text");
    if (status == TINKER_OK)
        status = tinker_text_append(out, text->data ? text->data : "", text->len, err);
    buf_clear(text);
    return status;
}

/* The next ids, or the end of them. */
static tinker_status put_ids(tinker_decoder *d, const int32_t *ids, size_t n, bool end,
                             struct buf *text, tinker_error *err)
{
    if (!ids && n)
        return err_set(err, TINKER_EINVAL, "there are no ids");
    switch (d->way) { /* in the end the two others give out what they held back */
    case WAY_META:
        return put_meta(d, ids, n, end, text, err);
    case WAY_AGAIN:
        return put_again(d, ids, n, end, text, err);
    case WAY_BYTES:
        break;
    }
    /* WAY_BYTES: pending holds the new bytes behind the old. */
    size_t had = d->pending.len;
    bool sound;
    tinker_status status = tok_decode(d->t, ids, n, &d->opts, &d->pending, &sound, err);
    if (status != TINKER_OK) {
        d->pending.len = had;
        return status;
    }
    if (d->pending.len == 0)
        return TINKER_OK;
    /* What is complete goes out, with U+FFFD for what can no longer become a character. */
    size_t ready = end ? d->pending.len : find_complete_prefix(d->pending.data, d->pending.len);
    uni_repair(text, d->pending.data, ready);
    memmove(d->pending.data, d->pending.data + ready, d->pending.len - ready);
    d->pending.len -= ready;
    return TINKER_OK;
}

tinker_status tinker_decoder_put(tinker_decoder *d, const int32_t *ids, size_t n, tinker_text *out,
                                 tinker_error *err)
{
    struct buf text;
    buf_init(&text, SIZE_MAX);
    tinker_status status = put_ids(d, ids, n, false, &text, err);
    return append_result(out, &text, status, err);
}

tinker_status tinker_decoder_end(tinker_decoder *d, tinker_text *out, tinker_error *err)
{
    struct buf text;
    buf_init(&text, SIZE_MAX);
    tinker_status status = put_ids(d, NULL, 0, true, &text, err);
    buf_reset(&d->pending); /* ready for another sequence, also after a failure */
    d->ids.n = 0;
    d->strip = d->way == WAY_META ? tok_strips(d->t) : 0;
    return append_result(out, &text, status, err);
}
