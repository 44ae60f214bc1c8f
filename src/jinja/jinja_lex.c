/* jinja_lex.c - template source to tokens, with white space control.
 *
 * trim_blocks: one newline after a block or comment goes.  lstrip_blocks: blanks before
 * a block or comment that begins a line go.  "-" at a tag's edge strips all white space on
 * that side, "+" keeps it.  A single newline at the end of the source is dropped and CR LF
 * becomes LF, as the reference engine does. */
#include "base/array.h"
#include "jinja/jinja.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/number.h"
#include "base/utf8.h"

/* Two modes: outside of tags everything is text up to the next "{{", "{%" or "{#"; inside, tokens.
 * The source is owned by the arena, so that tokens may point into it. */
struct lexer {
    struct jx *x;
    const char *p, *end;
    int line;
    bool line_starting; /* the last tag ended with a newline, or nothing came yet */
    struct jinja_tokens *out;
};

/* Append a token; its text is borrowed from the source, which lives in the same arena. Growing
 * leaves the old arrays behind in the arena; as each is half its successor, they add up to less
 * than the last one. */
static void push_token(struct lexer *l, enum jinja_token_kind kind, const char *s, size_t n)
{
    struct jinja_tokens *t = l->out;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        struct jinja_token *items =
            l->x->failed ? NULL : arena_array(l->x->arena, cap, sizeof(*items));
        if (!items) {
            jx_nomem(l->x);
            return;
        }
        if (t->n > 0)
            memcpy(items, t->items, t->n * sizeof(*items));
        t->items = items;
        t->cap = cap;
    }
    t->items[t->n++] = (struct jinja_token){ .kind = kind, .line = l->line, .text = { s, n } };
}

/* Skip n bytes. All moves go through here, so that the line number is always right. */
static void advance_lexer(struct lexer *l, size_t n)
{
    for (size_t i = 0; i < n; i++)
        l->line += l->p[i] == '\n';
    l->p += n;
}

/* Fail at the current line; false, always. */
static bool fail_lexing(struct lexer *l, const char *what)
{
    l->x->line = l->line;
    return jx_fail(l->x, "%s", what);
}

/* Whether s stands at the current place. Nothing is consumed. */
static bool looking_at(const struct lexer *l, const char *s)
{
    size_t n = strlen(s);
    return (size_t)(l->end - l->p) >= n && memcmp(l->p, s, n) == 0;
}

/* White space of Unicode, as the reference's \s. */
static void skip_space(struct lexer *l)
{
    while (l->p < l->end) {
        uint32_t cp;
        int n = utf8_decode(l->p, (size_t)(l->end - l->p), &cp);
        if (n == 0 || !text_is_space(cp))
            break;
        advance_lexer(l, (size_t)n);
    }
}

/* Literal text up to a tag that begins with "{", the byte `tag`, and `sign`.
 *
 * sign '-': all white space before the tag goes, across lines. '+': nothing does. None: the rule
 * of lstrip_blocks, which holds for "{%" and "{#" but never for "{{". */
static void put_text(struct lexer *l, const char *s, size_t n, char tag, char sign)
{
    struct jv_str text = { s, n };
    if (sign == '-') {
        text = text_trim(text, NULL, false, true);
    } else if (sign != '+' && (tag == '%' || tag == '#')) {
        /* Only when the tag is the first thing on its line: what precedes it there is blank, and
         * the line begins in this text (line > 0) or right after the tag before it. */
        size_t line = n;
        while (line > 0 && s[line - 1] != '\n')
            line--;
        struct jv_str rest = text_trim((struct jv_str){ s + line, n - line }, NULL, true, false);
        if ((line > 0 || l->line_starting) && rest.n == 0)
            text.n = line;
    }
    if (text.n > 0)
        push_token(l, TOK_TEXT, text.s, text.n);
}

/* Skip a tag's closing marker of `len` bytes and trim what follows by its sign: '-' all white
 * space, '+' nothing, none the one newline that trim_blocks removes. "}}" keeps its newline.
 * line_starting tells put_text() whether the text that follows begins a line. */
static void close_tag(struct lexer *l, size_t len, char sign, bool trim_newline)
{
    advance_lexer(l, len);
    l->line_starting = false;
    if (sign == '-') {
        const char *before = l->p;
        skip_space(l);
        l->line_starting = l->p > before && l->p[-1] == '\n';
    } else if (sign != '+' && trim_newline && l->p < l->end && *l->p == '\n') {
        advance_lexer(l, 1);
        l->line_starting = true;
    }
}

