/* tokenizer.c - the public calls: encode, decode, look-ups, growing results.
 *
 * Many texts at once are in tok_batch.c, loading by name in tok_open.c, streaming in tok_stream.c. */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/tok_decode.h"
#include "tokenizer/tok_encode.h"
#include "unicode/unicode.h"

/* ---- growing results ------------------------------------------------------------------------- */

void tinker_tokens_clear(tinker_tokens *t)
{
    free(t->ids);
    *t = (tinker_tokens)TINKER_TOKENS_INIT;
}

void tinker_spans_clear(tinker_spans *s)
{
    free(s->spans);
    *s = (tinker_spans)TINKER_SPANS_INIT;
}

/* tinker_tokens and struct bpe_out grow alike. */
tinker_status tinker_tokens_append(tinker_tokens *t, const int32_t *ids, size_t n,
                                   tinker_error *err)
{
    struct bpe_out out = { .ids = t->ids, .n = t->n, .cap = t->cap };
    if (n == 0)
        return TINKER_OK;
    if (!bpe_out_reserve(&out, n))
        return err_nomem(err, "tokens");
    memcpy(out.ids + out.n, ids, n * sizeof(*ids));
    *t = (tinker_tokens){ out.ids, out.n + n, out.cap };
    return TINKER_OK;
}

/* ---- encode ---------------------------------------------------------------------------------- */

tinker_status tinker_tokenizer_encode(const tinker_tokenizer *t, const char *text, size_t n,
                                      const tinker_encode_options *opts, tinker_tokens *out,
                                      tinker_error *err)
{
    tinker_encode_options o;
    tinker_status status = tok_encode_options(&o, opts, err);
    if (status != TINKER_OK)
        return status;
    if (t->functions)
        return tok_functions_encode(t, text, n, &o, out, NULL, err);
    struct tok_ctx *c = tok_ctx_take(t); /* nobody else has it until it is given back */
    if (!c)
        return err_nomem(err, "tokens");
    status = tok_encode(t, c, text, n, &o, out, NULL, err);
    tok_ctx_give(t, c);
    return status;
}

/* ---- decode ---------------------------------------------------------------------------------- */

/* What follows `had` in b becomes UTF-8 (repair), then loses spaces (cleanup), as asked for. */
static void finish_text(struct buf *b, size_t had, bool repair, bool cleanup)
{
    size_t n = b->len - had;
    struct buf fixed;
    if (repair && n > 0 && utf8_valid_prefix(b->data + had, n) < n) {
        buf_init(&fixed, SIZE_MAX);
        uni_repair(&fixed, b->data + had, n);
        b->len = had;
        buf_append(b, fixed.data, fixed.len);
        b->failed = b->failed || fixed.failed;
        buf_clear(&fixed);
    }
    n = b->len - had;
    if (cleanup && n > 0) {
        buf_init(&fixed, SIZE_MAX);
        tok_cleanup(&fixed, b->data + had, n, false);
        b->len = had;
        buf_append(b, fixed.data ? fixed.data : "", fixed.len);
        b->failed = b->failed || fixed.failed;
        buf_clear(&fixed);
    }
}

