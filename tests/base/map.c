/* map.c - against a plain array, with removal while iterating. */
#include "base/map.h"
#include "base/rand.h"
#include "support/tap.h"

static int values[1000];

static void test_put_get_replace_remove(void)
{
    struct map m;
    map_init(&m);
    void *old = &m;
    CHECK(map_get(&m, "a", 1) == NULL);
    CHECK(map_put(&m, "a", 1, &values[1], &old) && old == NULL);
    CHECK(map_put(&m, "ab", 2, &values[2], NULL));
    CHECK(map_put(&m, "", 0, &values[3], NULL));
    CHECK(map_put(&m, "a\0b", 3, &values[4], NULL));
    CHECK(map_get(&m, "a", 1) == &values[1]);
    CHECK(map_get(&m, "", 0) == &values[3]);
    CHECK(map_get(&m, "a\0b", 3) == &values[4]);
    CHECK(map_put(&m, "a", 1, &values[5], &old) && old == &values[1]);
    CHECK_INT(m.len, 4);
    CHECK(map_remove(&m, "a", 1) == &values[5]);
    CHECK(map_remove(&m, "a", 1) == NULL);
    CHECK(map_get(&m, "a", 1) == NULL);
    CHECK_INT(m.len, 3);
    map_clear(&m);
    CHECK(map_get(&m, "ab", 2) == NULL);
    CHECK(map_put(&m, "ab", 2, &values[2], NULL));
    map_clear(&m);
}

/* Keys are copied: the caller's bytes may change. */
static void test_keys_are_copied(void)
{
    struct map m;
    map_init(&m);
    char key[4] = "abc";
    map_put(&m, key, 3, &values[0], NULL);
    key[0] = 'x';
    CHECK(map_get(&m, "abc", 3) == &values[0]);
    map_clear(&m);
}

static void test_random_operations_match_an_array(void)
{
    struct map m;
    struct rng r;
    map_init(&m);
    rng_seed(&r, 3);
    void *model[300] = { NULL };
    size_t live = 0;
    for (int step = 0; step < 60000; step++) {
        unsigned k = (unsigned)(rng_next(&r) % 300);
        char key[16];
        size_t n = (size_t)snprintf(key, sizeof key, "key-%u", k);
        if (rng_next(&r) % 3) {
            void *value = &values[rng_next(&r) % 1000], *old;
            REQUIRE(map_put(&m, key, n, value, &old));
            if (old != model[k])
                TAP_FAIL("step %d: wrong old value", step);
            live += model[k] == NULL;
            model[k] = value;
        } else {
            if (map_remove(&m, key, n) != model[k])
                TAP_FAIL("step %d: wrong value removed", step);
            live -= model[k] != NULL;
            model[k] = NULL;
        }
        if (m.len != live)
            TAP_FAIL("step %d: %zu entries, want %zu", step, m.len, live);
    }
    for (unsigned k = 0; k < 300; k++) {
        char key[16];
        size_t n = (size_t)snprintf(key, sizeof key, "key-%u", k);
        CHECK(map_get(&m, key, n) == model[k]);
    }
    CHECK(m.cap <= 2048); /* marks of removed entries do not make it grow */
    map_clear(&m);
}

static void test_removing_while_iterating_visits_all(void)
{
    struct map m;
    map_init(&m);
    for (int i = 0; i < 500; i++) {
        char key[16];
        map_put(&m, key, (size_t)snprintf(key, sizeof key, "%d", i), &values[i], NULL);
    }
    bool seen[500] = { false };
    size_t it = 0, n;
    const char *key;
    void *value;
    int visited = 0;
    while (map_next(&m, &it, &key, &n, &value)) {
        size_t i = (size_t)((int *)value - values);
        CHECK(!seen[i]);
        CHECK(key[n] == '\0' && atol(key) == (long)i);
        seen[i] = true;
        visited++;
        if (i % 2)
            map_remove(&m, key, n);
    }
    CHECK_INT(visited, 500);
    CHECK_INT(m.len, 250);
    it = 0;
    while (map_next(&m, &it, NULL, NULL, &value))
        CHECK(((int *)value - values) % 2 == 0);
    map_clear(&m);
}

static void test_hashes(void)
{
    /* both are stored in files: they may never change */
    CHECK(hash_bytes("", 0, 0) == 0xa469ea266f75a3c6u);
    CHECK(hash_bytes("foobar", 6, 1) == 0xdffa695dd52c16f5u);
    CHECK(hash_bytes("twenty-four bytes of txt", 24, 9) == 0xcd42be30c9a2ee08u);
    CHECK(hash_fnv1a("", 0) == 0xcbf29ce484222325u);
    CHECK(hash_fnv1a("a", 1) == 0xaf63dc4c8601ec8cu);
    CHECK(hash_fnv1a("foobar", 6) == 0x85944171f73967e8u);
    CHECK(hash_bytes("abc", 3, 1) != hash_bytes("abc", 3, 2));
    CHECK(hash_bytes("abc", 3, 1) == hash_bytes("abc", 3, 1));
    /* zero bytes count: lengths must not collide */
    static const char zeros[64];
    for (size_t n = 0; n < 64; n++)
        for (size_t k = 0; k < n; k++)
            CHECK(hash_bytes(zeros, n, 7) != hash_bytes(zeros, k, 7));
    /* every input bit changes about half of the output */
    char text[24] = "twenty-four bytes of txt";
    uint64_t base = hash_bytes(text, 24, 9);
    for (int bit = 0; bit < 24 * 8; bit++) {
        text[bit / 8] ^= (char)(1 << bit % 8);
        int changed = __builtin_popcountll(base ^ hash_bytes(text, 24, 9));
        CHECK(changed > 12 && changed < 52);
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
}

int main(void)
{
    RUN(test_put_get_replace_remove);
    RUN(test_keys_are_copied);
    RUN(test_random_operations_match_an_array);
    RUN(test_removing_while_iterating_visits_all);
    RUN(test_hashes);
    return tap_done();
}
