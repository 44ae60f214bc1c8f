/* training.c - what a training run may rely on: same bits whatever the threads, memory
 * and interruptions; nothing added by what failed; refusals with numbers. */
#include <tinker/engine.h>
#include <math.h>
#include <unistd.h>
#include "engine/model/adapter.h"
#include "engine/train/pass.h"
#include "support/tap.h"
#include "support/tiny_model.h"

static const char *arch = "qwen3";

static tinker_status step(tinker_adapter *a, double rate, tinker_step_metrics *m)
{
    tinker_error err = { 0 };
    tinker_adam adam = TINKER_ADAM_INIT;
    adam.learning_rate = rate;
    adam.weight_decay = 0.01;
    adam.grad_clip_norm = 50;
    return tinker_adapter_step(a, &adam, m, &err);
}

static bool same_weights(const tinker_adapter *a, const tinker_adapter *b)
{
    return a->params.total == b->params.total &&
           memcmp(a->w, b->w, a->params.total * sizeof(float)) == 0;
}

/* Two steps on a fresh engine; the caller frees both. */
static tinker_adapter *run(tinker_engine **e, int threads, uint64_t memory, int64_t rank,
                           bool *recomputed)
{
    struct init_model o;
    tinker_error err = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.threads = threads;
    opts.memory_limit = memory;
    tiny_longer_options(&o, arch);
    *e = tiny_open(&o, &opts);
    tinker_adapter *a = tiny_adapter(*e, rank, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    for (int i = 0; i < 2; i++) {
        tinker_pass *p = tiny_pass(*e, a, d, &loss, 0, &err);
        if (!p) {
            TAP_FAIL("%s", err.message);
            break;
        }
        *recomputed = p->recompute;
        tinker_pass_free(p);
        step(a, 0.01, NULL);
    }
    free(d);
    return a;
}

/* The largest limit, in steps of 1/16 MB, at which activations are recomputed. */
static uint64_t tight_memory(const struct init_model *o, int64_t rank)
{
    tinker_error err = { 0 };
    tinker_engine *e = tiny_open(o, NULL);
    tinker_adapter *a = tiny_adapter(e, rank, 1);
    struct tiny_data *d =
        tiny_data(tiny_lengths, TINY_LENGTHS, o->config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    bool recompute = false;
    for (e->memory_limit = 32 << 20; !recompute && e->memory_limit;) {
        e->memory_limit -= 1 << 16;
        tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &loss, 0, &err);
        recompute = p && p->recompute;
        tinker_pass_free(p);
    }
    uint64_t limit = e->memory_limit;
    free(d);
    tinker_adapter_free(a);
    tinker_engine_close(e);
    return limit;
}

static void check_same(int64_t rank)
{
    tinker_engine *e[4];
    bool recomputed[4];
    tinker_adapter *one = run(&e[0], 1, 0, rank, &recomputed[0]);
    tinker_adapter *two = run(&e[1], 2, 0, rank, &recomputed[1]);
    tinker_adapter *five = run(&e[2], 5, 0, rank, &recomputed[2]);
    CHECK(!recomputed[0]);
    CHECK(same_weights(one, two));
    CHECK(same_weights(one, five));
    struct init_model o;
    tiny_longer_options(&o, arch);
    tinker_adapter *small = run(&e[3], 2, tight_memory(&o, rank), rank, &recomputed[3]);
    CHECK(recomputed[3]);
    CHECK(same_weights(one, small));
    tinker_adapter *all[] = { one, two, five, small };
    for (int i = 0; i < 4; i++) {
        tinker_adapter_free(all[i]);
        tinker_engine_close(e[i]);
    }
}

static void test_same_bits_for_any_threads_and_memory(void)
{
    check_same(8);
}

static void test_same_bits_when_all_weights_train(void)
{
    check_same(0);
}

static void test_loss_falls(void)
{
    struct init_model o;
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    const size_t two[] = { 40, 20 };
    struct tiny_data *d = tiny_data(two, 2, o.config.vocab, "cross_entropy", 9);
    for (size_t i = 0; i < 2; i++)
        for (size_t t = 0; t < two[i]; t++)
            d->weights[i][t] = 1;
    for (int64_t rank = 0; rank <= 8; rank += 8) {
        tinker_adapter *a = tiny_adapter(e, rank, 2);
        double first = tiny_train(e, a, d, "cross_entropy"), last = first;
        for (int i = 0; i < 25; i++) {
            CHECK_INT(step(a, 0.01, NULL), TINKER_OK);
            last = tiny_train(e, a, d, "cross_entropy");
        }
        CHECK(last < 0.3 * first);
        CHECK_INT(tinker_adapter_steps(a), 25);
        tinker_adapter_free(a);
    }
    free(d);
    tinker_engine_close(e);
}

static int file_differs(const char *a, const char *b, const char *name)
{
    char x[256], y[256];
    char *p, *q;
    size_t n, m;
    snprintf(x, sizeof(x), "%s/%s", a, name);
    snprintf(y, sizeof(y), "%s/%s", b, name);
    if (os_read_file(x, 1 << 28, &p, &n, NULL) || os_read_file(y, 1 << 28, &q, &m, NULL))
        return 1;
    int differs = n != m || memcmp(p, q, n) != 0;
    free(p);
    free(q);
    return differs;
}

/* Interrupted with a gradient pending, saved, loaded into a new engine, continued. */
static void check_resume(int64_t rank)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, arch);
    char dir[160], ends[2][176];
    snprintf(dir, sizeof(dir), "%s", tiny_path(rank ? "lora" : "full"));
    snprintf(ends[0], sizeof(ends[0]), "%s-a", dir);
    snprintf(ends[1], sizeof(ends[1]), "%s-b", dir);
    os_make_dirs(dir, NULL);
    os_make_dirs(ends[0], NULL);
    os_make_dirs(ends[1], NULL);
    struct tiny_data *d = tiny_data(tiny_lengths, 3, o.config.vocab, "ppo", 3);
    struct tiny_data *d2 = tiny_data(tiny_lengths, 2, o.config.vocab, "ppo", 8);
    tinker_engine *e = tiny_open(&o, NULL), *other = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, rank, 7), *b = NULL;
    for (int i = 0; i < 4; i++) {
        tiny_train(e, a, d, "ppo");
        if (i == 2) {
            CHECK_INT(tinker_adapter_save(a, dir, "m", TINKER_ADAPTER_OPTIMIZER, &err), TINKER_OK);
            b = tinker_adapter_load(other, dir, TINKER_ADAPTER_OPTIMIZER, &err);
        }
        if (i >= 2 && b) {
            tiny_train(e, a, d2, "ppo");
            if (i > 2)
                tiny_train(other, b, d, "ppo");
            tiny_train(other, b, d2, "ppo");
            step(b, 0.003, NULL);
        }
        step(a, 0.003, NULL);
    }
    if (!b)
        TAP_FAIL("%s", err.message);
    REQUIRE(b);
    CHECK_INT(tinker_adapter_steps(b), 4);
    CHECK(same_weights(a, b));
    CHECK_INT(tinker_adapter_describe(b)->seed, 7);
    tinker_adapter_save(a, ends[0], "m", TINKER_ADAPTER_OPTIMIZER, &err);
    tinker_adapter_save(b, ends[1], "m", TINKER_ADAPTER_OPTIMIZER, &err);
    CHECK(!file_differs(ends[0], ends[1], "adapter_model.safetensors"));
    CHECK(!file_differs(ends[0], ends[1], "optimizer.safetensors"));
    CHECK(!file_differs(ends[0], ends[1], "adapter_config.json"));
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_engine_close(e);
    tinker_engine_close(other);
    free(d);
    free(d2);
}

