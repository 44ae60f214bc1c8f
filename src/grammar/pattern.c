/* pattern.c - the regular expressions of the keyword `pattern`, as texts inside a JSON string.
 *
 * Literals, ., classes, \d \w \s and their opposites, groups, |, * + ? {m,n}, and ^ and $ at the ends
 * of an alternative; without them the pattern may be anywhere in the text.  Anything else is
 * refused.  Opposites and \W stand for ASCII only: what Unicode adds to them differs between
 * engines. */
#include <string.h>

#include "grammar/node.h"

enum { PATTERN_DEPTH = 40 };

struct pattern {
    struct builder *b;
    const char *p, *end;
    int depth;
};

/* Characters: ASCII by a set of bits, all others together.  Beyond ASCII the members of \w and
 * their like differ between engines, so they count as one class. */
struct chars {
    uint64_t ascii[2];
    bool others;
};

static void add_range(struct chars *c, unsigned from, unsigned to)
{
    for (; from <= to && from < 128; from++)
        c->ascii[from / 64] |= (uint64_t)1 << from % 64;
}

static void invert_ascii(struct chars *c)
{
    c->ascii[0] = ~c->ascii[0];
    c->ascii[1] = ~c->ascii[1];
}

/* How these characters are spelled in a JSON string. */
static struct node *chars_node(struct builder *b, const struct chars *c)
{
    /* The escapes that JSON has a letter for, and these letters. */
    static const char escaped[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    uint64_t plain[4] = { c->ascii[0], c->ascii[1], 0, 0 };
    struct node *parts[16];
    size_t n = 0;
    for (size_t i = 0; escaped[i]; i++) {
        unsigned e = (unsigned char)escaped[i];
        const char text[2] = { '\\', letters[i] };
        if (plain[e / 64] >> e % 64 & 1)
            parts[n++] = node_text(b, text, 2);
        plain[e / 64] &= ~((uint64_t)1 << e % 64);
    }
    /* JSON would need \u00XX for them, which no pattern that we have seen asks for; DEL, bit 63, is
     * left out with them. */
    plain[0] &= ~(uint64_t)0xffffffff; /* other control characters are left out */
    plain[1] &= ~((uint64_t)1 << 63);
    parts[n++] = node_set(b, plain);
    if (c->others)
        parts[n++] = value_multibyte(b);
    return node_list(b, NODE_CHOICE, parts, n);
}

/* After a backslash: a class of its own, or a character that has no other meaning. */
static bool read_escape(struct pattern *p, struct chars *c)
{
    /* Collected apart, since an opposite inverts only its own set, not what stood before it in
     * [...]. */
    struct chars set = { 0 };
    char e = p->p < p->end ? *p->p++ : 0;
    switch (e) {
    case 'd':
    case 'D':
        add_range(&set, '0', '9');
        break;
    case 'w':
    case 'W':
        add_range(&set, '0', '9');
        add_range(&set, 'a', 'z');
        add_range(&set, 'A', 'Z');
        add_range(&set, '_', '_');
        break;
    case 's':
    case 'S':
        /* \t \n \v \f \r are neighbors in ASCII. */
        add_range(&set, '\t', '\r');
        add_range(&set, ' ', ' ');
        break;
    case 'n':
        add_range(&set, '\n', '\n');
        break;
    case 'r':
        add_range(&set, '\r', '\r');
        break;
    case 't':
        add_range(&set, '\t', '\t');
        break;
    default:
        /* JavaScript, the dialect of JSON Schema, gives other letters a meaning (\b, \B, \p, \u);
         * taking them for literals would change the language silently. */
        if (!e || !strchr("^$\\.*+?()[]{}|/-\"'#&,:;<=>@_`~!% ", e)) {
            node_fail(p->b, "pattern: \\%c is not supported", e ? e : ' ');
            return false;
        }
        add_range(&set, (unsigned char)e, (unsigned char)e);
    }
    if (e == 'D' || e == 'W' || e == 'S')
        invert_ascii(&set);
    c->ascii[0] |= set.ascii[0];
    c->ascii[1] |= set.ascii[1];
    return true;
}

/* After '['. */
static struct node *read_class(struct pattern *p)
{
    struct chars c = { 0 };
    /* A ] right after [ ends the class here as in JavaScript, where [] matches nothing. */
    bool inverted = p->p < p->end && *p->p == '^';
    p->p += inverted;
    /* '-' first or last is itself; between two characters it is a range. */
    while (p->p < p->end && *p->p != ']') {
        unsigned char from = (unsigned char)*p->p++;
        if (from >= 128)
            return node_fail(p->b, "pattern: only ASCII is supported in [...]");
        if (from == '\\') {
            const char *before = p->p;
            if (!read_escape(p, &c))
                return NULL;
            /* "\--z" and the like: a range from an escaped character */
            if (p->end - p->p > 1 && *p->p == '-' && p->p[1] != ']')
                return node_fail(p->b, "pattern: a range from \\%c is not supported", *before);
            continue;
        }
        unsigned char to = from;
        if (p->end - p->p > 1 && *p->p == '-' && p->p[1] != ']') {
            to = (unsigned char)p->p[1];
            p->p += 2;
            if (to >= 128 || to == '\\' || to < from)
                return node_fail(p->b, "pattern: this range in [...] is not supported");
        }
        add_range(&c, from, to);
    }
    if (p->p == p->end)
        return node_fail(p->b, "pattern: [ without ]");
    p->p++;
    if (inverted)
        invert_ascii(&c);
    /* Characters that the class does not name are in its complement, among them all beyond
     * ASCII. */
    c.others = inverted;
    return chars_node(p->b, &c);
}

static struct node *read_choices(struct pattern *p);

/* One character, class or group. */
static struct node *read_atom(struct pattern *p)
{
    struct chars c = { 0 };
    unsigned char at = (unsigned char)*p->p++;
    if (at == '[')
        return read_class(p);
    if (at == '(') {
        /* Capturing makes no difference to which texts match; lookahead does, and is refused. */
        if (p->end - p->p > 1 && p->p[0] == '?') {
            if (p->p[1] != ':')
                return node_fail(p->b, "pattern: (?%c is not supported", p->p[1]);
            p->p += 2;
        }
        /* A group is a recursion on the C stack. */
        if (++p->depth > PATTERN_DEPTH)
            return node_fail(p->b, "pattern: groups are nested too deeply");
        struct node *x = read_choices(p);
        p->depth--;
        if (!p->b->failed && (p->p == p->end || *p->p != ')'))
            return node_fail(p->b, "pattern: ( without )");
        p->p++;
        return x;
    }
    if (at == '.') {
        invert_ascii(&c);
        /* . excludes line ends, as in JavaScript without the flag s. */
        c.ascii[0] &= ~((uint64_t)1 << '\n' | (uint64_t)1 << '\r');
        c.others = true;
        return chars_node(p->b, &c);
    }
    if (at == '\\')
        return read_escape(p, &c) ? chars_node(p->b, &c) : NULL;
    /* ^ and $ inside a sequence, and quantifiers without an atom. */
    if (strchr("^$*+?{})]", at))
        return node_fail(p->b, "pattern: %c is not supported here", at);
    if (at < 128) {
        add_range(&c, at, at);
        return chars_node(p->b, &c);
    }
    /* All bytes of one character, so that a quantifier counts characters; the text is UTF-8. */
    const char *start = p->p - 1;
    while (p->p < p->end && ((unsigned char)*p->p & 0xc0) == 0x80)
        p->p++;
    return node_text(p->b, start, (size_t)(p->p - start));
}

/* Digits beyond the bound stay unread and are then an error: no count can overflow. */
static bool read_count(struct pattern *p, int64_t *out)
{
    const char *start = p->p;
    *out = 0;
    while (p->p < p->end && *p->p >= '0' && *p->p <= '9' && *out < 100000)
        *out = *out * 10 + (*p->p++ - '0');
    return p->p > start;
}

/* An atom and what says how often it comes. */
static struct node *read_repeated(struct pattern *p)
{
    struct node *x = read_atom(p);
    int64_t min, max;
    /* The end of the pattern may follow any atom. */
    if (p->b->failed || p->p == p->end)
        return x;
    switch (*p->p) {
    case '*':
        min = 0, max = NODE_NO_MAX;
        break;
    case '+':
        min = 1, max = NODE_NO_MAX;
        break;
    case '?':
        min = 0, max = 1;
        break;
    case '{':
        p->p++;
        if (!read_count(p, &min))
            return node_fail(p->b, "pattern: { without a number");
        max = min;
        if (p->p < p->end && *p->p == ',') {
            p->p++;
            /* {2,} has no upper bound. */
            if (!read_count(p, &max))
                max = NODE_NO_MAX;
        }
        if (p->p == p->end || *p->p != '}' || (max >= 0 && max < min))
            return node_fail(p->b, "pattern: wrong numbers in {}");
        break;
    default:
        return x;
    }
    p->p++;
    /* Greedy or lazy decides what a group captures, not which texts match. */
    if (p->p < p->end && *p->p == '?') /* lazy: the same texts */
        p->p++;
    return node_repeat(p->b, x, min, max);
}

/* $ ends a sequence only outside of groups, where it is the end of the text. */
static struct node *read_sequence(struct pattern *p)
{
    struct node_parts all = { 0 };
    while (!p->b->failed && p->p < p->end && *p->p != '|' && *p->p != ')' &&
           !(*p->p == '$' && p->depth == 0))
        node_add_part(p->b, &all, read_repeated(p));
    return node_list(p->b, NODE_SEQ, all.v, all.n);
}

/* Alternatives.  At the top each may have anchors of its own; where it has none, any text may come
 * before or after it.  Those with the same anchors share that text: a hundred alternatives that may
 * be anywhere are one "anything", not a hundred that are all followed at once. */
static struct node *read_choices(struct pattern *p)
{
    struct node_parts groups[2][2] = { 0 },
                      all = { 0 }; /* [it begins the text][it ends the text] */
    bool top = p->depth == 0;
    for (bool more = true; more && !p->b->failed;) {
        bool begins = top && p->p < p->end && *p->p == '^';
        p->p += begins;
        struct node *x = read_sequence(p);
        bool ends = top && p->p < p->end && *p->p == '$';
        p->p += ends;
        node_add_part(p->b, &groups[begins || !top][ends || !top], x);
        more = p->p < p->end && *p->p == '|';
        p->p += more;
    }
    for (int i = 0; i < 4; i++) {
        const struct node_parts *group = &groups[i / 2][i % 2];
        if (group->n == 0)
            continue;
        struct node *x = node_list(p->b, NODE_CHOICE, group->v, group->n), *any = NULL;
        if (i != 3)
            any = node_repeat(p->b, value_char(p->b), 0, NODE_NO_MAX);
        x = i / 2 ? x : node_seq2(p->b, any, x);
        x = i % 2 ? x : node_seq2(p->b, x, any);
        node_add_part(p->b, &all, x);
    }
    return all.n == 1 ? all.v[0] : node_list(p->b, NODE_CHOICE, all.v, all.n);
}

struct node *pattern_node(struct builder *b, struct json_str pattern)
{
    struct pattern p = { .b = b, .p = pattern.s, .end = pattern.s + pattern.n };
    struct node *x = read_choices(&p), *quote = node_text(b, "\"", 1);
    /* What is left can only be a ) too many. */
    if (!b->failed && p.p != p.end)
        return node_fail(b, "pattern: %c is not supported here", *p.p);
    return node_seq3(b, quote, x, quote);
}
