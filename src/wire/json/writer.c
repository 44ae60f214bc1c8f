/* writer.c - writes a struct as JSON by walking its description.
 *
 * As the reference does it: keys in table order, values at their default written,
 * values not given left out (or null where the table says so). */
#include "wire/json/describe.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/base64.h"
#include "base/err.h"
#include "wire/timestamp.h"

/* The first failure is kept, with the place where the walk is. Always false, so that callers can
 * return it. */
bool wire_write_fail(struct wire_writer *w, const char *fmt, ...)
{
    if (w->status != TINKER_OK)
        return false;
    /* Formatted before the place, which has no va_list of its own. */
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    w->status = wire_refuse(w->place, w->err, "%s", text);
    return false;
}

bool wire_write_nomem(struct wire_writer *w)
{
    if (w->status == TINKER_OK)
        w->status = err_nomem(w->err, "JSON text");
    return false;
}

/* JSON has neither NaN nor infinity; a peer would refuse the whole text. */
bool wire_write_double(struct wire_writer *w, double v)
{
    if (!isfinite(v))
        return wire_write_fail(w, "must be a finite number");
    json_put_double(&w->json, v);
    return true;
}

/* Only words of the table: a typo must not reach the service. */
static bool write_word(struct wire_writer *w, const struct wire_field *f, const char *word)
{
    for (int i = 0; f->words[i]; i++) {
        if (strcmp(f->words[i], word) == 0) {
            json_put_string(&w->json, word);
            return true;
        }
    }
    return wire_write_fail(w, "\"%.60s\" is not one of the known words", word);
}

/* JSON from the caller is checked before it becomes part of the request. */
static bool write_object_text(struct wire_writer *w, struct json_str text)
{
    /* json_skip() checks the grammar and keeps nothing; a reader has to have an arena. */
    struct json_reader check;
    struct arena none;
    arena_init(&none, 64 + text.n);
    json_reader_init(&check, text.s, text.n, &none);
    bool ok = json_peek(&check) == JSON_OBJECT && json_skip(&check) && json_end(&check);
    arena_clear(&none);
    if (!ok)
        return wire_write_fail(w, "is not a JSON object");
    json_put_raw(&w->json, text.s, text.n);
    return true;
}

/* base64 with padding (RFC 4648, 4), which is what readers of JSON expect for bytes. */
static bool write_bytes(struct wire_writer *w, const void *p, size_t n)
{
    struct buf b;
    /* Exactly what base64 makes of n bytes, and a little. */
    buf_init(&b, n / 3 * 4 + 8);
    base64_encode(&b, p ? p : "", n);
    bool ok = buf_ok(&b);
    if (ok)
        json_put_string_n(&w->json, b.data ? b.data : "", b.len);
    buf_clear(&b);
    return ok || wire_write_nomem(w);
}

/* {"name": "value"}; a missing value is null. */
static bool write_named_strings(struct wire_writer *w, const tinker_named_string *v, size_t n)
{
    json_put_begin_object(&w->json);
    for (size_t i = 0; i < n; i++) {
        /* Names are not compared: of a name that is given twice, readers take the last value. */
        json_put_key(&w->json, v[i].name);
        if (v[i].value)
            json_put_string(&w->json, v[i].value);
        else
            json_put_null(&w->json);
    }
    json_put_end_object(&w->json);
    return true;
}

/* {"name": number}, in the order of the list: readers do not depend on it, people compare texts. */
static bool write_numbers(struct wire_writer *w, const tinker_named_number *v, size_t n)
{
    struct wire_place place = { .up = w->place };
    json_put_begin_object(&w->json);
    w->place = &place;
    /* All are written even after a failure: the text is thrown away, and the first failure
     * is kept. */
    for (size_t i = 0; i < n; i++) {
        place.name = v[i].name;
        json_put_key(&w->json, v[i].name);
        wire_write_double(w, v[i].value);
    }
    w->place = place.up;
    json_put_end_object(&w->json);
    return w->status == TINKER_OK;
}

