/* gradients.c - every gradient against central differences of a plain double network:
 * every trainable parameter, every loss, every architecture.
 *
 * One sweep moves each parameter once; the logprobs it gives serve all losses.  In double
 * a step of 1e-5 leaves about 1e-10 of truncation and rounding, so what the comparison
 * shows is the engine's own single precision.  Errors are relative to the largest slope
 * of their tensor. */
#include <tinker/engine.h>
#include "engine/model/adapter.h"
#include "engine/train/loss.h"
#include "support/double_net.h"
#include "support/tap.h"
#include "support/tiny_model.h"

/* LONG_ONE: more than a page of keys, and than a chunk of the delta rule. */
enum { DATA = 2, TARGETS = 3, LOSSES = 13, ARCH_NAME = 32, LONG_ONE = 67 };
static const double step = 1e-5, bar = 1e-4;

/* ---- the losses, written out again ------------------------------------------------------- */

struct loss_case {
    const char *label, *name;
    double low, high, beta; /* as config, when set says so, or as tensors */
    enum { DEFAULTS, CONFIG, TENSORS } set;
    size_t k;                         /* targets of a position; 1: one-dimensional */
    enum { NO, SOME, ALL_FREE } clip; /* elements behind a threshold that must occur */
};

static const struct loss_case cases[LOSSES] = {
    { "ce", "cross_entropy", 0, 0, 0, DEFAULTS, 1, NO },
    { "ce NxK", "cross_entropy", 0, 0, 0, DEFAULTS, TARGETS, NO },
    { "is", "importance_sampling", 0, 0, 0, DEFAULTS, 1, NO },
    { "ppo", "ppo", 0.8, 1.2, 0, DEFAULTS, 1, SOME },
    { "ppo set", "ppo", 0.6, 2.1, 0, CONFIG, 1, SOME },
    { "ppo free", "ppo", 0.001, 1000, 0, CONFIG, 1, ALL_FREE },
    { "ppo per token", "ppo", 0.9, 1.4, 0, TENSORS, 1, SOME },
    { "cispo", "cispo", 0, 4, 0, DEFAULTS, 1, SOME },
    { "cispo set", "cispo", 0.7, 1.3, 0, CONFIG, 1, SOME },
    { "cispo free", "cispo", 0, 1000, 0, CONFIG, 1, ALL_FREE },
    { "cispo per token", "cispo", 0.9, 1.4, 0, TENSORS, 1, SOME },
    { "dro", "dro", 0, 0, 0.05, DEFAULTS, 1, NO },
    { "dro set", "dro", 0, 0, 0.7, CONFIG, 1, NO },
};

/* Tokens and what the losses ask for; the values are the same for all cases. */
struct work {
    struct tiny_data *d;
    size_t T[DATA];
    int64_t many[DATA][MAX_T * TARGETS];
    float many_weights[DATA][MAX_T * TARGETS];
    float low[DATA][MAX_T], high[DATA][MAX_T];
    double center[DATA][MAX_T][MAX_D];
};

ON_ONE_THREAD static double clip(double r, double low, double high)
{
    return fmin(fmax(r, low), high);
}

struct element {
    double lp, q, A, low, high;
    double frozen; /* the logprob at which CISPO's ratio stands */
};

ON_ONE_THREAD static double element_loss(const struct loss_case *c, const struct element *e)
{
    double r = exp(e->lp - e->q), gap = e->lp - e->q;
    if (strcmp(c->name, "cross_entropy") == 0)
        return -e->lp;
    if (strcmp(c->name, "importance_sampling") == 0)
        return -r * e->A;
    if (strcmp(c->name, "ppo") == 0)
        return -fmin(r * e->A, clip(r, e->low, e->high) * e->A);
    if (strcmp(c->name, "cispo") == 0)
        return -clip(exp(e->frozen - e->q), e->low, e->high) * e->lp * e->A;
    return -(e->lp * e->A - 0.5 * c->beta * gap * gap);
}

ON_ONE_THREAD static struct element element_of(const struct loss_case *c, const struct work *w,
                                               size_t i, size_t t, double lp)
{
    bool tensors = c->set == TENSORS;
    return (struct element){ lp,
                             (double)w->d->logprobs[i][t],
                             (double)w->d->advantages[i][t],
                             tensors ? (double)w->low[i][t] : c->low,
                             tensors ? (double)w->high[i][t] : c->high,
                             w->center[i][t][w->d->targets[i][t]] };
}