/* ---- inside tags ---- */

/* Code point of \xNN, \uNNNN or \UNNNNNNNN at s (after the letter); -1 when malformed. Surrogates
 * count as malformed, because text must stay valid UTF-8. */
static int64_t read_hex(const char *s, size_t n, size_t digits)
{
    int64_t v = 0;
    if (n < digits)
        return -1;
    for (size_t i = 0; i < digits; i++) {
        static const char hex[] = "0123456789abcdef";
        const char *digit = s[i] ? strchr(hex, tolower((unsigned char)s[i])) : NULL;
        if (!digit)
            return -1;
        v = v * 16 + (digit - hex);
    }
    return v > 0x10ffff || (v >= 0xd800 && v < 0xe000) ? -1 : v;
}

/* Undo one escape at s, the byte after the backslash; returns how many bytes it took.
 *
 * Python's table: the single letters below, \ooo with one to three octal digits, \xNN, \uNNNN and
 * \UNNNNNNNN. An escaped newline vanishes; anything else stays as it was written, with its
 * backslash. \N{NAME} is not known and stays, too. */
static size_t put_escape(struct buf *out, const char *s, size_t n)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *simple = s[0] ? strchr(from, s[0]) : NULL;
    if (simple) {
        buf_putc(out, to[simple - from]);
        return 1;
    }
    if (s[0] == '\n')
        return 1;
    size_t used = 0;
    int64_t cp = -1;
    if (s[0] == 'x' || s[0] == 'u' || s[0] == 'U') {
        size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : 8;
        cp = read_hex(s + 1, n - 1, digits);
        used = digits + 1;
    } else if (s[0] >= '0' && s[0] <= '7') {
        for (cp = 0; used < 3 && used < n && s[used] >= '0' && s[used] <= '7'; used++)
            cp = cp * 8 + (s[used] - '0');
    }
    if (cp < 0) { /* unknown: write the backslash, and let the caller copy what follows */
        buf_putc(out, '\\');
        return 0;
    }
    char bytes[4];
    buf_append(out, bytes, (size_t)utf8_encode((uint32_t)cp, bytes));
    return used;
}

/* A string in single or double quotes; both know the same escapes.  A line break may stand inside,
 * as in the reference. */
static bool lex_string(struct lexer *l)
{
    char quote = *l->p;
    const char *s = l->p + 1, *e = s;
    bool plain = true;
    /* Find the end first: most strings have no escapes and are borrowed as they are. A backslash
     * takes the byte after it along, so that an escaped quote does not end the string. */
    while (e < l->end && *e != quote) {
        plain = plain && *e != '\\';
        e += *e == '\\' && e + 1 < l->end ? 2 : 1;
    }
    if (e >= l->end)
        return fail_lexing(l, "string is not closed");
    if (plain) {
        push_token(l, TOK_STRING, s, (size_t)(e - s));
    } else {
        struct buf b;
        buf_init(&b, (size_t)(e - s) + 1);
        for (const char *q = s; q < e;) {
            if (*q != '\\')
                buf_putc(&b, *q++);
            else
                q += 1 + put_escape(&b, q + 1, (size_t)(e - q - 1));
        }
        struct jv v = jv_from_buf(l->x, &b);
        push_token(l, TOK_STRING, v.str.s, v.str.n);
    }
    advance_lexer(l, (size_t)(e + 1 - l->p));
    return !l->x->failed;
}

/* INT = digits with underscores; FLOAT needs digits after the point, so that "1.x" is an attribute
 * of 1, and may have an exponent.
 *
 * The prefixes 0x, 0o and 0b of the reference are not known: "0x10" becomes the number 0 and the
 * name x10, which the parser refuses. Leading zeros are accepted, and 007 is 7, never octal. */
