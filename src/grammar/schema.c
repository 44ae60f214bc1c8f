/* schema.c - a JSON schema to expressions: see grammar.h.
 *
 * The schema stays text: members are looked up where they are needed, which costs little, as schemas
 * are small.  Every keyword is either compiled, an annotation that changes nothing, or refused.
 *
 * Where a schema says nothing of types, its other keywords do: {"minLength": 1} is a string here.
 * Objects have no members beside `properties` unless additionalProperties asks for them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "grammar/node.h"

/* NAMES_MAX bounds properties and required of one object: looking up a name is linear, so all of
 * them are quadratic. */
enum { SCHEMA_BYTES = 1 << 20, SCHEMA_DEPTH = 60, NAMES_MAX = 2000 };

/* Types as bits, so that a set of them is one int and `type` an intersection.  Integers and
 * fractions are apart because "integer" is a part of "number" in JSON Schema. */
enum {
    T_NULL = 1,
    T_BOOL = 2,
    T_OBJECT = 4,
    T_ARRAY = 8,
    T_STRING = 16,
    T_INTEGER = 32,
    T_FRACTION = 64, /* a number that is not an integer */
    T_NUMBER = T_INTEGER | T_FRACTION,
    T_ALL = 127
};

/* What is compiled.  Order has no meaning. */
enum keyword {
    K_TYPE,
    K_ENUM,
    K_CONST,
    K_ANY_OF,
    K_ONE_OF,
    K_ALL_OF,
    K_REF,
    K_PROPERTIES,
    K_REQUIRED,
    K_ADDITIONAL,
    K_ITEMS,
    K_PREFIX_ITEMS,
    K_MIN_ITEMS,
    K_MAX_ITEMS,
    K_MIN_LENGTH,
    K_MAX_LENGTH,
    K_PATTERN,
    K_MINIMUM,
    K_MAXIMUM,
    K_OVER,
    K_BELOW,
    K_COUNT
};

static const struct {
    const char *name;
    int type; /* of the values that it is about; 0: all */
} keywords[K_COUNT] = {
    [K_TYPE] = { "type", 0 },
    [K_ENUM] = { "enum", 0 },
    [K_CONST] = { "const", 0 },
    [K_ANY_OF] = { "anyOf", 0 },
    [K_ONE_OF] = { "oneOf", 0 },
    [K_ALL_OF] = { "allOf", 0 },
    [K_REF] = { "$ref", 0 },
    [K_PROPERTIES] = { "properties", T_OBJECT },
    [K_REQUIRED] = { "required", T_OBJECT },
    [K_ADDITIONAL] = { "additionalProperties", T_OBJECT },
    [K_ITEMS] = { "items", T_ARRAY },
    [K_PREFIX_ITEMS] = { "prefixItems", T_ARRAY },
    [K_MIN_ITEMS] = { "minItems", T_ARRAY },
    [K_MAX_ITEMS] = { "maxItems", T_ARRAY },
    [K_MIN_LENGTH] = { "minLength", T_STRING },
    [K_MAX_LENGTH] = { "maxLength", T_STRING },
    [K_PATTERN] = { "pattern", T_STRING },
    [K_MINIMUM] = { "minimum", T_NUMBER },
    [K_MAXIMUM] = { "maximum", T_NUMBER },
    [K_OVER] = { "exclusiveMinimum", T_NUMBER },
    [K_BELOW] = { "exclusiveMaximum", T_NUMBER },
};

/* What describes a value without restricting it.  `format` is an annotation by the standard. */
static const char *const annotations[] = {
    "title",       "description",     "default",          "examples",      "$schema", "$id",
    "$comment",    "deprecated",      "readOnly",         "writeOnly",     "format",  "$defs",
    "definitions", "contentEncoding", "contentMediaType", "discriminator",
};

/* The keywords of one schema as raw JSON; s NULL: not there. */
struct schema {
    struct json_str v[K_COUNT];
};

/* A place that was referred to, with the types that were wanted of it.  The same place with other
 * types is another node: {"$ref": "#/a", "type": "string"} sees only the strings of a. */
struct schema_ref {
    struct schema_ref *next;
    const char *at;
    int types;
    struct node *node;
};