/* The loss of all data from the log softmax of every position. */
ON_ONE_THREAD static double total_loss(const struct loss_case *c, const struct work *w,
                                       double lp[DATA][MAX_T][MAX_D])
{
    double sum = 0;
    for (size_t i = 0; i < DATA; i++) {
        for (size_t t = 0; t < w->T[i]; t++) {
            for (size_t k = 0; c->k > 1 && k < c->k; k++)
                sum -= (double)w->many_weights[i][t * TARGETS + k] *
                       lp[i][t][w->many[i][t * TARGETS + k]];
            if (c->k > 1)
                continue;
            struct element e = element_of(c, w, i, t, lp[i][t][w->d->targets[i][t]]);
            sum += (double)w->d->weights[i][t] * element_loss(c, &e);
        }
    }
    return sum;
}

/* That the thresholds matter (or do not), and that no ratio is so near to one that the
 * step or single precision could cross it. */
static void check_thresholds(const struct loss_case *c, const struct work *w)
{
    size_t behind = 0, before = 0;
    for (size_t i = 0; i < DATA; i++) {
        for (size_t t = 0; t < w->T[i]; t++) {
            struct element e = element_of(c, w, i, t, w->center[i][t][w->d->targets[i][t]]);
            double r = exp(e.lp - e.q);
            if (w->d->weights[i][t] == 0 || c->clip == NO)
                continue;
            CHECK(fabs(r - e.low) > 1e-3 && fabs(r - e.high) > 1e-3);
            bool ppo = strcmp(c->name, "ppo") == 0;
            bool out =
                ppo ? (e.A > 0 && r > e.high) || (e.A < 0 && r < e.low) : r > e.high || r < e.low;
            behind += out;
            before += !out;
        }
    }
    if (c->clip != NO)
        CHECK(before > 0 && (behind > 0) == (c->clip == SOME));
}

/* ---- one case through the engine ------------------------------------------------------------ */

static void set_tensor(tinker_datum *d, tinker_named_tensor *inputs, const char *name,
                       tinker_dtype dtype, const void *data, size_t n, const int64_t *shape)
{
    inputs[d->n_inputs++] =
        (tinker_named_tensor){ name, { dtype, data, n, shape, shape ? 2 : 0, NULL, NULL } };
}

/* The gradient of one case, to be freed; NULL when the pass failed. */
static float *engine_gradient(tinker_engine *e, tinker_adapter *a, const struct loss_case *c,
                              struct work *w, double *loss)
{
    tinker_error err = { 0 };
    tinker_named_tensor inputs[DATA][6];
    int64_t shape[DATA][2];
    tinker_named_number clips[] = { { "clip_low_threshold", c->low },
                                    { "clip_high_threshold", c->high } };
    tinker_named_number beta = { "beta", c->beta };
    tinker_loss l = { .name = c->name,
                      .config = c->beta != 0 ? &beta : clips,
                      .n_config = c->beta != 0 ? 1 : 2 };
    if (c->set != CONFIG)
        l.n_config = 0;
    for (size_t i = 0; i < DATA; i++) {
        tinker_datum *d = &w->d->data[i];
        size_t n = w->T[i];
        shape[i][0] = (int64_t)n;
        shape[i][1] = TARGETS;
        d->inputs = inputs[i];
        d->n_inputs = 0;
        if (c->k > 1) {
            set_tensor(d, inputs[i], "target_tokens", TINKER_INT64, w->many[i], n * TARGETS,
                       shape[i]);
            set_tensor(d, inputs[i], "weights", TINKER_FLOAT32, w->many_weights[i], n * TARGETS,
                       shape[i]);
            continue;
        }
        set_tensor(d, inputs[i], "target_tokens", TINKER_INT64, w->d->targets[i], n, NULL);
        set_tensor(d, inputs[i], "weights", TINKER_FLOAT32, w->d->weights[i], n, NULL);
        if (strcmp(c->name, "cross_entropy") == 0)
            continue;
        set_tensor(d, inputs[i], "logprobs", TINKER_FLOAT32, w->d->logprobs[i], n, NULL);
        set_tensor(d, inputs[i], "advantages", TINKER_FLOAT32, w->d->advantages[i], n, NULL);
        if (c->set != TENSORS)
            continue;
        set_tensor(d, inputs[i], "clip_low_threshold", TINKER_FLOAT32, w->low[i], n, NULL);
        set_tensor(d, inputs[i], "clip_high_threshold", TINKER_FLOAT32, w->high[i], n, NULL);
    }
    tinker_pass *p = tiny_pass(e, a, w->d, &l, 0, &err);
    if (!p) {
        TAP_FAIL("%s: %s", c->label, err.message);
        return NULL;
    }
    const tinker_forward_backward *r = tinker_pass_result(p);
    *loss = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    tinker_pass_free(p);
    float *g = a->grad;
    a->grad = NULL; /* the next case starts from zero */
    return g;
}