tinker_status tinker_tokenizer_decode(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                                      const tinker_decode_options *opts, tinker_text *out,
                                      tinker_error *err)
{
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    tinker_status status = TINKER_OK;
    if (opts)
        status = opts_copy(&o, sizeof(o), opts, "tinker_decode_options", err);
    if (status == TINKER_OK && !ids && n)
        status = err_set(err, TINKER_EINVAL, "there are no ids");
    if (status != TINKER_OK)
        return status;
    struct buf b = text_to_buf(out);
    size_t had = b.len;
    buf_reserve(&b, n * 5 + 32); /* enough for most texts */
    bool sound;
    status = tok_decode(t, ids, n, &o, &b, &sound, err);
    if (status == TINKER_OK)
        finish_text(&b, had, !sound && !o.raw_bytes, o.cleanup != 0);
    if (status == TINKER_OK && !buf_ok(&b))
        status = err_nomem(err, "text");
    if (status != TINKER_OK) /* the memory may have moved, but the text is as it was */
        b.len = had;
    if (b.data)
        b.data[b.len] = '\0';
    text_from_buf(out, &b);
    return status;
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* Ids may have holes. */
static bool is_token(const tinker_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->bpe.n_ids && (t->bpe.flags[id] & BPE_TOKEN);
}

/* Spellings that are no plain token first: they are few, and found as they are. */
int32_t tinker_tokenizer_id(const tinker_tokenizer *t, const char *token, size_t n)
{
    if (t->functions)
        return t->functions->id ? t->functions->id(token, n, t->functions->state) : -1;
    uintptr_t odd = (uintptr_t)map_get(&t->odd, token, n);
    if (odd)
        return (int32_t)(odd - 1);
    if (utf8_valid_prefix(token, n) < n)
        return -1;
    /* The byte map leaves plain ASCII as it is, and spells nothing with a character of more than two
     * bytes.  Control tokens with such are told from text without asking for memory, which may not
     * be there. */
    bool plain = true, may_be_mapped = true;
    for (size_t i = 0; i < n; i++) {
        plain = plain && token[i] >= 0x21 && token[i] <= 0x7E;
        may_be_mapped = may_be_mapped && (unsigned char)token[i] < 0xE0;
    }
    uint32_t id = BPE_NONE;
    if (t->bpe.byte_level && !plain) {
        struct buf bytes;
        buf_init(&bytes, SIZE_MAX);
        if (may_be_mapped && bpe_unmap(&bytes, token, n) && buf_ok(&bytes) && bytes.len > 0)
            id = bpe_find(&t->bpe, bytes.data, bytes.len);
        buf_clear(&bytes);
    } else if (n > 0) {
        id = bpe_find(&t->bpe, token, n);
    }
    return id == BPE_NONE ? -1 : (int32_t)id;
}

tinker_status tinker_tokenizer_token(const tinker_tokenizer *t, int32_t id, tinker_text *out,
                                     tinker_error *err)
{
    if (!is_token(t, id))
        return err_set(err, TINKER_EINVAL, "there is no token %d", (int)id);
    struct buf b; /* aside, so that *out is as it was if memory runs out */
    buf_init(&b, SIZE_MAX);
    tok_spell(t, (uint32_t)id, &b);
    tinker_status status = buf_ok(&b) ? tinker_text_append(out, b.data ? b.data : "", b.len, err)
                                      : err_nomem(err, "text");
    buf_clear(&b);
    return status;
}

/* Into the block: nothing is copied, and nothing NUL-terminated. */
const char *tinker_tokenizer_bytes(const tinker_tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    return is_token(t, id) ? bpe_bytes(&t->bpe, (uint32_t)id, n) : NULL;
}

int32_t tinker_tokenizer_special(const tinker_tokenizer *t, tinker_special_kind kind)
{
    return kind >= TINKER_TOKEN_BOS && kind <= TINKER_TOKEN_UNK ? t->special[kind] : -1;
}

int tinker_tokenizer_is_special(const tinker_tokenizer *t, int32_t id)
{
    return is_token(t, id) && (t->bpe.flags[id] & BPE_SPECIAL);
}

int tinker_tokenizer_is_added(const tinker_tokenizer *t, int32_t id)
{
    return is_token(t, id) && (t->bpe.flags[id] & BPE_ADDED);
}

/* Added tokens may be tokens of the model, too; those count once. */
size_t tinker_tokenizer_vocab_size(const tinker_tokenizer *t, int with_added)
{
    if (t->functions)
        return t->functions->vocab_size;
    size_t n = t->bpe.header->n_vocab;
    for (size_t i = 0; with_added && i < t->n_added; i++)
        n += !(t->bpe.flags[t->added[i].id] & BPE_MODEL);
    return n;
}

int32_t tinker_tokenizer_max_id(const tinker_tokenizer *t)
{
    return (int32_t)(t->functions ? t->functions->vocab_size : t->bpe.n_ids) - 1;
}

const char *tinker_tokenizer_chat_template(const tinker_tokenizer *t)
{
    return t->chat_template;
}

int64_t tinker_tokenizer_max_length(const tinker_tokenizer *t)
{
    return t->max_length;
}
