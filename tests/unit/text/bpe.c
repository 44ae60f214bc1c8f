/* bpe.c - merging: order, both algorithms, shortcuts, and which tokens are reachable. */
#include "text/bpe_build.c"
#include "base/rand.h"
#include "text/bpe_reach.h"
#include "unit/text/tok_fixture.h"

struct built {
    struct bpe_header *block;
    struct bpe bpe;
};

/* Tokens are the letters a..h (ids 0..7), then one token per merge "xy z". */
static bool build(struct built *out, const char *const *merges, bool ignore_merges)
{
    struct bpe_builder b;
    tinker_error err = { 0 };
    bpe_builder_init(&b, true);
    b.ignore_merges = ignore_merges;
    uint32_t id = 0;
    tinker_status status = TINKER_OK;
    for (char c = 'a'; c <= 'h'; c++)
        status = status ? status : bpe_builder_token(&b, id++, &c, 1, &err);
    for (size_t i = 0; merges[i] && !status; i++) {
        char text[64];
        const char *space = strchr(merges[i], ' ');
        int n =
            snprintf(text, sizeof(text), "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        bool known = false; /* a second way to make a token */
        for (uint32_t k = 0; k < id && !known; k++)
            known = b.entries[b.by_id[k] - 1].len == (uint32_t)n &&
                    memcmp(b.text.data + b.entries[b.by_id[k] - 1].off, text, (size_t)n) == 0;
        if (!known)
            status = bpe_builder_token(&b, id++, text, (size_t)n, &err);
    }
    for (size_t i = 0; merges[i] && !status; i++) {
        char text[64];
        const char *space = strchr(merges[i], ' ');
        int n =
            snprintf(text, sizeof(text), "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        status = bpe_builder_merge(&b, text, (size_t)(space - merges[i]), (size_t)n, &err);
    }
    status = status ? status : bpe_builder_finish(&b, "{}", 2, "", 0, true, &out->block, &err);
    bpe_builder_clear(&b);
    if (status || bpe_open(&out->bpe, out->block, out->block->total, &err)) {
        TAP_FAIL("%s", err.message);
        return false;
    }
    return true;
}

/* "abc|d": the pieces that merging makes of a text. */
static const char *merged(const struct bpe *b, const char *text, bool list)
{
    static char out[256];
    struct bpe_ctx ctx = { 0 };
    struct bpe_out ids = { 0 };
    size_t at = 0;
    if (list)
        ids.lens = malloc(sizeof(*ids.lens)); /* lengths are known to the linked list only */
    bpe_encode_merge(b, &ctx, (const unsigned char *)text, strlen(text), &ids);
    out[0] = '\0';
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *p = bpe_bytes(b, (uint32_t)ids.ids[i], &n);
        if (list && ids.lens[i] != n)
            TAP_FAIL("token %zu covers %u bytes, not %zu", i, (unsigned)ids.lens[i], n);
        at += (size_t)snprintf(out + at, sizeof(out) - at, "%s%.*s", i ? "|" : "", (int)n, p);
    }
    free(ids.ids);
    free(ids.lens);
    bpe_ctx_clear(&ctx);
    return out;
}

static void test_lowest_rank_first(void)
{
    static const char *const merges[] = { "b c", "a b", "ab c", "a bc", NULL };
    struct built t;
    REQUIRE(build(&t, merges, false));
    for (int list = 0; list < 2; list++) {
        CHECK_STR(merged(&t.bpe, "ab", list), "ab");
        CHECK_STR(merged(&t.bpe, "abc", list), "abc"); /* b c first, then a bc */
        CHECK_STR(merged(&t.bpe, "abab", list), "ab|ab");
        CHECK_STR(merged(&t.bpe, "abcd", list), "abc|d");
    }
    free(t.block);
}

static void test_equal_rank_from_the_left(void)
{
    static const char *const merges[] = { "a a", "aa aa", NULL };
    struct built t;
    REQUIRE(build(&t, merges, false));
    for (int list = 0; list < 2; list++) {
        CHECK_STR(merged(&t.bpe, "aaa", list), "aa|a");
        CHECK_STR(merged(&t.bpe, "aaaaaaa", list), "aaaa|aa|a");
        CHECK_STR(merged(&t.bpe, "baaab", list), "b|aa|a|b");
    }
    free(t.block);
}

static void test_later_duplicate_wins(void)
{
    static const char *const merges[] = { "a b", "b c", "a b", NULL };
    struct built t;
    REQUIRE(build(&t, merges, false));
    CHECK_STR(merged(&t.bpe, "abc", false), "a|bc"); /* a b now ranks behind b c */
    free(t.block);
}

/* Random vocabularies: both algorithms agree, and the fast answer to "reachable" is right. */
static void random_vocabulary(struct rng *r, char store[40][24], const char *list[41], int n)
{
    char tokens[64][20];
    int count = 3;
    for (int i = 0; i < 3; i++) {
        tokens[i][0] = (char)('a' + i);
        tokens[i][1] = '\0';
    }
    int made = 0;
    for (int tries = 0; made < n && tries < 1000; tries++) {
        const char *x = tokens[rng_next(r) % (unsigned)count],
                   *y = tokens[rng_next(r) % (unsigned)count];
        bool twice = false;
        if (strlen(x) + strlen(y) > 9)
            continue;
        snprintf(store[made], sizeof(store[made]), "%s %s", x, y);
        for (int i = 0; i < made; i++)
            twice = twice || strcmp(store[i], store[made]) == 0;
        if (twice)
            continue;
        list[made] = store[made];
        char whole[20];
        snprintf(whole, sizeof(whole), "%s%s", x, y);
        bool known = false;
        for (int i = 0; i < count; i++)
            known = known || strcmp(tokens[i], whole) == 0;
        if (!known)
            memcpy(tokens[count++], whole, sizeof(whole));
        made++;
    }
    list[made] = NULL;
}

static void check_reachable(const struct built *t, int round)
{
    for (size_t i = 0; i < (size_t)1 << t->block->slot_bits; i++) {
        const struct bpe_slot *s = &t->bpe.slots[i];
        if (!s->meta)
            continue;
        size_t n;
        const char *p = bpe_bytes(&t->bpe, s->meta & 0xFFFFFF, &n);
        char text[32];
        snprintf(text, sizeof(text), "%.*s", (int)n, p);
        bool alone = strcmp(merged(&t->bpe, text, false), text) == 0;
        if (alone != (s->meta >> 31 != 0))
            TAP_FAIL("round %d: %s is%s reachable", round, text, alone ? "" : " not");
    }
}

/* What merging makes of a text by the definition, one merge at a time over the whole list. */
static const char *by_definition(const char *const *merges, const char *text)
{
    static char out[256];
    size_t n = strlen(text), cuts[64];
    for (size_t i = 0; i <= n; i++)
        cuts[i] = i;
    for (;;) {
        int best_rank = -1;
        size_t best = 0;
        for (size_t i = 0; i + 2 <= n; i++) {
            char pair[64];
            int rank = -1;
            snprintf(pair, sizeof(pair), "%.*s %.*s", (int)(cuts[i + 1] - cuts[i]), text + cuts[i],
                     (int)(cuts[i + 2] - cuts[i + 1]), text + cuts[i + 1]);
            for (int k = 0; merges[k]; k++)
                rank = strcmp(merges[k], pair) == 0 ? k : rank;
            if (rank >= 0 && (best_rank < 0 || rank < best_rank)) {
                best_rank = rank;
                best = i;
            }
        }
        if (best_rank < 0)
            break;
        memmove(cuts + best + 1, cuts + best + 2, (n - best - 1) * sizeof(*cuts));
        n--;
    }
    out[0] = '\0';
    for (size_t i = 0, at = 0; i < n; i++)
        at += (size_t)snprintf(out + at, sizeof(out) - at, "%s%.*s", i ? "|" : "",
                               (int)(cuts[i + 1] - cuts[i]), text + cuts[i]);
    return out;
}

static void test_random_vocabularies(void)
{
    struct rng r;
    uint32_t kept = 0, given = 0;
    rng_seed(&r, 7);
    for (int round = 0; round < 500; round++) {
        char store[40][24], text[41];
        const char *list[41];
        struct built t;
        random_vocabulary(&r, store, list, 1 + round % 30);
        REQUIRE(build(&t, list, false));
        check_reachable(&t, round);
        for (int k = 0; k < 20; k++) {
            size_t n = 1 + rng_next(&r) % 40;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)('a' + rng_next(&r) % 3);
            text[n] = '\0';
            char one[256];
            snprintf(one, sizeof(one), "%s", merged(&t.bpe, text, false));
            CHECK_STR(merged(&t.bpe, text, true), one);
            if (k < 6) /* merges were left out of the tables */
                CHECK_STR(one, by_definition(list, text));
        }
        kept += t.block->n_merges;
        given += (uint32_t)(round % 30 + 1);
        free(t.block);
    }
    CHECK(kept < given * 9 / 10);
}