static bool lex_number(struct lexer *l)
{
    const char *e = l->p;
    bool real = false;
    char text[64];
    size_t n = 0;
    while (e < l->end && (isdigit((unsigned char)*e) || *e == '_'))
        e++;
    if (e + 1 < l->end && *e == '.' && isdigit((unsigned char)e[1])) {
        real = true;
        for (e++; e < l->end && isdigit((unsigned char)*e);)
            e++;
    }
    if (e < l->end && (*e == 'e' || *e == 'E')) {
        const char *q = e + 1;
        if (q < l->end && (*q == '+' || *q == '-'))
            q++;
        if (q < l->end && isdigit((unsigned char)*q)) {
            real = true;
            for (e = q; e < l->end && isdigit((unsigned char)*e);)
                e++;
        }
    }
    /* Underscores are for readers: 1_000 is 1000. */
    for (const char *q = l->p; q < e && n + 1 < sizeof(text); q++)
        if (*q != '_')
            text[n++] = *q;
    text[n] = 0;
    if (n + 1 == sizeof(text))
        return fail_lexing(l, "number is too long");
    push_token(l, real ? TOK_FLOAT : TOK_INT, l->p, (size_t)(e - l->p));
    if (l->x->failed)
        return false;
    errno = 0;
    double v = 0;
    /* The result of number_read() is not needed: the spelling was checked above, and for 1e999 it
     * says no but has stored infinity, which is what Python reads. */
    if (real)
        number_read(text, &v);
    l->out->items[l->out->n - 1].value = real ? jv_float(v) : jv_int(strtoll(text, NULL, 10));
    if (errno == ERANGE && !real)
        return fail_lexing(l, "integer is too large");
    advance_lexer(l, (size_t)(e - l->p));
    return true;
}

/* Any byte beyond ASCII may be part of a name: the source is known to be UTF-8, and no operator is
 * beyond ASCII. */