static struct node *compile_schema(struct builder *b, struct json_str raw, int types);

/* ---- reading --------------------------------------------------------------------------------- */

/* Schemas were checked as JSON when they came in, so readers of parts fail only for their type. */
static void read_part(struct builder *b, struct json_reader *r, struct json_str raw)
{
    json_reader_init(r, raw.s, raw.n, b->arena);
}

static bool read_int(struct builder *b, const struct schema *s, enum keyword k, int64_t *out)
{
    struct json_reader r;
    if (!s->v[k].s)
        return true;
    read_part(b, &r, s->v[k]);
    if (json_int64(&r, out) && *out >= 0)
        return true;
    node_fail(b, "%s must be a number that is not negative", keywords[k].name);
    return false;
}

/* NAN: the keyword is not there.  NAN lets the comparison below tell it from any number. */
static double read_bound(struct builder *b, const struct schema *s, enum keyword k)
{
    struct json_reader r;
    double v = NAN;
    if (!s->v[k].s)
        return NAN;
    read_part(b, &r, s->v[k]);
    if (!json_double(&r, &v))
        node_fail(b, "%s must be a number", keywords[k].name);
    return v;
}

/* The member of an object; s NULL: it has none. */
static struct json_str find_member(struct builder *b, struct json_str object, struct json_str name)
{
    struct json_reader r;
    struct json_str key, value = { 0 };
    read_part(b, &r, object);
    if (json_peek(&r) != JSON_OBJECT || !json_begin_object(&r))
        return value;
    while (json_next_key(&r, &key)) {
        struct json_str raw;
        if (!json_raw(&r, &raw))
            break;
        /* The last of two equal members counts, as in JavaScript. */
        if (key.n == name.n && memcmp(key.s, name.s, key.n) == 0)
            value = raw;
    }
    return value;
}

/* 0: not the name of a type, which read_types() refuses. */
static int type_bit(struct json_str name)
{
    static const struct {
        const char *name;
        int bit;
    } types[] = { { "null", T_NULL },    { "boolean", T_BOOL },  { "object", T_OBJECT },
                  { "array", T_ARRAY },  { "string", T_STRING }, { "integer", T_INTEGER },
                  { "number", T_NUMBER } };
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (json_str_is(name, types[i].name))
            return types[i].bit;
    return 0;
}

/* One name, or a list of names. */
static int read_types(struct builder *b, struct json_str raw)
{
    struct json_reader r;
    struct json_str name;
    int types = 0;
    read_part(b, &r, raw);
    if (json_peek(&r) == JSON_STRING) {
        if (json_string(&r, &name))
            types = type_bit(name);
    } else {
        json_begin_array(&r);
        while (json_next_item(&r) && json_string(&r, &name)) {
            int bit = type_bit(name);
            if (!bit)
                json_fail(&r, "type");
            types |= bit;
        }
    }
    if (r.failed || !types)
        node_fail(b, "type must be the name of a type or a list of such");
    return types;
}

/* Sort the members into keywords; what is neither a keyword nor an annotation is refused. */
static bool read_keywords(struct builder *b, struct json_str raw, struct schema *s)
{
    struct json_reader r;
    struct json_str key;
    memset(s, 0, sizeof *s);
    read_part(b, &r, raw);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        struct json_str value;
        bool known = false;
        if (!json_raw(&r, &value))
            break;
        for (size_t i = 0; i < K_COUNT && !known; i++)
            /* The last one counts, again. */
            if ((known = json_str_is(key, keywords[i].name)))
                s->v[i] = value;
        for (size_t i = 0; i < ARRAY_LEN(annotations) && !known; i++)
            known = json_str_is(key, annotations[i]);
        /* Says nothing where it is false or empty.  uniqueItems true cannot be promised by an
         * automaton: it would have to remember every item. */
        if (!known && (json_str_is(key, "uniqueItems") || json_str_is(key, "nullable")))
            known = json_str_is(value, "false");
        if (!known) {
            node_fail(b, "the keyword \"%.*s\" is not supported", (int)(key.n < 60 ? key.n : 60),
                      key.s);
            return false;
        }
    }
    if (r.failed)
        node_fail(b, "%s", json_error(&r));
    return !r.failed;
}

