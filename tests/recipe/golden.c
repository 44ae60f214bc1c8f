/* golden.c - the numbers of tinker-cookbook 0.5.8, from tests/vectors/recipes.json. */
#include <math.h>
#include <stdlib.h>
#include <tinker/recipe.h>
#include <unistd.h>
#include "base/os.h"
#include "base/sha.h"
#include "json/json.h"
#include "recipe/grade_text.h"
#include "support/tap.h"

enum { MANY = 128 };

static struct arena arena;
static struct json_str all;

/* ---- looking into the vectors ---- */

static struct json_str member(struct json_str from, const char *name)
{
    struct json_reader r;
    struct json_str key, value = { NULL, 0 }, raw;
    json_reader_init(&r, from.s, from.n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key) && json_raw(&r, &raw))
        if (json_str_is(key, name))
            value = raw;
    if (!value.s)
        TAP_FAIL("no vector %s", name);
    return value;
}

/* Element i of an array; s NULL behind its end. */
static struct json_str element(struct json_str from, size_t i)
{
    struct json_reader r;
    struct json_str raw = { NULL, 0 };
    json_reader_init(&r, from.s, from.n, &arena);
    json_begin_array(&r);
    for (size_t k = 0; json_next_item(&r) && json_raw(&r, &raw); k++)
        if (k == i)
            return raw;
    return (struct json_str){ NULL, 0 };
}

/* null reads as NaN */
static double number(struct json_str raw)
{
    struct json_reader r;
    double v = NAN;
    json_reader_init(&r, raw.s, raw.n, &arena);
    if (json_peek(&r) == JSON_NUMBER)
        json_double(&r, &v);
    return v;
}

static size_t numbers(struct json_str raw, double *out)
{
    size_t n = 0;
    for (struct json_str e; n < MANY && (e = element(raw, n)).s; n++)
        out[n] = number(e);
    return n;
}

static size_t floats(struct json_str raw, float *out)
{
    double v[MANY];
    size_t n = numbers(raw, v);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)v[i];
    return n;
}

static char *text(struct json_str raw)
{
    struct json_reader r;
    char *s = NULL;
    json_reader_init(&r, raw.s, raw.n, &arena);
    json_cstring(&r, &s);
    return s;
}

/* 1e-6 relative, or absolute below 1: float32 */
static void check_close(const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-6 * fmax(1, fabs(want))) && !(isnan(got) && isnan(want)))
        TAP_FAIL("%s: got %.9g, want %.9g", what, got, want);
}

/* ---- orders ---- */

static void test_permutations(void)
{
    struct json_str list = member(all, "permutation"), v;
    for (size_t i = 0; (v = element(list, i)).s; i++) {
        double want[MANY];
        size_t got[MANY], n = numbers(member(v, "order"), want);
        tinker_permutation((uint64_t)number(member(v, "seed")), n, got);
        for (size_t k = 0; k < n; k++)
            CHECK_INT(got[k], want[k]);
    }
}

static void check_digest(size_t n, uint64_t seed, const char *name)
{
    size_t *order = malloc(n * sizeof(*order));
    struct sha256 sha;
    uint8_t digest[32];
    char hex[65], line[32];
    REQUIRE(order);
    tinker_permutation(seed, n, order);
    sha256_init(&sha);
    for (size_t i = 0; i < n; i++) {
        int len = snprintf(line, sizeof(line), "%zu%s", order[i], i + 1 < n ? "\n" : "");
        sha256_update(&sha, line, (size_t)len);
    }
    sha256_final(&sha, digest);
    hex_encode(digest, 32, hex);
    char *want =
        text(member(member(member(all, "permutation_large"), name), "sha256_of_decimal_lines"));
    double first[MANY];
    size_t m = numbers(member(member(member(all, "permutation_large"), name), "first"), first);
    for (size_t i = 0; i < m; i++)
        CHECK_INT(order[i], first[i]);
    if (strcmp(hex, want) != 0) { /* or with a newline at the end */
        sha256_init(&sha);
        for (size_t i = 0; i < n; i++)
            sha256_update(&sha, line, (size_t)snprintf(line, sizeof(line), "%zu\n", order[i]));
        sha256_final(&sha, digest);
        hex_encode(digest, 32, hex);
    }
    CHECK_STR(hex, want);
    free(order);
}

