/* tok_norm.c - normalizers: rewriting a segment before it is cut.
 *
 * Each step reads one text and writes another; when spans are wanted it also says where each
 * written byte came from.  A text that is NFC already, the usual case, is not copied. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/array.h"
#include "base/err.h"
#include "base/utf8.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/tok_align.h"
#include "tokenizer/load/tok_component.h"
#include "unicode/unicode.h"

static const char *const norm_kinds[] = {
    [NORM_NFC] = "NFC",
    [NORM_NFD] = "NFD",
    [NORM_NFKC] = "NFKC",
    [NORM_NFKD] = "NFKD",
    [NORM_LOWERCASE] = "Lowercase",
    [NORM_STRIP] = "Strip",
    [NORM_STRIP_ACCENTS] = "StripAccents",
    [NORM_REPLACE] = "Replace",
    [NORM_PREPEND] = "Prepend",
    [NORM_BYTE_LEVEL] = "ByteLevel",
    [NORM_NMT] = "Nmt",
    [NORM_BERT] = "BertNormalizer",
};

/* One component of the file; texts stay in the JSON, which the block keeps. */
static tinker_status add_norm(tinker_tokenizer *t, const struct tok_component *p, tinker_error *err)
{
    int kind = tok_component_kind(p, norm_kinds, ARRAY_LEN(norm_kinds), err);
    if (kind < 0)
        return TINKER_EINVAL;
    t->norms = arena_grow(&t->arena, t->norms, t->n_norms * sizeof(*t->norms),
                          (t->n_norms + 1) * sizeof(*t->norms));
    if (!t->norms)
        return err_nomem(err, "normalizer");
    struct tok_norm *n = &t->norms[t->n_norms++];
    *n = (struct tok_norm){ .kind = (enum tok_norm_kind)kind };
    n->left = p->strip_left != 0;
    n->right = p->strip_right != 0;
    n->clean = p->clean_text != 0;
    n->chinese = p->handle_chinese_chars != 0;
    n->lowercase = p->lowercase != 0;
    n->accents = p->strip_accents == -1 ? n->lowercase : p->strip_accents != 0;
    n->content = (struct tok_str){ p->content.s, p->content.n };
    if (n->kind == NORM_PREPEND)
        n->content = (struct tok_str){ p->prepend.s, p->prepend.n };
    n->find = (struct tok_str){ p->string.s, p->string.n };
    if (n->kind == NORM_REPLACE && !p->string.s && !p->regex.s)
        return err_set(err, TINKER_EINVAL, "Replace without a pattern");
    if (n->kind == NORM_REPLACE && p->regex.s) {
        n->regex = split_regex_new(p->regex.s, p->regex.n, true, err);
        return n->regex ? TINKER_OK : TINKER_EINVAL;
    }
    return TINKER_OK;
}

tinker_status tok_parse_normalizer(tinker_tokenizer *t, struct json_str json, tinker_error *err)
{
    return tok_component_walk(t, json, "normalizer", add_norm, err);
}

/* ---- the steps ------------------------------------------------------------------------------- */

/* Put one scalar with its origin. */
static void put_scalar(struct tok_outbuf *o, const struct tok_text *in, size_t begin, size_t end,
                       uint32_t cp)
{
    char text[4];
    int n = utf8_encode(cp, text);
    tok_outbuf_put(o, in, begin, end, text, (size_t)n);
}

/* Write the normal form of in[begin..end), one cluster. */
static bool normalize_cluster(struct tok_outbuf *o, const struct tok_text *in, size_t begin,
                              size_t end, enum uni_form form, struct buf *scratch)
{
    /* The form itself is the library's; only where its characters came from is found out here. */
    buf_reset(scratch);
    if (!uni_normalize(scratch, in->s + begin, end - begin, form))
        return false;
    uint32_t *origin = malloc((scratch->len + 1) * sizeof(*origin));
    bool compat = form == UNI_NFKC || form == UNI_NFKD;
    bool ok = origin &&
              tok_align(in->s + begin, end - begin, scratch->data, scratch->len, compat, origin);
    /* Character k of the result comes from character origin[k] of the cluster, which starts at
     * `from` and is the index-th; origins mostly ascend. */
    size_t from = begin, index = 0, k = 0;
    unsigned len;
    for (size_t i = 0; ok && i < scratch->len; i += len, k++) {
        unsigned source;
        if (origin[k] < index)
            from = begin, index = 0;
        for (uni_decode((const unsigned char *)in->s + from, &source);
             index < origin[k] && from + source < end; index++) {
            from += source;
            uni_decode((const unsigned char *)in->s + from, &source);
        }
        uni_decode((const unsigned char *)scratch->data + i, &len);
        tok_outbuf_put(o, in, from, from + source, scratch->data + i, len);
    }
    free(origin);
    return ok;
}

