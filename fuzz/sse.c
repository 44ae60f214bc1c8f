/* room: http - any bytes as server-sent events: what comes out does not depend on where the
 * bytes are cut, and is bounded. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/sha.h"
#include "http/sse.h"

enum { LIMIT = 256 };

static bool take(void *state, const struct sse_event *e)
{
    if (e->n > LIMIT || strlen(e->event) > 1024 || strlen(e->id) > 1024)
        abort();
    sha256_update(state, e->event, strlen(e->event) + 1);
    sha256_update(state, e->data, e->n);
    sha256_update(state, e->id, strlen(e->id) + 1);
    return true;
}

/* Digest of all events, fed in pieces of `step` bytes. */
static tinker_status digest(const uint8_t *data, size_t n, size_t step, uint8_t out[32])
{
    struct sha256 h;
    struct sse s;
    tinker_status status = TINKER_OK;
    sha256_init(&h);
    sse_init(&s, LIMIT, take, &h);
    for (size_t i = 0; i < n && status == TINKER_OK; i += step)
        status = sse_feed(&s, (const char *)data + i, n - i < step ? n - i : step, NULL);
    sse_clear(&s);
    sha256_final(&h, out);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t whole[32], bytes[32];
    if (size == 0)
        return 0;
    tinker_status a = digest(data, size, size, whole);
    tinker_status b = digest(data, size, 1 + data[0] % 3, bytes);
    if (a != b || memcmp(whole, bytes, sizeof(whole)) != 0)
        abort();
    return 0;
}