/* ---- types ------------------------------------------------------------------------------------ */

/* Could the text be a value of these types? */
static bool literal_fits(struct builder *b, struct json_str raw, int types)
{
    struct json_reader r;
    double v = 0;
    read_part(b, &r, raw);
    switch (json_peek(&r)) {
    case JSON_NULL:
        return types & T_NULL;
    case JSON_BOOL:
        return types & T_BOOL;
    case JSON_OBJECT:
        return types & T_OBJECT;
    case JSON_ARRAY:
        return types & T_ARRAY;
    case JSON_STRING:
        return types & T_STRING;
    case JSON_NUMBER:
        /* 1.0 is an integer by the standard (draft 6 and later). */
        return json_double(&r, &v) && (types & (v == floor(v) ? T_INTEGER : T_FRACTION));
    default:
        return false;
    }
}

/* The values of enum or const that have one of the types. */
static struct node *compile_enum(struct builder *b, const struct schema *s, int types)
{
    struct node_parts all = { 0 };
    struct json_reader r;
    struct json_str raw;
    if (s->v[K_CONST].s) {
        /* Both at once would need the comparison of JSON values. */
        if (s->v[K_ENUM].s)
            return node_fail(b, "enum beside const is not supported");
        if (literal_fits(b, s->v[K_CONST], types))
            node_add_part(b, &all, value_literal(b, s->v[K_CONST]));
        return node_list(b, NODE_CHOICE, all.v, all.n);
    }
    read_part(b, &r, s->v[K_ENUM]);
    json_begin_array(&r);
    while (json_next_item(&r) && json_raw(&r, &raw))
        if (literal_fits(b, raw, types))
            node_add_part(b, &all, value_literal(b, raw));
    return r.failed ? node_fail(b, "enum must be a list of values")
                    : node_list(b, NODE_CHOICE, all.v, all.n);
}

/* A name of the schema as a JSON string. */
static struct node *name_node(struct builder *b, struct json_str name)
{
    struct buf out;
    struct json_writer w;
    /* The writer escapes as value_open_key() expects it: one spelling per name. */
    buf_init(&out, 1 << 20);
    json_writer_init(&w, &out);
    json_put_string_n(&w, name.s, name.n);
    struct node *x = buf_ok(&out) ? node_text(b, out.data, out.len) : NULL;
    buf_clear(&out);
    return x ? x : node_fail(b, "no memory for a name");
}

/* One member of an object that the schema names. */
struct property {
    struct json_str name, schema;
    bool required;
};

/* The members of an object or the items of an array; what is neither has none. */
static size_t count_items(struct builder *b, struct json_str raw)
{
    struct json_reader r;
    struct json_str key;
    size_t n = 0;
    if (!raw.s)
        return 0;
    read_part(b, &r, raw);
    if (json_peek(&r) == JSON_OBJECT && json_begin_object(&r))
        while (json_next_key(&r, &key) && json_skip(&r))
            n++;
    else if (json_peek(&r) == JSON_ARRAY && json_begin_array(&r))
        while (json_next_item(&r) && json_skip(&r))
            n++;
    return n;
}

/* All that is named, in the order of `properties`; then what only `required` names. */
static size_t read_properties(struct builder *b, const struct schema *s, struct property **out)
{
    struct json_reader r;
    struct json_str name;
    struct property *list;
    size_t n = 0, room = count_items(b, s->v[K_PROPERTIES]) + count_items(b, s->v[K_REQUIRED]);
    if (room > NAMES_MAX)
        room = NAMES_MAX;
    list = *out = arena_array(b->arena, room + 1, sizeof *list);
    if (!list) {
        node_fail(b, "no memory for properties");
        return 0;
    }
    if (s->v[K_PROPERTIES].s) {
        read_part(b, &r, s->v[K_PROPERTIES]);
        json_begin_object(&r);
        while (json_next_key(&r, &name)) {
            if (n == NAMES_MAX)
                json_fail(&r, "more than %d properties", NAMES_MAX);
            else if (json_raw(&r, &list[n].schema))
                list[n++].name = name;
        }
        if (r.failed)
            node_fail(b, "properties: %s", json_error(&r));
    }
    /* A name may be required without being described; then any value will do, if the object is
     * open. */
    if (s->v[K_REQUIRED].s) {
        read_part(b, &r, s->v[K_REQUIRED]);
        json_begin_array(&r);
        while (json_next_item(&r) && json_string(&r, &name)) {
            size_t i = 0;
            while (i < n &&
                   (list[i].name.n != name.n || memcmp(list[i].name.s, name.s, name.n) != 0))
                i++;
            if (i == NAMES_MAX) {
                node_fail(b, "required: more than %d names", NAMES_MAX);
                return 0;
            }
            if (i == n) {
                list[n] = (struct property){ .name = name };
                n++;
            }
            list[i].required = true;
        }
        if (r.failed)
            node_fail(b, "required must be a list of names");
    }
    return n;
}

