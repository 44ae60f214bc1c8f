/* hash.c - the hash of a value, by walking its description.
 *
 * The server keeps such hashes with its requests, to tell a retry from another request with the
 * same number.  So the hash must not depend on how a request was encoded, and must stay the same
 * when a later release adds a field to a table:
 *   - a field takes part as its name and its value, each with its length, so that neighbors cannot
 *     trade bytes;
 *   - a field that is not given, or a plain number or flag at its default, does not take part;
 *   - the entries of an object have no order, and neither has the sum of their hashes. */
#include "wire/json/describe.h"

#include <assert.h>
#include <string.h>
#include "base/map.h"

uint64_t wire_hash_bytes(uint64_t h, const void *p, size_t n)
{
    /* The length first, or "ab" + "c" would hash as "a" + "bc". */
    h = hash_bytes(&n, sizeof(n), h);
    /* NULL and 0 bytes hash like an empty text; wire_hash_text() tells NULL from it. */
    return hash_bytes(p ? p : "", p ? n : 0, h);
}

/* NULL differs from the empty text: no text has this length. */
uint64_t wire_hash_text(uint64_t h, const char *s)
{
    return s ? wire_hash_bytes(h, s, strlen(s)) : wire_hash_bytes(h, NULL, SIZE_MAX);
}

/* As 8 bytes in the byte order of the machine: hashes are compared by the server that made them,
 * and its database does not travel. */
static uint64_t hash_int(uint64_t h, int64_t v)
{
    return wire_hash_bytes(h, &v, sizeof(v));
}

/* By its bits: 0.0 and -0.0 count as different requests, and NaN is refused before. */
static uint64_t hash_double(uint64_t h, double v)
{
    return wire_hash_bytes(h, &v, sizeof(v));
}

/* Entries of objects are hashed alone, each from this seed, and then summed. */
enum { ENTRY_SEED = 7 };

/* A sum does not depend on the order, and members of an object have none. */
static uint64_t hash_named_strings(uint64_t h, const struct wire_named_strings *v)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < v->n; i++)
        sum += wire_hash_text(wire_hash_text(ENTRY_SEED, v->v[i].name), v->v[i].value);
    /* The number of entries, too: an entry whose hash is 0 would not change the sum. */
    return hash_int(hash_int(h, (int64_t)v->n), (int64_t)sum);
}

/* As hash_named_strings(): a sum, and how many there are. */
static uint64_t hash_numbers(uint64_t h, const tinker_named_number *v, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += hash_double(wire_hash_text(ENTRY_SEED, v[i].name), v[i].value);
    return hash_int(hash_int(h, (int64_t)n), (int64_t)sum);
}

/* Lists have an order, maps have not. */
static uint64_t hash_items(uint64_t h, const struct wire_field *f, const char *v, size_t n)
{
    uint64_t sum = 0;
    /* First, so that items at the end and fields behind the list differ. */
    h = hash_int(h, (int64_t)n);
    for (size_t i = 0; i < n; i++) {
        const char *item = v + i * f->type->size;
        if (f->kind == WIRE_LIST)
            h = wire_hash_value(h, f->type, item);
        else /* the key is the first member */
            sum += wire_hash_value(wire_hash_text(ENTRY_SEED, *(const char *const *)item), f->type,
                                   item);
    }
    return f->kind == WIRE_LIST ? h : hash_int(h, (int64_t)sum);
}

/* Is a number or flag what the reader starts from?  Other kinds say "not given" themselves.
 * Bytes are compared, so that a new field at its default leaves old hashes as they are. */
static bool is_default(const struct wire_type *type, const struct wire_field *f, const char *value)
{
    static const char zeros[sizeof(int64_t)];
    size_t n = 0;
    /* How many bytes the member has; 0 does not occur below. */
    switch (f->kind) {
    case WIRE_BOOL:
        n = sizeof(bool);
        break;
    case WIRE_FLAG:
    case WIRE_ENUM:
        n = sizeof(int);
        break;
    case WIRE_INT:
        n = sizeof(int64_t);
        break;
    case WIRE_DOUBLE:
        n = sizeof(double);
        break;
    default:
        return false;
    }
    /* Without defaults of its own a type starts from zeros. */
    const char *start = type->defaults ? (const char *)type->defaults + f->offset : zeros;
    return memcmp(value + f->offset, start, n) == 0;
}

/* Kinds that are stored alike are hashed alike, so a field may change from one to another of them
 * without changing old hashes. */
