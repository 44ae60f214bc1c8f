/* render_tools_kimi.c - tool declarations of Kimi K2.5 and later: TypeScript types.
 *
 * Required properties come first, each group sorted by name; descriptions and constraints
 * are comments above.  $defs become interfaces, "#" refers to an interface of its own.
 * Recursion is bounded by the depth of JSON: references print a name and are not followed. */
#include "chat/render.h"

#include <stdlib.h>
#include <string.h>

/* What is being written. $defs of all levels are collected into one table of interfaces. */
struct ts {
    struct jx *x;
    struct buf *b;
    struct jv defs; /* name -> schema */
    bool self_ref;
};

static void kimi_put_type(struct ts *t, struct jv schema, int indent);

static void put_indent(struct ts *t, int indent)
{
    for (int i = 0; i < indent; i++)
        buf_puts(t->b, "  ");
}

/* "// line" for each line; an empty line stays empty. */
static void kimi_put_comment(struct ts *t, struct jv_str s, int indent)
{
    while (true) {
        size_t nl = text_find(s, (struct jv_str){ "\n", 1 }, 0);
        size_t n = nl == SIZE_MAX ? s.n : nl;
        if (n > 0) {
            put_indent(t, indent);
            buf_puts(t->b, "// ");
            buf_append(t->b, s.s, n);
        }
        buf_putc(t->b, '\n');
        if (nl == SIZE_MAX)
            return;
        s = (struct jv_str){ s.s + nl + 1, s.n - nl - 1 };
    }
}

/* What a schema is, in the order in which keys decide: a $ref wins over a type beside it. */
enum shape { ANY, NONE, REF, ANY_OF, ENUM, UNION, OBJECT, ARRAY, SCALAR };

static enum shape shape_of(struct ts *t, struct jv schema)
{
    struct jv type = jv_get(schema, "type");
    if (schema.kind == JV_BOOL)
        return schema.b ? ANY : NONE;
    if (schema.kind == JV_DICT && schema.dict->n == 0)
        return ANY;
    if (jv_get(schema, "$ref").kind == JV_STRING)
        return REF;
    if (jv_is_seq(jv_get(schema, "anyOf")))
        return ANY_OF;
    if (jv_is_seq(jv_get(schema, "enum")))
        return ENUM;
    if (jv_is_seq(type))
        return UNION;
    if (jv_is(type, "object"))
        return OBJECT;
    if (jv_is(type, "array"))
        return ARRAY;
    if (type.kind == JV_STRING)
        return SCALAR;
    jx_fail(t->x, "tool schema: no type, enum, anyOf or $ref in an entry");
    return ANY;
}

/* Description and constraints above an entry; whether anything was written. */
static bool kimi_put_doc(struct ts *t, struct jv schema, int indent)
{
    struct jv text = jv_get(schema, "description");
    /* "first" is still true when no constraint was written. */
    bool any = jv_truth(text), first = true;
    if (any)
        kimi_put_comment(t, jv_to_str(t->x, text).str, indent);
    if (schema.kind != JV_DICT)
        return any;
    /* Which constraints are worth a comment depends on the type; each list is sorted. */
    static const char *const strings[] = { "maxLength", "minLength", "pattern", NULL };
    static const char *const numbers[] = { "maximum", "minimum", NULL };
    static const char *const arrays[] = { "maxItems", "minItems", NULL };
    static const char *const none[] = { NULL };
    enum shape shape = shape_of(t, schema);
    struct jv type = jv_get(schema, "type");
    const char *const *key = none;
    if (shape == ARRAY)
        key = arrays;
    else if (shape == SCALAR && jv_is(type, "string"))
        key = strings;
    else if (shape == SCALAR && (jv_is(type, "number") || jv_is(type, "integer")))
        key = numbers;
    for (; *key; key++) {
        struct jv v = jv_get(schema, *key);
        if (v.kind == JV_UNDEFINED)
            continue;
        if (first) {
            put_indent(t, indent);
            buf_puts(t->b, "// ");
        }
        buf_printf(t->b, "%s%s: ", first ? "" : ", ", *key);
        jv_print(t->x, t->b, v);
        first = false;
    }
    if (!first)
        buf_putc(t->b, '\n');
    return any || !first;
}

/* A property of an object, with its comments:
 *
 *     // Where
 *     // Default: "UTC"
 *     zone?: string */
static void put_property(struct ts *t, struct jv name, struct jv schema, bool required, int indent)
{
    struct jv fallback = jv_get(schema, "default");
    struct jv_dumps how = { .indent = -1 };
    kimi_put_doc(t, schema, indent);
    if (fallback.kind != JV_UNDEFINED && fallback.kind != JV_NONE) {
        put_indent(t, indent);
        buf_puts(t->b, "// Default: ");
        if (jv_is_number(fallback))
            jv_repr(t->x, t->b, fallback);
        else
            jv_dump(t->x, t->b, fallback, &how);
        buf_putc(t->b, '\n');
    }
    put_indent(t, indent);
    jv_print(t->x, t->b, name);
    buf_puts(t->b, required ? ": " : "?: ");
    kimi_put_type(t, schema, indent);
}

