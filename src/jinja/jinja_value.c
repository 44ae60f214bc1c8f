/* jinja_value.c - values: construction, truth, equality, order, printing.
 *
 * The rules are Python's.  Dicts keep insertion order and gain a hash index when they
 * outgrow a linear scan.  Thread: the one that owns the jx. */
#include "jinja/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include "base/err.h"
#include "base/map.h"
#include "base/utf8.h"
#include "json/json.h"

/* Dicts with fewer entries have no index and are searched from the start: most have a handful. */
enum { INDEX_FROM = 12 };

void jx_init(struct jx *x, struct arena *arena, uint64_t max_steps, tinker_error *err)
{
    *x = (struct jx){ .arena = arena, .err = err, .max_steps = max_steps };
}

/* The first failure is the cause; those that follow from it are dropped. Every failure but a lack
 * of memory is TINKER_EINVAL: the template, or its data, is at fault. */
bool jx_fail(struct jx *x, const char *fmt, ...)
{
    if (x->failed)
        return false;
    x->failed = true;
    /* Cut at 300 bytes: a message may quote text of the template, which may be long. */
    char message[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    if (x->line > 0)
        err_set(x->err, TINKER_EINVAL, "line %d: %s", x->line, message);
    else
        err_set(x->err, TINKER_EINVAL, "%s", message);
    return false;
}

/* Also when the limit of memory is reached: the template asked for too much. */
bool jx_nomem(struct jx *x)
{
    if (!x->failed)
        err_nomem(x->err, "rendering text");
    x->failed = true;
    return false;
}

/* Steps stand for time: one per node, item or 64 to 256 bytes of text, whichever the operation
 * touches. The counter never overflows, as the second test catches a wrap. */
bool jx_step(struct jx *x, uint64_t n)
{
    if (x->failed)
        return false;
    x->steps += n;
    if (x->steps > x->max_steps || x->steps < n)
        return jx_fail(x, "over the limit of %llu steps", (unsigned long long)x->max_steps);
    return true;
}

/* Everything lives in the arena of one rendering; nothing is freed before its end. */
void *jx_alloc(struct jx *x, size_t n)
{
    void *p = x->failed ? NULL : arena_alloc(x->arena, n);
    if (!p)
        jx_nomem(x);
    return p;
}

/* ---- making ---- */

/* The name is borrowed: a literal, or text in the arena. */
struct jv jv_undefined(const char *name)
{
    struct jv v = { .kind = JV_UNDEFINED };
    v.str = (struct jv_str){ name, name ? strlen(name) : 0 };
    return v;
}

/* None prints as "None" and is a value; undefined prints as nothing and is the lack of one. */
struct jv jv_none(void)
{
    return (struct jv){ .kind = JV_NONE };
}

struct jv jv_bool(bool b)
{
    struct jv v = { .kind = JV_BOOL };
    v.b = b;
    return v;
}

struct jv jv_int(int64_t i)
{
    struct jv v = { .kind = JV_INT };
    v.i = i;
    return v;
}

struct jv jv_float(double f)
{
    struct jv v = { .kind = JV_FLOAT };
    v.f = f;
    return v;
}

/* Borrowed: the text is a literal, the source of the template, or in the arena. */
struct jv jv_strn(const char *s, size_t n)
{
    struct jv v = { .kind = JV_STRING };
    v.str = (struct jv_str){ s, n };
    return v;
}

struct jv jv_str(const char *s)
{
    return jv_strn(s, strlen(s));
}

/* NUL-terminated, so that C code may use it as a string where no NUL is inside. */
struct jv jv_str_copy(struct jx *x, const char *s, size_t n)
{
    char *copy = x->failed ? NULL : arena_strndup(x->arena, s, n);
    if (!copy) {
        jx_nomem(x);
        return jv_strn("", 0);
    }
    return jv_strn(copy, n);
}

/* Copying into the arena frees the heap block at once; values never own heap memory. */
struct jv jv_from_buf(struct jx *x, struct buf *b)
{
    struct jv v = jv_strn("", 0);
    if (!buf_ok(b))
        jx_nomem(x);
    else if (b->len > 0)
        v = jv_str_copy(x, b->data, b->len);
    buf_clear(b);
    return v;
}

/* Undefined when memory ran out; jv_push() on that does nothing, so a loop may run on. */
struct jv jv_list_new(struct jx *x)
{
    struct jv v = { .kind = JV_LIST };
    v.list = jx_alloc(x, sizeof(*v.list));
    return v.list ? v : jv_undefined(NULL);
}

/* Insertion order, no index yet; as jv_list_new() when memory ran out. */
struct jv jv_dict_new(struct jx *x)
{
    struct jv v = { .kind = JV_DICT };
    v.dict = jx_alloc(x, sizeof(*v.dict));
    return v.dict ? v : jv_undefined(NULL);
}

/* Room for one more element; the old array stays behind in the arena, and pointers into it keep
 * their old contents. NULL and failed when the arena is full, which is how a template runs out of
 * memory. */
static void *grow_items(struct jx *x, void *items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return items;
    size_t wanted = *cap ? *cap * 2 : 8;
    void *bigger = x->failed ? NULL : arena_array(x->arena, wanted, size);
    if (!bigger) {
        jx_nomem(x);
        return NULL;
    }
    if (n > 0)
        memcpy(bigger, items, n * size);
    *cap = wanted;
    return bigger;
}

/* Depth of a container is one more than its deepest child at the time it was added. Values are
 * never changed after that except namespaces, so recursion over any value is bounded by
 * JV_DEPTH_MAX.
 *
 * A namespace counts as 0 and may even contain itself. That is safe because nothing recurses into
 * one: repr() prints its type, "==" compares identity, tojson refuses it. `loop` is alike. */
static void note_nesting(struct jx *x, int *depth, struct jv child)
{
    int below = jv_is_seq(child)        ? child.list->depth
                : child.kind == JV_DICT ? child.dict->depth
                                        : 0;
    if (below + 1 > *depth)
        *depth = below + 1;
    if (*depth > JV_DEPTH_MAX)
        jx_fail(x, "value nested too deeply");
}

/* At the end.  Only for lists that are being made: values that a template has seen never change. */
void jv_push(struct jx *x, struct jv list, struct jv item)
{
    if (!jv_is_seq(list))
        return;
    struct jv_list *l = list.list;
    note_nesting(x, &l->depth, item);
    struct jv *items = grow_items(x, l->items, l->n, &l->cap, sizeof(*items));
    if (!items)
        return;
    l->items = items;
    l->items[l->n++] = item;
}

/* Keys that are equal must have equal hashes: 1, 1.0 and True are one key, as in Python.
 *
 * Callers take the low bits. The multiplier (2^64 divided by the golden ratio) is odd, so numbers
 * with different low bits keep different ones, and consecutive integers do not collide. */
static uint64_t hash_key(struct jv key)
{
    switch (key.kind) {
    /* Any fixed seed does: dicts are walked in insertion order, so the hash never shows. */
    case JV_STRING:
        return hash_bytes(key.str.s, key.str.n, 7);
    case JV_BOOL:
        return (uint64_t)key.b * 0x9e3779b97f4a7c15u;
    case JV_INT:
        return (uint64_t)key.i * 0x9e3779b97f4a7c15u;
    case JV_FLOAT: /* equal to an int, it has its hash */
        /* Beyond 64 bits the conversion is undefined; no int is equal to such a float. */
        if (key.f > -9e18 && key.f < 9e18 && key.f == (double)(int64_t)key.f)
            return (uint64_t)(int64_t)key.f * 0x9e3779b97f4a7c15u;
        return hash_bytes(&key.f, sizeof(key.f), 7);
    case JV_BIG:
        return hash_bytes(key.str.s, key.str.n, 7);
    default:
        return 1; /* none: one key */
    }
}

/* Open addressing with linear probing; an entry is the number of a pair plus one, 0 is free. Pairs
 * are never removed, so there are no tombstones. */
static void index_insert(struct jv_dict *d, size_t i)
{
    size_t mask = d->index_cap - 1, at = (size_t)hash_key(d->pairs[i].key) & mask;
    while (d->index[at])
        at = (at + 1) & mask;
    d->index[at] = (uint32_t)i + 1;
}

/* *probes: how many keys it was compared with. */
static struct jv *find_value(struct jv_dict *d, struct jv key, size_t *probes)
{
    *probes = 0;
    /* Few entries: comparing keys is faster than hashing one. */
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++, ++*probes)
            if (jv_equal(d->pairs[i].key, key))
                return &d->pairs[i].value;
        return NULL;
    }
    /* At most half of the index is in use, so a free entry ends every search. */
    size_t mask = d->index_cap - 1;
    for (size_t at = (size_t)hash_key(key) & mask; d->index[at]; at = (at + 1) & mask, ++*probes)
        if (jv_equal(d->pairs[d->index[at] - 1].key, key))
            return &d->pairs[d->index[at] - 1].value;
    return NULL;
}

