/* dimuon.c - steps of dimuon against the formula of docs/serve.md written in double. */
#include <tinker/engine.h>
#include "engine/model/adapter.h"
#include "support/tap.h"
#include "support/tiny_model.h"

static tinker_engine *engine;
static tinker_error err;

static tinker_adapter *make_on(tinker_engine *e, int64_t rank)
{
    tinker_lora l = TINKER_LORA_INIT;
    l.rank = rank;
    l.has_seed = 1;
    l.seed = 7;
    l.optimizer = "dimuon";
    return tinker_adapter_new(e, &l, &err);
}

static void set_gradient(tinker_adapter *a, uint64_t seed, double scale)
{
    free(a->grad);
    a->grad = adapter_buffer(a);
    for (size_t i = 0; i < a->params.n; i++)
        for (size_t k = 0; k < a->params.list[i].rows * a->params.list[i].cols; k++)
            a->grad[a->params.list[i].offset + k] =
                (float)(scale * (tiny_uniform(seed, i, k) - 0.5));
}

/* rows x cols of double, from the moment; the iteration multiplies on whichever side is shorter. */
static void expect_direction(const double *moment, double *x, size_t rows, size_t cols,
                             double damping, double norm_wanted)
{
    double *a = calloc(rows, sizeof(*a)), *c = calloc(cols, sizeof(*c)), mean_a = 0, mean_c = 0,
           norm = 0;
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < cols; k++) {
            double square = moment[i * cols + k] * moment[i * cols + k];
            a[i] += square / (double)cols;
            c[k] += square / (double)rows;
        }
    for (size_t i = 0; i < rows; i++)
        mean_a += a[i] / (double)rows;
    for (size_t k = 0; k < cols; k++)
        mean_c += c[k] / (double)cols;
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < cols; k++) {
            x[i * cols + k] = moment[i * cols + k] / (pow(a[i] + damping * mean_a, 0.25) *
                                                      pow(c[k] + damping * mean_c, 0.25));
            norm += x[i * cols + k] * x[i * cols + k];
        }
    for (size_t i = 0; i < rows * cols; i++)
        x[i] /= sqrt(norm) + 1e-7;
    bool tall = rows > cols;
    size_t n = tall ? cols : rows;
    double *g = calloc(n * n, sizeof(*g)), *p = calloc(n * n, sizeof(*p)),
           *y = calloc(rows * cols, sizeof(*y));
    for (int t = 0; t < 5; t++) {
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n; k++) {
                g[i * n + k] = 0;
                for (size_t l = 0; l < (tall ? rows : cols); l++)
                    g[i * n + k] += tall ? x[l * cols + i] * x[l * cols + k]
                                         : x[i * cols + l] * x[k * cols + l];
            }
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n; k++) {
                p[i * n + k] = (i == k ? 3.4445 : 0) - 4.7750 * g[i * n + k];
                for (size_t l = 0; l < n; l++)
                    p[i * n + k] += 2.0315 * g[i * n + l] * g[l * n + k];
            }
        for (size_t i = 0; i < rows; i++)
            for (size_t k = 0; k < cols; k++) {
                y[i * cols + k] = 0;
                for (size_t l = 0; l < n; l++)
                    y[i * cols + k] +=
                        tall ? x[i * cols + l] * p[l * n + k] : p[i * n + l] * x[l * cols + k];
            }
        memcpy(x, y, rows * cols * sizeof(*x));
    }
    norm = 0;
    for (size_t i = 0; i < rows * cols; i++)
        norm += x[i] * x[i];
    for (size_t i = 0; i < rows * cols; i++)
        x[i] *= norm_wanted / sqrt(norm);
    free(a), free(c), free(g), free(p), free(y);
}

