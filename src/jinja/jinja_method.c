/* jinja_method.c - methods of strings, lists and dicts.
 *
 * Only methods that leave their object alone exist: templates run in a sandbox of
 * immutable values.  One table per type; each entry is a pure function. */
#include "jinja/jinja.h"

#include <string.h>
#include <utf8proc.h>
#include "base/utf8.h"

/* name: split and rsplit, for example, are one function, told apart by the first letter. self has
 * the type of the table that the function is in, so its union member may be read unchecked. */
typedef struct jv method_fn(struct jx *x, struct jv self, struct jv_str name,
                            const struct jinja_args *args);

/* The positional argument i, a string; fails when it is something else or missing. */
static struct jv_str want_text(struct jx *x, const struct jinja_args *args, size_t i)
{
    struct jv v = jinja_arg(args, i, NULL, jv_undefined("argument"));
    if (v.kind == JV_STRING)
        return v.str;
    jx_fail(x, "expected a string argument, not %s", jv_type_name(v));
    return (struct jv_str){ "", 0 };
}

/* An argument that is no integer counts as absent: split(none, none) splits without a limit. */
static int64_t int_arg(const struct jinja_args *args, size_t i, const char *name, int64_t missing)
{
    struct jv v = jinja_arg(args, i, name, jv_int(missing));
    return v.kind == JV_INT ? v.i : missing;
}

/* Items are printed as {{ item }} would be. The filter "join" ends here, and so do slices and the
 * reverse of a text, whose characters are joined again. */
struct jv jinja_join(struct jx *x, struct jv_str sep, struct jv list)
{
    struct buf b;
    buf_init(&b, x->arena->max);
    for (size_t i = 0; jv_is_seq(list) && i < list.list->n && jx_step(x, 1); i++) {
        if (i > 0)
            buf_append(&b, sep.s, sep.n);
        jv_print(x, &b, list.list->items[i]);
    }
    return jv_from_buf(x, &b);
}

/* `to` before each character and at the end, max times (negative: no limit): "abc" with "-" and 2
 * is "-a-bc". */
static struct jv replace_empty(struct jx *x, struct jv_str s, struct jv_str to, int64_t max)
{
    struct buf b;
    size_t at = 0;
    buf_init(&b, x->arena->max);
    for (; max != 0 && jx_step(x, 1); max--) {
        uint32_t cp;
        buf_append(&b, to.s, to.n);
        if (at == s.n)
            break;
        int len = utf8_decode(s.s + at, s.n - at, &cp);
        buf_append(&b, s.s + at, len ? (size_t)len : 1);
        at += len ? (size_t)len : 1;
    }
    buf_append(&b, s.s + at, s.n - at);
    return jv_from_buf(x, &b);
}

/* Replace up to max occurrences from the left (negative: all), which do not overlap. What was put
 * in is not searched again. */
struct jv jinja_replace(struct jx *x, struct jv_str s, struct jv_str from, struct jv_str to,
                        int64_t max)
{
    struct buf b;
    size_t at = 0;
    buf_init(&b, x->arena->max);
    /* Python's rule: an empty text is found before every character and at the end. */
    if (from.n == 0)
        return replace_empty(x, s, to, max);
    /* A search is paid for at its worst case before it begins. */
    jx_step(x, text_find_steps(s, from));
    /* A negative max counts away from 0: the loop ends where nothing more is found. */
    for (; max != 0 && jx_step(x, 1); max--) {
        size_t hit = text_find(s, from, at);
        if (hit == SIZE_MAX)
            break;
        buf_append(&b, s.s + at, hit - at);
        buf_append(&b, to.s, to.n);
        at = hit + from.n;
    }
    buf_append(&b, s.s + at, s.n - at);
    return jv_from_buf(x, &b);
}

/* Bytes at the front of s that are all white space, or all not. An ill-formed byte is no white
 * space, so that every run makes progress. */
