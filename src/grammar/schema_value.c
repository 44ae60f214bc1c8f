/* schema_value.c - values of JSON as expressions: strings, literals, keys, and any value at all. */
#include <string.h>

#include "grammar/node.h"

/* Characters of more than one byte: exactly the sequences that are UTF-8.  Overlong forms and
 * surrogates are left out, so the second byte of some leads is restricted (table 3-7 of the Unicode
 * standard). */
struct node *value_multibyte(struct builder *b)
{
    static const struct {
        const char *lead, *second;
        int more; /* continuation bytes after the second */
    } forms[] = {
        { "\xc2\xdf", "\x80\xbf", 0 }, { "\xe0\xe0", "\xa0\xbf", 1 }, { "\xe1\xec", "\x80\xbf", 1 },
        { "\xed\xed", "\x80\x9f", 1 }, { "\xee\xef", "\x80\xbf", 1 }, { "\xf0\xf0", "\x90\xbf", 2 },
        { "\xf1\xf3", "\x80\xbf", 2 }, { "\xf4\xf4", "\x80\x8f", 2 },
    };
    struct node *parts[8];
    for (size_t i = 0; i < 8; i++)
        parts[i] =
            node_seq3(b, node_class(b, forms[i].lead), node_class(b, forms[i].second),
                      node_repeat(b, node_class(b, "\x80\xbf"), forms[i].more, forms[i].more));
    return node_list(b, NODE_CHOICE, parts, 8);
}

/* One character of a string, in any of its spellings: itself, a short escape or \u. */
struct node *value_char(struct builder *b)
{
    struct node *hex = node_class(b, "09afAF");
    /* \uXXXX but for surrogates, which would need a partner. */
    struct node *unit = node_choice2(
        b, node_seq2(b, node_class(b, "09acACefEF"), node_repeat(b, hex, 3, 3)),
        node_seq3(b, node_class(b, "ddDD"), node_class(b, "07"), node_repeat(b, hex, 2, 2)));
    struct node *escape = node_seq2(b, node_text(b, "\\", 1),
                                    node_choice2(b, node_class(b, "\"\"\\\\//bbffnnrrtt"),
                                                 node_seq2(b, node_text(b, "u", 1), unit)));
    /* Printable ASCII without the quote and the backslash; control characters must be escaped. */
    struct node *const parts[] = { node_class(b, " !#[]\x7e"), escape, value_multibyte(b) };
    return node_list(b, NODE_CHOICE, parts, 3);
}

struct node *value_string(struct builder *b, int64_t min, int64_t max)
{
    struct node *quote = node_text(b, "\"", 1);
    /* Strings without limits are in nearly every schema: one node, and so one set of states, for
     * all of them. */
    if (min == 0 && max < 0 && b->any_str)
        return b->any_str;
    struct node *x = node_seq3(b, quote, node_repeat(b, value_char(b), min, max), quote);
    if (min == 0 && max < 0)
        b->any_str = x;
    return x;
}

/* One space is allowed because models write it; more would let a sample fill up with spaces. */
struct node *value_comma(struct builder *b)
{
    return node_seq2(b, node_text(b, ",", 1), node_optional(b, node_text(b, " ", 1)));
}

struct node *value_colon(struct builder *b)
{
    return node_seq2(b, node_text(b, ":", 1), node_optional(b, node_text(b, " ", 1)));
}

/* The text as it was written, so that no number is rounded, without spaces between tokens. */
struct node *value_literal(struct builder *b, struct json_str raw)
{
    char *text = arena_alloc(b->arena, raw.n + 1);
    size_t n = 0;
    bool inside = false;
    if (!text)
        return node_fail(b, "no memory for a value");
    for (size_t i = 0; i < raw.n; i++) {
        char c = raw.s[i];
        if (inside && c == '\\') {
            text[n++] = c;
            c = raw.s[++i]; /* the text was checked: something follows */
        } else if (c == '"') {
            inside = !inside;
        }
        if (inside || (c != ' ' && c != '\n' && c != '\r' && c != '\t'))
            text[n++] = c;
    }
    return node_text(b, text, n);
}

