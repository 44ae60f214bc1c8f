/* adam.c - optimizer steps against the update written in double, and the seeded start. */
#include <tinker/engine.h>
#include "engine/model/adapter.h"
#include "support/tap.h"
#include "support/tiny_model.h"

static tinker_engine *engine;

static tinker_adapter *make(int64_t rank, int64_t seed, int unembed)
{
    tinker_error err = { 0 };
    tinker_lora l = TINKER_LORA_INIT;
    l.rank = rank;
    l.has_seed = 1;
    l.seed = seed;
    l.train_unembed = unembed;
    return tinker_adapter_new(engine, &l, &err);
}

static void set_gradient(tinker_adapter *a, uint64_t seed)
{
    a->grad = adapter_buffer(a);
    for (size_t i = 0; i < a->params.n; i++)
        for (size_t k = 0; k < a->params.list[i].rows * a->params.list[i].cols; k++)
            a->grad[a->params.list[i].offset + k] = (float)(tiny_uniform(seed, i, k) - 0.5);
}

static void test_steps_equal_the_formula(void)
{
    tinker_error err = { 0 };
    tinker_adapter *a = make(2, 1, 1);
    size_t n = a->params.total;
    double *w = calloc(n, sizeof(double)), *m = calloc(n, sizeof(double)),
           *v = calloc(n, sizeof(double)), *before = calloc(n, sizeof(double));
    for (size_t i = 0; i < n; i++)
        w[i] = (double)a->w[i];
    const tinker_adam steps[] = {
        { sizeof(tinker_adam), 0.01, 0.9, 0.95, 1e-12, 0, 0 },
        { sizeof(tinker_adam), 0.02, 0.9, 0.95, 1e-8, 0.1, 2.0 },
        { sizeof(tinker_adam), 0, 0.8, 0.99, 1e-6, 0.5, 0 },
        { sizeof(tinker_adam), 0.005, 0.9, 0.999, 1e-3, 0.01, 1e9 },
    };
    for (int s = 0; s < 4; s++) {
        const tinker_adam *o = &steps[s];
        tinker_step_metrics metrics;
        set_gradient(a, (uint64_t)s);
        memcpy(before, w, n * sizeof(*w));
        double norm = 0;
        for (size_t i = 0; i < n; i++)
            norm += (double)a->grad[i] * (double)a->grad[i];
        norm = sqrt(norm);
        double clip = o->grad_clip_norm > 0 && norm > o->grad_clip_norm
                          ? o->grad_clip_norm / (norm + 1e-6)
                          : 1;
        for (size_t i = 0; i < n; i++) {
            double g = (double)a->grad[i] * clip;
            w[i] *= 1 - o->learning_rate * o->weight_decay;
            m[i] = o->beta1 * m[i] + (1 - o->beta1) * g;
            v[i] = o->beta2 * v[i] + (1 - o->beta2) * g * g;
            w[i] -= o->learning_rate / (1 - pow(o->beta1, s + 1)) * m[i] /
                    (sqrt(v[i]) / sqrt(1 - pow(o->beta2, s + 1)) + o->eps);
        }
        CHECK_INT(tinker_adapter_step(a, o, &metrics, &err), TINKER_OK);
        CHECK_NEAR(metrics.grad_norm, norm, 1e-9 * norm);
        CHECK_NEAR(metrics.clip_coef, clip, 1e-6);
        CHECK_INT(metrics.step, s + 1);
        CHECK(a->grad == NULL);
        double worst = 0, moved = 0;
        for (size_t i = 0; i < n; i++)
            moved += (w[i] - before[i]) * (w[i] - before[i]);
        CHECK_NEAR(metrics.update_norm, sqrt(moved), 1e-5);
        CHECK_NEAR(metrics.learning_rate, o->learning_rate, 0);
        for (size_t i = 0; i < n; i++)
            worst = fmax(worst, fabs((double)a->w[i] - w[i]));
        CHECK_NEAR(worst, 0, 3e-7);
    }
    free(w);
    free(m);
    free(v);
    free(before);
    tinker_adapter_free(a);
}

