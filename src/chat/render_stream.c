/* render_stream.c - a response parsed while its tokens arrive.
 *
 * Text is decoded into one growing buffer; what is certain is emitted as deltas that point
 * into it, what could still become a tag is held back.  Each way of marking thinking is one
 * scanner: think tags, Harmony channels, or none.  The complete message is parsed at the end
 * from all tokens.  Thread: one at a time. */
#include "chat/render_parse.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"

/* A delta before the buffer has its final address. */
struct pending {
    tinker_delta_kind kind;
    size_t begin, end;
    int content_index;
};

/* The states, by format:
 *
 *     think tags   text <-> thinking at each tag; starts in thinking if the prompt opened the block
 *     Harmony      header (in_body false) -> body at <|message|> -> header at <|end|>, <|call|> ...
 *     role_colon   text, until "\n\nUser:" or EOS
 *
 * undecided: tokens so far repeat the prompt's "<think>", so nothing was emitted yet. finished: a
 * stop was seen, later tokens are ignored. ended: finish was called. */
struct tinker_parse_stream {
    const tinker_renderer *r;
    tinker_decoder *decoder;
    tinker_text text;
    tinker_tokens tokens; /* as fed */
    size_t pos;           /* emitted, or known to be markup, up to here */
    bool header, finished, ended, thinking, in_body, muted, opened, undecided;
    int content_index;
    struct pending *pending;
    tinker_delta *deltas;
    size_t n, cap;
    struct render_ids prefix; /* tokens that the prompt supplied */
    int32_t prefix_ids[8];
};

/* Tokens of "<think>" or "<think>\n", which the prompt ended with and the response continues. */
static tinker_status find_prefix(tinker_parse_stream *s, tinker_error *err)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    const char *text = s->r->flags & RENDER_Q35 ? "<think>\n" : "<think>";
    tinker_status st =
        tinker_tokenizer_encode(s->r->tokenizer, text, strlen(text), NULL, &ids, err);
    if (st == TINKER_OK && ids.n <= 8) {
        memcpy(s->prefix_ids, ids.ids, ids.n * sizeof(*ids.ids));
        s->prefix = (struct render_ids){ s->prefix_ids, ids.n };
        s->undecided = ids.n > 0;
    }
    tinker_tokens_clear(&ids);
    return st;
}

tinker_parse_stream *tinker_parse_stream_new(const tinker_renderer *r, tinker_error *err)
{
    tinker_parse_stream *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "a parse stream");
        return NULL;
    }
    s->r = r;
    s->decoder = tinker_decoder_new(r->tokenizer, NULL, err);
    /* Whether the prompt of this renderer ended in an open think block. */
    bool opens = !(r->flags & RENDER_NO_THINK) &&
                 (r->flags & (RENDER_Q35 | RENDER_K25 | RENDER_THINKING)) != 0;
    if (!s->decoder || (opens && find_prefix(s, err) != TINKER_OK)) {
        tinker_parse_stream_free(s);
        return NULL;
    }
    return s;
}

void tinker_parse_stream_free(tinker_parse_stream *s)
{
    if (!s)
        return;
    tinker_decoder_free(s->decoder);
    tinker_text_clear(&s->text);
    tinker_tokens_clear(&s->tokens);
    free(s->pending);
    free(s->deltas);
    free(s);
}

/* ---- deltas ---- */

/* Note a delta by offsets: the text may still move while it grows. Empty ones are left out. */
static bool add_delta(tinker_parse_stream *s, tinker_delta_kind kind, size_t begin, size_t end)
{
    if (kind != TINKER_DELTA_HEADER && begin == end)
        return true;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 8;
        /* Both arrays have the same capacity; after a half failure the old ones are still owned. */
        struct pending *p = realloc(s->pending, cap * sizeof(*p));
        s->pending = p ? p : s->pending;
        tinker_delta *d = p ? realloc(s->deltas, cap * sizeof(*d)) : NULL;
        s->deltas = d ? d : s->deltas;
        if (!p || !d)
            return false;
        s->cap = cap;
    }
    s->pending[s->n++] = (struct pending){ kind, begin, end, s->content_index };
    return true;
}

/* Emit the text up to `end` as what it is now. Muted text (arguments of a Harmony call) is passed
 * over: it appears in the message only. */
static bool emit_text(tinker_parse_stream *s, size_t end)
{
    size_t begin = s->pos;
    s->pos = end;
    return s->muted ||
           add_delta(s, s->thinking ? TINKER_DELTA_THINKING : TINKER_DELTA_TEXT, begin, end);
}

