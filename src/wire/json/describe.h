/* describe.h - the description of a protocol type, and what custom codecs share.
 *
 * A table of wire_field says how each JSON key maps to a member of a C struct.  The
 * few shapes that no table can express (tensors, samples, stop lists) have read and
 * write functions that use the reader and writer below.
 *
 * A tagged union is one struct with an enum member: fields name the variants they
 * belong to, so a union is read in one pass whatever the place of its tag. */
#ifndef WIRE_JSON_DESCRIBE_H
#define WIRE_JSON_DESCRIBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "json/json.h"
#include "wire/wire.h"

struct wire_reader;
struct wire_writer;

enum wire_kind {
    WIRE_STRING,        /* const char * */
    WIRE_WORD,          /* const char *, one of words */
    WIRE_LITERAL,       /* no member; always words[0] */
    WIRE_ENUM,          /* int: index into words */
    WIRE_BOOL,          /* bool */
    WIRE_FLAG,          /* int used as a truth value */
    WIRE_OPT_BOOL,      /* struct wire_opt_bool */
    WIRE_FLAG_KNOWN,    /* int used as a truth value, -1: not given */
    WIRE_INT,           /* int64_t */
    WIRE_INT_HAS,       /* int64_t, with an int at `aux` that says whether it is given */
    WIRE_SEED,          /* as INT_HAS; a number too large for int64_t is folded */
    WIRE_OPT_INT,       /* struct wire_opt_int */
    WIRE_INT_KNOWN,     /* int64_t, -1: not given */
    WIRE_POSITIVE,      /* int64_t > 0, where 0 means not given */
    WIRE_DOUBLE,        /* double */
    WIRE_OPT_DOUBLE,    /* struct wire_opt_double */
    WIRE_DOUBLE_KNOWN,  /* double, NaN: not given */
    WIRE_DOUBLE_SET,    /* double, 0: not given */
    WIRE_TIME,          /* struct wire_time */
    WIRE_TIME_US,       /* int64_t, TINKER_NO_TIME: not given; written as UTC */
    WIRE_OBJECT_TEXT,   /* struct json_str: any JSON object, kept as text */
    WIRE_OBJECT_CSTR,   /* const char *: the same, ending with NUL */
    WIRE_BYTES,         /* base64; const void * and, at aux, size_t */
    WIRE_STRINGS,       /* struct wire_strings */
    WIRE_NAMED_STRINGS, /* struct wire_named_strings */
    WIRE_STRING_PAIRS,  /* const tinker_named_string * (NULL: not given) and, at aux, size_t */
    WIRE_NUMBERS,       /* struct wire_numbers */
    WIRE_NUMBER_PAIRS,  /* const tinker_named_number * and, at aux, size_t */
    WIRE_STRUCT,        /* the struct of `type` itself */
    WIRE_POINTER,       /* const pointer to the struct of `type`; NULL is null */
    WIRE_LIST,          /* const pointer to structs of `type` and, at aux, size_t */
    WIRE_MAP,           /* object of structs; as LIST, the key is their first member */
    WIRE_CUSTOM         /* read and write; they get the whole struct.  With a size_t at aux: 0 is
                         * not given */
};

enum {
    WIRE_REQUIRED = 1,  /* must be there, when read and when written */
    WIRE_NULLABLE = 2,  /* null is accepted and means not given */
    WIRE_SHOW_NULL = 4, /* not given is written as null instead of left out */
    WIRE_OPEN = 8,      /* an unknown word is accepted: NULL or -1 */
    WIRE_VOLATILE = 16  /* a retry may say something else here: not part of wire_hash() */
};

struct wire_field {
    const char *name;
    enum wire_kind kind;
    unsigned flags;
    size_t offset, aux;
    unsigned variants;                                /* bit i: belongs to variant i; 0: to all */
    const struct wire_type *type;                     /* STRUCT, POINTER, LIST, MAP */
    const char *const *words;                         /* WORD, LITERAL, ENUM; ends with NULL */
    bool (*read)(struct wire_reader *r, void *value); /* CUSTOM */
    bool (*write)(struct wire_writer *w, const char *key, const void *value); /* CUSTOM */
    uint64_t (*hash)(uint64_t h, const void *value); /* CUSTOM in requests: see wire_hash() */
    const char *schema; /* CUSTOM: what is read and written, as JSON Schema */
};

