/* room: wire - any bytes as any described type: no crash, and what is written reads back.
 *
 * The name of a type, a tab and JSON, as in tests/vectors/wire-json.txt; another name chooses by
 * its first byte.  Both modes are tried.  A text that is read and can be written must read back
 * and write the same bytes. */
#include <stdlib.h>
#include <string.h>
#include "wire/wire.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

static size_t count_types(void)
{
    size_t n = 0;
    while (wire_type_at(n))
        n++;
    return n;
}

/* Read s, write it to out; false: refused at some point, with a reason. */
static bool again(const struct wire_type *type, const char *s, size_t n, enum wire_mode mode,
                  struct buf *out, bool *read)
{
    struct arena a;
    tinker_error err;
    memset(&err, 0, sizeof err);
    arena_init(&a, 64 << 20);
    void *value = malloc(wire_type_size(type));
    tinker_status status =
        value ? wire_decode_json(type, s, n, mode, &a, value, &err) : TINKER_ENOMEM;
    *read = status == TINKER_OK;
    if (*read)
        status = wire_encode_json(type, value, out, &err);
    demand(status == TINKER_OK || !value || err.message[0] != '\0');
    free(value);
    arena_clear(&a);
    return status == TINKER_OK;
}

static void twice(const struct wire_type *type, const char *s, size_t n, enum wire_mode mode)
{
    struct buf one, two;
    bool read = false;
    buf_init(&one, 16 << 20);
    buf_init(&two, 16 << 20);
    if (again(type, s, n, mode, &one, &read)) {
        demand(again(type, one.data, one.len, WIRE_LENIENT, &two, &read));
        demand(one.len == two.len && memcmp(one.data, two.data, one.len) == 0);
    }
    buf_clear(&one);
    buf_clear(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { NAME = 64 };
    char name[NAME] = "";
    const uint8_t *tab = memchr(data, '\t', size < NAME ? size : NAME);
    if (!tab)
        return 0;
    memcpy(name, data, (size_t)(tab - data));
    const struct wire_type *type = wire_type_find(name);
    if (!type)
        type = wire_type_at(data[0] % count_types());
    size_t n = size - (size_t)(tab + 1 - data);
    twice(type, (const char *)tab + 1, n, WIRE_STRICT);
    twice(type, (const char *)tab + 1, n, WIRE_LENIENT);
    return 0;
}