/* All text of this call has arrived, so that addresses are final until the next call. */
static void publish_deltas(tinker_parse_stream *s, const tinker_delta **deltas, size_t *n)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct pending *p = &s->pending[i];
        bool header = p->kind == TINKER_DELTA_HEADER;
        s->deltas[i] =
            (tinker_delta){ p->kind, header ? "assistant" : s->text.s + p->begin,
                            header ? 9 : p->end - p->begin, header ? 0 : p->content_index };
    }
    *deltas = s->deltas;
    *n = s->n;
}

/* ---- scanners: each consumes s->text from s->pos on; false: no memory ---- */

static struct jv_str stream_text(const tinker_parse_stream *s)
{
    return (struct jv_str){ s->text.s ? s->text.s : "", s->text.n };
}

/* Length of the longest end of the unread text that could be the beginning of tag: it stays unread
 * until the next token tells. At most strlen(tag) - 1 bytes, so nothing is held for long. */
static size_t count_held_back(const tinker_parse_stream *s, const char *tag)
{
    size_t left = s->text.n - s->pos, n = strlen(tag) - 1;
    for (n = n < left ? n : left; n > 0; n--)
        if (memcmp(s->text.s + s->text.n - n, tag, n) == 0)
            return n;
    return 0;
}

/* Alternate between text and thinking at each tag; the tag itself is not part of the text. */
static bool scan_think(tinker_parse_stream *s, bool last)
{
    for (;;) {
        const char *tag = s->thinking ? "</think>" : "<think>";
        size_t at = text_find(stream_text(s), (struct jv_str){ tag, strlen(tag) }, s->pos);
        if (at == SIZE_MAX)
            return emit_text(s, s->text.n - (last ? 0 : count_held_back(s, tag)));
        if (!emit_text(s, at))
            return false;
        s->pos = at + strlen(tag);
        s->thinking = !s->thinking;
        s->content_index++;
    }
}

/* Read one Harmony header up to <|message|>; false while it is incomplete. The channel decides
 * between thinking and text, a recipient ("to=") mutes the body. The first body that is shown keeps
 * content index 0. */
static bool open_body(tinker_parse_stream *s)
{
    size_t at = text_find(stream_text(s), (struct jv_str){ "<|message|>", 11 }, s->pos);
    if (at == SIZE_MAX)
        return false;
    struct jv_str head = { s->text.s + s->pos, at - s->pos };
    struct jv_str analysis = { "<|channel|>analysis", 19 }, to = { "to=", 3 };
    s->thinking = text_find(head, analysis, 0) != SIZE_MAX;
    s->muted = text_find(head, to, 0) != SIZE_MAX;
    s->pos = at + 11;
    s->in_body = true;
    s->content_index += s->opened && !s->muted;
    s->opened = s->opened || !s->muted;
    return true;
}

/* Bodies end at whichever of three markers comes first; what could be the beginning of any of them
 * is held back. */
static bool scan_harmony(tinker_parse_stream *s, bool last)
{
    static const char *const ends[] = { "<|end|>", "<|call|>", "<|return|>" };
    while (s->in_body || open_body(s)) {
        size_t end = SIZE_MAX, keep = 0, len = 0;
        /* The nearest end, and the longest beginning of any end at the end of the text. */
        for (size_t i = 0; i < 3; i++) {
            size_t at =
                text_find(stream_text(s), (struct jv_str){ ends[i], strlen(ends[i]) }, s->pos);
            if (at < end) {
                end = at;
                len = strlen(ends[i]);
            }
            size_t h = count_held_back(s, ends[i]);
            keep = h > keep ? h : keep;
        }
        if (end == SIZE_MAX)
            return emit_text(s, s->text.n - (last ? 0 : keep));
        if (!emit_text(s, end))
            return false;
        s->pos = end + len;
        s->in_body = false;
    }
    return true;
}

/* `last`: no more text will come, so nothing is held back. */
static bool scan_text(tinker_parse_stream *s, bool last)
{
    const struct render_format *f = s->r->format;
    if (f == &render_harmony)
        return scan_harmony(s, last);
    if (f == &render_role_colon) {
        /* The stop is a string, which may begin in one token and end in another. */
        static const char stop[] = "\n\nUser:";
        size_t at = parse_find(stream_text(s), stop, s->pos);
        if (at == SIZE_MAX)
            return emit_text(s, s->text.n - (last ? 0 : count_held_back(s, stop)));
        s->finished = true;
        bool ok = emit_text(s, at);
        s->pos = s->text.n;
        return ok;
    }
    return f->think_tags ? scan_think(s, last) : emit_text(s, s->text.n);
}

/* ---- public ---- */

/* Decode, then scan what is new. The header delta comes before the first text, even if that text
 * turns out to be markup. */
