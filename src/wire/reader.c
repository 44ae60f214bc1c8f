/* reader.c - fills a struct from JSON by walking its description.
 *
 * Every value is read with its place on the C stack, so the first failure can name
 * it; after a failure everything returns false and nothing more is read. */
#include "wire/describe.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "wire/collection.h"
#include "wire/scalar.h"

/* ---- failures -------------------------------------------------------------------- */

static bool fail(struct wire_reader *r, tinker_status status, const char *text)
{
    if (r->status != TINKER_OK)
        return false;
    char place[256];
    wire_place_text(r->place, place, sizeof place);
    r->status = err_set(r->err, status, "%s%s%s", place, *place ? ": " : "", text);
    return false;
}

bool wire_read_fail(struct wire_reader *r, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fail(r, TINKER_EINVAL, text);
}

bool wire_read_nomem(struct wire_reader *r)
{
    return fail(r, TINKER_ENOMEM, "not enough memory");
}

/* The JSON reader tells a lack of memory by its text only. */
static tinker_status json_status(const struct json_reader *in)
{
    return strstr(json_error(in), "no memory for") ? TINKER_ENOMEM : TINKER_EINVAL;
}

bool wire_read_ok(struct wire_reader *r)
{
    if (r->status == TINKER_OK && r->json.failed)
        fail(r, json_status(&r->json), json_error(&r->json));
    return r->status == TINKER_OK;
}

bool wire_read_failed(struct wire_reader *r, const char *what, const struct json_reader *in)
{
    struct wire_place place = { .up = r->place, .name = what };
    r->place = &place;
    fail(r, json_status(in), in->failed ? json_error(in) : "not enough memory");
    r->place = place.up;
    return false;
}

/* ---- words ----------------------------------------------------------------------- */

static int word_index(const char *const *words, const char *s)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], s) == 0)
            return i;
    return -1;
}

/* Reads a text that must be one of the field's words; -1 for an unknown one that is
 * tolerated. */
static bool read_word(struct wire_reader *r, const struct wire_field *f, int *index)
{
    const char *s = NULL;
    if (!wire_read_string(r, &s))
        return false;
    *index = word_index(f->words, s);
    if (*index >= 0 || (f->flags & WIRE_OPEN))
        return true;
    char known[160] = "";
    size_t n = 0;
    for (int i = 0; f->words[i] && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s\"%s\"", i ? ", " : "", f->words[i]);
    return wire_read_fail(r, "expected %s, got \"%.60s\"", known, s);
}

/* Any JSON object, kept as text. */
static bool read_object_text(struct wire_reader *r, struct json_str *out)
{
    struct json_str raw;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    if (!json_raw(&r->json, &raw))
        return wire_read_ok(r);
    out->s = arena_strndup(r->arena, raw.s, raw.n);
    out->n = raw.n;
    return out->s != NULL || wire_read_nomem(r);
}

/* ---- fields ---------------------------------------------------------------------- */

static bool read_pointer(struct wire_reader *r, const struct wire_type *type, const void **out)
{
    void *p = arena_alloc(r->arena, type->size);
    *out = p;
    return p ? wire_read_value(r, type, p) : wire_read_nomem(r);
}

static bool read_int_field(struct wire_reader *r, const struct wire_field *f, char *value)
{
    int64_t *at = (int64_t *)(value + f->offset);
    if (f->kind == WIRE_INT_HAS || f->kind == WIRE_SEED)
        *(int *)(value + f->aux) = 1;
    if (!(f->kind == WIRE_SEED ? wire_read_seed(r, at) : wire_read_int(r, at)))
        return false;
    return f->kind != WIRE_POSITIVE || *at > 0 || wire_read_fail(r, "must be positive");
}

static bool read_enum_field(struct wire_reader *r, const struct wire_field *f, char *value)
{
    int index = -1;
    if (!read_word(r, f, &index))
        return false;
    if (f->kind == WIRE_ENUM)
        *(int *)(value + f->offset) = index;
    else if (f->kind == WIRE_WORD)
        *(const char **)(value + f->offset) = index < 0 ? NULL : f->words[index];
    return true;
}