static struct node *compile_object(struct builder *b, const struct schema *s)
{
    /* Objects are closed unless they say otherwise, or name nothing: an open object lets a model
     * invent members for ever. */
    struct property *list = NULL;
    struct json_str additional = s->v[K_ADDITIONAL];
    size_t n = read_properties(b, s, &list);
    if (b->failed)
        return NULL;
    /* {"type": "object"} alone asks for any object. */
    bool open = additional.s ? !json_str_is(additional, "false") : n == 0;
    struct node *other = !open          ? NULL
                         : additional.s ? compile_schema(b, additional, T_ALL)
                                        : value_any(b);
    struct node *close = node_text(b, "}", 1), *comma = value_comma(b), *colon = value_colon(b);
    /* From the back: rest[1] is what may follow when a member was written already, rest[0] when
     * none was, which decides about the comma. */
    struct node *rest[2] = { close, close };
    if (open) {
        struct json_str *names = arena_array(b->arena, n + 1, sizeof *names);
        if (!names)
            return node_fail(b, "no memory for names");
        for (size_t i = 0; i < n; i++)
            names[i] = list[i].name;
        /* A member of another name must not repeat a named one, or the object would have it
         * twice. */
        struct node *member = node_seq3(b, value_open_key(b, names, n), colon, other);
        struct node *more = node_repeat(b, node_seq2(b, comma, member), 0, NODE_NO_MAX);
        rest[1] = node_seq2(b, more, close);
        rest[0] = node_choice2(b, close, node_seq3(b, member, more, close));
    }
    /* Built from the last member to the first, because each one refers to what may come after
     * it. */
    for (size_t i = n; i-- > 0 && !b->failed;) {
        const struct property *p = &list[i];
        if (!p->schema.s && !open)
            return node_fail(b, "required names \"%.*s\", which properties has not",
                             (int)(p->name.n < 60 ? p->name.n : 60), p->name.s);
        struct node *value = p->schema.s ? compile_schema(b, p->schema, T_ALL) : other;
        struct node *member = node_seq3(b, name_node(b, p->name), colon, value);
        /* The same member twice: as the first one, without a comma, and after another. */
        struct node *first = node_seq2(b, member, rest[1]);
        struct node *later = node_seq3(b, comma, member, rest[1]);
        /* An optional member may be passed over, without a trace in the text. */
        rest[0] = p->required ? first : node_choice2(b, first, rest[0]);
        rest[1] = p->required ? later : node_choice2(b, later, rest[1]);
    }
    return node_seq2(b, node_text(b, "{", 1), rest[0]);
}

