/* reader.c - fills a struct from JSON by walking its description.
 *
 * Every value is read with its place on the C stack, so the first failure can name
 * it; after a failure everything returns false and nothing more is read. */
#include "wire/json/describe.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "wire/json/collection.h"
#include "wire/json/scalar.h"

/* ---- failures -------------------------------------------------------------------- */

/* Keep the first failure, with the place that is being read. */
static bool fail_at_place(struct wire_reader *r, tinker_status status, const char *text)
{
    if (r->status != TINKER_OK)
        return false;
    /* The text is made only now: reading without errors never pays for it. A path that is too long
     * is cut in front, see wire_place_text(). */
    char place[256];
    wire_place_text(r->place, place, sizeof place);
    r->status = err_set(r->err, status, "%s%s%s", place, *place ? ": " : "", text);
    return false;
}

/* Always false, so that callers can return it. */
bool wire_read_fail(struct wire_reader *r, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fail_at_place(r, TINKER_EINVAL, text);
}

bool wire_read_nomem(struct wire_reader *r)
{
    return fail_at_place(r, TINKER_ENOMEM, "not enough memory");
}

/* The JSON reader tells a lack of memory by its text only; it must not look like bad input. */
static tinker_status json_status(const struct json_reader *in)
{
    return strstr(json_error(in), "no memory for") ? TINKER_ENOMEM : TINKER_EINVAL;
}

/* Moves a failure of the JSON text itself to its place; true: none so far. */
bool wire_read_ok(struct wire_reader *r)
{
    if (r->status == TINKER_OK && r->json.failed)
        fail_at_place(r, json_status(&r->json), json_error(&r->json));
    return r->status == TINKER_OK;
}

/* For a text that is read with a reader of its own, such as the data of a tensor. */
bool wire_read_failed(struct wire_reader *r, const char *what, const struct json_reader *in)
{
    struct wire_place place = { .up = r->place, .name = what };
    r->place = &place;
    fail_at_place(r, json_status(in), in->failed ? json_error(in) : "not enough memory");
    r->place = place.up;
    return false;
}

/* Any JSON object, kept as text. */
static bool read_object_text(struct wire_reader *r, struct json_str *out)
{
    struct json_str raw;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    if (!json_raw(&r->json, &raw))
        return wire_read_ok(r);
    /* A copy: nothing in a result may point into the text, which the caller frees. It ends with
     * NUL, which WIRE_OBJECT_CSTR relies on. */
    out->s = arena_strndup(r->arena, raw.s, raw.n);
    out->n = raw.n;
    return out->s != NULL || wire_read_nomem(r);
}

/* ---- fields ---------------------------------------------------------------------- */

/* The kinds that store an int64_t at the field. */
static bool read_int_field(struct wire_reader *r, const struct wire_field *f, char *value)
{
    int64_t *at = (int64_t *)(value + f->offset);
    /* That it is given is said beside the number. */
    if (f->kind == WIRE_INT_HAS || f->kind == WIRE_SEED)
        *(int *)(value + f->aux) = 1;
    if (!(f->kind == WIRE_SEED ? wire_read_seed(r, at) : wire_read_int(r, at)))
        return false;
    return f->kind != WIRE_POSITIVE || *at > 0 || wire_read_fail(r, "must be positive");
}

/* A text that must be one of the field's words.  A newer peer may know more of them: where that is
 * tolerated (WIRE_OPEN), an unknown word is NULL or -1. */
static bool read_enum_field(struct wire_reader *r, const struct wire_field *f, char *value)
{
    const char *s = NULL;
    if (!wire_read_string(r, &s))
        return false;
    int index = 0;
    while (f->words[index] && strcmp(f->words[index], s) != 0)
        index++;
    if (!f->words[index])
        index = -1;
    if (index < 0 && !(f->flags & WIRE_OPEN)) {
        char known[160] = "";
        size_t n = 0;
        for (int i = 0; f->words[i] && n < sizeof known; i++)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s\"%s\"", i ? ", " : "",
                                  f->words[i]);
        return wire_read_fail(r, "expected %s, got \"%.60s\"", known, s);
    }
    /* A WIRE_LITERAL has no member; that the word was right is all there is to know. */
    if (f->kind == WIRE_ENUM)
        *(int *)(value + f->offset) = index;
    else if (f->kind == WIRE_WORD)
        *(const char **)(value + f->offset) = index < 0 ? NULL : f->words[index];
    return true;
}

