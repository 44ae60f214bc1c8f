/* tok_decode.c - tokens to text.
 *
 * A byte-level decoder over a byte-level vocabulary copies the stored bytes of each token and
 * repairs the result.  Any other list of decoders works on the list of token strings, step by
 * step, as the reference does. */
#include "tokenizer/tok_decode.h"

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "base/utf8.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/load/tok_component.h"
#include "unicode/unicode.h"

static const char *const decoder_kinds[] = {
    [DEC_BYTE_LEVEL] = "ByteLevel",
    [DEC_REPLACE] = "Replace",
    [DEC_BYTE_FALLBACK] = "ByteFallback",
    [DEC_FUSE] = "Fuse",
    [DEC_STRIP] = "Strip",
    [DEC_METASPACE] = "Metaspace",
    [DEC_WORD_PIECE] = "WordPiece",
    [DEC_BPE] = "BPEDecoder",
};

/* One component of the file; what it does not say has the reference's default. */
static tinker_status add_decoder(tinker_tokenizer *t, const struct tok_component *p,
                                 tinker_error *err)
{
    int kind = tok_component_kind(p, decoder_kinds, ARRAY_LEN(decoder_kinds), err);
    if (kind < 0)
        return TINKER_EINVAL;
    t->decs = arena_grow(&t->arena, t->decs, t->n_decs * sizeof(*t->decs),
                         (t->n_decs + 1) * sizeof(*t->decs));
    if (!t->decs)
        return err_nomem(err, "decoder");
    struct tok_dec *d = &t->decs[t->n_decs++];
    *d = (struct tok_dec){ .kind = (enum tok_dec_kind)kind };
    d->find = (struct tok_str){ p->string.s, p->string.n };
    d->content = (struct tok_str){ p->content.s ? p->content.s : "", p->content.n };
    d->start = p->start > 0 ? (size_t)p->start : 0;
    d->stop = p->stop > 0 ? (size_t)p->stop : 0;
    d->cleanup = p->cleanup != 0;
    if (d->kind == DEC_WORD_PIECE)
        d->content =
            (struct tok_str){ p->prefix.s ? p->prefix.s : "##", p->prefix.s ? p->prefix.n : 2 };
    if (d->kind == DEC_BPE)
        d->content =
            (struct tok_str){ p->suffix.s ? p->suffix.s : "</w>", p->suffix.s ? p->suffix.n : 4 };
    if (d->kind == DEC_METASPACE) {
        d->content = (struct tok_str){ p->replacement.s ? p->replacement.s : "\xE2\x96\x81",
                                       p->replacement.s ? p->replacement.n : 3 };
        d->keep_first = tok_str_is(p->prepend_scheme, "never") || p->add_prefix_space == 0;
    }
    if (d->kind == DEC_REPLACE && !p->string.s) {
        if (!p->regex.s)
            return err_set(err, TINKER_EINVAL, "Replace without a pattern");
        d->regex = split_regex_new(p->regex.s, p->regex.n, true, err);
        return d->regex ? TINKER_OK : TINKER_EINVAL;
    }
    return TINKER_OK;
}

tinker_status tok_parse_decoder(tinker_tokenizer *t, struct json_str json, tinker_error *err)
{
    t->no_decoder = !json.s || (json.n == 4 && memcmp(json.s, "null", 4) == 0);
    return tok_component_walk(t, json, "decoder", add_decoder, err);
}

/* ---- lists of token strings ---------------------------------------------------------------- */

struct list { /* strings one behind the other; ends[i] is the end of the i-th */
    struct buf text;
    size_t *ends;
    size_t n, cap;
    bool failed;
};

/* Everything appended to l->text since the last string is the next one. */
static void end_string(struct list *l)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        size_t *ends = realloc(l->ends, cap * sizeof(*ends));
        if (!ends) {
            l->failed = true;
            return;
        }
        l->ends = ends;
        l->cap = cap;
    }
    l->ends[l->n++] = l->text.len;
}

/* The i-th string; borrowed until the next append. */
static struct tok_str read_string(const struct list *l, size_t i)
{
    size_t begin = i ? l->ends[i - 1] : 0;
    const char *text = l->text.data ? l->text.data : "";
    return (struct tok_str){ text + begin, l->ends[i] - begin };
}