static void test_step_without_gradient_decays_the_moments(void)
{
    tinker_error err = { 0 };
    tinker_adapter *a = make(2, 1, 1);
    tinker_adam adam = TINKER_ADAM_INIT;
    set_gradient(a, 1);
    tinker_adapter_step(a, &adam, NULL, &err);
    float m = a->m[0], v = a->v[0], w = a->w[0];
    CHECK(m != 0);
    CHECK_INT(tinker_adapter_step(a, NULL, NULL, &err), TINKER_OK);
    CHECK_NEAR(a->m[0], 0.9 * (double)m, 1e-8);
    CHECK_NEAR(a->v[0], 0.95 * (double)v, 1e-8);
    CHECK(a->w[0] != w);
    CHECK_INT(tinker_adapter_steps(a), 2);
    tinker_adapter_free(a);
}

/* A ratio of importance sampling can make one: its square would be infinite for ever. */
static void test_a_gradient_whose_square_is_no_float(void)
{
    tinker_error err = { 0 };
    tinker_adapter *a = make(2, 1, 1);
    tinker_adam adam = TINKER_ADAM_INIT;
    float w = a->w[0];
    set_gradient(a, 1);
    a->grad[0] = 1e20f;
    CHECK_INT(tinker_adapter_step(a, &adam, NULL, &err), TINKER_EREQUEST);
    CHECK(strstr(err.message, "norm of 1e+20") != NULL);
    CHECK(a->w[0] == w && a->v[0] == 0 && a->grad == NULL);
    CHECK_INT(tinker_adapter_steps(a), 0);
    set_gradient(a, 1);
    a->grad[0] = 1e20f;
    adam.grad_clip_norm = 1;
    CHECK_INT(tinker_adapter_step(a, &adam, NULL, &err), TINKER_OK);
    CHECK_NEAR(a->v[0], 0.05, 1e-6);
    CHECK(a->w[0] != w);
    tinker_adapter_free(a);
}

/* A step that cannot be taken leaves everything as it was, so the next one can be. */
static void test_a_step_to_infinity_changes_nothing(void)
{
    tinker_error err = { 0 };
    tinker_adapter *a = make(2, 1, 1), *b = make(2, 1, 1);
    const double rates[] = { 3e38, 1e38, 3e37 };
    for (size_t i = 0; i < 3; i++) {
        tinker_adam adam = TINKER_ADAM_INIT, usual = TINKER_ADAM_INIT;
        adam.learning_rate = rates[i];
        adam.weight_decay = rates[i];
        tinker_adapter *both[] = { a, b };
        for (int k = 0; k < 2; k++) {
            if (both[k]->grad)
                free(both[k]->grad);
            set_gradient(both[k], i);
        }
        CHECK_INT(tinker_adapter_step(a, &adam, NULL, &err), TINKER_EINVAL);
        CHECK(strstr(err.message, "not finite") != NULL);
        CHECK(a->grad != NULL);
        CHECK_INT(tinker_adapter_steps(a), tinker_adapter_steps(b));
        CHECK_INT(tinker_adapter_step(a, &usual, NULL, &err), TINKER_OK);
        CHECK_INT(tinker_adapter_step(b, &usual, NULL, &err), TINKER_OK);
        CHECK_MEM(a->w, a->params.total * sizeof(float), b->w, b->params.total * sizeof(float));
        CHECK_MEM(a->m, a->params.total * sizeof(float), b->m, b->params.total * sizeof(float));
    }
    /* Large, and still a float. */
    tinker_adam large = TINKER_ADAM_INIT;
    large.learning_rate = 1e30;
    CHECK_INT(tinker_adapter_step(a, &large, NULL, &err), TINKER_OK);
    CHECK(isfinite(a->w[0]));
    tinker_adapter_free(a);
    tinker_adapter_free(b);
}

