/* schema.c - the described types as JSON Schema, for programs in other languages.
 *
 * Written from the tables that the reader and the writer walk, so it says what they do.  It is that
 * of the lenient reader: unknown members are allowed, and coerced scalars are not told. */
#include <string.h>
#include "wire/json/describe.h"

enum { TYPES_MAX = 256 };

/* Every type that can be reached, each once. */
struct types {
    const struct wire_type *v[TYPES_MAX];
    size_t n;
};

/* Depth first, so a type stands before its parts. A type is entered before its fields are looked
 * at, which ends circles. */
static void collect_types(struct types *all, const struct wire_type *type)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->v[i] == type)
            return;
    /* More than there are; a type left out would leave a $ref that leads nowhere. */
    if (all->n == TYPES_MAX)
        return;
    all->v[all->n++] = type;
    for (size_t i = 0; i < type->n_fields; i++)
        if (type->fields[i].type)
            collect_types(all, type->fields[i].type);
}

/* Every type is defined once, under $defs, and referred to by its name. */
static void put_ref(struct buf *out, const struct wire_type *type)
{
    buf_printf(out, "{\"$ref\":\"#/$defs/%s\"}", type->name);
}

/* Of a field whose value is given. */
static void put_kind(struct buf *out, const struct wire_field *f)
{
    /* Kinds whose schema is a constant, by enum wire_kind. A new kind needs a line here, or a
     * case below. What 0 or -1 stands for in memory does not show: such a field is absent on
     * the wire. */
    static const char *const plain[] = {
        [WIRE_STRING] = "{\"type\":\"string\"}",
        [WIRE_BOOL] = "{\"type\":\"boolean\"}",
        [WIRE_FLAG] = "{\"type\":\"boolean\"}",
        [WIRE_OPT_BOOL] = "{\"type\":\"boolean\"}",
        [WIRE_FLAG_KNOWN] = "{\"type\":\"boolean\"}",
        [WIRE_INT] = "{\"type\":\"integer\"}",
        [WIRE_INT_HAS] = "{\"type\":\"integer\"}",
        [WIRE_SEED] = "{\"type\":\"integer\"}",
        [WIRE_OPT_INT] = "{\"type\":\"integer\"}",
        [WIRE_INT_KNOWN] = "{\"type\":\"integer\"}",
        [WIRE_POSITIVE] = "{\"type\":\"integer\",\"minimum\":1}",
        [WIRE_DOUBLE] = "{\"type\":\"number\"}",
        [WIRE_OPT_DOUBLE] = "{\"type\":\"number\"}",
        [WIRE_DOUBLE_KNOWN] = "{\"type\":\"number\"}",
        [WIRE_DOUBLE_SET] = "{\"type\":\"number\"}",
        [WIRE_TIME_US] = "{\"type\":\"string\",\"format\":\"date-time\"}",
        [WIRE_OBJECT_CSTR] = "{\"type\":\"object\"}",
        [WIRE_STRING_PAIRS] =
            "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}",
        [WIRE_TIME] = "{\"type\":\"string\",\"format\":\"date-time\"}",
        [WIRE_OBJECT_TEXT] = "{\"type\":\"object\"}",
        [WIRE_BYTES] = "{\"type\":\"string\",\"contentEncoding\":\"base64\"}",
        [WIRE_STRINGS] = "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}",
        [WIRE_NAMED_STRINGS] =
            "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}",
        [WIRE_NUMBERS] = "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\"}}",
        [WIRE_NUMBER_PAIRS] =
            "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\"}}",
    };
    switch (f->kind) {
    case WIRE_LITERAL:
        buf_printf(out, "{\"const\":\"%s\"}", f->words[0]);
        break;
    case WIRE_WORD:
    case WIRE_ENUM:
        /* An open list of words only gives examples: others are accepted. */
        buf_puts(out, f->flags & WIRE_OPEN ? "{\"type\":\"string\",\"examples\":[" : "{\"enum\":[");
        for (size_t i = 0; f->words[i]; i++)
            buf_printf(out, "%s\"%s\"", i ? "," : "", f->words[i]);
        buf_puts(out, "]}");
        break;
    /* Whether NULL may be behind a pointer is told by WIRE_NULLABLE, in put_type(). */
    case WIRE_STRUCT:
    case WIRE_POINTER:
        put_ref(out, f->type);
        break;
    /* Types are referred to and not repeated inside, so that they may contain each other. */
    case WIRE_LIST:
        buf_puts(out, "{\"type\":\"array\",\"items\":");
        put_ref(out, f->type);
        buf_putc(out, '}');
        break;
    case WIRE_MAP:
        buf_puts(out, "{\"type\":\"object\",\"additionalProperties\":");
        put_ref(out, f->type);
        buf_putc(out, '}');
        break;
    /* No table says what functions read, so the table brings the text along. */
    case WIRE_CUSTOM:
        buf_puts(out, f->schema);
        break;
    default:
        buf_puts(out, plain[f->kind]);
    }
}