/* at points into the struct by the offset in the table; the kind says which C type is there. */
static bool read_field(struct wire_reader *r, const struct wire_field *f, char *value)
{
    void *at = value + f->offset;
    /* null leaves the default, as an absent field does. */
    if ((f->flags & WIRE_NULLABLE) && json_peek(&r->json) == JSON_NULL)
        return json_null(&r->json) || wire_read_ok(r);
    switch (f->kind) {
    case WIRE_STRING:
        return wire_read_string(r, at);
    case WIRE_WORD:
    case WIRE_LITERAL:
    case WIRE_ENUM:
        return read_enum_field(r, f, value);
    case WIRE_BOOL:
        return wire_read_bool(r, at);
    /* -1 of WIRE_FLAG_KNOWN comes from the defaults of the type and stays when the key is
     * absent. */
    case WIRE_FLAG:
    case WIRE_FLAG_KNOWN: {
        bool b = false;
        bool ok = wire_read_bool(r, &b);
        *(int *)at = b;
        return ok;
    }
    /* `has` before the read: if that fails, the whole struct is dropped. */
    case WIRE_OPT_BOOL:
        ((struct wire_opt_bool *)at)->has = 1;
        return wire_read_bool(r, &((struct wire_opt_bool *)at)->value);
    /* Numbers that say "not given" by 0 or -1 differ only in their default and in the writer. */
    case WIRE_INT:
    case WIRE_INT_KNOWN:
    case WIRE_INT_HAS:
    case WIRE_SEED:
    case WIRE_POSITIVE:
        return read_int_field(r, f, value);
    case WIRE_OPT_INT:
        ((struct wire_opt_int *)at)->has = 1;
        return wire_read_int(r, &((struct wire_opt_int *)at)->value);
    case WIRE_DOUBLE:
    case WIRE_DOUBLE_KNOWN:
    case WIRE_DOUBLE_SET:
        return wire_read_double(r, at);
    case WIRE_OPT_DOUBLE:
        ((struct wire_opt_double *)at)->has = 1;
        return wire_read_double(r, &((struct wire_opt_double *)at)->value);
    case WIRE_TIME:
        return wire_read_time(r, at);
    /* A time without an offset is taken for UTC: there is no room for the difference. */
    case WIRE_TIME_US: {
        struct wire_time t = { 0 };
        bool ok = wire_read_time(r, &t);
        *(int64_t *)at = t.us;
        return ok;
    }
    case WIRE_OBJECT_TEXT:
        return read_object_text(r, at);
    case WIRE_OBJECT_CSTR: {
        struct json_str text = { 0 };
        bool ok = read_object_text(r, &text);
        *(const char **)at = text.s;
        return ok;
    }
    case WIRE_BYTES:
        return wire_read_bytes(r, at, (size_t *)(value + f->aux));
    case WIRE_STRINGS:
        return wire_read_strings(r, at);
    case WIRE_NAMED_STRINGS:
        return wire_read_named_strings(r, at);
    case WIRE_STRING_PAIRS: {
        struct wire_named_strings pairs = { 0 };
        bool ok = wire_read_named_strings(r, &pairs);
        static const tinker_named_string none[1]; /* an empty object is given, too */
        *(const tinker_named_string **)at = ok && !pairs.v ? none : pairs.v;
        *(size_t *)(value + f->aux) = pairs.n;
        return ok;
    }
    case WIRE_NUMBERS: {
        struct wire_numbers *v = at;
        v->has = 1;
        return wire_read_numbers(r, &v->v, &v->n);
    }
    case WIRE_NUMBER_PAIRS:
        return wire_read_numbers(r, at, (size_t *)(value + f->aux));
    case WIRE_STRUCT:
        return wire_read_value(r, f->type, at);
    case WIRE_POINTER: {
        /* Zeroed by the arena, then filled with the defaults of its own type. */
        void *p = arena_alloc(r->arena, f->type->size);
        *(const void **)at = p;
        return p ? wire_read_value(r, f->type, p) : wire_read_nomem(r);
    }
    case WIRE_LIST:
        return wire_read_list(r, f->type, at, (size_t *)(value + f->aux));
    case WIRE_MAP:
        return wire_read_map(r, f->type, at, (size_t *)(value + f->aux));
    case WIRE_CUSTOM:
        return f->read(r, value);
    }
    return wire_read_fail(r, "cannot be read");
}

/* ---- objects --------------------------------------------------------------------- */

/* A field without variants belongs to all. */
static bool in_variant(const struct wire_field *f, int variant)
{
    return f->variants == 0 || (variant >= 0 && (f->variants >> variant & 1));
}

/* The name of what is missing belongs into the place. */
static bool fail_missing(struct wire_reader *r, const struct wire_field *f)
{
    struct wire_place place = { .up = r->place, .name = f->name };
    r->place = &place;
    wire_read_fail(r, "is required");
    r->place = place.up;
    return false;
}

static bool fail_unknown(struct wire_reader *r, struct json_str key)
{
    return wire_read_fail(r, "unknown field \"%.*s\"", (int)(key.n < 80 ? key.n : 80), key.s);
}

/* The variant: from the tag, or guessed from the keys, since old clients left out
 * fields at their default value.  WIRE_OPEN unknown tags give -1. */