static void test_resume_equals_uninterrupted(void)
{
    check_resume(8);
}

static void test_resume_of_all_weights(void)
{
    check_resume(0);
}

/* What the metrics of a ratio loss should be, from the logprobs that came back. */
static void check_ratios(const struct tiny_data *d, const tinker_forward_backward *r, double low,
                         double high)
{
    double loss = 0, ratios = 0, clips = 0, kl = 0, counted = 0, tokens = 0;
    CHECK_INT(r->n_outputs, d->n);
    for (size_t i = 0; i < d->n; i++) {
        const tinker_tensor *lp = &r->outputs[i].tensors[0].tensor,
                            *each = &r->outputs[i].tensors[1].tensor;
        CHECK_STR(r->outputs[i].tensors[0].name, "logprobs");
        CHECK_STR(r->outputs[i].tensors[1].name, "elementwise_loss");
        CHECK(lp->ndim == 1 && (size_t)lp->shape[0] == lp->n && each->n == lp->n);
        CHECK_INT(lp->n, d->chunks[i].n_tokens);
        tokens += (double)lp->n;
        for (size_t t = 0; t < lp->n; t++) {
            double gap = (double)((const float *)lp->data)[t] - (double)d->logprobs[i][t];
            loss += (double)((const float *)each->data)[t];
            if (d->weights[i][t] == 0 || d->advantages[i][t] == 0)
                continue;
            ratios += exp(gap);
            clips += exp(gap) < low || exp(gap) > high;
            kl -= gap;
            counted++;
        }
    }
    double n = counted ? counted : 1;
    CHECK(counted == 0 || low == high || (clips > 0 && clips < counted));
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "loss:sum"), loss, 1e-9);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "num_tokens:sum"), tokens, 0);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "num_datums:sum"), (double)d->n, 0);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "ratio:mean"), counted ? ratios / n : 1,
               1e-9 * ratios / n);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "clip_frac:mean"),
               low == high ? 0 : clips / n, 1e-12);
    CHECK_NEAR(tinker_metric(r->metrics, r->n_metrics, "kl_sample_train:mean"), kl / n, 1e-9);
}

