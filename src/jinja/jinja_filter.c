/* jinja_filter.c - the filters of chat templates.
 *
 * One table entry per filter; a filter takes its value and arguments and returns a new
 * value.  tojson writes as transformers configures it: non-ASCII stays, no HTML escapes. */
#include "base/array.h"
#include "jinja/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* name: several filters share a function and differ by their name. v and the arguments are
 * evaluated; v may be undefined, and each filter decides whether that is an error. */
typedef struct jv filter_fn(struct jinja_run *r, struct jv_str name, struct jv v,
                            const struct jinja_args *a);

/* The order of the arguments is that of transformers' own tojson, which replaces Jinja's: that one
 * escapes <, >, & and ' for HTML, and a prompt must not contain such escapes. */
static struct jv filter_tojson(struct jinja_run *r, struct jv_str name, struct jv v,
                               const struct jinja_args *a)
{
    (void)name;
    struct jv_dumps how = { .indent = -1 };
    struct jv ascii = jinja_arg(a, 0, "ensure_ascii", jv_bool(false));
    struct jv indent = jinja_arg(a, 1, "indent", jv_none());
    struct jv seps = jinja_arg(a, 2, "separators", jv_none());
    how.ascii = jv_truth(ascii);
    how.sort_keys = jv_truth(jinja_arg(a, 3, "sort_keys", jv_bool(false)));
    /* An indent from the template is limited: it multiplies the output. */
    if (indent.kind == JV_INT)
        how.indent = indent.i < 0 ? 0 : indent.i > 64 ? 64 : (int)indent.i;
    if (jv_is_seq(seps) && seps.list->n == 2 && seps.list->items[0].kind == JV_STRING &&
        seps.list->items[1].kind == JV_STRING) {
        struct jv item = seps.list->items[0], key = seps.list->items[1];
        how.item_sep = arena_strndup(r->x->arena, item.str.s, item.str.n);
        how.key_sep = arena_strndup(r->x->arena, key.str.s, key.str.n);
    }
    struct buf b;
    buf_init(&b, r->x->arena->max);
    jv_dump(r->x, &b, v, &how);
    return jv_from_buf(r->x, &b);
}

/* Also "safe", since nothing is escaped here. */
static struct jv filter_string(struct jinja_run *r, struct jv_str name, struct jv v,
                               const struct jinja_args *a)
{
    (void)name;
    (void)a;
    return jv_to_str(r->x, v);
}

/* Filters that are a method of the text: trim, lower, upper, capitalize. Unlike the method a filter
 * accepts any value and takes it as text: 1|upper is "1". */
static struct jv filter_text(struct jinja_run *r, struct jv_str name, struct jv v,
                             const struct jinja_args *a)
{
    struct jv text = jv_to_str(r->x, v);
    if (jinja_same(name, "trim"))
        name = (struct jv_str){ "strip", 5 };
    return jinja_call_method(r->x, text, name, a);
}

/* do_title(): unlike the method it begins words only after white space, dashes and opening
 * brackets, so that "they're" stays one word. */
static struct jv filter_title(struct jinja_run *r, struct jv_str name, struct jv v,
                              const struct jinja_args *a)
{
    (void)name;
    (void)a;
    struct jv text = jv_to_str(r->x, v);
    struct buf b;
    buf_init(&b, r->x->arena->max);
    if (jx_step(r->x, 1 + text.str.n / 64))
        text_case(&b, text.str, TEXT_WORDS);
    return jv_from_buf(r->x, &b);
}

/* The length of a text in characters, not bytes; of a dict, its number of keys. */
static struct jv filter_length(struct jinja_run *r, struct jv_str name, struct jv v,
                               const struct jinja_args *a)
{
    (void)name;
    (void)a;
    if (v.kind == JV_STRING)
        return jx_step(r->x, 1 + v.str.n / 64) ? jv_int((int64_t)text_length(v.str)) : v;
    if (jv_is_seq(v))
        return jv_int((int64_t)v.list->n);
    if (v.kind == JV_DICT)
        return jv_int((int64_t)v.dict->n);
    /* Undefined has length 0, so that "if x|length" works without a test. */
    if (v.kind != JV_UNDEFINED)
        jx_fail(r->x, "object of type '%s' has no length", jv_type_name(v));
    return jv_int(0);
}

/* "default" fills in for undefined only; with a second argument that is true, for anything false.
 */