static bool is_name_byte(char c, bool first)
{
    return isalpha((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80 ||
           (!first && isdigit((unsigned char)c));
}

/* Two-character operators first: "//" is not two divisions. Brackets are counted, because "}}" may
 * close two dicts; which bracket closes which is the parser's business. */
static bool lex_operator(struct lexer *l, int *nesting)
{
    static const char *const two[] = { "==", "!=", "<=", ">=", "//", "**" };
    size_t n = 1;
    for (size_t i = 0; i < ARRAY_LEN(two); i++)
        if (looking_at(l, two[i]))
            n = 2;
    if (n == 1 && (!*l->p || !strchr("+-*/%~()[]{}<>=.,:|;", *l->p)))
        return fail_lexing(l, "unexpected character");
    if (strchr("([{", *l->p))
        ++*nesting;
    if (strchr(")]}", *l->p))
        --*nesting;
    push_token(l, TOK_OP, l->p, n);
    advance_lexer(l, n);
    return true;
}

/* Tokens up to the end of the tag.  A "}}" inside brackets closes brackets first.  More closing
 * brackets than opening ones make nesting negative, which must not hide the end of the tag. */
static bool lex_tag(struct lexer *l, bool block)
{
    const char *close = block ? "%}" : "}}";
    int nesting = 0;
    while (!l->x->failed) {
        skip_space(l);
        if (l->p >= l->end)
            return fail_lexing(l, "tag is not closed");
        /* "-%}" and "+%}" close a tag, but "{{ a +}}" does not: a plus is an operator there. */
        bool sign = l->p + 2 < l->end && (*l->p == '-' || (block && *l->p == '+')) &&
                    memcmp(l->p + 1, close, 2) == 0;
        /* "{{ {'a': {}}}}" would otherwise end too early. */
        if (nesting <= 0 && (sign || looking_at(l, close))) {
            push_token(l, block ? TOK_BLOCK_END : TOK_VAR_END, l->p, 0);
            close_tag(l, sign ? 3 : 2, sign ? *l->p : 0, block);
            return true;
        }
        if (is_name_byte(*l->p, true)) {
            const char *e = l->p;
            while (e < l->end && is_name_byte(*e, false))
                e++;
            push_token(l, TOK_NAME, l->p, (size_t)(e - l->p));
            advance_lexer(l, (size_t)(e - l->p));
        } else if (isdigit((unsigned char)*l->p)) {
            lex_number(l);
        } else if (*l->p == '"' || *l->p == '\'') {
            lex_string(l);
        } else {
            lex_operator(l, &nesting);
        }
    }
    return false;
}

/* At "{%": if it is {% raw %}, take the text up to {% endraw %} and return true; false otherwise,
 * and also when the block is not closed, which is a failure. */
static bool lex_raw(struct lexer *l)
{
    /* Look ahead with a copy; only if all of it matches does the lexer move. */
    struct lexer probe = *l;
    advance_lexer(&probe, 2);
    if (probe.p < probe.end && (*probe.p == '-' || *probe.p == '+'))
        advance_lexer(&probe, 1);
    skip_space(&probe);
    if (!looking_at(&probe, "raw"))
        return false;
    advance_lexer(&probe, 3);
    skip_space(&probe);
    bool sign = probe.p < probe.end && (*probe.p == '-' || *probe.p == '+');
    if (sign)
        advance_lexer(&probe, 1);
    if (!looking_at(&probe, "%}"))
        return false;
    char mark = sign ? probe.p[-1] : 0;
    *l = probe;
    close_tag(l, 2, mark, true);
    const char *start = l->p;
    /* No tag but endraw counts in here, and white space control applies to it as to any tag. */
    while (l->p < l->end) {
        struct lexer q = *l;
        if (looking_at(&q, "{%")) {
            advance_lexer(&q, 2);
            char before = q.p < q.end ? *q.p : 0;
            if (before == '-' || before == '+')
                advance_lexer(&q, 1);
            skip_space(&q);
            if (looking_at(&q, "endraw")) {
                put_text(l, start, (size_t)(l->p - start), '%', before);
                advance_lexer(&q, 6);
                skip_space(&q);
                char after = q.p < q.end ? *q.p : 0;
                if (after == '-' || after == '+')
                    advance_lexer(&q, 1);
                *l = q;
                if (!looking_at(l, "%}"))
                    return fail_lexing(l, "endraw is not closed");
                close_tag(l, 2, after, true);
                return true;
            }
        }
        advance_lexer(l, 1);
    }
    return fail_lexing(l, "raw block is not closed");
}

/* The whole template at once: the parser then walks an array. */
void jinja_lex(struct jx *x, const char *source, size_t n, struct jinja_tokens *out)
{
    /* Line ends become LF, and the last newline of the source goes (keep_trailing_newline is off
     * in the reference engine). */
    struct buf b;
    buf_init(&b, n + 1);
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            buf_putc(&b, '\n');
            i += i + 1 < n && source[i + 1] == '\n';
        } else {
            buf_putc(&b, source[i]);
        }
    }
    if (b.len > 0 && b.data[b.len - 1] == '\n')
        b.len--;
    struct jv text = jv_from_buf(x, &b);
    struct lexer l = { .x = x,
                       .p = text.str.s,
                       .end = text.str.s + text.str.n,
                       .line = 1,
                       .line_starting = true,
                       .out = out };
    if (!x->failed && utf8_valid_prefix(text.str.s, text.str.n) != text.str.n)
        jx_fail(x, "template is not valid UTF-8");
    const char *start = l.p;
    while (!x->failed && l.p < l.end) {
        /* Text up to the next tag is collected in one token, which begins at `start`. */
        char tag = l.p + 1 < l.end && *l.p == '{' ? l.p[1] : 0;
        /* A brace by itself is text. */
        if (tag != '{' && tag != '%' && tag != '#') {
            advance_lexer(&l, 1);
            continue;
        }
        char sign = l.p + 2 < l.end && (l.p[2] == '-' || l.p[2] == '+') ? l.p[2] : 0;
        if (tag == '{' && sign == '+') /* {{+ is an expression with a plus */
            sign = 0;
        /* The sign of a tag decides how much of the text before it stays, so the token for that
         * text is made only here. */
        put_text(&l, start, (size_t)(l.p - start), tag, sign);
        if (tag == '%' && lex_raw(&l)) {
            start = l.p;
            continue;
        }
        if (x->failed)
            break;
        if (tag != '#')
            push_token(&l, tag == '{' ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN, l.p, 0);
        advance_lexer(&l, sign ? 3 : 2);
        /* Comments do not nest and make no token; only their signs and newline count. */
        if (tag == '#') {
            const char *body = l.p;
            while (l.p < l.end && !looking_at(&l, "#}"))
                advance_lexer(&l, 1);
            if (l.p >= l.end) {
                fail_lexing(&l, "comment is not closed");
                break;
            }
            char last = l.p > body ? l.p[-1] : 0; /* {#-#} has one sign, not two */
            close_tag(&l, 2, last == '-' || last == '+' ? last : 0, true);
        } else if (!lex_tag(&l, tag == '%')) {
            break;
        }
        start = l.p;
    }
    if (!x->failed && l.p > start)
        push_token(&l, TOK_TEXT, start, (size_t)(l.p - start));
    /* Always the last one, so that the parser never looks behind the end. */
    push_token(&l, TOK_EOF, "", 0);
    x->line = 0;
}