/* Values of a type as an array, or as an object whose keys are their first members. */
static bool write_list(struct wire_writer *w, const struct wire_field *f, const char *v, size_t n)
{
    /* A place is a chain of stack frames, one per level; printed only when something fails. */
    struct wire_place place = { .up = w->place };
    bool map = f->kind == WIRE_MAP, ok = true;
    if (map)
        json_put_begin_object(&w->json);
    else
        json_put_begin_array(&w->json);
    w->place = &place;
    for (size_t i = 0; ok && i < n; i++) {
        const char *item = v + i * f->type->size;
        place.index = i;
        if (map) {
            /* An index in lists, the key in maps: a place with a name prints no index. */
            place.name = *(const char *const *)item;
            json_put_key(&w->json, place.name);
        }
        ok = wire_write_value(w, f->type, item);
    }
    w->place = place.up;
    if (map)
        json_put_end_object(&w->json);
    else
        json_put_end_array(&w->json);
    return ok;
}

/* Is there a value to write?  How a struct says "not given" depends on the kind: NULL, -1,
 * NaN, a flag beside it. */
bool wire_is_given(const struct wire_field *f, const void *value)
{
    const char *base = value;
    const void *at = base + f->offset;
    switch (f->kind) {
    /* Pointers: NULL is "not given"; an empty text or object behind one is given. */
    case WIRE_STRING:
    case WIRE_WORD:
    case WIRE_POINTER:
    case WIRE_OBJECT_CSTR:
    case WIRE_STRING_PAIRS:
        return *(const void *const *)at != NULL;
    /* A nullable flag that is false is left out: older peers do not know it. */
    case WIRE_FLAG:
        return *(const int *)at != 0 || !(f->flags & WIRE_NULLABLE);
    /* -1: the peer did not say. */
    case WIRE_FLAG_KNOWN:
        return *(const int *)at >= 0;
    case WIRE_INT_KNOWN:
        return *(const int64_t *)at != -1;
    case WIRE_DOUBLE_KNOWN:
        return !isnan(*(const double *)at);
    case WIRE_DOUBLE_SET:
        return *(const double *)at != 0;
    /* Only hashes ask this of a custom field; writers decide for themselves. */
    case WIRE_CUSTOM: /* a list with its length at aux, or one that its own functions know */
        return f->aux == 0 || *(const size_t *)(base + f->aux) != 0;
    case WIRE_TIME_US:
        return *(const int64_t *)at != TINKER_NO_TIME;
    case WIRE_OPT_BOOL:
        return ((const struct wire_opt_bool *)at)->has;
    case WIRE_OPT_INT:
        return ((const struct wire_opt_int *)at)->has;
    case WIRE_OPT_DOUBLE:
        return ((const struct wire_opt_double *)at)->has;
    case WIRE_INT_HAS:
    case WIRE_SEED:
        return *(const int *)(base + f->aux);
    case WIRE_POSITIVE:
        return *(const int64_t *)at != 0;
    case WIRE_TIME:
        return ((const struct wire_time *)at)->has;
    case WIRE_OBJECT_TEXT:
        return ((const struct json_str *)at)->s != NULL;
    case WIRE_NAMED_STRINGS:
        return ((const struct wire_named_strings *)at)->has;
    /* A nullable list that is empty is left out; one that is not nullable is []. */
    case WIRE_STRINGS:
        return ((const struct wire_strings *)at)->n > 0 || !(f->flags & WIRE_NULLABLE);
    case WIRE_LIST:
        return *(const size_t *)(base + f->aux) > 0 || !(f->flags & WIRE_NULLABLE);
    case WIRE_NUMBERS:
        return ((const struct wire_numbers *)at)->has;
    /* A required object is written even if it is empty: {}. */
    case WIRE_NUMBER_PAIRS:
        return *(const size_t *)(base + f->aux) > 0 || (f->flags & WIRE_REQUIRED);
    /* Kinds without such a value: numbers, flags and structs that are always there. */
    default:
        return true;
    }
}

