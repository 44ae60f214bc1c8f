/* Tokens of users: what they say, where they are taken, what makes them invalid. */
#include "server/harness.h"

static struct server *s;
static struct fake_clock fake;

static void with_keys_and_clock(struct server_options *o)
{
    two_keys(o);
    o->clock = &fake.clock;
}

static struct reply ask_with(const char *method, const char *path, const char *key)
{
    struct ask a = { .method = method, .path = path, .key = key };
    if (strcmp(method, "POST") == 0) {
        a.body = "{}";
        a.n_body = 2;
    }
    return send_ask(s, &a);
}

static void token_of(const char *key, char out[1024])
{
    struct reply r = ask_with("POST", "/api/v1/auth/token", key);
    CHECK_STATUS(r, 200);
    const char *jwt = find_member(&r, "jwt");
    snprintf(out, 1024, "%s", jwt ? jwt : "");
    reply_clear(&r);
}

static int status_with(const char *key)
{
    struct reply r = ask_with("GET", "/api/v1/sessions", key);
    int status = r.status;
    reply_clear(&r);
    return status;
}

static void test_a_token_stands_for_its_key(void)
{
    char token[1024], other[1024];
    fake_clock_init(&fake);
    s = start_fresh(with_keys_and_clock);
    REQUIRE(s);
    token_of(keys[0], token);
    token_of(keys[1], other);
    CHECK(strcmp(token, other) != 0);
    CHECK_INT(status_with(token), 200);
    /* It is the same user: what one makes the other sees. */
    static const char body[] = "{\"tags\":[],\"sdk_version\":\"0.36.0\"}";
    struct ask create = { .method = "POST",
                          .path = "/api/v1/create_session",
                          .key = keys[0],
                          .body = body,
                          .n_body = sizeof(body) - 1 };
    struct reply r = send_ask(s, &create);
    reply_clear(&r);
    r = ask_with("GET", "/api/v1/sessions", token);
    CHECK(strstr(r.body, "-") != NULL);
    reply_clear(&r);
    r = ask_with("GET", "/api/v1/sessions", other);
    CHECK(strstr(r.body, "-") == NULL);
    reply_clear(&r);
    /* A token is exchanged for a fresh one. */
    fake_clock_advance_ms(&fake, 3000 * 1000);
    token_of(token, other);
    fake_clock_advance_ms(&fake, 700 * 1000);
    CHECK_INT(status_with(token), 401);
    CHECK_INT(status_with(other), 200);
    server_close(s);
    /* Its signature is good after a restart, too. */
    s = start_with(with_keys_and_clock);
    REQUIRE(s);
    CHECK_INT(status_with(other), 200);
    server_close(s);
}

static void test_a_token_that_was_changed_is_not_valid(void)
{
    char token[1024], changed[1024];
    fake_clock_init(&fake);
    s = start_fresh(with_keys_and_clock);
    REQUIRE(s);
    token_of(keys[0], token);
    size_t n = strlen(token);
    for (size_t i = 3; i < n; i += 7) {
        memcpy(changed, token, n + 1);
        changed[i] = changed[i] == 'A' ? 'B' : 'A';
        /* The last character of the signature has bits that say nothing. */
        if (i + 1 < n)
            CHECK_INT(status_with(changed), 401);
    }
    static const char *const bad[] = { "eyJ", "eyJ.", "eyJ..", "eyJ.e30.",
                                       "eyJhbGciOiJub25lIn0.e30." };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK_INT(status_with(bad[i]), 401);
    server_close(s);
}

static const char *const one_key[] = { "tml-bob-0123456789" };

static void with_one_key(struct server_options *o)
{
    with_keys_and_clock(o);
    o->api_keys = one_key;
    o->n_api_keys = 1;
}

static void test_a_token_ends_with_its_key(void)
{
    char token[1024];
    fake_clock_init(&fake);
    s = start_fresh(with_keys_and_clock);
    REQUIRE(s);
    token_of(keys[0], token);
    server_close(s);
    s = start_with(with_one_key);
    REQUIRE(s);
    struct reply r = ask_with("GET", "/api/v1/sessions", token);
    CHECK_STATUS(r, 401);
    CHECK(strstr(r.body, "no longer valid"));
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_a_token_stands_for_its_key);
    RUN(test_a_token_that_was_changed_is_not_valid);
    RUN(test_a_token_ends_with_its_key);
    harness_clear();
    return tap_done();
}
