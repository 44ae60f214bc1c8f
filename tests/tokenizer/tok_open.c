/* tok_open.c - loading by name: files, directories, the Hugging Face cache, prebuilt files. */
#include "tokenizer/load/tok_open.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/base64.h"
#include "tokenizer/tok_fixture.h"

static char dir[64];

static const char *make_path(const char *name)
{
    static char out[4][256];
    static int k;
    k = (k + 1) % 4;
    snprintf(out[k], sizeof(out[k]), "%s/%s", dir, name);
    return out[k];
}

static void write_text(const char *name, const char *text, size_t n)
{
    char parent[256];
    snprintf(parent, sizeof(parent), "%s", make_path(name));
    *strrchr(parent, '/') = '\0';
    CHECK_INT(os_make_dirs(parent, NULL), TINKER_OK);
    CHECK_INT(os_write_file(make_path(name), text, n, NULL), TINKER_OK);
}

static void write_fixture(const char *name, const struct fixture *f)
{
    struct buf b = fixture_json(f);
    write_text(name, b.data, b.len);
    buf_clear(&b);
}

static tinker_tokenizer_options make_options(void)
{
    tinker_tokenizer_options o = TINKER_TOKENIZER_OPTIONS_INIT;
    static char cache[256], hf[256];
    snprintf(cache, sizeof(cache), "%s/cache", dir);
    snprintf(hf, sizeof(hf), "%s/hf", dir);
    o.cache_dir = cache;
    o.hf_home = hf;
    return o;
}

