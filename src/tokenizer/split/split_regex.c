/* split_regex.c - from Oniguruma's dialect to PCRE2's, and matching.
 *
 * PCRE2 in the distribution knows an older Unicode than the reference: \p{..} becomes that class
 * plus the characters that came later.  \s, \w and \d are spelled out for the same reason, and a
 * class intersection [A&&[B]] becomes a look-ahead. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/split/split_regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/buf.h"
#include "base/err.h"
#include "unicode/unicode.h"

struct split_regex {
    pcre2_code *code;
};

#define SPACE_SET                                                                                 \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"

struct scan {
    const char *p, *end;
    struct buf *out;
    const char *problem; /* NULL: none */
};

/* The characters of a category (a prefix such as "L" or "Lu"), or of the script Han, that came
 * after PCRE2's tables. */
static void put_newer_chars(struct buf *out, const char *category, size_t n)
{
    for (size_t i = 0; n == 3 && memcmp(category, "Han", 3) == 0 && i < uni_han_n; i++)
        buf_printf(out, "\\x{%x}-\\x{%x}", uni_han[i].first, uni_han[i].last);
    for (size_t i = 0; i < uni_new_since_regex_n; i++) {
        const struct uni_new *u = &uni_new_since_regex[i];
        if (n <= 2 && strncmp(u->category, category, n) == 0)
            buf_printf(out, "\\x{%x}-\\x{%x}", u->first, u->last);
    }
}

/* Whether a property is a script.  PCRE2 would include characters that several scripts share,
 * the reference does not; "sc:" says so. */
static bool is_script(const char *name, size_t n)
{
    char text[64];
    int code;
    PCRE2_SIZE at;
    if (n < 3 || n > 40)
        return false;
    int len = snprintf(text, sizeof(text), "\\p{sc:%.*s}", (int)n, name);
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)text, (size_t)len, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

/* \p{..} or \P{..} at s->p; in_class: already inside brackets. */
static void translate_property(struct scan *s, bool in_class)
{
    bool negated = s->p[1] == 'P';
    const char *name = s->p + 3, *close;
    if (s->end - s->p < 4 || s->p[2] != '{' ||
        !(close = memchr(name, '}', (size_t)(s->end - name)))) {
        s->problem = "expected \\p{name}";
        return;
    }
    if (name < close && *name == '^') {
        negated = !negated;
        name++;
    }
    size_t n = (size_t)(close - name);
    const char *prefix = is_script(name, n) ? "sc:" : "";
    if (in_class && negated) { /* a complement cannot be extended inside a class */
        buf_printf(s->out, "\\P{%s%.*s}", prefix, (int)n, name);
    } else {
        buf_puts(s->out, in_class ? "" : negated ? "[^" : "[");
        buf_printf(s->out, "\\p{%s%.*s}", prefix, (int)n, name);
        put_newer_chars(s->out, name, n);
        buf_puts(s->out, in_class ? "" : "]");
    }
    s->p = close + 1;
}

/* A backslash and what follows at s->p. */
static void translate_escape(struct scan *s, bool in_class)
{
    if (s->end - s->p < 2) {
        s->problem = "ends with a backslash";
        return;
    }
    char c = s->p[1];
    if (c == 'p' || c == 'P') {
        translate_property(s, in_class);
        return;
    }
    bool upper = c == 'S' || c == 'D' || c == 'W';
    if ((upper && !in_class) || c == 's' || c == 'd' || c == 'w') {
        static const char *const word_categories[] = { "L", "M", "Nd", "Nl", "Pc" };
        buf_puts(s->out, in_class ? "" : upper ? "[^" : "[");
        switch (c | 0x20) {
        case 's':
            buf_puts(s->out, SPACE_SET);
            break;
        case 'd':
            buf_puts(s->out, "\\p{Nd}");
            put_newer_chars(s->out, "Nd", 2);
            break;
        default: /* w: letters, marks, decimal and letter numbers, connectors, joiners, and the
                  * enclosed letters that are Alphabetic */
            for (size_t i = 0; i < ARRAY_LEN(word_categories); i++) {
                buf_printf(s->out, "\\p{%s}", word_categories[i]);
                put_newer_chars(s->out, word_categories[i], strlen(word_categories[i]));
            }
            buf_puts(s->out, "\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"
                             "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}");
        }
        buf_puts(s->out, in_class ? "" : "]");
    } else if (c == 'h' || c == 'H') {
        s->problem = "\\h is not supported";
    } else {
        buf_append(s->out, s->p, 2);
    }
    s->p += 2;
}

/* A bracket class at s->p, after its '[': up to and including its ']'. */
static void translate_class_body(struct scan *s, bool *intersects)
{
    /* A ] right behind the [ stands for itself (POSIX). */
    bool first = true;
    *intersects = false;
    if (s->p < s->end && *s->p == '^') {
        buf_putc(s->out, '^');
        s->p++;
    }
    for (; s->p < s->end && !s->problem; first = false) {
        if (*s->p == ']' && !first) {
            s->p++;
            return;
        }
        if (s->end - s->p >= 2 && s->p[0] == '&' && s->p[1] == '&') {
            s->p += 2;
            *intersects = true;
            return;
        }
        if (*s->p == '\\') {
            translate_escape(s, true);
        } else if (*s->p == '[') {
            /* [:name:] is the same in both dialects. */
            if (s->end - s->p < 2 || s->p[1] != ':') {
                s->problem = "a class inside a class is not supported";
                return;
            }
            const char *close = memchr(s->p + 1, ']', (size_t)(s->end - s->p - 1));
            if (!close)
                break;
            buf_append(s->out, s->p, (size_t)(close + 1 - s->p));
            s->p = close + 1;
        } else {
            buf_putc(s->out, *s->p++);
        }
    }
    if (!s->problem)
        s->problem = "a class is not closed";
}