static void test_steps_equal_the_formula(void)
{
    static const double damping[] = { 1e-4, 0.5, 1e-4 }, exponent[] = { 0.175, 0, -1 },
                        clip[] = { 0, 2, -1 }, scale[] = { 1, 3, 1e-9 };
    for (int64_t rank = 1; rank <= 8; rank += 7) {
        tinker_adapter *a = make_on(engine, rank);
        REQUIRE(a);
        size_t n = a->params.total;
        double *m = calloc(n, sizeof(*m)), *x = calloc(n, sizeof(*x)), *w = calloc(n, sizeof(*w)),
               worst = 0;
        for (int s = 0; s < 3; s++) {
            tinker_step_metrics metrics;
            const tinker_named_number config[] = { { "learning_rate", 0.02 },
                                                   { "beta1", 0.8 },
                                                   { "damping", damping[s] },
                                                   { "grad_clip_norm", clip[s] },
                                                   { "rank_lr_correction_exponent", exponent[s] } };
            double norm = 0, moved = 0, rate = 0.02 * pow(32 / (double)rank, exponent[s]);
            set_gradient(a, (uint64_t)s, scale[s]);
            for (size_t i = 0; i < n; i++)
                norm += (double)a->grad[i] * (double)a->grad[i];
            norm = sqrt(norm);
            double c = clip[s] > 0 && norm > clip[s] ? clip[s] / (norm + 1e-6) : 1;
            for (size_t i = 0; i < n; i++) {
                m[i] = 0.8 * m[i] + 0.2 * c * (double)a->grad[i];
                w[i] = (double)a->w[i];
            }
            CHECK_INT(tinker_adapter_optimize(
                          a, &(tinker_optimizer){ "dimuon", config, 5, NULL, 0 }, &metrics, &err),
                      TINKER_OK);
            for (size_t i = 0; i < a->params.n; i++) {
                const struct param *p = &a->params.list[i];
                expect_direction(m + p->offset, x, p->rows, p->cols, damping[s],
                                 sqrt((double)rank));
                for (size_t k = 0; k < p->rows * p->cols; k++) {
                    double want = w[p->offset + k] - rate * x[k];
                    worst = fmax(worst, fabs((double)a->w[p->offset + k] - want) / rate);
                    moved += rate * x[k] * rate * x[k];
                }
            }
            CHECK_NEAR(metrics.grad_norm, norm, 1e-9 * norm);
            CHECK_NEAR(metrics.clip_coef, c, 1e-6);
            CHECK_NEAR(metrics.update_norm, sqrt(moved), 1e-4 * sqrt(moved));
            CHECK_INT(metrics.step, s + 1);
            CHECK(a->grad == NULL);
        }
        CHECK_NEAR(worst, 0, 5e-5); /* of directions up to 2.8, in float */
        free(m), free(x), free(w);
        tinker_adapter_free(a);
    }
}

static const tinker_named_number rate_only[] = { { "learning_rate", 0.02 } };
static const tinker_optimizer usual = { "dimuon", rate_only, 1, NULL, 0 };

/* Without a gradient, and from zero moments, nothing moves; later the momentum does. */
static void test_a_step_without_gradient(void)
{
    tinker_adapter *a = make_on(engine, 4);
    float w = a->w[3];
    CHECK_INT(tinker_adapter_optimize(a, &usual, NULL, &err), TINKER_OK);
    CHECK(a->w[3] == w);
    set_gradient(a, 1, 1);
    CHECK_INT(tinker_adapter_optimize(a, &usual, NULL, &err), TINKER_OK);
    w = a->w[3];
    CHECK_INT(tinker_adapter_optimize(a, &usual, NULL, &err), TINKER_OK);
    CHECK(a->w[3] != w);
    CHECK_INT(tinker_adapter_steps(a), 3);
    tinker_adapter_free(a);
}

/* The same bits for one thread and three. */
static void test_threads_do_not_matter(void)
{
    tinker_adapter *a[2];
    tinker_engine *e[2];
    for (int i = 0; i < 2; i++) {
        tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
        struct init_model model;
        o.threads = i ? 3 : 1;
        tiny_options(&model, "qwen3");
        e[i] = tiny_open(&model, &o);
        a[i] = make_on(e[i], 8);
        for (int s = 0; s < 3; s++) {
            set_gradient(a[i], (uint64_t)s, 1);
            CHECK_INT(tinker_adapter_optimize(a[i], &usual, NULL, &err), TINKER_OK);
        }
    }
    CHECK_MEM(a[0]->w, a[0]->params.total * sizeof(float), a[1]->w,
              a[1]->params.total * sizeof(float));
    for (int i = 0; i < 2; i++) {
        tinker_adapter_free(a[i]);
        tinker_engine_close(e[i]);
    }
}