static struct jv filter_default(struct jinja_run *r, struct jv_str name, struct jv v,
                                const struct jinja_args *a)
{
    (void)r;
    (void)name;
    bool falsy = jv_truth(jinja_arg(a, 1, "boolean", jv_bool(false)));
    if (v.kind == JV_UNDEFINED || (falsy && !jv_truth(v)))
        return jinja_arg(a, 0, "default_value", jv_str(""));
    return v;
}

/* What an attribute argument names: the parts of "a.b" one after the other, items before
 * attributes, as environment.getitem() looks them up: map(attribute="items") finds the key "items"
 * where x.items is the method. `missing` (undefined: none) stands in for what does not exist. */
static struct jv attribute_of(struct jinja_run *r, struct jv v, struct jv_str path,
                              struct jv missing)
{
    const struct jv_str dot = { ".", 1 };
    while (!r->x->failed) {
        size_t at = text_find(path, dot, 0);
        struct jv_str part = { path.s, at == SIZE_MAX ? path.n : at };
        /* The reference reads such a part as an index, which no chat template needs. */
        if (part.n > 0 && strspn(part.s, "0123456789") >= part.n)
            jx_fail(r->x, "an attribute that is a number is not supported");
        struct jv *item = jv_find(v, jv_strn(part.s, part.n));
        v = item ? *item : jinja_attr(r, v, part);
        if (v.kind == JV_UNDEFINED && missing.kind != JV_UNDEFINED)
            v = missing;
        if (at == SIZE_MAX)
            break;
        path.s += at + 1;
        path.n -= at + 1;
    }
    return v;
}

/* The attribute is taken from each item before joining, as in the reference. Overwriting the items
 * is safe, because jv_iterate() made this list. */
static struct jv filter_join(struct jinja_run *r, struct jv_str name, struct jv v,
                             const struct jinja_args *a)
{
    (void)name;
    struct jv sep = jv_to_str(r->x, jinja_arg(a, 0, "d", jv_str("")));
    struct jv attr = jinja_arg(a, 1, "attribute", jv_none());
    struct jv list = jv_iterate(r->x, v);
    for (size_t i = 0; attr.kind == JV_STRING && !r->x->failed && i < list.list->n; i++)
        list.list->items[i] = attribute_of(r, list.list->items[i], attr.str, jv_undefined(NULL));
    return r->x->failed ? jv_undefined(NULL) : jinja_join(r->x, sep.str, list);
}

/* first and last; of an empty sequence they are undefined, not an error. Of a dict they are keys,
 * of a text characters. */
static struct jv filter_edge(struct jinja_run *r, struct jv_str name, struct jv v,
                             const struct jinja_args *a)
{
    (void)a;
    struct jv list = jv_iterate(r->x, v);
    if (r->x->failed || list.list->n == 0)
        return jv_undefined("item of an empty sequence");
    return list.list->items[name.s[0] == 'f' ? 0 : list.list->n - 1];
}

/* list and reverse. The reverse of a text is a text; that of anything else is a list here and an
 * iterator in the reference. */
static struct jv filter_list(struct jinja_run *r, struct jv_str name, struct jv v,
                             const struct jinja_args *a)
{
    (void)a;
    struct jv list = jv_iterate(r->x, v);
    if (r->x->failed || name.s[0] != 'r')
        return list;
    struct jv out = jv_list_new(r->x); /* reverse */
    for (size_t i = list.list->n; i-- > 0 && jx_step(r->x, 1);)
        jv_push(r->x, out, list.list->items[i]);
    return v.kind == JV_STRING ? jinja_join(r->x, (struct jv_str){ "", 0 }, out) : out;
}

/* Every argument is taken as text, as the reference does. */
static struct jv filter_replace(struct jinja_run *r, struct jv_str name, struct jv v,
                                const struct jinja_args *a)
{
    (void)name;
    struct jv s = jv_to_str(r->x, v), count = jinja_arg(a, 2, "count", jv_int(-1));
    struct jv from = jv_to_str(r->x, jinja_arg(a, 0, "old", jv_str("")));
    struct jv to = jv_to_str(r->x, jinja_arg(a, 1, "new", jv_str("")));
    if (r->x->failed)
        return s;
    return jinja_replace(r->x, s.str, from.str, to.str, count.kind == JV_INT ? count.i : -1);
}