/* ---- the comparison ------------------------------------------------------------------------ */

static void forward_all(struct net *n, const struct work *w, double lp[DATA][MAX_T][MAX_D])
{
    for (size_t i = 0; i < DATA; i++)
        forward(n, w->d->tokens[i], w->T[i], lp[i]);
}

struct worst {
    double error;
    const char *where;
};

/* Every element of one parameter under every loss. */
static void sweep_parameter(struct net *n, const struct work *w, const struct param *p,
                            float *const grads[LOSSES], struct worst worst[LOSSES])
{
    static double up[DATA][MAX_T][MAX_D], down[DATA][MAX_T][MAX_D];
    double largest[LOSSES] = { 0 }, error[LOSSES] = { 0 };
    for (size_t k = 0; k < param_count(p); k++) {
        double *x = &n->w[p->offset + k], keep = *x;
        *x = keep + step;
        forward_all(n, w, up);
        *x = keep - step;
        forward_all(n, w, down);
        *x = keep;
        for (size_t c = 0; c < LOSSES; c++) {
            double slope =
                (total_loss(&cases[c], w, up) - total_loss(&cases[c], w, down)) / (2 * step);
            largest[c] = fmax(largest[c], fabs(slope));
            error[c] = fmax(error[c], fabs(slope - (double)grads[c][p->offset + k]));
        }
    }
    for (size_t c = 0; c < LOSSES; c++) {
        double relative = error[c] / fmax(largest[c], 1e-3);
        if (!(relative <= worst[c].error))
            worst[c] = (struct worst){ relative, p->name };
    }
}

/* B starts at zero, which hides A's gradient: give every factor a value. */
static void fill_b(tinker_adapter *a)
{
    for (size_t i = 0; a->desc.rank && i < a->params.n; i++) {
        const struct param *p = &a->params.list[i];
        for (size_t k = 0; strstr(p->name, "lora_B") && k < param_count(p); k++)
            a->w[p->offset + k] = (float)(0.1 * (tiny_uniform(5, i, k) - 0.5));
    }
}

/* A ratio that is not within the step, or single precision, of a threshold of any case. */
static double clear_ratio(double gap, double low, double high)
{
    for (size_t c = 0; c < LOSSES; c++) {
        const double at[] = { cases[c].low, cases[c].high, low, high };
        for (size_t i = 0; i < 4; i++)
            if (fabs(exp(-gap) - at[i]) < 2e-3)
                return clear_ratio(gap + 0.01, low, high);
    }
    return gap;
}

/* Old logprobs around those of the network, so that ratios lie on both sides of 1, some far
 * beyond the thresholds; weights of both signs, one zero. */
static void fill_work(struct work *w, struct net *n, size_t vocab)
{
    forward_all(n, w, w->center);
    for (size_t i = 0; i < DATA; i++) {
        for (size_t t = 0; t < w->T[i]; t++) {
            w->low[i][t] = (float)(0.2 + tiny_uniform(61, i, t));
            w->high[i][t] = w->low[i][t] + (float)(2 * tiny_uniform(62, i, t));
            double gap = clear_ratio(3.4 * tiny_uniform(65, i, t) - 1.7, (double)w->low[i][t],
                                     (double)w->high[i][t]);
            w->d->logprobs[i][t] = (float)(w->center[i][t][w->d->targets[i][t]] + gap);
        }
        for (size_t k = 0; k < w->T[i] * TARGETS; k++) {
            w->many[i][k] = (int64_t)(tiny_uniform(63, i, k) * (double)vocab);
            w->many_weights[i][k] = (float)(2 * tiny_uniform(64, i, k) - 0.7);
        }
    }
}

