/* double_net.h - the network of the engine written a second time, in double, the long way:
 * no pages, no blocks, no packing, nothing shared with the engine but the parameter list.
 *
 * net_init() reads the base weights and the adapter; n->w holds the adapter's parameters
 * in double and may be changed between calls of forward(). */
#ifndef SUPPORT_DOUBLE_NET_H
#define SUPPORT_DOUBLE_NET_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/engine.h>
#include "base/arena.h"
#include "engine/model/adapter.h"
#include "engine/safetensors/safetensors.h"

enum { MAX_T = 72, MAX_D = 64, MAX_EXPERTS = 8 };

/* The thread sanitizer makes this arithmetic ten times slower; it runs on one thread. */
#define ON_ONE_THREAD __attribute__((no_sanitize("thread")))

struct affine {
    const double *W, *bias, *A, *B; /* NULL: none */
    size_t out, in;
};

struct net {
    const struct model_config *c;
    tinker_engine *e;
    const tinker_adapter *a;
    double *w; /* the adapter's parameters in double, params layout */
    struct arena arena;
    const double *embed, *norm, *norm1[2], *norm2[2], *q_norm[2], *k_norm[2];
    const double *post_norm1[2], *post_norm2[2], *sinks[2];
    const double *conv[2], *a_log[2], *dt_bias[2], *delta_norm[2];
    struct affine linear[2][LINEARS], head;
    struct affine router[2], experts[2][MAX_EXPERTS][EXPERT_LINEARS]; /* of sparse layers */
    double closest; /* how near a choice between experts has been, of probabilities */
};

static const double *own(struct net *n, const char *name)
{
    for (size_t i = 0; i < n->a->params.n; i++)
        if (strcmp(n->a->params.list[i].name, name) == 0)
            return n->w + n->a->params.list[i].offset;
    return NULL;
}

/* A weight of the model: the adapter's own with rank 0, else the base's. */
static const double *tensor(struct net *n, const char *name, size_t rows, size_t cols)
{
    size_t count = (rows ? rows : 1) * cols;
    struct weight source = { 0 };
    if (!n->a->desc.rank)
        return own(n, name);
    float *f = arena_array(&n->arena, count, sizeof(float));
    double *d = arena_array(&n->arena, count, sizeof(double));
    if (!engine_weight(n->e, name, rows, cols, &source, NULL))
        abort();
    st_to_float(source.data, source.dtype, 0, count, f);
    free(source.owned);
    for (size_t i = 0; i < count; i++)
        d[i] = (double)f[i];
    return d;
}

static struct affine affine(struct net *n, const char *weight, const char *module, size_t out,
                            size_t in)
{
    char name[128];
    struct affine l = { .W = tensor(n, weight, out, in), .out = out, .in = in };
    snprintf(name, sizeof(name), "base_model.model.model.%s.lora_A.weight", module);
    l.A = own(n, name);
    snprintf(name, sizeof(name), "base_model.model.model.%s.lora_B.weight", module);
    l.B = own(n, name);
    return l;
}

/* Vector "<module>.<suffix>" of a layer; NULL where the model has none. */
static const double *layer_vector(struct net *n, size_t layer, const char *module,
                                  const char *suffix, size_t cols)
{
    char name[128];
    if (!module)
        return NULL;
    snprintf(name, sizeof(name), "model.layers.%zu.%s%s%s", layer, module, suffix ? "." : "",
             suffix ? suffix : "");
    return tensor(n, name, 0, cols);
}