/* NULL when the key is absent or `dict` has no keys. The pointer is valid until the next jv_put()
 * on the dict, which may move the pairs. */
struct jv *jv_find(struct jv dict, struct jv key)
{
    size_t probes;
    return jv_is_map(dict) ? find_value(dict.dict, key, &probes) : NULL;
}

/* A key that exists keeps its place and its own spelling: {1: a, True: b} is {1: b}. */
void jv_put(struct jx *x, struct jv dict, struct jv key, struct jv value)
{
    if (!jv_is_map(dict))
        return;
    if (dict.kind == JV_DICT)
        note_nesting(x, &dict.dict->depth, value);
    /* Replacing needs no new entry in the index: it holds positions, and the position stays. */
    struct jv_dict *d = dict.dict;
    size_t probes;
    struct jv *old = find_value(d, key, &probes);
    if (old) {
        *old = value;
        return;
    }
    /* NaN equals nothing, itself included: each one is a new key at the end of their chain. */
    if (!jx_step(x, probes / 16))
        return;
    struct jv_pair *pairs = grow_items(x, d->pairs, d->n, &d->cap, sizeof(*pairs));
    if (!pairs)
        return;
    d->pairs = pairs;
    d->pairs[d->n++] = (struct jv_pair){ key, value };
    if (d->n < INDEX_FROM)
        return;
    if (d->index && d->n * 2 <= d->index_cap) {
        index_insert(d, d->n - 1);
        return;
    }
    /* Rebuild: at most a quarter full now, half full before the next time. So the sizes at least
     * double, and all rebuilds together are linear in the number of pairs. */
    size_t cap = 64;
    while (cap < d->n * 4)
        cap *= 2;
    d->index = x->failed ? NULL : arena_array(x->arena, cap, sizeof(*d->index));
    /* Without an index jv_find() falls back to the linear search, so the dict stays usable. */
    if (!d->index) {
        jx_nomem(x);
        return;
    }
    d->index_cap = cap;
    for (size_t i = 0; i < d->n; i++)
        index_insert(d, i);
}

