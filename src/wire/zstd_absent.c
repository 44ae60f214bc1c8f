/* zstd_absent.c - of a build without zstd (make WITHOUT=zstd): bodies are sent as they are, and
 * compressed ones are refused by name. */
#include "base/err.h"
#include "wire/zstd.h"

bool wire_zstd_available(void)
{
    return false;
}

/* TINKER_EINVAL, so that a server answers "invalid body" and not "too large" or "no memory". A
 * client does not get here: it asks wire_zstd_available() before it compresses. */
static tinker_status refuse_zstd(tinker_error *err)
{
    return err_set(err, TINKER_EINVAL, "zstd: this build is without it; send the body as it is");
}

tinker_status wire_zstd_compress(const void *p, size_t n, struct buf *out, tinker_error *err)
{
    (void)p, (void)n, (void)out;
    return refuse_zstd(err);
}

tinker_status wire_zstd_decompress(const void *p, size_t n, size_t max, struct buf *out,
                                   tinker_error *err)
{
    (void)p, (void)n, (void)max, (void)out;
    return refuse_zstd(err);
}

tinker_status wire_zstd_content_size(const void *p, size_t n, size_t max, size_t *out,
                                     tinker_error *err)
{
    (void)p, (void)n, (void)max;
    *out = 0;
    return refuse_zstd(err);
}