/* Whether a scalar may belong to the cluster before it; with compatibility also one that stands for
 * such a scalar, as halfwidth kana marks and jamo do. */
static bool continues_cluster(uint32_t cp, bool compat)
{
    int32_t parts[UNI_PARTS_MAX];
    if (compat && cp >= 0x300) {
        uni_decompose(cp, true, parts);
        cp = (uint32_t)parts[0];
    }
    return cp >= 0x300 && ((uni_class(cp) & UNI_M) || (cp >= 0x1161 && cp <= 0x11FF));
}

/* Copy in[begin..end), each character with its own origin. */
static void copy_range(struct tok_outbuf *o, const struct tok_text *in, size_t begin, size_t end)
{
    if (!o->want_map) {
        buf_append(&o->text, in->s + begin, end - begin);
        return;
    }
    unsigned len;
    for (size_t i = begin; i < end; i += len) {
        uni_decode((const unsigned char *)in->s + i, &len);
        tok_outbuf_put(o, in, i, i + len, in->s + i, len);
    }
}

/* Copy without white space at the ends. */
static void strip_spaces(struct tok_outbuf *o, const struct tok_text *in, bool left, bool right)
{
    size_t begin = 0, end = in->n;
    unsigned len;
    while (left && begin < end &&
           (uni_class(uni_decode((const unsigned char *)in->s + begin, &len)) & UNI_WS))
        begin += len;
    while (right && end > begin) { /* backwards, to the first byte of each character */
        size_t at = end - 1;
        while (at > begin && ((unsigned char)in->s[at] & 0xC0) == 0x80)
            at--;
        if (!(uni_class(uni_decode((const unsigned char *)in->s + at, &len)) & UNI_WS))
            break;
        end = at;
    }
    copy_range(o, in, begin, end);
}

/* Next place of n->find or n->regex: as split_regex_next(). */
static int find_match(const struct tok_norm *n, struct tok_ctx *c, const struct tok_text *in,
                      struct split_place *at, size_t *begin, size_t *end)
{
    if (n->regex)
        return split_regex_next(n->regex, &c->regex, in->s, in->n, at, begin, end);
    /* an empty text to find occurs nowhere */
    const char *p = in->s + at->from, *stop = in->s + in->n;
    while (n->find.n > 0 && (size_t)(stop - p) >= n->find.n) {
        p = memchr(p, n->find.s[0], (size_t)(stop - p) - n->find.n + 1);
        if (!p)
            return 0;
        if (memcmp(p, n->find.s, n->find.n) == 0) {
            *begin = (size_t)(p - in->s);
            *end = at->from = *begin + n->find.n;
            return 1;
        }
        p++;
    }
    return 0;
}

/* false: the pattern went over its budget. */
static bool replace_matches(struct tok_outbuf *o, struct tok_ctx *c, const struct tok_text *in,
                            const struct tok_norm *n)
{
    /* One character for another, as SentencePiece does with spaces: each byte is written with room
     * for the longer one, and only the place of the next depends on which it was. */
    if (!n->regex && n->find.n == 1 && n->content.n >= 1 && n->content.n <= 4 && !o->want_map) {
        struct buf *out = &o->text;
        uint32_t content = 0;
        memcpy(&content, n->content.s, n->content.n);
        if (!buf_reserve(out, in->n * n->content.n + sizeof(content)))
            return true; /* the buffer remembers that it failed */
        char *to = out->data + out->len;
        for (size_t i = 0; i < in->n; i++) {
            bool hit = in->s[i] == n->find.s[0];
            uint32_t word = hit ? content : (unsigned char)in->s[i];
            memcpy(to, &word, sizeof(word));
            to += hit ? n->content.n : 1;
        }
        out->len = (size_t)(to - out->data);
        *to = '\0';
        return true;
    }
    struct split_place at = { 0, SIZE_MAX };
    size_t done = 0, begin, end;
    int found = 0;
    /* The new text comes from the last character of the match, as the reference has it. */
    while (in->n > 0 && (found = find_match(n, c, in, &at, &begin, &end)) > 0) {
        copy_range(o, in, done, begin);
        tok_outbuf_insert(o, in, end, n->content.s, n->content.n);
        done = end;
    }
    copy_range(o, in, done, in->n);
    return found == 0;
}

