/* zstd.c - zstd with limits; the only file that knows the library. */
#include "wire/zstd.h"

#include <stdint.h>
#include <zstd.h>
#include "base/err.h"

/* The library's default: higher levels cost more time than they save on the wire. */
enum { LEVEL = 3 };

bool wire_zstd_available(void)
{
    return true;
}

/* Appended to out.  compressBound() is the worst case, so the call cannot run out of space. */
tinker_status wire_zstd_compress(const void *p, size_t n, struct buf *out, tinker_error *err)
{
    size_t bound = ZSTD_compressBound(n);
    if (ZSTD_isError(bound) || !buf_reserve(out, bound))
        return err_nomem(err, "compressed body");
    size_t len = ZSTD_compress(out->data + out->len, bound, p, n, LEVEL);
    /* Any input can be compressed and the room suffices: only memory of the library can be
     * short. */
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

/* How far frames may look back (Window_Size) is memory that their header asks for; the library
 * allows 128 MiB, 2^27. Content of at most max bytes needs no more than that, and 8 MiB, 2^23, is
 * what RFC 8878, 3.1.1.1.2 wants every decoder to support. */
static ZSTD_DStream *new_stream(size_t max)
{
    ZSTD_DStream *d = ZSTD_createDStream();
    int log = 23;
    while (log < 27 && (size_t)1 << log < max)
        log++;
    if (d)
        ZSTD_DCtx_setParameter(d, ZSTD_d_windowLogMax, log);
    return d;
}

/* Sum up the content by decoding into a block that is thrown away.  Frames that are broken are left
 * to the real pass. */
static size_t sum_content(ZSTD_DStream *d, const void *p, size_t n, size_t max)
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
    return total;
}

/* A frame need not state its size, and what it states does not cover a frame that follows: unless
 * there is one frame with a stated size, the content is decompressed once, only to be counted. */
tinker_status wire_zstd_content_size(const void *p, size_t n, size_t max, size_t *out,
                                     tinker_error *err)
{
    unsigned long long stated = ZSTD_getFrameContentSize(p, n);
    if (stated == ZSTD_CONTENTSIZE_ERROR)
        return err_set(err, TINKER_EINVAL, "zstd: not a zstd frame");
    /* Set before the comparison, so that a caller can tell "larger than max" from "no memory". */
    *out = stated < SIZE_MAX ? (size_t)stated : SIZE_MAX;
    if (stated != ZSTD_CONTENTSIZE_UNKNOWN && stated > max)
        return refuse_size(max, err);
    /* One frame is the whole input. That it holds what it states is checked while decoding. */
    if (stated != ZSTD_CONTENTSIZE_UNKNOWN && ZSTD_findFrameCompressedSize(p, n) == n)
        return TINKER_OK;
    ZSTD_DStream *d = new_stream(max);
    if (!d)
        return err_nomem(err, "zstd");
    *out = sum_content(d, p, n, max);
    ZSTD_freeDStream(d);
    return *out <= max ? TINKER_OK : refuse_size(max, err);
}

tinker_status wire_zstd_decompress(const void *p, size_t n, size_t max, struct buf *out,
                                   tinker_error *err)
{
    size_t content = 0, step = ZSTD_DStreamOutSize();
    /* A bomb is refused by what it states, by what it holds, and before memory is taken for it. */
    tinker_status status = wire_zstd_content_size(p, n, max, &content, err);
    if (status != TINKER_OK)
        return status;
    /* The densest block is four bytes for 128 KiB of one value (RFC 8878, 3.1.1.2), so a header
     * that promises more than 64 KiB per byte lies. It is then believed only as far as the data
     * goes. */
    if (content > step && content / 65536 <= n)
        step = content;
    ZSTD_DStream *d = new_stream(max);
    if (!d)
        return err_nomem(err, "zstd");
    ZSTD_inBuffer in = { p, n, 0 };
    status = decompress_stream(d, &in, max, step, out, err);
    ZSTD_freeDStream(d);
    return status;
}