static void test_large_permutations(void)
{
    check_digest(1000, 0, "1000,0");
    check_digest(100000, 3, "100000,3");
}

static void test_batches(void)
{
    char path[64];
    tinker_error err = { 0 };
    struct json_str v = member(all, "batches");
    snprintf(path, sizeof(path), "/tmp/tinker-golden-%ld.jsonl", (long)getpid());
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    for (int i = 0; i < 20; i++)
        fprintf(f, "{\"tokens\":[%d,1,2]}\n", i);
    fclose(f);
    tinker_tokenizer *tok = tinker_tokenizer_load("models/tiny", NULL, &err);
    tinker_rows_options o = TINKER_ROWS_OPTIONS_INIT;
    o.test_size = 4;
    o.batch_size = 5;
    tinker_rows *rows = tok ? tinker_rows_load(path, NULL, tok, &o, &err) : NULL;
    unlink(path);
    if (!rows)
        printf("# %s\n", err.message);
    REQUIRE(rows);
    CHECK_INT(tinker_rows_batches(rows), 3);
    double want[MANY];
    size_t n, count = numbers(member(v, "test_rows"), want);
    const size_t *order = tinker_rows_order(rows, SIZE_MAX, &n);
    CHECK_INT(n, count);
    for (size_t i = 0; i < n; i++)
        CHECK_INT(order[i], want[i]);
    for (size_t e = 0; e < 3; e++) {
        char name[8];
        snprintf(name, sizeof(name), "%zu", e);
        for (size_t b = 0; b < 3; b++) {
            numbers(element(member(member(v, "epochs"), name), b), want);
            const tinker_datum *d = tinker_rows_batch(rows, e, b, &n);
            CHECK_INT(n, 5);
            for (size_t i = 0; i < n; i++) /* the first token tells the row */
                CHECK_INT(d[i].model_input.chunks[0].tokens[0], want[i]);
        }
    }
    tinker_rows_free(rows);
    tinker_tokenizer_free(tok);
}

/* ---- datums and losses ---- */

static void test_sft_datums(void)
{
    struct json_str list = member(all, "sft_datum"), v;
    for (size_t i = 0; (v = element(list, i)).s; i++) {
        tinker_error err;
        double want[MANY], ids[MANY], longest = number(member(v, "max_length"));
        float weights[MANY];
        int32_t tokens[MANY];
        size_t n = numbers(member(v, "tokens"), ids);
        floats(member(v, "weights"), weights);
        for (size_t k = 0; k < n; k++)
            tokens[k] = (int32_t)ids[k];
        tinker_chunk chunk = { .tokens = tokens, .n_tokens = n };
        tinker_example e = { { &chunk, 1 }, weights, n };
        bool mean = strcmp(text(member(v, "reduction")), "mean") == 0;
        tinker_training_row *row =
            tinker_training_row_new(&e, isnan(longest) ? 0 : (size_t)longest,
                                    mean ? TINKER_REDUCTION_MEAN : TINKER_REDUCTION_NONE, &err);
        REQUIRE(row);
        n = numbers(member(v, "target_tokens"), want);
        CHECK_INT(row->n_targets, n);
        for (size_t k = 0; k < n; k++)
            CHECK_INT(((const int64_t *)row->datum.inputs[0].tensor.data)[k], want[k]);
        numbers(member(v, "weights_out"), want);
        for (size_t k = 0; k < n; k++)
            check_close("weight", ((const float *)row->datum.inputs[1].tensor.data)[k], want[k]);
        tinker_training_row_free(row);
    }
}

/* Datums that only have tensors. */
struct bare {
    tinker_datum datum;
    tinker_named_tensor inputs[4];
    int64_t targets[MANY], shape[2];
    float arrays[3][MANY];
};