static void test_metrics_of_ratios(void)
{
    static const struct {
        const char *loss;
        double low, high; /* equal: nothing is clipped */
    } cases[] = {
        { "ppo", 0.8, 1.2 }, { "cispo", 0, 4 }, { "importance_sampling", 0, 0 }, { "dro", 0, 0 }
    };
    struct init_model o;
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    const size_t lengths[] = { 60, 33, 1 };
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const char *name = cases[i / 2].loss;
        struct tiny_data *d = tiny_data(lengths, 3, o.config.vocab, name, 3);
        for (size_t k = 0; k < 60; k++) /* ratios around 1, some beyond 4; the base has log 1/96 */
            d->logprobs[0][k] = (float)(-7.5 + 5 * tiny_uniform(9, 0, k));
        for (size_t k = 0; i % 2 && k < 3 * TINY_TOKENS; k++) /* nothing counts */
            d->weights[k / TINY_TOKENS][k % TINY_TOKENS] = 0;
        tinker_error err = { 0 };
        tinker_loss loss = { .name = name };
        tinker_pass *p = tiny_pass(e, NULL, d, &loss, 1, &err);
        if (p)
            check_ratios(d, tinker_pass_result(p), cases[i / 2].low, cases[i / 2].high);
        else
            TAP_FAIL("%s: %s", name, err.message);
        tinker_pass_free(p);
        free(d);
    }
    tinker_engine_close(e);
}

/* Counted over the whole request, once also where layers are computed again. */
static void test_metrics_of_experts(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    double values[2][5];
    static const char *const names[] = { "e_frac_with_tokens:mean", "e_frac_oversubscribed:mean",
                                         "e_max_violation:mean", "e_max_violation:max",
                                         "e_min_violation:mean" };
    arch = "qwen3_moe";
    tiny_longer_options(&o, arch);
    o.config.dense[o.config.n_dense++] = 1;
    uint64_t tight = tight_memory(&o, 4);
    tinker_engine *e = tiny_open(&o, NULL);
    arch = "qwen3";
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    for (int i = 0; i < 2; i++) {
        e->memory_limit = i ? tight : 1 << 30;
        tinker_pass *p = tiny_pass(e, a, d, &loss, 0, &err);
        REQUIRE(p);
        CHECK_INT(p->recompute, i);
        const tinker_forward_backward *r = tinker_pass_result(p);
        for (int k = 0; k < 5; k++)
            values[i][k] = tinker_metric(r->metrics, r->n_metrics, names[k]);
        uint64_t chosen = 0;
        for (size_t k = 0; k < 3 * o.config.experts; k++)
            chosen += p->expert_rows[k];
        CHECK_INT(chosen, 2 * 2 * 691); /* two sparse layers, two experts of each of 691 rows */
        double fair = 2.0 * 691 / 8, want[5] = { 0 };
        for (size_t layer = 0; layer < 3; layer += 2) { /* the one between is dense */
            double max = 0, min = 691;
            for (size_t k = layer * 8; k < layer * 8 + 8; k++) {
                want[0] += (p->expert_rows[k] > 0) / 16.0;
                want[1] += ((double)p->expert_rows[k] > fair) / 16.0;
                max = fmax(max, (double)p->expert_rows[k]);
                min = fmin(min, (double)p->expert_rows[k]);
            }
            want[2] += (max / fair - 1) / 2;
            want[3] = fmax(want[3], max / fair - 1);
            want[4] += (min / fair - 1) / 2;
        }
        for (int k = 0; k < 5; k++)
            CHECK_NEAR(values[i][k], want[k], 1e-12);
        tinker_pass_free(p);
    }
    CHECK_MEM(values[0], sizeof(values[0]), values[1], sizeof(values[1]));
    CHECK_NEAR(values[0][0], 1, 0); /* many tokens, few experts: all have work */
    CHECK(values[0][1] > 0 && values[0][1] < 1);
    CHECK(values[0][2] > 0 && values[0][3] >= values[0][2]);
    CHECK(values[0][4] < 0 && values[0][4] > -1);
    free(d);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

static void test_experts_train_and_resume_alike(void)
{
    arch = "qwen3_moe";
    check_same(8);
    check_same(0);
    check_resume(8);
    check_resume(0);
    arch = "qwen3";
}

/* Windows, post norms, fused modules, sinks and states: any threads, any memory. */
static void test_families_train_alike(void)
{
    static const char *const names[] = { "gemma3_text", "phi3", "gpt_oss", "qwen3_5_moe_text" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        arch = names[i];
        check_same(3);
        check_same(0);
        check_resume(3);
    }
    arch = "qwen3";
}

static void test_gradients_add_up_and_forward_adds_nothing(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *once = tiny_adapter(e, 4, 1), *twice = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, 3, o.config.vocab, "cross_entropy", 3);
    tiny_train(e, once, d, "cross_entropy");
    tiny_train(e, twice, d, "cross_entropy");
    tiny_train(e, twice, d, "cross_entropy");
    for (size_t i = 0; i < once->params.total; i++)
        if (twice->grad[i] != 2 * once->grad[i]) {
            TAP_FAIL("element %zu: %g is not twice %g", i, (double)twice->grad[i],
                     (double)once->grad[i]);
            break;
        }
    float *before = malloc(once->params.total * sizeof(float));
    memcpy(before, once->grad, once->params.total * sizeof(float));
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_pass *p = tiny_pass(e, once, d, &loss, 1, &err);
    REQUIRE(p);
    CHECK(memcmp(before, once->grad, once->params.total * sizeof(float)) == 0);
    tinker_pass_free(p);
    /* a pass that is dropped half way adds nothing either */
    p = tinker_pass_new(e, once, d->data, d->n, &loss, 0, &err);
    tinker_pass_free(p);
    CHECK(memcmp(before, once->grad, once->params.total * sizeof(float)) == 0);
    free(before);
    free(d);
    tinker_adapter_free(once);
    tinker_adapter_free(twice);
    tinker_engine_close(e);
}