/* The value of a field that is given; its key is written already. */
static bool write_given(struct wire_writer *w, const struct wire_field *f, const char *value)
{
    const void *at = value + f->offset;
    switch (f->kind) {
    /* Invalid UTF-8 becomes U+FFFD, see json.h: a text never makes the writer fail. */
    case WIRE_STRING:
        json_put_string(&w->json, *(const char *const *)at);
        return true;
    case WIRE_WORD:
        return write_word(w, f, *(const char *const *)at);
    case WIRE_LITERAL:
        json_put_string(&w->json, f->words[0]);
        return true;
    /* The number in the struct is the index of the word. */
    case WIRE_ENUM: {
        /* Counted, because the table is only NULL-terminated and the value may come from a
         * program. */
        int index = *(const int *)at, n = 0;
        while (f->words[n])
            n++;
        if (index < 0 || index >= n)
            return wire_write_fail(w, "has no word for %d", index);
        json_put_string(&w->json, f->words[index]);
        return true;
    }
    case WIRE_BOOL:
        json_put_bool(&w->json, *(const bool *)at);
        return true;
    case WIRE_FLAG:
    case WIRE_FLAG_KNOWN:
        json_put_bool(&w->json, *(const int *)at != 0);
        return true;
    case WIRE_OPT_BOOL:
        json_put_bool(&w->json, ((const struct wire_opt_bool *)at)->value);
        return true;
    /* 0 is "not given" and does not get here. */
    case WIRE_POSITIVE:
        if (*(const int64_t *)at < 0)
            return wire_write_fail(w, "must be positive");
        json_put_int64(&w->json, *(const int64_t *)at);
        return true;
    case WIRE_INT:
    case WIRE_INT_KNOWN:
    case WIRE_INT_HAS:
    case WIRE_SEED:
        json_put_int64(&w->json, *(const int64_t *)at);
        return true;
    case WIRE_OPT_INT:
        json_put_int64(&w->json, ((const struct wire_opt_int *)at)->value);
        return true;
    case WIRE_DOUBLE:
    case WIRE_DOUBLE_KNOWN:
    case WIRE_DOUBLE_SET:
        return wire_write_double(w, *(const double *)at);
    case WIRE_OPT_DOUBLE:
        return wire_write_double(w, ((const struct wire_opt_double *)at)->value);
    /* From public structs, which hold UTC only: never naive. */
    case WIRE_TIME_US: {
        char text[WIRE_TIME_TEXT];
        wire_time_format((struct wire_time){ 1, false, *(const int64_t *)at }, text);
        json_put_string(&w->json, text);
        return true;
    }
    case WIRE_TIME: {
        char text[WIRE_TIME_TEXT];
        wire_time_format(*(const struct wire_time *)at, text);
        json_put_string(&w->json, text);
        return true;
    }
    /* Written as it is, with its spaces, after a check of its grammar. */
    case WIRE_OBJECT_TEXT:
        return write_object_text(w, *(const struct json_str *)at);
    case WIRE_OBJECT_CSTR: {
        const char *text = *(const char *const *)at;
        return write_object_text(w, (struct json_str){ text, strlen(text) });
    }
    case WIRE_BYTES:
        return write_bytes(w, *(const void *const *)at, *(const size_t *)(value + f->aux));
    case WIRE_STRINGS: {
        const struct wire_strings *v = at;
        json_put_begin_array(&w->json);
        for (size_t i = 0; i < v->n; i++)
            json_put_string(&w->json, v->v[i]);
        json_put_end_array(&w->json);
        return true;
    }
    case WIRE_NAMED_STRINGS: {
        const struct wire_named_strings *v = at;
        return write_named_strings(w, v->v, v->n);
    }
    case WIRE_STRING_PAIRS:
        return write_named_strings(w, *(const tinker_named_string *const *)at,
                                   *(const size_t *)(value + f->aux));
    case WIRE_NUMBERS: {
        const struct wire_numbers *v = at;
        return write_numbers(w, v->v, v->n);
    }
    case WIRE_NUMBER_PAIRS:
        return write_numbers(w, *(const tinker_named_number *const *)at,
                             *(const size_t *)(value + f->aux));
    case WIRE_STRUCT:
        return wire_write_value(w, f->type, at);
    case WIRE_POINTER:
        return wire_write_value(w, f->type, *(const void *const *)at);
    /* The size of an item is that of its type, so one loop serves all lists. */
    case WIRE_LIST:
    case WIRE_MAP:
        return write_list(w, f, *(const char *const *)at, *(const size_t *)(value + f->aux));
    /* Not reached: wire_write_value() calls f->write(). */
    case WIRE_CUSTOM:
        break; /* writes its own key */
    }
    return wire_write_fail(w, "cannot be written");
}