static size_t measure_run(struct jv_str s, bool space)
{
    size_t n = 0;
    while (n < s.n) {
        uint32_t cp;
        int len = utf8_decode(s.s + n, s.n - n, &cp);
        if ((len && text_is_space(cp)) != space)
            break;
        n += len ? (size_t)len : 1;
    }
    return n;
}

/* str.split() without a separator: words between runs of white space, none of them empty. After
 * `max` splits the last one is all that is left, with the white space at its end: " a b c " split
 * once is "a" and "b c ". Pieces borrow the bytes of s. */
static struct jv split_space(struct jx *x, struct jv_str s, int64_t max)
{
    struct jv out = jv_list_new(x);
    while (!x->failed) {
        s = text_trim(s, NULL, true, false);
        if (s.n == 0 || !jx_step(x, 1))
            break;
        /* After `max` words nothing is split any more. */
        size_t n = max >= 0 && (int64_t)out.list->n == max ? s.n : measure_run(s, false);
        jv_push(x, out, jv_strn(s.s, n));
        s.s += n;
        s.n -= n;
    }
    return out;
}

/* The same from the right, where the first word keeps the white space before it. Words are found
 * from the left; those before the last `max` then become one piece that begins at s. */
static struct jv rsplit_space(struct jx *x, struct jv_str s, int64_t max)
{
    struct jv all = split_space(x, s, -1), out = jv_list_new(x);
    size_t n = x->failed ? 0 : all.list->n;
    if (x->failed || max < 0 || (uint64_t)max >= n)
        return all;
    /* The words point into s, so the end of one is a place in s. */
    size_t kept = n - (size_t)max; /* words in the first piece */
    struct jv last = all.list->items[kept - 1];
    jv_push(x, out, jv_strn(s.s, (size_t)(last.str.s + last.str.n - s.s)));
    for (size_t i = kept; i < n; i++)
        jv_push(x, out, all.list->items[i]);
    return out;
}

/* Without a separator, words between white space; with one, pieces between its occurrences, so that
 * an empty text gives one empty piece. All searches together are paid for at once, as together
 * they read the text once. */
struct jv jinja_split(struct jx *x, struct jv_str s, struct jv sep, int64_t max, bool from_right)
{
    if (sep.kind != JV_STRING)
        return from_right ? rsplit_space(x, s, max) : split_space(x, s, max);
    struct jv out = jv_list_new(x);
    if (sep.str.n == 0)
        jx_fail(x, "empty separator");
    jx_step(x, text_find_steps(s, sep.str));
    /* One piece per round. After `max` splits, or without a further separator, the rest is the last
     * piece. */
    while (!x->failed && jx_step(x, 1)) {
        size_t hit = max >= 0 && (int64_t)out.list->n == max ? SIZE_MAX
                     : from_right                            ? text_rfind(s, sep.str)
                                                             : text_find(s, sep.str, 0);
        if (hit == SIZE_MAX) {
            jv_push(x, out, jv_strn(s.s, s.n));
            break;
        }
        /* From the right the text shrinks at its end, otherwise at its front. */
        size_t after = hit + sep.str.n;
        if (from_right) {
            jv_push(x, out, jv_strn(s.s + after, s.n - after));
            s.n = hit;
        } else {
            jv_push(x, out, jv_strn(s.s, hit));
            s.s += after;
            s.n -= after;
        }
    }
    for (size_t i = 0, m = from_right && !x->failed ? out.list->n : 0; i < m / 2; i++) {
        struct jv t = out.list->items[i]; /* pieces were found from the right: reverse them */
        out.list->items[i] = out.list->items[m - 1 - i];
        out.list->items[m - 1 - i] = t;
    }
    return out;
}

/* None as the separator is the same as no separator. */
static struct jv method_split(struct jx *x, struct jv self, struct jv_str name,
                              const struct jinja_args *args)
{
    struct jv sep = jinja_arg(args, 0, "sep", jv_none());
    return jinja_split(x, self.str, sep, int_arg(args, 1, "maxsplit", -1), name.s[0] == 'r');
}