/* A list of pairs rather than the view of the method, so that it can be subscripted. */
static struct jv filter_items(struct jinja_run *r, struct jv_str name, struct jv v,
                              const struct jinja_args *a)
{
    /* As in the reference: the items of undefined are none. */
    if (v.kind == JV_UNDEFINED)
        return jv_list_new(r->x);
    if (v.kind != JV_DICT) {
        jx_fail(r->x, "can only get item pairs from a mapping");
        return v;
    }
    (void)name;
    return jv_iterate(r->x, jinja_call_method(r->x, v, (struct jv_str){ "items", 5 }, a));
}

/* int and float, as do_int() and do_float(): text is parsed, what cannot be read gives the default.
 * An undefined value fails instead, since int() of it raises an error that they do not catch. */
static struct jv filter_number(struct jinja_run *r, struct jv_str name, struct jv v,
                               const struct jinja_args *a)
{
    bool real = name.s[0] == 'f';
    struct jv missing = jinja_arg(a, 0, "default", real ? jv_float(0) : jv_int(0));
    struct jv base = jinja_arg(a, 1, "base", jv_int(10));
    if (v.kind == JV_UNDEFINED)
        return jinja_fail_undefined(r->x, v);
    if (base.kind != JV_INT || base.i != 10)
        jx_fail(r->x, "only base 10 is supported");
    if (v.kind == JV_STRING || (real && v.kind == JV_BIG))
        v = jinja_parse_number(r->x, v.str, real);
    if (real)
        return jv_is_number(v) ? jv_float(jv_number(v)) : missing;
    double f = jv_number(v);
    if (v.kind == JV_BIG || v.kind == JV_INT)
        return v;
    if (v.kind == JV_BOOL)
        return jv_int(v.b);
    if (v.kind != JV_FLOAT || !isfinite(f))
        return missing;
    if (f > -9e18 && f < 9e18)
        return jv_int((int64_t)f);     /* toward zero, as int() does */
    jx_fail(r->x, "integer overflow"); /* rather than another number */
    return missing;
}

/* The reference rounds to 0 digits by default and always gives a float for "ceil" and "floor". A
 * precision that is no integer becomes 99, which jinja_round() refuses. */
static struct jv filter_round(struct jinja_run *r, struct jv_str name, struct jv v,
                              const struct jinja_args *a)
{
    (void)name;
    struct jv digits = jinja_arg(a, 0, "precision", jv_int(0));
    struct jv method = jinja_arg(a, 1, "method", jv_str("common"));
    return jinja_round(r->x, v, digits.kind == JV_INT ? digits.i : 99, method);
}

/* -INT64_MIN has no value: an error, not a wrong number. */
static struct jv filter_abs(struct jinja_run *r, struct jv_str name, struct jv v,
                            const struct jinja_args *a)
{
    (void)name;
    (void)a;
    if (v.kind == JV_FLOAT)
        return jv_float(fabs(v.f));
    if (v.kind == JV_INT && v.i != INT64_MIN)
        return jv_int(v.i < 0 ? -v.i : v.i);
    jx_fail(r->x, "abs needs a number");
    return v;
}

/* indent(width=4, first=false, blank=false).  As do_indent() it appends a newline before splitting
 * into lines: an empty text then has one line to indent, and a newline at the end is kept.  Line
 * breaks of all kinds become "\n". */
static struct jv filter_indent(struct jinja_run *r, struct jv_str name, struct jv v,
                               const struct jinja_args *a)
{
    (void)name;
    enum { WIDTH_MAX = 4096 }; /* of the spaces that are allocated; a string may be longer */
    struct jv width = jinja_arg(a, 0, "width", jv_int(4));
    struct jv_str pad = width.str; /* a width that is a string is the indentation itself */
    if (width.kind != JV_STRING) {
        char *spaces = jx_alloc(r->x, WIDTH_MAX);
        if (width.kind != JV_INT || width.i > WIDTH_MAX || !spaces) {
            jx_fail(r->x, "indent needs a width of at most %d, or a string", WIDTH_MAX);
            return jv_undefined(NULL);
        }
        memset(spaces, ' ', WIDTH_MAX);
        pad = (struct jv_str){ spaces, width.i > 0 ? (size_t)width.i : 0 };
    }
    struct jv text = jinja_binary(r->x, OP_CONCAT, v, jv_str("\n"));
    bool first = jv_truth(jinja_arg(a, 1, "first", jv_bool(false)));
    bool blank = jv_truth(jinja_arg(a, 2, "blank", jv_bool(false)));
    if (r->x->failed)
        return jv_undefined(NULL);
    struct jv lines = jinja_splitlines(r->x, text.str, false);
    struct buf b;
    buf_init(&b, r->x->arena->max);
    for (size_t i = 0; !r->x->failed && i < lines.list->n && buf_ok(&b); i++) {
        struct jv_str line = lines.list->items[i].str;
        if (i > 0)
            buf_putc(&b, '\n');
        if (i == 0 ? first : blank || line.n > 0)
            buf_append(&b, pad.s, pad.n);
        buf_append(&b, line.s, line.n);
    }
    return jv_from_buf(r->x, &b);
}

