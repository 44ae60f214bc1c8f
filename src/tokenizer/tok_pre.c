/* tok_pre.c - pre-tokenizers: cutting a segment into the pieces that the model sees.
 *
 * The general way, for any list of steps: each step turns a list of pieces into another; a step
 * that rewrites text (a prefix space, the metaspace) writes a new text and cuts that.  Models
 * with one known splitter do not come here, see tok_encode.c. */
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "base/utf8.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/load/tok_component.h"
#include "unicode/unicode.h"

static const char *const pre_kinds[] = {
    [PRE_SPLIT] = "Split",
    [PRE_BYTE_LEVEL] = "ByteLevel",
    [PRE_DIGITS] = "Digits",
    [PRE_WHITESPACE] = "Whitespace",
    [PRE_WHITESPACE_SPLIT] = "WhitespaceSplit",
    [PRE_PUNCTUATION] = "Punctuation",
    [PRE_METASPACE] = "Metaspace",
    [PRE_BERT] = "BertPreTokenizer",
    [PRE_CHAR] = "CharDelimiterSplit",
    [PRE_FIXED] = "FixedLength",
};
/* What becomes of a match: left out, a piece, part of a neighbor, or of a run of matches. */
static const struct {
    const char *name;
    enum tok_behavior behavior;
} split_behaviors[] = {
    { "Removed", SPLIT_REMOVED },
    { "Isolated", SPLIT_ISOLATED },
    { "MergedWithPrevious", SPLIT_MERGED_PREVIOUS },
    { "MergedWithNext", SPLIT_MERGED_NEXT },
    { "Contiguous", SPLIT_CONTIGUOUS },
};

/* A literal, a pattern with a matcher of its own, or any other pattern. */
static tinker_status set_split(struct tok_pre *s, const struct tok_component *p, tinker_error *err)
{
    s->invert = p->invert == 1; /* pieces are what does not match */
    if (!p->regex.s) {
        if (!p->string.s)
            return err_set(err, TINKER_EINVAL, "Split without a pattern");
        s->find = (struct tok_str){ p->string.s, p->string.n };
        return TINKER_OK;
    }
    s->pattern = (struct tok_str){ p->regex.s, p->regex.n };
    /* a known matcher leaves no gaps, so these two mean the same */
    if ((s->behavior == SPLIT_ISOLATED && !s->invert) ||
        (s->behavior == SPLIT_REMOVED && s->invert))
        s->known = split_known(p->regex.s, p->regex.n);
    if (s->known) /* PCRE2 is not needed */
        return TINKER_OK;
    s->regex = split_regex_new(p->regex.s, p->regex.n, true, err);
    return s->regex ? TINKER_OK : TINKER_EINVAL;
}

/* One component of the file. */
static tinker_status add_pre(tinker_tokenizer *t, const struct tok_component *p, tinker_error *err)
{
    int kind = tok_component_kind(p, pre_kinds, ARRAY_LEN(pre_kinds), err);
    if (kind < 0)
        return TINKER_EINVAL;
    t->pres = arena_grow(&t->arena, t->pres, t->n_pres * sizeof(*t->pres),
                         (t->n_pres + 1) * sizeof(*t->pres));
    if (!t->pres)
        return err_nomem(err, "pre-tokenizer");
    struct tok_pre *s = &t->pres[t->n_pres++];
    *s = (struct tok_pre){ .kind = (enum tok_pre_kind)kind };
    s->behavior = SPLIT_ISOLATED;
    if (p->behavior.s || s->kind == PRE_SPLIT) {
        size_t i = 0;
        while (i < ARRAY_LEN(split_behaviors) && !tok_str_is(p->behavior, split_behaviors[i].name))
            i++;
        if (i == ARRAY_LEN(split_behaviors))
            return err_set(err, TINKER_EINVAL, "behavior \"%.*s\" is unknown", (int)p->behavior.n,
                           p->behavior.s ? p->behavior.s : "");
        s->behavior = split_behaviors[i].behavior;
    }
    s->prefix_space = p->add_prefix_space != 0;
    s->use_regex = p->use_regex != 0;
    s->individual = p->individual_digits == 1;
    s->length = p->length > 0 ? (size_t)p->length : 5;
    if (s->kind == PRE_SPLIT)
        return set_split(s, p, err);
    if (s->kind == PRE_METASPACE) {
        /* Spaces become `find`; prepend_scheme is the newer form of add_prefix_space. */
        s->find = (struct tok_str){ "\xE2\x96\x81", 3 };
        if (p->replacement.s)
            s->find = (struct tok_str){ p->replacement.s, p->replacement.n };
        s->split = p->split != 0;
        s->prepend = p->add_prefix_space == 0 ? PREPEND_NEVER : PREPEND_ALWAYS;
        if (tok_str_is(p->prepend_scheme, "never"))
            s->prepend = PREPEND_NEVER;
        else if (tok_str_is(p->prepend_scheme, "first"))
            s->prepend = PREPEND_FIRST;
        else if (p->prepend_scheme.s && !tok_str_is(p->prepend_scheme, "always"))
            return err_set(err, TINKER_EINVAL, "prepend_scheme \"%.*s\" is unknown",
                           (int)p->prepend_scheme.n, p->prepend_scheme.s);
    }
    if (s->kind == PRE_CHAR)
        s->find = (struct tok_str){ p->delimiter.s, p->delimiter.n };
    if (s->kind == PRE_CHAR && s->find.n == 0)
        return err_set(err, TINKER_EINVAL, "CharDelimiterSplit without a delimiter");
    return TINKER_OK;
}

