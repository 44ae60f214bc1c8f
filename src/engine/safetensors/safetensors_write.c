/* safetensors_write.c - writer of the tensor file format.
 *
 * Tensors are produced one at a time by the caller's fetch, so a model of any size
 * is written with the memory of its largest tensor. */
#include "engine/safetensors/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "json/json.h"

/* Entries in the order of the file; index: in that of the caller. */
struct order {
    const struct st_entry *entry;
    size_t index;
};

/* The caller's shapes are those of existing tensors: no overflow. */
static size_t entry_bytes(const struct st_entry *e)
{
    size_t n = st_dtype_size(e->dtype);
    for (size_t i = 0; i < e->ndim; i++)
        n *= e->shape[i];
    return n;
}

/* Large elements first, as the reference writer: then every tensor is aligned to its elements
 * when the data begin aligned. */
static int by_size_then_name(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    size_t sx = st_dtype_size(x->entry->dtype), sy = st_dtype_size(y->entry->dtype);
    if (sx != sy)
        return sx > sy ? -1 : 1;
    return strcmp(x->entry->name, y->entry->name);
}

/* Offsets follow from the order: entries lie one after the other. */
static void put_header(struct buf *out, const struct order *order, size_t n)
{
    struct json_writer w;
    size_t offset = 0;
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    /* transformers refuses files that do not name a format */
    json_put_key(&w, "__metadata__");
    json_put_begin_object(&w);
    json_put_key(&w, "format");
    json_put_string(&w, "pt");
    json_put_end_object(&w);
    for (size_t i = 0; i < n; i++) {
        const struct st_entry *e = order[i].entry;
        json_put_key(&w, e->name);
        json_put_begin_object(&w);
        json_put_key(&w, "dtype");
        json_put_string(&w, st_dtype_name(e->dtype));
        json_put_key(&w, "shape");
        json_put_begin_array(&w);
        for (size_t d = 0; d < e->ndim; d++)
            json_put_uint64(&w, e->shape[d]);
        json_put_end_array(&w);
        json_put_key(&w, "data_offsets");
        json_put_begin_array(&w);
        json_put_uint64(&w, offset);
        /* [begin, end) in bytes from the end of the header */
        offset += entry_bytes(e);
        json_put_uint64(&w, offset);
        json_put_end_array(&w);
        json_put_end_object(&w);
    }
    json_put_end_object(&w);
    /* pad with spaces: the 8 bytes of the length before and this make the data aligned to 8 */
    while (out->len % 8 && buf_ok(out))
        buf_putc(out, ' ');
}

/* write() may be short or interrupted, and Linux writes at most 2 GB at once. */
static tinker_status write_all(int fd, const void *data, size_t n, const char *path,
                               tinker_error *err)
{
    const char *p = data;
    while (n) {
        /* at most 1 GB at a time, below the kernel's limit */
        ssize_t done = write(fd, p, n > 1 << 30 ? 1 << 30 : n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return err_errno(err, "write", path);
        p += done;
        n -= (size_t)done;
    }
    return TINKER_OK;
}

/* Length of the header, header, data.  Synced, so that a caller may rename what is complete. */
static tinker_status write_tensor_file(const char *path, const struct buf *header,
                                       const struct order *order, size_t n, st_fetch *fetch,
                                       void *state, tinker_error *err)
{
    /* little-endian, on any host */
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header->len >> (8 * i));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(err, "create", path);
    tinker_status status = write_all(fd, length, 8, path, err);
    if (status == TINKER_OK)
        status = write_all(fd, header->data, header->len, path, err);
    for (size_t i = 0; status == TINKER_OK && i < n; i++) {
        const void *data = fetch(state, order[i].index, err);
        if (data)
            status = write_all(fd, data, entry_bytes(order[i].entry), path, err);
        else
            status = err ? err->status : TINKER_ENOMEM;
    }
    if (status == TINKER_OK && fsync(fd) != 0)
        status = err_errno(err, "fsync", path);
    if (close(fd) != 0 && status == TINKER_OK)
        status = err_errno(err, "close", path);
    return status;
}

tinker_status safetensors_write(const char *path, const struct st_entry *entries, size_t n,
                                st_fetch *fetch, void *state, tinker_error *err)
{
    struct order *order = calloc(n ? n : 1, sizeof(*order));
    if (!order)
        return err_nomem(err, path);
    for (size_t i = 0; i < n; i++)
        order[i] = (struct order){ &entries[i], i };
    /* n 0 is a valid file without tensors */
    qsort(order, n, sizeof(*order), by_size_then_name);
    struct buf header;
    buf_init(&header, 100 * 1000 * 1000);
    put_header(&header, order, n);
    tinker_status status = TINKER_OK;
    if (!buf_ok(&header))
        status = err_nomem(err, path);
    else
        status = write_tensor_file(path, &header, order, n, fetch, state, err);
    buf_clear(&header);
    free(order);
    return status;
}