/* [A], or [A&&[B]] as (?:(?=[B])[A]). */
static void translate_class(struct scan *s)
{
    struct buf left, *out = s->out;
    bool more; /* && follows */
    buf_init(&left, 1 << 20);
    s->out = &left;
    s->p++;
    translate_class_body(s, &more);
    s->out = out;
    if (more && !s->problem) {
        if (s->p < s->end && *s->p == '[') {
            bool again;
            s->p++;
            buf_puts(out, "(?:(?=[");
            translate_class_body(s, &again);
            buf_puts(out, "])");
            if (!s->problem && (again || s->p >= s->end || *s->p++ != ']'))
                s->problem = "this class intersection is not supported";
        } else {
            s->problem = "this class intersection is not supported";
        }
    }
    /* The left side comes last: the look-ahead of the right side must stand before what
     * consumes. */
    buf_putc(out, '[');
    if (left.data)
        buf_append(out, left.data, left.len);
    buf_puts(out, more ? "])" : "]");
    if (left.failed)
        out->failed = true;
    buf_clear(&left);
}

struct split_regex *split_regex_new(const char *pattern, size_t n, bool ruby, tinker_error *err)
{
    struct buf text;
    struct split_regex *r = calloc(1, sizeof(*r));
    buf_init(&text, 1 << 22);
    struct scan s = { pattern, pattern + n, &text, n > 65536 ? "longer than 64 KB" : NULL };
    while (s.p < s.end && !s.problem) { /* what is neither escape nor class means the same */
        if (*s.p == '\\')
            translate_escape(&s, false);
        else if (*s.p == '[')
            translate_class(&s);
        else
            buf_putc(&text, *s.p++);
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    char message[120] = "";
    if (s.problem) {
        err_set(err, TINKER_EINVAL, "pattern \"%.*s\": %s", (int)(n < 80 ? n : 80), pattern,
                s.problem);
    } else if (!r || !buf_ok(&text)) {
        err_nomem(err, "pattern");
    } else {
        /* In Ruby's syntax ^ and $ match at every line; elsewhere $ matches at the very end
         * only. */
        uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
                           (ruby ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY);
        r->code = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.len, options, &code,
                                &at, NULL);
        if (!r->code) {
            pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof(message));
            err_set(err, TINKER_EINVAL, "pattern \"%.*s\": %s", (int)(n < 80 ? n : 80), pattern,
                    message);
        } else {
            pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it matching is slower */
        }
    }
    buf_clear(&text);
    if (r && r->code)
        return r;
    free(r);
    return NULL;
}

void split_regex_free(struct split_regex *r)
{
    if (r)
        pcre2_code_free(r->code);
    free(r);
}

void split_regex_ctx_clear(struct split_regex_ctx *c)
{
    pcre2_match_data_free(c->match_data);
    pcre2_match_context_free(c->match_context);
    pcre2_jit_stack_free(c->jit_stack);
    memset(c, 0, sizeof(*c));
}

int split_regex_find(const struct split_regex *r, struct split_regex_ctx *c, const char *text,
                     size_t n, size_t from, size_t *begin, size_t *end)
{
    if (!c->match_data) { /* first use */
        c->match_context = pcre2_match_context_create(NULL);
        c->jit_stack = pcre2_jit_stack_create(32 * 1024, 8 * 1024 * 1024, NULL);
        c->match_data = pcre2_match_data_create(1, NULL);
        if (!c->match_context || !c->jit_stack || !c->match_data) {
            split_regex_ctx_clear(c);
            c->no_memory = true;
            return -1;
        }
        pcre2_jit_stack_assign(c->match_context, NULL, c->jit_stack);
    }
    /* A pattern from a file may backtrack without end: steps are limited by the length of the text. */
    uint64_t budget = 1000000 + 10000 * (uint64_t)(n - from);
    pcre2_set_match_limit(c->match_context, budget < UINT32_MAX ? (uint32_t)budget : UINT32_MAX);
    int found = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, c->match_data,
                            c->match_context);
    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    c->no_memory = found == PCRE2_ERROR_NOMEMORY;
    if (found < 0)
        return -1;
    PCRE2_SIZE *at = pcre2_get_ovector_pointer(c->match_data);
    *begin = at[0];
    *end = at[1];
    return 1;
}

tinker_status split_regex_failed(const struct split_regex_ctx *c, const char *whose,
                                 tinker_error *err)
{
    if (c->no_memory)
        return err_nomem(err, "pattern");
    return err_set(err, TINKER_EINVAL, "%s pattern exceeded its step budget", whose);
}

/* 1: a match; 0: none is left; -1: out of steps or memory.  Matches do not overlap, and an empty
 * one where the last ended is passed over, as Oniguruma's own scan does. */
int split_regex_next(const struct split_regex *r, struct split_regex_ctx *c, const char *text,
                     size_t n, struct split_place *at, size_t *begin, size_t *end)
{
    while (at->from <= n) {
        int found = split_regex_find(r, c, text, n, at->from, begin, end);
        if (found <= 0)
            return found;
        if (*begin < *end || *begin != at->last) { /* not an empty match behind another */
            at->from = at->last = *end;
            return 1;
        }
        unsigned len = 1;
        if (*begin < n)
            uni_decode((const unsigned char *)text + *begin, &len);
        at->from = *begin + len;
    }
    return 0;
}
