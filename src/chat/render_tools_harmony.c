/* render_tools_harmony.c - tool declarations of gpt-oss: TypeScript in a namespace.
 *
 * Schemas come from outside; recursion is bounded by the depth of JSON. */
#include "chat/render.h"

#include <string.h>

static void harmony_put_type(struct jx *x, struct buf *b, struct jv schema);

static void harmony_put_json(struct jx *x, struct buf *b, struct jv v)
{
    struct jv_dumps how = JV_DUMPS_PYTHON;
    jv_dump(x, b, v, &how);
}

/* A | B | C, where the items are schemas, or the values of an enum. */
static void harmony_put_alternatives(struct jx *x, struct buf *b, struct jv list, bool enums)
{
    for (size_t i = 0; i < list.list->n && !x->failed; i++) {
        if (i > 0)
            buf_puts(b, " | ");
        if (enums)
            harmony_put_json(x, b, list.list->items[i]);
        else
            harmony_put_type(x, b, list.list->items[i]);
    }
}

/* An object inside a type is written on one line; only parameters get lines and comments. */
static void harmony_put_object(struct jx *x, struct buf *b, struct jv schema)
{
    struct jv props = jv_get(schema, "properties");
    buf_puts(b, "{ ");
    for (size_t i = 0; props.kind == JV_DICT && i < props.dict->n && !x->failed; i++) {
        buf_puts(b, i > 0 ? ", " : "");
        jv_print(x, b, props.dict->pairs[i].key);
        buf_puts(b, tools_is_required(schema, props.dict->pairs[i].key) ? ": " : "?: ");
        harmony_put_type(x, b, props.dict->pairs[i].value);
    }
    buf_puts(b, " }");
}

/* The type with a name. JSON has integers, TypeScript only numbers; a type that is not known is
 * any. */
static void harmony_put_named(struct jx *x, struct buf *b, struct jv type, struct jv schema)
{
    struct jv choices = jv_get(schema, "enum"), items = jv_get(schema, "items");
    if (jv_is(type, "string") && jv_is_seq(choices)) {
        harmony_put_alternatives(x, b, choices, true);
        return;
    }
    if (jv_is(type, "string") || jv_is(type, "boolean")) {
        jv_print(x, b, type);
    } else if (jv_is(type, "number") || jv_is(type, "integer")) {
        buf_puts(b, "number");
    } else if (jv_is(type, "array")) {
        harmony_put_type(x, b, items);
        buf_puts(b, "[]");
    } else if (jv_is(type, "object")) {
        harmony_put_object(x, b, schema);
    } else {
        buf_puts(b, "any");
    }
    if (jv_truth(jv_get(schema, "nullable")))
        buf_puts(b, " | null");
}

/* A list of types, as in {"type": ["string", "null"]}, is a union of the bare types. */
static void harmony_put_type(struct jx *x, struct buf *b, struct jv schema)
{
    struct jv one = jv_get(schema, "oneOf"), any = jv_get(schema, "anyOf");
    struct jv type = jv_get(schema, "type");
    if (jv_is_seq(one) || jv_is_seq(any)) {
        harmony_put_alternatives(x, b, jv_is_seq(one) ? one : any, false);
    } else if (jv_is_seq(type)) {
        for (size_t i = 0; i < type.list->n && !x->failed; i++) {
            buf_puts(b, i > 0 ? " | " : "");
            struct jv bare = jv_dict_new(x);
            jv_set(x, bare, "type", type.list->items[i]);
            harmony_put_named(x, b, type.list->items[i], bare);
        }
    } else {
        harmony_put_named(x, b, type, schema);
    }
}

static void harmony_put_comment(struct jx *x, struct buf *b, struct jv v)
{
    buf_puts(b, "// ");
    jv_print(x, b, v);
    buf_putc(b, '\n');
}

/* Title, description and examples of a property stand above it. */
static void harmony_put_comments(struct jx *x, struct buf *b, struct jv schema)
{
    struct jv title = jv_get(schema, "title"), text = jv_get(schema, "description");
    struct jv examples = jv_get(schema, "examples");
    if (jv_truth(title)) {
        harmony_put_comment(x, b, title);
        buf_puts(b, "// \n");
    }
    if (jv_truth(text))
        harmony_put_comment(x, b, text);
    if (jv_is_seq(examples) && examples.list->n > 0)
        buf_puts(b, "// Examples:\n");
    for (size_t i = 0; jv_is_seq(examples) && i < examples.list->n; i++) {
        buf_puts(b, "// - ");
        harmony_put_json(x, b, examples.list->items[i]);
        buf_putc(b, '\n');
    }
}

/* "(_: ...)", or "()" for a function without parameters:
 *
 *     type clock = (_:
 *     {
 *     // IANA name
 *     zone?: string, // default: "UTC"
 *     }) => any; */
static void harmony_put_parameters(struct jx *x, struct buf *b, struct jv schema)
{
    struct jv props = jv_get(schema, "properties"), text = jv_get(schema, "description");
    if (!jv_is(jv_get(schema, "type"), "object") || !jv_truth(props)) {
        buf_puts(b, "()");
        return;
    }
    buf_puts(b, "(_:");
    if (jv_truth(text)) {
        buf_puts(b, " // ");
        jv_print(x, b, text);
    }
    buf_puts(b, "\n{\n");
    for (size_t i = 0; props.kind == JV_DICT && i < props.dict->n && !x->failed; i++) {
        struct jv name = props.dict->pairs[i].key, prop = props.dict->pairs[i].value;
        struct jv fallback = jv_get(prop, "default");
        harmony_put_comments(x, b, prop);
        jv_print(x, b, name);
        buf_puts(b, tools_is_required(schema, name) ? ": " : "?: ");
        harmony_put_type(x, b, prop);
        buf_putc(b, ',');
        if (fallback.kind != JV_UNDEFINED) {
            buf_puts(b, " // default: ");
            harmony_put_json(x, b, fallback);
        }
        buf_putc(b, '\n');
    }
    buf_puts(b, "})");
}

/* Two messages: the system learns which channel calls go to, the developer message holds
 * instructions and declarations. */
void harmony_tools(struct render_call *c, struct jv tools, const char *system, struct jv out)
{
    struct buf b;
    buf_init(&b, c->x.arena->max);
    if (tools.list->n > 0) {
        buf_puts(&b, "Calls to these tools must go to the commentary channel: 'functions'.");
        tools_add_message(c, out, harmony_system_role, &b);
        buf_init(&b, c->x.arena->max);
    }
    if (*system)
        buf_printf(&b, "# Instructions\n\n%s%s", system, tools.list->n > 0 ? "\n\n" : "");
    for (size_t i = 0; i < tools.list->n && !c->x.failed; i++) {
        struct jv tool = tools.list->items[i], text = jv_get(tool, "description");
        buf_puts(&b, i == 0 ? "# Tools\n\n## functions\n\nnamespace functions {\n\n" : "\n\n");
        if (jv_truth(text))
            harmony_put_comment(&c->x, &b, text);
        buf_puts(&b, "type ");
        jv_print(&c->x, &b, jv_get(tool, "name"));
        buf_puts(&b, " = ");
        harmony_put_parameters(&c->x, &b, jv_get(tool, "parameters"));
        buf_puts(&b, " => any;");
    }
    if (tools.list->n > 0)
        buf_puts(&b, "\n\n} // namespace functions");
    if (b.len > 0)
        tools_add_message(c, out, "developer", &b);
}