tinker_status tok_parse_pre(tinker_tokenizer *t, struct json_str json, tinker_error *err)
{
    return tok_component_walk(t, json, "pre_tokenizer", add_pre, err);
}

/* ---- cutting by a pattern -------------------------------------------------------------------- */

/* Collects alternating gaps and matches and joins them by a behavior.  For MERGED_NEXT a match
 * waits for the part behind it. */
struct cutter {
    struct tok_pieces *out;
    enum tok_behavior behavior;
    bool invert, has_last, last_match;
    size_t from, to; /* the part that may still grow */
    bool ok;         /* no allocation failed */
};

/* The part that waits is a piece. */
static void flush_piece(struct cutter *c)
{
    if (c->has_last)
        c->ok = tok_pieces_put(c->out, c->from, c->to) && c->ok;
    c->has_last = false;
}

/* The next gap or match.  An empty match gives no piece, but cuts. */
static void add_part(struct cutter *c, size_t begin, size_t end, bool match)
{
    if (begin == end && !match)
        return;
    match = match != c->invert;
    bool join = false; /* does it go into the part that waits? */
    switch (c->behavior) {
    case SPLIT_REMOVED:
        if (match)
            return;
        break;
    case SPLIT_ISOLATED:
        break;
    case SPLIT_CONTIGUOUS:
        join = c->has_last && c->last_match == match;
        break;
    case SPLIT_MERGED_PREVIOUS:
        join = c->has_last && match && !c->last_match;
        break;
    case SPLIT_MERGED_NEXT: /* a match waits for the gap behind it */
        join = c->has_last && !match && c->last_match;
        break;
    }
    if (!join) {
        flush_piece(c);
        c->from = begin;
    }
    c->to = end;
    c->has_last = true;
    c->last_match = match;
}

/* Cut text[a..b) where the class function says so, one scalar a match. */
static void cut_scalars(struct cutter *c, const char *text, size_t a, size_t b,
                        bool (*test)(uint32_t))
{
    unsigned len;
    size_t gap = a;
    for (size_t i = a; i < b; i += len) {
        if (!test(uni_decode((const unsigned char *)text + i, &len)))
            continue;
        add_part(c, gap, i, false);
        add_part(c, i, i + len, true);
        gap = i + len;
    }
    add_part(c, gap, b, false);
}

/* Cut text[a..b) at a regular expression or a literal; false: it went over its budget. */
static bool cut_pattern(struct cutter *c, struct tok_ctx *ctx, const struct tok_pre *s,
                        const char *text, size_t a, size_t b)
{
    struct split_place at = { 0, SIZE_MAX };
    size_t gap = 0, n = b - a, begin, end;
    const char *base = text + a;
    for (;;) {
        int found = 0;
        if (s->regex)
            found = split_regex_next(s->regex, &ctx->regex, base, n, &at, &begin, &end);
        else if (s->find.n > 0) { /* the first byte, then the rest of the literal */
            const char *p = base + gap;
            size_t room;
            while (!found && (room = (size_t)(base + n - p)) >= s->find.n &&
                   (p = memchr(p, s->find.s[0], room - s->find.n + 1)) != NULL) {
                found = memcmp(p, s->find.s, s->find.n) == 0;
                begin = (size_t)(p++ - base);
                end = begin + s->find.n;
            }
        }
        if (found < 0)
            return false;
        if (found == 0)
            break;
        add_part(c, a + gap, a + begin, false);
        add_part(c, a + begin, a + end, true);
        gap = end;
    }
    add_part(c, a + gap, b, false);
    return true;
}

static bool is_number(uint32_t cp)
{
    return (uni_class(cp) & UNI_N) != 0;
}

static bool is_space(uint32_t cp)
{
    return (uni_class(cp) & UNI_WS) != 0;
}

/* The reference's is_punctuation: category P, and ASCII symbols. */
static bool is_punctuation(uint32_t cp)
{
    return (uni_class(cp) & UNI_P) || (cp < 0x80 && (uni_class(cp) & UNI_S));
}