static bool find_variant(struct wire_reader *r, const struct wire_type *type, char *value,
                         uint64_t seen, int *variant)
{
    /* Every tagged type has its tag among its fields. */
    const struct wire_field *tag = type->fields;
    while (strcmp(tag->name, type->tag) != 0)
        tag++;
    int *at = (int *)(value + tag->offset);
    /* Strict readers do not guess: best stays 0, and the tag is reported as missing. */
    if (!(seen >> (tag - type->fields) & 1)) {
        /* The variant with the most of its own fields, if it has all that it requires. */
        int best = 0;
        for (int i = 0; r->mode == WIRE_LENIENT && tag->words[i]; i++) {
            int own = 0; /* fields of this variant that were seen; 0 when one is missing */
            for (size_t k = 0; k < type->n_fields; k++) {
                const struct wire_field *f = &type->fields[k];
                if (!f->variants || !in_variant(f, i))
                    continue;
                bool there = seen >> k & 1;
                if (!there && (f->flags & WIRE_REQUIRED)) {
                    own = 0;
                    break;
                }
                own += there;
            }
            /* On a tie the first variant wins, in the order of the words. */
            *at = own > best ? i : *at;
            best = own > best ? own : best;
        }
        if (best == 0)
            return fail_missing(r, tag);
    }
    *variant = *at;
    return true;
}

/* After the object: is everything there that its variant requires, and nothing of another one?
 * Bit i of `seen` is field i, which is why a table has at most 64. */
static bool check_seen(struct wire_reader *r, const struct wire_type *type, char *value,
                       uint64_t seen)
{
    int variant = -1;
    if (type->tag && !find_variant(r, type, value, seen, &variant))
        return false;
    for (size_t i = 0; i < type->n_fields; i++) {
        const struct wire_field *f = &type->fields[i];
        bool there = seen >> i & 1, ours = in_variant(f, variant);
        bool tag = type->tag && strcmp(f->name, type->tag) == 0; /* settled above */
        if (ours && !there && !tag && (f->flags & WIRE_REQUIRED))
            return fail_missing(r, f);
        /* A lenient reader ignores it. If the field shares a member with one of this variant, the
         * value that came last is kept. */
        if (!ours && there && r->mode == WIRE_STRICT && !type->ignores_unknown)
            return fail_unknown(r, (struct json_str){ f->name, strlen(f->name) });
    }
    return true;
}

static bool read_fields(struct wire_reader *r, const struct wire_type *type, char *value)
{
    uint64_t seen = 0;
    struct json_str key;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    json_begin_object(&r->json);
    while (json_next_key(&r->json, &key)) {
        /* Tables are short, so a linear search beats a hash. */
        size_t i = 0;
        while (i < type->n_fields && !json_str_is(key, type->fields[i].name))
            i++;
        if (i == type->n_fields) {
            /* A user's typo is worth an error; a peer's new field is not. */
            if (r->mode == WIRE_STRICT && !type->ignores_unknown)
                return fail_unknown(r, key);
            json_skip(&r->json);
            continue;
        }
        /* The place lives on the stack as long as the value is being read. */
        struct wire_place place = { .up = r->place, .name = type->fields[i].name };
        r->place = &place;
        bool ok = read_field(r, &type->fields[i], value);
        r->place = place.up;
        if (!ok)
            return false;
        /* A key that comes twice is read again, into the same member. */
        seen |= UINT64_C(1) << i;
    }
    return wire_read_ok(r) && check_seen(r, type, value, seen) &&
           (!type->check || type->check(r, value));
}

/* Also for nested values: type->read takes over where a table cannot say it. */
bool wire_read_value(struct wire_reader *r, const struct wire_type *type, void *value)
{
    assert(type->n_fields <= 64);
    /* Fields that are absent keep these. For a WIRE_STRUCT that is absent itself this is not
     * called: the defaults of the outer type have to hold those of the inner one. */
    if (type->defaults)
        memcpy(value, type->defaults, type->size);
    return type->read ? type->read(r, value) : read_fields(r, type, value);
}

bool wire_read_named(struct wire_reader *r, const char *name, const struct wire_type *type,
                     void *value)
{
    struct wire_place place = { .up = r->place, .name = name };
    r->place = &place;
    bool ok = wire_read_value(r, type, value);
    r->place = place.up;
    return ok;
}

/* ---- public ---------------------------------------------------------------------- */

/* Everything in value that is not scalar lives in the arena. */
tinker_status wire_decode_json(const struct wire_type *type, const char *json, size_t n,
                               enum wire_mode mode, struct arena *arena, void *value,
                               tinker_error *err)
{
    struct wire_reader r = { .arena = arena, .mode = mode, .err = err };
    json_reader_init(&r.json, json, n, arena);
    /* Zero means "not given" for most kinds. Types with fields for which it is -1, NaN or
     * TINKER_NO_TIME have defaults, and wire_read_value() copies those. */
    memset(value, 0, type->size);
    /* Text behind the value is a fault, too; json_end() has set it, wire_read_ok() reports it. */
    if (wire_read_value(&r, type, value) && !json_end(&r.json))
        wire_read_ok(&r);
    return r.status;
}

/* The same mistake is EINVAL in a user's text and EPROTOCOL in a peer's. */
tinker_status wire_as_answer(tinker_status status, tinker_error *err)
{
    if (status != TINKER_EINVAL)
        return status;
    /* The message stays; it names the field of the response. */
    if (err)
        err->status = TINKER_EPROTOCOL;
    return TINKER_EPROTOCOL;
}

void wire_init(const struct wire_type *type, void *value)
{
    memset(value, 0, type->size);
    if (type->defaults)
        memcpy(value, type->defaults, type->size);
}