/* Names of the required fields of this variant, or (0) of all variants. */
static void put_required(struct buf *out, const struct wire_type *t, unsigned variant)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_fields; i++) {
        const struct wire_field *f = &t->fields[i];
        /* The tag belongs to all variants, so it is among the common ones. */
        bool here = variant ? (f->variants & variant) != 0 : f->variants == 0;
        if (here && f->flags & WIRE_REQUIRED)
            buf_printf(out, "%s\"%s\"", n++ ? "," : "\"required\":[", f->name);
    }
    if (n)
        buf_putc(out, ']');
}

/* What each variant of a union must have. Members of other variants stay allowed, as the lenient
 * reader ignores them. */
static void put_variants(struct buf *out, const struct wire_type *t)
{
    const struct wire_field *tag = NULL;
    for (size_t i = 0; t->tag && i < t->n_fields; i++)
        if (strcmp(t->fields[i].name, t->tag) == 0)
            tag = &t->fields[i];
    if (!tag)
        return;
    buf_puts(out, ",\n   \"allOf\":[");
    /* if/then for each value of the tag, rather than oneOf: validators then name the field that is
     * missing. An absent tag satisfies every `if` (JSON Schema Core, 10.3.2.1), but is required
     * above. */
    for (size_t i = 0; tag->words[i]; i++) {
        buf_printf(out, "%s\n    {\"if\":{\"properties\":{\"%s\":{\"const\":\"%s\"}}},\"then\":{",
                   i ? "," : "", tag->name, tag->words[i]);
        /* Maybe empty: {} as `then` allows everything. */
        put_required(out, t, 1U << i);
        buf_puts(out, "}}");
    }
    buf_putc(out, ']');
}

/* One definition: its fields, what is required, and what each variant adds. */
static void put_type(struct buf *out, const struct wire_type *t)
{
    buf_printf(out, "\n  \"%s\":", t->name);
    /* A type with codecs of its own brings its schema along. */
    if (t->schema) {
        buf_puts(out, t->schema);
        return;
    }
    buf_puts(out, "{\"type\":\"object\",\"properties\":{");
    /* Fields of all variants side by side; additionalProperties stays true, which is what lenient
     * readers do and what lets a newer peer add members. */
    for (size_t i = 0; i < t->n_fields; i++) {
        if (i > 0)
            buf_putc(out, ',');
        const struct wire_field *f = &t->fields[i];
        bool nullable = (f->flags & WIRE_NULLABLE) != 0;
        buf_printf(out, "\n    \"%s\":%s", f->name, nullable ? "{\"anyOf\":[" : "");
        put_kind(out, f);
        if (nullable)
            buf_puts(out, ",{\"type\":\"null\"}]}");
    }
    buf_putc(out, '}');
    /* Into a buffer of its own, because the comma before it depends on whether there is any. */
    struct buf required;
    /* A maximum and not an allocation; 64 names fit. */
    buf_init(&required, 1 << 16);
    /* Of the common fields only; those of one variant follow in allOf. */
    put_required(&required, t, 0);
    if (required.len > 0)
        buf_printf(out, ",\n   %s", required.data);
    buf_clear(&required);
    put_variants(out, t);
    buf_putc(out, '}');
}

/* JSON Schema of every table, made from the same tables that read and write. */
void wire_schema(struct buf *out)
{
    struct types all = { .n = 0 };
    for (size_t i = 0; wire_type_at(i); i++)
        collect_types(&all, wire_type_at(i));
    buf_puts(out, "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\n"
                  " \"title\":\"Tinker API, as libtinker reads and writes it\",\n \"$defs\":{");
    for (size_t i = 0; i < all.n; i++) {
        if (i > 0)
            buf_putc(out, ',');
        put_type(out, all.v[i]);
    }
    buf_puts(out, "}}\n");
}