/* Experts share one pair of stacks for each of gate, up and down. */
static void resolve_experts(struct net *n, size_t layer)
{
    static const char *const stacks[] = { "w1", "w3", "w2" };
    const struct model_config *c = n->c;
    const struct arch_names *names = c->arch->names;
    char weight[160], module[96];
    snprintf(weight, sizeof(weight), "model.layers.%zu.%s.weight", layer, names->router);
    n->router[layer] = affine(n, weight, "none", c->experts, c->hidden);
    if (c->expert_bias)
        n->router[layer].bias = layer_vector(n, layer, names->router, "bias", c->experts);
    for (size_t e = 0; e < c->experts; e++) {
        for (int i = 0; i < EXPERT_LINEARS; i++) {
            struct affine *l = &n->experts[layer][e][i];
            size_t out = i == 2 ? c->hidden : c->expert_size;
            size_t in = i == 2 ? c->expert_size : c->hidden, r = (size_t)n->a->desc.rank;
            char expert[96];
            snprintf(expert, sizeof(expert), "%s.%zu.%s", names->experts, e, names->expert[i]);
            snprintf(weight, sizeof(weight), "model.layers.%zu.%s.weight", layer, expert);
            snprintf(module, sizeof(module), "layers.%zu.%s.%s", layer, names->experts, stacks[i]);
            *l = affine(n, weight, module, out, in);
            if (c->expert_bias)
                l->bias = layer_vector(n, layer, expert, "bias", out);
            if (l->A && i == 2)
                l->A += e * r * in;
            else if (l->A)
                l->B += e * out * r;
        }
    }
}

/* One linear, which may be some rows of a module: of its weight, its bias and its B. */
static struct affine layer_linear(struct net *n, size_t layer, enum linear_id id)
{
    const struct model_config *c = n->c;
    char module[64], weight[96];
    size_t first, rows, out, in, r = (size_t)n->a->desc.rank;
    const char *name = model_module(c, id, &first, &rows);
    model_linear_shape(c, id, &out, &in);
    snprintf(module, sizeof(module), "layers.%zu.%s", layer, name);
    snprintf(weight, sizeof(weight), "model.%s.weight", module);
    struct affine l = affine(n, weight, module, rows, in);
    l.W += first * in;
    l.B = l.B ? l.B + first * r : NULL;
    l.out = out;
    if (model_linear_has_bias(c, id))
        l.bias = layer_vector(n, layer, name, "bias", rows) + first;
    return l;
}

static void resolve_layer(struct net *n, size_t i)
{
    const struct model_config *c = n->c;
    const struct arch_names *names = c->arch->names;
    bool whole = c->qk_norm == QK_NORM_WHOLE;
    n->norm1[i] = layer_vector(n, i, names->norm1, "weight", c->hidden);
    n->norm2[i] = layer_vector(n, i, names->norm2, "weight", c->hidden);
    n->post_norm1[i] = layer_vector(n, i, names->post_norm1, "weight", c->hidden);
    n->post_norm2[i] = layer_vector(n, i, names->post_norm2, "weight", c->hidden);
    if (model_layer_is(c, i, LAYER_DELTA)) {
        n->conv[i] =
            layer_vector(n, i, names->conv, "weight", model_delta_channels(c) * c->delta_conv);
        n->a_log[i] = layer_vector(n, i, names->a_log, NULL, c->delta_v_heads);
        n->dt_bias[i] = layer_vector(n, i, names->dt_bias, NULL, c->delta_v_heads);
        n->delta_norm[i] = layer_vector(n, i, names->delta_norm, "weight", c->delta_v_dim);
    } else if (c->qk_norm) {
        size_t hd = c->head_dim;
        n->q_norm[i] = layer_vector(n, i, names->q_norm, "weight", whole ? c->heads * hd : hd);
        n->k_norm[i] = layer_vector(n, i, names->k_norm, "weight", whole ? c->kv_heads * hd : hd);
    }
    if (c->sinks)
        n->sinks[i] = layer_vector(n, i, names->sinks, NULL, c->heads);
    for (enum linear_id id = 0; id < LINEARS; id++)
        if (model_has_linear(c, i, id))
            n->linear[i][id] = layer_linear(n, i, id);
    if (model_sparse(c, i))
        resolve_experts(n, i);
}