/* The blocks that BERT puts spaces around; the reference's list, 2B920 included. */
static bool is_chinese(uint32_t cp)
{
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
           (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B73F) ||
           (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
           (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

/* The reference's Nmt normalizer: what becomes of a scalar; UINT32_MAX: it is removed. */
static uint32_t map_nmt(uint32_t cp)
{
    if ((cp >= 0x1 && cp <= 0x8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F ||
        cp == 0x8F || cp == 0x9F)
        return UINT32_MAX;
    if (cp == 0x9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 ||
        (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
        cp == 0xFEFF || cp == 0xFFFD)
        return ' ';
    return cp;
}

/* The step of a normalizer that looks at one scalar at a time; BERT runs it in passes. */
enum pass {
    PASS_CLEAN,   /* BERT: without control characters, all white space as spaces */
    PASS_CHINESE, /* BERT: spaces around ideographs */
    PASS_ACCENTS, /* BERT: without nonspacing marks */
    PASS_MARKS,   /* without any marks */
    PASS_LOWER,
    PASS_NMT,
    PASS_BYTES /* every byte as the character of the byte map */
};

/* Write what a pass makes of the scalar cp at in[i..i + len). */
static void map_scalar(struct tok_outbuf *o, const struct tok_text *in, size_t i, unsigned len,
                       uint32_t cp, enum pass pass)
{
    utf8proc_category_t category;
    switch (pass) {
    case PASS_CLEAN: /* without categories C, but white space stays, as a space */
        category = utf8proc_category((utf8proc_int32_t)cp);
        if (cp == 0 || cp == 0xFFFD)
            return;
        if (cp != '\t' && cp != '\n' && cp != '\r' &&
            (category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
             category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CN))
            return;
        put_scalar(o, in, i, i + len, uni_class(cp) & UNI_WS ? ' ' : cp);
        return;
    case PASS_CHINESE:
        if (is_chinese(cp))
            tok_outbuf_put(o, in, i, i + len, " ", 1);
        put_scalar(o, in, i, i + len, cp);
        if (is_chinese(cp))
            tok_outbuf_put(o, in, i, i + len, " ", 1);
        return;
    case PASS_ACCENTS:
        if (utf8proc_category((utf8proc_int32_t)cp) != UTF8PROC_CATEGORY_MN)
            put_scalar(o, in, i, i + len, cp);
        return;
    case PASS_MARKS:
        if (!(uni_class(cp) & UNI_M) || uni_in(uni_late, uni_late_n, cp))
            put_scalar(o, in, i, i + len, cp);
        return;
    case PASS_LOWER:
        if (cp == 0x130) /* the one letter whose lower case is two */
            tok_outbuf_put(o, in, i, i + len, "i\xCC\x87", 3);
        else
            put_scalar(o, in, i, i + len, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
        return;
    case PASS_NMT:
        if (map_nmt(cp) != UINT32_MAX)
            put_scalar(o, in, i, i + len, map_nmt(cp));
        return;
    case PASS_BYTES:
        for (unsigned k = 0; k < len; k++)
            put_scalar(o, in, i, i + len, bpe_byte_char((unsigned char)in->s[i + k]));
        return;
    }
}

/* The buffer that the text is not in, for the step's output. */
static struct tok_outbuf *take_buffer(struct tok_ctx *c, struct tok_text *text)
{
    struct tok_outbuf *o = text->s == c->norm[0].text.data ? &c->norm[1] : &c->norm[0];
    tok_outbuf_reset(o, text->map != NULL, c->most);
    return o;
}

/* The step's output is the next one's input. */
static tinker_status finish_step(struct tok_outbuf *o, struct tok_text *text, tinker_error *err)
{
    if (!tok_outbuf_ok(o))
        return err_nomem(err, "normalized text");
    text->s = o->text.data ? o->text.data : "";
    text->n = o->text.len;
    text->map = text->map ? o->map.spans : NULL;
    return TINKER_OK;
}

/* A pass over all scalars. */
static tinker_status run_pass(struct tok_ctx *c, struct tok_text *text, enum pass pass,
                              tinker_error *err)
{
    struct tok_outbuf *o = take_buffer(c, text);
    unsigned len;
    for (size_t i = 0; i < text->n; i += len) {
        uint32_t cp = uni_decode((const unsigned char *)text->s + i, &len);
        map_scalar(o, text, i, len, cp, pass);
    }
    return finish_step(o, text, err);
}

/* A Unicode normal form. */
static tinker_status run_form(struct tok_ctx *c, struct tok_text *text, enum uni_form form,
                              tinker_error *err)
{
    /* Nearly all text is NFC; finding that out is much faster than a copy. */
    if (form == UNI_NFC && uni_nfc_prefix(text->s, text->n) == text->n)
        return TINKER_OK;
    struct tok_outbuf *o = take_buffer(c, text);
    if (!o->want_map) {
        bool ok = uni_normalize(&o->text, text->s, text->n, form);
        return ok ? finish_step(o, text, err) : err_nomem(err, "normalized text");
    }
    /* With spans: cluster by cluster, a character and the marks that belong to it, as characters
     * are reordered and composed inside a cluster only. */
    struct buf scratch;
    bool ok = true, compat = form == UNI_NFKC || form == UNI_NFKD;
    buf_init(&scratch, SIZE_MAX);
    for (size_t begin = 0; begin < text->n && ok;) {
        unsigned len;
        uni_decode((const unsigned char *)text->s + begin, &len);
        size_t end = begin + len;
        while (end < text->n &&
               continues_cluster(uni_decode((const unsigned char *)text->s + end, &len), compat))
            end += len;
        ok = normalize_cluster(o, text, begin, end, form, &scratch);
        begin = end;
    }
    buf_clear(&scratch);
    return ok ? finish_step(o, text, err) : err_nomem(err, "normalized text");
}

/* One normalizer on *text, which it may replace by a text in a buffer of c. */
static tinker_status run_norm(const struct tok_norm *n, struct tok_ctx *c, struct tok_text *text,
                              tinker_error *err)
{
    struct tok_outbuf *o;
    tinker_status status = TINKER_OK;
    switch (n->kind) {
    case NORM_NFC:
        return run_form(c, text, UNI_NFC, err);
    case NORM_NFD:
        return run_form(c, text, UNI_NFD, err);
    case NORM_NFKC:
        return run_form(c, text, UNI_NFKC, err);
    case NORM_NFKD:
        return run_form(c, text, UNI_NFKD, err);
    case NORM_LOWERCASE:
        return run_pass(c, text, PASS_LOWER, err);
    case NORM_STRIP_ACCENTS: /* all marks; BERT's own takes nonspacing ones */
        return run_pass(c, text, PASS_MARKS, err);
    case NORM_BYTE_LEVEL:
        return run_pass(c, text, PASS_BYTES, err);
    case NORM_NMT:
        return run_pass(c, text, PASS_NMT, err);
    case NORM_BERT:
        /* each pass sees what the one before left */
        if (n->clean)
            status = run_pass(c, text, PASS_CLEAN, err);
        if (status == TINKER_OK && n->chinese)
            status = run_pass(c, text, PASS_CHINESE, err);
        if (status == TINKER_OK && n->accents)
            status = run_form(c, text, UNI_NFD, err);
        if (status == TINKER_OK && n->accents)
            status = run_pass(c, text, PASS_ACCENTS, err);
        if (status == TINKER_OK && n->lowercase)
            status = run_pass(c, text, PASS_LOWER, err);
        return status;
    case NORM_STRIP:
        o = take_buffer(c, text);
        strip_spaces(o, text, n->left, n->right);
        return finish_step(o, text, err);
    case NORM_REPLACE:
        o = take_buffer(c, text);
        if (!replace_matches(o, c, text, n))
            return split_regex_failed(&c->regex, "a normalizer's", err);
        return finish_step(o, text, err);
    case NORM_PREPEND:
        o = take_buffer(c, text);
        if (text->n > 0) { /* it comes from the first character, as the reference has it */
            unsigned len;
            uni_decode((const unsigned char *)text->s, &len);
            tok_outbuf_put(o, text, 0, len, n->content.s, n->content.n);
            copy_range(o, text, 0, text->n);
        }
        return finish_step(o, text, err);
    }
    return TINKER_OK;
}

tinker_status tok_normalize(const tinker_tokenizer *t, struct tok_ctx *c, struct tok_text *text,
                            tinker_error *err)
{
    c->most = tok_growth(text->n);
    for (size_t i = 0; i < t->n_norms; i++) {
        tinker_status status = run_norm(&t->norms[i], c, text, err);
        if (status != TINKER_OK)
            return status;
    }
    return TINKER_OK;
}
