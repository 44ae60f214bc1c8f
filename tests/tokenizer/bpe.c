/* bpe.c - merging: order, both algorithms, shortcuts, and which tokens are reachable. */
#include "tokenizer/bpe/bpe_build.h"
#include "base/rand.h"
#include "tokenizer/bpe/bpe_boundary.h"
#include "tokenizer/tok_fixture.h"

struct built {
    struct os_map block;
    const struct bpe_header *header;
    struct bpe bpe;
};

/* Tokens are the letters a..h (ids 0..7), one per merge "xy z", and the other bytes. */
static bool build_vocabulary(struct built *out, const char *const *merges, bool ignore_merges)
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
    for (int c = 0; c < 256 && !status; c++) {
        char byte = (char)c;
        if (c < 'a' || c > 'h')
            status = bpe_builder_bytes(&b, id++, &byte, 1, &err);
    }
    status = status ? status : bpe_builder_index(&b, &err);
    for (size_t i = 0; merges[i] && !status; i++) {
        const char *space = strchr(merges[i], ' ');
        status = bpe_builder_merge(&b, merges[i], (size_t)(space - merges[i]), space + 1,
                                   strlen(space + 1), &err);
    }
    status = status ? status : bpe_builder_merges_end(&b, &err);
    status = status ? status : bpe_builder_finish(&b, "{}", 2, "", 0, false, &out->block, &err);
    bpe_builder_clear(&b);
    if (status || bpe_open(&out->bpe, out->block.data, out->block.len, &err)) {
        TAP_FAIL("%s", err.message);
        return false;
    }
    out->header = out->block.data;
    return true;
}

/* "abc|d": the pieces that merging makes of a text. */
static const char *merge_text(const struct bpe *b, const char *text, bool list)
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

/* Whether walking gives what merging gives, also as the bytes of each token. */
static bool walks_alike(const struct bpe *b, const char *text)
{
    struct bpe_ctx ctx = { 0 };
    struct bpe_out want = { 0 }, got = { 0 };
    const unsigned char *p = (const unsigned char *)text;
    want.lens = malloc(sizeof(*want.lens));
    got.lens = malloc(sizeof(*got.lens));
    bpe_encode_merge(b, &ctx, p, strlen(text), &want);
    bpe_greedy_encode(b, &ctx, p, strlen(text), &got);
    bool alike = got.n == want.n && memcmp(got.ids, want.ids, got.n * sizeof(*got.ids)) == 0 &&
                 memcmp(got.lens, want.lens, got.n * sizeof(*got.lens)) == 0;
    free(want.ids);
    free(want.lens);
    free(got.ids);
    free(got.lens);
    bpe_ctx_clear(&ctx);
    return alike;
}

static void test_lowest_rank_first(void)
{
    static const char *const merges[] = { "b c", "a b", "ab c", "a bc", NULL };
    struct built t;
    REQUIRE(build_vocabulary(&t, merges, false));
    for (int list = 0; list < 2; list++) {
        CHECK_STR(merge_text(&t.bpe, "ab", list), "ab");
        CHECK_STR(merge_text(&t.bpe, "abc", list), "abc"); /* b c first, then a bc */
        CHECK_STR(merge_text(&t.bpe, "abab", list), "ab|ab");
        CHECK_STR(merge_text(&t.bpe, "abcd", list), "abc|d");
    }
    os_map_close(&t.block);
}

static void test_equal_rank_from_the_left(void)
{
    static const char *const merges[] = { "a a", "aa aa", NULL };
    struct built t;
    REQUIRE(build_vocabulary(&t, merges, false));
    for (int list = 0; list < 2; list++) {
        CHECK_STR(merge_text(&t.bpe, "aaa", list), "aa|a");
        CHECK_STR(merge_text(&t.bpe, "aaaaaaa", list), "aaaa|aa|a");
        CHECK_STR(merge_text(&t.bpe, "baaab", list), "b|aa|a|b");
    }
    os_map_close(&t.block);
}

static void test_later_duplicate_wins(void)
{
    static const char *const merges[] = { "a b", "b c", "a b", NULL };
    struct built t;
    REQUIRE(build_vocabulary(&t, merges, false));
    CHECK_STR(merge_text(&t.bpe, "abc", false), "a|bc"); /* a b now ranks behind b c */
    os_map_close(&t.block);
}

/* Random vocabularies: both algorithms agree, and the fast answer to "reachable" is right. */
static void random_vocabulary(struct rng *r, char store[40][48], const char *list[41], int n)
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
        char whole[40];
        snprintf(whole, sizeof(whole), "%s%s", x, y);
        bool known = false;
        for (int i = 0; i < count; i++)
            known = known || strcmp(tokens[i], whole) == 0;
        if (!known)
            memcpy(tokens[count++], whole, sizeof(tokens[0]));
        made++;
    }
    list[made] = NULL;
}