static void test_forward_equals_forward_backward_and_base(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_pass *p[3] = { tiny_pass(e, NULL, d, &loss, 1, &err), tiny_pass(e, a, d, &loss, 1, &err),
                          tiny_pass(e, a, d, &loss, 0, &err) };
    REQUIRE(p[0] && p[1] && p[2]);
    for (size_t i = 0; i < TINY_LENGTHS; i++) {
        const tinker_tensor *t[3];
        for (int k = 0; k < 3; k++) {
            const tinker_forward_backward *r = tinker_pass_result(p[k]);
            CHECK_STR(r->outputs[i].tensors[0].name, "logprobs");
            t[k] = &r->outputs[i].tensors[0].tensor;
            CHECK_INT(t[k]->n, tiny_lengths[i]);
        }
        /* B is zero, so a new adapter computes the base model's numbers */
        CHECK_MEM(t[1]->data, tiny_lengths[i] * 4, t[0]->data, tiny_lengths[i] * 4);
        CHECK_MEM(t[2]->data, tiny_lengths[i] * 4, t[0]->data, tiny_lengths[i] * 4);
    }
    for (int k = 0; k < 3; k++)
        tinker_pass_free(p[k]);
    free(d);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

static void test_snapshot_stays(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    struct tiny_data *d = tiny_data(tiny_lengths, 2, o.config.vocab, "cross_entropy", 3);
    for (int64_t rank = 0; rank <= 4; rank += 4) {
        tinker_adapter *a = tiny_adapter(e, rank, 1);
        tiny_train(e, a, d, "cross_entropy");
        step(a, 0.05, NULL);
        tinker_adapter *s = tinker_adapter_snapshot(a, &err);
        CHECK(same_weights(a, s));
        CHECK(tinker_adapter_bytes(s) < tinker_adapter_bytes(a));
        tiny_train(e, a, d, "cross_entropy");
        step(a, 0.05, NULL);
        CHECK(!same_weights(a, s));
        tinker_loss loss = { .name = "cross_entropy" };
        CHECK(!tinker_pass_new(e, s, d->data, d->n, &loss, 0, &err));
        CHECK_INT(err.status, TINKER_EINVAL);
        CHECK_INT(step(s, 0.1, NULL), TINKER_EINVAL);
        tinker_adapter_free(s);
        tinker_adapter_free(a);
    }
    free(d);
    tinker_engine_close(e);
}

static void test_bad_requests_name_the_place(void)
{
    struct init_model o;
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    const size_t two[] = { 8, 8 };
    tinker_named_number wrong = { "clip", 1 },
                        inverted[] = { { "clip_low_threshold", 2 }, { "clip_high_threshold", 1 } };
    for (int i = 0; i < 20; i++) {
        const char *name = i >= 8 && i != 13 && i < 15 ? "ppo" : "cross_entropy";
        struct tiny_data *d = tiny_data(two, 2, o.config.vocab, name, 3);
        tinker_loss loss = { .name = name };
        tinker_error err = { 0 };
        int64_t shape[] = { 4, 2 }, crow[] = { 0, 1, 2, 2, 2, 2, 2, 2, 3 }, col[] = { 0, 1, 5 };
        int64_t sparse_shape[] = { 8, 2 }, dense_shape[] = { 8, 2 }, many[16] = { 0 };
        const char *want = "datum 1";
        switch (i) {
        case 0:
            d->tokens[1][3] = (int32_t)o.config.vocab;
            break;
        case 1:
            d->targets[1][3] = -1;
            break;
        case 2:
            d->chunks[1].n_tokens = 7;
            break;
        case 3:
            d->weights[1][2] = NAN;
            break;
        case 4:
            d->inputs[1][1].name = "mask";
            break;
        case 5:
            d->chunks[1].kind = TINKER_CHUNK_IMAGE;
            break;
        case 6:
            d->inputs[1][0].tensor.shape = shape;
            d->inputs[1][0].tensor.ndim = 2;
            break;
        case 7:
            d->inputs[1][1].tensor = (tinker_tensor){ .dtype = TINKER_FLOAT32,
                                                      .data = d->weights[1],
                                                      .n = 3,
                                                      .shape = sparse_shape,
                                                      .ndim = 2,
                                                      .crow = crow,
                                                      .col = col };
            break;
        case 8:
            d->data[1].n_inputs = 3;
            break;
        case 9:
            loss.config = &wrong;
            loss.n_config = 1;
            want = "\"clip\"";
            break;
        case 10:
            loss.name = "sft";
            want = "\"sft\"";
            break;
        case 11:
            loss.config = inverted;
            loss.n_config = 2;
            want = "clip_low_threshold";
            break;
        case 12:
            d->n = 0;
            want = "no data";
            break;
        case 13:
            d->chunks[1].n_tokens = 513;
            want = "513 tokens are more than the context of 512";
            break;
        case 14: /* below the other threshold, which all tokens share */
            d->inputs[1][1].name = "clip_high_threshold";
            for (int k = 0; k < 8; k++)
                d->weights[1][k] = k == 3 ? 0.5f : 2;
            want = "datum 1: clip_low_threshold is above clip_high_threshold at position 3";
            break;
        default: /* rows of a sparse tensor that lie, each in another way */
            col[2] = i == 15 ? -1 : 1;
            crow[0] = i == 16;
            crow[4] = i == 17 ? 0 : crow[4];
            crow[8] = i == 18 ? 4 : crow[8];
            sparse_shape[0] = i == 19 ? 7 : 8;
            d->inputs[1][1].tensor = (tinker_tensor){ .dtype = TINKER_FLOAT32,
                                                      .data = d->weights[1],
                                                      .n = 3,
                                                      .shape = sparse_shape,
                                                      .ndim = 2,
                                                      .crow = crow,
                                                      .col = col };
            d->inputs[1][0].tensor = (tinker_tensor){
                .dtype = TINKER_INT64, .data = many, .n = 16, .shape = dense_shape, .ndim = 2
            };
            want = i == 15   ? "datum 1: weights: col_indices"
                   : i == 17 ? "datum 1: weights: crow_indices are not ascending"
                   : i == 19 ? "datum 1: weights has 7 positions"
                             : "datum 1: weights: crow_indices do not match";
            break;
        }
        tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &loss, 0, &err);
        if (p || err.status != TINKER_EINVAL || !strstr(err.message, want))
            TAP_FAIL("case %d: got \"%s\"", i, p ? "no error" : err.message);
        tinker_pass_free(p);
        free(d);
    }
    tinker_error err = { 0 };
    struct tiny_data *d = tiny_data(two, 2, o.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    CHECK(!tinker_pass_new(e, NULL, d->data, d->n, &loss, 0, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    free(d);
    /* thresholds of a token that does not count say nothing */
    d = tiny_data(two, 1, o.config.vocab, "ppo", 3);
    d->inputs[0][1].name = "clip_high_threshold";
    for (int k = 1; k < 8; k++)
        d->weights[0][k] = 2;
    d->advantages[0][0] = 0;
    loss.name = "ppo";
    tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &loss, 0, &err);
    CHECK(p != NULL);
    tinker_pass_free(p);
    free(d);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* Tensors that are not what the loss needs, or not what they say. */
static void test_bad_tensors_are_named(void)
{
    struct init_model o;
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    const size_t one[] = { 8 };
    static const char *const wants[] = {
        "datum 0: target_tokens: is missing",
        "datum 0: target_tokens: must be integers",
        "datum 0: target_tokens: loss ppo takes one target per position",
        "datum 0: logprobs: is missing",
        "datum 0: advantages: is missing",
        "datum 0: weights: must have the shape of target_tokens",
        "datum 0: weights: must have one or two dimensions",
        "datum 0: weights: must have one or two dimensions",
        "datum 0: weights: the second dimension must be 1 to 2^20",
        "datum 0: weights: the number of values does not match",
        "datum 0: weights: no data",
        "datum 0: weights: no col_indices",
        "datum 0: weights: a sparse tensor needs a shape of two",
        "datum 0: weights: unknown dtype",
        "datum 0: clip_low_threshold: this loss knows no such input",
        "datum 0: logprobs: this loss knows no such input",
        "datum 0: target_tokens[2] is not a token id of this model (0 to 95)",
        "datum 0: target_tokens[2] is not a token id of this model (0 to 95)",
        "datum 0: weights[2] is not a finite number",
        "datum 0: the model input has no tokens",
    };
    for (size_t i = 0; i < sizeof(wants) / sizeof(wants[0]); i++) {
        bool rl = i >= 2 && i <= 4;
        const char *name = rl ? "ppo" : i == 14 ? "dro" : "cross_entropy";
        struct tiny_data *d = tiny_data(one, 1, o.config.vocab, rl || i == 14 ? "ppo" : name, 3);
        tinker_datum *datum = &d->data[0];
        tinker_tensor *target = &d->inputs[0][0].tensor, *weights = &d->inputs[0][1].tensor;
        int64_t shape[3] = { 8, 2, 1 }, none[9] = { 0 };
        double huge[8] = { 1, 1, 1e39 };
        tinker_loss loss = { .name = name };
        tinker_error err = { 0 };
        switch (i) {
        case 0:
            datum->inputs++;
            datum->n_inputs--;
            break;
        case 1:
            target->dtype = TINKER_FLOAT32;
            break;
        case 2:
            target->shape = shape;
            target->ndim = 2;
            shape[1] = 1;
            break;
        case 3:
            d->inputs[0][2] = d->inputs[0][3];
            datum->n_inputs = 3;
            break;
        case 4:
            datum->n_inputs = 3;
            break;
        case 5:
            weights->shape = shape;
            weights->ndim = 2;
            weights->n = 16;
            break;
        case 6:
        case 7:
            weights->shape = shape;
            weights->ndim = i == 6 ? 3 : 0;
            break;
        case 8:
            weights->shape = shape;
            weights->ndim = 2;
            shape[1] = 0;
            break;
        case 9:
            weights->shape = shape;
            weights->ndim = 1;
            weights->n = 7;
            break;
        case 10:
            weights->data = NULL;
            break;
        case 11:
        case 12:
            weights->crow = none;
            weights->n = i == 11 ? 3 : 8;
            weights->col = i == 11 ? NULL : none;
            weights->shape = i == 11 ? shape : NULL;
            weights->ndim = i == 11 ? 2 : 0;
            shape[1] = 1;
            break;
        case 13:
            weights->dtype = (tinker_dtype)99;
            break;
        case 14:
            d->inputs[0][1].name = "clip_low_threshold";
            break;
        case 15:
            d->inputs[0][1].name = "logprobs";
            break;
        case 16:
        case 17:
            d->targets[0][2] = i == 16 ? 96 : INT64_MIN;
            break;
        case 18: /* a number, but too large for a float */
            weights->dtype = TINKER_FLOAT64;
            weights->data = huge;
            break;
        default:
            d->chunks[0].n_tokens = 0;
        }
        tinker_pass *p = tinker_pass_new(e, NULL, d->data, d->n, &loss, 1, &err);
        if (p || err.status != TINKER_EINVAL || !strstr(err.message, wants[i]))
            TAP_FAIL("case %zu: got \"%s\"", i, p ? "no error" : err.message);
        tinker_pass_free(p);
        free(d);
    }
    tinker_engine_close(e);
}

/* Its factors have other shapes than the weights they would be added to. */
static void test_an_adapter_of_another_engine_is_refused(void)
{
    struct init_model small, large;
    tiny_options(&small, arch);
    tiny_longer_options(&large, arch);
    tinker_engine *e = tiny_open(&large, NULL), *f = tiny_open(&small, NULL);
    tinker_adapter *a = tiny_adapter(f, 4, 1);
    const size_t one[] = { 8 };
    struct tiny_data *d = tiny_data(one, 1, small.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    for (int forward_only = 0; forward_only < 2; forward_only++) {
        tinker_error err = { 0 };
        tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &loss, forward_only, &err);
        CHECK(!p && err.status == TINKER_EINVAL && strstr(err.message, "another engine"));
        tinker_pass_free(p);
    }
    free(d);
    tinker_adapter_free(a);
    tinker_engine_close(e);
    tinker_engine_close(f);
}

/* A sparse (N, K) target with weights of another pattern equals the dense one. */
static void test_sparse_equals_dense(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1), *b = tiny_adapter(e, 4, 1);
    const int32_t tokens[] = { 5, 6, 7 };
    const int64_t dense_targets[] = { 9, 0, 3, 4, 0, 8 }, values[] = { 9, 3, 4, 8 };
    const int64_t crow[] = { 0, 1, 3, 4 }, col[] = { 0, 0, 1, 1 }, shape[] = { 3, 2 };
    const float dense_weights[] = { 0.5f, 0.25f, 0, 1, 0, -1 };
    const float sparse_weights[] = { 0.5f, 0.25f, 1, -1 };
    const int64_t wcrow[] = { 0, 2, 3, 4 }, wcol[] = { 0, 1, 1, 1 };
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = 3 };
    tinker_named_tensor dense[] = {
        { "target_tokens", { TINKER_INT64, dense_targets, 6, shape, 2, NULL, NULL } },
        { "weights", { TINKER_FLOAT32, dense_weights, 6, shape, 2, NULL, NULL } },
    };
    tinker_named_tensor sparse[] = {
        { "target_tokens", { TINKER_INT64, values, 4, shape, 2, crow, col } },
        { "weights", { TINKER_FLOAT32, sparse_weights, 4, shape, 2, wcrow, wcol } },
    };
    tinker_loss loss = { .name = "cross_entropy" };
    struct tiny_data *x = calloc(1, sizeof(*x)), *y = calloc(1, sizeof(*y));
    x->data[0] = (tinker_datum){ .model_input = { &chunk, 1 }, .inputs = dense, .n_inputs = 2 };
    y->data[0] = (tinker_datum){ .model_input = { &chunk, 1 }, .inputs = sparse, .n_inputs = 2 };
    x->n = y->n = 1;
    tinker_pass *p = tiny_pass(e, a, x, &loss, 0, &err), *q = tiny_pass(e, b, y, &loss, 0, &err);
    if (!q)
        TAP_FAIL("%s", err.message);
    REQUIRE(p && q);
    const tinker_tensor *t = &tinker_pass_result(q)->outputs[0].tensors[0].tensor;
    CHECK_INT(t->ndim, 2);
    CHECK_INT(t->shape[1], 2);
    CHECK_MEM(t->data, t->n * 4, tinker_pass_result(p)->outputs[0].tensors[0].tensor.data, 24);
    CHECK(memcmp(a->grad, b->grad, a->params.total * sizeof(float)) == 0);
    tinker_pass_free(p);
    tinker_pass_free(q);
    free(x);
    free(y);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_engine_close(e);
}

/* cross_entropy as a function of the caller; fails for datums from `fail` on. */
struct own_loss {
    const struct tiny_data *d;
    size_t fail;
};
static tinker_status own_cross_entropy(size_t datum, const float *logprobs, size_t n, double *loss,
                                       float *grads, tinker_error *err, void *state)
{
    const struct own_loss *own = state;
    if (datum >= own->fail) {
        *err = (tinker_error){ .status = TINKER_EINVAL };
        snprintf(err->message, sizeof(err->message), "datum %zu", datum);
        return TINKER_EINVAL;
    }
    for (size_t i = 0; i < n; i++) {
        *loss -= (double)own->d->weights[datum][i] * (double)logprobs[i];
        if (grads)
            grads[i] = -own->d->weights[datum][i];
    }
    return TINKER_OK;
}

/* A loss of the caller gives the gradient of the same loss of the table, for datums that share a
 * chunk of the head and for those longer than one; when it fails nothing is added. */
static void test_a_loss_of_the_caller(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, "qwen3");
    tinker_engine *e = tiny_open(&o, NULL);
    REQUIRE(e != NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1), *b = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    struct own_loss own = { .d = d, .fail = SIZE_MAX };
    tinker_pass *p = tiny_pass(e, a, d, &loss, 0, &err);
    tinker_pass *q = tinker_pass_new_custom(e, b, d->data, d->n, own_cross_entropy, &own, 0, &err);
    REQUIRE(p && q);
    int more;
    while ((more = tinker_pass_step(q, &err)) > 0)
        continue;
    REQUIRE(more == 0);
    const tinker_forward_backward *x = tinker_pass_result(p), *y = tinker_pass_result(q);
    double want = tinker_metric(x->metrics, x->n_metrics, "loss:sum");
    CHECK_NEAR(tinker_metric(y->metrics, y->n_metrics, "loss:sum"), want, 1e-4 * fabs(want));
    double worst = 0, scale = 0;
    for (size_t i = 0; i < a->params.total; i++) {
        worst = fmax(worst, fabs((double)a->grad[i] - (double)b->grad[i]));
        scale = fmax(scale, fabs((double)a->grad[i]));
    }
    CHECK(scale > 0 && worst < 1e-5 * scale);
    tinker_pass_free(p);
    tinker_pass_free(q);
    tinker_adapter *c = tiny_adapter(e, 4, 1);
    own.fail = 1;
    q = tinker_pass_new_custom(e, c, d->data, d->n, own_cross_entropy, &own, 0, &err);
    REQUIRE(q != NULL);
    while ((more = tinker_pass_step(q, &err)) > 0)
        continue;
    CHECK_INT(more, -1);
    CHECK_STR(err.message, "datum 1"); /* the first that fails, not the last of its chunk */
    CHECK(!c->grad);
    tinker_pass_free(q);
    free(d);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_adapter_free(c);
    tinker_engine_close(e);
}

