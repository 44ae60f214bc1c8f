/* tok_decode_meta.c - decoding of SentencePiece-like vocabularies in one pass.
 *
 * Their decoders are always: replace the metaspace by a space, byte tokens to text, join, and
 * sometimes strip leading spaces.  Done together no list of strings is needed. */
#include <string.h>
#include "base/err.h"
#include "tokenizer/tok_decode.h"

/* The list of decoders that Llama 2, Gemma and Mistral files have. */
bool tok_decodes_meta(const tinker_tokenizer *t)
{
    const struct tok_dec *d = t->decs;
    return (t->n_decs == 3 || (t->n_decs == 4 && d[3].kind == DEC_STRIP && d[3].stop == 0)) &&
           !t->bpe.byte_level && d[0].kind == DEC_REPLACE && !d[0].regex && d[0].find.n > 0 &&
           d[1].kind == DEC_BYTE_FALLBACK && d[2].kind == DEC_FUSE;
}

void tok_put_meta(struct buf *out, const char *p, size_t n, const struct tok_dec *d)
{
    size_t find = d->find.n;
    /* at the start, where nearly all are */
    while (n >= find && memcmp(p, d->find.s, find) == 0) {
        buf_append(out, d->content.s, d->content.n);
        p += find;
        n -= find;
    }
    /* then anywhere */
    while (n >= find) {
        const char *q = memchr(p, d->find.s[0], n - find + 1);
        if (!q)
            break;
        bool found = memcmp(q, d->find.s, find) == 0;
        size_t before = (size_t)(q - p), used = before + (found ? find : 1);
        buf_append(out, p, found ? before : used);
        if (found)
            buf_append(out, d->content.s, d->content.n);
        p += used;
        n -= used;
    }
    buf_append(out, p, n);
}

/* Llama's decoders strip the space that its normalizer put before the text. */
size_t tok_strips(const tinker_tokenizer *t)
{
    return t->n_decs == 4 && t->decs[3].content.n > 0 ? t->decs[3].start : 0;
}

size_t tok_strip_meta(const tinker_tokenizer *t, struct buf *out, size_t from, size_t max)
{
    if (max == 0 || !out->data)
        return 0;
    struct tok_str c = t->decs[3].content;
    size_t k = 0;
    while (k < max && out->len - from >= (k + 1) * c.n &&
           memcmp(out->data + from + k * c.n, c.s, c.n) == 0)
        k++;
    if (k > 0) { /* with the NUL behind the text */
        memmove(out->data + from, out->data + from + k * c.n, out->len - from - k * c.n + 1);
        out->len -= k * c.n;
    }
    return k;
}

tinker_status tok_decode_meta(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                              const tinker_decode_options *o, struct buf *out, tinker_error *err)
{
    struct buf run; /* bytes of byte tokens: text only as a whole */
    tinker_status status = TINKER_OK;
    buf_init(&run, SIZE_MAX);
    for (size_t i = 0; i < n && status == TINKER_OK; i++) {
        bool use;
        size_t len;
        status = tok_use_id(t, ids[i], o, &use, err);
        if (status != TINKER_OK || !use)
            continue;
        const char *p = bpe_bytes(&t->bpe, (uint32_t)ids[i], &len);
        int byte = tok_byte_token(p, len);
        if (byte >= 0) { /* wait for the end of the run */
            buf_putc(&run, (char)byte);
            continue;
        }
        if (run.len > 0) {
            tok_put_byte_run(out, run.data, run.len);
            buf_reset(&run);
        }
        tok_put_meta(out, p, len, &t->decs[0]);
    }
    if (run.len > 0)
        tok_put_byte_run(out, run.data, run.len);
    if (run.failed)
        out->failed = true;
    buf_clear(&run);
    if (status == TINKER_OK && !buf_ok(out))
        status = err_nomem(err, "text");
    return status;
}