static struct node *compile_array(struct builder *b, const struct schema *s)
{
    enum { PREFIX_MAX = 200 };
    struct json_str prefix[PREFIX_MAX], raw;
    struct json_reader r;
    int64_t min = 0, max = -1, n = 0;
    if (!read_int(b, s, K_MIN_ITEMS, &min) || !read_int(b, s, K_MAX_ITEMS, &max))
        return NULL;
    if (s->v[K_PREFIX_ITEMS].s) {
        read_part(b, &r, s->v[K_PREFIX_ITEMS]);
        json_begin_array(&r);
        while (json_next_item(&r) && json_raw(&r, &raw)) {
            if (n == PREFIX_MAX)
                return node_fail(b, "prefixItems has more than %d items", PREFIX_MAX);
            prefix[n++] = raw;
        }
        if (r.failed)
            return node_fail(b, "prefixItems must be a list of schemas");
    }
    /* Schemas are shared, not copied: both uses below refer to the same node. */
    struct node *item = s->v[K_ITEMS].s ? compile_schema(b, s->v[K_ITEMS], T_ALL) : value_any(b);
    struct node *close = node_text(b, "]", 1), *comma = value_comma(b);
    /* Allowed by the standard; no value matches, and finish_grammar() says so if nothing else
     * does. */
    if (max >= 0 && max < min)
        return node_list(b, NODE_CHOICE, NULL, 0);
    /* What follows n items or more; the rest is built from the back as in compile_object(). */
    int64_t need = min > n ? min - n : 0, room = max < 0 ? -1 : max > n ? max - n : 0;
    struct node *more = node_seq2(b, comma, item);
    struct node *rest = node_seq2(b, node_repeat(b, more, need, room), close);
    if (n == 0) {
        /* The first item has no comma before it, so one repetition less follows it. */
        struct node *some = node_seq3(
            b, item, node_repeat(b, more, need > 0 ? need - 1 : 0, room < 0 ? -1 : room - 1),
            close);
        some = room == 0 ? close : need == 0 ? node_choice2(b, close, some) : some;
        return node_seq2(b, node_text(b, "[", 1), some);
    }
    /* A prefix item may be absent with all that follow, once `min` items are there. */
    for (int64_t i = n; i-- > 0 && !b->failed;) {
        struct node *value = compile_schema(b, prefix[i], T_ALL);
        struct node *next = i ? node_seq3(b, comma, value, rest) : node_seq2(b, value, rest);
        rest = max >= 0 && i >= max ? close : i >= min ? node_choice2(b, close, next) : next;
    }
    return node_seq2(b, node_text(b, "[", 1), rest);
}

/* maxLength below minLength is valid and matches nothing: a choice of no parts.  Together with pattern they
 * would need the intersection of two automata. */
static struct node *compile_string(struct builder *b, const struct schema *s)
{
    int64_t min = 0, max = -1;
    struct json_reader r;
    struct json_str pattern;
    if (!read_int(b, s, K_MIN_LENGTH, &min) || !read_int(b, s, K_MAX_LENGTH, &max))
        return NULL;
    if (!s->v[K_PATTERN].s)
        return max >= 0 && max < min ? node_list(b, NODE_CHOICE, NULL, 0)
                                     : value_string(b, min, max);
    if (s->v[K_MIN_LENGTH].s || s->v[K_MAX_LENGTH].s)
        return node_fail(b, "%s beside pattern is not supported",
                         s->v[K_MIN_LENGTH].s ? "minLength" : "maxLength");
    read_part(b, &r, s->v[K_PATTERN]);
    if (!json_string(&r, &pattern))
        return node_fail(b, "pattern must be a text");
    return pattern_node(b, pattern);
}

static struct node *compile_number(struct builder *b, const struct schema *s, bool integer)
{
    double min = read_bound(b, s, K_MINIMUM), max = read_bound(b, s, K_MAXIMUM);
    double over = read_bound(b, s, K_OVER), below = read_bound(b, s, K_BELOW);
    /* x > 2.5 would need an open end of decimal_range(); for integers it is the next one. */
    if (!integer && (!isnan(over) || !isnan(below)))
        return node_fail(b, "%s of a number that is not an integer is not supported",
                         isnan(over) ? "exclusiveMaximum" : "exclusiveMinimum");
    /* Integers: above 2 is from 3 on. */
    if (!isnan(over))
        min = isnan(min) ? floor(over) + 1 : fmax(min, floor(over) + 1);
    if (!isnan(below))
        max = isnan(max) ? ceil(below) - 1 : fmin(max, ceil(below) - 1);
    return b->failed ? NULL : number_node(b, integer, min, max);
}

/* ---- combinations ------------------------------------------------------------------------------ */

/* The types that a schema's values can have, as far as that is said; for oneOf.  T_ALL when nothing
 * is said: then two schemas cannot be told apart. */
