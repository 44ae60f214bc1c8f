/* truncated_body.c - see truncated_body.h. */
#include "client/call/truncated_body.h"

#include <ctype.h>
#include <string.h>
#include "base/arena.h"
#include "json/json.h"
#include "wire/proto/pb.h"

bool truncated_body_is_cut(const struct http_response *resp, bool empty_ok)
{
    const struct buf *body = &resp->body;
    char type[128] = "", encoding[32] = "";
    if (resp->status < 200 || resp->status > 299)
        return false;
    /* With a length or chunks curl notices a cut by itself.  Not so in what was compressed: of a
     * gzip or zstd stream without its end curl hands on what it got, and says nothing. */
    http_response_header(resp, "content-encoding", encoding, sizeof(encoding));
    if (!resp->until_close && !encoding[0])
        return false;
    http_response_header(resp, "content-type", type, sizeof(type));
    for (char *p = type; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    bool json = strstr(type, "json") != NULL, protobuf = strstr(type, "protobuf") != NULL;
    if (body->len == 0)
        return json || protobuf || (!type[0] && !empty_ok);
    if (json || (!type[0] && body->data[0] == '{')) {
        /* Whole: one value, and nothing after it. */
        struct json_reader r;
        struct arena scratch;
        arena_init(&scratch, 1 << 20);
        json_reader_init(&r, body->data, body->len, &scratch);
        bool whole = json_skip(&r) && json_end(&r);
        arena_clear(&scratch);
        return !whole;
    }
    if (!protobuf)
        return false;
    /* Whole: every field ends within the body. */
    struct pb_in in = pb_open(body->data, body->len);
    struct pb_field f;
    while (pb_next(&in, &f)) {
    }
    return in.bad;
}