static void fill_bare(struct bare *b, size_t n)
{
    b->inputs[0] = (tinker_named_tensor){ "target_tokens",
                                          { .dtype = TINKER_INT64, .data = b->targets, .n = n } };
    b->datum = (tinker_datum){ .model_input = { NULL, 0 }, .inputs = b->inputs, .n_inputs = 1 };
}

static float *add_array(struct bare *b, const char *name, size_t n)
{
    float *v = b->arrays[b->datum.n_inputs - 1];
    b->inputs[b->datum.n_inputs++] =
        (tinker_named_tensor){ name, { .dtype = TINKER_FLOAT32, .data = v, .n = n } };
    return v;
}

static void test_mean_nll(void)
{
    struct json_str list = member(all, "mean_nll"), v;
    for (size_t i = 0; (v = element(list, i)).s; i++) {
        static struct bare b[2];
        static float lp[2][MANY];
        float *const logprobs[2] = { lp[0], lp[1] };
        double nll, bpb;
        for (size_t k = 0; k < 2; k++) {
            size_t n = floats(element(member(v, "logprobs"), k), lp[k]);
            fill_bare(&b[k], n);
            floats(element(member(v, "weights"), k), add_array(&b[k], "weights", n));
        }
        tinker_datum data[2] = { b[0].datum, b[1].datum };
        tinker_score_logprobs(logprobs, data, 2, NULL, &nll, &bpb);
        check_close("nll", nll, number(member(v, "nll")));
        CHECK(isnan(bpb));
    }
}

static void test_bits_per_byte(void)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static char ranks[8192] = "w6k= 2\nYmNk 3\n";
    static const tinker_special_token special[] = { { "<end>", 9 } };
    static struct bare b;
    struct json_str v = member(all, "bpb");
    tinker_error err = { 0 };
    size_t len = strlen(ranks);
    for (int i = 0; i < 256; i++) /* every byte has a token of its own; that of 'a' is 1 */
        len += (size_t)snprintf(ranks + len, sizeof(ranks) - len, "%c%c== %d\n", digits[i >> 2],
                                digits[(i & 3) << 4], i == 'a' ? 1 : 100 + i);
    tinker_tokenizer *tok = tinker_tokenizer_load_ranks(ranks, len, ".+", special, 1, NULL, &err);
    if (!tok)
        printf("# %s\n", err.message);
    REQUIRE(tok);
    float lp[MANY], *const logprobs[1] = { lp };
    double ids[MANY], nll, bpb;
    size_t n = floats(member(v, "logprobs"), lp);
    fill_bare(&b, n);
    numbers(member(v, "targets"), ids);
    for (size_t i = 0; i < n; i++)
        b.targets[i] = (int64_t)ids[i];
    floats(member(v, "weights"), add_array(&b, "weights", n));
    tinker_score_logprobs(logprobs, &b.datum, 1, tok, &nll, &bpb);
    check_close("bpb", bpb, number(member(v, "bpb")));
    tinker_tokenizer_free(tok);
}