static void test_a_step_during_a_pass_fails_the_pass(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &loss, 0, &err);
    step(a, 0.1, NULL);
    CHECK_INT(tinker_pass_step(p, &err), -1);
    CHECK_INT(err.status, TINKER_ESTATE);
    CHECK_INT(tinker_pass_step(p, &err), -1);
    CHECK(tinker_pass_result(p) == NULL);
    CHECK(a->grad == NULL);
    tinker_pass_free(p);
    free(d);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

static void test_non_finite_gradient_skips_the_step(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1), *b = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, 1, o.config.vocab, "importance_sampling", 3);
    d->logprobs[0][1] = -3000; /* the ratio overflows */
    tiny_train(e, a, d, "importance_sampling");
    tinker_adam adam = TINKER_ADAM_INIT;
    CHECK_INT(tinker_adapter_step(a, &adam, NULL, &err), TINKER_EREQUEST);
    CHECK(same_weights(a, b));
    CHECK_INT(tinker_adapter_steps(a), 0);
    /* where the advantage is zero the overflow does not matter */
    d->advantages[0][1] = 0;
    tiny_train(e, a, d, "importance_sampling");
    CHECK_INT(tinker_adapter_step(a, &adam, NULL, &err), TINKER_OK);
    free(d);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_engine_close(e);
}