/* Bytes of the line break at the front of s, 0: there is none. Python's list: LF, VT, FF, CR,
 * CR LF, U+001C to U+001E, U+0085 (next line), U+2028 and U+2029 (line, paragraph separator). */
static size_t line_break(struct jv_str s)
{
    uint32_t cp = 0;
    if (s.n > 1 && s.s[0] == '\r' && s.s[1] == '\n')
        return 2;
    int len = utf8_decode(s.s, s.n, &cp);
    bool breaks = (cp >= '\n' && cp <= '\r') || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
                  cp == 0x2028 || cp == 0x2029;
    return len && breaks ? (size_t)len : 0;
}

/* str.splitlines(). A break at the end of the text begins no further line, and an empty text has no
 * line at all; in both it differs from split("\n"). */
struct jv jinja_splitlines(struct jx *x, struct jv_str s, bool keep)
{
    struct jv out = jv_list_new(x);
    while (s.n > 0 && jx_step(x, 1)) {
        size_t n = 0, ends = 0;
        while (n < s.n && !(ends = line_break((struct jv_str){ s.s + n, s.n - n })))
            n++;
        jv_push(x, out, jv_strn(s.s, keep ? n + ends : n));
        s.s += n + ends;
        s.n -= n + ends;
    }
    return out;
}

static struct jv method_splitlines(struct jx *x, struct jv self, struct jv_str name,
                                   const struct jinja_args *args)
{
    (void)name;
    bool keep = jv_truth(jinja_arg(args, 0, "keepends", jv_bool(false)));
    return jinja_splitlines(x, self.str, keep);
}

/* strip, lstrip, rstrip: chars is a set of characters, not a prefix. text_trim() takes it as a C
 * string, hence the copy; a NUL in it would end the set. */
static struct jv method_strip(struct jx *x, struct jv self, struct jv_str name,
                              const struct jinja_args *args)
{
    struct jv chars = jinja_arg(args, 0, "chars", jv_none());
    char *set = chars.kind == JV_STRING ? arena_strndup(x->arena, chars.str.s, chars.str.n) : NULL;
    if (chars.kind == JV_STRING && !set)
        jx_nomem(x);
    struct jv_str s = text_trim(self.str, set, name.s[0] != 'r', name.s[0] != 'l');
    return jv_strn(s.s, s.n);
}

/* startswith and endswith take one string or a tuple of them; a list, too, which Python refuses. */
static struct jv method_edge(struct jx *x, struct jv self, struct jv_str name,
                             const struct jinja_args *args)
{
    struct jv what = jinja_arg(args, 0, NULL, jv_undefined("argument"));
    struct jv one[1] = { what };
    struct jv *items = jv_is_seq(what) ? what.list->items : one;
    size_t n = jv_is_seq(what) ? what.list->n : 1;
    for (size_t i = 0; i < n; i++) {
        if (items[i].kind != JV_STRING) {
            jx_fail(x, "expected a string argument, not %s", jv_type_name(items[i]));
            break;
        }
        struct jv_str s = self.str, w = items[i].str;
        /* A text longer than ours cannot match; the address is then only computed, not read. */
        const char *from = name.s[0] == 's' ? s.s : s.s + s.n - (w.n <= s.n ? w.n : 0);
        if (w.n <= s.n && memcmp(from, w.s, w.n) == 0)
            return jv_bool(true);
    }
    return jv_bool(false);
}

/* upper, lower, title and capitalize, told apart by their first letter. The result may be longer
 * than self, see text_case(). */
static struct jv method_case(struct jx *x, struct jv self, struct jv_str name,
                             const struct jinja_args *args)
{
    (void)args;
    struct buf b;
    buf_init(&b, x->arena->max);
    text_case(&b, self.str,
              name.s[0] == 'u'   ? TEXT_UPPER
              : name.s[0] == 'l' ? TEXT_LOWER
              : name.s[0] == 't' ? TEXT_TITLE
                                 : TEXT_CAPITALIZE);
    return jv_from_buf(x, &b);
}

