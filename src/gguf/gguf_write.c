/* gguf_write.c - the writer of gguf.h: values and descriptions grow in memory, data is streamed. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "gguf/gguf.h"

enum { ALIGNMENT = 32 };

/* Failed appends are remembered by the buffers and told by gguf_write(), so that callers need
 * not look after every value. */
void gguf_writer_init(struct gguf_writer *w)
{
    *w = (struct gguf_writer){ 0 };
    buf_init(&w->values, SIZE_MAX / 2);
    buf_init(&w->tensors, SIZE_MAX / 2);
    buf_init(&w->sizes, SIZE_MAX / 2);
}

void gguf_writer_clear(struct gguf_writer *w)
{
    buf_clear(&w->values);
    buf_clear(&w->tensors);
    buf_clear(&w->sizes);
}

/* Little-endian, as are the hosts that we support. */
static void put_u64(struct buf *b, uint64_t v)
{
    buf_append(b, &v, sizeof v);
}

static void put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof v);
}

/* A string is its length in 64 bits and its bytes, without a NUL. */
static void put_bytes(struct buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    buf_append(b, s, n);
}

/* A key with its type; the value follows in the same buffer. */
static void put_key_n(struct gguf_writer *w, const char *key, size_t n, enum gguf_type type)
{
    put_bytes(&w->values, key, n);
    put_u32(&w->values, type);
    w->n_values++;
}

static void put_key(struct gguf_writer *w, const char *key, enum gguf_type type)
{
    put_key_n(w, key, strlen(key), type);
}

/* Copies a value that was read, in the bytes of the file it came from. */
void gguf_put_value(struct gguf_writer *w, const char *key, size_t n,
                    const struct gguf_value *value)
{
    put_key_n(w, key, n, value->array ? GGUF_ARRAY : value->type);
    if (value->array) {
        put_u32(&w->values, value->type);
        put_u64(&w->values, value->n);
    }
    buf_append(&w->values, value->data, value->bytes);
}

void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t value)
{
    put_key(w, key, GGUF_U32);
    put_u32(&w->values, value);
}

void gguf_put_f32(struct gguf_writer *w, const char *key, float value)
{
    put_key(w, key, GGUF_F32);
    gguf_add_f32(w, value);
}

/* One byte, 0 or 1. */
void gguf_put_bool(struct gguf_writer *w, const char *key, bool value)
{
    put_key(w, key, GGUF_BOOL);
    buf_putc(&w->values, value);
}

void gguf_put_string(struct gguf_writer *w, const char *key, const char *s, size_t n)
{
    put_key(w, key, GGUF_STRING);
    put_bytes(&w->values, s, n);
}

/* The caller adds exactly n items behind it; the count cannot be changed later. */
void gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t n)
{
    put_key(w, key, GGUF_ARRAY);
    put_u32(&w->values, type);
    put_u64(&w->values, n);
}

/* The next item of the array begun last. */
void gguf_add_string(struct gguf_writer *w, const char *s, size_t n)
{
    put_bytes(&w->values, s, n);
}

void gguf_add_i32(struct gguf_writer *w, int32_t value)
{
    buf_append(&w->values, &value, sizeof value);
}

void gguf_add_f32(struct gguf_writer *w, float value)
{
    buf_append(&w->values, &value, sizeof value);
}

/* Offsets follow from the sizes of the tensors before, so data must be written in this order. */
void gguf_put_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                     const uint64_t *dim)
{
    uint64_t count = 1;
    put_bytes(&w->tensors, name, strlen(name));
    put_u32(&w->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) {
        put_u64(&w->tensors, dim[i]);
        count *= dim[i];
    }
    put_u32(&w->tensors, type);
    put_u64(&w->tensors, w->offset);
    uint64_t bytes = gguf_tensor_bytes(type, count);
    put_u64(&w->sizes, bytes);
    w->offset += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    w->n_tensors++;
}

/* write() may be short or interrupted, and Linux writes at most 2 GB at once. */
static tinker_status write_bytes(int fd, const void *data, size_t n, const char *path,
                                 tinker_error *err)
{
    const char *p = data;
    while (n) {
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

/* Zeros up to the alignment, after n bytes. */
static tinker_status write_padding(int fd, uint64_t n, const char *path, tinker_error *err)
{
    static const char zeros[ALIGNMENT];
    return write_bytes(fd, zeros, (size_t)((ALIGNMENT - n % ALIGNMENT) % ALIGNMENT), path, err);
}

/* One tensor is in memory at a time: fetch() makes its bytes when their turn comes, which is how
 * a model larger than the memory can be exported. */
static tinker_status write_parts(struct gguf_writer *w, int fd, const char *path, gguf_fetch *fetch,
                                 void *state, tinker_error *err)
{
    struct buf head;
    buf_init(&head, 64);
    buf_append(&head, "GGUF", 4);
    put_u32(&head, 3);
    put_u64(&head, w->n_tensors);
    put_u64(&head, w->n_values);
    tinker_status status = write_bytes(fd, head.data, head.len, path, err);
    if (status == TINKER_OK)
        status = write_bytes(fd, w->values.data, w->values.len, path, err);
    if (status == TINKER_OK && w->tensors.len)
        status = write_bytes(fd, w->tensors.data, w->tensors.len, path, err);
    if (status == TINKER_OK)
        status = write_padding(fd, head.len + w->values.len + w->tensors.len, path, err);
    buf_clear(&head);
    for (size_t i = 0; status == TINKER_OK && i < w->n_tensors; i++) {
        uint64_t bytes;
        memcpy(&bytes, w->sizes.data + i * sizeof bytes, sizeof bytes);
        const void *data = fetch(state, i, err);
        if (!data)
            return err ? err->status : TINKER_ENOMEM;
        status = write_bytes(fd, data, (size_t)bytes, path, err);
        if (status == TINKER_OK)
            status = write_padding(fd, bytes, path, err);
    }
    return status;
}

/* Mode 0600: fine-tuned weights are private until their owner says otherwise. Synced:
 * TINKER_OK means that the file is on the disk. */
tinker_status gguf_write(struct gguf_writer *w, const char *path, gguf_fetch *fetch, void *state,
                         tinker_error *err)
{
    if (!buf_ok(&w->values) || !buf_ok(&w->tensors) || !buf_ok(&w->sizes))
        return err_nomem(err, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(err, "create", path);
    tinker_status status = write_parts(w, fd, path, fetch, state, err);
    if (status == TINKER_OK && fsync(fd) != 0)
        status = err_errno(err, "fsync", path);
    if (close(fd) != 0 && status == TINKER_OK)
        status = err_errno(err, "close", path);
    return status;
}