struct wire_type {
    const char *name;
    size_t size;
    const struct wire_field *fields; /* at most 64, in the order they are written */
    size_t n_fields;
    const void *defaults; /* a whole struct, or NULL: zero */
    const char *tag;      /* name of the ENUM field that says the variant, or NULL */
    bool ignores_unknown; /* even in strict mode */
    bool (*check)(struct wire_reader *r, const void *value); /* after the fields, or NULL */
    /* Whole types that no table describes. */
    bool (*read)(struct wire_reader *r, void *value);
    bool (*write)(struct wire_writer *w, const void *value);
    uint64_t (*hash)(uint64_t h, const void *value); /* of those that are part of requests */
    const char *schema;                              /* of these, as JSON Schema */
};

/* Does the field belong to the variant of *value?  Always true without a tag. */
bool wire_field_applies(const struct wire_type *type, const struct wire_field *f,
                        const void *value);
/* Is a value given at all?  Always true for the kinds that cannot say so. */
bool wire_is_given(const struct wire_field *f, const void *value);

#define WIRE_FIELD(T, m, k, f) .name = #m, .kind = (k), .flags = (f), .offset = offsetof(T, m)
/* The same for a member m that is not called as the key is: public structs. */
#define WIRE_MEMBER(T, key, m, k, f) \
    .name = (key), .kind = (k), .flags = (f), .offset = offsetof(T, m)
#define WIRE_TABLE(T, table) \
    .size = sizeof(T), .fields = (table), .n_fields = sizeof(table) / sizeof((table)[0])

#define WIRE_TENSOR_SCHEMA "{\"$ref\":\"#/$defs/TensorData\"}"

/* Where we are, as a chain on the C stack, innermost first. */
struct wire_place {
    const struct wire_place *up;
    const char *name; /* NULL: index */
    size_t index;
};
/* "data[3].loss_fn_inputs.weights"; cut to fit. */
void wire_place_text(const struct wire_place *place, char *out, size_t size);
/* TINKER_EINVAL with "<place>: <text>"; place may be NULL. */
tinker_status wire_refuse(const struct wire_place *place, tinker_error *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

struct wire_reader {
    struct json_reader json;
    struct arena *arena;
    enum wire_mode mode;
    const struct wire_place *place;
    tinker_status status; /* the first failure */
    tinker_error *err;
};

/* All of these return false after a failure, which is kept with its place. */
bool wire_read_fail(struct wire_reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool wire_read_nomem(struct wire_reader *r);
bool wire_read_ok(struct wire_reader *r); /* false, and reported, when the JSON failed */
/* Report the failure of another JSON reader, under the name of what it read. */
bool wire_read_failed(struct wire_reader *r, const char *what, const struct json_reader *in);
bool wire_read_value(struct wire_reader *r, const struct wire_type *type, void *value);
bool wire_read_named(struct wire_reader *r, const char *name, const struct wire_type *type,
                     void *value); /* with the name added to the place */
bool wire_read_string(struct wire_reader *r, const char **out);
bool wire_read_int(struct wire_reader *r, int64_t *out);
bool wire_read_bool(struct wire_reader *r, bool *out);
bool wire_read_double(struct wire_reader *r, double *out);
bool wire_read_list(struct wire_reader *r, const struct wire_type *type, const void **out,
                    size_t *n);
/* An object of structs whose first member is the key; a key given twice counts once,
 * with its last value. */
bool wire_read_map(struct wire_reader *r, const struct wire_type *type, const void **out,
                   size_t *n);
bool wire_expect(struct wire_reader *r, enum json_kind kind); /* of the next value */

struct wire_writer {
    struct json_writer json;
    const struct wire_place *place;
    tinker_status status;
    tinker_error *err;
};

bool wire_write_fail(struct wire_writer *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool wire_write_nomem(struct wire_writer *w);
bool wire_write_value(struct wire_writer *w, const struct wire_type *type, const void *value);
bool wire_write_double(struct wire_writer *w, double v); /* fails unless finite */

/* h with more taken in.  Lengths count, so "ab","c" and "a","bc" differ, and so do NULL and "". */
uint64_t wire_hash_bytes(uint64_t h, const void *p, size_t n);
uint64_t wire_hash_text(uint64_t h, const char *s);
uint64_t wire_hash_value(uint64_t h, const struct wire_type *type, const void *value);

#endif