/* A key, quotes included, that is none of `taken`: printable ASCII without escapes, so that a key has
 * one spelling.  taken holds the tails of the names that are still possible; depth counts bytes. */
static struct node *key_rest(struct builder *b, const struct json_str *taken, size_t n,
                             size_t depth)
{
    enum { FIRST = ' ', LAST = '~' };
    uint64_t other[4] = { 0 };
    /* One part per character, one for the end and one for all others. */
    struct node *parts[LAST - FIRST + 3];
    size_t n_parts = 0;
    bool ends = true;
    for (unsigned c = FIRST; c <= LAST; c++) {
        struct json_str *deeper = NULL;
        size_t n_deeper = 0;
        /* Escapes would give a key a second spelling that is not in `taken`. */
        if (c == '"' || c == '\\')
            continue;
        /* Counted first: the arena cannot give memory back. */
        for (size_t i = 0; i < n; i++)
            if (depth < taken[i].n && (unsigned char)taken[i].s[depth] == c)
                n_deeper++;
        /* No name goes on with this character: from here on the key may be anything. */
        if (n_deeper == 0) {
            other[c / 64] |= (uint64_t)1 << c % 64;
            continue;
        }
        deeper = arena_array(b->arena, n_deeper, sizeof *deeper);
        if (!deeper)
            return node_fail(b, "no memory for names");
        n_deeper = 0;
        for (size_t i = 0; i < n; i++)
            if (depth < taken[i].n && (unsigned char)taken[i].s[depth] == c)
                deeper[n_deeper++] = taken[i];
        const char range[] = { (char)c, (char)c, 0 };
        parts[n_parts++] =
            node_seq2(b, node_class(b, range), key_rest(b, deeper, n_deeper, depth + 1));
        if (b->failed)
            return NULL;
    }
    /* The key may end here unless it would then be one of the names. */
    for (size_t i = 0; i < n; i++)
        ends = ends && taken[i].n != depth;
    if (ends)
        parts[n_parts++] = node_text(b, "\"", 1);
    parts[n_parts++] =
        node_seq3(b, node_set(b, other), node_repeat(b, node_class(b, " !#[]~"), 0, NODE_NO_MAX),
                  node_text(b, "\"", 1));
    return node_list(b, NODE_CHOICE, parts, n_parts);
}

struct node *value_open_key(struct builder *b, const struct json_str *taken, size_t n)
{
    return node_seq2(b, node_text(b, "\"", 1), key_rest(b, taken, n, 0));
}

/* open (item (, item)*)? close */
static struct node *any_list(struct builder *b, const char *open, struct node *item,
                             const char *close)
{
    struct node *more = node_repeat(b, node_seq2(b, value_comma(b), item), 0, NODE_NO_MAX);
    return node_seq3(b, node_text(b, open, 1), node_optional(b, node_seq2(b, item, more)),
                     node_text(b, close, 1));
}

struct node *value_any(struct builder *b)
{
    /* Made once and shared: it refers to itself, and the states of any value would otherwise
     * multiply with each use. */
    if (b->any || b->failed)
        return b->any;
    /* Set before it is built, because its parts contain it. */
    struct node *later = b->any = node_later(b);
    struct node *member = node_seq3(b, value_open_key(b, NULL, 0), value_colon(b), later);
    struct node *const parts[] = {
        any_list(b, "{", member, "}"),
        any_list(b, "[", later, "]"),
        value_string(b, 0, NODE_NO_MAX),
        number_node(b, false, __builtin_nan(""), __builtin_nan("")),
        node_text(b, "true", 4),
        node_text(b, "false", 5),
        node_text(b, "null", 4),
    };
    node_resolve(b, later, node_list(b, NODE_CHOICE, parts, 7));
    return later;
}