/* ---- over sequences ---- */

/* The arguments for an inner filter or test: those from number `from` on, which the outer filter
 * did not use itself, and all keywords. Borrowed from a. */
static void rest_args(const struct jinja_args *a, size_t from, struct jinja_args *out)
{
    *out = *a;
    out->items = a->n > from ? a->items + from : NULL;
    out->n = a->n > from ? a->n - from : 0;
}

/* map("upper"), map(attribute="role"): a filter by name, with further arguments, or an attribute.
 * attribute and default are keywords only: as a position, any argument could be taken for one. */
static struct jv filter_map(struct jinja_run *r, struct jv_str name, struct jv v,
                            const struct jinja_args *a)
{
    (void)name;
    struct jv attr = jinja_arg(a, KEYWORD_ONLY, "attribute", jv_none());
    struct jv missing = jinja_arg(a, KEYWORD_ONLY, "default", jv_undefined(NULL));
    struct jv filter = jinja_arg(a, 0, NULL, jv_none());
    struct jv list = jv_iterate(r->x, v), out = jv_list_new(r->x);
    struct jinja_args rest;
    rest_args(a, 1, &rest);
    for (size_t i = 0; !r->x->failed && i < list.list->n; i++) {
        struct jv item = list.list->items[i];
        if (attr.kind == JV_STRING) {
            item = attribute_of(r, item, attr.str, missing);
        } else if (filter.kind == JV_STRING) {
            item = jinja_filter(r, filter.str, item, &rest);
        } else {
            jx_fail(r->x, "map needs a filter or an attribute");
        }
        jv_push(r->x, out, item);
    }
    return out;
}

/* select, reject, selectattr, rejectattr: the test's name comes after the attribute. The four are
 * told apart by their first letter and their length ("select" and "reject" have 6). */
static struct jv filter_select(struct jinja_run *r, struct jv_str name, struct jv v,
                               const struct jinja_args *a)
{
    bool reject = name.s[0] == 'r', by_attr = name.n > 6;
    size_t skip = by_attr ? 1 : 0;
    struct jv attr = by_attr ? jinja_arg(a, 0, NULL, jv_none()) : jv_none();
    struct jv test = jinja_arg(a, skip, NULL, jv_none());
    struct jv list = jv_iterate(r->x, v), out = jv_list_new(r->x);
    struct jinja_args rest;
    rest_args(a, skip + 1, &rest);
    if (by_attr && attr.kind != JV_STRING)
        jx_fail(r->x, "expected the name of an attribute");
    for (size_t i = 0; !r->x->failed && i < list.list->n; i++) {
        struct jv item = list.list->items[i];
        struct jv subject = by_attr ? attribute_of(r, item, attr.str, jv_undefined(NULL)) : item;
        /* Without a test, the truth of the item decides. */
        bool pass =
            test.kind == JV_STRING ? jinja_test(r, test.str, subject, &rest) : jv_truth(subject);
        if (pass != reject)
            jv_push(r->x, out, item);
    }
    return out;
}

/* What is sorted: the key is computed once per item, `at` is where the item stood. */
struct sort_item {
    struct jv key, value;
    size_t at;
};

/* Merge sort of v[0..n) with tmp of the same size. Stable, as Python's sort; qsort() is not, and a
 * comparison that fails could not end it. sign -1 sorts downward and leaves equal items in their
 * order, which is what reverse=True means in Python. Depth of recursion: log2(n).
 *
 * A right item goes first only if it is strictly less. After a failure the rest is copied as it is,
 * so that v still holds each item once. */
