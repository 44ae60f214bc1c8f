/* jwt.c - see jwt.h. */
#include "client/session/jwt.h"

#include <string.h>
#include "base/base64.h"
#include "json/json.h"

/* A claim of another type is skipped: it counts as not given. */
static bool read_text(struct json_reader *r, const char **out)
{
    char *text;
    if (json_peek(r) != JSON_STRING)
        return json_skip(r);
    if (!json_cstring(r, &text))
        return false;
    *out = text;
    return true;
}

/* The registered claims (RFC 7519, 4.1) that we use, and two of the service's own. exp is in
 * seconds since 1970 and may have a fraction ("NumericDate"). */
static bool read_claim(struct json_reader *r, struct json_str key, struct jwt_claims *out)
{
    if (json_str_is(key, "sub"))
        return read_text(r, &out->sub);
    if (json_str_is(key, "email"))
        return read_text(r, &out->email);
    if (json_str_is(key, "iss"))
        return read_text(r, &out->iss);
    if (json_str_is(key, "org_id"))
        return read_text(r, &out->org_id);
    if (json_str_is(key, "exp") && json_peek(r) == JSON_NUMBER)
        return out->has_exp = json_double(r, &out->exp);
    return json_skip(r);
}

bool jwt_read(const char *token, struct arena *arena, struct jwt_claims *out)
{
    struct buf payload;
    struct json_reader r;
    struct json_str key;
    memset(out, 0, sizeof(*out));
    /* header.payload.signature, each in base64url (RFC 7515, 3.1); only the payload is read. */
    const char *from = token ? strchr(token, '.') : NULL;
    if (!from)
        return false;
    /* A peer's token: bounded. */
    buf_init(&payload, 1 << 16);
    bool ok = base64url_decode(&payload, from + 1, strcspn(from + 1, ".")) && payload.data;
    const char *json = ok ? arena_memdup(arena, payload.data, payload.len) : NULL;
    if (json) {
        json_reader_init(&r, json, payload.len, arena);
        ok = json_begin_object(&r);
        while (ok && json_next_key(&r, &key))
            ok = read_claim(&r, key, out);
        ok = json_end(&r);
    }
    buf_clear(&payload);
    return json && ok;
}

/* Seconds until exp, 0 when it has passed or cannot be read: then a new token is fetched. */
double jwt_remaining(const char *token, int64_t wall_ns)
{
    struct arena scratch;
    struct jwt_claims claims;
    arena_init(&scratch, 1 << 18);
    double left = 0;
    if (jwt_read(token, &scratch, &claims) && claims.has_exp)
        left = claims.exp - (double)wall_ns / 1e9;
    arena_clear(&scratch);
    return left > 0 ? left : 0;
}