/* As stored: half the memory, and a training run is the same, to the bit where sums have the same
 * order. */
static void test_stored_bf16_is_the_same_run(void)
{
    struct init_model o;
    tiny_longer_options(&o, arch);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    for (int half = 0; half < 2; half++) {
        tinker_engine *e[2];
        tinker_adapter *a[2];
        double loss[2];
        o.dtype = half ? SOURCE_BF16 : SOURCE_F32;
        for (int i = 0; i < 2; i++) {
            tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
            opts.dtype = i ? TINKER_WEIGHTS_STORED : TINKER_WEIGHTS_F32;
            e[i] = tiny_open(&o, &opts);
            a[i] = tiny_adapter(e[i], 4, 1);
            for (int k = 0; k < 3; k++) {
                loss[i] = tiny_train(e[i], a[i], d, "cross_entropy");
                step(a[i], 0.01, NULL);
            }
        }
        CHECK_INT(e[0]->model->dtype, PACKED_F32);
        CHECK_INT(e[1]->model->dtype, half ? PACKED_BF16 : PACKED_F32);
        if (half && !kernels_bf16_exact()) {
            CHECK_NEAR(loss[1] / loss[0], 1, 1e-6);
        } else {
            CHECK(loss[0] == loss[1]);
            CHECK(same_weights(a[0], a[1]));
        }
        for (int i = 0; i < 2; i++) {
            tinker_adapter_free(a[i]);
            tinker_engine_close(e[i]);
        }
    }
    free(d);
}