static void test_preferences(void)
{
    struct json_str v = member(all, "dpo");
    static struct bare b[6];
    static const char *const names[] = { "dpo_loss", "accuracy", "margin", "chosen_reward",
                                         "rejected_reward" };
    float c[3], r[3], c0[3], r0[3], *reference[6];
    tinker_tensor logprobs[6];
    tinker_datum data[6];
    tinker_error err = { 0 };
    floats(member(v, "chosen"), c);
    floats(member(v, "rejected"), r);
    floats(member(v, "chosen_ref"), c0);
    floats(member(v, "rejected_ref"), r0);
    for (size_t i = 0; i < 6; i++) {
        fill_bare(&b[i], 1);
        *add_array(&b[i], "weights", 1) = 1;
        data[i] = b[i].datum;
        logprobs[i] = (tinker_tensor){ .dtype = TINKER_FLOAT32,
                                       .data = i % 2 ? &r[i / 2] : &c[i / 2],
                                       .n = 1 };
        reference[i] = i % 2 ? &r0[i / 2] : &c0[i / 2];
    }
    tinker_dpo dpo = TINKER_DPO_INIT;
    dpo.beta = number(member(v, "beta"));
    dpo.reference = reference;
    tinker_loss_report *report =
        tinker_loss_evaluate(tinker_loss_preference, &dpo, data, logprobs, 6, NULL, &err);
    REQUIRE(report);
    check_close("loss", report->loss_total, number(member(v, "loss")));
    for (size_t i = 0; i < 5; i++)
        check_close(names[i], tinker_metric(report->metrics, report->n_metrics, names[i]),
                    number(member(member(v, "metrics"), names[i])));
    for (size_t i = 0; i < 6; i++)
        check_close("gradient", *(const double *)report->gradients[i].data,
                    number(element(member(v, i % 2 ? "grad_rejected" : "grad_chosen"), i / 2)));
    tinker_loss_report_free(report);
}

static void test_reverse_kl(void)
{
    struct json_str v = member(all, "reverse_kl_topk");
    static struct bare b;
    static float lp[MANY];
    tinker_error err = { 0 };
    fill_bare(&b, 9);
    float *w = add_array(&b, "weights", 9);
    b.shape[0] = b.shape[1] = 3;
    for (size_t t = 0; t < 3; t++) {
        floats(element(member(v, "teacher_weights"), t), w + 3 * t);
        floats(element(member(v, "student_logprobs"), t), lp + 3 * t);
    }
    for (size_t i = 0; i < 2; i++) {
        b.inputs[i].tensor.shape = b.shape;
        b.inputs[i].tensor.ndim = 2;
    }
    tinker_tensor logprobs = {
        .dtype = TINKER_FLOAT32, .data = lp, .n = 9, .shape = b.shape, .ndim = 2
    };
    tinker_loss_report *report =
        tinker_loss_evaluate(tinker_loss_reverse_kl, NULL, &b.datum, &logprobs, 1, NULL, &err);
    if (!report)
        printf("# %s\n", err.message);
    REQUIRE(report);
    check_close("loss", report->loss_total, number(member(v, "loss")));
    for (size_t i = 0; i < 9; i++)
        check_close("gradient", ((const double *)report->gradients[0].data)[i],
                    number(element(element(member(v, "grad"), i / 3), i % 3)));
    static const char *const names[] = { "sdft/reverse_kl_mean", "sdft/student_entropy_mean",
                                         "sdft/reverse_kl_positions" };
    for (size_t i = 0; i < 3; i++)
        check_close(names[i], tinker_metric(report->metrics, report->n_metrics, names[i]),
                    number(member(member(v, "metrics"), names[i])));
    tinker_loss_report_free(report);
}

/* ---- rates ---- */

static void test_rates(void)
{
    struct json_str lr = member(all, "lr_schedule");
    for (tinker_lr s = TINKER_LR_LINEAR; s <= TINKER_LR_CONSTANT; s++) {
        double want[MANY];
        size_t n = numbers(member(member(lr, tinker_lr_name(s)), "multiplier"), want);
        for (size_t i = 0; i < n; i++)
            CHECK_NEAR(tinker_lr_multiplier(s, i, n, 0), want[i], 1e-15);
    }
    CHECK_NEAR(tinker_lr_multiplier(TINKER_LR_LINEAR, 1, 10, 4), 0.5, 1e-15);
    CHECK_NEAR(tinker_lr_multiplier(TINKER_LR_LINEAR, 4, 10, 4), 1, 1e-15);
    struct json_reader r;
    struct json_str models = member(all, "get_lr"), key, raw;
    json_reader_init(&r, models.s, models.n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key) && json_raw(&r, &raw)) {
        char *name = arena_strndup(&arena, key.s, key.n);
        char *full = strstr(name, " (full)"); /* of a model trained without LoRA */
        if (full)
            *full = 0;
        double got = tinker_lr_auto(name, NULL, 0, !full), want = number(raw);
        if (isnan(want)) {
            if (!isnan(got))
                TAP_FAIL("%s: got %g, want none", name, got);
        } else
            CHECK_NEAR(got, want, 1e-15);
    }
    CHECK(isnan(tinker_lr_auto("some/model", NULL, 0, 1)));
    CHECK_NEAR(tinker_lr_auto("tinker/tiny", "qwen3", 128, 1), 5e-4 * pow(2000.0 / 512, 0.0775),
               1e-15);
    models = member(all, "lora_param_count");
    json_reader_init(&r, models.s, models.n, &arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key) && json_raw(&r, &raw)) {
        char *name = arena_strndup(&arena, key.s, key.n);
        int64_t rank = (int64_t)number(member(raw, "rank"));
        CHECK_INT(tinker_lora_count(name, rank, 1, 1, 1), number(member(raw, "all")));
        CHECK_INT(tinker_lora_count(name, rank, 0, 1, 0), number(member(raw, "attn_only")));
    }
}