/* Files name the optimizer, and the next step after loading is that of the saved adapter. */
static void test_files(void)
{
    char dir[] = "/tmp/tinker-test.XXXXXX";
    REQUIRE(mkdtemp(dir));
    tinker_adapter *a = make_on(engine, 4);
    set_gradient(a, 1, 1);
    CHECK_INT(tinker_adapter_optimize(a, &usual, NULL, &err), TINKER_OK);
    CHECK_INT(tinker_adapter_save(a, dir, "base", TINKER_ADAPTER_OPTIMIZER, &err), TINKER_OK);
    tinker_adapter *b = tinker_adapter_load(engine, dir, TINKER_ADAPTER_OPTIMIZER, &err);
    REQUIRE(b);
    CHECK_STR(tinker_adapter_describe(b)->optimizer, "dimuon");
    CHECK_INT(tinker_adapter_set_optimizer(b, "adamw", &err), TINKER_EINVAL);
    for (int i = 0; i < 2; i++) {
        set_gradient(i ? a : b, 2, 1);
        CHECK_INT(tinker_adapter_optimize(i ? a : b, &usual, NULL, &err), TINKER_OK);
    }
    CHECK_MEM(a->w, a->params.total * sizeof(float), b->w, b->params.total * sizeof(float));
    tinker_adapter_free(b);
    /* Weights alone go on with any optimizer. */
    b = tinker_adapter_load(engine, dir, 0, &err);
    REQUIRE(b);
    CHECK(!tinker_adapter_describe(b)->optimizer);
    CHECK_INT(tinker_adapter_set_optimizer(b, "dimuon", &err), TINKER_OK);
    CHECK_INT(tinker_adapter_set_optimizer(b, "adamw", &err), TINKER_OK);
    set_gradient(b, 2, 1);
    CHECK_INT(tinker_adapter_step(b, NULL, NULL, &err), TINKER_OK);
    tinker_adapter_free(b);
    tinker_adapter_free(a);
    os_remove_tree(dir, NULL);
}

static void test_what_is_refused(void)
{
    static const struct {
        const char *name, *setting;
        double value;
        const char *why;
    } cases[] = {
        { "lion", "learning_rate", 1, "optimizer lion is not supported here (adamw, dimuon)" },
        { "dimuon", "beta1", 0.5, "dimuon needs a learning_rate" },
        { "dimuon", "nesterov", 1, "dimuon has no setting nesterov" },
        { "dimuon", "learning_rate", -1, "learning_rate is -1, which is out of range" },
        { "dimuon", "learning_rate", 1e33, "not finite" },
    };
    tinker_adapter *a = make_on(engine, 4);
    float w = a->w[0];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const tinker_named_number config = { cases[i].setting, cases[i].value };
        set_gradient(a, 1, 1);
        CHECK_INT(tinker_adapter_optimize(
                      a, &(tinker_optimizer){ cases[i].name, &config, 1, NULL, 0 }, NULL, &err),
                  TINKER_EINVAL);
        CHECK(strstr(err.message, cases[i].why) != NULL);
        CHECK(a->w[0] == w && a->grad && a->m[0] == 0 && a->v[0] == 0);
    }
    const tinker_named_number ranges[][2] = { { { "learning_rate", 1 }, { "beta1", 1 } },
                                              { { "learning_rate", 1 }, { "damping", 0 } },
                                              { { "learning_rate", 1 },
                                                { "grad_clip_norm", NAN } } };
    for (size_t i = 0; i < 3; i++)
        CHECK_INT(tinker_adapter_optimize(a, &(tinker_optimizer){ "dimuon", ranges[i], 2, NULL, 0 },
                                          NULL, &err),
                  TINKER_EINVAL);
    CHECK_INT(tinker_adapter_step(a, NULL, NULL, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "this model is trained with dimuon, not with adamw");
    CHECK_INT(tinker_adapter_steps(a), 0);
    tinker_adapter_free(a);
    tinker_lora l = TINKER_LORA_INIT;
    l.optimizer = "lion";
    CHECK(!tinker_adapter_new(engine, &l, &err));
    CHECK(strstr(err.message, "optimizer lion is not supported here (adamw, dimuon)") != NULL);
    l.optimizer = "dimuon";
    l.rank = 0;
    CHECK(!tinker_adapter_new(engine, &l, &err));
    CHECK(strstr(err.message, "rank of 1 or more") != NULL);
}

int main(void)
{
    struct init_model o;
    tiny_options(&o, "qwen3");
    engine = tiny_open(&o, NULL);
    RUN(test_steps_equal_the_formula);
    RUN(test_a_step_without_gradient);
    RUN(test_threads_do_not_matter);
    RUN(test_files);
    RUN(test_what_is_refused);
    tinker_engine_close(engine);
    tiny_done();
    return tap_done();
}