/* Cut by a matcher, which leaves no gaps. */
static void cut_known(struct cutter *c, split_fn *next, const char *text, size_t a, size_t b)
{
    const unsigned char *base = (const unsigned char *)text, *p = base + a, *end = base + b;
    while (p < end) {
        const unsigned char *q = next(p, end);
        add_part(c, (size_t)(p - base), (size_t)(q - base), true);
        p = q;
    }
}

/* \w+|[^\w\s]+ , gaps removed. */
static void cut_words(struct cutter *c, const char *text, size_t a, size_t b)
{
    unsigned len;
    int kind = 0; /* 0 space, 1 word, 2 other */
    size_t begin = a;
    for (size_t i = a; i <= b; i += len) {
        int next = 0; /* the end of the text counts as space */
        len = 1;
        if (i < b) {
            uint32_t cp = uni_decode((const unsigned char *)text + i, &len);
            next = uni_is_word(cp) ? 1 : is_space(cp) ? 0 : 2;
        }
        if (next != kind || i == b) { /* the run of this kind ends here */
            if (kind)
                add_part(c, begin, i, true);
            begin = i;
            kind = next;
        }
    }
}

/* Pieces of `length` characters, the last one shorter. */
static void cut_fixed(struct cutter *c, const char *text, size_t a, size_t b, size_t length)
{
    unsigned len;
    size_t begin = a, count = 0;
    for (size_t i = a; i < b; i += len) {
        uni_decode((const unsigned char *)text + i, &len);
        if (++count == length) { /* characters, not bytes */
            add_part(c, begin, i + len, true);
            begin = i + len;
            count = 0;
        }
    }
    add_part(c, begin, b, true);
}

/* One step on one piece; false: over the budget. */
static bool cut_piece(struct cutter *c, struct tok_ctx *ctx, const struct tok_pre *s,
                      const char *text, struct tok_piece p)
{
    c->behavior = s->behavior;
    c->invert = false;
    switch (s->kind) {
    case PRE_SPLIT:
        if (s->known) {
            c->behavior = SPLIT_ISOLATED;
            cut_known(c, s->known, text, p.begin, p.end);
            return true;
        }
        c->invert = s->invert;
        return cut_pattern(c, ctx, s, text, p.begin, p.end);
    case PRE_METASPACE:
        c->behavior = SPLIT_MERGED_NEXT;
        return cut_pattern(c, ctx, s, text, p.begin, p.end);
    case PRE_CHAR:
        c->behavior = SPLIT_REMOVED;
        return cut_pattern(c, ctx, s, text, p.begin, p.end);
    case PRE_BYTE_LEVEL:
        c->behavior = SPLIT_ISOLATED;
        cut_known(c, split_known(split_gpt2_pattern, strlen(split_gpt2_pattern)), text, p.begin,
                  p.end);
        return true;
    case PRE_DIGITS:
        c->behavior = s->individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        cut_scalars(c, text, p.begin, p.end, is_number);
        return true;
    case PRE_WHITESPACE_SPLIT: /* white space is no part of any piece */
        c->behavior = SPLIT_REMOVED;
        cut_scalars(c, text, p.begin, p.end, is_space);
        return true;
    case PRE_PUNCTUATION:
        cut_scalars(c, text, p.begin, p.end, is_punctuation);
        return true;
    case PRE_WHITESPACE:
        c->behavior = SPLIT_ISOLATED;
        cut_words(c, text, p.begin, p.end);
        return true;
    case PRE_FIXED:
        c->behavior = SPLIT_ISOLATED;
        cut_fixed(c, text, p.begin, p.end, s->length);
        return true;
    case PRE_BERT:
        break; /* two steps, see run_pre() */
    }
    return true;
}

/* Cut every piece of c->pieces[0] into c->pieces[1], then swap them. */
static tinker_status cut_all(struct tok_ctx *c, const struct tok_pre *s, const char *text,
                             tinker_error *err)
{
    struct tok_pieces *in = &c->pieces[0], *out = &c->pieces[1], swap;
    bool ok = true, within = true;
    out->n = 0;
    for (size_t i = 0; i < in->n && ok && within; i++) {
        struct cutter cutter = { .out = out, .ok = true };
        within = cut_piece(&cutter, c, s, text, in->at[i]);
        flush_piece(&cutter);
        ok = cutter.ok;
    }
    swap = *in;
    *in = *out;
    *out = swap;
    if (!within)
        return split_regex_failed(&c->regex, "the pre-tokenizer's", err);
    return ok ? TINKER_OK : err_nomem(err, "pieces");
}

/* ---- rewriting ------------------------------------------------------------------------------- */

