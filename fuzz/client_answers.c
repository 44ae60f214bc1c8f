/* room: client - what a server may put into headers, tokens and the client's settings.
 *
 * The first byte chooses: a block of response headers (Retry-After in all its forms), a
 * JWT, JSON of the environment, a word list, or the address that limits are kept by.
 * Results must stay within their documented bounds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "client/call/retry_policy.h"
#include "client/call/call.h"
#include "client/session/env.h"
#include "client/session/jwt.h"
#include "client/sampling/sample_limits.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

static void headers(const char *text, size_t n)
{
    struct http_response resp;
    char value[40];
    memset(&resp, 0, sizeof resp);
    buf_init(&resp.head, 65536);
    buf_append(&resp.head, text, n);
    buf_putc(&resp.head, '\n');
    int64_t ms = retry_after_ms(&resp, 1767225600000000000);
    demand(ms >= 0 && ms <= 60000);
    if (http_response_header(&resp, "content-type", value, sizeof value))
        demand(strlen(value) < sizeof value && !strchr(value, '\n'));
    buf_clear(&resp.head);
}

static void token(const char *text)
{
    struct arena a;
    struct jwt_claims claims;
    arena_init(&a, 1 << 20);
    if (jwt_read(text, &a, &claims)) {
        demand(!claims.sub || strlen(claims.sub) < 1 << 16);
        demand(!claims.email || strlen(claims.email) < 1 << 16);
    }
    double left = jwt_remaining(text, 1767225600000000000);
    demand(!isnan(left) && left >= 0);
    arena_clear(&a);
}

static void settings(const char *text)
{
    struct arena a;
    struct http_header *v = NULL;
    const char **words = NULL;
    size_t n = 0;
    arena_init(&a, 1 << 22);
    if (env_json_object(&a, text, &v, &n))
        for (size_t i = 0; i < n; i++)
            demand(v[i].name && v[i].value);
    if (env_json_pairs(&a, text, &v, &n))
        for (size_t i = 0; i < n; i++)
            demand(v[i].name && v[i].value);
    if (env_words(&a, text, &words, &n))
        for (size_t i = 0; i < n; i++)
            demand(words[i][0] && !strchr(words[i], ','));
    arena_clear(&a);
}

static void address(const char *text)
{
    char *scope = sample_limits_scope(text);
    demand(!scope || strlen(scope) <= strlen(text) + 1); /* it only takes away */
    free(scope);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    char *text = malloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0] % 4) {
    case 0:
        headers(text, size - 1);
        break;
    case 1:
        token(text);
        break;
    case 2:
        settings(text);
        break;
    default:
        address(text);
    }
    free(text);
    return 0;
}
