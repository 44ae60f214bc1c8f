/* Reductions of metrics over chunks, and the order-free hash. */
#include "client/training/merge.h"
#include "support/tap.h"

static double reduced(const char *name, const double *v, const size_t *weights, size_t n)
{
    tinker_named_number metrics[4];
    tinker_forward_backward parts[4];
    const tinker_forward_backward *p[4];
    static const tinker_loss_output outputs[8];
    for (size_t i = 0; i < n; i++) {
        metrics[i] = (tinker_named_number){ name, v[i] };
        parts[i] = (tinker_forward_backward){ "T", outputs, weights[i], &metrics[i], 1 };
        p[i] = &parts[i];
    }
    struct arena a;
    arena_init(&a, 1 << 20);
    tinker_forward_backward out;
    CHECK_INT(merge_results(p, n, &a, &out, NULL, NULL), TINKER_OK);
    double r = tinker_metric(out.metrics, out.n_metrics, name);
    arena_clear(&a);
    return r;
}

static void test_table(void) /* */
{
    static const double v[] = { 1.0, 2.0 };
    static const size_t w[] = { 1, 3 };
    CHECK_NEAR(reduced("a:mean", v, w, 2), 1.75, 0);
    CHECK_NEAR(reduced("a:sum", v, w, 2), 3, 0);
    CHECK_NEAR(reduced("a:min", v, w, 2), 1, 0);
    CHECK_NEAR(reduced("a:max", v, w, 2), 2, 0);
    CHECK_NEAR(reduced("a:slack", v, w, 2), 0.25, 0);
    CHECK_NEAR(reduced("a:unique", v, w, 2), 1, 0);
    CHECK(isnan(reduced("a:median", v, w, 2)));
    CHECK(isnan(reduced("a", v, w, 2)));
    CHECK(isnan(reduced("a:b:mean", v, w, 2)));
    static const size_t zero[] = { 0, 0 };
    CHECK_NEAR(reduced("a:mean", v, zero, 2), 1.5, 0); /* plain when nobody has weight */
}

static void test_unique_and_missing(void) /* R-101 R-100 */
{
    static const tinker_loss_output outputs[2];
    tinker_named_number m1[] = { { "k:unique", 5 }, { "only:sum", 1 } },
                        m2[] = { { "k:unique", 6 } },
                        m3[] = { { "k:unique", 7 }, { "late:sum", 1 } };
    tinker_forward_backward p1 = { "first", outputs, 1, m1, 2 }, p2 = { "x", outputs, 2, m2, 1 },
                            p3 = { "y", outputs, 0, m3, 2 };
    const tinker_forward_backward *p[] = { &p1, &p2, &p3 };
    struct arena a;
    arena_init(&a, 1 << 20);
    tinker_forward_backward out;
    CHECK_INT(merge_results(p, 3, &a, &out, NULL, NULL), TINKER_OK);
    CHECK_INT(out.n_metrics, 3);
    CHECK_NEAR(tinker_metric(out.metrics, out.n_metrics, "k:unique"), 5, 0);
    CHECK_NEAR(tinker_metric(out.metrics, out.n_metrics, "k:unique_1"), 6, 0);
    CHECK_NEAR(tinker_metric(out.metrics, out.n_metrics, "k:unique_2"), 7, 0);
    CHECK_INT(out.n_outputs, 3);
    CHECK_STR(out.output_type, "first");
    arena_clear(&a);
}

/* Python refuses to make an integer of these; here only the metric is lost. */
static void test_hash_of_no_number(void) /* R-101 R-102 */
{
    static const size_t w[] = { 1, 1 };
    const double bad[][2] = { { 1, NAN }, { INFINITY, 1 }, { -INFINITY, 2 } };
    for (size_t i = 0; i < 3; i++) {
        CHECK(isnan(reduced("a:hash_unordered", bad[i], w, 2)));
        CHECK(isnan(reduced("a:hash2", bad[i], w, 2)));
        CHECK(!isfinite(reduced("a:sum", bad[i], w, 2))); /* this one says what came */
    }
    static const double good[] = { 1e300, -1e300 };
    CHECK(reduced("a:hash_unordered", good, w, 2) != -9);
}

static void test_hash(void) /* */
{
    double a[] = { 1, 2, 3 }, b[] = { 3, 1, 2 }, c[] = { 0 },
           d[] = { -5, 2305843009213693952.0, 7 }, e[] = { 1234567.9, 12 };
    CHECK(merge_hash_unordered(a, 3) == INT64_C(529344067295497451));
    CHECK(merge_hash_unordered(b, 3) == INT64_C(529344067295497451));
    CHECK(merge_hash_unordered(c, 1) == INT64_C(-8753497827991233192));
    CHECK(merge_hash_unordered(d, 3) == INT64_C(5829274599431629514));
    CHECK(merge_hash_unordered(e, 2) == INT64_C(-7884232132791000200));
}

/* Values of the official SDK 0.36 for the same numbers. */
static void test_hash2(void)
{
    static const size_t w[] = { 1, 1, 1 };
    CHECK(reduced("a:hash2", (double[]){ 1, 2, 3 }, w, 3) == 6);
    CHECK(reduced("a:hash2", (double[]){ -5, 7 }, w, 2) == 2);
    CHECK(reduced("a:hash2", (double[]){ -1 }, w, 1) == 18446744073709551615.0);
    CHECK(reduced("a:hash2", (double[]){ 1234567.9, -3.9 }, w, 2) == 1234564);
    CHECK(reduced("a:hash2", (double[]){ 0x1p64 + 4096, 1 }, w, 2) == 4097);
    CHECK(reduced("a:hash2", (double[]){ 0x1p63, 0x1p63, 5 }, w, 3) == 5);
}

int main(void)
{
    RUN(test_table);
    RUN(test_unique_and_missing);
    RUN(test_hash_of_no_number);
    RUN(test_hash);
    RUN(test_hash2);
    return tap_done();
}