/* For C code, whose keys are literals. */
void jv_set(struct jx *x, struct jv dict, const char *key, struct jv value)
{
    jv_put(x, dict, jv_str(key), value);
}

/* ---- asking ---- */

/* Tuples, lists and views share one representation and differ in kind or `view` only. */
bool jv_is_seq(struct jv v)
{
    return v.kind == JV_LIST || v.kind == JV_TUPLE;
}

/* dict_keys, dict_values, dict_items: loops walk them, subscripts and "+" refuse them, as in
 * Python. */
bool jv_is_view(struct jv v)
{
    return v.kind == JV_LIST && v.list->view;
}

/* What keeps its members in a jv_dict: dicts, namespaces and `loop`. Only a dict has a length, can
 * be iterated, and is written by tojson. */
bool jv_is_map(struct jv v)
{
    return v.kind == JV_DICT || v.kind == JV_NAMESPACE || v.kind == JV_LOOP;
}

/* Big integers do not count: they can be printed and compared for equality, not computed with. */
bool jv_is_number(struct jv v)
{
    return v.kind == JV_BOOL || v.kind == JV_INT || v.kind == JV_FLOAT;
}

/* Is it this text? */
bool jv_is(struct jv v, const char *text)
{
    return v.kind == JV_STRING && v.str.n == strlen(text) && memcmp(v.str.s, text, v.str.n) == 0;
}