static void merge_sort(struct jx *x, struct sort_item *v, struct sort_item *tmp, size_t n, int sign)
{
    if (n < 2 || !jx_step(x, n))
        return;
    size_t half = n / 2, i = 0, j = half, k = 0;
    merge_sort(x, v, tmp, half, sign);
    merge_sort(x, v + half, tmp, n - half, sign);
    while (i < half && j < n && !x->failed)
        tmp[k++] = sign * jv_compare(x, v[j].key, v[i].key) < 0 ? v[j++] : v[i++];
    while (i < half)
        tmp[k++] = v[i++];
    while (j < n)
        tmp[k++] = v[j++];
    memcpy(v, tmp, n * sizeof(*v));
}

/* Sorting and unique ignore case unless told otherwise: ignore_case() of the reference, which
 * lowers text and leaves other values alone. */
static struct jv fold_case(struct jx *x, struct jv key, bool sensitive)
{
    struct jinja_args none = { .kwargs = jv_undefined(NULL) };
    if (sensitive || key.kind != JV_STRING)
        return key;
    return jinja_call_method(x, key, (struct jv_str){ "lower", 5 }, &none);
}

/* Decorate, sort, undecorate. pair_index: sort (key, value) pairs by one of the two; -1: by the
 * item. Keys are computed once per item. */
static struct jv sort_values(struct jinja_run *r, struct jv list, struct jv attr, bool sensitive,
                             bool reverse, int pair_index)
{
    size_t n = r->x->failed ? 0 : list.list->n;
    struct jv out = jv_list_new(r->x);
    struct sort_item *v = n ? arena_array(r->x->arena, n * 2, sizeof(*v)) : NULL;
    if (n && !v)
        jx_nomem(r->x);
    for (size_t i = 0; i < n && !r->x->failed; i++) {
        struct jv item = list.list->items[i], key = item;
        if (attr.kind == JV_STRING)
            key = attribute_of(r, item, attr.str, jv_undefined(NULL));
        else if (pair_index >= 0)
            key = item.list->items[pair_index];
        v[i] = (struct sort_item){ fold_case(r->x, key, sensitive), item, i };
    }
    if (!r->x->failed && n)
        merge_sort(r->x, v, v + n, n, reverse ? -1 : 1);
    for (size_t i = 0; i < n && !r->x->failed; i++)
        jv_push(r->x, out, v[i].value);
    return out;
}

/* sort(reverse, case_sensitive, attribute). Stable; keys of unlike types are an error, as in
 * Python 3. The attribute is one path: the reference also takes several with commas. */
static struct jv filter_sort(struct jinja_run *r, struct jv_str name, struct jv v,
                             const struct jinja_args *a)
{
    (void)name;
    bool reverse = jv_truth(jinja_arg(a, 0, "reverse", jv_bool(false)));
    bool sensitive = jv_truth(jinja_arg(a, 1, "case_sensitive", jv_bool(false)));
    return sort_values(r, jv_iterate(r->x, v), jinja_arg(a, 2, "attribute", jv_none()), sensitive,
                       reverse, -1);
}

/* dictsort(case_sensitive, by, reverse): the pairs of a dict, sorted by their keys or values. Pairs
 * that are equal in that keep the order of the dict. */
static struct jv filter_dictsort(struct jinja_run *r, struct jv_str name, struct jv v,
                                 const struct jinja_args *a)
{
    bool sensitive = jv_truth(jinja_arg(a, 0, "case_sensitive", jv_bool(false)));
    bool by_value = jv_is(jinja_arg(a, 1, "by", jv_str("key")), "value");
    bool reverse = jv_truth(jinja_arg(a, 2, "reverse", jv_bool(false)));
    struct jinja_args none = { .kwargs = jv_undefined(NULL) };
    if (v.kind == JV_UNDEFINED)
        return jinja_fail_undefined(r->x, v);
    return sort_values(r, filter_items(r, name, v, &none), jv_none(), sensitive, reverse,
                       by_value ? 1 : 0);
}

/* max and min by sorting: of equal items the first wins, as in Python. Case is always ignored, the
 * argument case_sensitive (number 0) is not read. */