static void test_ranges(void)
{
    tinker_error err = { 0 };
    tinker_adapter *a = make(2, 1, 1);
    for (int i = 0; i < 11; i++) {
        tinker_adam o = TINKER_ADAM_INIT;
        double *fields[] = {
            &o.learning_rate, &o.beta1,         &o.beta2,          &o.eps,
            &o.weight_decay,  &o.beta1,         &o.grad_clip_norm, &o.learning_rate,
            &o.eps,           &o.learning_rate, &o.weight_decay
        };
        /* the last three are finite, but no float: the weights would become NaN */
        const double values[] = { -1, 1, -0.1, 0, -1, NAN, -1, INFINITY, 1e-60, 1e60, 1e60 };
        *fields[i] = values[i];
        CHECK_INT(tinker_adapter_step(a, &o, NULL, &err), TINKER_EINVAL);
    }
    tinker_adam zero;
    memset(&zero, 0, sizeof(zero));
    CHECK_INT(tinker_adapter_step(a, &zero, NULL, &err), TINKER_EINVAL);
    CHECK_INT(tinker_adapter_steps(a), 0);
    tinker_adapter_free(a);
}

static const float *factor(const tinker_adapter *a, const char *part, const struct param **p)
{
    for (size_t i = 0; i < a->params.n; i++) {
        if (strstr(a->params.list[i].name, part)) {
            *p = &a->params.list[i];
            return a->w + a->params.list[i].offset;
        }
    }
    return NULL;
}

static void test_start_depends_on_seed_and_name_only(void)
{
    tinker_adapter *a = make(4, 5, 1), *b = make(4, 5, 0), *c = make(4, 6, 1);
    const struct param *p, *q;
    const float *x = factor(a, "layers.1.mlp.up_proj.lora_A", &p);
    const float *y = factor(b, "layers.1.mlp.up_proj.lora_A", &q);
    CHECK(p->offset == q->offset);
    CHECK_MEM(x, p->rows * p->cols * 4, y, p->rows * p->cols * 4);
    CHECK(memcmp(x, factor(c, "layers.1.mlp.up_proj.lora_A", &q), p->rows * p->cols * 4) != 0);
    CHECK(memcmp(x, factor(a, "layers.0.mlp.up_proj.lora_A", &q), p->rows * p->cols * 4) != 0);
    double bound = 1 / sqrt((double)p->cols), sum = 0, largest = 0;
    for (size_t i = 0; i < p->rows * p->cols; i++) {
        sum += (double)x[i] * (double)x[i];
        largest = fmax(largest, fabs((double)x[i]));
    }
    CHECK(largest <= bound && largest > 0.8 * bound);
    /* a uniform distribution has variance bound^2 / 3 */
    CHECK_NEAR(sum / (double)(p->rows * p->cols) / (bound * bound), 1.0 / 3, 0.12);
    const float *z = factor(a, "unembed_tokens.lora_B", &p);
    for (size_t i = 0; i < p->rows * p->cols; i++)
        CHECK(z[i] == 0);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_adapter_free(c);
}

static void test_bad_adapters(void)
{
    tinker_error err = { 0 };
    tinker_lora l = TINKER_LORA_INIT;
    l.rank = -1;
    CHECK(!tinker_adapter_new(engine, &l, &err));
    CHECK_INT(err.status, TINKER_EINVAL);
    l.rank = 100000;
    CHECK(!tinker_adapter_new(engine, &l, &err));
    l.rank = 4;
    l.train_attn = l.train_mlp = l.train_unembed = 0;
    CHECK(!tinker_adapter_new(engine, &l, &err));
    CHECK(strstr(err.message, "nothing to train") != NULL);
    tinker_adapter *a = tinker_adapter_new(engine, NULL, &err);
    CHECK(a && tinker_adapter_describe(a)->has_seed);
    CHECK_INT(tinker_adapter_describe(a)->rank, 32);
    tinker_adapter_free(a);
}

int main(void)
{
    struct init_model o;
    tiny_options(&o, "qwen3");
    engine = tiny_open(&o, NULL);
    RUN(test_steps_equal_the_formula);
    RUN(test_step_without_gradient_decays_the_moments);
    RUN(test_a_gradient_whose_square_is_no_float);
    RUN(test_a_step_to_infinity_changes_nothing);
    RUN(test_ranges);
    RUN(test_start_depends_on_seed_and_name_only);
    RUN(test_bad_adapters);
    tinker_engine_close(engine);
    tiny_done();
    return tap_done();
}