/* Safe on anything, so that chains of jv_get() need no checks in between. */
struct jv jv_get(struct jv dict, const char *key)
{
    struct jv *v = jv_find(dict, jv_str(key));
    return v ? *v : jv_undefined(key);
}

/* 0 for what is no number: callers have asked jv_is_number() before. */
double jv_number(struct jv v)
{
    return v.kind == JV_FLOAT ? v.f : v.kind == JV_INT ? (double)v.i : v.kind == JV_BOOL ? v.b : 0;
}

/* Empty is false, as in Python; functions, macros, namespaces and big integers (never 0) are
 * true. */
bool jv_truth(struct jv v)
{
    switch (v.kind) {
    case JV_UNDEFINED:
    case JV_NONE:
        return false;
    case JV_BOOL:
        return v.b;
    case JV_INT:
        return v.i != 0;
    case JV_FLOAT:
        return v.f != 0;
    case JV_STRING:
        return v.str.n > 0;
    case JV_LIST:
    case JV_TUPLE:
        return v.list->n > 0;
    case JV_DICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

/* A view is compared as a set: each item of one must be in the other, in any order. Keys are
 * unique, so equal sizes and one direction are enough. */
static bool equal_lists(struct jx *x, const struct jv_list *a, const struct jv_list *b)
{
    if (a->n != b->n)
        return false;
    if (a->view || b->view) {
        /* Keys and items are sets; values are equal to nothing but themselves. */
        bool found = a->view && b->view && strcmp(a->view, "dict_values") != 0 &&
                     strcmp(b->view, "dict_values") != 0;
        for (size_t i = 0; i < a->n && found; i++) {
            found = false;
            for (size_t k = 0; k < b->n && !found && !(x && x->failed); k++)
                found = jv_equal_steps(x, a->items[i], b->items[k]);
        }
        return found;
    }
    for (size_t i = 0; i < a->n; i++)
        if (!jv_equal_steps(x, a->items[i], b->items[i]))
            return false;
    return true;
}

/* For keys: scalars, whose comparison costs next to nothing. Templates cannot make a list or a dict
 * a key: a literal refuses it, and the filter "unique" takes its text instead. */
bool jv_equal(struct jv a, struct jv b)
{
    return jv_equal_steps(NULL, a, b);
}

/* x NULL: no steps are charged, for keys. bool and int compare as numbers. An int is compared with
 * a float as a double, so beyond 2^53 they may be equal where Python, which is exact, says no. */
bool jv_equal_steps(struct jx *x, struct jv a, struct jv b)
{
    if (x && !jx_step(x, 1 + (a.kind == JV_STRING ? a.str.n / 256 : 0)))
        return false;
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.kind == JV_INT && b.kind == JV_INT)
            return a.i == b.i;
        return jv_number(a) == jv_number(b);
    }
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case JV_STRING:
    case JV_BIG:
    case JV_FUNCTION:
        return a.str.n == b.str.n && (a.str.n == 0 || memcmp(a.str.s, b.str.s, a.str.n) == 0);
    case JV_LIST:
    case JV_TUPLE:
        return a.list == b.list || equal_lists(x, a.list, b.list);
    /* Same keys with equal values; the order of insertion does not matter, as in Python. */
    case JV_DICT:
        if (a.dict == b.dict)
            return true;
        for (size_t i = 0; i < a.dict->n && a.dict->n == b.dict->n; i++) {
            struct jv *other = jv_find(b, a.dict->pairs[i].key);
            if (!other || !jv_equal_steps(x, a.dict->pairs[i].value, *other))
                return false;
        }
        return a.dict->n == b.dict->n;
    /* Objects with identity, as in Python. */
    case JV_NAMESPACE:
    case JV_LOOP:
        return a.dict == b.dict;
    case JV_METHOD:
        return a.method == b.method;
    case JV_MACRO:
        return a.macro == b.macro;
    default:
        return true; /* none, undefined */
    }
}