/* With weights stored as bf16 both packings hold the same numbers; what may differ is
 * the rounding of activations inside the products. */
static void test_bf16_weights_train_alike(void)
{
    struct init_model o;
    double loss[2], dot = 0, square[2] = { 0, 0 };
    tinker_engine *e[2];
    tinker_adapter *a[2];
    tiny_longer_options(&o, arch);
    o.dtype = SOURCE_BF16;
    struct tiny_data *d = tiny_data(tiny_lengths, 3, o.config.vocab, "cross_entropy", 3);
    for (int i = 0; i < 2; i++) {
        tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
        opts.dtype = i ? TINKER_WEIGHTS_BF16 : TINKER_WEIGHTS_F32;
        e[i] = tiny_open(&o, &opts);
        a[i] = tiny_adapter(e[i], 4, 1);
        tiny_train(e[i], a[i], d, "cross_entropy");
        step(a[i], 0.01, NULL); /* B is not zero any more */
        loss[i] = tiny_train(e[i], a[i], d, "cross_entropy");
    }
    for (size_t i = 0; i < a[0]->params.total; i++) {
        double x = (double)a[0]->grad[i], y = (double)a[1]->grad[i];
        dot += x * y;
        square[0] += x * x;
        square[1] += y * y;
    }
    CHECK_NEAR(loss[1] / loss[0], 1, 0.01);
    CHECK(dot / sqrt(square[0] * square[1]) > 0.99);
    CHECK_NEAR(sqrt(square[1] / square[0]), 1, 0.03);
    for (int i = 0; i < 2; i++) {
        tinker_adapter_free(a[i]);
        tinker_engine_close(e[i]);
    }
    free(d);
}

int main(void)
{
    RUN(test_same_bits_for_any_threads_and_memory);
    RUN(test_same_bits_when_all_weights_train);
    RUN(test_loss_falls);
    RUN(test_a_loss_of_the_caller);
    RUN(test_resume_equals_uninterrupted);
    RUN(test_resume_of_all_weights);
    RUN(test_experts_train_and_resume_alike);
    RUN(test_families_train_alike);
    RUN(test_metrics_of_ratios);
    RUN(test_metrics_of_experts);
    RUN(test_gradients_add_up_and_forward_adds_nothing);
    RUN(test_forward_equals_forward_backward_and_base);
    RUN(test_snapshot_stays);
    RUN(test_bad_requests_name_the_place);
    RUN(test_bad_tensors_are_named);
    RUN(test_an_adapter_of_another_engine_is_refused);
    RUN(test_sparse_equals_dense);
    RUN(test_a_step_during_a_pass_fails_the_pass);
    RUN(test_non_finite_gradient_skips_the_step);
    RUN(test_bf16_weights_train_alike);
    RUN(test_stored_bf16_is_the_same_run);
    tiny_done();
    return tap_done();
}