/* y (out) = W x + bias + alpha/r B A x */
ON_ONE_THREAD static void linear(const struct net *n, const struct affine *l, const double *x,
                                 double *y)
{
    size_t r = (size_t)n->a->desc.rank;
    for (size_t o = 0; o < l->out; o++) {
        y[o] = l->bias ? l->bias[o] : 0;
        for (size_t i = 0; i < l->in; i++)
            y[o] += l->W[o * l->in + i] * x[i];
    }
    for (size_t k = 0; l->A && k < r; k++) {
        double t = 0;
        for (size_t i = 0; i < l->in; i++)
            t += l->A[k * l->in + i] * x[i];
        for (size_t o = 0; o < l->out; o++)
            y[o] += 32.0 / (double)r * l->B[o * r + k] * t;
    }
}

/* offset: 1 where the model adds it to the weights */
ON_ONE_THREAD static void rms(const double *x, const double *w, size_t n, double eps, double offset,
                              double *y)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    s = 1 / sqrt(s / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * s * (w[i] + offset);
}

static double cosines[MODEL_ROPES][MAX_T][MAX_D], sines[MODEL_ROPES][MAX_T][MAX_D];

ON_ONE_THREAD static void rotate(const struct net *n, size_t layer, double *x, size_t pos)
{
    size_t half = n->c->rotary / 2;
    size_t which = n->e->model->ropes[1].inv_freq && model_layer_is(n->c, layer, LAYER_SLIDES);
    for (size_t j = 0; j < half && !model_layer_is(n->c, layer, LAYER_NO_ROPE); j++) {
        double a = x[j], b = x[j + half];
        x[j] = a * cosines[which][pos][j] - b * sines[which][pos][j];
        x[j + half] = b * cosines[which][pos][j] + a * sines[which][pos][j];
    }
}

ON_ONE_THREAD static void heads(const struct net *n, size_t layer, double *x, size_t count,
                                const double *norm, size_t pos)
{
    size_t hd = n->c->head_dim;
    double eps = (double)n->c->norm_eps, offset = n->c->plus_one;
    if (n->c->qk_norm == QK_NORM_WHOLE)
        rms(x, norm, count * hd, eps, offset, x);
    for (size_t h = 0; h < count; h++) {
        if (n->c->qk_norm == QK_NORM_HEAD)
            rms(x + h * hd, norm, hd, eps, offset, x + h * hd);
        rotate(n, layer, x + h * hd, pos);
    }
}

ON_ONE_THREAD static double cap(double x, double limit)
{
    return limit > 0 ? limit * tanh(x / limit) : x;
}

ON_ONE_THREAD static void attention(const struct net *n, size_t layer, size_t t, double *q,
                                    double k[MAX_T][MAX_D], double v[MAX_T][MAX_D], double *out)
{
    const struct model_config *c = n->c;
    size_t hd = c->head_dim, group = c->heads / c->kv_heads;
    bool slides = model_layer_is(c, layer, LAYER_SLIDES);
    double heat = 1;
    if (c->temperature != 0)
        heat += c->temperature * log(1 + floor((double)t / c->rope.original_context));
    for (size_t h = 0; h < c->heads; h++) {
        double p[MAX_T], sum = n->sinks[layer] ? exp(n->sinks[layer][h]) : 0;
        for (size_t j = 0; j <= t; j++) {
            double s = 0;
            for (size_t i = 0; i < hd; i++)
                s += q[h * hd + i] * heat * k[j][h / group * hd + i];
            p[j] = exp(cap(s * (double)c->attention_scale, (double)c->attn_cap));
            if (slides && j + c->window <= t)
                p[j] = 0;
            sum += p[j];
        }
        for (size_t i = 0; i < hd; i++) {
            out[h * hd + i] = 0;
            for (size_t j = 0; j <= t; j++)
                out[h * hd + i] += p[j] / sum * v[j][h / group * hd + i];
        }
    }
}