/* Numbers with numbers, text with text, sequences item by item; anything else is an error, as in
 * Python 3. 0 on failure. NaN compares as equal to any number: there is no fourth answer. */
int jv_compare(struct jx *x, struct jv a, struct jv b)
{
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.kind == JV_INT && b.kind == JV_INT)
            return (a.i > b.i) - (a.i < b.i);
        /* A mixed pair is compared as doubles, as inexact beyond 2^53 as in jv_equal_steps(). */
        double p = jv_number(a), q = jv_number(b);
        return (p > q) - (p < q);
    }
    if (a.kind == JV_STRING && b.kind == JV_STRING) {
        size_t n = a.str.n < b.str.n ? a.str.n : b.str.n;
        if (!jx_step(x, 1 + n / 256))
            return 0;
        int c = n ? memcmp(a.str.s, b.str.s, n) : 0; /* UTF-8 sorts as code points do */
        return c ? (c > 0) - (c < 0) : (a.str.n > b.str.n) - (a.str.n < b.str.n);
    }
    /* The first unequal pair decides; if there is none, the shorter sequence is less. Equality is
     * asked first, because equal items need not have an order: [none, 1] < [none, 2]. */
    if (jv_is_seq(a) && a.kind == b.kind && !jv_is_view(a) && !jv_is_view(b)) {
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++)
            if (!jv_equal_steps(x, a.list->items[i], b.list->items[i]))
                return jx_step(x, 1) ? jv_compare(x, a.list->items[i], b.list->items[i]) : 0;
        return (a.list->n > b.list->n) - (a.list->n < b.list->n);
    }
    jx_fail(x, "cannot compare %s with %s", jv_type_name(a), jv_type_name(b));
    return 0;
}

/* Python's names, for messages; in the order of enum jv_kind. JV_BIG is an int to a template, which
 * cannot tell where 64 bits end until it computes. */
const char *jv_type_name(struct jv v)
{
    static const char *const names[] = { "undefined", "None", "bool",     "int",    "int",
                                         "float",     "str",  "list",     "tuple",  "dict",
                                         "namespace", "loop", "function", "method", "macro" };
    return jv_is_view(v) ? v.list->view : names[v.kind];
}

/* ---- printing ---- */

/* Whether repr() shows a character as it is: str.isprintable(), which excludes the categories Other
 * (C*) and Separator (Z*) of Unicode except the ASCII space. */
