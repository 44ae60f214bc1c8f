/* collection.c - arrays and objects of any length, read into the arena.
 *
 * Objects become arrays of structs that start with their name.  A key given twice
 * counts once, with its last value, as the reference's parser has it. */
#include "wire/json/collection.h"

#include <stdint.h>
#include <string.h>
#include "wire/json/scalar.h"

/* An array in the arena that grows by doubling. */
struct growing {
    char *v;
    size_t n, cap, size;
};

/* A new zeroed item at the end; NULL after a failure, which is kept. */
static void *growing_add(struct wire_reader *r, struct growing *g)
{
    if (g->n == g->cap) {
        /* Doubling; old copies stay in the arena, in sum no more than the last one. */
        size_t cap = g->cap ? g->cap * 2 : 4;
        /* The count comes from a peer. */
        if (cap > SIZE_MAX / g->size) {
            wire_read_nomem(r);
            return NULL;
        }
        char *v = arena_grow(r->arena, g->v, g->cap * g->size, cap * g->size);
        if (!v) {
            wire_read_nomem(r);
            return NULL;
        }
        g->v = v;
        g->cap = cap;
    }
    void *slot = g->v + g->n++ * g->size;
    memset(slot, 0, g->size);
    return slot;
}

/* The items of an array into g: values of the type, texts when it is NULL. */
static bool read_items(struct wire_reader *r, const struct wire_type *type, struct growing *g)
{
    struct wire_place place = { .up = r->place };
    if (!wire_expect(r, JSON_ARRAY))
        return false;
    json_begin_array(&r->json);
    /* The index is part of the place while an item is read: "data[3]". */
    r->place = &place;
    while (json_next_item(&r->json)) {
        place.index = g->n;
        void *slot = growing_add(r, g);
        /* A failure of the item is kept with its index; only the status is looked at below. */
        if (!slot || !(type ? wire_read_value(r, type, slot) : wire_read_string(r, slot)))
            break;
    }
    /* The loop ends at the bracket and at a fault of the text alike: this tells them apart. */
    wire_read_ok(r);
    r->place = place.up;
    return r->status == TINKER_OK;
}

/* Every item is zeroed before it is read, so absent members are "not given". */
bool wire_read_list(struct wire_reader *r, const struct wire_type *type, const void **out,
                    size_t *n)
{
    struct growing g = { .size = type->size };
    bool ok = read_items(r, type, &g);
    /* An empty list is NULL and 0; whether it was given at all is for the field to say. */
    *out = g.v;
    *n = g.n;
    return ok;
}

bool wire_read_strings(struct wire_reader *r, struct wire_strings *out)
{
    struct growing g = { .size = sizeof(char *) };
    bool ok = read_items(r, NULL, &g);
    *out = (struct wire_strings){ (const char *const *)g.v, g.n };
    return ok;
}

/* ---- entries by name ------------------------------------------------------------- */

/* Nearly all objects have a handful of members; the index exists so that an object of a million
 * keys from a peer takes linear time, not quadratic. */
enum { LINEAR = 16 }; /* up to here a loop finds a name */

void wire_named_init(struct wire_named *named, size_t size)
{
    /* without an index, which costs a system call and is seldom needed */
    *named = (struct wire_named){ .size = size };
}

void wire_named_clear(struct wire_named *named)
{
    map_clear(&named->index);
}

/* The name is the first member of every struct that is kept by name. */
static const char *name_at(const struct wire_named *named, size_t i)
{
    return *(const char *const *)(named->v + i * named->size);
}

/* The slot for this key, new or cleared; NULL: failure.  Slots move when the array grows, so
 * none may be kept. */
void *wire_named_slot(struct wire_reader *r, struct wire_named *named, const char *key, size_t n)
{
    size_t at = 0;
    if (named->n > LINEAR) {
        /* The index holds positions plus one: NULL is what a map returns for an absent key. */
        uintptr_t found = (uintptr_t)map_get(&named->index, key, n);
        at = found ? found - 1 : named->n;
    } else {
        while (at < named->n &&
               /* Lengths first: a key is not NUL-terminated, and may hold a NUL. */
               (strlen(name_at(named, at)) != n || memcmp(name_at(named, at), key, n) != 0))
            at++;
    }
    if (at < named->n) { /* given twice: the last value counts, from a clean start */
        /* The name stays; members that only the old value had must be gone. */
        char *slot = named->v + at * named->size;
        memset(slot + sizeof(char *), 0, named->size - sizeof(char *));
        return slot;
    }
    /* Names are C strings from here on: "a" and "a\u0000b" must not become the same. */
    if (n && memchr(key, 0, n)) {
        wire_read_fail(r, "a key holds a NUL character");
        return NULL;
    }
    /* The same growth as for lists, by way of a local view. */
    struct growing g = { .v = named->v, .n = named->n, .cap = named->cap, .size = named->size };
    /* The key is borrowed from the text, which does not live as long as the arena. */
    const char *name = arena_strndup(r->arena, key, n);
    void *slot = growing_add(r, &g);
    if (name && slot) {
        *(const char **)slot = name;
        named->v = g.v;
        named->n = g.n;
        named->cap = g.cap;
        /* At LINEAR + 1 entries the index starts to be used, and all of them go in; from then on
         * only the newest one. */
        bool indexed = true;
        if (named->n == LINEAR + 1)
            map_init(&named->index);
        for (size_t i = named->n == LINEAR + 1 ? 0 : named->n - 1;
             indexed && named->n > LINEAR && i < named->n; i++)
            indexed = map_put(&named->index, name_at(named, i), strlen(name_at(named, i)),
                              (void *)(uintptr_t)(i + 1), NULL);
        if (indexed)
            return slot;
    }
    wire_read_nomem(r);
    return NULL;
}