/* ---- RL ---- */

static void test_advantages(void)
{
    struct json_str list = member(all, "advantages"), v;
    for (size_t i = 0; (v = element(list, i)).s; i++) {
        double reward[MANY], got[MANY], want[MANY];
        size_t n = numbers(member(v, "rewards"), reward);
        numbers(member(v, "advantages"), want);
        tinker_group_advantages(reward, n, TINKER_ADVANTAGE_CENTER, got);
        for (size_t k = 0; k < n; k++)
            check_close("advantage", got[k], want[k]);
    }
    double got[2], reward[] = { 1, 0 };
    tinker_group_advantages(reward, 2, TINKER_ADVANTAGE_RLOO, got);
    CHECK_NEAR(got[0], 1, 1e-7);
    tinker_group_advantages(reward, 2, TINKER_ADVANTAGE_GRPO, got);
    CHECK_NEAR(got[1], -1, 1e-5);
}

static void test_estimators(void)
{
    struct json_str v = member(all, "kl_estimators");
    double p[3], q[3], want[3][3];
    numbers(member(v, "logp"), p);
    numbers(member(v, "logq"), q);
    numbers(member(v, "k1"), want[0]);
    numbers(member(v, "k2"), want[1]);
    numbers(member(v, "k3"), want[2]);
    for (size_t i = 0; i < 3; i++) {
        CHECK_NEAR(tinker_kl_k1(p[i], q[i]), want[0][i], 1e-15);
        CHECK_NEAR(tinker_kl_k2(p[i], q[i]), want[1][i], 1e-15);
        CHECK_NEAR(tinker_kl_k3(p[i], q[i]), want[2][i], 1e-15);
    }
}

/* The datums of a trajectory with `base` as reference; centered or not. */
static void check_kl(const char *name, double discount, int centered, const char *metric)
{
    struct json_str v = member(all, name), t = member(member(all, "trajectory_datums"), "datums");
    struct json_str from = centered ? v : member(all, "kl_penalty_discount_0.0");
    static struct bare b[2];
    static float base[2][MANY];
    float *reference[2];
    tinker_datum data[2];
    for (size_t i = 0; i < 2; i++) {
        struct json_str d = element(t, i);
        size_t n = floats(member(d, "mask"), base[i]);
        fill_bare(&b[i], n);
        floats(member(d, "logprobs"), add_array(&b[i], "logprobs", n));
        float *advantages = add_array(&b[i], "advantages", n);
        if (centered)
            floats(member(d, "advantages"), advantages);
        else
            memset(advantages, 0, n * sizeof(*advantages));
        floats(member(d, "mask"), add_array(&b[i], "mask", n));
        floats(element(member(from, "base_logprobs"), i), base[i]);
        reference[i] = base[i] + 1; /* of the targets: without the first token */
        data[i] = b[i].datum;
    }
    double mean = tinker_add_kl(data, 2, reference, number(member(v, "coef")), discount, centered);
    check_close(metric, mean, number(member(member(v, "metrics"), metric)));
    for (size_t i = 0; i < 2; i++) {
        double want[MANY];
        size_t n = numbers(element(member(v, "advantages"), i), want);
        for (size_t k = 0; k < n; k++)
            check_close(name, b[i].arrays[1][k], want[k]);
    }
}