static tinker_status take_tokens(tinker_parse_stream *s, const int32_t *ids, size_t n,
                                 tinker_error *err)
{
    size_t before = s->text.n;
    tinker_status st = tinker_decoder_put(s->decoder, ids, n, &s->text, err);
    if (st != TINKER_OK || s->text.n == before)
        return st;
    bool ok = s->header || add_delta(s, TINKER_DELTA_HEADER, 0, 0);
    s->header = true;
    return ok && scan_text(s, false) ? TINKER_OK : err_nomem(err, "a parse stream");
}

static tinker_status take_token(tinker_parse_stream *s, int32_t token, tinker_error *err)
{
    /* role_colon stops at a string, but a model may also end with EOS. */
    bool stop = s->r->format == &render_role_colon &&
                token == tinker_tokenizer_special(s->r->tokenizer, TINKER_TOKEN_EOS);
    for (size_t i = 0; i < s->r->n_stop; i++)
        stop = stop || s->r->stop[i] == token;
    if (!stop)
        return take_tokens(s, &token, 1, err);
    s->finished = true;
    return TINKER_OK;
}

/* What was held back while undecided. */
static tinker_status take_all_tokens(tinker_parse_stream *s, tinker_error *err)
{
    tinker_status st = TINKER_OK;
    s->undecided = false;
    for (size_t i = 0; i < s->tokens.n && st == TINKER_OK; i++)
        st = take_token(s, s->tokens.ids[i], err);
    return st;
}

/* The prompt ended in "<think>", so the response continues the block. But a model may write the tag
 * once more. While the tokens repeat the prefix we cannot tell: emit nothing. When it is complete,
 * the model wrote it itself; when a token differs, the prompt's tokens are scanned first, which
 * puts the stream inside the block. */
static tinker_status decide_prefix(tinker_parse_stream *s, tinker_error *err)
{
    size_t n = s->tokens.n;
    if (s->tokens.ids[n - 1] == s->prefix.ids[n - 1]) {
        if (n < s->prefix.n)
            return TINKER_OK;
        s->prefix.n = 0;
        return take_all_tokens(s, err);
    }
    tinker_status st = take_tokens(s, s->prefix.ids, s->prefix.n, err);
    return st == TINKER_OK ? take_all_tokens(s, err) : st;
}

tinker_status tinker_parse_stream_feed(tinker_parse_stream *s, int32_t token,
                                       const tinker_delta **deltas, size_t *n, tinker_error *err)
{
    /* Deltas of the last call are gone from here on. */
    s->n = 0;
    *n = 0;
    *deltas = s->deltas;
    if (s->ended)
        return err_set(err, TINKER_ESTATE, "the stream was finished already");
    if (s->finished)
        return TINKER_OK;
    tinker_status st = tinker_tokens_append(&s->tokens, &token, 1, err);
    if (st == TINKER_OK && s->undecided)
        st = decide_prefix(s, err);
    else if (st == TINKER_OK)
        st = take_token(s, token, err);
    if (st == TINKER_OK)
        publish_deltas(s, deltas, n);
    return st;
}

tinker_status tinker_parse_stream_finish(tinker_parse_stream *s, const tinker_delta **deltas,
                                         size_t *n, tinker_parsed **out, tinker_error *err)
{
    s->n = 0;
    *n = 0;
    *deltas = s->deltas;
    if (s->ended)
        return err_set(err, TINKER_ESTATE, "the stream was finished already");
    s->ended = true;
    tinker_status st = TINKER_OK;
    /* The response ended within what could have been the prompt's prefix: it is the model's own
     * text. */
    if (s->undecided) {
        s->prefix.n = 0;
        st = take_all_tokens(s, err);
    }
    /* Bytes of a character that never became complete are U+FFFD now. */
    if (st == TINKER_OK)
        st = tinker_decoder_end(s->decoder, &s->text, err);
    if (st != TINKER_OK)
        return st;
    if ((!s->header && !add_delta(s, TINKER_DELTA_HEADER, 0, 0)) || !scan_text(s, true))
        return err_nomem(err, "a parse stream");
    publish_deltas(s, deltas, n);
    if (!out)
        return TINKER_OK;
    /* The whole message from all tokens, after the prompt's own where a think block was closed:
     * the same rule as parse_restore(), which does not run when streaming. */
    tinker_tokens all = TINKER_TOKENS_INIT;
    bool closed = false;
    for (size_t i = 0; i < s->tokens.n; i++)
        closed = closed || s->tokens.ids[i] == s->r->think_close;
    *out = NULL;
    if ((!closed || s->prefix.n == 0 ||
         tinker_tokens_append(&all, s->prefix.ids, s->prefix.n, err) == TINKER_OK) &&
        tinker_tokens_append(&all, s->tokens.ids, s->tokens.n, err) == TINKER_OK)
        *out = render_parse_tokens(s->r, all.ids, all.n, true, err);
    tinker_tokens_clear(&all);
    return *out ? TINKER_OK : err ? err->status : TINKER_EINVAL;
}