static void test_shortcut_only_when_allowed(void)
{
    /* abc is a token, but merging gives ab|c: "b c" does not exist and "ab c" neither */
    static const char *const merges[] = { "a b", "b c", "a bc", NULL };
    for (int ignore = 0; ignore < 2; ignore++) {
        struct built t;
        struct bpe_ctx ctx = { 0 };
        struct bpe_out out = { 0 };
        REQUIRE(build(&t, merges, ignore));
        const unsigned char *text = (const unsigned char *)"abc";
        for (int again = 0; again < 2; again++) { /* the second time from the cache */
            out.n = 0;
            const unsigned char *const starts[] = { text, text + 3 };
            bpe_encode(&t.bpe, &ctx, starts, 1, text + 3, &out);
            CHECK_INT(out.n, ignore ? 1 : 2);
            CHECK_INT(out.ids[0], ignore ? 10 : 8);
        }
        free(out.ids);
        bpe_ctx_clear(&ctx);
        free(t.block);
    }
}

static void test_open_refuses_damage(void)
{
    static const char *const merges[] = { "a b", NULL };
    struct built t;
    struct bpe view;
    REQUIRE(build(&t, merges, false));
    size_t n = t.block->total;
    struct bpe_header *h = malloc(n);
    REQUIRE(h != NULL);
    memcpy(h, t.block, n);
    CHECK_INT(bpe_open(&view, h, n - 1, NULL), TINKER_EINVAL);
    h->n_ids = BPE_MAX_ID;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block, n);
    ((uint32_t *)((char *)h + h->offsets_at))[3] = 0x7FFFFFFF;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block, n);
    struct bpe_pair *pairs = (struct bpe_pair *)((char *)h + h->pairs_at);
    for (size_t i = 0; i < (size_t)1 << h->pair_bits; i++)
        pairs[i].rank = 1, pairs[i].id = 0; /* full: probing would never end */
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block, n);
    h->bytes['a'] = 5000;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block, n);
    uint64_t sum = bpe_checksum(h);
    ((char *)h)[n - 70] ^= 1;
    CHECK(bpe_checksum(h) != sum);
    free(h);
    free(t.block);
}

static void test_byte_map(void)
{
    for (int i = 0; i < 256; i++)
        CHECK_INT(bpe_char_byte(bpe_byte_char((unsigned char)i)), i);
    CHECK_INT(bpe_byte_char(' '), 0x120);
    CHECK_INT(bpe_byte_char('\n'), 0x10A);
    CHECK_INT(bpe_byte_char(0x7F), 0x121);
    CHECK_INT(bpe_byte_char(0xAD), 0x143);
    CHECK_INT(bpe_char_byte(' '), -1);
    CHECK_INT(bpe_char_byte(0x144), -1);
}

int main(void)
{
    RUN(test_lowest_rank_first);
    RUN(test_equal_rank_from_the_left);
    RUN(test_later_duplicate_wins);
    RUN(test_random_vocabularies);
    RUN(test_shortcut_only_when_allowed);
    RUN(test_open_refuses_damage);
    RUN(test_byte_map);
    return tap_done();
}
