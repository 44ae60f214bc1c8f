/* room: server - any method, path, query and body: "METHOD PATH?QUERY\nBODY".
 *
 * The path is unescaped as the HTTP library does it.  No answer may be a server error,
 * and every JSON answer must be JSON. */
#include "server_fixture.h"

static int hex_digit(int c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

static void unescape_text(char *s)
{
    char *to = s;
    for (; *s; s++) {
        int a = *s == '%' ? hex_digit(s[1]) : -1, b = a >= 0 ? hex_digit(s[2]) : -1;
        *to++ = b >= 0 ? (char)(a << 4 | b) : *s;
        s += b >= 0 ? 2 : 0;
    }
    *to = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_open(NULL);
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    char *path = memchr(text, ' ', size);
    char *body = memchr(text, '\n', size);
    if (path && body && path < body) {
        *path++ = 0;
        *body++ = 0;
        char *query = strchr(path, '?');
        if (query)
            *query++ = 0;
        unescape_text(path);
        struct fuzz_ask a = { .method = text,
                              .path = path,
                              .query = query,
                              .content_type = "application/json",
                              .body = body,
                              .n_body = size - (size_t)(body - text) };
        fuzz_send(&a);
    }
    free(text);
    return 0;
}