/* f(gate, up) */
ON_ONE_THREAD static double activate(const struct model_config *c, double gate, double up)
{
    double limit = (double)c->swiglu_limit;
    switch (c->activation) {
    case ACTIVATION_GELU:
        return gate / 2 * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) *
               up;
    case ACTIVATION_CLAMPED:
        gate = fmin(gate, limit);
        up = fmin(fmax(up, -limit), limit);
        return (up + 1) * gate / (1 + exp(-(double)c->swiglu_alpha * gate));
    default:
        return gate / (1 + exp(-gate)) * up;
    }
}

/* o = down(f(gate h, up h)) */
ON_ONE_THREAD static void mlp(const struct net *n, const struct affine *l, const double *h,
                              double *o)
{
    double gate[MAX_D], up[MAX_D];
    linear(n, &l[0], h, gate);
    linear(n, &l[1], h, up);
    for (size_t i = 0; i < l[0].out; i++)
        up[i] = activate(n->c, gate[i], up[i]);
    linear(n, &l[2], up, o);
}

/* The weight of each expert for one token, 0 for those not chosen. */
ON_ONE_THREAD static void route(struct net *n, size_t layer, const double *h, double *w)
{
    const struct model_config *c = n->c;
    double p[MAX_EXPERTS], sum = 0, kept = 0, last = 0;
    linear(n, &n->router[layer], h, p);
    for (size_t e = 0; e < c->experts; e++)
        sum += exp(p[e]);
    for (size_t e = 0; e < c->experts; e++) {
        p[e] = exp(p[e]) / sum;
        w[e] = 0;
    }
    for (size_t k = 0; k <= c->experts_used && k < c->experts; k++) {
        size_t best = 0;
        for (size_t e = 1; e < c->experts; e++)
            best = p[e] > p[best] ? e : best;
        if (k == c->experts_used) {
            n->closest = fmin(n->closest, last - p[best]);
            break;
        }
        kept += w[best] = last = p[best];
        p[best] = -1;
    }
    for (size_t e = 0; c->renormalize && e < c->experts; e++)
        w[e] /= kept;
}

ON_ONE_THREAD static void mixture(struct net *n, size_t layer, const double *h, double *o)
{
    double w[MAX_EXPERTS], part[MAX_D];
    route(n, layer, h, w);
    memset(o, 0, n->c->hidden * sizeof(*o));
    for (size_t e = 0; e < n->c->experts; e++) {
        if (w[e] == 0)
            continue;
        mlp(n, n->experts[layer][e], h, part);
        for (size_t i = 0; i < n->c->hidden; i++)
            o[i] += w[e] * part[i];
    }
}

/* The attention branch of position t; k and v keep those of earlier ones. */
ON_ONE_THREAD static void attend(const struct net *n, size_t layer, size_t t, const double *h,
                                 double k[MAX_T][MAX_D], double v[MAX_T][MAX_D], double *o)
{
    const struct model_config *c = n->c;
    const struct affine *l = n->linear[layer];
    double wide[2 * MAX_D], q[MAX_D], att[MAX_D];
    size_t hd = c->head_dim, stride = c->gate ? 2 * hd : hd;
    linear(n, &l[LINEAR_Q], h, wide);
    linear(n, &l[LINEAR_K], h, k[t]);
    linear(n, &l[LINEAR_V], h, v[t]);
    for (size_t i = 0; i < c->heads * hd; i++)
        q[i] = wide[i / hd * stride + i % hd];
    heads(n, layer, q, c->heads, n->q_norm[layer], t);
    heads(n, layer, k[t], c->kv_heads, n->k_norm[layer], t);
    attention(n, layer, t, q, k, v, att);
    for (size_t i = 0; c->gate && i < c->heads * hd; i++)
        att[i] /= 1 + exp(-wide[i / hd * stride + hd + i % hd]);
    linear(n, &l[LINEAR_O], att, o);
}