static int possible_types(struct builder *b, struct json_str raw)
{
    struct schema s;
    struct json_reader r;
    struct json_str item;
    int types = 0;
    read_part(b, &r, raw);
    if (json_peek(&r) != JSON_OBJECT || !read_keywords(b, raw, &s))
        return T_ALL;
    if (s.v[K_CONST].s)
        /* One type after the other, until the constant fits. */
        for (int bit = 1; bit < T_ALL; bit *= 2)
            types |= literal_fits(b, s.v[K_CONST], bit) ? bit : 0;
    if (s.v[K_ENUM].s) {
        read_part(b, &r, s.v[K_ENUM]);
        json_begin_array(&r);
        while (json_next_item(&r) && json_raw(&r, &item))
            for (int bit = 1; bit < T_ALL; bit *= 2)
                types |= literal_fits(b, item, bit) ? bit : 0;
    }
    /* enum and const are more exact than type. */
    if (types)
        return types;
    if (s.v[K_TYPE].s)
        return read_types(b, s.v[K_TYPE]);
    for (size_t i = 0; i < K_COUNT; i++)
        types |= s.v[i].s ? keywords[i].type : 0;
    return types ? types : T_ALL;
}

/* Is there a property that both require, with different constants?  Such a property is how a tagged
 * union (discriminator) is written. */
static bool constants_differ(struct builder *b, struct json_str x, struct json_str y)
{
    struct schema a, c;
    struct property *list = NULL;
    if (!read_keywords(b, x, &a) || !read_keywords(b, y, &c))
        return false;
    const struct json_str word = { "const", 5 };
    /* Two constants are compared as text: different spelling of one value would be refused
     * later. */
    if (a.v[K_CONST].s && c.v[K_CONST].s)
        return a.v[K_CONST].n != c.v[K_CONST].n ||
               memcmp(a.v[K_CONST].s, c.v[K_CONST].s, a.v[K_CONST].n) != 0;
    struct property *other = NULL;
    size_t n = read_properties(b, &a, &list), m = read_properties(b, &c, &other);
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < m && (other[k].name.n != list[i].name.n ||
                         memcmp(other[k].name.s, list[i].name.s, list[i].name.n) != 0))
            k++;
        if (k == m || !other[k].required || !list[i].required || !other[k].schema.s ||
            !list[i].schema.s)
            continue;
        struct json_str p = find_member(b, list[i].schema, word);
        struct json_str q = find_member(b, other[k].schema, word);
        /* Texts only: 1 and 1.0 would be the same number. */
        if (p.s && q.s && *p.s == '"' && *q.s == '"' && (p.n != q.n || memcmp(p.s, q.s, p.n) != 0))
            return true;
    }
    return false;
}

static struct node *compile_choice(struct builder *b, struct json_str raw, enum keyword k,
                                   int types)
{
    enum { CHOICES_MAX = 200 };
    struct json_reader r;
    struct json_str items[CHOICES_MAX];
    struct node *parts[CHOICES_MAX];
    size_t n = 0;
    read_part(b, &r, raw);
    json_begin_array(&r);
    while (json_next_item(&r)) {
        if (n == CHOICES_MAX)
            return node_fail(b, "%s has more than %d schemas", keywords[k].name, CHOICES_MAX);
        if (json_raw(&r, &items[n]))
            n++;
    }
    if (r.failed || n == 0)
        return node_fail(b, "%s must be a list of schemas", keywords[k].name);
    /* An intersection of two automata can be very large, and schemas of one part are what
     * generators of schemas write. */
    if (k == K_ALL_OF && n > 1)
        return node_fail(b, "allOf of more than one schema is not supported");
    /* oneOf: a value must not fit two of them, which is certain only if they have nothing in
     * common. */
    for (size_t i = 0; k == K_ONE_OF && i < n; i++)
        for (size_t j = 0; j < i; j++)
            if ((possible_types(b, items[i]) & possible_types(b, items[j])) &&
                !constants_differ(b, items[i], items[j]))
                return node_fail(b, "oneOf: a value may fit two of its schemas; use anyOf, or give "
                                    "them different types or constants");
    for (size_t i = 0; i < n; i++)
        /* anyOf and oneOf are the same automaton once oneOf is known to be exclusive. */
        parts[i] = compile_schema(b, items[i], types);
    return node_list(b, NODE_CHOICE, parts, n);
}

