/* user_token.c - see user_token.h. */
#include "server/api/user_token.h"

#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/sha.h"
#include "json/json.h"

enum { TOKEN_SECONDS = 3600, LEEWAY_SECONDS = 60, TOKEN_MAX = 4096 };

const char *user_name_of_key(struct arena *arena, const char *key)
{
    struct sha256 h;
    uint8_t digest[32];
    char hex[65];
    sha256_init(&h);
    sha256_update(&h, key, strlen(key));
    sha256_final(&h, digest);
    hex_encode(digest, sizeof(digest), hex);
    return arena_printf(arena, "key-%.12s", hex);
}

bool user_token_is_one(const char *text)
{
    return strncmp(text, "eyJ", 3) == 0; /* base64url of {" */
}

/* Of header and payload, with a key of its own: a signed URL can never be taken for a token. */
static void sign_token(const struct server *s, const char *text, size_t n, uint8_t mac[32])
{
    uint8_t key[32];
    hmac_sha256(s->key, sizeof(s->key), "user token", 10, key);
    hmac_sha256(key, sizeof(key), text, n, mac);
}

static void put_claims(struct json_writer *w, const char *user, int64_t now_s)
{
    char sub[128];
    snprintf(sub, sizeof(sub), "urn:tinker:user:%s", user);
    json_put_begin_object(w);
    json_put_key(w, "iss");
    json_put_string(w, "passport-tinker-serve");
    json_put_key(w, "sub");
    json_put_string(w, sub);
    json_put_key(w, "org_id");
    json_put_string(w, "local");
    json_put_key(w, "email");
    json_put_string(w, "");
    json_put_key(w, "user");
    json_put_string(w, user);
    json_put_key(w, "iat");
    json_put_int64(w, now_s);
    json_put_key(w, "exp");
    json_put_int64(w, now_s + TOKEN_SECONDS);
    json_put_end_object(w);
}

bool user_token_make(struct server *s, struct request *req, struct buf *out)
{
    static const char header[] = "{\"alg\":\"HS256\",\"typ\":\"JWT\"}";
    struct buf claims;
    struct json_writer w;
    uint8_t mac[32];
    buf_init(&claims, TOKEN_MAX);
    json_writer_init(&w, &claims);
    put_claims(&w, req->user, clock_wall_ns(s->clock) / 1000000000);
    base64url_encode(out, header, sizeof(header) - 1);
    buf_putc(out, '.');
    bool ok = buf_ok(&claims);
    if (ok)
        base64url_encode(out, claims.data, claims.len);
    buf_clear(&claims);
    if (!ok || !buf_ok(out))
        return false;
    sign_token(s, out->data, out->len, mac);
    buf_putc(out, '.');
    base64url_encode(out, mac, sizeof(mac));
    return buf_ok(out);
}

/* The signature is compared in constant time: how long it takes must not tell which byte is wrong. */
static bool check_signature(struct server *s, const char *token, const char *signature)
{
    struct buf given;
    uint8_t mac[32];
    unsigned char diff = 1;
    sign_token(s, token, (size_t)(signature - 1 - token), mac);
    buf_init(&given, 64);
    if (base64url_decode(&given, signature, strlen(signature)) && given.len == sizeof(mac)) {
        diff = 0;
        for (size_t i = 0; i < sizeof(mac); i++)
            diff |= (unsigned char)((uint8_t)given.data[i] ^ mac[i]);
    }
    buf_clear(&given);
    return diff == 0;
}

/* Of all claims only these matter here. */
static bool read_claims(const char *json, size_t n, struct arena *arena, char **user, int64_t *exp)
{
    struct json_reader r;
    struct json_str key;
    json_reader_init(&r, json, n, arena);
    if (!json_begin_object(&r))
        return false;
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "user"))
            json_cstring(&r, user);
        else if (json_str_is(key, "exp"))
            json_int64(&r, exp);
        else
            json_skip(&r);
    }
    return json_end(&r) && *user;
}

const char *user_token_read(struct server *s, const char *token, struct arena *arena,
                            const char **problem)
{
    struct buf payload;
    char *user = NULL;
    int64_t exp = 0;
    const char *from = strchr(token, '.'), *to = from ? strchr(from + 1, '.') : NULL;
    *problem = "Invalid token";
    if (!to || strlen(token) > TOKEN_MAX || !check_signature(s, token, to + 1))
        return NULL;
    buf_init(&payload, TOKEN_MAX);
    bool ok = base64url_decode(&payload, from + 1, (size_t)(to - from - 1)) &&
              read_claims(payload.data, payload.len, arena, &user, &exp);
    buf_clear(&payload);
    if (!ok)
        return NULL;
    if (exp + LEEWAY_SECONDS < clock_wall_ns(s->clock) / 1000000000) {
        *problem = "token expired";
        return NULL;
    }
    return user;
}