/* Write every piece of c->pieces[0] anew, with a prefix where the step wants one.  first: the
 * segment starts the caller's text; last: no step follows. */
static tinker_status rewrite_all(struct tok_ctx *c, const struct tok_pre *s, struct tok_text *text,
                                 bool first, bool last, tinker_error *err)
{
    struct tok_outbuf *o = text->s == c->pre[0].text.data ? &c->pre[1] : &c->pre[0];
    struct tok_pieces *in = &c->pieces[0];
    tok_outbuf_reset(o, text->map != NULL, c->most);
    for (size_t i = 0; i < in->n; i++) {
        struct tok_piece p = in->at[i];
        size_t from = o->text.len;
        unsigned len;
        uni_decode((const unsigned char *)text->s + p.begin, &len);
        const char *start = text->s + p.begin;
        bool at_start = first && p.begin == 0, prefix = *start != ' ';
        if (s->kind == PRE_BYTE_LEVEL)
            prefix = prefix && s->prefix_space;
        else if (s->prepend == PREPEND_NEVER || (s->prepend == PREPEND_FIRST && !at_start))
            prefix = false;
        else if (p.end - p.begin >= s->find.n && memcmp(start, s->find.s, s->find.n) == 0)
            prefix = false; /* it has one */
        if (prefix) {
            if (s->kind == PRE_BYTE_LEVEL)
                tok_outbuf_put(o, text, p.begin, p.begin + len, last ? " " : "\xC4\xA0",
                               last ? 1 : 2);
            else
                tok_outbuf_put(o, text, p.begin, p.begin + len, s->find.s, s->find.n);
        }
        for (size_t k = p.begin; k < p.end; k += len) {
            /* A character may become several, which all come from it. */
            uni_decode((const unsigned char *)text->s + k, &len);
            if (s->kind == PRE_METASPACE && text->s[k] == ' ') {
                tok_outbuf_put(o, text, k, k + 1, s->find.s, s->find.n);
            } else if (s->kind == PRE_BYTE_LEVEL && !last) { /* as the last step the model maps */
                for (unsigned b = 0; b < len; b++) {
                    char mapped[4];
                    int n = utf8_encode(bpe_byte_char((unsigned char)text->s[k + b]), mapped);
                    tok_outbuf_put(o, text, k, k + len, mapped, (size_t)n);
                }
            } else {
                tok_outbuf_put(o, text, k, k + len, text->s + k, len);
            }
        }
        in->at[i] = (struct tok_piece){ from, o->text.len };
    }
    if (!tok_outbuf_ok(o))
        return err_nomem(err, "text");
    text->s = o->text.data ? o->text.data : "";
    text->n = o->text.len;
    text->map = text->map ? o->map.spans : NULL;
    return TINKER_OK;
}

/* One step on all pieces. */
static tinker_status run_pre(struct tok_ctx *c, const struct tok_pre *s, struct tok_text *text,
                             bool first, bool last, tinker_error *err)
{
    tinker_status status;
    if (s->kind == PRE_BYTE_LEVEL) { /* cut, then map, which only a step behind it would see */
        status = s->prefix_space ? rewrite_all(c, s, text, first, true, err) : TINKER_OK;
        if (status == TINKER_OK && s->use_regex)
            status = cut_all(c, s, text->s, err);
        if (status == TINKER_OK && !last) {
            struct tok_pre map = *s;
            map.prefix_space = false;
            status = rewrite_all(c, &map, text, first, false, err);
        }
        return status;
    }
    if (s->kind == PRE_METASPACE) {
        status = rewrite_all(c, s, text, first, last, err);
        return status == TINKER_OK && s->split ? cut_all(c, s, text->s, err) : status;
    }
    if (s->kind == PRE_BERT) {
        struct tok_pre step = *s;
        step.kind = PRE_WHITESPACE_SPLIT;
        status = cut_all(c, &step, text->s, err);
        step.kind = PRE_PUNCTUATION;
        return status == TINKER_OK ? cut_all(c, &step, text->s, err) : status;
    }
    return cut_all(c, s, text->s, err);
}

tinker_status tok_pre_split(const tinker_tokenizer *t, struct tok_ctx *c, struct tok_text *text,
                            bool at_start, tinker_error *err)
{
    c->pieces[0].n = 0;
    c->most = tok_growth(text->n);
    if (!tok_pieces_put(&c->pieces[0], 0, text->n))
        return err_nomem(err, "pieces");
    /* Each step sees the pieces of the one before; the first sees all as one. */
    for (size_t i = 0; i < t->n_pres; i++) {
        tinker_status status = run_pre(c, &t->pres[i], text, at_start, i + 1 == t->n_pres, err);
        if (status != TINKER_OK)
            return status;
    }
    return TINKER_OK;
}