/* "#/$defs/name", "#": a place of this schema. */
static struct node *compile_ref(struct builder *b, struct json_str raw, int types)
{
    struct json_reader r;
    struct json_str text, at = b->root;
    read_part(b, &r, raw);
    /* Other documents are not fetched: a request must not make the server call somebody. */
    if (!json_string(&r, &text) || text.n == 0 || text.s[0] != '#')
        return node_fail(b, "$ref must begin with # and name a place of this schema");
    for (size_t i = 1; i < text.n && at.s;) {
        char name[256];
        size_t n = 0;
        if (text.s[i++] != '/')
            return node_fail(b, "$ref: expected / in \"%.*s\"", (int)text.n, text.s);
        /* JSON Pointer (RFC 6901): ~1 is /, ~0 is ~. */
        for (; i < text.n && text.s[i] != '/' && n < sizeof name; i++) {
            bool tilde = text.s[i] == '~' && i + 1 < text.n;
            name[n++] = !tilde ? text.s[i] : text.s[i + 1] == '1' ? '/' : '~';
            i += tilde;
        }
        at = find_member(b, at, (struct json_str){ name, n });
    }
    if (!at.s)
        return node_fail(b, "$ref: there is no \"%.*s\"", (int)(text.n < 100 ? text.n : 100),
                         text.s);
    /* Without this a recursive schema would never end. */
    for (const struct schema_ref *x = b->refs; x; x = x->next)
        if (x->at == at.s && x->types == types)
            return x->node; /* perhaps still being made: a circle */
    struct schema_ref *ref = arena_alloc(b->arena, sizeof *ref);
    struct node *later = node_later(b);
    if (!ref || !later)
        return node_fail(b, "no memory for a reference");
    /* Registered before it is compiled, so that a circle finds it above. */
    *ref = (struct schema_ref){ b->refs, at.s, types, later };
    b->refs = ref;
    node_resolve(b, later, compile_schema(b, at, types));
    return later;
}

/* Keywords that stand for the whole value cannot be combined with others.  By the standard all
 * keywords of a schema hold at once, which would again be an intersection. */
static bool check_alone(struct builder *b, const struct schema *s, enum keyword k)
{
    for (size_t i = 0; i < K_COUNT; i++)
        if (s->v[i].s && i != (size_t)k && i != K_TYPE) {
            node_fail(b, "%s beside %s is not supported", keywords[i].name, keywords[k].name);
            return false;
        }
    return true;
}

static struct node *compile_keywords(struct builder *b, const struct schema *s, int types)
{
    /* Keywords that stand for the whole value, $ref first. */
    static const enum keyword whole[] = { K_REF, K_ENUM, K_CONST, K_ANY_OF, K_ONE_OF, K_ALL_OF };
    int said = 0;
    if (s->v[K_TYPE].s)
        types &= read_types(b, s->v[K_TYPE]);
    for (size_t i = 0; i < ARRAY_LEN(whole) && !b->failed; i++) {
        enum keyword k = whole[i];
        if (!s->v[k].s)
            continue;
        if (!check_alone(b, s, k))
            return NULL;
        if (k == K_REF)
            return compile_ref(b, s->v[k], types);
        if (k == K_ENUM || k == K_CONST)
            return compile_enum(b, s, types);
        return compile_choice(b, s->v[k], k, types);
    }
    /* Without `type` the keywords say which values are meant; the standard would let all other
     * types pass as well. */
    for (size_t i = 0; i < K_COUNT && !s->v[K_TYPE].s; i++)
        said |= s->v[i].s ? keywords[i].type : 0;
    types &= said ? said : T_ALL;
    if (types == T_ALL && !said)
        return value_any(b);
    struct node *parts[6];
    size_t n = 0;
    if (types & T_OBJECT)
        parts[n++] = compile_object(b, s);
    if (types & T_ARRAY)
        parts[n++] = compile_array(b, s);
    if (types & T_STRING)
        parts[n++] = compile_string(b, s);
    if (types & T_NUMBER) /* "number" has both bits; only the fraction cannot be asked for */
        parts[n++] = compile_number(b, s, !(types & T_FRACTION));
    if (types & T_BOOL)
        parts[n++] = node_choice2(b, node_text(b, "true", 4), node_text(b, "false", 5));
    if (types & T_NULL)
        parts[n++] = node_text(b, "null", 4);
    return node_list(b, NODE_CHOICE, parts, n);
}