static void test_resolve(void)
{
    static const struct {
        const char *model, *given, *repo, *revision;
    } cases[] = {
        { "Qwen/Qwen3-8B", NULL, "Qwen/Qwen3-8B", "" },
        { "Qwen/Qwen3-8B:ckpt:1", NULL, "Qwen/Qwen3-8B", "" },
        { "org/model/variant", NULL, "org/model", "" },
        { "a/b/c/d", NULL, "a/b/c/d", "" },
        { "gpt2", NULL, "gpt2", "" },
        { "meta-llama/Llama-3.1-8B", NULL, "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer",
          "" },
        { "meta-llama/Llama-2-7b", NULL, "meta-llama/Llama-2-7b", "" },
        { "meta-llama/Llama-3.1-8B", "x/y", "x/y", "" },
        { "m", "x/y/z:3", "x/y/z", "" },
        { "moonshotai/Kimi-K2-Thinking", NULL, "moonshotai/Kimi-K2-Thinking",
          "612681931a8c906ddb349f8ad0f582cb552189cd" },
        { "moonshotai/Kimi-K2.5-Text-Only", NULL, "moonshotai/Kimi-K2.5",
          "4d01dfe0332d63057c186e0b262165819efb6611" },
        { "moonshotai/Kimi-K2.6", NULL, "moonshotai/Kimi-K2.6",
          "b5aabbfb20227ed42becbf5541dbffd213942c58" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tinker_tokenizer_source s;
        CHECK_INT(tinker_tokenizer_resolve(cases[i].model, cases[i].given, &s, NULL), TINKER_OK);
        CHECK_STR(s.repo, cases[i].repo);
        CHECK_STR(s.revision, cases[i].revision);
    }
    tinker_tokenizer_source s;
    char huge[400];
    memset(huge, 'x', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    CHECK_INT(tinker_tokenizer_resolve("", NULL, &s, NULL), TINKER_EINVAL);
    CHECK_INT(tinker_tokenizer_resolve(huge, NULL, &s, NULL), TINKER_EINVAL);
}

static void test_file_and_directory(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_tokenizer_options o = make_options();
    tinker_error err = { 0 };
    static const char config[] = "{\"eos_token\":\"hello\",\"chat_template\":\"old\"}";
    write_fixture("model/tokenizer.json", &f);
    write_text("model/tokenizer_config.json", config, strlen(config));
    tinker_tokenizer *a = tinker_tokenizer_load(make_path("model"), &o, &err);
    if (!a)
        TAP_FAIL("%s", err.message);
    REQUIRE(a != NULL);
    CHECK_INT(tinker_tokenizer_special(a, TINKER_TOKEN_EOS), 259);
    CHECK_STR(tinker_tokenizer_chat_template(a), "old");
    tinker_tokenizer *b = tinker_tokenizer_load(make_path("model/tokenizer.json"), &o, &err);
    CHECK(a == b); /* the same files: the same object */
    write_text("model/chat_template.jinja", "new", 3);
    tinker_tokenizer *c = tinker_tokenizer_load(make_path("model"), &o, &err);
    CHECK(c != NULL && c != a);
    CHECK_STR(tinker_tokenizer_chat_template(c), "new");
    tinker_tokenizer_free(a);
    tinker_tokenizer_free(b);
    tinker_tokenizer_free(c);
    CHECK(tinker_tokenizer_load(make_path("cache"), &o, &err) == NULL);
    CHECK_INT(err.status, TINKER_ESTATE);
    write_text("bad/tokenizer.json", "{\"model\":3}", 11);
    CHECK(tinker_tokenizer_load(make_path("bad"), &o, &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK(strstr(err.message, "bad/tokenizer.json") != NULL);
    CHECK(tinker_tokenizer_load("", &o, &err) == NULL);
}

/* Load around the table of shared objects. */
static tinker_tokenizer *load_apart(const char *name, bool prebuilt)
{
    static struct tok_files files;
    tinker_error err = { 0 };
    CHECK_INT(tok_files_find(&files, make_path(name), false, &err), TINKER_OK);
    tinker_tokenizer *t = tok_files_load(&files, prebuilt ? make_path("pre") : NULL, false, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    return t;
}

static char prebuilt_file[300];

static void test_prebuilt(void)
{
    struct fixture f = FIXTURE_INIT;
    static struct tok_files files;
    f.normalizer = "{\"type\":\"NFC\"}";
    f.added = "[{\"id\":300,\"content\":\"<|a|>\",\"special\":true}]";
    write_fixture("p/tokenizer.json", &f);
    tinker_tokenizer *fresh = load_apart("p", false), *made = load_apart("p", true);
    tinker_tokenizer *mapped = load_apart("p", true);
    REQUIRE(fresh && made && mapped);
    CHECK(mapped->prebuilt && !made->prebuilt);
    static const char text[] = "hello world <|a|>e\xCC\x81 aaaa th 12";
    char want[512];
    snprintf(want, sizeof(want), "%s", fixture_ids(fresh, text, strlen(text), NULL));
    CHECK_STR(fixture_ids(mapped, text, strlen(text), NULL), want);
    CHECK_STR(fixture_ids(made, text, strlen(text), NULL), want);
    CHECK_INT(tinker_tokenizer_id(mapped, "<|a|>", 5), 300);
    tinker_tokenizer_free(fresh);
    tinker_tokenizer_free(made);
    tinker_tokenizer_free(mapped);
    CHECK_INT(tok_files_find(&files, make_path("p"), false, NULL), TINKER_OK);
    char hex[65] = "";
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", files.place[i]);
    snprintf(prebuilt_file, sizeof(prebuilt_file), "%s/pre/tokenizer-%s.bin", dir, hex);
}

static void test_damaged_prebuilt_is_ignored(void)
{
    char *data;
    size_t n;
    REQUIRE(os_read_file(prebuilt_file, 1 << 26, &data, &n, NULL) == TINKER_OK);
    for (size_t at = 0; at < n; at += n / 7) {
        data[at] ^= 0x40;
        CHECK_INT(os_write_file(prebuilt_file, data, n, NULL), TINKER_OK);
        tinker_tokenizer *t = load_apart("p", true);
        REQUIRE(t != NULL);
        CHECK(!t->prebuilt); /* built again from the source */
        CHECK_IDS(t, "hello", "259");
        tinker_tokenizer_free(t);
        data[at] ^= 0x40;
    }
    CHECK_INT(os_write_file(prebuilt_file, data, n / 2, NULL), TINKER_OK);
    tinker_tokenizer *t = load_apart("p", true);
    CHECK(t != NULL && !t->prebuilt);
    tinker_tokenizer_free(t);
    free(data);
}

static void test_changed_source_is_read_again(void)
{
    struct fixture f = FIXTURE_INIT;
    static const char *const other[] = { "x y", NULL };
    tinker_tokenizer *t = load_apart("p", true);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "hello xy", "259 32 120 121");
    tinker_tokenizer_free(t);
    f.merges = other;
    write_fixture("p/tokenizer.json", &f);
    t = load_apart("p", true);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "xy", "256");
    tinker_tokenizer_free(t);
}

/* In place, of the same size, and with the old time put back. */
static void test_change_that_hides_is_noticed(void)
{
    static const char *const before[] = { "x y", NULL }, *const after[] = { "y x", NULL };
    struct fixture f = FIXTURE_INIT;
    struct stat st;
    f.merges = before;
    write_fixture("hidden/tokenizer.json", &f);
    REQUIRE(stat(make_path("hidden/tokenizer.json"), &st) == 0);
    for (int round = 0; round < 8; round++) {
        tinker_tokenizer *t = load_apart("hidden", true);
        REQUIRE(t != NULL);
        CHECK_IDS(t, "xyx", round % 2 ? "120 256" : "256 120");
        tinker_tokenizer_free(t);
        f.merges = round % 2 ? before : after;
        struct buf b = fixture_json(&f);
        CHECK_INT(b.len, st.st_size);
        FILE *out = fopen(make_path("hidden/tokenizer.json"), "r+");
        REQUIRE(out != NULL);
        CHECK_INT(fwrite(b.data, 1, b.len, out), b.len);
        fclose(out);
        buf_clear(&b);
        const struct timespec times[2] = { st.st_atim, st.st_mtim };
        CHECK_INT(utimensat(AT_FDCWD, make_path("hidden/tokenizer.json"), times, 0), 0);
    }
}

/* What was found is not what is loaded: tables of the one must not be kept for the other. */
static void test_change_between_find_and_load(void)
{
    static const char *const before[] = { "x y", NULL }, *const after[] = { "y x", NULL };
    static struct tok_files files;
    struct fixture f = FIXTURE_INIT;
    f.merges = before;
    write_fixture("late/tokenizer.json", &f);
    CHECK_INT(tok_files_find(&files, make_path("late"), false, NULL), TINKER_OK);
    CHECK(tok_files_same(&files, false));
    f.merges = after;
    write_fixture("late/tokenizer.json", &f);
    CHECK(!tok_files_same(&files, false));
    tinker_tokenizer *t = tok_files_load(&files, make_path("pre"), false, NULL);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "xyx", "120 256");
    tinker_tokenizer_free(t);
    t = load_apart("late", true);
    CHECK(t != NULL && !t->prebuilt); /* nothing was written */
    tinker_tokenizer_free(t);
}

/* Two changes within a tick of the clock have one time. */
static void test_no_stamp_for_what_just_changed(void)
{
    static struct tok_files files;
    static const uint8_t none[32];
    CHECK_INT(tok_files_find(&files, make_path("p"), false, NULL), TINKER_OK);
    CHECK(!files.settled);
    for (int settled = 0; settled < 2; settled++) {
        struct os_map map;
        files.settled = settled;
        tinker_tokenizer *t = tok_files_load(&files, make_path("pre"), false, NULL);
        CHECK(t != NULL && t->prebuilt);
        tinker_tokenizer_free(t);
        REQUIRE(os_map_open(&map, prebuilt_file, NULL) == TINKER_OK);
        const struct bpe_header *h = map.data;
        CHECK(memcmp(h->stamp, settled ? files.identity : none, 32) == 0);
        os_map_close(&map);
    }
}

/* The prebuilt file with other bytes of its header, and a checksum that fits. */
static void rewrite_header(bool other_source)
{
    char *data;
    size_t n;
    REQUIRE(os_read_file(prebuilt_file, 1 << 26, &data, &n, NULL) == TINKER_OK);
    struct bpe_header *h = malloc(n);
    REQUIRE(h != NULL);
    memcpy(h, data, n);
    h->stamp[5] ^= 1;
    h->source[5] ^= other_source;
    h->checksum = bpe_checksum(h);
    CHECK_INT(os_write_file(prebuilt_file, h, n, NULL), TINKER_OK);
    free(h);
    free(data);
}

static void test_prebuilt_is_checked_by_hash(void)
{
    struct fixture f = FIXTURE_INIT;
    for (int round = 0; round < 4; round++) {
        write_fixture("p/tokenizer.json", &f); /* another inode and time, the same text */
        tinker_tokenizer *t = load_apart("p", true);
        REQUIRE(t != NULL);
        CHECK(t->prebuilt == (round > 0));
        CHECK_IDS(t, "hello", "259");
        tinker_tokenizer_free(t);
    }
    for (int other = 0; other < 2; other++) {
        rewrite_header(other);
        tinker_tokenizer *t = load_apart("p", true);
        REQUIRE(t != NULL);
        CHECK(t->prebuilt == !other);
        tinker_tokenizer_free(t);
    }
}

static void test_hub(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_tokenizer_options o = make_options();
    tinker_error err = { 0 };
    write_fixture("hf/hub/models--Org--Model/snapshots/abc123/tokenizer.json", &f);
    write_text("hf/hub/models--Org--Model/refs/main", "abc123\n", 7);
    tinker_tokenizer *t = tinker_tokenizer_load("Org/Model:checkpoint", &o, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    CHECK(t != NULL);
    tinker_tokenizer_free(t);
    o.revision = "abc123";
    t = tinker_tokenizer_load("Org/Model/variant", &o, &err);
    CHECK(t != NULL);
    tinker_tokenizer_free(t);
    o.revision = "other";
    CHECK(tinker_tokenizer_load("Org/Model", &o, &err) == NULL);
    CHECK_INT(err.status, TINKER_ESTATE);
    o.revision = NULL;
    o.tokenizer_id = "Org/Model";
    t = tinker_tokenizer_load("who/ever", &o, &err);
    CHECK(t != NULL);
    tinker_tokenizer_free(t);
    o.tokenizer_id = NULL;
    CHECK(tinker_tokenizer_load("No/Such", &o, &err) == NULL);
    CHECK(strstr(err.message, "No/Such") != NULL);
    CHECK(tinker_tokenizer_load("../../etc", &o, &err) == NULL);
    CHECK(tinker_tokenizer_load("a/..", &o, &err) == NULL);
}

static void test_hub_in_the_home_directory(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_tokenizer_options o = make_options();
    tinker_error err = { 0 };
    const char *home = getenv("HOME");
    char *saved = home ? strdup(home) : NULL;
    write_fixture("hf2/hub/models--Org--Home/snapshots/abc/tokenizer.json", &f);
    write_text("hf2/hub/models--Org--Home/refs/main", "abc", 3);
    o.hf_home = NULL;
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    setenv("HOME", dir, 1);
    setenv("HF_HOME", "~/hf2", 1); /* as a configuration file may say it, which no shell expands */
    tinker_tokenizer *t = tinker_tokenizer_load("Org/Home", &o, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    tinker_tokenizer_free(t);
    setenv("HF_HUB_CACHE", "~/hf2/hub", 1);
    setenv("HF_HOME", "/nowhere", 1);
    t = tinker_tokenizer_load("Org/Home", &o, &err);
    CHECK(t != NULL);
    tinker_tokenizer_free(t);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HOME");
    if (saved)
        setenv("HOME", saved, 1);
    free(saved);
}

static char shared_path[256];
static tinker_tokenizer_options shared_options;

static void *load_shared(void *out)
{
    *(tinker_tokenizer **)out = tinker_tokenizer_load(shared_path, &shared_options, NULL);
    return NULL;
}

static void test_shared_between_threads(void)
{
    enum { N = 8 };
    struct fixture f = FIXTURE_INIT;
    pthread_t threads[N];
    tinker_tokenizer *t[N];
    write_fixture("shared/tokenizer.json", &f);
    snprintf(shared_path, sizeof(shared_path), "%s", make_path("shared"));
    shared_options = make_options();
    for (int i = 0; i < N; i++)
        REQUIRE(pthread_create(&threads[i], NULL, load_shared, &t[i]) == 0);
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N; i++) {
        CHECK(t[i] != NULL && t[i] == t[0]);
        tinker_tokenizer_free(t[i]);
    }
}

static void test_more_than_the_table_holds(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_tokenizer_options o = make_options();
    tinker_tokenizer *kept = NULL;
    for (int i = 0; i < 40; i++) {
        char name[64];
        snprintf(name, sizeof(name), "many/%d/tokenizer.json", i);
        write_fixture(name, &f);
        tinker_tokenizer *t = tinker_tokenizer_load(make_path(name), &o, NULL);
        REQUIRE(t != NULL);
        if (i == 0)
            kept = t;
        else
            tinker_tokenizer_free(t);
    }
    CHECK_IDS(kept, "hello", "259"); /* pushed out of the table, still ours */
    tinker_tokenizer_free(kept);
}

/* ---- rank files ------------------------------------------------------------------------------ */

static struct buf make_ranks(const char *const *tokens)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    int rank = 0;
    for (; rank < 256; rank++) {
        char c = (char)rank;
        base64_encode(&b, &c, 1);
        buf_printf(&b, " %d\n", rank);
    }
    for (; *tokens; tokens++) {
        base64_encode(&b, *tokens, strlen(*tokens));
        buf_printf(&b, " %d\n", rank++);
    }
    return b;
}

static void test_ranks(void)
{
    static const char *const tokens[] = { "ab", "bc", "abc", "abcd", " h", "xyz", NULL };
    static const tinker_special_token special[] = { { "<|x|>", 300 } };
    struct buf b = make_ranks(tokens);
    tinker_error err = { 0 };
    tinker_tokenizer *t =
        tinker_tokenizer_load_ranks(b.data, b.len, split_cl100k_pattern, special, 1, NULL, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "abcd abc", "259 32 258");
    CHECK_IDS(t, "abbc", "256 257");
    CHECK_IDS(t, "xyz xyzz", "261 32 120 121 122 122"); /* whole pieces need no merges */
    CHECK_IDS(t, "a<|x|>b", "97 300 98");
    tinker_tokenizer_free(t);
    write_text("r/cl100k_base.tiktoken", b.data, b.len);
    tinker_tokenizer_options o = make_options();
    t = tinker_tokenizer_load(make_path("r"), &o, &err);
    REQUIRE(t != NULL);
    CHECK_INT(tinker_tokenizer_id(t, "<|endofprompt|>", 15), 100276);
    tinker_tokenizer_free(t);
    write_text("k/tiktoken.model", b.data, b.len);
    static const char config[] =
        "{\"added_tokens_decoder\":{\"262\":{\"content\":\"[BOS]\",\"special\":true},"
        "\"520\":{\"content\":\"<think>\",\"special\":false}},"
        "\"bos_token\":\"[BOS]\"}";
    write_text("k/tokenizer_config.json", config, strlen(config));
    t = tinker_tokenizer_load(make_path("k"), &o, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    REQUIRE(t != NULL);
    CHECK_INT(tinker_tokenizer_special(t, TINKER_TOKEN_BOS), 262);
    CHECK_IDS(t, "[BOS]<|reserved_token_263|><think>ab\xE6\xBC\xA2", "262 263 520 256 230 188 162");
    CHECK_INT(tinker_tokenizer_id(t, "<|reserved_token_517|>", 22), 517);
    CHECK_INT(tinker_tokenizer_id(t, "<|reserved_token_518|>", 22), -1);
    tinker_tokenizer_free(t);
    buf_clear(&b);
}

static void check_rank_error(const char *text, const char *part)
{
    tinker_error err = { 0 };
    CHECK(tinker_tokenizer_load_ranks(text, strlen(text), "\\s", NULL, 0, NULL, &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
    if (!strstr(err.message, part))
        TAP_FAIL("\"%s\" does not say \"%s\"", err.message, part);
}

static void test_rank_errors(void)
{
    tinker_tokenizer_options o = make_options();
    tinker_error err = { 0 };
    static const char pieces[] = "\n\016\n\005<unk>\025";
    write_text("sp/tokenizer.model", pieces, sizeof(pieces) - 1);
    CHECK(tinker_tokenizer_load(make_path("sp"), &o, &err) == NULL);
    CHECK(strstr(err.message, "/sp/tokenizer.model: a SentencePiece") != NULL); /* named once */
    check_rank_error("", "256 bytes");
    check_rank_error("YQ== 0\n", "256 bytes");
    check_rank_error("YQ== 0\nYg==\n", "line 2");
    check_rank_error("YQ== x\n", "line 1");
    check_rank_error("YQ== -1\n", "line 1");
    check_rank_error("YQ== 99999999999\n", "line 1");
    check_rank_error("!!! 0\n", "base64");
    check_rank_error("YQ== 0\n\nYg== 0\n", "line 3");
    check_rank_error("YQ== 0\nYQ== 1\n", "twice");
}

/* ---- functions instead of files -------------------------------------------------------------- */

/* A token is a byte plus 1000; the state counts how often it was freed. */
static tinker_status shift_encode(const char *text, size_t n, const tinker_encode_options *o,
                                  tinker_tokens *out, tinker_error *e, void *state)
{
    (void)state;
    for (size_t i = 0; i < n; i++) {
        int32_t id = 1000 + (unsigned char)text[i];
        if (tinker_tokens_append(out, &id, 1, e) != TINKER_OK)
            return TINKER_ENOMEM;
        if (text[i] == '!')
            return TINKER_EINVAL; /* and says nothing */
    }
    return o->add_special ? tinker_tokens_append(out, &(int32_t){ 7 }, 1, e) : TINKER_OK;
}

static tinker_status shift_decode(const int32_t *ids, size_t n, const tinker_decode_options *o,
                                  tinker_text *out, tinker_error *e, void *state)
{
    (void)state;
    for (size_t i = 0; i < n; i++) {
        char c = (char)(ids[i] - 1000);
        if (ids[i] == 7 && o->skip_special)
            continue;
        if (ids[i] < 1000 && o->strict) {
            e->status = TINKER_EINVAL;
            snprintf(e->message, sizeof(e->message), "no byte is %d", (int)ids[i]);
            return TINKER_EINVAL;
        }
        if (tinker_text_append(out, &c, 1, e) != TINKER_OK)
            return TINKER_ENOMEM;
    }
    return TINKER_OK;
}

static int32_t shift_id(const char *token, size_t n, void *state)
{
    (void)state;
    return n == 5 && memcmp(token, "<end>", 5) == 0 ? 7 : -1;
}

static void shift_free(void *state)
{
    ++*(int *)state;
}

static void test_functions_instead_of_files(void)
{
    static const char text[] = "h\xC3\xA9!"; /* "hé!" */
    int freed = 0;
    tinker_error e = { 0 };
    tinker_tokenizer_functions f = TINKER_TOKENIZER_FUNCTIONS_INIT;
    tinker_tokenizer_options o = TINKER_TOKENIZER_OPTIONS_INIT;
    o.functions = &f;
    f.encode = shift_encode;
    f.state = &freed;
    f.free = shift_free;
    CHECK(!tinker_tokenizer_load("any/name", &o, &e)); /* without decode */
    CHECK_INT(e.status, TINKER_EINVAL);
    CHECK_INT(freed, 0);
    f.decode = shift_decode;
    f.id = shift_id;
    f.vocab_size = 1256;
    f.special[TINKER_TOKEN_EOS] = 7;
    tinker_tokenizer *t = tinker_tokenizer_load("any/name", &o, &e);
    REQUIRE(t);
    memset(&f, 0, sizeof(f)); /* it was copied */
    tinker_encode_options eo = TINKER_ENCODE_OPTIONS_INIT;
    tinker_tokens ids = TINKER_TOKENS_INIT, many[2] = { TINKER_TOKENS_INIT, TINKER_TOKENS_INIT };
    tinker_spans spans[2] = { TINKER_SPANS_INIT, TINKER_SPANS_INIT };
    eo.add_special = 1;
    CHECK_INT(tinker_tokenizer_encode(t, text, 3, &eo, &ids, &e), TINKER_OK);
    CHECK_INT(ids.n, 4);
    CHECK(ids.ids[0] == 1104 && ids.ids[1] == 1195 && ids.ids[2] == 1169 && ids.ids[3] == 7);
    CHECK_INT(tinker_tokenizer_encode(t, text, 4, NULL, &ids, &e), TINKER_EINVAL);
    CHECK_STR(e.message, "the tokenizer failed");
    CHECK_INT(ids.n, 4); /* as it was */
    const tinker_slice texts[] = { { "ab", 2 }, { "c", 1 } };
    CHECK_INT(tinker_tokenizer_encode_batch(t, texts, 2, NULL, many, NULL, &e), TINKER_OK);
    CHECK(many[0].n == 2 && many[1].n == 1 && many[1].ids[0] == 1099);
    CHECK_INT(tinker_tokenizer_encode_batch(t, texts, 2, NULL, many, spans, &e), TINKER_EINVAL);
    CHECK(strstr(e.message, "tells no spans") != NULL);
    tinker_text out = TINKER_TEXT_INIT;
    tinker_decode_options d = TINKER_DECODE_OPTIONS_INIT;
    d.skip_special = 1;
    CHECK_INT(tinker_tokenizer_decode(t, ids.ids, 4, &d, &out, &e), TINKER_OK);
    CHECK_STR(out.s, "h\xC3\xA9");
    out.n = 0;
    CHECK_INT(tinker_tokenizer_decode(t, ids.ids, 2, NULL, &out, &e), TINKER_OK);
    CHECK_STR(out.s, "h\xEF\xBF\xBD"); /* half a character */
    d.skip_special = 0;
    d.strict = 1;
    CHECK_INT(tinker_tokenizer_decode(t, ids.ids, 4, &d, &out, &e), TINKER_EINVAL);
    CHECK_STR(e.message, "no byte is 7");
    /* Streaming gives complete characters. */
    tinker_decoder *stream = tinker_decoder_new(t, NULL, &e);
    REQUIRE(stream);
    out.n = 0;
    CHECK_INT(tinker_decoder_put(stream, ids.ids, 2, &out, &e), TINKER_OK);
    CHECK_INT(out.n, 1);
    CHECK_INT(tinker_decoder_put(stream, ids.ids + 2, 1, &out, &e), TINKER_OK);
    CHECK_INT(tinker_decoder_end(stream, &out, &e), TINKER_OK);
    CHECK_STR(out.s, "h\xC3\xA9");
    size_t n = 1;
    CHECK_INT(tinker_tokenizer_id(t, "<end>", 5), 7);
    CHECK_INT(tinker_tokenizer_id(t, "x", 1), -1);
    CHECK_INT(tinker_tokenizer_special(t, TINKER_TOKEN_EOS), 7);
    CHECK_INT(tinker_tokenizer_special(t, TINKER_TOKEN_BOS), -1);
    CHECK(!tinker_tokenizer_bytes(t, 1104, &n) && !tinker_tokenizer_is_special(t, 7));
    CHECK_INT(tinker_tokenizer_token(t, 7, &out, &e), TINKER_EINVAL);
    CHECK_INT(tinker_tokenizer_vocab_size(t, 1), 1256);
    CHECK_INT(tinker_tokenizer_max_id(t), 1255);
    CHECK(!tinker_tokenizer_chat_template(t));
    tinker_tokenizer_free(t);
    CHECK_INT(freed, 0); /* the decoder holds it */
    tinker_decoder_free(stream);
    CHECK_INT(freed, 1);
    tinker_tokens_clear(&ids);
    tinker_tokens_clear(&many[0]);
    tinker_tokens_clear(&many[1]);
    tinker_text_clear(&out);
}

int main(void)
{
    snprintf(dir, sizeof(dir), "/tmp/tinker-tok-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    RUN(test_resolve);
    RUN(test_file_and_directory);
    RUN(test_prebuilt);
    RUN(test_no_stamp_for_what_just_changed);
    RUN(test_damaged_prebuilt_is_ignored);
    RUN(test_change_that_hides_is_noticed);
    RUN(test_change_between_find_and_load);
    RUN(test_changed_source_is_read_again);
    RUN(test_prebuilt_is_checked_by_hash);
    RUN(test_hub);
    RUN(test_hub_in_the_home_directory);
    RUN(test_shared_between_threads);
    RUN(test_more_than_the_table_holds);
    RUN(test_ranks);
    RUN(test_rank_errors);
    RUN(test_functions_instead_of_files);
    os_remove_tree(dir, NULL);
    return tap_done();
}