static void check_losses(tinker_engine *e, tinker_adapter *a, struct work *w, const char *arch)
{
    struct net n;
    float *grads[LOSSES] = { NULL };
    struct worst worst[LOSSES] = { { 0, "" } };
    bool complete = true;
    net_init(&n, e, a);
    fill_work(w, &n, e->model->config.vocab);
    for (size_t c = 0; c < LOSSES; c++) {
        double ours = 0, reference = total_loss(&cases[c], w, w->center);
        check_thresholds(&cases[c], w);
        grads[c] = engine_gradient(e, a, &cases[c], w, &ours);
        complete = complete && grads[c];
        CHECK_NEAR(ours, reference, 2e-5 * fmax(1, fabs(reference)));
    }
    for (size_t i = 0; complete && i < a->params.n; i++)
        sweep_parameter(&n, w, &a->params.list[i], grads, worst);
    CHECK(n.closest > 1e-4); /* no step has changed the choice of an expert */
    printf("# %-*s", ARCH_NAME, arch);
    for (size_t c = 0; c < LOSSES; c++) {
        printf(" %7.0e", worst[c].error);
        free(grads[c]);
    }
    printf("  %zu parameters\n", a->params.count);
    for (size_t c = 0; c < LOSSES; c++)
        if (!(worst[c].error < bar))
            TAP_FAIL("%s, %s: relative error %.2e at %s", arch, cases[c].label, worst[c].error,
                     worst[c].where);
    arena_clear(&n.arena);
}

enum { ATTENTION = 1, MLP = 2, UNEMBEDDING = 4, EVERYTHING = 7 };