static uint64_t hash_field(uint64_t h, const struct wire_field *f, const char *value)
{
    const void *at = value + f->offset;
    switch (f->kind) {
    /* The same in every value of the type. */
    case WIRE_LITERAL:
        return h;
    case WIRE_STRING:
    case WIRE_WORD:
    case WIRE_OBJECT_CSTR:
        return wire_hash_text(h, *(const char *const *)at);
    case WIRE_ENUM:
        return hash_int(h, *(const int *)at);
    case WIRE_BOOL:
        return hash_int(h, *(const bool *)at);
    /* An int that is true may have any value but 0. */
    case WIRE_FLAG:
    case WIRE_FLAG_KNOWN:
        return hash_int(h, *(const int *)at != 0);
    case WIRE_OPT_BOOL:
        return hash_int(h, ((const struct wire_opt_bool *)at)->value);
    case WIRE_INT:
    case WIRE_INT_HAS:
    case WIRE_SEED:
    case WIRE_POSITIVE:
    case WIRE_INT_KNOWN:
    case WIRE_TIME_US:
        return hash_int(h, *(const int64_t *)at);
    case WIRE_OPT_INT:
        return hash_int(h, ((const struct wire_opt_int *)at)->value);
    case WIRE_DOUBLE:
    case WIRE_DOUBLE_KNOWN:
    case WIRE_DOUBLE_SET:
        return hash_double(h, *(const double *)at);
    case WIRE_OPT_DOUBLE:
        return hash_double(h, ((const struct wire_opt_double *)at)->value);
    /* The point in time; whether the text named an offset does not matter. */
    case WIRE_TIME:
        return hash_int(h, ((const struct wire_time *)at)->us);
    /* By its text: another order of members or other spaces make another request. A retry repeats
     * the bytes of the first one. */
    case WIRE_OBJECT_TEXT: {
        const struct json_str *text = at;
        return wire_hash_bytes(h, text->s, text->n);
    }
    case WIRE_BYTES:
        return wire_hash_bytes(h, *(const void *const *)at, *(const size_t *)(value + f->aux));
    /* In order: tags and ids are lists and no sets. */
    case WIRE_STRINGS: {
        const struct wire_strings *v = at;
        h = hash_int(h, (int64_t)v->n);
        for (size_t i = 0; i < v->n; i++)
            h = wire_hash_text(h, v->v[i]);
        return h;
    }
    case WIRE_NAMED_STRINGS:
        return hash_named_strings(h, at);
    case WIRE_STRING_PAIRS: {
        struct wire_named_strings v = { .v = *(const tinker_named_string *const *)at,
                                        .n = *(const size_t *)(value + f->aux) };
        return hash_named_strings(h, &v);
    }
    case WIRE_NUMBERS: {
        const struct wire_numbers *v = at;
        return hash_numbers(h, v->v, v->n);
    }
    case WIRE_NUMBER_PAIRS:
        return hash_numbers(h, *(const tinker_named_number *const *)at,
                            *(const size_t *)(value + f->aux));
    case WIRE_STRUCT:
        return wire_hash_value(h, f->type, at);
    /* Not NULL: wire_is_given() was asked before. */
    case WIRE_POINTER:
        return wire_hash_value(h, f->type, *(const void *const *)at);
    case WIRE_LIST:
    case WIRE_MAP:
        return hash_items(h, f, *(const char *const *)at, *(const size_t *)(value + f->aux));
    /* A field with its own reader and writer needs its own hash, too. */
    case WIRE_CUSTOM:
        assert(f->hash);
        return f->hash(h, value);
    }
    return h;
}

uint64_t wire_hash_value(uint64_t h, const struct wire_type *type, const void *value)
{
    if (type->hash)
        return type->hash(h, value);
    assert(type->fields); /* a type with codecs of its own is part of no request, or has a hash */
    /* The order of a table is part of the hash, so fields are only appended; a new one that is not
     * given leaves old hashes alone. */
    for (size_t i = 0; i < type->n_fields; i++) {
        const struct wire_field *f = &type->fields[i];
        /* The name goes in before the value, so two fields of one kind do not stand for each
         * other. */
        if (!(f->flags & WIRE_VOLATILE) && wire_field_applies(type, f, value) &&
            wire_is_given(f, value) && !is_default(type, f, value))
            h = hash_field(wire_hash_text(h, f->name), f, value);
    }
    return hash_int(h, -1); /* the end, so that fields of a struct and behind it differ */
}

/* Equal requests of different types differ: the name of the type is the seed. */
uint64_t wire_hash(const struct wire_type *type, const void *value)
{
    return wire_hash_value(wire_hash_text(0, type->name), type, value);
}