/* By bytes, which is by code points in UTF-8, as Python sorts. */
static int compare_names(const void *a, const void *b)
{
    const struct jv_pair *p = a, *q = b;
    size_t n = p->key.str.n < q->key.str.n ? p->key.str.n : q->key.str.n;
    int c = n ? memcmp(p->key.str.s, q->key.str.s, n) : 0;
    return c ? c : (p->key.str.n > q->key.str.n) - (p->key.str.n < q->key.str.n);
}

/* Properties, required ones first; returns how many were written. */
static size_t put_properties(struct ts *t, struct jv schema, int indent, bool sorted)
{
    struct jv props = jv_get(schema, "properties");
    size_t n = props.kind == JV_DICT ? props.dict->n : 0, written = 0;
    struct jv_pair *pairs =
        n ? arena_memdup(t->x->arena, props.dict->pairs, n * sizeof(*pairs)) : NULL;
    if (n && !pairs)
        jx_nomem(t->x);
    if (pairs && sorted)
        qsort(pairs, n, sizeof(*pairs), compare_names);
    for (int pass = 0; pass < (sorted ? 2 : 1); pass++) {
        for (size_t i = 0; pairs && i < n && !t->x->failed; i++) {
            bool required = tools_is_required(schema, pairs[i].key);
            if (sorted && required != (pass == 0))
                continue;
            buf_puts(t->b, written++ > 0 ? ",\n" : "");
            put_property(t, pairs[i].key, pairs[i].value, required, indent);
        }
    }
    return written;
}

static void kimi_put_object(struct ts *t, struct jv schema, int indent)
{
    struct jv more = jv_get(schema, "additionalProperties");
    /* An object without properties is "{}": what was begun is taken back. */
    size_t at = t->b->len;
    buf_puts(t->b, "{\n");
    size_t n = put_properties(t, schema, indent + 1, true);
    if (more.kind != JV_UNDEFINED && more.kind != JV_NONE) {
        buf_puts(t->b, n++ > 0 ? ",\n" : "");
        put_indent(t, indent + 1);
        buf_puts(t->b, "[k: string]: ");
        if (more.kind == JV_BOOL)
            buf_puts(t->b, more.b ? "any" : "never");
        else
            kimi_put_type(t, more, indent + 1);
    }
    if (n == 0) {
        if (buf_ok(t->b))
            t->b->len = at;
        buf_puts(t->b, "{}");
        return;
    }
    buf_putc(t->b, '\n');
    put_indent(t, indent);
    buf_putc(t->b, '}');
}

static void put_array(struct ts *t, struct jv schema, int indent)
{
    struct jv items = jv_get(schema, "items");
    size_t at = t->b->len;
    if (!jv_truth(items)) {
        buf_puts(t->b, "Array<any>");
        return;
    }
    buf_puts(t->b, "Array<\n");
    if (kimi_put_doc(t, items, indent + 1)) {
        put_indent(t, indent + 1);
        kimi_put_type(t, items, indent + 1);
        buf_putc(t->b, '\n');
        put_indent(t, indent);
    } else {
        if (buf_ok(t->b))
            t->b->len = at;
        buf_puts(t->b, "Array<");
        kimi_put_type(t, items, indent);
    }
    buf_putc(t->b, '>');
}

static void kimi_put_type(struct ts *t, struct jv schema, int indent)
{
    struct jv type = jv_get(schema, "type"), list;
    size_t slash;
    if (t->x->failed)
        return;
    switch (shape_of(t, schema)) {
    case ANY:
        buf_puts(t->b, "any");
        break;
    case NONE:
        buf_puts(t->b, "null");
        break;
    case REF:
        /* "#" is the parameters themselves, "#/$defs/NAME" an interface. */
        list = jv_get(schema, "$ref");
        slash = text_rfind(list.str, (struct jv_str){ "/", 1 });
        if (jv_is(list, "#"))
            buf_puts(t->b, "parameters");
        else if (slash != SIZE_MAX)
            buf_append(t->b, list.str.s + slash + 1, list.str.n - slash - 1);
        break;
    case ANY_OF:
        list = jv_get(schema, "anyOf");
        for (size_t i = 0; i < list.list->n; i++) {
            buf_puts(t->b, i > 0 ? " | " : "");
            kimi_put_type(t, list.list->items[i], indent);
        }
        break;
    case ENUM:
        list = jv_get(schema, "enum");
        for (size_t i = 0; i < list.list->n; i++) {
            bool text = list.list->items[i].kind == JV_STRING;
            buf_puts(t->b, i > 0 ? " | " : "");
            buf_puts(t->b, text ? "\"" : "");
            jv_print(t->x, t->b, list.list->items[i]);
            buf_puts(t->b, text ? "\"" : "");
        }
        break;
    case UNION: /* "type": ["string", "null"] */
        for (size_t i = 0; i < type.list->n && !t->x->failed; i++) {
            struct jv one = type.list->items[i];
            buf_puts(t->b, i > 0 ? " | " : "");
            if (jv_is(one, "integer"))
                buf_puts(t->b, "number");
            else if (jv_is(one, "object"))
                buf_puts(t->b, "{}");
            else if (jv_is(one, "array"))
                buf_puts(t->b, "Array<any>");
            else
                jv_print(t->x, t->b, one);
        }
        break;
    case OBJECT:
        kimi_put_object(t, schema, indent);
        break;
    case ARRAY:
        put_array(t, schema, indent);
        break;
    case SCALAR:
        if (jv_is(type, "integer"))
            buf_puts(t->b, "number");
        else
            jv_print(t->x, t->b, type);
        break;
    }
}