/* Not the filter: "old" and "new" have no keywords here, as in Python. */
static struct jv method_replace(struct jx *x, struct jv self, struct jv_str name,
                                const struct jinja_args *args)
{
    (void)name;
    /* Both must be strings; a third argument limits the number of replacements. */
    struct jv_str from = want_text(x, args, 0), to = want_text(x, args, 1);
    if (x->failed)
        return jv_undefined(NULL);
    return jinja_replace(x, self.str, from, to, int_arg(args, 2, "count", -1));
}

/* find and rfind; -1 when nothing is found. Positions are in code points, as Python counts: the
 * length of the text before the match. The bounds start and end are not supported. */
static struct jv method_find(struct jx *x, struct jv self, struct jv_str name,
                             const struct jinja_args *args)
{
    struct jv_str what = want_text(x, args, 0);
    if (!jx_step(x, text_find_steps(self.str, what)))
        return jv_int(-1);
    size_t at = name.s[0] == 'r' ? text_rfind(self.str, what) : text_find(self.str, what, 0);
    if (at == SIZE_MAX)
        return jv_int(-1);
    return jv_int((int64_t)text_length((struct jv_str){ self.str.s, at }));
}

/* Occurrences that do not overlap. */
static struct jv method_count(struct jx *x, struct jv self, struct jv_str name,
                              const struct jinja_args *args)
{
    (void)name;
    int64_t count = 0;
    struct jv_str what = want_text(x, args, 0);
    /* An empty text occurs before each character and at the end. */
    if (what.n == 0)
        return jv_int((int64_t)text_length(self.str) + 1);
    jx_step(x, text_find_steps(self.str, what));
    for (size_t at = 0; what.n > 0 && jx_step(x, 1); at += what.n, count++) {
        at = text_find(self.str, what, at);
        if (at == SIZE_MAX)
            break;
    }
    return jv_int(count);
}

/* str.join(): the text is the separator, the argument what is joined, which may be anything that
 * can be iterated. */
static struct jv method_join(struct jx *x, struct jv self, struct jv_str name,
                             const struct jinja_args *args)
{
    (void)name;
    struct jv list = jv_iterate(x, jinja_arg(args, 0, NULL, jv_undefined("argument")));
    /* Unlike the filter, the method takes strings only. */
    for (size_t i = 0; !x->failed && i < list.list->n; i++)
        if (list.list->items[i].kind != JV_STRING)
            jx_fail(x, "join: item %zu is not a string but %s", i,
                    jv_type_name(list.list->items[i]));
    return x->failed ? jv_undefined(NULL) : jinja_join(x, self.str, list);
}

/* The text without a prefix or suffix; as it is when it has none. Removed once, unlike strip(). */
static struct jv method_remove(struct jx *x, struct jv self, struct jv_str name,
                               const struct jinja_args *args)
{
    struct jv_str s = self.str, w = want_text(x, args, 0);
    bool prefix = jinja_same(name, "removeprefix");
    /* The address of a suffix is computed only when it fits. */
    if (w.n > s.n || memcmp(prefix ? s.s : s.s + s.n - w.n, w.s, w.n) != 0)
        return self;
    return jv_strn(prefix ? s.s + w.n : s.s, s.n - w.n);
}

/* A tuple of three: before, separator, after, at the first (rpartition: last) occurrence. Not
 * found: the whole text is first (partition) or last (rpartition), with two empty texts. */