static void test_kl_penalties(void)
{
    check_kl("kl_penalty_discount_0.0", 0, 1, "kl_policy_base");
    check_kl("kl_penalty_discount_0.9", 0.9, 1, "kl_policy_base");
    check_kl("on_policy_distill", 0, 0, "teacher_kl");
}

static void test_constant_groups(void)
{
    tinker_rollout at[6] = { { .reward = 1 }, { .reward = 1 }, { .reward = 0 },
                             { .reward = 1 }, { .reward = 0 }, { .reward = 0 } };
    tinker_rollouts x = { 3, 2, at };
    CHECK_NEAR(tinker_rollouts_advantages(&x, TINKER_ADVANTAGE_CENTER, 1), 0.5, 1e-12);
    const int dropped[] = { 1, 1, 0, 0, 1, 1 };
    for (size_t i = 0; i < 6; i++)
        CHECK_INT(at[i].dropped, dropped[i]);
    tinker_rollout same[4] = { { .reward = 1 }, { .reward = 1 }, { .reward = 0 }, { .reward = 0 } };
    tinker_rollouts y = { 2, 2, same };
    tinker_rollouts_advantages(&y, TINKER_ADVANTAGE_CENTER, 1);
    CHECK(!same[0].dropped && !same[1].dropped && same[2].dropped);
}

/* ---- grading ---- */

static void test_extraction(void)
{
    struct json_str list = member(all, "number_extraction"), v;
    for (size_t i = 0; (v = element(list, i)).s; i++)
        CHECK_STR(grade_find_number(&arena, text(element(v, 0))), text(element(v, 1)));
    list = member(all, "choice_extraction");
    for (size_t i = 0; (v = element(list, i)).s; i++) {
        char got[2] = { grade_find_letter(text(element(v, 0)), "ABCD"), 0 };
        CHECK_STR(got, text(element(v, 1)));
    }
    list = member(all, "check_number");
    tinker_grader *g = tinker_grader_new("number", NULL, NULL);
    REQUIRE(g);
    for (size_t i = 0; (v = element(list, i)).s; i++) {
        double score = -1;
        char *expected = text(element(v, 1));
        tinker_grader_score(g, text(element(v, 0)), expected, NULL, &score, NULL);
        /* nothing found is not what an empty answer asks for: here we differ on purpose */
        bool want = element(v, 2).s[0] == 't' && *expected;
        CHECK_INT(score, want);
    }
    tinker_grader_free(g);
}

static void test_pass_at_k(void)
{
    struct json_str list = member(all, "pass_at_k"), v;
    for (size_t i = 0; (v = element(list, i)).s; i++)
        CHECK_NEAR(tinker_pass_at_k((size_t)number(member(v, "n")), (size_t)number(member(v, "c")),
                                    (size_t)number(member(v, "k"))),
                   number(member(v, "p")), 1e-12);
}

int main(void)
{
    char *data = NULL;
    arena_init(&arena, SIZE_MAX);
    if (os_read_file("tests/vectors/recipes.json", 1 << 20, &data, &all.n, NULL) != TINKER_OK)
        return 1;
    all.s = data;
    RUN(test_permutations);
    RUN(test_large_permutations);
    RUN(test_batches);
    RUN(test_sft_datums);
    RUN(test_mean_nll);
    RUN(test_bits_per_byte);
    RUN(test_preferences);
    RUN(test_reverse_kl);
    RUN(test_rates);
    RUN(test_advantages);
    RUN(test_estimators);
    RUN(test_kl_penalties);
    RUN(test_constant_groups);
    RUN(test_extraction);
    RUN(test_pass_at_k);
    arena_clear(&arena);
    free(data);
    return tap_done();
}