static bool is_direct(const struct bpe *b, uint32_t id)
{
    if (b->trie)
        return b->parts[id].made != BPE_NONE;
    for (size_t i = 0;; i++)
        if (b->slots[i].meta && (b->slots[i].meta & 0xFFFFFF) == id)
            return b->slots[i].meta >> 31;
}

static void check_reachable(const struct built *t, int round)
{
    for (uint32_t id = 0; id < t->bpe.n_ids; id++) {
        size_t n;
        const char *p = bpe_bytes(&t->bpe, id, &n);
        char text[32];
        snprintf(text, sizeof(text), "%.*s", (int)n, p);
        CHECK_INT(bpe_find(&t->bpe, p, n), id);
        if (n == 1)
            continue;
        bool alone = strcmp(merge_text(&t->bpe, text, false), text) == 0;
        if (alone != is_direct(&t->bpe, id))
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
    uint32_t kept = 0, given = 0, walked = 0;
    rng_seed(&r, 7);
    for (int round = 0; round < 500; round++) {
        char store[40][48], text[301];
        const char *list[41];
        struct built t;
        random_vocabulary(&r, store, list, 1 + round % 30);
        REQUIRE(build_vocabulary(&t, list, false));
        check_reachable(&t, round);
        for (int k = 0; k < 20; k++) {
            size_t n = 1 + rng_next(&r) % 40;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)('a' + rng_next(&r) % 3);
            text[n] = '\0';
            char one[256];
            snprintf(one, sizeof(one), "%s", merge_text(&t.bpe, text, false));
            CHECK_STR(merge_text(&t.bpe, text, true), one);
            if (k < 6) /* merges were left out of the tables */
                CHECK_STR(one, by_definition(list, text));
        }
        for (int k = 0; t.bpe.trie && k < 20; k++) {
            size_t n = 1 + rng_next(&r) % 300;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)('a' + rng_next(&r) % 3);
            text[n] = '\0';
            if (!walks_alike(&t.bpe, text))
                TAP_FAIL("round %d: %s", round, text);
        }
        walked += t.bpe.trie != NULL;
        kept += t.header->n_merges;
        given += (uint32_t)(round % 30 + 1);
        os_map_close(&t.block);
    }
    CHECK(kept < given * 9 / 10);
    CHECK(walked > 100);
}

static void test_shortcut_only_when_allowed(void)
{
    /* abc is a token, but merging gives ab|c: "b c" does not exist and "ab c" neither */
    static const char *const merges[] = { "a b", "b c", "a bc", NULL };
    for (int ignore = 0; ignore < 2; ignore++) {
        struct built t;
        struct bpe_ctx ctx = { 0 };
        struct bpe_out out = { 0 };
        REQUIRE(build_vocabulary(&t, merges, ignore));
        const unsigned char *text = (const unsigned char *)"abc";
        for (int again = 0; again < 2; again++) { /* the second time from the cache */
            out.n = 0;
            const unsigned char *const starts[] = { text, text + 3 };
            bpe_encode(&t.bpe, &ctx, starts, 1, text + 3, &out);
            CHECK_INT(out.n, ignore ? 1 : 2);
            CHECK_INT(out.ids[0], ignore ? 10 : 8);
        }
        CHECK(t.bpe.trie != NULL && walks_alike(&t.bpe, "abcd"));
        free(out.ids);
        bpe_ctx_clear(&ctx);
        os_map_close(&t.block);
    }
}

/* A context answers as if it remembered nothing: many pieces, some again, more than there is room
 * to remember. */
static void test_memory_changes_nothing(void)
{
    static const char *const merges[] = { "a b", "c a", "ab ca", "b b", "ab ab", "c abca", NULL };
    enum { PIECES = 30000, KINDS = 22000 };
    struct built t;
    struct bpe_ctx ctx = { 0 }, fresh = { 0 };
    struct bpe_out out = { 0 }, want = { 0 };
    unsigned char text[250];
    REQUIRE(build_vocabulary(&t, merges, false));
    for (int i = 0; i < PIECES; i++) {
        struct rng r;
        rng_seed(&r, (uint64_t)(i % KINDS));
        size_t n = 1 + rng_next(&r) % (i % 3 ? sizeof(text) : 20);
        for (size_t k = 0; k < n; k++)
            text[k] = (unsigned char)('a' + rng_next(&r) % 3);
        const unsigned char *const starts[] = { text, text + n };
        out.n = want.n = 0;
        bpe_encode(&t.bpe, &ctx, starts, 1, text + n, &out);
        bpe_greedy_encode(&t.bpe, &fresh, text, n, &want);
        if (out.n != want.n || memcmp(out.ids, want.ids, out.n * sizeof(*out.ids)) != 0)
            TAP_FAIL("piece %d of %zu bytes", i, n);
    }
    CHECK(ctx.n_notes > 1);
    free(out.ids);
    free(want.ids);
    bpe_ctx_clear(&ctx);
    bpe_ctx_clear(&fresh);
    os_map_close(&t.block);
}