static struct jv filter_extreme(struct jinja_run *r, struct jv_str name, struct jv v,
                                const struct jinja_args *a)
{
    bool max = jinja_same(name, "max");
    struct jv attr = jinja_arg(a, 1, "attribute", jv_none());
    struct jv list = sort_values(r, jv_iterate(r->x, v), attr, false, max, -1);
    return r->x->failed || list.list->n == 0 ? jv_undefined("item of an empty sequence")
                                             : list.list->items[0];
}

/* With "+" of templates, so that lists can be summed, too, given a start of their kind. So can
 * text, which Python's sum() refuses. */
static struct jv filter_sum(struct jinja_run *r, struct jv_str name, struct jv v,
                            const struct jinja_args *a)
{
    (void)name;
    struct jv attr = jinja_arg(a, 0, "attribute", jv_none());
    struct jv total = jinja_arg(a, 1, "start", jv_int(0)), list = jv_iterate(r->x, v);
    for (size_t i = 0; !r->x->failed && i < list.list->n; i++) {
        struct jv item = list.list->items[i];
        if (attr.kind == JV_STRING)
            item = attribute_of(r, item, attr.str, jv_undefined(NULL));
        total = jinja_binary(r->x, OP_ADD, total, item);
    }
    return total;
}

/* unique(case_sensitive): remember seen items as keys of a dict, so that a list of texts takes
 * linear time. The reference also knows an attribute. */
static struct jv filter_unique(struct jinja_run *r, struct jv_str name, struct jv v,
                               const struct jinja_args *a)
{
    (void)name;
    bool sensitive = jv_truth(jinja_arg(a, 0, "case_sensitive", jv_bool(false)));
    struct jv list = jv_iterate(r->x, v), out = jv_list_new(r->x), seen = jv_dict_new(r->x);
    for (size_t i = 0; !r->x->failed && i < list.list->n; i++) {
        struct jv key = fold_case(r->x, list.list->items[i], sensitive);
        if (jv_is_seq(key) || jv_is_map(key))
            key = jv_to_str(r->x, key); /* keys are scalars, so that looking one up is cheap */
        /* The first of equal items stays, in the order of the sequence. */
        if (jv_find(seen, key))
            continue;
        jv_put(r->x, seen, key, jv_bool(true));
        jv_push(r->x, out, list.list->items[i]);
    }
    return out;
}

/* The filters that chat templates use, with the aliases of the reference. */
static const struct {
    const char *name;
    filter_fn *fn;
} filters[] = {
    { "tojson", filter_tojson },     { "string", filter_string },     { "safe", filter_string },
    { "trim", filter_text },         { "lower", filter_text },        { "upper", filter_text },
    { "title", filter_title },       { "capitalize", filter_text },   { "length", filter_length },
    { "count", filter_length },      { "default", filter_default },   { "d", filter_default },
    { "join", filter_join },         { "first", filter_edge },        { "last", filter_edge },
    { "list", filter_list },         { "reverse", filter_list },      { "replace", filter_replace },
    { "items", filter_items },       { "int", filter_number },        { "float", filter_number },
    { "round", filter_round },       { "abs", filter_abs },           { "indent", filter_indent },
    { "map", filter_map },           { "select", filter_select },     { "reject", filter_select },
    { "selectattr", filter_select }, { "rejectattr", filter_select }, { "sort", filter_sort },
    { "dictsort", filter_dictsort }, { "max", filter_extreme },       { "min", filter_extreme },
    { "sum", filter_sum },           { "unique", filter_unique },
};

/* A linear search over 35 names costs less than evaluating most arguments. The names live in the
 * template, so an unknown filter is found when it runs, not when the template is parsed. */
struct jv jinja_filter(struct jinja_run *r, struct jv_str name, struct jv v,
                       const struct jinja_args *args)
{
    size_t i = 0;
    while (i < ARRAY_LEN(filters) && !jinja_same(name, filters[i].name))
        i++;
    if (i < ARRAY_LEN(filters)) {
        struct jv out = jv_undefined(NULL);
        /* map('map', 'map', ...) calls itself once per argument. */
        if (++r->x->depth > EVAL_DEPTH_MAX)
            jx_fail(r->x, "nested too deeply");
        else if (jx_step(r->x, 1))
            out = filters[i].fn(r, name, v, args);
        r->x->depth--;
        return out;
    }
    jx_fail(r->x, "no filter named '%.*s'", (int)(name.n < 40 ? name.n : 40), name.s);
    return jv_undefined(NULL);
}
