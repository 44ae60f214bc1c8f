/* room: wire - any bytes as each binary message, as a zstd body, as an answer and as an event of
 * a stream.
 *
 * The first byte chooses.  A message that decodes must encode, and that encoding must
 * decode and encode to the same bytes; once more for results, where a message without
 * outputs gets a type name that it did not have. */
#include <stdlib.h>
#include <string.h>
#include "wire/chunk.h"
#include "wire/future.h"
#include "wire/path.h"
#include "wire/proto.h"
#include "wire/timestamp.h"
#include "wire/zstd.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

/* Decode p and encode it to out.  false: refused. */
static bool again(int kind, const void *p, size_t n, struct buf *out)
{
    struct arena a;
    tinker_error err;
    struct wire_forward_backward_request req;
    tinker_forward_backward output;
    tinker_sample sample;
    bool ok = false;
    memset(&err, 0, sizeof err);
    arena_init(&a, 256 << 20);
    if (kind == 0 && wire_decode_forward_backward_request(p, n, &a, &req, &err) == TINKER_OK) {
        /* what decodes may still be unfit to send: no datum, an unknown image format */
        ok = wire_encode_forward_backward_request(&req, out, &err) == TINKER_OK;
    } else if (kind == 1 &&
               wire_decode_forward_backward_output(p, n, &a, &output, &err) == TINKER_OK) {
        ok = wire_encode_forward_backward_output(&output, out, &err) == TINKER_OK;
        demand(ok);
    } else if (kind == 2 && wire_decode_sample_response(p, n, &a, &sample, &err) == TINKER_OK) {
        ok = wire_encode_sample_response(&sample, out, &err) == TINKER_OK;
        demand(ok || sample.prompt_cache_hit_tokens < 0);
    }
    demand(ok || err.message[0] != '\0');
    arena_clear(&a);
    return ok;
}

/* An event that is read is written and read again as what it was. */
static void event(const char *json, size_t n, struct arena *a)
{
    struct wire_sample_chunk c, back;
    struct buf b;
    if (wire_read_chunk(json, n, a, &c, NULL) != TINKER_OK)
        return;
    buf_init(&b, 16 << 20);
    wire_put_chunk(&b, &c);
    demand(buf_ok(&b) && wire_read_chunk(b.data, b.len, a, &back, NULL) == TINKER_OK);
    demand(back.kind == c.kind);
    if (c.kind == WIRE_CHUNK_TOKEN)
        demand(back.token == c.token && back.index == c.index && back.sequence == c.sequence);
    if (c.kind == WIRE_CHUNK_FINISHED)
        demand(back.stop_reason == c.stop_reason && back.total == c.total);
    else
        demand(back.n_text == c.n_text && (c.n_text == 0 || !memcmp(back.text, c.text, c.n_text)));
    buf_clear(&b);
}

static void texts(const uint8_t *data, size_t size)
{
    struct arena a;
    struct wire_future_answer answer;
    struct wire_path path;
    struct wire_time t;
    char line[64], *copy = malloc(size + 1);
    if (!copy)
        return;
    memcpy(copy, data, size);
    copy[size] = '\0';
    arena_init(&a, 16 << 20);
    wire_classify_future("application/json", copy, size, &a, &answer, NULL);
    wire_read_queue_state(copy, size, &a, &answer);
    event(copy, size, &a);
    wire_error_text(500, copy, size, line, sizeof line);
    demand(strlen(line) < sizeof line);
    wire_path_parse(copy, &path, NULL);
    if (wire_time_parse(copy, size, &t)) {
        char text[WIRE_TIME_TEXT];
        struct wire_time back;
        wire_time_format(t, text);
        demand(t.us < 0 || (wire_time_parse(text, strlen(text), &back) && back.us == t.us));
    }
    wire_time_parse_http(copy, &t);
    arena_clear(&a);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    int kind = data[0] % 5;
    struct buf one, two;
    buf_init(&one, 16 << 20);
    buf_init(&two, 16 << 20);
    if (kind == 3) {
        wire_zstd_decompress(data + 1, size - 1, 1 << 20, &one, NULL);
        demand(one.len <= 1 << 20);
    } else if (kind == 4) {
        texts(data + 1, size - 1);
    } else if (again(kind, data + 1, size - 1, &one)) {
        demand(again(kind, one.data, one.len, &two));
        buf_reset(&one);
        demand(again(kind, two.data, two.len, &one));
        demand(one.len == two.len && memcmp(one.data, two.data, one.len) == 0);
    }
    buf_clear(&one);
    buf_clear(&two);
    return 0;
}