/* Stored bytes back to the characters of the byte map. */
void tok_spell(const tinker_tokenizer *t, uint32_t id, struct buf *out)
{
    size_t n;
    const char *p = bpe_bytes(&t->bpe, id, &n);
    if (!(t->bpe.flags[id] & BPE_MAPPED)) {
        buf_append(out, p, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        char text[4];
        buf_append(out, text, (size_t)utf8_encode(bpe_byte_char((unsigned char)p[i]), text));
    }
}

/* Append s with every `find` replaced. */
static void replace_text(struct buf *out, struct tok_str s, struct tok_str find,
                         struct tok_str content)
{
    size_t i = 0;
    while (find.n > 0 && i + find.n <= s.n) {
        const char *p = memchr(s.s + i, find.s[0], s.n - find.n + 1 - i);
        if (!p)
            break;
        size_t at = (size_t)(p - s.s);
        buf_append(out, s.s + i, at - i);
        if (memcmp(p, find.s, find.n) == 0) { /* what was found is not searched again */
            buf_append(out, content.s, content.n);
            i = at + find.n;
        } else {
            buf_putc(out, *p);
            i = at + 1;
        }
    }
    buf_append(out, s.s + i, s.n - i);
}

/* "<0x41>" is 'A'; both cases of digits occur. */
int tok_byte_token(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* One U+FFFD for each byte, not for each ill-formed part: the reference's ByteFallback. */
void tok_put_byte_run(struct buf *out, const char *run, size_t n)
{
    if (utf8_valid_prefix(run, n) == n) {
        buf_append(out, run, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        buf_append(out, "\xEF\xBF\xBD", 3);
}

/* Runs of <0xXX> become the text that their bytes are; other strings stay. */
static void join_byte_tokens(struct list *out, const struct list *in)
{
    struct buf run;
    buf_init(&run, SIZE_MAX);
    for (size_t i = 0; i < in->n; i++) {
        struct tok_str s = read_string(in, i);
        int byte = tok_byte_token(s.s, s.n);
        if (byte >= 0)
            buf_putc(&run, (char)byte);
        bool last = i + 1 == in->n;
        if (run.len > 0 && (byte < 0 || last)) {
            /* one string, or as many as it has bytes when it is not UTF-8 */
            bool valid = utf8_valid_prefix(run.data, run.len) == run.len;
            if (valid)
                buf_append(&out->text, run.data, run.len);
            for (size_t k = 0; !valid && k < run.len; k++) {
                buf_append(&out->text, "\xEF\xBF\xBD", 3);
                if (k + 1 < run.len)
                    end_string(out);
            }
            end_string(out);
            buf_reset(&run);
        }
        if (byte < 0) {
            buf_append(&out->text, s.s, s.n);
            end_string(out);
        }
    }
    out->failed = out->failed || run.failed;
    buf_clear(&run);
}

/* No space before punctuation and English contractions.  The WordPiece decoder also makes one. */
void tok_cleanup(struct buf *out, const char *s, size_t n, bool word_piece)
{
    static const char *const pairs[][2] = {
        { " .", "." },   { " ?", "?" },     { " !", "!" },     { " ,", "," },
        { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },   { " do not", " don't" },
        { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" },
    };
    enum { OF_WORD_PIECE = 7 }; /* index of the pair that makes one */
    struct buf a, b;
    buf_init(&a, SIZE_MAX);
    buf_init(&b, SIZE_MAX);
    buf_append(&a, s, n);
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        if (i == OF_WORD_PIECE && !word_piece)
            continue;
        buf_reset(&b);
        replace_text(&b, (struct tok_str){ a.data ? a.data : "", a.len },
                     (struct tok_str){ pairs[i][0], strlen(pairs[i][0]) },
                     (struct tok_str){ pairs[i][1], strlen(pairs[i][1]) });
        struct buf swap = a;
        a = b;
        b = swap;
    }
    if (a.data)
        buf_append(out, a.data, a.len);
    if (a.failed || b.failed)
        out->failed = true;
    buf_clear(&a);
    buf_clear(&b);
}

/* WordPiece: a space between words; pieces that continue one have a prefix instead. */
static void append_word_piece(struct list *out, struct tok_str s, const struct tok_dec *d,
                              bool first)
{
    struct buf word;
    buf_init(&word, SIZE_MAX);
    if (!first) { /* the first starts a word in any case */
        if (s.n >= d->content.n && memcmp(s.s, d->content.s, d->content.n) == 0) {
            s.s += d->content.n;
            s.n -= d->content.n;
        } else {
            buf_putc(&word, ' ');
        }
    }
    buf_append(&word, s.s, s.n);
    if (d->cleanup && word.data)
        tok_cleanup(&out->text, word.data, word.len, true);
    else if (word.data)
        buf_append(&out->text, word.data, word.len);
    out->failed = out->failed || word.failed;
    buf_clear(&word);
}

/* One step on one string; false: over the budget. */
static bool map_string(struct list *out, struct tok_ctx *c, struct tok_str s,
                       const struct tok_dec *d, bool first, bool last)
{
    struct split_place at = { 0, SIZE_MAX };
    size_t n = d->content.n, done = 0, begin, end;
    int found = 0;
    switch (d->kind) {
    case DEC_REPLACE:
        if (!d->regex) { /* a literal */
            replace_text(&out->text, s, d->find, d->content);
            return true;
        }
        while (s.n > 0 &&
               (found = split_regex_next(d->regex, &c->regex, s.s, s.n, &at, &begin, &end)) > 0) {
            buf_append(&out->text, s.s + done, begin - done);
            buf_append(&out->text, d->content.s, n);
            done = end;
        }
        buf_append(&out->text, s.s + done, s.n - done);
        return found == 0;
    case DEC_STRIP:
        /* up to start copies of the character off the front, up to stop off the back */
        for (size_t i = 0; i < d->start && n && s.n >= n && memcmp(s.s, d->content.s, n) == 0;
             i++) {
            s.s += n;
            s.n -= n;
        }
        for (size_t i = 0;
             i < d->stop && n && s.n >= n && memcmp(s.s + s.n - n, d->content.s, n) == 0; i++)
            s.n -= n;
        buf_append(&out->text, s.s, s.n);
        return true;
    case DEC_METASPACE:
        replace_text(&out->text, s, d->content,
                     (struct tok_str){ " ", first && !d->keep_first ? 0 : 1 });
        return true;
    case DEC_WORD_PIECE:
        append_word_piece(out, s, d, first);
        return true;
    case DEC_BPE:
        replace_text(&out->text, s, d->content, (struct tok_str){ " ", last ? 0 : 1 });
        return true;
    default: /* the three that run_decoder() does itself */
        return true;
    }
}

/* One step on the whole list; false: over the budget. */
static bool run_decoder(const struct tok_dec *d, struct tok_ctx *c, const struct list *in,
                        struct list *out)
{
    buf_reset(&out->text);
    out->n = 0;
    if (d->kind == DEC_BYTE_LEVEL) {
        /* Each token whose characters are all in the byte map becomes its bytes.  Characters may be
         * cut between tokens, so only the whole is text. */
        struct buf bytes;
        buf_init(&bytes, SIZE_MAX);
        for (size_t i = 0; i < in->n; i++) {
            struct tok_str s = read_string(in, i);
            if (!bpe_unmap(&bytes, s.s, s.n)) /* not in the map: an added token */
                buf_append(&bytes, s.s, s.n);
        }
        if (bytes.data)
            uni_repair(&out->text, bytes.data, bytes.len);
        end_string(out);
        out->failed = out->failed || bytes.failed;
        buf_clear(&bytes);
        return true;
    }
    if (d->kind == DEC_BYTE_FALLBACK) {
        join_byte_tokens(out, in);
        return true;
    }
    if (d->kind == DEC_FUSE) { /* one string of all */
        if (in->text.data)
            buf_append(&out->text, in->text.data, in->text.len);
        end_string(out);
        return true;
    }
    /* the others look at one string at a time */
    bool ok = true;
    for (size_t i = 0; i < in->n && ok; i++) {
        ok = map_string(out, c, read_string(in, i), d, i == 0, i + 1 == in->n);
        end_string(out);
    }
    return ok;
}

/* ---- decode ---------------------------------------------------------------------------------- */

/* Whether a token takes part; an unknown id does not, or is refused when strict. */
tinker_status tok_use_id(const tinker_tokenizer *t, int32_t id, const tinker_decode_options *o,
                         bool *use, tinker_error *err)
{
    bool known = id >= 0 && (uint32_t)id < t->bpe.n_ids && (t->bpe.flags[id] & BPE_TOKEN);
    *use = known && !(o->skip_special && (t->bpe.flags[id] & BPE_SPECIAL));
    if (!known && o->strict)
        return err_set(err, TINKER_EINVAL, "there is no token %d", (int)id);
    return TINKER_OK;
}

/* Then no spelling is needed: tokens are stored as bytes. */
bool tok_decodes_bytes(const tinker_tokenizer *t)
{
    return t->n_decs == 1 && t->decs[0].kind == DEC_BYTE_LEVEL && t->bpe.byte_level;
}

/* The stored bytes of each token. */
static tinker_status decode_bytes(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                                  const tinker_decode_options *o, struct buf *out,
                                  tinker_error *err)
{
    for (size_t i = 0; i < n; i++) {
        bool use;
        size_t len;
        tinker_status status = tok_use_id(t, ids[i], o, &use, err);
        if (status != TINKER_OK)
            return status;
        if (!use)
            continue;
        const char *p = bpe_bytes(&t->bpe, (uint32_t)ids[i], &len);
        buf_append(out, p, len);
    }
    return buf_ok(out) ? TINKER_OK : err_nomem(err, "text");
}

/* The fastest way that the list of decoders allows: from the table of slots, copying bytes, in one
 * pass for SentencePiece, or step by step. */
tinker_status tok_decode_part(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                              const tinker_decode_options *o, struct buf *out, bool *sound,
                              tinker_error *err)
{
    if (t->functions)
        return tok_functions_decode(t, ids, n, o, out, sound, err);
    bool bytes = tok_decodes_bytes(t), meta = !o->raw_bytes && tok_decodes_meta(t);
    tinker_status status = TINKER_OK;
    *sound = !bytes; /* strings are UTF-8, bytes need not be */
    if ((bytes || meta) && tok_decode_slots(t, ids, n, o, out, sound, &status, err))
        return status;
    if (o->raw_bytes || bytes)
        return decode_bytes(t, ids, n, o, out, err);
    if (meta)
        return tok_decode_meta(t, ids, n, o, out, err);
    /* The general way: spell every token as the file does, then run the decoders. */
    struct list lists[2] = { { .failed = false }, { .failed = false } };
    struct tok_ctx *c = tok_ctx_take(t);
    if (!c)
        status = err_nomem(err, "text");
    buf_init(&lists[0].text, SIZE_MAX);
    buf_init(&lists[1].text, SIZE_MAX);
    for (size_t i = 0; i < n && status == TINKER_OK; i++) {
        bool use;
        status = tok_use_id(t, ids[i], o, &use, err);
        if (status == TINKER_OK && use) {
            tok_spell(t, (uint32_t)ids[i], &lists[0].text);
            end_string(&lists[0]);
        }
    }
    /* The lists take turns: each decoder reads one and writes the other. */
    size_t most = tok_growth(lists[0].text.len);
    buf_limit(&lists[0].text, most);
    buf_limit(&lists[1].text, most);
    const struct list *l = &lists[0];
    for (size_t i = 0; i < t->n_decs && status == TINKER_OK; i++, l = &lists[i % 2])
        if (!run_decoder(&t->decs[i], c, l, &lists[(i + 1) % 2]))
            status = split_regex_failed(&c->regex, "a decoder's", err);
    for (size_t i = 0; i < l->n && status == TINKER_OK; i++) {
        struct tok_str s = read_string(l, i);
        if (i > 0 && t->no_decoder)
            buf_putc(out, ' ');
        buf_append(out, s.s, s.n);
    }
    bool failed = lists[0].failed || lists[1].failed || lists[0].text.failed ||
                  lists[1].text.failed || !buf_ok(out);
    if (status == TINKER_OK && failed)
        status = err_nomem(err, "text");
    for (int i = 0; i < 2; i++) {
        buf_clear(&lists[i].text);
        free(lists[i].ends);
    }
    if (c)
        tok_ctx_give(t, c);
    return status;
}

tinker_status tok_decode(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                         const tinker_decode_options *o, struct buf *out, bool *sound,
                         tinker_error *err)
{
    size_t from = out->len;
    tinker_status status = tok_decode_part(t, ids, n, o, out, sound, err);
    if (status == TINKER_OK && !t->functions && !o->raw_bytes && tok_decodes_meta(t))
        tok_strip_meta(t, out, from, tok_strips(t));
    return status;
}