/* ---- references ---- */

static void scan_schema(struct ts *t, struct jv schema);

/* Collect definitions and check references of an object, before anything is written.  Parameters
 * are one whatever they say they are. */
static void scan_object(struct ts *t, struct jv schema)
{
    struct jv defs = jv_get(schema, "$defs"), props = jv_get(schema, "properties");
    for (size_t i = 0; defs.kind == JV_DICT && i < defs.dict->n; i++)
        jv_put(t->x, t->defs, defs.dict->pairs[i].key, defs.dict->pairs[i].value);
    scan_schema(t, jv_get(schema, "additionalProperties"));
    for (size_t i = 0; props.kind == JV_DICT && i < props.dict->n; i++)
        scan_schema(t, props.dict->pairs[i].value);
}

/* The same of any schema. */
static void scan_schema(struct ts *t, struct jv schema)
{
    static const char defs[] = "#/$defs/";
    struct jv any = jv_get(schema, "anyOf"), ref = jv_get(schema, "$ref");
    if (schema.kind != JV_DICT)
        return;
    scan_object(t, schema);
    if (jv_is(ref, "#"))
        t->self_ref = true;
    else if (ref.kind == JV_STRING && !text_starts(ref.str, defs))
        jx_fail(t->x, "tool schema: unsupported reference");
    else if (ref.kind == JV_STRING &&
             !jv_find(t->defs, jv_strn(ref.str.s + strlen(defs), ref.str.n - strlen(defs))))
        jx_fail(t->x, "tool schema: reference to an unknown definition");
    scan_schema(t, jv_get(schema, "items"));
    for (size_t i = 0; jv_is_seq(any) && i < any.list->n; i++)
        scan_schema(t, any.list->items[i]);
}

/* Interfaces come before the function that refers to them. One that refers to itself ("#") is the
 * interface of the parameters, in the order of the schema. */
static void put_interfaces(struct ts *t, struct jv parameters)
{
    if (t->self_ref) {
        buf_puts(t->b, "interface parameters {");
        size_t at = t->b->len;
        buf_putc(t->b, '\n');
        if (put_properties(t, parameters, 1, false) > 0)
            buf_putc(t->b, '\n');
        else if (buf_ok(t->b))
            t->b->len = at;
        buf_puts(t->b, "}\n");
    }
    for (size_t i = 0; t->defs.kind == JV_DICT && i < t->defs.dict->n && !t->x->failed; i++) {
        struct jv schema = t->defs.dict->pairs[i].value, text = jv_get(schema, "description");
        if (jv_truth(text))
            kimi_put_comment(t, jv_to_str(t->x, text).str, 0);
        buf_puts(t->b, "interface ");
        jv_print(t->x, t->b, t->defs.dict->pairs[i].key);
        buf_putc(t->b, ' ');
        kimi_put_type(t, schema, 0);
        buf_putc(t->b, '\n');
    }
}

void kimi_typescript(struct jx *x, struct buf *out, struct jv tools)
{
    struct ts t = { .x = x, .b = out };
    buf_puts(out, "# Tools\n\n## functions\nnamespace functions {\n");
    for (size_t i = 0; i < tools.list->n && !x->failed; i++) {
        struct jv tool = tools.list->items[i];
        struct jv parameters = jv_get(tool, "parameters"), text = jv_get(tool, "description");
        /* Interfaces are written before the function that needs them. */
        t.defs = jv_dict_new(x);
        t.self_ref = false;
        scan_object(&t, parameters);
        put_interfaces(&t, parameters);
        if (jv_truth(text))
            kimi_put_comment(&t, jv_to_str(x, text).str, 0);
        buf_puts(out, "type ");
        jv_print(x, out, jv_get(tool, "name"));
        buf_puts(out, " = (_: ");
        if (t.self_ref)
            buf_puts(out, "parameters");
        else
            kimi_put_object(&t, parameters, 0);
        buf_puts(out, ") => any;\n");
    }
    buf_puts(out, "}\n");
}
