/* room: engine - whatever the bytes: no crash, no read outside the file, and what was
 * accepted says the truth about itself. */
#include <stdlib.h>
#include <string.h>
#include "engine/safetensors/safetensors.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

/* Every tensor lies inside the data, does not overlap the next, and can be read. */
static void check(const struct safetensors *s, const unsigned char *data, size_t n)
{
    const unsigned char *at = (const unsigned char *)s->header + s->header_len;
    for (size_t i = 0; i < s->n; i++) {
        const struct st_tensor *t = &s->tensors[i];
        demand(t->data == at);
        demand(safetensors_find(s, t->name) == t);
        at += t->bytes;
        for (size_t k = 0; t->usable && k < t->count; k += 1 + t->count / 16) {
            float f;
            st_to_float(t->data, t->dtype, k, 1, &f);
            (void)f;
        }
    }
    demand(at == data + n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct safetensors s;
    tinker_error err;
    unsigned char *copy = malloc(n ? n : 1); /* exact size: a sanitizer sees a read beyond */
    if (!copy)
        return 0;
    memcpy(copy, data, n);
    if (safetensors_parse(&s, "fuzz", copy, n, &err) == TINKER_OK) {
        check(&s, copy, n);
        safetensors_close(&s);
    } else {
        demand(err.status == TINKER_EINVAL && strncmp(err.message, "fuzz: ", 6) == 0);
    }
    free(copy);
    return 0;
}