/* Reads an object entry by entry: read_entry fills one slot, whose name is set. */
static bool read_named(struct wire_reader *r, size_t size,
                       bool (*read_entry)(struct wire_reader *, const struct wire_type *, void *),
                       const struct wire_type *type, const void **out, size_t *n)
{
    struct wire_place place = { .up = r->place };
    struct wire_named named;
    struct json_str key;
    if (!wire_expect(r, JSON_OBJECT))
        return false;
    wire_named_init(&named, size);
    json_begin_object(&r->json);
    while (json_next_key(&r->json, &key)) {
        void *slot = wire_named_slot(r, &named, key.s, key.n);
        if (!slot)
            break;
        /* The copy of the name: the key of the reader does not end with NUL. */
        place.name = *(const char **)slot;
        r->place = &place;
        bool ok = read_entry(r, type, slot);
        r->place = place.up;
        if (!ok)
            break;
    }
    /* The index was only needed to find keys given twice. */
    wire_named_clear(&named);
    *out = named.v;
    *n = named.n;
    return wire_read_ok(r);
}

/* The type must have no defaults: wire_read_value() would copy them over the name, which is the
 * first member. */
static bool read_struct_entry(struct wire_reader *r, const struct wire_type *type, void *slot)
{
    return wire_read_value(r, type, slot);
}

/* {"name": {...}, ...} as an array of structs, in the order of the text. */
bool wire_read_map(struct wire_reader *r, const struct wire_type *type, const void **out, size_t *n)
{
    return read_named(r, type->size, read_struct_entry, type, out, n);
}

static bool read_string_entry(struct wire_reader *r, const struct wire_type *type, void *slot)
{
    (void)type;
    return wire_read_string(r, &((tinker_named_string *)slot)->value);
}

static bool read_number_entry(struct wire_reader *r, const struct wire_type *type, void *slot)
{
    (void)type;
    return wire_read_metric(r, &((tinker_named_number *)slot)->value);
}

/* NaN and infinity are allowed as texts: metrics may hold them. */
bool wire_read_numbers(struct wire_reader *r, const tinker_named_number **out, size_t *n)
{
    const void *v = NULL;
    bool ok = read_named(r, sizeof **out, read_number_entry, NULL, &v, n);
    *out = v;
    return ok;
}

bool wire_read_named_strings(struct wire_reader *r, struct wire_named_strings *out)
{
    const void *v = NULL;
    bool ok = read_named(r, sizeof *out->v, read_string_entry, NULL, &v, &out->n);
    out->has = 1;
    out->v = v;
    return ok;
}

/* A text, or the JSON text of anything else. */
static bool read_any_entry(struct wire_reader *r, const struct wire_type *type, void *slot)
{
    (void)type;
    tinker_named_string *s = slot;
    if (json_peek(&r->json) == JSON_STRING)
        return wire_read_string(r, &s->value);
    struct json_str raw;
    /* Checked for its grammar, but otherwise as it stands, spaces included. */
    if (!json_raw(&r->json, &raw))
        return wire_read_ok(r);
    s->value = arena_strndup(r->arena, raw.s, raw.n);
    return s->value != NULL || wire_read_nomem(r);
}

/* User metadata of older sessions may hold numbers or objects: they are given as their JSON text.
 * raw.s NULL: no metadata, out->has is 0. */
tinker_status wire_metadata_decode(struct json_str raw, struct arena *arena,
                                   struct wire_named_strings *out, tinker_error *err)
{
    memset(out, 0, sizeof *out);
    if (!raw.s)
        return TINKER_OK;
    struct wire_reader r = { .arena = arena, .mode = WIRE_LENIENT, .err = err };
    const void *v = NULL;
    json_reader_init(&r.json, raw.s, raw.n, arena);
    if (read_named(&r, sizeof *out->v, read_any_entry, NULL, &v, &out->n) && !json_end(&r.json))
        wire_read_ok(&r);
    out->has = 1;
    out->v = v;
    return r.status;
}