static bool read_field(struct wire_reader *r, const struct wire_field *f, char *value)
{
    void *at = value + f->offset;
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
    case WIRE_FLAG:
    case WIRE_FLAG_KNOWN: {
        bool b = false;
        bool ok = wire_read_bool(r, &b);
        *(int *)at = b;
        return ok;
    }
    case WIRE_OPT_BOOL:
        ((struct wire_opt_bool *)at)->has = 1;
        return wire_read_bool(r, &((struct wire_opt_bool *)at)->value);
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
        return wire_read_double(r, at);
    case WIRE_OPT_DOUBLE:
        ((struct wire_opt_double *)at)->has = 1;
        return wire_read_double(r, &((struct wire_opt_double *)at)->value);
    case WIRE_TIME:
        return wire_read_time(r, at);
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
        *(const tinker_named_string **)at = pairs.v;
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
    case WIRE_POINTER:
        return read_pointer(r, f->type, at);
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

static size_t field_index(const struct wire_type *type, struct json_str key)
{
    size_t i = 0;
    while (i < type->n_fields && !json_str_is(key, type->fields[i].name))
        i++;
    return i;
}

static bool in_variant(const struct wire_field *f, int variant)
{
    return f->variants == 0 || (variant >= 0 && (f->variants >> variant & 1));
}

static bool missing(struct wire_reader *r, const struct wire_field *f)
{
    struct wire_place place = { .up = r->place, .name = f->name };
    r->place = &place;
    wire_read_fail(r, "is required");
    r->place = place.up;
    return false;
}

static bool unknown(struct wire_reader *r, struct json_str key)
{
    return wire_read_fail(r, "unknown field \"%.*s\"", (int)(key.n < 80 ? key.n : 80), key.s);
}

/* How many of the variant's own fields were seen; 0 when one that it requires was not. */
static int fit(const struct wire_type *type, uint64_t seen, int variant)
{
    int own = 0;
    for (size_t i = 0; i < type->n_fields; i++) {
        const struct wire_field *f = &type->fields[i];
        if (!f->variants || !in_variant(f, variant))
            continue;
        bool there = seen >> i & 1;
        if (!there && (f->flags & WIRE_REQUIRED))
            return 0;
        own += there;
    }
    return own;
}

/* The variant: from the tag, or guessed from the keys, since old clients left out
 * fields at their default value.  WIRE_OPEN unknown tags give -1. */
static bool find_variant(struct wire_reader *r, const struct wire_type *type, char *value,
                         uint64_t seen, int *variant)
{
    const struct wire_field *tag = type->fields;
    while (strcmp(tag->name, type->tag) != 0)
        tag++;
    int *at = (int *)(value + tag->offset);
    if (!(seen >> (tag - type->fields) & 1)) {
        int best = 0;
        for (int i = 0; r->mode == WIRE_LENIENT && tag->words[i]; i++) {
            int own = fit(type, seen, i);
            *at = own > best ? i : *at;
            best = own > best ? own : best;
        }
        if (best == 0)
            return missing(r, tag);
    }
    *variant = *at;
    return true;
}

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
            return missing(r, f);
        if (!ours && there && r->mode == WIRE_STRICT && !type->ignores_unknown)
            return unknown(r, (struct json_str){ f->name, strlen(f->name) });
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
        size_t i = field_index(type, key);
        if (i == type->n_fields) {
            if (r->mode == WIRE_STRICT && !type->ignores_unknown)
                return unknown(r, key);
            json_skip(&r->json);
            continue;
        }
        struct wire_place place = { .up = r->place, .name = type->fields[i].name };
        r->place = &place;
        bool ok = read_field(r, &type->fields[i], value);
        r->place = place.up;
        if (!ok)
            return false;
        seen |= UINT64_C(1) << i;
    }
    return wire_read_ok(r) && check_seen(r, type, value, seen) &&
           (!type->check || type->check(r, value));
}

bool wire_read_value(struct wire_reader *r, const struct wire_type *type, void *value)
{
    assert(type->n_fields <= 64);
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

tinker_status wire_decode_json(const struct wire_type *type, const char *json, size_t n,
                               enum wire_mode mode, struct arena *arena, void *value,
                               tinker_error *err)
{
    struct wire_reader r = { .arena = arena, .mode = mode, .err = err };
    json_reader_init(&r.json, json, n, arena);
    memset(value, 0, type->size);
    if (wire_read_value(&r, type, value) && !json_end(&r.json))
        wire_read_ok(&r);
    return r.status;
}

tinker_status wire_as_answer(tinker_status status, tinker_error *err)
{
    if (status != TINKER_EINVAL)
        return status;
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