static void test_open_refuses_damage(void)
{
    static const char *const merges[] = { "a b", NULL };
    struct built t;
    struct bpe view;
    REQUIRE(build_vocabulary(&t, merges, false));
    size_t n = t.block.len;
    struct bpe_header *h = malloc(n);
    REQUIRE(h != NULL);
    memcpy(h, t.block.data, n);
    CHECK_INT(bpe_open(&view, h, n - 1, NULL), TINKER_EINVAL);
    h->n_ids = BPE_MAX_ID;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    ((uint32_t *)((char *)h + h->offsets_at))[3] = 0x7FFFFFFF;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    memset((char *)h + h->pairs_at, 0, sizeof(struct bpe_pair) << h->pair_bits); /* all in use */
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    struct bpe_part *parts = (struct bpe_part *)((char *)h + h->parts_at);
    REQUIRE(t.bpe.trie != NULL && parts[8].made == 1);
    parts[8].left = h->n_ids;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    parts[8].left = parts[8].right = 8; /* made of itself: walking still comes to an end */
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_OK);
    CHECK(!bpe_boundary_holds(&view, 0, 1));
    CHECK(bpe_boundary_holds(&view, 8, 8));
    memcpy(h, t.block.data, n);
    struct bpe_cell *cells = (struct bpe_cell *)((char *)h + h->trie_at);
    cells[300].edge = (uint32_t)(h->n_cells - 255) << 9;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    cells[300].id = h->n_ids;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    cells[0].edge = UINT32_MAX; /* where every look-up starts */
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    h->flags &= ~(uint32_t)BPE_GREEDY; /* looked up in slots, none of which is free */
    memset((char *)h + h->slots_at, 0xFF, sizeof(struct bpe_slot) << h->slot_bits);
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    h->json_n = UINT64_MAX; /* and a byte more: none */
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    h->config_n = UINT64_MAX;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    h->bytes['a'] = 5000;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    memcpy(h, t.block.data, n);
    struct bpe_pair *pairs = (struct bpe_pair *)((char *)h + h->pairs_at);
    for (size_t i = 0; i < (size_t)1 << h->pair_bits; i++)
        if (pairs[i].rank == BPE_NONE)
            pairs[i].id = h->n_ids;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_OK); /* nobody looks at empty ones */
    for (size_t i = 0; i < (size_t)1 << h->pair_bits; i++)
        pairs[i].id = h->n_ids;
    CHECK_INT(bpe_open(&view, h, n, NULL), TINKER_EINVAL);
    free(h);
    os_map_close(&t.block);
}

static void exchange_bytes(char *a, char *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = a[i];
        a[i] = b[i];
        b[i] = c;
    }
}

/* Every bit behind the sum, upper bits of two words, words and lines in another place. */
static void test_checksum_notices(void)
{
    static const char *const merges[] = { "a b", NULL };
    struct built t;
    REQUIRE(build_vocabulary(&t, merges, false));
    size_t from = offsetof(struct bpe_header, total), missed = 0;
    char *p = malloc(t.block.len);
    REQUIRE(p != NULL);
    memcpy(p, t.block.data, t.block.len);
    const struct bpe_header *h = (const struct bpe_header *)(void *)p;
    const size_t end = h->total;
    uint64_t sum = bpe_checksum(h);
    for (size_t at = from + sizeof(h->total); at < end; at++) /* the length itself is compared */
        for (int bit = 0; bit < 8; bit++) {
            p[at] = (char)(p[at] ^ 1 << bit);
            missed += bpe_checksum(h) == sum;
            p[at] = (char)(p[at] ^ 1 << bit);
        }
    for (size_t at = from + 64; at + 136 <= end; at += 8) {
        p[at + 7] ^= (char)0x80;
        p[at + 71] ^= (char)0x80;
        missed += bpe_checksum(h) == sum;
        p[at + 7] ^= (char)0x80;
        p[at + 71] ^= (char)0x80;
        for (size_t by = 8; by <= 64; by += 8) {
            exchange_bytes(p + at, p + at + by, 8);
            missed += bpe_checksum(h) == sum && memcmp(p, t.block.data, end) != 0;
            exchange_bytes(p + at, p + at + by, 8);
        }
    }
    CHECK_INT(missed, 0);
    CHECK(bpe_checksum(h) == sum);
    free(p);
    os_map_close(&t.block);
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
    RUN(test_memory_changes_nothing);
    RUN(test_open_refuses_damage);
    RUN(test_checksum_notices);
    RUN(test_byte_map);
    return tap_done();
}