/* Values of the schema that have one of the types. */
static struct node *compile_schema(struct builder *b, struct json_str raw, int types)
{
    struct json_reader r;
    struct schema s;
    struct node *x = NULL;
    if (b->failed)
        return NULL;
    if (++b->depth > SCHEMA_DEPTH)
        return node_fail(b, "schemas are nested too deeply");
    read_part(b, &r, raw);
    /* false allows nothing, true everything. */
    if (json_str_is(raw, "false"))
        x = node_list(b, NODE_CHOICE, NULL, 0);
    else if (json_str_is(raw, "true"))
        x = compile_keywords(b, &(struct schema){ 0 }, types);
    else if (json_peek(&r) != JSON_OBJECT)
        node_fail(b, "a schema must be an object, true or false");
    else if (read_keywords(b, raw, &s))
        x = compile_keywords(b, &s, types);
    /* Not decreased on failure, where no one reads it any more. */
    b->depth--;
    return x;
}

struct node *schema_node(struct builder *b, struct json_str schema)
{
    struct json_reader r;
    struct json_str raw;
    /* Its length bounds the work of all linear look-ups. */
    if (schema.n > SCHEMA_BYTES)
        return node_fail(b, "it is longer than %d bytes", SCHEMA_BYTES);
    json_reader_init(&r, schema.s, schema.n, b->arena);
    if (!json_raw(&r, &raw) || !json_end(&r))
        return node_fail(b, "%s", json_error(&r));
    b->root = raw;
    b->refs = NULL;
    return compile_schema(b, raw, T_ALL);
}

/* ---- whole grammars --------------------------------------------------------------------------- */

/* The grammar takes the arena over; on failure it is cleared. */
static struct grammar *finish_grammar(struct builder *b, struct node *root)
{
    struct grammar *g = NULL;
    if (!b->failed && !node_classify(b, root))
        node_fail(b, "no value is allowed by it");
    if (!b->failed && !(g = grammar_new(b->arena, root)))
        err_nomem(b->err, "a grammar");
    if (!g)
        arena_clear(b->arena);
    return g;
}

struct grammar *grammar_from_schema(const char *schema, size_t n, tinker_error *err)
{
    tinker_error ignored;
    struct arena arena;
    struct builder b = { .arena = &arena, .err = err ? err : &ignored };
    /* 64 MiB for nodes, several hundred bytes each. */
    arena_init(&arena, 64 << 20);
    return finish_grammar(&b, schema_node(&b, (struct json_str){ schema, n }));
}

struct grammar *grammar_from_calls(const struct grammar_call *calls, size_t n, const char *before,
                                   const char *between, const char *after, tinker_error *err)
{
    tinker_error ignored;
    struct arena arena;
    struct builder b = { .arena = &arena, .err = err ? err : &ignored };
    arena_init(&arena, 64 << 20);
    struct node_parts all = { 0 };
    for (size_t i = 0; i < n && !b.failed; i++) {
        /* A function without parameters still gets an object. */
        static const char any[] = "{\"type\":\"object\"}";
        struct json_str name = { calls[i].name, strlen(calls[i].name) };
        struct json_str schema = { calls[i].schema, calls[i].n_schema };
        if (!schema.s)
            schema = (struct json_str){ any, sizeof any - 1 };
        /* The text around name and arguments is that of the chat template, not ours. */
        struct node *head = node_seq3(&b, node_text(&b, before, strlen(before)),
                                      name_node(&b, name), node_text(&b, between, strlen(between)));
        struct node *call =
            node_seq3(&b, head, schema_node(&b, schema), node_text(&b, after, strlen(after)));
        node_add_part(&b, &all, call);
    }
    return finish_grammar(&b, node_list(&b, NODE_CHOICE, all.v, all.n));
}