/* A union: the tag field holds the number of the variant, and f->variants has a bit for each one
 * that the field belongs to. 0: in all. */
bool wire_field_applies(const struct wire_type *type, const struct wire_field *f, const void *value)
{
    int variant = 0;
    if (!f->variants)
        return true;
    for (size_t i = 0; type->tag && i < type->n_fields; i++)
        if (strcmp(type->fields[i].name, type->tag) == 0)
            variant = *(const int *)((const char *)value + type->fields[i].offset);
    /* -1 is the variant of a newer peer (WIRE_OPEN), of which only the common fields are known. */
    return variant >= 0 && variant < 32 && (f->variants >> variant & 1);
}

bool wire_write_value(struct wire_writer *w, const struct wire_type *type, const void *value)
{
    /* Types with codecs of their own: tensors, samples, values of maps. */
    if (type->write)
        return type->write(w, value);
    json_put_begin_object(&w->json);
    for (size_t i = 0; i < type->n_fields; i++) {
        const struct wire_field *f = &type->fields[i];
        /* The fields of other variants do not exist on the wire. */
        if (!wire_field_applies(type, f, value))
            continue;
        struct wire_place place = { .up = w->place, .name = f->name };
        w->place = &place;
        /* Four cases: a custom field writes itself; given: key and value; required and not given:
         * an error; else null or nothing at all, as the table says. */
        bool ok = true, given = f->kind != WIRE_CUSTOM && wire_is_given(f, value);
        if (f->kind == WIRE_CUSTOM) /* writes its own key, or nothing */
            ok = f->write(w, f->name, value);
        else if (!given && (f->flags & WIRE_REQUIRED))
            ok = wire_write_fail(w, "is required");
        else if (given || (f->flags & WIRE_SHOW_NULL))
            json_put_key(&w->json, f->name);
        if (given)
            ok = write_given(w, f, value);
        else if (ok && f->kind != WIRE_CUSTOM && (f->flags & WIRE_SHOW_NULL))
            json_put_null(&w->json);
        w->place = place.up;
        if (!ok)
            return false;
    }
    json_put_end_object(&w->json);
    return true;
}

/* Appends to out. On failure out holds part of the text, which the caller drops. */
tinker_status wire_encode_json(const struct wire_type *type, const void *value, struct buf *out,
                               tinker_error *err)
{
    struct wire_writer w = { .err = err };
    /* The writer remembers a failed append, so the buffer is asked once, at the end. */
    json_writer_init(&w.json, out);
    if (wire_write_value(&w, type, value) && !buf_ok(out))
        w.status = err_nomem(err, type->name);
    return w.status;
}

/* The one map that is sent without a struct around it. */
tinker_status wire_metadata_encode(const tinker_named_string *v, size_t n, struct buf *out,
                                   tinker_error *err)
{
    struct wire_writer w = { .err = err };
    for (size_t i = 0; i < n; i++)
        if (!v || !v[i].name) /* a NULL value is JSON null */
            return err_set(err, TINKER_EINVAL, "user_metadata: entry %zu has no name", i);
    json_writer_init(&w.json, out);
    write_named_strings(&w, v, n);
    return buf_ok(out) ? TINKER_OK : err_nomem(err, "user_metadata");
}
