/* room: wire - any bytes as any described type: no crash, and what is written reads back.
 *
 * The first byte chooses the type and the mode.  A text that is read and can be written
 * must read back and write the same bytes. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    const struct wire_type *type = wire_type_at((data[0] >> 1) % count_types());
    enum wire_mode mode = data[0] & 1 ? WIRE_LENIENT : WIRE_STRICT;
    struct buf one, two;
    bool read = false;
    buf_init(&one, 16 << 20);
    buf_init(&two, 16 << 20);
    if (again(type, (const char *)data + 1, size - 1, mode, &one, &read)) {
        demand(again(type, one.data, one.len, WIRE_LENIENT, &two, &read));
        demand(one.len == two.len && memcmp(one.data, two.data, one.len) == 0);
    }
    buf_clear(&one);
    buf_clear(&two);
    return 0;
}