static bool is_printable(uint32_t cp)
{
    if (cp < 0x7f)
        return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

/* repr() of a str: double quotes if it has single ones and no double ones, else single quotes; what
 * cannot be seen is escaped. */
static void repr_string(struct buf *out, struct jv_str s)
{
    bool has_single = s.n && memchr(s.s, '\'', s.n), has_double = s.n && memchr(s.s, '"', s.n);
    char quote = has_single && !has_double ? '"' : '\'';
    buf_putc(out, quote);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        int len = utf8_decode(s.s + i, s.n - i, &cp);
        if (len == 0)
            buf_putc(out, s.s[i]);
        else if (cp == '\\' || cp == (unsigned char)quote)
            buf_printf(out, "\\%c", (int)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            buf_puts(out, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        else if (is_printable(cp))
            buf_append(out, s.s + i, (size_t)len);
        else /* invisible: its code, in the shortest of Python's three forms */
            buf_printf(out,
                       cp < 0x100     ? "\\x%02x"
                       : cp < 0x10000 ? "\\u%04x"
                                      : "\\U%08x",
                       (unsigned)cp);
        i += len ? (size_t)len : 1;
    }
    buf_putc(out, quote);
}

/* (1,) keeps its comma; a view of a dict prints as Python's does: dict_keys(['a']). */
static void repr_list(struct jx *x, struct buf *out, struct jv v)
{
    bool tuple = v.kind == JV_TUPLE, view = jv_is_view(v);
    buf_puts(out, view ? v.list->view : "");
    buf_puts(out, tuple ? "(" : view ? "([" : "[");
    for (size_t i = 0; i < v.list->n && !x->failed; i++) {
        if (i > 0)
            buf_puts(out, ", ");
        jv_repr(x, out, v.list->items[i]);
    }
    if (tuple && v.list->n == 1)
        buf_putc(out, ',');
    buf_puts(out, tuple ? ")" : view ? "])" : "]");
}

/* Cost and depth are bounded by steps and by the depth of values: a step per value matters where
 * parts are shared, as each occurrence is written again. */
void jv_repr(struct jx *x, struct buf *out, struct jv v)
{
    if (!jx_step(x, 1))
        return;
    switch (v.kind) {
    case JV_UNDEFINED:
        buf_puts(out, "Undefined");
        break;
    case JV_NONE:
        buf_puts(out, "None");
        break;
    case JV_BOOL:
        buf_puts(out, v.b ? "True" : "False");
        break;
    case JV_INT:
        buf_printf(out, "%lld", (long long)v.i);
        break;
    case JV_BIG:
        buf_append(out, v.str.s, v.str.n);
        break;
    case JV_FLOAT:
        /* The shortest text that reads back, with ".0" or an exponent as repr() writes it. */
        if (isnan(v.f) || isinf(v.f)) {
            buf_puts(out, isnan(v.f) ? "nan" : v.f > 0 ? "inf" : "-inf");
        } else {
            struct json_writer w;
            json_writer_init(&w, out);
            json_put_double(&w, v.f);
        }
        break;
    case JV_STRING:
        repr_string(out, v.str);
        break;
    case JV_LIST:
    case JV_TUPLE:
        repr_list(x, out, v);
        break;
    case JV_DICT:
        buf_putc(out, '{');
        for (size_t i = 0; i < v.dict->n && !x->failed; i++) {
            buf_puts(out, i > 0 ? ", " : "");
            jv_repr(x, out, v.dict->pairs[i].key);
            buf_puts(out, ": ");
            jv_repr(x, out, v.dict->pairs[i].value);
        }
        buf_putc(out, '}');
        break;
    /* Python prints an address here, which no template can rely on. */
    default:
        buf_printf(out, "<%s>", jv_type_name(v));
    }
    if (!buf_ok(out))
        jx_nomem(x);
}

/* str(): text as it is, undefined as nothing, anything else as repr(). */
void jv_print(struct jx *x, struct buf *out, struct jv v)
{
    if (v.kind != JV_STRING) {
        if (v.kind != JV_UNDEFINED) /* nothing, but "Undefined" inside a list */
            jv_repr(x, out, v);
        return;
    }
    if (jx_step(x, 1 + v.str.n / 256))
        buf_append(out, v.str.s, v.str.n);
    if (!buf_ok(out))
        jx_nomem(x);
}

/* The text itself when it is one, so nothing is copied in the usual case. */
struct jv jv_to_str(struct jx *x, struct jv v)
{
    if (v.kind == JV_STRING)
        return v;
    struct buf b;
    buf_init(&b, x->arena->max);
    jv_print(x, &b, v);
    return jv_from_buf(x, &b);
}

/* A new list, so that a loop is not disturbed by what its body does to a namespace. The caller owns
 * it and may overwrite its items. Undefined has no items, as Jinja's Undefined.__iter__(). */
struct jv jv_iterate(struct jx *x, struct jv v)
{
    struct jv out = jv_list_new(x);
    if (jv_is_seq(v)) {
        for (size_t i = 0; i < v.list->n && jx_step(x, 1); i++)
            jv_push(x, out, v.list->items[i]);
    } else if (v.kind == JV_DICT) {
        for (size_t i = 0; i < v.dict->n && jx_step(x, 1); i++)
            jv_push(x, out, v.dict->pairs[i].key);
    } else if (v.kind == JV_STRING) {
        for (size_t i = 0; i < v.str.n && jx_step(x, 1);) {
            uint32_t cp;
            int len = utf8_decode(v.str.s + i, v.str.n - i, &cp);
            len = len ? len : 1; /* an ill-formed byte is an item of its own */
            jv_push(x, out, jv_strn(v.str.s + i, (size_t)len));
            i += (size_t)len;
        }
    } else if (v.kind != JV_UNDEFINED) {
        jx_fail(x, "'%s' object is not iterable", jv_type_name(v));
    }
    return out;
}
