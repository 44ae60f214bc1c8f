/* zstd.c - zstd with limits; the only file that knows the library. */
#include "wire/zstd.h"

#include <stdbool.h>
#include <stdint.h>
#include <zstd.h>
#include "base/err.h"

/* The library's default: higher levels cost more time than they save on the wire. */
enum { LEVEL = 3 };

/* Appended to out.  compressBound() is the worst case, so the call cannot run out of space. */
tinker_status wire_zstd_compress(const void *p, size_t n, struct buf *out, tinker_error *err)
{
    size_t bound = ZSTD_compressBound(n);
    if (ZSTD_isError(bound) || !buf_reserve(out, bound))
        return err_nomem(err, "compressed body");
    size_t len = ZSTD_compress(out->data + out->len, bound, p, n, LEVEL);
    if (ZSTD_isError(len))
        return err_set(err, TINKER_ENOMEM, "zstd: %s", ZSTD_getErrorName(len));
    out->len += len;
    out->data[out->len] = '\0';
    return TINKER_OK;
}

static tinker_status refuse_size(size_t max, tinker_error *err)
{
    return err_set(err, TINKER_ENOMEM, "zstd content is larger than the limit of %zu bytes", max);
}

/* Feed the whole input through a stream, growing out by at most `step` at a time. */
static tinker_status decompress_stream(ZSTD_DStream *d, ZSTD_inBuffer *in, size_t max, size_t step,
                                       struct buf *out, tinker_error *err)
{
    size_t start = out->len, need = 1;
    /* need is 0 exactly at the end of a frame; several frames may follow each other. */
    while (in->pos < in->size || need != 0) {
        char spare; /* shows whether there is more than allowed */
        /* With no room left one spare byte is offered: if it is filled, the limit is
         * exceeded. */
        size_t room = max - (out->len - start), size = room < step ? room : step;
        if (!buf_reserve(out, size))
            return err_nomem(err, "decompressed body");
        ZSTD_outBuffer o = { size ? out->data + out->len : &spare, size ? size : 1, 0 };
        size_t before = in->pos;
        need = ZSTD_decompressStream(d, &o, in);
        if (ZSTD_isError(need))
            return err_set(err, TINKER_EINVAL, "zstd: %s", ZSTD_getErrorName(need));
        /* No progress, and the frame is not complete: the rest never came. */
        if (o.pos == 0 && in->pos == before)
            return err_set(err, TINKER_EINVAL, "zstd: the input ends in the middle of a frame");
        if (o.pos > size)
            return refuse_size(max, err);
        out->len += o.pos;
        out->data[out->len] = '\0';
    }
    return TINKER_OK;
}

/* Does the content fit?  Decodes into a block that is thrown away, so that a small frame of much
 * content costs time but no memory.  Frames that are broken are left to the real pass. */
static bool content_fits(ZSTD_DStream *d, const void *p, size_t n, size_t max)
{
    char block[16 * 1024];
    ZSTD_inBuffer in = { p, n, 0 };
    size_t total = 0, need = 1;
    while (total <= max && (in.pos < in.size || need != 0)) {
        ZSTD_outBuffer o = { block, sizeof(block), 0 };
        size_t before = in.pos;
        need = ZSTD_decompressStream(d, &o, &in);
        if (ZSTD_isError(need) || (o.pos == 0 && in.pos == before))
            break;
        total += o.pos;
    }
    /* The same stream serves the real pass afterwards. */
    ZSTD_DCtx_reset(d, ZSTD_reset_session_only);
    return total <= max;
}

tinker_status wire_zstd_decompress(const void *p, size_t n, size_t max, struct buf *out,
                                   tinker_error *err)
{
    unsigned long long stated = ZSTD_getFrameContentSize(p, n);
    if (stated == ZSTD_CONTENTSIZE_ERROR)
        return err_set(err, TINKER_EINVAL, "zstd: not a zstd frame");
    /* A bomb is refused by what it states, by what it holds, and before memory is taken for it. */
    size_t step = ZSTD_DStreamOutSize();
    if (stated != ZSTD_CONTENTSIZE_UNKNOWN) {
        if (stated > max)
            return refuse_size(max, err);
        /* One block of 128 KiB takes at least a few bytes, so a header that promises more
         * than that lies; it is then believed only as far as the data goes. */
        if (stated > step && stated / 65536 <= n)
            step = (size_t)stated;
    }
    ZSTD_DStream *d = ZSTD_createDStream();
    if (!d)
        return err_nomem(err, "zstd");
    /* One frame that states its size has been checked; the size of others is not known yet. */
    bool known = stated != ZSTD_CONTENTSIZE_UNKNOWN && ZSTD_findFrameCompressedSize(p, n) == n;
    ZSTD_inBuffer in = { p, n, 0 };
    tinker_status status = known || content_fits(d, p, n, max)
                               ? decompress_stream(d, &in, max, step, out, err)
                               : refuse_size(max, err);
    ZSTD_freeDStream(d);
    return status;
}