static struct jv method_partition(struct jx *x, struct jv self, struct jv_str name,
                                  const struct jinja_args *args)
{
    bool right = name.s[0] == 'r';
    struct jv_str s = self.str, sep = want_text(x, args, 0);
    size_t at = SIZE_MAX;
    if (jx_step(x, text_find_steps(s, sep)))
        at = right ? text_rfind(s, sep) : text_find(s, sep, 0);
    struct jv out = jv_list_new(x);
    if (x->failed)
        return out;
    out.kind = JV_TUPLE;
    if (at == SIZE_MAX) {
        jv_push(x, out, right ? jv_str("") : self);
        jv_push(x, out, jv_str(""));
        jv_push(x, out, right ? self : jv_str(""));
        return out;
    }
    jv_push(x, out, jv_strn(s.s, at));
    jv_push(x, out, jv_strn(sep.s, sep.n));
    jv_push(x, out, jv_strn(s.s + at + sep.n, s.n - at - sep.n));
    return out;
}

/* True for a text of at least one character, all of the class.
 *
 * Letters are the categories L*, as in Python. isdigit, isdecimal and isnumeric are one test, the
 * category Nd: Python's isdigit() also accepts superscripts, and its isnumeric() fractions. */
static struct jv method_class(struct jx *x, struct jv self, struct jv_str name,
                              const struct jinja_args *args)
{
    (void)args;
    for (size_t i = 0; i < self.str.n && jx_step(x, 1);) {
        uint32_t cp = 0;
        int n = utf8_decode(self.str.s + i, self.str.n - i, &cp);
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        bool letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
        bool digit = c == UTF8PROC_CATEGORY_ND;
        bool belongs = jinja_same(name, "isspace")   ? text_is_space(cp)
                       : jinja_same(name, "isalpha") ? letter
                       : jinja_same(name, "isalnum") ? letter || digit
                                                     : digit;
        if (n == 0 || !belongs)
            return jv_bool(false);
        i += (size_t)n;
    }
    return jv_bool(self.str.n > 0);
}

/* items, keys and values: views, which loops may walk but subscripts may not enter. A view is a
 * snapshot here; as dicts never change, that cannot be told from Python's live view. */
static struct jv method_items(struct jx *x, struct jv self, struct jv_str name,
                              const struct jinja_args *args)
{
    (void)args;
    struct jv out = jv_list_new(x);
    if (!x->failed)
        out.list->view = name.s[0] == 'i'   ? "dict_items"
                         : name.s[0] == 'k' ? "dict_keys"
                                            : "dict_values";
    for (size_t i = 0; i < self.dict->n && jx_step(x, 1); i++) {
        struct jv_pair *p = &self.dict->pairs[i];
        if (name.s[0] != 'i') {
            jv_push(x, out, name.s[0] == 'k' ? p->key : p->value);
            continue;
        }
        /* A tuple, as in Python; "for k, v in d.items()" unpacks it. */
        struct jv pair = jv_list_new(x);
        if (x->failed)
            break;
        pair.kind = JV_TUPLE;
        jv_push(x, pair, p->key);
        jv_push(x, pair, p->value);
        jv_push(x, out, pair);
    }
    return out;
}

/* dict.get(key) and dict.get(key, default). */
static struct jv method_get(struct jx *x, struct jv self, struct jv_str name,
                            const struct jinja_args *args)
{
    (void)name;
    (void)x;
    /* None when absent, not undefined: {{ d.get('x') }} prints None. */
    struct jv *v = jv_find(self, jinja_arg(args, 0, NULL, jv_none()));
    return v ? *v : jinja_arg(args, 1, "default", jv_none());
}

static struct jv method_copy(struct jx *x, struct jv self, struct jv_str name,
                             const struct jinja_args *args)
{
    (void)name;
    (void)args;
    (void)x;
    return self; /* values never change, so a copy cannot be told apart */
}

/* list.index() and list.count(). index() fails where count() is 0, as Python raises ValueError. */
static struct jv method_index(struct jx *x, struct jv self, struct jv_str name,
                              const struct jinja_args *args)
{
    struct jv what = jinja_arg(args, 0, NULL, jv_undefined("argument"));
    int64_t count = 0;
    for (size_t i = 0; i < self.list->n && jx_step(x, 1); i++) {
        if (!jv_equal_steps(x, self.list->items[i], what))
            continue;
        /* index wants the first match only, count all of them. */
        if (name.s[0] == 'i')
            return jv_int((int64_t)i);
        count++;
    }
    if (name.s[0] == 'i')
        jx_fail(x, "value is not in list");
    return jv_int(count);
}