/* x / sqrt(sum x^2 + 1e-6) */
ON_ONE_THREAD static void l2(double *x, size_t n)
{
    double s = 1e-6;
    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] /= sqrt(s);
}

/* The delta rule as its recurrence says, position by position; m keeps the convolution's inputs and
 * S the states of the value heads. */
ON_ONE_THREAD static void delta_rule(const struct net *n, size_t layer, size_t t, const double *h,
                                     double m[MAX_T][MAX_D], double *S, double *o)
{
    const struct model_config *c = n->c;
    const struct affine *l = n->linear[layer];
    size_t dk = c->delta_k_dim, dv = c->delta_v_dim, keys = c->delta_k_heads * dk;
    size_t group = c->delta_v_heads / c->delta_k_heads, K = c->delta_conv;
    double x[MAX_D], z[MAX_D], b[MAX_D], a[MAX_D], y[MAX_D];
    linear(n, &l[LINEAR_DELTA_QKV], h, m[t]);
    linear(n, &l[LINEAR_DELTA_Z], h, z);
    linear(n, &l[LINEAR_DELTA_B], h, b);
    linear(n, &l[LINEAR_DELTA_A], h, a);
    for (size_t i = 0; i < model_delta_channels(c); i++) {
        x[i] = 0;
        for (size_t s = 0; s < K; s++)
            if (t + s + 1 >= K)
                x[i] += n->conv[layer][i * K + s] * m[t + s + 1 - K][i];
        x[i] /= 1 + exp(-x[i]);
    }
    for (size_t i = 0; i < 2 * c->delta_k_heads; i++)
        l2(x + i * dk, dk);
    for (size_t v = 0; v < c->delta_v_heads; v++, S += dk * dv) {
        const double *q = x + v / group * dk, *k = q + keys, *value = x + 2 * keys + v * dv;
        double g = -exp(n->a_log[layer][v]) * log1p(exp(a[v] + n->dt_bias[layer][v]));
        for (size_t i = 0; i < dk * dv; i++)
            S[i] = t ? S[i] * exp(g) : 0;
        for (size_t j = 0; j < dv; j++) {
            double u = value[j];
            for (size_t i = 0; i < dk; i++)
                u -= S[i * dv + j] * k[i];
            u /= 1 + exp(-b[v]);
            y[v * dv + j] = 0;
            for (size_t i = 0; i < dk; i++) {
                S[i * dv + j] += k[i] * u;
                y[v * dv + j] += S[i * dv + j] * q[i] / sqrt((double)dk);
            }
        }
        rms(y + v * dv, n->delta_norm[layer], dv, (double)c->norm_eps, 0, y + v * dv);
        for (size_t j = v * dv; j < (v + 1) * dv; j++)
            y[j] *= z[j] / (1 + exp(-z[j]));
    }
    linear(n, &l[LINEAR_DELTA_OUT], y, o);
}

/* x += scale norm(branch), the norm where there is one */
ON_ONE_THREAD static void add_branch(const struct net *n, double *x, double *branch,
                                     const double *norm)
{
    const struct model_config *c = n->c;
    if (norm)
        rms(branch, norm, c->hidden, (double)c->norm_eps, c->plus_one, branch);
    for (size_t i = 0; i < c->hidden; i++)
        x[i] += (double)c->residual_scale * branch[i];
}

/* What a branch reads of x: through a norm, where there is one. */
ON_ONE_THREAD static void read_branch(const struct net *n, const double *x, const double *norm,
                                      double *h)
{
    const struct model_config *c = n->c;
    memcpy(h, x, c->hidden * sizeof(*h));
    if (norm)
        rms(x, norm, c->hidden, (double)c->norm_eps, c->plus_one, h);
}

