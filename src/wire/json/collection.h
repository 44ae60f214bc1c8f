/* collection.h - arrays and objects of any length, read into the arena. */
#ifndef WIRE_JSON_COLLECTION_H
#define WIRE_JSON_COLLECTION_H

#include "base/map.h"
#include "wire/json/describe.h"

/* Entries by name, in order of first appearance: structs of `size` bytes that start
 * with a const char *.  Long ones are indexed, so any number costs linear time. */
struct wire_named {
    char *v; /* in the arena */
    size_t n, cap, size;
    struct map index;
};
void wire_named_init(struct wire_named *named, size_t size);
void wire_named_clear(struct wire_named *named); /* the entries stay */
/* The entry called key, new or emptied: a repeated key means its last value.  NULL:
 * failed, and reported. */
void *wire_named_slot(struct wire_reader *r, struct wire_named *named, const char *key, size_t n);

bool wire_read_strings(struct wire_reader *r, struct wire_strings *out);
bool wire_read_named_strings(struct wire_reader *r, struct wire_named_strings *out);
bool wire_read_numbers(struct wire_reader *r, const tinker_named_number **out, size_t *n);

#endif