/* A method refuses more positional arguments than it knows, so that none is silently ignored.
 * Entries with one function are told apart by name, which that function receives. */
struct method {
    const char *name;
    method_fn *fn;
    size_t args; /* at most */
};

/* The methods of str that chat templates use; each table ends with a NULL name. */
static const struct method string_methods[] = { { "split", method_split, 2 },
                                                { "rsplit", method_split, 2 },
                                                { "splitlines", method_splitlines, 1 },
                                                { "strip", method_strip, 1 },
                                                { "lstrip", method_strip, 1 },
                                                { "rstrip", method_strip, 1 },
                                                { "startswith", method_edge, 1 },
                                                { "endswith", method_edge, 1 },
                                                { "lower", method_case, 0 },
                                                { "upper", method_case, 0 },
                                                { "title", method_case, 0 },
                                                { "capitalize", method_case, 0 },
                                                { "replace", method_replace, 3 },
                                                { "find", method_find, 1 },
                                                { "rfind", method_find, 1 },
                                                { "count", method_count, 1 },
                                                { "join", method_join, 1 },
                                                { "removeprefix", method_remove, 1 },
                                                { "removesuffix", method_remove, 1 },
                                                { "partition", method_partition, 1 },
                                                { "rpartition", method_partition, 1 },
                                                { "isdigit", method_class, 0 },
                                                { "isnumeric", method_class, 0 },
                                                { "isdecimal", method_class, 0 },
                                                { "isalpha", method_class, 0 },
                                                { "isalnum", method_class, 0 },
                                                { "isspace", method_class, 0 },
                                                { NULL, NULL, 0 } };
static const struct method dict_methods[] = {
    { "items", method_items, 0 }, { "keys", method_items, 0 }, { "values", method_items, 0 },
    { "get", method_get, 2 },     { "copy", method_copy, 0 },  { NULL, NULL, 0 }
};
/* Tuples have them as well; append() and the like would change the value and do not exist, as
 * Jinja's ImmutableSandboxedEnvironment forbids them. */
static const struct method list_methods[] = { { "index", method_index, 1 },
                                              { "count", method_index, 1 },
                                              { "copy", method_copy, 0 },
                                              { NULL, NULL, 0 } };

/* Methods by type; views and numbers have none. Namespaces and `loop` neither, so that all their
 * names are free for entries; loop.cycle() and loop.changed() do not exist. */
static const struct method *find_method(struct jv v, struct jv_str name)
{
    const struct method *m = v.kind == JV_STRING              ? string_methods
                             : v.kind == JV_DICT              ? dict_methods
                             : jv_is_seq(v) && !jv_is_view(v) ? list_methods
                                                              : NULL;
    for (; m && m->name; m++)
        if (jinja_same(name, m->name))
            return m;
    return NULL;
}

/* For "x.name": as in the reference a method wins over an entry of that name, so {"items": 1}.items
 * is the method; a subscript reaches the entry. */
bool jinja_has_method(struct jv v, struct jv_str name)
{
    return find_method(v, name) != NULL;
}

/* Every method may read all of its text: one step for 64 bytes. m is never NULL for a method that
 * jinja_attr() bound; C code that names a method gets undefined if self has another type. */
struct jv jinja_call_method(struct jx *x, struct jv self, struct jv_str name,
                            const struct jinja_args *args)
{
    const struct method *m = find_method(self, name);
    size_t size = self.kind == JV_STRING ? self.str.n : 0;
    if (!m || !jx_step(x, 1 + size / 64))
        return jv_undefined(NULL);
    if (args->n > m->args) {
        jx_fail(x, "%s takes at most %zu arguments here", m->name, m->args);
        return jv_undefined(NULL);
    }
    return m->fn(x, self, name, args);
}