/* One model, one adapter, all losses.  long_one: a datum of more than a page of keys. */
static void check_model(const char *label, const struct init_model *o, int64_t rank, int train,
                        bool long_one)
{
    tinker_error err = { 0 };
    struct work *w = calloc(1, sizeof(*w));
    const size_t lengths[DATA] = { long_one ? LONG_ONE : 8, 4 };
    tinker_engine *e = tiny_open(o, NULL);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = rank;
    lora.has_seed = 1;
    lora.seed = 21;
    lora.train_attn = (train & ATTENTION) != 0;
    lora.train_mlp = (train & MLP) != 0;
    lora.train_unembed = (train & UNEMBEDDING) != 0;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    if (!a || !w) {
        TAP_FAIL("%s: %s", label, err.message);
        exit(1);
    }
    fill_b(a);
    memcpy(w->T, lengths, sizeof(lengths));
    w->d = tiny_data(lengths, DATA, o->config.vocab, "ppo", 40);
    check_losses(e, a, w, label);
    free(w->d);
    free(w);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* The architectures of the grid. */
static struct init_model llama(bool tied, bool scaled)
{
    struct init_model o;
    tiny_options(&o, "llama");
    o.config.tied = tied;
    if (!scaled)
        o.config.rope = (struct rope_config){ .type = ROPE_DEFAULT, .theta = 10000 };
    return o;
}

static struct init_model qwen(const char *name, bool tied)
{
    struct init_model o;
    tiny_options(&o, name);
    o.config.tied = tied;
    return o;
}

static void test_llama3(void)
{
    struct init_model o = llama(false, true), tied = llama(true, true);
    check_model("llama 3, scaled rope", &o, 2, EVERYTHING, false);
    check_model("llama 3, scaled rope, tied", &tied, 1, EVERYTHING, true);
}

static void test_smollm(void)
{
    struct init_model o = llama(true, false);
    o.config.heads = o.config.kv_heads = 3;
    check_model("smollm, no groups, tied", &o, 3, EVERYTHING, false);
}

/* More query heads for a key head than attention takes at once, and a rope that is scaled. */
static void test_many_queries(void)
{
    struct init_model o = llama(true, false);
    o.config.heads = 27;
    o.config.kv_heads = 1;
    o.config.head_dim = 2;
    o.config.rope = (struct rope_config){
        .type = ROPE_YARN, .theta = 100, .factor = 4, .original_context = 64
    };
    check_model("27 queries for a key, yarn", &o, 2, ATTENTION, true);
}

static void test_llama_with_biases(void)
{
    struct init_model o = llama(false, false);
    o.config.qkv_bias = o.config.o_bias = o.config.mlp_bias = true;
    check_model("llama with biases", &o, 2, EVERYTHING, false);
}

static void test_qwen2(void)
{
    struct init_model o = qwen("qwen2", false), tied = qwen("qwen2", true);
    check_model("qwen2", &o, 3, EVERYTHING, false);
    check_model("qwen2, tied", &tied, 2, EVERYTHING, false);
}

static void test_qwen3(void)
{
    struct init_model o = qwen("qwen3", false), tied = qwen("qwen3", true);
    check_model("qwen3", &o, 2, EVERYTHING, false);
    check_model("qwen3, tied", &tied, 2, EVERYTHING, true);
}

static void test_qwen3_moe(void)
{
    struct init_model o = qwen("qwen3_moe", false), plain = o;
    check_model("qwen3 moe", &o, 2, EVERYTHING, true);
    plain.config.renormalize = false;
    plain.config.experts_used = 3;
    plain.config.dense[plain.config.n_dense++] = 1;
    plain.config.tied = true;
    check_model("qwen3 moe, layer 1 dense, tied", &plain, 3, EVERYTHING, false);
    check_model("qwen3 moe, experts alone", &o, 1, MLP, false);
    check_model("qwen3 moe, every weight", &o, 0, EVERYTHING, false);
    check_model("qwen3 moe, 3 of 5, every weight", &plain, 0, EVERYTHING, false);
}

static void test_parts_alone(void)
{
    struct init_model o = qwen("qwen3", true);
    check_model("qwen3, attention alone", &o, 2, ATTENTION, false);
    check_model("qwen3, mlp alone", &o, 2, MLP, false);
    check_model("qwen3, unembedding alone", &o, 2, UNEMBEDDING, false);
}

static void test_all_weights(void)
{
    struct init_model o = qwen("qwen3", true);
    check_model("qwen3, every weight", &o, 0, EVERYTHING, false);
    o = qwen("qwen2", false);
    check_model("qwen2, every weight", &o, 0, EVERYTHING, false);
    o = llama(true, true);
    o.config.qkv_bias = o.config.o_bias = o.config.mlp_bias = true;
    check_model("llama, every weight", &o, 0, EVERYTHING, false);
}

/* A LoRA on everything, and every weight, of each family that has parts which those above lack. */
static void test_families(void)
{
    static const char *const names[] = {
        "mistral",      "ministral3",      "mixtral", "gemma2",  "gemma3_text",      "phi3",
        "smollm3",      "olmo2",           "olmo3",   "granite", "granitemoehybrid", "gpt_oss",
        "qwen3_5_text", "qwen3_5_moe_text"
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct init_model o = qwen(names[i], i % 2);
        char label[ARCH_NAME];
        o.config.mlp_bias = o.config.arch->mlp_bias == ARCH_BIAS_CONFIG;
        if (o.config.activation == ACTIVATION_CLAMPED)
            o.config.swiglu_limit = 0.4f; /* so low that some values are clamped */
        snprintf(label, sizeof(label), "%s, tied %zu", names[i], i % 2);
        check_model(label, &o, 1, EVERYTHING, false);
        snprintf(label, sizeof(label), "%s, every weight", names[i]);
        check_model(label, &o, 0, EVERYTHING, false);
    }
}

/* Windows and states across pages and chunks. */
static void test_long_texts(void)
{
    struct init_model o = qwen("gemma2", true), sinks = qwen("gpt_oss", false);
    struct init_model delta = qwen("qwen3_5_text", true);
    o.config.window = 33;
    check_model("gemma2, long", &o, 1, ATTENTION, true);
    sinks.config.window = 40;
    check_model("gpt_oss, long", &sinks, 1, ATTENTION, true);
    check_model("qwen3_5, long", &delta, 1, ATTENTION, true);
}

int main(void)
{
    printf("# relative error  ");
    for (size_t c = 0; c < LOSSES; c++)
        printf("%s%s", c ? ", " : "", cases[c].label);
    printf("\n");
    RUN(test_llama3);
    RUN(test_smollm);
    RUN(test_many_queries);
    RUN(test_llama_with_biases);
    RUN(test_qwen2);
    RUN(test_qwen3);
    RUN(test_qwen3_moe);
    RUN(test_parts_alone);
    RUN(test_all_weights);
    RUN(test_families);
    RUN(test_long_texts);
    tiny_done();
    return tap_done();
}