ON_ONE_THREAD static void layer_forward(struct net *n, size_t layer, double x[MAX_T][MAX_D],
                                        size_t T)
{
    static double k[MAX_T][MAX_D], v[MAX_T][MAX_D], S[MAX_D * MAX_D];
    const struct model_config *c = n->c;
    const struct affine *l = n->linear[layer];
    for (size_t t = 0; t < T; t++) {
        double h[MAX_D], o[MAX_D], part[MAX_D], mix[1];
        read_branch(n, x[t], n->norm1[layer], h);
        if (model_layer_is(c, layer, LAYER_DELTA))
            delta_rule(n, layer, t, h, k, S, o);
        else
            attend(n, layer, t, h, k, v, o);
        add_branch(n, x[t], o, n->post_norm1[layer]);
        read_branch(n, x[t], n->norm2[layer], h);
        if (model_sparse(c, layer))
            mixture(n, layer, h, o);
        else
            mlp(n, &l[LINEAR_GATE], h, o);
        if (model_sparse(c, layer) && c->shared) {
            mlp(n, &l[LINEAR_SHARED_GATE], h, part);
            linear(n, &l[LINEAR_SHARED_ROUTER], h, mix);
            for (size_t i = 0; i < c->hidden; i++)
                o[i] += part[i] / (1 + exp(-mix[0]));
        }
        add_branch(n, x[t], o, n->post_norm2[layer]);
    }
}

/* log softmax of every position: lp (T, vocab). */
ON_ONE_THREAD static void forward(struct net *n, const int32_t *tokens, size_t T,
                                  double lp[MAX_T][MAX_D])
{
    static double x[MAX_T][MAX_D];
    const struct model_config *c = n->c;
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < c->hidden; i++)
            x[t][i] = n->embed[(size_t)tokens[t] * c->hidden + i] * (double)c->embed_scale;
    for (size_t l = 0; l < c->layers; l++)
        layer_forward(n, l, x, T);
    for (size_t t = 0; t < T; t++) {
        double h[MAX_D], sum = 0;
        rms(x[t], n->norm, c->hidden, (double)c->norm_eps, c->plus_one, h);
        linear(n, &n->head, h, lp[t]);
        for (size_t i = 0; i < c->vocab; i++) {
            lp[t][i] = cap(lp[t][i] / (double)c->logit_divisor, (double)c->logit_cap);
            sum += exp(lp[t][i]);
        }
        for (size_t i = 0; i < c->vocab; i++)
            lp[t][i] -= log(sum);
    }
}

static void net_init(struct net *n, tinker_engine *e, const tinker_adapter *a)
{
    const struct model_config *c = &e->model->config;
    *n = (struct net){ .c = c, .e = e, .a = a, .closest = 1 };
    arena_init(&n->arena, SIZE_MAX);
    n->w = arena_array(&n->arena, a->params.total, sizeof(*n->w));
    for (size_t i = 0; i < a->params.total; i++)
        n->w[i] = (double)a->w[i];
    for (size_t i = 0; i < c->layers; i++)
        resolve_layer(n, i);
    n->norm = tensor(n, "model.norm.weight", 0, c->hidden);
    n->embed = tensor(n, "model.embed_tokens.weight", c->vocab, c->hidden);
    n->head = affine(n, c->tied ? "model.embed_tokens.weight" : "lm_head.weight", "unembed_tokens",
                     c->vocab, c->hidden);
    for (size_t r = 0; r < MODEL_ROPES && e->model->ropes[r].inv_freq; r++) {
        const struct rope *rope = &e->model->ropes[r];
        for (size_t t = 0; t < MAX_T; t++) {
            for (size_t j = 0; j < c->rotary / 2; j++) {
                double angle = (double)((float)t * rope->inv_freq[j]);
                cosines[r][t][j] = cos(angle) * (double)rope->scale;
                sines[r][t][j] = sin(angle) * (double)rope->scale;
            }
        }
    }
}

#endif
